#!/bin/sh
# size.sh - what a program with one causal call contains of attn.c, where the linker drops functions
# that nothing calls.
# SPDX-License-Identifier: MIT
#
#     sh tests/size.sh
#
# Bytes of text with -O2 -ffunction-sections -Wl,--gc-sections. The limit: such a program had 152,867
# at the last revision whose attn.c was the forward call alone (b25cabc; gcc 12; attn.o had 151,020),
# and 155,819 when every level came into attn.c (the whole attn.o: 342,606). Since sentences are put
# together out of line it had 142,815 (clang 14: 190,989; 202,133 before); what finds arrays that overlap
# adds 7,000 (600 of them save a small call 1,000 instructions, and the columns of CSR masks need 500),
# the names of storage types in sentences 500, and 900 make calls of some hundred rows 1 to 3 % faster
# (masks listed once a plan, rows asked for ahead), and 1,700 (clang 3,100) make calls with masks by pair
# 6 % and with a bias 40 % faster, and 1,300 (clang 2,000) those with dropout three times as fast without
# vector files, and 200 (clang 600) ALiBi 10 to 20 %, and 500 bit masks 20 %. So a level that a program does not use may cost it next to nothing. A
# limit is raised only for what the forward call itself needs. Without --gc-sections
# the limit must be passed: else it shows nothing.
set -u
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-size.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
failed=0
ran=0

cat > "$work/program.c" <<'END'
#include "attn.h"
static float q[64 * 64], k[64 * 64], v[64 * 64], o[64 * 64];
static char workspace[1 << 20];
int main(void)
{
    attn_params p = {0};
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = p.head_dim = 64;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    return attn_forward(&p, workspace, sizeof workspace) != ATTN_OK;
}
END

text() # text COMPILER FLAG...: of the program
{
    "$@" -std=c99 -O2 -I. "$work/program.c" attn.c -o "$work/program" && "$work/program" &&
        size "$work/program" | awk 'NR == 2 { print $1 }'
}

judge() # judge COMPILER LIMIT
{
    case $(command -v "$1" > /dev/null && "$1" -dumpmachine) in
    x86_64*linux*) ;;
    *) echo "size: $1 for x86-64: skipped, it is not here"; return ;;
    esac
    ran=1
    used=$(text "$1" -ffunction-sections -Wl,--gc-sections)
    whole=$(text "$1")
    echo "size: $1: a causal call takes ${used:-?} bytes of text, $2 allowed; with all of attn.c" \
        "${whole:-?}"
    [ -n "$used" ] && [ "$used" -le "$2" ] || { echo "FAILED size: $1: too large"; failed=1; }
    [ -n "$whole" ] && [ "$whole" -gt "$2" ] || { echo "FAILED size: $1: not noticed"; failed=1; }
}

if command -v size > /dev/null; then
    judge gcc 157700
    judge clang 209000
fi
[ "$ran" -eq 1 ] || echo "size: skipped, nothing here to measure with"
exit "$failed"
