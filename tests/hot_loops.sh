#!/bin/sh
# hot_loops.sh - what compilers make of the inner loops of attn_simd_*.c.
# SPDX-License-Identifier: MIT
#
#     sh tests/hot_loops.sh        (LOOPS=1 lists the loops, STRICT=1 allows nothing)
#
# Disassembles each SIMD file as the Makefile compiles it and looks at every innermost loop with at
# least 6 multiply-adds of vectors, of floats, bytes or bf16 (hot_loops.awk), whatever function it is in:
#
# 1. The full tile of each set, MR x NV accumulators, has its loops: `tiles` of them at least hold
#    MR * NV fused multiply-adds, or a multiple where the compiler unrolled.
# 2. No loop loads from the stack or stores to it, but for those in the table `known`.
#
# Then the same on planted bugs, which must be found: loops over accumulators not unrolled, and
# twice as many accumulators as there is room for. EVERY=N plants one in N of them, another N-th for each
# commit.
set -u
tiles=2 # q k, p v
cd "$(dirname "$0")/.." || exit 1
. tests/turns.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-loops.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# file, machine that the compiler must compile for, compiler, disassembler
builds() {
    cat <<'TABLE'
avx512 x86_64 gcc objdump
avx512 x86_64 clang objdump
avx2 x86_64 gcc objdump
avx2 x86_64 clang objdump
neon aarch64 aarch64-linux-gnu-gcc aarch64-linux-gnu-objdump
TABLE
}

# What gcc 12 and clang 14 cannot keep in 16 registers: constants of polynomials; and, once for each unit
# of 32 numbers (few_any, few_dots, few_floats, any, dots), addresses of rows and sums that wait, in
# few_floats of AVX2 and NEON also words of two vectors of keys (with one vector AVX2 takes 1.04 to 1.35
# times as long). File, compiler, multiply-adds of a loop, then the stack accesses of each such loop at
# most, largest first. Loops not listed: none. A line to be taken out when its loop is repaired, never one
# to be raised.
known() {
    [ -z "${STRICT:-}" ] || return 0
    cat <<'TABLE'
avx512 gcc 256 9 8 8
avx512 gcc 128 9 8 8
avx512 gcc 72 17 13 9
avx512 gcc 64 9 8 8
avx512 gcc 36 11 9 9
avx512 gcc 32 9 8 8
avx512 gcc 18 13 11 11
avx512 gcc 9 12 9 9
avx512 gcc 8 18 17 9
avx512 clang 256 14 8 4
avx512 clang 128 8 6 6
avx512 clang 72 14 8 7
avx512 clang 64 6 6 6
avx512 clang 36 10 8 6
avx512 clang 32 6 6 6
avx512 clang 18 8 8 8
avx512 clang 16 4
avx512 clang 9 7 7 7
avx512 clang 8 9 8 8
avx2 gcc 256 138 138 62 62 57 57
avx2 gcc 128 88 39 27
avx2 gcc 64 79 30 17
avx2 gcc 36 17 17 10 10 9 9
avx2 gcc 18 9 8 8
avx2 gcc 11 1 1
avx2 gcc 9 9 8 8
avx2 clang 256 103 103 91 91 33 33
avx2 clang 128 61 60 30
avx2 clang 64 68 41 26
avx2 clang 36 13 13 9 9 5 5
avx2 clang 24 31
avx2 clang 18 7 5 5
avx2 clang 12 35
avx2 clang 11 16 16
avx2 clang 9 5 5 5
avx2 clang 8 7 7 7
avx2 clang 6 5 5 5 5 4 4 4 4
neon aarch64-linux-gnu-gcc 256 13 13
TABLE
}

# judge FOLDER FILE COMPILER OBJDUMP: one line, preceded by what is wrong; fails if anything is.
judge() {
    $3 -std=c99 -ffp-contract=off -O2 -c "$1/attn_simd_$2.c" -o "$work/loops.o" || return 1
    "$4" -d --no-show-raw-insn "$work/loops.o" > "$work/code" || return 1
    awk -v least=6 -f tests/hot_loops.awk "$work/code" | sort -k1,1nr -k2,2nr > "$work/loops"
    [ -z "${LOOPS:-}" ] || cat "$work/loops"
    known | awk -v wanted="$tiles" -v file="$2" -v compiler="$3" '
        function complain(text) { printf "WRONG %s, %s: %s\n", file, compiler, text; wrong = 1 }
        FILENAME == "-" { # the table of what is known
            for (i = 4; $1 == file && $2 == compiler && i <= NF; i++)
                most[$3, i - 3] = $i
        }
        FILENAME ~ /[.]c$/ && /^#define NV / { nv = $3 }
        FILENAME ~ /[.]c$/ && /^#define MR / { tile[++sets] = nv * $3 }
        FILENAME ~ /loops$/ {
            if (!seen[$1]++)
                sizes[++kinds] = $1
            stack += $2
            if ($2 > most[$1, seen[$1]] + 0)
                complain("a loop of " $1 " multiply-adds in " $3 " has " $2 " stack accesses, " \
                         most[$1, seen[$1]] + 0 " allowed")
            for (s = 1; s <= sets; s++)
                found[s] += $1 % tile[s] == 0
        }
        END {
            for (s = 1; s <= sets; s++)
                if (found[s] < wanted)
                    complain(found[s] + 0 " loops with the " tile[s] " multiply-adds of a tile, " \
                             wanted " wanted")
            if (!sets)
                complain("no tile defined")
            for (k = 1; k <= kinds; k++) {
                loops += seen[sizes[k]]
                text = text " " seen[sizes[k]] "x" sizes[k]
            }
            printf "%s, %s: %d hot loops, multiply-adds%s, %d stack accesses\n", file, compiler,
                   loops, text, stack
            exit wrong
        }' - "$1/attn_simd_$2.c" "$work/loops"
}

# plant NAME FILE COMPILER OBJDUMP SED-SCRIPT: judge must fail on a copy changed by the script.
plant() {
    rm -rf "$work/planted"
    mkdir "$work/planted"
    for source in attn.h attn_simd.h "attn_simd_$2.c"; do
        sed "$5" "$source" > "$work/planted/$source"
    done
    if cmp -s attn_simd.h "$work/planted/attn_simd.h" &&
        cmp -s "attn_simd_$2.c" "$work/planted/attn_simd_$2.c"; then
        echo "FAILED $2, $3: nothing to plant '$1' in"
        return 1
    fi
    judge "$work/planted" "$2" "$3" "$4" > "$work/found"
    if ! grep -q '^WRONG' "$work/found"; then
        echo "FAILED $2, $3: '$1' was not noticed"
        cat "$work/found"
        return 1
    fi
    echo "    noticed '$1' in $(grep -c '^WRONG' "$work/found") places," \
        "$(grep -c 'stack accesses,' "$work/found") of them stack accesses"
}

# clang unrolls these loops unasked as well, so that it has to be told not to.
rolled() {
    case $1 in
    clang) echo 's/clang loop unroll(full)/clang loop unroll(disable)/' ;;
    *) echo 's/^#define UNROLL .*/#define UNROLL/' ;;
    esac
}

doubled='s/^#define MR 16/#define MR 32/; s/^#define MR 8/#define MR 16/
s/^#define MR 4/#define MR 8/; s/^#define MR 6/#define MR 12/'
failed=0
count=0
builds > "$work/builds"
while read -r file machine compiler objdump; do
    if ! command -v "$compiler" > /dev/null || ! command -v "$objdump" > /dev/null; then
        echo "$file, $compiler: skipped, there is no $compiler or no $objdump here"
        continue
    fi
    case $($compiler -dumpmachine) in
    "$machine"*) ;;
    *) echo "$file, $compiler: skipped, it compiles for another machine"; continue ;;
    esac
    count=$((count + 1))
    judge . "$file" "$compiler" "$objdump" || failed=1
    ! turn || plant "not unrolled" "$file" "$compiler" "$objdump" "$(rolled "$compiler")" || failed=1
    ! turn || plant "twice the accumulators" "$file" "$compiler" "$objdump" "$doubled" || failed=1
done < "$work/builds"
if [ "$count" -eq 0 ]; then
    echo "hot loops: skipped, no compiler here makes what this check can disassemble"
elif [ "$failed" -eq 0 ]; then
    echo "hot loops: $count builds, nothing but the known stack accesses; planted bugs noticed, where" \
        "it was their turn"
fi
exit "$failed"
