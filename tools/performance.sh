#!/bin/sh
# performance.sh - measures the rows of tools/goals.txt and writes docs/performance/CPU.md, where CPU
# is its name, family and model: one page a model.
# SPDX-License-Identifier: MIT
#
# usage: tools/performance.sh [BUILD]      (make performance; BUILD holds bench)
#
#   PEERS=FILE      takes the section on peers from FILE (tools/compare_peers --markdown writes it)
#   BENCH_FLAGS     more options for `bench prefill`, backward, decode, threads, masks: "--iters 5"
#   RUN             a command that runs a program, e.g. "taskset -c 1"
#   RUN_THREADS     a command that runs `bench threads`, which needs all CPUs (default RUN)
#   MEASURED=DIR    measures nothing and takes prefill.csv, prefill.json, kernels.csv, decode.csv,
#                   threads.csv, backward.csv and masks.csv of DIR
#   PAGES=DIR       writes DIR/CPU.md instead
#
# Text between the markers of the notes and of the peers is kept; everything else is written anew.
set -u
tools=$(dirname "$0")
build=${1:-build}
pages=${PAGES:-$tools/../docs/performance}
work=${MEASURED:-$build/performance}
page=$build/performance.md

fail()
{
    echo "performance.sh: $*" >&2
    exit 1
}

# shellcheck disable=SC2086 # RUN and BENCH_FLAGS are words
measure()
{
    mkdir -p "$work" || exit 1
    ${RUN:-} "$build/bench" prefill ${BENCH_FLAGS:-} --csv "$work/prefill.csv" \
        --json "$work/prefill.json" || fail "bench prefill failed: nothing written"
    ${RUN:-} "$build/bench" kernels --csv "$work/kernels.csv" ||
        fail "bench kernels failed: nothing written"
    ${RUN:-} "$build/bench" decode ${BENCH_FLAGS:-} --csv "$work/decode.csv" ||
        fail "bench decode failed: nothing written"
    ${RUN:-} "$build/bench" backward --impl tiled ${BENCH_FLAGS:-} --csv "$work/backward.csv" ||
        fail "bench backward failed: nothing written"
    ${RUN:-} "$build/bench" masks --impl tiled ${BENCH_FLAGS:-} --csv "$work/masks.csv" ||
        fail "bench masks failed: nothing written"
    ${RUN_THREADS-${RUN:-}} "$build/bench" threads ${BENCH_FLAGS:-} --csv "$work/threads.csv" ||
        fail "bench threads failed: nothing written"
}

# text KEY, number KEY: print a value of the line "machine" of the JSON, or of its top.
text() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$work/prefill.json" | head -n 1; }
number() { sed -n "s/.*\"$1\": \([-+.0-9e]*\).*/\1/p" "$work/prefill.json" | head -n 1; }
kib() { number "$1" | awk '{printf "%.0f KiB", $1 / 1024}'; }
decimal() { number "$1" | awk '{printf "%.1f", $1}'; }

# The page of a CPU: its name in small letters, everything else than letters and digits as "_".
page_of() { printf '%s' "$1" | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9]\{1,\}/_/g; s/^_//; s/_$//'; }

# region NAME: prints its lines with the markers from the present page, or the markers alone.
region()
{
    begin="<!-- $1 -->" end="<!-- /$1 -->"
    if [ -f "$output" ] && grep -qxF -- "$begin" "$output"; then
        grep -qxF -- "$end" "$output" || fail "$output has $begin, but not $end: repair it first"
        awk -v begin="$begin" -v end="$end" '
            $0 == begin { on = 1 } on { print } $0 == end { on = 0 }' "$output"
    else
        printf '%s\n%s\n' "$begin" "$end"
    fi
}

peers()
{
    if [ -z "${PEERS:-}" ]; then region peers; return; fi
    [ -r "$PEERS" ] || fail "no file $PEERS"
    echo '<!-- peers -->'
    grep -vxF -e '<!-- peers -->' -e '<!-- /peers -->' -- "$PEERS"
    echo '<!-- /peers -->'
}

head_of_page()
{
    cat <<END
<!-- SPDX-License-Identifier: MIT -->
$1

\`make performance\` wrote the tables of this page from one run, except for the notes and the peers,
which have their own machine and date. Each number is a median.

## Peers

$2

## Machine

| | |
|---|---|
| machine | $(text cpu), $(number cpus) CPUs, $(text system) |
| caches | L1d $(kib l1d_bytes), L2 $(kib l2_bytes), L3 $(kib l3_bytes) |
| instructions | $(text isa) |
| compiler | $(text compiler), \`$(text flags)\` |
| attn | $(text attn_version), revision $(text revision) |
| date | $(text timestamp) |
| FMA peak, one thread | $(decimal fma_peak_gflops) GFLOP/s ($(text fma_peak_unit)), \
$(decimal fma_peak_flops_per_cycle) FLOP a cycle |
| reading memory, one thread | $(decimal read_gbytes_per_s) GB/s |

END
}

goals_of_page()
{
    cat <<END
## Goals

A goal is what the library is meant to reach (\`tools/goals.txt\`); it is no promise.
END
    cat "$build/goals.md"
}

write_page()
{
    notes=$(region notes) || exit 1
    others=$(peers) || exit 1
    title=$([ ! -f "$output" ] || grep -m 1 '^# ' "$output")
    mkdir -p "$build" "$pages" || exit 1
    measured=$(awk -v goals_page="$build/goals.md" -f "$tools/performance.awk" \
        "$tools/goals.txt" "$work/prefill.csv" "$work/kernels.csv" "$work/decode.csv" \
        "$work/threads.csv" "$work/backward.csv" "$work/masks.csv") ||
        fail "the tables cannot be made"
    {
        head_of_page "${title:-# Performance: $(text cpu)}" "$others"
        printf '%s\n\n## Notes\n\n%s\n\n' "$measured" "$notes"
        goals_of_page
    } > "$page" || fail "cannot write $page"
    mv "$page" "$output" || fail "cannot write $output"
}

[ -n "${MEASURED:-}" ] || measure
output=$pages/$(page_of "$(text cpu)").md
write_page
echo "wrote $output; goals of prefill, backward, decode, masks, threads:"
grep '^Goals: ' "$output"
