/* src/listed.c - the keys that p.key_list names for a row.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "fields.c"

/* A key_numbers is a list of keys, ascending. */
typedef struct key_numbers {
    const int32_t *at; /* NULL means that there is none, and all keys count. */
    int64_t count;
} key_numbers;

/* first_listed gives the place of the first number of a list that is j or more; behind the last it is
 * the count. What fills a list up is unsigned more than any key. */
static int64_t first_listed(key_numbers list, int64_t j)
{
    int64_t lo = 0, hi = list.count;
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if ((uint32_t)list.at[middle] < j)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* whole_list gives the list for row i with what fills it up. */
static key_numbers whole_list(const attn_params *p, int64_t b, int64_t kv_head, int64_t i)
{
    const attn_key_list *x = &p->key_list;
    const key_numbers list = { x->data + b * x->stride_batch + kv_head * x->stride_head +
                                   i / rows_of_list(p) * x->stride_seq,
                               x->width };
    return list;
}

/* listed_for gives the list for row i without what fills it up. */
static key_numbers listed_for(const attn_params *p, int64_t b, int64_t kv_head, int64_t i)
{
    key_numbers list = whole_list(p, b, kv_head, i);
    list.count = first_listed(list, (int64_t)1 << 31);
    return list;
}
