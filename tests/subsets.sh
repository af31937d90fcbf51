#!/bin/sh
# subsets.sh - attn.c and attn.h alone, in the ways in which projects build them.
# SPDX-License-Identifier: MIT
#
#     sh tests/subsets.sh        (from the root of the repository)
#
# Copies just the two files, and builds with each compiler at hand a program that prints a hash of
# one small call's output: no flags, every standard, optimisation levels, as C++ caller, static,
# under two prefixes in one program, in a project built with -Ofast. All hashes must be equal. A
# build may be refused by #error instead only where the compiler breaks IEEE arithmetic (-Ofast).
set -u
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-subsets.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cp attn.c attn.h "$work" || exit 1
cd "$work" || exit 1
failed=0
count=0
expected=

# ---- the programs

# One call with GQA, a causal mask and a softcap, 70 keys; FNV-1a over o and lse.
cat > call.h <<'END'
static unsigned long long hash_call(void)
{
    static float q[4 * 9 * 16], k[2 * 70 * 16], v[2 * 70 * 16], o[4 * 9 * 16], lse[4 * 9];
    static char workspace[1 << 18];
    unsigned long long hash = 0xcbf29ce484222325ull;
    unsigned state = 1;
    size_t i, need = 0;
    attn_params p = {0};
    float *all[3] = {q, k, v};
    const size_t sizes[3] = {sizeof q / 4, sizeof k / 4, sizeof v / 4};
    int t;
    for (t = 0; t < 3; t++)
        for (i = 0; i < sizes[t]; i++) {
            state = state * 1664525u + 1013904223u;
            all[t][i] = (float)(int)(state >> 8) / 4194304.0f - 2.0f;
        }
    p.batch = 1;
    p.num_heads_q = 4;
    p.num_heads_kv = 2;
    p.seq_len_q = 9;
    p.seq_len_kv = 70;
    p.head_dim = 16;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    p.lse.data = lse;
    p.causal = 1;
    p.softcap = 3.0f;
    if (attn_workspace_size(&p, &need) != ATTN_OK || need > sizeof workspace ||
        attn_forward(&p, workspace, sizeof workspace) != ATTN_OK)
        return 0;
    for (i = 0; i < sizeof o + sizeof lse; i += 4) {
        unsigned bits;
        memcpy(&bits, i < sizeof o ? (char *)o + i : (char *)lse + (i - sizeof o), 4);
        hash = (hash ^ bits) * 0x100000001b3ull;
    }
    return hash;
}
END
cat > main.c <<'END'
#include "attn.h"
#include <stdio.h>
#include <string.h>
#include "call.h"
int main(void)
{
    if (strcmp(attn_version(), ATTN_VERSION_STRING) || attn_params_size() != sizeof(attn_params))
        return 1;
    printf("%llx\n", hash_call());
    return 0;
}
END
cp main.c main.cc
cat > static.c <<'END'
#define ATTN_STATIC
#include "attn.c"
#include <stdio.h>
#include "call.h"
int main(void)
{
    printf("%llx\n", hash_call());
    return 0;
}
END
# The same library twice in one program, each under its own names, and neither under attn_.
for name in one two; do
    cat > "$name.c" <<END
#define ATTN_PREFIX ${name}_
#include "attn.h"
#include <string.h>
#include "call.h"
unsigned long long hash_$name(void);
unsigned long long hash_$name(void)
{
    return hash_call();
}
END
done
cat > both.c <<'END'
#include <stdio.h>
unsigned long long hash_one(void);
unsigned long long hash_two(void);
const char *attn_version(void);
const char *attn_version(void) /* the user's own function of that name does not clash */
{
    return "not the library";
}
int main(void)
{
    printf("%llx\n", hash_one() == hash_two() ? hash_one() : 0);
    return 0;
}
END

# ---- building and comparing

fail()
{
    echo "FAILED $*"
    [ -s log ] && sed 's/^/    /' log | head -n 8
    failed=1
}

# judge NAME: runs ./program and compares its hash.
judge()
{
    count=$((count + 1))
    got=$(./program 2>log) || got=
    if [ -z "$got" ] || [ "$got" = 0 ]; then
        fail "$1: the program failed"
        return
    fi
    [ -n "$expected" ] || expected=$got
    [ "$got" = "$expected" ] || fail "$1: hash $got, not $expected"
}

# try NAME COMMAND...: a build into ./program that must succeed without a word.
try()
{
    name=$1
    shift
    rm -f program
    if ! "$@" -o program >log 2>&1; then
        fail "$name: does not compile"
    elif [ -s log ]; then
        fail "$name: the compiler complains"
    else
        judge "$name"
    fi
}

# try_fast NAME COMMAND...: must give the right hash or stop with an #error of the library.
try_fast()
{
    name=$1
    shift
    rm -f program
    if "$@" -o program >log 2>&1; then
        judge "$name"
    elif grep -q 'error.*attn' log; then
        count=$((count + 1))
    else
        fail "$name: neither compiles nor says why"
    fi
}

try_compiler()
{
    cc=$1
    strict="-pedantic -Wall -Wextra -Werror"
    for standard in c99 c11 gnu11; do
        try "$cc -std=$standard" "$cc" -std=$standard $strict -O2 main.c attn.c
    done
    for level in -O0 -Os "-O3 -march=native"; do
        try "$cc $level" "$cc" $level main.c attn.c
    done
    try "$cc, included with ATTN_STATIC" "$cc" -O2 -Wno-unused-function static.c
    if "$cc" -c -DATTN_PREFIX=one_ -O2 attn.c -o one.o 2>log &&
        "$cc" -c -DATTN_PREFIX=two_ -O2 attn.c -o two.o 2>log; then
        try "$cc, twice under ATTN_PREFIX" "$cc" -O2 both.c one.c two.c one.o two.o
    else
        fail "$cc: ATTN_PREFIX does not compile"
    fi
    for flags in -Ofast "-O2 -ffast-math" "-O2 -ffp-contract=fast -march=native"; do
        try_fast "$cc $flags" "$cc" $flags main.c attn.c
    done
}

# The header in a C++ program, the library compiled by the C compiler.
try_cxx()
{
    cc=$1
    cxx=$2
    command -v "$cxx" >/dev/null 2>&1 || return 0
    "$cc" -O2 -c attn.c -o plain.o 2>log || fail "$cc: does not compile"
    for standard in c++11 c++17; do
        try "$cxx -std=$standard" "$cxx" -std=$standard -pedantic -Wall -Wextra \
            -Wno-missing-field-initializers -Werror main.cc plain.o
    done
}

compilers=
for cc in cc gcc clang; do
    command -v "$cc" >/dev/null 2>&1 || continue
    compilers="$compilers $cc"
    try "$cc, no flags" "$cc" main.c attn.c
    [ "$cc" = cc ] || try_compiler "$cc"
done
[ -n "$compilers" ] || fail "there is no compiler"
try_cxx gcc g++
try_cxx clang clang++

[ "$failed" -eq 0 ] && echo "subsets: $count builds of two files by$compilers, hash $expected"
exit "$failed"
