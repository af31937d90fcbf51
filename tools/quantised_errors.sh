#!/bin/sh
# quantised_errors.sh - the error by the storage type of K and V, as docs/numerics.md has it.
# SPDX-License-Identifier: MIT
#
# usage: tools/quantised_errors.sh     compares every row of the page's table
#
# CC is the compiler, RUN a command that runs a program.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-quantised.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
# shellcheck disable=SC2086 # RUN is words
"${CC:-cc}" -O2 -I"$root" "$root/tools/quantised_errors.c" "$root/attn.c" -lm -o "$work/program" &&
    ${RUN:-} "$work/program" > "$work/rows" || exit 1
if grep -Fxv -f "$root/docs/numerics.md" "$work/rows"; then
    echo "quantised errors: docs/numerics.md has other rows"
    exit 1
fi
[ -s "$work/rows" ] || exit 1
echo "quantised errors: $(grep -c . "$work/rows") rows as docs/numerics.md has them"
