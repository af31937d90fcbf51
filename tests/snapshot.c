/* snapshot.c - snapshots of caches: their bytes against a writer of its own, damage, every misuse.
 * SPDX-License-Identifier: MIT
 *
 *     build/test snapshot [-- COUNT]       damaged files
 *
 * The writer below follows the words of attn.h and docs/caches.md and shares no code with the library.
 * That a loaded cache goes on with the right bits is the matter of tests/cache_bits.c and of the random
 * operations of tests/cache.c.
 */
#include "caches.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 2, DIM = 32, DIM_V = 64, SEQUENCES = 4, CAPACITY = 150, FACTS = 16 };

snapshot_file file;

int file_write(void *context, const void *bytes, size_t count)
{
    snapshot_file *f = context;
    if (count > f->limit - f->at)
        return 1;
    memcpy(f->bytes + f->at, bytes, count);
    f->at += count;
    f->size = f->at;
    return 0;
}

int file_read(void *context, void *bytes, size_t count)
{
    snapshot_file *f = context;
    if (count > f->limit - f->at || count > f->size - f->at)
        return 1;
    memcpy(bytes, f->bytes + f->at, count);
    f->at += count;
    return 0;
}

attn_snapshot file_snapshot(int64_t batch, const int32_t *sequences, const attn_rope *rope)
{
    attn_snapshot s = { 0 };
    s.batch = batch;
    s.sequences = sequences;
    s.rope = rope;
    s.write = file_write;
    s.read = file_read;
    s.context = &file;
    return s;
}

attn_status file_save(const attn_snapshot *s)
{
    file.at = file.size = 0;
    file.limit = sizeof file.bytes;
    return attn_cache_save(&cache, s, why, WHY);
}

attn_status file_load(const attn_snapshot *s)
{
    file.at = 0;
    file.limit = file.size;
    return attn_cache_load(&cache, s, why, WHY);
}

/* ---- a cache with something in it ------------------------------------------------------------ */

static const int64_t page_sizes[] = { 0, 1, 7, 16, 64, 100 };

static float mean[LAYERS * HEADS * DIM];
static float scales[LAYERS * HEADS * DIM_V]; /* of K and of V in i8 */
static int with_mean, with_recent, with_rows;

static int start_cache(int k_type, int v_type, int64_t page_size, int ring)
{
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = SEQUENCES;
    cache.num_layers = LAYERS;
    cache.num_heads_kv = HEADS;
    cache.head_dim = DIM;
    cache.head_dim_v = DIM_V;
    cache.capacity = CAPACITY;
    cache.page_size = page_size;
    cache.ring = ring;
    cache.window_left = ring ? 40 : 0;
    cache.layout = (int)rng_int(0, 1);
    cache.k.dtype = k_type;
    cache.v.dtype = v_type;
    for (int i = 0; i < LAYERS * HEADS * DIM_V; i++)
        scales[i] = (float)(i % 7 + 1) / 64;
    cache.k_scales.data = k_type == ATTN_I8 ? scales : NULL;
    cache.v_scales.data = v_type == ATTN_I8 ? scales : NULL;
    cache.k_mean = with_mean ? mean : NULL;
    cache.recent = with_recent;
    cache.recent_rows = with_rows;
    cache.recent_dtype = with_recent % 3;
    return cache_start();
}

static int start_random(void)
{
    const int k_type = (int)rng_int(0, ATTN_I8), v_type = (int)rng_int(0, ATTN_I8);
    const int64_t page_size = RNG_PICK(page_sizes);
    return start_cache(k_type, v_type, page_size, rng_chance(30));
}

static void append_keys(int64_t sequence, int64_t count)
{
    static float k[HEADS * CAPACITY * DIM], v[HEADS * CAPACITY * DIM_V];
    const int32_t chosen = (int32_t)sequence;
    attn_cache_step s = { 0 };
    s.batch = 1;
    s.sequences = &chosen;
    s.seq_len = count;
    s.k.data = k;
    s.v.data = v;
    CHECK(attn_cache_extend(&cache, &s, why, WHY) == ATTN_OK, "%s", why);
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        for (int64_t i = 0; i < HEADS * count * DIM; i++)
            k[i] = rng_normal();
        for (int64_t i = 0; i < HEADS * count * DIM_V; i++)
            v[i] = rng_normal();
        CHECK(attn_cache_write(&cache, layer, &s, why, WHY) == ATTN_OK, "%s", why);
    }
}

/* Three sequences: a long one, one that has lost its beginning, an empty one. */
static void fill_cache(void)
{
    append_keys(0, cache.ring ? 100 : rng_int(65, CAPACITY));
    if (cache.ring)
        append_keys(0, 90);
    append_keys(1, rng_int(20, 60));
    CHECK(attn_cache_trim(&cache, 1, 11, cache.end[1], why, WHY) == ATTN_OK, "%s", why);
}

static void empty_cache(void)
{
    for (int64_t q = 0; q < SEQUENCES; q++)
        CHECK(attn_cache_trim(&cache, q, 0, 0, why, WHY) == ATTN_OK, "%s", why);
}

/* ---- the writer ------------------------------------------------------------------------------ */

typedef struct writer {
    unsigned char bytes[1 << 20];
    size_t size, section;
    uint64_t hash;
} writer;
static writer written;

static void write_word(uint64_t x)
{
    for (int i = 0; i < 8; i++)
        written.bytes[written.size++] = (unsigned char)(x >> (8 * i) & 255);
}

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    uint64_t x = word * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 32)) * 0x94d049bb133111ebu;
    x = (hash ^ x) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 32);
}

/* The hash goes on over the section, with zeros up to a whole word. */
static void write_hash(void)
{
    for (size_t at = written.section; at < written.size; at += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < written.size; i++)
            word |= (uint64_t)written.bytes[at + i] << (8 * i);
        written.hash = mixed(written.hash, word);
    }
    write_word(written.hash);
    written.section = written.size;
}

/* A stored number, or a unit's scale and its bytes, least significant byte first. */
static void write_unit(const unsigned char *unit, size_t bytes, size_t word)
{
    uint32_t whole;
    uint16_t half;
    memcpy(&whole, unit, word == 4 ? 4 : 1);
    memcpy(&half, unit, word == 2 ? 2 : 1);
    for (size_t i = 0; i < bytes; i++)
        written.bytes[written.size++] = (unsigned char)(i >= word || word == 1 ? unit[i]
                                                        : word == 4 ? whole >> (8 * i) & 255
                                                                    : half >> (8 * i) & 255);
}

static void write_rows(const unsigned char *rows, int dtype, int64_t numbers)
{
    static const size_t words[] = { 4, 2, 2, 1, 1, 2, 2, 2, 1 };
    const int64_t unit = dtype >= ATTN_Q8_0 && dtype <= ATTN_Q4_0 ? 32 : 1;
    const size_t bytes = dtype_bytes(dtype, unit);
    for (int64_t i = 0; i < numbers / unit; i++)
        write_unit(rows + (size_t)i * bytes, bytes, words[dtype]);
}

static void write_block(int64_t layer, int64_t sequence, int64_t first, int64_t count)
{
    static unsigned char rows[2][HEADS * 64 * DIM_V * sizeof(float)];
    const attn_output k = { .dtype = cache.k.dtype, .data = rows[0] };
    const attn_output v = { .dtype = cache.v.dtype, .data = rows[1] };
    CHECK(attn_cache_read(&cache, layer, sequence, first, count, &k, &v, why, WHY) == ATTN_OK, "%s",
          why);
    write_rows(rows[0], k.dtype, HEADS * count * DIM);
    write_rows(rows[1], v.dtype, HEADS * count * DIM_V);
    write_hash();
}

/* Recent rows of numbers first to first+count-1, where a view shows them. */
static void write_recent_side(const attn_params *p, const attn_tensor *t, int64_t dim,
                              int64_t first, int64_t count)
{
    const size_t bytes = dtype_bytes(t->dtype, 1);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t n = first; n < first + count; n++)
            write_rows((const unsigned char *)t->data +
                           (size_t)(p->recent.entries[0] * t->stride_batch + h * t->stride_head +
                                    n % p->recent.ring * t->stride_seq) *
                               bytes,
                       t->dtype, dim);
}

static void write_recent(int64_t layer, int64_t q)
{
    static unsigned char room[4096];
    const int32_t chosen = (int32_t)q;
    attn_params p = { 0 };
    int64_t n, next;
    CHECK(attn_cache_view(&cache, layer, &chosen, 1, &p, room, sizeof room, why, WHY) == ATTN_OK,
          "%s", why);
    n = cache.recent_begin[q] > cache.begin[q] ? cache.recent_begin[q] : cache.begin[q];
    for (; n < cache.end[q]; n = next) {
        next = n - n % 64 + 64 < cache.end[q] ? n - n % 64 + 64 : cache.end[q];
        write_recent_side(&p, &p.recent.k, DIM, n, next - n);
        write_recent_side(&p, &p.recent.v, DIM_V, n, next - n);
        write_hash();
    }
}

static uint64_t angles_of_table(const attn_rope *rope)
{
    uint64_t hash = 0;
    for (int64_t position = 1; position <= 4096; position *= 2) {
        float c[DIM / 2], s[DIM / 2];
        CHECK(attn_rope_table(rope, DIM, position, 1, c, s, why, WHY) == ATTN_OK, "%s", why);
        for (int i = 0; i < DIM / 2; i++)
            hash = mixed(hash, (uint64_t)float_bits(s[i]) << 32 | float_bits(c[i]));
    }
    return hash;
}

static uint64_t hash_of_mean(void)
{
    uint64_t hash = cache.k_mean != NULL;
    for (int i = 0; i < LAYERS * HEADS * DIM && cache.k_mean; i++)
        hash = mixed(hash, float_bits(cache.k_mean[i]));
    return hash;
}

/* A word for each number that has a scale, 0 without. */
static uint64_t hash_of_scales(const attn_scales *x, int dim)
{
    uint64_t hash = 0;
    for (int layer = 0; layer < LAYERS && x->data != NULL; layer++)
        for (int h = 0; h < HEADS; h++)
            for (int d = 0; d < dim; d++)
                hash = mixed(
                    hash,
                    float_bits(
                        x->data[layer * x->stride_batch + h * x->stride_head + d * x->stride_dim]));
    return hash;
}

typedef struct made_of { /* what a test may falsify */
    uint64_t facts[FACTS + 2], scales[2];
    uint64_t numbers[SEQUENCES][4];
} made_of;

static made_of made_of_cache(const attn_snapshot *s)
{
    const made_of plain = {
        { 2, (uint64_t)s->batch, s->tag, cache.ring ? (uint64_t)cache.rows : 0, s->rope ? DIM : 0,
          s->rope && s->rope->interleaved, s->rope ? angles_of_table(s->rope) : 0, hash_of_mean(),
          LAYERS, HEADS, DIM, DIM_V, (uint64_t)cache.k.dtype, (uint64_t)cache.v.dtype,
          (uint64_t)cache.rotated, (uint64_t)cache.window_left, (uint64_t)cache.recent,
          (uint64_t)cache.recent_dtype },
        { hash_of_scales(&cache.k_scales, DIM), hash_of_scales(&cache.v_scales, DIM_V) },
        { { 0 } }
    };
    made_of m = plain;
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t q = s->sequences ? s->sequences[b] : b;
        m.numbers[b][0] = (uint64_t)cache.begin[q];
        m.numbers[b][1] = (uint64_t)cache.end[q];
        m.numbers[b][2] = (uint64_t)cache.overwritten_below[q];
        m.numbers[b][3] = cache.recent ? (uint64_t)cache.recent_begin[q] : 0;
    }
    return m;
}

static void write_sequence(int64_t q)
{
    for (int64_t layer = 0; layer < LAYERS; layer++)
        for (int64_t n = cache.begin[q], next; n < cache.end[q]; n = next) {
            next = n - n % 64 + 64 < cache.end[q] ? n - n % 64 + 64 : cache.end[q];
            write_block(layer, q, n, next - n);
        }
    for (int64_t layer = 0; layer < LAYERS && cache.recent; layer++)
        write_recent(layer, q);
}

static void write_snapshot(const attn_snapshot *s, const made_of *m)
{
    memset(&written, 0, sizeof written);
    memcpy(written.bytes, cache.recent ? "attnrec1" : "attnsnp1", 8);
    written.size = 8;
    write_hash();
    for (int i = 0; i < FACTS + (cache.recent ? 2 : 0); i++)
        write_word(m->facts[i]);
    write_hash();
    if (cache.k.dtype == ATTN_I8 || cache.v.dtype == ATTN_I8) {
        write_word(m->scales[0]);
        write_word(m->scales[1]);
        write_hash();
    }
    for (int64_t b = 0; b < s->batch; b++) {
        for (int i = 0; i < (cache.recent ? 4 : 3); i++)
            write_word(m->numbers[b][i]);
        write_hash();
        write_sequence(s->sequences ? s->sequences[b] : b);
    }
}

static void use_written(void)
{
    memcpy(file.bytes, written.bytes, written.size);
    file.size = written.size;
}

static void test_bytes(void)
{
    static const int32_t order[] = { 1, 3, 0 };
    for (int i = 0; i < 48; i++) {
        attn_rope rope = { 0 };
        attn_snapshot s = file_snapshot(3, i % 3 ? order : NULL, i % 4 ? &rope : NULL);
        made_of m;
        with_mean = i % 7 == 0;
        with_recent = i % 2 ? 0 : i / 2 * 3 + 1;
        mean[i] = (float)i;
        if (!begin_case("bytes %d", i) ||
            !start_cache(i % 9, (i * 4 + 1) % 9, RNG_PICK(page_sizes), i % 5 == 0))
            continue;
        rope.interleaved = i % 2;
        rope.base = i % 6 == 1 ? 5e5f : 0;
        s.tag = i % 2 ? rng_u64() : 0;
        fill_cache();
        m = made_of_cache(&s);
        write_snapshot(&s, &m);
        CHECK(file_save(&s) == ATTN_OK && strcmp(why, "ok") == 0, "%s", why);
        CHECK(file.size == written.size && memcmp(file.bytes, written.bytes, file.size) == 0,
              "%d bytes are not the %d of the writer, types %s %s", (int)file.size,
              (int)written.size, dtype_name(cache.k.dtype), dtype_name(cache.v.dtype));
        empty_cache();
        CHECK(file_load(&s) == ATTN_OK && file.at == file.size, "%s", why);
        m = made_of_cache(&s);
        write_snapshot(&s, &m);
        CHECK(memcmp(file.bytes, written.bytes, file.size) == 0, "loaded as something else");
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void change_bit(void)
{
    file.bytes[rng_int(0, (int64_t)file.size - 1)] ^= (unsigned char)(1 << rng_int(0, 7));
}

static void change_bytes(void)
{
    const int64_t count = rng_int(1, 40), at = rng_int(0, (int64_t)file.size - count);
    for (int64_t i = 0; i < count; i++)
        file.bytes[at + i] = (unsigned char)rng_int(0, 255);
}

static void cut_off(void)
{
    file.size = (size_t)rng_int(0, (int64_t)file.size - 1);
}

static void leave_out(void)
{
    const int64_t count = rng_int(1, 600), at = rng_int(0, (int64_t)file.size - count);
    memmove(file.bytes + at, file.bytes + at + count, file.size - (size_t)(at + count));
    file.size -= (size_t)count;
}

static void put_in(void)
{
    const int64_t count = rng_int(1, 600), at = rng_int(0, (int64_t)file.size - 1);
    memmove(file.bytes + at + count, file.bytes + at, file.size - (size_t)at);
    file.size += (size_t)count;
}

/* Two parts of equal size, such as blocks. */
static void exchange(void)
{
    static unsigned char part[4096];
    const int64_t most = (int64_t)file.size / 2 < 4096 ? (int64_t)file.size / 2 : 4096;
    const int64_t count = rng_int(1, most), a = rng_int(0, (int64_t)file.size - 2 * count);
    const int64_t b = rng_int(a + count, (int64_t)file.size - count);
    memcpy(part, file.bytes + a, (size_t)count);
    memmove(file.bytes + a, file.bytes + b, (size_t)count);
    memcpy(file.bytes + b, part, (size_t)count);
}

/* Signs of f32 numbers that follow each other: what a weak hash takes back. */
static void change_signs(void)
{
    const int64_t at = rng_int(0, (int64_t)file.size / 4 - 4) * 4;
    for (int i = 0; i < 3; i++)
        file.bytes[at + 4 * i + 3] ^= 0x80;
}

static void (*const damages[])(void) = { change_bit, change_bytes, cut_off,     leave_out,
                                         put_in,     exchange,     change_signs };

static int64_t wanted_damages(void)
{
    return T.argc > 0 ? strtoll(T.argv[0], NULL, 10) : 10000;
}

/* What a load that fails must leave as it was. */
static int32_t free_before[SEQUENCES * CAPACITY];
static int64_t num_free_before;

static void remember_empty(void)
{
    empty_cache();
    num_free_before = cache.num_free;
    if (cache.page_size)
        memcpy(free_before, cache.free_pages, (size_t)cache.num_pages * sizeof *free_before);
}

static int is_empty_still(void)
{
    int wrong = cache.num_free != num_free_before;
    for (int64_t q = 0; q < SEQUENCES; q++)
        wrong |= cache.begin[q] || cache.end[q] || cache.length[q] || cache.first_row[q] ||
                 cache.overwritten_below[q];
    for (int64_t i = 0; i < cache.num_sequences * cache.pages_per_sequence; i++)
        wrong |= cache.table[i] != -1;
    for (int64_t i = 0; cache.page_size && i < cache.num_pages; i++)
        wrong |= cache.uses[i] != 0 || cache.free_pages[i] != free_before[i];
    return !wrong;
}

/* A change behind the last byte that a load reads would be none. */
static void one_damage(const attn_snapshot *s)
{
    attn_status status;
    use_written();
    do
        damages[rng_int(0, (int64_t)(sizeof damages / sizeof *damages) - 1)]();
    while (file.size >= written.size && memcmp(file.bytes, written.bytes, written.size) == 0);
    status = file_load(s);
    CHECK(status == ATTN_ERR_DATA || status == ATTN_ERR_CALLBACK, "status %d: %s", (int)status,
          why);
    CHECK(is_empty_still(), "a load that failed left something: %s", why);
}

static void test_damages(void)
{
    enum { A_CASE = 250 };
    for (int64_t i = 0; i < (wanted_damages() + A_CASE - 1) / A_CASE; i++) {
        const attn_rope rope = { 0 };
        const attn_snapshot s = file_snapshot(3, NULL, &rope);
        made_of m;
        if (!begin_case("%d damaged files", A_CASE) || !start_random())
            continue;
        fill_cache();
        m = made_of_cache(&s);
        write_snapshot(&s, &m);
        remember_empty();
        for (int n = 0; n < A_CASE; n++)
            one_damage(&s);
    }
}

/* ---- files that nothing damaged, but that do not belong here --------------------------------- */

static void loads_as(const attn_snapshot *s, const made_of *m, attn_status status,
                     const char *sentence)
{
    write_snapshot(s, m);
    use_written();
    CHECK(file_load(s) == status && strstr(why, sentence) != NULL, "'%s', not '%s'", why, sentence);
}

static const struct evil {
    uint64_t numbers[3];
    attn_status status;
    const char *sentence;
} evils[] = {
    { { 5, 4, 0 }, ATTN_ERR_DATA, "a sequence with begin 5, end 4, overwritten_below 0" },
    { { (uint64_t)-1, 4, 0 }, ATTN_ERR_DATA, "begin -1" },
    { { 0, (uint64_t)INT64_MAX, 0 }, ATTN_ERR_DATA, "end 9223372036854775807" },
    { { (uint64_t)INT64_MAX, (uint64_t)INT64_MIN, 0 }, ATTN_ERR_DATA, "end -9223372036854775808" },
    { { 3, 4, 4 }, ATTN_ERR_DATA, "overwritten_below 4" },
    { { 1, 5, 1 }, ATTN_ERR_DATA, "overwritten_below 1" },
    { { 3, 4, (uint64_t)-1 }, ATTN_ERR_DATA, "overwritten_below -1" },
    { { 0, CAPACITY + 1, 0 }, ATTN_ERR_FULL, "a sequence has 151 keys, but capacity is 150" },
    { { 1 << 20, (1 << 20) + (1 << 30), 0 }, ATTN_ERR_FULL, "has 1073741824 keys" },
};

static const char *const fact_names[FACTS] = { "numerics version",
                                               "batch",
                                               "tag",
                                               "rows of a ring",
                                               "elements turned by rope",
                                               "rope.interleaved",
                                               "hash of the angles of rope",
                                               "hash of k_mean",
                                               "num_layers",
                                               "num_heads_kv",
                                               "head_dim",
                                               "head_dim_v",
                                               "k.dtype",
                                               "v.dtype",
                                               "rotated",
                                               "window_left" };

static void test_strangers(void)
{
    const attn_rope rope = { 0 };
    const attn_snapshot s = file_snapshot(2, NULL, &rope);
    made_of m;
    if (!begin_case("strangers") || !start_cache(ATTN_F16, ATTN_Q8_0, 16, 0))
        return;
    fill_cache();
    CHECK(file_save(&s) == ATTN_OK && file_load(&s) == ATTN_ERR_ARG &&
              strstr(why, "sequences[0] (0) must be empty") != NULL,
          "%s", why);
    remember_empty();
    m = made_of_cache(&s);
    for (int i = 0; i < FACTS; i++) {
        m.facts[i] ^= 1;
        loads_as(&s, &m, ATTN_ERR_ARG, fact_names[i]);
        m.facts[i] ^= 1;
    }
    for (size_t i = 0; i < sizeof evils / sizeof *evils; i++) {
        memcpy(m.numbers[1], evils[i].numbers, sizeof evils[i].numbers);
        loads_as(&s, &m, evils[i].status, evils[i].sentence);
    }
    CHECK(is_empty_still(), "a load that failed left something");
}

/* Numbers of anybody's choice under hashes that are right, or damage. */
FUZZ_HARNESS(snapshot, "snapshots that say anything: refused, or loaded as they say")
{
    const attn_snapshot s = file_snapshot(SEQUENCES, NULL, NULL);
    made_of m;
    (void)bytes;
    (void)count;
    if (!start_random())
        return;
    fill_cache();
    m = made_of_cache(&s);
    for (int64_t n = rng_int(0, 3); n > 0; n--)
        m.numbers[rng_int(0, SEQUENCES - 1)][rng_int(0, 2)] =
            rng_chance(50) ? (uint64_t)rng_int(-2, 300) : rng_u64();
    if (rng_chance(20))
        m.facts[rng_int(0, FACTS - 1)] ^= (uint64_t)1 << rng_int(0, 63);
    if (rng_chance(10))
        m.scales[rng_int(0, 1)] ^= 1;
    write_snapshot(&s, &m);
    remember_empty();
    use_written();
    if (rng_chance(30))
        damages[rng_int(0, (int64_t)(sizeof damages / sizeof *damages) - 1)]();
    if (file_load(&s) != ATTN_OK)
        CHECK(is_empty_still(), "a load that failed left something: %s", why);
    else
        for (int q = 0; q < SEQUENCES; q++)
            CHECK((uint64_t)cache.begin[q] == m.numbers[q][0] &&
                      (uint64_t)cache.end[q] == m.numbers[q][1] && cache.length[q] <= cache.rows,
                  "sequence %d: %d to %d", q, (int)cache.begin[q], (int)cache.end[q]);
}

/* Ropes that turn alike are one rope, however they are told. */
/* 100 keys, of which a ring of 20 recent rows has the last. */
static void append_pieces(void)
{
    for (int i = 0; i < 10; i++)
        append_keys(0, 10);
}

/* What only a snapshot with recent rows can say, and what caches without them say to it. */
static void test_recent(void)
{
    static const struct {
        uint64_t begin;
        const char *sentence;
    } evil[] = { { (uint64_t)-1, "begin 0, end 100, recent_begin -1" },
                 { 92, "begin 0, end 100, recent_begin 92" },
                 { (uint64_t)INT64_MAX, "recent_begin 9223372036854775807" } };
    const attn_snapshot s = file_snapshot(1, NULL, NULL);
    made_of m;
    if (!begin_case("recent rows") ||
        (with_recent = 10, with_rows = 20, !start_cache(ATTN_Q8_0, 0, 16, 0)))
        return;
    with_rows = 0;
    append_pieces();
    m = made_of_cache(&s);
    CHECK(m.numbers[0][3] == 80, "recent_begin %d", (int)m.numbers[0][3]);
    write_snapshot(&s, &m);
    CHECK(file_save(&s) == ATTN_OK && file.size == written.size &&
              memcmp(file.bytes, written.bytes, file.size) == 0,
          "the writer has other bytes");
    for (size_t i = 0; i < sizeof evil / sizeof *evil; i++) {
        m.numbers[0][3] = evil[i].begin;
        write_snapshot(&s, &m);
        use_written();
        empty_cache();
        CHECK(file_load(&s) == ATTN_ERR_DATA && strstr(why, evil[i].sentence) != NULL, "%s", why);
        append_pieces();
    }
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    empty_cache();
    with_recent = 9;
    if (start_cache(ATTN_Q8_0, 0, 16, 0))
        CHECK(file_load(&s) == ATTN_ERR_ARG && strstr(why, "recent (10) must be 9, as here"), "%s",
              why);
    with_recent = 0;
    if (start_cache(ATTN_Q8_0, 0, 16, 0))
        CHECK(file_load(&s) == ATTN_ERR_ARG &&
                  strstr(why, "recent of the cache (0), but the snapshot has recent rows"),
              "%s", why);
    append_keys(0, 10);
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    with_recent = 9;
    if (start_cache(ATTN_Q8_0, 0, 16, 0))
        CHECK(file_load(&s) == ATTN_ERR_ARG &&
                  strstr(why, "recent of the cache (9), but the snapshot has no recent rows"),
              "%s", why);
    with_recent = 0;
}

/* Another cache of i8 that may load what the file holds: all channels of a head share a scale. */
static attn_status load_with(const float *heads, int k_type, ptrdiff_t stride_dim)
{
    const attn_snapshot s = file_snapshot(1, NULL, NULL);
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = SEQUENCES;
    cache.num_layers = LAYERS;
    cache.num_heads_kv = HEADS;
    cache.head_dim = DIM;
    cache.head_dim_v = DIM_V;
    cache.capacity = CAPACITY;
    cache.page_size = 7;
    cache.k.dtype = k_type;
    cache.v.dtype = ATTN_I8;
    cache.k_scales.data = k_type == ATTN_I8 ? heads : NULL;
    cache.v_scales.data = scales;
    cache.k_scales.stride_dim = stride_dim;
    return cache_start() ? file_load(&s) : ATTN_OK;
}

/* A load compares scales, however they are shared, and storage types before them. */
static void test_scales(void)
{
    static float heads[LAYERS * HEADS * DIM];
    const attn_snapshot s = file_snapshot(1, NULL, NULL);
    if (!begin_case("scales") || !start_cache(ATTN_I8, ATTN_I8, 0, 0))
        return;
    for (int i = 0; i < LAYERS * HEADS * DIM; i++)
        scales[i] = (float)(i / DIM + 1) / 32;
    append_keys(0, 70);
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    for (int i = 0; i < LAYERS * HEADS; i++)
        heads[i] = (float)(i + 1) / 32;
    CHECK(load_with(heads, ATTN_I8, ATTN_STRIDE_BROADCAST) == ATTN_OK, "%s", why);
    heads[LAYERS * HEADS - 1] += 1;
    CHECK(load_with(heads, ATTN_I8, ATTN_STRIDE_BROADCAST) == ATTN_ERR_ARG &&
              strstr(why, "snapshot: hash of k_scales (") != NULL,
          "%s", why);
    heads[LAYERS * HEADS - 1] -= 1;
    scales[LAYERS * HEADS * DIM_V - 1] += 1;
    CHECK(load_with(heads, ATTN_I8, ATTN_STRIDE_BROADCAST) == ATTN_ERR_ARG &&
              strstr(why, "snapshot: hash of v_scales (") != NULL,
          "%s", why);
    CHECK(load_with(heads, ATTN_Q8_0, 0) == ATTN_ERR_ARG &&
              strstr(why, "snapshot: k.dtype (8) must be 5, as here") != NULL,
          "%s", why);
}

static void test_ropes(void)
{
    static float c[5000 * DIM / 2], sine[5000 * DIM / 2];
    attn_rope rope = { 0 }, table = { 0 };
    attn_snapshot s = file_snapshot(1, NULL, &rope);
    if (!begin_case("ropes") || !start_cache(ATTN_F32, ATTN_F32, 0, 0))
        return;
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    rope.base = 10000;
    rope.dim = DIM;
    CHECK(file_load(&s) == ATTN_OK, "%s", why);
    CHECK(attn_rope_table(&rope, DIM, 0, 5000, c, sine, why, WHY) == ATTN_OK, "%s", why);
    table.cos = c;
    table.sin = sine;
    table.num_positions = 5000;
    s.rope = &table;
    CHECK(file_load(&s) == ATTN_OK, "%s", why);
    table.num_positions = 100;
    CHECK(file_load(&s) == ATTN_ERR_ARG, "%s", why);
    s.rope = &rope;
    rope.base = 10000.001f;
    CHECK(file_load(&s) == ATTN_ERR_ARG && strstr(why, "hash of the angles") != NULL, "%s", why);
    rope.base = 0;
    rope.dim = DIM - 2;
    CHECK(file_load(&s) == ATTN_ERR_ARG && strstr(why, "elements turned by rope (32) must be 30"),
          "%s", why);
    rope.dim = 1;
    CHECK(file_load(&s) == ATTN_ERR_ARG && strstr(why, "dim (1) must be even"), "%s", why);
    s.rope = NULL;
    CHECK(file_load(&s) == ATTN_ERR_ARG, "%s", why);
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void both_say(const attn_snapshot *s, const char *sentence)
{
    CHECK(file_save(s) == ATTN_ERR_ARG && strstr(why, sentence) != NULL, "save: %s", why);
    CHECK(file_load(s) == ATTN_ERR_ARG && strstr(why, sentence) != NULL, "load: %s", why);
}

static void test_misuse(void)
{
    static const int32_t twice[] = { 1, 2, 1 }, beyond[] = { SEQUENCES };
    attn_snapshot s = file_snapshot(1, NULL, NULL);
    if (!begin_case("misuse"))
        return;
    memset(&cache, 0, sizeof cache);
    both_say(&s, "cache is not ready");
    if (!start_cache(ATTN_F32, ATTN_F32, 0, 0))
        return;
    CHECK(attn_cache_save(NULL, &s, why, WHY) == ATTN_ERR_ARG, "%s", why);
    CHECK(attn_cache_load(NULL, &s, NULL, 0) == ATTN_ERR_ARG, "no text");
    CHECK(attn_cache_save(&cache, NULL, why, WHY) == ATTN_ERR_ARG &&
              strcmp(why, "snapshot is NULL") == 0,
          "%s", why);
    s.batch = SEQUENCES + 1;
    both_say(&s, "batch (5) must be at most num_sequences (4)");
    s.batch = -1;
    both_say(&s, "batch (-1) must be at least 0");
    s = file_snapshot(3, twice, NULL);
    both_say(&s, "sequences[2] (1) is there twice: each may come once");
    s = file_snapshot(1, beyond, NULL);
    both_say(&s, "sequences[0] (4) must be from 0 to num_sequences - 1, 3");
    s = file_snapshot(1, NULL, NULL);
    s.write = NULL;
    CHECK(file_save(&s) == ATTN_ERR_ARG && strcmp(why, "write is NULL") == 0, "%s", why);
    s.read = NULL;
    CHECK(file_load(&s) == ATTN_ERR_ARG && strcmp(why, "read is NULL") == 0, "%s", why);
    s = file_snapshot(0, NULL, NULL);
    CHECK(file_save(&s) == ATTN_OK && file_load(&s) == ATTN_OK, "no sequence: %s", why);
}

/* Every callback fails once, and pages are too few. */
static void test_callbacks(void)
{
    const attn_snapshot s = file_snapshot(2, NULL, NULL);
    size_t whole;
    if (!begin_case("failures") || !start_cache(ATTN_BF16, ATTN_Q4_0, 16, 0))
        return;
    fill_cache();
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    whole = file.size;
    for (size_t limit = 0; limit < whole; limit += 1 + whole / 500) {
        file.at = 0;
        file.limit = limit;
        CHECK(attn_cache_save(&cache, &s, why, WHY) == ATTN_ERR_CALLBACK &&
                  strstr(why, "write failed after") != NULL,
              "%s", why);
    }
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    remember_empty();
    for (size_t limit = 0; limit < whole; limit += 1 + whole / 500) {
        file.at = 0;
        file.limit = limit;
        CHECK(attn_cache_load(&cache, &s, why, WHY) == ATTN_ERR_CALLBACK &&
                  strstr(why, "read failed after") != NULL,
              "%s", why);
        CHECK(is_empty_still(), "a load that failed left something");
    }
    append_keys(2, CAPACITY);
    append_keys(3, CAPACITY);
    while (cache.num_free > 10)
        cache.num_free--; /* as if others had them */
    num_free_before = cache.num_free;
    CHECK(file_load(&s) == ATTN_ERR_FULL && cache.num_free == num_free_before &&
              strstr(why, "num_free (") != NULL,
          "%s", why);
}

/* Made on a machine with the least significant byte first; every other must make it, too. */
static void test_golden(void)
{
    static const uint64_t golden[] = { 0xfe4e2a14df228d61, 0x227bc1b1cdbfa942, 0xce63ba802c0770c1,
                                       0x639bcff6e0899fce, 0xb1973ec28cbb6256, 0x3358a14c77734ec7,
                                       0x522d4d764eb88e81, 0x3c2d38144bdfdd55 };
    static float k[HEADS * 70 * DIM], v[HEADS * 70 * DIM_V];
    for (int dtype = 0; dtype < 8; dtype++) {
        const attn_rope rope = { .scaling = ATTN_ROPE_LINEAR, .factor = 2 };
        const attn_snapshot s = file_snapshot(1, NULL, &rope);
        attn_cache_step step = { 0 };
        if (!begin_case("golden %s", dtype_name(dtype)) || !start_cache(dtype, dtype, 0, 0))
            continue;
        for (int i = 0; i < HEADS * 70 * DIM; i++)
            k[i] = (float)(i * 37 % 1000) / 512 - 0.875f;
        for (int i = 0; i < HEADS * 70 * DIM_V; i++)
            v[i] = (float)(i * 59 % 1000) / 512 - 0.875f;
        step.batch = 1;
        step.seq_len = 70;
        step.k.data = k;
        step.v.data = v;
        step.rope = &rope;
        CHECK(attn_cache_extend(&cache, &step, why, WHY) == ATTN_OK, "%s", why);
        for (int64_t layer = 0; layer < LAYERS; layer++)
            CHECK(attn_cache_write(&cache, layer, &step, why, WHY) == ATTN_OK, "%s", why);
        CHECK(file_save(&s) == ATTN_OK, "%s", why);
        if (CHECK(file.size > 8, "empty")) {
            uint64_t last = 0;
            for (int i = 1; i <= 8; i++)
                last = last << 8 | file.bytes[file.size - (size_t)i];
            CHECK(last == golden[dtype], "%s: the last hash is 0x%016llx", dtype_name(dtype),
                  (unsigned long long)last);
        }
    }
}

TEST_GROUP(snapshot, RUN_ONCE, "snapshots of caches: bytes, damage, strangers, every misuse")
{
    test_bytes();
    with_mean = 0;
    test_golden();
    test_ropes();
    test_misuse();
    test_strangers();
    test_callbacks();
    test_damages();
    test_recent();
    test_scales();
}
