/* rows.c - tables of cases: a row of words becomes a case for each combination of their values.
 * SPDX-License-Identifier: MIT
 *
 *     b=1,4 s=512,1024     batch 1 with both lengths, then batch 4 with both; d=64 would be for all
 *     b=1 s=512 | b=4      one list after the other
 *     group=+              a group of its own for each combination of the words before
 *     threads=steps        a series, see below
 *
 * A later word overrides an earlier one. The first case of a group shares nothing. */
#include "presets_list.h"

#include "jobs.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 48, TEXT_BYTES = 400, NAME_PART = 32 };

/* What the cases of one row are made with. */
typedef struct maker {
    case_list *list;
    const preset_choice *want;
    const case_preset *preset;
    const case_row *row;
    const char *kernels; /* NULL = any */
    int groups;
} maker;

/* ---- values that are words */

typedef struct word_list {
    const char *words[8];
} word_list;

static const word_list dtypes = { { "f32", "f16", "bf16" } };
static const word_list scores = { { "exact", "integer" } };
static const word_list products = { { "exact", "allowed", "fast" } }; /* case_fast */
static const word_list layouts = { { "packed", "strided" } };         /* LAYOUT_BHSD, LAYOUT_BSHD */
static const word_list inputs = { { "trig", "normal" } };
static const word_list shared = { { "nothing", "threads", "mask", "pattern", "keys", "storage",
                                    "gemms" } };

static int64_t index_of(const word_list *list, const char *word)
{
    int64_t i = 0;
    while (list->words[i] && strcmp(list->words[i], word))
        i++;
    return i;
}

/* Places of keys, with how those are turned that are appended. */
static const struct {
    const char *word, *text;
    case_keys keys;
} places[] = {
    { "contiguous", "contiguous", { .kind = KEYS_CONTIGUOUS } },
    { "plain", "plain", { .kind = KEYS_PLAIN } },
    { "ring", "ring", { .kind = KEYS_RING } },
    { "pages-1", "pages of 1", { .kind = KEYS_PAGED, .page_size = 1 } },
    { "pages-16", "pages of 16", { .kind = KEYS_PAGED, .page_size = 16 } },
    { "pages-256", "pages of 256", { .kind = KEYS_PAGED, .page_size = 256 } },
    { "recent-64", "64 recent keys", { .kind = KEYS_CONTIGUOUS, .recent = 64 } },
    { "copies", "own copies", { .kind = KEYS_CONTIGUOUS } },
    { "shared", "shared pages", { .kind = KEYS_PAGED, .page_size = 16 } },
    { "untold", "shared, untold", { .kind = KEYS_PAGED, .page_size = 16, .untold = 1 } },
    { "rope", "contiguous rope", { .kind = KEYS_CONTIGUOUS, .rope = KEYS_ROPE } },
    { "table", "contiguous table", { .kind = KEYS_CONTIGUOUS, .rope = KEYS_ROPE_TABLE } },
    { "pages-table",
      "pages of 16 table",
      { .kind = KEYS_PAGED, .page_size = 16, .rope = KEYS_ROPE_TABLE } },
};

static const char *set_place(bench_case *c, const char *word)
{
    int i = 0;
    while (strcmp(places[i].word, word))
        i++;
    const case_keys before = c->keys;
    c->keys = places[i].keys;
    c->keys.shared = before.shared;
    c->keys.typed = before.typed;
    c->keys.k_dtype = before.k_dtype;
    c->keys.v_dtype = before.v_dtype;
    return places[i].text;
}

static const char *set_types(bench_case *c, const char *word)
{
    const int known = case_set_types(c, word);
    assert(known);
    (void)known;
    return word;
}

static const char *set_mask(bench_case *c, const char *word)
{
    c->mask = mask_find(word);
    return word;
}

/* Query heads for one of keys and values. */
static const char *set_ratio(bench_case *c, const char *word)
{
    c->heads_kv = c->heads_q / atoi(word);
    return word;
}

/* Rows of queries, at most as many as there are keys. */
static const char *set_rows(bench_case *c, const char *word)
{
    const int64_t rows = atoi(word);
    c->seq_q = rows < c->seq_kv ? rows : c->seq_kv;
    return word;
}

/* Three branches of heads that are turned: `segment` keys around, every fourth of four times as many,
 * every sixteenth of sixteen times. */
static const char *set_dilated(bench_case *c, const char *word)
{
    c->dilated.branches = 3;
    c->dilated.rotate = 1;
    for (int n = 0; n < 3; n++) {
        c->dilated.segment[n] = (int64_t)atoi(word) << 2 * n;
        c->dilated.dilation[n] = 1 << 2 * n;
    }
    return word;
}

/* "4/1+2/2": of each branch the parts of the keys, and its dilation. */
static const char *set_branches(bench_case *c, const char *word)
{
    static char text[DILATED_TEXT];
    int n = 0;
    for (const char *at = word; *at; at += strcspn(at, "+"), at += *at == '+', n++) {
        const int64_t segment = c->seq_kv / atoi(at);
        c->dilated.segment[n] = segment > 0 ? segment : 1;
        c->dilated.dilation[n] = atoi(strchr(at, '/') + 1);
    }
    c->dilated.branches = n;
    if (n > 2)
        snprintf(text, sizeof text, "%d branches", n);
    return n > 2 ? text : dilated_text(c, text);
}

static const char *set_ranks(bench_case *c, const char *word)
{
    static char text[NAME_PART];
    c->threads = atoi(word);
    snprintf(text, sizeof text, "%d rank%s", c->threads, c->threads > 1 ? "s" : "");
    return text;
}

/* ---- series: the value after `value`, 0 = the first; the series ends above the most */

static int64_t next_step(int64_t value, const preset_choice *want)
{
    const int most = want->threads;
    const int64_t next = most <= 8 ? value + 1 : value ? 2 * value : 1;
    return value < most && next > most ? most : next;
}

static int64_t next_power(int64_t value, const preset_choice *want)
{
    const int64_t next = value ? 2 * value : 1;
    return value < want->threads && next > want->threads ? want->threads : next;
}

static int64_t next_length(int64_t value, const preset_choice *want)
{
    const int64_t first = want->quick ? 4096 : 65536;
    return value ? 4 * value : first < want->max_seq_len ? first : want->max_seq_len;
}

static int64_t twice(int64_t value, const preset_choice *want)
{
    (void)want;
    return value ? 2 * value : 1;
}

static int64_t only_all(int64_t value, const preset_choice *want)
{
    return value ? INT64_MAX : want->threads;
}

static int64_t most_threads(const preset_choice *want)
{
    return want->threads;
}

static int64_t most_keys(const preset_choice *want)
{
    return want->max_seq_len;
}

static int64_t most_ranks(const preset_choice *want)
{
    return want->ranks > 0 ? want->ranks : 8;
}

static const struct {
    const char *word;
    int64_t (*next)(int64_t value, const preset_choice *want);
    int64_t (*most)(const preset_choice *want);
} series[] = {
    { "all", only_all, most_threads },      /* threads there are */
    { "steps", next_step, most_threads },   /* 1, 2, ... to 8, beyond that powers of two and all */
    { "powers", next_power, most_threads }, /* of two, and all */
    { "doubled", twice, most_ranks },       /* 1, 2, 4, ... ranks */
    { "growing", next_length, most_keys },  /* four times the one before, --max-seq-len */
};

/* ---- words */

#define AT(field) offsetof(bench_case, field)

static const struct field {
    const char *key;
    size_t at, more; /* where its value goes; 0 = nowhere */
    int wide;        /* an int64_t, else an int */
    const word_list *words;
    const char *(*set)(bench_case *c, const char *word); /* returns its text for names */
} fields[] = {
    { "b", AT(batch), 0, 1, NULL, NULL },
    { "h", AT(heads_q), AT(heads_kv), 1, NULL, NULL },
    { "hq", AT(heads_q), 0, 1, NULL, NULL },
    { "hkv", AT(heads_kv), 0, 1, NULL, NULL },
    { "ratio", 0, 0, 0, NULL, set_ratio },
    { "s", AT(seq_q), AT(seq_kv), 1, NULL, NULL },
    { "sq", AT(seq_q), 0, 1, NULL, NULL },
    { "kv", AT(seq_kv), 0, 1, NULL, NULL },
    { "rows", 0, 0, 0, NULL, set_rows },
    { "d", AT(head_dim), AT(head_dim_v), 1, NULL, NULL },
    { "dv", AT(head_dim_v), 0, 1, NULL, NULL },
    { "mask", 0, 0, 0, NULL, set_mask },
    { "mask_size", AT(mask_size), 0, 1, NULL, NULL },
    { "dilated", 0, 0, 0, NULL, set_dilated },
    { "branches", 0, 0, 0, NULL, set_branches },
    { "mean", AT(dilated.mean), 0, 0, NULL, NULL },
    { "rotate", AT(dilated.rotate), 0, 0, NULL, NULL },
    { "groups", AT(dilated.groups), 0, 0, NULL, NULL },
    { "pattern_anew", AT(pattern_anew), 0, 0, NULL, NULL },
    { "memory_anew", AT(memory_anew), 0, 0, NULL, NULL },
    { "ranks", 0, 0, 0, NULL, set_ranks },
    { "gathered", AT(dilated.gathered), 0, 0, NULL, NULL },
    { "dtype", AT(dtype), 0, 0, &dtypes, NULL },
    { "types", 0, 0, 0, NULL, set_types },
    { "scores", AT(integer), 0, 0, &scores, NULL },
    { "products", AT(fast), 0, 0, &products, NULL },
    { "keys", 0, 0, 0, NULL, set_place },
    { "shared", AT(keys.shared), 0, 1, NULL, NULL },
    { "layout", AT(layout), 0, 0, &layouts, NULL },
    { "data", AT(data), 0, 0, &inputs, NULL },
    { "appends", AT(appends), 0, 0, NULL, NULL },
    { "backward", AT(backward), 0, 0, NULL, NULL },
    { "gemms", AT(gemms), 0, 0, NULL, NULL },
    { "naive_whole", AT(naive_whole), 0, 0, NULL, NULL },
    { "warmup", AT(warmup), 0, 0, NULL, NULL },
    { "iters", AT(iterations), 0, 0, NULL, NULL },
    { "device_iters", AT(device_iterations), 0, 0, NULL, NULL },
    { "threads", AT(threads), 0, 0, NULL, NULL },
    { "group", AT(group), 0, 0, NULL, NULL },
    { "shares", AT(shares), 0, 0, &shared, NULL },
};

static const struct field *find_field(const char *key, size_t length)
{
    int i = 0;
    while (i < LENGTH(fields) && (strncmp(fields[i].key, key, length) || fields[i].key[length]))
        i++;
    assert(i < LENGTH(fields)); /* the tables of presets.c know no other words */
    return &fields[i];
}

static void store(bench_case *c, size_t at, int wide, int64_t value)
{
    const int narrow = (int)value;
    if (at && wide)
        memcpy((char *)c + at, &value, sizeof value);
    else if (at)
        memcpy((char *)c + at, &narrow, sizeof narrow);
}

/* ---- names: {key} stands for the value of the word, {_key} for " value" unless it is usual */

typedef struct named {
    char text[LENGTH(fields)][NAME_PART]; /* of the words so far; "" = none of that key */
} named;

static void name_case(const char *pattern, const named *of, bench_case *c)
{
    size_t n = 0;
    while (*pattern && n < sizeof c->name - 1) {
        if (*pattern != '{') {
            c->name[n++] = *pattern++;
            continue;
        }
        const size_t quiet = *++pattern == '_';
        const size_t length = strcspn(pattern + quiet, "}");
        const struct field *const f = find_field(pattern + quiet, length);
        const char *const text = of->text[f - fields];
        const int usual = !*text || (f->words && !strcmp(text, f->words->words[0]));
        if (!quiet || !usual)
            n += (size_t)snprintf(c->name + n, sizeof c->name - n, "%s%s", quiet ? " " : "", text);
        pattern += quiet + length + 1;
    }
}

static void finish(maker *m, const bench_case *made, const named *of)
{
    bench_case *const c = case_append(m->list, m->preset->name, m->row->scenario);
    const char *const impl = m->row->impl ? m->row->impl : m->preset->impl;
    *c = *made;
    c->preset = m->preset->name;
    c->scenario = m->kernels && !m->row->scenario ? m->kernels : m->row->scenario;
    c->kernels = m->row->scenario ? NULL : m->kernels;
    c->impl = impl && *impl ? impl : NULL;
    /* what the name shows, options leave alone */
    c->fixed = m->preset->fixed | (strstr(m->row->name, "dtype}") ? FIXED_STORAGE : 0);
    const int first = c == m->list->cases || c[-1].group != c->group ||
                      strcmp(c[-1].preset, c->preset) || strcmp(c[-1].scenario, c->scenario);
    if (first)
        c->shares = SHARES_NOTHING;
    name_case(m->row->name, of, c);
    if (m->preset->finish && !m->preset->finish(m->want, c))
        m->list->n--;
}

/* ---- combinations */

static void expand(maker *m, const char *text, const bench_case *c, const named *of);

static void set_word(maker *m, const struct field *f, const char *word, const char *rest,
                     const bench_case *before, const named *so_far)
{
    bench_case c = *before;
    named of = *so_far;
    const char *text = word;
    int64_t value = f->words ? index_of(f->words, word) : atoll(word);
    if (!strcmp(word, "+"))
        value = ++m->groups;
    if (f->set)
        text = f->set(&c, word);
    store(&c, f->at, f->wide, value);
    store(&c, f->more, f->wide, value);
    snprintf(of.text[f - fields], NAME_PART, "%s", text);
    expand(m, rest, &c, &of);
}

/* A value, or each of a series. */
static void set_values(maker *m, const struct field *f, const char *word, const char *rest,
                       const bench_case *c, const named *of)
{
    int i = 0;
    while (i < LENGTH(series) && strcmp(series[i].word, word))
        i++;
    if (i == LENGTH(series)) {
        set_word(m, f, word, rest, c, of);
        return;
    }
    const int64_t most = series[i].most(m->want);
    for (int64_t v = series[i].next(0, m->want); v <= most; v = series[i].next(v, m->want)) {
        char number[WORD_BYTES];
        snprintf(number, sizeof number, "%lld", (long long)v);
        set_word(m, f, number, rest, c, of);
    }
}

static void expand(maker *m, const char *text, const bench_case *c, const named *of)
{
    text += strspn(text, " ");
    if (!*text) {
        finish(m, c, of);
        return;
    }
    const size_t key = strcspn(text, "=");
    const struct field *const f = find_field(text, key);
    const char *const values = text + key + 1, *const rest = values + strcspn(values, " ");
    for (const char *at = values; at < rest;) {
        char word[WORD_BYTES];
        const size_t length = strcspn(at, ", ");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        set_values(m, f, word, rest, c, of);
        at += length + (at[length] == ',');
    }
}

/* The words of those sizes that are above 0. */
static void print_sizes(const bench_case *c, char *text, size_t bytes)
{
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = { { "b", c->batch },      { "hq", c->heads_q }, { "hkv", c->heads_kv },
                  { "sq", c->seq_q },     { "kv", c->seq_kv },  { "d", c->head_dim },
                  { "dv", c->head_dim_v } };
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < LENGTH(sizes); i++)
        if (sizes[i].value > 0)
            n += (size_t)snprintf(text + n, bytes - n, "%s=%lld ", sizes[i].key,
                                  (long long)sizes[i].value);
}

static void add_row(maker *m)
{
    static const named nothing;
    const bench_case start = { .warmup = 2, .data = DATA_NORMAL };
    const int quick = m->want->quick;
    const char *const all = quick && m->preset->all_quick ? m->preset->all_quick : m->preset->all;
    const char *list = quick && m->row->quick ? m->row->quick : m->row->whole;
    char size[TEXT_BYTES / 2] = "";
    if (m->preset->shaped && m->want->sizes)
        print_sizes(m->want->sizes, size, sizeof size);
    while (list && *list) {
        char text[TEXT_BYTES];
        const size_t length = strcspn(list, "|");
        snprintf(text, sizeof text, "%s %s %.*s", all, size, (int)length, list);
        expand(m, text, &start, &nothing);
        list += length + (list[length] == '|');
    }
}

/* Rows without a scenario, which is then the kernel set, go by sets. */
static void add_native(maker *m, const char *kernels)
{
    m->kernels = kernels;
    for (m->row = m->preset->rows; m->row->name; m->row++)
        if (!m->row->scenario)
            add_row(m);
}

/* Not a narrow set, whose tiles are for few rows, nor a portable one, nor sse2: that computes the
 * fused multiply-add step by step, at 2 % of the peak, and one call takes seconds. */
static int native(const char *kernels)
{
    static const char *const others[] = { "_narrow", "portable", "sse2" };
    for (int i = 0; i < LENGTH(others); i++)
        if (strstr(kernels, others[i]))
            return 0;
    return 1;
}

/* The kernel set that is wanted, or each that is made for this CPU's vector unit, or else the best
 * there is. */
static void add_all_native(maker *m)
{
    const int before = m->list->n;
    if (m->want->kernels) {
        add_native(m, m->want->kernels);
        return;
    }
    for (int i = 0; attn_kernels_get(i); i++)
        if (native(attn_kernels_name(attn_kernels_get(i))))
            add_native(m, attn_kernels_name(attn_kernels_get(i)));
    if (m->list->n == before)
        add_native(m, attn_kernels_name(attn_kernels_get(0)));
}

void case_rows(const case_preset *preset, const preset_choice *want, case_list *list)
{
    maker m = { .list = list, .want = want, .preset = preset };
    add_all_native(&m);
    m.kernels = NULL;
    for (m.row = preset->rows; m.row->name; m.row++)
        if (m.row->scenario)
            add_row(&m);
}
