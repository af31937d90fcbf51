#!/bin/sh
# check.sh BUILD - runs the examples in the folder BUILD and compares what they print, and checks
# that lines which stand in several places are equal: the synopsis of attn.h in minimal.c and in
# "First example" of README.md, the synopsis of attn_backward in gradients.c and in "Training", and
# the loop of decode.c in "Serving".
# SPDX-License-Identifier: MIT
# RUN is an emulator to run them with. expected/NAME.args holds the words behind the command, which
# runs in the folder above this one. expected/NAME.sed, where it exists, removes the figures that
# differ from run to run from what NAME prints.
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

part() { # part FILE NAME: prints the lines between the comments NAME and end of NAME, moved left
    sed -n "/\/\* $2 \*\//,/\/\* end of $2 \*\//p" "$1" | sed -e '1d' -e '$d' -e 's/^    //'
}

first_code() { # first_code HEADING: prints the first C example below a heading of README.md
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

(cd "$top" && ${RUN:-} "$build/train" --quick --width 64 --heads 2 --storage LICENSE) \
    > "$work/raw" 2>&1 && grep -q '^| q4_0, rotated, whole numbers |' "$work/raw"
status=$?
[ "$status" -eq 0 ] || cat "$work/raw"
count "$status" "example train: its loss with K and V in fewer bits"

for type in q8_0 "q4_0 integer"; do # The ways of serving agree in every bit.
    (cd "$top" && ${RUN:-} "$build/llm" --cache "$type") > "$work/raw" 2>&1 &&
        grep -qx "same bits of every logit in cached, ring, paged: yes" "$work/raw"
    count $? "example llm --cache \"$type\""
done

equal() { # equal FILE FILE WHAT: fails also where the first is empty
    [ -s "$1" ] && diff "$1" "$2"
    count $? "$3"
}

sed -n '/^ \* SYNOPSIS/,/^ \* CONVENTIONS/s/^ \*     //p' "$top/attn.h" > "$work/synopsis"
sed -n '/^ \*     attn_gradients/,/^ \* Method/s/^ \*     //p' "$top/attn.h" > "$work/backward"
part "$here/gradients.c" synopsis > "$work/gradients"
first_code Training > "$work/training"
part "$here/minimal.c" synopsis > "$work/minimal"
first_code 'First example' > "$work/readme"
part "$here/decode.c" serving > "$work/decode"
first_code Serving > "$work/serving"
equal "$work/synopsis" "$work/minimal" "minimal.c differs from the synopsis of attn.h"
equal "$work/synopsis" "$work/readme" "README.md's first example differs from the synopsis of attn.h"
equal "$work/backward" "$work/gradients" "gradients.c differs from the synopsis of attn_backward"
equal "$work/backward" "$work/training" \
    "README.md's example of training differs from the synopsis of attn_backward"
equal "$work/decode" "$work/serving" "README.md's example of serving differs from decode.c"

echo "examples: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
