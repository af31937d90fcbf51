#!/bin/sh
# house.sh - the files in the root are what src/ gives, and every room of src/ compiles alone: what
# it includes suffices. The other headers of src/api/ are parts of attn.h: see tests/subsets.sh.
# SPDX-License-Identifier: MIT
#
#     sh tests/house.sh BUILD        (which holds kernels_cl.inc; CC from the environment)
#
# Every member of attn_params has a row in the table of src/fields.c, because what has none is refused
# by no level and compared by no ranks.
#
# Planted bugs must be noticed: a room without the first of its includes, and a table without a row.
# Last every text of tools/mutants.txt must still occur once, so that a change of a room finds its
# mutants at once.
set -u
build=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-house.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. "tests/expect.sh"

alone() # alone FILE
{
    "${CC:-cc}" -std=c99 -Wall -Wextra -Wno-unused -Werror -I. -I"$build" -fsyntax-only "$1"
}

not()
{
    ! "$@"
}

room() # room FILE
{
    sh tools/amalgamate.sh --room "$1" > "$work/room.c" && [ -s "$work/room.c" ] &&
        alone "$work/room.c"
}

# all_in_table TABLE: whether each member of attn_params, with those of the structs in it, is named in
# the table; data and strides are, where TENSOR or PAIRS names their struct.
all_in_table()
{
    awk '
    FILENAME ~ /attn[.]h$/ && /^typedef struct [a-z_]+ [{]/ { inside = $3; next }
    FILENAME ~ /attn[.]h$/ && /^}/ { inside = ""; next }
    FILENAME ~ /attn[.]h$/ && inside != "" {
        sub(/\/[*].*/, "")
        if (!/^    [a-z].*;/)
            next
        gsub(/[*;,]/, " ")
        first = $1 == "const" ? 3 : 2
        for (i = first; i <= NF; i++)
            members[inside] = members[inside] " " $(first - 1) ":" $i
        next
    }
    FILENAME !~ /attn[.]h$/ { table = table $0 }
    function visit(type, path,    n, i, member, part) {
        n = split(members[type], member, " ")
        for (i = 1; i <= n; i++) {
            split(member[i], part, ":")
            if (part[1] in members && members[part[1]] != "")
                visit(part[1], path part[2] ".")
            else if (!has(path part[2]) && !(part[2] ~ /^(data|stride_.*)$/ &&
                     (has(substr(path, 1, length(path) - 1)))))
                missing = missing " " path part[2]
        }
    }
    function has(name) { return index(table, "(" name ",") || index(table, "(" name ")") }
    END {
        visit("attn_params", "")
        gsub(/ state[.](num_rows|head_dim_v)/, "", missing) # of merges, not of the call
        if (missing != "")
            print "no row in the table of fields:" missing
        exit missing != ""
    }' src/api/attn.h "$1"
}

expect "the files in the root are what src/ gives" sh tools/amalgamate.sh --check
# shellcheck disable=SC2044 # no spaces in these names
for file in $(find src -name '*.[ch]' ! -path 'src/api/*' | sort) src/api/attn.h; do
    expect "$file alone" room "$file"
done
grep -v '^#include "numbers.c"' src/halves.c > "$work/planted.c"
expect "a room without its include is noticed" not alone "$work/planted.c"
expect "every member of attn_params has a row" all_in_table src/fields.c
grep -v 'block_mask[.]block_k, F' src/fields.c > "$work/fields.c"
expect "a member without a row is noticed" not all_in_table "$work/fields.c"
expect "docs/combinations.md has the refusals of the table" sh tools/refused_fields.sh
expect "every mutant can be planted" sh tools/mutants.sh --check
summary "the house"
