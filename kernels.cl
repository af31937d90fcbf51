/* kernels.cl - attention for devices, OpenCL C 1.2. Built and run by attn_opencl.c.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * Each result follows docs/canon.md: with EXACT the same bits as on the CPU; without it the
 * exponential is the device's own and keys are divided where it pays, so that sums run in another
 * order. Options that attn_opencl.c builds with:
 *
 *     EXACT      1: exp2 of docs/canon.md; 0: native_exp2
 *     KV_TYPE    storage of K and V: an attn_cl_type; 8: as the numbers say
 *     WHOLE      1: the kernel forward computes scores in whole numbers
 *     BM         query rows of a tile: 4, 16, 32 or 64
 *     DVB        columns of V of a tile: 64, 128 or 256
 *     PAIRS      1: with masks and modifiers that must be asked pair by pair; 0: ranges only
 *     INLINE     1: functions of tiles become parts of the kernel, so that what they get by address
 *                is in registers; 0: as the compiler likes, CPUs' take half the time for it
 *     PART_...   1: which kernels this program holds: FORWARD, BACKWARD, ROWS, ROTATE, NAIVE, CHECK
 *
 * CONTENTS
 *    1  Numbers      what the host says of a call, by name; read by attn_opencl.c, too
 *    2  Arithmetic   storage types, elementary functions
 *    3  Problem      sequences, rows, keys, masks, logits
 *    4  Tiles        Q K^T, softmax, P V for a tile of rows by tiles of keys
 *    5  Chunks       states, the merge tree, the result of a row
 *    6  Forward      the kernel
 *    7  Rows         parts merged; logits and probabilities of chosen rows
 *    8  Rotation     queries before the other kernels read them, results behind those
 *    9  Naive        the textbook in three kernels
 *   10  Gradients    of rows, of keys, and sums
 *   11  Check        what attn_opencl.c asks a device before it is trusted
 */

/* ------------------------------------------------------------------------------------------------
 * 1  Numbers: an array of 64-bit integers. Offsets are in bytes, strides in elements.
 * --------------------------------------------------------------------------------------------- */

#define ATTN_CL_TENSOR(name) /* offset, strides of batch, head, row; storage type */               \
    name, name##_BATCH, name##_HEAD, name##_SEQ, name##_TYPE
#define ATTN_CL_PAIRS(name) /* offset, strides of batch, head, query, key; type or inversion */    \
    name, name##_BATCH, name##_HEAD, name##_QUERY, name##_KEY, name##_TYPE

enum attn_cl_number {
    N_FLAGS,
    N_ITEMS, N_PARTS, N_SLICES,      /* work: items = tiles * kv heads * parts * slices */
    N_TILE_ROWS,                     /* BM of the kernel forward */
    N_HEADS, N_HEADS_KV, N_GROUP, N_DIM, N_DIM_V,
    N_STATE_ROWS,                    /* of a head: see state_row in attn.h */
    N_VARLEN,                        /* q is packed: cu_seqlens_q */
    N_CHUNK_KEYS, N_PART_KEYS,       /* keys of a chunk; of a part, in whole chunks */
    N_LEVELS,                        /* pending states of a work-group */
    N_FACTOR, N_CAP2, N_ICAP2, N_KEEP, /* bits of floats, as in struct problem */
    N_DROP_BELOW, N_SEED_LOW, N_SEED_HIGH,
    N_WINDOW_LEFT, N_WINDOW_RIGHT, N_CHUNKED,
    ATTN_CL_TENSOR(N_Q), ATTN_CL_TENSOR(N_K), ATTN_CL_TENSOR(N_V), ATTN_CL_TENSOR(N_O),
    ATTN_CL_TENSOR(N_LSE), ATTN_CL_TENSOR(N_STATS),
    N_RING, N_PAGE_SIZE, N_TABLE, N_TABLE_STRIDE,
    ATTN_CL_PAIRS(N_BIAS), ATTN_CL_PAIRS(N_BOOL), ATTN_CL_PAIRS(N_BIT),
    N_BLOCK_Q, N_BLOCK_K,
    N_BITMAP, N_BITMAP_BATCH, N_BITMAP_HEAD, N_BITMAP_ROW,
    N_OFFSETS, N_OFFSETS_BATCH, N_OFFSETS_HEAD, N_COLUMNS,
    N_Q_SEGMENTS, N_Q_SEGMENTS_BATCH, N_KV_SEGMENTS, N_KV_SEGMENTS_BATCH,
    N_TREE, N_TREE_BATCH,
    N_SLOPES, N_SLOPES_BATCH, N_SINKS,
    N_STATE_M, N_STATE_L, N_STATE_O, /* offsets of raw states asked for */
    N_STAGE, N_CHOSEN, N_CHOSEN_LIST, N_LOGITS, N_COLUMN_COUNT, /* logits asked for */
    N_SCALE,                         /* bits of a float */
    N_ZERO,                          /* 0, which no compiler knows: see in_order */
    ATTN_CL_TENSOR(N_DOUT), ATTN_CL_TENSOR(N_DLSE),
    ATTN_CL_TENSOR(N_DQ), ATTN_CL_TENSOR(N_DK), ATTN_CL_TENSOR(N_DV),
    N_KEY_SLICES, N_VALUE_SLICES,    /* columns of dk and of dv that are asked for, by DVB */
    N_ALL_ROWS,                      /* of all heads: see state_row in attn.h */
    N_DSINKS, ATTN_CL_PAIRS(N_DBIAS), ATTN_CL_PAIRS(N_DSLOPES),
    N_ROTATED,                       /* sum of ROTATED_K and ROTATED_V */
    ATTN_CL_TENSOR(N_GIVEN_Q), ATTN_CL_TENSOR(N_ASKED_O), /* where rows are rotated on the way */
    N_COUNT
};

/* Storage types, as attn_dtype; K and V alone may have those from TYPE_E4M3 on. */
enum attn_cl_type { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_E4M3, TYPE_E5M2, TYPE_Q8_0, TYPE_Q5_0,
                    TYPE_Q4_0, TYPE_MIXED };

enum attn_cl_flag {
    F_CAUSAL = 1, F_WINDOW = 2, F_CHUNKED = 4, F_BITMAP = 8, F_CSR = 16, F_TREE = 32,
    F_SEGMENTS = 64, F_BOOL_MASK = 128, F_BIT_MASK = 256, F_SOFTCAP = 512, F_BIAS = 1024,
    F_ALIBI = 2048, F_DROPOUT = 4096, F_SOFTMAX1 = 8192, F_SINKS = 16384, F_PARTIAL = 32768,
    F_O = 65536, F_LSE = 131072, F_REDO = 262144, F_DLSE = 524288,
    F_STATS = 1048576, F_INTEGER = 2097152
};

enum attn_cl_rotated { ROTATED_K = 1, ROTATED_V = 2 };

/* A sequence of the batch, as in attn.h. */
enum attn_cl_sequence { S_Q_ROW, S_Q_LEN, S_KV_ROW, S_KV_LEN, S_COLUMN, S_OFFSET, S_KEY_BASE,
                        S_PREFIX, S_KV_SEGMENT, S_COUNT };
enum attn_cl_tile { TILE_SEQUENCE, TILE_FIRST, TILE_COUNT }; /* first of the flattened rows */

/* What gradients know of all rows, each in an array of its own. */
enum attn_cl_known { KNOWN_M, KNOWN_R, KNOWN_DELTA, KNOWN_SINK_TERM, KNOWN_COUNT };

enum attn_cl_size { CL_BN = 64, CL_TX = 16, CL_TY = 16, CL_BLOCK = 16, CL_ROW_GROUP = 64,
                    CL_MAX_PARTS = 128, CL_UNIT = 32, CL_ROTATED = 256, CL_CHECKS = 10 * 192 };

/* Operations that the kernel check tries. */
enum attn_cl_check { CHECK_PRODUCT_SUM, CHECK_FMA, CHECK_RECIPROCAL, CHECK_EXP2, CHECK_LOG2,
                     CHECK_TANH, CHECK_LOAD_F16, CHECK_LOAD_BF16, CHECK_STORE_F16, CHECK_STORE_BF16,
                     CHECK_KINDS };

#ifdef __OPENCL_C_VERSION__

/* ------------------------------------------------------------------------------------------------
 * 2  Arithmetic
 * --------------------------------------------------------------------------------------------- */

#pragma OPENCL FP_CONTRACT OFF

#ifndef EXACT
#define EXACT 1
#endif
#ifndef KV_TYPE
#define KV_TYPE 8
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef PART_BACKWARD
#define PART_BACKWARD 0
#endif
#ifndef BM
#define BM 64
#endif
#ifndef DVB
#define DVB 64
#endif
#ifndef PAIRS
#define PAIRS 1
#endif
#ifndef INLINE
#define INLINE 0
#endif

#define UNROLL _Pragma("unroll")
#define ROLL _Pragma("unroll 1")
#if INLINE
#define INLINED __attribute__((always_inline)) static
#else
#define INLINED
#endif
#define LOG2E_HI 0x1.715476p+0f
#define LOG2E_LO 0x1.4ae0c0p-26f
#define LN2 0x1.62e430p-1f
#define NEG_INF (-INFINITY)
#define NAN_BITS 0x7fc00000u
#define NOWHERE LONG_MIN
#define DEAD_BITS 0xffc0deadu /* a probability that a redo leaves out */

typedef __global const uchar *bytes;
typedef __global uchar *out_bytes;

/* Whether a type is one of K and V alone. Programs without such a type, and gradients, have no code for
 * it; PLAIN tells compilers that a type is none. */
#define IS_PACKED(type) (KV_TYPE > TYPE_BF16 && !PART_BACKWARD && (type) > TYPE_BF16)
#define PLAIN(type) min((int)(type), (int)TYPE_BF16)

float e4m3_to_float(uint x)
{
    const uint sign = (x & 0x80u) << 24, rest = x & 0x7fu;
    if (rest == 0x7fu)
        return as_float(sign | NAN_BITS);
    return as_float(sign | (rest < 8 ? as_uint((float)rest * 0x1p-9f) : (rest << 20) + 0x3c000000u));
}

float e5m2_to_float(uint x)
{
    const uint sign = (x & 0x80u) << 24, rest = x & 0x7fu;
    if (rest < 4)
        return as_float(sign | as_uint((float)rest * 0x1p-16f));
    return as_float(sign | ((rest << 21) + (rest < 0x7cu ? 0x38000000u : 0x70000000u)));
}

float eighth_to_float(uint x, int type)
{
    return type == TYPE_E4M3 ? e4m3_to_float(x) : e5m2_to_float(x);
}

/* The unit of 32 numbers that element `at` is in: src/quantised.c. */
bytes unit_at(bytes data, int type, long at)
{
    return data + (at >> 5) * (type == TYPE_Q8_0 ? 34 : type == TYPE_Q5_0 ? 22 : 18);
}

float scale_of(bytes unit)
{
    return vload_half(0, (__global const half *)unit);
}

/* Units lie at multiples of 2 bytes. */
uchar4 four_bytes(bytes at)
{
    return as_uchar4(vload2(0, (__global const ushort *)at));
}

/* Whole numbers i to i + 3 of a unit, i a multiple of 4. A fifth bit that is not there takes 16 away. */
int4 whole4(bytes unit, int type, int i)
{
    int4 x;
    if (type == TYPE_Q8_0)
        return convert_int4(as_char4(four_bytes(unit + 2 + i)));
    x = convert_int4(four_bytes(unit + (type == TYPE_Q5_0 ? 6 : 2) + i % 16));
    x = (x >> i / 16 * 4) & 15;
    if (type == TYPE_Q4_0)
        return x - 8;
    return x + (((int4)(unit[2 + i / 8] >> i % 8) >> (int4)(0, 1, 2, 3)) & 1) * 16 - 16;
}

float4 load_packed4(bytes data, int type, long at)
{
    bytes unit;
    if (type <= TYPE_E5M2)
        return (float4)(eighth_to_float(data[at], type), eighth_to_float(data[at + 1], type),
                        eighth_to_float(data[at + 2], type), eighth_to_float(data[at + 3], type));
    unit = unit_at(data, type, at);
    return scale_of(unit) * convert_float4(whole4(unit, type, (int)(at & 31)));
}

float load_packed1(bytes data, int type, long at)
{
    float4 x;
    if (type <= TYPE_E5M2)
        return eighth_to_float(data[at], type);
    x = load_packed4(data, type, at & ~3l);
    return at & 2 ? (at & 1 ? x.w : x.z) : at & 1 ? x.y : x.x;
}

float load1(bytes data, int type, long at)
{
    if (IS_PACKED(type))
        return load_packed1(data, type, at);
    if (type == 0)
        return ((__global const float *)data)[at];
    if (type == 1)
        return vload_half((size_t)at, (__global const half *)data);
    return as_float((uint)((__global const ushort *)data)[at] << 16);
}

float4 load4(bytes data, int type, long at)
{
    if (IS_PACKED(type))
        return load_packed4(data, type, at);
    if (type == 0)
        return vload4(0, (__global const float *)data + at);
    if (type == 1)
        return vload_half4(0, (__global const half *)data + at);
    return as_float4(convert_uint4(vload4(0, (__global const ushort *)data + at)) << 16);
}

/* `left` elements are there; the others are 0. */
float4 load_up_to4(bytes data, int type, long at, int left)
{
    float4 x = (float4)(0.0f);
    if (left >= 4)
        return load4(data, type, at);
    if (IS_PACKED(type) && type > TYPE_E5M2) /* rows are whole units */
        return x;
    if (left > 0)
        x.x = load1(data, type, at);
    if (left > 1)
        x.y = load1(data, type, at + 1);
    if (left > 2)
        x.z = load1(data, type, at + 2);
    return x;
}

/* x as a result: never -0, NaN in one form. */
float as_result(float x)
{
    x = x + 0.0f;
    return isnan(x) ? as_float(NAN_BITS) : x;
}

void store1(out_bytes data, int type, long at, float x)
{
    x = as_result(x);
    if (type == 0) {
        ((__global float *)data)[at] = x;
    } else if (type == 1) {
        if (isnan(x))
            ((__global ushort *)data)[at] = 0x7e00;
        else
            vstore_half_rte(x, (size_t)at, (__global half *)data);
        if (((__global ushort *)data)[at] == 0x8000) /* a negative number that rounds to 0 */
            ((__global ushort *)data)[at] = 0;
    } else {
        uint u = as_uint(x);
        u += isnan(x) ? 0u : 0x7fffu + (u >> 16 & 1u);
        u = u >> 16;
        ((__global ushort *)data)[at] = (ushort)(u == 0x8000u ? 0u : u);
    }
}

/* 1 / x, correctly rounded, for x and 1 / x normal. The device's quotient is within 3 ulp; two
 * Newton steps make that right but where all bits of the significand are ones (Markstein 1990).
 * tools/prove_math.c tries every significand and every start. */
float reciprocal(float x)
{
    const uint u = as_uint(x);
    float y, e, z;
    y = 1.0f / x;
    e = fma(-x, y, 1.0f);
    z = fma(e, y, y);
    e = fma(-x, z, 1.0f);
    z = fma(e, z, z);
    if ((u & 0x7fffffu) == 0x7fffffu)
        z = as_float((u & 0x80000000u) | (0x7e800001u - (u & 0x7f800000u)));
    return isfinite(e) ? z : y; /* 0, infinities, NaN */
}

float exp2_core(float x)
{
    float t, w, f, y;
    t = x + 12582912.0f;
    w = t - 12582912.0f;
    f = x - w;
    y = 0x1.44a6d6p-13f;
    y = fma(y, f, 0x1.5f8d0cp-10f);
    y = fma(y, f, 0x1.3b2822p-7f);
    y = fma(y, f, 0x1.c6adecp-5f);
    y = fma(y, f, 0x1.ebfbe4p-3f);
    y = fma(y, f, 0x1.62e432p-1f);
    y = fma(y, f, 1.0f);
    return as_float(as_uint(y) + (as_uint(t) << 23));
}

/* 2^x for x < 128; below -126 +0; NaN gives NaN. */
float exp2_canon(float x)
{
    float y = exp2_core(x);
    y = x < -126.0f ? 0.0f : y;
    return isnan(x) ? as_float(0x7fffffffu) : y;
}

#if EXACT
#define EXP2(x) exp2_canon(x)
#else
#define EXP2(x) native_exp2(x)
#endif

float tanh_canon(float x)
{
    const uint bits = as_uint(x), a = bits & 0x7fffffffu;
    float c, u, r, e;
    c = as_float(min(a, 0x41200000u)); /* |x|, at most 10 */
    if (a > 0x7f800000u)
        return as_float(NAN_BITS);
    if (a < 0x3f200000u) {
        u = c * c;
        r = -0x1.75e1cap-8f;
        r = fma(r, u, 0x1.52269cp-6f);
        r = fma(r, u, -0x1.b83c5ap-5f);
        r = fma(r, u, 0x1.110726p-3f);
        r = fma(r, u, -0x1.555532p-2f);
        u = u * c;
        r = fma(u, r, c);
    } else {
        e = c * 0x1.715476p+1f;
        e = exp2_core(e);
        e = e + 1.0f;
        e = 2.0f * reciprocal(e);
        r = 1.0f - e;
    }
    return as_float(as_uint(r) | (bits & 0x80000000u));
}

float log2_canon(float x)
{
    uint u = as_uint(x), m;
    int n = 0;
    float f, f2, h, l, q, k, s, r;
    if ((u & 0x7fffffffu) == 0)
        return NEG_INF;
    if (u > 0x7f800000u)
        return as_float(NAN_BITS);
    if (u == 0x7f800000u)
        return x;
    if (u < 0x00800000u) {
        u = as_uint((float)(int)u);
        n = -149;
    }
    m = u - 0x3f3504f4u;
    n += (int)((m + 0x40000000u) >> 23) - 128;
    m = (m & 0x007fffffu) + 0x3f3504f4u;
    f = as_float(m) - 1.0f;
    k = (float)n;
    q = -0x1.c26434p-4f;
    q = fma(q, f, 0x1.7d4786p-3f);
    q = fma(q, f, -0x1.87485cp-3f);
    q = fma(q, f, 0x1.a30596p-3f);
    q = fma(q, f, -0x1.eabd0ep-3f);
    q = fma(q, f, 0x1.277e3cp-2f);
    q = fma(q, f, -0x1.715a72p-2f);
    q = fma(q, f, 0x1.ec7096p-2f);
    q = fma(q, f, -0x1.71547p-1f);
    h = f * LOG2E_HI;
    l = fma(f, LOG2E_HI, -h);
    l = fma(f, LOG2E_LO, l);
    f2 = f * f;
    l = fma(f2, q, l);
    s = k + h;
    r = s - k;
    r = h - r;
    l = r + l;
    return s + l;
}

/* Word 0 of Philox4x32-10. */
uint philox(uint x, uint y, uint z, uint w, uint k0, uint k1)
{
    int r;
    for (r = 0; r < 10; r++) {
        const uint hx = mul_hi(0xd2511f53u, x), hz = mul_hi(0xcd9e8d57u, z);
        const uint lx = 0xd2511f53u * x, lz = 0xcd9e8d57u * z;
        x = hz ^ y ^ k0;
        y = lz;
        z = hx ^ w ^ k1;
        w = lx;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return x;
}

/* ------------------------------------------------------------------------------------------------
 * 3  Problem
 * --------------------------------------------------------------------------------------------- */

/* What every kernel reads. */
#define INPUTS                                                                                     \
    __constant long *N, __global const long *sequences, bytes q, bytes k, bytes v, bytes table,    \
        bytes bias, bytes bool_mask, bytes bit_mask, bytes bitmap, bytes offsets, bytes columns,   \
        bytes q_segments, bytes kv_segments, bytes tree, bytes slopes, bytes sinks
#define MAKE_INPUTS                                                                                \
    { N,      sequences, q,       k,       v,          table,       bias, bool_mask, bit_mask,     \
      bitmap, offsets,   columns, q_segments, kv_segments, tree, slopes,    sinks }

/* What the tiled kernels write: results, or raw states. */
#define OUTPUTS                                                                                    \
    out_bytes o_out, out_bytes lse_out, out_bytes stats_out, out_bytes m_out, out_bytes l_out,     \
        out_bytes state_out
#define MAKE_OUTPUTS { o_out, lse_out, stats_out, m_out, l_out, state_out }

typedef struct outputs {
    out_bytes o, lse, stats, m, l, state;
} outputs;

typedef struct inputs {
    __constant long *N;
    __global const long *sequences;
    bytes q, k, v, table, bias, bool_mask, bit_mask, bitmap, offsets, columns;
    bytes q_segments, kv_segments, tree, slopes, sinks;
} inputs;

#define NUMBER(name) (in->N[name])
#define FLOAT_NUMBER(name) as_float((uint)in->N[name])
#define K_TYPE (KV_TYPE == TYPE_MIXED ? (int)NUMBER(N_K_TYPE) : KV_TYPE)
#define V_TYPE (KV_TYPE == TYPE_MIXED ? (int)NUMBER(N_V_TYPE) : KV_TYPE)
#define HAS(flag) ((NUMBER(N_FLAGS) & (flag)) != 0)
#define INT32(pointer, name) ((__global const int *)((pointer) + NUMBER(name)))

/* A row of queries. */
typedef struct row {
    __global const long *s; /* its sequence */
    long b;
    int head, kv_head;
    int i;                  /* row of the call */
    int used;
    long pos;
    int lo, hi;             /* keys that lengths and ranges leave */
} row;

long floor_div(long a, long b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/* Number `f` of the flattened rows of a sequence and kv head: row f / group, head f % group. */
row row_of(const inputs *in, long b, int kv_head, long f)
{
    const int group = (int)NUMBER(N_GROUP);
    row r;
    long lo = 0, hi;
    r.b = b;
    r.s = in->sequences + b * S_COUNT;
    r.kv_head = kv_head;
    r.i = (int)(f / group);
    r.head = kv_head * group + (int)(f % group);
    r.used = r.i < r.s[S_Q_LEN];
    r.pos = r.i + r.s[S_OFFSET];
    hi = r.s[S_KV_LEN];
    if (HAS(F_CAUSAL))
        hi = min(hi, max(r.pos + 1, r.s[S_PREFIX]));
    if (HAS(F_WINDOW)) {
        if (NUMBER(N_WINDOW_LEFT) >= 0)
            lo = max(lo, r.pos - NUMBER(N_WINDOW_LEFT));
        if (NUMBER(N_WINDOW_RIGHT) >= 0)
            hi = min(hi, r.pos + NUMBER(N_WINDOW_RIGHT) + 1);
    }
    if (HAS(F_CHUNKED)) {
        const long size = NUMBER(N_CHUNKED), base = r.s[S_KEY_BASE];
        const long begin = floor_div(base + r.pos, size) * size - base;
        lo = max(lo, begin);
        hi = min(hi, begin + size);
    }
    hi = r.used ? max(hi, lo) : lo;
    r.lo = (int)min(lo, (long)INT_MAX);
    r.hi = (int)min(hi, (long)INT_MAX);
    return r;
}

/* Row i of a query head. */
row head_row(const inputs *in, long b, int head, long i)
{
    const int group = (int)NUMBER(N_GROUP);
    return row_of(in, b, head / group, i * group + head % group);
}

/* Where the row lies in a tensor like q, o or lse: N_Q, N_O, N_LSE, ... */
long row_at(const inputs *in, int name, const row *r)
{
    return r->b * in->N[name + 1] + r->head * in->N[name + 2] +
           (r->s[S_Q_ROW] + r->i) * in->N[name + 3];
}

/* Number of a row among raw states: that of a packed lse. */
long state_row(const inputs *in, const row *r)
{
    if (NUMBER(N_VARLEN))
        return r->head * NUMBER(N_STATE_ROWS) + r->s[S_Q_ROW] + r->i;
    return (r->b * NUMBER(N_HEADS) + r->head) * NUMBER(N_STATE_ROWS) + r->i;
}

/* Where key j of a sequence lies: a batch entry or a page, and a row of it. */
void key_at(const inputs *in, long b, __global const long *s, long j, long *entry, long *at)
{
    long r = s[S_KV_ROW] + j;
    const long ring = NUMBER(N_RING), size = NUMBER(N_PAGE_SIZE);
    if (ring && r >= ring)
        r -= ring;
    *entry = b;
    *at = r;
    if (size) {
        *entry = INT32(in->table, N_TABLE)[b * NUMBER(N_TABLE_STRIDE) + r / size];
        *at = r % size;
    }
}

#define KEY_AT(name, entry, kv_head, at)                                                           \
    ((entry) * NUMBER(name##_BATCH) + (kv_head) * NUMBER(name##_HEAD) + (at) * NUMBER(name##_SEQ))

/* ---- masks that are asked pair by pair; ranges are in row_of */

int bit_of(bytes bits, long index)
{
    const long byte = floor_div(index, 8);
    return bits[byte] >> (index - byte * 8) & 1;
}

long pair_at(const inputs *in, int name, const row *r, long j)
{
    return r->b * in->N[name + 1] + r->head * in->N[name + 2] + r->i * in->N[name + 3] +
           (r->s[S_COLUMN] + j) * in->N[name + 4];
}

int bitmap_shows(const inputs *in, const row *r, int j)
{
    return bit_of(in->bitmap + NUMBER(N_BITMAP),
                  r->b * NUMBER(N_BITMAP_BATCH) + r->head * NUMBER(N_BITMAP_HEAD) +
                      r->i / NUMBER(N_BLOCK_Q) * NUMBER(N_BITMAP_ROW) + j / NUMBER(N_BLOCK_K));
}

int csr_shows(const inputs *in, const row *r, int j)
{
    __global const int *columns = INT32(in->columns, N_COLUMNS);
    __global const int *offsets = INT32(in->offsets, N_OFFSETS) +
                                  r->b * NUMBER(N_OFFSETS_BATCH) +
                                  r->head * NUMBER(N_OFFSETS_HEAD) + r->i / NUMBER(N_BLOCK_Q);
    const long column = j / NUMBER(N_BLOCK_K);
    int lo = offsets[0], hi = offsets[1];
    const int end = hi;
    while (lo < hi) {
        const int middle = lo + (hi - lo) / 2;
        if (columns[middle] < column)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < end && columns[lo] == column;
}

int tree_shows(const inputs *in, const row *r, int j)
{
    __global const int *parents =
        INT32(in->tree, N_TREE) +
        (NUMBER(N_VARLEN) ? r->s[S_Q_ROW] : r->b * NUMBER(N_TREE_BATCH));
    const int node = j - (int)(r->s[S_KV_LEN] - r->s[S_Q_LEN]);
    int ancestor = r->i;
    while (ancestor > node && node >= 0)
        ancestor = parents[ancestor];
    return node < 0 || ancestor == node;
}

int segments_show(const inputs *in, const row *r, int j)
{
    const long q = NUMBER(N_VARLEN) ? r->s[S_Q_ROW] : r->b * NUMBER(N_Q_SEGMENTS_BATCH);
    return INT32(in->q_segments, N_Q_SEGMENTS)[q + r->i] ==
           INT32(in->kv_segments, N_KV_SEGMENTS)[r->s[S_KV_SEGMENT] + j];
}

int is_visible(const inputs *in, const row *r, int j)
{
    int seen = j >= r->lo && j < r->hi;
    if (seen && HAS(F_BITMAP))
        seen = bitmap_shows(in, r, j);
    if (seen && HAS(F_CSR))
        seen = csr_shows(in, r, j);
    if (seen && HAS(F_TREE))
        seen = tree_shows(in, r, j);
    if (seen && HAS(F_SEGMENTS))
        seen = segments_show(in, r, j);
    if (seen && HAS(F_BOOL_MASK))
        seen = ((in->bool_mask + NUMBER(N_BOOL))[pair_at(in, N_BOOL, r, j)] != 0) !=
               NUMBER(N_BOOL_TYPE);
    if (seen && HAS(F_BIT_MASK))
        seen = bit_of(in->bit_mask + NUMBER(N_BIT), pair_at(in, N_BIT, r, j)) !=
               NUMBER(N_BIT_TYPE);
    return seen;
}

/* ---- logits, in base 2 */

float capped(const inputs *in, float s)
{
    if (!HAS(F_SOFTCAP))
        return s;
    s = s * FLOAT_NUMBER(N_ICAP2);
    return FLOAT_NUMBER(N_CAP2) * tanh_canon(s);
}

/* The score after softcap, bias and ALiBi; -inf where a mask hides the key. */
float logit_of(const inputs *in, const row *r, int j, float s)
{
    if (!is_visible(in, r, j))
        return NEG_INF;
    s = capped(in, s);
    if (HAS(F_BIAS)) {
        const float x = load1(in->bias + NUMBER(N_BIAS), (int)NUMBER(N_BIAS_TYPE),
                              pair_at(in, N_BIAS, r, j));
        s = x == NEG_INF ? x : fma(x, LOG2E_HI, s);
    }
    if (HAS(F_ALIBI)) {
        const float slope2 = ((__global const float *)(in->slopes + NUMBER(N_SLOPES)))[
                                 r->b * NUMBER(N_SLOPES_BATCH) + r->head] * LOG2E_HI;
        s = fma((float)abs(r->pos - j), -slope2, s);
    }
    return s;
}

int is_dropped(const inputs *in, const row *r, int j)
{
    const long base = r->s[S_KEY_BASE];
    return philox((uint)(base + j), (uint)(base + r->pos), (uint)r->head, (uint)r->b,
                  (uint)NUMBER(N_SEED_LOW), (uint)NUMBER(N_SEED_HIGH)) <
           (uint)NUMBER(N_DROP_BELOW);
}

float sink_of(const inputs *in, int head)
{
    if (HAS(F_SOFTMAX1))
        return 0.0f;
    return HAS(F_SINKS) ? ((__global const float *)(in->sinks + NUMBER(N_SINKS)))[head] : NEG_INF;
}

/* A query of whole numbers, as floats, has its scales behind it. */
long query_scale_at(long q_at, int dim, int d)
{
    return q_at + dim + d / CL_UNIT;
}

/* q.k of a query of whole numbers and the key at element `at`. */
float whole_product(const inputs *in, long q_at, long at)
{
    const int dim = (int)NUMBER(N_DIM), type = K_TYPE;
    __global const float *q = (__global const float *)(in->q + NUMBER(N_Q));
    float s = 0.0f;
    int d, i;
    for (d = 0; d < dim; d += CL_UNIT) {
        bytes unit = unit_at(in->k + NUMBER(N_K), type, at + d);
        int dot = 0;
        for (i = 0; i < CL_UNIT; i += 4) {
            const int4 x = whole4(unit, type, i) * convert_int4(vload4(0, q + q_at + d + i));
            dot += x.x + x.y + x.z + x.w;
        }
        s = fma((float)dot, q[query_scale_at(q_at, dim, d)] * scale_of(unit), s);
    }
    return s;
}

/* The raw score of one pair. */
float score_of(const inputs *in, const row *r, int j)
{
    const int dim = (int)NUMBER(N_DIM), type = (int)NUMBER(N_Q_TYPE);
    const long q_at = row_at(in, N_Q, r);
    long entry, at;
    float s = 0.0f;
    int d;
    key_at(in, r->b, r->s, j, &entry, &at);
    at = KEY_AT(N_K, entry, r->kv_head, at);
    if (HAS(F_INTEGER))
        s = whole_product(in, q_at, at);
    for (d = 0; d < dim && !HAS(F_INTEGER); d++)
        s = fma(load1(in->q + NUMBER(N_Q), type, q_at + d),
                load1(in->k + NUMBER(N_K), K_TYPE, at + d), s);
    return s * FLOAT_NUMBER(N_FACTOR);
}

/* ---- a row's state (m, l, o) and its end */

/* How A + B weighs its two halves: m and l of the sum, factors of their o. */
typedef struct sum {
    float m, l, a, b;
} sum;

sum add_states(float ma, float la, float mb, float lb)
{
    sum x;
    const float m = ma > mb ? ma : mb;
    const float from = m == NEG_INF ? 0.0f : m;
    x.m = m;
    x.a = EXP2(ma - from);
    x.b = EXP2(mb - from);
    x.l = la * x.a;
    x.l = fma(lb, x.b, x.l);
    return x;
}

/* The sink entered: o * before * factor is the result. Of an empty row m and l are those of the sink,
 * or (-inf, 0). */
typedef struct ending {
    float m, l, before, factor, lse;
} ending;

ending end_row(const inputs *in, int head, float m, float l)
{
    const float sink = sink_of(in, head), sink2 = sink * LOG2E_HI;
    ending e;
    e.m = sink2;
    e.l = sink == NEG_INF ? 0.0f : 1.0f;
    e.before = 1.0f;
    e.factor = 0.0f;
    e.lse = sink;
    if (l == 0.0f)
        return e;
    e.m = m;
    e.l = l;
    if (sink != NEG_INF) {
        const sum x = add_states(m, l, sink2, 1.0f);
        e.m = x.m;
        e.l = x.l;
        e.before = x.a;
    }
    e.factor = reciprocal(e.l);
    if (HAS(F_DROPOUT))
        e.factor = e.factor * FLOAT_NUMBER(N_KEEP);
    e.lse = (e.m + log2_canon(e.l)) * LN2;
    return e;
}

float ended(float o, float l, ending e)
{
    o = o * e.before;
    o = o * e.factor;
    return l == 0.0f ? 0.0f : o;
}

/* What is asked for of the row's end beside o. */
void write_ending(const inputs *in, const row *r, ending e, out_bytes lse, out_bytes stats)
{
    if (HAS(F_LSE))
        store1(lse + NUMBER(N_LSE), 0, row_at(in, N_LSE, r), e.lse);
    if (HAS(F_STATS)) {
        const long at = row_at(in, N_STATS, r);
        store1(stats + NUMBER(N_STATS), 0, at, e.m);
        store1(stats + NUMBER(N_STATS), 0, at + 1, e.l);
    }
}

/* ------------------------------------------------------------------------------------------------
 * 4  Tiles: BM rows by BN keys. A work-group is TX x TY items; item (tx, ty) holds logits of rows
 *    ty + i TY and keys tx + j TX, and results of the same rows and columns 4 tx + 4 TX k + 0..3.
 *    Every loop around a barrier runs equally often for all items.
 * --------------------------------------------------------------------------------------------- */

#if PART_FORWARD || PART_BACKWARD

#define BN CL_BN
#define TX CL_TX
#define TY (BM < CL_TY ? BM : CL_TY)
#define GROUP_ITEMS (TX * TY)
#define TM (BM / TY)
#define TN (BN / TX)
#define TD (DVB / TX)
#define DS CL_UNIT      /* elements of q and k that are in local memory at a time */
#define LDQ (DS + 4)    /* 4 floats further: vectors of rows that follow meet other banks */
#define LDS (BN + 4)
#define VS (DVB <= 128 ? 32 : 16) /* rows of V that are in local memory at a time */
#define BLOCKS (BN / CL_BLOCK)
#define COLUMN(tx, d) ((d) / 4 * 4 * TX + (tx) * 4 + (d) % 4) /* of item tx's result d */
#define AREA_QK ((BM + BN) * LDQ)
#define AREA_V (VS * DVB)
#define AREA (AREA_QK > AREA_V ? AREA_QK : AREA_V)

/* Four floats of local memory that lie at a multiple of 16 bytes. vload4 promises no alignment, so
 * NVIDIA's compiler makes four loads of it, and local memory is what bounds a tile. */
#define FOUR(at) (*(__local float4 *)(at))
#define OF_VECTORS __attribute__((aligned(16)))

/* Local memory of a work-group. */
typedef struct shared {
    __local float *area;    /* slices of Q and K, then of V */
    __local float *s;       /* [BM][LDS] logits, then probabilities */
    __local float *m, *l;   /* [BM] of the current chunk; of gradients m and delta */
    __local float *inverse; /* [BM] of gradients: r */
    __local float *block_m; /* [BM][BLOCKS] maximum of a block, then the m that it has entered */
    __local float *alpha;   /* [BM][BLOCKS] factor on l and o before a block enters */
    __local int *lo, *hi;   /* [BM] keys that the row may see; none if it is not in use */
    __local long *q_at;     /* [BM] element where the query lies, or NOWHERE */
    __local long *dout_at;  /* [BM] of gradients: where rows of dout lie */
    __local long *k_at, *v_at; /* [BN] where the rows of K and V lie, or NOWHERE: not needed */
    __local int *range;     /* lowest lo, highest hi, highest lo, lowest hi, of the rows in use */
    __local int *flag;      /* [2] a maximum was raised; a result is not finite */
} shared;

/* What an item knows of its work. */
typedef struct tile {
    const inputs *in;
    shared at;
    int t, tx, ty;
    long b;
    int kv_head, slice;
    long first, step;       /* row r of the tile is number first + r * step of the flattened rows */
    long n_from, n_to;      /* numbers of the keys of this part */
    int redo;
} tile;

INLINED row tile_row(const tile *t, int r)
{
    return row_of(t->in, t->b, t->kv_head, t->first + r * t->step);
}

/* Where the queries lie and which keys they see. */
INLINED void set_rows(const tile *t)
{
    const shared *at = &t->at;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t->t == 0) {
        at->range[0] = INT_MAX;
        at->range[1] = 0;
        at->range[2] = 0;
        at->range[3] = INT_MAX;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t->t < BM) {
        const row r = tile_row(t, t->t);
        at->q_at[t->t] = r.used ? row_at(t->in, N_Q, &r) : NOWHERE;
        at->lo[t->t] = r.lo;
        at->hi[t->t] = r.hi;
        if (r.used) {
            if (r.lo < r.hi) {
                atomic_min(&at->range[0], r.lo);
                atomic_max(&at->range[1], r.hi);
            }
            atomic_max(&at->range[2], r.lo);
            atomic_min(&at->range[3], r.hi);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Where rows j0.. of K and V lie, of keys that some row of the tile may see. */
INLINED void set_keys(const tile *t, long j0)
{
    const inputs *in = t->in;
    const long j = j0 + t->t, from = t->n_from - in->sequences[t->b * S_COUNT + S_KEY_BASE];
    const long to = t->n_to - in->sequences[t->b * S_COUNT + S_KEY_BASE];
    if (t->t < BN) {
        long entry, at, k_at = NOWHERE, v_at = NOWHERE;
        if (j >= max(from, (long)t->at.range[0]) && j < min(to, (long)t->at.range[1])) {
            key_at(in, t->b, in->sequences + t->b * S_COUNT, j, &entry, &at);
            k_at = KEY_AT(N_K, entry, t->kv_head, at);
            v_at = KEY_AT(N_V, entry, t->kv_head, at);
        }
        t->at.k_at[t->t] = k_at;
        t->at.v_at[t->t] = v_at;
    }
}

/* Rows in global memory; at[r]: element where row r lies, or NOWHERE, which is a row of zeros. */
typedef struct matrix {
    bytes data;
    int type;
    __local const long *at;
} matrix;

INLINED matrix matrix_of(bytes data, long offset, int type, __local const long *at)
{
    matrix x;
    x.data = data + offset;
    x.type = type;
    x.at = at;
    return x;
}

/* left: elements from d on; those that are not there are 0. */
INLINED float4 load_matrix(const matrix *x, int r, int d, int left)
{
    const long at = x->at[r];
    return at == NOWHERE ? (float4)(0.0f) : load_up_to4(x->data, x->type, at + d, left);
}

/* Four whole numbers of a unit, without the scale. */
INLINED float4 load_whole(const matrix *x, int r, int d)
{
    const long at = x->at[r] + d;
    return x->at[r] == NOWHERE
               ? (float4)(0.0f)
               : convert_float4(whole4(unit_at(x->data, x->type, at), x->type, (int)(at & 31)));
}

/* The scale of 32 elements from d on: of a query's row a, or of a key's unit in b. */
INLINED float scale_of_slice(const matrix *a, const matrix *b, int r, int dim, int d)
{
    const long at = r < BM ? a->at[r] : b->at[r - BM];
    if (at == NOWHERE)
        return 0.0f;
    return r < BM ? load1(a->data, TYPE_F32, query_scale_at(at, dim, d))
                  : scale_of(unit_at(b->data, b->type, at + d));
}

/* Elements d0.. of the rows of a and of b into local memory, and behind them scales of units. */
INLINED void stage_slices(const tile *t, const matrix *a, const matrix *b, int dim, int d0)
{
    int x;
    for (x = t->t; x < (BM + BN) * (DS / 4); x += GROUP_ITEMS) {
        const int r = x / (DS / 4), d = d0 + x % (DS / 4) * 4;
        const float4 value = r < BM  ? load_matrix(a, r, d, dim - d)
                             : WHOLE ? load_whole(b, r - BM, d)
                                     : load_matrix(b, r - BM, d, dim - d);
        FOUR(t->at.area + r * LDQ + (d - d0)) = value;
        if (WHOLE && d == d0)
            t->at.area[r * LDQ + DS] = scale_of_slice(a, b, r, dim, d0);
    }
}

INLINED void multiply_slices(const tile *t, float s[TM][TN])
{
    int d;
    for (d = 0; d < DS; d += 4) {
        float4 a[TM], b[TN];
        UNROLL for (int i = 0; i < TM; i++)
            a[i] = FOUR(t->at.area + (t->ty + i * TY) * LDQ + d);
        UNROLL for (int j = 0; j < TN; j++)
            b[j] = FOUR(t->at.area + (BM + t->tx + j * TX) * LDQ + d);
        UNROLL for (int i = 0; i < TM; i++) {
            UNROLL for (int j = 0; j < TN; j++) {
                s[i][j] = fma(a[i].x, b[j].x, s[i][j]);
                s[i][j] = fma(a[i].y, b[j].y, s[i][j]);
                s[i][j] = fma(a[i].z, b[j].z, s[i][j]);
                s[i][j] = fma(a[i].w, b[j].w, s[i][j]);
            }
        }
    }
}

/* Whole numbers: the sum of 32 products is below 2^24, so that floats hold it in any order. */
INLINED void multiply_units(const tile *t, float s[TM][TN])
{
    float dot[TM][TN];
    UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++)
            dot[i][j] = 0.0f;
    multiply_slices(t, dot);
    UNROLL for (int i = 0; i < TM; i++) {
        const float scale = t->at.area[(t->ty + i * TY) * LDQ + DS];
        UNROLL for (int j = 0; j < TN; j++)
            s[i][j] = fma(dot[i][j], scale * t->at.area[(BM + t->tx + j * TX) * LDQ + DS], s[i][j]);
    }
}

/* s = A B^T: item (tx, ty) has rows ty + i TY of a and tx + j TX of b. */
INLINED void multiply_rows(const tile *t, const matrix *a, const matrix *b, int dim,
                           float s[TM][TN])
{
    int d0;
    UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++)
            s[i][j] = 0.0f;
    for (d0 = 0; d0 < dim; d0 += DS) {
        barrier(CLK_LOCAL_MEM_FENCE);
        stage_slices(t, a, b, dim, d0);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (WHOLE)
            multiply_units(t, s);
        else
            multiply_slices(t, s);
    }
}

/* The scores: the factor comes once, behind the last element. */
INLINED void multiply_qk(const tile *t, float s[TM][TN])
{
    const inputs *in = t->in;
    const int q_type = WHOLE ? TYPE_F32 : PLAIN(NUMBER(N_Q_TYPE));
    const matrix q = matrix_of(in->q, NUMBER(N_Q), q_type, t->at.q_at);
    const matrix k = matrix_of(in->k, NUMBER(N_K), K_TYPE, t->at.k_at);
    const float factor = FLOAT_NUMBER(N_FACTOR);
    multiply_rows(t, &q, &k, (int)NUMBER(N_DIM), s);
    UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++)
            s[i][j] = s[i][j] * factor;
}

/* A product to local memory, rows of `width`: an item may read its own elements back at once. What
 * masks and modifiers ask of each is long code, which so is there once, not TM * TN times. */
INLINED void store_pairs(const tile *t, float s[TM][TN], __local float *to, int width)
{
    UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++)
            to[(t->ty + i * TY) * width + t->tx + j * TX] = s[i][j];
}

/* Columns skip.. of rows from.. into local memory, VS rows of DVB. */
INLINED void stage_columns(const tile *t, const matrix *a, int skip, int dim, int from)
{
    int x;
    for (x = t->t; x < VS * (DVB / 4); x += GROUP_ITEMS) {
        const int r = x / (DVB / 4), d = skip + x % (DVB / 4) * 4;
        FOUR(t->at.area + r * DVB + (d - skip)) = load_matrix(a, from + r, d, dim - d);
    }
}

/* sum[row] += by[row] times row c of the staged columns; in a redo DEAD factors change nothing. */
#define ADD_PRODUCTS(sum, by, rows, c)                                                             \
    UNROLL for (int d = 0; d < TD; d += 4) {                                                       \
        const float4 v = FOUR(t->at.area + (c) * DVB + d * TX + t->tx * 4);                        \
        UNROLL for (int i = 0; i < rows; i++) {                                                    \
            const int dead = redo && as_uint((by)[i]) == DEAD_BITS;                                \
            (sum)[i][d + 0] = dead ? (sum)[i][d + 0] : fma((by)[i], v.x, (sum)[i][d + 0]);         \
            (sum)[i][d + 1] = dead ? (sum)[i][d + 1] : fma((by)[i], v.y, (sum)[i][d + 1]);         \
            (sum)[i][d + 2] = dead ? (sum)[i][d + 2] : fma((by)[i], v.z, (sum)[i][d + 2]);         \
            (sum)[i][d + 3] = dead ? (sum)[i][d + 3] : fma((by)[i], v.w, (sum)[i][d + 3]);         \
        }                                                                                          \
    }

/* o += P V for a slice of the tile's keys; in a redo DEAD probabilities leave o alone. */
INLINED void multiply_pv(const tile *t, int key, const int redo, float o[TM][TD])
{
    int c;
    for (c = 0; c < VS; c += 4) {
        float p[4][TM];
        if (c % CL_BLOCK == 0 && t->at.flag[0]) {
            UNROLL for (int i = 0; i < TM; i++) {
                const float a = t->at.alpha[(t->ty + i * TY) * BLOCKS + (key + c) / CL_BLOCK];
                UNROLL for (int d = 0; d < TD; d++)
                    o[i][d] = o[i][d] * a;
            }
        }
        UNROLL for (int i = 0; i < TM; i++) {
            const float4 four = FOUR(t->at.s + (t->ty + i * TY) * LDS + key + c);
            p[0][i] = four.x;
            p[1][i] = four.y;
            p[2][i] = four.z;
            p[3][i] = four.w;
        }
        UNROLL for (int n = 0; n < 4; n++)
            ADD_PRODUCTS(o, p[n], TM, c + n)
    }
}

/* ---- forward */

#if PART_FORWARD

/* Scores of keys j0.. become logits; -inf where a row does not see the key. */
INLINED void change_scores(const tile *t, long j0)
{
    const long base = t->in->sequences[t->b * S_COUNT + S_KEY_BASE];
    ROLL for (int i = 0; i < TM; i++) {
        const int r = t->ty + i * TY;
        const long lo = max(t->n_from - base, (long)t->at.lo[r]);
        const long hi = min(t->n_to - base, (long)t->at.hi[r]);
        __local float *s = t->at.s + r * LDS + t->tx;
#if PAIRS
        const row one = tile_row(t, r);
#endif
        ROLL for (int j = 0; j < TN; j++) {
            const long key = j0 + t->tx + j * TX;
            if (key < lo || key >= hi)
                s[j * TX] = NEG_INF;
#if PAIRS
            else
                s[j * TX] = logit_of(t->in, &one, (int)key, s[j * TX]);
#endif
        }
    }
}

/* Logits of keys j0.. into local memory; dead keys -inf. */
INLINED void score_tile(const tile *t, long j0)
{
    const inputs *in = t->in;
    const long base = in->sequences[t->b * S_COUNT + S_KEY_BASE];
    const long from = t->n_from - base, to = t->n_to - base;
    const int full = !PAIRS && j0 >= max(from, (long)t->at.range[2]) &&
                     j0 + BN <= min(to, (long)t->at.range[3]);
    float s[TM][TN];
    multiply_qk(t, s);
    store_pairs(t, s, t->at.s, LDS);
    if (!full)
        change_scores(t, j0);
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* m, or what is larger; NaNs are passed over. */
INLINED float larger_of(float m, float4 s)
{
    m = s.x > m ? s.x : m;
    m = s.y > m ? s.y : m;
    m = s.z > m ? s.z : m;
    return s.w > m ? s.w : m;
}

/* l and what is not dead, in this order. */
INLINED float added_to(float l, float4 p)
{
    l = as_uint(p.x) == DEAD_BITS ? l : l + p.x;
    l = as_uint(p.y) == DEAD_BITS ? l : l + p.y;
    l = as_uint(p.z) == DEAD_BITS ? l : l + p.z;
    return as_uint(p.w) == DEAD_BITS ? l : l + p.w;
}

/* Of each block of keys, its maximum. */
INLINED void find_maxima(const tile *t)
{
    int x, j;
    for (x = t->t; x < BM * BLOCKS; x += GROUP_ITEMS) {
        __local float *s = t->at.s + x / BLOCKS * LDS + x % BLOCKS * CL_BLOCK;
        float m = NEG_INF;
        UNROLL for (j = 0; j < CL_BLOCK; j += 4)
            m = larger_of(m, FOUR(s + j));
        t->at.block_m[x] = m;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* The running maximum of each row through the blocks. */
INLINED void move_maxima(const tile *t)
{
    int j;
    if (t->t == 0)
        t->at.flag[0] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t->t < BM) {
        float m = t->at.m[t->t];
        for (j = 0; j < BLOCKS; j++) {
            const float high = t->at.block_m[t->t * BLOCKS + j];
            float a = 1.0f;
            if (m == NEG_INF) {
                m = high;
            } else if (high > m + 16.0f) {
                a = EXP2(m - high);
                m = high;
                atomic_or(&t->at.flag[0], 1);
            }
            t->at.alpha[t->t * BLOCKS + j] = a;
            t->at.block_m[t->t * BLOCKS + j] = m == NEG_INF ? 0.0f : m;
        }
        t->at.m[t->t] = m;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Logits become probabilities; dead ones +0, or DEAD in a redo. */
INLINED void exponentials(const tile *t)
{
    const float dead = t->redo ? as_float(DEAD_BITS) : 0.0f;
    UNROLL for (int i = 0; i < TM; i++) {
        const int r = t->ty + i * TY;
        UNROLL for (int j = 0; j < TN; j++) {
            const int c = t->tx + j * TX;
            const float s = t->at.s[r * LDS + c];
            float p = s - t->at.block_m[r * BLOCKS + c / CL_BLOCK];
            p = EXP2(p);
            t->at.s[r * LDS + c] = s == NEG_INF ? dead : p;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* l of each row, key by key. */
INLINED void add_probabilities(const tile *t)
{
    int j, c;
    if (t->t < BM) {
        __local float *p = t->at.s + t->t * LDS;
        float l = t->at.l[t->t];
        for (j = 0; j < BLOCKS; j++) {
            l = l * t->at.alpha[t->t * BLOCKS + j];
            UNROLL for (c = 0; c < CL_BLOCK; c += 4)
                l = added_to(l, FOUR(p + j * CL_BLOCK + c));
        }
        t->at.l[t->t] = l;
    }
}

/* Dropped keys are left out of o. */
INLINED void drop_keys(const tile *t, long j0)
{
    UNROLL for (int i = 0; i < TM; i++) {
        const int r = t->ty + i * TY;
        const row one = tile_row(t, r);
        UNROLL for (int j = 0; j < TN; j++) {
            const int c = t->tx + j * TX;
            if (is_dropped(t->in, &one, (int)(j0 + c)))
                t->at.s[r * LDS + c] = t->redo ? as_float(DEAD_BITS) : 0.0f;
        }
    }
}

/* Keys j0..j0+BN-1 enter the state of the current chunk. */
INLINED void enter_keys(const tile *t, long j0, float o[TM][TD])
{
    const inputs *in = t->in;
    const matrix v = matrix_of(in->v, NUMBER(N_V), V_TYPE, t->at.v_at);
    int key, drops;
    set_keys(t, j0); /* the tile before has been used */
    score_tile(t, j0);
    find_maxima(t);
    move_maxima(t);
    exponentials(t);
    add_probabilities(t);
    for (drops = PAIRS && HAS(F_DROPOUT); drops; drops = 0) {
        barrier(CLK_LOCAL_MEM_FENCE);
        drop_keys(t, j0);
    }
    for (key = 0; key < BN; key += VS) {
        stage_columns(t, &v, t->slice * DVB, (int)NUMBER(N_DIM_V), key);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (t->redo)
            multiply_pv(t, key, 1, o);
        else
            multiply_pv(t, key, 0, o);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* ------------------------------------------------------------------------------------------------
 * 5  Chunks: pending states of the merge tree lie in global memory, one for each level.
 * --------------------------------------------------------------------------------------------- */

#define STATE_FLOATS (BM * (DVB + 2))

INLINED void begin_chunk(const tile *t, float o[TM][TD])
{
    if (t->t < BM) {
        t->at.m[t->t] = NEG_INF;
        t->at.l[t->t] = 0.0f;
    }
    UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int d = 0; d < TD; d++)
            o[i][d] = 0.0f;
}

INLINED void store_state(const tile *t, __global float *to, float o[TM][TD])
{
    UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int d = 0; d < TD; d++)
            to[(i * TD + d) * GROUP_ITEMS + t->t] = o[i][d];
    if (t->t < BM) {
        to[BM * DVB + t->t] = t->at.m[t->t];
        to[BM * DVB + BM + t->t] = t->at.l[t->t];
    }
}

/* Current = pending + current. */
INLINED void merge_state(const tile *t, __global const float *from, float o[TM][TD])
{
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t->t < BM) { /* alpha and block_m are free: weights of the two halves */
        const sum x = add_states(from[BM * DVB + t->t], from[BM * DVB + BM + t->t],
                                 t->at.m[t->t], t->at.l[t->t]);
        t->at.m[t->t] = x.m;
        t->at.l[t->t] = x.l;
        t->at.alpha[t->t] = x.a;
        t->at.block_m[t->t] = x.b;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int i = 0; i < TM; i++) {
        const float a = t->at.alpha[t->ty + i * TY], b = t->at.block_m[t->ty + i * TY];
        UNROLL for (int d = 0; d < TD; d++) {
            float x = from[(i * TD + d) * GROUP_ITEMS + t->t];
            x = x * a;
            o[i][d] = fma(o[i][d], b, x);
        }
    }
}

/* Of the states that wait, lowest level last, as many as enter before chunk c waits itself: a
 * binary counter of chunks since n = 0. Bit k of held: a state of 2^k chunks waits; those before
 * the first key are empty and absent. */
INLINED int merges_of(ulong held, ulong c)
{
    return (int)popcount(held & c & ~(c + 1));
}

/* All keys of the part into the root state. What may or may not happen around a barrier is a loop:
 * compilers for CPUs copy all that follows an `if` with a barrier in it. */
INLINED void attend(const tile *t, __global float *pending, float o[TM][TD])
{
    const inputs *in = t->in;
    const long base = in->sequences[t->b * S_COUNT + S_KEY_BASE], chunk = NUMBER(N_CHUNK_KEYS);
    const long from = max(t->n_from, base + t->at.range[0]);
    const long to = min(t->n_to, base + t->at.range[1]);
    ulong held = 0;
    long n;
    barrier(CLK_LOCAL_MEM_FENCE);
    begin_chunk(t, o);
    for (n = from - from % BN; n < to; n += BN) {
        const int last = n + BN >= to, ends = last || (n + BN) % chunk == 0;
        const ulong c = (ulong)(n / chunk);
        int waiting = (int)popcount(held);
        int merges = last ? waiting : ends ? merges_of(held, c) : 0; /* the root: all of them */
        enter_keys(t, n - base, o);
        for (; merges > 0; merges--)
            merge_state(t, pending + --waiting * STATE_FLOATS, o);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (ends && !last) {
            store_state(t, pending + waiting * STATE_FLOATS, o);
            begin_chunk(t, o);
            held = (held & ~(c & ~(c + 1))) | ((c + 1) & ~c);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Whether a row in use has a result that dead keys may have spoilt. */
INLINED int is_spoilt(const tile *t, float o[TM][TD])
{
    int bad = 0;
    if (t->t == 0)
        t->at.flag[1] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int i = 0; i < TM; i++) {
        const int r = t->ty + i * TY;
        bad |= t->at.q_at[r] != NOWHERE && !isfinite(t->at.l[r]);
        UNROLL for (int d = 0; d < TD; d++)
            bad |= t->at.q_at[r] != NOWHERE && !isfinite(o[i][d]);
    }
    if (bad)
        atomic_or(&t->at.flag[1], 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    return t->at.flag[1];
}

/* ---- results */

/* Results or the raw state of a row whose keys all were in this part. */
INLINED void write_row(const tile *t, int i, const float o[TD], const outputs *out)
{
    const inputs *in = t->in;
    const int r = t->ty + i * TY, raw = HAS(F_PARTIAL);
    const int columns = (int)NUMBER(N_DIM_V) - t->slice * DVB;
    const row one = tile_row(t, r);
    const float m = t->at.m[r], l = t->at.l[r];
    const ending e = end_row(in, one.head, m, l);
    const long at = row_at(in, N_O, &one) + t->slice * DVB, number = state_row(in, &one);
    UNROLL for (int d = 0; d < TD; d++) {
        const int c = COLUMN(t->tx, d);
        if (c >= columns)
            continue;
        if (raw)
            ((__global float *)(out->state + NUMBER(N_STATE_O)))[number * NUMBER(N_DIM_V) +
                                                            t->slice * DVB + c] = o[d] + 0.0f;
        else if (HAS(F_O))
            store1(out->o + NUMBER(N_O), (int)NUMBER(N_O_TYPE), at + c, ended(o[d], l, e));
    }
    if (t->tx != 0 || t->slice != 0)
        return;
    if (raw) {
        ((__global float *)(out->m + NUMBER(N_STATE_M)))[number] = m + 0.0f;
        ((__global float *)(out->l + NUMBER(N_STATE_L)))[number] = l;
    } else {
        write_ending(in, &one, e, out->lse, out->stats);
    }
}

/* The state of a part, for the kernel merge_parts: [row][part][o, m, l]. */
INLINED void write_part(const tile *t, int i, const float o[TD], long row_number, int part,
                        __global float *parts)
{
    const inputs *in = t->in;
    const int r = t->ty + i * TY, columns = (int)NUMBER(N_DIM_V) - t->slice * DVB;
    __global float *to = parts + ((row_number + r) * NUMBER(N_PARTS) + part) *
                                     (NUMBER(N_DIM_V) + 2);
    UNROLL for (int d = 0; d < TD; d++)
        if (COLUMN(t->tx, d) < columns)
            to[t->slice * DVB + COLUMN(t->tx, d)] = o[d];
    if (t->tx == 0 && t->slice == 0) {
        to[NUMBER(N_DIM_V)] = t->at.m[r];
        to[NUMBER(N_DIM_V) + 1] = t->at.l[r];
    }
}

/* ------------------------------------------------------------------------------------------------
 * 6  Forward: item = ((tile * parts + part) * slices + slice) * kv heads + kv head
 * --------------------------------------------------------------------------------------------- */

__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void forward(INPUTS, OUTPUTS, __global const int *tiles, __global float *pending,
             __global float *parts)
{
    __local OF_VECTORS float area[AREA], s[BM * LDS];
    __local float m[BM], l[BM], block_m[BM * BLOCKS], alpha[BM * BLOCKS];
    __local long q_at[BM], k_at[BN], v_at[BN];
    __local int lo[BM], hi[BM], range[4], flag[2];
    const inputs all = MAKE_INPUTS;
    const outputs out = MAKE_OUTPUTS;
    const inputs *in = &all;
    const int part_count = (int)NUMBER(N_PARTS), heads = (int)NUMBER(N_HEADS_KV);
    const int slices = (int)NUMBER(N_SLICES);
    const long part_keys = NUMBER(N_PART_KEYS);
    __global float *own = pending + get_group_id(0) * NUMBER(N_LEVELS) * STATE_FLOATS;
    tile t;
    float o[TM][TD];
    long item;
    int spoilt;
    t.in = in;
    t.at.area = area;
    t.at.s = s;
    t.at.m = m;
    t.at.l = l;
    t.at.block_m = block_m;
    t.at.alpha = alpha;
    t.at.lo = lo;
    t.at.hi = hi;
    t.at.q_at = q_at;
    t.at.k_at = k_at;
    t.at.v_at = v_at;
    t.at.range = range;
    t.at.flag = flag;
    t.tx = (int)get_local_id(0);
    t.ty = (int)get_local_id(1);
    t.t = t.ty * TX + t.tx;
    for (item = get_group_id(0); item < NUMBER(N_ITEMS); item += get_num_groups(0)) {
        const int part = (int)(item / heads / slices % part_count);
        const long number = item / heads / slices / part_count; /* of the tile */
        long first_part;
        t.kv_head = (int)(item % heads);
        t.slice = (int)(item / heads % slices);
        t.b = tiles[number * TILE_COUNT + TILE_SEQUENCE];
        t.first = tiles[number * TILE_COUNT + TILE_FIRST];
        t.step = 1;
        first_part = sequences[t.b * S_COUNT + S_KEY_BASE] / part_keys;
        t.n_from = (first_part + part) * part_keys;
        t.n_to = t.n_from + part_keys;
        set_rows(&t);
        for (t.redo = HAS(F_REDO), spoilt = 1; spoilt; t.redo++) {
            attend(&t, own, o);
            spoilt = is_spoilt(&t, o) && !t.redo;
        }
        UNROLL for (int i = 0; i < TM; i++) {
            if (part_count > 1)
                write_part(&t, i, o[i], (number * heads + t.kv_head) * BM, part, parts);
            else if (q_at[t.ty + i * TY] != NOWHERE)
                write_row(&t, i, o[i], &out);
        }
    }
}

#endif /* PART_FORWARD */

#endif /* PART_FORWARD || PART_BACKWARD */

/* ------------------------------------------------------------------------------------------------
 * 7  Rows: a work-group for each. Parts become one state and the result; logits are written.
 * --------------------------------------------------------------------------------------------- */

#if PART_ROWS

#define ITEMS CL_ROW_GROUP

/* A state of a row's keys: m, l and one column of o. */
typedef struct part_state {
    float m, l, o;
} part_state;

enum { MOST_WAITING = 16, /* states of CL_MAX_PARTS parts that may wait at once, and more */
       PARTS_AT_ONCE = 8 };

part_state add_parts(part_state left, part_state right)
{
    const sum x = add_states(left.m, left.l, right.m, right.l);
    part_state both;
    both.m = x.m;
    both.l = x.l;
    both.o = left.o * x.a;
    both.o = fma(right.o, x.b, both.o);
    return both;
}

/* Column c of the sum of a row's parts, in the tree of docs/canon.md. Every item computes m and l
 * for itself, so that none waits, and asks for several parts at once. first: number of part 0 since
 * n = 0. Bit k of held: a state of 2^k parts waits, or of fewer, where those before part 0 are
 * absent. */
part_state merge_row(__global const float *row_parts, long first, int count, int dim_v, int c)
{
    part_state waits[MOST_WAITING], next[PARTS_AT_ONCE], x;
    ulong held = 0;
    int waiting = 0, p, k;
    for (p = 0; p < count; p += PARTS_AT_ONCE) {
        UNROLL for (k = 0; k < PARTS_AT_ONCE; k++) {
            __global const float *part = row_parts + (long)min(p + k, count - 1) * (dim_v + 2);
            next[k].o = part[c];
            next[k].m = part[dim_v];
            next[k].l = part[dim_v + 1];
        }
        UNROLL for (k = 0; k < PARTS_AT_ONCE; k++) {
            const ulong n = (ulong)(first + p + k), ends = n & ~(n + 1);
            if (p + k < count) {
                int merges = (int)popcount(held & ends);
                for (x = next[k]; merges > 0; merges--)
                    x = add_parts(waits[--waiting], x);
                held = (held & ~ends) | ((n + 1) & ~n);
                waits[waiting++] = x;
            }
        }
    }
    for (x = waits[--waiting]; waiting > 0;)
        x = add_parts(waits[--waiting], x);
    return x;
}

/* Group: row r of tile (number * kv heads + kv head), as the kernel forward left it. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void merge_parts(INPUTS, OUTPUTS, __global const int *tiles, __global const float *parts)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const long tile_rows = NUMBER(N_TILE_ROWS);
    const long number = get_group_id(0) / tile_rows / NUMBER(N_HEADS_KV);
    const int kv_head = (int)(get_group_id(0) / tile_rows % NUMBER(N_HEADS_KV));
    const int count = (int)NUMBER(N_PARTS), dim_v = (int)NUMBER(N_DIM_V), t = (int)get_local_id(0);
    const row r = row_of(in, tiles[number * TILE_COUNT + TILE_SEQUENCE], kv_head,
                         tiles[number * TILE_COUNT + TILE_FIRST] + get_group_id(0) % tile_rows);
    __global const float *row_parts = parts + (long)get_group_id(0) * count * (dim_v + 2);
    const long at = row_at(in, N_O, &r), row_number = state_row(in, &r);
    const long first = r.s[S_KEY_BASE] / NUMBER(N_PART_KEYS);
    int c;
    if (!r.used)
        return;
    for (c = t; c < max(dim_v, 1); c += ITEMS) {
        const part_state x = merge_row(row_parts, first, count, dim_v, c);
        const ending e = end_row(in, r.head, x.m, x.l);
        if (c < dim_v && HAS(F_PARTIAL))
            ((__global float *)(state_out + NUMBER(N_STATE_O)))[row_number * dim_v + c] =
                x.o + 0.0f;
        else if (c < dim_v && HAS(F_O))
            store1(o_out + NUMBER(N_O), (int)NUMBER(N_O_TYPE), at + c, ended(x.o, x.l, e));
        if (c == 0 && HAS(F_PARTIAL)) {
            ((__global float *)(m_out + NUMBER(N_STATE_M)))[row_number] = x.m + 0.0f;
            ((__global float *)(l_out + NUMBER(N_STATE_L)))[row_number] = x.l;
        } else if (c == 0) {
            write_ending(in, &r, e, lse_out, stats_out);
        }
    }
}

/* ---- logits and probabilities of chosen rows */

/* m and l of keys from..to-1 of one chunk. */
void sum_chunk(__global const float *s, int from, int to, long base, float *m_out, float *l_out)
{
    float m = NEG_INF, l = 0.0f;
    while (from < to) {
        const int end = (int)min((long)to, from + CL_BLOCK - (base + from) % CL_BLOCK);
        float high = NEG_INF, x;
        int j;
        for (j = from; j < end; j++)
            high = s[j] > high ? s[j] : high;
        if (m == NEG_INF) {
            m = high;
        } else if (high > m + 16.0f) {
            l = l * exp2_canon(m - high);
            m = high;
        }
        for (j = from; j < end; j++) {
            x = s[j] - (m == NEG_INF ? 0.0f : m);
            x = exp2_canon(x);
            l = s[j] == NEG_INF ? l : l + x;
        }
        from = end;
    }
    *m_out = m;
    *l_out = l;
}

/* m and l of a row's keys by chunks and their tree, as everywhere: one item for each chunk of a
 * round, then one for the tree, whose pending states are in wait_m and wait_l. To m[0], l[0]. */
void sum_row(__global const float *s, const row *r, long keys, __local float *m, __local float *l,
             __local float *wait_m, __local float *wait_l)
{
    const int t = (int)get_local_id(0);
    const long base = r->s[S_KEY_BASE], first = base / 1024;
    const long count = keys ? (base + keys + 1023) / 1024 - first : 0;
    ulong held = 0;
    long done;
    for (done = 0; done < count; done += ITEMS) {
        const long chunk = first + done + t;
        float one_m = NEG_INF, one_l = 0.0f;
        int c;
        if (done + t < count)
            sum_chunk(s, (int)max(0l, chunk * 1024 - base),
                      (int)min(keys, chunk * 1024 + 1024 - base), base, &one_m, &one_l);
        m[t] = one_m;
        l[t] = one_l;
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        for (c = 0; c < ITEMS && t == 0 && done + c < count; c++) {
            const long n = first + done + c;
            int level = 0;
            sum x;
            x.m = m[c];
            x.l = l[c];
            for (; n >> level & 1; level++)
                if (held >> level & 1) {
                    held ^= 1ul << level;
                    x = add_states(wait_m[popcount(held)], wait_l[popcount(held)], x.m, x.l);
                }
            wait_m[popcount(held)] = x.m;
            wait_l[popcount(held)] = x.l;
            held |= 1ul << level;
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    }
    if (t == 0) {
        int waiting = (int)popcount(held) - 1;
        m[0] = waiting < 0 ? NEG_INF : wait_m[waiting];
        l[0] = waiting < 0 ? 0.0f : wait_l[waiting];
        while (--waiting >= 0) {
            const sum x = add_states(wait_m[waiting], wait_l[waiting], m[0], l[0]);
            m[0] = x.m;
            l[0] = x.l;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

/* Group: chosen row, query head, sequence. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void logits(INPUTS, bytes chosen, out_bytes out)
{
    __local float m[CL_ROW_GROUP], l[CL_ROW_GROUP], wait_m[64], wait_l[64];
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const long choice = get_group_id(0), head = get_group_id(1), b = get_group_id(2);
    const int stage = (int)NUMBER(N_STAGE), t = (int)get_local_id(0);
    const long i = NUMBER(N_CHOSEN_LIST) ? INT32(chosen, N_CHOSEN)[choice] : choice;
    const row r = head_row(in, b, (int)head, i);
    const long length = r.s[S_KV_LEN], column = r.s[S_COLUMN], width = NUMBER(N_COLUMN_COUNT);
    __global float *line = (__global float *)(out + NUMBER(N_LOGITS)) +
                           ((b * NUMBER(N_HEADS) + head) * get_num_groups(0) + choice) * width;
    __global float *s = line + column;
    const int used = i < r.s[S_Q_LEN], sums = used && stage == 3;
    ending e;
    float from, inverse;
    long j;
    for (j = t; used && j < width; j += ITEMS) {
        const long key = j - column;
        float x = stage == 3 ? 0.0f : NEG_INF;
        if (key >= 0 && key < length) {
            x = score_of(in, &r, (int)key);
            if (stage == 1)
                x = capped(in, x);
            else if (stage > 1)
                x = logit_of(in, &r, (int)key, x);
            if (stage < 3)
                x = x * LN2;
        }
        line[j] = x;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    sum_row(s, &r, sums ? length : 0, m, l, wait_m, wait_l);
    e = end_row(in, r.head, m[0], l[0]);
    from = e.m == NEG_INF ? 0.0f : e.m;
    inverse = reciprocal(e.l);
    for (j = t; sums && j < length; j += ITEMS) {
        float p = s[j] - from;
        p = exp2_canon(p) * inverse;
        s[j] = s[j] == NEG_INF || l[0] == 0.0f ? 0.0f : p;
    }
}

#endif /* PART_ROWS */

/* ------------------------------------------------------------------------------------------------
 * 8  Rotation: queries become what scores are computed from, before the other kernels read them, and
 *    rows of O are rotated back behind those. Group: row, query head, sequence.
 * --------------------------------------------------------------------------------------------- */

#if PART_ROTATE

/* How many elements are rotated together where `left` are left. */
int block_size(int left)
{
    int n = CL_ROTATED;
    while (n > left)
        n /= 2;
    return n;
}

/* n numbers times a Hadamard matrix over the root of n, in the order of docs/canon.md. */
void rotate_block(__local float *x, int n)
{
    const int t = (int)get_local_id(0);
    float c = 1.0f;
    int half_size, m, i;
    for (half_size = 1; half_size < n; half_size *= 2) {
        for (i = t; i < n / 2; i += CL_ROW_GROUP) {
            const int at = 2 * i - i % half_size;
            const float a = x[at], b = x[at + half_size];
            x[at] = a + b;
            x[at + half_size] = a - b;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (m = n; m >= 4; m /= 4)
        c = c * 0.5f;
    c = m == 2 ? c * 0x1.6a09e6p-1f : c;
    for (i = t; i < n; i += CL_ROW_GROUP)
        x[i] = x[i] * c;
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* The largest magnitude of 32 numbers / 127, rounded once, in integers: devices divide less exactly.
 * m 2^(e - 150) is that magnitude, and no quotient by 127 is a tie. NaN if a number is not finite. */
float scale_for(__local const float *x)
{
    uint most = 0, e, m, up;
    int i;
    for (i = 0; i < CL_UNIT; i++)
        most = max(most, as_uint(x[i]) & 0x7fffffffu);
    e = max(most >> 23, 1u);
    m = most - ((e - 1) << 23);
    up = min(m >= 127u << 17 ? 6u : 7u, e - 1);
    return as_float(most >= 0x7f800000u ? NAN_BITS
                                        : ((e - up - 1) << 23) + ((m << up) + 63u) / 127u);
}

/* 1 / scale, or 0 where that is no finite number. */
float inverse_of(float scale)
{
    const int small = scale < 0x1p-100f;
    const float x = reciprocal(small ? scale * 0x1p64f : scale);
    const float inverse = small ? x * 0x1p64f : x;
    return scale == 0.0f || !isfinite(inverse) ? 0.0f : inverse;
}

/* To the nearest whole number, ties to even; 0 where there is no scale. */
float rounded(float x, float scale)
{
    float y = x * inverse_of(scale);
    y = y + 12582912.0f;
    y = y - 12582912.0f;
    return isfinite(scale) ? y : 0.0f;
}

/* Rows of q, rotated and rounded as is asked for, where N_Q says. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void rotate_queries(INPUTS, __global float *to)
{
    __local float x[CL_ROTATED], scales[CL_ROTATED / CL_UNIT];
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const row r = head_row(in, (long)get_group_id(2), (int)get_group_id(1), (long)get_group_id(0));
    const long from = row_at(in, N_GIVEN_Q, &r), at = row_at(in, N_Q, &r);
    const int dim = (int)NUMBER(N_DIM), t = (int)get_local_id(0), whole = HAS(F_INTEGER);
    int d, n, i;
    if (!r.used)
        return;
    for (d = 0; d < dim; d += n) {
        n = block_size(dim - d);
        for (i = t; i < n; i += CL_ROW_GROUP)
            x[i] = load1(q + NUMBER(N_GIVEN_Q), PLAIN(NUMBER(N_GIVEN_Q_TYPE)), from + d + i);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (NUMBER(N_ROTATED) & ROTATED_K)
            rotate_block(x, n);
        for (i = t; whole && i < n / CL_UNIT; i += CL_ROW_GROUP) {
            scales[i] = scale_for(x + i * CL_UNIT);
            to[query_scale_at(at, dim, d) + i] = scales[i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (i = t; i < n; i += CL_ROW_GROUP)
            to[at + d + i] = whole ? rounded(x[i], scales[i / CL_UNIT]) : x[i];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* Rows of O, from where N_O says. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void rotate_results(INPUTS, __global const float *from, out_bytes o)
{
    __local float x[CL_ROTATED];
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const row r = head_row(in, (long)get_group_id(2), (int)get_group_id(1), (long)get_group_id(0));
    const long at = row_at(in, N_O, &r), to = row_at(in, N_ASKED_O, &r);
    const int dim = (int)NUMBER(N_DIM_V), t = (int)get_local_id(0);
    int d, n, i;
    if (!r.used)
        return;
    for (d = 0; d < dim; d += n) {
        n = block_size(dim - d);
        for (i = t; i < n; i += CL_ROW_GROUP)
            x[i] = from[at + d + i];
        barrier(CLK_LOCAL_MEM_FENCE);
        rotate_block(x, n);
        for (i = t; i < n; i += CL_ROW_GROUP)
            store1(o + NUMBER(N_ASKED_O), (int)NUMBER(N_ASKED_O_TYPE), to + d + i, x[i]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#endif /* PART_ROTATE */

/* ------------------------------------------------------------------------------------------------
 * 9  Naive: the textbook, one query head of one sequence at a time, in three kernels. The matrix
 *    holds a row of logits for each query.
 * --------------------------------------------------------------------------------------------- */

#if PART_NAIVE

/* Item: key, query. S = Q K^T with all that changes logits. keys: of the sequence. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void naive_scores(INPUTS, int b, int head, int keys, __global float *matrix)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const int j = (int)get_global_id(0);
    const row r = head_row(in, b, head, (long)get_global_id(1));
    if (j < keys)
        matrix[get_global_id(1) * keys + j] = logit_of(in, &r, j, score_of(in, &r, j));
}

/* Item: query. P = softmax(S); what divides it, LSE and statistics. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void naive_softmax(INPUTS, int b, int head, int keys, __global float *matrix,
                   __global float *factors, out_bytes lse, out_bytes stats)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const row r = head_row(in, b, head, (long)get_global_id(0));
    __global float *s = matrix + get_global_id(0) * keys;
    float m = NEG_INF, l = 0.0f, p;
    ending e;
    int j;
    if (!r.used)
        return;
    for (j = 0; j < keys; j++)
        m = s[j] > m ? s[j] : m;
    for (j = 0; j < keys; j++) {
        p = s[j] - (m == NEG_INF ? 0.0f : m);
        p = exp2_canon(p);
        if (s[j] == NEG_INF) {
            s[j] = as_float(DEAD_BITS);
            continue;
        }
        l = l + p;
        s[j] = HAS(F_DROPOUT) && is_dropped(in, &r, j) ? as_float(DEAD_BITS) : p;
    }
    e = end_row(in, r.head, m, l);
    factors[get_global_id(0)] = e.before * e.factor;
    write_ending(in, &r, e, lse, stats);
}

/* Item: column of V, query. O = P V. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void naive_values(INPUTS, int b, int head, int keys, __global const float *matrix,
                  __global const float *factors, out_bytes out)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const int d = (int)get_global_id(0);
    const row r = head_row(in, b, head, (long)get_global_id(1));
    __global const float *p = matrix + get_global_id(1) * keys;
    float o = 0.0f;
    int j;
    if (d >= NUMBER(N_DIM_V))
        return;
    for (j = 0; j < keys; j++) {
        long entry, at;
        if (as_uint(p[j]) == DEAD_BITS)
            continue;
        key_at(in, r.b, r.s, j, &entry, &at);
        o = fma(p[j], load1(in->v + NUMBER(N_V), V_TYPE, KEY_AT(N_V, entry, r.kv_head, at) + d),
                o);
    }
    o = o * factors[get_global_id(1)];
    store1(out + NUMBER(N_O), (int)NUMBER(N_O_TYPE), row_at(in, N_O, &r) + d, o);
}

#endif /* PART_NAIVE */

/* ------------------------------------------------------------------------------------------------
 * 10  Gradients: docs/canon.md, "Gradients". Seven products and one again: rows against all keys for
 *    dq, keys against all rows for dk and for dv. Group: (tile, slice), kv head, sequence.
 * --------------------------------------------------------------------------------------------- */

#if PART_BACKWARD

#define TK (BN / TY) /* keys of an item in dk and dv */

/* What is wanted of a pair. */
enum wish { WISH_DZ, WISH_DS, WISH_PV };

typedef struct gradient {
    bytes dout;
    __global const float *known; /* see attn_cl_known */
} gradient;

/* What the gradients of a pair need of its row. */
typedef struct origin {
    float m, r, delta;
    float most; /* of s - m; the LSE alone has an error, so that 1 has to be the most for p */
} origin;

INLINED float most_exponent(const inputs *in)
{
    return HAS(F_STATS) ? 127.0f : 0.0f;
}

INLINED float probability(origin of, float s)
{
    float p = s - of.m;
    p = p > of.most ? of.most : p; /* NaN stays */
    p = EXP2(p);
    return p * of.r;
}

/* All but delta. */
INLINED origin load_origin(const inputs *in, const row *r, bytes lse, bytes stats)
{
    const long at = row_at(in, HAS(F_STATS) ? N_STATS : N_LSE, r);
    origin of = { 0.0f, 1.0f, 0.0f, most_exponent(in) };
    if (HAS(F_STATS)) {
        const float l = load1(stats + NUMBER(N_STATS), 0, at + 1);
        of.m = load1(stats + NUMBER(N_STATS), 0, at);
        of.r = of.m == NEG_INF && l == 0.0f ? 0.0f : reciprocal(l);
    } else {
        of.m = load1(lse + NUMBER(N_LSE), 0, at) * LOG2E_HI;
    }
    of.m = of.m == NEG_INF ? 0.0f : of.m;
    return of;
}

/* Item: row; query head, sequence. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void statistics(INPUTS, bytes o, bytes lse, bytes stats, bytes dout, bytes dlse,
                __global float *known)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const int head = (int)get_global_id(1);
    const row r = head_row(in, (long)get_global_id(2), head, (long)get_global_id(0));
    const long o_at = row_at(in, N_O, &r), dout_at = row_at(in, N_DOUT, &r);
    const long to = state_row(in, &r), rows = NUMBER(N_ALL_ROWS);
    const float sink = sink_of(in, head);
    float delta = 0.0f, x;
    origin of;
    int d;
    if (!r.used)
        return;
    for (d = 0; d < NUMBER(N_DIM_V); d++)
        delta = fma(load1(dout + NUMBER(N_DOUT), (int)NUMBER(N_DOUT_TYPE), dout_at + d),
                    load1(o + NUMBER(N_O), (int)NUMBER(N_O_TYPE), o_at + d), delta);
    if (HAS(F_DLSE))
        delta = delta - load1(dlse + NUMBER(N_DLSE), 0, row_at(in, N_DLSE, &r));
    of = load_origin(in, &r, lse, stats);
    x = probability(of, sink * LOG2E_HI);
    x = -x * delta;
    known[KNOWN_M * rows + to] = of.m;
    known[KNOWN_R * rows + to] = of.r;
    known[KNOWN_DELTA * rows + to] = delta;
    known[KNOWN_SINK_TERM * rows + to] = sink == NEG_INF ? 0.0f : x;
}

/* Rows first, first + step, ...: where they lie, which keys they see, what is known of them. */
INLINED void open_rows(const tile *t, const gradient *g)
{
    const inputs *in = t->in;
    set_rows(t);
    if (t->t < BM) {
        const row r = tile_row(t, t->t);
        const long at = r.used ? state_row(in, &r) : 0, rows = NUMBER(N_ALL_ROWS);
        t->at.m[t->t] = r.used ? g->known[KNOWN_M * rows + at] : 0.0f;
        t->at.inverse[t->t] = r.used ? g->known[KNOWN_R * rows + at] : 0.0f;
        t->at.l[t->t] = r.used ? g->known[KNOWN_DELTA * rows + at] : 0.0f;
        t->at.dout_at[t->t] = r.used ? row_at(in, N_DOUT, &r) : NOWHERE;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Of row `number` of the tile: asked where it is needed, since registers are few. */
INLINED origin tile_origin(const tile *t, int number)
{
    const origin of = { t->at.m[number], t->at.inverse[number], t->at.l[number],
                        most_exponent(t->in) };
    return of;
}

/* s: the score; dp: dout v. A dead pair gives +0, or DEAD in a redo; so does p of a dropped one. */
INLINED float pair_gradient(const tile *t, const row *r, int number, int j, float s, float dp,
                            int wish)
{
    const inputs *in = t->in;
    const float dead = t->redo ? as_float(DEAD_BITS) : 0.0f;
    const int drops = PAIRS && HAS(F_DROPOUT), dropped = drops && is_dropped(in, r, j);
    const float z = PAIRS ? logit_of(in, r, j, s) : s;
    origin of;
    float p, x;
    if (z == NEG_INF || (wish == WISH_PV && dropped))
        return dead;
    of = tile_origin(t, number);
    p = probability(of, z);
    if (wish == WISH_PV)
        return drops ? p * FLOAT_NUMBER(N_KEEP) : p;
    if (drops)
        dp = dropped ? 0.0f : dp * FLOAT_NUMBER(N_KEEP);
    x = dp - of.delta;
    x = p * x;
    if (wish == WISH_DZ && PAIRS && HAS(F_SOFTCAP)) {
        const float tangent = tanh_canon(s * FLOAT_NUMBER(N_ICAP2));
        x = x * fma(-tangent, tangent, 1.0f);
    }
    return x;
}

/* What is wanted of the tile's rows and keys j0.. into local memory. */
INLINED void pair_tile(const tile *t, const gradient *g, long j0, int wish)
{
    const inputs *in = t->in;
    const matrix dout = matrix_of(g->dout, NUMBER(N_DOUT), (int)NUMBER(N_DOUT_TYPE),
                                  t->at.dout_at);
    const matrix v = matrix_of(in->v, NUMBER(N_V), V_TYPE, t->at.v_at);
    const float dead = t->redo ? as_float(DEAD_BITS) : 0.0f;
    float x[TM][TN];
    multiply_qk(t, x);
    store_pairs(t, x, t->at.s, LDS);
    multiply_rows(t, &dout, &v, wish == WISH_PV ? 0 : (int)NUMBER(N_DIM_V), x);
    barrier(CLK_LOCAL_MEM_FENCE);
    store_pairs(t, x, t->at.area, BN);
    ROLL for (int i = 0; i < TM; i++) {
        const int number = t->ty + i * TY;
        const row r = tile_row(t, number);
        __local float *s = t->at.s + number * LDS + t->tx;
        __local const float *dp = t->at.area + number * BN + t->tx;
        ROLL for (int j = 0; j < TN; j++) {
            const long key = j0 + t->tx + j * TX;
            const int live = key >= r.lo && key < r.hi;
            s[j * TX] = live ? pair_gradient(t, &r, number, (int)key, s[j * TX], dp[j * TX],
                                             wish) : dead;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* total += part, which then is +0. */
#define END_CHUNK(rows)                                                                            \
    UNROLL for (int i = 0; i < rows; i++)                                                          \
        UNROLL for (int d = 0; d < TD; d++) {                                                      \
            total[i][d] = total[i][d] + part[i][d];                                                \
            part[i][d] = 0.0f;                                                                     \
        }

#define CLEAR(x, rows)                                                                             \
    UNROLL for (int i = 0; i < rows; i++)                                                          \
        UNROLL for (int d = 0; d < TD; d++)                                                        \
            x[i][d] = 0.0f;

/* Whether any item of the group says so. */
INLINED int any_item(const tile *t, int bad)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t->t == 0)
        t->at.flag[1] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (bad)
        atomic_or(&t->at.flag[1], 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    return t->at.flag[1];
}

/* ---- dq of the tile's rows: columns of a slice */

INLINED void sweep_keys(const tile *t, const gradient *g, float total[TM][TD])
{
    const inputs *in = t->in;
    const matrix k = matrix_of(in->k, NUMBER(N_K), K_TYPE, t->at.k_at);
    const long base = in->sequences[t->b * S_COUNT + S_KEY_BASE];
    const long from = base + t->at.range[0], to = base + t->at.range[1];
    float part[TM][TD];
    long n;
    int key;
    CLEAR(total, TM)
    CLEAR(part, TM)
    for (n = from - from % BN; n < to; n += BN) {
        barrier(CLK_LOCAL_MEM_FENCE); /* the tile before has been used */
        set_keys(t, n - base);
        pair_tile(t, g, n - base, WISH_DZ);
        for (key = 0; key < BN; key += VS) {
            barrier(CLK_LOCAL_MEM_FENCE);
            stage_columns(t, &k, t->slice * DVB, (int)NUMBER(N_DIM), key);
            barrier(CLK_LOCAL_MEM_FENCE);
            multiply_pv(t, key, t->redo, part);
        }
        if ((n + BN) % 1024 == 0 || n + BN >= to) {
            END_CHUNK(TM)
        }
    }
}

/* Local memory of the kernels, and what an item knows of its work. */
#define OPEN_TILE                                                                                  \
    __local OF_VECTORS float area[AREA], s[BM * LDS];                                              \
    __local float m[BM], l[BM], inverse[BM];                                                       \
    __local long q_at[BM], dout_at[BM], k_at[BN], v_at[BN];                                        \
    __local int lo[BM], hi[BM], range[4], flag[2];                                                 \
    const inputs all = MAKE_INPUTS;                                                                \
    const inputs *in = &all;                                                                       \
    const gradient given = { dout, known }, *g = &given;                                           \
    tile t;                                                                                        \
    t.in = in;                                                                                     \
    t.at.area = area;                                                                              \
    t.at.s = s;                                                                                    \
    t.at.m = m;                                                                                    \
    t.at.l = l;                                                                                    \
    t.at.inverse = inverse;                                                                        \
    t.at.block_m = t.at.alpha = area; /* not used: flag[0] is 0 */                                 \
    t.at.lo = lo;                                                                                  \
    t.at.hi = hi;                                                                                  \
    t.at.q_at = q_at;                                                                              \
    t.at.dout_at = dout_at;                                                                        \
    t.at.k_at = k_at;                                                                              \
    t.at.v_at = v_at;                                                                              \
    t.at.range = range;                                                                            \
    t.at.flag = flag;                                                                              \
    t.tx = (int)get_local_id(0);                                                                   \
    t.ty = (int)get_local_id(1);                                                                   \
    t.t = t.ty * TX + t.tx;                                                                        \
    if (t.t == 0)                                                                                  \
        flag[0] = 0;

/* Rows `step` apart, and all keys of a sequence. */
INLINED void choose_sequence(tile *t, long b, int kv_head, long step)
{
    const inputs *in = t->in;
    t->b = b;
    t->kv_head = kv_head;
    t->step = step;
    t->n_from = in->sequences[b * S_COUNT + S_KEY_BASE];
    t->n_to = t->n_from + in->sequences[b * S_COUNT + S_KV_LEN];
}

__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void query_gradients(INPUTS, bytes dout, __global const float *known, out_bytes dq)
{
    OPEN_TILE
    const int slices = (int)NUMBER(N_SLICES), dim = (int)NUMBER(N_DIM);
    const long tiles = (long)get_num_groups(0) / slices;
    float total[TM][TD];
    int spoilt;
    choose_sequence(&t, (long)get_group_id(2), (int)get_group_id(1), 1);
    t.slice = (int)get_group_id(0) % slices;
    t.first = (tiles - 1 - (long)get_group_id(0) / slices) * BM; /* most keys first */
    open_rows(&t, g);
    for (t.redo = HAS(F_REDO), spoilt = 1; spoilt; t.redo++) {
        int bad = 0;
        sweep_keys(&t, g, total);
        UNROLL for (int i = 0; i < TM; i++)
            UNROLL for (int d = 0; d < TD; d++)
                bad |= q_at[t.ty + i * TY] != NOWHERE && !isfinite(total[i][d]);
        spoilt = any_item(&t, bad) && !t.redo;
    }
    UNROLL for (int i = 0; i < TM; i++) {
        const row r = tile_row(&t, t.ty + i * TY);
        const long at = row_at(in, N_DQ, &r);
        UNROLL for (int d = 0; d < TD; d++) {
            const int c = t.slice * DVB + COLUMN(t.tx, d);
            if (r.used && c < dim)
                store1(dq + NUMBER(N_DQ), (int)NUMBER(N_DQ_TYPE), at + c,
                       total[i][d] * FLOAT_NUMBER(N_SCALE));
        }
    }
}

/* ---- dk and dv of 64 keys: columns of a slice, those of dk before those of dv */

/* part[key] += x[row][key] of the pair tile, times row `from + c` of the staged columns. */
INLINED void multiply_outer(const tile *t, int from, const int redo, float part[TK][TD])
{
    int c;
    for (c = 0; c < VS; c++) {
        float x[TK];
        UNROLL for (int i = 0; i < TK; i++)
            x[i] = t->at.s[(from + c) * LDS + t->ty + i * TY];
        ADD_PRODUCTS(part, x, TK, c)
    }
}

/* The tile's rows enter keys j0... */
INLINED void enter_rows(const tile *t, const gradient *g, long j0, int wish, float part[TK][TD])
{
    const inputs *in = t->in;
    const matrix q = matrix_of(in->q, NUMBER(N_Q), (int)NUMBER(N_Q_TYPE), t->at.q_at);
    const matrix dout = matrix_of(g->dout, NUMBER(N_DOUT), (int)NUMBER(N_DOUT_TYPE),
                                  t->at.dout_at);
    const matrix rows = wish == WISH_PV ? dout : q;
    const int dim = (int)(wish == WISH_PV ? NUMBER(N_DIM_V) : NUMBER(N_DIM));
    int r;
    barrier(CLK_LOCAL_MEM_FENCE);
    set_keys(t, j0);
    pair_tile(t, g, j0, wish);
    for (r = 0; r < BM; r += VS) {
        barrier(CLK_LOCAL_MEM_FENCE);
        stage_columns(t, &rows, t->slice * DVB, dim, r);
        barrier(CLK_LOCAL_MEM_FENCE);
        multiply_outer(t, r, t->redo, part);
    }
}

/* All rows of the group's heads. A step that may not be due is a loop: see attend. */
INLINED void sweep_rows(tile *t, const gradient *g, long j0, int wish, float total[TK][TD])
{
    const inputs *in = t->in;
    const int group = (int)NUMBER(N_GROUP);
    const long rows = in->sequences[t->b * S_COUNT + S_Q_LEN];
    float part[TK][TD];
    int head;
    long i0;
    CLEAR(total, TK)
    CLEAR(part, TK)
    for (head = 0; head < group; head++)
        for (i0 = 0; i0 < rows; i0 += BM) {
            int due;
            t->first = i0 * group + head;
            open_rows(t, g);
            for (due = t->at.range[0] < j0 + BN && t->at.range[1] > j0; due; due = 0)
                enter_rows(t, g, j0, wish, part);
            if ((i0 + BM) % 1024 == 0 || i0 + BM >= rows) {
                END_CHUNK(TK)
            }
        }
}

__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void key_gradients(INPUTS, bytes dout, __global const float *known, out_bytes dk, out_bytes dv)
{
    OPEN_TILE
    const int key_slices = (int)NUMBER(N_KEY_SLICES);
    const int slices = key_slices + (int)NUMBER(N_VALUE_SLICES);
    const int number = (int)get_group_id(0) % slices, values = number >= key_slices;
    const int dim = (int)(values ? NUMBER(N_DIM_V) : NUMBER(N_DIM));
    const long j0 = (long)get_group_id(0) / slices * BN;
    long keys;
    float total[TK][TD];
    int spoilt;
    choose_sequence(&t, (long)get_group_id(2), (int)get_group_id(1), NUMBER(N_GROUP));
    keys = t.n_to - t.n_from;
    t.slice = values ? number - key_slices : number;
    for (t.redo = HAS(F_REDO), spoilt = j0 < keys; spoilt; t.redo++) {
        int bad = 0;
        sweep_rows(&t, g, j0, values ? WISH_PV : WISH_DZ, total);
        UNROLL for (int i = 0; i < TK; i++)
            UNROLL for (int d = 0; d < TD; d++)
                bad |= !isfinite(total[i][d]);
        spoilt = any_item(&t, bad) && !t.redo;
    }
    UNROLL for (int i = 0; i < TK; i++) {
        const long j = j0 + t.ty + i * TY;
        const long row = in->sequences[t.b * S_COUNT + S_KV_ROW] + j;
        UNROLL for (int d = 0; d < TD; d++) {
            const int c = t.slice * DVB + COLUMN(t.tx, d);
            if (j >= keys || c >= dim)
                continue;
            if (values)
                store1(dv + NUMBER(N_DV), (int)NUMBER(N_DV_TYPE), KEY_AT(N_DV, t.b, t.kv_head, row)
                       + c, total[i][d]);
            else
                store1(dk + NUMBER(N_DK), (int)NUMBER(N_DK_TYPE), KEY_AT(N_DK, t.b, t.kv_head, row)
                       + c, total[i][d] * FLOAT_NUMBER(N_SCALE));
        }
    }
}

/* ---- sums over pairs: dbias and dslopes. Heads and sequences one after the other add to the same
 *      elements, so each is a launch of its own. */

typedef struct sums {
    int name, keeps_rows, keeps_keys; /* the axes of the array that are not summed over */
    __global float *out;
} sums;

/* The element of row i and key j of the tile's head. */
INLINED __global float *sum_at(const tile *t, const sums *to, int head, long i, long j)
{
    const inputs *in = t->in;
    const long column = in->sequences[t->b * S_COUNT + S_COLUMN] + j;
    return to->out + t->b * in->N[to->name + 1] + head * in->N[to->name + 2] +
           (to->keeps_rows ? i * in->N[to->name + 3] : 0) +
           (to->keeps_keys ? column * in->N[to->name + 4] : 0);
}

/* The term of a pair, or DEAD. */
INLINED float sum_term(const tile *t, const sums *to, const row *r, long j, int at)
{
    const float ds = t->at.s[at];
    if (to->name == N_DBIAS || as_uint(ds) == DEAD_BITS)
        return ds;
    return -(float)abs(r->pos - j) * ds;
}

/* One term more, unless it is dead. */
INLINED float plus_term(float sum, float term)
{
    return as_uint(term) == DEAD_BITS ? sum : sum + term;
}

/* A sum of a loop that adds nothing else. Intel's compiler for CPUs (2026.2) takes such sums in
 * another order, eight at a time, unless something that it cannot see through stands between. */
float in_order(const inputs *in, float sum)
{
    return as_float(as_uint(sum) ^ (uint)NUMBER(N_ZERO));
}

/* Item: element. It becomes +0 before the sum; NaN becomes canonical behind it. */
__kernel void sum_ends(INPUTS, out_bytes out, int name, int heads, int first)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const long at = (long)(get_global_id(2) / heads) * in->N[name + 1] +
                    (long)(get_global_id(2) % heads) * in->N[name + 2] +
                    (long)get_global_id(1) * in->N[name + 3] +
                    (long)get_global_id(0) * in->N[name + 4];
    __global float *x = (__global float *)(out + in->N[name]) + at;
    *x = first ? 0.0f : as_result(*x);
}

/* What a sum is about, and the tile's head. */
#define SUM_ARGUMENTS                                                                              \
    out_bytes out, __global float *row_sums, int name, int b, int head, int keeps_rows,            \
        int keeps_keys
#define OPEN_SUM                                                                                   \
    OPEN_TILE                                                                                      \
    const sums to = { name, keeps_rows, keeps_keys, (__global float *)(out + in->N[name]) };       \
    choose_sequence(&t, b, head / (int)NUMBER(N_GROUP), NUMBER(N_GROUP));                          \
    t.redo = 1; /* dead pairs are no terms */                                                      \
    t.slice = 0;

/* The sum of a row over the tile's keys goes on. */
INLINED float add_keys(const tile *t, const sums *to, const row *r, long j0, float sum)
{
    int c;
    for (c = 0; c < BN; c++)
        sum = plus_term(sum, sum_term(t, to, r, j0 + c, t->t * LDS + c));
    return sum;
}

/* The tile's pairs, each to its element. */
INLINED void add_elements(const tile *t, const sums *to, long j0)
{
    UNROLL for (int i = 0; i < TM; i++) {
        const int number = t->ty + i * TY;
        const row r = tile_row(t, number);
        UNROLL for (int j = 0; j < TN; j++) {
            const long key = j0 + t->tx + j * TX;
            if (key >= r.lo && key < r.hi) {
                __global float *x = sum_at(t, to, r.head, r.i, key);
                *x = plus_term(*x, sum_term(t, to, &r, key, number * LDS + t->tx + j * TX));
            }
        }
    }
}

/* Group: tile of rows of a head. Pairs, or rows summed over their keys, go to their elements; where
 * rows are summed over, too, to row_sums. */
__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void add_rows(INPUTS, bytes dout, __global const float *known, SUM_ARGUMENTS)
{
    OPEN_SUM
    float part = 0.0f, total = 0.0f;
    long n, from, end;
    row r;
    t.first = (long)get_group_id(0) * BM * t.step + head % t.step;
    open_rows(&t, g);
    r = tile_row(&t, t.t % BM);
    from = t.n_from + range[0];
    end = t.n_from + range[1];
    for (n = from - from % BN; n < end; n += BN) {
        barrier(CLK_LOCAL_MEM_FENCE);
        set_keys(&t, n - t.n_from);
        pair_tile(&t, g, n - t.n_from, WISH_DS);
        if (keeps_keys)
            add_elements(&t, &to, n - t.n_from);
        else if (t.t < BM)
            part = add_keys(&t, &to, &r, n - t.n_from, part);
        if ((n + BN) % 1024 == 0 || n + BN >= end) {
            total = total + part;
            part = 0.0f;
        }
    }
    if (t.t >= BM || !r.used || keeps_keys)
        return;
    if (keeps_rows)
        *sum_at(&t, &to, head, r.i, 0) += total;
    else
        row_sums[r.i] = total;
}

/* Group: 64 keys. Of a head, the sum of each over the rows. */
__kernel __attribute__((reqd_work_group_size(TX, TY, 1)))
void add_columns(INPUTS, bytes dout, __global const float *known, SUM_ARGUMENTS)
{
    OPEN_SUM
    const long j0 = (long)get_group_id(0) * BN, keys = t.n_to - t.n_from;
    const long rows = sequences[(long)b * S_COUNT + S_Q_LEN];
    float part = 0.0f;
    long i0;
    (void)row_sums;
    for (i0 = 0; i0 < rows; i0 += BM) {
        int c;
        t.first = i0 * t.step + head % t.step;
        open_rows(&t, g);
        set_keys(&t, j0);
        pair_tile(&t, g, j0, WISH_DS);
        for (c = 0; c < BM && t.t < BN; c++) {
            const row r = tile_row(&t, c);
            part = plus_term(part, sum_term(&t, &to, &r, j0 + t.t, c * LDS + t.t));
        }
        if (t.t < BN && j0 + t.t < keys && ((i0 + BM) % 1024 == 0 || i0 + BM >= rows)) {
            *sum_at(&t, &to, head, 0, j0 + t.t) += part;
            part = 0.0f;
        }
    }
}

/* One item: the rows of a head, in chunks, to the element of all its pairs. */
__kernel void add_row_sums(INPUTS, __global const float *row_sums, out_bytes out, int name, int b,
                           int head)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    __global float *x = (__global float *)(out + in->N[name]) + b * in->N[name + 1] +
                        head * in->N[name + 2];
    const long rows = sequences[(long)b * S_COUNT + S_Q_LEN];
    long i, end;
    for (i = 0; i < rows; i = end) {
        float part = 0.0f;
        for (end = min(i + 1024, rows); i < end; i++)
            part = in_order(in, part + row_sums[i]);
        *x = *x + part;
    }
}

/* Item: query head. dsinks, in chunks of rows. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void sink_gradients(INPUTS, __global const float *known, out_bytes dsinks, int batch)
{
    const inputs all = MAKE_INPUTS;
    const inputs *in = &all;
    const int head = (int)get_global_id(0);
    float total = 0.0f;
    long b, i, end;
    if (head >= NUMBER(N_HEADS))
        return;
    for (b = 0; b < batch; b++) {
        const row r = head_row(in, b, head, 0);
        __global const float *terms = known + KNOWN_SINK_TERM * NUMBER(N_ALL_ROWS) +
                                      state_row(in, &r);
        for (i = 0; i < r.s[S_Q_LEN]; i = end) {
            float part = 0.0f;
            for (end = min(i + 1024, r.s[S_Q_LEN]); i < end; i++)
                part = in_order(in, part + terms[i]);
            total = total + part;
        }
    }
    store1(dsinks + NUMBER(N_DSINKS), 0, head, total);
}

#endif /* PART_BACKWARD */

/* ------------------------------------------------------------------------------------------------
 * 11  Check: elementary operations on given numbers; the host knows what they must be.
 * --------------------------------------------------------------------------------------------- */

#if PART_CHECK

/* Item i: operation i % CHECK_KINDS on numbers 3 i .. 3 i + 2; result i. */
__kernel __attribute__((reqd_work_group_size(CL_ROW_GROUP, 1, 1)))
void check(__global const float *a, __global float *result)
{
    const int i = (int)get_global_id(0), kind = i % CHECK_KINDS;
    const float x = a[3 * i], y = a[3 * i + 1], z = a[3 * i + 2];
    const float product = x * y;
    float r = product + z; /* CHECK_PRODUCT_SUM: must not be fused */
    if (kind == CHECK_FMA)
        r = fma(x, y, z);
    if (kind == CHECK_RECIPROCAL)
        r = reciprocal(x);
    if (kind == CHECK_EXP2)
        r = exp2_canon(x);
    if (kind == CHECK_LOG2)
        r = log2_canon(x);
    if (kind == CHECK_TANH)
        r = tanh_canon(x);
    if (kind == CHECK_LOAD_F16) /* the lower half of x */
        r = load1((bytes)a, 1, 6 * i);
    if (kind == CHECK_LOAD_BF16)
        r = load1((bytes)a, 2, 6 * i);
    if (kind == CHECK_STORE_F16 || kind == CHECK_STORE_BF16)
        r = 0.0f;
    result[i] = r;
    if (kind == CHECK_STORE_F16) /* by integer rules, too */
        store1((out_bytes)result, 1, 2 * i, x);
    if (kind == CHECK_STORE_BF16)
        store1((out_bytes)result, 2, 2 * i, x);
}

#endif /* PART_CHECK */

#endif /* __OPENCL_C_VERSION__ */
