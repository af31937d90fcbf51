#!/bin/sh
# mutants.sh - every planted one-line bug must be noticed by the tests.
# SPDX-License-Identifier: MIT
#
#     sh tools/mutants.sh [folder for builds, default build/mutants] [word in a note ...]
#
# tools/mutants.txt lists substitutions. Each is applied to a copy of its file, built with -O1 and
# run through the test groups until the first failure: first the group that the list names, then
# the others. An unchanged tree must pass; a text that is not there exactly once, a mutant that
# does not compile and a mutant that no group notices are failures. With words, only mutants whose
# line contains one of them run. JOBS=N runs N at a time (default 2). CC: the compiler.

cd "$(dirname "$0")/.." || exit 1
list=tools/mutants.txt
compiler=${CC:-cc}
jobs=${JOBS:-2}
flags="-std=c99 -ffp-contract=off -O1 -w"
groups=${GROUPS_OF_TESTS:-"kernels bits laws outputs poison stability threads explain masks errors"}
least=5 # mutants in each section of the list

# Numbered lines "N ## file ## old ## new ## group ## note" of the list.
mutants() {
    grep ' ## ' "$list" | grep -v '^#' | awk '{ print NR " ## " $0 }'
}

field() {
    printf '%s\n' "$1" | awk -v n="$2" '{ split($0, part, " ## "); print part[n] }'
}

# Copies file $1 to $2 with text $3 replaced by $4; fails unless $3 is there exactly once.
substitute() {
    OLD=$3 NEW=$4 awk '
        BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"] }
        {
            line = $0
            out = ""
            while ((at = index(line, old)) > 0) {
                out = out substr(line, 1, at - 1) new
                line = substr(line, at + length(old))
                count++
            }
            print out line
        }
        END { exit count != 1 }' "$1" > "$2"
}

limited() {
    if command -v timeout > /dev/null; then timeout 200 "$@"; else "$@"; fi
}

lines() {
    if command -v stdbuf > /dev/null; then limited stdbuf -oL "$@"; else limited "$@"; fi
}

# Runs test $1 on group $3 with kernel set $2; prints the first failure, nothing when all passed.
first_failure() {
    lines "$1" --kernels "$2" "$3" 2>&1 | awk '
        /FAILED/ { print; found = 1; exit }
        { last = $0 }
        END { if (!found && last !~ /passed, 0 failed/) print "ended with: " last }'
}

build() {
    $compiler $flags -I"$out/tree" -c "$1/attn.c" -o "$1/attn.o" > "$1/log" 2>&1 &&
        $compiler "$1/attn.o" "$out"/harness/*.o -o "$1/test" -lm -lpthread >> "$1/log" 2>&1
}

# One mutant: its verdict goes to $out/N/verdict.
one() {
    line=$(mutants | sed -n "${1}p")
    at=$out/$1
    rm -rf "$at"
    mkdir -p "$at"
    kernels=$best
    first=$(field "$line" 5)
    case $first in portable:*) kernels=portable first=${first#portable:} ;; esac
    verdict=SURVIVED
    old=$(field "$line" 3)
    new=$(field "$line" 4)
    if ! substitute "$out/tree/$(field "$line" 2)" "$at/attn.c" "$old" "$new"; then
        verdict="NOT APPLIED: the text is not there exactly once"
    elif ! build "$at"; then
        verdict="NOT BUILT"
    else
        for group in $first $(echo "$groups" | sed "s/\\b$first\\b//"); do
            failure=$(first_failure "$at/test" "$kernels" "$group")
            if [ -n "$failure" ]; then
                verdict="killed by $group"
                break
            fi
        done
        rm -f "$at/test" "$at/attn.o"
    fi
    printf '%-28s %s: %s\n' "$verdict" "$1" "$(field "$line" 6)" > "$at/verdict"
}

if [ "$1" = --one ]; then
    out=$3
    best=$4
    one "$2"
    exit 0
fi

out=${1:-build/mutants}
[ $# -gt 0 ] && shift
mkdir -p "$out/harness" || exit 1
rm -f "$out"/harness/*.o
mkdir -p "$out/tree"
cp attn.h attn.c "$out/tree" || exit 1
sources=$(sed -n '/^TESTS *:=/,/[^\\]$/p' Makefile | tr -d '\\' | sed 's/TESTS *:=//')
for source in $sources; do
    $compiler $flags -c "$source" -o "$out/harness/$(basename "$source" .c).o" || exit 1
done

# The tree as it is: all groups pass.
rm -rf "$out/0"
mkdir -p "$out/0"
cp "$out/tree/attn.c" "$out/0/attn.c"
build "$out/0" || { cat "$out/0/log"; exit 1; }
best=$("$out/0/test" selfcheck | sed -n 's/.*kernel sets \([a-z0-9_]*\).*/\1/p')
for group in $groups; do
    failure=$(first_failure "$out/0/test" "$best" "$group")
    [ -z "$failure" ] || echo "FAILED: the unchanged tree in $group: $failure"
done > "$out/0/verdict"
if [ -s "$out/0/verdict" ]; then
    cat "$out/0/verdict"
    exit 1
fi

numbers=$(mutants | if [ $# -gt 0 ]; then
    grep -F "$(printf '%s\n' "$@")"
else
    cat
fi | sed 's/ .*//')
echo "$numbers" | xargs -P "$jobs" -I '{}' sh tools/mutants.sh --one '{}' "$out" "$best"
for n in $numbers; do
    cat "$out/$n/verdict" || echo "ENDED EARLY $n"
done > "$out/table.txt"
sort "$out/table.txt"
total=$(wc -l < "$out/table.txt")
killed=$(grep -c '^killed' "$out/table.txt")
echo "mutants: $total planted, $killed killed, $((total - killed)) not"
awk -v least="$least" '
    /^# section:/ { section = $3; count[section] += 0 }
    / ## / && !/^#/ { count[section]++ }
    END {
        for (s in count)
            if (count[s] < least) { print "too few mutants in section " s; bad = 1 }
        exit bad
    }' "$list" && [ "$killed" = "$total" ]
