#!/bin/sh
# opencl.sh - the tests through OpenCL, on the devices that need no GPU and are installed: PoCL,
# rusticl on llvmpipe and Intel's runtime, which run kernels on the CPU, and Oclgrind, which simulates
# them and reports races and accesses out of bounds; planted bugs, which must be noticed; and what
# compilers for GPUs make of the kernels (tools/opencl_gate.sh).
# SPDX-License-Identifier: MIT
#
#     COMPILE='cc -std=c99' LINK=cc sh tests/opencl.sh build OBJECT...     (of the test program)
#
# What is not installed is skipped with a sentence. CASES names folders of conformance cases. Two
# processes at a time. PoCL takes seconds to compile a kernel, most of them for optimisation: groups
# that ask for many programs, and not for the claim of equal bits, do without (plainly). EVERY=N runs
# one in N of the planted bugs, of the groups in 16 bits and of the cases of the others, another N-th for
# each commit: what `.ci/run` has time for.
set -u
build=${1:?"usage: opencl.sh BUILD OBJECT..."}
shift
objects=$*
work=$build/opencl_check
test=$build/test
vendors=${VENDORS:-/etc/OpenCL/vendors}
failed=0
exact=
. tests/turns.sh
sample=$((turns % every + 1))/$every
begin=$(date +%s)
rm -rf "$work"
mkdir -p "$work/cache"
export POCL_CACHE_DIR="$PWD/$work/cache" # a program is compiled once, not in every process

# run NAME COMMAND...: its closing line, or all of it. A sample of cases is chosen for what must pass: a
# planted bug is found by the one that it is for.
run() {
    name=$1
    shift
    if (export ATTN_TEST_SAMPLE="$sample" && "$@") > "$work/log" 2>&1; then
        printf 'opencl: %-34s %4d s  %s\n' "$name" $(($(date +%s) - begin)) \
            "$(tail -n 1 "$work/log")"
    else
        failed=1
        printf 'FAILED opencl: %s\n' "$name"
        tail -n 40 "$work/log" | sed 's/^/    | /'
    fi
}

# plainly COMMAND...: kernels as they are written.
plainly() {
    env ATTN_TEST_BUILD_OPTIONS=-cl-opt-disable "$@"
}

# driver FILE NAME: only the devices of that driver from here on; fails where it is not installed.
driver() {
    if [ -n "$1" ] && [ -e "$1" ]; then
        export OCL_ICD_VENDORS="$1"
    else
        echo "opencl: skipped $2: not installed"
        return 1
    fi
}

# build_planted NAME SED [FILE]: the test program with FILE (kernels.cl) changed so; fails where it is
# not its turn.
build_planted() {
    turn || return 1
    build_changed "$@"
}

# build_changed NAME SED [FILE] does so whoever's turn it is. $exact is -DATTN_EXACT_MEMORY or nothing.
build_changed() {
    file=${3:-kernels.cl}
    mkdir -p "$work/planted"
    cp kernels.cl attn_opencl.c "$work/planted/"
    sed "$2" "$file" > "$work/planted/$file"
    if [ -n "$2" ] && cmp -s "$file" "$work/planted/$file"; then
        failed=1
        echo "FAILED opencl: nothing to plant '$1' in"
        return 1
    fi
    od -An -v -tu1 "$work/planted/kernels.cl" | sed 's|[0-9][0-9]*|&,|g' \
        > "$work/planted/kernels_cl.inc"
    # The host's code is what it was: -O0 is soonest compiled.
    # shellcheck disable=SC2086 # words
    if ! $COMPILE -O0 $exact -I"$work/planted" -I. -c "$work/planted/attn_opencl.c" \
        -o "$work/planted/attn_opencl.o" ||
        ! $LINK $objects "$work/planted/attn_opencl.o" "$build/libattn.a" \
            -o "$work/planted/test" -lm -lpthread -ldl; then
        failed=1
        echo "FAILED opencl: '$1' does not build"
        return 1
    fi
}

noticed() { # noticed NAME WHAT FILE
    if grep -qi "$2" "$3" 2> /dev/null; then
        echo "opencl: noticed '$1': $(grep -i -o -m 1 "$2.*" "$3")"
    else
        failed=1
        echo "FAILED opencl: '$1' was not noticed"
    fi
}

# plant_arithmetic NAME SED WHAT: the claim of equal bits is not made.
plant_arithmetic() {
    build_planted "$1" "$2" || return 0
    plainly "$work/planted/test" --impl opencl --cases tests/cases > "$work/log" 2>&1
    noticed "$1" "$3" "$work/log"
}

# plant_bits NAME SED: the golden hashes notice it, and before them the first use of the kernel.
plant_bits() {
    build_planted "$1" "$2" || return 0
    plainly env ATTN_TEST_UNCHECKED=1 "$work/planted/test" --first --impl opencl bits \
        > "$work/log" 2>&1
    noticed "$1" "^FAILED tests" "$work/log"
    dropped "$1" opencl bits x1-long
}

# plant_wrong NAME SED GROUP: where nothing is checked before, the group fails.
plant_wrong() {
    build_planted "$1" "$2" || return 0
    plainly env ATTN_TEST_UNCHECKED=1 "$work/planted/test" --first --impl opencl "$3" \
        > "$work/log" 2>&1
    noticed "$1" "^FAILED tests" "$work/log"
}

# plant_host NAME SED: what no kernel is to blame for; group opencl fails.
plant_host() {
    build_planted "$1" "$2" attn_opencl.c || return 0
    plainly "$work/planted/test" --first opencl > "$work/log" 2>&1
    noticed "$1" "^FAILED tests" "$work/log"
}

# plant_dropped NAME SED IMPL GROUP CASE: a kernel fails its first check.
plant_dropped() {
    build_planted "$1" "$2" || return 0
    dropped "$1" "$3" "$4" "$5"
}

# dropped NAME IMPL GROUP CASE: what was built last drops a kernel, and all results are right.
dropped() {
    if plainly "$work/planted/test" --impl "$2" --case "$4" "$3" > "$work/log" 2>&1; then
        noticed "$1" "failed \(its\|their\) first check[^;]*" "$work/log"
    else
        failed=1
        echo "FAILED opencl: '$1': wrong results, no kernel was dropped"
        tail -n 5 "$work/log" | sed 's/^/    | /'
    fi
}

# Says why a device is not there, and that nothing but the exit status depends on it.
without() { # without NAME SENTENCE VENDORS [LIBRARY]
    if OCL_ICD_VENDORS=$3 "$test" --impl opencl outputs > "$work/log" 2>&1 ||
        ! grep -q "no OpenCL device: .*$2" "$work/log"; then
        failed=1
        echo "FAILED opencl: $1: it says: $(tail -n 1 "$work/log")"
    else
        echo "opencl: $1: $(tail -n 1 "$work/log")"
    fi
}

absent() {
    mkdir -p "$work/none"
    without "no driver" "no OpenCL platform" "$PWD/$work/none"
    echo libm.so.6 > "$work/none/broken.icd"
    without "a driver that is none" "no OpenCL platform" "$PWD/$work/none"
    rm "$work/none/broken.icd"
    if OCL_ICD_VENDORS=$PWD/$work/none "$test" opencl opencl_smoke opencl_programs \
        > "$work/log" 2>&1; then
        echo "opencl: groups of a device without one: $(tail -n 1 "$work/log")"
    else
        failed=1
        echo "FAILED opencl: groups of a device without one"
    fi
}

# What the bench measured on a device, read by others.
bench_files() {
    "$build/bench" --shape 2,4,2,40,300,32 --causal --iters 5 --json "$work/bench.json" \
        --csv "$work/bench.csv" --impl tiled,naive,opencl_naive,opencl,opencl_resident,opencl_exact &&
        "${PYTHON:-python3}" tests/bench_files.py "$work/bench.json" "$work/bench.csv"
}

pocl_exact() {
    driver "$vendors/pocl.icd" PoCL || return 0
    run "PoCL, exact: golden hashes" "$test" --impl opencl bits
    run "PoCL, exact: stability, outputs" plainly "$test" --impl opencl stability outputs
    run "PoCL: opening; arrays, events, threads" "$test" opencl_smoke opencl
    run "PoCL: first use; programs damaged" "$test" opencl_programs
    run "PoCL: the bench notices what is wrong" "$build/bench_test" selfcheck --device Portable
    run "PoCL: the bench, and its files" bench_files
}

pocl_groups() {
    driver "$vendors/pocl.icd" "groups on PoCL" || return 0
    run "PoCL, exact: masks, laws, poison" plainly "$test" --impl opencl masks laws poison
    run "PoCL, exact: quantised K and V" plainly "$test" --impl opencl quantised
    ! turn || run "PoCL, exact: f16" plainly "$test" --impl opencl --storage f16 masks laws poison
    run "PoCL, free order" plainly "$test" --impl opencl_free masks poison outputs
    ! turn || run "PoCL, free order: f16" plainly "$test" --impl opencl_free --storage f16 masks poison
    run "PoCL, naive" plainly "$test" --impl opencl_naive masks poison
    ! turn || run "PoCL, free order: quantised" plainly "$test" --impl opencl_free quantised
    ! turn || run "PoCL, naive: quantised" plainly "$test" --impl opencl_naive quantised
}

pocl_cases() {
    driver "$vendors/pocl.icd" "cases on PoCL" || return 0
    for folder in tests/cases ${CASES:-}; do
        for impl in opencl opencl_free opencl_naive; do
            [ ! -d "$folder" ] || run "PoCL, $impl: ${folder##*/}" plainly "$test" --impl $impl \
                --cases "$folder"
        done
    done
}

pocl_planted() {
    driver "$vendors/pocl.icd" "bugs on PoCL" || return 0
    plant_arithmetic "fma rounded twice" 's/r = fma(x, y, z);/r = x * y + z;/' \
        "fma is not rounded once"
    plant_arithmetic "a Newton step too few" 's/    z = fma(e, z, z);$/    z = y * 1.0000001f;/' \
        "1 \/ x is not correctly rounded"
    plant_arithmetic "a coefficient of 2^x" 's/0x1.5f8d0cp-10f/0x1.6f8d0cp-10f/' "2^x"
    plant_bits "a row merged with the wrong half" 's/x = x \* a;/x = x * b;/'
    plant_bits "a maximum that always moves" 's/high > m + 16.0f/high > m/'
    plant_dropped "a causal edge a key too far" 's/max(r.pos + 1, r.s/max(r.pos + 2, r.s/' opencl \
        bits x1-long
    plant_dropped "parts merged by the wrong weight" 's/both.o = left.o \* x.a/both.o = left.o * x.b/' \
        opencl bits x1-long
    plant_dropped "2^x of 1.01 x, free order" 's/native_exp2(x)$/(native_exp2(x * 1.01f))/' \
        opencl_free poison 0
    plant_dropped "the factor of another row" 's/o \* factors\[get_global_id(1)\]/o * factors[0]/' \
        opencl_naive poison 1
    plant_dropped "m taken for delta" 's/g->known\[KNOWN_DELTA/g->known[KNOWN_M/' opencl bits \
        'gradients of x1'
    plant_dropped "r left out" 's/return p \* of.r;/return p;/' opencl bits 'gradients of x1'
    plant_dropped "m in place of l" 's/0, at + 1, e.l);/0, at + 1, e.m);/' opencl bits x1-long
    plant_dropped "a sum that begins a row late" \
        's/for (i = 0; i < rows; i = end) {/for (i = 1; i < rows; i = end) {/' opencl bits \
        'gradients of alibi'
}

pocl_planted_host() {
    driver "$vendors/pocl.icd" "bugs of the host's side on PoCL" || return 0
    plant_host "memory of another queue" 's/(!slot->queue || slot->queue == queue)/1/'
    plant_host "memory that is not kept" 's/if (b->bytes && !s->error)/if (0)/'
}

# What K and V are read by, queries rounded and rows rotated. Cases of `quantised` have K or V in units.
pocl_planted_units() {
    driver "$vendors/pocl.icd" "bugs of units on PoCL" || return 0
    plant_dropped "both nibbles at once" 's|x = (x >> i / 16 \* 4) & 15;|x = x \& 15;|' opencl bits \
        q4_0
    plant_dropped "the fifth bit of a neighbour" 's/>> (int4)(0, 1, 2, 3)/>> (int4)(1, 2, 3, 0)/' \
        opencl bits q5_0
    plant_dropped "bytes without a sign" 's/convert_int4(as_char4(/convert_int4((/' opencl bits q8_0
    plant_dropped "the scale of the first unit" \
        's/: scale_of(unit_at(b->data, b->type, at + d))/: scale_of(unit_at(b->data, b->type, at))/' \
        opencl bits q8_0
    plant_dropped "queries in 128ths" 's|+ 63u) / 127u|+ 64u) / 128u|' opencl bits q8_0
    plant_dropped "whole numbers one too small" 's/y = y - 12582912.0f;/y = y - 12582913.0f;/' opencl \
        bits q8_0
    plant_dropped "a dot that goes on" 's/^            dot\[i\]\[j\] = 0.0f;/dot[i][j] = s[i][j];/' \
        opencl bits q8_0
    plant_dropped "a score of an exact query" 's/if (HAS(F_INTEGER))$/if (0)/' opencl bits \
        q8_0-logits
    plant_dropped "a rotation without its factor" 's/x\[i\] = x\[i\] \* c;/x[i] = x[i];/' opencl \
        bits rotated
    plant_dropped "sums in place of differences" 's/half_size\] = a - b;/half_size] = a + b;/' opencl \
        bits rotated
    plant_wrong "values without a scale" 's/return scale_of(unit) \* convert/return convert/' quantised
    plant_wrong "an exponent of E4M3" 's/0x3c000000u/0x3b800000u/' quantised
    plant_wrong "an exponent of E5M2" 's/0x38000000u/0x38800000u/' quantised
    plant_wrong "a subnormal of E4M3" 's/0x1p-9f/0x1p-10f/' quantised
    plant_wrong "a subnormal of E5M2" 's/0x1p-16f/0x1p-15f/' quantised
    plant_wrong "a query too small for a scale" 's/scale == 0.0f || !isfinite(inverse)/0/' quantised
}

# Not in Debian: intel-opencl-rt of PyPI, with tbb and intel-cmplr-lib-rt. INTEL_CPU: its .icd.
on_intel() {
    driver "${INTEL_CPU:-$vendors/intel64.icd}" "Intel's runtime for CPUs" || return 0
    run "Intel, CPU: arrays, events, threads" "$test" opencl
    run "Intel, CPU, exact: golden hashes" "$test" --impl opencl bits stability outputs
}

on_rusticl() {
    driver "$vendors/rusticl.icd" rusticl || return 0
    export RUSTICL_ENABLE=llvmpipe LP_NUM_THREADS=1
    run "rusticl: small calls of every kind" env ATTN_TEST_QUICK=1 "$test" opencl
    unset RUSTICL_ENABLE LP_NUM_THREADS
}

# ---- Oclgrind: a library that is found by the name of a driver

simulated() { # simulated PROGRAM
    env ATTN_TEST_QUICK=1 OCLGRIND_DATA_RACES=1 OCLGRIND_CHECK_API=1 OCLGRIND_MAX_ERRORS=5 \
        OCLGRIND_LOCAL_MEM_SIZE=65536 OCLGRIND_LOG="$PWD/$work/reports" "$@"
}

clean() {
    rm -f "$work/reports"
    build_changed "memory of exact sizes" ""
    simulated "$work/planted/test" opencl && [ ! -s "$work/reports" ] || {
        cat "$work/reports"
        return 1
    }
}

# plant NUMBER-AND-CASE NAME SED WHAT: with kernels.cl changed so, a race or an access out of bounds
# is reported as WHAT, in this case of the group opencl, maybe behind many others: groups run in any
# order.
plant() {
    build_planted "$2" "$3" || return 0
    rm -f "$work/reports"
    simulated env OCLGRIND_MAX_ERRORS=10000 ATTN_TEST_UNCHECKED=1 timeout 900 "$work/planted/test" --verbose \
        --case "${1%%:*}" opencl > "$work/log" 2>&1
    if grep -q "^  case $1\$" "$work/log"; then
        noticed "$2" "$4" "$work/reports"
    else
        failed=1
        echo "FAILED opencl: '$2': no case $1 in the group opencl"
    fi
}

oclgrind() { # as driver
    library=
    for at in /usr/lib /usr/local/lib /usr/lib/x86_64-linux-gnu; do
        [ ! -e "$at/oclgrind/liboclgrind-rt-icd.so" ] ||
            library=$at/oclgrind/liboclgrind-rt-icd.so
    done
    echo "$library" > "$work/oclgrind.icd"
    [ -n "$library" ] || rm "$work/oclgrind.icd"
    driver "$PWD/$work/oclgrind.icd" "$1"
}

oclgrind_clean() {
    oclgrind Oclgrind || return 0
    exact=-DATTN_EXACT_MEMORY
    run "Oclgrind: no race, nothing out of bounds" clean
}

oclgrind_planted() {
    oclgrind "bugs on Oclgrind" || return 0
    exact=-DATTN_EXACT_MEMORY
    prefill="0: prefill" gradients="19: gradients"
    plant "$prefill" "no barrier before a slice is used" '/stage_slices(t, a, b/{n;d;}' \
        "data race"
    plant "$prefill" "no barrier before V is overwritten" \
        '/multiply_pv(t, key, 0, o);/{n;d;}' "data race"
    plant "$prefill" "columns of V beyond the last one" \
        's/x->type, at + d, left);/x->type, at + d, 4);/' "invalid read"
    plant "$prefill" "a result too many" 's/if (c >= columns)/if (c > columns)/' "invalid write"
    plant "$gradients" "no barrier before rows are used" '/stage_columns(t, &rows/{n;d;}' \
        "data race"
    plant "$gradients" "a gradient of a key too many" \
        's/if (j >= keys || c >= dim)/if (c >= dim)/' "invalid write"
}

# What is not OpenCL's alone in src/opencl compiles without it: another API could use it as it is.
rooms() {
    for room in fields plan arrays describe; do
        printf '#include "src/api/attn.h"\n#include "src/opencl/%s.c"\n' $room > "$work/room.c"
        if $COMPILE -Wno-unused-function -I. -MD -MF "$work/room.d" -c "$work/room.c" \
            -o "$work/room.o" && ! grep -E 'attn_opencl|loader|device\.c|session' "$work/room.d"; then
            echo "opencl: src/opencl/$room.c compiles without OpenCL"
        else
            failed=1
            echo "FAILED opencl: src/opencl/$room.c is not free of OpenCL"
        fi
    done
}

gate() {
    if sh tools/opencl_gate.sh "$work/gate" > "$work/log" 2>&1; then
        grep 'skipped' "$work/log"
        tail -n 1 "$work/log"
    else
        failed=1
        echo "FAILED opencl: gate"
        tail -n 40 "$work/log" | sed 's/^/    | /'
    fi
}

# lane NAME FUNCTION...: one after the other, in a folder of their own.
lane() {
    work=$work/$1
    shift
    mkdir -p "$work"
    for part in "$@"; do
        "$part"
    done
    exit "$failed"
}

(lane first pocl_exact on_rusticl on_intel pocl_planted pocl_planted_host pocl_planted_units oclgrind_planted) &
first=$!
(JOBS=1 lane second rooms gate pocl_groups pocl_cases oclgrind_clean absent)
status=$?
wait "$first" || status=1
exit "$status"
