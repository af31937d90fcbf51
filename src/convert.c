/* src/convert.c - arrays of one storage type become arrays of another.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "storage.c"

static int is_dtype(int dtype)
{
    return dtype >= 0 && dtype <= LAST_DTYPE;
}

ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n)
{
    size_t i;
    if (!is_dtype(dst_dtype) || !is_dtype(src_dtype) || n > PTRDIFF_MAX / sizeof(float))
        return ATTN_ERR_ARG;
    if (n && (!dst || !src))
        return ATTN_ERR_ARG;
    for (i = 0; i < n; i++)
        storages[dst_dtype].store(dst, (int64_t)i, storages[src_dtype].load(src, (int64_t)i));
    return ATTN_OK;
}
