/* canon.c - the canonical order of docs/canon.md, numerics version 1, a row at a time.
 * SPDX-License-Identifier: MIT
 *
 * An independent reading of the text: it shares the inputs (bits_data.h) and the expected hashes
 * (golden.h) with the tests of the library, and no arithmetic with anything. There is not one
 * floating-point operation here: binary32 numbers are their bits and every operation is integer
 * code, so no compiler, flag or unit can change what this program says.
 *
 *     cc tests/canon.c -o canon
 *     ./canon            compares with golden.h, prints "N passed, N failed"
 *     ./canon --print    prints "name hash-of-o hash-of-the-rest", one case a line
 *     ./canon --golden   prints golden.h
 *
 * The program stops when an operation meets an infinity or gives a subnormal number: identity is
 * promised only without those, so a case that needs them would prove nothing.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bits_data.h"
#include "golden.h"

typedef uint32_t f32; /* the bits of a binary32 number */

#define MINUS_INF 0xff800000u
#define ONE 0x3f800000u
#define BLOCK 16
#define CHUNK 1024
#define MAX_KEYS 8192
#define MAX_DIM 256

/* ---- binary32 in integers ---------------------------------------------------------------- */

static const char *current = "(no case)";

static void give_up(const char *why, f32 x)
{
    fprintf(stderr, "canon: %s: %s %08lx\n", current, why, (unsigned long)x);
    exit(2);
}

static f32 negate(f32 x)
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
static f32 fma32(f32 a, f32 b, f32 c)
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

static f32 add(f32 a, f32 b)
{
    return fma32(a, ONE, b);
}

static f32 sub(f32 a, f32 b)
{
    return fma32(a, ONE, negate(b));
}

static f32 mul(f32 a, f32 b)
{
    return fma32(a, b, (a ^ b) & 0x80000000u); /* the zero of the product's sign */
}

static f32 divide(f32 a, f32 b)
{
    int ea, eb;
    uint64_t n = unpacked(a, &ea), d = unpacked(b, &eb) >> 38, q;
    q = n / d;
    return rounded((a ^ b) >> 31, q << 1 | (n % d != 0), ea - eb - 38 - 1);
}

/* a < b for numbers and infinities. */
static int less(f32 a, f32 b)
{
    int64_t x = a >> 31 ? -(int64_t)(a & 0x7fffffff) : (int64_t)a;
    int64_t y = b >> 31 ? -(int64_t)(b & 0x7fffffff) : (int64_t)b;
    return x < y;
}

static f32 from_integer(int64_t n)
{
    return rounded(n < 0, n < 0 ? (uint64_t)-n : (uint64_t)n, 0);
}

/* ---- storage ----------------------------------------------------------------------------- */

static f32 load(uint32_t u, int dtype)
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
static uint32_t store(f32 x, int dtype)
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

static const f32 log2e = 0x3fb8aa3b, log2e_low = 0x32a57060, ln2 = 0x3f317218;

/* y = first; y = fma(y, x, next) for the rest. */
static f32 horner(const f32 *coefficient, int n, f32 x)
{
    f32 y = coefficient[0];
    int k;
    for (k = 1; k < n; k++)
        y = fma32(y, x, coefficient[k]);
    return y;
}

static f32 exp2_32(f32 x)
{
    static const f32 c[] = { 0x3922536b, 0x3aafc686, 0x3c1d9411, 0x3d6356f6, 0x3e75fdf2, 0x3f317219,
                             ONE };
    const f32 magic = 0x4b400000;
    f32 t, f;
    if (x == MINUS_INF || less(x, 0xc2fc0000))
        return 0;
    t = add(x, magic);
    f = sub(x, sub(t, magic));
    return horner(c, 7, f) + (t << 23);
}

static f32 tanh_32(f32 x)
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
    static const f32 c[] = { 0xbde1321a, 0x3e3ea3c3, 0xbe43a42e, 0x3e5182cb, 0xbe755e87, 0x3e93bf1e,
                             0xbeb8ad39, 0x3ef6384b, 0xbf38aa38 };
    f32 m, f, k, h, l, s;
    uint32_t shifted = x - 0x3f3504f4;
    int32_t n = (int32_t)((shifted + 0x40000000) >> 23) - 128;
    m = (shifted & 0x7fffff) + 0x3f3504f4;
    f = sub(m, ONE);
    k = from_integer(n);
    h = mul(f, log2e);
    l = fma32(f, log2e, negate(h));
    l = fma32(f, log2e_low, l);
    l = fma32(mul(f, f), horner(c, 9, f), l);
    s = add(k, h);
    l = add(sub(h, sub(s, k)), l);
    return add(s, l);
}

/* The binary32 nearest to 1 / sqrt(n), n < 4096: m * 2^-e with the largest m of 24 bits that is not
 * above it, or the next one if the point between them is not above it, either. */
static f32 inverse_root(uint64_t n)
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

typedef struct state {
    f32 m, l, o[MAX_DIM];
} state;

typedef struct row {
    const bits_case *c;
    int b, h, i, keys;    /* keys: of this batch entry */
    int64_t pos, base;    /* pos in units of j; base = n of key 0 */
    f32 q[MAX_DIM];       /* times the factor of the score */
    f32 s[MAX_KEYS];      /* logits, base 2 */
    char alive[MAX_KEYS]; /* visible and above -inf */
    char keep[MAX_KEYS];  /* not dropped */
    f32 raw[MAX_KEYS], capped[MAX_KEYS];
} row;

static row the_row;

static uint32_t kv_at(const row *r, int j, int width)
{
    int head = r->h / (r->c->hq / r->c->hkv), column = bits_kv_begin(r->c, r->b) + j;
    return (uint32_t)(((r->b * r->c->hkv + head) * r->c->skv + column) * width);
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
    f32 scale = inverse_root((uint64_t)c->d);
    f32 factor = fma32(scale, log2e, mul(scale, log2e_low));
    uint32_t at = (uint32_t)(((r->b * c->hq + r->h) * c->sq + r->i) * c->d);
    int d, length = bits_q_len(c, r->b);
    r->keys = bits_kv_len(c, r->b);
    r->base = bits_key_base(c, r->b);
    r->pos = r->i;
    if (c->alignment == BITS_BOTTOM_RIGHT)
        r->pos += r->keys - length;
    if (c->alignment == BITS_OFFSET)
        r->pos += c->offset + r->b;
    for (d = 0; d < c->d; d++)
        r->q[d] = mul(load(bits_q(c, at + (uint32_t)d), c->dtype), factor);
}

static f32 softcap(f32 s, int cap)
{
    f32 cap2 = mul(from_integer(cap), log2e);
    return mul(cap2, tanh_32(mul(s, divide(ONE, cap2))));
}

static void logit(row *r, int j)
{
    const bits_case *c = r->c;
    uint32_t k = kv_at(r, j, c->d);
    f32 s = 0, bias;
    int d;
    for (d = 0; d < c->d; d++)
        s = fma32(r->q[d], load(bits_k(c, k + (uint32_t)d), c->dtype), s);
    r->raw[j] = s;
    if (c->softcap)
        s = softcap(s, c->softcap);
    r->capped[j] = s;
    r->alive[j] = (char)visible(r, j);
    if (c->bias) {
        uint32_t at = (uint32_t)(r->i * c->skv + bits_kv_begin(c, r->b) + j);
        bias = load(bits_bias(c, at), c->bias_dtype);
        if (bias == MINUS_INF)
            r->alive[j] = 0;
        else
            s = fma32(bias, log2e, s);
    }
    if (c->alibi) {
        int64_t distance = r->pos > j ? r->pos - j : j - r->pos;
        s = fma32(negate(mul(bits_slope(c, (uint32_t)r->h), log2e)), from_integer(distance), s);
    }
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

/* Keys j0..j1-1, all of one block, enter the state of their chunk. */
static void enter_block(const row *r, int j0, int j1, state *a)
{
    const uint32_t threshold = 0x41800000; /* 16 */
    f32 bm = MINUS_INF, factor, p;
    int j, d, dv = bits_dv(r->c);
    for (j = j0; j < j1; j++)
        if (r->alive[j] && less(bm, r->s[j]))
            bm = r->s[j];
    if (bm == MINUS_INF)
        return;
    if (a->m == MINUS_INF) {
        a->m = bm;
    } else if (less(add(a->m, threshold), bm)) {
        factor = exp2_32(sub(a->m, bm));
        a->l = mul(a->l, factor);
        for (d = 0; d < dv; d++)
            a->o[d] = mul(a->o[d], factor);
        a->m = bm;
    }
    for (j = j0; j < j1; j++) {
        uint32_t v = kv_at(r, j, dv);
        if (!r->alive[j])
            continue;
        p = exp2_32(sub(r->s[j], a->m));
        a->l = add(a->l, p);
        for (d = 0; d < dv && r->keep[j]; d++)
            a->o[d] = fma32(p, load(bits_v(r->c, v + (uint32_t)d), r->c->dtype), a->o[d]);
    }
}

static void merge(const state *a, state *b, int dv)
{
    f32 m, wa, wb;
    int d;
    if (a->l == 0)
        return;
    if (b->l == 0) {
        *b = *a;
        return;
    }
    m = less(a->m, b->m) ? b->m : a->m;
    wa = exp2_32(sub(a->m, m));
    wb = exp2_32(sub(b->m, m));
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
        merge(&lower, out, bits_dv(r->c));
        return;
    }
    for (j = first; j < last; j += BLOCK) {
        int64_t from = j < 0 ? 0 : j, to = j + BLOCK < r->keys ? j + BLOCK : r->keys;
        if (from < to)
            enter_block(r, (int)from, (int)to, out);
    }
}

/* ---- results of a row, hashed (FNV-1a, 64 bits, least significant byte first) -------------- */

typedef struct hashes {
    uint64_t o, rest;
} hashes;

static void feed(uint64_t *hash, uint32_t x, int bytes)
{
    for (; bytes > 0; bytes--, x >>= 8)
        *hash = (*hash ^ (x & 255)) * UINT64_C(0x100000001b3);
}

static f32 add_zero(f32 x)
{
    return x == 0x80000000u ? 0 : x;
}

static void put_state(const row *r, const state *a, hashes *out)
{
    int d;
    for (d = 0; d < bits_dv(r->c); d++)
        feed(&out->o, a->l == 0 ? 0 : add_zero(a->o[d]), 4);
    feed(&out->rest, add_zero(a->m), 4);
    feed(&out->rest, a->l, 4);
}

static void put_result(const row *r, const state *a, int empty, hashes *out)
{
    const bits_case *c = r->c;
    f32 inverse = 0, lse, x;
    int d;
    if (!empty) {
        inverse = divide(ONE, a->l);
        if (c->dropout)
            inverse = mul(inverse, divide(ONE, sub(ONE, c->dropout)));
    }
    for (d = 0; d < bits_dv(c); d++) {
        x = empty ? 0 : add_zero(mul(a->o[d], inverse));
        feed(&out->o, store(x, c->dtype), c->dtype == BITS_F32 ? 4 : 2);
    }
    if (empty)
        lse = c->sink ? bits_sink(c, (uint32_t)r->h) : MINUS_INF;
    else
        lse = mul(add(a->m, log2_32(a->l)), ln2);
    feed(&out->rest, add_zero(lse), 4);
}

/* Columns outside the sequence hold -inf, or +0 for probabilities. */
static void put_logits(const row *r, const state *a, int empty, hashes *out)
{
    int column, stage = r->c->logits, dead;
    f32 x;
    for (column = 0; column < r->c->skv; column++) {
        int j = column - bits_kv_begin(r->c, r->b);
        int inside = j >= 0 && j < r->keys;
        dead = !inside || (stage > BITS_LOGITS_SOFTCAP && !r->alive[j]);
        if (dead)
            x = stage == BITS_LOGITS_SOFTMAX ? 0 : MINUS_INF;
        else if (stage == BITS_LOGITS_SOFTMAX)
            x = empty ? 0 : exp2_32(sub(r->s[j], add(a->m, log2_32(a->l))));
        else
            x = mul(stage == BITS_LOGITS_RAW ? r->raw[j]
                    : stage == BITS_LOGITS_SOFTCAP ? r->capped[j] : r->s[j], ln2);
        feed(&out->rest, x, 4);
    }
}

static void do_row(row *r, hashes *out)
{
    const bits_case *c = r->c;
    state a, sink;
    int j, level = 0, empty;
    begin_row(r);
    for (j = 0; j < r->keys; j++) {
        r->keep[j] = 1;
        logit(r, j);
        dropout(r, j);
    }
    while (((int64_t)CHUNK << level) < r->base + r->keys)
        level++;
    node(r, level, 0, &a);
    if (c->partial) {
        put_state(r, &a, out);
        return;
    }
    empty = a.l == 0;
    if (c->sink && !empty) {
        clear(&sink);
        sink.m = mul(bits_sink(c, (uint32_t)r->h), log2e);
        sink.l = ONE;
        merge(&a, &sink, bits_dv(c));
        a = sink;
    }
    put_result(r, &a, empty, out);
    if (c->logits)
        put_logits(r, &a, empty, out);
}

static hashes do_case(const bits_case *c)
{
    row *r = &the_row;
    hashes out = { UINT64_C(0xcbf29ce484222325), UINT64_C(0xcbf29ce484222325) };
    r->c = c;
    current = c->name;
    for (r->b = 0; r->b < bits_batch(c); r->b++)
        for (r->h = 0; r->h < c->hq; r->h++)
            for (r->i = 0; r->i < bits_q_len(c, r->b); r->i++)
                do_row(r, &out);
    return out;
}

static void print_hash(const char *before, uint64_t x, const char *after)
{
    printf("%s%08lx%08lx%s", before, (unsigned long)(x >> 32),
           (unsigned long)(x & 0xffffffffu), after);
}

static const char head[] =
    "/* golden.h - hashes of the cases of bits_data.h, numerics version 1: FNV-1a over o, and\n"
    " * over LSE, states and logits. Written by `canon --golden`; a change is a major version.\n"
    " * SPDX-License-Identifier: MIT\n */\n#ifndef GOLDEN_H\n#define GOLDEN_H\n\n"
    "#include <stdint.h>\n\ntypedef struct golden_hash {\n    const char *name;\n"
    "    uint64_t o, rest;\n} golden_hash;\n\nstatic const golden_hash golden[] = {\n";

int main(int argc, char **argv)
{
    int as_header = argc > 1 && strcmp(argv[1], "--golden") == 0;
    int as_text = argc > 1 && strcmp(argv[1], "--print") == 0;
    int n, passed = 0, failed = 0, known = (int)(sizeof golden / sizeof golden[0]);
    if (philox_word(0, 0, 0, 0, 0) != 0x6627e8d5)
        give_up("philox", 0);
    if (as_header)
        fputs(head, stdout);
    for (n = 0; n < BITS_CASES; n++) {
        hashes x = do_case(&bits_cases[n]);
        const char *name = bits_cases[n].name;
        if (as_text || as_header) {
            printf(as_header ? "    { \"%s\"" : "%s", name);
            print_hash(as_header ? ", UINT64_C(0x" : " ", x.o, as_header ? ")" : "");
            print_hash(as_header ? ", UINT64_C(0x" : " ", x.rest, as_header ? ") },\n" : "\n");
        } else if (n < known && strcmp(golden[n].name, name) == 0 && golden[n].o == x.o
                   && golden[n].rest == x.rest) {
            passed++;
        } else {
            printf("%s differs from golden.h\n", name);
            failed++;
        }
    }
    if (as_header)
        fputs("};\n\n#endif\n", stdout);
    else if (!as_text)
        printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
