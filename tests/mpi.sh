#!/bin/sh
# mpi.sh - rings of ranks over attn_mpi.h: tests/mpi.c and examples/mpi_ring.c on 1 to 4 processes,
# with each MPI that is installed, OpenMPI and MPICH.
# SPDX-License-Identifier: MIT
#
#     FLAGS='-std=c99 -O2' sh tests/mpi.sh build/libattn.a build/mpi
#
# MPI="WRAPPER LAUNCHER" names another one. What is not installed is skipped with a sentence.
set -u
library=${1:?"usage: mpi.sh LIBRARY FOLDER"}
work=${2:?"usage: mpi.sh LIBRARY FOLDER"}
mkdir -p "$work"
failed=0
ran=0
begin=$(date +%s)

# One test program cuts messages into blocks of 64 bytes, as others do at a mebibyte.
build() { # build WRAPPER NAME
    # shellcheck disable=SC2086 # words
    "$1" $FLAGS attn_mpi.c tests/mpi.c tests/ring_cases.c tests/dilated_rank.c tests/ring_decode_rank.c tests/oracle.c \
        tests/oracle_backward.c tests/strides.c "$library" -o "$work/test_$2" -lm -lpthread -ldl &&
        "$1" $FLAGS -DATTN_MPI_BLOCK=64 attn_mpi.c tests/mpi.c tests/ring_cases.c tests/dilated_rank.c tests/ring_decode_rank.c tests/oracle.c \
            tests/oracle_backward.c tests/strides.c "$library" -o "$work/test_blocks_$2" -lm -lpthread -ldl &&
        "$1" $FLAGS attn_mpi.c examples/mpi_ring.c examples/ring_rank.c "$library" \
            -o "$work/mpi_ring_$2" -lm -lpthread -ldl
}

# What OpenMPI 4 and 5 want to hear before they run as root, and more ranks than CPUs.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# run LAUNCHER RANKS PROGRAM: for 300 seconds at most: ranks that wait for each other never end.
run() {
    timeout 300 "$1" -n "$2" "$3"
}

try() { # try NAME WRAPPER LAUNCHER
    if ! command -v "$2" > /dev/null || ! command -v "$3" > /dev/null; then
        echo "mpi: skipped $1: no $2 or no $3"
        return
    fi
    ran=1
    if ! build "$2" "$1" > "$work/log_$1" 2>&1; then
        echo "FAILED mpi: $1 does not build"
        cat "$work/log_$1"
        failed=1
        return
    fi
    for ranks in 1 2 3 4; do
        program=$work/test_$1
        [ $ranks -eq 3 ] && program=$work/test_blocks_$1
        if run "$3" $ranks "$program" > "$work/log_$1" 2>&1; then
            echo "mpi: $1, $(tail -1 "$work/log_$1"); $(($(date +%s) - begin)) s"
        else
            echo "FAILED mpi: $1, $ranks ranks"
            tail -20 "$work/log_$1"
            failed=1
        fi
        run "$3" $ranks "$work/mpi_ring_$1" > "$work/out_$1" 2> "$work/log_$1" &&
            [ -s "$work/out_$1" ] && diff examples/expected/mpi_ring.out "$work/out_$1" || {
            echo "FAILED mpi: $1, examples/mpi_ring.c on $ranks ranks"
            cat "$work/log_$1"
            failed=1
        }
    done
}

if [ -n "${MPI:-}" ]; then
    # shellcheck disable=SC2086 # words
    try given $MPI
else
    try openmpi mpicc.openmpi mpirun.openmpi
    try mpich mpicc.mpich mpirun.mpich
    [ $ran -eq 1 ] || try any mpicc mpirun
fi
[ $ran -eq 1 ] || echo "mpi: skipped: there is no MPI"
[ $failed -eq 0 ] && [ $ran -eq 1 ] && echo "mpi: all well in $(($(date +%s) - begin)) s"
exit $failed
