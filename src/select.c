/* src/select.c - which kernel sets this CPU can run, and which of them is best.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "text.c"
#include "kernels.c"

#define CPU_KNOWN 1u /* This bit says that the word has been written. */
/* What the operating system answered; neither bit is set before it is asked. */
#define TILES_PERMITTED (1u << 30)
#define TILES_REFUSED (1u << 31)

#if defined __x86_64__ || defined __i386__ || defined _M_X64 || defined _M_IX86
#define ON_X86 1
#else
#define ON_X86 0
#endif
#if defined __aarch64__ || defined _M_ARM64
#define ON_ARM64 1
#else
#define ON_ARM64 0
#endif
#ifdef __arm__
#define ON_ARM32 1
#else
#define ON_ARM32 0
#endif
#if defined __riscv && __riscv_xlen == 64
#define ON_RISCV64 1
#else
#define ON_RISCV64 0
#endif
#ifdef __wasm__
#define ON_WASM 1
#else
#define ON_WASM 0
#endif
#if ON_WASM
#define STUBS_WHY                                                                                  \
    ": their file was compiled without -msimd128, for wasm_relaxed -mrelaxed-simd, too, or this "  \
    "engine rounds a * b + c twice"
#elif ON_RISCV64
#define STUBS_WHY ": stubs, because only clang from 17 on compiles them"
#else
#define STUBS_WHY ": stubs, because only gcc, clang and clang-cl compile them"
#endif

/* cpuid, and the word of xgetbv that says which registers the operating system saves. */
#if ON_X86 && GNU_C
#ifdef __i386__
#define SWAP_EBX "xchgl %%ebx, %k1\n\t"
#else
#define SWAP_EBX "xchgq %%rbx, %q1\n\t"
#endif

/* ebx may hold the GOT pointer of 32-bit position-independent code: it is saved by hand. */
static void cpuid(unsigned leaf, unsigned part, unsigned out[4])
{
    __asm__ volatile(SWAP_EBX "cpuid\n\t" SWAP_EBX
                     : "=a"(out[0]), "=&r"(out[1]), "=c"(out[2]), "=d"(out[3])
                     : "0"(leaf), "2"(part));
}

static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#elif ON_X86 && defined _MSC_VER
#include <intrin.h>

static void cpuid(unsigned leaf, unsigned part, unsigned out[4])
{
    int r[4];
    __cpuidex(r, (int)leaf, (int)part);
    memcpy(out, r, sizeof r);
}

static unsigned saved_registers(void)
{
    return (unsigned)_xgetbv(0);
}
#endif

#if (defined __aarch64__ || defined __arm__ || ON_RISCV64) && defined __linux__
#include <sys/auxv.h>
#endif

#if ON_X86 && (GNU_C || defined _MSC_VER)
/* The CPU has the instructions and the operating system saves the registers: XCR0 bits 1 and 2 for
 * AVX, 5 to 7 for AVX-512, 17 and 18 for AMX. */
static unsigned detect_cpu(void)
{
    /* The bits are FMA, OSXSAVE, AVX and F16C. */
    const unsigned basis = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
    const unsigned avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30;
    const unsigned dots = 1u << 11, avx_dots = 1u << 4;
    const unsigned tiles = 1u << 22 | 1u << 24, rounding = 1u << 5, tile_state = 0x60000;
    unsigned r[4], saved, found = CPU_KNOWN;
    cpuid(0, 0, r);
    if (r[0] < 7)
        return found;
    cpuid(1, 0, r);
    if ((r[2] & basis) != basis)
        return found;
    saved = saved_registers();
    cpuid(7, 0, r);
    if ((saved & 0x06) == 0x06 && (r[1] & avx2))
        found |= ATTN_CPU_AVX2;
    if ((saved & 0xe6) == 0xe6 && (r[1] & avx512) == avx512)
        found |= ATTN_CPU_AVX512 | (r[2] & dots ? ATTN_CPU_DOTS_512 : 0);
    if (found & ATTN_CPU_AVX512 && (saved & tile_state) == tile_state && (r[3] & tiles) == tiles)
        found |= ATTN_CPU_TILES;
    if (found & ATTN_CPU_AVX2 && r[0] >= 1) {
        cpuid(7, 1, r);
        found |= r[0] & avx_dots ? ATTN_CPU_DOTS_256 : 0;
        found |= found & ATTN_CPU_AVX512 && r[0] & rounding ? ATTN_CPU_BF16_512 : 0;
        found &= r[0] & rounding ? ~0u : ~ATTN_CPU_TILES;
    }
    return found;
}
#elif defined __aarch64__ && defined __linux__
/* HWCAP_ASIMDDP is bit 20, HWCAP2_I8MM bit 13, and HWCAP2_BF16 bit 14. */
static unsigned detect_cpu(void)
{
    const unsigned long dots = 1ul << 20, i8mm = 1ul << 13, bf16 = 1ul << 14;
    return CPU_KNOWN | (getauxval(AT_HWCAP) & dots ? ATTN_CPU_DOTS_ARM : 0) |
           (getauxval(AT_HWCAP2) & i8mm ? ATTN_CPU_I8MM : 0) |
           (getauxval(AT_HWCAP2) & bf16 ? ATTN_CPU_BF16 : 0);
}
#elif defined __aarch64__ && defined __APPLE__
#include <sys/sysctl.h>

/* Systems that do not know the name of a feature run on CPUs without it. */
static int has_feature(const char *name)
{
    int yes = 0;
    size_t size = sizeof yes;
    return sysctlbyname(name, &yes, &size, NULL, 0) == 0 && yes;
}

/* Every such CPU has DotProd. */
static unsigned detect_cpu(void)
{
    return CPU_KNOWN | ATTN_CPU_DOTS_ARM |
           (has_feature("hw.optional.arm.FEAT_I8MM") ? ATTN_CPU_I8MM : 0) |
           (has_feature("hw.optional.arm.FEAT_BF16") ? ATTN_CPU_BF16 : 0);
}
#elif defined __arm__ && defined __linux__
/* HWCAP_NEON is bit 12, HWCAP_VFPv4 bit 16. */
static unsigned detect_cpu(void)
{
    const unsigned long both = 1ul << 12 | 1ul << 16;
    return CPU_KNOWN | ((getauxval(AT_HWCAP) & both) == both ? ATTN_CPU_NEON_32 : 0);
}
#elif defined __arm__ && defined __ARM_NEON && defined __ARM_FEATURE_FMA
static unsigned detect_cpu(void)
{
    return CPU_KNOWN | ATTN_CPU_NEON_32;
}
#elif ON_RISCV64 && defined __riscv_v
/* All of the program needs it. */
static unsigned detect_cpu(void)
{
    return CPU_KNOWN | ATTN_CPU_RVV;
}
#elif ON_RISCV64 && GNU_C && defined __linux__
/* Systems of CPUs with V 0.7 say that they have V, too. Bit 7 of a type of vectors, "mask agnostic", came
 * with 1.0: before it, that type is illegal, which the sign of vtype tells. */
static int has_vectors_1_0(void)
{
    long type;
    __asm__ volatile(".4byte 0x0d0072d7\n\t" /* vsetvli t0, zero, e32, m1, ta, ma */
                     "csrr %0, 0xc21"
                     : "=r"(type)
                     :
                     : "t0");
    return type >= 0;
}

static unsigned detect_cpu(void)
{
    const unsigned long vectors = 1ul << ('V' - 'A');
    return CPU_KNOWN | (getauxval(AT_HWCAP) & vectors && has_vectors_1_0() ? ATTN_CPU_RVV : 0);
}
#else
static unsigned detect_cpu(void)
{
    return CPU_KNOWN;
}
#endif

static unsigned cpu_features; /* This is the only writable word of the library. */

ATTN_API unsigned attn_cpu_features(void)
{
    unsigned features = LOAD_WORD(&cpu_features);
    if (!features) {
        features = detect_cpu();
        STORE_WORD(&cpu_features, features);
    }
    return features;
}

#if defined __GNUC__ && defined __x86_64__ && defined __linux__ && !defined __ILP32__
/* arch_prctl(ARCH_REQ_XCOMP_PERM, 18), where 18 is the data of tiles. */
static int ask_for_tiles(void)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(158L), "D"(0x1023L), "S"(18L)
                     : "rcx", "r11", "memory");
    return result == 0;
}
#else
static int ask_for_tiles(void)
{
    return 0;
}
#endif

/* Threads that ask at once get one answer; a thread that only just finds out what the CPU can do may
 * write the word behind them, and then the next call asks again. */
ATTN_API int attn_cpu_permits_tiles(void)
{
    unsigned features = attn_cpu_features();
    if (features & ATTN_CPU_TILES && !(features & (TILES_PERMITTED | TILES_REFUSED))) {
        features |= ask_for_tiles() ? TILES_PERMITTED : TILES_REFUSED;
        STORE_WORD(&cpu_features, features);
    }
    return (features & TILES_PERMITTED) != 0;
}

#ifdef FMA_SECOND_BUILD
static const attn_kernels *get_portable_fma(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? &kernels_portable_fma : NULL;
}
#endif

static const attn_kernels *get_portable(void)
{
    return &kernels_portable;
}

/* Every 64-bit x86 has SSE2; an older one that has AVX2 has it, too. */
#define NEEDS_SSE2 (sizeof(void *) == 8 ? 0 : ATTN_CPU_AVX2)

/* The best come first; each answers with its table, or NULL if this CPU cannot run it, or if its file
 * was compiled to a stub. */
static const struct kernel_source {
    const char *name;
    const attn_kernels *(*get)(void);
    int narrow; /* Nonzero means that it is the form of the set before it for few rows. */
    int native; /* Zero means that it is for another kind of CPU. */
    int rounds; /* Nonzero means that it is a form of the set before them that p.fast allows; the best
                     * of several comes last. */
    unsigned needs; /* A CPU of its kind with these features runs it. */
} kernel_sources[] = {
#ifdef ATTN_SIMD_AVX512
    { "avx512", attn_kernels_avx512, 0, ON_X86, 0, ATTN_CPU_AVX512 },
    { "avx512_narrow", attn_kernels_avx512_narrow, 1, ON_X86, 0, ATTN_CPU_AVX512 },
    { "avx512_bf16", attn_kernels_avx512_bf16, 0, ON_X86, 1, ATTN_CPU_BF16_512 },
    { "avx512_amx", attn_kernels_avx512_amx, 0, ON_X86, 1, ATTN_CPU_TILES },
#endif
#ifdef ATTN_SIMD_AVX2
    { "avx2", attn_kernels_avx2, 0, ON_X86, 0, ATTN_CPU_AVX2 },
    { "avx2_narrow", attn_kernels_avx2_narrow, 1, ON_X86, 0, ATTN_CPU_AVX2 },
#endif
#ifdef ATTN_SIMD_NEON
    { "neon", attn_kernels_neon, 0, ON_ARM64, 0, 0 },
    { "neon_narrow", attn_kernels_neon_narrow, 1, ON_ARM64, 0, 0 },
    { "neon_bf16", attn_kernels_neon_bf16, 0, ON_ARM64, 1, ATTN_CPU_BF16 },
    { "neon32", attn_kernels_neon32, 0, ON_ARM32, 0, ATTN_CPU_NEON_32 },
    { "neon32_narrow", attn_kernels_neon32_narrow, 1, ON_ARM32, 0, ATTN_CPU_NEON_32 },
#endif
#ifdef ATTN_SIMD_RVV
    { "rvv", attn_kernels_rvv, 0, ON_RISCV64, 0, ATTN_CPU_RVV },
    { "rvv_narrow", attn_kernels_rvv_narrow, 1, ON_RISCV64, 0, ATTN_CPU_RVV },
#endif
#ifdef FMA_SECOND_BUILD
    { "portable_fma", get_portable_fma, 0, 1, 0, ATTN_CPU_AVX2 },
#endif
#ifdef ATTN_SIMD_SSE2
    { "sse2", attn_kernels_sse2, 0, ON_X86, 0, NEEDS_SSE2 },
    { "sse2_narrow", attn_kernels_sse2_narrow, 1, ON_X86, 0, NEEDS_SSE2 },
#endif
#ifdef ATTN_SIMD_WASM
    { "wasm_relaxed", attn_kernels_wasm_relaxed, 0, ON_WASM, 0, 0 },
    { "wasm_relaxed_narrow", attn_kernels_wasm_relaxed_narrow, 1, ON_WASM, 0, 0 },
    { "wasm", attn_kernels_wasm, 0, ON_WASM, 0, 0 },
    { "wasm_narrow", attn_kernels_wasm_narrow, 1, ON_WASM, 0, 0 },
#endif
    { "portable", get_portable, 0, 1, 0, 0 },
};

ATTN_API const attn_kernels *attn_kernels_get(int index)
{
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources) && index >= 0; i++) {
        const attn_kernels *kernels = kernel_sources[i].rounds ? NULL : kernel_sources[i].get();
        if (kernels && index-- == 0)
            return kernels;
    }
    return NULL;
}

/* best_kernels gives the best set for `rows` rows: the first that runs, its narrow form, or where
 * `fast` is set the last of its forms that round. Few rows gain nothing by that. */
static const attn_kernels *best_kernels(int64_t rows, int fast)
{
    const attn_kernels *best = NULL;
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources); i++) {
        const struct kernel_source *source = &kernel_sources[i];
        const attn_kernels *kernels;
        if (source->rounds && !fast) /* Nobody is asked for what is not needed. */
            continue;
        if (best && !source->rounds && !source->narrow)
            break;
        kernels = source->get();
        if (kernels && source->narrow && rows <= kernels->rows)
            return kernels;
        if (kernels && !source->narrow)
            best = kernels;
    }
    return best;
}

/* put_absent names the sets for this kind of CPU that are linked in, but do not answer: those that
 * the CPU could run, or those that it cannot. */
static void put_absent(text *why, int runnable, const char *because)
{
    int i, count = 0;
    for (i = 0; i < COUNT_OF(kernel_sources); i++) {
        const struct kernel_source *source = &kernel_sources[i];
        const int could = (attn_cpu_features() & source->needs) == source->needs;
        if (!source->native || source->rounds || source->get() || could != runnable)
            continue;
        put(why, count++ ? ", " : "; kernels ");
        put(why, source->name);
    }
    if (count)
        put(why, because);
}

static void put_missing_kernels(text *why)
{
    put_absent(why, 0, ": this CPU or its operating system cannot run them");
    put_absent(why, 1, STUBS_WHY);
}

static const attn_kernels *find_kernels(const char *name, size_t length)
{
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources); i++)
        if (same_word(kernel_sources[i].name, name, length))
            return kernel_sources[i].get();
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_find(const char *name)
{
    return name ? find_kernels(name, strlen(name)) : NULL;
}

ATTN_API const char *attn_kernels_name(const attn_kernels *kernels)
{
    return kernels ? kernels->name : "none";
}
