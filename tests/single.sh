#!/bin/sh
# single.sh - the library in one file (`make single`) against the library in several.
# SPDX-License-Identifier: MIT
#
#     sh tests/single.sh BUILD OBJECT...      (of the tests, and of the backends that they call)
#
# 1. BUILD/attn_single.c alone in a folder compiles with every compiler at hand without a word, as the
#    note about optimisation is silenced: with no flags, and as strict C99 with all warnings: so by
#    COMPILE, see 2. The CPU time is printed, not judged.
# 2. Linked with the objects of the tests it has the kernel sets of BUILD/libattn.a, and passes the
#    groups `bits` and `rope`, with the golden hashes, and `kernels`.
# 3. Planted bugs are noticed: a set left out, and another coefficient in the vector kernels.
#
# EVERY=N takes one in N of the compilers and of the planted bugs, others for each commit.
#
# COMPILE, LINK: commands for the build that runs (default cc -O2 with all warnings); RUN: an emulator.
set -u
build=${1:?"usage: single.sh BUILD OBJECT..."}
shift
objects=$*
strict="-std=c99 -pedantic -Wall -Wextra -Wconversion -Wshadow"
compile=${COMPILE:-cc $strict -O2}
link=${LINK:-cc}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-single.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
failed=0

. "$here/turns.sh"

fail()
{
    echo "FAILED $*"
    [ -s "$work/log" ] && sed 's/^/    /' "$work/log" | tail -n 12
    failed=1
}

# ---- every compiler

# x87 code needs -std=c99, see attn.c.
compilers() {
    cat <<TABLE
cc
clang
clang $strict -O2
aarch64-linux-gnu-gcc
aarch64-linux-gnu-gcc $strict
arm-linux-gnueabihf-gcc
gcc -m32 -std=c99
gcc -m32 -msse2 -mfpmath=sse
TABLE
}

# compiles COMPILER-AND-FLAGS
compiles()
{
    # shellcheck disable=SC2086 # words
    if ! $1 -c "$work/alone/probe.c" -o "$work/probe.o" > /dev/null 2>&1; then
        echo "single: $1: skipped, cannot build for it here"
    elif ! seconds=$(cd "$work/alone" &&
        sh "$here/user_seconds.sh" $1 -DATTN_UNOPTIMIZED -c attn_single.c 2> "$work/log") ||
        [ -s "$work/log" ]; then
        fail "$1: does not compile without a word"
    else
        echo "single: $1: $seconds s of CPU time"
    fi
}

mkdir "$work/alone"
cp "$build/attn_single.c" "$work/alone"
echo '#include <string.h>' > "$work/alone/probe.c"
compilers > "$work/compilers"
while read -r compiler; do
    ! turn || compiles "$compiler"
done < "$work/compilers"

# ---- the same library

cat > "$work/names.c" <<'END_C'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    const attn_kernels *set;
    int i;
    for (i = 0; (set = attn_kernels_get(i)) != NULL; i++)
        puts(attn_kernels_name(set));
    return 0;
}
END_C

# names LIBRARY: the kernel sets that a program linked with it can run.
names()
{
    $compile -I"$build" -c "$work/names.c" -o "$work/names.o" > "$work/log" 2>&1 &&
        $link "$work/names.o" "$1" -o "$work/names" -lm -lpthread -ldl >> "$work/log" 2>&1 &&
        ${RUN:-} "$work/names"
}

# same FOLDER GROUPS OPTION: makes FOLDER/attn_single.c, with this option for the compiler, and the
# test program $objects with it. What it does not share with the library is in $work/why: nothing if
# its kernel sets are those expected and these groups of the tests pass. Fails where a build does, or,
# without an option, says a word.
same()
{
    : > "$work/why"
    # shellcheck disable=SC2086 # words
    $compile $3 -c "$1/attn_single.c" -o "$1/single.o" > "$work/log" 2>&1 &&
        { [ -n "$3" ] || [ ! -s "$work/log" ]; } &&
        $link $objects "$1/single.o" -o "$1/test" -lm -lpthread -ldl >> "$work/log" 2>&1 &&
        found=$(names "$1/single.o") || return 1
    if [ "$found" != "$expected" ]; then
        echo "other kernel sets" > "$work/why"
    elif ! ATTN_TEST_QUICK=1 ${RUN:-} "$1/test" $2 > "$work/log" 2>&1; then
        echo "other results" > "$work/why"
    fi
}

# plant WHAT SED-SCRIPT WHY: `same` must give this reason for a copy so changed. The best set alone,
# little optimised: it is about noticing, and soon done.
plant()
{
    rm -rf "$work/planted"
    mkdir "$work/planted"
    sed "$2" "$build/attn_single.c" > "$work/planted/attn_single.c"
    if cmp -s "$build/attn_single.c" "$work/planted/attn_single.c"; then
        fail "nothing to plant '$1' in"
    elif ! same "$work/planted" "--kernels $best bits" -O1; then
        fail "'$1' does not compile"
    elif ! grep -qx "$3" "$work/why"; then
        fail "'$1' was not noticed"
    else
        echo "single: noticed '$1': $3"
    fi
}

if ! expected=$(names "$build/libattn.a") || [ -z "$expected" ]; then
    fail "no names of the kernel sets of the library"
    exit 1
fi
best=$(echo "$expected" | head -n 1)
if ! same "$work/alone" "bits kernels rope" "" || [ -s "$work/why" ]; then
    fail "the one file is another library: $(cat "$work/why")"
else
    # shellcheck disable=SC2086 # in one line
    echo "single: sets" $expected "- $(tail -n 1 "$work/log")"
fi
case $best in
portable*) echo "single: no vector kernels to plant bugs in on this machine" ;;
*)
    ! turn || plant "sets left out" '/^#define ATTN_SIMD_[A-Z0-9]\{2,\}$/d' "other kernel sets"
    ! turn || plant "a coefficient of 2^x" 's/v_set1(0x1.5f8d0cp-10f)/v_set1(0x1.5f9d0cp-10f)/' \
        "other results"
    ;;
esac
exit "$failed"
