/* data.c - random numbers, guarded memory, storage types, tensors.
 * SPDX-License-Identifier: MIT
 */
#include "system.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers ---------------------------------------------------------------------------
 * xorshift64* (Vigna 2016): 2^64 - 1 long, and the upper bits, the only ones used, pass what such
 * tests need. The state is never 0. */

static rng_state rng = { 1, 1, 0, NULL, NULL };

uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; text != NULL && *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

void rng_seed(uint64_t seed)
{
    rng.values = seed != 0 ? seed : 0x9e3779b97f4a7c15u;
    rng.aside = ~rng.values != 0 ? ~rng.values : 1;
    rng.variation = (unsigned)(seed >> 60);
    rng.choices = rng.choices_end = NULL;
}

void rng_bytes(const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    rng_seed(count > 0 ? 1u + at[0] : 1);
    if (count > 0) {
        rng.choices = at + 1;
        rng.choices_end = at + count;
    }
}

rng_state rng_now(void)
{
    return rng;
}

void rng_resume(rng_state state)
{
    rng = state;
}

unsigned test_variation(void)
{
    return rng.variation++;
}

static uint64_t next_of(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

static uint64_t span_of(int64_t low, int64_t high)
{
    return (uint64_t)high - (uint64_t)low + 1;
}

static int64_t within(int64_t low, int64_t high, uint64_t random)
{
    return low + (int64_t)((random >> 11) % span_of(low, high));
}

/* As few bytes as can name every number below span. */
static uint64_t next_choice(uint64_t span)
{
    uint64_t choice = 0, reach = 1;
    for (; reach < span && rng.choices < rng.choices_end; reach <<= 8) {
        choice = choice << 8 | *rng.choices++;
        if (reach >> 56 != 0)
            break;
    }
    return choice % span;
}

uint64_t rng_u64(void)
{
    return next_of(&rng.values);
}

int64_t rng_int(int64_t low, int64_t high)
{
    if (rng.choices < rng.choices_end)
        return low + (int64_t)next_choice(span_of(low, high));
    return within(low, high, rng_u64());
}

int64_t rng_aside(int64_t low, int64_t high)
{
    return within(low, high, next_of(&rng.aside));
}

int rng_chance(int percent)
{
    return rng_int(0, 99) < percent;
}

float rng_unit(void)
{
    return (float)(rng_u64() >> 40) * (1.0f / 16777216.0f);
}

/* The sum of twelve uniform numbers has variance 1: no libm, the same on every machine. */
float rng_normal(void)
{
    float sum = -6.0f;
    for (int i = 0; i < 3; i++) {
        const uint64_t bits = rng_u64();
        for (int part = 0; part < 4; part++)
            sum += (float)((bits >> (16 * part)) & 0xffffu) * (1.0f / 65536.0f);
    }
    return sum;
}

int64_t rng_pick(const int64_t *values, int count)
{
    return values[rng_int(0, count - 1)];
}

/* ---- a fused step ----------------------------------------------------------------------------- */

/* The product is exact in binary64. Their sum is made odd if bits of it are lost, so that the rounding
 * to binary32 sees on which side of a half it lies. */
float exact_fma(float a, float b, float c)
{
    const double product = (double)a * (double)b;
    double sum = product + (double)c;
    const double added = sum - product, kept = sum - added;
    const double from_product = product - kept, from_c = (double)c - added;
    const double lost = from_product + from_c;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (isfinite(sum) && lost != 0 && bits % 2 == 0)
        bits += (lost > 0) == (sum > 0) ? 1u : ~(uint64_t)0;
    memcpy(&sum, &bits, sizeof sum);
    return (float)sum;
}

/* ---- guarded memory ------------------------------------------------------------------------ */

enum { MARGIN = 64, MAX_BUFFERS = 4096, CANARY = 0xc5 };

typedef struct buffer {
    unsigned char *base, *data; /* base: of the whole block */
    size_t total, bytes;
    size_t before, after; /* bytes of canary on each side of data */
    int is_mapped;
} buffer;

static buffer buffers[MAX_BUFFERS];
static int buffer_count;

static void out_of_memory(void)
{
    fprintf(stderr, "test: out of memory\n");
    exit(3);
}

static void make_on_heap(buffer *b, size_t bytes)
{
    b->total = bytes + 2 * MARGIN;
    b->base = malloc(b->total);
    if (b->base == NULL)
        out_of_memory();
    b->data = b->base + MARGIN;
    b->before = b->after = MARGIN;
    b->is_mapped = 0;
}

/* One inaccessible page on the side named; what remains of the other side's page is canary. */
static int make_on_pages(buffer *b, size_t bytes, int place)
{
    const size_t page = system_page();
    const size_t room = page == 0 ? 0 : (bytes + MARGIN + page - 1) / page * page;
    b->total = room + page;
    b->base = page == 0 ? NULL : system_map(b->total);
    if (b->base == NULL)
        return 0;
    b->is_mapped = 1;
    b->after = place == PLACE_PAGE_AFTER ? 0 : room - bytes;
    b->before = place == PLACE_PAGE_AFTER ? room - bytes : 0;
    b->data = b->base + (place == PLACE_PAGE_AFTER ? room - bytes : page);
    return system_forbid(b->base + (place == PLACE_PAGE_AFTER ? room : 0), page);
}

static void free_buffer(buffer *b)
{
    if (b->is_mapped)
        system_unmap(b->base, b->total);
    else
        free(b->base);
}

void *test_alloc_at(size_t bytes, int place)
{
    /* pages cost system calls: two of eight buffers get them */
    static const int places[8] = { PLACE_HEAP, PLACE_HEAP, PLACE_PAGE_AFTER,  PLACE_HEAP,
                                   PLACE_HEAP, PLACE_HEAP, PLACE_PAGE_BEFORE, PLACE_HEAP };
    buffer *b = &buffers[buffer_count];
    if (buffer_count == MAX_BUFFERS)
        out_of_memory();
    if (place == PLACE_ANY)
        place = places[test_variation() % 8];
    if (place == PLACE_HEAP || !make_on_pages(b, bytes, place))
        make_on_heap(b, bytes);
    b->bytes = bytes;
    memset(b->data - b->before, CANARY, b->before);
    memset(b->data + bytes, CANARY, b->after);
    memset(b->data, 0xff, bytes); /* NaN in every float type */
    buffer_count++;
    return b->data;
}

void *test_alloc(size_t bytes)
{
    return test_alloc_at(bytes, PLACE_ANY);
}

int all_bytes(const void *memory, size_t count, int byte)
{
    const unsigned char *bytes = memory;
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != byte)
            return 0;
    return 1;
}

int test_margins(void)
{
    int overrun = 0;
    for (int i = 0; i < buffer_count; i++) {
        const buffer *b = &buffers[i];
        overrun += !all_bytes(b->data - b->before, b->before, CANARY) ||
                   !all_bytes(b->data + b->bytes, b->after, CANARY);
    }
    return overrun;
}

void test_release(void)
{
    const int overrun = test_margins();
    if (overrun != 0)
        CHECK(overrun == 0, "%d buffers of this case were written beyond their ends", overrun);
    while (buffer_count > 0)
        free_buffer(&buffers[--buffer_count]);
}

int test_mark(void)
{
    return buffer_count;
}

void test_release_to(int mark)
{
    while (buffer_count > mark)
        free_buffer(&buffers[--buffer_count]);
}

/* ---- storage types ---------------------------------------------------------------------------
 * By the definition of the formats: sign, exponent, fraction, with the value computed exactly in
 * double and rounded by comparing the two neighbours. Slow and obvious. */

uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

size_t dtype_size(int dtype)
{
    return dtype == ATTN_F32 ? 4 : dtype == ATTN_I8 ? 1 : 2;
}

/* The types that K and V may have, in the order of attn_dtype. */
static const struct {
    const char *name;
    int unit, bytes; /* numbers that are stored together, in these bytes */
} stored_types[] = { { "f32", 1, 4 },    { "f16", 1, 2 },    { "bf16", 1, 2 },
                     { "e4m3", 1, 1 },   { "e5m2", 1, 1 },   { "q8_0", 32, 34 },
                     { "q5_0", 32, 22 }, { "q4_0", 32, 18 }, { "i8", 1, 1 } };
enum { STORED_TYPES = (int)(sizeof stored_types / sizeof *stored_types) };

const char *dtype_name(int dtype)
{
    return dtype >= 0 && dtype < STORED_TYPES ? stored_types[dtype].name : "unknown";
}

int dtype_unit(int dtype)
{
    return stored_types[dtype].unit;
}

size_t dtype_bytes(int dtype, int64_t numbers)
{
    return (size_t)(numbers / stored_types[dtype].unit * stored_types[dtype].bytes);
}

static float load_half(uint16_t half)
{
    const int exponent = (half >> 10) & 31, fraction = half & 1023;
    const uint32_t power = (uint32_t)(exponent > 0 ? exponent : 1) + 102; /* of 2^(exponent - 25) */
    float value = (float)fraction;
    if (exponent == 31)
        return float_from_bits((uint32_t)(half & 0x8000u) << 16 | 0x7f800000u |
                               (uint32_t)fraction << 13);
    if (exponent > 0)
        value += 1024.0f;
    value *= float_from_bits(power << 23);
    return (half & 0x8000u) != 0 ? -value : value;
}

static float load_16(int dtype, uint16_t bits)
{
    return dtype == ATTN_F16 ? load_half(bits) : float_from_bits((uint32_t)bits << 16);
}

float dtype_load(int dtype, const void *at)
{
    uint16_t bits;
    float value;
    if (dtype == ATTN_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&bits, at, sizeof bits);
    return load_16(dtype, bits);
}

/* The largest 16-bit value not above |value|, found by bisection over the ordered positive codes;
 * infinity's code is the upper end. */
static uint16_t code_below(int dtype, float magnitude)
{
    uint16_t low = 0, high = dtype == ATTN_F16 ? 0x7c00 : 0x7f80;
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (load_16(dtype, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static uint16_t store_16(int dtype, float value)
{
    const uint16_t sign = (uint16_t)((float_bits(value) >> 31) << 15);
    const uint16_t infinity = dtype == ATTN_F16 ? 0x7c00 : 0x7f80;
    const float magnitude = float_from_bits(float_bits(value) & 0x7fffffffu);
    uint16_t code;
    double below, above;
    if (value != value)
        return dtype == ATTN_F16 ? 0x7e00 : 0x7fc0;
    if (magnitude > 3.4028234e38f)
        return (uint16_t)(sign | infinity);
    code = code_below(dtype, magnitude);
    below = (double)load_16(dtype, code);
    /* beyond the largest finite value the next step of the same size stands for infinity */
    above = (code + 1) == infinity ? below + (below - (double)load_16(dtype, (uint16_t)(code - 1)))
                                   : (double)load_16(dtype, (uint16_t)(code + 1));
    if ((double)magnitude - below > above - (double)magnitude ||
        ((double)magnitude - below == above - (double)magnitude && (code & 1) != 0))
        code++;
    return (uint16_t)(sign | code);
}

void dtype_store(int dtype, void *at, float value)
{
    if (dtype == ATTN_F32) {
        const uint32_t bits = value != value ? 0x7fc00000u : float_bits(value);
        memcpy(at, &bits, sizeof bits);
    } else {
        const uint16_t bits = store_16(dtype, value);
        memcpy(at, &bits, sizeof bits);
    }
}

/* ---- tensors ------------------------------------------------------------------------------- */

static void set_steps(test_tensor *t, int64_t batch, int64_t head, int64_t seq)
{
    t->step_batch = (ptrdiff_t)batch;
    t->step_head = (ptrdiff_t)head;
    t->step_seq = (ptrdiff_t)seq;
}

/* The steps of a layout in elements, before any axis is reversed or shared. */
static void choose_steps(test_tensor *t)
{
    const int64_t row = t->dim + 3, head = t->seq * row + 5;
    switch (t->layout) {
    case LAYOUT_BSHD:
        set_steps(t, t->seq * t->heads * t->dim, t->dim, t->heads * t->dim);
        break;
    case LAYOUT_PADDED:
        set_steps(t, t->heads * head + 7, head, row);
        break;
    case LAYOUT_QKV:
        set_steps(t, t->seq * 3 * t->heads * t->dim, t->dim, 3 * t->heads * t->dim);
        break;
    default:
        set_steps(t, t->heads * t->seq * t->dim, t->seq * t->dim, t->dim);
        break;
    }
    if (t->layout == LAYOUT_SHARED_HEADS)
        set_steps(t, t->seq * t->dim, 0, t->dim);
    if (t->layout == LAYOUT_SHARED_BATCH)
        set_steps(t, 0, t->seq * t->dim, t->dim);
}

/* Elements from the first to the last of an axis. */
static int64_t span(ptrdiff_t step, int64_t count)
{
    return count > 0 ? step * (count - 1) : 0;
}

static ptrdiff_t reverse(ptrdiff_t *step, int64_t count)
{
    const ptrdiff_t start = (ptrdiff_t)span(*step, count);
    *step = -*step;
    return start;
}

void tensor_make(test_tensor *t, int dtype, int layout, int64_t batch, int64_t heads, int64_t seq,
                 int64_t dim)
{
    ptrdiff_t start = 0;
    int64_t elements;
    memset(t, 0, sizeof *t);
    t->dtype = dtype, t->layout = layout;
    t->batch = batch, t->heads = heads, t->seq = seq, t->dim = dim;
    choose_steps(t);
    elements = span(t->step_batch, batch) + span(t->step_head, heads) + span(t->step_seq, seq);
    elements += dim;
    if (batch == 0 || heads == 0 || seq == 0)
        elements = 0;
    if (layout == LAYOUT_NEGATIVE_SEQ || layout == LAYOUT_NEGATIVE)
        start += reverse(&t->step_seq, seq);
    if (layout == LAYOUT_NEGATIVE) {
        start += reverse(&t->step_head, heads);
        start += reverse(&t->step_batch, batch);
    }
    t->bytes = (size_t)elements * dtype_size(dtype);
    t->memory = test_alloc(t->bytes);
    t->before = test_alloc_at(t->bytes, PLACE_HEAP);
    t->data = t->memory + (elements > 0 ? (size_t)start * dtype_size(dtype) : 0);
    if (layout != LAYOUT_PACKED) {
        t->stride_batch = t->step_batch;
        t->stride_head = layout == LAYOUT_SHARED_HEADS ? ATTN_STRIDE_BROADCAST : t->step_head;
        t->stride_seq = t->step_seq;
        if (layout == LAYOUT_SHARED_BATCH)
            t->stride_batch = ATTN_STRIDE_BROADCAST;
    }
}

static unsigned char *element(const test_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d)
{
    const ptrdiff_t at = (ptrdiff_t)b * t->step_batch + (ptrdiff_t)h * t->step_head +
                         (ptrdiff_t)s * t->step_seq + (ptrdiff_t)d;
    return (unsigned char *)t->data + at * (ptrdiff_t)dtype_size(t->dtype);
}

float tensor_get(const test_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d)
{
    return dtype_load(t->dtype, element(t, b, h, s, d));
}

void tensor_set(test_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d, float value)
{
    dtype_store(t->dtype, element(t, b, h, s, d), value);
}

/* Calls one function for every element in the order b, h, s, d. */
typedef void (*element_fn)(test_tensor *t, unsigned char *at, void *user);

static void for_elements(test_tensor *t, element_fn function, void *user)
{
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t s = 0; s < t->seq; s++)
                for (int64_t d = 0; d < t->dim; d++)
                    function(t, element(t, b, h, s, d), user);
}

static void store_normal(test_tensor *t, unsigned char *at, void *factor)
{
    dtype_store(t->dtype, at, *(const float *)factor * rng_normal());
}

static void store_value(test_tensor *t, unsigned char *at, void *value)
{
    dtype_store(t->dtype, at, *(const float *)value);
}

void tensor_fill_normal(test_tensor *t, float factor)
{
    for_elements(t, store_normal, &factor);
    tensor_remember(t);
}

void tensor_fill(test_tensor *t, float value)
{
    for_elements(t, store_value, &value);
    tensor_remember(t);
}

void tensor_remember(test_tensor *t)
{
    memcpy(t->before, t->memory, t->bytes);
}

int tensor_unchanged(const test_tensor *t)
{
    return memcmp(t->before, t->memory, t->bytes) == 0;
}

/* Carries an element of the present over into the copy of the past. */
static void copy_back(test_tensor *t, unsigned char *at, void *past)
{
    memcpy((unsigned char *)past + (at - t->memory), at, dtype_size(t->dtype));
}

int tensor_gaps_unchanged(const test_tensor *t)
{
    test_tensor copy = *t;
    unsigned char *past = malloc(t->bytes + 1);
    int same;
    if (past == NULL)
        out_of_memory();
    memcpy(past, t->before, t->bytes);
    for_elements(&copy, copy_back, past);
    same = memcmp(past, t->memory, t->bytes) == 0;
    free(past);
    return same;
}

attn_tensor tensor_input(const test_tensor *t)
{
    attn_tensor a = { 0 };
    a.dtype = t->dtype;
    a.stride_batch = t->stride_batch;
    a.stride_head = t->stride_head;
    a.stride_seq = t->stride_seq;
    a.data = t->data;
    return a;
}

attn_output tensor_output(const test_tensor *t)
{
    attn_output a = { 0 };
    a.dtype = t->dtype;
    a.stride_batch = t->stride_batch;
    a.stride_head = t->stride_head;
    a.stride_seq = t->stride_seq;
    a.data = t->data;
    return a;
}

int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}
