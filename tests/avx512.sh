#!/bin/sh
# avx512.sh - the kernels of attn_simd_avx512.c on a CPU that has AVX2, by emulation.
# SPDX-License-Identifier: MIT
#
#     sh tests/avx512.sh BUILD OBJECT...      (of the tests)
#
# tests/avx512/ makes the file one for AVX2: operations are SIMDe's (Debian: libsimde-dev), and those in
# assembly, tiles of AMX among them, are written out. Linked with the objects of the tests and with
# BUILD/libattn.a, which has the other files, each set passes groups that depend on kernels, and `quantised`
# again without products of bytes. Then the bugs of the file that
# tools/mutants.txt lists must be noticed. EVERY=N plants one in N of them, another N-th for each commit.
#
# CC: the compiler; LINK: a command that links (default cc). ATTN_TEST_SAMPLE: the cases, 1/4 if not set.
set -u
build=${1:?"usage: avx512.sh BUILD OBJECT..."}
shift
cc=${CC:-cc}
groups="kernels bits decode laws masks outputs poison quantised stored_cases"
rounded="fast masks outputs poison threads" # of sets that round
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-avx512.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. tests/turns.sh
failed=0
passed=0

if ! grep -qw avx2 /proc/cpuinfo 2> /dev/null ||
    ! echo '#include <simde/x86/avx512.h>' | $cc -mavx2 -E - > /dev/null 2>&1; then
    echo "avx512: skipped, since it needs a CPU with AVX2, and SIMDe: apt-get install libsimde-dev"
    exit 0
fi

# emulated PROGRAM FILE OBJECT...: the tests with a file as that for AVX-512. -Og compiles it in 20 s, -O1 in
# 70, and the tests take as long.
emulated() {
    program=$1 file=$2
    shift 2
    sed -f tests/avx512/emulate.sed "$file" > "$work/emulated.c" &&
        $cc -std=gnu99 -Og -w -ffp-contract=off -mavx2 -mfma -mf16c -DSIMDE_NO_INLINE -Itests/avx512 -I. \
            -c "$work/emulated.c" -o "$work/emulated.o" 2> "$work/log" &&
        ${LINK:-cc} "$@" "$work/emulated.o" "$work/libattn.a" -o "$work/$program" -lm -lpthread -ldl
}

# passes SET GROUP...: by the unchanged program.
passes() {
    set=$1
    shift
    ATTN_TEST_QUICK=1 ATTN_TEST_SAMPLE=${ATTN_TEST_SAMPLE:-1/4} "$work/test" --kernels "$set" "$@" > "$work/log" 2>&1 || {
        echo "FAILED $set: $(tail -1 "$work/log")"
        grep -A 2 FAILED "$work/log" | head -12
        failed=1
    }
    echo "avx512: $set: $(tail -1 "$work/log")"
    passed=$((passed + $(tail -1 "$work/log" | sed 's/ passed.*//')))
}

# plant LINE OBJECT...: a line of tools/mutants.txt.
plant() {
    LINE=$1 awk '
        BEGIN { split(ENVIRON["LINE"], part, " ## ") }
        (at = index($0, part[3])) {
            $0 = substr($0, 1, at - 1) part[4] substr($0, at + length(part[3]))
            count++
        }
        { print }
        END { exit count != 1 }' attn_simd_avx512.c > "$work/planted.c" || return 1
    where=$(echo "$1" | awk -F ' ## ' '{ print $5 }')
    shift
    emulated planted "$work/planted.c" "$@" || return 1
    # shellcheck disable=SC2046 # words
    ! ATTN_TEST_QUICK=1 ATTN_TEST_SAMPLE=1/1 "$work/planted" --first --kernels "${where%%:*}" $(echo "${where#*:}" | tr , ' ') \
        > "$work/log" 2>&1
}

cp "$build/libattn.a" "$work" && ${AR:-ar} d "$work/libattn.a" attn_simd_avx512.o &&
    emulated test attn_simd_avx512.c "$@" || {
    cat "$work/log"
    echo "FAILED: the file does not compile for AVX2"
    exit 1
}
# shellcheck disable=SC2086 # words
for set in avx512 avx512_narrow; do
    passes $set $groups
    NO_DOTS=1 passes $set quantised
done
# shellcheck disable=SC2086 # words
NO_TILES=1 passes avx512_bf16 $rounded
# shellcheck disable=SC2086 # words
passes avx512_amx $rounded

grep ' ## attn_simd_avx512.c ## ' tools/mutants.txt > "$work/mutants"
while IFS= read -r line; do
    turn || continue
    if plant "$line" "$@"; then
        echo "    noticed ${line%% ## *} ($where): $(grep -m 1 FAILED "$work/log")"
    else
        echo "FAILED: not noticed, or not planted: $line"
        failed=1
    fi
done < "$work/mutants"
[ "$failed" -ne 0 ] || echo "avx512: $passed passed by emulation, planted bugs noticed where it was their turn"
exit "$failed"
