#!/bin/sh
# check.sh BUILD - runs the examples in the folder BUILD and compares what they print; compares the
# synopsis of attn.h with minimal.c and with the first example of README.md, line by line, that of
# attn_backward.h with gradients.c and the example of "Training" there, and the loop of decode.c with
# the example of "Serving".
# SPDX-License-Identifier: MIT
# RUN: an emulator to run them with. expected/NAME.args: words behind the command, which runs in the
# folder above this one. Where expected/NAME.sed exists, what NAME prints goes through it first:
# figures differ from run to run.
set -u
build=$(cd "${1:-build}" && pwd) || exit 1
here=$(cd "$(dirname "$0")" && pwd) || exit 1
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

part() { # part FILE NAME: what stands between the comments NAME and end of NAME, moved to the left
    sed -n "/\/\* $2 \*\//,/\/\* end of $2 \*\//p" "$1" | sed -e '1d' -e '$d' -e 's/^    //'
}

first_code() { # first_code HEADING: the first C example below a heading of README.md
    awk -v title="## $1" '/^## / {in_part = $0 == title} in_part && /^```c$/ {on = 1; next}
        /^```$/ {if (on) exit} on' "$top/README.md"
}

for expected in "$here"/expected/*.txt; do
    name=$(basename "$expected" .txt)
    words=$here/expected/$name.args
    [ -f "$words" ] || words=/dev/null
    # shellcheck disable=SC2046 # words
    (cd "$top" && ${RUN:-} "$build/$name" $(cat "$words")) > "$work/raw" 2>&1
    status=$?
    script=$here/expected/$name.sed
    [ -f "$script" ] || script=/dev/null
    sed -f "$script" "$work/raw" > "$work/out"
    diff "$expected" "$work/out" && [ "$status" -eq 0 ]
    count $? "example $name (exit status $status)"
done

(cd "$top" && ${RUN:-} "$build/train" --quick --check-gradients LICENSE) > "$work/raw" 2>&1
status=$?
[ "$status" -eq 0 ] || cat "$work/raw"
count "$status" "example train: its gradients are not the slopes of its loss"

equal() { # equal FILE FILE WHAT: neither is empty
    [ -s "$1" ] && diff "$1" "$2"
    count $? "$3"
}

sed -n '/^ \* SYNOPSIS/,/^ \* CONVENTIONS/s/^ \*     //p' "$top/attn.h" > "$work/synopsis"
sed -n '/^ \*     attn_gradients/,/^ \* Method/s/^ \*     //p' "$top/attn_backward.h" > "$work/backward"
part "$here/gradients.c" synopsis > "$work/gradients"
first_code Training > "$work/training"
part "$here/minimal.c" synopsis > "$work/minimal"
first_code 'First example' > "$work/readme"
part "$here/decode.c" serving > "$work/decode"
first_code Serving > "$work/serving"
equal "$work/synopsis" "$work/minimal" "minimal.c differs from the synopsis of attn.h"
equal "$work/synopsis" "$work/readme" "README.md's first example differs from the synopsis of attn.h"
equal "$work/backward" "$work/gradients" "gradients.c differs from the synopsis of attn_backward.h"
equal "$work/backward" "$work/training" \
    "README.md's example of training differs from the synopsis of attn_backward.h"
equal "$work/decode" "$work/serving" "README.md's example of serving differs from decode.c"

echo "examples: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
