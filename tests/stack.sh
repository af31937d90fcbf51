#!/bin/sh
# stack.sh - the stack that a call takes stays below 5 KiB, whatever compiler builds the library.
# Gradients have 5.5 KiB, dilated attention 6.25, attn_resume 6.5, a ring 7 and one with branches 8.
# EVERY=N makes one in N of the builds, another N-th for each commit.
# SPDX-License-Identifier: MIT
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/turns.sh
limit=5120
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
simd=
for set in ${SIMD:-avx512 avx2 neon sse2}; do
    simd="$simd -DATTN_SIMD_$(echo "$set" | tr '[:lower:]' '[:upper:]') attn_simd_$set.c"
done
status=0
for compiler in gcc clang; do
    command -v $compiler > /dev/null || continue
    for flags in "-O0" "-O2" "-O3" "-O2 $simd"; do
        turn || continue
        # shellcheck disable=SC2086 # words
        $compiler -std=c99 -DATTN_UNOPTIMIZED $flags tests/stack_use.c attn.c -lpthread \
            -o "$work/stack_use" || exit 1
        "$work/stack_use" $limit > "$work/out" || status=1
        grep FAILED "$work/out"
        echo "$compiler $flags: $(sort -k2 -n -r "$work/out" | head -1)"
    done
done
exit $status
