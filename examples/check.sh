#!/bin/sh
# check.sh BUILD - runs the examples in the folder BUILD and compares what they print; compares the
# synopsis of attn.h with minimal.c and with the first example of README.md, line by line.
# SPDX-License-Identifier: MIT
# RUN: an emulator to run them with. Where expected/NAME.sed exists, what NAME prints goes through
# it first: figures differ from run to run.
set -u
build=${1:-build}
here=$(dirname "$0")
top=$here/..
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

count() { # count STATUS NAME
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "FAILED: $2"
}

for expected in "$here"/expected/*.txt; do
    name=$(basename "$expected" .txt)
    ${RUN:-} "$build/$name" > "$work/raw" 2>&1
    status=$?
    script=$here/expected/$name.sed
    [ -f "$script" ] || script=/dev/null
    sed -f "$script" "$work/raw" > "$work/out"
    diff "$expected" "$work/out" && [ "$status" -eq 0 ]
    count $? "example $name (exit status $status)"
done

sed -n '/^ \* SYNOPSIS/,/^ \* CONVENTIONS/s/^ \*     //p' "$top/attn.h" > "$work/synopsis"
sed -n '/\/\* synopsis \*\//,/\/\* end of synopsis \*\//p' "$here/minimal.c" |
    sed -e '1d' -e '$d' -e 's/^    //' > "$work/minimal"
awk '/^```c$/ {on = 1; next} /^```$/ {if (on) exit} on' "$top/README.md" > "$work/readme"
[ -s "$work/synopsis" ]
count $? "attn.h has no synopsis"
diff "$work/synopsis" "$work/minimal"
count $? "minimal.c differs from the synopsis of attn.h"
diff "$work/synopsis" "$work/readme"
count $? "README.md's first example differs from the synopsis of attn.h"

echo "examples: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
