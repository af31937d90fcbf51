#!/bin/sh
# hash_matrix.sh - checks the golden hashes under every compiler and option at hand.
# SPDX-License-Identifier: MIT
#
#     sh tools/hash_matrix.sh [folder for builds, default build/hash]
#
# Builds the library (attn.c and attn_simd_*.c) and the files of the test groups with golden hashes in each
# way of the table below, runs these groups (`bits`: each kernel set against tests/golden.h) and
# prints one line a build. The rest of the test program is built once, plainly. A missing compiler
# or target is skipped with a sentence. The script fails when a build fails or differs. JOBS=N runs
# N builds at a time (default 2). EVERY=N makes one in N of the builds, another N-th for each commit.
#
# Some ways build equal objects, to the byte: gcc and clang without -std= and with -std=gnu11, and
# clang with -Ofast -fno-fast-math and with -O3.

cd "$(dirname "$0")/.." || exit 1
out=${1:-build/hash}
jobs=${JOBS:-2}
groups="bits rope"
sources="bits bits_backward bits_index rope"

# compiler | options of attn.c and of linking | what may happen: `bits`, or `refuse` = also #error
# that names an option to add
table() {
    cat <<'TABLE'
cc||bits
gcc|-O0|bits
gcc|-O1|bits
gcc|-O2|bits
gcc|-O3 -march=native -ffp-contract=fast|bits
gcc|-Os|bits
gcc|-std=c99 -pedantic -O2 -fopenmp|bits
gcc|-std=c99 -O2 -m32|bits
gcc|-O2 -m32 -msse2 -mfpmath=sse|bits
gcc|-O2 -m32|refuse
gcc|-Ofast|refuse
gcc|-Ofast -march=native|refuse
gcc|-O2 -ffast-math -fopenmp|refuse
clang|-O0|bits
clang|-O2|bits
clang|-Ofast|refuse
clang|-Ofast -march=native -fno-fast-math|bits
TABLE
}

# The test program has these groups alone.
make_harness() {
    mkdir -p "$out" || exit 1
    for group in $groups; do
        grep "^TEST_GROUP($group, " tests/*.c | sed 's/^[^:]*://'
    done > "$out/groups.inc"
    {
        echo '#include "tests/test.h"'
        echo 'int run_cases(const char *dir, int lines) { (void)dir, (void)lines; return 1; }'
        echo 'int device_open(const char *impl) { (void)impl; return 0; }'
        echo 'void device_close(void) { }'
    } > "$out/stubs.c"
}

# The plain part of the program, for one target ($1: empty or -m32).
harness() {
    cc $1 -std=c99 -O1 -ffp-contract=off -I. -I"$out" -o "$2" -r -nostdlib \
        test.c tests/system.c tests/data.c tests/problem.c tests/strides.c tests/oracle.c "$out/stubs.c"
}

can_build() {
    echo 'int main(void) { return 0; }' > "$3.c"
    $1 $2 "$3.c" -o "$3" 2> /dev/null
}

# The library with compiler $1 and options $2 as $3.attn*.o, without AVX-512 (8 s a build) where
# this machine cannot run it.
library() {
    simd="-DATTN_SIMD_AVX2 -DATTN_SIMD_NEON -DATTN_SIMD_SSE2"
    cannot_run_avx512 || simd="$simd -DATTN_SIMD_AVX512"
    for file in attn.c attn_simd_*.c; do
        [ "$file" = attn_simd_avx512.c ] && cannot_run_avx512 && continue
        $1 $2 $simd -c "$file" -o "$3.${file%.c}.o" || return 1
    done
}

cannot_run_avx512() {
    [ "$(uname -m)" = x86_64 ] && [ "$(grep -c avx512f /proc/cpuinfo 2> /dev/null)" = 0 ]
}

# The groups with compiler $1 and options $2 as $3.group.*.o.
group_objects() {
    for source in $sources; do
        $1 $2 -std=c99 -c "tests/$source.c" -o "$3.group.$source.o" || return 1
    done
}

# Tells whether compiler $1 with options $2 is cc without options, where cc is a link to $1. -O0 is
# what compilers do unasked.
is_plain_cc() {
    [ "$1" != cc ] && [ "$2" = -O0 ] && [ "$(command -v cc)" -ef "$(command -v "$1")" ]
}

# Line $1 of the table: result in $out/N.result.
one() {
    line=$(table | sed -n "${1}p")
    compiler=${line%%|*}
    rest=${line#*|}
    options=${rest%%|*}
    may=${rest#*|}
    at=$out/$1
    result=FAILED
    target=
    case " $options " in *" -m32 "*) target=-m32 ;; esac
    : > "$at.log"
    if ! command -v "$compiler" > /dev/null || ! can_build "$compiler" "$options" "$at.try"; then
        result="skipped: cannot build for it here"
    elif is_plain_cc "$compiler" "$options"; then
        result="skipped: cc is this compiler and does the same without options"
    elif ! library "$compiler" "$options" "$at" > "$at.log" 2>&1; then
        if [ "$may" = refuse ] && grep -q '#error.*add -' "$at.log"; then
            result="refused, names the option to add"
        fi
    elif group_objects "$compiler" "$options" "$at" >> "$at.log" 2>&1 &&
        $compiler $options "$at".attn*.o "$at".group.*.o "$out/harness$target.o" -o "$at.test" \
            -lm >> "$at.log" 2>&1; then
        # The quick run would take 100 s with an unoptimised software fma, and other tiles, workers
        # and pieces do not depend on optimisation.
        case $options in "" | *-O0*) ATTN_TEST_QUICK=once ;; *) ATTN_TEST_QUICK=1 ;; esac
        export ATTN_TEST_QUICK
        # shellcheck disable=SC2086 # words
        if OMP_NUM_THREADS=3 "$at.test" $groups >> "$at.log" 2>&1; then
            result="equal: $(tail -n 1 "$at.log")"
        fi
    fi
    printf '%-6s %-52s %s\n' "$compiler" "${options:-(no options)}" "$result" > "$at.result"
}

if [ "$1" = --one ]; then
    out=$3
    one "$2"
    exit 0
fi

make_harness
every=${EVERY:-1}
commits=$(git rev-list --count HEAD 2> /dev/null || echo 0)
chosen=$(seq "$((commits % every + 1))" "$every" "$(table | wc -l)")
rm -f "$out"/*.result
harness "" "$out/harness.o" || exit 1
harness -m32 "$out/harness-m32.o" 2> /dev/null
echo "$chosen" | xargs -P "$jobs" -I '{}' sh tools/hash_matrix.sh --one '{}' "$out"
for n in $chosen; do
    cat "$out/$n.result" || echo "FAILED: build $n ended early"
done > "$out/table.txt"
cat "$out/table.txt"
failed=$(grep -c 'FAILED' "$out/table.txt")
skipped=$(grep -c 'skipped:' "$out/table.txt")
count=$(echo "$chosen" | wc -l)
echo "hash matrix: $count builds, $((count - failed - skipped)) passed, $failed failed," \
    "$skipped skipped"
[ "$failed" = 0 ] || { echo "the logs are in $out"; exit 1; }
