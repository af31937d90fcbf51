#!/bin/sh
# magnitude_errors.sh - the error over the size of the logits, as docs/numerics.md has it.
# SPDX-License-Identifier: MIT
#
# usage: tools/magnitude_errors.sh              compares every row of the page's table
#        tools/magnitude_errors.sh REVISION     prints the rows of another revision's attn.c
#
# The columns of the page's table: data, O of version 1, O, dQ / dV of version 1, dQ / dV from stats,
# dQ / dV from the LSE alone. CC is the compiler, RUN a command that runs a program.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-magnitudes.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
for file in attn.h attn.c; do
    if [ $# -gt 0 ]; then
        git -C "$root" show "$1:$file" > "$work/$file" || exit 1
    else
        cp "$root/$file" "$work/$file" || exit 1
    fi
done
# shellcheck disable=SC2086 # RUN is words
"${CC:-cc}" -O2 -I"$work" "$root/tools/magnitude_errors.c" "$work/attn.c" -lm -o "$work/program" &&
    ${RUN:-} "$work/program" > "$work/rows" || exit 1
if [ $# -gt 0 ]; then
    cat "$work/rows"
    exit
fi
awk -F' [|] |^[|] | [|]$' '
    NR == FNR { stated[$2] = $4 "; " $6 "; " $7; next }
    { measured = $3 "; " $4 "; " $5; rows++ }
    stated[$2] != measured {
        print "magnitudes: " $2 ": " measured ", and docs/numerics.md has " stated[$2]
        wrong = 1
    }
    END {
        if (!wrong) print "magnitudes: " rows " rows as docs/numerics.md has them"
        exit wrong || !rows
    }' "$root/docs/numerics.md" "$work/rows"
