#!/bin/sh
# baseline_trial.sh - counts how often `bench --baseline` is right on this machine: it must flag a
# slowdown of 20 % that is planted in a kernel, and pass an equal run.
# SPDX-License-Identifier: MIT
#
#     sh tools/baseline_trial.sh [N [PERCENT]]       (20 times, 20 %; BENCH, ARGS)
#
# Each trial makes its own baseline and then runs the bench twice against it. No other script runs
# it, because its findings depend on the load of the machine. The exit status is 0 when all trials
# were right.
set -u
times=${1:-20}
percent=${2:-20}
bench=${BENCH:-build/bench_test}
arguments=${ARGS:-latency --quick --impl tiled --min-time 0.15}
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-baseline.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
flagged=0
passed=0
longest=0

# once NAME OPTION...: runs the bench and prints its exit status and time
once()
{
    name=$1
    shift
    begin=$(date +%s)
    # shellcheck disable=SC2086 # words
    "$bench" $arguments "$@" > "$work/$name" 2>&1
    status=$?
    took=$(($(date +%s) - begin))
    [ "$took" -le "$longest" ] || longest=$took
}

planted() { sed -n 's/^planted: .* takes \([0-9.-]*\) %.*/\1/p' "$work/slow" | tr '\n' ' '; }
mean() { sed -n 's/.*arithmetic is the roof \([0-9.]*\).*/\1/p' "$work/$1"; }

trial=0
while [ "$trial" -lt "$times" ]; do
    trial=$((trial + 1))
    once old --json "$work/old.json"
    [ "$status" -eq 0 ] || { cat "$work/old"; exit 1; }
    once equal --baseline "$work/old.json"
    equal=$status
    once slow --baseline "$work/old.json" --plant-slowdown "$percent"
    [ "$equal" -eq 0 ] && passed=$((passed + 1))
    [ "$status" -eq 3 ] && flagged=$((flagged + 1))
    echo "$trial: equal run: status $equal, mean ratio $(mean equal); planted $(planted)%: status" \
        "$status, mean ratio $(mean slow)"
done
echo "equal runs passed: $passed of $times; planted $percent % flagged: $flagged of $times;" \
    "longest run $longest s"
[ "$passed" -eq "$times" ] && [ "$flagged" -eq "$times" ]
