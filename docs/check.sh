#!/bin/sh
# check.sh - every sentence that the library can say about wrong parameters stands in troubleshooting.md.
# SPDX-License-Identifier: MIT
# Takes the last string of each call of bad, bad_field, bad_number, bad_entry, of each #error and of
# the table of status names, and looks for it word by word.
set -u
top=$(dirname "$0")/..
doc=$top/docs/troubleshooting.md
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# One line a statement; adjacent strings joined; '|' is escaped in Markdown tables.
cat "$top"/attn*.[ch] | tr '\n' ' ' | sed -e 's/"  *"//g' -e 's/;/;\
/g' > "$work/statements"
grep -oE '[( ]bad(_field|_number|_entry)?\([^;]*;' "$work/statements" |
    sed -n 's/.*"\([^"]*\)"[^"]*$/\1/p' | sed 's/[ (]*$//' > "$work/sentences"
grep -hoE '^#error "[^"]*"' "$top"/attn*.[ch] | sed -e 's/^#error "//' -e 's/"$//' >> "$work/sentences"
grep -oE 'names\[\] = \{ "ok"[^}]*' "$work/statements" | grep -oE '"[^"]*"' | tr -d '"' |
    sed -e 's/^/`/' -e 's/$/`/' >> "$work/sentences"
sort -u "$work/sentences" | grep . > "$work/all"

found=0
missing=0
while IFS= read -r sentence; do
    if grep -qF -- "$sentence" "$doc"; then found=$((found + 1)); continue; fi
    missing=$((missing + 1))
    echo "not in docs/troubleshooting.md: $sentence"
done < "$work/all"
echo "sentences: $found passed, $missing failed"
[ "$missing" -eq 0 ] && [ "$found" -ge 40 ]
