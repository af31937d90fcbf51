#!/bin/sh
# check_bench.sh - every reason for which the bench skips a case stands in troubleshooting.md.
# SPDX-License-Identifier: MIT
# Takes the format of each skip(r, "...") in bench/run.c with N for its numbers, up to a text that
# another part of the program supplies, and looks for it word by word.
set -u
top=$(dirname "$0")/..
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

tr '\n' ' ' < "$top/bench/run.c" | sed -e 's/WRONG "/"wrong result/g' -e 's/"  *"//g' -e 's/;/;\
/g' | grep -o 'skip(r, "[^"]*"' | sed -e 's/^skip(r, "//' -e 's/"$//' -e 's/%s.*//' \
    -e 's/%[.0-9]*[fgd]/N/g' -e 's/[: ]*$//' | sort -u | grep . > "$work/sentences"

found=0
missing=0
while IFS= read -r sentence; do
    if grep -qF -- "$sentence" "$top/docs/troubleshooting.md"; then
        found=$((found + 1))
    else
        missing=$((missing + 1))
        echo "not in docs/troubleshooting.md: $sentence"
    fi
done < "$work/sentences"
echo "reasons of the bench: $found passed, $missing failed"
[ "$missing" -eq 0 ] && [ "$found" -ge 10 ]
