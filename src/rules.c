/* src/rules.c - rules about fields as data: ranges of counts and enums, strides, lengths, extents.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "sizes.c"
#include "text.c"

typedef struct size_rule {
    const char *name;
    size_t offset;
    int64_t least, most;
} size_rule;

/* bad_range says "name (value) must be at least / at most / the only value". */
static inline attn_status bad_range(text *why, const char *name, int64_t least, int64_t most,
                                    int64_t value)
{
    const int low = value < least;
    put_field(why, name, value);
    put(why, least == most ? " must be " : low ? " must be at least " : " must be at most ");
    put_int(why, low ? least : most);
    return !low && most == MOST ? ATTN_ERR_OVERFLOW : ATTN_ERR_ARG;
}

/* Fields lie at their offsets from `base`: int64_t in check_counts, int in check_enums. */
static inline attn_status check_counts(const void *base, const size_rule *rules, int n, text *why)
{
    int r;
    for (r = 0; r < n; r++) {
        int64_t value;
        memcpy(&value, (const char *)base + rules[r].offset, sizeof value);
        if (value < rules[r].least || value > rules[r].most)
            return bad_range(why, rules[r].name, rules[r].least, rules[r].most, value);
    }
    return ATTN_OK;
}

static inline attn_status check_enums(const void *base, const size_rule *rules, int n, text *why)
{
    int r;
    for (r = 0; r < n; r++) {
        int value;
        memcpy(&value, (const char *)base + rules[r].offset, sizeof value);
        if (value < rules[r].least || value > rules[r].most)
            return bad_range(why, rules[r].name, rules[r].least, rules[r].most, value);
    }
    return ATTN_OK;
}

/* check_output_stride looks at a stride of an output as it was given. */
static inline attn_status check_output_stride(const char *name, const char *stride_name,
                                              ptrdiff_t stride, text *why)
{
    if (stride != ATTN_STRIDE_BROADCAST)
        return ATTN_OK;
    put(why, name);
    put(why, stride_name);
    return bad(why, ATTN_ERR_ARG,
               " (ATTN_STRIDE_BROADCAST) of an output must be 0 (packed) or a stride");
}

static inline attn_status check_cu_seqlens(const char *name, const int32_t *cu, int64_t batch,
                                           int64_t rows, text *why)
{
    int64_t b;
    if (cu && cu[0] < 0)
        return bad_entry(why, name, 0, cu[0], " must be at least 0");
    for (b = 0; cu && b < batch; b++)
        if (cu[b + 1] < cu[b])
            return bad_entry(why, name, b + 1, cu[b + 1], " is below the entry before it");
    if (cu && cu[batch] > rows) {
        bad_entry(why, name, batch, cu[batch], " exceeds the rows of the tensor (");
        put_int(why, rows);
        put(why, ")");
        return ATTN_ERR_ARG;
    }
    return ATTN_OK;
}

static inline attn_status check_extent(const char *name, int64_t bytes_each, int64_t batch,
                                       int64_t heads, int64_t rows, int64_t columns,
                                       const ptrdiff_t stride[4], text *why)
{
    int64_t count[4];
    count[0] = batch;
    count[1] = heads;
    count[2] = rows;
    count[3] = columns;
    if (times(extent(count, stride), bytes_each) < ADDRESS_LIMIT)
        return ATTN_OK;
    put(why, name);
    put(why, ": ");
    put_field(why, "batch", batch);
    put(why, " x ");
    put_field(why, "heads", heads);
    put(why, " x ");
    put_field(why, "rows", rows);
    put(why, " x ");
    put_field(why, "columns", columns);
    put(why, " with its strides exceeds the address space");
    return ATTN_ERR_OVERFLOW;
}
