#!/bin/sh
# memory.sh - how memory grows with the length: tiled not at all, naive quadratically.
# SPDX-License-Identifier: MIT
#
#     sh tests/memory.sh         (from the root of the repository; CC, CFLAGS)
#
# A fresh process for each point prints by how much a call raised its peak memory over the inputs
# and outputs (tests/peak_rss.c). Fits growth = c * keys^e by least squares of the logarithms and
# fails unless e is 0 within 0.05 (tiled, 1 K to 1 M keys) and 2 within 0.1 (naive, whole matrix).
# The kernel counts pages in batches for each CPU, so a peak is known to some 0.6 MiB: each point is
# the least of three runs, and anything below 1 MiB counts as 1 MiB. One float a key too many is
# still seen: 4 MB at 1 M keys, an exponent of 0.16.
#
# Then 1 M keys of 512 bytes from a file in 1 MiB (examples/out_of_core.c): in steps of every size
# the bits of a call that has them in memory, and once in a process that may use 8 MiB of addresses,
# the C library included.
set -u
CC=${CC:-cc}
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-memory.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
failed=0

"$CC" -std=c99 ${CFLAGS:--O2} tests/peak_rss.c bench/machine/peak.c attn.c -o "$work/peak_rss" || exit 1

# least_of_three IMPL KEYS ROWS: "KEYS GROWTH WORKSPACE"
least_of_three()
{
    for run in 1 2 3; do
        "$work/peak_rss" "$1" "$2" "$3" || echo "$2 failed $?"
    done | sort -k 2 -n | head -n 1
}

# judge NAME WANTED TOLERANCE COLUMN: the exponent of that column of the points
judge()
{
    awk -v name="$1" -v wanted="$2" -v tolerance="$3" -v column="$4" '
        $2 == "failed" {bad = 1}
        {
            bytes = $column < 1048576 ? 1048576 : $column
            x = log($1); y = log(bytes)
            n++; sx += x; sy += y; sxx += x * x; sxy += x * y
            printf "  %s: %8d keys %12d bytes\n", name, $1, $column
        }
        END {
            if (bad || n < 3) {print "FAILED " name ": a run failed"; exit 1}
            e = (n * sxy - sx * sy) / (n * sxx - sx * sx)
            off = e > wanted ? e - wanted : wanted - e
            printf "%s%s: exponent %.3f, expected %g within %g\n",
                off <= tolerance ? "" : "FAILED ", name, e, wanted, tolerance
            exit off > tolerance
        }' "$work/points" || failed=1
}

for keys in 1024 4096 16384 65536 262144 1048576; do
    least_of_three tiled "$keys" 16
done > "$work/points"
judge "tiled, growth of the peak" 0 0.05 2
judge "tiled, workspace" 0 0.05 3

for keys in 1024 2048 3072 4096 6144; do
    least_of_three naive "$keys" "$keys"
done > "$work/points"
judge "naive, growth of the peak" 2 0.1 2
judge "naive, workspace" 2 0.1 3

"$CC" -std=c99 ${CFLAGS:--O2} examples/out_of_core.c attn.c -o "$work/out_of_core" || exit 1
for tiles in 1 2 3 7 64 1000 8192; do
    if "$work/out_of_core" 1048576 $tiles > "$work/out" &&
        grep -q '^1048576 keys read in tiles of 128, memory 1048576 bytes$' "$work/out" &&
        grep -q 'the same bits' "$work/out"; then
        echo "1048576 keys from a file in 1 MiB, $tiles tiles a step: the same bits"
    else
        cat "$work/out"
        echo "FAILED 1048576 keys from a file, $tiles tiles a step"
        failed=1
    fi
done
if (ulimit -v 8192 && "$work/out_of_core" 1048576 64 steps) > "$work/out" 2>&1; then
    echo "1048576 keys from a file in a process of at most 8 MiB"
else
    cat "$work/out"
    echo "FAILED 1048576 keys from a file in a process of at most 8 MiB"
    failed=1
fi
exit "$failed"
