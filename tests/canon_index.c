/* canon_index.c - lists of keys by index scores: the second implementation of docs/canon.md, "Index scores".
 * SPDX-License-Identifier: MIT
 */
#include "canon.h"

#include <string.h>

/* The scores of a row and a key head; `out` is of the last of its query heads. */
typedef struct list {
    row last;
    f32 sum[MAX_KEYS];
    char taken[MAX_KEYS];
} list;

static void add_head(list *l, const bits_case *c, int b, int h, int i)
{
    static f32 x[MAX_KEYS];
    const f32 weight = bits_weight(c, (uint32_t)((b * c->sq + i) * c->hq + h));
    int j;
    score_row(&l->last, c, b, h, i, x);
    for (j = 0; j < l->last.keys; j++) {
        if (!l->last.alive[j])
            continue;
        if (!c->linear && less(x[j], 0))
            x[j] = 0;
        l->sum[j] = add(l->sum[j], mul(weight, x[j]));
    }
}

/* The key of the largest sum that is not taken, the lower of equals; -1 = none is left. */
static int best_key(const list *l)
{
    int j, best = -1;
    for (j = 0; j < l->last.keys; j++)
        if (l->last.alive[j] && !l->taken[j] && (best < 0 || less(l->sum[best], l->sum[j])))
            best = j;
    return best;
}

static void put_list(list *l, int top, index_hashes *out)
{
    int n, j;
    for (n = 0; n < top && (j = best_key(l)) >= 0; n++)
        l->taken[j] = 1;
    for (j = 0; j < l->last.keys; j++)
        if (l->taken[j]) {
            feed(&out->keys, (uint32_t)j, 4);
            feed(&out->scores, l->sum[j], 4);
        }
    for (; n < top; n++) {
        feed(&out->keys, 0xffffffffu, 4);
        feed(&out->scores, MINUS_INF, 4);
    }
}

index_hashes index_of_case(const bits_case *c)
{
    static list l;
    const int group = c->hq / c->hkv;
    index_hashes out = { EMPTY_HASH, EMPTY_HASH };
    int b, g, h, i;
    for (b = 0; b < bits_batch(c); b++)
        for (g = 0; g < c->hkv; g++)
            for (i = 0; i < bits_q_len(c, b); i++) {
                memset(&l, 0, sizeof l);
                for (h = g * group; h < (g + 1) * group; h++)
                    add_head(&l, c, b, h, i);
                put_list(&l, c->top, &out);
            }
    return out;
}
