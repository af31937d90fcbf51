/* src/config.h - what the compiler is told: rounding as written, FMA, inlining, one word shared by threads.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "api/attn.h"
#include "api/backend.h"

#include <string.h>

#undef small /* A macro for char in windows.h, behind which a project may include attn.c. */

/* Equal bits everywhere need every operation rounded as written. gcc can be told here; clang cannot
 * undo -ffast-math, so it is refused; x87 keeps excess precision unless -std=c99. Relaxed SIMD of
 * WebAssembly is refused because clang 22 takes maxima from it that are not the same in every engine if
 * there is a NaN. Loops stay loops with gcc: it else makes a memcpy of those that fill the accumulators
 * of a kernel, writes 16 bytes at a time and waits for them where it loads 32. */
#if defined __clang__
#if defined __FAST_MATH__ || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__)
#error "attn: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#ifdef __wasm_relaxed_simd__
#error "attn: take -mrelaxed-simd from the flags of this file; attn_simd_wasm.c alone may have it"
#endif
#pragma clang fp contract(off) reassociate(off)
#elif defined __GNUC__
#pragma GCC optimize("no-fast-math", "fp-contract=off", "no-tree-loop-distribute-patterns")
#elif defined _MSC_VER
#pragma float_control(precise, on)
#pragma fp_contract(off)
#endif

/* Attributes, builtins and assembler as gcc has them. clang in the place of MSVC (clang-cl) has them,
 * too, but does not call itself gcc. */
#if defined __GNUC__ || defined __clang__
#define GNU_C 1
#else
#define GNU_C 0
#endif
#if defined __i386__ && defined __FLT_EVAL_METHOD__ && __FLT_EVAL_METHOD__ == 2 &&                 \
    !defined __STRICT_ANSI__
#error "attn: add -std=c99 (or -msse2 -mfpmath=sse): x87 code keeps excess precision otherwise"
#endif

#if GNU_C
#define KERNEL static inline __attribute__((always_inline)) /* It must inline to be specialised. */
#define OWN_FRAME __attribute__((noinline))                 /* Its stack is gone when it returns. */
#define RESTRICT __restrict
/* It puts sentences together: that code should be small, and out of its callers' way. */
#define COLD __attribute__((noinline, cold, unused))
#elif defined _MSC_VER
#define KERNEL static __forceinline
#define OWN_FRAME __declspec(noinline)
#define RESTRICT __restrict
#define COLD __declspec(noinline)
#else
#define KERNEL static inline
#define OWN_FRAME
#define RESTRICT
#define COLD inline
#endif

/* Where binary32 FMA is one instruction of every CPU of this build, the compiler's builtin is used
 * (FMA_BASE 1). On x86 without -mfma the kernels are built a second time for AVX2, FMA and F16C
 * and chosen at run time (FMA_TARGET). Elsewhere FMA_SOFT serves; libm's is often wrong. */
#if GNU_C &&                                                                                       \
    (defined __FP_FAST_FMAF || defined __FMA__ || defined __aarch64__ ||                           \
     defined __ARM_FEATURE_FMA || defined __s390x__ || defined __riscv_f || defined __powerpc64__)
#define FMA_BASE 1
#define FMA_TARGET
#elif GNU_C && defined __SSE_MATH__ /* x87 code on x86 could not use the instruction. */
#define FMA_BASE 0
#define FMA_TARGET __attribute__((target("avx2,fma,f16c")))
#define FMA_SECOND_BUILD
#else
#define FMA_BASE 0
#endif
#ifdef FMA_SECOND_BUILD
#define SOFT_FMA_WHY "this CPU has no FMA"
#elif defined __wasm__
#define SOFT_FMA_WHY "WebAssembly has no such instruction"
#else
#define SOFT_FMA_WHY "attn.c was compiled without the instruction"
#endif

/* Whether binary32 itself is software. */
#if (defined __arm__ && !defined __ARM_FP) || defined __riscv_float_abi_soft ||                    \
    defined __mips_soft_float || defined _SOFT_FLOAT
#define SOFT_FLOAT
#endif

/* Binary64 that is software takes longer than integers do. */
#if (defined __arm__ && !(defined __ARM_FP && (__ARM_FP & 8))) || defined SOFT_FLOAT
#define FMA_BY_INTEGERS
#define FMA_SOFT fma_integer
#else
#define FMA_BY_BINARY64
#define FMA_SOFT fma_binary64
#endif

/* Whether an instruction can take several floats. The portable kernels compute several lanes at once if so,
 * and otherwise only those with a row. -DATTN_SCALAR says no. Helium has them, but what compilers make of
 * these loops for it takes longer than loops without. NEON of 32-bit ARM takes subnormal numbers for 0, so
 * compilers have no use for it here. */
#if !defined ATTN_SCALAR &&                                                                        \
    (defined __SSE__ || defined _M_X64 || defined _M_IX86 || defined __aarch64__ ||                \
     defined _M_ARM64 || defined __ALTIVEC__ || defined __VX__ || defined __wasm_simd128__ ||      \
     defined __riscv_vector || defined __mips_msa || defined __loongarch_sx)
#define HAS_VECTORS 1
#else
#define HAS_VECTORS 0
#endif

#define COUNT_OF(table) ((int)(sizeof(table) / sizeof(table)[0]))

#ifdef _OPENMP
#include <omp.h>
#define OPENMP_THREADS omp_get_max_threads()
#else
#define OPENMP_THREADS 0
#endif

/* ---- Configuration */

#ifndef ATTN_ASSERT
#define ATTN_ASSERT(x) ((void)0)
#endif

#if GNU_C
#define PREFETCH(p) __builtin_prefetch(p, 0, 2) /* The address will be read; it goes into L2. */
#else
#define PREFETCH(p) ((void)(p))
#endif

/* PREFETCH_RUN asks for the lines of `bytes` bytes. It is no function, because gcc drops calls of one
 * that does nothing else. */
#define PREFETCH_RUN(from, bytes)                                                                  \
    do {                                                                                           \
        const char *const from_ = (from);                                                          \
        int64_t at_;                                                                               \
        for (at_ = 0; at_ < (bytes); at_ += 64)                                                    \
            PREFETCH(from_ + at_);                                                                 \
    } while (0)

/* The word of CPU features may be written by several threads at once, always with one value. MSVC
 * promises that an aligned word is read and written whole. */
#if GNU_C
#define LOAD_WORD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define STORE_WORD(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#else
#define LOAD_WORD(p) (*(volatile unsigned *)(p))
#define STORE_WORD(p, v) (*(volatile unsigned *)(p) = (v))
#endif
