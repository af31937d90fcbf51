/* src/tuning.c - tuning: sizes that a machine may want otherwise, and that change no bit of a tiled result.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "text.c"
#include "call.h"

#define TUNING(member) #member, offsetof(tuning, member)
#define FROM_LEAST_TO_MOST " must be from # to #"

/* `usual` values were measured on x86 with 1 MiB of L2 cache. CPUs without vectors have few bytes and often
 * no such cache, so row tiles of f32 share nothing. */
static const struct tuning_value {
    const char *name;
    size_t offset; /* offset is that of an int64_t. */
    int64_t usual, least, most;
    const char *rest; /* Its # are least and most. */
    int powers;       /* Nonzero allows powers of two only. */
} tuning_values[] = {
    { TUNING(tile_keys), 0, 16, 1024, " must be a power of two from # to #", 1 },
    { TUNING(item_rows), HAS_VECTORS ? 128 : 1, 1, 4096, FROM_LEAST_TO_MOST, 0 },
    { TUNING(item_bytes), 1 << 20, 1 << 14, 1 << 30, FROM_LEAST_TO_MOST, 0 },
    { TUNING(split_work), 1 << 19, 1, 1 << 30, FROM_LEAST_TO_MOST, 0 },
    { TUNING(ahead), 1, 0, 1, " must be # or #", 0 },
    { TUNING(auto_naive_keys), ATTN_AUTO_NAIVE_KEYS, 0, 1 << 20, FROM_LEAST_TO_MOST, 0 },
};

static void usual_tuning(tuning *t)
{
    int i;
    for (i = 0; i < COUNT_OF(tuning_values); i++)
        memcpy((char *)t + tuning_values[i].offset, &tuning_values[i].usual, sizeof(int64_t));
}

/* A reader reads the words of a tuning text, without its comments. What is no printing ASCII
 * separates them as a space does, up to 32, or is shown as '?'. */
typedef struct reader {
    const char *at;
    int line;
} reader;

static size_t next_word(reader *r, const char **word)
{
    for (; *r->at == '#' || (*r->at && (unsigned char)*r->at <= ' '); r->at++) {
        r->line += *r->at == '\n';
        if (*r->at == '#') /* Comments are most of a file. */
            while (r->at[1] && r->at[1] != '\n')
                r->at++;
    }
    *word = r->at;
    while ((unsigned char)*r->at > ' ' && *r->at != '#')
        r->at++;
    return (size_t)(r->at - *word);
}

/* put_strange shows a word as it may stand in a sentence, as a damaged text can hold anything. */
static void put_strange(text *t, const char *word, size_t length)
{
    size_t i;
    for (i = 0; i < length && i < 40; i++)
        put_word(t, word[i] > ' ' && word[i] <= '~' ? word + i : "?", 1);
    put(t, i < length ? "..." : "");
}

static void put_damage(text *t, const reader *r)
{
    put_numbers(t, "tuning is ignored: line #: ", NUMBERS(r->line));
}

static void put_unknown(text *t, const reader *r, const char *word, size_t length)
{
    int i;
    put_damage(t, r);
    put(t, "unknown word '");
    put_strange(t, word, length);
    put(t, "': it must be [SET.]NAME VALUE, with NAME ");
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        put(t, i == 0 ? "" : i + 1 < COUNT_OF(tuning_values) ? ", " : " or ");
        put(t, tuning_values[i].name);
    }
    put(t, ", or 'end'");
}

/* read_value reads "[SET.]NAME VALUE", the word `key` and the one that follows, and enters it in *t
 * if it is meant for `set`. It returns 0 with a sentence if the words are something else. */
static int read_value(reader *r, const char *key, size_t length, const char *set, tuning *t,
                      text *why)
{
    const char *value;
    size_t dot = 0, digits;
    int64_t number;
    int i, meant;
    while (dot < length && key[dot] != '.')
        dot++;
    meant = dot == length || same_word(set, key, dot);
    dot = dot == length ? 0 : dot + 1;
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        const struct tuning_value *v = &tuning_values[i];
        if (!same_word(v->name, key + dot, length - dot))
            continue;
        digits = next_word(r, &value);
        if (parse_int(value, digits, &number) && number >= v->least && number <= v->most &&
            !(v->powers && (number & (number - 1)))) {
            if (meant)
                memcpy((char *)t + v->offset, &number, sizeof number);
            return 1;
        }
        put_damage(why, r);
        put(why, v->name);
        put(why, " (");
        put_strange(why, value, digits);
        put(why, ")");
        put_numbers(why, v->rest, NUMBERS(v->least, v->most));
        return 0;
    }
    put_unknown(why, r, key, length);
    return 0;
}

/* read_values reads all of a tuning text, which attn.h describes in "How to compute". */
static int read_values(reader *r, const char *set, tuning *t, text *why)
{
    const char *word;
    size_t length = next_word(r, &word);
    int ok = same_word("attn-tuning", word, length);
    length = next_word(r, &word);
    if (!ok || !same_word("1", word, length)) {
        put_damage(why, r);
        put(why, "it must begin with 'attn-tuning 1'");
        return 0;
    }
    while ((length = next_word(r, &word)) > 0 && !same_word("end", word, length))
        if (!read_value(r, word, length, set, t, why))
            return 0;
    if (!length || next_word(r, &word)) {
        put_damage(why, r);
        put(why, "it must end with 'end'");
        return 0;
    }
    return 1;
}

/* read_tuning reads what the text says about a kernel set, and takes the usual values without a
 * text. A damaged text is ignored: it returns 0, and why holds a sentence. */
static int read_tuning(const char *string, const char *set, tuning *t, text *why)
{
    reader r;
    usual_tuning(t);
    r.at = string;
    r.line = 1;
    if (!string || read_values(&r, set, t, why))
        return 1;
    usual_tuning(t);
    return 0;
}

/* tuning_of gives the sizes of a kernel set in a call. */
static tuning tuning_of(const attn_params *p, const attn_kernels *kernels)
{
    tuning t;
    text none = text_in(NULL, 0);
    read_tuning(p->tuning, kernels->name, &t, &none);
    return t;
}

/* put_tuning says what p.tuning has that is not usual, or what is wrong with it. */
static void put_tuning(const problem *pr, const plan *pl, text *why)
{
    tuning t;
    int64_t value;
    int i, found = 0;
    if (!pr->p.tuning)
        return;
    put(why, "; ");
    if (!read_tuning(pr->p.tuning, pl->kernels->name, &t, why))
        return;
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        memcpy(&value, (const char *)&t + tuning_values[i].offset, sizeof value);
        if (value == tuning_values[i].usual)
            continue;
        put(why, found++ ? " " : "tuning: ");
        put_field(why, tuning_values[i].name, value);
    }
    put(why, found ? "" : "tuning: the usual sizes");
}
