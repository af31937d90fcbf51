#!/bin/sh
# performance_test.sh - tests performance.sh on made-up measurements: verdicts, kept regions.
# SPDX-License-Identifier: MIT
set -u
tools=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
page=$work/pages/some_cpu_family_25_model_1.md
. "$tools/../tests/expect.sh"

has() { grep -qF -- "$1" "$page"; }
lacks() { ! has "$1"; }
fails() { ! "$@"; }
render() { MEASURED=$work PAGES=$work/pages sh "$tools/performance.sh" "$work/build"; }

# case set loop share cpu dim workspace
row() { printf '"%s","%s",%s,%s,100,21,%s,%s,%s\n' "$1" "$2" "$3" "$4" "$5" "$6" "$7"; }

rows()
{
    echo case,kernels,pct_kernel_loop,pct_set_peak,gflops,samples,pct_running,head_dim,workspace_bytes
    row 'full d128 s2048' avx512 89.96 95.5 99.9 128 1048576     # 90.0 as printed: met
    row 'full d128 s2048' avx2 89.94 95.9 99.9 128 1049600       # 89.9: missed by 0.1; 1025 KiB
    row 'full d128 s2048 f16' avx512 1 93.5 99.9 128 1048576     # 2.0 below: met
    row 'full d128 s2048 f16' avx2 1 93.8 99.9 128 1048576       # 2.1 below: missed
    row 'full d80 s2048' avx512 1 91.4 99.9 80 1                 # 4.1 below
    row 'full d128 s4096' avx512 89.9 91 50 128 1                # disturbed
    row 'full d128 s4096' avx2 90.0 91 50 128 1                  # disturbed and met all the same
    row 'causal d128 s2048' avx512 86 93.0 50 128 1
    row 'causal d128 s2048 f16' avx512 1 99.0 99.9 128 1         # its base is disturbed
    row 'causal d64 s2048 f16' avx512 1 80 99.9 64 1             # its base is missing
    row 'full d64 s512' avx512 81 80 99.9 64 1                   # no goal
}

rows > "$work/prefill.csv"
cat > "$work/kernels.csv" <<'END'
set,head_dim,kernel,pct_fma_peak,cycles_per_exp,bytes_per_cycle
"avx2",64,"qk",98.25,0,0
"avx2",128,"qk",97.5,0,0
"avx2",64,"exp_sum",0,1.125,0
"portable",64,"pack",0,0,7.5
END
# case set read-% peak-% cpu
decode_row() { printf '"%s","%s",%s,%s,%s,10.06,20\n' "$1" "$2" "$3" "$4" "$5"; }
{
    echo case,kernels,pct_read_bw,pct_set_peak,pct_running,gbytes_per_s,read_gbytes_per_s
    decode_row 'h32/8 d128 kv4096' narrow 83.26 20 99       # 83.3 as printed: met
    decode_row 'h32/8 d128 kv16384' narrow 83.24 83.24 99   # 83.2
    decode_row 'h32/8 d64 kv4096' narrow 50 9 50            # disturbed
    decode_row 'mla kv4096' wide 2 83.26 99                 # the larger share
    decode_row 'mla kv16384' wide 83.2 10 99
    decode_row 'h1/1 d8 kv9' narrow 50 60 99                # no goal
} > "$work/decode.csv"
# case threads ms speedup read-% cpu
pair_row() { printf '"%s","s",%s,%s,%s,%s,%s\n' "$1" "$2" "$3" "$4" "$5" "$6"; }
{
    echo case,kernels,threads,ms_p50,speedup,pct_read_bw,pct_running
    pair_row 'prefill h8 s2048' 1 20 0 1 99
    pair_row 'prefill h8 s2048' 2 10.2 1.949 1 99           # 1.95 as printed: met
    pair_row 'decode g4 kv1500' 1 3 0 1 99
    pair_row 'decode g4 kv1500' 2 2.5 1.2 92 99             # by its reading
    pair_row 'decode g4 kv65536' 1 3 0 1 50                 # disturbed
    pair_row 'decode g4 kv65536' 2 2.5 1.2 90 99
} > "$work/threads.csv"
# scenario case threads loop
gradient_row() { printf '"%s","%s","avx2",%s,%s,40,100,99\n' "$1" "$2" "$3" "$4"; }
{
    echo scenario,case,kernels,threads,pct_kernel_loop,pct_set_peak,gflops,pct_running
    gradient_row avx2 'backward full d128 s2048' 1 84.96     # 85.0 as printed: met
    gradient_row avx2 'backward causal d128 s2048' 1 79.94
    gradient_row modifiers window 1 50                       # no goal
    gradient_row threads 'h8 s2048' 2 30                     # of two threads: not shown
} > "$work/backward.csv"
# case mask visible speedup cpu
mask_row() { printf '"%s","%s","s",%s,%s,%s\n' "$1" "$2" "$3" "$4" "$5"; }
{
    echo case,mask,kernels,visible,speedup,pct_running
    mask_row full full 1 0 99                                # what the others are held against
    mask_row boolean boolean 0.66 0.926 99                   # 1.08
    mask_row bits bits 0.66 0.91 99                          # 1.10
    mask_row bias bias 1 0.5 50                              # disturbed
    mask_row blocks blocks 0.31 2.7778 99                    # 36 %
    mask_row blocks-csr blocks-csr 0.31 2.7 99               # 37 %
    mask_row alibi alibi 1 1 99                              # no goal
} > "$work/masks.csv"
cpu='Some CPU (family 25 model 1)'
echo '{ "timestamp": "T", "machine": {"cpu": "'"$cpu"'", "l1d_bytes": 32768, "ghz": 3},' \
    > "$work/prefill.json"

expect "the page is written" render
expect "a goal reached as printed is met" has \
    '| full d128 s2048 | avx512 | 90.0 | loop 90 | met |'
expect "in one section" test "$(grep -cF '| full d128 s2048 | avx512 | 90.0 | loop 90 |' \
    "$page")" -eq 1
expect "a miss has its points" has '| full d128 s2048 | avx2 | 89.9 | loop 90 | missed by 0.1 |'
expect "within 2 of another case" has \
    '| full d128 s2048 f16 | avx512 | 93.5 | 93.5 (2 below full d128 s2048) | met |'
expect "each set has its own base" has '| 93.9 (2 below full d128 s2048) | missed by 0.1 |'
expect "within 4" has '| 91.5 (4 below full d128 s2048) | missed by 0.1 |'
expect "a disturbed miss is undecided" has \
    '| full d128 s4096 | avx512 | 89.9 | loop 90 | undecided; had 50 % of the CPU |'
expect "a disturbed row can meet" has \
    '| full d128 s4096 | avx2 | 90.0 | loop 90 | met; had 50 % of the CPU |'
expect "a disturbed base decides nothing" has '| 91.0 (2 below causal d128 s2048) | undecided |'
expect "a base that is missing" has 'not measured: causal d64 s2048 |'
expect "no goal, no verdict" has '| full d64 s512 | avx512 | 81.0 | 80.0 | 100.0 |'
expect "nor a row among the goals" lacks '| full d64 s512 | avx512 | 80.0 | -'
expect "a disturbed row says so in its table, too" has \
    '| full d128 s4096 | avx512 | 89.9 | 91.0 | 100.0; had 50 % of the CPU |'
expect "a goal without a row" has '| causal d128 s8192 | avx2 | - | loop 86 | not measured |'
expect "the count" has 'Goals: 4 met, 3 missed, 2 undecided, '
expect "gradients have their own goals" has \
    '| backward full d128 s2048 | avx2 | 85.0 | loop 85 | met |'
expect "and miss them" has \
    '| backward causal d128 s2048 | avx2 | 79.9 | loop 80 | missed by 0.1 |'
expect "what they are about" has '| modifiers: window | avx2 | 50.0 | 40.0 | 100.0 |'
expect "threads are not among them" lacks 'h8 s2048 | avx2'
expect "gradients of another width" has \
    '| backward full d64 s2048 | avx2 | - | loop 85 | not measured |'
expect "the count of gradients" has 'Goals: 1 met, 1 missed, 0 undecided, 22 not measured.'
expect "the warning" has 'Disturbed: in 3 of 11 rows'
expect "decode reaches its goal as printed" has \
    '| h32/8 d128 kv4096 | narrow | 83.3 | roof 83.3 | met |'
expect "a decode near its roof" has \
    '| h32/8 d128 kv16384 | narrow | 83.2 | roof 83.3 | missed by 0.1 |'
expect "a disturbed decode is undecided" has \
    '| h32/8 d64 kv4096 | narrow | 50.0 | roof 83.3 | undecided; had 50 % of the CPU |'
expect "a roof is the larger share" has \
    '| mla kv4096 | wide | 83.3 | roof 83.3 | met |'
expect "either share" has '| mla kv16384 | wide | 83.2 | roof 83.3 | missed by 0.1 |'
expect "a decode without a goal" has '| h1/1 d8 kv9 | narrow | 50.0 | 60.0 | 10.1 | 20.0 |'
expect "a decode that is missing" has \
    '| mla kv4096 bf16 | - | - | roof 83.3 | not measured |'
expect "the count of decode" has 'Goals: 2 met, 2 missed, 1 undecided, 40 not measured.'
expect "a speed-up as printed" has \
    '| prefill h8 s2048, 2 threads | s | 1.95, 1.0 | speed-up 1.95 or reading 92 | met |'
expect "reading instead of a speed-up" has '| 1.20, 92.0 | speed-up 1.95 or reading 92 | met |'
expect "a pair is disturbed by either" has \
    '| 1.20, 90.0 | speed-up 1.95 or reading 92 | undecided; had 50 % of the CPU |'
expect "a pair that is missing" has '| h1 rows64 kv65536 | - | - | speed-up'
expect "the count of threads" has 'Goals: 2 met, 0 missed, 1 undecided, 1 not measured.'
expect "other goals are not of prefill" lacks '| h32/32 d64 kv4096 | avx2 |'
expect "a mask at its cost" has '| boolean | s | 1.08 | cost 1.08 | met |'
expect "a mask above it" has '| bits | s | 1.10 | cost 1.08 | missed by 0.02 |'
expect "a disturbed mask" has '| bias | s | 2.00 | cost 1.12 | undecided; had 50 % of the CPU |'
expect "cells by what they show" has '| blocks | s | 0.36 | visible + 5 | met |'
expect "cells above it" has '| blocks-csr | s | 0.37 | visible + 5 | missed by 0.01 |'
expect "a modifier without a goal" has '| alibi | s | 100 | 1.00 |'
expect "no row of the call without" lacks '| full | s |'
expect "masks that are missing" has '| bias-f16 | - | - | cost 1.12 | not measured |'
expect "the count of masks" has 'Goals: 2 met, 2 missed, 1 undecided, 4 not measured.'
expect "workspace at the limit" has '| head_dim 128 | avx512 | 1024 KiB | 1024 KiB | met |'
expect "workspace above it" has '| head_dim 128 | avx2 | 1025 KiB | 1024 KiB | missed by 1 KiB |'
expect "kernels by width" has '| avx2 | qk | % of peak | 98.2 | 97.5 |'
expect "what the names mean" has '`tile` computes logits, maxima'
expect "exponentials" has '| avx2 | exp_sum | cycles an exponential | 1.12 |'
expect "no portable kernels" lacks '| portable |'
expect "the machine" has '| machine | Some CPU'
expect "goals are goals" has 'it is no promise'
heads() { grep -E '^##? ' "$page" | tr '\n' ' '; }
order='# Performance: Some CPU (family 25 model 1) ## Peers ## Machine ## Prefill ## Backward ## Decode ## Masks ## Threads'
order="$order ## Workspace of one thread ## Single kernels ## Notes ## Goals "
expect "peers come first, goals last" test "$(heads)" = "$order"

printf '%s\n' 'a note & a \1' > "$work/note"
sed -i -e "/^<!-- notes -->/r $work/note" -e '1,/^# /s/^# .*/# Some machine/' "$page"
printf '%s\n' '<!-- peers -->' 'other libraries' '<!-- /peers -->' > "$work/peers"
PEERS=$work/peers expect "peers from a file" render
expect "notes are kept" has 'a note & a \1'
expect "the peers are there" has 'other libraries'
expect "written again" render
expect "notes are kept twice" has 'a note & a \1'
expect "peers are kept" has 'other libraries'
expect "the title is kept" has '# Some machine'
expect "markers once" test "$(grep -c -e '^<!-- /\{0,1\}peers -->' -e '^<!-- /\{0,1\}notes -->' \
    "$page")" -eq 4
cp "$page" "$work/kept"
PEERS=$work/none expect "a missing file of peers is refused" fails render
grep -vF '<!-- /notes -->' "$work/kept" > "$page"
cp "$page" "$work/open"
expect "an open region is refused" fails render
expect "and nothing is lost" cmp "$work/open" "$page"
cp "$work/kept" "$page"
sed -i 's/pct_set_peak/other/' "$work/prefill.csv"
expect "a column that is missing is refused" fails render
expect "and the page stays" cmp "$work/kept" "$page"
summary "performance.sh"
