/* src/text.c - sentences: built piece by piece into the caller's buffer; words of a text are compared.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "numbers.c"

/* -DATTN_WITHOUT_SENTENCES leaves out every word that tells people of a call. Statuses are left. */
#ifdef ATTN_WITHOUT_SENTENCES
enum { HAS_SENTENCES = 0 };
#else
enum { HAS_SENTENCES = 1 };
#endif

/* NAME is the name of a field or an array for a sentence. */
#define NAME(words) (HAS_SENTENCES ? (words) : NULL)

typedef struct text {
    char *at;
    size_t left; /* left counts bytes that still fit, with the terminator. */
} text;

static inline text text_in(char *buffer, size_t bytes)
{
    text t;
    t.at = buffer;
    t.left = HAS_SENTENCES && buffer ? bytes : 0;
    if (buffer && bytes)
        *buffer = 0;
    return t;
}

COLD static void put(text *t, const char *s)
{
    while (HAS_SENTENCES && *s && t->left > 1) {
        *t->at++ = *s++;
        t->left--;
    }
    if (HAS_SENTENCES && t->left)
        *t->at = 0;
}

COLD static void put_int(text *t, int64_t value)
{
    char digits[24];
    char *d = digits + sizeof digits - 1;
    uint64_t u = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    *d = 0;
    do {
        *--d = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (value < 0)
        *--d = '-';
    put(t, d);
}

/* put_float writes six digits, as d.ddddde-xx: enough for a sentence about a wrong value. */
COLD static void put_float(text *t, float value)
{
    char digits[8];
    double rest = value < 0 ? -(double)value : (double)value;
    int64_t millionths;
    int i, exponent = 0;
    if (!is_finite(value)) {
        put(t, is_nan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    for (; rest >= 10; exponent++)
        rest /= 10;
    for (; rest > 0 && rest < 1; exponent--)
        rest *= 10;
    put(t, value < 0 ? "-" : "");
    millionths = (int64_t)(rest * 1e6 + 0.5);
    if (millionths == 10000000) { /* It was rounded up to the next power of ten. */
        millionths = 1000000;
        exponent++;
    }
    put_int(t, millionths / 1000000);
    digits[0] = '.';
    for (i = 6; i >= 1; i--) {
        digits[i] = (char)('0' + millionths % 10);
        millionths /= 10;
    }
    digits[7] = 0;
    put(t, digits);
    if (exponent) {
        put(t, "e");
        put_int(t, exponent);
    }
}

/* put_word puts a word of a text that may hold anything: control characters become '?'. */
COLD static void put_word(text *t, const char *word, size_t length)
{
    char letter[2] = { 0, 0 };
    size_t i;
    for (i = 0; i < length; i++) {
        letter[0] = (unsigned char)word[i] < ' ' || word[i] == 127 ? '?' : word[i];
        put(t, letter);
    }
}

/* put_numbers puts a sentence in which each # stands for the next number. */
COLD static void put_numbers(text *t, const char *sentence, const int64_t *number)
{
    for (; *sentence; sentence++)
        if (*sentence == '#')
            put_int(t, *number++);
        else
            put_word(t, sentence, 1);
}

#define NUMBERS(...) ((const int64_t[]){ __VA_ARGS__ })

/* put_field says "name (value)". */
COLD static void put_field(text *t, const char *name, int64_t value)
{
    put(t, name);
    put_numbers(t, " (#)", &value);
}

/* same_word tells whether the string a is the b_length letters at b. */
static inline int same_word(const char *a, const char *b, size_t b_length)
{
    size_t i;
    for (i = 0; i < b_length; i++)
        if (a[i] != b[i] || !a[i])
            return 0;
    return a[b_length] == 0;
}

static inline int parse_int(const char *s, size_t length, int64_t *value)
{
    size_t i;
    *value = 0;
    for (i = 0; i < length; i++) {
        if (s[i] < '0' || s[i] > '9' || *value > 100000000000000)
            return 0;
        *value = *value * 10 + (s[i] - '0');
    }
    return length > 0;
}

COLD static attn_status bad(text *why, attn_status status, const char *rest)
{
    put(why, rest);
    return status;
}

COLD static attn_status bad_numbers(text *why, attn_status status, const char *sentence,
                                    const int64_t *number)
{
    put_numbers(why, sentence, number);
    return status;
}

/* done says "ok" where nothing was wrong. */
static inline attn_status done(attn_status status, text *why)
{
    if (!status)
        put(why, "ok");
    return status;
}

/* bad_field says "name (value) rest". */
COLD static attn_status bad_field(text *why, attn_status status, const char *name, int64_t value,
                                  const char *rest)
{
    put_field(why, name, value);
    return bad(why, status, rest);
}

/* bad_entry says "name[index] (value) rest". */
COLD static attn_status bad_entry(text *why, const char *name, int64_t index, int64_t value,
                                  const char *rest)
{
    put(why, name);
    put_numbers(why, "[#] (#)", NUMBERS(index, value));
    return bad(why, ATTN_ERR_ARG, rest);
}

/* bad_after says "name[index] (value) rest (the entry before it)". */
COLD static attn_status bad_after(text *why, const char *name, int64_t index, int64_t value,
                                  const char *rest, int64_t before)
{
    bad_entry(why, name, index, value, rest);
    put_numbers(why, " (#)", NUMBERS(before));
    return ATTN_ERR_ARG;
}

COLD static attn_status bad_number(text *why, const char *name, float value, const char *rest)
{
    put(why, name);
    put(why, " (");
    put_float(why, value);
    put(why, ")");
    return bad(why, ATTN_ERR_ARG, rest);
}

/* too_small names the function `query`, which says how large the workspace should be. */
COLD static attn_status too_small(text *why, int64_t have, int64_t least, const char *query)
{
    if (have > 0)
        put_numbers(why, "workspace_bytes (#) must be at least #; ", NUMBERS(have, least));
    else
        put_numbers(why, "workspace is NULL or empty and must have at least # bytes; ", &least);
    put(why, query);
    return bad(why, ATTN_ERR_WORKSPACE, " says what is best");
}

/* verdict is the result of a public check function: its sentence in `buffer`, where *why began, or
 * "ok". Without a buffer it is the name of the status. */
static inline const char *verdict(attn_status status, const char *buffer, text *why)
{
    done(status, why);
    return why->left ? buffer : attn_status_string(status);
}
