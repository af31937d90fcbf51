/* cache.c - attn_cache.h: random operations against a plain model, bits of attention over caches,
 * every misuse.
 * SPDX-License-Identifier: MIT
 *
 *     build/test cache [-- COUNT]       also: ATTN_CACHE=COUNT in the environment: operations
 *
 * The model keeps each sequence as an array of keys by their number, and pages as names: a key
 * appended to a page that another sequence has, too, gives the page a new name. It decides what
 * each operation must do, key by key. After each all keys are read, and everything that can be seen
 * of lengths, tables and the free list is compared; an operation that must fail may change nothing.
 */
#include "test.h"

#include "../attn_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_OPERATIONS = 100000,
    OPERATIONS_A_CASE = 500,
    SEQUENCES = 5, LAYERS = 3, HEADS = 3, DIM = 4, /* at most */
    NUMBERS = 1200, /* of a sequence, before it must start afresh */
    ROWS = 320,     /* of a sequence */
    VALUES = 1024,
    WHY = 400
};

/* ---- model ---------------------------------------------------------------------------------- */

/* What became of a number: a ring overwrote it, or the caller did not want it any more. */
enum { PRESENT = 0, OVERWRITTEN, FORGOTTEN };

typedef struct model_sequence {
    int64_t begin, end;
    int32_t ids[NUMBERS];         /* what was appended as this number */
    unsigned char fates[NUMBERS]; /* of those below end */
    int32_t pages[ROWS];          /* names; -1 = none */
} model_sequence;

typedef struct model {
    model_sequence q[SEQUENCES];
    int32_t next_id, next_page;
} model;

static model now, trial;

static void model_restart(model_sequence *q)
{
    q->begin = q->end = 0;
    for (int i = 0; i < ROWS; i++)
        q->pages[i] = -1;
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

/* Every number that a query at `end` may look at is there, or the caller did without it. */
static int model_may_keep(const attn_cache *c, const model_sequence *q, int64_t begin, int64_t end)
{
    for (int64_t n = end > c->window_left ? end - c->window_left : 0; n < end; n++)
        if (q->fates[n] == OVERWRITTEN && !(n < begin && model_forgets(q, begin, end)))
            return 0;
    return 1;
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

static void fill_values(void)
{
    static const uint32_t special[] = {
        0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x00000001u, 0x33000000u, 0x33000001u,
        0x3f801000u, 0x3f803000u, 0x477fefffu, 0x477ff000u, 0x3f808000u, 0x3f818000u, 0x7f7fffffu};
    enum { SPECIAL = sizeof special / sizeof *special };
    for (int i = 0; i < VALUES; i++) {
        values[i] = i < SPECIAL ? float_from_bits(special[i]) : rng_normal();
        for (int dtype = 0; dtype < 3; dtype++) {
            uint32_t stored[1];
            dtype_store(dtype, stored, values[i]);
            rounded[dtype][i] = float_bits(dtype_load(dtype, stored));
        }
    }
}

static int64_t value_at(int32_t id, int64_t layer, int side, int64_t h, int64_t d)
{
    return (id * 271 + layer * 83 + side * 41 + h * 13 + d) % VALUES;
}

/* ---- the cache under test ------------------------------------------------------------------- */

static attn_cache cache, cache_before;
static unsigned char *memory, *memory_before;
static size_t memory_bytes;
static char why[WHY];

static void random_shape(attn_cache *c)
{
    static const int64_t page_sizes[] = {1, 5, 16, 256};
    memset(c, 0, sizeof *c);
    c->num_sequences = rng_int(1, SEQUENCES);
    c->num_layers = rng_int(0, 2);
    c->num_heads_kv = rng_int(1, HEADS);
    c->head_dim = rng_int(1, DIM);
    c->head_dim_v = rng_int(0, DIM);
    c->capacity = rng_int(1, 24);
    c->page_size = rng_chance(60) ? RNG_PICK(page_sizes) : 0;
    c->layout = (int)rng_int(0, 1);
    c->k.dtype = (int)rng_int(0, 2);
    c->v.dtype = (int)rng_int(0, 2);
    if (rng_chance(50)) {
        c->ring = 1;
        c->window_left = rng_int(0, c->capacity - 1);
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
    const int64_t entries = c->page_size > 0 && c->num_pages > 0 ? c->num_pages
                                                                 : pages * c->num_sequences;
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

static int start_cache(void)
{
    random_shape(&cache);
    if (rng_chance(20))
        cache.k_stride_layer = own_storage(&cache, &cache.k);
    if (rng_chance(20))
        cache.v_stride_layer = own_storage(&cache, &cache.v);
    if (!CHECK(attn_cache_size(&cache, &memory_bytes, why, WHY) == ATTN_OK, "%s", why))
        return 0;
    memory = test_alloc(memory_bytes);
    memory_before = test_alloc(memory_bytes);
    model_start(&now);
    return CHECK(attn_cache_init(&cache, memory, memory_bytes, why, WHY) == ATTN_OK, "%s", why) &&
           CHECK(strcmp(why, "ok") == 0, "%s", why);
}

static void remember(void)
{
    cache_before = cache;
    memcpy(memory_before, memory, memory_bytes);
}

static int is_unchanged(void)
{
    return memcmp(&cache, &cache_before, sizeof cache) == 0 &&
           memcmp(memory, memory_before, memory_bytes) == 0;
}

/* ---- comparing with the model --------------------------------------------------------------- */

static const char *kind_text(void)
{
    static char text[300];
    snprintf(text, sizeof text,
             "sequences %d layers %d heads %d dims %d %d capacity %d page_size %d num_pages %d "
             "ring %d window_left %d layout %d types %s %s",
             (int)cache.num_sequences, (int)cache.num_layers, (int)cache.num_heads_kv,
             (int)cache.head_dim, (int)cache.head_dim_v, (int)cache.capacity, (int)cache.page_size,
             (int)cache.num_pages, cache.ring, (int)cache.window_left, cache.layout,
             dtype_name(cache.k.dtype), dtype_name(cache.v.dtype));
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
    const attn_status status = attn_cache_read(&cache, layer, sequence, first, count, k,
                                               apart ? NULL : v, why, WHY);
    return !apart || status != ATTN_OK
               ? status
               : attn_cache_read(&cache, layer, sequence, first, count, NULL, v, why, WHY);
}

static int keys_are_right(int64_t layer, int64_t sequence)
{
    static float read[2][HEADS * ROWS * DIM];
    const model_sequence *q = &now.q[sequence];
    const int64_t count = q->end - q->begin;
    attn_output k = {0}, v = {0};
    int64_t wrong = 0;
    k.data = read[0];
    v.data = read[1];
    if (read_all(layer, sequence, &k, &v) != ATTN_OK)
        return 0;
    for (int side = 0; side < 2; side++) {
        const uint32_t *expected = rounded[side == 0 ? cache.k.dtype : cache.v.dtype];
        const float *x = read[side];
        for (int64_t h = 0; h < cache.num_heads_kv; h++)
            for (int64_t i = 0; i < count; i++)
                for (int64_t d = 0; d < dim_of(side); d++)
                    wrong += float_bits(*x++) !=
                             expected[value_at(q->ids[q->begin + i], layer, side, h, d)];
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
    int32_t uses[SEQUENCES * ROWS] = {0}, place[SEQUENCES * ROWS];
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
        good = CHECK(numbers_are_right(q), "after %s, sequence %d: %s", after, (int)q,
                     kind_text());
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

static int view_key_is_right(const attn_params *p, int64_t layer, int64_t b, int64_t sequence,
                             int64_t j)
{
    const int32_t id = now.q[sequence].ids[now.q[sequence].begin + j];
    for (int side = 0; side < 2; side++) {
        const int dtype = side == 0 ? p->k.dtype : p->v.dtype;
        for (int64_t h = 0; h < p->num_heads_kv; h++) {
            const unsigned char *at = viewed(p, side, b, h, j);
            for (int64_t d = 0; d < (side == 0 ? p->head_dim : p->head_dim_v); d++)
                if (float_bits(dtype_load(dtype, at + (size_t)d * dtype_size(dtype))) !=
                    rounded[dtype][value_at(id, layer, side, h, d)])
                    return 0;
        }
    }
    return 1;
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
    return good && p->shared_keys == (batch > 0 ? shared_in_model(chosen, batch) : 0);
}

static void check_view(void)
{
    static unsigned char room[1 << 14];
    int32_t chosen[2 * SEQUENCES];
    const int all = rng_chance(30);
    const int64_t batch = rng_int(0, all ? cache.num_sequences : 2 * SEQUENCES);
    const int64_t layer = rng_int(0, cache.num_layers - 1);
    attn_params p = {0};
    size_t need = 0;
    for (int64_t b = 0; b < batch; b++)
        chosen[b] = (int32_t)(all ? b : rng_int(0, cache.num_sequences - 1));
    if (!CHECK(attn_cache_view_size(&cache, batch, &need, why, WHY) == ATTN_OK &&
                   need <= sizeof room, "%s", why))
        return;
    memset(&p.kv_rows, 1, sizeof p.kv_rows);
    p.kv_begin = chosen;
    CHECK(attn_cache_view(&cache, layer, all ? NULL : chosen, batch, &p,
                          all ? NULL : room + sizeof room - need, need, why, WHY) == ATTN_OK,
          "%s", why);
    CHECK(view_is_right(&p, layer, chosen, batch), "batch %d%s: %s", (int)batch,
          all ? "" : ", chosen", kind_text());
    CHECK(!cache.ring || (p.window == ATTN_WINDOW && p.window_left == cache.window_left &&
                          p.window_right == -1),
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
    t->dtype = rng_chance(50) ? (side == 0 ? cache.k.dtype : cache.v.dtype) : ATTN_F32;
    t->data = inputs[side];
    if (rng_chance(50))
        return;
    t->stride_head = (ptrdiff_t)(dim + 1);
    t->stride_seq = (ptrdiff_t)-(heads * (dim + 1));
    t->stride_batch = (ptrdiff_t)(s->seq_len * heads * (dim + 1));
    t->data = inputs[side] + (size_t)(elements / 8) * dtype_size(t->dtype);
}

static void fill_side(step *t, int64_t layer, int side, int32_t first_id)
{
    const attn_tensor *x = side == 0 ? &t->s.k : &t->s.v;
    const int64_t dim = dim_of(side), heads = cache.num_heads_kv;
    const int packed = t->s.cu_seqlens != NULL, given = x->stride_seq != 0;
    const int64_t step_head = given ? x->stride_head : packed ? dim : t->s.seq_len * dim;
    const int64_t step_seq = given ? x->stride_seq : packed ? heads * dim : dim;
    const int64_t step_batch = given ? x->stride_batch : heads * t->s.seq_len * dim;
    for (int64_t b = 0; b < t->s.batch; b++)
        for (int64_t i = 0; i < t->counts[b]; i++, first_id++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < dim; d++) {
                    const int64_t at = (packed ? (t->cu[b] + i) * step_seq
                                               : b * step_batch + i * step_seq) +
                                       h * step_head + d;
                    dtype_store(x->dtype,
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
        if (t->counts[b] > (cache.ring ? cache.rows - kept : cache.capacity - present))
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
    choose_layout(&t.s.k, &t.s, 0);
    choose_layout(&t.s.v, &t.s, 1);
    *expected = expected_append(&t);
    if (*expected != ATTN_OK)
        remember();
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
    *expected = (begin != 0 || end != 0) &&
                        (begin > end || begin < q->begin || end > q->end ||
                         !model_may_keep(&cache, q, begin, end)) ? ATTN_ERR_ARG : ATTN_OK;
    if (*expected != ATTN_OK)
        remember();
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
                    ? ATTN_ERR_ARG : ATTN_OK;
    if (*expected != ATTN_OK)
        remember();
    status = attn_cache_fork(&cache, from, to, end, why, WHY);
    if (*expected == ATTN_OK) {
        memcpy(q, source, sizeof *q);
        model_keep(&cache, q, q->begin, end);
    }
    return status;
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
    attn_status (*run)(attn_status *expected);
} operations[] = {{"append", 65, do_append}, {"trim", 23, do_trim}, {"fork", 12, do_fork}};

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
    if (status != ATTN_OK && !CHECK(is_unchanged(), "%s failed and changed something: %s: %s",
                                    o->name, why, kind_text()))
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
        if (!start_cache())
            continue;
        for (int n = 0; n < OPERATIONS_A_CASE && one_operation(); n++)
            if (n % 16 == 0)
                check_view();
    }
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
    {"as it is", {{TRIM, 0, 36, 100, ATTN_OK}, {FORK, 1, 36, 100, ATTN_OK}}},
    {"too far back", {{TRIM, 0, 36, 67, ATTN_ERR_ARG}, {FORK, 1, 36, 67, ATTN_ERR_ARG},
                      {TRIM, 0, 36, 68, ATTN_OK}}},
    {"back and forth", {{TRIM, 0, 36, 68, ATTN_OK}, {APPEND, 0, 68, 100, ATTN_OK},
                        {TRIM, 0, 36, 67, ATTN_ERR_ARG}, {APPEND, 0, 100, 101, ATTN_OK},
                        {TRIM, 0, 37, 68, ATTN_ERR_ARG}, {TRIM, 0, 37, 69, ATTN_OK}}},
    {"one forgotten, and all before it", {{TRIM, 0, 37, 67, ATTN_OK}}},
    {"emptied", {{TRIM, 0, 36, 36, ATTN_OK}, {APPEND, 0, 36, 46, ATTN_OK},
                 {TRIM, 0, 36, 46, ATTN_OK}, {FORK, 1, 36, 46, ATTN_OK},
                 {TRIM, 0, 36, 44, ATTN_OK}}},
    {"forked empty", {{FORK, 1, 36, 36, ATTN_OK}, {APPEND, 1, 36, 46, ATTN_OK},
                      {TRIM, 1, 36, 44, ATTN_OK}}},
    {"all but one forgotten", {{TRIM, 0, 99, 100, ATTN_OK}, {APPEND, 0, 100, 163, ATTN_OK},
                               {TRIM, 0, 99, 130, ATTN_OK}}},
    {"and that one overwritten", {{TRIM, 0, 99, 100, ATTN_OK}, {APPEND, 0, 100, 132, ATTN_OK},
                                  {APPEND, 0, 132, 164, ATTN_OK},
                                  {TRIM, 0, 100, 131, ATTN_ERR_ARG},
                                  {TRIM, 0, 100, 132, ATTN_OK}}},
};

static attn_status run_event(const ring_event *e)
{
    const int32_t chosen = (int32_t)e->sequence;
    attn_cache_step s = {0};
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
    static const ring_event before[] = {{APPEND, 0, 0, 64, ATTN_OK}, {APPEND, 0, 64, 96, ATTN_OK},
                                        {APPEND, 0, 96, 100, ATTN_OK}};
    int good = 1;
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = 2;
    cache.num_heads_kv = cache.head_dim = cache.ring = 1;
    cache.capacity = 64;
    cache.window_left = 32;
    cache.page_size = page_size;
    good = attn_cache_size(&cache, &memory_bytes, why, WHY) == ATTN_OK &&
           attn_cache_init(&cache, test_alloc(memory_bytes), memory_bytes, why, WHY) == ATTN_OK;
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

/* ---- bits: attention over a cache has those of one call over plain arrays ------------------- */

enum { BATCH = 8, LONGEST = 150, BASE_MOST = 1021, LONG = BASE_MOST + LONGEST + 8,
       GROUP_HEADS = 2, QUERY_HEADS = 4, BIT_DIM = 32, BIT_DIM_V = 16, GARBAGE = 3 };

static const struct route {
    const char *name;
    int64_t page_size;
    int ring;
} routes[] = {{"contiguous", 0, 0}, {"ring", 0, 1}, {"pages of 1", 1, 0}, {"pages of 5", 5, 0},
              {"pages of 16", 16, 0}, {"pages of 256", 256, 0}, {"ring, pages of 1", 1, 1},
              {"ring, pages of 5", 5, 1}, {"ring, pages of 16", 16, 1}};

typedef struct passage { /* one way through a cache */
    const struct route *route;
    int64_t batch, chunk, base, prefix, window; /* window -1: none */
    int64_t len[BATCH], shift[BATCH]; /* of the positions of an entry's keys from their numbers */
    int32_t order[BATCH]; /* of the sequences in the cache */
    int rollback, turned, positions, packed;
    attn_rope rope;
    const attn_kernels *kernels;
} passage;

static float keys[BATCH][GROUP_HEADS][LONG][BIT_DIM], vals[BATCH][GROUP_HEADS][LONG][BIT_DIM_V];
static float queries[BATCH][QUERY_HEADS][LONGEST][BIT_DIM];
static unsigned char plain_k[sizeof keys], plain_v[sizeof vals];
typedef struct results {
    float o[BATCH][QUERY_HEADS][LONGEST][BIT_DIM_V], lse[BATCH][QUERY_HEADS][LONGEST];
} results;
static results plain, got;

static void fill_normal(float *x, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = rng_normal();
}

/* All entries begin as entry 0 does. */
static void share_prefix(const passage *w)
{
    for (int64_t b = 1; b < w->batch; b++)
        for (int h = 0; h < GROUP_HEADS; h++) {
            const size_t rows = (size_t)(w->base + w->prefix);
            memcpy(keys[b][h], keys[0][h], rows * sizeof keys[0][0][0]);
            memcpy(vals[b][h], vals[0][h], rows * sizeof vals[0][0][0]);
        }
}

static attn_tensor strided(const void *data, int64_t heads, int64_t rows, int64_t dim)
{
    attn_tensor t = {0};
    t.data = data;
    t.stride_batch = (ptrdiff_t)(heads * rows * dim);
    t.stride_head = (ptrdiff_t)(rows * dim);
    t.stride_seq = (ptrdiff_t)dim;
    return t;
}

/* Keys of all numbers as a cache should store them: turned by one call, values converted. */
static void make_plain(const passage *w)
{
    attn_rope_rows rows = {0};
    rows.batch = BATCH;
    rows.num_heads = GROUP_HEADS;
    rows.seq_len = LONG;
    rows.head_dim = BIT_DIM;
    rows.x.data = keys;
    rows.y.data = plain_k;
    rows.y.dtype = cache.k.dtype;
    rows.first = w->shift;
    if (w->turned)
        CHECK(attn_rope_apply(&w->rope, &rows, why, WHY) == ATTN_OK, "%s", why);
    else if (cache.k.dtype == ATTN_F32)
        memcpy(plain_k, keys, sizeof keys);
    else
        attn_convert(plain_k, cache.k.dtype, keys, ATTN_F32, sizeof keys / sizeof(float));
    attn_convert(plain_v, cache.v.dtype, vals, ATTN_F32, sizeof vals / sizeof(float));
}

/* What both calls have in common: `rows` query rows from row t on. */
static attn_params bit_params(const passage *w, results *to, int64_t t, int64_t rows)
{
    attn_params p = {0};
    attn_tensor o = strided(&to->o[0][0][t][0], QUERY_HEADS, LONGEST, BIT_DIM_V);
    p.batch = w->batch;
    p.num_heads_q = QUERY_HEADS;
    p.num_heads_kv = GROUP_HEADS;
    p.seq_len_q = rows;
    p.head_dim = BIT_DIM;
    p.head_dim_v = BIT_DIM_V;
    p.causal = 1;
    p.window = w->window >= 0 ? ATTN_WINDOW : 0;
    p.window_left = w->window >= 0 ? w->window : 0;
    p.q = strided(&queries[0][0][t][0], QUERY_HEADS, LONGEST, BIT_DIM);
    p.o.data = &to->o[0][0][t][0];
    p.o.stride_batch = o.stride_batch;
    p.o.stride_head = o.stride_head;
    p.o.stride_seq = o.stride_seq;
    p.lse.data = &to->lse[0][0][t];
    p.lse.stride_batch = QUERY_HEADS * LONGEST;
    p.lse.stride_head = LONGEST;
    p.lse.stride_seq = 1;
    return p;
}

static void run_plain(const passage *w)
{
    int64_t key_base[BATCH];
    int32_t q_len[BATCH];
    attn_params p = bit_params(w, &plain, 0, LONGEST);
    const size_t wide_k = dtype_size(cache.k.dtype), wide_v = dtype_size(cache.v.dtype);
    for (int b = 0; b < BATCH; b++) {
        key_base[b] = w->base;
        q_len[b] = (int32_t)w->len[b];
    }
    p.seq_len_kv = LONGEST;
    p.key_base = key_base;
    p.q_len = p.kv_len = q_len;
    p.k = strided(plain_k + (size_t)(w->base * BIT_DIM) * wide_k, GROUP_HEADS, LONG, BIT_DIM);
    p.v = strided(plain_v + (size_t)(w->base * BIT_DIM_V) * wide_v, GROUP_HEADS, LONG, BIT_DIM_V);
    p.k.dtype = cache.k.dtype;
    p.v.dtype = cache.v.dtype;
    CHECK(test_run(&p) == ATTN_OK, "plain");
}

/* Rows of all entries one after the other. */
static void pack_step(const passage *w, attn_cache_step *s, int64_t first, int32_t cu[BATCH + 1],
                      int64_t *positions)
{
    static float k[BATCH * LONG * GROUP_HEADS * BIT_DIM], v[BATCH * LONG * GROUP_HEADS * BIT_DIM_V];
    int32_t tokens = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        cu[b] = tokens;
        for (int64_t i = 0; i < s->len[b]; i++, tokens++)
            for (int h = 0; h < GROUP_HEADS; h++) {
                memcpy(k + (tokens * GROUP_HEADS + h) * BIT_DIM, keys[b][h][first + i],
                       sizeof keys[b][h][0]);
                memcpy(v + (tokens * GROUP_HEADS + h) * BIT_DIM_V, vals[b][h][first + i],
                       sizeof vals[b][h][0]);
                positions[tokens] = w->shift[b] + first + i;
            }
    }
    cu[s->batch] = tokens;
    memset(&s->k, 0, sizeof s->k);
    memset(&s->v, 0, sizeof s->v);
    s->k.data = k;
    s->v.data = v;
    s->len = NULL;
    s->cu_seqlens = cu;
    s->seq_len = tokens;
}

/* Keys from `first` on of each entry, len[b] of them, as numbers from there on. */
static void append_rows(const passage *w, int64_t batch, int64_t first, const int32_t *len)
{
    static int64_t positions[BATCH * LONG];
    int32_t cu[BATCH + 1];
    attn_cache_step s = {0};
    s.batch = batch;
    s.sequences = w->order;
    s.len = len;
    for (int64_t b = 0; b < batch; b++)
        s.seq_len = len[b] > s.seq_len ? len[b] : s.seq_len;
    s.k = strided(&keys[0][0][first][0], GROUP_HEADS, LONG, BIT_DIM);
    s.v = strided(&vals[0][0][first][0], GROUP_HEADS, LONG, BIT_DIM_V);
    for (int64_t at = 0; at < batch * s.seq_len; at++)
        positions[at] = w->shift[at / s.seq_len] + first + at % s.seq_len;
    if (w->packed)
        pack_step(w, &s, first, cu, positions);
    s.rope = w->turned ? &w->rope : NULL;
    s.positions = w->turned && w->positions ? positions : NULL;
    CHECK(attn_cache_append(&cache, &s, why, WHY) == ATTN_OK, "%s: %s", w->route->name, why);
}

/* Other keys, and back. */
static void append_garbage(const passage *w, int64_t first, const int32_t *len)
{
    int32_t more[BATCH];
    int64_t end[BATCH];
    for (int64_t b = 0; b < w->batch; b++) {
        more[b] = len[b] + GARBAGE;
        end[b] = cache.end[w->order[b]];
    }
    append_rows(w, w->batch, first - 1, more);
    for (int64_t b = 0; b < w->batch; b++)
        CHECK(attn_cache_trim(&cache, w->order[b], cache.begin[w->order[b]], end[b], why, WHY) ==
                  ATTN_OK, "%s: %s", w->route->name, why);
}

/* So many numbers that only count, then the prefix of all entries. */
static void begin_passage(const passage *w)
{
    int32_t len[BATCH];
    for (int64_t n = 0; n < w->base; n += len[0]) {
        for (int b = 0; b < BATCH; b++)
            len[b] = (int32_t)(w->base - n < GARBAGE ? w->base - n : GARBAGE);
        append_rows(w, w->batch, n, len);
        for (int64_t b = 0; b < w->batch && !cache.ring; b++)
            attn_cache_trim(&cache, w->order[b], n + len[0], n + len[0], why, WHY);
    }
    for (int64_t b = 0; b < w->batch; b++) {
        const int64_t at = b > 0 && w->prefix > 0 ? 0 : w->base; /* to fork to, it must be empty */
        CHECK(attn_cache_trim(&cache, w->order[b], at, at, why, WHY) == ATTN_OK, "%s", why);
    }
    if (w->prefix == 0)
        return;
    len[0] = (int32_t)w->prefix;
    append_rows(w, 1, w->base, len);
    for (int64_t b = 1; b < w->batch; b++)
        CHECK(attn_cache_fork(&cache, w->order[0], w->order[b], w->base + w->prefix, why, WHY) ==
                  ATTN_OK, "%s", why);
}

static void run_chunk(const passage *w, int64_t t)
{
    static unsigned char room[1 << 14];
    int32_t len[BATCH];
    size_t need = 0;
    attn_params p = bit_params(w, &got, t, w->chunk);
    for (int64_t b = 0; b < w->batch; b++) {
        const int64_t left = w->len[b] > t ? w->len[b] - t : 0;
        len[b] = (int32_t)(left < w->chunk ? left : w->chunk);
    }
    if (w->rollback && w->base + t > 0)
        append_garbage(w, w->base + t, len);
    append_rows(w, w->batch, w->base + t, len);
    p.q_len = len;
    p.kernels = w->kernels;
    CHECK(attn_cache_view_size(&cache, w->batch, &need, why, WHY) == ATTN_OK, "%s", why);
    CHECK(attn_cache_view(&cache, 0, w->order, w->batch, &p, room, need, why, WHY) == ATTN_OK,
          "%s", why);
    CHECK(test_run(&p) == ATTN_OK, "%s, row %d", w->route->name, (int)t);
}

static void compare_passage(const passage *w)
{
    for (int64_t b = 0; b < w->batch; b++)
        for (int h = 0; h < QUERY_HEADS; h++) {
            const size_t rows = (size_t)(w->len[b] - w->prefix);
            CHECK(memcmp(plain.o[b][h][w->prefix], got.o[b][h][w->prefix],
                         rows * sizeof plain.o[0][0][0]) == 0 &&
                      memcmp(plain.lse[b][h] + w->prefix, got.lse[b][h] + w->prefix,
                             rows * sizeof(float)) == 0,
                  "%s, entry %d of %d, head %d, base %d, prefix %d, chunks of %d, window %d, "
                  "rollback %d, rope %d, types %s %s, kernels %s", w->route->name, (int)b,
                  (int)w->batch, h, (int)w->base, (int)w->prefix, (int)w->chunk, (int)w->window,
                  w->rollback, w->turned, dtype_name(cache.k.dtype), dtype_name(cache.v.dtype),
                  attn_kernels_name(w->kernels));
        }
}

static passage random_passage(const struct route *route, int64_t chunk, int64_t base)
{
    passage w = {0};
    int sets = 0;
    w.route = route;
    w.chunk = chunk;
    w.base = base;
    w.batch = rng_chance(50) ? 1 : BATCH;
    w.prefix = w.batch > 1 && rng_chance(40) ? rng_int(1, 100) : 0;
    w.window = route->ring || rng_chance(30) ? rng_int(0, 60) : -1;
    for (int b = 0; b < BATCH; b++) {
        w.len[b] = b == 0 ? LONGEST : rng_int(w.prefix, LONGEST);
        w.order[b] = (b * 3 + 5) % BATCH;
    }
    w.rollback = rng_chance(50);
    w.turned = rng_chance(50);
    w.positions = rng_chance(50);
    w.packed = rng_chance(30);
    w.rope.interleaved = rng_chance(50);
    for (int b = 0; b < BATCH && w.positions && w.prefix == 0; b++)
        w.shift[b] = rng_int(-9, 9);
    while (attn_kernels_get(sets) != NULL)
        sets++;
    w.kernels = attn_kernels_get((int)rng_int(0, sets - 1));
    return w;
}

static int make_passage_cache(const passage *w)
{
    const int64_t longest = (w->prefix > w->chunk ? w->prefix : w->chunk) + GARBAGE;
    size_t bytes = 0;
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = BATCH;
    cache.num_heads_kv = GROUP_HEADS;
    cache.head_dim = BIT_DIM;
    cache.head_dim_v = BIT_DIM_V;
    cache.page_size = w->route->page_size;
    cache.ring = w->route->ring;
    cache.window_left = cache.ring ? w->window : 0;
    cache.capacity = cache.ring ? w->window + longest : LONGEST + GARBAGE;
    cache.layout = (int)rng_int(0, 1);
    cache.k.dtype = (int)rng_int(0, 2);
    cache.v.dtype = (int)rng_int(0, 2);
    return CHECK(attn_cache_size(&cache, &bytes, why, WHY) == ATTN_OK, "%s", why) &&
           CHECK(attn_cache_init(&cache, test_alloc(bytes), bytes, why, WHY) == ATTN_OK, "%s", why);
}

static void one_passage(const struct route *route, int64_t chunk, int64_t base)
{
    const passage w = random_passage(route, chunk, base);
    fill_normal(&keys[0][0][0][0], sizeof keys);
    fill_normal(&vals[0][0][0][0], sizeof vals);
    fill_normal(&queries[0][0][0][0], sizeof queries);
    if (w.prefix > 0)
        share_prefix(&w);
    if (!make_passage_cache(&w))
        return;
    make_plain(&w);
    run_plain(&w);
    begin_passage(&w);
    for (int64_t t = w.prefix; t < LONGEST; t += chunk)
        run_chunk(&w, t);
    compare_passage(&w);
}

static void test_passages(void)
{
    static const int64_t chunks[] = {1, 7, 64, LONGEST}, bases[] = {0, 3, BASE_MOST};
    for (size_t r = 0; r < sizeof routes / sizeof *routes; r++)
        for (int c = 0; c < 4; c++)
            for (int b = 0; b < 3; b++)
                if (begin_case("%s, chunks of %d, key_base %d", routes[r].name, (int)chunks[c],
                               (int)bases[b]))
                    one_passage(&routes[r], chunks[c], bases[b]);
}

/* ---- every misuse: status, sentence, nothing changed ---------------------------------------- */

typedef struct misuse_call { /* all arguments of all functions */
    attn_cache shape;      /* for size and init; the others get the cache that is ready */
    attn_cache *c;
    attn_cache_step s;
    attn_cache_step *step;
    attn_rope rope;
    attn_params p;
    attn_params *params;
    attn_output k, v;
    const int32_t *sequences;
    void *memory;
    size_t bytes, *need;
    int64_t layer, sequence, begin, end, from, to, first, count, batch;
} misuse_call;

static attn_status call_size(misuse_call *a)
{
    return attn_cache_size(a->c ? &a->shape : NULL, a->need, why, WHY);
}

static attn_status call_init(misuse_call *a)
{
    return attn_cache_init(a->c ? &a->shape : NULL, a->memory, a->bytes, why, WHY);
}

static attn_status call_extend(misuse_call *a)
{
    return attn_cache_extend(a->c, a->step, why, WHY);
}

static attn_status call_write(misuse_call *a)
{
    return attn_cache_write(a->c, a->layer, a->step, why, WHY);
}

static attn_status call_append(misuse_call *a)
{
    return attn_cache_append(a->c, a->step, why, WHY);
}

static attn_status call_trim(misuse_call *a)
{
    return attn_cache_trim(a->c, a->sequence, a->begin, a->end, why, WHY);
}

static attn_status call_fork(misuse_call *a)
{
    return attn_cache_fork(a->c, a->from, a->to, a->end, why, WHY);
}

static attn_status call_view_size(misuse_call *a)
{
    return attn_cache_view_size(a->c, a->batch, a->need, why, WHY);
}

static attn_status call_view(misuse_call *a)
{
    return attn_cache_view(a->c, a->layer, a->sequences, a->batch, a->params, a->memory, a->bytes,
                           why, WHY);
}

static attn_status call_read(misuse_call *a)
{
    return attn_cache_read(a->c, a->layer, a->sequence, a->first, a->count, &a->k, &a->v, why, WHY);
}

/* The caches that are ready: three sequences with 7, 2 and no keys; in a ring that went over its
 * end 17, 12 and none. WITH_TABLE: steps have a rope with a table. SAME_ROWS: all rows of k and of
 * v are one. */
enum { PLAIN, RINGED, FEW_PAGES, TWO_LAYERS, WITH_TABLE, SAME_ROWS, READY_KINDS };

static const attn_cache not_ready;
static float new_keys[2 * 2 * 2 * 8], turns[64 * 4];
static const int32_t lists[][2] = {{0, 1}, {1, 1}, {-1, 0}, {0, 3}, {7, 2}, {5, 5}, {-1, 5}};
static const int32_t borders[][3] = {{0, 3, 5}, {0, 3, 2}, {-1, 2, 3}};
static const int64_t near_positions[24] = {0, 0, 1, 5}, far[] = {0, 0, (int64_t)1 << 32, 0};

static attn_cache ready_shape(int kind)
{
    attn_cache c = {0};
    c.num_sequences = 3;
    c.num_heads_kv = 2;
    c.head_dim = 8;
    c.capacity = 12;
    c.num_layers = kind == TWO_LAYERS ? 2 : 1;
    c.k.dtype = ATTN_F16;
    c.ring = kind == RINGED;
    c.window_left = kind == RINGED ? 6 : 0;
    c.page_size = kind == FEW_PAGES ? 4 : 0;
    c.num_pages = kind == FEW_PAGES ? 4 : 0;
    return c;
}

static void make_ready(int kind)
{
    attn_cache_step s = {0};
    cache = ready_shape(kind);
    CHECK(attn_cache_size(&cache, &memory_bytes, why, WHY) == ATTN_OK, "%s", why);
    memory = test_alloc(memory_bytes);
    memory_before = test_alloc(memory_bytes);
    CHECK(attn_cache_init(&cache, memory, memory_bytes, why, WHY) == ATTN_OK, "%s", why);
    s.batch = 2;
    s.seq_len = 7;
    s.len = lists[4];
    CHECK(attn_cache_extend(&cache, &s, why, WHY) == ATTN_OK, "%s", why);
    s.len = lists[5];
    for (int i = 0; i < 2 && kind == RINGED; i++)
        CHECK(attn_cache_extend(&cache, &s, why, WHY) == ATTN_OK, "%s", why);
}

/* One argument, or a field of one, that is wrong. */
typedef struct misuse {
    attn_status (*call)(misuse_call *a);
    int kind;
    size_t offset;
    enum { AS_INT64, AS_INT, AS_STRIDE, AS_SIZE, AS_POINTER } type;
    int64_t number;
    const void *pointer;
    attn_status status;
    const char *piece; /* of the sentence */
} misuse;

#define MISUSE(call, kind, field, type, number, pointer, status, piece)                            \
    {call_##call, kind, offsetof(misuse_call, field), type, number, pointer, ATTN_ERR_##status,    \
     piece}
#define N64(call, kind, field, number, status, piece)                                              \
    MISUSE(call, kind, field, AS_INT64, number, NULL, status, piece)
#define INT(call, kind, field, number, status, piece)                                              \
    MISUSE(call, kind, field, AS_INT, number, NULL, status, piece)
#define STRIDE(call, kind, field, number, status, piece)                                           \
    MISUSE(call, kind, field, AS_STRIDE, number, NULL, status, piece)
#define SIZE(call, kind, field, number, status, piece)                                             \
    MISUSE(call, kind, field, AS_SIZE, number, NULL, status, piece)
#define PTR(call, kind, field, pointer, status, piece)                                             \
    MISUSE(call, kind, field, AS_POINTER, 0, pointer, status, piece)

#define HUGE_SIZE ((int64_t)1 << 62)

static const misuse misuses[] = {
    /* shape */
    PTR(size, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(size, PLAIN, need, NULL, ARG, "bytes is NULL"),
    PTR(init, PLAIN, c, NULL, ARG, "cache is NULL"),
    N64(size, PLAIN, shape.num_sequences, 0, ARG, "num_sequences (0) must be at least 1"),
    N64(size, PLAIN, shape.num_sequences, HUGE_SIZE, ARG, "num_sequences (46"),
    N64(size, PLAIN, shape.num_layers, -1, ARG, "num_layers (-1) must be at least 0"),
    N64(size, PLAIN, shape.num_layers, HUGE_SIZE, OVERFLOW, "num_layers (46"),
    N64(size, PLAIN, shape.num_heads_kv, 0, ARG, "num_heads_kv (0) must be at least 1"),
    N64(size, PLAIN, shape.num_heads_kv, PTRDIFF_MAX / 64, OVERFLOW, "exceeds the address space"),
    N64(size, PLAIN, shape.head_dim, -8, ARG, "head_dim (-8) must be at least 1"),
    N64(size, PLAIN, shape.head_dim, PTRDIFF_MAX / 64, OVERFLOW, "exceeds the address space"),
    N64(size, PLAIN, shape.head_dim_v, -1, ARG, "head_dim_v (-1) must be at least 0"),
    N64(init, PLAIN, shape.capacity, 0, ARG, "capacity (0) must be at least 1"),
    N64(init, PLAIN, shape.capacity, -4, ARG, "capacity (-4) must be at least 1"),
    N64(size, PLAIN, shape.capacity, (int64_t)1 << 31, ARG, "capacity (2147483648) must be"),
    N64(size, PLAIN, shape.page_size, -1, ARG, "page_size (-1) must be at least 0"),
    N64(size, FEW_PAGES, shape.capacity, INT32_MAX, OVERFLOW,
        "capacity (2147483647) in whole pages must be at most 2147483647"),
    N64(size, FEW_PAGES, shape.num_pages, -1, ARG, "num_pages (-1) must be at least 0"),
    N64(size, PLAIN, shape.num_pages, 2, ARG, "num_pages (2) is set, but page_size is 0"),
    N64(size, PLAIN, shape.window_left, 3, ARG, "window_left (3) is set, but ring is 0"),
    N64(size, RINGED, shape.window_left, 12, ARG,
        "window_left (12) of a ring must be below capacity (12)"),
    N64(size, RINGED, shape.window_left, -1, ARG, "window_left (-1) must be at least 0"),
    INT(size, PLAIN, shape.layout, 2, ARG, "layout (2) must be at most 1"),
    INT(size, PLAIN, shape.k.dtype, 3, ARG, "k.dtype (3) must be at most 2"),
    INT(init, PLAIN, shape.v.dtype, -1, ARG, "v.dtype (-1) must be at least 0"),
    STRIDE(size, PLAIN, shape.k.stride_head, PTRDIFF_MIN, ARG,
           "k.stride_head (ATTN_STRIDE_BROADCAST) of an output"),
    STRIDE(size, PLAIN, shape.v.stride_batch, PTRDIFF_MIN, ARG, "v.stride_batch (ATTN_STRIDE"),
    STRIDE(init, PLAIN, shape.v.stride_seq, PTRDIFF_MIN, ARG, "v.stride_seq (ATTN_STRIDE"),
    STRIDE(size, PLAIN, shape.k_stride_layer, PTRDIFF_MIN, ARG, "k_stride_layer (ATTN_STRIDE"),
    STRIDE(size, PLAIN, shape.k.stride_seq, -16, ARG, "k: negative strides need storage"),
    STRIDE(size, PLAIN, shape.k.stride_seq, 7, ARG, "k: num_layers (1) x num_sequences (3)"),
    STRIDE(size, FEW_PAGES, shape.v.stride_head, 8, ARG, "page_size (4): with its strides rows"),
    STRIDE(size, TWO_LAYERS, shape.v_stride_layer, 8, ARG, "with its strides rows share elements"),
    STRIDE(size, PLAIN, shape.v.stride_batch, PTRDIFF_MAX / 4, OVERFLOW, "v: num_layers (1) x"),
    PTR(size, PLAIN, shape.begin, borders, ARG, "cache is ready already: set it to zero first"),
    PTR(init, PLAIN, shape.begin, borders, ARG, "cache is ready already: set it to zero first"),
    PTR(init, PLAIN, memory, NULL, WORKSPACE, "memory: bytes (0) must be at least "),
    SIZE(init, PLAIN, bytes, 100, WORKSPACE, "memory: bytes (100) must be at least "),
    /* steps */
    PTR(extend, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(extend, PLAIN, step, NULL, ARG, "step is NULL"),
    PTR(append, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(append, PLAIN, c, &not_ready, ARG, "cache is not ready: call attn_cache_init first"),
    PTR(append, PLAIN, step, NULL, ARG, "step is NULL"),
    N64(extend, PLAIN, s.batch, -1, ARG, "batch (-1) must be at least 0"),
    N64(extend, PLAIN, s.batch, 4, ARG, "batch (4) must be at most num_sequences (3)"),
    N64(append, PLAIN, s.seq_len, -2, ARG, "seq_len (-2) must be at least 0"),
    N64(extend, PLAIN, s.seq_len, HUGE_SIZE, ARG, "seq_len (46"),
    N64(extend, PLAIN, s.seq_len, 11, FULL,
        "sequence 0 with 7 keys and 11 new ones: capacity (12) is exceeded"),
    N64(append, PLAIN, s.seq_len, 6, FULL, "sequence 0 with 7 keys and 6 new ones: capacity (12)"),
    N64(extend, RINGED, s.seq_len, 7, FULL,
        "sequence 0 with 12 keys and 7 new ones: a ring of rows (12) with window_left (6) takes at "
        "most 6 in one step"),
    N64(extend, FEW_PAGES, s.seq_len, 5, FULL,
        "num_free (1) of num_pages (4) is too few: the step needs 2 pages"),
    PTR(extend, PLAIN, s.sequences, lists[1], ARG,
        "sequences[1] (1) is there twice: a step has each sequence once"),
    PTR(append, PLAIN, s.sequences, lists[2], ARG, "sequences[0] (-1) must be from 0 to "),
    PTR(write, PLAIN, s.sequences, lists[3], ARG,
        "sequences[1] (3) must be from 0 to num_sequences - 1, 2"),
    PTR(extend, PLAIN, s.len, lists[6], ARG, "len[0] (-1) must be from 0 to 2"),
    PTR(append, PLAIN, s.len, lists[3], ARG, "len[1] (3) must be from 0 to 2"),
    PTR(append, PLAIN, s.cu_seqlens, borders[0], ARG,
        "cu_seqlens[2] (5) exceeds the rows of the tensor (2)"),
    PTR(append, PLAIN, s.cu_seqlens, borders[1], ARG, "cu_seqlens[2] (2) is below the entry"),
    PTR(append, PLAIN, s.cu_seqlens, borders[2], ARG, "cu_seqlens[0] (-1) must be at least 0"),
    PTR(append, PLAIN, s.k.data, NULL, ARG, "k.data is NULL"),
    PTR(write, PLAIN, s.v.data, NULL, ARG, "v.data is NULL"),
    INT(append, PLAIN, s.k.dtype, ATTN_BF16, ARG, "k.dtype (2) must be f32 (0) or as stored (1)"),
    INT(append, PLAIN, s.v.dtype, ATTN_F16, ARG, "v.dtype (1) must be f32 (0) or as stored (0)"),
    INT(write, PLAIN, s.v.dtype, 7, ARG, "v.dtype (7) must be f32 (0) or as stored (0)"),
    STRIDE(append, PLAIN, s.k.stride_head, PTRDIFF_MAX / 4, OVERFLOW, "k: batch (2) x heads (2)"),
    INT(append, PLAIN, rope.scaling, 9, ARG, "scaling (9)"),
    N64(append, PLAIN, rope.dim, 3, ARG, "dim (3)"),
    N64(append, PLAIN, rope.dim, 10, ARG, "dim (10)"),
    PTR(append, WITH_TABLE, rope.cos, NULL, ARG, "cos"),
    N64(append, WITH_TABLE, rope.num_positions, 8, ARG,
        "keys of sequence 0: batch 0, row 1: position (8) must be at least 0 and below "
        "num_positions (8), the rows of the table"),
    N64(write, WITH_TABLE, rope.num_positions, 6, ARG,
        "keys of sequence 0: batch 0, row 1: position (6) must be at least 0 and below "),
    PTR(append, PLAIN, s.positions, far, ARG,
        "keys of sequence 1: batch 0, row 0: position (4294967296) must be from -2^31 to 2^31"),
    N64(append, SAME_ROWS, s.seq_len, PTRDIFF_MAX / 16, OVERFLOW,
        "positions: batch (2) x heads (1) x rows ("),
    PTR(append, PLAIN, s.rope, NULL, ARG, "positions are given, but rope is NULL"),
    N64(append, TWO_LAYERS, sequence, 0, ARG,
        "num_layers (2): call attn_cache_extend, then attn_cache_write for each layer"),
    N64(write, PLAIN, layer, 1, ARG, "layer (1) must be from 0 to 0"),
    N64(write, TWO_LAYERS, layer, -1, ARG, "layer (-1) must be from 0 to 1"),
    N64(write, PLAIN, s.seq_len, 3, ARG,
        "sequence 1 with 2 keys and 3 new ones: call attn_cache_extend with this step first"),
    /* trim and fork */
    PTR(trim, PLAIN, c, NULL, ARG, "cache is NULL"),
    N64(trim, PLAIN, sequence, 3, ARG, "sequence (3) must be from 0 to 2"),
    N64(trim, PLAIN, sequence, -1, ARG, "sequence (-1) must be from 0 to 2"),
    N64(trim, PLAIN, begin, -1, ARG, "begin (-1) and end (5) must ascend from 0 to 7"),
    N64(trim, PLAIN, begin, 6, ARG, "begin (6) and end (5) must ascend"),
    N64(trim, PLAIN, end, 8, ARG,
        "end (8) must ascend from 0 to 7, the numbers present in sequence 0"),
    N64(trim, PLAIN, end, -5, ARG, "end (-5)"),
    N64(trim, RINGED, begin, 4, ARG, "begin (4) and end (11) must ascend from 5 to 17"),
    N64(trim, RINGED, end, 10, ARG,
        "end (10) must be at least 11: window_left (6) keys before it are needed, and the ring has "
        "overwritten those below 5"),
    PTR(fork, PLAIN, c, NULL, ARG, "cache is NULL"),
    N64(fork, PLAIN, from, 3, ARG, "from (3) must be from 0 to 2"),
    N64(fork, PLAIN, to, -1, ARG, "to (-1) must be from 0 to 2"),
    N64(fork, PLAIN, to, 0, ARG, "to (0) must be another sequence than from"),
    N64(fork, PLAIN, to, 1, ARG, "to (1) must be empty: call attn_cache_trim(c, to, 0, 0, ...)"),
    N64(fork, PLAIN, end, 8, ARG, "begin (0) and end (8) must ascend from 0 to 7"),
    N64(fork, RINGED, end, 10, ARG,
        "end (10) must be at least 11: window_left (6) keys before it are needed, and the ring has "
        "overwritten those below 5"),
    /* views and reading */
    PTR(view_size, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(view_size, PLAIN, need, NULL, ARG, "bytes is NULL"),
    N64(view_size, PLAIN, batch, -1, ARG, "batch (-1) must be at least 0"),
    N64(view_size, PLAIN, batch, HUGE_SIZE, OVERFLOW, "the view would exceed the address space"),
    PTR(view, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(view, PLAIN, params, NULL, ARG, "params is NULL"),
    N64(view, PLAIN, layer, 1, ARG, "layer (1) must be from 0 to 0"),
    N64(view, PLAIN, batch, -1, ARG, "batch (-1) must be at least 0"),
    PTR(view, PLAIN, sequences, lists[3], ARG, "sequences[1] (3) must be from 0 to num_sequences"),
    PTR(view, PLAIN, memory, NULL, WORKSPACE, "memory: bytes (0) must be at least "),
    SIZE(view, PLAIN, bytes, 60, WORKSPACE, "memory: bytes (60) must be at least "),
    N64(view, RINGED, p.window_left, 7, ARG,
        "p.window_left (7) must be from 0 to 6, the window_left of the ring"),
    N64(view, RINGED, p.window_left, -1, ARG, "p.window_left (-1) must be from 0 to 6"),
    PTR(read, PLAIN, c, NULL, ARG, "cache is NULL"),
    N64(read, PLAIN, layer, -1, ARG, "layer (-1) must be from 0 to 0"),
    N64(read, PLAIN, sequence, 3, ARG, "sequence (3) must be from 0 to 2"),
    N64(read, PLAIN, count, -1, ARG, "count (-1) must be from 0 to 7"),
    N64(read, PLAIN, count, 8, ARG, "count (8) must be from 0 to 7"),
    N64(read, PLAIN, count, 7, ARG, "first (1) and first + count (8) must ascend from 0 to 7"),
    N64(read, PLAIN, first, INT64_MAX, ARG, "first (9223372036854775807)"),
    N64(read, PLAIN, first, -1, ARG, "first (-1)"),
    INT(read, PLAIN, k.dtype, ATTN_BF16, ARG, "k.dtype (2) must be f32 (0) or as stored (1)"),
    INT(read, PLAIN, v.dtype, ATTN_F16, ARG, "v.dtype (1) must be f32 (0) or as stored (0)"),
    STRIDE(read, PLAIN, v.stride_seq, PTRDIFF_MIN, ARG, "v.stride_seq (ATTN_STRIDE_BROADCAST)"),
    STRIDE(read, PLAIN, k.stride_head, PTRDIFF_MAX / 2, OVERFLOW, "k: batch (1) x heads (2)"),
};

/* What the calls of both kinds write to. */
static struct misuse_room {
    unsigned char memory[16384], k[2048], v[2048];
} misuse_room, misuse_room_before;

static void good_step(misuse_call *a, int kind)
{
    a->s.batch = 2;
    a->s.seq_len = 2;
    a->s.k.data = a->s.v.data = new_keys;
    a->s.rope = &a->rope;
    a->s.positions = kind == WITH_TABLE ? NULL : near_positions;
    if (kind == WITH_TABLE) {
        a->rope.cos = a->rope.sin = turns;
        a->rope.num_positions = 64;
    }
    if (kind == SAME_ROWS) {
        a->s.len = lists[1];
        a->s.k.stride_batch = a->s.k.stride_seq = ATTN_STRIDE_BROADCAST;
        a->s.k.stride_head = 8;
        a->s.v = a->s.k;
    }
}

/* All arguments are right, for every function. */
static void good_call(misuse_call *a, int kind)
{
    memset(a, 0, sizeof *a);
    a->c = &cache;
    a->shape = ready_shape(kind);
    a->step = &a->s;
    a->params = &a->p;
    a->need = &a->bytes;
    a->memory = misuse_room.memory;
    a->bytes = sizeof misuse_room.memory;
    a->begin = kind == RINGED ? 5 : 1;
    a->end = kind == RINGED ? 11 : 5;
    a->first = kind == RINGED ? 5 : 1;
    a->to = 2;
    a->batch = 2;
    a->count = 3;
    a->k.data = misuse_room.k;
    a->v.data = misuse_room.v;
    a->sequences = lists[0];
    a->p.window = kind == RINGED ? ATTN_WINDOW : 0;
    good_step(a, kind);
}

static void break_call(misuse_call *a, const misuse *m)
{
    unsigned char *at = (unsigned char *)a + m->offset;
    const int as_int = (int)m->number;
    const ptrdiff_t as_stride = (ptrdiff_t)m->number;
    const size_t as_size = (size_t)m->number;
    if (m->type == AS_INT64)
        memcpy(at, &m->number, sizeof m->number);
    else if (m->type == AS_INT)
        memcpy(at, &as_int, sizeof as_int);
    else if (m->type == AS_STRIDE)
        memcpy(at, &as_stride, sizeof as_stride);
    else if (m->type == AS_SIZE)
        memcpy(at, &as_size, sizeof as_size);
    else
        memcpy(at, &m->pointer, sizeof m->pointer);
}

static void check_misuse(const misuse *m)
{
    static misuse_call call, before;
    attn_status status;
    good_call(&call, m->kind);
    break_call(&call, m);
    memcpy(&before, &call, sizeof call);
    misuse_room_before = misuse_room;
    remember();
    status = m->call(&call);
    CHECK(status == m->status, "status %d, not %d: %s", (int)status, (int)m->status, why);
    CHECK(strstr(why, m->piece) != NULL, "'%s' without '%s'", why, m->piece);
    CHECK(is_unchanged() && memcmp(&before, &call, sizeof call) == 0 &&
              memcmp(&misuse_room, &misuse_room_before, sizeof misuse_room) == 0,
          "something changed: %s", why);
}

static void test_misuses(void)
{
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++)
        if (begin_case("misuse %d: %s", (int)i, misuses[i].piece)) {
            make_ready(misuses[i].kind);
            check_misuse(&misuses[i]);
        }
}

/* The calls that the table breaks are right. */
static void test_good_calls(void)
{
    static attn_status (*const calls[])(misuse_call *a) = {
        call_size, call_init, call_extend, call_write, call_append, call_trim, call_fork,
        call_view_size, call_view, call_read};
    for (int kind = 0; kind < READY_KINDS; kind++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            static misuse_call call;
            if (!begin_case("right call %d of kind %d", (int)i, kind))
                continue;
            make_ready(kind);
            good_call(&call, kind);
            if (calls[i] == call_append && kind == TWO_LAYERS)
                continue;
            CHECK(calls[i](&call) == ATTN_OK && strcmp(why, "ok") == 0, "%s", why);
        }
}

void test_cache(void)
{
    test_good_calls();
    test_misuses();
    test_rings();
    test_passages();
    test_operations();
}
