#!/bin/sh
# windows.sh BUILD - the library on Windows, by three compilers, run by wine.
# SPDX-License-Identifier: MIT
#
#     make CC=x86_64-w64-mingw32-gcc BUILD=build/mingw build/mingw/test
#     RUN=/usr/lib/wine/wine64 sh tests/windows.sh build/mingw
#
# mingw's build runs groups of tests, and so does clang-cl's for the ABI of MSVC: its library is linked with
# mingw's test objects, since both have one ABI for C. Then it reads attn.c as MSVC does, without the
# name of clang: alone, with the stubs that MSVC makes of the vector kernels, and with the kernels that
# clang-cl made. A call must have the same bits each time, and attn_explain must name what is missing.
# The headers of MSVC are not here: a few declarations stand for them. CLANG: 13 or later.
set -u
build=$1
clang=${CLANG:-clang}
out=$build/msvc
failed=0
rm -rf "$out"
mkdir -p "$out/include" "$out/stubs" "$out/clang" "$out/words" || exit 1

part() { # part SENTENCE COMMAND...
    sentence=$1
    shift
    if "$@"; then echo "windows: $sentence"; else echo "windows: FAILED: $sentence"; failed=1; fi
}

cat > "$out/include/string.h" << 'END'
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
void *memchr(const void *, int, size_t);
int memcmp(const void *, const void *, size_t);
int strcmp(const char *, const char *);
int strncmp(const char *, const char *, size_t);
char *strchr(const char *, int);
char *strstr(const char *, const char *);
size_t strlen(const char *);
END
cat > "$out/include/windows.h" << 'END'
#define near
#define far
typedef struct HINSTANCE__ *HMODULE;
typedef long long (*FARPROC)(void);
HMODULE LoadLibraryA(const char *);
int FreeLibrary(HMODULE);
FARPROC GetProcAddress(HMODULE, const char *);
END
cat > "$out/include/intrin.h" << 'END'
void __cpuidex(int[4], int, int);
unsigned long long _xgetbv(unsigned);
END
# What MSVC's compiler has built in.
cat > "$out/intrinsics.c" << 'END'
void __cpuidex(int out[4], int leaf, int part);
unsigned long long _xgetbv(unsigned word);
void __cpuidex(int out[4], int leaf, int part)
{
    __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3])
                     : "0"(leaf), "2"(part));
}
unsigned long long _xgetbv(unsigned word)
{
    unsigned low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(word));
    return low | (unsigned long long)high << 32;
}
END
cat > "$out/call.c" << 'END'
#include "attn.h"
#include <stdio.h>
static float q[4 * 9 * 16], k[2 * 70 * 16], v[2 * 70 * 16], o[4 * 9 * 16];
static void fill(float *x, int n, unsigned state)
{
    while (n-- > 0)
        *x++ = (float)(int)((state = state * 1664525u + 1013904223u) >> 8) / 4194304.0f - 2.0f;
}
int main(void)
{
    static char workspace[1 << 18];
    const unsigned char *byte = (const unsigned char *)o;
    unsigned long long hash = 0xcbf29ce484222325ull;
    attn_params p = { 0 };
    attn_info info;
    size_t i;
    fill(q, 4 * 9 * 16, 1), fill(k, 2 * 70 * 16, 2), fill(v, 2 * 70 * 16, 3);
    p.batch = 1, p.num_heads_q = 4, p.num_heads_kv = 2;
    p.seq_len_q = 9, p.seq_len_kv = 70, p.head_dim = 16, p.causal = 1;
    p.q.data = q, p.k.data = k, p.v.data = v, p.o.data = o;
    if (attn_explain(&p, &info) != ATTN_OK || attn_forward(&p, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    for (i = 0; i < sizeof o; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3ull;
    printf("%08x%08x %s\n", (unsigned)(hash >> 32), (unsigned)hash, info.reasons);
    return 0;
}
END

macros="-DATTN_SIMD_AVX512 -DATTN_SIMD_AVX2 -DATTN_SIMD_NEON -DATTN_SIMD_SSE2"
# compile FOLDER FLAGS FILE...: objects of the MSVC ABI, which name neither the libraries nor the stack checks
# of MSVC. Headers of intrinsics want an allocator of the system, which no kernel needs.
compile() {
    folder=$1 flags=$2
    shift 2
    for file in "$@"; do
        # shellcheck disable=SC2086 # words
        "$clang" --driver-mode=cl --target=x86_64-pc-windows-msvc /nologo /GS- /Zl /O2 /W4 /WX -Wpedantic \
            -Wconversion -Wshadow -D__MM_MALLOC_H -I"$out/include" -I"$build" $flags /c "$file" \
            /Fo"$out/$folder/$(basename "$file" .c).o" || return 1
    done
}

link() { # link PROGRAM OBJECT...
    program=$1
    shift
    x86_64-w64-mingw32-gcc -I. "$@" -static -lpthread -lm -o "$program.exe"
}

say() { # say PROGRAM: the hash of its call, and why it ran so
    # shellcheck disable=SC2086 # words
    ${RUN:-} "$out/$1.exe" | tr -d '\r'
}

same_bits() { # same_bits PROGRAM WORDS: as mingw's, and the sentence has the words
    said=$(say "$1")
    [ "${said%% *}" = "${expected%% *}" ] && case $said in *"$2"*) ;; *) false ;; esac && return
    printf '%s\n' "expected ${expected%% *} and '$2', not: $said"
    return 1
}

groups="bits kernels errors threads quantised rope selfcheck"
# shellcheck disable=SC2086 # words
part "mingw: tests" ${RUN:-} "$build/test.exe" $groups
link "$out/mingw" "$out/call.c" "$build/libattn.a" && expected=$(say mingw) || exit 1

objects=$(make -s CC=x86_64-w64-mingw32-gcc BUILD="$build" list-test-objects)
part "clang-cl: every file compiles" compile clang "$macros" attn.c attn_simd_*.c attn_opencl.c
# shellcheck disable=SC2086 # words
part "clang-cl: links" link "$out/test" $objects "$out"/clang/*.o
# shellcheck disable=SC2086 # words
part "clang-cl: tests" ${RUN:-} "$out/test.exe" $groups
set=$(printf '%s\n' "$expected" | sed 's/.*kernels \([a-z0-9_]*\): the best.*/\1/')
link "$out/whole" "$out/call.c" "$out"/clang/*.o
part "clang-cl: kernels $set as by mingw" same_bits whole "kernels $set: the best"

words="-Dnear= -Dfar= -DNEAR= -DFAR= -Dsmall=char"
part "clang-cl: the macros of windows.h before every file" compile words "/Od -DATTN_UNOPTIMIZED $words $macros" attn.c attn_simd_*.c

as_msvc="-U__clang__ /clang:-ffp-contract=off -Wno-language-extension-token -Wno-unknown-pragmas \
    -Wno-#pragma-messages"
part "as MSVC reads them: every file compiles" compile stubs "$as_msvc $macros" attn.c attn_simd_*.c
link "$out/slow" "$out/call.c" "$out/intrinsics.c" "$out"/stubs/*.o
part "as MSVC reads them: attn_explain names the stubs" same_bits slow "stubs, because only gcc, clang and"
part "as MSVC reads them: and the FMA in software" same_bits slow "; FMA in software: "
link "$out/mixed" "$out/call.c" "$out/intrinsics.c" "$out/stubs/attn.o" "$out"/clang/attn_simd_*.o
part "attn.c as MSVC reads it with clang-cl's kernels: kernels $set" same_bits mixed "kernels $set: the best"
exit "$failed"
