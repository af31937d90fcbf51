#!/bin/sh
# plot_test.sh - tests plot.sh: on made-up rows what is drawn, what is left out, what is refused; on
# rows that the bench and compare_peers have just written that it reads them; on the measurements of
# docs/plots that they still give their pictures.
# SPDX-License-Identifier: MIT
#
#     sh tools/plot_test.sh [BUILD]        rows of BUILD/bench and of compare_peers with
#                                          BUILD/libpeers.so, too, where these are built
#
# GNUPLOT names the program; if it is missing, only the data files are checked.
set -u
tools=$(cd "$(dirname "$0")" && pwd)
gnuplot=${GNUPLOT:-gnuplot}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
. "$tools/../tests/expect.sh"

# ---- rows: the columns stand in another order than the bench writes them

head_line=threads,impl,preset,case,kernels,dtype,mask,batch,heads_q,heads_kv,seq_q,seq_kv,head_dim
head_line=$head_line,ms_p50,ms_min,ms_p95,ms_p99,gflops,intensity,fma_peak_gflops
head_line=$head_line,read_peak_gbytes_per_s,workspace_bytes,rss_growth_bytes,theory_bytes
head_line=$head_line,gbytes_per_s,read_gbytes_per_s,speedup

# row THREADS IMPL PRESET CASE DTYPE SEQ_Q SEQ_KV MS BYTES SPEEDUP: only preset memory has a growth
row() {
    printf '%s,"%s","%s","%s","set","%s","full",' "$1" "$2" "$3" "$4" "$5"
    printf '1,8,2,%s,%s,64,%s,%s,%s,%s,50,%s,100,25,' "$6" "$7" "$8" "$8" "$8" "$8" "$6"
    growth=0
    [ "$3" = memory ] && growth=$9
    printf '%s,%s,%s,10.5,20,%s\n' "$9" "$growth" "$9" "${10}"
}

rows() {
    for length in 128 512 2048; do
        row 1 naive latency "b1 h8 s$length" f32 $length $length $((length / 64)) 3 0
        row 1 tiled latency "b1 h8 s$length" f32 $length $length $((length / 128)) 3 0
        row 1 naive memory "s$length" f32 $length $length 999 $((4 * length * length)) 0
        row 1 tiled memory "s$length" f32 $length $length 999 1048576 0
    done
    row 1 tiled latency 'another shape, twice' f16 128 128 1 0 0
    row 1 tiled latency 'another shape, twice' f16 512 512 1 0 0
    for type in f32 f16; do row 1 tiled decode "kv4096 $type" $type 1 4096 0.5 100 0; done
    row 1 tiled threads 'prefill s64' f32 64 96 6 100 0
    row 2 tiled threads 'prefill s64' f32 64 96 4 100 1.75
    row 4 tiled threads 'prefill s64' f32 64 96 2 100 0
}

{ echo "$head_line"; rows; } > "$work/good.csv"

# ---- the data files

mkdir "$work/data"
data() { rm -f "$work"/data/*; awk -v folder="$work/data" -f "$tools/plot.awk" "$@"; }
has() { grep -qxF -- "$2" "$work/data/$1"; }
lacks() { ! has "$@"; }
lacks_words() { ! grep -q "$@"; }
sentence() { grep -qF -- "$1" "$work/said"; }
says() { # says STATUS SENTENCE COMMAND...
    status=$1 words=$2
    shift 2
    "$@" > "$work/said" 2>&1
    [ $? -eq "$status" ] && sentence "$words"
}

expect "rows become data files" data "$work/good.csv"
expect "six pictures have data" test "$(find "$work/data" -name '*.set' | wc -l)" -eq 6
expect "series are named" has latency.dat '"tiled, set"'
expect "latency is P50" has latency.dat '512 4'
expect "the shape with most lengths" has latency.set \
    'caption = "batch 1, 8/2 heads of 64, f32, 1 thread"'
expect "of that shape all implementations" has latency.set 'n = 2'
expect "bytes are shown as MiB" has memory.dat '512 1'
expect "naive of 2048" has memory.dat '2048 16'
expect "memory is of fresh processes" lacks memory.dat '512 2.8610229e-06'
expect "latency is not" lacks latency.dat '512 999'
expect "measured, computed, theory" has memory.set 'computed = 4'
expect "roofs are those of the columns" has roofline.set 'peak = 100'
expect "intensity and rate" has roofline.dat '2048 50'
expect "percentiles are multiples of P50" has percentiles.dat '8 1 1 1'
expect "a speed-up of the bench is taken" has threads.dat '2 1.75'
expect "one that is missing is computed" has threads.dat '4 3'
expect "types stand side by side" has decode.dat '0.2 10.5 20'

sed 's/$/\r/' "$work/good.csv" > "$work/dos.csv"
expect "lines of another system" data "$work/dos.csv"
expect "their last column" has threads.dat '2 1.75'
cut -d, -f1-18,22- "$work/good.csv" > "$work/no_roof.csv"
expect "a missing series is left out with a sentence" says 0 'roofline left out: no timed row' \
    data "$work/no_roof.csv"
expect "the others are there" test "$(find "$work/data" -name '*.set' | wc -l)" -eq 5
head -1 "$work/good.csv" > "$work/part.csv"
grep '"decode"' "$work/good.csv" >> "$work/part.csv"
grep -v '"decode"' "$work/no_roof.csv" > "$work/other.csv"
expect "two files with different columns" data "$work/part.csv" "$work/other.csv"
expect "rows of the first" has decode.dat '0.2 10.5 20'
expect "rows of the second" has threads.dat '2 1.75'

# ---- peers: a CSV of their own, in which decoding has one row and gradients have no panel

plots=$tools/../docs/plots
peers_head=preset,case,impl,path,dtype,mask,pass,heads_q,heads_kv,seq_q,seq_kv,head_dim,threads
peer() { # peer IMPL PATH MASK PASS SEQ_Q SEQ_KV MS
    printf 'peers,"%s",%s,"%s",f32,%s,%s,8,2,%s,%s,64,1,%s,CPU,R,D\n' "$6" "$1" "$2" "$3" "$4" \
        "$5" "$6" "$7"
}
peer_rows() {
    for length in 128 512 2048; do
        peer attn attn full backward $length $length 999
        peer attn attn full forward $length $length $((length / 128))
        peer torch 'PyTorch 2' full forward $length $length $((length / 64))
        peer attn attn full forward 1 $length $((length / 32))
    done
    peer attn attn causal forward 512 512 777
}
{ echo "$peers_head,ms_p50,cpu,revision,date"; peer_rows; } > "$work/peers.csv"
expect "peers have a picture and give no other" says 0 'latency left out' data "$work/peers.csv"
expect "two panels have two lengths" has peers.set 'panels = "full decode "'
expect "the caption says who measured" has peers.set 'caption = "CPU, revision R, D"'
expect "a peer is a series" has peers_full.dat '"PyTorch 2"'
expect "at each length" has peers_full.dat '2048 32'
expect "gradients are no prefill" lacks peers_full.dat '512 999'
expect "nor is decoding, whose length is that of the keys" has peers_decode.dat '2048 64'
expect "a panel says its shape" has peers_decode.set 'caption = "8/2 heads of 64, f32, 1 thread"'
grep -v ',1,[0-9]*,64,' "$work/peers.csv" | sed '/,512,\|,2048,/d' > "$work/one_length.csv"
expect "one length is none" says 0 'peers left out: no shape' data "$work/one_length.csv"
expect "peers beside the bench" data "$work/good.csv" "$work/peers.csv"
expect "do not stop it" test "$(find "$work/data" -name '*.set' | wc -l)" -eq 9
expect "nor enter its pictures" lacks latency.dat '"attn"'

# What README shows comes from these files.
for name in attn 'OpenBLAS [0-9.]* (unfused)' 'PyTorch [0-9.]*' 'ONNX Runtime [0-9.]*' 'ggml [0-9.]*'; do
    expect "docs/plots/peers_intel.csv is drawn" data "$plots/peers_intel.csv"
    for panel in full causal decode; do
        expect "$panel has a line of $name" grep -qx "\"$name\"" "$work/data/peers_$panel.dat"
    done
    expect "docs/plots/peers.svg has it, too" grep -q ">$name<" "$plots/peers.svg"
done
caption=$(sed -n 's/^caption = "\(.*\)"$/\1/p' "$work/data/peers.set")
expect "docs/plots/peers.svg is of that measurement" grep -qF "$caption" "$plots/peers.svg"

# ---- what the bench has just written, one file a preset: a column that it gains must not stop the
# pictures, and one that it renames or drops must not empty them

bench=${1:-$tools/../build}/bench
cheap='--quick --iters 1 --warmup 0 --max-time 0.05'

write_preset() # write_preset NAME: rows of a preset to written/NAME.csv
{
    case $1 in
    extreme) set -- "$1" --max-seq-len 1024 ;;
    dilated) set -- "$1" --shape 1,8,8,128,128,16 ;;
    esac
    # shellcheck disable=SC2086 # words
    ${RUN:-} "$bench" "$@" $cheap --csv "$work/written/$1.csv"
}

# Where there is no device no row is timed.
drawn() { data "$1" || { [ "$(wc -l < "$1")" -eq 1 ] && [ "$(basename "$1")" = device.csv ]; }; }
columns_read() { grep -oE '([nt]_of\([a-z]+, |(choose_shape|add_memory)\()"[a-z0-9_]+"' "$tools/plot.awk"; }

if [ -x "$bench" ]; then
    mkdir "$work/written"
    for preset in $(${RUN:-} "$bench" --list | sed -n 's/^preset \([a-z_]*\) .*/\1/p'); do
        expect "preset $preset writes rows" write_preset "$preset"
        expect "they become data files" drawn "$work/written/$preset.csv"
    done
    head -1 "$work/written/latency.csv" | tr ',' '\n' > "$work/columns"
    columns_read | sed -n 's/.*"\([a-z0-9_]*\)"/\1/p' | sort -u |
        grep -vx -e cpu -e revision -e date > "$work/read" # of rows of compare_peers alone
    expect "the pictures read columns" test "$(wc -l < "$work/read")" -gt 20
    for column in $(cat "$work/read") $(echo "$head_line" | tr ',' ' '); do
        expect "the bench writes the column $column" grep -qx "$column" "$work/columns"
    done
    rm "$work/written/device.csv"
    expect "all presets together" data "$work"/written/*.csv
    for picture in latency memory roofline percentiles threads decode; do
        expect "the bench has data for $picture" test -s "$work/data/$picture.dat"
    done
else
    echo "plot_test: there is no $bench: only made-up rows were checked"
fi

# What compare_peers writes; its peers need not be here.
write_peers() {
    sh "$tools/compare_peers" "$lib" --only '8 x 64 x 64 f32 causal' --peer onnxruntime \
        --only '8 x 128 x 64 f32 causal' --csv "$work/written_peers.csv"
    status=$? # 3: a peer is no comparison, as on a busy machine
    [ $status -eq 0 ] || [ $status -eq 3 ]
}

lib=${1:-$tools/../build}/libpeers.so
if [ -f "$lib" ] && command -v python3 > "$work/found"; then
    expect "compare_peers writes rows" write_peers
    expect "they become data files" data "$work/written_peers.csv"
    expect "attn has its times" grep -qx '"attn"' "$work/data/peers_causal.dat"
    expect "the same columns as in docs/plots" test \
        "$(head -n 1 "$work/written_peers.csv")" = "$(head -n 1 "$plots/peers_intel.csv")"
else
    echo "plot_test: no $lib or no python3: compare_peers was not run"
fi

# ---- what is no such file

: > "$work/empty.csv"
expect "an empty file" says 2 'nothing to read' data "$work/empty.csv"
head -1 "$work/good.csv" > "$work/head.csv"
expect "a head line alone" says 2 'no file has a row' data "$work/head.csv"
head -c 900 "$work/good.csv" > "$work/cut.csv"
expect "a file that is cut off" says 2 'is the file cut off?' data "$work/cut.csv"
sed '3s/,100,25,/,1OO,25,/' "$work/good.csv" > "$work/letters.csv"
expect "letters in a number" says 2 'line 3: "1OO" is no number, as fma_peak_gflops is' \
    data "$work/letters.csv"
sed '1s/seq_kv/keys/' "$work/good.csv" > "$work/column.csv"
expect "a column that every picture needs" says 2 'has no column seq_kv' data "$work/column.csv"
expect "another kind of file" says 2 'is not CSV of the bench' data "$tools/plot.gp"

# ---- the script

plot() { sh "$tools/plot.sh" none "$work/out" "$@"; }
without() { GNUPLOT=no-such-program plot "$@"; }
expect "no gnuplot, one sentence" says 0 'there is no gnuplot here' without "$work/good.csv"
expect "and no folder" test ! -e "$work/out"
width() { od -A n -t u1 -j 16 -N 4 "$1" | awk '{print ($3 * 256) + $4}'; }

if command -v "$gnuplot" > /dev/null 2>&1; then
    expect "pictures are drawn" says 0 'plot: 12 files in' plot "$work/good.csv"
    for picture in latency memory roofline percentiles threads decode; do
        expect "$picture.png is 1000 pixels wide" test "$(width "$work/out/$picture.png")" = 1000
        expect "$picture.svg is whole" grep -q '</svg>' "$work/out/$picture.svg"
    done
    for words in 'latency|P50 (ms)' 'latency|length (tokens)' 'memory|memory (MiB)' \
        'roofline|(GFLOP/s)' 'roofline|FLOP per byte' 'percentiles|time / P50' \
        'threads|times as fast' 'decode|(GB/s)' 'latency|naive, set' 'memory|tiled: theory'; do
        expect "${words%%|*}.svg says ${words#*|}" grep -qF "${words#*|}" \
            "$work/out/${words%%|*}.svg"
    done
    grep -v '"memory"' "$work/good.csv" | sed '1s/theory_bytes/other/' > "$work/computed.csv"
    expect "memory that was only computed" says 0 'plot: 12 files in' plot "$work/computed.csv"
    expect "memory.svg says workspace" grep -qF 'tiled: workspace' "$work/out/memory.svg"
    expect "and not theory" lacks_words 'theory' "$work/out/memory.svg"
    grep -e workspace_bytes -e '"tiled"' "$work/computed.csv" > "$work/equal.csv"
    expect "memory that is equal at all lengths" says 0 'plot:' plot "$work/equal.csv"
    expect "without a warning of gnuplot" lacks_words 'Warning' "$work/said"
    rm -r "$work/out"
    expect "ten files without roofs" says 0 'plot: 10 files in' plot "$work/no_roof.csv"
    expect "a damaged file draws nothing" says 2 'cut off?' plot "$work/cut.csv"
    expect "a file that is not there" says 2 'cannot read' plot "$work/none.csv"
else
    echo "plot_test: no gnuplot here: only the data files were checked"
fi
summary "plot.sh"
