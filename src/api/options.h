/* src/api/options.h - how people read and write a call: attn_info as lines, options as words.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "explain.h"

/* attn_info_format() writes *info as readable lines and returns text. It writes at most text_bytes
 * bytes, including the terminator, and truncates what is longer. */
ATTN_API const char *attn_info_format(const attn_info *info, char *text, size_t text_bytes);

/* attn_params_from_string() overrides fields of *p by name.
 *
 * This text has all the names: "impl=naive kernels=portable workers=3 tile_keys=64 redo=1
 * naive_whole=1 auto_naive_keys=256". Spaces or commas separate them. The caller may take the text
 * from a command line or an environment variable; the library itself reads no environment. Returns
 * ATTN_ERR_ARG if a name is unknown, a value cannot be read or p or text is NULL; *p is then unchanged.
 * Whether a call takes the value, attn_check says. */
ATTN_API attn_status attn_params_from_string(attn_params *p, const char *text, char *why,
                                             size_t why_bytes);
