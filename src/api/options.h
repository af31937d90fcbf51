/* src/api/options.h - for people: attn_info as lines, options of a command line.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "explain.h"

/* *info as readable lines; truncates; returns text. */
ATTN_API const char *attn_info_format(const attn_info *info, char *text, size_t text_bytes);

/* Overrides fields by name: "impl=naive kernels=portable workers=3 tile_keys=64 redo=1
 * naive_whole=1 auto_naive_keys=256", separated by spaces or commas. For command lines and
 * environment variables of the caller: the library reads no environment. On error *p is unchanged
 * and why (may be NULL) holds a sentence. */
ATTN_API attn_status attn_params_from_string(attn_params *p, const char *text, char *why,
                                             size_t why_bytes);
