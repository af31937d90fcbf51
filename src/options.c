/* src/options.c - for people: attn_info as lines, options of a command line.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "api/options.h"
#include "forward.c"

static void put_line(text *t, const char *label, const char *value)
{
    put(t, label);
    put(t, value);
    put(t, "\n");
}

static void put_count_line(text *t, const char *label, double value)
{
    put(t, label);
    put_int(t, value < 9e18 ? (int64_t)value : INT64_MAX);
    put(t, "\n");
}

ATTN_API const char *attn_info_format(const attn_info *info, char *buffer, size_t bytes)
{
    text t = text_in(buffer, bytes);
    if (!info)
        return "";
    put_line(&t, "impl              ", info->impl_name);
    put_line(&t, "kernels           ", info->kernels_name);
    put_line(&t, "backend           ", info->backend_name);
    put_count_line(&t, "tile rows         ", info->tile_rows);
    put_count_line(&t, "tile keys         ", info->tile_keys);
    put_count_line(&t, "workers           ", info->workers);
    put_count_line(&t, "items             ", (double)info->items);
    put_count_line(&t, "key parts         ", info->key_parts);
    put_count_line(&t, "workspace bytes   ", (double)info->workspace_bytes);
    put_count_line(&t, "  of each worker  ", (double)info->workspace_bytes_per_worker);
    put_count_line(&t, "visible pairs     ", info->pairs);
    put_count_line(&t, "flops             ", info->flops);
    put_count_line(&t, "tensor bytes      ", info->bytes);
    put_line(&t, "why               ", info->reasons);
    return buffer && bytes ? buffer : "";
}

/* ---- options as text */

static const struct number_option {
    const char *name;
    member field;
    int64_t most;
} number_options[] = {
    { "workers", MEMBER(num_workers), 65536 },
    { "tile_keys", MEMBER(tile_keys), 1024 },
    { "redo", MEMBER(force_redo), 1 },
    { "naive_whole", MEMBER(naive_whole), 1 },
    { "auto_naive_keys", MEMBER(auto_naive_keys), INT64_MAX },
};

static int set_number_option(attn_params *p, const char *key, size_t key_length, const char *value,
                             size_t length)
{
    int64_t number;
    int o, as_int;
    for (o = 0; o < COUNT_OF(number_options); o++) {
        const member field = number_options[o].field;
        if (!same_word(number_options[o].name, key, key_length))
            continue;
        if (!parse_int(value, length, &number) || number > number_options[o].most)
            return 0;
        as_int = (int)number;
        memcpy((char *)p + field.offset, field.size == sizeof number ? (void *)&number : &as_int,
               field.size);
        return 1;
    }
    return 0;
}

static int set_named_option(attn_params *p, const char *key, size_t key_length, const char *value,
                            size_t length)
{
    const int for_kernels = same_word("kernels", key, key_length);
    const attn_kernels *kernels = for_kernels ? find_kernels(value, length) : NULL;
    const char *impl;
    int i;
    for (i = 0; same_word("impl", key, key_length) && (impl = attn_impl_name(i)); i++)
        if (same_word(impl, value, length)) {
            p->impl = i;
            return 1;
        }
    if (kernels)
        p->kernels = kernels;
    return kernels != NULL;
}

/* set_option takes one "key=value" of `length` characters. */
static int set_option(attn_params *p, const char *word, size_t length)
{
    size_t key = 0;
    while (key < length && word[key] != '=')
        key++;
    if (key == length)
        return 0;
    return set_number_option(p, word, key, word + key + 1, length - key - 1) ||
           set_named_option(p, word, key, word + key + 1, length - key - 1);
}

static int is_separator(char c)
{
    return c == ' ' || c == ',' || c == '\t' || c == '\n';
}

ATTN_API attn_status attn_params_from_string(attn_params *p, const char *string, char *why,
                                             size_t why_bytes)
{
    text sentence = text_in(why, why_bytes);
    attn_params changed;
    if (!p || !string)
        return bad(&sentence, ATTN_ERR_ARG, p ? "text is NULL" : "params is NULL");
    changed = *p;
    while (*string) {
        size_t length = 0;
        while (string[length] && !is_separator(string[length]))
            length++;
        if (length && !set_option(&changed, string, length)) {
            put(&sentence, "option '");
            put_word(&sentence, string, length);
            return bad(&sentence, ATTN_ERR_ARG,
                       "': expected impl=default|tiled|naive|auto, kernels=NAME (one that this CPU "
                       "can run), workers=N, tile_keys=N, redo=0|1, naive_whole=0|1, "
                       "auto_naive_keys=N");
        }
        string += length;
        while (is_separator(*string))
            string++;
    }
    *p = changed;
    put(&sentence, "ok");
    return ATTN_OK;
}
