#!/bin/sh
# run.sh FUZZER SECONDS [HARNESS...] - runs each harness with libFuzzer in turn: what `make fuzz` does.
# SPDX-License-Identifier: MIT
#
# Each begins with the inputs of fuzz/corpus/HARNESS and those that earlier runs found, which lie
# beside FUZZER in corpus/HARNESS. An input that fails is kept in found/; replay it with any compiler
# by `build/test corpus -- HARNESS FILE`. One line a harness: executions, edges of the whole program
# that were reached, inputs that are kept. Exit status 1 when one failed.
set -u
fuzzer=$1
seconds=$2
shift 2
folder=$(dirname "$fuzzer")
failed=0
[ $# -gt 0 ] || set -- $(sed -n 's/^FUZZ_HARNESS(\([a-z_]*\),.*/\1/p' "$folder/harnesses.inc")
mkdir -p "$folder/found"
export OCL_ICD_VENDORS=/nonexistent # no driver is loaded

for harness; do
    log=$folder/$harness.log
    mkdir -p "$folder/corpus/$harness" "fuzz/corpus/$harness"
    cp "$fuzzer" "$folder/$harness.new" && mv "$folder/$harness.new" "$folder/$harness"
    if "$folder/$harness" -max_total_time="$seconds" -max_len=600 -timeout=600 -rss_limit_mb=3000 \
        -print_final_stats=1 -artifact_prefix="$folder/found/$harness-" \
        "$folder/corpus/$harness" "fuzz/corpus/$harness" > "$log" 2>&1; then
        verdict=passed
    else
        verdict=FAILED failed=1
    fi
    awk -v verdict="$verdict" -v harness="$harness" '
        match($0, /cov: [0-9]+/) { edges = substr($0, RSTART + 5, RLENGTH - 5) }
        match($0, /corp: [0-9]+/) { inputs = substr($0, RSTART + 6, RLENGTH - 6) }
        /number_of_executed_units/ { runs = $2 }
        END { printf "%s  %-9s %9d executions, %6d edges, %5d inputs\n", verdict, harness, runs,
              edges, inputs }' "$log"
    [ "$verdict" = passed ] || { grep -m3 -E "FAILED|ERROR|runtime error" "$log"
        grep -E "Test unit written" "$log"; echo "  see $log"; }
done
exit "$failed"
