/* patterns.c - block-sparse patterns against their definition.
 * SPDX-License-Identifier: MIT
 *
 * The definition finds the diagonal position by position, and says of every single cell whether a
 * part shows it.
 */
#include "../attn.h"
#include "laws.h"
#include "test.h"

#include <string.h>

enum { ROUNDS = 1500, CALLS = 200 };

static attn_pattern random_pattern(void)
{
    static const int64_t sizes[] = { 0, 1, 2, 3, 7, 16, 64 };
    attn_pattern t;
    memset(&t, 0, sizeof t);
    t.seq_len_q = rng_int(0, 150);
    t.seq_len_kv = rng_chance(50) ? t.seq_len_q : rng_int(0, 150);
    t.block_q = RNG_PICK(sizes);
    t.block_k = RNG_PICK(sizes);
    t.causal = rng_chance(50);
    t.num_heads = rng_chance(30) ? rng_int(1, 3) : 0;
    t.local = rng_chance(50);
    t.local_before = rng_int(0, 4);
    t.local_after = rng_int(0, 4);
    t.global_columns = rng_chance(40) ? rng_int(1, 3) : 0;
    t.global_rows = rng_chance(40) ? rng_int(1, 3) : 0;
    t.stride = rng_chance(30) ? rng_int(1, 6) : 0;
    t.fixed = rng_chance(30) ? rng_int(1, 6) : 0;
    t.random = rng_chance(50) ? rng_int(1, 5) : 0;
    t.seed = rng_u64();
    return t;
}

static int64_t size_or(int64_t size)
{
    return size != 0 ? size : 64;
}

/* Of a row of cells: by positions one by one. */
typedef struct band {
    int64_t first, last; /* columns of its rows' positions, which may be before the first key */
    int64_t latest;      /* position */
} band;

static band band_of(const attn_pattern *t, int64_t row)
{
    const int64_t size = size_or(t->block_q), cell = size_or(t->block_k);
    band at = { 1000000, -1000000, 0 };
    for (int64_t i = row * size; i < (row + 1) * size && i < t->seq_len_q; i++) {
        const int64_t position = i + t->seq_len_kv - t->seq_len_q;
        int64_t column = 0;
        while (column * cell > position)
            column--;
        while ((column + 1) * cell <= position)
            column++;
        at.first = column < at.first ? column : at.first;
        at.last = column > at.last ? column : at.last;
        at.latest = position;
    }
    return at;
}

static int in_future(const attn_pattern *t, const band *at, int64_t column)
{
    return t->causal && column * size_or(t->block_k) > at->latest;
}

static int expected(const attn_pattern *t, const band *at, int64_t row, int64_t column)
{
    int shown = row < t->global_rows || column < t->global_columns;
    if (in_future(t, at, column))
        return 0;
    for (int64_t middle = at->first; middle <= at->last; middle++) { /* of the diagonal */
        shown |=
            t->local && column >= middle - t->local_before && column <= middle + t->local_after;
        shown |= t->stride != 0 && column == middle;
    }
    if (t->stride != 0 && column > at->last)
        shown |= (column - at->last) % t->stride == 0;
    if (t->stride != 0 && column < at->first)
        shown |= (at->first - column) % t->stride == 0;
    for (int64_t c = t->fixed - 1; t->fixed != 0 && c <= column; c += t->fixed)
        shown |= c == column;
    return shown;
}

/* What a row of the built pattern holds: ascending columns, all that is expected, and as many more
 * as random says or as there are. */
static int check_row(const attn_pattern *t, int64_t row, int64_t columns, const int32_t *from,
                     int64_t count)
{
    const band at = band_of(t, row);
    int64_t n = 0, extra = 0, candidates = 0;
    for (int64_t column = 0; column < columns; column++) {
        const int shown = expected(t, &at, row, column);
        const int built = n < count && from[n] == column;
        n += built;
        if (!CHECK(built || !shown, "row %lld, column %lld is missing", (long long)row,
                   (long long)column) ||
            !CHECK(!built || !in_future(t, &at, column), "row %lld, column %lld: the future",
                   (long long)row, (long long)column))
            return 0;
        extra += built && !shown;
        candidates += !shown && !in_future(t, &at, column);
    }
    return CHECK(n == count, "columns of row %lld do not ascend", (long long)row) &&
           CHECK(extra == (candidates < t->random ? candidates : t->random),
                 "row %lld has %lld random cells of %lld", (long long)row, (long long)extra,
                 (long long)candidates);
}

typedef struct built {
    attn_pattern_info info;
    int32_t *offsets, *columns;
} built;

static int build(const attn_pattern *t, built *b)
{
    char why[200] = "";
    attn_status status = attn_pattern_measure(t, &b->info, why, sizeof why);
    if (!CHECK(status == ATTN_OK, "%s", why))
        return 0;
    b->offsets = test_alloc((size_t)b->info.num_offsets * sizeof(int32_t));
    b->columns = test_alloc((size_t)b->info.num_columns * sizeof(int32_t));
    status = attn_pattern_build(t, b->offsets, b->info.num_offsets, b->columns, b->info.num_columns,
                                why, sizeof why);
    return CHECK(status == ATTN_OK && test_margins() == 0, "%s", why);
}

static void run_definition(void)
{
    for (int n = 0; n < ROUNDS; n++) {
        attn_pattern t;
        built b;
        int64_t visible = 0;
        if (!begin_case("definition, %d", n))
            continue;
        t = random_pattern();
        if (!build(&t, &b))
            continue;
        CHECK(b.info.rows == (t.seq_len_q + size_or(t.block_q) - 1) / size_or(t.block_q) &&
                  b.info.columns == (t.seq_len_kv + size_or(t.block_k) - 1) / size_or(t.block_k),
              "%lld x %lld cells", (long long)b.info.rows, (long long)b.info.columns);
        for (int64_t h = 0; h < b.info.heads; h++)
            for (int64_t row = 0; row < b.info.rows; row++) {
                const int32_t *at = b.offsets + h * (b.info.rows + 1) + row;
                if (!CHECK(at[0] == visible, "offsets") ||
                    !check_row(&t, row, b.info.columns, b.columns + at[0], at[1] - at[0]))
                    break;
                visible = at[1];
            }
        CHECK(visible == b.info.num_columns, "entries");
        if (b.info.rows * b.info.columns > 0)
            CHECK(b.info.density * (double)(b.info.heads * b.info.rows * b.info.columns) -
                          (double)visible <
                      0.5,
                  "density %g", b.info.density);
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void show_pairs(const attn_pattern *t, const built *b, int64_t heads, uint8_t *shown)
{
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < t->seq_len_q; i++) {
            const int64_t pattern = t->num_heads != 0 ? h : 0;
            const int32_t *at = b->offsets + pattern * (b->info.rows + 1) + i / size_or(t->block_q);
            for (int32_t c = at[0]; c < at[1]; c++)
                for (int64_t x = 0; x < size_or(t->block_k); x++) {
                    const int64_t j = b->columns[c] * size_or(t->block_k) + x;
                    if (j < t->seq_len_kv)
                        shown[(h * t->seq_len_q + i) * t->seq_len_kv + j] = 1;
                }
        }
}

/* attn_forward with the pattern, and with one byte a pair. */
static void run_calls(void)
{
    for (int n = 0; n < CALLS; n++) {
        attn_pattern t;
        built b;
        test_problem cells, pairs;
        test_shape s;
        uint8_t *shown;
        if (!begin_case("calls, %d", n))
            continue;
        do
            t = random_pattern();
        while (t.seq_len_q == 0 || t.seq_len_kv == 0);
        memset(&s, 0, sizeof s);
        s.batch = 1;
        s.heads_q = s.heads_kv = t.num_heads != 0 ? t.num_heads : rng_int(1, 2);
        s.seq_q = t.seq_len_q, s.seq_kv = t.seq_len_kv;
        s.dim = rng_int(1, 12);
        if (!build(&t, &b))
            continue;
        problem_make(&cells, &s);
        cells.p.causal = t.causal;
        twin(&cells, &pairs);
        shown = test_alloc((size_t)(s.heads_q * s.seq_q * s.seq_kv));
        memset(shown, 0, (size_t)(s.heads_q * s.seq_q * s.seq_kv));
        show_pairs(&t, &b, s.heads_q, shown);
        as_bool(&pairs.p, shown);
        CHECK(attn_pattern_use(&t, b.offsets, b.columns, &cells.p) == ATTN_OK, "refused");
        if (problem_run(&cells) && problem_run(&pairs))
            CHECK(problem_same_bits(&cells, &pairs), "the pattern is not its pairs");
    }
}

/* ---- presets, heads, seeds, errors ----------------------------------------------------------- */

static int64_t entries(const attn_pattern *preset, int64_t cells, int causal)
{
    attn_pattern t = *preset;
    attn_pattern_info info;
    t.seq_len_q = t.seq_len_kv = cells * 64 - 5;
    t.causal = causal;
    return attn_pattern_measure(&t, &info, NULL, 0) == ATTN_OK ? info.num_columns : -1;
}

static void run_presets(void)
{
    attn_pattern t;
    if (!begin_case("presets"))
        return;
    t = attn_pattern_longformer(1, 1); /* 10 rows: 3 a row but at the ends, 19 of the first */
    CHECK(entries(&t, 10, 0) == 28 + 16, "%lld", (long long)entries(&t, 10, 0));
    t = attn_pattern_strided(4); /* 4 a row, and every fourth behind and before */
    CHECK(entries(&t, 8, 1) == 1 + 2 + 3 + 4 + 5 + 5 + 5 + 5, "%lld", (long long)entries(&t, 8, 1));
    t = attn_pattern_random(2, 7);
    CHECK(entries(&t, 9, 0) == 27, "%lld", (long long)entries(&t, 9, 0));
    CHECK(entries(&t, 9, 1) == 1 + 2 + 7 * 3, "%lld", (long long)entries(&t, 9, 1));
    t = attn_pattern_bigbird(3, 2, 3, 7);
    CHECK(t.local_before == 1 && t.local_after == 1, "window");
    /* rows 0 and 1 see all, row 2 finds half of its window global, the last one has no after */
    CHECK(entries(&t, 20, 0) == 2 * 20 + 7 + 16 * (2 + 3 + 3) + 7, "%lld",
          (long long)entries(&t, 20, 0));
}

static void run_heads(void)
{
    attn_pattern t = attn_pattern_random(3, 11), same;
    built a, b;
    if (!begin_case("heads and seeds"))
        return;
    t.seq_len_q = t.seq_len_kv = 40 * 64;
    t.num_heads = 2;
    if (!build(&t, &a))
        return;
    CHECK(a.info.heads == 2 && a.info.num_columns == 2 * 40 * 4, "sizes");
    CHECK(memcmp(a.columns, a.columns + 160, 160 * sizeof(int32_t)) != 0, "heads draw alike");
    same = t;
    same.num_heads = 0;
    if (build(&same, &b))
        CHECK(memcmp(a.columns, b.columns, 160 * sizeof(int32_t)) == 0, "head 0 draws anew");
    same.seed = 12;
    if (build(&same, &b))
        CHECK(memcmp(a.columns, b.columns, 160 * sizeof(int32_t)) != 0, "the seed does nothing");
    CHECK(a.columns[0] == 0 && a.offsets[1] == 4, "row 0");
}

/* Every candidate is drawn about equally often. */
static void run_even(void)
{
    attn_pattern t = attn_pattern_random(5, 99);
    built b;
    int count[50] = { 0 };
    if (!begin_case("random cells are spread evenly"))
        return;
    t.local = 0;
    t.seq_len_q = 4000, t.seq_len_kv = 50;
    t.block_q = t.block_k = 1;
    if (!build(&t, &b))
        return;
    for (int64_t n = 0; n < b.info.num_columns; n++)
        count[b.columns[n]]++;
    for (int c = 0; c < 50; c++) /* 400 expected, deviation 19 */
        CHECK(count[c] > 300 && count[c] < 500, "column %d: %d times", c, count[c]);
}

static void refused_preset(attn_pattern t, const char *sentence)
{
    attn_pattern_info info;
    char why[200];
    CHECK(attn_pattern_measure(&t, &info, why, sizeof why) == ATTN_ERR_ARG &&
              strcmp(why, sentence) == 0,
          "%s", why);
}

static void run_errors(void)
{
    attn_pattern t = attn_pattern_longformer(1, 1);
    attn_pattern_info info;
    attn_params p;
    int32_t offsets[4], columns[4];
    char why[200];
    if (!begin_case("errors"))
        return;
    t.seq_len_q = t.seq_len_kv = 100;
    memset(columns, 0x55, sizeof columns);
    CHECK(attn_pattern_measure(&t, NULL, why, sizeof why) == ATTN_ERR_ARG &&
              strcmp(why, "info is NULL") == 0,
          "%s", why);
    CHECK(attn_pattern_measure(NULL, &info, why, sizeof why) == ATTN_ERR_ARG &&
              strcmp(why, "pattern is NULL") == 0,
          "%s", why);
    CHECK(attn_pattern_build(&t, offsets, 2, columns, 4, why, sizeof why) == ATTN_ERR_WORKSPACE &&
              strcmp(why, "num_offsets (2) must be at least 3; attn_pattern_measure says how "
                          "many") == 0,
          "%s", why);
    CHECK(attn_pattern_build(&t, offsets, 4, columns, 3, why, sizeof why) == ATTN_ERR_WORKSPACE &&
              strcmp(why, "num_columns (3) must be at least 4; attn_pattern_measure says how "
                          "many") == 0,
          "%s", why);
    CHECK(columns[0] == 0x55555555, "written");
    t.stride = -1;
    CHECK(attn_pattern_measure(&t, &info, why, sizeof why) == ATTN_ERR_ARG &&
              strcmp(why, "stride (-1) must be at least 0") == 0,
          "%s", why);
    memset(&p, 0, sizeof p);
    CHECK(attn_pattern_use(&t, offsets, columns, &p) == ATTN_ERR_ARG, "used");
    refused_preset(attn_pattern_strided(0), "local_before (-1) must be at least 0");
    refused_preset(attn_pattern_strided(INT64_MIN), "local_before (-1) must be at least 0");
    refused_preset(attn_pattern_bigbird(0, 1, 1, 7), "local_after (-1) must be at least 0");
    refused_preset(attn_pattern_bigbird(-1, 1, 1, 7), "local_after (-1) must be at least 0");
    t.stride = 0;
    CHECK(attn_pattern_use(&t, NULL, columns, &p) == ATTN_ERR_ARG, "used");
    p.num_heads_q = 2;
    p.seq_len_q = t.seq_len_q;
    p.seq_len_kv = t.seq_len_kv;
    CHECK(attn_pattern_use(&t, offsets, columns, &p) == ATTN_OK, "refused");
    p.seq_len_q++;
    CHECK(attn_pattern_use(&t, offsets, columns, &p) == ATTN_ERR_ARG, "rows of another length");
    p.seq_len_q--;
    p.seq_len_kv++;
    CHECK(attn_pattern_use(&t, offsets, columns, &p) == ATTN_ERR_ARG, "keys of another length");
    p.seq_len_kv--;
    t.num_heads = 3;
    CHECK(attn_pattern_use(&t, offsets, columns, &p) == ATTN_ERR_ARG, "other heads");
    t.num_heads = 8;
    t.block_q = 1;
    t.seq_len_q = ((int64_t)1 << 29) - 1; /* the most that 32-bit programs take */
    CHECK(attn_pattern_measure(&t, &info, why, sizeof why) == ATTN_ERR_OVERFLOW &&
              strcmp(why, "the pattern has more cells than int32_t counts") == 0,
          "%s", why);
}

TEST_GROUP(patterns, RUN_ONCE, "block-sparse patterns against their definition")
{
    run_definition();
    run_calls();
    run_presets();
    run_heads();
    run_even();
    run_errors();
}
