#!/bin/sh
# bench_files.sh - what the bench writes, read by others: JSON against its schema, CSV against JSON.
# SPDX-License-Identifier: MIT
#
#     sh tests/bench_files.sh BUILD        (RUN, PYTHON from the environment)
#
# Also that a wrong kernel is refused and gets no time, and what cannot be done before measuring.
set -u
build=$1
PYTHON=${PYTHON:-python3}
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. "tests/expect.sh"

bench() { ${RUN:-} "$build/bench" "$@" > "$work/out" 2> "$work/err"; }
# A job in the background of a shell ignores Ctrl-C, and so would what it runs.
hearing=
! env --default-signal=INT true 2> /dev/null || hearing="env --default-signal=INT"
planted() { ${RUN:-} $hearing "$build/bench_test" "$@" > "$work/out" 2> "$work/err"; }

# files NAME ARGUMENT...: a run of the bench that writes NAME.json and NAME.csv
files()
{
    name=$1
    shift
    bench "$@" --json "$work/$name.json" --csv "$work/$name.csv" && return
    cat "$work/out" "$work/err"
    return 1
}

status() # status WANTED COMMAND...
{
    wanted=$1
    shift
    "$@"
    [ $? -eq "$wanted" ]
}

says() { grep -q -- "$1" "$work/out" "$work/err"; }
lacks() { ! grep -q -- "$1" "$2"; }

# ---- files

tuning=$work/'a "name", with \ and commas'
printf 'attn-tuning 1\nend\n' > "$tuning"
expect "a run" files plain --shape 1,4,2,64,96,32,16 --causal --iters 5 --dtype bf16 --wide \
    --tuning "$tuning"
expect "a user's own shape is not held against other suites" lacks 'comparable suites' "$work/out"
expect "its scenario has one name" lacks 'shape: shape' "$work/out"
last() { grep . "$work/out" | grep -v '^wrote' | tail -n 1 | grep -q "$1"; }
expect "the verdict comes last" last '^  shape .* of 1 '
expect "--wide shows more" says ' std ms .* err/tol'
expect "a run on threads" files threads --shape 2,4,2,1,3000,32 --threads 2 --iters 3
expect "threads against one" files pairs threads --quick --threads 2 --iters 2
expect "single sizes" files sizes --batch-size 2 --num-heads 4 --num-kv-heads 2 --seq-length 48 \
    --head-dim 16 --iters 2
expect "they are the shape" grep -q '"case": "2,4,2,48,48,16"' "$work/sizes.json"
one() { ${RUN:-} "$build/bench" "$@" --list | grep -q "^case .* $want "; }
want=1,8,8,1024,1024,64,64
expect "what is not said is 8 heads of 64, 1024 tokens" one --batch-size 1
want=1,32,32,1024,1024,64,64
expect "heads of K and V go with the others" one --num-heads 32
want=2,8,8,512,512,64,64
expect "preset dilated takes them" one dilated --seq-length 512
expect "the rows of p.fast" files fast prefill --quick --iters 2
expect "they run, or say why not" says 'bf16 fast .*\(avx512_amx\|avx512_bf16\|neon_bf16\|skipped: no unit for products of bf16\)'
expect "short sequences of an expert" files experts experts --quick --iters 2
expect "a preset" files preset latency --quick --iters 2
expect "caches" files cache cache --quick --iters 2
expect "types of K and V" files types --shape 2,4,2,3,96,64 --types q8_0/q4_0 --integer --iters 3
expect "bytes and their scales" files bytes --shape 2,4,2,3,96,64 --types i8 --integer --iters 3
expect "gradients" files gradients --shape 1,4,2,64,96,32,16 --causal --backward --gemms 7 --iters 3
expect "it says what counts" says 'of gradients GFLOP/s = '
expect "a preset of gradients" files backward backward --quick --threads 2 --iters 2
expect "long sequences" files extreme extreme --quick --impl tiled --iters 2 --max-time 0.2
expect "exponents over the length" says '^growth over the length'
expect "dilated attention, cells and rings" files dilated dilated --quick --iters 2 \
    --shape 2,8,8,256,256,16
expect "against dense" says '^dilated attention and cells against dense'
expect "ranks against one" says '^ranks against one'
expect "branches of any case" files branches --shape 1,4,2,96,96,16 --segments 32,96 \
    --dilations 1,3 --merge mean --variant gathered --iters 2 --impl tiled
expect "what the machine is" files info info

# dated ENDING...: how many files bench-TIME.ENDING there are in the folder
dated() { find "$work/dated" -name "bench-[0-9]*T[0-9]*Z.$1" | wc -l; }
into_folder() { bench info --output-dir "$work/dated"; }
expect "a folder" into_folder
expect "the time is in the names" test "$(dated json)$(dated csv)" = 11
sleep 1 # the time has seconds
expect "the folder again" into_folder
expect "an older run is kept" test "$(dated json)$(dated csv)" = 22

# ---- Ctrl-C: planted, so that it comes during the third of six runs

expect "Ctrl-C: status 130" status 130 planted --plant-interrupt 3 latency --quick --iters 2 \
    --json "$work/stopped.json" --csv "$work/stopped.csv"
expect "it says how far it came" says '^stopped by Ctrl-C: 3 of 6 runs are above'
expect "it says so at once" says 'stopping after this call'
expect "the rows before it are written" test "$(wc -l < "$work/stopped.csv")" -eq 3
expect "the run during it is skipped" says 'naive skipped: stopped by Ctrl-C'
expect "SIGTERM: status 143" status 143 planted --plant-terminate 3 latency --quick --iters 2 \
    --csv "$work/terminated.csv"
expect "it says how far it came" says '^stopped by SIGTERM: 3 of 6 runs are above'
expect "the rows before it are written" test "$(wc -l < "$work/terminated.csv")" -eq 3
long_run() # the limit ends it where Ctrl-C does not
{
    (ulimit -t 30
     planted --plant-interrupt 1 --shape 1,8,8,512,512,64 --impl tiled --iters 10000000)
}
expect "a long run is announced" status 130 long_run
expect "with its time" says '^time  .* about .* hours for shape'
expect "and with what makes it shorter" says '--max-time S'
expect "kernels: Ctrl-C: status 130" status 130 planted --plant-interrupt 3 kernels --quick \
    --kernels portable --csv "$work/kernels.csv"
expect "kernels: it says so" says '^stopped by Ctrl-C: the kernels above are all'
expect "kernels: three are written" test "$(wc -l < "$work/kernels.csv")" -eq 4
expect "tune: Ctrl-C: status 130" status 130 planted --plant-interrupt 2 tune --quick \
    --output-dir "$work/tuned"
expect "tune: it says so" says '^stopped by Ctrl-C, after'
expect "tune: no third size is tried" test "$(grep -c ' of .*, ms: ' "$work/out")" -eq 2
expect "tune: the file says so" grep -q 'stopped by Ctrl-C before all' "$work/tuned/tuning.txt"
expect "tune: the file is whole" test "$(tail -n 1 "$work/tuned/tuning.txt")" = end
expect "memory: Ctrl-C: status 130" status 130 planted --plant-interrupt 3 memory --quick \
    --csv "$work/stopped_memory.csv"
expect "memory: it says so" says '^stopped by Ctrl-C: the points above are all'
expect "memory: the third is the last" test "$(grep -c 'stopped by Ctrl-C$' "$work/out")" -eq 1
expect "memory: those before it are written" test "$(wc -l < "$work/stopped_memory.csv")" -eq 3
bench latency --quick --iters 2 --json "$work/whole.json"
expect "Ctrl-C: no comparison with an older run" status 130 planted --plant-interrupt 3 latency \
    --quick --iters 2 --baseline "$work/whole.json"
expect "it says nothing of it" lacks 'compared' "$work/out"
expect "Ctrl-C: a wrong result is status 1" status 1 planted --plant-interrupt 2 --plant-wrong qk \
    --shape 1,2,2,64,64,32 --iters 3
expect "it says that, too" says '^stopped by Ctrl-C: '
twice() # in a shell of its own, which sees how it ends
{
    (planted --plant-interrupt 3 --plant-again latency --quick --iters 2 --csv "$work/again.csv"
     test $? -eq 130) && test ! -e "$work/again.csv"
}
expect "a second Ctrl-C ends at once and writes nothing" twice
deaf() { (trap '' INT; hearing=; planted "$@"); }
expect "a job that ignores Ctrl-C is not stopped" deaf --plant-interrupt 3 latency --quick --iters 2
expect "it says nothing of Ctrl-C" lacks 'Ctrl-C' "$work/err"
bench --shape 1,1,1,8,8,8 --iters 1
expect "a short one is not" lacks '^time  ' "$work/out"

# ---- an older run

# The figures are spoilt by so much that no noise matters: tools/baseline_trial.sh has real ones.
bench latency --quick --impl tiled --iters 3 --json "$work/old.json"
with() { bench latency --quick --impl tiled --iters 3 --baseline "$1"; }
edit() { sed "$1" "$work/old.json" > "$work/edited.json"; }

edit 's/"cycles_p10": [^,]*,/"cycles_p10": 1,/'
expect "fewer cycles before: status 3" status 3 with "$work/edited.json"
expect "it says slower" says '3 slower, 0 faster'
edit 's/"cycles_p10": [^,]*,/"cycles_p10": 1e15,/'
expect "more cycles before: status 0" status 0 with "$work/edited.json"
expect "it says faster" says '0 slower, 3 faster'
edit 's/"case": "b1 h8 s512 d64"/"case": "gone"/; s/"cycles_p10": [^,]*,/"cycles_p10": 1e15,/'
expect "another case: status 0" status 0 with "$work/edited.json"
expect "it is listed" says 'b1 h8 s512 d64 .*not in the baseline'
expect "so is the one that is missing" says 'gone .*in the baseline, not measured now'
edit 's/"case": "b/"case": "c/'
expect "nothing in common: status 1" status 1 with "$work/edited.json"
edit 's/"threads": 1, "row/"threads": 2, "row/'
expect "other threads are other cases: status 1" status 1 with "$work/edited.json"

# refused SENTENCE FILE: status 2, that sentence, and nothing is run
refused()
{
    expect "refused: $1" status 2 with "$2"
    expect "refused: it says $1" says "$1"
    expect "refused: $1: nothing is run" lacks tokens "$work/out"
}

edit 's/"schema": 1/"schema": 999/'
refused 'its schema is version 999, this bench reads' "$work/edited.json"
edit 's/"cpu": "/"cpu": "not /'
refused 'its machine is another one: cpu "not ' "$work/edited.json"
edit 's/"results"/"other"/'
refused 'not a file that bench wrote' "$work/edited.json"
head -c 2000 "$work/old.json" > "$work/edited.json"
refused 'not JSON: a text does not end (byte 2000)' "$work/edited.json"
refused 'No such file' "$work/none.json"

edit 's/"data": "trig"/"data": "normal"/'
expect "other inputs are other cases: status 1" status 1 with "$work/edited.json"
bench --shape 1,1,1,8,8,8 --impl tiled --iters 3 --json "$work/seed.json"
seeded() { bench --shape 1,1,1,8,8,8 --impl tiled --iters 3 --baseline "$work/seed.json" "$@"; }
expect "another seed, too: status 1" status 1 seeded --seed 2
expect "it is not in the baseline" says '1,1,1,8,8,8 .*not in the baseline'
seeded
expect "the same seed is compared" says '^1 compared'
edit 's/"case": "b1 h8 s512 d64"/"case": "\\u001b[31mred\\u009b"/
    s/"cycles_p10": [^,]*,/"cycles_p10": 1e15,/'
with "$work/edited.json"
expect "control characters of the file are not printed" says '?\[31mred? .*not measured now'

# ---- the command line: what cannot be is refused before anything is measured

# stops SENTENCE ARGUMENT...: status 2, that sentence alone, and nothing is run
stops()
{
    sentence=$1
    shift
    expect "$*: status 2" status 2 bench "$@"
    expect "$*: it says $sentence" grep -q -- "$sentence" "$work/err"
    expect "$*: one sentence" test "$(wc -l < "$work/err")" -eq 1
    expect "$*: nothing is run" lacks '^machine' "$work/out"
}
small='--shape 1,1,1,8,8,8 --impl tiled --iters 1'
stops 'num_heads_q (3) must be a multiple' --shape 1,3,2,8,8,8 --iters 1

# shellcheck disable=SC2086 # words
{
    stops 'Not a directory' $small --json "$tuning/x.json"
    stops 'Is a directory' $small --csv "$work"
    stops 'No such file' $small --output-dir "$work/a/b/c"
    stops 'No such file' tune --quick --output-dir "$work/a/b/c"
    stops 'cannot both go to' $small --json "$work/one" --csv "$work/one"
    stops 'cannot both go to' $small --json "$work/one" --csv "$work/./one"
    expect "trying leaves nothing" test ! -e "$work/one" -a ! -e "$work/one.part"
    stops '--min-time cannot be "0x10": it takes seconds' $small --min-time 0x10
    stops '--threads cannot be "x": it takes a whole number from 1 to 1024' $small --threads x
    stops '--threads cannot be "": it takes a whole number from 1 to 1024' $small --threads=
    stops '--threads cannot be "0": it takes' $small --threads 0
    stops '--threads cannot be "1025": it takes' $small --threads=1025
    stops '--max-seq-len cannot be "0": it takes a whole number from 1 to' extreme --max-seq-len 0
    stops '--iters cannot be "0": it takes a whole number from 1 to' kernels --iters 0
    stops 'no value is taken by "--causal"' $small --causal=1
    stops '2^28' --shape 1,1,1,8,268435457,8
    stops '--impl is a list' --shape 1,1,1,8,8,8 --impl tiled,
    printf 'attn-tuning 1\ntile_keys 65\nend\n' > "$work/broken"
    stops 'tile_keys (65) must be' $small --tuning "$work/broken"
    { printf 'attn-tuning 1\n'; yes '# long' | head -200000; echo end; } > "$work/broken"
    stops 'larger than 1 MiB' $small --tuning "$work/broken"
}
stops '--shape says all sizes and excludes "--head-dim"' --shape 1,1,1,8,8,8 --head-dim 8
stops 'preset latency has sizes of its own and does not take "--batch-size"' latency --batch-size 2
stops 'preset gemma has sizes' dilated gemma --num-kv-heads 2
stops '--seq-length cannot be "0": it takes a whole number from 1 to 268435456' --seq-length 0
stops 'the shape 1,3,2,8,8,64: num_heads_q (3) must' --num-heads 3 --num-kv-heads 2 --seq-length 8
stops 'tune does not take --head-dim' tune --head-dim 64
stops 'no such preset or command: "selfcheck"; .bench --help. lists them' selfcheck
stops 'no such preset or command: "latncy"; did you mean "latency"?' latncy
stops 'no such preset or command: "kernel"; did you mean "kernels"?' latency kernel
stops 'no such preset or command: "tyme"; did you mean "tune"?' tyme
stops 'no such preset or command: "al"; did you mean "all"?' al
stops 'no such preset or command: "pre"; .bench --help. lists them' pre
stops 'no such mask: "causl"; did you mean "causal"?' --shape 1,1,1,8,8,8 --mask causl
stops 'no such mask: "what"; .bench --list. lists them' --shape 1,1,1,8,8,8 --mask what
stops 'no such path: "tield"; did you mean "tiled"?' --shape 1,1,1,8,8,8 --impl naive,tield
stops 'no such path: "naiv"; did you mean "naive"?' --shape 1,1,1,8,8,8 --impl naiv
stops 'no such path: "al"; did you mean "all"?' --shape 1,1,1,8,8,8 --impl al
stops 'no such path: "what"; .bench info. lists them' --shape 1,1,1,8,8,8 --impl what
stops 'unknown option "--max-seq"; did you mean "--max-seq-len"?' extreme --max-seq 4096
stops 'unknown option "--shap"; did you mean "--shape"?' --shap 1,1,1,8,8,8
stops 'unknown option "--outputdir"; did you mean "--output-dir"?' --outputdir=/a/long/path
stops 'no case here has a use for "--ranks"' --shape 1,1,1,8,8,8 --ranks 4
stops 'no case here has a use for "--max-seq-len"' --shape 1,1,1,8,8,8 --max-seq-len 4096
expect "checks write no files" status 2 planted selfcheck --json "$work/one"
expect "it says so" says 'selfcheck does not take "--json"'
stops 'no case here has a use for "--device"' --shape 1,1,1,8,8,8 --device nosuch
stops 'given twice: "--shape"' --shape 1,1,1,8,8,8 --causal --causal --shape 1,1,1,16,16,8
stops 'info does not take --shape' info --shape 1,1,1,8,8,8 --list --phases
stops 'kernels does not take --mask' kernels --list --mask causal
stops 'memory does not take --mask' memory --mask window --phases
stops '--list does not take --json' --list --json "$work/one"
stops '--types is K or K/V, .* not "f16/q8"' --shape 1,1,1,8,8,32 --types f16/q8
stops '--integer needs K in q8_0.* not "f32"' --shape 1,1,1,8,8,32 --integer
stops 'head_dim (48) must be a multiple of 32' --shape 1,1,1,8,8,48 --types q8_0
stops 'do not take "--types"' cache --types q8_0
stops 'do not take "--integer"' decode --integer
stops '--gemms is of gradients' --shape 1,1,1,8,8,8 --gemms 5
stops '--gemms is 5 or 7' --shape 1,1,1,8,8,8 --backward --gemms 6
stops 'do not take "--backward"' prefill --backward
stops 'it needs\|which is missing' --shape 1,1,1,8,8,8 --dilations 2
stops '1 to 8 numbers' --shape 1,1,1,8,8,8 --segments 4,0
stops 'a number from 1 for each segment' dilated --segments 4,8 --dilations 2
stops '--merge is lse or mean' dilated --merge sum
stops 'no case here has a use for "--variant"' --shape 1,1,1,8,8,8 --variant gathered
stops 'do not take "--segments"' extreme --segments 64
cases() { ${RUN:-} "$build/bench" "$@" --list | grep -c '^case'; }
expect "a preset named twice counts once" test "$(cases latency latency)" = "$(cases latency)"
expect "also next to all" test "$(cases latency all)" = "$(cases all)"

# ---- full disks

if [ -c /dev/full ]; then
    ${RUN:-} "$build/bench" --list > /dev/full 2> "$work/err"
    expect "a full disk under stdout: status 1" test $? -eq 1
    expect "it says so" grep -q 'standard output' "$work/err"
fi
# A limit of 1 KiB for a file is such a disk.
cp "$work/seed.json" "$work/full.json"
(trap '' XFSZ; ulimit -f 2
 ${RUN:-} "$build/bench" --shape 1,1,1,8,8,8 --iters 1 --json "$work/full.json" \
     > /dev/null 2>&1)
expect "a full disk: status 1" test $? -eq 1
expect "the older file is as it was" cmp -s "$work/seed.json" "$work/full.json"
expect "nothing else is left" test ! -e "$work/full.json.part"

# ---- a name that is not UTF-8

odd=$(printf '%s/\377.txt' "$work")
cp "$tuning" "$odd"
expect "a name that is not UTF-8" files odd --shape 1,1,1,8,8,8 --iters 1 --tuning "$odd"
expect "Python reads the JSON" "$PYTHON" -c 'import json, sys
json.loads(open(sys.argv[1], "rb").read().decode("utf-8"))' "$work/odd.json"

# ---- memory

small_memory() { (ulimit -v 3000000 2> /dev/null; files "$@"); }

expect "memory in 3 GB" small_memory memory memory --quick
expect "naive, tiled: growth and workspace" test "$(grep -c 'length^.* met$' "$work/out")" = 10
expect "memory takes no threads" status 2 bench memory --threads 2

# ---- a wrong kernel: exit status 1, no time for its row

for product in qk pv; do
    expect "a wrong $product is refused" status 1 planted --shape 1,2,2,64,64,32 --iters 3 \
        --plant-wrong "$product" --json "$work/wrong.json" --csv "$work/wrong.csv"
    expect "$product: both say so" test "$(grep -c 'skipped: wrong result' "$work/out")" = 2
    expect "$product: none in the CSV" test "$(wc -l < "$work/wrong.csv")" -eq 1
    expect "$product: none in the JSON" lacks ms_p50 "$work/wrong.json"
    expect "$product: nothing counts" says '0 timed, 2 skipped'
done
expect "a wrong qk_units is refused" status 1 planted --shape 1,2,2,64,64,32 --types q8_0 --integer \
    --iters 3 --plant-wrong qk_units
expect "qk_units: it says so" says 'skipped: wrong result'
for product in qk gradient outer pv; do
    expect "a wrong $product of gradients is refused" status 1 planted --shape 1,2,2,64,64,32 \
        --backward --impl tiled --iters 3 --plant-wrong "$product"
    expect "$product: it says so" says 'skipped: wrong result'
done
expect "an unknown product" status 2 planted --shape 1,2,2,64,64,32 --plant-wrong tile

# ---- a device that is not there: said, and nothing else changes

# without ARGUMENT...: a run on a machine whose drivers are none
without() { OCL_ICD_VENDORS=/nonexistent ${RUN:-} "$build/bench" "$@" > "$work/out" 2> "$work/err"; }
shape='--shape 1,1,1,8,8,8 --iters 1'
# shellcheck disable=SC2086 # words
{
    expect "a device alone: status 0" status 0 without $shape --impl opencl
    expect "it says why" says 'skipped: no OpenCL device (.*)$'
    expect "a device among others: status 0" status 0 without $shape --impl opencl_exact,tiled \
        --json "$work/absent.json" --csv "$work/absent.csv"
    expect "it is skipped, once" test "$(grep -c 'skipped: no OpenCL' "$work/out")" -eq 1
    expect "the other is measured" says '^1 timed, 1 skipped'
    expect "a preset of devices: status 0" status 0 without device --quick
    expect "nothing is timed" says '^0 timed'
    expect "info: status 0" status 0 without info
    expect "it says why there is none" says '^OpenCL devices: none: no OpenCL '
}

# ---- compare_peers: p.fast beside others in bf16, or why there is none

peers() # peers STATUS: one case; 3: a peer is no comparison, as on a busy machine
{
    PYTHON=$PYTHON sh tools/compare_peers "$build/libpeers.so" --peer onnxruntime \
        --only '32/8 x 512 x 128 bf16 full' --csv "$work/peers.csv" > "$work/out" 2> "$work/err"
    said=$?
    [ $said -eq 0 ] || [ $said -eq 3 ]
}
if [ -f "$build/libpeers.so" ] && "$PYTHON" -c '' 2> "$work/err"; then
    expect "compare_peers: p.fast in bf16" peers
    expect "it has its own table" says '^Prefill, q, k, v and o in bf16'
    if grep -q '^bf16 fast skipped: ' "$work/out"; then
        expect "it says why it is skipped" says 'no unit for products of bf16 (p.fast) here: kernels'
        expect "and the exact call is there" test "$(wc -l < "$work/peers.csv")" -eq 2
    else
        expect "fast has a row of its own" grep -q ',fast,' "$work/peers.csv"
    fi
fi

# ---- by others

# Without the module jsonschema they say that the schema is not checked, and check the rest.
if "$PYTHON" -c '' 2> "$work/err"; then
    for name in plain threads pairs sizes fast experts preset cache gradients backward extreme dilated branches info \
        memory wrong odd absent stopped; do
        expect "$name.json and $name.csv are right" \
            "$PYTHON" tests/bench_files.py "$work/$name.json" "$work/$name.csv"
    done
    expect "damaged files are refused" \
        "$PYTHON" tests/bench_files.py --damage "$work/preset.json" "$work/preset.csv"
else
    echo "JSON and CSV not read by others: there is no $PYTHON"
fi

summary "bench files"
