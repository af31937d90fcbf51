/* bits_index.c - golden hashes of attn_index: lists and scores, however a call is divided.
 * SPDX-License-Identifier: MIT
 */
#include "bits.h"

#include <string.h>

typedef struct index_fixture {
    fixture f;
    float *weights; /* [batch, sq, hq] */
    int32_t *keys;  /* [batch, hkv, sq, top] */
    float *scores;  /* as keys */
    const golden_index *want;
} index_fixture;

static size_t entries_of(const index_fixture *x)
{
    const bits_case *c = x->f.c;
    return (size_t)(x->f.batch * c->hkv * c->sq * c->top);
}

static void spoil(index_fixture *x)
{
    memset(x->keys, 0x77, entries_of(x) * 4);
    memset(x->scores, 0x77, entries_of(x) * 4);
}

static void make_index(index_fixture *x, const bits_case *c, const golden_index *want)
{
    make_fixture(&x->f, c);
    x->weights = make_input(c, x->f.batch * c->sq * c->hq, 4, bits_weight);
    x->keys = test_alloc(entries_of(x) * 4);
    x->scores = test_alloc(entries_of(x) * 4);
    x->want = want;
    spoil(x);
}

static void check_lists(index_fixture *x, const char *how, int number)
{
    const bits_case *c = x->f.c;
    uint64_t keys = EMPTY_HASH, scores = EMPTY_HASH;
    for (int b = 0; b < x->f.batch; b++)
        for (int g = 0; g < c->hkv; g++)
            for (int i = 0; i < bits_q_len(c, b); i++)
                for (int n = 0; n < c->top; n++) {
                    const int at = ((b * c->hkv + g) * c->sq + i) * c->top + n;
                    feed(&keys, x->keys, (size_t)at, 4);
                    feed(&scores, x->scores, (size_t)at, 4);
                }
    CHECK(keys == x->want->keys && scores == x->want->scores, "%s %d: %s not of golden.h", how,
          number, keys == x->want->keys ? "scores are" : "lists are");
    spoil(x);
}

/* What attn_index does not take is of no use to its scores. */
static attn_params params_of(const index_fixture *x, const piece *w, arrays *a)
{
    const attn_tensor none = { 0, 0, 0, 0, NULL };
    const attn_params p = piece_params(&x->f, w, a);
    attn_params s = test_params(&p);
    s.impl = ATTN_IMPL_DEFAULT;
    s.head_dim_v = 0;
    s.v = none;
    s.rotated &= ATTN_ROTATED_K;
    return s;
}

/* Rows i to i + rows - 1, whose lists go to their place in the whole. */
static void run_rows(index_fixture *x, const attn_params *how, int i, int rows)
{
    const bits_case *c = x->f.c;
    const piece w = { 0, x->f.batch, i, rows, 0, c->skv, rows == c->sq };
    const int mark = test_mark(), at = i * c->top;
    attn_indexer to = { .activation = c->linear ? ATTN_INDEX_LINEAR : ATTN_INDEX_RELU,
                        .top_k = c->top };
    arrays a;
    attn_params s = params_of(x, &w, &a);
    attn_status status;
    char why[200] = "";
    size_t need = 0;
    void *workspace;
    to.weights = x->weights + i * c->hq;
    to.weights_stride_batch = (ptrdiff_t)c->sq * c->hq;
    to.keys = x->keys + at;
    to.scores = x->scores + at;
    to.stride_head = (ptrdiff_t)c->sq * c->top;
    to.stride_batch = to.stride_head * c->hkv;
    s.tile_keys = how->tile_keys;
    s.num_workers = how->num_workers;
    s.parallel_for = how->parallel_for;
    s.parallel_user = &s.num_workers;
    status = attn_index_workspace_size(&s, &to, &need);
    workspace = test_alloc(need);
    if (status == ATTN_OK)
        status = attn_index(&s, &to, workspace, need);
    CHECK(status == ATTN_OK, "%s", attn_index_check(&s, &to, workspace, need, why, sizeof why));
    test_release_to(mark);
}

static void check_case(index_fixture *x, int quick)
{
    static const int tiles[] = { 16, 64, 1024 }, workers[] = { 2, 7 };
    const int rows = x->f.c->sq;
    attn_params how = { 0 };
    run_rows(x, &how, 0, rows);
    check_lists(x, "whole", 0);
    if (quick)
        return;
    for (size_t n = 0; n < sizeof tiles / sizeof *tiles; n++) {
        how.tile_keys = tiles[n];
        run_rows(x, &how, 0, rows);
        check_lists(x, "tile of keys:", tiles[n]);
    }
    how.tile_keys = 0;
    how.parallel_for = shuffled;
    for (size_t n = 0; n < sizeof workers / sizeof *workers; n++) {
        how.num_workers = workers[n];
        run_rows(x, &how, 0, rows);
        check_lists(x, "shuffled workers:", workers[n]);
    }
    memset(&how, 0, sizeof how);
    for (int i = 0; i < rows; i++)
        run_rows(x, &how, i, 1);
    check_lists(x, "rows at a time:", 1);
}

void check_index(int quick)
{
    const int known = (int)(sizeof golden_indices / sizeof *golden_indices);
    CHECK(known == BITS_INDEX_CASES, "golden.h has %d indices, bits_data.h %d", known,
          BITS_INDEX_CASES);
    for (int n = 0; n < BITS_INDEX_CASES && n < known; n++) {
        const golden_index *want = &golden_indices[n];
        index_fixture x;
        if (!begin_case("index, %s", bits_index_cases[n].name))
            continue;
        if (T.backend) {
            SKIP("devices have no attn_index");
            continue;
        }
        if (!CHECK(strcmp(want->name, bits_index_cases[n].name) == 0, "golden: %s", want->name))
            continue;
        make_index(&x, &bits_index_cases[n], want);
        check_case(&x, quick == ONCE);
    }
}
