#!/bin/sh
# canon_cost.sh - measures what the constants of the canonical order cost: it builds the library
# with other blocks, chunks and thresholds and times the builds in turn.
# SPDX-License-Identifier: MIT
#
# usage: tools/canon_cost.sh [seq_len [head_dim]]    (CC, ROUNDS from the environment)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tools"
cp "$root/attn.h" "$work"
cp "$root/tools/canon_cost.c" "$work/tools"

# The columns are block, chunk, threshold; the first line is the canon.
variants="16:1024:16 8:1024:16 32:1024:16 128:1024:16 16:512:16 16:2048:16 16:1048576:16 16:1024:8"
for v in $variants; do
    block=${v%%:*} rest=${v#*:}
    sed -e "s/^#define ATTN_BLOCK .*/#define ATTN_BLOCK $block/" \
        -e "s/^#define ATTN_CHUNK .*/#define ATTN_CHUNK ${rest%%:*}/" \
        -e "s/^#define ATTN_THRESHOLD .*/#define ATTN_THRESHOLD ${rest#*:}.0f/" \
        "$root/attn.c" >"$work/attn.c"
    ${CC:-cc} -std=c99 -O2 "$work/tools/canon_cost.c" "$work/attn.c" -o "$work/run-$v"
done
for round in $(seq "${ROUNDS:-5}"); do
    for v in $variants; do
        echo "$v $("$work/run-$v" "$@")" >>"$work/times"
    done
done
echo "block:chunk:threshold, then time relative to the canon at scores x1, x4, x16 (median of rounds)"
awk '
function median(key, n,   i, j, t, a) {
    split(times[key], a, " ")
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return a[int((n + 1) / 2)]
}
{
    if (!($1 in seen)) { seen[$1] = 0; order[++count] = $1 }
    seen[$1]++
    for (c = 2; c <= 4; c++) times[$1, c] = times[$1, c] " " $c
}
END {
    for (i = 1; i <= count; i++) {
        line = sprintf("%-16s", order[i])
        for (c = 2; c <= 4; c++)
            line = line sprintf("%8.3f", median(order[i] SUBSEP c, seen[order[i]]) / median(order[1] SUBSEP c, seen[order[1]]))
        print line
    }
}' "$work/times"
