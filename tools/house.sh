#!/bin/sh
# house.sh - the size of the house, and the functions that know many fields of a call by name.
# SPDX-License-Identifier: MIT
#
#     sh tools/house.sh
#
# A field that functions list by hand is forgotten in one of them sooner or later: src/fields.c is
# where fields are listed. A function counts that names nine or more members of attn_params, of p,
# asked, one, resolved or of a member p of something. Made files do not count as lines.
set -eu
cd "$(dirname "$0")/.."

lines() { # lines NAME FILE...
    name=$1
    shift
    printf '%-40s %6d lines in %d files\n' "$name" "$(cat "$@" | wc -l)" $#
}

lines "library: src, vector kernels, hosts" $(find src -name '*.[ch]') attn_simd_*.c attn_opencl.h \
    attn_mpi.[ch]
lines "bench" bench.c $(find bench -name '*.[ch]')
lines "tests" test.c $(find tests -name '*.[ch]')

echo "functions that name nine or more fields of attn_params:"
awk '
    FILENAME == "src/api/attn.h" {
        if (/^typedef struct attn_params [{]/)
            inside = 1
        if (/^} attn_params;/)
            inside = 0
        line = $0
        sub(/\/\*.*/, "", line)
        if (inside && line ~ /^    [a-z]/ && line ~ /;/) {
            gsub(/;.*|\*/, "", line)
            n = split(line, word, /[ ,]+/)
            for (i = 3; i <= n; i++)
                member[word[i]] = 1
        }
        next
    }
    FNR == 1 { name = ""; body = 0 }
    /^[a-zA-Z].*\(/ && !/;/ && !/^#/ {
        name = $0
        sub(/\(.*/, "", name)
        sub(/.*[ *]/, "", name)
    }
    /^{/ { body = 1; count = 0; split("", seen) }
    /^}/ {
        if (body && count >= 9)
            printf "%4d  %s  %s\n", count, FILENAME, name
        total += body && count >= 9
        body = 0
    }
    body {
        line = $0
        while (match(line, /[a-zA-Z_]+(->|[.])[a-z_0-9]+/)) {
            split(substr(line, RSTART, RLENGTH), part, /->|[.]/)
            line = substr(line, RSTART + RLENGTH)
            owner = part[1] ~ /^(p|asked|one|resolved)$/
            if (part[2] == "p" && match(line, /^(->|[.])[a-z_0-9]+/)) {
                part[2] = substr(line, RSTART, RLENGTH)
                sub(/->|[.]/, "", part[2])
                owner = 1
            }
            if (owner && part[2] in member && !seen[part[2]]++)
                count++
        }
    }
    END { printf "%4d  functions\n", total }
' src/api/attn.h $(find src -name '*.c' | sort)
