#!/bin/sh
# refused_fields.sh - which fields which functions refuse, as docs/combinations.md has it.
# SPDX-License-Identifier: MIT
#
# usage: tools/refused_fields.sh     compares the page's table (WRITE=1 writes it)
#
# CC is the compiler.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
page=$root/docs/combinations.md
begin='<!-- fields -->' end='<!-- /fields -->'
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-refused.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
"${CC:-cc}" -std=c99 -DATTN_UNOPTIMIZED -I"$root" "$root/tools/refused_fields.c" -lm \
    -o "$work/program" && "$work/program" > "$work/rows" || exit 1
awk -v begin="$begin" -v end="$end" -v rows="$work/rows" '
    $0 == end { on = 0 }
    !on { print }
    $0 == begin {
        on = 1
        print "| field | refused by | why |\n|---|---|---|"
        while ((getline line < rows) > 0) print line
    }' "$page" > "$work/page" || exit 1
[ -z "${WRITE:-}" ] || cp "$work/page" "$page"
if ! diff "$page" "$work/page"; then
    echo "refused fields: docs/combinations.md has other rows: WRITE=1 sh tools/refused_fields.sh writes them"
    exit 1
fi
echo "refused fields: $(grep -c . "$work/rows") rows as docs/combinations.md has them"
