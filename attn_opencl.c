/* attn_opencl.c - attn_forward on OpenCL devices: see attn_opencl.h. The arithmetic is in
 * kernels.cl.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * tools/amalgamate.sh makes this file from the rooms in src/opencl/ and from those rooms of src/
 * that a host shares with the CPU: edit there.
 */

/* Whole rooms are here, some functions of which only attn.c needs. */
#if defined __GNUC__ || defined __clang__
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#undef ATTN_WITHOUT_SENTENCES /* The options of a program are a text. */

#include "attn.h"

/* src/config.h - what the compiler is told: rounding as written, FMA, inlining, one word shared by threads. */

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
#include "attn_opencl.h"

/* src/opencl/loader.c - OpenCL: types, constants and functions of its API (Khronos, OpenCL 1.2), loaded at run time.
 *
 * No header of OpenCL is needed. Every handle is a pointer.
 */

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#define CL_CALL __stdcall
#define LOADERS "OpenCL.dll"
#define OPEN_LIBRARY(file) ((void *)LoadLibraryA(file))
#define CLOSE_LIBRARY(library) FreeLibrary((HMODULE)(library))
#define FIND_SYMBOL(library, name) GetProcAddress((HMODULE)(library), name)
typedef FARPROC library_symbol;
#else
#include <dlfcn.h>
#define CL_CALL
#define LOADERS                                                                                    \
    "libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so", /* Android */                  \
        "/system/vendor/lib64/libOpenCL.so", "/System/Library/Frameworks/OpenCL.framework/OpenCL"
/* Drivers stay: they begin threads, and a loader that is opened again may find fewer devices. */
#ifndef RTLD_NODELETE
#define RTLD_NODELETE 0
#endif
#define OPEN_LIBRARY(file) dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)
#define CLOSE_LIBRARY(library) dlclose(library)
#define FIND_SYMBOL(library, name) dlsym(library, name)
typedef void *library_symbol;
#endif

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_flags;
typedef void *cl_handle;

enum {
    CL_SUCCESS = 0,
    INVALID_VALUE = -30,
    INVALID_QUEUE = -36,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_ENDIAN_LITTLE = 0x1026,
    CL_DEVICE_AVAILABLE = 0x1027,
    CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
    CL_DEVICE_NAME = 0x102B,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_DEVICE_PLATFORM = 0x1031,
    CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    CL_PLATFORM_NAME = 0x0902,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_MEM_SIZE = 0x1102,
    CL_PROGRAM_DEVICES = 0x1163,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_PROFILING_COMMAND_START = 0x1282,
    CL_PROFILING_COMMAND_END = 0x1283
};
#define CL_DEVICE_TYPE_GPU 4u
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu
#define CL_QUEUE_OUT_OF_ORDER 1u
#define CL_QUEUE_PROFILING_ENABLE 2u
#define CL_MEM_READ_WRITE 1u
#define CL_MEM_READ_ONLY 4u
#define CL_MEM_USE_HOST_PTR 8u
#define CL_MEM_ALLOC_HOST_PTR 16u
#define CL_MEM_COPY_HOST_PTR 32u
#define CL_MAP_READ 1u
#define CL_MAP_WRITE 2u
#define CL_MAP_WRITE_INVALIDATE_REGION 4u

/* Arguments: what to ask an object about; what comes before a command, and its own event. */
#define CL_QUERY cl_uint, size_t, void *, size_t *
#define CL_EVENTS cl_uint, const cl_handle *, cl_handle *
#define CL_DEVICES cl_uint, const cl_handle *

#define CL_FUNCTIONS(X)                                                                            \
    X(cl_int, clGetPlatformIDs, (cl_uint, cl_handle *, cl_uint *))                                 \
    X(cl_int, clGetPlatformInfo, (cl_handle, CL_QUERY))                                            \
    X(cl_int, clGetDeviceIDs, (cl_handle, cl_flags, cl_uint, cl_handle *, cl_uint *))              \
    X(cl_int, clGetDeviceInfo, (cl_handle, CL_QUERY))                                              \
    X(cl_handle, clCreateContext,                                                                  \
      (const intptr_t *, CL_DEVICES, void(CL_CALL *)(const char *, const void *, size_t, void *),  \
       void *, cl_int *))                                                                          \
    X(cl_int, clRetainContext, (cl_handle))                                                        \
    X(cl_int, clReleaseContext, (cl_handle))                                                       \
    X(cl_handle, clCreateCommandQueue, (cl_handle, cl_handle, cl_flags, cl_int *))                 \
    X(cl_int, clRetainCommandQueue, (cl_handle))                                                   \
    X(cl_int, clReleaseCommandQueue, (cl_handle))                                                  \
    X(cl_int, clGetCommandQueueInfo, (cl_handle, CL_QUERY))                                        \
    X(cl_handle, clCreateBuffer, (cl_handle, cl_flags, size_t, void *, cl_int *))                  \
    X(cl_int, clReleaseMemObject, (cl_handle))                                                     \
    X(cl_int, clGetMemObjectInfo, (cl_handle, CL_QUERY))                                           \
    X(cl_handle, clCreateProgramWithSource,                                                        \
      (cl_handle, cl_uint, const char **, const size_t *, cl_int *))                               \
    X(cl_handle, clCreateProgramWithBinary,                                                        \
      (cl_handle, CL_DEVICES, const size_t *, const unsigned char **, cl_int *, cl_int *))         \
    X(cl_int, clGetProgramInfo, (cl_handle, CL_QUERY))                                             \
    X(cl_int, clBuildProgram,                                                                      \
      (cl_handle, CL_DEVICES, const char *, void(CL_CALL *)(cl_handle, void *), void *))           \
    X(cl_int, clGetProgramBuildInfo, (cl_handle, cl_handle, CL_QUERY))                             \
    X(cl_int, clReleaseProgram, (cl_handle))                                                       \
    X(cl_handle, clCreateKernel, (cl_handle, const char *, cl_int *))                              \
    X(cl_int, clSetKernelArg, (cl_handle, cl_uint, size_t, const void *))                          \
    X(cl_int, clReleaseKernel, (cl_handle))                                                        \
    X(cl_int, clEnqueueNDRangeKernel,                                                              \
      (cl_handle, cl_handle, cl_uint, const size_t *, const size_t *, const size_t *, CL_EVENTS))  \
    X(cl_handle, clEnqueueMapBuffer,                                                               \
      (cl_handle, cl_handle, cl_uint, cl_flags, size_t, size_t, CL_EVENTS, cl_int *))              \
    X(cl_int, clEnqueueUnmapMemObject, (cl_handle, cl_handle, void *, CL_EVENTS))                  \
    X(cl_int, clEnqueueWriteBuffer,                                                                \
      (cl_handle, cl_handle, cl_uint, size_t, size_t, const void *, CL_EVENTS))                    \
    X(cl_int, clEnqueueReadBuffer,                                                                 \
      (cl_handle, cl_handle, cl_uint, size_t, size_t, void *, CL_EVENTS))                          \
    X(cl_int, clEnqueueMarkerWithWaitList, (cl_handle, CL_EVENTS))                                 \
    X(cl_int, clEnqueueBarrierWithWaitList, (cl_handle, CL_EVENTS))                                \
    X(cl_int, clGetEventProfilingInfo, (cl_handle, CL_QUERY))                                      \
    X(cl_int, clReleaseEvent, (cl_handle))                                                         \
    X(cl_int, clFlush, (cl_handle))                                                                \
    X(cl_int, clFinish, (cl_handle))

#define CL_MEMBER(type, name, arguments) type(CL_CALL *name) arguments;
typedef struct cl_api {
    CL_FUNCTIONS(CL_MEMBER)
} cl_api;

/* Names of functions, and where in cl_api their pointers are. */
#define CL_SYMBOL(type, name, arguments) { #name, offsetof(cl_api, name) },
static const struct cl_symbol {
    const char *name;
    size_t offset;
} cl_symbols[] = { CL_FUNCTIONS(CL_SYMBOL) };

static const char *cl_error_name(cl_int error)
{
    static const struct {
        cl_int error;
        const char *name;
    } names[] = {
        { -1, "device not found" },         { -3, "compiler not available" },
        { -4, "out of device memory" },     { -5, "out of resources" },
        { -6, "out of host memory" },       { -11, "kernels do not build" },
        { -30, "invalid value" },           { -34, "invalid context" },
        { -36, "invalid command queue" },   { -38, "invalid memory object" },
        { -37, "invalid host pointer" },    { -58, "invalid event" },
        { -42, "invalid binary" },          { -43, "invalid build options" },
        { -46, "no such kernel" },          { -52, "invalid kernel arguments" },
        { -54, "invalid work-group size" }, { -57, "invalid event wait list" },
        { -61, "invalid buffer size" },     { -1001, "no platform" },
    };
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error)
            return names[i].name;
    return "see the error codes of OpenCL";
}

/* src/seam.h - the seam: the table of kernels that every instruction set fills in.
 *
 * Kernels are leaf functions: no masks, no heads, no allocation. A tile has `rows` query rows, one per
 * lane, and n keys. Every matrix of a tile is lane-fastest, so that each lane is one independent row:
 *
 *     qt [d][rows]   packed queries                   s [n][rows]   logits (base 2), then p
 *     o  [dv][rows]  output accumulators              m, l [rows]   running maximum and sum
 *
 *           lanes ->                    All of them computed in the canonical order of
 *       d   q00 q10 q20 ... qR0         docs/canon.md; a kernel may use any tile shape, unrolling
 *       |   q01 q11 q21 ... qR1         and order between elements, but each element's chain of
 *       v   ...                         operations is fixed. K and V rows are f32, contiguous in d.
 *
 * Arrays from the workspace are aligned to 64 bytes; k and v only to their element. Nothing
 * overlaps. n is at least 1; every lane always holds a number (unused lanes: zero queries).
 */

#ifndef ATTN_SEAM_H /* attn.c and attn_simd.h both hold it */
#define ATTN_SEAM_H

#define ATTN_KERNEL_MAX_ROWS 64 /* a set's rows: a multiple of 4, at most this */
#define ATTN_BLOCK 16           /* canonical block of keys: the maximum is decided once a block */
#define ATTN_CHUNK 1024         /* canonical chunk of keys: a state of its own, for the tree */
#define ATTN_THRESHOLD 16.0f    /* the maximum rises only if exceeded by more than this (log2) */

#define ATTN_ALIVE_BITS 32 /* keys whose visibility to a lane is one uint32_t */

/* Lanes begin..end-1 of a tile; a kernel may compute more of them (whole vectors). */
typedef struct attn_lanes {
    int begin, end;
} attn_lanes;

/* A kernel for few lanes takes them by fours: the first one that it computes, */
static inline int attn_first_lane(attn_lanes lanes)
{
    return lanes.begin / 4 * 4;
}

/* and how many from there on. */
static inline int attn_lane_count(attn_lanes lanes)
{
    return lanes.end - attn_first_lane(lanes);
}

/* Exponentials of a block: s = 2^fl(s - m), l += s in order, as exp_sum does with dead = +0. It covers at
 * least these lanes, and with vectors each group of four that holds one of them. calm: s and m are at
 * most ATTN_CALM in magnitude, so no special case can occur. */
typedef struct attn_exp {
    float *s;
    int n; /* keys, 1..16 */
    const float *m;
    float *l;
    attn_lanes lanes; /* in the others every key is dead, or they have no query */
    int calm;
} attn_exp;

#define ATTN_CALM 60.0f

/* -0: stands for a pair that does not count, where no live number is -0. */
#define ATTN_DEAD (-0.0f)

/* Rows of K or V as they lie in memory, `stride` bytes apart: `first` of them from run[0] on, then
 * `each` from every further run on. */
typedef struct attn_runs {
    int dtype;
    ptrdiff_t stride;
    int64_t first, each;
    const char *const *run; /* one more than there are, as a kernel may read ahead of use */
} attn_runs;

/* Memory that the next steps will read: a kernel asks for `lines` cache lines of it, evenly beside
 * its own work, and leaves `lines` at 0. Only a hint: it need not do so. */
typedef struct attn_ahead {
    const char *const *run; /* where the present run of rows begins, and those behind it */
    const char *row;        /* the present one */
    ptrdiff_t stride;       /* bytes between rows */
    int64_t left, each_run; /* rows of this run still to be asked for; of those behind it */
    int64_t bytes;          /* of a row that are read */
    int64_t at;             /* of this row, asked for already */
    int64_t lines;
    int64_t each; /* the kernel's own: lines asked for in one go */
} attn_ahead;

/* The next line to be asked for is behind this one. */
static inline void attn_next_line(attn_ahead *a)
{
    a->at += 64;
    if (a->at < a->bytes)
        return;
    a->at = 0;
    a->row += a->stride;
    if (--a->left == 0) {
        a->row = *++a->run;
        a->left = a->each_run;
    }
}

/* A product of a tile with rows of K or V: Q K^T, or P V added to o. */
typedef struct attn_product {
    float *to;             /* s [n][rows], or o [dim][rows] */
    const float *by;       /* qt [dim][rows], or p [n][rows] */
    const float *kv;       /* f32 rows of K or V, */
    ptrdiff_t stride;      /* floats between rows; */
    const attn_runs *runs; /* as they lie, for the kernels *_runs, which read these instead */
    int n;                 /* keys */
    int64_t dim;           /* head_dim, or head_dim_v */
    float factor;          /* Q K^T: multiplies every sum, once, behind its last step */
    attn_lanes lanes;
    attn_ahead *ahead;   /* NULL = nothing */
    const float *scales; /* [dim / 32][rows], for whole numbers */
    int first;           /* P V of a set that rounds: which key of the panel at kv is the first; */
    float *space;        /* room of such a set, ATTN_SPACE(rows, keys) floats */
} attn_product;

/* A set that rounds (attn_kernels.pack_values) multiplies bf16, with sums in f32. What `pack` gives it
 * is a form of its own, of ATTN_ROUNDED(head_dim) / 2 floats a row, and qk reads p->runs: one run of
 * rows of bf16, of which each has ATTN_ROUNDED(head_dim) numbers, +0 behind the last. Up to 15 rows
 * behind them may be read, too, unless n is a multiple of 16. pv reads a panel of V at p->kv, which
 * pack_values makes for each ATTN_PANEL_KEYS keys. A NaN or an infinity in V at a key of the panel that
 * is not of the product may make o NaN, but pv_select leaves such keys out. Subnormal numbers count as
 * 0. */
#define ATTN_PANEL_KEYS 32
#define ATTN_ROUNDED(dim) (((dim) + 31) / 32 * 32)
#define ATTN_PANEL_FLOATS(dim_v) (((dim_v) + 15) / 16 * 16 * (ATTN_PANEL_KEYS / 2))
#define ATTN_SPACE(rows, keys) ((rows) * (ATTN_ROUNDED((keys) + 31) / 2) + 1024)

/* Rows of a tile, and what each pair of a key and a row stands for. */
typedef struct attn_term {
    const float *x; /* [n][rows] */
    const float *b; /* [rows] attn_outer.b_stride floats apart */
    attn_lanes lanes;
    int begin, end; /* the keys that count; of the others x is ATTN_DEAD, they may be left out */
} attn_term;

/* Rows begin to end - 1 of ATTN_PANEL_KEYS rows of V, f32 or bf16; the others are +0. */
typedef struct attn_pack {
    const char *v; /* row `begin`; the others are `stride` bytes apart behind it */
    ptrdiff_t stride;
    int dtype;
    int begin, end;
    int64_t dim;
} attn_pack;

/* Products over the rows of some tiles, which gradients need. Strides are whole cache lines. */
typedef struct attn_outer {
    float *to; /* [n][columns], begins a cache line; what fills up the last one may be written */
    ptrdiff_t stride;
    int n; /* keys */
    int64_t columns;
    const attn_term *term;
    int count;          /* of terms */
    ptrdiff_t b_stride; /* filled up with numbers */
} attn_outer;

/* What the rows of a tile tell of their probabilities, per lane. */
typedef struct attn_row_stats {
    const float *m, *r; /* p = fl(2^x * r), x = fl(s - m) */
    float most;         /* of x */
    const float *delta; /* sum of p * dp over the row's keys */
} attn_row_stats;

/* Philox4x32-10: two multipliers, and what each round adds to the two words of its key. */
#define ATTN_PHILOX_ROUNDS 10
#define ATTN_PHILOX_A 0xd2511f53u
#define ATTN_PHILOX_B 0xcd9e8d57u
#define ATTN_PHILOX_KEY_0 0x9e3779b9u
#define ATTN_PHILOX_KEY_1 0xbb67ae85u

/* An attn_drop is dropout of a tile. Word 0 of Philox with counter (n, pos, head, batch) decides about
 * a pair. */
typedef struct attn_drop {
    uint32_t round_keys[ATTN_PHILOX_ROUNDS][2];
    uint32_t below;   /* A word below it drops its pair. */
    uint32_t first_n; /* of the first row of p, */
    uint32_t step;    /* and from one row of p to the next */
    uint32_t batch;
    const uint32_t *pos, *head; /* per lane */
    float dead;                 /* p of a dropped pair */
} attn_drop;

/* What running_max says about a block. */
#define ATTN_RAISED 1 /* a lane's maximum that had begun rose: o *= alpha before the block enters */
#define ATTN_IS_CALM 2 /* attn_exp.calm holds; a kernel may always leave it out */

/* What the CPU can do and the operating system saves the registers for; 0 where unknown. */
#define ATTN_CPU_AVX2 2u   /* AVX2, FMA and F16C */
#define ATTN_CPU_AVX512 4u /* AVX-512 F, DQ and BW */
/* Products of bytes besides: AVX-512 VNNI, AVX-VNNI, and DotProd and I8MM of 64-bit ARM. */
#define ATTN_CPU_DOTS_512 8u
#define ATTN_CPU_DOTS_256 16u
#define ATTN_CPU_DOTS_ARM 32u
#define ATTN_CPU_I8MM 128u
#define ATTN_CPU_BF16 256u     /* products of bf16 matrices on 64-bit ARM */
#define ATTN_CPU_BF16_512 512u /* products of pairs of bf16 numbers by AVX-512 */
#define ATTN_CPU_NEON_32 1024u /* NEON and VFPv4 of 32-bit ARM */
#define ATTN_CPU_TILES 64u     /* AMX with products of bf16, and AVX-512 that rounds to it */
#define ATTN_CPU_RVV 2048u     /* the vector extension V 1.0 of 64-bit RISC-V */
ATTN_API unsigned attn_cpu_features(void);

/* Whether this process may use ATTN_CPU_TILES. Linux is asked for it, once, and from then on refuses
 * stacks of signal handlers that are too small for what it saves, 11 KB. */
ATTN_API int attn_cpu_permits_tiles(void);

/* The sets of the attn_simd_*.c files: the table, or NULL where this CPU cannot run it. Compile
 * attn.c with ATTN_SIMD_AVX2, ATTN_SIMD_AVX512, ... for those that are linked, and attn_kernels_get
 * offers them; or pass one in p.kernels and define nothing. */
ATTN_API const attn_kernels *attn_kernels_avx2(void);
ATTN_API const attn_kernels *attn_kernels_avx512(void);
ATTN_API const attn_kernels *attn_kernels_neon(void);   /* 64-bit ARM */
ATTN_API const attn_kernels *attn_kernels_neon32(void); /* 32-bit ARM with NEON and VFPv4 */
ATTN_API const attn_kernels *attn_kernels_rvv(void);    /* 64-bit RISC-V with V 1.0 */
ATTN_API const attn_kernels *attn_kernels_sse2(void);   /* x86 without AVX2 */
ATTN_API const attn_kernels *attn_kernels_wasm(void);   /* WebAssembly with SIMD128 */

/* WebAssembly with relaxed SIMD, in engines whose multiply-add is fused. */
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed(void);

/* Products by vdpbf16ps, and all else as avx512: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_avx512_bf16(void);

/* Products by tiles of AMX, and all else as avx512: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_avx512_amx(void);

/* Products by BFMMLA of 64-bit ARM, and all else as neon: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_neon_bf16(void);

/* The same with fewer rows in a tile, for decoding and other short calls. */
ATTN_API const attn_kernels *attn_kernels_avx2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_avx512_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon32_narrow(void);
ATTN_API const attn_kernels *attn_kernels_rvv_narrow(void);
ATTN_API const attn_kernels *attn_kernels_sse2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_wasm_narrow(void);
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed_narrow(void);

/* Every kernel: X(result, name, (parameters), (arguments)). The table, the sets and what stands
 * between a call and a set in tests and bench are expanded from it. */
#define ATTN_KERNELS(X) ATTN_SET_KERNELS(X) ATTN_FEW_KERNELS(X) ATTN_ROUNDED_KERNELS(X)

/* Those that every set has. */
#define ATTN_SET_KERNELS(X)                                                                         \
    /* n numbers of a 16-bit storage type as f32, and back: to nearest even, NaN (always */         \
    /* 7fc00000) as the type's, -0 never written. */                                                \
    X(void, widen_f16, (float *to, const uint16_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_bf16, (float *to, const uint16_t *from, int64_t n), (to, from, n))                \
    /* The same of what only K and V may have: n is whole units of 32 of the last three. */         \
    X(void, widen_e4m3, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_e5m2, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q8_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q5_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q4_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    /* to[d] = fl(from[d] * scale[d * step]). */                                                    \
    X(void, widen_i8,                                                                               \
      (float *to, const int8_t *from, const float *scale, int64_t step, int64_t n),                 \
      (to, from, scale, step, n))                                                                   \
    X(void, narrow_f16, (uint16_t * to, const float *from, int64_t n), (to, from, n))               \
    X(void, narrow_bf16, (uint16_t * to, const float *from, int64_t n), (to, from, n))              \
    /* qt[d][lane] = q[lane][d]. */                                                                 \
    X(void, pack, (float *qt, const float *const *q, int64_t head_dim), (qt, q, head_dim))          \
    /* to[j][lane] = fl(factor * chain), chain over d of fma(by[d][lane], kv[j*stride + d], */      \
    /* chain) from +0, in these lanes. The others get numbers, too: 0 where `by` is 0 and K */      \
    /* and factor are finite. */                                                                    \
    X(void, qk, (const attn_product *p), (p))                                                       \
    /* What qk_units reads of queries that are whole numbers from -127 to 127; `to` has room for */ \
    /* head_dim * rows floats. */                                                                   \
    X(void, pack_units, (float *to, const float *const *q, int64_t head_dim), (to, q, head_dim))    \
    /* The same as qk of whole numbers: a chain over units of fma(sum of 32 products, */            \
    /* fl(scales[unit][lane] * scale of the key's unit), chain). p->by is what pack_units gives, */ \
    /* and p->runs has one run of n rows of units: a scale in f16 and 32 signed bytes. Sums are */  \
    /* exact: below 2^24. The other lanes get numbers, too. */                                      \
    X(void, qk_units, (const attn_product *p), (p))                                                 \
    /* s = fl(cap2 * tanh(fl(s * icap2))). */                                                       \
    X(void, softcap, (float *s, int n, float cap2, float icap2), (s, n, cap2, icap2))               \
    /* s[j][lane] *= scale[j]. */                                                                   \
    X(void, scale_keys, (float *s, const float *scale, int n), (s, scale, n))                       \
    /* s = fma(fl(|from[lane] - j|), factor[lane], s); the difference fits an int. */               \
    X(void, add_distances, (float *s, const int *from, const float *factor, int n),                 \
      (s, from, factor, n))                                                                         \
    /* s = fma(x[lane][j], factor, s); x = -inf gives -inf by selection. */                         \
    X(void, add_rows, (float *s, const float *const *x, float factor, int n), (s, x, factor, n))    \
    /* s = -inf where the key j is not in begin[lane]..end[lane]-1, by selection. */                \
    X(void, clip, (float *s, int n, const int *begin, const int *end), (s, n, begin, end))          \
    /* s = -inf, by selection, where bit k % 32 of alive[k / 32][lane] is 0, k = from + j. */       \
    X(void, hide, (float *s, int n, const uint32_t *alive, int from), (s, n, alive, from))          \
    /* Clears bit k % 32 of alive[k / 32 * apart] where x[k] is 0 or, if invert is 1, where it */   \
    /* is not, for n bytes; bits of the last word behind them may be cleared, too. */               \
    X(void, hide_bytes, (uint32_t * alive, int apart, const uint8_t *x, int n, int invert),         \
      (alive, apart, x, n, invert))                                                                 \
    /* Clears bit k % 32 of alive[k / 32 * apart] where ids[k] is not `own`, as hide_bytes does. */ \
    X(void, hide_others, (uint32_t * alive, int apart, const int32_t *ids, int n, int32_t own),     \
      (alive, apart, ids, n, own))                                                                  \
    /* Decides the running maximum for one block (n is 1..16), whose p it does not compute: m */    \
    /* rises to the block's maximum where it has not begun (is -inf) or is exceeded by more */      \
    /* than ATTN_THRESHOLD. If the latter happens to a lane, ATTN_RAISED: alpha = 2^fl(old m */     \
    /* - m) there, 1 in the others, and l *= alpha. Returns ATTN_RAISED + ATTN_IS_CALM, or 0. */    \
    X(int, running_max, (const float *s, int n, float *m, float *l, float *alpha),                  \
      (s, n, m, l, alpha))                                                                          \
    /* m[lane] = maximum of m[lane] and s[..][lane], NaN ignored. */                                \
    X(void, maximum, (const float *s, int n, float *m), (s, n, m))                                  \
    /* s = 2^fl(s - m), `dead` where s is -inf, l += s in order; m of -inf counts as +0. */         \
    X(void, exp_sum, (float *s, int n, float dead, const float *m, float *l), (s, n, dead, m, l))   \
    /* What attn_exp says. */                                                                       \
    X(void, exp_block, (const attn_exp *e), (e))                                                    \
    /* Whether n numbers are all finite. */                                                         \
    X(int, finite, (const float *x, int64_t n), (x, n))                                             \
    /* p[j][lane] = dead, by selection, where attn_drop says so of first_n + j * step and lane. */  \
    X(void, drop, (float *p, int n, const attn_drop *of), (p, n, of))                               \
    /* x[k][lane] *= alpha[lane] for `count` rows. */                                               \
    X(void, rescale, (float *x, const float *alpha, int64_t count), (x, alpha, count))              \
    /* to[d][lane] = chain over keys of fma(by[j][lane], kv[j*stride + d], to), in these lanes */   \
    /* at least; to the others every key is dead, or they have no query. */                         \
    X(void, pv, (const attn_product *p), (p))                                                       \
    /* The same, but a key whose p is ATTN_DEAD leaves o alone by selection. */                     \
    X(void, pv_select, (const attn_product *p), (p))                                                \
    /* b = a + b, a the lower node, not changed; states as [m[rows], l[rows], */                    \
    /* o[head_dim_v][rows]]. */                                                                     \
    X(void, merge, (float *a, float *b, int64_t head_dim_v), (a, b, head_dim_v))                    \
    /* out[lane][d] = fl(fl(o[d][lane] * r) + 0) with r = fl(fl(1 / l[lane]) * factor), +0 */       \
    /* where l[lane] is 0; NaN as 7fc00000. */                                                      \
    X(void, result,                                                                                 \
      (float *const *out, const float *o, const float *l, float factor, int64_t head_dim_v),        \
      (out, o, l, factor, head_dim_v))                                                              \
    /* ---- gradients */                                                                            \
    /* s becomes p of attn_row_stats, and dp becomes fl(p * fl(dp - delta[lane])); where s is */    \
    /* -inf both become ATTN_DEAD. */                                                               \
    X(void, gradient, (float *s, float *dp, int n, const attn_row_stats *of), (s, dp, n, of))       \
    /* ds = fl(ds * fma(-t, t, 1)), t the tanh of softcap; ATTN_DEAD where p is. */                 \
    X(void, softcap_gradient, (float *ds, const float *t, const float *p, int n), (ds, t, p, n))    \
    /* to[j][d] = chain over the terms, and over the lanes of each, of fma(x[j][lane], */           \
    /* b[lane][d], to[j][d]), for n keys j. */                                                      \
    X(void, outer, (const attn_outer *f), (f))                                                      \
    /* The same, but an x that is ATTN_DEAD leaves `to` alone by selection. */                      \
    X(void, outer_select, (const attn_outer *f), (f))                                               \
    /* to[lane] = chain over d of fma(a[d][lane], b[d][lane], to[lane]) from +0. */                 \
    X(void, dots, (float *to, const float *a, const float *b, int64_t dim), (to, a, b, dim))

/* Those of a set whose `few` is not 0, NULL in the others: qk, qk_units and pv up to `few` lanes, of rows
 * as they lie, in any storage type but the 8-bit floats; qk_units_runs of units alone, the numbers of which
 * are multiplied whole. dim and, of Q K^T, the keys and those of each run are multiples of 16. */
#define ATTN_FEW_KERNELS(X)                                                                        \
    X(void, qk_runs, (const attn_product *p), (p))                                                 \
    X(void, qk_units_runs, (const attn_product *p), (p))                                           \
    X(void, pv_runs, (const attn_product *p), (p))

/* Those of a set that rounds, NULL in the others. */
#define ATTN_ROUNDED_KERNELS(X)                                                                    \
    /* ATTN_PANEL_FLOATS(dim) floats of a panel. */                                                \
    X(void, pack_values, (float *to, const attn_pack *p), (to, p))

#define ATTN_KERNEL_MEMBER(result, name, parameters, arguments) result(*name) parameters;
struct attn_kernels {
    int abi;  /* ATTN_KERNEL_ABI */
    int rows; /* query rows of a tile */
    /* Up to this number of lanes, counted from the last multiple of 4 up to the first one, take another
     * way, which the kernels *_runs are of. 0 = there are no such kernels. */
    int few;
    const char *name;
    ATTN_KERNELS(ATTN_KERNEL_MEMBER)
};

#endif /* ATTN_SEAM_H */

/* src/sizes.c - sizes and strides: sums and products stop at a limit instead of overflowing. */

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t entry32(const int32_t *array, int64_t index, int64_t otherwise)
{
    return array ? array[index] : otherwise;
}

/* Products and sums of sizes, which are 0 or more, stop at TOO_BIG instead of overflowing; what is
 * in memory is below ADDRESS_LIMIT bytes, and TOO_BIG is not. */
#define TOO_BIG (INT64_MAX / 4)
#define ADDRESS_LIMIT (PTRDIFF_MAX / 4)

static inline int64_t times(int64_t a, int64_t b)
{
    if ((a | b) >> 30 == 0) /* The division takes 32-bit CPUs 150 instructions. */
        return a * b;
    if (a == 0 || b == 0)
        return 0;
    return a >= TOO_BIG / b ? TOO_BIG : a * b;
}

static inline int64_t plus(int64_t a, int64_t b)
{
    return min64(a + b, TOO_BIG);
}

/* A size beyond this cannot be the count of anything in memory. */
#define MOST ((int64_t)(PTRDIFF_MAX / 4 < TOO_BIG / 4 ? PTRDIFF_MAX / 4 : TOO_BIG / 4))

/* extent counts the elements from the first to the last of a strided array, or gives TOO_BIG if
 * that cannot be in memory. */
static inline int64_t extent(const int64_t count[4], const ptrdiff_t stride[4])
{
    int64_t sum = 1;
    int axis;
    for (axis = 0; axis < 4; axis++) {
        const int64_t step = stride[axis] < 0 ? -max64(stride[axis], -TOO_BIG) : stride[axis];
        if (count[axis] == 0)
            return 0;
        sum = plus(sum, times(count[axis] - 1, step));
    }
    return sum;
}

static inline ptrdiff_t to_stride(int64_t elements)
{
    return elements > PTRDIFF_MAX ? PTRDIFF_MAX : (ptrdiff_t)elements;
}

/* Every array in the workspace begins at a multiple of it, a cache line and an AVX-512 vector. */
#define ALIGNMENT 64

static inline int64_t aligned(int64_t bytes)
{
    return plus(bytes, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* align_memory gives the first aligned byte of a caller's memory. */
static inline char *align_memory(const void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    return (char *)memory + (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT;
}

/* bytes_given counts the bytes of a caller's workspace that can matter. */
static inline int64_t bytes_given(const void *workspace, size_t bytes)
{
    const int64_t limit = ADDRESS_LIMIT;
    return !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return a == 0 ? 0 : (a - 1) / b + 1;
}

/* log2_up gives log2 of n, rounded up: the levels of a binary tree above its n leaves. */
static inline int log2_up(int64_t n)
{
    int levels = 0;
    for (; n > 1; n = ceil_div(n, 2))
        levels++;
    return levels;
}

/* place appends `count` elements to a slot that is `*at` bytes long and returns their offset. */
static inline int64_t place(int64_t *at, int64_t count, size_t bytes_each)
{
    const int64_t offset = *at;
    *at = plus(offset, aligned(times(count, (int64_t)bytes_each)));
    return offset;
}

#define LINE (ALIGNMENT / (int64_t)sizeof(float))

/* whole_lines counts the floats of whole cache lines. */
static inline int64_t whole_lines(int64_t floats)
{
    return times(ceil_div(floats, LINE), LINE);
}

/* pitch_of gives an odd number of whole cache lines, so that rows do not compete for one part of
 * the cache. */
static inline int64_t pitch_of(int64_t dim)
{
    return times(ceil_div(dim, LINE) | 1, LINE);
}

/* The largest element is a number of 64 bits, which some machines align to 4 bytes. */
struct aligned_number {
    char before;
    int64_t number;
};

/* alignment_of gives what addresses of elements, or of units, of that size are multiples of. */
static inline int64_t alignment_of(int64_t bytes_each)
{
    return min64(bytes_each & -bytes_each, (int64_t)offsetof(struct aligned_number, number));
}

static inline int is_aligned(const void *data, int64_t bytes_each)
{
    return (uintptr_t)data % (uintptr_t)alignment_of(bytes_each) == 0;
}

/* stride_or gives a stride as it was given, with what 0 and "broadcast" mean. */
static inline ptrdiff_t stride_or(ptrdiff_t stride, int64_t packed)
{
    return stride == ATTN_STRIDE_BROADCAST ? 0 : stride == 0 ? to_stride(packed) : stride;
}

static inline attn_tensor as_tensor(const attn_output *o)
{
    const attn_tensor t = { o->dtype, o->stride_batch, o->stride_head, o->stride_seq, o->data };
    return t;
}

/* src/tree.c - the merge tree over chunks of keys: where a complete node waits, and what it merges with.
 *
 * Node (level, index) covers the 2^level chunks from index * 2^level on. It is A + B, its lower half
 * and its upper half, and waits for its sibling once it is complete. What covers no key is empty, and
 * takes no part in a merge. In ascending order at most one node waits on each level, as a one bit
 * does in a binary counter.
 */

#define MAX_LEVELS 64

/* tree_states counts the states that the tree holds at once: that of the current chunk, and a node
 * that waits for each one bit of the number of chunks before it. If the first key lies inside the
 * tree, the node with that key waits, and the bits are those of the number of chunks behind it. */
static inline int tree_states(int64_t keys, int inside)
{
    return inside + log2_up(max64(1, ceil_div(keys, ATTN_CHUNK)) + 1);
}

/* ---- in ascending order */

/* level_after gives the level of the largest node that ends with node i of level 0: trailing one
 * bits of i are the levels at which a lower half waits. If i numbers nodes of a higher level, the
 * result counts from that level. */
static inline int level_after(int64_t i)
{
    int level = 0;
    for (; i & 1; i >>= 1)
        level++;
    return level;
}

/* take_lower takes the lowest node below `level` that waits, NULL if none does. The state of the
 * keys behind it merges with it as B, and then covers all keys from the node on. */
static inline float *take_lower(float **waiting, int level)
{
    float *lower = NULL;
    int k;
    for (k = 0; k < level && !lower; k++) {
        lower = waiting[k];
        waiting[k] = NULL;
    }
    return lower;
}

/* ---- in any order */

typedef struct tree_node {
    int64_t index;
    int level;
} tree_node;

static inline tree_node parent_of(tree_node node)
{
    const tree_node parent = { node.index / 2, node.level + 1 };
    return parent;
}

static inline int are_siblings(tree_node a, tree_node b)
{
    return a.level == b.level && a.index == (b.index ^ 1);
}

/* next_node gives the largest node from chunk *from on that ends at chunk `to` at the latest, and
 * moves *from behind it. */
static inline tree_node next_node(int64_t *from, int64_t to)
{
    tree_node node = { *from, 0 };
    while (node.index % 2 == 0 && *from + ((int64_t)2 << node.level) <= to)
        node = parent_of(node);
    *from += (int64_t)1 << node.level;
    return node;
}

static inline int64_t count_nodes(int64_t from, int64_t to)
{
    int64_t count = 0;
    for (; from < to; count++)
        next_node(&from, to);
    return count;
}
#include "kernels.cl"

/* src/bits.c - the bits of a float, and selections by them. */

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define NEG_INF float_of(0xff800000u)

static inline int is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* is_neg_inf looks at bits: under -ffinite-math-only gcc 12 folds x != -inf into x >= -FLT_MAX, in
 * spite of the pragma above, and a NaN would pass for -inf. */
static inline int is_neg_inf(float x)
{
    return bits_of(x) == 0xff800000u;
}

/* is_dead tells whether x is ATTN_DEAD. */
static inline int is_dead(float x)
{
    return bits_of(x) == 0x80000000u;
}

static inline int is_nan(float x)
{
    return (bits_of(x) & 0x7fffffffu) > 0x7f800000u;
}

/* choose gives a or b. It is written with masks because gcc does not vectorise a conditional
 * expression whose operand is computed for it. */
static inline float choose(int yes, float a, float b)
{
    const uint32_t mask = 0u - (uint32_t)(yes != 0);
    return float_of((bits_of(a) & mask) | (bits_of(b) & ~mask));
}

/* src/fma.c - a * b + c rounded once, on every CPU.
 *
 * Where binary32 FMA is no instruction, binary64 hardware or integers give the same bits. Any NaN may
 * stand for another. tests/fma.c and tools/prove_fma.c compare all forms.
 */

/* ---- by binary64 */

#ifdef FMA_BY_BINARY64

/*
 * p + c rounded to odd in binary64 and then to binary32; s is p + c rounded. TwoSum yields the error e
 * of s. An inexact s becomes the neighbour with the odd last bit, and 53 >= 24 + 2 bits make the last
 * rounding right, subnormal results included. With infinities or NaN e is NaN and both compares
 * fail. Excess precision (x87) may pick the other neighbour as s, but e keeps its sign and the odd
 * one is the same.
 */
COLD static float fma_by_odd(double p, double c, double s)
{
    double t, v, e;
    uint64_t u;
    int up, down;
    t = s - p;
    v = s - t;
    v = p - v;
    t = c - t;
    e = v + t;
    memcpy(&u, &s, sizeof u);
    up = e > 0.0;
    down = e < 0.0;
    if ((up || down) && (u & 1) == 0) {
        int negative = (int)(u >> 63);
        u = up != negative ? u + 1 : u - 1;
    }
    memcpy(&s, &u, sizeof s);
    return (float)s;
}

/*
 * Whether rounding s, the sum, to binary32 may be wrong. Midways between two neighbours in binary32 are
 * binary64 numbers, so none lies between a sum and s, its neighbour in binary64: both round alike unless
 * s is a midway itself. The last 29 bits of a midway are 1 and 28 zeros from 2^-126 up, and zeros below.
 * So the first test sees nearly all sums off. The second one counts sums below 2^-126 as midways, but
 * not 0, which is always exact.
 */
static inline int is_midway(uint64_t s)
{
    const uint32_t low = (uint32_t)s, high = (uint32_t)(s >> 32);
    return low << 4 == 0 && (low << 3 != 0 || (high << 1) - 1 < ((1023u - 126u) << 21) - 1);
}

/* The product of two 24-bit significands is exact in binary64. */
static inline float fma_binary64(float a, float b, float c)
{
    const double da = (double)a, db = (double)b, dc = (double)c;
    double p, s;
    uint64_t u;
    p = da * db;
    s = p + dc;
    memcpy(&u, &s, sizeof u);
    return is_midway(u) ? fma_by_odd(p, dc, s) : (float)s;
}
#endif

/* ---- by integers */

#ifdef FMA_BY_INTEGERS

/* The significand of a finite number, with bit 23 set unless it is 0, and its biased exponent, which
 * is below 1 for subnormal numbers. */
static inline uint32_t to_significand(uint32_t u, int *exponent)
{
    uint32_t m = u & 0x7fffffu;
    *exponent = (int)(u >> 23 & 255);
    if (*exponent != 0)
        return m | 0x800000u;
    if (m != 0)
        for (*exponent = 1; m < 0x800000u; --*exponent)
            m <<= 1;
    return m;
}

/* Numbers moved right by n bits. What falls out is kept as a last bit of 1, so that a sum with a number
 * that ends in 0, and the rounding of the sum higher up, are right. */
KERNEL uint32_t moved32(uint32_t x, int n)
{
    return n < 32 ? x >> n | (x << 1 << (31 - n) != 0) : x != 0;
}

static inline uint64_t moved64(uint64_t x, int n)
{
    const uint32_t high = (uint32_t)(x >> 32), low = (uint32_t)x;
    if (n >= 32)
        return moved32(high | (low != 0), n - 32);
    return (uint64_t)(high >> n) << 32 | high << 1 << (31 - n) | moved32(low, n);
}

/* u * 2^(exponent - 157) rounded to nearest even, with 2^30 <= u < 2^31 and exponent from 1 to 254. Bit 23 of a
 * significand adds 1 to the exponent. */
KERNEL float rounded32(uint32_t sign, uint32_t u, int exponent)
{
    const uint32_t rest = u & 127;
    u = (u >> 7) + ((uint32_t)(exponent - 1) << 23);
    u += rest + (u & 1) > 64;
    return float_of(sign | u);
}

/* x * 2^(exponent - 189) rounded so, with 0 < x < 2^63; sign is the first bit. */
static inline float rounded(uint32_t sign, uint64_t x, int exponent)
{
    uint32_t u;
    for (; x >> 62 == 0; x <<= 1)
        exponent--;
    u = (uint32_t)(x >> 32) | ((uint32_t)x != 0);
    if (exponent >= 255)
        return float_of(sign | 0x7f800000u);
    if (exponent < 1) {
        u = moved32(u, 1 - exponent);
        exponent = 1;
    }
    return rounded32(sign, u, exponent);
}

/* An infinity or a NaN among them: no float operation on finite numbers. */
static inline float fma_not_finite(float a, float b, float c)
{
    float x = c;
    if (is_finite(a) && is_finite(b))
        return x;
    x = a * b;
    x = x + c;
    return x;
}

/* Significands begin at bits 60 and, the product, 60 or 61: what bits fall out when the smaller
 * number is moved right does not matter to a difference so small that it moves left again. */
static inline float fma_any(float a, float b, float c)
{
    const uint32_t ua = bits_of(a), ub = bits_of(b), uc = bits_of(c);
    uint32_t sign = (ua ^ ub) & 0x80000000u;
    int ea, eb, ec, apart;
    uint64_t p = (uint64_t)to_significand(ua, &ea) * to_significand(ub, &eb) << 14;
    uint64_t x = (uint64_t)to_significand(uc, &ec) << 37;
    if (ea == 255 || eb == 255 || ec == 255)
        return fma_not_finite(a, b, c);
    if (p == 0)
        return x != 0 ? c : float_of(sign & uc);
    apart = ea + eb - 127 - ec;
    if (apart >= 0) {
        x = moved64(x, apart);
        ec += apart;
    } else {
        p = moved64(p, -apart);
    }
    if (((sign ^ uc) & 0x80000000u) == 0)
        return rounded(sign, p + x, ec + 2);
    if (p == x)
        return 0.0f;
    if (p > x)
        return rounded(sign, p - x, ec + 2);
    return rounded(sign ^ 0x80000000u, x - p, ec + 2);
}

KERNEL int is_normal(uint32_t u)
{
    return (u << 1) + 0x01000000u >= 0x02000000u;
}

/* Frequent sums by words of 32 bits: normal numbers, of which c stays even where it is moved right. Only the
 * product then ends in a bit that stands for others, and the sum does, too. Bit 29 begins c, and bit 28 or 29
 * the product. A difference with few bits left is for fma_any. */
static inline float fma_integer(float a, float b, float c)
{
    const uint32_t ua = bits_of(a), ub = bits_of(b), uc = bits_of(c);
    const uint64_t p = (uint64_t)(ua << 8 | 0x80000000u) * (ub << 8 | 0x80000000u);
    uint32_t x = (uc << 8 | 0x80000000u) >> 2, y = (uint32_t)(p >> 34) | (p << 30 != 0), sign = uc;
    int ec = (int)(uc >> 23 & 255);
    const int apart = (int)(ua >> 23 & 255) + (int)(ub >> 23 & 255) - 126 - ec;
    if (!is_normal(ua) || !is_normal(ub) || !is_normal(uc) || apart > 5)
        return fma_any(a, b, c);
    if (apart > 0) {
        x >>= apart;
        ec += apart;
    } else {
        y = moved32(y, -apart);
    }
    if ((int32_t)(ua ^ ub ^ uc) >= 0) {
        x += y;
    } else if (x >= y) {
        x -= y;
    } else {
        x = y - x;
        sign = ~sign;
    }
    if (x < 1u << 26)
        return fma_any(a, b, c);
    for (ec++; x < 1u << 30; x <<= 1)
        ec--;
    if (ec < 1 || ec > 254)
        return fma_any(a, b, c);
    return rounded32(sign & 0x80000000u, x, ec);
}
#endif

/* ---- by what this CPU has */

/* hw is constant at every call: only the second build of the kernels has the instruction. */
#if FMA_BASE || defined FMA_SECOND_BUILD
FMA_TARGET static inline float fma_hard(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
#else
#define fma_hard FMA_SOFT
#endif

KERNEL float fma32(int hw, float a, float b, float c)
{
    return hw ? fma_hard(a, b, c) : FMA_SOFT(a, b, c);
}

/* src/numbers.c - numbers: exp2, tanh, log2, the inverse square root.
 *
 * No libm: each function is one fixed sequence of binary32 operations, rounded to nearest even, so
 * that every compiler and ISA gives the same bits. One float operation per statement (s390x and x87
 * round at assignments); each multiply that feeds an add is fma32. Selections are ordered compares or
 * integer bits. tools/prove_math.c checks all inputs.
 */

#define LOG2E_HI 0x1.715476p+0f /* log2(e) = HI + LO */
#define LOG2E_LO 0x1.4ae0c0p-26f
#define LN2 0x1.62e430p-1f
#define CANONICAL_NAN 0x7fc00000u

/*
 * 2^x for x in [-126, 128) only: no selections. Adding 1.5 * 2^23 leaves the nearest whole number
 * n in the low bits of t, |f| <= 0.5, and t << 23 is n in the exponent field: the upper bits of t
 * fall out modulo 2^32.
 */
KERNEL float exp2_core(int hw, float x)
{
    const float magic = 12582912.0f;
    float t, w, f, y;
    uint32_t u;
    t = x + magic;
    w = t - magic;
    f = x - w;
    /* 2^f on [-0.5, 0.5], degree 6, minimax in relative error, c0 = 1, rounded to binary32: */
    /* worst 0.7821 ulp over all floats in [-126, 128). */
    y = 0x1.44a6d6p-13f;
    y = fma32(hw, y, f, 0x1.5f8d0cp-10f);
    y = fma32(hw, y, f, 0x1.3b2822p-7f);
    y = fma32(hw, y, f, 0x1.c6adecp-5f);
    y = fma32(hw, y, f, 0x1.ebfbe4p-3f);
    y = fma32(hw, y, f, 0x1.62e432p-1f);
    y = fma32(hw, y, f, 1.0f);
    u = bits_of(y) + (bits_of(t) << 23);
    return float_of(u);
}

/*
 * 2^x for x < 128. Below -126 (-inf too) +0; NaN gives 7fffffff, by bits, since the integer add
 * could turn a NaN into a number and a sign bit means "dead" (chains8). +inf gives NaN (inf - inf);
 * finite x >= 128 gives garbage: callers promise x <= 127. The selections are integers: gcc
 * vectorises them without -fno-trapping-math, which ?: on floats needs on AVX2. As unsigned
 * numbers, the floats below -126 and the negative NaNs are those above the bits of -126; they are
 * clamped first, so that -inf raises no flag.
 */
KERNEL float exp2_with(int hw, float x)
{
    const uint32_t lowest = 0xc2fc0000u; /* -126 */
    uint32_t u = bits_of(x), v, nan;
    float y = exp2_core(hw, float_of(u > lowest ? lowest : u));
    v = bits_of(y);
    nan = 0u - (uint32_t)((u & 0x7fffffffu) > 0x7f800000u);
    v &= 0u - (uint32_t)(u <= lowest);
    v = (v & ~nan) | (nan >> 1);
    return float_of(v);
}

/*
 * tanh x for every x: |result| <= 1, odd bit for bit, tanh(+-0) = +-0, tanh(+-inf) = +-1, NaN
 * gives NaN. Below 0.625 the odd polynomial a + a^3 R(a^2), which is a itself for tiny a. From
 * there 1 - 2 / (e^(2a) + 1), where the fraction is at most 0.45 and its error shrinks with it.
 * (One odd rational a P(a^2) / Q(a^2) for all a was no better than 4 ulp after a search over the
 * coefficients: P, Q and the product each lose up to a whole ulp just below 1.) At the clamp, 10,
 * the fraction is under 2^-27 and the difference is 1 exactly; the first a that gives 1 is
 * 9.0109139. Worst error over all inputs 1.6765 ulp.
 */
KERNEL float tanh_with(int hw, float x)
{
    uint32_t bits = bits_of(x), a = bits & 0x7fffffffu, v;
    float c, u, r, small, e, large;
    c = float_of(a > 0x41200000u ? 0x41200000u : a); /* |x|, at most 10, which NaN becomes, too */
    u = c * c;
    /* R: (tanh a - a) / a^3 in u = a^2 on [0, 0.625^2], degree 4, Remez, weight a^3 / tanh a, */
    /* then rounded to binary32: worst 0.7208 ulp over all floats below 0.625. */
    r = -0x1.75e1cap-8f;
    r = fma32(hw, r, u, 0x1.52269cp-6f);
    r = fma32(hw, r, u, -0x1.b83c5ap-5f);
    r = fma32(hw, r, u, 0x1.110726p-3f);
    r = fma32(hw, r, u, -0x1.555532p-2f);
    u = u * c;
    small = fma32(hw, u, r, c);
    e = c * 0x1.715476p+1f; /* 2 log2(e) a, at most 28.9: inside exp2_core */
    e = exp2_core(hw, e);
    e = e + 1.0f;
    e = 2.0f / e;
    large = 1.0f - e;
    v = 0u - (uint32_t)(a >= 0x3f200000u);
    v = (bits_of(large) & v) | (bits_of(small) & ~v);
    v |= 0u - (uint32_t)(a > 0x7f800000u);
    return float_of(v | (bits & 0x80000000u));
}

/* inverse_sum gives r = fl(1 / l), and +0 for an empty row, whose l is 0. A selection of the divisor
 * would not do: clang 14 divides by 0 first and selects then. */
static inline float inverse_sum(int empty, float l)
{
    const float inverse = 1.0f / (l + (float)empty);
    return empty ? 0.0f : inverse;
}

/* exp2_canon is for scalar code outside the kernels. */
static inline float exp2_canon(float x)
{
    return exp2_with(FMA_BASE, x);
}

/*
 * log2 x: +inf gives +inf, +-0 gives -inf, NaN and x < 0 give NaN; log2(2^n) = n exactly,
 * log2(1) = +0. x = 2^n m, m in [sqrt(1/2), sqrt(2)), f = m - 1 exact:
 * log2 x = n + f L + f^2 Q(f), where f L is kept as a head h and a tail l, so that the relative
 * error holds near 1, too. Subnormals are normalised as integers.
 */
static inline float log2_canon(float x)
{
    const float l_hi = 0x1.715476p+0f, l_lo = 0x1.4ae0cp-26f; /* log2 e */
    uint32_t u = bits_of(x), m;
    int32_t n = 0;
    float f, f2, h, l, q, k, s, r;
    if ((u & 0x7fffffffu) == 0)
        return float_of(0xff800000u);
    if (u > 0x7f800000u)
        return float_of(0x7fc00000u);
    if (u == 0x7f800000u)
        return x;
    if (u < 0x00800000u) {
        f = (float)(int32_t)u; /* exact, below 2^23 */
        u = bits_of(f);
        n = -149;
    }
    /* m: the bits of x moved to [sqrt(1/2), sqrt(2)); 0x3f3504f4 is just above sqrt(1/2) */
    m = u - 0x3f3504f4u;
    n += (int32_t)((m + 0x40000000u) >> 23) - 128;
    m = (m & 0x007fffffu) + 0x3f3504f4u;
    f = float_of(m);
    f = f - 1.0f;
    k = (float)n;
    /* Q: (log2(1 + f) - f L) / f^2 on [sqrt(1/2) - 1, sqrt(2) - 1], degree 8, Remez, weight */
    /* f^2 / log2(1 + f), then rounded to binary32: worst 1.1004 ulp over all positive floats. */
    q = -0x1.c26434p-4f;
    q = fma32(FMA_BASE, q, f, 0x1.7d4786p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.87485cp-3f);
    q = fma32(FMA_BASE, q, f, 0x1.a30596p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.eabd0ep-3f);
    q = fma32(FMA_BASE, q, f, 0x1.277e3cp-2f);
    q = fma32(FMA_BASE, q, f, -0x1.715a72p-2f);
    q = fma32(FMA_BASE, q, f, 0x1.ec7096p-2f);
    q = fma32(FMA_BASE, q, f, -0x1.71547p-1f);
    h = f * l_hi;
    l = fma32(FMA_BASE, f, l_hi, -h); /* exact: what the product lost */
    l = fma32(FMA_BASE, f, l_lo, l);
    f2 = f * f;
    l = fma32(FMA_BASE, f2, q, l);
    s = k + h; /* |k| >= 1 > |h|, or k = 0: r is the exact rounding error of s */
    r = s - k;
    r = h - r;
    l = r + l;
    s = s + l;
    return s;
}

/*
 * The binary32 nearest to 1 / sqrt(n), 1 <= n <= 2^62, integers only. With 4^24 <= 4^j / n < 4^25,
 * root = floor(sqrt(floor(4^j / n))) = floor(2^j / sqrt(n)) has 25 bits, one more than the result.
 * Half up is the nearest: a tie would be an odd root with root^2 n = 4^j, which does not exist.
 */
static inline float inv_sqrt_nearest(uint64_t n)
{
    uint64_t quotient, remainder, root = 0, bit;
    uint32_t j = 24, i;
    float power;
    while (j < 55 && n > (uint64_t)1 << 2 * (j - 24))
        j++;
    i = 2 * j < 63 ? 2 * j : 63;
    quotient = ((uint64_t)1 << i) / n;
    remainder = ((uint64_t)1 << i) % n;
    for (; i < 2 * j; i++) { /* long division of 4^j by n goes on where 64 bits do not hold 4^j */
        const uint64_t digit = 2 * remainder >= n ? 1 : 0;
        quotient = 2 * quotient + digit;
        remainder = 2 * remainder - (digit ? n : 0);
    }
    for (bit = (uint64_t)1 << 24; bit != 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= quotient)
            root += bit;
    power = float_of((127u - (j - 1)) << 23); /* 2^-(j-1) */
    return (float)(int32_t)((root + 1) >> 1) * power;
}

/* src/text.c - sentences: built piece by piece into the caller's buffer; words of a text are compared. */

/* -DATTN_WITHOUT_SENTENCES leaves out every word that tells people of a call. Statuses are left. */
#ifdef ATTN_WITHOUT_SENTENCES
enum { HAS_SENTENCES = 0 };
#else
enum { HAS_SENTENCES = 1 };
#endif

/* NAME is the name of a field or an array for a sentence. */
#define NAME(words) (HAS_SENTENCES ? (words) : NULL)

typedef struct text {
    char *at;
    size_t left; /* left counts bytes that still fit, with the terminator. */
} text;

static inline text text_in(char *buffer, size_t bytes)
{
    text t;
    t.at = buffer;
    t.left = HAS_SENTENCES && buffer ? bytes : 0;
    if (buffer && bytes)
        *buffer = 0;
    return t;
}

COLD static void put(text *t, const char *s)
{
    while (HAS_SENTENCES && *s && t->left > 1) {
        *t->at++ = *s++;
        t->left--;
    }
    if (HAS_SENTENCES && t->left)
        *t->at = 0;
}

COLD static void put_int(text *t, int64_t value)
{
    char digits[24];
    char *d = digits + sizeof digits - 1;
    uint64_t u = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    *d = 0;
    do {
        *--d = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (value < 0)
        *--d = '-';
    put(t, d);
}

/* put_float writes six digits, as d.ddddde-xx: enough for a sentence about a wrong value. */
COLD static void put_float(text *t, float value)
{
    char digits[8];
    double rest = value < 0 ? -(double)value : (double)value;
    int64_t millionths;
    int i, exponent = 0;
    if (!is_finite(value)) {
        put(t, is_nan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    for (; rest >= 10; exponent++)
        rest /= 10;
    for (; rest > 0 && rest < 1; exponent--)
        rest *= 10;
    put(t, value < 0 ? "-" : "");
    millionths = (int64_t)(rest * 1e6 + 0.5);
    if (millionths == 10000000) { /* It was rounded up to the next power of ten. */
        millionths = 1000000;
        exponent++;
    }
    put_int(t, millionths / 1000000);
    digits[0] = '.';
    for (i = 6; i >= 1; i--) {
        digits[i] = (char)('0' + millionths % 10);
        millionths /= 10;
    }
    digits[7] = 0;
    put(t, digits);
    if (exponent) {
        put(t, "e");
        put_int(t, exponent);
    }
}

/* put_word puts a word of a text that may hold anything: control characters become '?'. */
COLD static void put_word(text *t, const char *word, size_t length)
{
    char letter[2] = { 0, 0 };
    size_t i;
    for (i = 0; i < length; i++) {
        letter[0] = (unsigned char)word[i] < ' ' || word[i] == 127 ? '?' : word[i];
        put(t, letter);
    }
}

/* put_numbers puts a sentence in which each # stands for the next number. */
COLD static void put_numbers(text *t, const char *sentence, const int64_t *number)
{
    for (; *sentence; sentence++)
        if (*sentence == '#')
            put_int(t, *number++);
        else
            put_word(t, sentence, 1);
}

#define NUMBERS(...) ((const int64_t[]){ __VA_ARGS__ })

/* put_field says "name (value)". */
COLD static void put_field(text *t, const char *name, int64_t value)
{
    put(t, name);
    put_numbers(t, " (#)", &value);
}

/* same_word tells whether the string a is the b_length letters at b. */
static inline int same_word(const char *a, const char *b, size_t b_length)
{
    size_t i;
    for (i = 0; i < b_length; i++)
        if (a[i] != b[i] || !a[i])
            return 0;
    return a[b_length] == 0;
}

static inline int parse_int(const char *s, size_t length, int64_t *value)
{
    size_t i;
    *value = 0;
    for (i = 0; i < length; i++) {
        if (s[i] < '0' || s[i] > '9' || *value > 100000000000000)
            return 0;
        *value = *value * 10 + (s[i] - '0');
    }
    return length > 0;
}

COLD static attn_status bad(text *why, attn_status status, const char *rest)
{
    put(why, rest);
    return status;
}

COLD static attn_status bad_numbers(text *why, attn_status status, const char *sentence,
                                    const int64_t *number)
{
    put_numbers(why, sentence, number);
    return status;
}

/* done says "ok" where nothing was wrong. */
static inline attn_status done(attn_status status, text *why)
{
    if (!status)
        put(why, "ok");
    return status;
}

/* bad_field says "name (value) rest". */
COLD static attn_status bad_field(text *why, attn_status status, const char *name, int64_t value,
                                  const char *rest)
{
    put_field(why, name, value);
    return bad(why, status, rest);
}

/* bad_entry says "name[index] (value) rest". */
COLD static attn_status bad_entry(text *why, const char *name, int64_t index, int64_t value,
                                  const char *rest)
{
    put(why, name);
    put_numbers(why, "[#] (#)", NUMBERS(index, value));
    return bad(why, ATTN_ERR_ARG, rest);
}

/* bad_after says "name[index] (value) rest (the entry before it)". */
COLD static attn_status bad_after(text *why, const char *name, int64_t index, int64_t value,
                                  const char *rest, int64_t before)
{
    bad_entry(why, name, index, value, rest);
    put_numbers(why, " (#)", NUMBERS(before));
    return ATTN_ERR_ARG;
}

COLD static attn_status bad_number(text *why, const char *name, float value, const char *rest)
{
    put(why, name);
    put(why, " (");
    put_float(why, value);
    put(why, ")");
    return bad(why, ATTN_ERR_ARG, rest);
}

/* too_small names the function `query`, which says how large the workspace should be. */
COLD static attn_status too_small(text *why, int64_t have, int64_t least, const char *query)
{
    if (have > 0)
        put_numbers(why, "workspace_bytes (#) must be at least #; ", NUMBERS(have, least));
    else
        put_numbers(why, "workspace is NULL or empty and must have at least # bytes; ", &least);
    put(why, query);
    return bad(why, ATTN_ERR_WORKSPACE, " says what is best");
}

/* verdict is the result of a public check function: its sentence in `buffer`, where *why began, or
 * "ok". Without a buffer it is the name of the status. */
static inline const char *verdict(attn_status status, const char *buffer, text *why)
{
    done(status, why);
    return why->left ? buffer : attn_status_string(status);
}

/* src/rules.c - rules about fields as data: ranges of counts and enums, strides, lengths, extents. */

typedef struct size_rule {
    const char *name;
    size_t offset;
    int64_t least, most;
} size_rule;

/* check_range says "name (value) must be at least / at most / the only value". */
static inline attn_status check_range(text *why, const char *name, int64_t least, int64_t most,
                                      int64_t value)
{
    const int low = value < least;
    if (!low && value <= most)
        return ATTN_OK;
    put_field(why, name, value);
    put(why, least == most ? " must be " : low ? " must be at least " : " must be at most ");
    put_int(why, low ? least : most);
    return !low && most == MOST ? ATTN_ERR_OVERFLOW : ATTN_ERR_ARG;
}

/* number_at reads an int or an int64_t, as `bytes` tells. */
static inline int64_t number_at(const void *at, size_t bytes)
{
    int64_t number;
    int as_int;
    if (bytes == sizeof number) {
        memcpy(&number, at, sizeof number);
        return number;
    }
    memcpy(&as_int, at, sizeof as_int);
    return as_int;
}

static inline attn_status check_members(const void *base, const size_rule *rules, int n,
                                        size_t bytes, text *why)
{
    attn_status status = ATTN_OK;
    int r;
    for (r = 0; r < n && !status; r++)
        status = check_range(why, rules[r].name, rules[r].least, rules[r].most,
                             number_at((const char *)base + rules[r].offset, bytes));
    return status;
}

/* Fields lie at their offsets from `base`: int64_t in check_counts, int in check_enums. */
static inline attn_status check_counts(const void *base, const size_rule *rules, int n, text *why)
{
    return check_members(base, rules, n, sizeof(int64_t), why);
}

static inline attn_status check_enums(const void *base, const size_rule *rules, int n, text *why)
{
    return check_members(base, rules, n, sizeof(int), why);
}

static const char *const stride_names[] = { ".stride_batch", ".stride_head", ".stride_seq" };

/* check_output_stride looks at a stride of an output as it was given. */
static inline attn_status check_output_stride(const char *name, const char *stride_name,
                                              ptrdiff_t stride, text *why)
{
    if (stride != ATTN_STRIDE_BROADCAST)
        return ATTN_OK;
    put(why, name);
    put(why, stride_name);
    return bad(why, ATTN_ERR_ARG,
               " (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride: no rows share it");
}

/* bad_limit says "name[b] (value) must be from 0 to most". */
COLD static attn_status bad_limit(text *why, const char *name, int64_t b, int64_t value,
                                  int64_t most)
{
    bad_entry(why, name, b, value, " must be from 0 to ");
    if (most > INT32_MAX) /* MOST_KEY_BASE reads better so. */
        put_numbers(why, "2^#", NUMBERS(log2_up(most)));
    else
        put_int(why, most);
    return ATTN_ERR_ARG;
}

static inline attn_status check_cu_seqlens(const char *name, const int32_t *cu, int64_t batch,
                                           int64_t rows, text *why)
{
    int64_t b;
    if (cu && cu[0] < 0)
        return bad_entry(why, name, 0, cu[0], " must be at least 0");
    for (b = 0; cu && b < batch; b++)
        if (cu[b + 1] < cu[b])
            return bad_after(why, name, b + 1, cu[b + 1], " is below the entry before it", cu[b]);
    if (cu && cu[batch] > rows) { /* of the tensor */
        bad_entry(why, name, batch, cu[batch], " exceeds seq_len");
        put_field(why, name + strlen("cu_seqlens"), rows);
        return ATTN_ERR_ARG;
    }
    return ATTN_OK;
}

/* check_bytes wants an array of four axes to lie within the address space. */
static inline attn_status check_bytes(const char *name, int64_t bytes, const int64_t count[4],
                                      text *why)
{
    if (bytes < ADDRESS_LIMIT)
        return ATTN_OK;
    put(why, name);
    return bad_numbers(why, ATTN_ERR_OVERFLOW,
                       ": batch (#) x heads (#) x rows (#) x columns (#) with its strides exceeds "
                       "the address space",
                       count);
}

static inline attn_status check_extent(const char *name, int64_t bytes_each, int64_t batch,
                                       int64_t heads, int64_t rows, int64_t columns,
                                       const ptrdiff_t stride[4], text *why)
{
    const int64_t count[4] = { batch, heads, rows, columns };
    return check_bytes(name, times(extent(count, stride), bytes_each), count, why);
}

/* src/halves.c - the 16-bit storage types: exact to f32; from f32 to nearest even, NaN canonical. */

/* It chooses by masks, so that compilers vectorise loops of it. */
static inline float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu, bias = 112u << 23;
    const uint32_t strange = 0u - (uint32_t)(rest > 0x7bffu); /* infinity or NaN */
    const uint32_t small = 0u - (uint32_t)(rest < 0x0400u);   /* subnormal in f16, normal in f32 */
    const float tiny = (float)(int32_t)rest * 0x1p-24f;
    const uint32_t normal = (rest << 13) + bias + (strange & bias);
    return float_of(sign | (bits_of(tiny) & small) | (normal & ~small));
}

static inline uint16_t f16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu, half, shift;
    if (a > 0x7f800000u)
        return 0x7e00u;
    if (a >= 0x477ff000u) /* It rounds to 65536 or more. */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) { /* The result is normal, 2^-14 and above. */
        a -= 112u << 23;
        a += 0xfffu + (a >> 13 & 1);
        return (uint16_t)(sign | a >> 13);
    }
    if (a <= 0x33000000u) /* It is at most 2^-25, a tie with 0 or below. */
        return (uint16_t)sign;
    /* The shift is 14 to 24 and makes the significand a multiple of 2^-24. */
    shift = 126u - (a >> 23);
    a = (a & 0x7fffffu) | 0x800000u;
    half = 1u << (shift - 1);
    a += half - 1 + (a >> shift & 1);
    return (uint16_t)(sign | a >> shift);
}

static inline float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    if (is_nan(x))
        return 0x7fc0u;
    u += 0x7fffu + (u >> 16 & 1);
    return (uint16_t)(u >> 16);
}

/* src/eighths.c - the 8-bit floats of the OCP specification, which only K and V may have.
 *
 * OCP 8-bit Floating Point Specification (OFP8), revision 1.0. Exact to f32; from f32 to nearest even.
 * What is too large becomes NaN in E4M3, which has no infinity, and infinity in E5M2.
 */

/* to_eighth rounds the magnitude with the bits a, which is not too large, to a float with `cut` bits
 * less of fraction whose exponents are `less` lower; its least normal number is 2^(1 + less - 127). */
static inline uint32_t to_eighth(uint32_t a, uint32_t cut, uint32_t less)
{
    uint32_t shift, half;
    if (a >= (less + 1) << 23) { /* The result is normal. */
        a -= less << 23;
        shift = cut;
    } else {
        shift = cut + 1 + less - (a >> 23);
        if (shift > 24) /* It is at most half of the least subnormal one, a tie with 0. */
            return 0;
        a = (a & 0x7fffffu) | 0x800000u;
    }
    half = 1u << (shift - 1);
    return (a + half - 1 + (a >> shift & 1)) >> shift;
}

/* It chooses by masks, so that compilers vectorise loops of it. */
static inline float e4m3_to_f32(uint8_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7fu;
    const uint32_t strange = 0u - (uint32_t)(rest == 0x7fu);
    const uint32_t small = 0u - (uint32_t)(rest < 0x08u); /* subnormal in E4M3, normal in f32 */
    const float tiny = (float)(int32_t)rest * 0x1p-9f;
    const uint32_t normal = (rest << 20) + (120u << 23);
    return float_of(sign | (bits_of(tiny) & small) | (normal & ~(small | strange)) |
                    (CANONICAL_NAN & strange));
}

static inline uint8_t e4m3_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x43e80000u) /* It is above 464, the tie between 448 and what would be 480, or a NaN. */
        return (uint8_t)(a > 0x7f800000u ? 0x7fu : sign | 0x7fu);
    return (uint8_t)(sign | to_eighth(a, 20, 120));
}

/* E5M2 is the upper half of an f16. */
static inline float e5m2_to_f32(uint8_t h)
{
    return f16_to_f32((uint16_t)(h << 8));
}

static inline uint8_t e5m2_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return 0x7eu;
    if (a >= 0x47700000u) /* It is 61440, the tie between 57344 and what would be 65536, or more. */
        return (uint8_t)(sign | 0x7cu);
    return (uint8_t)(sign | to_eighth(a, 21, 112));
}

/* src/bytes.c - products of bytes by what this CPU has: a float times a byte, sums of four products. */

/* d * q rounded once, where floating point is software, by one product of integers. */
#ifdef SOFT_FLOAT
static inline float times_byte(float d, int8_t q)
{
    const uint32_t u = bits_of(d), size = (uint32_t)(q < 0 ? -q : q);
    int exponent = (int)(u >> 23 & 255) + 7;
    uint32_t x = ((u & 0x7fffffu) | 0x800000u) * size;
    if (size == 0 || exponent < 14 || exponent > 254)
        return d * (float)q;
    for (; x < 1u << 30; x <<= 1)
        exponent--;
    return rounded32((u & 0x80000000u) ^ (q < 0 ? 0x80000000u : 0u), x, exponent);
}
#else
static inline float times_byte(float d, int8_t q)
{
    return d * (float)q;
}
#endif

/* Sums of products, for where there are no vectors. They are exact in 32 bits, so that both forms have the same
 * bits. Cortex-M4, M7, M33 and 32-bit ARM from ARMv6 on add the products of two pairs of 16 bits by one
 * instruction. */
#if !HAS_VECTORS && defined __ARM_FEATURE_SIMD32
#include <arm_acle.h>

typedef struct four_bytes {
    int16x2_t even, odd;
} four_bytes;

KERNEL four_bytes four_of(const int8_t *x)
{
    int8x4_t word;
    uint32_t turned;
    memcpy(&word, x, sizeof word);
    turned = (uint32_t)word >> 8 | (uint32_t)word << 24;
    return (four_bytes){ __sxtb16(word), __sxtb16((int8x4_t)turned) };
}

KERNEL int32_t add_four(int32_t sum, four_bytes a, four_bytes b)
{
    sum = __smlad(a.even, b.even, sum);
    return __smlad(a.odd, b.odd, sum);
}
#elif !HAS_VECTORS
typedef struct four_bytes {
    int32_t x[4];
} four_bytes;

KERNEL four_bytes four_of(const int8_t *x)
{
    return (four_bytes){ { x[0], x[1], x[2], x[3] } };
}

KERNEL int32_t add_four(int32_t sum, four_bytes a, four_bytes b)
{
    return sum + a.x[0] * b.x[0] + a.x[1] * b.x[1] + a.x[2] * b.x[2] + a.x[3] * b.x[3];
}
#endif

/* src/quantised.c - units of 32 numbers with one scale, as GGUF files hold them.
 *
 * A unit begins with its scale d, an f16 in the machine's byte order. Whole numbers q follow, packed, and
 * stand for d * q, which is exact in f32. Bytes are those of ggml's reference quantisation
 * (github.com/ggml-org/ggml, src/ggml-quants.c), with each operation rounded:
 *
 *     q8_0   34 bytes   q from -127 to 127, a signed byte each
 *     q5_0   22 bytes   q + 16 from 0 to 31: 32 upper bits, lowest first, then the lower four as below
 *     q4_0   18 bytes   q + 8 from 0 to 15: byte i holds number i low and number i + 16 high
 *
 * Where ggml's are undefined: a unit with a number that is not finite has a NaN as its scale, which
 * every number of it becomes, and one of numbers so small that 1 / d is infinite has 0 for every q.
 * A scale that no f16 holds is infinite, as ggml's is.
 */

#define UNIT 32
#define HALF_UNIT (UNIT / 2)

typedef struct q8_unit {
    uint16_t scale;
    int8_t q[UNIT];
} q8_unit;

typedef struct q5_unit {
    uint16_t scale;
    uint8_t upper[UNIT / 8];
    uint8_t lower[HALF_UNIT];
} q5_unit;

typedef struct q4_unit {
    uint16_t scale;
    uint8_t q[HALF_UNIT];
} q4_unit;

static inline void load_q8(float *RESTRICT to, const q8_unit *RESTRICT from)
{
    const float d = f16_to_f32(from->scale);
    int i;
    for (i = 0; i < UNIT; i++)
        to[i] = times_byte(d, from->q[i]);
}

/* unpack_q5 and unpack_q4 make units of 8 bits with the same numbers and scale. */
static inline void unpack_q5(q8_unit *RESTRICT to, const q5_unit *RESTRICT from)
{
    static const int16_t bit[HALF_UNIT] = { 1,       1 << 1,  1 << 2,  1 << 3,    1 << 4,  1 << 5,
                                            1 << 6,  1 << 7,  1 << 8,  1 << 9,    1 << 10, 1 << 11,
                                            1 << 12, 1 << 13, 1 << 14, -32767 - 1 };
    const int16_t first = (int16_t)(from->upper[0] | from->upper[1] << 8);
    const int16_t second = (int16_t)(from->upper[2] | from->upper[3] << 8);
    int i;
    to->scale = from->scale;
    for (i = 0; i < HALF_UNIT; i++) { /* A bit that is not there takes 16 away. */
        to->q[i] = (int8_t)((from->lower[i] & 15) - ((first & bit[i]) == 0) * 16);
        to->q[i + HALF_UNIT] = (int8_t)((from->lower[i] >> 4) - ((second & bit[i]) == 0) * 16);
    }
}

static inline void unpack_q4(q8_unit *RESTRICT to, const q4_unit *RESTRICT from)
{
    int i;
    to->scale = from->scale;
    for (i = 0; i < HALF_UNIT; i++) {
        to->q[i] = (int8_t)((from->q[i] & 15) - 8);
        to->q[i + HALF_UNIT] = (int8_t)((from->q[i] >> 4) - 8);
    }
}

static inline void load_q5(float *RESTRICT to, const q5_unit *RESTRICT from)
{
    static const int32_t bit[HALF_UNIT] = { 1,       1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                            1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                            1 << 12, 1 << 13, 1 << 14, 1 << 15 };
    const float d = f16_to_f32(from->scale);
    const int32_t first = from->upper[0] | from->upper[1] << 8;
    const int32_t second = from->upper[2] | from->upper[3] << 8;
    int i;
    for (i = 0; i < HALF_UNIT; i++) { /* A bit that is not there takes 16 away. */
        to[i] = d * (float)((from->lower[i] & 15) - ((first & bit[i]) == 0) * 16);
        to[i + HALF_UNIT] = d * (float)((from->lower[i] >> 4) - ((second & bit[i]) == 0) * 16);
    }
}

static inline void load_q4(float *RESTRICT to, const q4_unit *RESTRICT from)
{
    const float d = f16_to_f32(from->scale);
    int i;
    for (i = 0; i < HALF_UNIT; i++) {
        to[i] = d * (float)((from->q[i] & 15) - 8);
        to[i + HALF_UNIT] = d * (float)((from->q[i] >> 4) - 8);
    }
}

/* The largest magnitude of n numbers, a NaN or infinity if one is not finite. */
KERNEL float size_of_run(const float *x, int64_t n)
{
    int32_t most = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        most = bits > most ? bits : most;
    }
    return float_of((uint32_t)most);
}

static float size_of_unit(const float *x)
{
    return size_of_run(x, UNIT);
}

/* The number of the largest magnitude, the first of equal ones; a NaN if one is not finite. */
static float largest_of_unit(const float *x)
{
    const float size = size_of_unit(x);
    int i = 0;
    if (!is_finite(size))
        return float_of(CANONICAL_NAN);
    while ((bits_of(x[i]) & 0x7fffffffu) != bits_of(size))
        i++;
    return size > 0 ? x[i] : 0.0f;
}

/* 1 / d, and 0 for what gives no finite number, so that every q is one. */
static float inverse_scale(float d)
{
    const float inverse = 1.0f / (d + (float)(d == 0.0f));
    return d == 0.0f || !is_finite(d) || !is_finite(inverse) ? 0.0f : inverse;
}

/* Ties go away from 0. */
static inline float nearest_away(float x)
{
    const float size = float_of(bits_of(x) & 0x7fffffffu), whole = (float)(int32_t)size;
    const float nearest = whole + (float)(size - whole >= 0.5f);
    return float_of(bits_of(nearest) | (bits_of(x) & 0x80000000u));
}

/* Ties go to the even number; below 2^22. */
static inline float nearest_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest whole number. */
    x = x + magic;
    x = x - magic;
    return x;
}

/* round_unit gives the scale of 32 numbers of a query and rounds them to whole numbers from -127 to
 * 127, ties to even. As in store_q8 the scale of a unit that is not finite is a NaN, and numbers
 * are 0 where it has no inverse. */
static float round_unit(float *to, const float *x)
{
    const float size = size_of_unit(x), scale = size / 127.0f, inverse = inverse_scale(scale);
    float rounded[UNIT]; /* `to` may be x */
    int i;
    if (!is_finite(size)) {
        memset(to, 0, UNIT * sizeof *to);
        return float_of(CANONICAL_NAN);
    }
    for (i = 0; i < UNIT; i++) {
        const float y = x[i] * inverse;
        rounded[i] = nearest_even(y);
    }
    memcpy(to, rounded, sizeof rounded);
    return scale;
}

/* store_i8 does so for a row of any length, whose numbers are bytes. */
static float store_i8(int8_t *to, const float *x, int64_t n)
{
    const float size = size_of_run(x, n), scale = size / 127.0f, inverse = inverse_scale(scale);
    int64_t i;
    memset(to, 0, (size_t)n);
    if (!is_finite(size))
        return float_of(CANONICAL_NAN);
    for (i = 0; i < n; i++) {
        const float y = x[i] * inverse;
        to[i] = (int8_t)(int32_t)nearest_even(y);
    }
    return scale;
}

/* store_scaled rounds quotients by given scales, which lie `step` apart, to bytes from -127 to 127, ties to
 * even. A quotient that is a NaN, and one by 0, become 0. */
static void store_scaled(int8_t *to, const float *x, const float *scale, int64_t step, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float by = scale[i * step], y = x[i] / by;
        const float below = y < 127.0f ? y : 127.0f, held = below > -127.0f ? below : -127.0f;
        to[i] = (int8_t)(is_nan(y) || by == 0.0f ? 0 : (int32_t)nearest_even(held));
    }
}

static void store_q8(q8_unit *to, const float *x)
{
    const float size = float_of(bits_of(largest_of_unit(x)) & 0x7fffffffu);
    const float d = size / 127.0f, inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    to->scale = f16_from_f32(d);
    memset(to->q, 0, sizeof to->q);
    if (is_nan(d))
        return;
    for (i = 0; i < UNIT; i++)
        q[i] = (int32_t)nearest_away(x[i] * inverse);
    for (i = 0; i < UNIT; i++)
        to->q[i] = (int8_t)q[i];
}

/* The numbers as q + middle, where the largest magnitude is q = -middle. */
static void shift_unit(int32_t *q, const float *x, float inverse, int middle)
{
    const int32_t most = 2 * middle - 1;
    const float up = (float)middle + 0.5f;
    int i;
    for (i = 0; i < UNIT; i++) {
        const float y = x[i] * inverse;
        const int32_t rounded = (int32_t)(y + up);
        q[i] = rounded < most ? rounded : most;
    }
}

static float shifted_scale(const float *x, int middle)
{
    const float most = largest_of_unit(x);
    return most / (float)-middle;
}

static void store_q5(q5_unit *to, const float *x)
{
    const float d = shifted_scale(x, 16), inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    memset(to, 0, sizeof *to);
    to->scale = f16_from_f32(d);
    if (is_nan(d))
        return;
    shift_unit(q, x, inverse, 16);
    for (i = 0; i < HALF_UNIT; i++)
        to->lower[i] = (uint8_t)((q[i] & 15) | (q[i + HALF_UNIT] & 15) << 4);
    for (i = 0; i < UNIT; i++)
        to->upper[i / 8] |= (uint8_t)(q[i] >> 4 << i % 8);
}

static void store_q4(q4_unit *to, const float *x)
{
    const float d = shifted_scale(x, 8), inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    memset(to, 0, sizeof *to);
    to->scale = f16_from_f32(d);
    if (is_nan(d))
        return;
    shift_unit(q, x, inverse, 8);
    for (i = 0; i < HALF_UNIT; i++)
        to->q[i] = (uint8_t)(q[i] | q[i + HALF_UNIT] << 4);
}

/* src/storage.c - storage types: read as f32 exactly, written from f32 to nearest.
 *
 * A type is a row of one table. A unit is what it stores together: one number, or 32 of them with a
 * scale. Calls read and write runs of numbers by kernels.
 */

#define F16_ONE 0x3c00

static float load_f32(const void *data, int64_t at)
{
    return ((const float *)data)[at];
}

static void store_f32(void *data, int64_t at, float x)
{
    ((float *)data)[at] = is_nan(x) ? float_of(CANONICAL_NAN) : x;
}

static float load_f16(const void *data, int64_t at)
{
    return f16_to_f32(((const uint16_t *)data)[at]);
}

static float load_bf16(const void *data, int64_t at)
{
    return bf16_to_f32(((const uint16_t *)data)[at]);
}

static void read_f16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_f16(to, from, n);
}

static void read_bf16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_bf16(to, from, n);
}

static void read_e4m3(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_e4m3(to, from, n);
}

static void read_e5m2(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_e5m2(to, from, n);
}

static void read_q8_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q8_0(to, from, n);
}

static void read_q5_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q5_0(to, from, n);
}

static void read_q4_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q4_0(to, from, n);
}

static void write_f16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_f16(to, from, n);
}

static void write_bf16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_bf16(to, from, n);
}

static void unpack_q8_0(q8_unit *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)(n / UNIT) * sizeof *to);
}

/* The scale of a unit is 1: those of the caller come before or behind its products. */
static void unpack_i8(q8_unit *to, const void *from, int64_t n)
{
    const int8_t *q = (const int8_t *)from;
    for (; n > 0; n -= UNIT, q += UNIT, to++) {
        to->scale = F16_ONE;
        memcpy(to->q, q, sizeof to->q);
    }
}

static void unpack_q5_0(q8_unit *to, const void *from, int64_t n)
{
    const q5_unit *unit = (const q5_unit *)from;
    for (; n > 0; n -= UNIT)
        unpack_q5(to++, unit++);
}

static void unpack_q4_0(q8_unit *to, const void *from, int64_t n)
{
    const q4_unit *unit = (const q4_unit *)from;
    for (; n > 0; n -= UNIT)
        unpack_q4(to++, unit++);
}

typedef struct storage {
    const char *name;
    int unit;     /* numbers that are stored together, */
    size_t bytes; /* in these bytes */
    /* Nonzero means that the products for few lanes, of K or of V, read rows of it as they lie. */
    int in_products[2];
    /* NULL for what only K and V may have. */
    float (*load)(const void *data, int64_t at);
    void (*write)(const attn_kernels *kernels, void *to, const float *from, int64_t n);
    /* NULL for f32, whose runs are copied, as they are in writing, and for i8, which has scales. */
    void (*read)(const attn_kernels *kernels, float *to, const void *from, int64_t n);
    /* NULL where there are no whole numbers. */
    void (*unpack)(q8_unit *to, const void *from, int64_t n);
} storage;

/* The table is in the order of attn_dtype. */
static const storage storages[] = {
    { "f32", 1, 4, { 1, 1 }, load_f32, NULL, NULL, NULL },
    { "f16", 1, 2, { 1, 1 }, load_f16, write_f16, read_f16, NULL },
    { "bf16", 1, 2, { 1, 1 }, load_bf16, write_bf16, read_bf16, NULL },
    { "e4m3", 1, 1, { 1, 1 }, NULL, NULL, read_e4m3, NULL },
    { "e5m2", 1, 1, { 1, 1 }, NULL, NULL, read_e5m2, NULL },
    { "q8_0", UNIT, sizeof(q8_unit), { 1, 1 }, NULL, NULL, read_q8_0, unpack_q8_0 },
    { "q5_0", UNIT, sizeof(q5_unit), { 1, 1 }, NULL, NULL, read_q5_0, unpack_q5_0 },
    { "q4_0", UNIT, sizeof(q4_unit), { 1, 1 }, NULL, NULL, read_q4_0, unpack_q4_0 },
    { "i8", 1, 1, { 0, 0 }, NULL, NULL, NULL, unpack_i8 },
};

#define LAST_DTYPE (COUNT_OF(storages) - 1)
#define LAST_PLAIN ATTN_BF16
#define PLAIN_DTYPES "0 is f32, 1 is f16, 2 is bf16"
#define DTYPES PLAIN_DTYPES ", 3 is e4m3, 4 is e5m2, 5 is q8_0, 6 is q5_0, 7 is q4_0, 8 is i8"

/* has_scales tells whether numbers of a type mean nothing without the caller's scales. */
static inline int has_scales(int dtype)
{
    return dtype == ATTN_I8;
}

/* bytes_of gives the bytes of a unit, which is a number of plain types. */
static inline size_t bytes_of(int dtype)
{
    return storages[dtype].bytes;
}

/* bytes_between gives the bytes between numbers that are n apart, and room_of those of n numbers; n is
 * whole units. */
static inline ptrdiff_t bytes_between(int dtype, int64_t n)
{
    return (ptrdiff_t)(n / storages[dtype].unit) * (ptrdiff_t)bytes_of(dtype);
}

static inline int64_t room_of(int dtype, int64_t n)
{
    return times(n / storages[dtype].unit, (int64_t)bytes_of(dtype));
}

/* load_run loads n numbers from data[at..] as f32, whole units. */
static inline void load_run(const attn_kernels *kernels, int dtype, float *to, const void *data,
                            int64_t at, int64_t n)
{
    const char *from = (const char *)data + bytes_between(dtype, at);
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        storages[dtype].read(kernels, to, from, n);
}

/* run_as_f32 gives n numbers from data[at..] as f32: where they lie, or widened into `space`. */
static inline const float *run_as_f32(const attn_kernels *kernels, int dtype, const void *data,
                                      int64_t at, int64_t n, float *space)
{
    if (dtype == ATTN_F32)
        return (const float *)data + at;
    load_run(kernels, dtype, space, data, at, n);
    return space;
}

/* store_run stores n results of a plain type to data[at..]; their NaN is canonical already, and they
 * hold no -0. */
static inline void store_run(const attn_kernels *kernels, int dtype, void *data, int64_t at,
                             const float *from, int64_t n)
{
    char *to = (char *)data + at * (int64_t)bytes_of(dtype);
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else
        storages[dtype].write(kernels, to, from, n);
}

/* src/fields.c - the table of fields: what each field of a call is, in one row.
 *
 * A row says where a field lies in attn_params, what it holds, over which axes an array runs, and
 * who takes it. Those axes, from the last to the first, are what packed means. Ranges, default
 * strides, extents, refusals, the hash that ranks compare, and the arrays that a level or a device
 * hands on are loops over the rows: a field that somebody forgets is refused, never ignored.
 */

enum field_type {
    F_INT, /* values */
    F_INT64,
    F_UINT64,
    F_FLOAT,
    F_POINTER,
    F_NOT_PLAIN, /* an attn_dtype, counted as set if only K and V may have it */
    F_STORED,    /* arrays from here on: of the attn_dtype that a member tells, */
    F_F32,       /* or of these elements */
    F_I32,
    F_I64,
    F_F64,
    F_U8,
    F_BITS
};

/* What the axes of arrays count. */
enum field_axis {
    AXIS_NONE,
    AXIS_BATCH,
    AXIS_SEQUENCE, /* the batch, for lengths, positions and masks of sequences */
    AXIS_ENTRY,    /* of k and v: batch entries, or pages */
    AXIS_HEAD,
    AXIS_HEAD_KV,
    AXIS_ROW, /* that are held: p.part */
    AXIS_KEY,
    AXIS_DIM,
    AXIS_DIM_V,
    AXIS_SEQ_Q, /* of the whole call */
    AXIS_SEQ_KV,
    AXIS_LONGEST_Q, /* of any sequence */
    AXIS_LONGEST_KV,
    AXIS_CELL_ROW,
    AXIS_CELL_COLUMN,
    AXIS_CELL_OFFSET,
    AXIS_CELL_LISTED, /* known where the mask has been read: axes_in_use */
    AXIS_LIST,        /* lists of keys of a head, */
    AXIS_LISTED_KEY,  /* and the entries of one */
    AXIS_PAGE,
    AXIS_RECENT,     /* entries of p.recent, */
    AXIS_RECENT_ROW, /* and the rows of one */
    AXIS_CHOSEN,     /* rows of logits */
    AXIS_STATS,      /* m and l of a row */
    AXIS_TOP,        /* the likeliest keys of a row */
    AXIS_MASS,       /* blocks of keys that insight.mass has */
    AXIS_COUNT
};

/* Which outputs a call writes: a result, or the raw states of p.partial. */
enum { OUTPUT_RESULT = 1, OUTPUT_STATE = 2 };

/* Who takes a field; what devices do with it is in src/opencl/fields.c. */
enum taker {
    BY_NOBODY = 0,
    BY_PART = 1,      /* calls of some rows or some keys */
    BY_GRADIENTS = 2, /* attn_backward */
    BY_RESUMABLE = 4, /* attn_resume_begin */
    BY_DILATED = 8,   /* attn_dilated_forward */
    BY_RING = 16,     /* attn_ring_forward */
    BY_FINISH = 32,   /* attn_state_finish */
    BY_INDEX = 64,    /* attn_index */
    BY_DECODE = 128,  /* attn_ring_decode_forward */
    BY_ALL = 255,
    BY_RANKS = 256,    /* every rank of a ring must have the value, */
    BY_RANKS_SET = 512 /* or must have set it or not */
};

typedef struct call_field {
    const char *name;
    uint16_t offset; /* of the value, or of the pointer to an array */
    uint16_t type, takers;
    uint16_t output; /* nonzero: written by the calls that its bits tell, OUTPUT_RESULT, ... */
    uint16_t dtype;  /* F_STORED: offset of the attn_dtype */
    uint16_t axis[4];
    uint16_t stride[4];  /* offsets of ptrdiff_t; 0 = there is none, and the axis is packed */
    int64_t least, most; /* of a number, or of an entry of a sequence; any where most < least */
    const char *instead; /* what helps where the field or its value is refused; NULL = nothing */
} call_field;

#define AT(member) offsetof(attn_params, member)
#define VALUE(member, kind, by, ...)                                                               \
    .name = NAME(#member), .offset = AT(member), .type = kind, .takers = by, RANGE(__VA_ARGS__)
#define RANGE(from, to) .least = from, .most = to
#define ANY 1, 0
#define DTYPE(member, by) VALUE(member, F_INT, by, 0, LAST_PLAIN), .instead = PLAIN_DTYPES
/* K and V may have any type, where all types are taken. */
#define ANY_DTYPE(member, by) VALUE(member, F_INT, by, 0, LAST_DTYPE), .instead = DTYPES
#define NOT_PLAIN(member, by) VALUE(member, F_NOT_PLAIN, by, ANY), .instead = PLAIN_DTYPES
#define LAYOUT VALUE(layout, F_INT, BY_ALL, 0, ATTN_LAYOUT_BSHD), .instead = "0 is BHSD, 1 is BSHD"
#define TENSOR(member, entry, heads, rows, columns, by)                                            \
    .name = NAME(#member), .offset = AT(member.data), .type = F_STORED, .dtype = AT(member.dtype), \
    .takers = by, .axis = { entry, heads, rows, columns },                                         \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_seq) }
#define PAIRS(member, kind, by)                                                                    \
    .name = NAME(#member), .offset = AT(member.data), .type = kind, .takers = by,                  \
    .axis = { AXIS_BATCH, AXIS_HEAD, AXIS_LONGEST_Q, AXIS_LONGEST_KV },                            \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_q),              \
                AT(member.stride_kv) }
#define SCALES(member, columns, by)                                                                \
    .name = NAME(#member), .offset = AT(member.data), .type = F_F32, .takers = by,                 \
    .axis = { AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, columns },                                       \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_seq),            \
                AT(member.stride_dim) }
#define GRID(member, kind, by, outer, heads, rows, columns)                                        \
    .name = NAME(#member), .offset = AT(member), .type = kind, .takers = by,                       \
    .axis = { outer, heads, rows, columns }
#define LIST(member, kind, by, outer, inner)                                                       \
    GRID(member, kind, by, outer, AXIS_NONE, AXIS_NONE, inner)
#define PER_SEQUENCE(member, kind, by, ...)                                                        \
    LIST(member, kind, by, AXIS_NONE, AXIS_SEQUENCE), RANGE(__VA_ARGS__)

/* This limit does not come from memory, and is equal on every machine. */
#define MOST_KEY_BASE ((int64_t)1 << 58)

enum {
    BY_ANY_RING = BY_RING | BY_DECODE,
    RECENT_KEYS = BY_FINISH | BY_INDEX, /* or attn_forward alone */
    /* Whoever reads keys where a cache has them. */
    IN_CACHE = BY_ALL & ~(BY_RESUMABLE | BY_DILATED | BY_RING),
    NO_VARLEN = BY_ALL & ~(BY_PART | BY_RESUMABLE | BY_ANY_RING),
    NO_INDEX = BY_ALL & ~BY_INDEX, /* what scores of keys have no use for */
    /* Outputs that only a call with all keys can give. */
    WHOLE_ROWS = BY_PART | BY_GRADIENTS, /* Gradients do not look at it. */
    ONE_CALL = NO_INDEX & ~(BY_PART | BY_RESUMABLE | BY_DILATED | BY_ANY_RING | BY_FINISH),
    NO_GRADIENTS = BY_ALL & ~BY_GRADIENTS,
    NO_DILATED = BY_ALL & ~BY_DILATED
};

#define A_CACHE "it describes a cache, whose keys attn_cache_read copies into one array"

/* The likeliest keys of a row that a call can give. */
enum { MOST_TOP = 64 };

static const call_field call_fields[] = {
    /* ---- sizes */
    { VALUE(batch, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(num_heads_q, F_INT64, BY_ALL | BY_RANKS, 1, MOST) },
    { VALUE(num_heads_kv, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(seq_len_q, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(seq_len_kv, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(head_dim, F_INT64, BY_ALL | BY_RANKS, 1, MOST) },
    { VALUE(head_dim_v, F_INT64, NO_INDEX | BY_RANKS, 0, MOST) },
    { VALUE(scale, F_FLOAT, BY_ALL | BY_RANKS, ANY) },
    { VALUE(integer, F_INT, NO_GRADIENTS | BY_RANKS, ANY) },
    { VALUE(fast, F_INT, BY_PART | BY_FINISH, ANY),
      .instead = "its bits are of attn_forward alone" },
    { VALUE(rotated, F_INT, NO_GRADIENTS | BY_RANKS, 0, ATTN_ROTATED_K + ATTN_ROTATED_V),
      .instead = "1 is K, 2 is V, 3 is both" },
    { VALUE(k_centered, F_INT, (NO_GRADIENTS & NO_INDEX) | BY_RANKS, ANY) },

    /* ---- tensors */
    { LAYOUT },
    { DTYPE(q.dtype, BY_ALL) },
    { ANY_DTYPE(k.dtype, BY_ALL | BY_RANKS) },
    { NOT_PLAIN(k.dtype, NO_GRADIENTS) },
    { ANY_DTYPE(v.dtype, NO_INDEX | BY_RANKS) },
    { NOT_PLAIN(v.dtype, NO_GRADIENTS) },
    { DTYPE(o.dtype, BY_ALL) },
    { VALUE(lse.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { VALUE(stats.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { TENSOR(q, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL) },
    { TENSOR(k, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL) },
    { TENSOR(v, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, NO_INDEX) },
    { SCALES(k_scales, AXIS_DIM, BY_PART | BY_FINISH | BY_INDEX | BY_DECODE) },
    { SCALES(v_scales, AXIS_DIM_V, BY_PART | BY_FINISH | BY_DECODE) },
    { TENSOR(o, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V, NO_INDEX), .output = OUTPUT_RESULT },
    { TENSOR(lse, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE, NO_INDEX), .output = OUTPUT_RESULT },
    { TENSOR(stats, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_STATS, NO_INDEX), .output = OUTPUT_RESULT,
      .instead = "a row takes 2 floats, m and l" },

    /* ---- lengths */
    { PER_SEQUENCE(q_len, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(kv_len, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(kv_begin, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(cu_seqlens_q, F_I32, NO_VARLEN, ANY),
      .instead = "tell documents of one sequence apart by q_segments and kv_segments" },
    { PER_SEQUENCE(cu_seqlens_kv, F_I32, NO_VARLEN, ANY) },
    { PER_SEQUENCE(key_base, F_I64, NO_DILATED | BY_RANKS, 0, MOST_KEY_BASE) },
    { VALUE(kv_rows.ring, F_INT64, IN_CACHE, 0, MOST), .instead = A_CACHE },
    { LIST(kv_rows.begin, F_I32, IN_CACHE, AXIS_NONE, AXIS_BATCH) },
    { VALUE(kv_rows.page_size, F_INT64, IN_CACHE, 0, MOST), .instead = A_CACHE },
    { VALUE(kv_rows.num_pages, F_INT64, IN_CACHE, 0, MOST) },
    { LIST(kv_rows.table, F_I32, IN_CACHE, AXIS_BATCH, AXIS_PAGE),
      .stride = { AT(kv_rows.table_stride) } },
    { VALUE(shared_keys, F_INT64, NO_DILATED, 0, MOST) },
    { VALUE(recent.keys, F_INT64, RECENT_KEYS & ~BY_INDEX, 0, MOST), .instead = A_CACHE },
    { VALUE(recent.ring, F_INT64, RECENT_KEYS, 0, MOST) },
    { PER_SEQUENCE(recent.begin, F_I64, RECENT_KEYS, 0, MOST_KEY_BASE) },
    { LIST(recent.entries, F_I32, RECENT_KEYS, AXIS_NONE, AXIS_BATCH) },
    { VALUE(recent.num_entries, F_INT64, RECENT_KEYS, 0, MOST) },
    { DTYPE(recent.k.dtype, RECENT_KEYS) },
    { DTYPE(recent.v.dtype, RECENT_KEYS) },
    { TENSOR(recent.k, AXIS_RECENT, AXIS_HEAD_KV, AXIS_RECENT_ROW, AXIS_DIM, RECENT_KEYS) },
    { TENSOR(recent.v, AXIS_RECENT, AXIS_HEAD_KV, AXIS_RECENT_ROW, AXIS_DIM_V, RECENT_KEYS) },

    /* ---- position of the queries */
    { VALUE(alignment, F_INT, NO_DILATED | BY_RANKS, 0, ATTN_ALIGN_OFFSET) },
    { PER_SEQUENCE(q_offset, F_I32, NO_DILATED | BY_RANKS, ANY) },

    /* ---- masks */
    { VALUE(causal, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(prefix, F_I32, BY_ALL | BY_RANKS, 0, INT32_MAX) },
    { VALUE(window, F_INT, BY_ALL | BY_RANKS, 0, ATTN_WINDOW),
      .instead = "it switches window_left and window_right on, which count keys" },
    { VALUE(window_left, F_INT64, BY_ALL | BY_RANKS, ANY) },
    { VALUE(window_right, F_INT64, BY_ALL | BY_RANKS, ANY) },
    { VALUE(chunk_size, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { LIST(q_segments, F_I32, BY_ALL | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_Q),
      .stride = { AT(q_segments_stride) } },
    { LIST(kv_segments, F_I32, BY_ALL | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_KV),
      .stride = { AT(kv_segments_stride) } },
    { LIST(tree_parents, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_Q),
      .stride = { AT(tree_stride) } },
    { VALUE(bool_mask.invert, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PAIRS(bool_mask, F_U8, BY_ALL | BY_RANKS_SET) },
    { VALUE(bit_mask.invert, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PAIRS(bit_mask, F_BITS, BY_ALL | BY_RANKS_SET) },
    { VALUE(block_mask.block_q, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { VALUE(block_mask.block_k, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { GRID(block_mask.bitmap, F_BITS, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD,
           AXIS_CELL_ROW, AXIS_CELL_COLUMN),
      .stride = { AT(block_mask.stride_batch), AT(block_mask.stride_head),
                  AT(block_mask.stride_row) } },
    { GRID(block_mask.row_offsets, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD,
           AXIS_NONE, AXIS_CELL_OFFSET),
      .stride = { AT(block_mask.csr_stride_batch), AT(block_mask.csr_stride_head) } },
    { LIST(block_mask.columns, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_NONE, AXIS_CELL_LISTED) },
    { VALUE(key_list.width, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { VALUE(key_list.rows, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { GRID(key_list.data, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD_KV, AXIS_LIST,
           AXIS_LISTED_KEY),
      .stride = { AT(key_list.stride_batch), AT(key_list.stride_head), AT(key_list.stride_seq) } },
    { VALUE(mask, F_POINTER, BY_ALL | BY_RANKS_SET, ANY) },
    { VALUE(mask_tile, F_POINTER, BY_ALL | BY_RANKS_SET, ANY) },

    /* ---- what changes a logit */
    { VALUE(softcap, F_FLOAT, NO_INDEX | BY_RANKS, ANY) },
    { DTYPE(bias.dtype, BY_ALL) },
    { PAIRS(bias, F_STORED, NO_INDEX | BY_RANKS_SET), .dtype = AT(bias.dtype) },
    { LIST(alibi_slopes, F_F32, NO_INDEX | BY_RANKS, AXIS_BATCH, AXIS_HEAD),
      .stride = { AT(alibi_stride) } },
    { VALUE(score, F_POINTER, NO_INDEX | BY_RANKS_SET, ANY) },
    { VALUE(callback_user, F_POINTER, BY_ALL, ANY) },

    /* ---- softmax */
    { LIST(sinks, F_F32, NO_INDEX | BY_RANKS, AXIS_NONE, AXIS_HEAD) },
    { VALUE(softmax1, F_INT, NO_INDEX | BY_RANKS, ANY) },
    { VALUE(dropout_p, F_FLOAT, NO_INDEX | BY_RANKS, ANY) },
    { VALUE(dropout_seed, F_UINT64, BY_ALL | BY_RANKS, ANY) },

    /* ---- further outputs */
    { VALUE(partial, F_INT, (ONE_CALL & ~BY_GRADIENTS) | BY_PART | BY_FINISH, ANY),
      .instead = "it works with finished rows" },
    { GRID(state.m, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_STATE },
    { GRID(state.l, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_STATE },
    { GRID(state.o, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V),
      .output = OUTPUT_STATE },
    { VALUE(logits.stage, F_INT, BY_ALL, 0, ATTN_LOGITS_SOFTMAX),
      .instead = "0 is raw, 1 is softcap, 2 is bias, 3 is softmax" },
    { VALUE(logits.num_rows, F_INT64, BY_ALL, 0, MOST) },
    { LIST(logits.rows, F_I32, BY_ALL, AXIS_NONE, AXIS_CHOSEN) },
    { GRID(logits.data, F_F32, ONE_CALL | BY_PART | BY_RING, AXIS_BATCH, AXIS_HEAD, AXIS_CHOSEN,
           AXIS_SEQ_KV),
      .output = OUTPUT_RESULT | OUTPUT_STATE, .instead = "ask for logits in a call with all keys" },
    { GRID(insight.entropy, F_F32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_RESULT, .instead = "attn_forward keeps it beside the sums of whole rows" },
    { VALUE(insight.top, F_INT, WHOLE_ROWS, 0, MOST_TOP) },
    { GRID(insight.top_key, F_I32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_TOP),
      .output = OUTPUT_RESULT },
    { GRID(insight.top_prob, F_F32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_TOP),
      .output = OUTPUT_RESULT },
    { GRID(insight.mass, F_F64, BY_GRADIENTS, AXIS_BATCH, AXIS_HEAD_KV, AXIS_NONE, AXIS_MASS),
      .output = OUTPUT_RESULT, .instead = "ask for it in a call with all keys" },
    { VALUE(insight.mass_keys, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(insight.mass_rows, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(skip.below, F_FLOAT, BY_NOBODY, ANY),
      .instead = "attn_forward with all keys takes it" },
    { GRID(skip.dropped, F_F32, BY_NOBODY, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_RESULT },

    /* ---- how to compute */
    { VALUE(impl, F_INT, NO_INDEX, 0, ATTN_IMPL_AUTO),
      .instead = "0 is default, 1 is tiled, 2 is naive, 3 is auto" },
    { VALUE(auto_naive_keys, F_INT64, BY_ALL, 0, INT64_MAX) },
    { VALUE(naive_whole, F_INT, BY_ALL, ANY) },
    { VALUE(tile_keys, F_INT, BY_ALL, ANY) },
    { VALUE(tuning, F_POINTER, BY_ALL, ANY) },
    { VALUE(force_redo, F_INT, BY_ALL, ANY) },
    { VALUE(kernels, F_POINTER, BY_ALL, ANY) },
    { VALUE(backend, F_POINTER, NO_INDEX & ~BY_DILATED, ANY) },
    { VALUE(num_workers, F_INT, BY_ALL, 0, 65536) },
    { VALUE(parallel_for, F_POINTER, BY_ALL, ANY) },
    { VALUE(parallel_user, F_POINTER, BY_ALL, ANY) },
    { VALUE(log, F_POINTER, BY_ALL, ANY) },
    { VALUE(log_user, F_POINTER, BY_ALL, ANY) },
    { VALUE(part.rows, F_INT, NO_INDEX & ~(BY_DILATED | BY_ANY_RING), ANY) },
    { VALUE(part.keys, F_INT, NO_INDEX & ~(BY_RESUMABLE | BY_DILATED | BY_ANY_RING), ANY) },
    { VALUE(part.continued, F_INT, BY_ALL & ~BY_ANY_RING, ANY) },
    { VALUE(part.row_begin, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.row_count, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_begin, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_count, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_row, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(view, F_POINTER, BY_GRADIENTS | BY_PART, ANY) },
};
#undef AT

#define IS_ARRAY(f) ((f)->type >= F_STORED)

/* ---- values */

/* A number of a field, 0 or 1 for a pointer. */
static int64_t field_number(const call_field *f, const void *base)
{
    const char *at = (const char *)base + f->offset;
    float as_float;
    void *pointer;
    int64_t number;
    switch (f->type) {
    case F_INT:
        return number_at(at, sizeof(int));
    case F_FLOAT:
        memcpy(&as_float, at, sizeof as_float);
        return as_float == 0.0f ? 0 : (int64_t)bits_of(as_float);
    case F_INT64:
    case F_UINT64:
        return number_at(at, sizeof(int64_t));
    case F_NOT_PLAIN:
        number = number_at(at, sizeof(int));
        return number > LAST_PLAIN && number <= LAST_DTYPE ? number : 0;
    default:
        memcpy(&pointer, at, sizeof pointer);
        return pointer != NULL;
    }
}

static attn_status check_values(const call_field *table, int n, const void *base, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < n && !status; i++) {
        const call_field *f = &table[i];
        if (f->least <= f->most && !IS_ARRAY(f))
            status = check_range(why, f->name, f->least, f->most, field_number(f, base));
        if (status && f->instead && f->type == F_INT) { /* It names the choices. */
            put(why, ": ");
            put(why, f->instead);
        }
    }
    return status;
}

/* "name (value) is set, but who does not take it: instead" */
static attn_status refuse_field(const call_field *f, int64_t value, const char *who, text *why)
{
    put(why, f->name);
    if (f->type == F_INT || f->type == F_INT64 || f->type == F_NOT_PLAIN)
        put_numbers(why, " (#)", &value);
    put(why, " is set, but ");
    put(why, who);
    put(why, f->instead ? " does not take it: " : " does not take it");
    return bad(why, ATTN_ERR_UNSUPPORTED, f->instead ? f->instead : "");
}

/* refuse_fields refuses, by its name, the first field that is set and that `taker` does not
 * take. */
static attn_status refuse_fields(const attn_params *p, unsigned taker, const char *who, text *why)
{
    int i;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const call_field *f = &call_fields[i];
        const int64_t value = f->takers & taker ? 0 : field_number(f, p);
        if (value)
            return refuse_field(f, value, who, why);
    }
    return ATTN_OK;
}

/* A member is a field of attn_params, whose bytes tell whether it is set. */
typedef struct member {
    uint16_t offset, size;
} member;

#define MEMBER(name)                                                                               \
    {                                                                                              \
        offsetof(attn_params, name), sizeof(((attn_params *)NULL)->name)                           \
    }

/* is_set looks at words, since a member may be a struct. */
static int is_set(const attn_params *p, member m)
{
    const char *at = (const char *)p + m.offset, *end = at + m.size;
    uint32_t word = 0;
    for (; at < end && !word; at += sizeof word)
        memcpy(&word, at, sizeof word);
    return word != 0;
}

/* ---- arrays */

/* The axes of a call; packed sequences have no batch stride. */
typedef struct call_axes {
    int64_t count[AXIS_COUNT];
    int packed_q, packed_kv;
    int layout; /* attn_layout */
} call_axes;

static const void *field_data(const call_field *f, const void *base)
{
    const void *data;
    memcpy(&data, (const char *)base + f->offset, sizeof data);
    return data;
}

/* unit_of_field tells how many elements of an array are stored together, and element_bytes their
 * bytes. */
static int64_t unit_of_field(const call_field *f, const void *base)
{
    if (f->type == F_STORED)
        return storages[number_at((const char *)base + f->dtype, sizeof(int))].unit;
    return f->type == F_BITS ? 8 : 1;
}

static int64_t element_bytes(const call_field *f, const void *base)
{
    static const unsigned char bytes[] = { 4, 4, 8, 8, 1, 1 }; /* from F_F32 on; 1 bit for F_BITS */
    if (f->type != F_STORED)
        return bytes[f->type - F_F32];
    return (int64_t)bytes_of((int)number_at((const char *)base + f->dtype, sizeof(int)));
}

static ptrdiff_t stride_given(const call_field *f, const void *base, int axis)
{
    ptrdiff_t stride = 0;
    if (f->stride[axis])
        memcpy(&stride, (const char *)base + f->stride[axis], sizeof stride);
    return stride;
}

static int is_tensor(const call_field *f)
{
    return f->type == F_STORED &&
           (f->axis[2] == AXIS_ROW || f->axis[2] == AXIS_KEY || f->axis[2] == AXIS_RECENT_ROW);
}

static int is_per_sequence(const call_field *f)
{
    return f->axis[3] == AXIS_SEQUENCE;
}

static int is_packed(const call_field *f, const call_axes *x)
{
    return (x->packed_q && f->axis[2] == AXIS_ROW) || (x->packed_kv && f->axis[2] == AXIS_KEY);
}

/* The layout and packed sequences keep the heads of a token together in what has columns of a head.
 * What describes rows keeps the rows of a head together. */
static int keeps_tokens(const call_field *f, const call_axes *x)
{
    return (is_packed(f, x) || x->layout == ATTN_LAYOUT_BSHD) && is_tensor(f) &&
           (f->axis[3] == AXIS_DIM || f->axis[3] == AXIS_DIM_V);
}

/* settle_strides makes strides along which nothing moves 0, so that no product with them
 * overflows. */
static void settle_strides(int axes, const int64_t *count, ptrdiff_t *stride)
{
    int axis, empty = 0;
    for (axis = 0; axis < axes; axis++)
        empty |= count[axis] == 0;
    for (axis = 0; axis < axes; axis++)
        if (count[axis] == 1 || (empty && (stride[axis] > MOST || stride[axis] < -MOST)))
            stride[axis] = 0;
}

/* The strides of an array, with 0 and "broadcast" replaced by what they mean: only axes that
 * are shared or of length 1 have a stride of 0. */
static void resolve_strides_of(const call_field *f, const void *base, const call_axes *x,
                               ptrdiff_t stride[4])
{
    static const char orders[2][4] = { { 3, 2, 1, 0 }, { 3, 1, 2, 0 } };
    int64_t elements = 1, count[4];
    int i;
    for (i = 0; i < 4; i++) {
        const int axis = orders[keeps_tokens(f, x)][i];
        const ptrdiff_t given = stride_given(f, base, axis);
        count[axis] = x->count[f->axis[axis]];
        stride[axis] = stride_or(given, elements);
        if (given != ATTN_STRIDE_BROADCAST) /* A shared axis takes no room. */
            elements = times(elements, max64(count[axis], 1));
    }
    if (is_packed(f, x))
        stride[0] = 0;
    settle_strides(4, count, stride);
}

/* check_aligned wants an array to lie where the machine can read its elements. */
static attn_status check_aligned(const char *name, const void *data, int64_t bytes_each, text *why)
{
    const int64_t alignment = alignment_of(bytes_each);
    if (is_aligned(data, bytes_each))
        return ATTN_OK;
    put(why, name);
    return bad_numbers(why, ATTN_ERR_ARG,
                       ": its address must be a multiple of #, the alignment of its elements",
                       &alignment);
}

static attn_status check_array(const call_field *f, const void *base, const call_axes *x,
                               const ptrdiff_t stride[4], text *why)
{
    const int64_t count[4] = { x->count[f->axis[0]], x->count[f->axis[1]], x->count[f->axis[2]],
                               x->count[f->axis[3]] };
    const int64_t elements = extent(count, stride), each = element_bytes(f, base);
    const int64_t units = elements < TOO_BIG ? ceil_div(elements, unit_of_field(f, base)) : TOO_BIG;
    const attn_status status = check_bytes(f->name, times(units, each), count, why);
    return status ? status : check_aligned(f->name, field_data(f, base), each, why);
}

/* check_whole wants a number of elements of K or V to be whole units of its type. */
COLD static attn_status check_whole(const char *name, const char *part, int64_t value,
                                    const char *of, int dtype, text *why)
{
    const storage *type = &storages[dtype];
    if (value % type->unit == 0)
        return ATTN_OK;
    put(why, name);
    put_field(why, part, value);
    put_numbers(why, " must be a multiple of #: ", NUMBERS(type->unit));
    put(why, of);
    put(why, ".dtype is ");
    return bad(why, ATTN_ERR_ARG, type->name);
}

/* check_whole_units looks at a row of K or V, and at its strides, which are resolved. */
COLD static attn_status check_whole_units(const char *name, const attn_tensor *x,
                                          const char *dim_name, int64_t dim, text *why)
{
    const ptrdiff_t strides[3] = { x->stride_batch, x->stride_head, x->stride_seq };
    attn_status status = check_whole("", dim_name, dim, name, x->dtype, why);
    int axis;
    for (axis = 0; axis < 3 && !status; axis++)
        status = check_whole(name, stride_names[axis], strides[axis], name, x->dtype, why);
    return status;
}

/* check_scales_given wants scales for numbers that have some, and for no others. */
COLD static attn_status check_scales_given(const char *name, int dtype, const attn_scales *x,
                                           text *why)
{
    const int given = x->data != NULL;
    if (has_scales(dtype) == given)
        return ATTN_OK;
    put(why, name);
    put_field(why, ".dtype", dtype);
    put(why, given ? " must be 8 for i8 when " : " is i8, but ");
    put(why, name);
    return bad(why, ATTN_ERR_ARG, given ? "_scales is given" : "_scales.data is NULL");
}

/* Outputs are not broadcast. */
static attn_status check_output_fields(const call_field *table, int n, const void *base, text *why)
{
    const call_field *f;
    attn_status status = ATTN_OK;
    int axis;
    for (f = table; f < table + n; f++)
        for (axis = 0; f->output && axis < 3 && !status; axis++)
            status =
                check_output_stride(f->name, stride_names[axis], stride_given(f, base, axis), why);
    return status;
}

/* Entries of sequences lie in the range of their row. */
static attn_status check_entries(const call_field *f, const void *base, int64_t count, text *why)
{
    const size_t bytes = f->type == F_I64 ? sizeof(int64_t) : sizeof(int32_t);
    const char *data = field_data(f, base);
    int64_t b;
    for (b = 0; b < count; b++) {
        const int64_t value = number_at(data + b * (ptrdiff_t)bytes, bytes);
        if (value < f->least || value > f->most)
            return bad_limit(why, f->name, b, value, f->most);
    }
    return ATTN_OK;
}

/* is_there tells whether a row is an array of this call; tensors are, also in size queries. */
static int is_there(const call_field *f, const void *base)
{
    return IS_ARRAY(f) && (is_tensor(f) || field_data(f, base));
}

/* resolve_arrays gives tensors, and other arrays that are given, their strides, and checks that
 * they fit into memory. */
static attn_status resolve_arrays(const call_field *table, int n, void *base, const call_axes *x,
                                  text *why)
{
    attn_status status = ATTN_OK;
    int i, axis;
    for (i = 0; i < n && !status; i++) {
        const call_field *f = &table[i];
        ptrdiff_t stride[4];
        if (!is_there(f, base))
            continue;
        resolve_strides_of(f, base, x, stride);
        for (axis = 0; axis < 4; axis++)
            if (f->stride[axis])
                memcpy((char *)base + f->stride[axis], &stride[axis], sizeof *stride);
        status = check_array(f, base, x, stride, why);
        if (!status && is_per_sequence(f) && f->least <= f->most)
            status = check_entries(f, base, x->count[AXIS_SEQUENCE], why);
    }
    return status;
}

/* name_shared writes ATTN_STRIDE_BROADCAST for the strides that resolve_arrays made 0, so that a
 * level can hand the fields on to a call, to which 0 means packed. */
static void name_shared(const call_field *table, int n, void *base)
{
    const ptrdiff_t shared = ATTN_STRIDE_BROADCAST;
    int i, axis;
    for (i = 0; i < n; i++)
        for (axis = 0; axis < 4 && is_there(&table[i], base) && !table[i].output; axis++)
            if (table[i].stride[axis] && !stride_given(&table[i], base, axis))
                memcpy((char *)base + table[i].stride[axis], &shared, sizeof shared);
}

/* has_batch_arrays tells whether sequences differ in length, in position or in what they
 * see. */
static int has_batch_arrays(const attn_params *p)
{
    int i = 0;
    while (i < COUNT_OF(call_fields) &&
           !(is_per_sequence(&call_fields[i]) && field_data(&call_fields[i], p)))
        i++;
    return i < COUNT_OF(call_fields);
}

/* kinds_of counts the sequences that stand for all: the whole batch if they differ, else the first. */
static int64_t kinds_of(const attn_params *p)
{
    return has_batch_arrays(p) ? p->batch : min64(p->batch, 1);
}

/* ---- the axes of a call */

/* Rows of a batch entry of q, or keys of one of k, that the arrays hold (p.part). */
static inline int64_t rows_held(const attn_params *p)
{
    return p->part.rows ? p->part.row_count : p->seq_len_q;
}

static inline int64_t keys_held(const attn_params *p)
{
    return p->part.keys ? p->part.key_count : p->seq_len_kv;
}

/* Rows of a batch entry of k and v, or of a page. */
static int64_t rows_of_entry(const attn_params *p)
{
    const attn_rows *rows = &p->kv_rows;
    return rows->page_size ? rows->page_size : rows->ring ? rows->ring : keys_held(p);
}

/* Entries of a sequence's page table. */
static int64_t table_entries(const attn_params *p)
{
    const int64_t held = plus(p->part.key_row, keys_held(p));
    const int64_t rows = p->kv_rows.ring ? p->kv_rows.ring : held;
    return rows ? (rows - 1) / p->kv_rows.page_size + 1 : 0;
}

/* longest counts the rows or keys of the longest sequence that may come. */
static int64_t longest(const int32_t *cu_seqlens, int64_t batch, int64_t seq_len)
{
    int64_t b, most = cu_seqlens ? 0 : seq_len;
    for (b = 0; cu_seqlens && b < batch; b++)
        most = max64(most, (int64_t)cu_seqlens[b + 1] - cu_seqlens[b]);
    return most;
}

/* rows_of_list counts the query rows that share a list of keys. */
static inline int64_t rows_of_list(const attn_params *p)
{
    return max64(p->key_list.rows, 1);
}

/* mass_blocks counts the blocks of keys that insight.mass has for each kv head. */
static int64_t mass_blocks(const attn_params *p)
{
    return p->insight.mass_keys ? ceil_div(p->seq_len_kv, p->insight.mass_keys) : 0;
}

static call_axes axes_of_call(const attn_params *p)
{
    const attn_rows *rows = &p->kv_rows;
    const attn_block_mask *cells = &p->block_mask;
    const int64_t longest_q = longest(p->cu_seqlens_q, p->batch, p->seq_len_q);
    const int64_t longest_kv = longest(p->cu_seqlens_kv, p->batch, p->seq_len_kv);
    const int64_t cell_rows = cells->block_q ? ceil_div(longest_q, cells->block_q) : 0;
    const call_axes x = {
        .layout = p->layout,
        .packed_q = p->cu_seqlens_q != NULL,
        .packed_kv = p->cu_seqlens_kv != NULL,
        .count = {
            [AXIS_NONE] = 1,
            [AXIS_BATCH] = p->batch,
            [AXIS_SEQUENCE] = p->batch,
            [AXIS_ENTRY] = rows->page_size ? rows->num_pages : p->batch,
            [AXIS_HEAD] = p->num_heads_q,
            [AXIS_HEAD_KV] = p->num_heads_kv,
            [AXIS_ROW] = rows_held(p),
            [AXIS_KEY] = rows_of_entry(p),
            [AXIS_DIM] = p->head_dim,
            [AXIS_DIM_V] = p->head_dim_v,
            [AXIS_SEQ_Q] = p->seq_len_q,
            [AXIS_SEQ_KV] = p->seq_len_kv,
            [AXIS_LONGEST_Q] = longest_q,
            [AXIS_LONGEST_KV] = longest_kv,
            [AXIS_CELL_ROW] = cell_rows,
            [AXIS_CELL_COLUMN] = cells->block_k ? ceil_div(longest_kv, cells->block_k) : 0,
            [AXIS_CELL_OFFSET] = cell_rows + 1,
            [AXIS_LIST] = ceil_div(longest_q, rows_of_list(p)),
            [AXIS_LISTED_KEY] = p->key_list.width,
            [AXIS_PAGE] = rows->page_size ? table_entries(p) : 0,
            [AXIS_RECENT] = p->recent.entries ? p->recent.num_entries : p->batch,
            [AXIS_RECENT_ROW] = p->recent.ring,
            [AXIS_CHOSEN] = p->logits.num_rows,
            [AXIS_STATS] = 2,
            [AXIS_TOP] = p->insight.top,
            [AXIS_MASS] = mass_blocks(p),
        },
    };
    return x;
}

/* cells_listed counts the cells that a CSR mask lists whose heads have `rows` rows of cells. */
COLD static int64_t cells_listed(const attn_params *p, int64_t rows)
{
    const attn_block_mask *m = &p->block_mask;
    int64_t b, h, listed = 0;
    for (b = 0; m->row_offsets && rows > 0 && b < p->batch; b++)
        for (h = 0; h < p->num_heads_q; h++) {
            const int64_t at = b * m->csr_stride_batch + h * m->csr_stride_head;
            listed = max64(listed, m->row_offsets[at + rows]);
        }
    return listed;
}

/* axes_in_use is axes_of_call for a call whose mask may be read. */
COLD static call_axes axes_in_use(const attn_params *p)
{
    call_axes x = axes_of_call(p);
    x.count[AXIS_CELL_LISTED] = cells_listed(p, x.count[AXIS_CELL_ROW]);
    return x;
}

/* src/backward/fields.c - the fields of attn_gradients, and the axes of sums over pairs. */

/* These bits name the gradients, or parts of them, that some work is about. */
enum { WANT_DQ = 1, WANT_DK = 2, WANT_DV = 4, WANT_BIAS = 8, WANT_SLOPES = 16, WANT_SINKS = 32 };
#define WANT_KEYS (WANT_DK | WANT_DV)
#define WANT_SUMS (WANT_BIAS | WANT_SLOPES)

static int wanted(const attn_gradients *g)
{
    return (g->dq.data ? WANT_DQ : 0) | (g->dk.data ? WANT_DK : 0) | (g->dv.data ? WANT_DV : 0) |
           (g->dbias.data ? WANT_BIAS : 0) | (g->dslopes ? WANT_SLOPES : 0) |
           (g->dsinks ? WANT_SINKS : 0);
}

/* pack_axes packs the axes that are kept; a stride that is given counts instead. */
static void pack_axes(attn_sum_axes *a, const ptrdiff_t given[4])
{
    int64_t packed = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        a->stride[axis] = 0;
        if (!a->kept[axis])
            a->count[axis] = 1;
        else
            a->stride[axis] = given[axis] ? given[axis] : to_stride(packed);
        packed = times(packed, a->count[axis]);
    }
    settle_strides(4, a->count, a->stride);
}

/* The bias of a part is that of the whole call; its gradient has the rows that are held. */
static attn_sum_axes bias_axes(const attn_params *p, const attn_bias_gradient *d)
{
    const ptrdiff_t given[4] = { d->stride_batch, d->stride_head, d->stride_q, d->stride_kv };
    const ptrdiff_t of_bias[4] = { p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q,
                                   p->bias.stride_kv };
    attn_sum_axes a = { .data = d->data,
                        .count = { p->batch, p->num_heads_q,
                                   longest(p->cu_seqlens_q, p->batch, rows_held(p)),
                                   longest(p->cu_seqlens_kv, p->batch, p->seq_len_kv) } };
    int axis;
    for (axis = 0; axis < 4; axis++)
        a.kept[axis] = of_bias[axis] != 0 || a.count[axis] == 1;
    pack_axes(&a, given);
    return a;
}

static int keeps_all(const attn_sum_axes *a)
{
    return a->kept[ATTN_AXIS_BATCH] && a->kept[ATTN_AXIS_HEAD] && a->kept[ATTN_AXIS_ROW] &&
           a->kept[ATTN_AXIS_KEY];
}

static attn_sum_axes slope_axes(const attn_params *p, float *data)
{
    const ptrdiff_t given[4] = { 0, 0, 0, 0 };
    attn_sum_axes a = { .data = data,
                        .count = { p->batch, p->num_heads_q, 1, 1 },
                        .kept = { p->alibi_stride != 0, 1, 0, 0 } };
    pack_axes(&a, given);
    return a;
}

#define AT(member) offsetof(attn_gradients, member)

static const call_field gradient_fields[] = {
    { DTYPE(dout.dtype, BY_ALL) },
    { VALUE(dlse.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { DTYPE(dq.dtype, BY_ALL) },
    { DTYPE(dk.dtype, BY_ALL) },
    { DTYPE(dv.dtype, BY_ALL) },
    { TENSOR(dout, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V, BY_ALL) },
    { TENSOR(dlse, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE, BY_ALL) },
    { TENSOR(dq, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(dk, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(dv, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, BY_ALL), .output = OUTPUT_RESULT },
    { LIST(dsinks, F_F32, BY_ALL, AXIS_NONE, AXIS_HEAD), .output = OUTPUT_RESULT },
};
#undef AT

/* gradient_axes makes the axes of a call those of its gradients: dk and dv have the keys of each sequence,
 * wherever a cache has them, for pages that sequences share would be written by each. */
static call_axes gradient_axes(const attn_params *p, call_axes x)
{
    x.count[AXIS_KEY] = keys_held(p);
    return x;
}

/* resolve_gradients gives every array of gradients its strides, or *why says which one does not fit
 * into memory. */
static attn_status resolve_gradients(const attn_params *p, attn_gradients *g, text *why)
{
    const call_axes x = gradient_axes(p, axes_of_call(p));
    attn_status status = resolve_arrays(gradient_fields, COUNT_OF(gradient_fields), g, &x, why);
    const attn_sum_axes a = bias_axes(p, &g->dbias);
    if (!status && a.data)
        status = check_extent("dbias", sizeof(float), a.count[0], a.count[1], a.count[2],
                              a.count[3], a.stride, why);
    if (!status)
        status = check_aligned("dbias", a.data, sizeof(float), why);
    return status ? status : check_aligned("dslopes", g->dslopes, sizeof(float), why);
}

/* add_axes adds what the gradients that a backend gets have beyond those of the caller. */
OWN_FRAME static void add_axes(const attn_params *p, attn_gradient_call *made)
{
    made->bias = bias_axes(p, &made->g.dbias);
    made->slopes = slope_axes(p, made->g.dslopes);
}

/* src/opencl/fields.c - what a device does with each field of a call, in one row.
 *
 * No API of a device is here, nor in plan.c, arrays.c and describe.c: another one than OpenCL could
 * use these rooms as they are.
 */

/* load1 of kernels.cl knows these storage types of K and V, and of other arrays, by the numbers of
 * attn_dtype: a bit for each. */
#define KEY_TYPES ((1 << TYPE_MIXED) - 1)
#define OTHER_TYPES ((1 << TYPE_E4M3) - 1)

/* KV_TYPE of kernels.cl is the storage type of K and V, or MIXED, which is beyond all types. */
enum { MIXED = TYPE_MIXED, KV_TYPES };
typedef char types_have_numbers_of_dtypes[(int)TYPE_BF16 == (int)ATTN_BF16 &&
                                                  (int)TYPE_E5M2 == (int)ATTN_E5M2 &&
                                                  (int)TYPE_Q4_0 == (int)ATTN_Q4_0 &&
                                                  CL_UNIT == UNIT
                                              ? 1
                                              : -1];

/* A device_array is an array that the device has. */
enum device_array {
    NO_ARRAY,
    IN_Q, /* kernels read these, in the order of their arguments: INPUTS in kernels.cl */
    IN_K,
    IN_V,
    IN_TABLE,
    IN_BIAS,
    IN_BOOL,
    IN_BIT,
    IN_BITMAP,
    IN_OFFSETS,
    IN_COLUMNS,
    IN_Q_SEGMENTS,
    IN_KV_SEGMENTS,
    IN_TREE,
    IN_SLOPES,
    IN_SINKS,
    IN_O, /* only gradients read these */
    IN_LSE,
    IN_STATS,
    IN_DOUT,
    IN_DLSE,
    OUT_O, /* kernels write these */
    OUT_LSE,
    OUT_STATS,
    OUT_M,
    OUT_L,
    OUT_STATE_O,
    OUT_LOGITS,
    OUT_DQ,
    OUT_DK,
    OUT_DV,
    OUT_DSINKS,
    OUT_DBIAS,
    OUT_DSLOPES,
    ARRAY_COUNT
};

/* A reach says which elements of an array a call reads or writes. */
enum reach { REACH_ALL, REACH_ROWS, REACH_KEYS, REACH_CHOSEN };

typedef struct device_field {
    uint16_t offset; /* of the field, as in its call_field */
    uint16_t number; /* N_FLAGS: none; of a value, or of an array's offset and the strides behind */
    uint32_t flag;   /* that it is set */
    uint8_t array;   /* NO_ARRAY: what is there is for the host, which tells kernels what follows */
    uint8_t reach;
    uint8_t shared; /* nonzero: an array that the host reads, too */
} device_field;

#define HOST(member) .offset = AT(member)
#define NUMBER(member, name) .offset = AT(member), .number = name
#define FLAG(member, name) .offset = AT(member), .flag = name
#define ARRAY(member, name, which, elements)                                                       \
    .offset = AT(member), .number = name, .array = which, .reach = elements

/* The rows are in the order of call_fields. A field that has none is refused. */
#define AT(member) offsetof(attn_params, member)
static const device_field device_fields[] = {
    { HOST(batch) },
    { NUMBER(num_heads_q, N_HEADS) },
    { NUMBER(num_heads_kv, N_HEADS_KV) },
    { NUMBER(seq_len_q, N_STATE_ROWS) },
    { NUMBER(seq_len_kv, N_COLUMN_COUNT) },
    { NUMBER(head_dim, N_DIM) },
    { HOST(head_dim_v) },
    { NUMBER(scale, N_SCALE) },
    { FLAG(integer, F_INTEGER) },
    { NUMBER(rotated, N_ROTATED) },
    { HOST(k_centered) },
    { HOST(layout) },
    { NUMBER(q.dtype, N_Q_TYPE) },
    { NUMBER(k.dtype, N_K_TYPE) },
    { HOST(k.dtype) }, /* that it is not plain */
    { NUMBER(v.dtype, N_V_TYPE) },
    { HOST(v.dtype) },
    { NUMBER(o.dtype, N_O_TYPE) },
    { NUMBER(lse.dtype, N_LSE_TYPE) },
    { NUMBER(stats.dtype, N_STATS_TYPE) },
    { ARRAY(q.data, N_Q, IN_Q, REACH_ROWS) },
    { ARRAY(k.data, N_K, IN_K, REACH_KEYS) },
    { ARRAY(v.data, N_V, IN_V, REACH_KEYS) },
    { ARRAY(o.data, N_O, OUT_O, REACH_ROWS), .flag = F_O },
    { ARRAY(lse.data, N_LSE, OUT_LSE, REACH_ROWS), .flag = F_LSE },
    { ARRAY(stats.data, N_STATS, OUT_STATS, REACH_ROWS), .flag = F_STATS },
    { HOST(q_len) },
    { HOST(kv_len) },
    { HOST(kv_begin) },
    { NUMBER(cu_seqlens_q, N_VARLEN) },
    { HOST(cu_seqlens_kv) },
    { HOST(key_base) },
    { NUMBER(kv_rows.ring, N_RING) },
    { HOST(kv_rows.begin) },
    { NUMBER(kv_rows.page_size, N_PAGE_SIZE) },
    { HOST(kv_rows.num_pages) },
    { ARRAY(kv_rows.table, N_TABLE, IN_TABLE, REACH_ALL), .shared = 1 },
    { HOST(shared_keys) },
    { HOST(alignment) },
    { HOST(q_offset) },
    { FLAG(causal, F_CAUSAL) },
    { HOST(prefix) },
    { FLAG(window, F_WINDOW) },
    { NUMBER(window_left, N_WINDOW_LEFT) },
    { NUMBER(window_right, N_WINDOW_RIGHT) },
    { NUMBER(chunk_size, N_CHUNKED), .flag = F_CHUNKED },
    { ARRAY(q_segments, N_Q_SEGMENTS, IN_Q_SEGMENTS, REACH_ALL), .flag = F_SEGMENTS },
    { ARRAY(kv_segments, N_KV_SEGMENTS, IN_KV_SEGMENTS, REACH_ALL), .flag = F_SEGMENTS },
    { ARRAY(tree_parents, N_TREE, IN_TREE, REACH_ALL), .flag = F_TREE, .shared = 1 },
    { HOST(bool_mask.invert) },
    { ARRAY(bool_mask.data, N_BOOL, IN_BOOL, REACH_ALL), .flag = F_BOOL_MASK },
    { HOST(bit_mask.invert) },
    { ARRAY(bit_mask.data, N_BIT, IN_BIT, REACH_ALL), .flag = F_BIT_MASK },
    { NUMBER(block_mask.block_q, N_BLOCK_Q) },
    { NUMBER(block_mask.block_k, N_BLOCK_K) },
    { ARRAY(block_mask.bitmap, N_BITMAP, IN_BITMAP, REACH_ALL), .flag = F_BITMAP, .shared = 1 },
    { ARRAY(block_mask.row_offsets, N_OFFSETS, IN_OFFSETS, REACH_ALL), .flag = F_CSR, .shared = 1 },
    { ARRAY(block_mask.columns, N_COLUMNS, IN_COLUMNS, REACH_ALL), .shared = 1 },
    { FLAG(softcap, F_SOFTCAP) },
    { NUMBER(bias.dtype, N_BIAS_TYPE) },
    { ARRAY(bias.data, N_BIAS, IN_BIAS, REACH_ALL), .flag = F_BIAS },
    { ARRAY(alibi_slopes, N_SLOPES, IN_SLOPES, REACH_ALL), .flag = F_ALIBI, .shared = 1 },
    { HOST(callback_user) },
    { ARRAY(sinks, N_SINKS, IN_SINKS, REACH_ALL), .flag = F_SINKS, .shared = 1 },
    { FLAG(softmax1, F_SOFTMAX1) },
    { FLAG(dropout_p, F_DROPOUT) },
    { HOST(dropout_seed) },
    { FLAG(partial, F_PARTIAL) },
    { ARRAY(state.m, N_STATE_M, OUT_M, REACH_ROWS) },
    { ARRAY(state.l, N_STATE_L, OUT_L, REACH_ROWS) },
    { ARRAY(state.o, N_STATE_O, OUT_STATE_O, REACH_ROWS) },
    { NUMBER(logits.stage, N_STAGE) },
    { HOST(logits.num_rows) },
    { NUMBER(logits.rows, N_CHOSEN_LIST) },
    { ARRAY(logits.data, N_LOGITS, OUT_LOGITS, REACH_CHOSEN) },
    { HOST(impl) },
    { HOST(auto_naive_keys) },
    { HOST(naive_whole) },
    { HOST(tile_keys) },
    { HOST(tuning) },
    { HOST(force_redo) },
    { HOST(kernels) },
    { HOST(backend) },
    { HOST(num_workers) },
    { HOST(parallel_for) },
    { HOST(parallel_user) },
    { HOST(log) },
    { HOST(log_user) },
    { HOST(part.row_begin) },
    { HOST(part.row_count) },
    { HOST(part.key_begin) },
    { HOST(part.key_count) },
    { HOST(part.key_row) },
    { .offset = UINT16_MAX },
};
#undef AT

/* The rows are in the order of gradient_fields. */
#define AT(member) offsetof(attn_gradients, member)
static const device_field device_gradient_fields[] = {
    { NUMBER(dout.dtype, N_DOUT_TYPE) },
    { NUMBER(dlse.dtype, N_DLSE_TYPE) },
    { NUMBER(dq.dtype, N_DQ_TYPE) },
    { NUMBER(dk.dtype, N_DK_TYPE) },
    { NUMBER(dv.dtype, N_DV_TYPE) },
    { ARRAY(dout.data, N_DOUT, IN_DOUT, REACH_ROWS) },
    { ARRAY(dlse.data, N_DLSE, IN_DLSE, REACH_ROWS), .flag = F_DLSE },
    { ARRAY(dq.data, N_DQ, OUT_DQ, REACH_ROWS) },
    { ARRAY(dk.data, N_DK, OUT_DK, REACH_KEYS) },
    { ARRAY(dv.data, N_DV, OUT_DV, REACH_KEYS) },
    { ARRAY(dsinks, N_DSINKS, OUT_DSINKS, REACH_ALL) },
    { .offset = UINT16_MAX },
};
#undef AT

/* A field_walk goes over the fields of a call, or of its gradients, and their rows. */
typedef struct field_walk {
    const call_field *fields, *f; /* all, the present one */
    int count, done;
    const device_field *next, *row; /* row: NULL where the present one has none */
    const void *base;
} field_walk;

static field_walk walk_fields(const attn_params *p)
{
    const field_walk w = { call_fields, NULL, COUNT_OF(call_fields), 0, device_fields, NULL, p };
    return w;
}

static field_walk walk_gradient_fields(const attn_gradients *g)
{
    const field_walk w = {
        gradient_fields, NULL, COUNT_OF(gradient_fields), 0, device_gradient_fields, NULL, g,
    };
    return w;
}

static int next_field(field_walk *w)
{
    if (w->done == w->count)
        return 0;
    w->f = &w->fields[w->done++];
    w->row = w->next->offset == w->f->offset ? w->next++ : NULL;
    return 1;
}

/* flags_of has a flag for each thing that the fields ask for. */
static int64_t flags_of(field_walk w)
{
    int64_t all = 0;
    while (next_field(&w))
        if (w.row && w.row->flag && field_number(w.f, w.base))
            all |= w.row->flag;
    return all;
}

/* copy_numbers copies the numbers that kernels read as they are in the fields. */
static void copy_numbers(field_walk w, int64_t *numbers)
{
    while (next_field(&w))
        if (w.row && w.row->number && !w.row->array)
            numbers[w.row->number] = field_number(w.f, w.base);
}

/* knows_type returns whether devices know the storage type of a field that has a row, if it has a
 * type. */
static int knows_type(const field_walk *w, int *dtype)
{
    const int is_key = w->row && (w->row->array == IN_K || w->row->array == IN_V);
    *dtype = ATTN_F32;
    if (w->f->type == F_STORED)
        memcpy(dtype, (const char *)w->base + w->f->dtype, sizeof *dtype);
    return *dtype >= 0 && *dtype < MIXED && ((is_key ? KEY_TYPES : OTHER_TYPES) >> *dtype & 1);
}

/* refuse_unknown returns whether a field is set, or has a storage type, that devices do not know;
 * *why then says which. */
static int refuse_unknown(field_walk w, text *why)
{
    while (next_field(&w)) {
        const int64_t value = w.row ? 0 : field_number(w.f, w.base);
        int dtype;
        if (value)
            return refuse_field(w.f, value, "a device", why) != ATTN_OK;
        if (!knows_type(&w, &dtype)) {
            put(why, w.f->name);
            return bad_field(why, ATTN_ERR_UNSUPPORTED, ".dtype", dtype,
                             " is a storage type that a device does not know") != ATTN_OK;
        }
    }
    return 0;
}

/* src/opencl/plan.c - the plan: sizes of a call, a pure function of device and problem. */

#define MOST_KEYS ((int64_t)1 << 30) /* of a sequence: kernels count them in 32 bits */
#define WHOLE ((int64_t)1 << 62)     /* keys of a part that is not divided */

enum { FEW_ROWS = 4 };          /* a tile of them has fewer items */
enum { ITEMS_PER_UNIT = 1024 }; /* of work-groups for a compute unit to choose from */

/* A program holds the kernels of one part of kernels.cl, built for one choice of each option. */
enum program_part {
    PART_FORWARD,
    PART_ROWS,
    PART_ROTATE,
    PART_NAIVE,
    PART_CHECK,
    PART_BACKWARD,
    PART_COUNT
};

typedef struct variant {
    int part, exact;
    int kv_type; /* an attn_dtype, or MIXED */
    int rows;    /* of a tile: FEW_ROWS, 16, 32, 64 */
    int columns; /* of V: 64, 128, 256 */
    int pairs;
    int whole; /* scores are of whole numbers */
} variant;

/* The plan depends on device_limits besides the problem. */
typedef struct device_limits {
    int compute_units;
    size_t local_bytes, allocation_bytes;
    int exact;
    int divide; /* keys even where they are few: for a first use */
} device_limits;

typedef struct device_plan {
    variant forward;
    int64_t tiles, parts, slices, items, groups;
    int64_t chunk_keys, part_keys;
    int64_t levels; /* of the tree: states of a work-group that may wait at once */
    int64_t pending_bytes, parts_bytes; /* of device memory */
    int64_t queries_bytes;              /* of queries rotated or rounded, 0 = read as given */
    int64_t results_bytes;              /* of results that are then rotated back */
    int64_t statistics_bytes;           /* of rows, for gradients */
    int64_t local_bytes;                /* of a work-group */
    unsigned programs;                  /* that the call runs: bit 1 << part */
} device_plan;

/* A row takes these bytes of local memory beside its logits: of the kernel forward m, l, block_m,
 * alpha, lo, hi and q_at; of the kernels of gradients m, l, inverse, lo, hi, q_at and dout_at. */
enum {
    FORWARD_ROW_BYTES = 4 * (2 + 2 * (CL_BN / CL_BLOCK) + 2) + 8,
    GRADIENT_ROW_BYTES = 4 * (3 + 2) + 8 * 2
};

/* local_bytes_of counts the local memory of a work-group of the kernels for tiles: see their
 * arrays. */
static int64_t local_bytes_of(int rows, int columns, int row_bytes)
{
    const int64_t slices = (int64_t)(rows + CL_BN) * 36;
    const int64_t values = (int64_t)(columns <= 128 ? 32 : 16) * columns;
    return 4 * (max64(slices, values) + rows * (CL_BN + 4) + 6) + (int64_t)rows * row_bytes +
           8 * 2 * CL_BN;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return ceil_div(n, to) * to;
}

/* count_parts gives the most parts of part_keys each, counted from n = 0, that the keys of a
 * sequence touch, at least 1. */
static int64_t count_parts(const attn_problem *pr, int64_t part_keys)
{
    int64_t b, most = 1;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        const int64_t end = s.key_base + s.kv_len;
        most = max64(most, (end - 1) / part_keys - s.key_base / part_keys + 1);
    }
    return most;
}

static int64_t count_tiles(const attn_problem *pr, int rows)
{
    int64_t b, n = 0;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        n += ceil_div(s.q_len * pr->group, rows);
    }
    return n;
}

/* These flags must be asked pair by pair; callbacks are refused before. */
#define F_BY_PAIR                                                                                  \
    (F_BITMAP | F_CSR | F_TREE | F_SEGMENTS | F_BOOL_MASK | F_BIT_MASK | F_SOFTCAP | F_BIAS |      \
     F_ALIBI | F_DROPOUT)

static int has_pairs(const attn_params *p)
{
    return (flags_of(walk_fields(p)) & F_BY_PAIR) != 0;
}

/* groups_wanted counts the work-groups that fill the device. */
static int64_t groups_wanted(const device_limits *limits, const device_plan *pl)
{
    return (int64_t)limits->compute_units * ITEMS_PER_UNIT /
           (CL_TX * min64(pl->forward.rows, CL_TY));
}

/* divide_keys divides the keys of few tiles, which do not fill the device. Exact parts are nodes of
 * the tree. */
static void divide_keys(const attn_problem *pr, const device_limits *limits, device_plan *pl)
{
    const int64_t whole = pl->tiles * pr->p.num_heads_kv * pl->slices;
    const int64_t unit = limits->exact ? ATTN_CHUNK : CL_BN;
    int64_t parts = min64(CL_MAX_PARTS, groups_wanted(limits, pl) / max64(1, whole));
    pl->part_keys = WHOLE;
    pl->parts = 1;
    if (parts > 1 && (limits->divide || pr->max_kv_len > unit)) {
        pl->part_keys = unit;
        while (count_parts(pr, pl->part_keys) > parts)
            pl->part_keys *= 2;
        pl->parts = count_parts(pr, pl->part_keys);
        if (pl->parts == 1)
            pl->part_keys = WHOLE;
    }
    pl->chunk_keys = limits->exact ? ATTN_CHUNK : pl->part_keys;
}

static int writes_values(const attn_params *p)
{
    return p->partial || p->o.data;
}

/* all_rows counts the rows of all heads, as state_row numbers them. */
static int64_t all_rows(const attn_params *p)
{
    return p->num_heads_q * p->seq_len_q * (p->cu_seqlens_q ? 1 : p->batch);
}

/* query_floats counts the floats of a row of queries rotated or rounded, which is followed by a scale
 * for each unit of whole numbers. */
static int64_t query_floats(const attn_params *p)
{
    return p->head_dim + (p->integer ? p->head_dim / CL_UNIT : 0);
}

static void plan_rotation(const attn_problem *pr, device_plan *pl)
{
    const attn_params *p = &pr->p;
    const int runs_any = pr->max_q_len > 0;
    if (runs_any && (p->integer || p->rotated & ATTN_ROTATED_K))
        pl->queries_bytes = times(all_rows(p), 4 * query_floats(p));
    if (runs_any && p->rotated & ATTN_ROTATED_V && p->o.data && !p->partial)
        pl->results_bytes = times(all_rows(p), 4 * p->head_dim_v);
}

static unsigned choose_programs(const attn_problem *pr, const device_plan *pl)
{
    const attn_params *p = &pr->p;
    const int rows = pr->size_query || writes_values(p) || p->lse.data || p->stats.data;
    const int tiled = pl->items > 0 && rows;
    const unsigned others = (p->logits.data ? 1u << PART_ROWS : 0) |
                            (pl->queries_bytes || pl->results_bytes ? 1u << PART_ROTATE : 0);
    if (pr->impl == ATTN_IMPL_NAIVE)
        return 1u << PART_NAIVE | others;
    return (tiled ? 1u << PART_FORWARD : 0) | (tiled && pl->parts > 1 ? 1u << PART_ROWS : 0) |
           others;
}

static int runs(const device_plan *pl, int part)
{
    return (pl->programs >> part & 1) != 0;
}

/* forward_variant has tiles as large as registers and local memory allow. */
static variant forward_variant(const attn_problem *pr, const device_limits *limits, int64_t columns)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pr->max_q_len * pr->group;
    variant v = { PART_FORWARD, limits->exact, p->k.dtype, 64, 256, has_pairs(p), p->integer != 0 };
    if (p->k.dtype != p->v.dtype)
        v.kv_type = MIXED;
    if (columns <= 128)
        v.columns = columns <= 64 ? 64 : 128;
    v.rows = rows <= FEW_ROWS ? FEW_ROWS : rows <= 16 ? 16 : v.columns == 256 ? 32 : 64;
    while (v.rows > 16 &&
           local_bytes_of(v.rows, v.columns, FORWARD_ROW_BYTES) > (int64_t)limits->local_bytes)
        v.rows /= 2;
    return v;
}

static device_plan plan_forward(const attn_problem *pr, const device_limits *limits)
{
    const attn_params *p = &pr->p;
    const int64_t columns = writes_values(p) || pr->size_query ? p->head_dim_v : 1;
    device_plan pl = { .forward = forward_variant(pr, limits, columns) };
    int64_t chunks;
    pl.tiles = count_tiles(pr, pl.forward.rows);
    pl.slices = ceil_div(columns, pl.forward.columns);
    divide_keys(pr, limits, &pl);
    pl.items = pl.tiles * p->num_heads_kv * pl.parts * pl.slices;
    chunks = min64(count_parts(pr, ATTN_CHUNK), pl.part_keys / ATTN_CHUNK); /* that become one */
    pl.levels = limits->exact ? log2_up(chunks) : 0;
    pl.groups = pl.levels ? min64(pl.items, groups_wanted(limits, &pl)) : pl.items;
    pl.pending_bytes = 4 * pl.groups * pl.levels * pl.forward.rows * (pl.forward.columns + 2);
    if (pl.parts > 1)
        pl.parts_bytes =
            4 * pl.tiles * p->num_heads_kv * pl.forward.rows * pl.parts * (p->head_dim_v + 2);
    plan_rotation(pr, &pl);
    pl.programs = choose_programs(pr, &pl);
    if (!runs(&pl, PART_NAIVE))
        pl.local_bytes = local_bytes_of(pl.forward.rows, pl.forward.columns, FORWARD_ROW_BYTES);
    return pl;
}

static int64_t gradient_local_bytes(const device_plan *pl)
{
    return local_bytes_of(pl->forward.rows, pl->forward.columns, GRADIENT_ROW_BYTES);
}

/* plan_gradients plans what sessions need: the kernels of gradients count tiles themselves. */
static device_plan plan_gradients(const attn_problem *pr, const device_limits *limits)
{
    const int columns = max64(pr->p.head_dim, pr->p.head_dim_v) <= 64 ? 64 : 128;
    device_plan pl = {
        .forward = { PART_BACKWARD, limits->exact, MIXED, 64, columns, has_pairs(&pr->p), 0 },
        .programs = 1u << PART_BACKWARD,
        .slices = ceil_div(pr->p.head_dim, columns),
        .statistics_bytes = 4 * KNOWN_COUNT * all_rows(&pr->p),
    };
    if (gradient_local_bytes(&pl) > (int64_t)limits->local_bytes)
        pl.forward.rows = 32;
    pl.local_bytes = gradient_local_bytes(&pl);
    return pl;
}

/* plan_device plans attn_backward where gradients is nonzero, else attn_forward. */
static device_plan plan_device(const attn_problem *pr, const device_limits *limits, int gradients)
{
    return gradients ? plan_gradients(pr, limits) : plan_forward(pr, limits);
}

/* matrix_bytes counts the bytes of the logits of a head, which the textbook stores. */
static int64_t matrix_bytes(const attn_problem *pr)
{
    const int countable = pr->max_q_len <= MOST_KEYS && pr->max_kv_len <= MOST_KEYS;
    return countable ? 4 * pr->max_q_len * pr->max_kv_len : INT64_MAX;
}

typedef struct refusal {
    int applies;
    const char *why;
} refusal;

/* first_refusal gives the sentence of the first refusal that applies, or NULL. */
static const char *first_refusal(const refusal *refusals, int count)
{
    int i = 0;
    while (i < count && !refusals[i].applies)
        i++;
    return i < count ? refusals[i].why : NULL;
}

/* plan_fault says why no device of these limits can run the call, or gives NULL. */
static const char *plan_fault(const attn_problem *pr, const device_limits *limits,
                              const device_plan *pl)
{
    const int naive = pr->impl == ATTN_IMPL_NAIVE, gradients = runs(pl, PART_BACKWARD);
    const int64_t most = min64((int64_t)limits->allocation_bytes, INT64_MAX / 4); /* of an array */
    const refusal refusals[] = {
        { naive && gradients, "naive gradients are the CPU's" },
        { gradients && (pr->p.kv_rows.ring || pr->p.kv_rows.page_size),
          "gradients of keys in a cache are the CPU's" },
        { naive && pr->p.partial, "naive on a device has no raw states" },
        { naive && matrix_bytes(pr) > most, "the logits of a head exceed an array of the device" },
        { pr->max_kv_len > MOST_KEYS, "a sequence has more than 2^30 keys" },
        { pr->max_q_len > MOST_KEYS / pr->group, "a sequence has more than 2^30 rows of a group" },
        { pl->local_bytes > (int64_t)limits->local_bytes,
          "its work-groups have too little local memory for a tile" },
        { pl->pending_bytes > most || pl->parts_bytes > most,
          "partial states exceed an array of the device" },
        { pl->queries_bytes > most || pl->results_bytes > most,
          "rotated or rounded rows exceed an array of the device" },
        { pl->statistics_bytes > most, "statistics of rows exceed an array of the device" },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

/* src/opencl/device.c - the opened device: which one, and what it can do. */

enum { ROWS_KINDS = 4, COLUMNS_KINDS = 3 };
#define VARIANTS (PART_COUNT * 2 * KV_TYPES * ROWS_KINDS * COLUMNS_KINDS * 2 * 2)

typedef struct check_data {
    float in[3 * CL_CHECKS], out[CL_CHECKS];
} check_data;

/* A pool_slot keeps memory of the device between calls. */
enum { POOL_SLOTS = 16 };
enum slot_state { SLOT_EMPTY, SLOT_LOCKED, SLOT_FULL };
typedef struct pool_slot {
    int volatile state; /* the thread that made it SLOT_LOCKED reads and writes the rest */
    cl_handle memory;
    cl_handle queue; /* whose commands may still use the memory; NULL = nobody does */
    int64_t volatile bytes;
} pool_slot;

struct attn_opencl {
    cl_api cl;
    void *library;
    cl_handle device, context, queue;
    attn_opencl_info info;
    attn_opencl_options options; /* pointers but log's are of use while it is opened */
    device_limits limits;        /* exact: asked for */
    attn_opencl_call plain;      /* of a backend without a call of its own */
    char build_options[100];     /* of the caller */
    char why[256], build_log[8001];
    int volatile log_taken;                /* nonzero: a thread writes build_log */
    check_data check;                      /* of attn_opencl_open */
    cl_handle volatile programs[VARIANTS]; /* NULL = not built yet */
    int volatile verdicts[VARIANTS];       /* enum verdict, of a first use */
    int volatile built, taken;             /* of them from source, from kept binaries */
    int volatile pool_turn;                /* the slot that gives way when none is empty */
    pool_slot pool[POOL_SLOTS];
};

static void say(const attn_opencl *gpu, int level, const char *sentence)
{
    if (gpu->options.log)
        gpu->options.log(gpu->options.log_user, level, sentence);
}

static void release(cl_int(CL_CALL *by)(cl_handle), cl_handle object)
{
    if (object)
        by(object);
}

/* explain_error says "what: OpenCL error -5 (out of resources)". */
static void explain_error(text *why, const char *what, cl_int error)
{
    put(why, what);
    put(why, ": OpenCL error ");
    put_int(why, error);
    put(why, " (");
    put(why, cl_error_name(error));
    put(why, ")");
}

/* ---- Devices */

enum { MOST_PLATFORMS = 16, MOST_DEVICES = 32 };

static int find_functions(attn_opencl *gpu)
{
    int i;
    for (i = 0; i < COUNT_OF(cl_symbols); i++) {
        const library_symbol found = FIND_SYMBOL(gpu->library, cl_symbols[i].name);
        if (!found)
            return 0;
        memcpy((char *)&gpu->cl + cl_symbols[i].offset, &found, sizeof found);
    }
    return 1;
}

static int load_library(attn_opencl *gpu, text *why)
{
    static const char *const loaders[] = { LOADERS };
    const char *const file = gpu->options.library;
    int i;
    for (i = 0; i < (file ? 1 : COUNT_OF(loaders)) && !gpu->library; i++)
        gpu->library = OPEN_LIBRARY(file ? file : loaders[i]);
    if (gpu->library && find_functions(gpu))
        return 1;
    put(why, gpu->library ? "the OpenCL library lacks a function of OpenCL 1.2: "
                          : "no OpenCL library: ");
    put(why, file ? file : loaders[0]);
    return 0;
}

static uint64_t device_number(const attn_opencl *gpu, cl_handle device, cl_uint what, size_t bytes)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    void *const to = bytes == sizeof narrow ? (void *)&narrow : &wide;
    if (gpu->cl.clGetDeviceInfo(device, what, bytes, to, NULL))
        return 0;
    return bytes == sizeof narrow ? narrow : wide;
}

#define DEVICE_UINT(device, what) ((uint32_t)device_number(gpu, device, what, 4))
#define DEVICE_ULONG(device, what) device_number(gpu, device, what, 8)
#define DEVICE_SIZE(device, what) device_number(gpu, device, what, sizeof(size_t))

/* device_text reads a text of a device or, with `platform`, of its platform. */
static void device_text(const attn_opencl *gpu, cl_handle device, int platform, cl_uint what,
                        char *to, size_t bytes)
{
    char words[512];
    cl_handle of = device;
    text out = text_in(to, bytes);
    words[0] = 0;
    if (platform)
        gpu->cl.clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof of, &of, NULL);
    if (platform)
        gpu->cl.clGetPlatformInfo(of, what, sizeof words, words, NULL);
    else
        gpu->cl.clGetDeviceInfo(of, what, sizeof words, words, NULL);
    words[sizeof words - 1] = 0;
    put(&out, words);
}

/* holds returns whether `part` occurs in `whole`, letter for letter. */
static int holds(const char *whole, const char *part)
{
    const size_t length = strlen(part);
    for (; *whole; whole++)
        if (strncmp(whole, part, length) == 0)
            return 1;
    return length == 0;
}

static uint32_t host_is_little(void)
{
    const uint32_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first;
}

/* device_fault says why the device cannot run the kernels, or gives NULL: it can. */
static const char *device_fault(const attn_opencl *gpu, cl_handle device)
{
    if (!DEVICE_UINT(device, CL_DEVICE_AVAILABLE))
        return "the driver says that it is not available";
    if (!DEVICE_UINT(device, CL_DEVICE_COMPILER_AVAILABLE))
        return "its driver has no compiler";
    if (DEVICE_UINT(device, CL_DEVICE_ENDIAN_LITTLE) != host_is_little())
        return "its byte order is not the host's";
    if (DEVICE_SIZE(device, CL_DEVICE_MAX_WORK_GROUP_SIZE) < CL_TX * CL_TY)
        return "its work-groups have less than 256 items";
    return NULL;
}

static void list_device(const attn_opencl *gpu, cl_handle device, attn_opencl_device *to)
{
    const char *fault = device_fault(gpu, device);
    text why = text_in(to->why, sizeof to->why);
    to->usable = fault == NULL;
    put(&why, fault ? fault : "ok");
    to->gpu = (DEVICE_ULONG(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_GPU) != 0;
    to->compute_units = (int)DEVICE_UINT(device, CL_DEVICE_MAX_COMPUTE_UNITS);
    to->memory_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_GLOBAL_MEM_SIZE);
    device_text(gpu, device, 0, CL_DEVICE_NAME, to->device, sizeof to->device);
    device_text(gpu, device, 0, CL_DEVICE_VERSION, to->version, sizeof to->version);
    device_text(gpu, device, 0, CL_DRIVER_VERSION, to->driver, sizeof to->driver);
    device_text(gpu, device, 1, CL_PLATFORM_NAME, to->platform, sizeof to->platform);
}

/* rank_device ranks a device among others; one that cannot be used, or is not wanted, has 0. */
static double rank_device(const attn_opencl_device *d, const char *wanted)
{
    if (!d->usable || (wanted && !holds(d->device, wanted) && !holds(d->platform, wanted)))
        return 0;
    return (d->gpu ? 1e6 : 1) * (1 + (double)d->compute_units);
}

/* A device_walk goes over the devices of all platforms. */
typedef struct device_walk {
    cl_uint platforms, devices;
    const char *wanted;
    cl_handle best; /* NULL = none */
    double best_rank;
    attn_opencl_device *list; /* the first `room` of them */
    int room;
} device_walk;

static void visit_device(const attn_opencl *gpu, cl_handle device, device_walk *walk)
{
    attn_opencl_device found = { 0 };
    double rank;
    list_device(gpu, device, &found);
    rank = rank_device(&found, walk->wanted);
    if ((int)walk->devices < walk->room)
        walk->list[walk->devices] = found;
    walk->devices++;
    if (rank > walk->best_rank) {
        walk->best_rank = rank;
        walk->best = device;
    }
}

static void walk_devices(const attn_opencl *gpu, device_walk *walk, text *why)
{
    cl_handle platforms[MOST_PLATFORMS], devices[MOST_DEVICES];
    cl_uint count, p, d;
    const char *named;
    if (gpu->cl.clGetPlatformIDs(MOST_PLATFORMS, platforms, &walk->platforms))
        walk->platforms = 0;
    for (p = 0; p < walk->platforms && p < MOST_PLATFORMS; p++) {
        if (gpu->cl.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &count))
            continue;
        for (d = 0; d < count && d < MOST_DEVICES; d++)
            visit_device(gpu, devices[d], walk);
    }
    if (walk->platforms == 0) {
        put(why, "no OpenCL platform: the loader is there, but no driver is installed for it");
    } else if (!walk->best) {
        put_int(why, walk->platforms);
        put(why, " OpenCL platforms, ");
        put_int(why, walk->devices);
        put(why, " devices, none ");
        named = walk->wanted && walk->devices ? walk->wanted : "";
        put(why, *named ? "named " : "that can run the kernels");
        put(why, named);
    }
}

static device_limits limits_of(const attn_opencl_info *info, int exact)
{
    const device_limits limits = { info->compute_units, info->local_bytes, info->allocation_bytes,
                                   exact, 0 };
    return limits;
}

static void describe_device(attn_opencl *gpu)
{
    attn_opencl_info *info = &gpu->info;
    const cl_handle device = gpu->device;
    attn_opencl_device found;
    list_device(gpu, device, &found);
    info->context = gpu->context;
    info->device_id = device;
    info->queue = gpu->queue;
    info->gpu = found.gpu;
    info->shares_memory =
        !gpu->options.copies && DEVICE_UINT(device, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
    info->compute_units = found.compute_units;
    info->memory_bytes = found.memory_bytes;
    info->allocation_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    info->local_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_LOCAL_MEM_SIZE);
    memcpy(info->device, found.device, sizeof info->device);
    memcpy(info->version, found.version, sizeof info->version);
    memcpy(info->driver, found.driver, sizeof info->driver);
    memcpy(info->platform, found.platform, sizeof info->platform);
    gpu->limits = limits_of(info, gpu->limits.exact);
}

/* is_in_order matters: kernels of a call rely on the order in which they were handed over. */
static int is_in_order(const attn_opencl *gpu, cl_handle queue)
{
    cl_flags properties = 0;
    return gpu->cl.clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties,
                                         NULL) == CL_SUCCESS &&
           !(properties & CL_QUEUE_OUT_OF_ORDER);
}

/* open_queue takes the caller's context, device and queue, or makes our own. */
static attn_status open_queue(attn_opencl *gpu, text *why)
{
    const attn_opencl_options *o = &gpu->options;
    const int given = (o->context != NULL) + (o->device_id != NULL) + (o->queue != NULL);
    const cl_flags flags = o->profiling ? CL_QUEUE_PROFILING_ENABLE : 0;
    cl_int error = CL_SUCCESS;
    device_walk walk = { .wanted = o->device };
    if (given == 3 && !is_in_order(gpu, o->queue))
        return bad(why, ATTN_ERR_ARG, "options.queue must take its commands in order");
    if (given == 3) {
        gpu->device = o->device_id;
        gpu->context = o->context;
        gpu->queue = o->queue;
        gpu->cl.clRetainContext(gpu->context);
        gpu->cl.clRetainCommandQueue(gpu->queue);
        return ATTN_OK;
    }
    if (given != 0)
        return bad(why, ATTN_ERR_ARG,
                   "context, device_id and queue must be given together or not at all");
    walk_devices(gpu, &walk, why);
    gpu->device = walk.best;
    if (!gpu->device)
        return ATTN_ERR_UNSUPPORTED;
    gpu->context = gpu->cl.clCreateContext(NULL, 1, &gpu->device, NULL, NULL, &error);
    if (!error)
        gpu->queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, flags, &error);
    if (error)
        explain_error(why, "the device cannot be opened", error);
    return error ? ATTN_ERR_UNSUPPORTED : ATTN_OK;
}

/* src/opencl/programs.c - programs: kernels are built when they are first needed. */

static const unsigned char kernels_source[] = {
#include "kernels_cl.inc"
};

static const int row_kinds[ROWS_KINDS] = { FEW_ROWS, 16, 32, 64 };

static int row_kind(int rows)
{
    int kind = 0;
    while (row_kinds[kind] != rows)
        kind++;
    return kind;
}

static int variant_number(const variant *v)
{
    int n = v->part;
    n = n * 2 + v->exact;
    n = n * KV_TYPES + v->kv_type;
    n = n * ROWS_KINDS + row_kind(v->rows);
    n = n * COLUMNS_KINDS + (v->columns == 256 ? 2 : v->columns == 128 ? 1 : 0);
    return (n * 2 + v->pairs) * 2 + v->whole;
}

static variant variant_of(int number)
{
    variant v;
    v.whole = number % 2;
    number /= 2;
    v.pairs = number % 2;
    number /= 2;
    v.columns = 64 << number % COLUMNS_KINDS;
    number /= COLUMNS_KINDS;
    v.rows = row_kinds[number % ROWS_KINDS];
    number /= ROWS_KINDS;
    v.kv_type = number % KV_TYPES;
    number /= KV_TYPES;
    v.exact = number % 2;
    v.part = number / 2;
    return v;
}

enum { MOST_OPTIONS = 320 }; /* letters of all options of a program */

static void put_option(text *t, const char *name, int value)
{
    put(t, " -D");
    put(t, name);
    put(t, "=");
    put_int(t, value);
}

static void build_options(const attn_opencl *gpu, const variant *v, char *to, size_t bytes)
{
    static const char *const parts[PART_COUNT] = { "PART_FORWARD", "PART_ROWS",  "PART_ROTATE",
                                                   "PART_NAIVE",   "PART_CHECK", "PART_BACKWARD" };
    text t = text_in(to, bytes);
    put(&t, "-cl-std=CL1.2");
    put_option(&t, parts[v->part], 1);
    put_option(&t, "EXACT", v->exact);
    put_option(&t, "KV_TYPE", v->kv_type);
    put_option(&t, "BM", v->rows);
    put_option(&t, "DVB", v->columns);
    put_option(&t, "PAIRS", v->pairs);
    put_option(&t, "WHOLE", v->whole);
    put_option(&t, "INLINE", gpu->info.gpu);
    put(&t, gpu->build_options[0] ? " " : "");
    put(&t, gpu->build_options);
}

/* Several threads may build one program at once, or try it; the first to store it wins. */
#if GNU_C
#define LOAD(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define STORE_FIRST(at, expected, value)                                                           \
    __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#define STORE(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define COUNT_ONE(at) __atomic_fetch_add(at, 1, __ATOMIC_RELAXED)
#else
#define LOAD(at) (*(at))
#define STORE_FIRST(at, expected, value) ((void)(expected), *(at) = (value), 1)
#define STORE(at, value) (*(at) = (value))
#define COUNT_ONE(at) (*(at))++
#endif

/* keep_build_log keeps what the compiler said, if anything. Of several threads that build at once
 * one is heard. A log is given whole or not at all. */
static void keep_build_log(attn_opencl *gpu, cl_handle program, int failed)
{
    text log = text_in(gpu->build_log, sizeof gpu->build_log);
    size_t bytes = 0;
    int expected = 0;
    gpu->cl.clGetProgramBuildInfo(program, gpu->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    if ((bytes <= 1 && !failed) || !STORE_FIRST(&gpu->log_taken, &expected, 1))
        return;
    if (bytes > sizeof gpu->build_log) {
        put(&log, "the compiler's log is too long to be kept: ");
        put_int(&log, (int64_t)bytes);
        put(&log, " letters");
    } else if (gpu->cl.clGetProgramBuildInfo(program, gpu->device, CL_PROGRAM_BUILD_LOG,
                                             sizeof gpu->build_log, gpu->build_log, NULL) ||
               bytes == 0) {
        put(&log, "the compiler says nothing");
    }
    gpu->build_log[sizeof gpu->build_log - 1] = 0;
    if (failed)
        say(gpu, ATTN_LOG_WARNING, gpu->build_log);
    STORE(&gpu->log_taken, 0);
}

/* finish_program builds the program that was created, or releases it. */
static cl_handle finish_program(attn_opencl *gpu, const variant *v, cl_handle program,
                                cl_int *error)
{
    char options[MOST_OPTIONS];
    build_options(gpu, v, options, sizeof options);
    *error = gpu->cl.clBuildProgram(program, 1, &gpu->device, options, NULL, NULL);
    keep_build_log(gpu, program, *error != CL_SUCCESS);
    if (!*error)
        return program;
    gpu->cl.clReleaseProgram(program);
    return NULL;
}

static cl_handle build_program(attn_opencl *gpu, const variant *v, cl_int *error)
{
    const char *source = (const char *)kernels_source;
    const size_t length = sizeof kernels_source;
    cl_handle program = gpu->cl.clCreateProgramWithSource(gpu->context, 1, &source, &length, error);
    if (*error)
        return NULL;
    COUNT_ONE(&gpu->built);
    return finish_program(gpu, v, program, error);
}

/* publish_program puts the program into its slot and returns the one that is there: another may
 * have come first. */
static cl_handle publish_program(attn_opencl *gpu, int number, cl_handle program)
{
    cl_handle before = NULL;
    if (STORE_FIRST(&gpu->programs[number], &before, program))
        return program;
    gpu->cl.clReleaseProgram(program);
    return before;
}

static cl_handle find_program(attn_opencl *gpu, const variant *v, cl_int *error)
{
    const int number = variant_number(v);
    cl_handle program = LOAD(&gpu->programs[number]);
    *error = CL_SUCCESS;
    if (program)
        return program;
    program = build_program(gpu, v, error);
    return program ? publish_program(gpu, number, program) : NULL;
}

/* src/opencl/kept.c - kept programs: every program built, as bytes of the caller's. */

enum kept_word { KEPT_MARK, KEPT_BYTES, KEPT_SUM, KEPT_KEY, KEPT_PROGRAMS, KEPT_HEAD };
#define KEPT_MARK_1 (((uint64_t)0x61747463 << 32) | 0x6c627631) /* changes with the format */

typedef struct kept_program {
    uint64_t number, bytes;
    const unsigned char *binary;
} kept_program;

static uint64_t whole_words_of(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* add_to_sum is FNV-1a: another byte anywhere gives another sum. */
static uint64_t add_to_sum(uint64_t sum, const void *bytes, size_t count)
{
    const unsigned char *at = (const unsigned char *)bytes;
    size_t i;
    for (i = 0; i < count; i++)
        sum = (sum ^ at[i]) * (((uint64_t)1 << 40) + 0x1b3);
    return sum;
}

/* sum_of_kept sums everything behind KEPT_SUM. */
static uint64_t sum_of_kept(const unsigned char *from, size_t bytes)
{
    const size_t before = (KEPT_SUM + 1) * sizeof(uint64_t);
    return add_to_sum(0, from + before, bytes - before);
}

/* Programs serve one device and driver, one kernels.cl and one way of building it. */
static uint64_t key_of_programs(const attn_opencl *gpu)
{
    const attn_opencl_info *info = &gpu->info;
    uint64_t key = add_to_sum(0, info->platform, strlen(info->platform) + 1);
    char options[MOST_OPTIONS];
    int n;
    key = add_to_sum(key, info->device, strlen(info->device) + 1);
    key = add_to_sum(key, info->version, strlen(info->version) + 1);
    key = add_to_sum(key, info->driver, strlen(info->driver) + 1);
    key = add_to_sum(key, kernels_source, sizeof kernels_source);
    for (n = 0; n < VARIANTS; n++) {
        const variant v = variant_of(n);
        build_options(gpu, &v, options, sizeof options);
        key = add_to_sum(key, options, strlen(options) + 1);
    }
    return key;
}

/* read_binary writes the program's binary for our device to `to` unless it is NULL, and returns its
 * bytes, or 0 without a binary. */
static size_t read_binary(const attn_opencl *gpu, cl_handle program, unsigned char *to)
{
    cl_handle devices[MOST_DEVICES];
    unsigned char *all[MOST_DEVICES]; /* of a caller's context with several devices */
    size_t sizes[MOST_DEVICES], bytes = 0, d = 0;
    memset(all, 0, sizeof all);
    if (gpu->cl.clGetProgramInfo(program, CL_PROGRAM_DEVICES, sizeof devices, devices, &bytes) ||
        gpu->cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof sizes, sizes, NULL))
        return 0;
    while (d < bytes / sizeof *devices && devices[d] != gpu->device)
        d++;
    if (d == bytes / sizeof *devices)
        return 0;
    all[d] = to;
    bytes = bytes / sizeof *devices * sizeof *all;
    if (to && gpu->cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, bytes, all, NULL))
        return 0;
    return sizes[d];
}

/* keep_program writes number, bytes and binary of one program to `to` if it has room for them, and
 * returns the bytes needed. */
static size_t keep_program(const attn_opencl *gpu, int number, unsigned char *to, size_t room)
{
    const cl_handle program = LOAD(&gpu->programs[number]);
    const size_t bytes = program ? read_binary(gpu, program, NULL) : 0;
    const size_t need = 2 * sizeof(uint64_t) + (size_t)whole_words_of(bytes);
    const uint64_t words[2] = { (uint64_t)number, bytes };
    if (bytes == 0)
        return 0;
    if (need <= room) {
        memset(to, 0, need);
        memcpy(to, words, sizeof words);
        read_binary(gpu, program, to + sizeof words);
    }
    return need;
}

static size_t keep_programs(const attn_opencl *gpu, unsigned char *to, size_t room)
{
    uint64_t head[KEPT_HEAD] = { [KEPT_MARK] = KEPT_MARK_1, [KEPT_KEY] = key_of_programs(gpu) };
    size_t at = sizeof head;
    int n;
    for (n = 0; n < VARIANTS; n++) {
        const size_t need =
            keep_program(gpu, n, at <= room ? to + at : NULL, at <= room ? room - at : 0);
        head[KEPT_PROGRAMS] += need != 0;
        at += need;
    }
    head[KEPT_BYTES] = at;
    if (at > room)
        return at;
    memcpy(to, head, sizeof head);
    head[KEPT_SUM] = sum_of_kept(to, at);
    memcpy(to, head, sizeof head);
    return at;
}

/* next_kept reads the program at *at, which moves behind it, or returns 0: none lies there within
 * the bytes. */
static int next_kept(const unsigned char *from, uint64_t bytes, uint64_t *at, kept_program *k)
{
    uint64_t words[2];
    if (bytes - *at < sizeof words)
        return 0;
    memcpy(words, from + *at, sizeof words);
    *at += sizeof words;
    k->number = words[0];
    k->bytes = words[1];
    k->binary = from + *at;
    if (k->number >= VARIANTS || k->bytes > bytes - *at || whole_words_of(k->bytes) > bytes - *at)
        return 0;
    *at += whole_words_of(k->bytes);
    return 1;
}

/* fills_kept returns whether the programs that the head promises fill the bytes. */
static int fills_kept(const unsigned char *from, uint64_t bytes, uint64_t programs)
{
    uint64_t at = KEPT_HEAD * sizeof(uint64_t);
    kept_program k;
    while (programs > 0 && next_kept(from, bytes, &at, &k))
        programs--;
    return programs == 0 && at == bytes;
}

/* kept_fault says why the bytes are not kept programs for this device, or gives NULL. */
static const char *kept_fault(const attn_opencl *gpu, const unsigned char *from, size_t bytes)
{
    uint64_t head[KEPT_HEAD];
    if (bytes < sizeof head)
        return "kept programs: too short";
    memcpy(head, from, sizeof head);
    if (head[KEPT_MARK] != KEPT_MARK_1)
        return "kept programs: of another format, or something else";
    if (head[KEPT_BYTES] != bytes)
        return "kept programs: cut off, or followed by more";
    if (head[KEPT_SUM] != sum_of_kept(from, bytes))
        return "kept programs: damaged";
    if (head[KEPT_KEY] != key_of_programs(gpu))
        return "kept programs: of another device, driver or kernels.cl";
    return fills_kept(from, bytes, head[KEPT_PROGRAMS]) ? NULL : "kept programs: damaged";
}

/* take_program leaves out what the driver refuses: it is built from source when it is needed. */
static void take_program(attn_opencl *gpu, const kept_program *k)
{
    const variant v = variant_of((int)k->number);
    const size_t bytes = (size_t)k->bytes;
    const unsigned char *binary = k->binary;
    cl_int error = CL_SUCCESS;
    char sentence[160];
    text t = text_in(sentence, sizeof sentence);
    cl_handle program;
    if (LOAD(&gpu->programs[k->number]))
        return;
    program = gpu->cl.clCreateProgramWithBinary(gpu->context, 1, &gpu->device, &bytes, &binary,
                                                NULL, &error);
    if (!error)
        program = finish_program(gpu, &v, program, &error);
    if (!error) {
        COUNT_ONE(&gpu->taken);
        publish_program(gpu, (int)k->number, program);
    } else {
        explain_error(&t, "the driver refuses a kept program", error);
        say(gpu, ATTN_LOG_WARNING, sentence);
    }
}

static attn_status take_programs(attn_opencl *gpu, const void *bytes, size_t count)
{
    const unsigned char *from = (const unsigned char *)bytes;
    const char *fault = kept_fault(gpu, from, count);
    text why = text_in(gpu->info.binaries_why, sizeof gpu->info.binaries_why);
    uint64_t at = KEPT_HEAD * sizeof(uint64_t);
    kept_program k;
    put(&why, fault ? fault : "ok");
    if (fault)
        say(gpu, ATTN_LOG_INFO, fault);
    while (!fault && next_kept(from, count, &at, &k))
        take_program(gpu, &k);
    return fault ? ATTN_ERR_UNSUPPORTED : ATTN_OK;
}

/* src/listed.c - the keys that p.key_list names for a row. */

/* A key_numbers is a list of keys, ascending. */
typedef struct key_numbers {
    const int32_t *at; /* NULL means that there is none, and all keys count. */
    int64_t count;
} key_numbers;

/* first_listed gives the place of the first number of a list that is j or more; behind the last it is
 * the count. What fills a list up is unsigned more than any key. */
static int64_t first_listed(key_numbers list, int64_t j)
{
    int64_t lo = 0, hi = list.count;
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if ((uint32_t)list.at[middle] < j)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* whole_list gives the list for row i with what fills it up. */
static key_numbers whole_list(const attn_params *p, int64_t b, int64_t kv_head, int64_t i)
{
    const attn_key_list *x = &p->key_list;
    const key_numbers list = { x->data + b * x->stride_batch + kv_head * x->stride_head +
                                   i / rows_of_list(p) * x->stride_seq,
                               x->width };
    return list;
}

/* listed_for gives the list for row i without what fills it up. */
static key_numbers listed_for(const attn_params *p, int64_t b, int64_t kv_head, int64_t i)
{
    key_numbers list = whole_list(p, b, kv_head, i);
    list.count = first_listed(list, (int64_t)1 << 31);
    return list;
}

/* src/call.h - one call: its problem, its plan, its tiles.
 *
 * Every path works on these types. Validation makes a problem, the plan says how it is divided, a
 * tile is what one worker computes at a time.
 */

typedef struct tuning {
    int64_t tile_keys, item_rows, item_bytes, split_work, ahead, auto_naive_keys;
} tuning;

/* These are the names that this library uses for what backends get, too. */
typedef attn_problem problem;
typedef attn_sequence sequence;

/* ROW_AT gives the element offset of row i of head h in a tensor. */
#define ROW_AT(tensor, s, h, row)                                                                  \
    ((s)->b * (tensor).stride_batch + (h) * (tensor).stride_head + (row) * (tensor).stride_seq)

/* range_fn narrows [*lo, *hi) to what a mask leaves to a query at pos. */
typedef void (*range_fn)(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi);

/* A range_list is those of the masks that are on; it has room for all that mask_rules has. */
typedef struct range_list {
    int n;
    range_fn at[3];
} range_list;

/* A lane is one row of a tile. */
typedef struct lane {
    int used;        /* Unused lanes hold zero queries, and their results go nowhere. */
    int64_t head, i; /* They are the query head and the row. */
    int64_t choice;  /* choice is the number of the row among those chosen. */
    int64_t pos;     /* pos is i + offset. */
    int64_t lo, hi;  /* The range masks leave keys lo to hi-1, */
    int64_t cut;     /* and from this one on they are read from p.recent. */
} lane;

/* A key has two versions: as p.k and p.v hold it, and as p.recent does. */
enum { STORED, RECENT, VERSIONS };

/* A key_span is what the lanes of a tile see of a version. */
typedef struct key_span {
    int64_t lo, hi;           /* It is the union of the lanes' ranges, */
    int64_t all_from, all_to; /* and their intersection. */
} key_span;

/* A hull is the rectangle around a tile: what a mask needs to know about all of its lanes. */
typedef struct hull {
    int64_t head_begin, head_end, i_begin, i_end;
} hull;

/* A row_choice is rows first, first + 1, ... of `count` flattened rows of `heads` heads. */
typedef struct row_choice {
    int64_t head0, heads, first, count;
    const int32_t *list; /* NULL means that row number c is c. */
} row_choice;

/* A split says how the keys of each row tile are divided among workers (src/split.c). */
typedef struct split {
    /* parts counts nodes of 2^level chunks each; 0 means that the keys are not divided. */
    int parts;
    int level;
    /* The last `inside` parts are single chunks and are divided themselves. */
    int inside;
    int tiles; /* Such a chunk has this number of tiles of keys, of both versions in turn. */
    int64_t columns, slices;     /* Its V has this number of slices, with `columns` columns each. */
    int64_t items;               /* items counts whole parts and tiles of keys, of all row tiles. */
    int64_t states_bytes, bytes; /* These are bytes of shared memory for a row tile. */
    /* These are offsets into the memory of a chunk that is divided. */
    int64_t s, alpha, high, blocks, counts, chunk_bytes;
} split;

typedef struct plan {
    const attn_kernels *kernels;
    tuning tuning;
    int impl;       /* impl is TILED or NAIVE. */
    int rows, keys; /* These are the sizes of a tile. */
    int small; /* 0, or the plan needs little memory, and halves tiles of keys small - 1 times. */
    int gathered;         /* Nonzero means that row tiles read only the keys of their list. */
    int64_t worker_bytes; /* A worker's row tiles may share this number of bytes. */
    /* An item of the first list has this number of row tiles, which share K and V tiles. */
    int item_tiles;
    int state_slots; /* The merge tree may hold this number of (m, l, o) states at once. */
    /* tiles counts items per kv head: per batch entry, or in all with varlen. */
    int64_t tiles;
    int64_t items;                      /* items counts those of the first list: o, lse, states. */
    int64_t logits_tiles, logits_items; /* These count the second list: logits, */
    int64_t mass_items;                 /* and this the third: the mass of keys. */
    split split;
    int64_t matrix_floats; /* The naive path has the logits, m, l and insight of one head here. */
    int64_t state_floats;  /* state_floats is rows * state_rows(p). */
    /* pitch counts the floats between copied rows of K and of V; 0 means not copied. */
    int64_t pitch[2];
    /* Nonzero marks f32 that does not alias, which is copied only where pages part it: [version]. */
    int in_place[VERSIONS][2];
    /* These are offsets into a slot, in bytes. */
    int64_t stage, row_in, row_out, s, x, lane_values, lane_ints, alpha, blocks, alive;
    int64_t copy[2];
    int64_t matrix, operand_runs, ahead_runs, row_tiles;
    /* These are offsets into a row tile; each of the slot's row tiles has row_tile_bytes. */
    int64_t lanes, qt, qt_units, scales, states, skips, row_tile_bytes;
    int64_t slot_bytes, shared_bytes;
    /* All rows of the batch take this number of keys together first; 0 means none. */
    int64_t prefix_keys;
    int64_t prefix_items;
    /* prefix_why says why shared_keys changes nothing; NULL means that it does, or is 0. */
    const char *prefix_why;
    int workers;
    int modified; /* Nonzero means that a modifier of logits is on. */
    int by_pair;  /* Nonzero means that a mask is on that may hide whole tiles between others. */
    range_list ranges; /* ranges are those of the other masks. */
    int ahead;         /* Nonzero means that products ask for the K and V of the next ones. */
    int rows_ahead; /* Nonzero means that rows are asked for before they are packed or written. */
    int bias_ahead, mask_ahead; /* Nonzero means that products ask for theirs. */
} plan;

enum { KEYS, VALUES };

/* A key_tile is the tile of K and V that a worker's row tiles read at the moment, as f32 rows. */
typedef struct key_tile {
    int64_t j0;
    int n;
    /* The first copied_from rows of K and of V are not copied, and those behind them are. */
    int copied_from[2];
    float *copy[2];
    /* The same of the keys as kernels that round take them: rows of K, and the panel of V. */
    int rounded_from[2];
    /* The slot's row tiles hold the rows of this item; -1 means none (split items). */
    int64_t item;
    /* asked is a key: the row tile that comes to it first asks for what comes after. */
    int64_t asked;
} key_tile;

/* A block is a canonical block of keys inside a tile, cut short by the tile's ends. */
typedef struct block {
    int end;
    attn_lanes lanes; /* No other lane sees a key of it. */
    int raised;       /* Nonzero means that o *= alpha comes before it enters. */
} block;

/* The words of `alive` for a lane. */
#define ALIVE_WORDS(keys) ((keys) / ATTN_ALIVE_BITS + 1)

/* A tile is a row tile. The pointers up to `matrix` lead to what the row tiles of a slot share. */
typedef struct tile {
    const problem *pr;
    const plan *pl;
    key_tile *keys;
    /* stage is [rows][head_dim or head_dim_v], row-major: queries come in, results go out. */
    float *stage;
    const float **row_in; /* row_in[rows] points to queries. */
    float **row_out;      /* row_out[rows] points to results. */
    float *s_tile;        /* s_tile [keys][rows] holds logits, then probabilities. */
    float *x_tile; /* x_tile is [rows][keys]: the bias of each row, scales of keys, or logits. */
    float *lane_values;
    int *lane_ints; /* lane_ints [2][rows] holds integers of one step: ends, distances, counters. */
    float *alpha;   /* alpha is [block][rows]. */
    block *blocks;
    /* alive is [ALIVE_WORDS(keys)][rows], as the kernel hide takes it, from key alive_from on. It is
     * valid only where by_pair is set. */
    uint32_t *alive;
    float *matrix;                           /* The naive path has this head's logits here. */
    const char **operand_runs, **ahead_runs; /* They tell where rows of K or V lie. */
    sequence s;
    /* 0 means that the rows are of s; otherwise entry_rows rows of each batch entry follow. */
    int64_t entry_rows;
    int64_t kv_head;
    hull hull;       /* hull is that of the used lanes where pl->by_pair. */
    int used;        /* used counts the used lanes. */
    attn_lanes span; /* span goes from the first of them to the last. */
    int64_t lo, hi;  /* It is the union of the lanes' ranges. */
    key_span spans[VERSIONS];
    int version;      /* version is that which is read at the moment. */
    key_numbers list; /* Keys count within it, where pl->gathered. */
    int64_t alive_from;
    int64_t column, columns; /* These are columns of V: all of them, or those of a slice. */
    /* Nonzero means that rules by pair gave the class of the current tile: `alive` counts. */
    int by_pair;
    int block_count;
    int insight;   /* Nonzero means that states go on behind o. */
    int referring; /* Nonzero means that the rows' reference is computed (src/skip.c). */
    float *skip;   /* skip is [2][rows], limits and maxima, or NULL where no block is left out. */
    int64_t skip_from, skip_to; /* Every lane may leave out blocks that begin at these keys. */
    float dead; /* softmax stores this for a dead key: +0, or ATTN_DEAD in a redo. */
    lane *lanes;
    float *qt;       /* qt is [head_dim][rows]. */
    float *qt_units; /* qt_units is what pack_units gives, for keys read as whole numbers. */
    float *scales;   /* scales is [head_dim / 32][rows] of whole numbers. */
    float *state; /* state is that of the current chunk, and NULL until a key of it is visible. */
    float *free;  /* Each free state begins with the address of the next one. */
    float *pending[MAX_LEVELS]; /* pending has a state for each tree level, or NULL. */
    int levels;                 /* No state waits from this level on; nothing else counts there. */
} tile;

/* A call lies at the start of the workspace; items only read it, except for `failed`. */
typedef struct call {
    problem pr;
    plan pl;
    float *shared;
    char *slots;
    int slot_count;
    int64_t items; /* items counts those of the list that runs. */
    void (*item)(const struct call *c, char *slot, int64_t index);
    unsigned failed;
} call;

/* src/keys.c - where key j of a sequence lies: rings, pages and p.recent are known here alone. */

/* A key_place is where a key of a sequence lies. Only the functions of this file know
 * that. */
typedef struct key_place {
    int64_t in_sequence; /* It is the row before pages. */
    int64_t table_entry; /* It is the entry that names the page. */
    int64_t entry, row;  /* entry is a batch entry or a page of k and v, and row is a row in it. */
    int64_t left;        /* This and the next left - 1 rows lie one after the other. */
    int64_t listed;      /* It is the place of the key in a list of keys. */
} key_place;

/* enter_run goes to row at->in_sequence: with pages, to slot `slot` of the page of
 * at->table_entry. */
static void enter_run(const attn_rows *rows, key_place *at, int64_t slot)
{
    at->left = rows->ring ? rows->ring - at->in_sequence : INT64_MAX;
    at->row = at->in_sequence;
    if (!rows->page_size)
        return;
    at->entry = rows->table[at->table_entry];
    at->row = slot;
    at->left = min64(at->left, rows->page_size - slot);
}

static key_place key_at(const attn_params *p, const attn_sequence *s, int64_t j)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at = { .in_sequence = s->kv_row + j, .entry = s->b };
    int64_t page = 0;
    if (rows->ring && at.in_sequence >= rows->ring)
        at.in_sequence -= rows->ring;
    if (rows->page_size) {
        page = at.in_sequence / rows->page_size;
        at.table_entry = s->b * rows->table_stride + page;
    }
    enter_run(rows, &at, at.in_sequence - page * rows->page_size);
    return at;
}

/* The place behind those that lie one after the other: key_at without a division. */
static void next_place(const attn_params *p, const attn_sequence *s, key_place *at)
{
    const attn_rows *rows = &p->kv_rows;
    at->in_sequence += at->left;
    at->table_entry++;
    if (rows->ring && at->in_sequence == rows->ring) {
        at->in_sequence = 0;
        at->table_entry = s->b * rows->table_stride;
    }
    enter_run(rows, at, 0);
}

/* The next row of those that lie one after the other; behind the last one `left` is 0. */
static inline void next_row(key_place *at)
{
    at->in_sequence++;
    at->row++;
    at->left--;
}

/* listed_at tells where the key at a place of the list lies. */
static key_place listed_at(const attn_params *p, const attn_sequence *s, key_numbers list,
                           int64_t place)
{
    key_place at = key_at(p, s, list.at[place]);
    at.listed = place;
    return at;
}

/* next_listed goes to the next place of the list. It returns how many rows further that key lies, or
 * 0 if it lies elsewhere; within a page it is found without key_at, which divides. */
static inline int64_t next_listed(const attn_params *p, const attn_sequence *s, key_numbers list,
                                  key_place *at)
{
    const int32_t *number = list.at + at->listed + 1;
    const int64_t gap = number[0] - number[-1];
    if (gap >= at->left) {
        *at = listed_at(p, s, list, at->listed + 1);
        return 0;
    }
    at->listed++;
    at->in_sequence += gap;
    at->row += gap;
    at->left -= gap;
    return gap;
}

/* versions_of counts the versions of keys that a call may read. */
static int versions_of(const attn_params *p)
{
    return p->recent.keys ? VERSIONS : 1;
}

/* The row at pos reads keys from recent_from on from p.recent. */
static int64_t recent_from(const attn_params *p, int64_t pos)
{
    return p->recent.keys ? pos - p->recent.keys + 1 : INT64_MAX;
}

/* recent_at tells where key j lies in p.recent. */
static key_place recent_at(const attn_params *p, const attn_sequence *s, int64_t j)
{
    key_place at = { .entry = p->recent.entries ? p->recent.entries[s->b] : s->b };
    at.row = (s->key_base + j) % p->recent.ring;
    at.left = p->recent.ring - at.row;
    return at;
}

/* The place behind those that lie one after the other, in p.recent. */
static void next_recent_place(const attn_params *p, key_place *at)
{
    at->row = 0;
    at->left = p->recent.ring;
}

/* is_scattered tells whether the rows of a sequence may lie in several places. */
static int is_scattered(const attn_params *p)
{
    return p->kv_rows.ring > 0 || p->kv_rows.page_size > 0;
}

/* src/opencl/arrays.c - arrays as the host has them, and as copies of them that a device gets. */

/* An array lies in the host's memory. It has four axes, strides in elements, 0 where it is
 * broadcast, and elements of 1 bit or of whole bytes. An element is a unit of its storage type, in
 * which `unit` numbers are stored together. */
typedef struct array {
    const void *data;
    int bits, unit;
    int reach; /* enum reach: what a call reads or writes of it */
    int64_t count[4], stride[4];
} array;

/* array_bytes tells of the bytes from an array's first element to its last. */
typedef struct array_bytes {
    char *first;
    int64_t bytes;
    int64_t offset;   /* of element 0 */
    int64_t elements; /* 0 = nothing is there */
    int64_t between;  /* further elements that lie there; below 0: elements overlap */
} array_bytes;

/* ---- shapes */

/* asked counts what a device may ask for: elements along the axes of a call, rows and columns of
 * pairs. */
typedef struct asked {
    call_axes axes;
    int64_t rows, columns;
} asked;

static asked asked_of(const attn_problem *pr)
{
    const attn_block_mask *m = &pr->p.block_mask;
    asked all = { axes_of_call(&pr->p), pr->max_q_len, 0 };
    int64_t *count = all.axes.count, b;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        all.columns = max64(all.columns, s.column + s.kv_len);
    }
    count[AXIS_CELL_ROW] = m->block_q ? ceil_div(all.rows, m->block_q) : 0;
    count[AXIS_CELL_COLUMN] = m->block_k ? ceil_div(pr->max_kv_len, m->block_k) : 0;
    count[AXIS_CELL_OFFSET] = count[AXIS_CELL_ROW] + 1;
    count[AXIS_CELL_LISTED] = cells_listed(&pr->p, count[AXIS_CELL_ROW]);
    return all;
}

/* lies_packed returns whether the sequences of the batch lie one after the other along the axis of
 * rows or keys. */
static int lies_packed(const call_field *f, const call_axes *x)
{
    const int axis = f->axis[2] ? f->axis[2] : f->axis[3];
    const int list = f->axis[1] == AXIS_NONE;
    return (x->packed_q && (axis == AXIS_ROW || (list && axis == AXIS_SEQ_Q))) ||
           (x->packed_kv && (axis == AXIS_KEY || (list && axis == AXIS_SEQ_KV)));
}

/* array_of gives the array of a field, whose strides are resolved; axes without one are packed. */
static array array_of(const call_field *f, const void *base, const asked *all, int reach)
{
    const int is_bits = f->type == F_BITS, unit = is_bits ? 1 : (int)unit_of_field(f, base);
    const int bits = is_bits ? 1 : 8 * (int)element_bytes(f, base);
    array a = { field_data(f, base), bits, unit, reach, { 0 }, { 0 } };
    int64_t packed = 1;
    int axis;
    for (axis = 0; axis < 4; axis++)
        a.count[axis] = all->axes.count[f->axis[axis]];
    if (f->axis[2] == AXIS_LONGEST_Q) {
        a.count[2] = all->rows;
        a.count[3] = all->columns;
    }
    a.count[3] /= unit;
    for (axis = 3; axis >= 0; axis--) {
        a.stride[axis] = f->stride[axis] ? stride_given(f, base, axis) / unit : packed;
        packed = times(packed, a.count[axis]);
    }
    if (lies_packed(f, &all->axes)) {
        a.count[0] = 1;
        a.stride[0] = 0;
    }
    return a;
}

/* array_in_call tells which array of the device a field's is in this call, or NO_ARRAY. */
static int array_in_call(int which, const attn_params *p, int gradients)
{
    switch (which) {
    case IN_V:
        return writes_values(p) ? which : NO_ARRAY;
    case OUT_O:
        return gradients ? IN_O : p->partial ? NO_ARRAY : which;
    case OUT_LSE: /* gradients read it only without statistics */
        return gradients ? (p->stats.data ? NO_ARRAY : IN_LSE) : p->partial ? NO_ARRAY : which;
    case OUT_STATS:
        return gradients ? IN_STATS : p->partial ? NO_ARRAY : which;
    case OUT_M:
    case OUT_L:
    case OUT_STATE_O:
        return p->partial && !gradients ? which : NO_ARRAY;
    case OUT_LOGITS:
        return gradients ? NO_ARRAY : which;
    default:
        return which;
    }
}

/* sums_array gives dbias or dslopes. */
static array sums_array(const attn_sum_axes *sum)
{
    array a = { sum->data, 32, 1, REACH_ALL, { 0 }, { 0 } };
    int axis;
    for (axis = 0; axis < 4; axis++) {
        a.count[axis] = sum->count[axis];
        a.stride[axis] = sum->stride[axis];
    }
    return a;
}

/* held_along counts the different elements along an axis. */
static int64_t held_along(const array *a, int axis)
{
    return a->stride[axis] ? a->count[axis] : min64(a->count[axis], 1);
}

/* byte_of_bit gives the byte that has bit n, which may be below 0. */
static int64_t byte_of_bit(int64_t n)
{
    return n >= 0 ? n / 8 : -((7 - n) / 8);
}

static array_bytes bytes_of_array(const array *a)
{
    array_bytes all = { NULL, 0, 0, 1, 0 };
    int64_t lo = 0, hi = 0, first;
    int axis;
    for (axis = 0; axis < 4; axis++) {
        const int64_t reach = (a->count[axis] - 1) * a->stride[axis];
        lo += min64(reach, 0);
        hi += max64(reach, 0);
        all.elements *= held_along(a, axis);
    }
    if (all.elements == 0)
        return all;
    all.between = hi - lo + 1 - all.elements;
    first = a->bits == 1 ? byte_of_bit(lo) : lo * (a->bits / 8);
    all.bytes = a->bits == 1 ? hi / 8 + 1 - first : (hi - lo + 1) * (a->bits / 8);
    all.first = (char *)(uintptr_t)a->data + first;
    all.offset = -first;
    return all;
}

/* ---- copies */

/* pack_strides sets the strides of a copy, row-major without gaps; axes that are broadcast stay so,
 * and rows of bits begin at whole bytes. It returns the bytes needed. */
static int64_t pack_strides(const array *a, int64_t packed[4])
{
    int64_t elements = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        packed[axis] = a->stride[axis] ? elements : 0;
        elements *= a->stride[axis] ? a->count[axis] : 1;
        if (axis == 3 && a->bits == 1)
            elements = round_up(elements, 8);
    }
    return elements * a->bits / 8;
}

/* An array_copy is an array and its copy, and which way elements go. */
typedef struct array_copy {
    const array *host;
    const int64_t *stride; /* of the copy, packed */
    char *at;              /* its element 0 */
    int back;              /* nonzero: from the copy to the host's array */
} array_copy;

static void copy_bits(const array *a, uint8_t *to, int64_t to_at, int64_t from_at)
{
    const uint8_t *from = (const uint8_t *)a->data;
    const int64_t n = held_along(a, 3);
    int64_t i;
    for (i = 0; i < n; i++, from_at += a->stride[3], to_at++) {
        const int64_t byte = byte_of_bit(from_at);
        const int bit = from[byte] >> (from_at - 8 * byte) & 1;
        to[to_at / 8] = (uint8_t)((to[to_at / 8] & ~(1 << to_at % 8)) | bit << to_at % 8);
    }
}

/* copy_elements copies n elements that lie one after the other, from element `host` of the array
 * and element `packed` of its copy on. */
static void copy_elements(const array_copy *c, int64_t host, int64_t packed, int64_t n)
{
    const int64_t bytes = c->host->bits / 8;
    char *const mine = (char *)(uintptr_t)c->host->data + host * bytes;
    char *const there = c->at + packed * bytes;
    memcpy(c->back ? mine : there, c->back ? there : mine, (size_t)(n * bytes));
}

/* copy_row copies row (x, y, z) of the last axis. */
static void copy_row(const array_copy *c, int64_t x, int64_t y, int64_t z)
{
    const array *a = c->host;
    const int64_t n = held_along(a, 3), *step = a->stride;
    const int64_t host = x * step[0] + y * step[1] + z * step[2];
    const int64_t packed = x * c->stride[0] + y * c->stride[1] + z * c->stride[2];
    int64_t i;
    if (a->bits == 1)
        copy_bits(a, (uint8_t *)c->at, packed, host);
    else if (step[3] == 1 || n <= 1)
        copy_elements(c, host, packed, n);
    else
        for (i = 0; i < n; i++)
            copy_elements(c, host + i * step[3], packed + i, 1);
}

/* copy_rows copies rows from to to-1 of an entry, of all heads. */
static void copy_rows(const array_copy *c, int64_t entry, int64_t from, int64_t to)
{
    const int64_t heads = held_along(c->host, 1);
    int64_t h, i;
    for (h = 0; h < heads; h++)
        for (i = from; i < to; i++)
            copy_row(c, entry, h, i);
}

static void copy_keys(const attn_params *p, const attn_sequence *s, const array_copy *c)
{
    key_place at;
    int64_t left = s->kv_len;
    if (left == 0)
        return;
    at = key_at(p, s, 0);
    for (; left > at.left; next_place(p, s, &at)) {
        copy_rows(c, at.entry, at.row, at.row + at.left);
        left -= at.left;
    }
    copy_rows(c, at.entry, at.row, at.row + left);
}

/* copy_chosen copies the rows that logits are asked of, if they exist. */
static void copy_chosen(const attn_params *p, const attn_sequence *s, const array_copy *c)
{
    int64_t n;
    for (n = 0; n < c->host->count[2]; n++)
        if (entry32(p->logits.rows, n, n) < s->q_len)
            copy_rows(c, s->b, n, n + 1);
}

/* is_dense returns whether the elements lie one after the other, in any order of the axes. */
static int is_dense(const array *a)
{
    int64_t elements = 1, next = 1;
    int turn, axis;
    for (axis = 0; axis < 4; axis++)
        elements *= held_along(a, axis);
    for (turn = 0; turn < 4; turn++)
        for (axis = 0; axis < 4; axis++)
            if (held_along(a, axis) > 1 && (a->stride[axis] == next || a->stride[axis] == -next))
                next *= held_along(a, axis);
    return next == elements;
}

/* shares_rows returns whether sequences, or rows of one, may be the same rows of the array. */
static int shares_rows(const attn_params *p, const array *a)
{
    return held_along(a, 0) < a->count[0] || held_along(a, 2) < a->count[2] ||
           (a->reach == REACH_KEYS && p->kv_rows.table);
}

/* is_whole returns whether the call reads or writes all that the array holds, and nothing else lies
 * between. */
static int is_whole(const attn_problem *pr, const array *a)
{
    const int64_t rows = held_along(a, 0) * held_along(a, 2);
    int64_t used = 0, b;
    if (!is_dense(a) || a->reach == REACH_ALL)
        return is_dense(a);
    for (b = 0; b < pr->p.batch && !shares_rows(&pr->p, a); b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        used += a->reach == REACH_ROWS ? s.q_len : a->reach == REACH_KEYS ? s.kv_len : 0;
    }
    return used == rows;
}

/* copy_array copies rows and keys in use, wherever they lie: padded ones are neither read nor
 * written. */
static void copy_array(const attn_problem *pr, const array_copy *c)
{
    const array *a = c->host;
    int64_t b;
    for (b = 0; a->reach == REACH_ALL && b < held_along(a, 0); b++)
        copy_rows(c, b, 0, held_along(a, 2));
    for (b = 0; a->reach != REACH_ALL && b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        if (a->reach == REACH_ROWS)
            copy_rows(c, b, s.q_row, s.q_row + s.q_len);
        else if (a->reach == REACH_KEYS)
            copy_keys(&pr->p, &s, c);
        else
            copy_chosen(&pr->p, &s, c);
    }
}

/* src/opencl/describe.c - what kernels are told besides arrays: numbers, sequences, tiles. */

/* fill_numbers sets what kernels are told of fields, of the problem and of the plan. */
static void fill_numbers(const attn_problem *pr, const device_plan *pl, int64_t *n)
{
    const attn_params *p = &pr->p;
    copy_numbers(walk_fields(p), n);
    n[N_FLAGS] = flags_of(walk_fields(p)) | (p->force_redo ? F_REDO : 0);
    n[N_ITEMS] = pl->items;
    n[N_PARTS] = pl->parts;
    n[N_SLICES] = pl->slices;
    n[N_TILE_ROWS] = pl->forward.rows;
    n[N_CHUNK_KEYS] = pl->chunk_keys;
    n[N_PART_KEYS] = pl->part_keys;
    n[N_LEVELS] = pl->levels;
    n[N_GROUP] = pr->group;
    n[N_FACTOR] = bits_of(pr->factor);
    n[N_CAP2] = bits_of(pr->cap2);
    n[N_ICAP2] = bits_of(pr->icap2);
    n[N_KEEP] = bits_of(pr->keep_factor);
    n[N_DROP_BELOW] = pr->drop_below;
    n[N_SEED_LOW] = (int64_t)(p->dropout_seed & 0xffffffffu);
    n[N_SEED_HIGH] = (int64_t)(p->dropout_seed >> 32);
    n[N_DIM_V] = writes_values(p) ? p->head_dim_v : 0;
    n[N_BOOL_TYPE] = p->bool_mask.invert != 0;
    n[N_BIT_TYPE] = p->bit_mask.invert != 0;
    n[N_ALL_ROWS] = all_rows(p);
}

/* move_rows makes numbers[number] and those behind it, of a tensor like q, those of packed rows of
 * `width` floats, and keeps what they were in numbers[kept]. */
static void move_rows(const attn_params *p, int number, int kept, int64_t width, int64_t *numbers)
{
    const int64_t head = p->seq_len_q * width;
    const int64_t packed[] = { 0, p->cu_seqlens_q ? 0 : p->num_heads_q * head, head, width,
                               ATTN_F32 };
    memcpy(numbers + kept, numbers + number, sizeof packed);
    memcpy(numbers + number, packed, sizeof packed);
}

static void fill_rotation_numbers(const attn_params *p, const device_plan *pl, int64_t *n)
{
    if (pl->queries_bytes)
        move_rows(p, N_Q, N_GIVEN_Q, query_floats(p), n);
    if (pl->results_bytes)
        move_rows(p, N_O, N_ASKED_O, p->head_dim_v, n);
}

static void fill_gradient_numbers(const attn_params *p, const attn_gradients *g,
                                  const device_plan *pl, int64_t *n)
{
    const int columns = pl->forward.columns;
    copy_numbers(walk_gradient_fields(g), n);
    n[N_FLAGS] |= flags_of(walk_gradient_fields(g));
    n[N_KEY_SLICES] = g->dk.data ? ceil_div(p->head_dim, columns) : 0;
    n[N_VALUE_SLICES] = g->dv.data ? ceil_div(p->head_dim_v, columns) : 0;
}

/* describe_sequences needs numbers that have the strides of arrays already. */
static void describe_sequences(const attn_problem *pr, const int64_t *numbers, int64_t *to)
{
    const attn_params *p = &pr->p;
    int64_t b;
    for (b = 0; b < p->batch; b++, to += S_COUNT) {
        const attn_sequence s = attn_sequence_of(pr, b);
        to[S_Q_ROW] = s.q_row;
        to[S_Q_LEN] = s.q_len;
        to[S_KV_ROW] = s.kv_row;
        to[S_KV_LEN] = s.kv_len;
        to[S_COLUMN] = s.column;
        to[S_OFFSET] = s.offset;
        to[S_KEY_BASE] = s.key_base;
        to[S_PREFIX] = s.prefix;
        to[S_KV_SEGMENT] =
            s.column + entry32(p->cu_seqlens_kv, b, b * numbers[N_KV_SEGMENTS_BATCH]);
    }
}

/* describe_tiles begins with the last rows of a sequence, which a causal mask gives most to do. */
static void describe_tiles(const attn_problem *pr, const device_plan *pl, int32_t *to)
{
    const int64_t rows = pl->forward.rows;
    int64_t b, first;
    for (b = 0; b < pr->p.batch; b++) {
        const int64_t all = attn_sequence_of(pr, b).q_len * pr->group;
        for (first = round_up(all, rows) - rows; first >= 0; first -= rows, to += TILE_COUNT) {
            to[TILE_SEQUENCE] = (int32_t)b;
            to[TILE_FIRST] = (int32_t)first;
        }
    }
}

/* src/opencl/pool.c - device memory that calls leave for later ones.
 *
 * A driver finds memory for a buffer when a kernel first uses it. That takes NVIDIA's 80 us for each
 * (H100, driver 580), where a kernel whose buffers have memory takes 12 us from launch to end.
 * Any thread may take and give: whoever locks a slot has it alone.
 */

/* With -DATTN_EXACT_MEMORY tools see a kernel that goes beyond the end of an array. */
#ifdef ATTN_EXACT_MEMORY
enum { LEAST_POOLED = 0 };
#else
enum { LEAST_POOLED = 4096 };
#endif

/* pooled_bytes rounds up to a power of two, so that calls of about one size share memory. */
static int64_t pooled_bytes(int64_t bytes)
{
    int64_t all = LEAST_POOLED;
    while (all && all < bytes)
        all *= 2;
    return all ? all : bytes;
}

/* is_pooled returns whether a call gives such memory to the pool: the whole pool is at most a
 * sixteenth of the device's memory. */
static int is_pooled(const attn_opencl *gpu, int64_t bytes)
{
    return bytes <= (int64_t)(gpu->info.memory_bytes / (16 * POOL_SLOTS));
}

/* lock_slot returns whether the slot was in this state and now belongs to the caller. */
static int lock_slot(pool_slot *slot, int state)
{
    return LOAD(&slot->state) == state && STORE_FIRST(&slot->state, &state, SLOT_LOCKED);
}

/* unlock_slot hands the slot on, with memory or NULL. Commands of `queue`, where not NULL, may still
 * use the memory. */
static void unlock_slot(pool_slot *slot, cl_handle memory, int64_t bytes, cl_handle queue)
{
    slot->memory = memory;
    slot->queue = queue;
    STORE(&slot->bytes, bytes);
    STORE(&slot->state, memory ? SLOT_FULL : SLOT_EMPTY);
}

/* take_pooled gives memory of just these bytes to commands of the queue, or NULL: there is none. */
static cl_handle take_pooled(attn_opencl *gpu, int64_t bytes, cl_handle queue)
{
    int i;
    for (i = 0; i < POOL_SLOTS; i++) {
        pool_slot *slot = &gpu->pool[i];
        const cl_handle memory = lock_slot(slot, SLOT_FULL) ? slot->memory : NULL;
        if (memory && slot->bytes == bytes && (!slot->queue || slot->queue == queue)) {
            release(gpu->cl.clReleaseCommandQueue, slot->queue);
            unlock_slot(slot, NULL, 0, NULL);
            return memory;
        }
        if (memory)
            unlock_slot(slot, memory, slot->bytes, slot->queue);
    }
    return NULL;
}

static void release_slot(attn_opencl *gpu, const pool_slot *slot)
{
    release(gpu->cl.clReleaseMemObject, slot->memory);
    release(gpu->cl.clReleaseCommandQueue, slot->queue);
}

/* give_pooled keeps the memory in an empty slot or in place of other memory. The queue, where not
 * NULL, is kept as well: otherwise another one could get its handle while its commands run. */
static void give_pooled(attn_opencl *gpu, cl_handle memory, int64_t bytes, cl_handle queue)
{
    const int turn = (int)((unsigned)COUNT_ONE(&gpu->pool_turn) % POOL_SLOTS);
    int i, locked = -1;
    for (i = 0; i < POOL_SLOTS && locked < 0; i++)
        if (lock_slot(&gpu->pool[i], SLOT_EMPTY))
            locked = i;
    if (locked < 0 && lock_slot(&gpu->pool[turn], SLOT_FULL))
        locked = turn;
    if (locked < 0) {
        release(gpu->cl.clReleaseMemObject, memory);
        return;
    }
    release_slot(gpu, &gpu->pool[locked]);
    if (queue)
        gpu->cl.clRetainCommandQueue(queue);
    unlock_slot(&gpu->pool[locked], memory, bytes, queue);
}

static size_t pool_bytes(const attn_opencl *gpu)
{
    int64_t bytes = 0;
    int i;
    for (i = 0; i < POOL_SLOTS; i++)
        bytes += LOAD(&gpu->pool[i].bytes);
    return (size_t)bytes;
}

/* src/opencl/session.c - a session: one call, in the caller's workspace: buffers, kernels, times, errors.
 *
 * After the first error nothing more is done.
 */

enum { MOST_BUFFERS = ARRAY_COUNT + 8 };

/* A place says where an array lies: in the caller's buffer, in the host's memory, in a copy of its
 * bytes, in a copy of what the call uses of it. */
enum place { NAMED, IN_PLACE, WHOLE_COPY, PACKED_COPY };

/* A bound array is one that the device has for the time of the call. */
typedef struct bound {
    array host;
    cl_handle memory;  /* NULL = it is not there */
    const void *svm;   /* of the caller, which memory stands for */
    char *first;       /* byte of the host's array */
    int64_t bytes;     /* of memory that is ours */
    int64_t offset;    /* bytes to element 0 */
    int64_t stride[4]; /* on the device */
    int place;         /* enum place */
} bound;

/* An owned buffer goes to the pool when the call is over, or is released: bytes is 0. */
typedef struct owned {
    cl_handle memory;
    int64_t bytes;
} owned;

/* A timed span goes from the start of one command to the end of another, or of the same. */
enum spent { TO_DEVICE, COMPUTE, TO_HOST };
typedef struct timed {
    cl_handle first, last;
    int on;
} timed;
enum { MOST_TIMED = 64 };

typedef struct session {
    attn_opencl *gpu;
    const cl_api *cl;
    const attn_opencl_call *call;
    const attn_problem *pr;
    device_plan pl;
    cl_handle queue;
    cl_int error;
    const char *failed; /* what the error happened in */
    int buffer_count;
    owned buffers[MOST_BUFFERS];
    cl_handle numbers_buffer, sequences, tiles;
    bound array[ARRAY_COUNT];
    int64_t numbers[N_COUNT];
    int timed_count;
    timed timed[MOST_TIMED]; /* commands whose times nobody has read yet */
} session;

static int has_failed(session *s, cl_int error, const char *what)
{
    if (error && !s->error) {
        s->error = error;
        s->failed = what;
    }
    return s->error != CL_SUCCESS;
}

/* ---- times, by the events of commands */

static double seconds_at(const session *s, cl_handle event, cl_uint what)
{
    uint64_t nanoseconds = 0;
    if (s->cl->clGetEventProfilingInfo(event, what, sizeof nanoseconds, &nanoseconds, NULL))
        return 0;
    return (double)nanoseconds * 1e-9;
}

/* span_seconds measures a span. NVIDIA's driver says that a mapping which copies nothing began at
 * 0. */
static double span_seconds(const session *s, const timed *t)
{
    double from = seconds_at(s, t->first, CL_PROFILING_COMMAND_START);
    if (from == 0)
        from = seconds_at(s, t->last, CL_PROFILING_COMMAND_START);
    return from > 0 ? seconds_at(s, t->last, CL_PROFILING_COMMAND_END) - from : 0;
}

/* read_times waits for the commands and counts their times. */
static void read_times(session *s)
{
    attn_opencl_times *to = s->call->times;
    if (s->timed_count > 0)
        has_failed(s, s->cl->clFinish(s->queue), "waiting for times");
    while (s->timed_count > 0) {
        const timed *t = &s->timed[--s->timed_count];
        double *const sums[] = { &to->to_device, &to->compute, &to->to_host }; /* by enum spent */
        *sums[t->on] += span_seconds(s, t);
        s->cl->clReleaseEvent(t->first);
        if (t->last != t->first)
            s->cl->clReleaseEvent(t->last);
    }
}

/* begin_span tells where the next command puts its event, which begins a span, or gives NULL where
 * nobody asks for times. */
static cl_handle *begin_span(session *s, int on)
{
    timed *t;
    if (!s->call->times)
        return NULL;
    if (s->timed_count == MOST_TIMED)
        read_times(s);
    t = &s->timed[s->timed_count];
    t->first = t->last = NULL;
    t->on = on;
    return &t->first;
}

/* end_span tells where the command that ends the span puts its event. */
static cl_handle *end_span(session *s)
{
    return s->call->times ? &s->timed[s->timed_count].last : NULL;
}

/* keep_span keeps the span when its commands are enqueued. */
static void keep_span(session *s)
{
    timed *t = &s->timed[s->timed_count];
    if (!s->call->times)
        return;
    if (!t->last)
        t->last = t->first;
    if (t->first)
        s->timed_count++;
}

/* own keeps a buffer until the end of the call. */
static cl_handle own(session *s, cl_handle memory, int64_t pooled)
{
    s->buffers[s->buffer_count].memory = memory;
    s->buffers[s->buffer_count++].bytes = pooled;
    return memory;
}

/* new_buffer makes a buffer of the host's memory for the time of this call, or gives NULL after an
 * error. */
static cl_handle new_buffer(session *s, cl_flags flags, int64_t bytes, void *host, const char *what)
{
    cl_int error = s->error;
    cl_handle memory = NULL;
    if (!error)
        memory = s->cl->clCreateBuffer(s->gpu->context, flags, (size_t)bytes, host, &error);
    return has_failed(s, error, what) ? NULL : own(s, memory, 0);
}

/* new_memory gets memory of the device for the time of this call, or gives NULL after an error. */
static cl_handle new_memory(session *s, int64_t bytes, const char *what)
{
    const int64_t rounded = pooled_bytes(bytes), pooled = is_pooled(s->gpu, rounded) ? rounded : 0;
    cl_handle memory = pooled && !s->error ? take_pooled(s->gpu, pooled, s->queue) : NULL;
    cl_int error = s->error;
    if (!memory && !error)
        memory = s->cl->clCreateBuffer(s->gpu->context, CL_MEM_READ_WRITE,
                                       (size_t)(pooled ? pooled : max64(bytes, 4)), NULL, &error);
    return has_failed(s, error, what) ? NULL : own(s, memory, pooled);
}

/* disown gives up what the call owned. After an error nobody knows what commands still use it. */
static void disown(session *s)
{
    const cl_handle queue = s->call->event ? s->queue : NULL;
    while (s->buffer_count > 0) {
        const owned *b = &s->buffers[--s->buffer_count];
        if (b->bytes && !s->error)
            give_pooled(s->gpu, b->memory, b->bytes, queue);
        else
            s->cl->clReleaseMemObject(b->memory);
    }
}

static void *map_buffer(session *s, cl_handle memory, cl_flags flags, int64_t bytes)
{
    const int on = flags == CL_MAP_READ ? TO_HOST : TO_DEVICE;
    cl_int error = s->error;
    void *at = NULL;
    if (!error)
        at = s->cl->clEnqueueMapBuffer(s->queue, memory, 1, flags, 0, (size_t)bytes, 0, NULL,
                                       begin_span(s, on), &error);
    return has_failed(s, error, "mapping an array") ? NULL : at;
}

static void unmap_buffer(session *s, cl_handle memory, void *at)
{
    if (!at)
        return;
    has_failed(s, s->cl->clEnqueueUnmapMemObject(s->queue, memory, at, 0, NULL, end_span(s)),
               "unmapping an array");
    keep_span(s);
}

/* transfer copies all bytes of an array, which are the caller's again when it returns. */
static void transfer(session *s, const bound *b, int back)
{
    cl_handle *const done = begin_span(s, back ? TO_HOST : TO_DEVICE);
    cl_int error = s->error;
    if (!error && back)
        error = s->cl->clEnqueueReadBuffer(s->queue, b->memory, 1, 0, (size_t)b->bytes, b->first, 0,
                                           NULL, done);
    else if (!error)
        error = s->cl->clEnqueueWriteBuffer(s->queue, b->memory, 1, 0, (size_t)b->bytes, b->first,
                                            0, NULL, done);
    if (!has_failed(s, error, "copying an array"))
        keep_span(s);
}

/* ---- kernels */

/* A launch is a kernel that gets its arguments one after the other. */
typedef struct launch {
    session *s;
    const char *name;
    cl_handle kernel;
    cl_uint arguments;
} launch;

/* The items of a work-group. */
static const size_t one_item[] = { 1, 1 };
static const size_t row_group[] = { CL_ROW_GROUP, 1 };
static const size_t tile_group[] = { CL_TX, CL_TY };
static const size_t few_rows_group[] = { CL_TX, FEW_ROWS };

static const size_t *group_of_tile(const variant *v)
{
    return v->rows == FEW_ROWS ? few_rows_group : tile_group;
}

static int64_t row_groups(int64_t items)
{
    return ceil_div(items, CL_ROW_GROUP);
}

static void add_argument(launch *l, size_t bytes, const void *value)
{
    if (!l->s->error)
        has_failed(l->s, l->s->cl->clSetKernelArg(l->kernel, l->arguments++, bytes, value),
                   "setting an argument");
}

/* A kernel never gets NULL: numbers stand for what it does not read. */
static void add_memory(launch *l, cl_handle memory)
{
    const cl_handle given = memory ? memory : l->s->numbers_buffer;
    add_argument(l, sizeof given, &given);
}

static void add_arrays(launch *l, int first, int last)
{
    for (; first <= last; first++)
        add_memory(l, l->s->array[first].memory);
}

static void add_int(launch *l, int64_t value)
{
    const cl_int given = (cl_int)value;
    add_argument(l, sizeof given, &given);
}

static launch open_launch(session *s, const variant *v, const char *name)
{
    launch l = { s, name, NULL, 0 };
    cl_int error = s->error;
    cl_handle program = NULL;
    if (!error)
        program = find_program(s->gpu, v, &error);
    if (!error)
        l.kernel = s->cl->clCreateKernel(program, name, &error);
    if (has_failed(s, error, name))
        return l;
    add_memory(&l, s->numbers_buffer);
    add_memory(&l, s->sequences);
    add_arrays(&l, IN_Q, IN_SINKS);
    return l;
}

/* close_launch enqueues the kernel with x * y * z work-groups and releases it. */
static void close_launch(launch *l, const size_t group[2], int64_t x, int64_t y, int64_t z)
{
    session *s = l->s;
    const size_t local[3] = { group[0], group[1], 1 };
    const size_t global[3] = { (size_t)x * group[0], (size_t)y * group[1], (size_t)z };
    if (!s->error) {
        has_failed(s,
                   s->cl->clEnqueueNDRangeKernel(s->queue, l->kernel, 3, NULL, global, local, 0,
                                                 NULL, begin_span(s, COMPUTE)),
                   l->name);
        keep_span(s);
        if (s->call->times)
            s->call->times->kernels++;
    }
    release(s->cl->clReleaseKernel, l->kernel);
}

/* src/opencl/bind.c - where arrays of a call lie on the device, and how they get there and back. */

/* named_buffer finds the caller's buffer that has the array, or gives NULL. */
static const attn_opencl_buffer *named_buffer(const attn_opencl_call *how, const void *data)
{
    int i;
    for (i = 0; how->buffers && i < how->num_buffers; i++) {
        const attn_opencl_buffer *b = &how->buffers[i];
        if ((uintptr_t)data >= (uintptr_t)b->address &&
            (uintptr_t)data - (uintptr_t)b->address < b->bytes)
            return b;
    }
    return NULL;
}

/* memory_of gives the caller's memory. A buffer of SVM has its storage (OpenCL 2.0, clCreateBuffer
 * with CL_MEM_USE_HOST_PTR), but two of the same bytes would be undefined: one serves all its
 * arrays. */
static cl_handle memory_of(session *s, const attn_opencl_buffer *named)
{
    int64_t bytes = 0;
    int i;
    if (!named->svm)
        return named->mem;
    for (i = 0; i < ARRAY_COUNT; i++)
        if (s->array[i].svm == named->mem)
            return s->array[i].memory;
    for (i = 0; i < s->call->num_buffers; i++) {
        const attn_opencl_buffer *b = &s->call->buffers[i];
        if (b->svm && b->mem == named->mem)
            bytes = max64(bytes, (int64_t)(b->offset + b->bytes));
    }
    return new_buffer(s, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, named->mem, "using SVM");
}

/* bytes_into counts the bytes from the caller's address to the array's element 0. */
static int64_t bytes_into(const attn_opencl_buffer *named, const array *a)
{
    return (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
}

/* fits_named returns whether the array lies where the caller's buffer says, and that is in its
 * memory. */
static int fits_named(session *s, const attn_opencl_buffer *named, const array *a,
                      const array_bytes *all)
{
    const int64_t start = bytes_into(named, a), before = all->offset;
    const int64_t element = a->bits < 8 ? 1 : a->bits / 8, alignment = element & -element;
    size_t room = named->offset + named->bytes;
    const char *fault = NULL;
    if (!named->mem)
        fault = "call.buffers: mem is NULL";
    else if (start - before < 0 || start - before + all->bytes > (int64_t)named->bytes)
        fault = "call.buffers: an array exceeds the bytes of its buffer";
    else if (((int64_t)named->offset + start) % alignment)
        fault = "call.buffers: offset is no multiple of the alignment of an array's elements";
    else if (!named->svm &&
             s->cl->clGetMemObjectInfo(named->mem, CL_MEM_SIZE, sizeof room, &room, NULL))
        fault = "call.buffers: mem is no cl_mem";
    else if (room < named->offset || room - named->offset < named->bytes)
        fault = "call.buffers: offset + bytes exceed the cl_mem";
    return !has_failed(s, fault ? INVALID_VALUE : CL_SUCCESS, fault);
}

/* move_copy brings what the call reads of an array to its copy, or what it has written back. Where
 * an array is used in place, mapping it is enough. */
static void move_copy(session *s, const bound *b, int back)
{
    const cl_flags flags = back ? CL_MAP_READ : CL_MAP_WRITE_INVALIDATE_REGION;
    array_copy c = { &b->host, b->stride, NULL, back };
    if (b->place == WHOLE_COPY) {
        transfer(s, b, back);
        return;
    }
    c.at = (char *)map_buffer(s, b->memory, flags, b->bytes);
    if (c.at && b->place == PACKED_COPY)
        copy_array(s->pr, &c);
    unmap_buffer(s, b->memory, c.at);
}

/* bind_array makes the array an argument of kernels. Its offset becomes numbers[number], and its
 * first strides, which kernels count in single numbers, those behind it. */
static void bind_array(session *s, int which, const array *a, int number, int strides)
{
    const attn_opencl_buffer *named = named_buffer(s->call, a->data);
    const int written = which >= OUT_O;
    const cl_flags flags = written ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    bound *b = &s->array[which];
    array_bytes all;
    int axis;
    if (s->error || !a->data)
        return;
    all = bytes_of_array(a);
    if (all.elements == 0 || (named && !fits_named(s, named, a, &all)))
        return;
    b->host = *a;
    memcpy(b->stride, a->stride, sizeof b->stride);
    if (named) {
        b->place = NAMED;
        b->memory = memory_of(s, named);
        b->svm = named->svm ? named->mem : NULL;
        b->offset = (int64_t)named->offset + bytes_into(named, a);
    } else if (s->gpu->info.shares_memory && (written ? all.between == 0 : all.between <= 0)) {
        b->place = IN_PLACE;
        b->bytes = all.bytes;
        b->memory = new_buffer(s, flags | CL_MEM_USE_HOST_PTR, all.bytes, all.first,
                               "using an array in place");
        b->offset = all.offset;
    } else {
        const int whole = is_whole(s->pr, a);
        b->place = whole ? WHOLE_COPY : PACKED_COPY;
        b->first = all.first;
        b->bytes = whole ? all.bytes : pack_strides(a, b->stride);
        b->offset = whole ? all.offset : 0;
        b->memory = new_memory(s, b->bytes, "memory for an array");
        if (!written)
            move_copy(s, b, 0);
    }
    s->numbers[number] = b->offset;
    for (axis = 0; axis < strides; axis++)
        s->numbers[number + 1 + axis] = b->stride[axis] * a->unit;
}

/* fetch_outputs waits for the device and brings what it has written to the host. */
static void fetch_outputs(session *s)
{
    int out;
    for (out = OUT_O; out < ARRAY_COUNT; out++)
        if (!s->error && s->array[out].memory && s->array[out].place != NAMED)
            move_copy(s, &s->array[out], 1);
}

static void bind_fields(session *s, field_walk w, const asked *all, int gradients)
{
    while (next_field(&w)) {
        const int which = w.row ? array_in_call(w.row->array, &s->pr->p, gradients) : NO_ARRAY;
        array a;
        int strides = 0;
        if (which == NO_ARRAY || !field_data(w.f, w.base))
            continue;
        a = array_of(w.f, w.base, all, w.row->reach);
        while (strides < 4 && w.f->stride[strides])
            strides++;
        bind_array(s, which, &a, w.row->number, strides);
    }
}

/* bind_arrays binds those of attn_forward where g is NULL. */
static void bind_arrays(session *s, const attn_gradient_call *g)
{
    const asked all = asked_of(s->pr);
    bind_fields(s, walk_fields(&s->pr->p), &all, g != NULL);
    if (g) {
        const array bias = sums_array(&g->bias), slopes = sums_array(&g->slopes);
        bind_fields(s, walk_gradient_fields(&g->g), &all, 1);
        bind_array(s, OUT_DBIAS, &bias, N_DBIAS, 4);
        bind_array(s, OUT_DSLOPES, &slopes, N_DSLOPES, 4);
    }
}

/* src/opencl/run.c - the kernels of attn_forward, in order. */

/* simple_variant names a program of rows, of rotation or of the textbook, which do not depend on
 * tiles. */
static variant simple_variant(const session *s, int part)
{
    const variant v = { part, s->pl.forward.exact, MIXED, 64, 64, 1, 0 };
    return v;
}

/* add_results adds OUTPUTS in kernels.cl, and the tiles. */
static void add_results(launch *l)
{
    add_arrays(l, OUT_O, OUT_STATE_O);
    add_memory(l, l->s->tiles);
}

static void run_tiled(session *s)
{
    const device_plan *pl = &s->pl;
    const variant merge = simple_variant(s, PART_ROWS);
    const cl_handle pending = new_memory(s, pl->pending_bytes, "memory for states");
    const cl_handle parts = new_memory(s, pl->parts_bytes, "memory for parts");
    launch l = open_launch(s, &pl->forward, "forward");
    add_results(&l);
    add_memory(&l, pending);
    add_memory(&l, parts);
    close_launch(&l, group_of_tile(&pl->forward), pl->groups, 1, 1);
    if (pl->parts == 1)
        return;
    l = open_launch(s, &merge, "merge_parts");
    add_results(&l);
    add_memory(&l, parts);
    close_launch(&l, row_group, pl->tiles * s->pr->p.num_heads_kv * pl->forward.rows, 1, 1);
}

typedef struct naive_head {
    cl_handle matrix, factors;
    int64_t b, head;
    attn_sequence seq;
} naive_head;

static launch open_naive(session *s, const naive_head *at, const char *name)
{
    const variant v = simple_variant(s, PART_NAIVE);
    launch l = open_launch(s, &v, name);
    add_int(&l, at->b);
    add_int(&l, at->head);
    add_int(&l, at->seq.kv_len);
    add_memory(&l, at->matrix);
    return l;
}

static void run_naive_head(session *s, const naive_head *at)
{
    const int64_t rows = at->seq.q_len, keys = at->seq.kv_len;
    launch l;
    if (keys) {
        l = open_naive(s, at, "naive_scores");
        close_launch(&l, row_group, row_groups(keys), rows, 1);
    }
    l = open_naive(s, at, "naive_softmax");
    add_memory(&l, at->factors);
    add_arrays(&l, OUT_LSE, OUT_STATS);
    close_launch(&l, row_group, row_groups(rows), 1, 1);
    if (s->pr->p.o.data) {
        l = open_naive(s, at, "naive_values");
        add_memory(&l, at->factors);
        add_arrays(&l, OUT_O, OUT_O);
        close_launch(&l, row_group, row_groups(s->pr->p.head_dim_v), rows, 1);
    }
}

static void run_naive(session *s)
{
    const attn_params *p = &s->pr->p;
    naive_head at;
    at.matrix = new_memory(s, matrix_bytes(s->pr), "memory for logits");
    at.factors = new_memory(s, 4 * s->pr->max_q_len, "memory for sums");
    for (at.b = 0; at.b < p->batch; at.b++) {
        at.seq = attn_sequence_of(s->pr, at.b);
        for (at.head = 0; at.head < p->num_heads_q && at.seq.q_len > 0; at.head++)
            run_naive_head(s, &at);
    }
}

static void run_logits(session *s)
{
    const attn_params *p = &s->pr->p;
    const variant v = simple_variant(s, PART_ROWS);
    cl_handle list = NULL;
    launch l;
    if (!s->array[OUT_LOGITS].memory)
        return;
    if (p->logits.rows)
        list = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, p->logits.num_rows * 4,
                          (void *)(uintptr_t)p->logits.rows, "memory for a list of rows");
    l = open_launch(s, &v, "logits");
    add_memory(&l, list);
    add_arrays(&l, OUT_LOGITS, OUT_LOGITS);
    close_launch(&l, row_group, p->logits.num_rows, p->num_heads_q, p->batch);
}

/* launch_rows launches a kernel of rotation with one more array, a group for each row. */
static void launch_rows(session *s, const char *name, cl_handle rows, int outputs)
{
    const variant v = simple_variant(s, PART_ROTATE);
    launch l = open_launch(s, &v, name);
    add_memory(&l, rows);
    add_arrays(&l, OUT_O, OUT_O + outputs - 1);
    close_launch(&l, row_group, s->pr->max_q_len, s->pr->p.num_heads_q, s->pr->p.batch);
}

/* begin_rotation has queries rotated and rounded, and turns the other kernels to memory of ours in
 * place of q and o. */
static void begin_rotation(session *s)
{
    if (s->pl.queries_bytes) {
        const cl_handle queries = new_memory(s, s->pl.queries_bytes, "memory for queries");
        launch_rows(s, "rotate_queries", queries, 0);
        s->array[IN_Q].memory = queries;
    }
    if (s->pl.results_bytes)
        s->array[OUT_O].memory = new_memory(s, s->pl.results_bytes, "memory for results");
}

/* end_rotation has results rotated back to `o`. */
static void end_rotation(session *s, cl_handle o)
{
    const cl_handle results = s->array[OUT_O].memory;
    s->array[OUT_O].memory = o;
    if (s->pl.results_bytes)
        launch_rows(s, "rotate_results", results, 1);
}

static void run_forward(session *s)
{
    const cl_handle o = s->array[OUT_O].memory;
    begin_rotation(s);
    if (runs(&s->pl, PART_NAIVE))
        run_naive(s);
    if (runs(&s->pl, PART_FORWARD))
        run_tiled(s);
    run_logits(s);
    end_rotation(s, o);
}

/* src/opencl/gradients.c - the kernels of attn_backward. */

static void launch_statistics(session *s, cl_handle known)
{
    const attn_params *p = &s->pr->p;
    launch l = open_launch(s, &s->pl.forward, "statistics");
    add_arrays(&l, IN_O, IN_DLSE);
    add_memory(&l, known);
    close_launch(&l, row_group, row_groups(s->pr->max_q_len), p->num_heads_q, p->batch);
}

/* launch_gradients launches kernel `name` with groups for each kv head and sequence. Results go to
 * arrays first to last. */
static void launch_gradients(session *s, const char *name, int64_t groups, cl_handle known,
                             int first, int last)
{
    launch l;
    if (groups == 0)
        return;
    l = open_launch(s, &s->pl.forward, name);
    add_arrays(&l, IN_DOUT, IN_DOUT);
    add_memory(&l, known);
    add_arrays(&l, first, last);
    close_launch(&l, tile_group, groups, s->pr->p.num_heads_kv, s->pr->p.batch);
}

static void launch_sinks(session *s, cl_handle known)
{
    launch l = open_launch(s, &s->pl.forward, "sink_gradients");
    add_memory(&l, known);
    add_arrays(&l, OUT_DSINKS, OUT_DSINKS);
    add_int(&l, s->pr->p.batch);
    close_launch(&l, row_group, row_groups(s->pr->p.num_heads_q), 1, 1);
}

/* A pair_sum is a sum over pairs: dbias or dslopes. */
typedef struct pair_sum {
    const attn_sum_axes *axes;
    int number; /* its first number */
    cl_handle out, known, row_sums;
} pair_sum;

static void launch_sum_ends(session *s, const pair_sum *sum, int first)
{
    const int64_t *n = sum->axes->count;
    launch l;
    if (n[0] * n[1] * n[2] * n[3] == 0)
        return;
    l = open_launch(s, &s->pl.forward, "sum_ends");
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, n[1]);
    add_int(&l, first);
    close_launch(&l, one_item, n[3], n[2], n[0] * n[1]);
}

/* launch_tiles_of_sum adds up tiles of the rows or keys of a head. */
static void launch_tiles_of_sum(session *s, const pair_sum *sum, const char *name, int64_t tiles,
                                int64_t b, int64_t head)
{
    launch l = open_launch(s, &s->pl.forward, name);
    add_arrays(&l, IN_DOUT, IN_DOUT);
    add_memory(&l, sum->known);
    add_memory(&l, sum->out);
    add_memory(&l, sum->row_sums);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    add_int(&l, sum->axes->kept[ATTN_AXIS_ROW]);
    add_int(&l, sum->axes->kept[ATTN_AXIS_KEY]);
    close_launch(&l, tile_group, tiles, 1, 1);
}

static void launch_row_sums(session *s, const pair_sum *sum, int64_t b, int64_t head)
{
    launch l = open_launch(s, &s->pl.forward, "add_row_sums");
    add_memory(&l, sum->row_sums);
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    close_launch(&l, one_item, 1, 1, 1);
}

/* run_sum takes heads and sequences one after the other, as docs/canon.md has it. */
static void run_sum(session *s, const pair_sum *sum)
{
    const attn_params *p = &s->pr->p;
    const int keeps_rows = sum->axes->kept[ATTN_AXIS_ROW];
    const int keeps_keys = sum->axes->kept[ATTN_AXIS_KEY], by_key = keeps_keys && !keeps_rows;
    int64_t b, head;
    launch_sum_ends(s, sum, 1);
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        const int64_t tiles =
            by_key ? ceil_div(seq.kv_len, CL_BN) : ceil_div(seq.q_len, s->pl.forward.rows);
        for (head = 0; head < p->num_heads_q && seq.q_len > 0 && seq.kv_len > 0; head++) {
            launch_tiles_of_sum(s, sum, by_key ? "add_columns" : "add_rows", tiles, b, head);
            if (!keeps_rows && !keeps_keys)
                launch_row_sums(s, sum, b, head);
        }
    }
    launch_sum_ends(s, sum, 0);
}

static void run_sums(session *s, const attn_gradient_call *c, cl_handle known)
{
    const cl_handle row_sums = new_memory(s, 4 * s->pr->max_q_len, "memory for sums of rows");
    const pair_sum sums[] = {
        { &c->bias, N_DBIAS, s->array[OUT_DBIAS].memory, known, row_sums },
        { &c->slopes, N_DSLOPES, s->array[OUT_DSLOPES].memory, known, row_sums },
    };
    int i;
    for (i = 0; i < COUNT_OF(sums); i++)
        if (sums[i].axes->data)
            run_sum(s, &sums[i]);
}

static void run_gradients(session *s, const attn_gradient_call *c)
{
    const attn_problem *pr = s->pr;
    const int64_t tiles = ceil_div(pr->max_q_len * pr->group, s->pl.forward.rows);
    const int64_t key_slices = s->numbers[N_KEY_SLICES] + s->numbers[N_VALUE_SLICES];
    const cl_handle known = new_memory(s, s->pl.statistics_bytes, "memory for statistics");
    if (pr->max_q_len > 0)
        launch_statistics(s, known);
    if (c->g.dq.data)
        launch_gradients(s, "query_gradients", tiles * s->pl.slices, known, OUT_DQ, OUT_DQ);
    launch_gradients(s, "key_gradients", ceil_div(pr->max_kv_len, CL_BN) * key_slices, known,
                     OUT_DK, OUT_DV);
    if (c->g.dsinks)
        launch_sinks(s, known);
    if (c->g.dbias.data || c->g.dslopes)
        run_sums(s, c, known);
}

/* src/opencl/call.c - one call on the device, from its arrays to its end. */

/* Sequences and then tiles are described behind the session in the workspace. */
static int64_t *sequences_of(session *s)
{
    return (int64_t *)(void *)((char *)s + round_up((int64_t)sizeof *s, ALIGNMENT));
}

static int32_t *tiles_of(session *s)
{
    return (int32_t *)(void *)(sequences_of(s) + s->pr->p.batch * S_COUNT);
}

static int64_t session_bytes(const attn_problem *pr, const device_plan *pl)
{
    return ALIGNMENT + round_up((int64_t)sizeof(session), ALIGNMENT) +
           pr->p.batch * S_COUNT * (int64_t)sizeof(int64_t) +
           pl->tiles * TILE_COUNT * (int64_t)sizeof(int32_t);
}

/* send_description has the device copy what lies in the workspace, which stays until the end. */
static cl_handle send_description(session *s, const void *from, int64_t bytes, const char *what)
{
    const cl_handle memory = new_memory(s, bytes, what);
    if (memory)
        has_failed(
            s,
            s->cl->clEnqueueWriteBuffer(s->queue, memory, 0, 0, (size_t)bytes, from, 0, NULL, NULL),
            what);
    return memory;
}

static void describe_call(session *s)
{
    describe_sequences(s->pr, s->numbers, sequences_of(s));
    s->numbers_buffer = send_description(s, s->numbers, sizeof s->numbers, "memory for numbers");
    s->sequences =
        send_description(s, sequences_of(s), s->pr->p.batch * S_COUNT * 8, "memory for sequences");
    if (!s->pl.tiles)
        return;
    describe_tiles(s->pr, &s->pl, tiles_of(s));
    s->tiles = send_description(s, tiles_of(s), s->pl.tiles * TILE_COUNT * 4, "memory for tiles");
}

/* await_inputs has the device wait for the caller's events. */
static void await_inputs(session *s)
{
    const int n = s->call->num_wait;
    if (n > 0 && !s->call->wait)
        has_failed(s, INVALID_VALUE, "call.wait is NULL");
    if (!s->error && n > 0)
        has_failed(s,
                   s->cl->clEnqueueBarrierWithWaitList(s->queue, (cl_uint)n, s->call->wait, NULL),
                   "waiting for the caller's events");
}

static void finish_session(session *s)
{
    if (!s->call->event)
        fetch_outputs(s);
    else if (!s->error)
        has_failed(s, s->cl->clEnqueueMarkerWithWaitList(s->queue, 0, NULL, s->call->event),
                   "the event of the end");
    if (!s->error && s->call->event)
        has_failed(s, s->cl->clFlush(s->queue), "handing over the kernels");
    else
        has_failed(s, s->cl->clFinish(s->queue), "the end of the kernels");
    if (s->call->times)
        read_times(s);
    disown(s);
}

static attn_status report(const session *s)
{
    char sentence[200];
    text t = text_in(sentence, sizeof sentence);
    if (!s->error)
        return ATTN_OK;
    explain_error(&t, s->failed, s->error);
    say(s->gpu, ATTN_LOG_WARNING, sentence);
    if (s->pr->p.log)
        s->pr->p.log(s->pr->p.log_user, ATTN_LOG_WARNING, sentence);
    return ATTN_ERR_CALLBACK;
}

/* open_session makes a session at the start of the workspace, or gives NULL: it is too small. */
static session *open_session(const attn_opencl_call *how, const attn_problem *pr,
                             const device_plan *pl, void *workspace, size_t bytes)
{
    session *s;
    if (!workspace || (int64_t)bytes < session_bytes(pr, pl))
        return NULL;
    s = (session *)(void *)align_memory(workspace);
    memset(s, 0, sizeof *s);
    s->gpu = how->gpu;
    s->cl = &how->gpu->cl;
    s->call = how;
    s->pr = pr;
    s->pl = *pl;
    s->queue = how->queue ? how->queue : how->gpu->queue;
    if (how->times)
        memset(how->times, 0, sizeof *how->times);
    if (how->queue && !is_in_order(s->gpu, s->queue))
        has_failed(s, INVALID_QUEUE, "call.queue must take its commands in order");
    fill_numbers(pr, pl, s->numbers);
    return s;
}

/* run_within runs attn_forward where g is NULL, else attn_backward. Arrays are copied before the
 * device waits for the caller's events: those must not hold copies of the host's. */
static attn_status run_within(const device_limits *limits, const attn_opencl_call *how,
                              const attn_problem *pr, const attn_gradient_call *g, void *workspace,
                              size_t bytes)
{
    const device_plan pl = plan_device(pr, limits, g != NULL);
    session *s = open_session(how, pr, &pl, workspace, bytes);
    if (!s)
        return ATTN_ERR_WORKSPACE;
    if (g)
        fill_gradient_numbers(&pr->p, &g->g, &pl, s->numbers);
    bind_arrays(s, g);
    fill_rotation_numbers(&pr->p, &pl, s->numbers);
    describe_call(s);
    await_inputs(s);
    if (g)
        run_gradients(s, g);
    else
        run_forward(s);
    finish_session(s);
    return report(s);
}

static attn_status run_gradient_call(const attn_backend *self, const attn_problem *pr,
                                     const attn_gradient_call *g, void *workspace, size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    return run_within(&how->gpu->limits, how, pr, g, workspace, bytes);
}

static attn_status run_call(const attn_backend *self, const attn_problem *pr, void *workspace,
                            size_t bytes)
{
    return run_gradient_call(self, pr, NULL, workspace, bytes);
}

static attn_status gradient_workspace(const attn_backend *self, const attn_problem *pr,
                                      const attn_gradient_call *g, size_t *bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_plan pl = plan_device(pr, &how->gpu->limits, g != NULL);
    *bytes = (size_t)session_bytes(pr, &pl);
    return ATTN_OK;
}

static attn_status call_workspace(const attn_backend *self, const attn_problem *pr, size_t *bytes)
{
    return gradient_workspace(self, pr, NULL, bytes);
}

/* src/opencl/check.c - whether the elementary operations of the device give the bits of the CPU.
 *
 * IEEE 754 and OpenCL promise most of them; compilers that fuse or drivers that flush do not keep
 * it.
 */

static uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* check_number makes a number with a random significand, 2^low <= |x| < 2^high; some have all bits
 * set. */
static float check_number(uint32_t seed, int low, int high)
{
    const uint32_t u = mixed(seed), exponent = (uint32_t)(127 + low) + u % (uint32_t)(high - low);
    const uint32_t bits = u % 7 == 0 ? 0x7fffffu : mixed(u) & 0x7fffffu;
    return float_of((u & 0x80000000u) | exponent << 23 | bits);
}

/* A check_kind is an operation whose first number x is made so that 2^low <= |x| < 2^high. */
typedef struct check_kind {
    const char *wrong; /* what is said where the bits differ */
    int low, high;
    int sign; /* of x: -1, 1, or 0 for any */
} check_kind;

static const check_kind check_kinds[CHECK_KINDS] = {
    [CHECK_PRODUCT_SUM] = { "a product and a sum are fused", -12, 12, 0 },
    [CHECK_FMA] = { "fma is not rounded once", -12, 12, 0 },
    [CHECK_RECIPROCAL] = { "1 / x is not correctly rounded", -12, 12, 0 },
    [CHECK_EXP2] = { "2^x", -6, 7, -1 },
    [CHECK_LOG2] = { "log2", -12, 12, 1 },
    [CHECK_TANH] = { "tanh", -12, 5, 0 },
    [CHECK_LOAD_F16] = { "f16 is not read exactly", -12, 12, 0 },
    [CHECK_LOAD_BF16] = { "bf16 is not read exactly", -12, 12, 0 },
    [CHECK_STORE_F16] = { "f16 is not rounded to nearest even", -26, 16, 0 },
    [CHECK_STORE_BF16] = { "bf16 is not rounded to nearest even", -12, 12, 0 },
};

static void fill_checks(check_data *d)
{
    uint32_t i;
    for (i = 0; i < CL_CHECKS; i++) {
        const uint32_t kind = i % CHECK_KINDS;
        const check_kind *k = &check_kinds[kind];
        float *x = &d->in[3 * i];
        x[0] = check_number(3 * i, k->low, k->high);
        x[1] = check_number(3 * i + 1, -4, 4);
        x[2] = check_number(3 * i + 2, -12, 12);
        if (x[0] * (float)k->sign < 0)
            x[0] = -x[0];
        if (kind == CHECK_FMA && i % 2) /* nearly cancels: only one rounding leaves what remains */
            x[2] = -(x[0] * x[1]);
        if (kind == CHECK_LOAD_F16 || kind == CHECK_LOAD_BF16) /* no infinities, no NaN */
            x[0] = float_of(mixed(i) & 0xbbffu);
    }
}

static float product_sum(float x, float y, float z)
{
    float r = x * y;
    r = r + z;
    return r;
}

/* right_answer gives the bits that operation i must give. */
static uint32_t right_answer(const check_data *d, int i)
{
    const float *x = &d->in[3 * i];
    const uint32_t low = bits_of(x[0]) & 0xffffu;
    uint32_t half;
    switch (i % CHECK_KINDS) {
    case CHECK_PRODUCT_SUM:
        return bits_of(product_sum(x[0], x[1], x[2]));
    case CHECK_FMA:
        return bits_of(fma32(FMA_BASE, x[0], x[1], x[2]));
    case CHECK_RECIPROCAL:
        return bits_of(1.0f / x[0]);
    case CHECK_EXP2:
        return bits_of(exp2_canon(x[0]));
    case CHECK_LOG2:
        return bits_of(log2_canon(x[0]));
    case CHECK_TANH:
        return bits_of(tanh_with(FMA_BASE, x[0]));
    case CHECK_LOAD_F16:
        return bits_of(f16_to_f32((uint16_t)low));
    case CHECK_LOAD_BF16:
        return bits_of(bf16_to_f32((uint16_t)low));
    case CHECK_STORE_F16:
        half = f16_from_f32(x[0]);
        return half == 0x8000u ? 0 : half;
    default:
        return bf16_from_f32(x[0]);
    }
}

static void compare_checks(attn_opencl *gpu, const check_data *d)
{
    text why = text_in(gpu->info.exact_why, sizeof gpu->info.exact_why);
    int i;
    gpu->info.exact = 1;
    for (i = 0; i < CL_CHECKS && gpu->info.exact; i++)
        if (bits_of(d->out[i]) != right_answer(d, i)) {
            gpu->info.exact = 0;
            put(&why, "the device's arithmetic differs from the CPU's: ");
            put(&why, check_kinds[i % CHECK_KINDS].wrong);
            put(&why, ", at ");
            put_float(&why, d->in[3 * i]);
        }
}

/* check_device fills in info.exact. */
static void check_device(attn_opencl *gpu)
{
    check_data *d = &gpu->check;
    const variant v = { PART_CHECK, 1, MIXED, 64, 64, 1, 0 };
    const size_t global = CL_CHECKS, local = CL_ROW_GROUP;
    cl_handle program, kernel = NULL, in = NULL, out = NULL, queue = NULL; /* see try_program */
    cl_int error = CL_SUCCESS;
    text why = text_in(gpu->info.exact_why, sizeof gpu->info.exact_why);
    fill_checks(d);
    program = find_program(gpu, &v, &error);
    if (!error)
        queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, 0, &error);
    if (!error)
        kernel = gpu->cl.clCreateKernel(program, "check", &error);
    if (!error)
        in = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                                    sizeof d->in, d->in, &error);
    if (!error)
        out = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE, sizeof d->out, NULL, &error);
    if (!error)
        error = gpu->cl.clSetKernelArg(kernel, 0, sizeof in, &in);
    if (!error)
        error = gpu->cl.clSetKernelArg(kernel, 1, sizeof out, &out);
    if (!error)
        error =
            gpu->cl.clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, &local, 0, NULL, NULL);
    if (!error)
        error = gpu->cl.clEnqueueReadBuffer(queue, out, 1, 0, sizeof d->out, d->out, 0, NULL, NULL);
    if (error)
        explain_error(&why, "the check of the device's arithmetic did not run", error);
    else
        compare_checks(gpu, d);
    release(gpu->cl.clReleaseCommandQueue, queue);
    release(gpu->cl.clReleaseKernel, kernel);
    release(gpu->cl.clReleaseMemObject, in);
    release(gpu->cl.clReleaseMemObject, out);
}

/* src/opencl/trials.c - first use: before a program's first call a small problem runs on it, and on the CPU.
 *
 * Where the results differ, because of a compiler's or a driver's bug, no call uses the program. The
 * problem and all that it needs lie in memory of the driver: the caller has given none yet.
 */

enum verdict { UNTRIED, TRUSTED, DROPPED };

enum {
    TRIAL_HEADS = 2,
    TRIAL_ROWS = 20,
    TRIAL_FEW_ROWS = 7,
    TRIAL_FEWEST_ROWS = 2,
    TRIAL_KEYS = 120,
    TRIAL_DIM = 24,
    TRIAL_UNITS_DIM = 2 * UNIT, /* where K has units */
    TRIAL_COLUMNS = 256,
    TRIAL_LOGITS = 3,
    TRIAL_WORKSPACE = 1 << 20
};
#define TRIAL_BASE 1000   /* number of the first key: chunks and parts end among so few keys */
#define TRIAL_BOUND 1e-4f /* of results up to 1 and logits up to 100, in the device's own order */

typedef struct trial_results {
    float o[TRIAL_HEADS * TRIAL_ROWS * TRIAL_COLUMNS], lse[TRIAL_HEADS * TRIAL_ROWS];
    float stats[2 * TRIAL_HEADS * TRIAL_ROWS];
    float logits[TRIAL_HEADS * TRIAL_LOGITS * TRIAL_KEYS];
    float dq[TRIAL_HEADS * TRIAL_ROWS * TRIAL_DIM];
    float dk[TRIAL_KEYS * TRIAL_DIM], dv[TRIAL_KEYS * TRIAL_COLUMNS];
    float dbias[TRIAL_KEYS], dsinks[TRIAL_HEADS], dslopes[TRIAL_HEADS];
} trial_results;

/* The device has a copy of trial_arrays. */
typedef struct trial_arrays {
    float q[TRIAL_HEADS * TRIAL_ROWS * TRIAL_UNITS_DIM];
    float k[TRIAL_KEYS * TRIAL_UNITS_DIM], v[TRIAL_KEYS * TRIAL_COLUMNS];
    float dout[TRIAL_HEADS * TRIAL_ROWS * TRIAL_COLUMNS], bias[TRIAL_KEYS];
    float slopes[TRIAL_HEADS], sinks[TRIAL_HEADS];
    trial_results out;
} trial_arrays;

typedef struct trial {
    attn_opencl_call how;
    attn_opencl_buffer named;
    device_limits limits;
    attn_params p;
    attn_problem pr; /* p as the device gets it */
    int gradients;   /* nonzero: a trial of attn_backward */
    attn_gradients g;
    int64_t key_base;
    trial_arrays arrays;
    trial_results device;
} trial;

/* fill_random stores n numbers of -most..most, whole units. */
static void fill_random(void *to, int dtype, int64_t n, float most, uint32_t seed)
{
    const int unit = storages[dtype].unit;
    int64_t i, d;
    for (i = 0; i < n; i += unit) {
        float x[UNIT];
        for (d = 0; d < unit; d++)
            x[d] = (float)(int32_t)mixed(seed + (uint32_t)(i + d)) * (most / 2147483648.0f);
        attn_convert((char *)to + bytes_between(dtype, i), dtype, x, ATTN_F32, (size_t)unit);
    }
}

/* A trial_types is what K and V are stored in. A program of MIXED types has a trial for each of K. */
typedef struct trial_types {
    int k, v;
} trial_types;

static int count_trials(const variant *v, int part)
{
    if (v->kv_type != MIXED)
        return 1;
    return part == PART_BACKWARD ? LAST_PLAIN + 1 : v->whole ? MIXED - ATTN_Q8_0 : MIXED;
}

static trial_types types_of_trial(const variant *v, int part, int number)
{
    const int count = part == PART_BACKWARD ? LAST_PLAIN + 1 : MIXED;
    trial_types types = { v->kv_type, v->kv_type };
    if (v->kv_type == MIXED) {
        types.k = (v->whole ? ATTN_Q8_0 : 0) + number;
        types.v = (types.k + 1) % count;
    }
    return types;
}

/* problem_for makes a problem whose plan is the variant; its sizes fill no tile. */
static attn_params problem_for(trial *t, const variant *v, int part, trial_types types)
{
    const int has_units = storages[types.k].unit > 1;
    trial_arrays *a = &t->arrays;
    const attn_params p = {
        .batch = 1,
        .num_heads_q = TRIAL_HEADS,
        .num_heads_kv = 1,
        .seq_len_q = v->rows == FEW_ROWS ? TRIAL_FEWEST_ROWS
                     : v->rows == 16     ? TRIAL_FEW_ROWS
                                         : TRIAL_ROWS,
        .seq_len_kv = TRIAL_KEYS,
        .head_dim = has_units ? TRIAL_UNITS_DIM : TRIAL_DIM,
        .head_dim_v = v->columns - (storages[types.v].unit > 1 ? UNIT : 4),
        .integer = v->whole,
        .rotated = part == PART_ROTATE ? ATTN_ROTATED_K + ATTN_ROTATED_V : 0,
        .q = { .data = a->q },
        .k = { .data = a->k, .dtype = types.k },
        .v = { .data = a->v, .dtype = types.v },
        .o = { .data = a->out.o },
        .lse = { .data = a->out.lse },
        .stats = { .data = a->out.stats },
        .key_base = &t->key_base,
        .causal = 1,
        .window = ATTN_WINDOW,
        /* some rows see all of the first chunk; of few rows each */
        .window_left = v->rows == FEW_ROWS ? TRIAL_KEYS : TRIAL_KEYS - 25,
        .window_right = -1,
        .softcap = v->pairs ? 5 : 0,
        .dropout_p = v->pairs ? 0.25f : 0,
        .alibi_slopes = v->pairs ? a->slopes : NULL,
        .sinks = a->sinks,
        .impl = part == PART_NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED,
        .num_workers = 1,
    };
    return p;
}

/* Gradients are so small that sums of them are up to 10; the maxima of rows rise. */
static void fill_arrays(trial *t)
{
    trial_arrays *a = &t->arrays;
    const int64_t half = TRIAL_KEYS * t->p.head_dim / 2;
    const int k_type = t->p.k.dtype;
    fill_random(a->q, ATTN_F32, COUNT_OF(a->q), 32, 1);
    fill_random(a->k, k_type, half, 1, 2);
    fill_random((char *)a->k + bytes_between(k_type, half), k_type, half, 3, 3);
    fill_random(a->v, t->p.v.dtype, COUNT_OF(a->v), 1, 4);
    fill_random(a->slopes, ATTN_F32, TRIAL_HEADS, 1, 5);
    fill_random(a->dout, ATTN_F32, COUNT_OF(a->dout), 1.0f / 64, 6);
    fill_random(a->sinks, ATTN_F32, TRIAL_HEADS, 2, 7);
    fill_random(a->bias, ATTN_F32, TRIAL_KEYS, 2, 8);
    t->key_base = TRIAL_BASE;
}

/* ask_gradients asks for every gradient that has a kernel. Programs that ask pair by pair have but
 * the LSE, the others have the statistics. */
static void ask_gradients(trial *t, int pairs)
{
    trial_arrays *a = &t->arrays;
    attn_bias *bias = &t->p.bias;
    attn_gradients *g = &t->g;
    t->gradients = 1;
    g->gemms = 7;
    g->dout.data = a->dout;
    g->dq.data = a->out.dq;
    g->dk.data = a->out.dk;
    g->dv.data = a->out.dv;
    g->dsinks = a->out.dsinks;
    if (!pairs)
        return;
    memset(&t->p.stats, 0, sizeof t->p.stats);
    bias->data = a->bias;
    bias->stride_batch = bias->stride_head = bias->stride_q = ATTN_STRIDE_BROADCAST;
    bias->stride_kv = 1;
    g->dbias.data = a->out.dbias;
    g->dslopes = a->out.dslopes;
}

/* make_trial makes a trial of a program: of a part of attn_forward or of gradients. */
static void make_trial(trial *t, attn_opencl *gpu, cl_handle queue, const variant *v, int part,
                       trial_types types)
{
    attn_logits logits = { .stage = ATTN_LOGITS_SOFTMAX, .data = t->arrays.out.logits };
    memset(t, 0, sizeof *t);
    t->how.gpu = gpu;
    t->how.queue = queue;
    t->how.num_buffers = 1;
    t->how.buffers = &t->named;
    t->named.address = &t->arrays;
    t->named.bytes = sizeof t->arrays;
    t->limits = gpu->limits;
    t->limits.divide = part == PART_ROWS;
    t->p = problem_for(t, v, part, types);
    logits.num_rows = min64(TRIAL_LOGITS, t->p.seq_len_q);
    fill_arrays(t);
    if (part == PART_ROWS)
        t->p.logits = logits;
    if (part == PART_BACKWARD)
        ask_gradients(t, v->pairs);
}

/* join_statistics has m + log2(l) in place of m and l: devices that divide keys in their own order
 * choose another m. */
static void join_statistics(trial_results *of)
{
    int i;
    for (i = 0; i < COUNT_OF(of->stats); i += 2) {
        of->stats[i] = of->stats[i] + log2_canon(of->stats[i + 1]);
        of->stats[i + 1] = 0;
    }
}

/* is_near returns whether the device's results will do; *off is by how much they are off at most. */
static int is_near(const trial *t, float *off)
{
    const float *right = t->arrays.out.o, *got = t->device.o;
    const int count = (int)(sizeof t->device / sizeof *got);
    int i, all_near = 1;
    *off = 0;
    for (i = 0; i < count; i++) {
        const float d = right[i] > got[i] ? right[i] - got[i] : got[i] - right[i];
        if (bits_of(right[i]) == bits_of(got[i]))
            continue;
        if (d > *off || is_nan(d))
            *off = d;
        all_near = all_near && !t->limits.exact && d <= TRIAL_BOUND;
    }
    return all_near;
}

static attn_status call_cpu(trial *t, int gradients)
{
    return gradients ? attn_backward(&t->p, &t->g, t + 1, TRIAL_WORKSPACE)
                     : attn_forward(&t->p, t + 1, TRIAL_WORKSPACE);
}

static attn_status call_device(trial *t)
{
    text nobody = text_in(NULL, 0);
    attn_gradient_call g;
    attn_status status = attn_problem_of(&t->p, &t->pr, NULL, 0);
    if (!status && t->gradients)
        status = resolve_gradients(&t->pr.p, &t->g, &nobody);
    if (status)
        return status;
    g.g = t->g;
    add_axes(&t->pr.p, &g);
    return run_within(&t->limits, &t->how, &t->pr, t->gradients ? &g : NULL, t + 1,
                      TRIAL_WORKSPACE);
}

/* run_trial returns whether CPU and device agree on the problem; *why says how they do not. */
static int run_trial(trial *t, text *why)
{
    const attn_opencl *gpu = t->how.gpu;
    cl_int error = CL_SUCCESS;
    attn_status status = ATTN_OK;
    float off = 0;
    if (t->gradients)
        status = call_cpu(t, 0); /* they read o, and stats or lse */
    t->named.mem = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                          sizeof t->arrays, &t->arrays, &error);
    if (error) {
        explain_error(why, "its arrays", error);
        return 0;
    }
    if (!status)
        status = call_cpu(t, t->gradients);
    if (!status)
        status = call_device(t);
    if (!status)
        error =
            gpu->cl.clEnqueueReadBuffer(t->how.queue, t->named.mem, 1, offsetof(trial_arrays, out),
                                        sizeof t->device, &t->device, 0, NULL, NULL);
    gpu->cl.clReleaseMemObject(t->named.mem);
    if (status || error) {
        put(why, "it did not run");
        return 0;
    }
    if (!t->limits.exact) {
        join_statistics(&t->arrays.out);
        join_statistics(&t->device);
    }
    if (is_near(t, &off))
        return 1;
    put(why, "it is off by ");
    put_float(why, off);
    return 0;
}

/* try_program runs trials on a queue of its own: the caller's may be waiting for the caller. The
 * program stays UNTRIED where there is no memory for it now. */
static int try_program(attn_opencl *gpu, const variant *v, int part, text *why)
{
    const size_t bytes = sizeof(trial) + TRIAL_WORKSPACE;
    cl_int error = CL_SUCCESS;
    cl_handle memory = NULL, queue;
    trial *t = NULL;
    int found = UNTRIED, number;
    queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, 0, &error);
    if (!error)
        memory = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                        bytes, NULL, &error);
    if (!error)
        t = (trial *)gpu->cl.clEnqueueMapBuffer(queue, memory, 1, CL_MAP_READ | CL_MAP_WRITE, 0,
                                                bytes, 0, NULL, NULL, &error);
    if (error) {
        explain_error(why, "memory to try it in", error);
    } else {
        found = TRUSTED;
        for (number = 0; number < count_trials(v, part) && found == TRUSTED; number++) {
            make_trial(t, gpu, queue, v, part, types_of_trial(v, part, number));
            found = run_trial(t, why) ? TRUSTED : DROPPED;
        }
        gpu->cl.clEnqueueUnmapMemObject(queue, memory, t, 0, NULL, NULL);
        gpu->cl.clFinish(queue);
    }
    release(gpu->cl.clReleaseMemObject, memory);
    release(gpu->cl.clReleaseCommandQueue, queue);
    return found;
}

static const char *const distrusted[PART_COUNT] = {
    "kernel forward failed its first check on this device",
    "kernel merge_parts or logits failed its first check on this device",
    "kernel rotate_queries or rotate_results failed its first check on this device",
    "kernels naive failed their first check on this device",
    NULL,
    "kernels of gradients failed their first check on this device",
};

static const char untried[] = "a kernel could not be checked before its first use";

/* verdict_on judges the program of this part, and the kernel forward where it takes part: what is
 * TRUSTED may be used. */
static int verdict_on(attn_opencl *gpu, const variant *forward, int part)
{
    char sentence[200 + MOST_OPTIONS], figure[120];
    text t = text_in(sentence, sizeof sentence), why = text_in(figure, sizeof figure);
    int volatile *verdict;
    int before = UNTRIED, now;
    variant v = *forward;
    v.part = part;
    verdict = &gpu->verdicts[variant_number(&v)];
    now = LOAD(verdict);
    if (now != UNTRIED)
        return now;
    now = try_program(gpu, forward, part, &why);
    if (now != UNTRIED && !STORE_FIRST(verdict, &before, now))
        return before;
    if (now == TRUSTED)
        return now;
    put(&t, now == DROPPED ? distrusted[part] : untried);
    put(&t, ": ");
    put(&t, figure);
    put(&t, "; ");
    build_options(gpu, &v, t.at, t.left);
    say(gpu, ATTN_LOG_WARNING, sentence);
    return now;
}

/* distrust says why the call must not use its programs, or gives NULL. */
static const char *distrust(attn_opencl *gpu, const device_plan *pl)
{
    int part, found;
    for (part = 0; part < PART_COUNT && !gpu->options.unchecked; part++) {
        found = runs(pl, part) ? verdict_on(gpu, &pl->forward, part) : TRUSTED;
        if (found != TRUSTED)
            return found == DROPPED ? distrusted[part] : untried;
    }
    return NULL;
}

/* src/opencl/refusals.c - what the device does not do. */

/* call_flops counts as attn_explain does, but all pairs of a sequence that is masked, or half of
 * them if it is causal: what a mask hides is not worth a walk over it at every call. */
static double call_flops(const attn_problem *pr)
{
    const attn_params *p = &pr->p;
    double pairs = 0;
    int64_t b;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        pairs += (double)s.q_len * (double)s.kv_len;
    }
    return 2.0 * pairs * (double)p->num_heads_q * (double)(p->head_dim + p->head_dim_v) /
           (p->causal && pr->max_q_len > 1 ? 2 : 1);
}

/* find_array gives the name of the first array that call.buffers name or, with `written`, of the
 * first output that they do not name. Without such an array it gives NULL. */
static const char *find_array(const attn_opencl_call *how, const attn_params *p, field_walk w,
                              int gradients, int written)
{
    while (next_field(&w)) {
        int which = w.row && !w.row->shared ? w.row->array : NO_ARRAY;
        const void *data;
        if (written)
            which = array_in_call(which, p, gradients);
        data = which >= (written ? OUT_O : IN_Q) ? field_data(w.f, w.base) : NULL;
        if (data && written == !named_buffer(how, data))
            return w.f->name;
    }
    return NULL;
}

/* find_in_call also looks at gradients, unless g is NULL, and at sums over pairs. */
static const char *find_in_call(const attn_opencl_call *how, const attn_params *p,
                                const attn_gradient_call *g, int written)
{
    const char *found = find_array(how, p, walk_fields(p), g != NULL, written);
    if (!g)
        return found;
    if (!found)
        found = find_array(how, p, walk_gradient_fields(&g->g), 1, written);
    if (!found && g->bias.data && written == !named_buffer(how, g->bias.data))
        found = "dbias";
    if (!found && g->slopes.data && written == !named_buffer(how, g->slopes.data))
        found = "dslopes";
    return found;
}

/* call_fault says why anything of the call but its plan, of the object or of its options stands
 * against it, or gives NULL. */
static const char *call_fault(const attn_opencl_call *how, const attn_problem *pr,
                              const attn_gradient_call *g)
{
    const double flops = (g ? 2.5 : 1) * call_flops(pr);
    const refusal refusals[] = {
        { how->event != NULL && how->times != NULL,
          "times are known when a call has ended: with event it returns before" },
        { pr->impl != ATTN_IMPL_NAIVE && flops < how->gpu->options.least_flops,
          "fewer operations than least_flops: too small for the device" },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

static const char *object_fault(const attn_opencl *gpu)
{
    if (!gpu || !gpu->queue)
        return "no device is open";
    return gpu->limits.exact && !gpu->info.exact ? gpu->info.exact_why : NULL;
}

/* takes returns whether the device takes the call; *why says why not. */
static int takes(const attn_opencl_call *how, const attn_problem *pr, const attn_gradient_call *g,
                 text *why)
{
    const char *fault = object_fault(how->gpu), *missing;
    device_plan pl;
    if (refuse_unknown(walk_fields(&pr->p), why) ||
        (g && refuse_unknown(walk_gradient_fields(&g->g), why)))
        return 0;
    missing = !fault && how->event ? find_in_call(how, &pr->p, g, 1) : NULL;
    if (missing) {
        put(why, missing);
        fault = " is not in call.buffers";
    }
    if (!fault)
        fault = call_fault(how, pr, g);
    if (!fault) {
        pl = plan_device(pr, &how->gpu->limits, g != NULL);
        fault = plan_fault(pr, &how->gpu->limits, &pl);
    }
    if (!fault)
        fault = distrust(how->gpu, &pl);
    put(why, fault ? fault : "");
    return fault == NULL;
}

/* The CPU cannot take a call that waits for the device or has arrays there. */
static int supports_gradients(const attn_backend *self, const attn_problem *pr,
                              const attn_gradient_call *g, char *sentence, size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    text why = text_in(sentence, bytes);
    if (takes(how, pr, g, &why))
        return 1;
    if (!how->event && !find_in_call(how, &pr->p, g, 0))
        return 0;
    put(&why, "; the CPU cannot take what waits for the device or lies there");
    return -1;
}

static int supports_call(const attn_backend *self, const attn_problem *pr, char *why,
                         size_t why_bytes)
{
    return supports_gradients(self, pr, NULL, why, why_bytes);
}

/* src/opencl/opencl.c - attention on OpenCL devices: the public functions. */

ATTN_API size_t attn_opencl_size(void)
{
    return sizeof(attn_opencl);
}

/* begin_object returns where the object's sentence goes. */
static text begin_object(attn_opencl *gpu, const attn_opencl_options *options)
{
    memset(gpu, 0, sizeof *gpu);
    if (options)
        gpu->options = *options;
    return text_in(gpu->why, sizeof gpu->why);
}

ATTN_API attn_status attn_opencl_open(attn_opencl *gpu, const attn_opencl_options *options)
{
    const attn_opencl_options *o;
    attn_status status;
    text why;
    if (!gpu)
        return ATTN_ERR_ARG;
    why = begin_object(gpu, options);
    o = &gpu->options;
    gpu->limits.exact = o->exact != 0;
    gpu->plain.gpu = gpu;
    if (o->build_options && strlen(o->build_options) >= sizeof gpu->build_options)
        return bad(&why, ATTN_ERR_ARG, "build_options has more than 99 letters");
    if (o->build_options)
        memcpy(gpu->build_options, o->build_options, strlen(o->build_options) + 1);
    if (!load_library(gpu, &why))
        return ATTN_ERR_UNSUPPORTED;
    status = open_queue(gpu, &why);
    if (status)
        return status;
    describe_device(gpu);
    if (o->binaries)
        take_programs(gpu, o->binaries, o->binaries_bytes);
    if (gpu->limits.exact)
        check_device(gpu);
    put(&why, "ok");
    return ATTN_OK;
}

ATTN_API int attn_opencl_list(attn_opencl *gpu, const attn_opencl_options *options,
                              attn_opencl_device *devices, int most)
{
    device_walk walk = { .list = devices, .room = most };
    text why;
    if (!gpu || most < 0 || (most > 0 && !devices))
        return 0;
    why = begin_object(gpu, options);
    if (load_library(gpu, &why))
        walk_devices(gpu, &walk, &why);
    if (walk.best)
        put(&why, "ok");
    if (gpu->library)
        CLOSE_LIBRARY(gpu->library);
    gpu->library = NULL;
    return (int)walk.devices;
}

ATTN_API void attn_opencl_close(attn_opencl *gpu)
{
    int i;
    if (!gpu)
        return;
    for (i = 0; i < VARIANTS; i++)
        release(gpu->cl.clReleaseProgram, gpu->programs[i]);
    for (i = 0; i < POOL_SLOTS; i++)
        release_slot(gpu, &gpu->pool[i]);
    release(gpu->cl.clReleaseCommandQueue, gpu->queue);
    release(gpu->cl.clReleaseContext, gpu->context);
    if (gpu->library)
        CLOSE_LIBRARY(gpu->library);
    memset(gpu, 0, sizeof *gpu);
}

ATTN_API const char *attn_opencl_why(const attn_opencl *gpu)
{
    return gpu ? gpu->why : "no memory for the object: gpu is NULL";
}

ATTN_API const char *attn_opencl_build_log(const attn_opencl *gpu)
{
    return gpu ? gpu->build_log : "";
}

ATTN_API attn_status attn_opencl_info_get(const attn_opencl *gpu, attn_opencl_info *info)
{
    int i;
    if (!gpu || !info || !gpu->queue)
        return ATTN_ERR_ARG;
    *info = gpu->info;
    info->built = LOAD(&gpu->built);
    info->taken = LOAD(&gpu->taken);
    info->dropped = 0;
    for (i = 0; i < VARIANTS; i++)
        info->dropped += LOAD(&gpu->verdicts[i]) == DROPPED;
    info->pool_bytes = pool_bytes(gpu);
    return ATTN_OK;
}

ATTN_API size_t attn_opencl_binaries_get(const attn_opencl *gpu, void *to, size_t bytes)
{
    if (!gpu || !gpu->queue)
        return 0;
    return keep_programs(gpu, (unsigned char *)to, to ? bytes : 0);
}

ATTN_API attn_status attn_opencl_binaries_set(attn_opencl *gpu, const void *from, size_t bytes)
{
    if (!gpu || !gpu->queue || !from)
        return ATTN_ERR_ARG;
    return take_programs(gpu, from, bytes);
}

ATTN_API attn_backend attn_opencl_backend(attn_opencl *gpu, attn_opencl_call *how)
{
    static const attn_opencl_call nothing; /* of no object */
    const attn_backend backend = {
        .abi = ATTN_KERNEL_ABI,
        .name = "opencl",
        .user = how   ? how
                : gpu ? &gpu->plain
                      : (void *)(uintptr_t)&nothing,
        .supports = supports_call,
        .workspace_size = call_workspace,
        .run = run_call,
        .supports_gradients = supports_gradients,
        .gradients_size = gradient_workspace,
        .run_gradients = run_gradient_call,
    };
    if (how)
        how->gpu = gpu;
    return backend;
}

static void show_plan(const attn_problem *pr, const device_plan *pl, attn_opencl_plan_info *to)
{
    to->forward = runs(pl, PART_FORWARD);
    to->merge_parts = to->forward && pl->parts > 1;
    to->naive = runs(pl, PART_NAIVE);
    to->logits = pr->p.logits.data != NULL;
    to->rotate_queries = pl->queries_bytes > 0;
    to->rotate_results = pl->results_bytes > 0;
    to->device_bytes = (size_t)(pl->queries_bytes + pl->results_bytes);
    if (to->naive)
        to->device_bytes += (size_t)(matrix_bytes(pr) + 4 * pr->max_q_len);
    if (!to->forward)
        return;
    to->tile_rows = pl->forward.rows;
    to->tile_columns = pl->forward.columns;
    to->tiles = pl->tiles;
    to->slices = pl->slices;
    to->parts = pl->parts;
    to->part_keys = pl->parts > 1 ? pl->part_keys : 0;
    to->items = pl->items;
    to->groups = pl->groups;
    to->local_bytes = (size_t)pl->local_bytes;
    to->device_bytes += (size_t)(pl->pending_bytes + pl->parts_bytes);
}

ATTN_API attn_status attn_opencl_plan(const attn_opencl_info *info, const attn_params *p,
                                      attn_opencl_plan_info *to)
{
    device_limits limits;
    device_plan pl;
    attn_problem pr;
    attn_status status;
    const char *fault;
    text why;
    if (!to)
        return ATTN_ERR_ARG;
    memset(to, 0, sizeof *to);
    why = text_in(to->why, sizeof to->why);
    if (!info || !p)
        return bad(&why, ATTN_ERR_ARG, "info and p must not be NULL");
    if (info->compute_units < 1)
        return bad(&why, ATTN_ERR_ARG, "info.compute_units must be at least 1");
    status = attn_problem_of(p, &pr, to->why, sizeof to->why);
    if (status)
        return status;
    limits = limits_of(info, info->exact);
    pl = plan_device(&pr, &limits, 0);
    if (refuse_unknown(walk_fields(&pr.p), &why))
        return ATTN_OK;
    fault = plan_fault(&pr, &limits, &pl);
    put(&why, fault ? fault : "ok");
    if (fault)
        return ATTN_OK;
    to->runs = 1;
    show_plan(&pr, &pl, to);
    return ATTN_OK;
}
