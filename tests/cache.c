/* cache.c - caches: random operations against a plain model, roll-backs of rings. The group
 * goes on in cache_bits.c and cache_misuse.c.
 * SPDX-License-Identifier: MIT
 *
 *     build/test cache [-- COUNT]       also: ATTN_CACHE=COUNT in the environment: operations
 *
 * The model keeps each sequence as an array of keys by their number, and pages as names: a key
 * appended to a page that another sequence has, too, gives the page a new name. It decides what
 * each operation must do, key by key. After each all keys are read, and everything that can be seen
 * of lengths, tables and the free list is compared; an operation that must fail may change nothing.
 */
#include "caches.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_OPERATIONS = 100000,
    OPERATIONS_A_CASE = 500,
    SEQUENCES = 5,
    LAYERS = 3,
    HEADS = 3,
    DIM = 4,        /* at most */
    NUMBERS = 1200, /* of a sequence, before it must start afresh */
    ROWS = 320,     /* of a sequence */
    VALUES = 1024
};

/* ---- model ---------------------------------------------------------------------------------- */

/* What became of a number: a ring overwrote it, or the caller did not want it any more. */
enum { PRESENT = 0, OVERWRITTEN, FORGOTTEN };

typedef struct model_sequence {
    int64_t begin, end;
    int32_t ids[NUMBERS];         /* what was appended as this number */
    unsigned char fates[NUMBERS]; /* of those below end */
    int32_t pages[ROWS];          /* names; -1 = none */
    int64_t recent[ROWS];         /* the number in each recent row; -1 = none */
} model_sequence;

typedef struct model {
    model_sequence q[SEQUENCES];
    int32_t next_id, next_page;
} model;

static model now, trial;

static void model_restart(model_sequence *q)
{
    q->begin = q->end = 0;
    for (int i = 0; i < ROWS; i++) {
        q->pages[i] = -1;
        q->recent[i] = -1;
    }
}

static void model_start(model *m)
{
    m->next_id = m->next_page = 0;
    for (int i = 0; i < SEQUENCES; i++)
        model_restart(&m->q[i]);
}

static int64_t page_of(const attn_cache *c, int64_t number)
{
    return number % c->rows / c->page_size;
}

static int model_is_shared(const attn_cache *c, const model *m, int32_t name)
{
    int users = 0;
    for (int64_t q = 0; q < c->num_sequences; q++)
        for (int64_t i = 0; i < c->pages_per_sequence; i++)
            users += m->q[q].pages[i] == name;
    return users > 1;
}

static void model_append(const attn_cache *c, model *m, int64_t sequence, int64_t count)
{
    model_sequence *q = &m->q[sequence];
    for (int64_t i = 0; i < count; i++) {
        const int64_t number = q->end++, gone = number - c->rows;
        q->ids[number] = m->next_id++;
        q->fates[number] = PRESENT;
        if (c->recent > 0)
            q->recent[number % c->recent_rows] = number;
        if (gone >= q->begin) {
            q->fates[gone] = OVERWRITTEN;
            q->begin = gone + 1;
        }
        if (c->page_size > 0) {
            int32_t *page = &q->pages[page_of(c, number)];
            if (*page < 0 || model_is_shared(c, m, *page))
                *page = m->next_page++;
        }
    }
}

static int64_t model_pages(const attn_cache *c, const model *m)
{
    int64_t count = 0;
    for (int64_t q = 0; q < c->num_sequences; q++)
        for (int64_t i = 0; i < c->pages_per_sequence; i++) {
            int is_first = m->q[q].pages[i] >= 0;
            for (int64_t before = 0; before < q; before++)
                is_first &= m->q[before].pages[i] != m->q[q].pages[i];
            count += is_first;
        }
    return count;
}

/* Pages of numbers that are no longer there are given back. */
static void model_drop(const attn_cache *c, model_sequence *q)
{
    int32_t kept[ROWS];
    for (int i = 0; i < ROWS; i++)
        kept[i] = -1;
    for (int64_t n = q->begin; n < q->end && c->page_size > 0; n++)
        kept[page_of(c, n)] = q->pages[page_of(c, n)];
    memcpy(q->pages, kept, sizeof kept);
}

/* By keeping begin .. end-1 the caller forgets all below, if that is more than he has, or all. */
static int model_forgets(const model_sequence *q, int64_t begin, int64_t end)
{
    return begin > q->begin || begin == end;
}

/* Keys before its own that a row reads from the recent rows. */
static int64_t recent_before(const attn_cache *c)
{
    const int hidden = c->ring && c->window_left > 0 && c->window_left < c->recent;
    return hidden ? c->window_left : c->recent - 1;
}

/* Every number of which a query at `end` reads the recent row is in one. */
static int model_has_recent(const attn_cache *c, const model_sequence *q, int64_t begin,
                            int64_t end)
{
    const int64_t first = end - recent_before(c);
    for (int64_t n = first > begin ? first : begin; c->recent > 0 && n < end; n++)
        if (q->recent[n % c->recent_rows] != n)
            return 0;
    return 1;
}

/* Every number that a query at `end` may look at is there, or the caller did without it. */
static int model_may_keep(const attn_cache *c, const model_sequence *q, int64_t begin, int64_t end)
{
    for (int64_t n = end > c->window_left ? end - c->window_left : 0; n < end; n++)
        if (q->fates[n] == OVERWRITTEN && !(n < begin && model_forgets(q, begin, end)))
            return 0;
    return model_has_recent(c, q, begin, end);
}

static void model_keep(const attn_cache *c, model_sequence *q, int64_t begin, int64_t end)
{
    if (model_forgets(q, begin, end))
        memset(q->fates, FORGOTTEN, (size_t)begin);
    q->begin = begin;
    q->end = end;
    model_drop(c, q);
}

/* ---- values: of a key that was appended, in every storage type ------------------------------ */

static float values[VALUES];
static uint32_t rounded[3][VALUES]; /* the bits of what is read back as f32, by attn_dtype */
static float scales[2][LAYERS * HEADS * DIM];

int8_t scaled_store(float x, float scale)
{
    const float y = x / scale;
    if (y != y || scale == 0)
        return 0;
    return (int8_t)(y >= 127 ? 127 : y <= -127 ? -127 : rint((double)y));
}

float scaled_load(int8_t number, float scale)
{
    const float x = (float)number * scale;
    return x == x ? x : float_from_bits(0x7fc00000u);
}

/* Ordinary scales, and every kind that is none. */
static void fill_scales(void)
{
    static const int64_t special[] = { 0,          0x80000000, 0x00000001, 0x807fffff, 0x7f800000,
                                       0xff800000, 0x7fc00000, 0x7f7fffff, 0xbd000000 };
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < LAYERS * HEADS * DIM; i++)
            scales[side][i] = rng_chance(30) ? float_from_bits((uint32_t)RNG_PICK(special))
                                             : 0.01f + rng_unit() / 40;
}

static void fill_values(void)
{
    static const uint32_t special[] = { 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u,
                                        0x00000001u, 0x33000000u, 0x33000001u, 0x3f801000u,
                                        0x3f803000u, 0x477fefffu, 0x477ff000u, 0x3f808000u,
                                        0x3f818000u, 0x7f7fffffu };
    enum { SPECIAL = sizeof special / sizeof *special };
    for (int i = 0; i < VALUES; i++) {
        values[i] = i < SPECIAL ? float_from_bits(special[i]) : rng_normal();
        for (int dtype = 0; dtype < 3; dtype++) {
            uint32_t stored[1];
            dtype_store(dtype, stored, values[i]);
            rounded[dtype][i] = float_bits(dtype_load(dtype, stored));
        }
    }
    fill_scales();
}

static int64_t value_at(int32_t id, int64_t layer, int side, int64_t h, int64_t d)
{
    return (id * 271 + layer * 83 + side * 41 + h * 13 + d) % VALUES;
}

/* ---- the cache under test ------------------------------------------------------------------- */

attn_cache cache;
char why[WHY];
static attn_cache cache_before;
static unsigned char *memory, *memory_before;
static size_t memory_bytes;

int cache_start(void)
{
    if (!CHECK(attn_cache_size(&cache, &memory_bytes, why, WHY) == ATTN_OK, "%s", why))
        return 0;
    memory = test_alloc(memory_bytes);
    memory_before = test_alloc(memory_bytes);
    return CHECK(attn_cache_init(&cache, memory, memory_bytes, why, WHY) == ATTN_OK, "%s", why) &&
           CHECK(strcmp(why, "ok") == 0, "%s", why);
}

void cache_remember(void)
{
    cache_before = cache;
    memcpy(memory_before, memory, memory_bytes);
}

int cache_is_unchanged(void)
{
    return memcmp(&cache, &cache_before, sizeof cache) == 0 &&
           memcmp(memory, memory_before, memory_bytes) == 0;
}

static ptrdiff_t scale_step(ptrdiff_t stride)
{
    return stride == ATTN_STRIDE_BROADCAST ? 0 : stride;
}

/* The scale of a number, as attn_scales says where it lies. */
static float scale_at(const attn_cache *c, int64_t layer, int side, int64_t h, int64_t d)
{
    const attn_scales *x = side == 0 ? &c->k_scales : &c->v_scales;
    return x->data[layer * scale_step(x->stride_batch) + h * scale_step(x->stride_head) +
                   d * scale_step(x->stride_dim)];
}

/* The bits of value `at` of a key as f32. */
static uint32_t expected_bits(int dtype, int64_t layer, int side, int64_t h, int64_t d, int64_t at)
{
    float scale;
    if (dtype != ATTN_I8)
        return rounded[dtype][at];
    scale = scale_at(&cache, layer, side, h, d);
    return float_bits(scaled_load(scaled_store(values[at], scale), scale));
}

static int random_dtype(void)
{
    static const int64_t types[] = { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8 };
    return (int)RNG_PICK(types);
}

static ptrdiff_t packed_or_shared(void)
{
    return rng_chance(70) ? 0 : ATTN_STRIDE_BROADCAST;
}

static attn_scales random_scales(int dtype, const float *data)
{
    attn_scales x = { 0, 0, 0, 0, NULL };
    if (dtype != ATTN_I8)
        return x;
    x.data = data;
    x.stride_batch = packed_or_shared();
    x.stride_head = packed_or_shared();
    x.stride_seq = packed_or_shared();
    x.stride_dim = packed_or_shared();
    return x;
}

static void random_shape(attn_cache *c)
{
    static const int64_t page_sizes[] = { 1, 5, 16, 256 };
    memset(c, 0, sizeof *c);
    c->num_sequences = rng_int(1, SEQUENCES);
    c->num_layers = rng_int(0, 2);
    c->num_heads_kv = rng_int(1, HEADS);
    c->head_dim = rng_int(1, DIM);
    c->head_dim_v = rng_int(0, DIM);
    c->capacity = rng_int(1, 24);
    c->page_size = rng_chance(60) ? RNG_PICK(page_sizes) : 0;
    c->layout = (int)rng_int(0, 1);
    c->k.dtype = random_dtype();
    c->v.dtype = random_dtype();
    c->k_scales = random_scales(c->k.dtype, scales[0]);
    c->v_scales = random_scales(c->v.dtype, scales[1]);
    if (rng_chance(50)) {
        c->ring = 1;
        c->window_left = rng_int(0, c->capacity - 1);
    }
    if (rng_chance(40)) {
        c->recent = rng_int(1, c->ring ? c->capacity : 30);
        c->recent_rows = rng_chance(20) ? 0 : c->recent + rng_int(0, 12);
        c->recent_dtype = (int)rng_int(0, 2);
    }
    if (c->page_size > 0 && rng_chance(50)) /* too few pages for all */
        c->num_pages = rng_int(1, c->num_sequences * ((c->capacity - 1) / c->page_size + 1));
}

/* Storage of the caller's own for one side, with gaps, the last row first; heads outside of rows or
 * rows outside of heads. */
static ptrdiff_t own_storage(const attn_cache *c, attn_output *o)
{
    const int64_t rows = c->page_size > 0 ? c->page_size : c->capacity;
    const int64_t pages = c->page_size > 0 ? (c->capacity - 1) / c->page_size + 1 : 1;
    const int64_t entries =
        c->page_size > 0 && c->num_pages > 0 ? c->num_pages : pages * c->num_sequences;
    const int by_head = rng_chance(50);
    const int64_t seq = by_head ? DIM + 1 : (DIM + 2) * c->num_heads_kv + 1;
    const int64_t head = by_head ? seq * rows + 3 : DIM + 2;
    const int64_t entry = (by_head ? head * c->num_heads_kv : seq * rows) + 2;
    const int64_t layer = entry * entries + 1;
    const size_t size = dtype_size(o->dtype);
    unsigned char *data = test_alloc((size_t)(layer * LAYERS) * size);
    o->data = data + (size_t)(seq * (rows - 1)) * size;
    o->stride_seq = (ptrdiff_t)-seq;
    o->stride_head = (ptrdiff_t)head;
    o->stride_batch = (ptrdiff_t)entry;
    return (ptrdiff_t)layer;
}

static int start_random(void)
{
    random_shape(&cache);
    if (rng_chance(20))
        cache.k_stride_layer = own_storage(&cache, &cache.k);
    if (rng_chance(20))
        cache.v_stride_layer = own_storage(&cache, &cache.v);
    model_start(&now);
    return cache_start();
}

/* ---- comparing with the model --------------------------------------------------------------- */

static const char *kind_text(void)
{
    static char text[300];
    snprintf(text, sizeof text,
             "sequences %d layers %d heads %d dims %d %d capacity %d page_size %d num_pages %d "
             "ring %d window_left %d recent %d in %d layout %d types %s %s",
             (int)cache.num_sequences, (int)cache.num_layers, (int)cache.num_heads_kv,
             (int)cache.head_dim, (int)cache.head_dim_v, (int)cache.capacity, (int)cache.page_size,
             (int)cache.num_pages, cache.ring, (int)cache.window_left, (int)cache.recent,
             (int)cache.recent_rows, cache.layout, dtype_name(cache.k.dtype),
             dtype_name(cache.v.dtype));
    return text;
}

static int64_t dim_of(int side)
{
    return side == 0 ? cache.head_dim : cache.head_dim_v;
}

/* All numbers of one layer of a sequence: both sides at once, or one by one. */
static attn_status read_all(int64_t layer, int64_t sequence, const attn_output *k,
                            const attn_output *v)
{
    const int apart = rng_chance(50);
    const int64_t first = cache.begin[sequence], count = cache.length[sequence];
    const attn_status status =
        attn_cache_read(&cache, layer, sequence, first, count, k, apart ? NULL : v, why, WHY);
    return !apart || status != ATTN_OK
               ? status
               : attn_cache_read(&cache, layer, sequence, first, count, NULL, v, why, WHY);
}

static int keys_are_right(int64_t layer, int64_t sequence)
{
    static float read[2][HEADS * ROWS * DIM];
    const model_sequence *q = &now.q[sequence];
    const int64_t count = q->end - q->begin;
    attn_output k = { 0 }, v = { 0 };
    int64_t wrong = 0;
    k.data = read[0];
    v.data = read[1];
    if (read_all(layer, sequence, &k, &v) != ATTN_OK)
        return 0;
    for (int side = 0; side < 2; side++) {
        const int dtype = side == 0 ? cache.k.dtype : cache.v.dtype;
        const float *x = read[side];
        for (int64_t h = 0; h < cache.num_heads_kv; h++)
            for (int64_t i = 0; i < count; i++)
                for (int64_t d = 0; d < dim_of(side); d++)
                    wrong += float_bits(*x++) !=
                             expected_bits(dtype, layer, side, h, d,
                                           value_at(q->ids[q->begin + i], layer, side, h, d));
    }
    return wrong == 0;
}

static int numbers_are_right(int64_t sequence)
{
    const model_sequence *q = &now.q[sequence];
    return cache.begin[sequence] == q->begin && cache.end[sequence] == q->end &&
           cache.length[sequence] == q->end - q->begin &&
           cache.first_row[sequence] == q->begin % cache.rows &&
           (q->begin > 0 && q->fates[q->begin - 1] == OVERWRITTEN) ==
               (q->begin > 0 && cache.overwritten_below[sequence] == q->begin);
}

/* Tables have a page where the model has a name, and the same page where the names are. */
static int tables_are_right(void)
{
    const int64_t pages = cache.pages_per_sequence;
    for (int64_t a = 0; a < cache.num_sequences; a++)
        for (int64_t i = 0; i < pages; i++) {
            const int32_t page = cache.table[a * pages + i], name = now.q[a].pages[i];
            if ((page >= 0) != (name >= 0) || page < -1 || page >= cache.num_pages)
                return 0;
            for (int64_t b = 0; b < a && page >= 0; b++)
                if ((cache.table[b * pages + i] == page) != (now.q[b].pages[i] == name))
                    return 0;
        }
    return cache.num_free == cache.num_pages - model_pages(&cache, &now);
}

/* Every page is in use as often as tables say, at one place of them, or in the free list once. */
static int pages_are_right(void)
{
    int32_t uses[SEQUENCES * ROWS] = { 0 }, place[SEQUENCES * ROWS];
    const int64_t pages = cache.pages_per_sequence;
    for (int64_t at = 0; at < cache.num_sequences * pages; at++) {
        const int32_t page = cache.table[at];
        if (page >= 0 && uses[page]++ > 0 && place[page] != at % pages)
            return 0;
        if (page >= 0)
            place[page] = (int32_t)(at % pages);
    }
    for (int64_t i = 0; i < cache.num_pages; i++)
        if (cache.uses[i] != uses[i])
            return 0;
    for (int64_t i = 0; i < cache.num_free; i++)
        if (uses[cache.free_pages[i]]++ != 0)
            return 0;
    for (int64_t i = 0; i < cache.num_pages; i++)
        if (uses[i] == 0)
            return 0;
    return 1;
}

static int compare_all(const char *after)
{
    int good = 1;
    for (int64_t q = 0; q < cache.num_sequences && good; q++) {
        good = CHECK(numbers_are_right(q), "after %s, sequence %d: %s", after, (int)q, kind_text());
        for (int64_t layer = 0; layer < cache.num_layers && good; layer++)
            good = CHECK(keys_are_right(layer, q), "after %s, layer %d of sequence %d: %s", after,
                         (int)layer, (int)q, kind_text());
    }
    if (good && cache.page_size > 0)
        good = CHECK(tables_are_right(), "after %s: %s", after, kind_text()) &&
               CHECK(pages_are_right(), "after %s: %s", after, kind_text());
    return good;
}

/* ---- views: element by element, as kv_rows of attn.h says where they lie -------------------- */

static const unsigned char *viewed(const attn_params *p, int side, int64_t b, int64_t h, int64_t j)
{
    const attn_tensor *t = side == 0 ? &p->k : &p->v;
    const attn_rows *rows = &p->kv_rows;
    const int64_t pages = rows->page_size > 0 ? (rows->ring - 1) / rows->page_size + 1 : 0;
    int64_t row = rows->begin[b] + j, entry = b;
    row -= row >= rows->ring ? rows->ring : 0;
    if (rows->page_size > 0) {
        entry = rows->table[b * pages + row / rows->page_size];
        row %= rows->page_size;
    }
    return (const unsigned char *)t->data +
           (entry * t->stride_batch + h * t->stride_head + row * t->stride_seq) *
               (ptrdiff_t)dtype_size(t->dtype);
}

/* A number of a view, times the scale that p.k_scales or p.v_scales tells. */
static float viewed_number(const attn_params *p, int side, int64_t h, int64_t d,
                           const unsigned char *at)
{
    const attn_scales *x = side == 0 ? &p->k_scales : &p->v_scales;
    int8_t number;
    if ((side == 0 ? p->k.dtype : p->v.dtype) != ATTN_I8)
        return x->data == NULL ? dtype_load(side == 0 ? p->k.dtype : p->v.dtype, at) : 0.5f;
    memcpy(&number, at, 1);
    return scaled_load(number,
                       x->data[h * scale_step(x->stride_head) + d * scale_step(x->stride_dim)]);
}

static int view_key_is_right(const attn_params *p, int64_t layer, int64_t b, int64_t sequence,
                             int64_t j)
{
    const int32_t id = now.q[sequence].ids[now.q[sequence].begin + j];
    for (int side = 0; side < 2; side++) {
        const int dtype = side == 0 ? p->k.dtype : p->v.dtype;
        for (int64_t h = 0; h < p->num_heads_kv; h++) {
            const unsigned char *at = viewed(p, side, b, h, j);
            for (int64_t d = 0; d < (side == 0 ? p->head_dim : p->head_dim_v); d++)
                if (float_bits(viewed_number(p, side, h, d, at + (size_t)d * dtype_size(dtype))) !=
                    expected_bits(dtype, layer, side, h, d, value_at(id, layer, side, h, d)))
                    return 0;
        }
    }
    return 1;
}

/* Number n lies in row n % ring of the sequence's entry, as attn_recent says. */
static int recent_is_right(const attn_params *p, int64_t layer, int64_t b, int64_t sequence,
                           int64_t n)
{
    const attn_recent *r = &p->recent;
    const int32_t id = now.q[sequence].ids[n];
    for (int side = 0; side < 2; side++) {
        const attn_tensor *t = side == 0 ? &r->k : &r->v;
        for (int64_t h = 0; h < p->num_heads_kv; h++) {
            const unsigned char *at = (const unsigned char *)t->data +
                                      (r->entries[b] * t->stride_batch + h * t->stride_head +
                                       n % r->ring * t->stride_seq) *
                                          (ptrdiff_t)dtype_size(t->dtype);
            for (int64_t d = 0; d < dim_of(side); d++)
                if (float_bits(dtype_load(t->dtype, at + (size_t)d * dtype_size(t->dtype))) !=
                    rounded[cache.recent_dtype][value_at(id, layer, side, h, d)])
                    return 0;
        }
    }
    return 1;
}

/* The view says from which number on recent rows are there: all that the model has. */
static int recents_are_right(const attn_params *p, int64_t layer, const int32_t *chosen)
{
    int good = p->recent.keys == cache.recent && p->recent.ring == cache.recent_rows;
    for (int64_t b = 0; b < p->batch && good && cache.recent > 0; b++) {
        const model_sequence *q = &now.q[chosen[b]];
        for (int64_t n = q->begin; n < q->end && good; n++)
            good = n < p->recent.begin[b] ? q->recent[n % cache.recent_rows] != n
                                          : q->recent[n % cache.recent_rows] == n &&
                                                recent_is_right(p, layer, b, chosen[b], n);
    }
    return good;
}

static int64_t shared_in_model(const int32_t *chosen, int64_t batch)
{
    const model_sequence *first = &now.q[chosen[0]];
    int64_t keys = 0;
    if (batch < 2 || cache.page_size == 0)
        return 0;
    for (;; keys++)
        for (int64_t b = 0; b < batch; b++) {
            const model_sequence *q = &now.q[chosen[b]];
            const int64_t number = first->begin + keys;
            if (q->begin != first->begin || number >= q->end ||
                q->pages[page_of(&cache, number)] != first->pages[page_of(&cache, number)])
                return keys;
        }
}

static int view_is_right(const attn_params *p, int64_t layer, const int32_t *chosen, int64_t batch)
{
    int good = p->batch == batch && p->num_heads_kv == cache.num_heads_kv &&
               p->seq_len_kv == cache.rows && p->kv_rows.ring == cache.rows &&
               p->head_dim == cache.head_dim && p->head_dim_v == cache.head_dim_v &&
               p->kv_begin == NULL && p->cu_seqlens_kv == NULL && p->kv_rows.table_stride == 0;
    for (int64_t b = 0; b < batch && good; b++) {
        const model_sequence *q = &now.q[chosen[b]];
        good = p->kv_len[b] == q->end - q->begin && p->key_base[b] == q->begin;
        for (int64_t j = 0; j < p->kv_len[b] && good; j += 1 + rng_int(0, 5))
            good = view_key_is_right(p, layer, b, chosen[b], j);
    }
    good = good && recents_are_right(p, layer, chosen);
    return good && p->shared_keys == (batch > 0 ? shared_in_model(chosen, batch) : 0);
}

static void check_view(void)
{
    static unsigned char room[1 << 14];
    int32_t chosen[2 * SEQUENCES];
    const int all = rng_chance(30);
    const int64_t batch = rng_int(0, all ? cache.num_sequences : 2 * SEQUENCES);
    const int64_t layer = rng_int(0, cache.num_layers - 1);
    attn_params p = { 0 };
    size_t need = 0;
    for (int64_t b = 0; b < batch; b++)
        chosen[b] = (int32_t)(all ? b : rng_int(0, cache.num_sequences - 1));
    if (!CHECK(attn_cache_view_size(&cache, batch, &need, why, WHY) == ATTN_OK &&
                   need <= sizeof room,
               "%s", why))
        return;
    memset(&p.kv_rows, 1, sizeof p.kv_rows);
    memset(&p.recent, 1, sizeof p.recent);
    p.kv_begin = chosen;
    CHECK(attn_cache_view(&cache, layer, all ? NULL : chosen, batch, &p,
                          all ? NULL : room + sizeof room - need, need, why, WHY) == ATTN_OK,
          "%s", why);
    CHECK(view_is_right(&p, layer, chosen, batch), "batch %d%s: %s", (int)batch,
          all ? "" : ", chosen", kind_text());
    CHECK(
        !cache.ring || (cache.window_left == 0 && p.window == 0) ||
            (p.window == ATTN_WINDOW && p.window_left == cache.window_left && p.window_right == -1),
        "window %d %d", p.window, (int)p.window_left);
}

/* ---- operations ----------------------------------------------------------------------------- */

typedef struct step {
    attn_cache_step s;
    int32_t sequences[SEQUENCES], len[SEQUENCES], cu[SEQUENCES + 1];
    int64_t counts[SEQUENCES];
} step;

static unsigned char inputs[2][1 << 18];

/* Which sequences, in any order, and how many keys of each. */
static void choose_parts(step *t)
{
    for (int32_t i = 0; i < SEQUENCES; i++)
        t->sequences[i] = i;
    for (int64_t i = cache.num_sequences - 1; i > 0; i--) {
        const int64_t other = rng_int(0, i);
        const int32_t last = t->sequences[i];
        t->sequences[i] = t->sequences[other];
        t->sequences[other] = last;
    }
    t->s.batch = rng_int(0, cache.num_sequences);
    for (int64_t b = 0; b < t->s.batch; b++)
        t->counts[b] = rng_chance(10) ? rng_int(0, cache.rows < 40 ? cache.rows + 3 : 40)
                                      : rng_int(0, rng_chance(50) ? 1 : 6);
}

static void choose_form(step *t)
{
    int64_t most = 0, sum = rng_int(0, 2);
    for (int64_t b = 0; b < t->s.batch; b++) {
        t->cu[b] = (int32_t)sum;
        t->len[b] = (int32_t)t->counts[b];
        sum += t->counts[b] + (b % 2);
        most = t->counts[b] > most ? t->counts[b] : most;
    }
    t->cu[t->s.batch] = (int32_t)sum;
    t->s.sequences = t->sequences;
    t->s.len = t->len;
    t->s.seq_len = most + rng_int(0, 1);
    if (rng_chance(40)) {
        t->s.cu_seqlens = t->cu;
        t->s.seq_len = sum + rng_int(0, 2);
    }
}

/* Packed, or as attn.h allows: rows with gaps, the last one first. */
static void choose_layout(attn_tensor *t, const attn_cache_step *s, int side)
{
    const int64_t dim = dim_of(side), heads = cache.num_heads_kv;
    const int64_t elements = (int64_t)sizeof inputs[0] / 4;
    t->dtype = rng_chance(50) && cache.recent == 0 ? (side == 0 ? cache.k.dtype : cache.v.dtype)
                                                   : ATTN_F32;
    t->data = inputs[side];
    if (rng_chance(50))
        return;
    t->stride_head = (ptrdiff_t)(dim + 1);
    t->stride_seq = (ptrdiff_t) - (heads * (dim + 1));
    t->stride_batch = (ptrdiff_t)(s->seq_len * heads * (dim + 1));
    t->data = inputs[side] + (size_t)(elements / 8) * dtype_size(t->dtype);
}

static void store_input(int dtype, int64_t layer, int side, int64_t h, int64_t d, void *at,
                        float value)
{
    int8_t number;
    if (dtype != ATTN_I8) {
        dtype_store(dtype, at, value);
        return;
    }
    number = scaled_store(value, scale_at(&cache, layer, side, h, d));
    memcpy(at, &number, 1);
}

static void fill_side(step *t, int64_t layer, int side, int32_t first_id)
{
    const attn_tensor *x = side == 0 ? &t->s.k : &t->s.v;
    const int64_t dim = dim_of(side), heads = cache.num_heads_kv;
    const int packed = t->s.cu_seqlens != NULL, given = x->stride_seq != 0;
    const int by_token = packed || t->s.layout == ATTN_LAYOUT_BSHD;
    const int64_t step_head = given ? x->stride_head : by_token ? dim : t->s.seq_len * dim;
    const int64_t step_seq = given ? x->stride_seq : by_token ? heads * dim : dim;
    const int64_t step_batch = given ? x->stride_batch : heads * t->s.seq_len * dim;
    for (int64_t b = 0; b < t->s.batch; b++)
        for (int64_t i = 0; i < t->counts[b]; i++, first_id++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < dim; d++) {
                    const int64_t at =
                        (packed ? (t->cu[b] + i) * step_seq : b * step_batch + i * step_seq) +
                        h * step_head + d;
                    store_input(x->dtype, layer, side, h, d,
                                (unsigned char *)(size_t)x->data +
                                    at * (ptrdiff_t)dtype_size(x->dtype),
                                values[value_at(first_id, layer, side, h, d)]);
                }
}

static void fill_inputs(step *t, int64_t layer, int32_t first_id)
{
    fill_side(t, layer, 0, first_id);
    fill_side(t, layer, 1, first_id);
}

/* What must happen: the model with the step done is in `trial`. */
static attn_status expected_append(const step *t)
{
    for (int64_t b = 0; b < t->s.batch; b++) {
        const model_sequence *q = &now.q[t->sequences[b]];
        const int64_t present = q->end - q->begin;
        const int64_t kept = present < cache.window_left ? present : cache.window_left;
        const int64_t read =
            cache.recent == 0 || present < recent_before(&cache) ? present : recent_before(&cache);
        if (t->counts[b] > (cache.ring ? cache.rows - kept : cache.capacity - present))
            return ATTN_ERR_FULL;
        if (cache.recent > 0 && t->counts[b] > cache.recent_rows - read)
            return ATTN_ERR_FULL;
    }
    memcpy(&trial, &now, sizeof now);
    for (int64_t b = 0; b < t->s.batch; b++)
        model_append(&cache, &trial, t->sequences[b], t->counts[b]);
    return model_pages(&cache, &trial) > cache.num_pages && cache.page_size > 0 ? ATTN_ERR_FULL
                                                                                : ATTN_OK;
}

static attn_status run_append(step *t)
{
    const int32_t first_id = now.next_id;
    attn_status status;
    if (cache.num_layers == 1 && rng_chance(50)) {
        fill_inputs(t, 0, first_id);
        return attn_cache_append(&cache, &t->s, why, WHY);
    }
    status = attn_cache_extend(&cache, &t->s, why, WHY);
    for (int64_t layer = 0; layer < cache.num_layers && status == ATTN_OK; layer++) {
        fill_inputs(t, layer, first_id);
        status = attn_cache_write(&cache, layer, &t->s, why, WHY);
    }
    return status;
}

static attn_status do_append(attn_status *expected)
{
    static step t;
    attn_status status;
    memset(&t, 0, sizeof t);
    choose_parts(&t);
    choose_form(&t);
    t.s.layout = (int)rng_aside(0, 1);
    choose_layout(&t.s.k, &t.s, 0);
    choose_layout(&t.s.v, &t.s, 1);
    *expected = expected_append(&t);
    if (*expected != ATTN_OK)
        cache_remember();
    status = run_append(&t);
    if (status == ATTN_OK && *expected == ATTN_OK)
        memcpy(&now, &trial, sizeof now);
    return status;
}

static attn_status do_trim(attn_status *expected)
{
    const int64_t sequence = rng_int(0, cache.num_sequences - 1), how = rng_int(0, 9);
    model_sequence *q = &now.q[sequence];
    int64_t begin = q->begin, end = q->end - rng_int(0, 4);
    attn_status status;
    if (how == 0)
        begin = end = 0;
    else if (how == 1)
        begin = end;
    else if (how < 4)
        begin += rng_int(-1, 5), end = q->end;
    else if (how == 4)
        begin = rng_int(-2, q->end + 2), end = rng_int(-2, q->end + 2);
    else if (how == 5)
        end = rng_int(begin, q->end);
    *expected = (begin != 0 || end != 0) && (begin > end || begin < q->begin || end > q->end ||
                                             !model_may_keep(&cache, q, begin, end))
                    ? ATTN_ERR_ARG
                    : ATTN_OK;
    if (*expected != ATTN_OK)
        cache_remember();
    status = attn_cache_trim(&cache, sequence, begin, end, why, WHY);
    if (*expected == ATTN_OK)
        model_keep(&cache, q, begin, end);
    return status;
}

static attn_status do_fork(attn_status *expected)
{
    const int64_t from = rng_int(0, cache.num_sequences - 1);
    const int64_t to = rng_int(0, cache.num_sequences - 1);
    const model_sequence *source = &now.q[from];
    model_sequence *q = &now.q[to];
    const int64_t end = source->end - (rng_chance(50) ? 0 : rng_int(-1, 6));
    attn_status status;
    if (from != to && q->end > q->begin && rng_chance(80)) {
        attn_cache_trim(&cache, to, 0, 0, why, WHY);
        model_restart(q);
    }
    *expected = from == to || q->end > q->begin || end < source->begin || end > source->end ||
                        !model_may_keep(&cache, source, source->begin, end)
                    ? ATTN_ERR_ARG
                    : ATTN_OK;
    if (*expected != ATTN_OK)
        cache_remember();
    status = attn_cache_fork(&cache, from, to, end, why, WHY);
    if (*expected == ATTN_OK) {
        memcpy(q, source, sizeof *q);
        model_keep(&cache, q, q->begin, end);
    }
    return status;
}

static void damage_file(void)
{
    file.bytes[rng_int(0, (int64_t)file.size - 1)] ^= (unsigned char)(1 << rng_int(0, 7));
}

/* What a load into sequence `to` of the damaged or whole file of another must say. */
static attn_status expected_load(const model_sequence *source, int64_t to, int damaged)
{
    int64_t pages = 0;
    for (int64_t i = 0; i < cache.pages_per_sequence; i++)
        pages += source->pages[i] >= 0;
    if (now.q[to].end > 0)
        return ATTN_ERR_ARG;
    if (pages > cache.num_free && cache.page_size > 0)
        return ATTN_ERR_FULL;
    return damaged ? ATTN_ERR_DATA : ATTN_OK;
}

static attn_status do_load(attn_status *expected)
{
    const int32_t from = (int32_t)rng_int(0, cache.num_sequences - 1);
    const int32_t to = (int32_t)rng_int(0, cache.num_sequences - 1);
    static model_sequence source;
    attn_snapshot s = file_snapshot(1, &from, NULL);
    int damaged = rng_chance(20);
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    memcpy(&source, &now.q[from], sizeof source);
    if (rng_chance(80)) {
        attn_cache_trim(&cache, to, 0, 0, why, WHY);
        model_restart(&now.q[to]);
    }
    *expected = expected_load(&source, to, damaged);
    if (damaged && *expected == ATTN_ERR_DATA)
        damage_file();
    s.sequences = &to;
    if (*expected == ATTN_OK) {
        memcpy(&now.q[to], &source, sizeof source);
        for (int i = 0; i < ROWS; i++)
            if (source.pages[i] >= 0)
                now.q[to].pages[i] = now.next_page++;
    }
    return file_load(&s);
}

/* So that the model's arrays suffice. */
static void restart_long_ones(void)
{
    for (int64_t i = 0; i < cache.num_sequences; i++)
        if (now.q[i].end > NUMBERS - 64) {
            CHECK(attn_cache_trim(&cache, i, 0, 0, why, WHY) == ATTN_OK, "%s", why);
            model_restart(&now.q[i]);
        }
}

static const struct operation {
    const char *name;
    int percent;
    int may_write; /* what no key has, although it fails */
    attn_status (*run)(attn_status *expected);
} operations[] = { { "append", 60, 0, do_append },
                   { "trim", 22, 0, do_trim },
                   { "fork", 12, 0, do_fork },
                   { "load", 6, 1, do_load } };

static const struct operation *pick_operation(void)
{
    int64_t at = rng_int(0, 99);
    const struct operation *o = operations;
    while (at >= o->percent)
        at -= o++->percent;
    return o;
}

static int one_operation(void)
{
    const struct operation *o = pick_operation();
    attn_status expected, status;
    restart_long_ones();
    status = o->run(&expected);
    if (!CHECK(status == expected, "%s: status %d, not %d: %s: %s", o->name, (int)status,
               (int)expected, why, kind_text()))
        return 0;
    if (status != ATTN_OK && !o->may_write &&
        !CHECK(cache_is_unchanged(), "%s failed and changed something: %s: %s", o->name, why,
               kind_text()))
        return 0;
    return compare_all(o->name);
}

static int64_t wanted_operations(void)
{
    const char *given = T.argc > 0 ? T.argv[0] : getenv("ATTN_CACHE");
    return given != NULL ? strtoll(given, NULL, 10) : DEFAULT_OPERATIONS;
}

static void test_operations(void)
{
    const int64_t cases = (wanted_operations() + OPERATIONS_A_CASE - 1) / OPERATIONS_A_CASE;
    for (int64_t i = 0; i < cases; i++) {
        if (!begin_case("%d random operations", OPERATIONS_A_CASE))
            continue;
        fill_values();
        if (!start_random())
            continue;
        for (int n = 0; n < OPERATIONS_A_CASE && one_operation(); n++)
            if (n % 16 == 0)
                check_view();
    }
}

FUZZ_HARNESS(cache, "operations on a cache against a model: append, trim, fork, load, views")
{
    const int64_t steps = rng_int(1, 64);
    (void)bytes;
    (void)count;
    fill_values();
    if (!start_random())
        return;
    for (int64_t n = 0; n < steps && one_operation(); n++)
        if (rng_chance(10))
            check_view();
}

/* ---- rings: which roll-backs and forks are right where the oldest keys are gone ------------- */

/* Numbers 36 .. 99 are there in sequence 0, in a ring of 64 rows whose queries look back 32 keys;
 * sequence 1 is empty. Then one thing after the other, to a sequence. */
typedef struct ring_event {
    enum { APPEND = 1, TRIM, FORK } what; /* FORK: from sequence 0 */
    int64_t sequence, begin, end;         /* APPEND: end - begin keys */
    attn_status status;
} ring_event;

static const struct ring_tale {
    const char *name;
    ring_event events[7]; /* the last is none */
} ring_tales[] = {
    { "as it is", { { TRIM, 0, 36, 100, ATTN_OK }, { FORK, 1, 36, 100, ATTN_OK } } },
    { "too far back",
      { { TRIM, 0, 36, 67, ATTN_ERR_ARG },
        { FORK, 1, 36, 67, ATTN_ERR_ARG },
        { TRIM, 0, 36, 68, ATTN_OK } } },
    { "back and forth",
      { { TRIM, 0, 36, 68, ATTN_OK },
        { APPEND, 0, 68, 100, ATTN_OK },
        { TRIM, 0, 36, 67, ATTN_ERR_ARG },
        { APPEND, 0, 100, 101, ATTN_OK },
        { TRIM, 0, 37, 68, ATTN_ERR_ARG },
        { TRIM, 0, 37, 69, ATTN_OK } } },
    { "one forgotten, and all before it", { { TRIM, 0, 37, 67, ATTN_OK } } },
    { "emptied",
      { { TRIM, 0, 36, 36, ATTN_OK },
        { APPEND, 0, 36, 46, ATTN_OK },
        { TRIM, 0, 36, 46, ATTN_OK },
        { FORK, 1, 36, 46, ATTN_OK },
        { TRIM, 0, 36, 44, ATTN_OK } } },
    { "forked empty",
      { { FORK, 1, 36, 36, ATTN_OK },
        { APPEND, 1, 36, 46, ATTN_OK },
        { TRIM, 1, 36, 44, ATTN_OK } } },
    { "all but one forgotten",
      { { TRIM, 0, 99, 100, ATTN_OK },
        { APPEND, 0, 100, 163, ATTN_OK },
        { TRIM, 0, 99, 130, ATTN_OK } } },
    { "and that one overwritten",
      { { TRIM, 0, 99, 100, ATTN_OK },
        { APPEND, 0, 100, 132, ATTN_OK },
        { APPEND, 0, 132, 164, ATTN_OK },
        { TRIM, 0, 100, 131, ATTN_ERR_ARG },
        { TRIM, 0, 100, 132, ATTN_OK } } },
};

static attn_status run_event(const ring_event *e)
{
    const int32_t chosen = (int32_t)e->sequence;
    attn_cache_step s = { 0 };
    s.batch = 1;
    s.sequences = &chosen;
    s.seq_len = e->end - e->begin;
    if (e->what == APPEND)
        return attn_cache_extend(&cache, &s, why, WHY);
    if (e->what == TRIM)
        return attn_cache_trim(&cache, e->sequence, e->begin, e->end, why, WHY);
    return attn_cache_fork(&cache, 0, e->sequence, e->end, why, WHY);
}

static int start_ring(int64_t page_size)
{
    static const ring_event before[] = { { APPEND, 0, 0, 64, ATTN_OK },
                                         { APPEND, 0, 64, 96, ATTN_OK },
                                         { APPEND, 0, 96, 100, ATTN_OK } };
    int good;
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = 2;
    cache.num_heads_kv = cache.head_dim = cache.ring = 1;
    cache.capacity = 64;
    cache.window_left = 32;
    cache.page_size = page_size;
    good = cache_start();
    for (size_t i = 0; i < sizeof before / sizeof *before && good; i++)
        good = run_event(&before[i]) == ATTN_OK;
    return CHECK(good, "%s", why);
}

static void tell(const struct ring_tale *tale)
{
    for (const ring_event *e = tale->events; e->what != 0; e++) {
        const attn_status status = run_event(e);
        CHECK(status == e->status, "event %d: status %d, not %d: %s", (int)(e - tale->events),
              (int)status, (int)e->status, why);
        if (status == ATTN_OK)
            CHECK(cache.end[e->sequence] == e->end, "event %d", (int)(e - tale->events));
    }
}

static void test_rings(void)
{
    for (size_t i = 0; i < sizeof ring_tales / sizeof *ring_tales; i++)
        for (int64_t page_size = 0; page_size <= 8; page_size += 8)
            if (begin_case("ring: %s, page_size %d", ring_tales[i].name, (int)page_size) &&
                start_ring(page_size))
                tell(&ring_tales[i]);
}

TEST_GROUP(cache, RUN_ONCE, "caches: random operations, the bits of attention, every misuse")
{
    test_cache_misuse();
    test_rings();
    test_cache_bits();
    test_operations();
}
