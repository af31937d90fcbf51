#!/bin/sh
# bench_mpi.sh - the bench over processes (--mpi), on 1 to 4 of them.
# SPDX-License-Identifier: MIT
#
#     sh tests/bench_mpi.sh BUILD          (PYTHON, MPIRUN from the environment)
#
# Without an MPI only what the plain bench says is checked.
set -u
build=$1
PYTHON=${PYTHON:-python3}
MPIRUN=${MPIRUN:-mpirun}
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-bench-mpi.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. "tests/expect.sh"

says() { grep -q -- "$1" "$work/out" "$work/err"; }
status() # status WANTED COMMAND...
{
    wanted=$1
    shift
    "$@"
    [ $? -eq "$wanted" ]
}

cp "$build/bench" "$work/bench"
plain() { "$work/bench" "$@" > "$work/out" 2> "$work/err"; }
expect "without MPI: status 2" status 2 plain dilated --mpi
expect "it says what to build" says 'make build/bench_mpi'
expect "in one sentence" test "$(wc -l < "$work/err")" -eq 1
if ! [ -x "$build/bench_mpi" ] || ! command -v "$MPIRUN" > "$work/found"; then
    echo "bench mpi: processes skipped: there is no $build/bench_mpi or no $MPIRUN"
    summary "bench mpi"
    exit $?
fi

# What OpenMPI 4 and 5 want to hear before they run as root, and more ranks than CPUs.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# bench RANKS ARGUMENT...: ranks that wait for each other never end
bench()
{
    ranks=$1
    shift
    timeout 300 "$MPIRUN" -n "$ranks" "$build/bench" "$@" --mpi > "$work/out" 2> "$work/err"
}
files() # files NAME RANKS ARGUMENT...
{
    name=$1
    shift
    bench "$@" --json "$work/$name.json" --csv "$work/$name.csv" && return
    cat "$work/out" "$work/err"
    return 1
}
rows() { grep -c '"processes": [1-9]' "$work/$1.json"; }

small='--quick --iters 3 --shape 1,4,4,512,512,32'
for ranks in 1 2 3 4; do
    # shellcheck disable=SC2086 # words
    expect "$ranks processes" files "p$ranks" "$ranks" dilated $small
    expect "one table" test "$(grep -c 'processes against one' "$work/out")" -eq 1
    expect "nothing is wrong or skipped" says ' 0 skipped'
done
# four ways, two of them backward, and branches in both passes, with 1, with 1 and 2, with 1, 2 and 3, with 1,
# 2 and 4
expect "the series of ranks" test "$(rows p1) $(rows p2) $(rows p3) $(rows p4)" = "8 16 24 24"
expect "extreme" files extreme 2 extreme --quick --iters 1 --max-seq-len 8192
expect "causal and window are divided" test "$(rows extreme)" -ge 4
expect "a shape by two ways" files shape 2 --batch-size 1 --num-heads 2 --seq-length 300 --causal \
    --impl ring,all_gather --iters 2 --threads 2
expect "each with 1 and 2" test "$(rows shape)" -eq 4
expect "a shape that no process can share: status 2" status 2 bench 2 --shape 1,1,1,1,64,16 --iters 1
expect "it says why" says 'no case here can be divided among processes'
expect "a wrong option: status 2" status 2 bench 2 dilated --max-sec 3
expect "it is said once" test "$(grep -c '^bench: unknown option' "$work/err")" -eq 1
expect "no other number of ranks" status 2 bench 2 dilated --ranks 4
expect "no baseline" status 2 bench 2 dilated --baseline "$work/p2.json"

# ---- the bench with planted faults

planted()
{
    ranks=$1
    shift
    timeout 300 "$MPIRUN" -n "$ranks" "$build/bench_test_mpi" "$@" --mpi > "$work/out" 2> "$work/err"
}
tiny='--shape 1,2,2,128,128,32 --iters 3'
# shellcheck disable=SC2086 # words
{
    expect "a wrong kernel is refused" status 1 planted 2 $tiny --plant-wrong qk
    expect "with one process and with two" test "$(grep -c 'skipped: wrong result' "$work/out")" -eq 2
    expect "so are wrong gradients" status 1 planted 2 $tiny --backward --plant-wrong outer
    expect "wrong keys of one rank are noticed on rank 0" status 1 planted 3 $tiny --plant-wrong ranks
    expect "whatever the number of ranks" test "$(grep -c 'skipped: wrong result' "$work/out")" -eq 3
    expect "Ctrl-C: status 130" status 130 planted 2 $tiny --impl ring,all_gather --plant-interrupt 3 \
        --csv "$work/stopped.csv"
    expect "the rows before it are written" test "$(wc -l < "$work/stopped.csv")" -eq 3
}

if "$PYTHON" -c '' 2> "$work/err"; then
    for name in p1 p2 p3 p4 extreme shape; do
        expect "$name.json and $name.csv are right" \
            "$PYTHON" tests/bench_files.py "$work/$name.json" "$work/$name.csv"
    done
fi

summary "bench mpi"
