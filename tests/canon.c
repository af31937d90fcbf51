/* canon.c - the canonical order of docs/canon.md, numerics version 2, a row at a time.
 * SPDX-License-Identifier: MIT
 *
 * An independent reading of the text: it shares the inputs (bits_data.h) and the expected hashes
 * (golden.h) with the tests of the library, and no arithmetic with anything. There is not one
 * floating-point operation here: binary32 numbers are their bits and every operation is integer
 * code, so no compiler, flag or unit can change what this program says. Gradients are in
 * canon_backward.c.
 *
 *     cc tests/canon.c tests/canon_backward.c -o canon
 *     ./canon            compares with golden.h, prints "N passed, N failed"
 *     ./canon --print    prints "name hash-of-o hash-of-the-rest", one case a line, and
 *                        "name hash-of-dq dk dv the-rest" of gradients
 *     ./canon --golden   prints golden.h
 *
 * The program stops when an operation meets an infinity or gives a subnormal number: identity is
 * promised only without those, so a case that needs them would prove nothing.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "canon.h"
#include "golden.h"

#define BLOCK 16

/* ---- binary32 in integers ---------------------------------------------------------------- */

static const char *current = "(no case)";

static void give_up(const char *why, f32 x)
{
    fprintf(stderr, "canon: %s: %s %08lx\n", current, why, (unsigned long)x);
    exit(2);
}

f32 negate(f32 x)
{
    return x ^ 0x80000000u;
}

/* (-1)^sign * m * 2^e, rounded to nearest even. Bit 0 of m may stand for all lower bits. */
static f32 rounded(uint32_t sign, uint64_t m, int e)
{
    uint64_t low, half = (uint64_t)1 << 39;
    if (m == 0)
        return sign << 31;
    while (m >> 63 == 0) {
        m <<= 1;
        e--;
    }
    low = m & (2 * half - 1);
    m >>= 40;
    e += 40;
    m += low > half || (low == half && (m & 1));
    e += 127 + 23; /* the biased exponent; a carry to 2^24 moves it up by itself below */
    if (e < 1 || e > 253)
        give_up("subnormal or overflow", (f32)e);
    return (sign << 31) + ((uint32_t)(e - 1) << 23) + (uint32_t)m;
}

/* The significand of x, moved left until bit 61 is set, and the exponent of its unit. */
static uint64_t unpacked(f32 x, int *e)
{
    uint32_t biased = x >> 23 & 255;
    if (biased == 255 || (biased == 0 && x << 1 != 0))
        give_up("operand not normal", x);
    *e = (int)biased - 127 - 61;
    return biased ? (uint64_t)((x & 0x7fffff) | 0x800000) << 38 : 0;
}

/* a * b + c, rounded once. */
f32 fma32(f32 a, f32 b, f32 c)
{
    int ea, eb, ec, distance, e;
    uint32_t sp = (a ^ b) >> 31, sc = c >> 31, sign;
    uint64_t p = unpacked(a, &ea) >> 38, q = unpacked(b, &eb) >> 38;
    uint64_t r = unpacked(c, &ec), big, small;
    p = p * q << 14; /* below 2^62, as r is */
    e = ea + eb + 2 * 38 - 14;
    if (p == 0 && r == 0)
        return sp && sc ? 0x80000000u : 0;
    if (p == 0)
        return c;
    if (r == 0)
        return rounded(sp, p, e);
    if (p >> 61 == 0) {
        p <<= 1;
        e--;
    }
    big = p, small = r, sign = sp, distance = e - ec;
    if (distance < 0 || (distance == 0 && p < r)) {
        big = r, small = p, sign = sc, distance = -distance, e = ec;
    }
    if (distance > 62)
        small = 1;
    else if (distance > 0)
        small = small >> distance | ((small & (((uint64_t)1 << distance) - 1)) != 0);
    if (sp == sc)
        return rounded(sign, big + small, e);
    return big == small ? 0 : rounded(sign, big - small, e);
}

f32 add(f32 a, f32 b)
{
    return fma32(a, ONE, b);
}

f32 sub(f32 a, f32 b)
{
    return fma32(a, ONE, negate(b));
}

f32 mul(f32 a, f32 b)
{
    return fma32(a, b, (a ^ b) & 0x80000000u); /* the zero of the product's sign */
}

f32 divide(f32 a, f32 b)
{
    int ea, eb;
    uint64_t n = unpacked(a, &ea), d = unpacked(b, &eb) >> 38, q;
    q = n / d;
    return rounded((a ^ b) >> 31, q << 1 | (n % d != 0), ea - eb - 38 - 1);
}

/* a < b for numbers and infinities. */
int less(f32 a, f32 b)
{
    int64_t x = a >> 31 ? -(int64_t)(a & 0x7fffffff) : (int64_t)a;
    int64_t y = b >> 31 ? -(int64_t)(b & 0x7fffffff) : (int64_t)b;
    return x < y;
}

f32 from_integer(int64_t n)
{
    return rounded(n < 0, n < 0 ? (uint64_t)-n : (uint64_t)n, 0);
}

/* ---- storage ----------------------------------------------------------------------------- */

f32 load(uint32_t u, int dtype)
{
    uint32_t m = u & 0x3ff, e = u >> 10 & 31, sign = u >> 15;
    if (dtype == BITS_F32)
        return u;
    if (dtype == BITS_BF16)
        return u << 16;
    if (e == 31)
        return sign << 31 | 0x7f800000u | m << 13;
    return e ? sign << 31 | (e + 112) << 23 | m << 13 : rounded(sign, m, -24);
}

/* Nearest even, numbers only: the bits dropped are compared with half a unit. Zero is +0. */
uint32_t store(f32 x, int dtype)
{
    uint32_t a = x & 0x7fffffff, sign = x >> 31 << 15, low, half, u;
    int e = (int)(a >> 23) - 127, drop = dtype == BITS_BF16 ? 16 : e < -14 ? -1 - e : 13;
    if (dtype == BITS_F32)
        return x;
    if (dtype == BITS_F16) {
        if (e < -25)
            return 0;
        a = e < -14 ? (a & 0x7fffff) | 0x800000 : a - (112u << 23); /* subnormal: no exponent */
    }
    half = (uint32_t)1 << (drop - 1);
    low = a & (2 * half - 1);
    u = a >> drop;
    u += low > half || (low == half && (u & 1));
    u = dtype == BITS_F16 && u > 0x7c00 ? 0x7c00 : u;
    return u == 0 ? 0 : sign | u; /* never -0 */
}

/* ---- elementary functions ---------------------------------------------------------------- */

static const f32 log2e_low = 0x32a57060, ln2 = 0x3f317218;

/* y = first; y = fma(y, x, next) for the rest. */
static f32 horner(const f32 *coefficient, int n, f32 x)
{
    f32 y = coefficient[0];
    int k;
    for (k = 1; k < n; k++)
        y = fma32(y, x, coefficient[k]);
    return y;
}

f32 exp2_32(f32 x)
{
    static const f32 c[] = { 0x3922536b, 0x3aafc686, 0x3c1d9411, 0x3d6356f6,
                             0x3e75fdf2, 0x3f317219, ONE };
    const f32 magic = 0x4b400000;
    f32 t, f;
    if (x == MINUS_INF || less(x, 0xc2fc0000))
        return 0;
    t = add(x, magic);
    f = sub(x, sub(t, magic));
    return horner(c, 7, f) + (t << 23);
}

f32 tanh_32(f32 x)
{
    static const f32 c[] = { 0xbbbaf0e5, 0x3ca9134e, 0xbd5c1e2d, 0x3e088393, 0xbeaaaa99 };
    f32 sign = x & 0x80000000u, a = x ^ sign, u, e;
    if (less(0x41200000, a))
        a = 0x41200000;
    if (less(a, 0x3f200000)) {
        u = mul(a, a);
        return fma32(mul(u, a), horner(c, 5, u), a) | sign;
    }
    e = exp2_32(mul(a, 0x4038aa3b));
    return sub(ONE, divide(0x40000000, add(e, ONE))) | sign;
}

/* log2 of a normal number above zero. */
static f32 log2_32(f32 x)
{
    static const f32 c[] = { 0xbde1321a, 0x3e3ea3c3, 0xbe43a42e, 0x3e5182cb, 0xbe755e87,
                             0x3e93bf1e, 0xbeb8ad39, 0x3ef6384b, 0xbf38aa38 };
    f32 m, f, k, h, l, s;
    uint32_t shifted = x - 0x3f3504f4;
    int32_t n = (int32_t)((shifted + 0x40000000) >> 23) - 128;
    m = (shifted & 0x7fffff) + 0x3f3504f4;
    f = sub(m, ONE);
    k = from_integer(n);
    h = mul(f, LOG2E);
    l = fma32(f, LOG2E, negate(h));
    l = fma32(f, log2e_low, l);
    l = fma32(mul(f, f), horner(c, 9, f), l);
    s = add(k, h);
    l = add(sub(h, sub(s, k)), l);
    return add(s, l);
}

/* The binary32 nearest to 1 / sqrt(n), n < 4096: m * 2^-e with the largest m of 24 bits that is not
 * above it, or the next one if the point between them is not above it, either. */
f32 inverse_root(uint64_t n)
{
    uint64_t m = 0, bit;
    int e = 23;
    while (((uint64_t)1 << 46) * n > (uint64_t)1 << 2 * e)
        e++;
    for (bit = 1 << 23; bit; bit >>= 1)
        if ((m + bit) * (m + bit) * n <= (uint64_t)1 << 2 * e)
            m += bit;
    m += (2 * m + 1) * (2 * m + 1) * n <= (uint64_t)4 << 2 * e;
    return rounded(0, m, -e);
}

static uint32_t philox_word(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    int round;
    for (round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xd2511f53 * c0, q = (uint64_t)0xcd9e8d57 * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)q;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    return c0;
}

/* ---- one row ------------------------------------------------------------------------------ */

uint32_t row_number(const row *r)
{
    return (uint32_t)((r->b * r->c->hq + r->h) * r->c->sq + r->i);
}

uint32_t kv_row_number(const row *r, int j)
{
    int head = r->h / (r->c->hq / r->c->hkv), column = bits_kv_begin(r->c, r->b) + j;
    return (uint32_t)((r->b * r->c->hkv + head) * r->c->skv + column);
}

int64_t distance(const row *r, int j)
{
    return r->pos > j ? r->pos - j : j - r->pos;
}

f32 slope_of(const row *r)
{
    return bits_slope(r->c, (uint32_t)(r->c->alibi == 2 ? r->b * r->c->hq + r->h : r->h));
}

f32 keep_factor(const bits_case *c)
{
    return divide(ONE, sub(ONE, c->dropout));
}

static int visible(const row *r, int j)
{
    const bits_case *c = r->c;
    if (c->causal && j > r->pos)
        return 0;
    if (c->window && c->window_left >= 0 && j < r->pos - c->window_left)
        return 0;
    return !c->window || c->window_right < 0 || j <= r->pos + c->window_right;
}

static void begin_row(row *r)
{
    const bits_case *c = r->c;
    int length = bits_q_len(c, r->b);
    r->keys = bits_kv_len(c, r->b);
    r->base = bits_key_base(c, r->b);
    r->pos = r->i;
    if (c->alignment == BITS_BOTTOM_RIGHT)
        r->pos += r->keys - length;
    if (c->alignment == BITS_OFFSET)
        r->pos += c->offset + r->b;
}

/* Rounds to whole numbers, ties to even, and gives their scale. */
static f32 round_unit(f32 *q)
{
    const f32 magic = from_integer(3 << 22);
    f32 most = 0, scale, inverse;
    int d;
    for (d = 0; d < BITS_UNIT; d++)
        most = less(most, q[d] & 0x7fffffff) ? q[d] & 0x7fffffff : most;
    scale = divide(most, from_integer(127));
    inverse = divide(ONE, scale);
    for (d = 0; d < BITS_UNIT; d++)
        q[d] = sub(add(mul(q[d], inverse), magic), magic);
    return scale;
}

/* Multiplies by Hadamard matrices over the roots of their sizes, 256, 128, ... as they fit. */
static void rotate(f32 *x, int dim)
{
    int n = 256, step, i;
    while (n > dim)
        n /= 2;
    if (!n)
        return;
    for (step = 1; step < n; step *= 2)
        for (i = 0; i < n; i++)
            if (!(i & step)) {
                const f32 low = x[i], high = x[i + step];
                x[i] = add(low, high);
                x[i + step] = sub(low, high);
            }
    for (i = 0; i < n; i++)
        x[i] = mul(x[i], inverse_root((uint64_t)n));
    rotate(x + n, dim - n);
}

static f32 k_scale(const row *r, uint32_t at)
{
    return bits_k_scale(r->c, bits_scale_at(r->c, at, r->c->d));
}

/* ---- caches of i8 ------------------------------------------------------------------------ */

/* The whole numbers of k and v that the cache of a case holds. */
static signed char cached_k[1 << 16], cached_v[1 << 16];

/* x over its scale, as a whole number from -127 to 127, ties to even; 0 for what has no quotient. */
static signed char whole_of(f32 x, f32 scale)
{
    const f32 magic = from_integer(3 << 22), size = x & 0x7fffffff;
    f32 y = size;
    int whole;
    if (size > 0x7f800000 || scale == 0)
        return 0;
    if (size < 0x7f800000)
        y = divide(size, scale);
    if (less(from_integer(127), y))
        y = from_integer(127);
    whole = (int)(add(y, magic) - magic); /* The last bit of the sum counts by one. */
    return (signed char)(x >> 31 ? -whole : whole);
}

/* A row of `width` elements from number `at` on: centered, rotated, then rounded. */
static void cache_row(const bits_case *c, signed char *to, uint32_t at, int width, int is_k)
{
    const uint32_t channel = bits_scale_at(c, at, width);
    f32 x[MAX_DIM];
    int d;
    for (d = 0; d < width; d++) {
        const uint32_t n = (uint32_t)d;
        x[d] = is_k ? bits_rows_k(c, at + n) : bits_rows_v(c, at + n);
        if (is_k && c->centered)
            x[d] = sub(x[d], bits_mean(c, channel + n));
    }
    if (c->rotated & (is_k ? 1 : 2))
        rotate(x, width);
    for (d = 0; d < width; d++) {
        const uint32_t n = channel + (uint32_t)d;
        to[at + (uint32_t)d] = whole_of(x[d], is_k ? bits_k_scale(c, n) : bits_v_scale(c, n));
    }
}

static void fill_cache(const bits_case *c)
{
    const uint32_t rows = (uint32_t)(bits_batch(c) * c->hkv * c->skv);
    const uint32_t d = (uint32_t)c->d, dv = (uint32_t)bits_dv(c);
    uint32_t i;
    if (rows * d > sizeof cached_k || rows * dv > sizeof cached_v)
        give_up("a cache too large", rows);
    for (i = 0; i < rows; i++) {
        cache_row(c, cached_k, i * d, (int)d, 1);
        cache_row(c, cached_v, i * dv, (int)dv, 0);
    }
}

static int whole_k(const bits_case *c, uint32_t at)
{
    return c->cached ? cached_k[at] : bits_whole(c, at);
}

static int whole_v(const bits_case *c, uint32_t at)
{
    return c->cached ? cached_v[at] : bits_v_whole(c, at);
}

/* ---- scores ------------------------------------------------------------------------------ */

/* Elements of k and v, whatever they are stored as. */
static f32 load_k(const row *r, uint32_t at)
{
    if (r->c->scaled)
        return mul(from_integer(whole_k(r->c, at)), k_scale(r, at));
    return load(bits_k(r->c, at), r->c->dtype);
}

static f32 load_v(const row *r, uint32_t at)
{
    const bits_case *c = r->c;
    if (c->scaled)
        return mul(from_integer(whole_v(c, at)), bits_v_scale(c, bits_scale_at(c, at, bits_dv(c))));
    return load(bits_v(c, at), c->dtype);
}

static void load_query(row *r)
{
    const bits_case *c = r->c;
    f32 scale = inverse_root((uint64_t)c->d);
    uint32_t at = row_number(r) * (uint32_t)c->d;
    int d;
    r->factor = fma32(scale, LOG2E, mul(scale, log2e_low));
    for (d = 0; d < c->d; d++)
        r->q[d] = load(bits_q(c, at + (uint32_t)d), c->dtype);
    if (c->rotated & 1)
        rotate(r->q, c->d);
    memcpy(r->plain_q, r->q, sizeof r->q);
    for (d = 0; d < c->d && c->units && c->scaled == BITS_BY_CHANNEL; d++)
        r->q[d] = mul(r->q[d], k_scale(r, kv_row_number(r, 0) * (uint32_t)c->d + (uint32_t)d));
    for (d = 0; c->units && d < c->d; d += BITS_UNIT)
        r->scale[d / BITS_UNIT] = round_unit(r->q + d);
}

/* Whether the row reads key j from the recent rows, and which of them it is. */
static int is_recent(const row *r, int j)
{
    return r->c->recent && j > r->pos - r->c->recent;
}

static uint32_t recent_row_number(const row *r, int j)
{
    int head = r->h / (r->c->hq / r->c->hkv), ring = bits_ring(r->c);
    return (uint32_t)((r->b * r->c->hkv + head) * ring + (int)((r->base + j) % ring));
}

static f32 softcap(f32 s, int cap)
{
    f32 cap2 = mul(from_integer(cap), LOG2E);
    return mul(cap2, tanh_32(mul(s, divide(ONE, cap2))));
}

/* Of whole numbers: sums of 32 products, which are exact, times both scales. Scales of keys come last, and
 * those of channels are in the query. */
static f32 score_of_units(const row *r, int j)
{
    uint32_t k = kv_row_number(r, j) * (uint32_t)r->c->d;
    f32 s = 0, sum, scale;
    int d, i;
    for (d = 0; d < r->c->d; d += BITS_UNIT) {
        for (sum = 0, i = d; i < d + BITS_UNIT; i++)
            sum = add(sum, mul(r->q[i], from_integer(whole_k(r->c, k + (uint32_t)i))));
        scale = r->c->scaled ? ONE
                             : load(bits_unit_scale(r->c, (k + (uint32_t)d) / BITS_UNIT), BITS_F16);
        s = fma32(sum, mul(r->scale[d / BITS_UNIT], scale), s);
    }
    s = mul(s, r->factor);
    return r->c->scaled == BITS_BY_KEY ? mul(s, k_scale(r, k)) : s;
}

static f32 score(const row *r, int j)
{
    uint32_t k = kv_row_number(r, j) * (uint32_t)r->c->d;
    f32 s = 0;
    int d;
    if (is_recent(r, j)) {
        k = recent_row_number(r, j) * (uint32_t)r->c->d;
        for (d = 0; d < r->c->d; d++)
            s = fma32(r->plain_q[d], bits_recent_k(r->c, k + (uint32_t)d), s);
        return mul(s, r->factor);
    }
    if (r->c->units)
        return score_of_units(r, j);
    for (d = 0; d < r->c->d; d++)
        s = fma32(r->q[d], load_k(r, k + (uint32_t)d), s);
    return mul(s, r->factor);
}

static f32 bias_of(const row *r, int j)
{
    const bits_case *c = r->c;
    int column = bits_kv_begin(c, r->b) + j;
    return load(bits_bias(c, bits_bias_at(c, r->b, r->h, r->i, column)), c->bias_dtype);
}

static void logit(row *r, int j)
{
    const bits_case *c = r->c;
    f32 s = r->raw[j] = score(r, j);
    if (c->softcap)
        s = softcap(s, c->softcap);
    r->capped[j] = s;
    if (c->bias && bias_of(r, j) != MINUS_INF)
        s = fma32(bias_of(r, j), LOG2E, s);
    if (c->alibi)
        s = fma32(negate(mul(slope_of(r), LOG2E)), from_integer(distance(r, j)), s);
    r->s[j] = s;
}

static void dropout(row *r, int j)
{
    uint32_t p = r->c->dropout, word;
    uint64_t threshold = (uint64_t)((p & 0x7fffff) | 0x800000) << 32;
    if (!p)
        return;
    threshold >>= 127 + 23 - (int)(p >> 23);
    word = philox_word(BITS_SEED, (uint32_t)(r->base + j), (uint32_t)(r->base + r->pos),
                       (uint32_t)r->h, (uint32_t)r->b);
    r->keep[j] = word >= threshold;
}

static void clear(state *a)
{
    memset(a, 0, sizeof *a);
    a->m = MINUS_INF;
}

static f32 value_of(const row *r, int j, int d)
{
    const int dv = bits_dv(r->c);
    if (is_recent(r, j))
        return bits_recent_v(r->c, recent_row_number(r, j) * (uint32_t)dv + (uint32_t)d);
    return load_v(r, kv_row_number(r, j) * (uint32_t)dv + (uint32_t)d);
}

/* t relative to m, before it is multiplied by what l is. */
static f32 moved(const state *a, f32 m)
{
    return add(a->t, mul(a->l, sub(a->m, m)));
}

static int64_t block_of(const row *r, int j)
{
    return (r->base + j) / BLOCK;
}

/* The first block of a row and its last four are its reference. */
static int is_reference(const row *r, int j)
{
    return block_of(r, j) == block_of(r, r->lo) || block_of(r, j) > block_of(r, r->hi - 1) - 4;
}

/* Whether the row leaves out keys of a block that begin at key j, the largest of whose logits is bm; then
 * they are added to d. */
static int leaves_out(const row *r, int j, f32 bm, state *a)
{
    const f32 least = 0xc2f00000; /* -120 */
    f32 x;
    if (r->limit == MINUS_INF || is_reference(r, j))
        return 0;
    x = sub(bm, r->ref_m);
    x = less(x, least) ? least : x;
    if (less(r->limit, x))
        return 0;
    a->d = add(a->d, exp2_32(x));
    return 1;
}

/* Keys j0..j1-1, all of one block and one version, enter the state of their chunk. */
static void enter_keys(const row *r, int j0, int j1, state *a)
{
    const uint32_t threshold = 0x41800000; /* 16 */
    f32 bm = MINUS_INF, factor, p;
    int j, d, dv = bits_dv(r->c);
    for (j = j0; j < j1; j++)
        if (r->alive[j] && less(bm, r->s[j]))
            bm = r->s[j];
    if (bm == MINUS_INF || leaves_out(r, j0, bm, a))
        return;
    if (a->m == MINUS_INF) {
        a->m = bm;
    } else if (less(add(a->m, threshold), bm)) {
        factor = exp2_32(sub(a->m, bm));
        if (r->c->top)
            a->t = mul(moved(a, bm), factor);
        a->l = mul(a->l, factor);
        for (d = 0; d < dv; d++)
            a->o[d] = mul(a->o[d], factor);
        a->m = bm;
    }
    for (j = j0; j < j1; j++) {
        if (!r->alive[j])
            continue;
        p = exp2_32(sub(r->s[j], a->m));
        a->l = add(a->l, p);
        if (r->c->top && p)
            a->t = add(a->t, mul(p, sub(r->s[j], a->m)));
        for (d = 0; d < dv && r->keep[j]; d++)
            a->o[d] = fma32(p, value_of(r, j, d), a->o[d]);
    }
}

/* Keys of one block: first those that are read as they are stored. */
static void enter_block(const row *r, int j0, int j1, state *a)
{
    int j = j0;
    while (j < j1 && !is_recent(r, j))
        j++;
    if (j0 < j)
        enter_keys(r, j0, j, a);
    if (j < j1)
        enter_keys(r, j, j1, a);
}

static void merge(const state *a, state *b, int dv, int with_t)
{
    const f32 left = add(a->d, b->d);
    f32 m, wa, wb;
    int d;
    b->d = left;
    if (a->l == 0)
        return;
    if (b->l == 0) {
        *b = *a;
        b->d = left;
        return;
    }
    m = less(a->m, b->m) ? b->m : a->m;
    wa = exp2_32(sub(a->m, m));
    wb = exp2_32(sub(b->m, m));
    if (with_t)
        b->t = fma32(moved(b, m), wb, mul(moved(a, m), wa));
    b->m = m;
    b->l = fma32(b->l, wb, mul(a->l, wa));
    for (d = 0; d < dv; d++)
        b->o[d] = fma32(b->o[d], wb, mul(a->o[d], wa));
}

/* Node (level, index) of the tree: chunks index * 2^level and following, 2^level of them. */
static void node(const row *r, int level, int64_t index, state *out)
{
    int64_t first = (index << level) * CHUNK - r->base, j;
    int64_t last = first + ((int64_t)CHUNK << level);
    state lower;
    clear(out);
    if (last <= 0 || first >= r->keys)
        return;
    if (level > 0) {
        node(r, level - 1, 2 * index, &lower);
        node(r, level - 1, 2 * index + 1, out);
        merge(&lower, out, bits_dv(r->c), r->c->top);
        return;
    }
    for (j = first; j < last; j += BLOCK) {
        int64_t from = j < 0 ? 0 : j, to = j + BLOCK < r->keys ? j + BLOCK : r->keys;
        if (from < to)
            enter_block(r, (int)from, (int)to, out);
    }
}

/* ---- skipping ---------------------------------------------------------------------------- */

static void merge_sink(const row *r, state *a)
{
    state sink;
    clear(&sink);
    sink.m = mul(bits_sink(r->c, (uint32_t)r->h), LOG2E);
    sink.l = ONE;
    merge(a, &sink, bits_dv(r->c), 0);
    *a = sink;
}

/* The state of the reference, and what the row may leave out by that. */
static void refer(row *r)
{
    const f32 share = 0x3d700000; /* 15/256 */
    state a;
    f32 x;
    int j, end;
    clear(&a);
    r->lo = r->hi = 0;
    for (j = 0; j < r->keys; j++)
        if (visible(r, j)) {
            r->lo = r->hi ? r->lo : j;
            r->hi = j + 1;
        }
    for (j = r->lo; j < r->hi; j = end) {
        end = j + BLOCK - (int)((r->base + j) % BLOCK);
        end = end < r->hi ? end : r->hi;
        if (is_reference(r, j))
            enter_block(r, j, end, &a);
    }
    if (a.l == 0)
        return;
    if (r->c->sink)
        merge_sink(r, &a);
    x = mul(mul(r->c->below, a.l), share);
    x = divide(x, from_integer(block_of(r, r->hi - 1) - block_of(r, r->lo) + 1));
    r->ref_m = a.m;
    r->limit = log2_32(x);
}

/* A bound on the share that the row left out. */
static f32 dropped(const row *r)
{
    const f32 margin = 0x3f802000, least = 0x0d800000; /* 1 + 2^-10, 2^-100 */
    const state *a = &r->root;
    f32 x;
    if (r->empty || a->d == 0)
        return 0;
    x = mul(mul(a->d, exp2_32(sub(r->ref_m, a->m))), from_integer(BLOCK));
    x = mul(divide(x, add(a->l, x)), margin);
    if (less(x, least))
        x = less(r->c->below, least) ? r->c->below : least;
    return x;
}

/* ---- results of a row ----------------------------------------------------------------------- */

f32 add_zero(f32 x)
{
    return x == 0x80000000u ? 0 : x;
}

static void finish_row(row *r)
{
    const bits_case *c = r->c;
    f32 inverse = 0, o[MAX_DIM];
    int d;
    if (!r->empty) {
        inverse = divide(ONE, r->root.l);
        if (c->dropout)
            inverse = mul(inverse, keep_factor(c));
    }
    for (d = 0; d < bits_dv(c); d++)
        o[d] = r->empty ? 0 : add_zero(mul(r->root.o[d], inverse));
    if (c->rotated & 2)
        rotate(o, bits_dv(c));
    for (d = 0; d < bits_dv(c); d++)
        r->o[d] = store(add_zero(o[d]), c->dtype);
    if (r->empty)
        r->lse = c->sink ? bits_sink(c, (uint32_t)r->h) : MINUS_INF;
    else
        r->lse = add_zero(mul(add(r->root.m, log2_32(r->root.l)), ln2));
    r->root.m = add_zero(r->root.m);
}

/* l and t of the keys move to the maximum that the sink makes. */
static void make_room(row *r, f32 sink)
{
    f32 w;
    if (!less(r->root.m, sink))
        return;
    w = exp2_32(sub(r->root.m, sink));
    r->keys_t = mul(moved(&r->root, sink), w);
    r->keys_l = mul(r->root.l, w);
}

void forward_row(row *r, const bits_case *c, int b, int h, int i)
{
    int j, level = 0;
    r->c = c;
    r->b = b;
    r->h = h;
    r->i = i;
    begin_row(r);
    r->empty = 1;
    for (j = 0; j < r->keys; j++) {
        r->alive[j] = visible(r, j) && !(c->bias && bias_of(r, j) == MINUS_INF);
        r->empty &= !r->alive[j];
    }
    if (!r->empty || c->logits)
        load_query(r);
    for (j = 0; j < r->keys; j++) {
        r->keep[j] = 1;
        dropout(r, j);
        if (r->alive[j] || c->logits) /* a dead key is as if absent */
            logit(r, j);
    }
    r->limit = MINUS_INF;
    if (c->below)
        refer(r);
    while (((int64_t)CHUNK << level) < r->base + r->keys)
        level++;
    node(r, level, 0, &r->root);
    if (c->partial)
        return;
    r->keys_l = r->root.l;
    r->keys_t = r->root.t;
    if (c->sink && c->top && !r->empty)
        make_room(r, mul(bits_sink(c, (uint32_t)h), LOG2E));
    if (c->sink) /* in an empty row the statistics alone show it */
        merge_sink(r, &r->root);
    finish_row(r);
}

void score_row(row *r, const bits_case *c, int b, int h, int i, f32 *x)
{
    int j;
    r->c = c;
    r->b = b;
    r->h = h;
    r->i = i;
    begin_row(r);
    load_query(r);
    r->factor = inverse_root((uint64_t)c->d);
    for (j = 0; j < r->keys; j++) {
        r->alive[j] = (char)visible(r, j);
        if (r->alive[j])
            x[j] = score(r, j);
    }
}

/* ---- hashes --------------------------------------------------------------------------------- */

typedef struct hashes {
    uint64_t o, rest;
} hashes;

void feed(uint64_t *hash, uint32_t x, int bytes)
{
    for (; bytes > 0; bytes--, x >>= 8)
        *hash = (*hash ^ (x & 255)) * UINT64_C(0x100000001b3);
}

void feed_stored(uint64_t *hash, uint32_t bits, int dtype)
{
    feed(hash, bits, dtype == BITS_F32 ? 4 : 2);
}

static void put_state(const row *r, hashes *out)
{
    const state *a = &r->root;
    int d;
    for (d = 0; d < bits_dv(r->c); d++)
        feed(&out->o, r->empty ? 0 : add_zero(a->o[d]), 4);
    feed(&out->rest, add_zero(a->m), 4);
    feed(&out->rest, a->l, 4);
}

/* Columns outside the sequence hold -inf, or +0 for probabilities. */
static void put_logits(const row *r, hashes *out)
{
    int column, stage = r->c->logits, dead;
    f32 x, inverse = r->empty ? 0 : divide(ONE, r->root.l);
    for (column = 0; column < r->c->skv; column++) {
        int j = column - bits_kv_begin(r->c, r->b);
        int inside = j >= 0 && j < r->keys;
        dead = !inside || (stage > BITS_LOGITS_SOFTCAP && !r->alive[j]);
        if (dead)
            x = stage == BITS_LOGITS_SOFTMAX ? 0 : MINUS_INF;
        else if (stage == BITS_LOGITS_SOFTMAX)
            x = r->empty ? 0 : mul(exp2_32(sub(r->s[j], r->root.m)), inverse);
        else
            x = mul(stage == BITS_LOGITS_RAW       ? r->raw[j]
                    : stage == BITS_LOGITS_SOFTCAP ? r->capped[j]
                                                   : r->s[j],
                    ln2);
        feed(&out->rest, x, 4);
    }
}

/* The likeliest alive key behind `last` (-1 = before all), or -1. */
static int next_key(const row *r, int last)
{
    int j, best = -1;
    for (j = 0; j < r->keys; j++) {
        if (!r->alive[j] || (best >= 0 && !less(r->s[best], r->s[j])))
            continue;
        if (last < 0 || less(r->s[j], r->s[last]) || (r->s[j] == r->s[last] && j > last))
            best = j;
    }
    return best;
}

static void put_insight(const row *r, hashes *out)
{
    f32 h = 0, inverse = r->empty ? 0 : divide(ONE, r->root.l);
    int n, j = -1, none = 0;
    if (!r->empty) {
        h = sub(mul(r->keys_l, log2_32(r->root.l)), r->keys_t);
        h = mul(mul(h, inverse), ln2);
    }
    feed(&out->rest, less(h, 0) ? 0 : add_zero(h), 4);
    for (n = 0; n < r->c->top; n++) {
        j = none ? -1 : next_key(r, j);
        none |= j < 0;
        feed(&out->rest, none ? 0xffffffffu : (uint32_t)(bits_kv_begin(r->c, r->b) + j), 4);
        feed(&out->rest, none ? 0 : mul(exp2_32(sub(r->s[j], r->root.m)), inverse), 4);
    }
}

static void put_row(const row *r, hashes *out)
{
    int d;
    if (r->c->partial) {
        put_state(r, out);
        return;
    }
    for (d = 0; d < bits_dv(r->c); d++)
        feed_stored(&out->o, r->o[d], r->c->dtype);
    feed(&out->rest, r->lse, 4);
    feed(&out->rest, r->root.m, 4);
    feed(&out->rest, r->root.l, 4);
    if (r->c->logits)
        put_logits(r, out);
    if (r->c->top)
        put_insight(r, out);
    if (r->c->below)
        feed(&out->rest, dropped(r), 4);
}

static hashes do_case(const bits_case *c)
{
    static row r;
    hashes out = { EMPTY_HASH, EMPTY_HASH };
    int b, h, i;
    if (c->cached)
        fill_cache(c);
    for (b = 0; b < bits_batch(c); b++)
        for (h = 0; h < c->hq; h++)
            for (i = 0; i < bits_q_len(c, b); i++) {
                forward_row(&r, c, b, h, i);
                put_row(&r, &out);
            }
    return out;
}

/* ---- the program ----------------------------------------------------------------------------- */

typedef struct report {
    int as_text, as_header, passed, failed;
} report;

static const char head[] =
    "/* golden.h - hashes of the cases of bits_data.h, numerics version 2: FNV-1a over o, and\n"
    " * over LSE, statistics, states and logits; of gradients over dq, dk, dv, and dbias, dsinks,\n"
    " * dslopes; of attn_index over its lists and their scores.\n"
    " * Written by `canon --golden`; a change is a major version.\n"
    " * SPDX-License-Identifier: MIT\n */\n#ifndef GOLDEN_H\n#define GOLDEN_H\n\n"
    "#include <stdint.h>\n\ntypedef struct golden_hash {\n    const char *name;\n"
    "    uint64_t o, rest;\n} golden_hash;\n\ntypedef struct golden_gradient {\n"
    "    const char *name;\n    uint64_t dq, dk, dv, rest;\n} golden_gradient;\n\n"
    "typedef struct golden_index {\n    const char *name;\n"
    "    uint64_t keys, scores;\n} golden_index;\n\n"
    "static const golden_hash golden[] = {\n";

static const char before_gradients[] =
    "};\n\nstatic const golden_gradient golden_gradients[] = {\n";
static const char before_indices[] = "};\n\nstatic const golden_index golden_indices[] = {\n";

static void print_case(const report *a, const char *name, const uint64_t *hash, int count)
{
    int n;
    printf(a->as_header ? "    { \"%s\"" : "%s", name);
    for (n = 0; n < count; n++) {
        printf(a->as_header ? n == 2 ? ",\n      UINT64_C(0x" : ", UINT64_C(0x" : " ");
        printf("%08lx%08lx", (unsigned long)(hash[n] >> 32),
               (unsigned long)(hash[n] & 0xffffffffu));
        printf(a->as_header ? ")" : "");
    }
    printf(a->as_header ? " },\n" : "\n");
}

/* golden: the name in golden.h at this place, NULL beyond its end, and the hashes there. */
static void report_case(report *a, const char *name, const uint64_t *hash, int count,
                        const char *golden_name, const uint64_t *golden_hashes)
{
    size_t bytes = (size_t)count * sizeof *hash;
    if (a->as_text || a->as_header) {
        print_case(a, name, hash, count);
    } else if (golden_name != NULL && strcmp(golden_name, name) == 0 &&
               memcmp(golden_hashes, hash, bytes) == 0) {
        a->passed++;
    } else {
        printf("%s differs from golden.h\n", name);
        a->failed++;
    }
}

static void report_forward(report *a)
{
    const int known = (int)(sizeof golden / sizeof golden[0]);
    int n;
    for (n = 0; n < BITS_CASES; n++) {
        const golden_hash *g = &golden[n < known ? n : 0];
        uint64_t want[2] = { g->o, g->rest }, hash[2];
        hashes x;
        current = bits_cases[n].name;
        x = do_case(&bits_cases[n]);
        hash[0] = x.o;
        hash[1] = x.rest;
        report_case(a, current, hash, 2, n < known ? g->name : NULL, want);
    }
}

static void report_gradients(report *a)
{
    const int known = (int)(sizeof golden_gradients / sizeof golden_gradients[0]);
    int n;
    for (n = 0; n < BITS_GRADIENT_CASES; n++) {
        const golden_gradient *g = &golden_gradients[n < known ? n : 0];
        uint64_t want[4] = { g->dq, g->dk, g->dv, g->rest }, hash[4];
        gradient_hashes x;
        current = bits_gradient_cases[n].name;
        x = gradients_of_case(&bits_gradient_cases[n]);
        hash[0] = x.dq;
        hash[1] = x.dk;
        hash[2] = x.dv;
        hash[3] = x.rest;
        report_case(a, current, hash, 4, n < known ? g->name : NULL, want);
    }
}

static void report_indices(report *a)
{
    const int known = (int)(sizeof golden_indices / sizeof golden_indices[0]);
    int n;
    for (n = 0; n < BITS_INDEX_CASES; n++) {
        const golden_index *g = &golden_indices[n < known ? n : 0];
        uint64_t want[2] = { g->keys, g->scores }, hash[2];
        index_hashes x;
        current = bits_index_cases[n].name;
        x = index_of_case(&bits_index_cases[n]);
        hash[0] = x.keys;
        hash[1] = x.scores;
        report_case(a, current, hash, 2, n < known ? g->name : NULL, want);
    }
}

int main(int argc, char **argv)
{
    report a = { 0, 0, 0, 0 };
    a.as_header = argc > 1 && strcmp(argv[1], "--golden") == 0;
    a.as_text = argc > 1 && strcmp(argv[1], "--print") == 0;
    if (philox_word(0, 0, 0, 0, 0) != 0x6627e8d5)
        give_up("philox", 0);
    if (a.as_header)
        fputs(head, stdout);
    report_forward(&a);
    if (a.as_header)
        fputs(before_gradients, stdout);
    report_gradients(&a);
    if (a.as_header)
        fputs(before_indices, stdout);
    report_indices(&a);
    if (a.as_header)
        fputs("};\n\n#endif\n", stdout);
    else if (!a.as_text)
        printf("%d passed, %d failed\n", a.passed, a.failed);
    return a.failed != 0;
}
