#!/bin/sh
# size.sh - what a program with one causal call contains of attn.c, where the linker drops functions
# that nothing calls.
# SPDX-License-Identifier: MIT
#
#     sh tests/size.sh
#
# Bytes of text with -O2 -ffunction-sections -Wl,--gc-sections. A level that a program does not use may
# cost it next to nothing, so a limit is raised only for what the forward call itself needs:
#
#     gcc 12    clang 14
#     152,867             the last revision whose attn.c was the forward call alone (b25cabc)
#     155,819   202,133   every level in attn.c (attn.o: 342,606 instead of 151,020)
#     142,815   190,989   sentences are put together out of line
#      +7,000             what finds arrays that overlap: 600 of them save a small call 1,000
#                         instructions, and the columns of CSR masks need 500
#        +500             names of storage types in sentences
#        +900             masks listed once a plan, rows asked for ahead: some hundred rows 1 to 3 %
#      +1,700    +3,100   masks by pair 6 %, bias 40 %
#      +1,300    +2,000   dropout: 3.2 to 1.9 times the call without, without vector files
#        +200      +600   ALiBi 10 to 20 %
#        +500      +400   bit masks 20 %
#        +500      +400   strides and the names of choices in sentences
#      -1,000    -2,400   visibility as a bit a pair, which the kernel hide takes as it is
#        +800    +2,000   segments by tiles: packed documents take half the time
#      +2,100    +5,000   few rows without vector files: f32 1.3 to 1.5, f16 1.8 times as fast
#      +8,000    +8,800   K and V in five types more: e4m3, e5m2, q8_0, q5_0, q4_0
#      +3,800    +3,400   their rows read by kernels: q8_0 1.4, e4m3 2.5 times as fast
#      +5,600    +8,400   scores in whole numbers
#      +1,100    +2,300   rotated rows
#      +1,500    +1,400   sentences of snapshots and centered keys: a linker keeps strings of what it drops
#      +1,000    -2,600   arrays converted by loops that vectorise: q8_0 6 times as fast
#      +6,300    +6,300   recent keys: two versions of a key, their fields, rules and sentences
#                  +200   offsets of CSR masks are checked before columns are read
#      +6,000    +7,000   lists of keys: a mask and its sentences, and rows that read listed keys alone, of
#                         32768 keys 2048 in a seventh of the time (128 heads of 576 and 512)
#      +9,700    +6,400   insight: entropies, rankings, mass, their fields, rules and sentences
#      +4,400    +5,500   skipping: what decides about blocks, the bound, their fields, rules and sentences
#      +2,700    +2,400   small calls: products without a division, smaller tiles for little memory; a
#                         minimal call takes a twelfth of the memory where there are no vectors
#      +6,300    +7,200   short calls without a plan: the smallest takes an eighth of the time, 64 x 64 x 64
#                         causal two thirds
#
# Without --gc-sections the limit must be passed: else it shows nothing.
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

cat > "$work/sentences.c" <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    attn_params p = {0};
    char text[300];
    p.batch = -1;
    puts(attn_check(&p, NULL, 0, text, sizeof text));
    return attn_forward(&p, NULL, 0) != ATTN_ERR_ARG;
}
END

# Prints a hash of short calls. With an argument tells what became of a call that is not short, and of one
# whose output lies in its input.
cat > "$work/short.c" <<'END'
#include "attn.h"
#include <stdio.h>
static float q[8 * 300], k[4 * 300], v[4 * 300], o[8 * 300];
static char workspace[1 << 20];
int main(int count, char **arguments)
{
    unsigned long long hash = 14695981039346656037u;
    attn_params p = {0};
    size_t bytes, i;
    char text[300];
    int n;
    (void)arguments;
    for (i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = (float)(i * 7919 % 1000) / 250.0f - 2.0f;
    for (i = 0; i < sizeof k / sizeof *k; i++) {
        k[i] = (float)(i * 10007 % 1000) / 250.0f - 2.0f;
        v[i] = (float)(i * 20011 % 1000) / 250.0f - 2.0f;
    }
    p.batch = p.num_heads_kv = 1;
    p.num_heads_q = 2;
    p.head_dim = 4;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    for (n = 0; n < 8; n++) {
        p.causal = n % 2;
        p.seq_len_q = n < 4 ? 1 : 33;
        p.seq_len_kv = n / 2 % 2 ? 250 : 34;
        if (attn_workspace_size(&p, &bytes) != ATTN_OK || bytes > sizeof workspace ||
            attn_forward(&p, workspace, bytes) != ATTN_OK)
            return 1;
        for (i = 0; i < sizeof o; i++)
            hash = (hash ^ ((unsigned char *)o)[i]) * 1099511628211u;
    }
    if (count == 1)
        return printf("%llx\n", hash) < 0;
    p.o.data = q;
    if (attn_forward(&p, workspace, sizeof workspace) != ATTN_ERR_ARG)
        return 1;
    p.o.data = o;
    puts(attn_check(&p, workspace, sizeof workspace, text, sizeof text));
    p.window = 1;
    puts(attn_check(&p, workspace, sizeof workspace, text, sizeof text));
    return attn_forward(&p, workspace, sizeof workspace) != ATTN_ERR_UNSUPPORTED;
}
END

text() # text COMPILER FLAG...: of the program
{
    "$@" -std=c99 -O2 -I. "$work/program.c" attn.c -o "$work/program" && "$work/program" &&
        size "$work/program" | awk 'NR == 2 { print $1 }'
}

# Without sentences a check gives the name of the status, and calls do what they did.
judge_sentences() # judge_sentences COMPILER LIMIT USED
{
    bare=$(text "$1" -DATTN_WITHOUT_SENTENCES -ffunction-sections -Wl,--gc-sections)
    echo "size: $1: ${bare:-?} bytes without sentences, $2 allowed"
    [ -n "$bare" ] && [ "$bare" -le "$2" ] || { echo "FAILED size: $1: too large"; failed=1; }
    [ "${3:-0}" -gt "$2" ] || { echo "FAILED size: $1: not noticed"; failed=1; }
    said=$("$1" -std=c99 -DATTN_UNOPTIMIZED -I. -DATTN_WITHOUT_SENTENCES "$work/sentences.c" attn.c \
        -o "$work/sentences" && "$work/sentences")
    [ "$said" = "bad argument" ] || { echo "FAILED size: $1: it says: $said"; failed=1; }
}

short() # short COMPILER FLAG...: the program of short calls
{
    "$@" -std=c99 -O2 -I. "$work/short.c" attn.c -o "$work/short"
}

# Short calls have the bits of the whole library, and all others are refused.
judge_short() # judge_short COMPILER LIMIT
{
    bare=$(text "$1" -DATTN_WITHOUT_LONG_CALLS -ffunction-sections -fdata-sections -Wl,--gc-sections)
    echo "size: $1: ${bare:-?} bytes with short calls only, $2 allowed"
    [ -n "$bare" ] && [ "$bare" -le "$2" ] || { echo "FAILED size: $1: too large"; failed=1; }
    wanted=$(short "$1" && "$work/short")
    found=$(short "$1" -DATTN_WITHOUT_LONG_CALLS && "$work/short" && "$work/short" others)
    [ "$found" = "$wanted
ok
this build computes short calls only (ATTN_WITHOUT_LONG_CALLS)" ] || {
        echo "FAILED size: $1: short calls only: they give $found instead of $wanted"
        failed=1
    }
}

judge() # judge COMPILER LIMIT LIMIT-WITHOUT-SENTENCES LIMIT-OF-SHORT-CALLS
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
    judge_sentences "$1" "$3" "$used"
    judge_short "$1" "$4"
}

if command -v size > /dev/null; then
    judge gcc 227900 208200 24000
    judge clang 259700 240900 51000
fi
[ "$ran" -eq 1 ] || echo "size: skipped, nothing here to measure with"
exit "$failed"
