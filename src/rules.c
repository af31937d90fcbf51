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

/* check_range says "name (value) must be at least / at most / the only value". */
static inline attn_status check_range(text *why, const char *name, int64_t least, int64_t most,
                                      int64_t value)
{
    const int low = value < least;
    if (!low && value <= most)
        return ATTN_OK;
    put_field(why, name, value);
    put(why, least == most ? " must be " : low ? " must be at least " : " must be at most ");
    put_int(why, low ? least : most);
    return !low && most == MOST ? ATTN_ERR_OVERFLOW : ATTN_ERR_ARG;
}

/* number_at reads an int or an int64_t, as `bytes` tells. */
static inline int64_t number_at(const void *at, size_t bytes)
{
    int64_t number;
    int as_int;
    if (bytes == sizeof number) {
        memcpy(&number, at, sizeof number);
        return number;
    }
    memcpy(&as_int, at, sizeof as_int);
    return as_int;
}

static inline attn_status check_members(const void *base, const size_rule *rules, int n,
                                        size_t bytes, text *why)
{
    attn_status status = ATTN_OK;
    int r;
    for (r = 0; r < n && !status; r++)
        status = check_range(why, rules[r].name, rules[r].least, rules[r].most,
                             number_at((const char *)base + rules[r].offset, bytes));
    return status;
}

/* Fields lie at their offsets from `base`: int64_t in check_counts, int in check_enums. */
static inline attn_status check_counts(const void *base, const size_rule *rules, int n, text *why)
{
    return check_members(base, rules, n, sizeof(int64_t), why);
}

static inline attn_status check_enums(const void *base, const size_rule *rules, int n, text *why)
{
    return check_members(base, rules, n, sizeof(int), why);
}

static const char *const stride_names[] = { ".stride_batch", ".stride_head", ".stride_seq" };

/* check_output_stride looks at a stride of an output as it was given. */
static inline attn_status check_output_stride(const char *name, const char *stride_name,
                                              ptrdiff_t stride, text *why)
{
    if (stride != ATTN_STRIDE_BROADCAST)
        return ATTN_OK;
    put(why, name);
    put(why, stride_name);
    return bad(why, ATTN_ERR_ARG,
               " (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride: no rows share it");
}

/* bad_limit says "name[b] (value) must be from 0 to most". */
COLD static attn_status bad_limit(text *why, const char *name, int64_t b, int64_t value,
                                  int64_t most)
{
    bad_entry(why, name, b, value, " must be from 0 to ");
    if (most > INT32_MAX) /* MOST_KEY_BASE reads better so. */
        put_numbers(why, "2^#", NUMBERS(log2_up(most)));
    else
        put_int(why, most);
    return ATTN_ERR_ARG;
}

static inline attn_status check_cu_seqlens(const char *name, const int32_t *cu, int64_t batch,
                                           int64_t rows, text *why)
{
    int64_t b;
    if (cu && cu[0] < 0)
        return bad_entry(why, name, 0, cu[0], " must be at least 0");
    for (b = 0; cu && b < batch; b++)
        if (cu[b + 1] < cu[b])
            return bad_after(why, name, b + 1, cu[b + 1], " is below the entry before it", cu[b]);
    if (cu && cu[batch] > rows) { /* of the tensor */
        bad_entry(why, name, batch, cu[batch], " exceeds seq_len");
        put_field(why, name + strlen("cu_seqlens"), rows);
        return ATTN_ERR_ARG;
    }
    return ATTN_OK;
}

/* check_bytes wants an array of four axes to lie within the address space. */
static inline attn_status check_bytes(const char *name, int64_t bytes, const int64_t count[4],
                                      text *why)
{
    if (bytes < ADDRESS_LIMIT)
        return ATTN_OK;
    put(why, name);
    return bad_numbers(why, ATTN_ERR_OVERFLOW,
                       ": batch (#) x heads (#) x rows (#) x columns (#) with its strides exceeds "
                       "the address space",
                       count);
}

static inline attn_status check_extent(const char *name, int64_t bytes_each, int64_t batch,
                                       int64_t heads, int64_t rows, int64_t columns,
                                       const ptrdiff_t stride[4], text *why)
{
    const int64_t count[4] = { batch, heads, rows, columns };
    return check_bytes(name, times(extent(count, stride), bytes_each), count, why);
}
