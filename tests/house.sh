#!/bin/sh
# house.sh - the files in the root are what src/ gives, and every room of src/ compiles alone: what
# it includes suffices. The other headers of src/api/ are parts of attn.h: see tests/subsets.sh.
# SPDX-License-Identifier: MIT
#
#     sh tests/house.sh BUILD        (which holds kernels_cl.inc; CC from the environment)
#
# A planted bug must be noticed: a room without the first of its includes. Last every text of
# tools/mutants.txt must still occur once, so that a change of a room finds its mutants at once.
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

expect "the files in the root are what src/ gives" sh tools/amalgamate.sh --check
# shellcheck disable=SC2044 # no spaces in these names
for file in $(find src -name '*.[ch]' ! -path 'src/api/*' | sort) src/api/attn.h; do
    expect "$file alone" room "$file"
done
grep -v '^#include "numbers.c"' src/halves.c > "$work/planted.c"
expect "a room without its include is noticed" not alone "$work/planted.c"
expect "every mutant can be planted" sh tools/mutants.sh --check
summary "the house"
