#!/bin/sh
# check.sh [BENCH] - checks that troubleshooting.md has every sentence and status of the library and
# every reason for which the bench skips a case and, where the program is given, that benchmarks.md
# has every preset, command and column of it.
# SPDX-License-Identifier: MIT
# The script takes the last string of each call of bad, bad_field, bad_number, bad_numbers and
# bad_entry, of each row that pairs, refuses or checks fields, of each #error and #pragma message and of the
# table of status names. It looks for the string word by word, with I for the # of an index and N for other
# numbers. RUN names an emulator for BENCH.
set -u
top=$(dirname "$0")/..
doc=$top/docs/troubleshooting.md
pages=$top/docs/benchmarks.md
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
found=0
missing=0

count() { # count STATUS WHAT
    if [ "$1" -eq 0 ]; then found=$((found + 1)); return; fi
    missing=$((missing + 1))
    echo "$2"
}

report() { # report WHAT LEAST: ends one part of the check, which must find LEAST things
    echo "$1: $found passed, $missing failed"
    [ "$missing" -eq 0 ] && [ "$found" -ge "$2" ] || failed=1
    found=0
    missing=0
}
failed=0

# ---- sentences. A line holds one statement with adjacent strings joined.

cat "$top"/attn*.[ch] | tr '\n' ' ' | sed -e 's/"  *"//g' -e 's/;/;\
/g' > "$work/statements"
grep -oE '[( ]bad(_field|_numbers?|_entry)?\([^;]*;' "$work/statements" |
    sed -n 's/.*"\([^"]*\)"[^"]*$/\1/p' |
    sed -e 's/[ (]*$//' -e 's/\[#\]/[I]/g' -e 's/#/N/g' > "$work/sentences"
grep -oE '", [^"{}]*, +" [^"]*" \}' "$work/statements" |
    sed 's/.*"\([^"]*\)" }$/\1/' >> "$work/sentences"
grep -oE '(ALONE|TOGETHER)\([^"]*"[^"]*"|instead = "[^"]*"|" does not take it"' "$work/statements" |
    sed 's/.*"\([^"]*\)"$/\1/' >> "$work/sentences"
grep -hoE '^#(error|pragma message) "[^"]*"' "$top"/attn*.[ch] |
    sed -e 's/^[^"]*"//' -e 's/"$//' >> "$work/sentences"

explained() { # checks that each line of sentences stands in the page
    sort -u "$work/sentences" | grep . > "$work/all"
    while IFS= read -r sentence; do
        grep -qF -- "$sentence" "$doc"
        count $? "not in docs/troubleshooting.md: $sentence"
    done < "$work/all"
}

explained
report sentences 40

# ---- reasons for which the bench skips a case, with N for numbers, up to a text of another part

cat "$top"/bench/run/*.c | tr '\n' ' ' | sed -e 's/RUN_WRONG "/"wrong result/g' -e 's/"  *"//g' -e 's/;/;\
/g' | grep -o 'skip(r, "[^"]*"' | sed -e 's/^skip(r, "//' -e 's/"$//' -e 's/%s.*//' \
    -e 's/%[.0-9]*[fgd]/N/g' -e 's/[: ]*$//' > "$work/sentences"
explained
report 'reasons of the bench' 10

# ---- statuses. Each has a line of the table with a link, and an entry of symptom, command and cure

section() { awk -v title="### $1" '/^##/ {on = $0 == title; next} on' "$doc"; }
anchor() { printf '%s' "$1" | tr 'A-Z ' 'a-z-'; }

grep -oE 'names\[\] = \{ "ok"[^}]*' "$work/statements" | grep -oE '"[^"]*"' |
    tr -d '"' > "$work/names"
sed -n '/^typedef enum attn_status/,/^} attn_status/p' "$top/attn.h" |
    sed -nE 's/^ *(ATTN_[A-Z_]+).*/\1/p' > "$work/values"
[ "$(grep -c . "$work/names")" -eq "$(grep -c . "$work/values")" ]
count $? "attn_status has other values than attn_status_string has names"
while IFS= read -r value; do
    grep -qF "| \`$value\` |" "$doc"
    count $? "not in the table of docs/troubleshooting.md: $value"
done < "$work/values"
echo 'unknown status' >> "$work/names"
while IFS= read -r name; do
    grep -qF "| [\`$name\`](#$(anchor "$name")) |" "$doc"
    count $? "no line in the table of docs/troubleshooting.md: $name"
    for part in Symptom Command Cure; do
        section "$name" | grep -q "^- $part: "
        count $? "docs/troubleshooting.md, entry $name: no $part"
    done
done < "$work/names"
report statuses 25

# ---- other entries, which have all three parts, and links within a page, which need a heading

grep '^### ' "$doc" | sed 's/^### //' > "$work/entries"
while IFS= read -r name; do
    [ "$(section "$name" | grep -cE '^- (Symptom|Command|Cure): ')" -eq 3 ]
    count $? "docs/troubleshooting.md, entry $name: symptom, command and cure, once each"
done < "$work/entries"
for page in "$top"/README.md "$top"/docs/*.md "$top"/docs/*/*.md; do
    sed -n 's/^##* //p' "$page" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-' > "$work/anchors"
    grep -oE '\]\(#[^)]*\)' "$page" | sed -e 's/^](#//' -e 's/)$//' > "$work/links"
    while IFS= read -r link; do
        grep -qxF -- "$link" "$work/anchors"
        count $? "$page: no heading for the link #$link"
    done < "$work/links"
done
report 'entries and links' 15

# ---- the map of the house: the line of a folder names its rooms without their ending

for room in "$top"/src/*.[ch] "$top"/src/api/*.h "$top"/src/*/*.c; do
    name=${room#"$top"/src/}
    case $name in
    attn.c | opencl/attn_opencl.c) continue ;; # what the others are put into
    api/*) grep -qF "\`$name\`" "$top/docs/house.md" ;;
    */*)
        leaf=${name#*/}
        grep "^| \`${name%/*}/\`" "$top/docs/house.md" | grep -qF "\`${leaf%.c}\`"
        ;;
    *) grep -qF "\`$name\`" "$top/docs/house.md" ;;
    esac
    count $? "docs/house.md does not name src/$name"
done
report 'rooms' 80

# ---- the bench

[ $# -gt 0 ] || exit $failed
bench=$1

described() { # described WHAT HEADING: checks that each line of listed begins a row below it
    awk -v title="## $2" '/^## / {on = $0 == title; next} on' "$pages" > "$work/rows"
    while IFS= read -r name; do
        grep -qE "^\|[^|]*\`$name\`" "$work/rows"
        count $? "not in docs/benchmarks.md, $2: $1 $name"
    done < "$work/listed"
}

${RUN:-} "$bench" --list | sed -n 's/^preset \([a-z_]*\) .*/\1/p' > "$work/listed"
described preset Presets
${RUN:-} "$bench" --help | sed -n 's/^  \([a-z]\{1,\}\)  .*/\1/p' > "$work/listed"
described command Commands
${RUN:-} "$bench" --shape 1,1,1,8,8,8 --impl tiled --iters 1 --csv "$work/csv" > "$work/said" ||
    cat "$work/said"
head -1 "$work/csv" | tr ',' '\n' > "$work/listed"
described column 'How to read the figures'
report 'presets, commands, columns' 50
exit $failed
