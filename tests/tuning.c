/* tuning.c - p.tuning changes sizes and no bit; a damaged text counts as none and says so once.
 * SPDX-License-Identifier: MIT
 */
#include "spy.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- calls that exercise every size --------------------------------------------------------- */

static const struct shape {
    const char *name;
    int64_t heads, kv_heads, rows, keys, dim, dim_v;
    int dtype, causal, workers, impl;
    enum {
        NO_PAIRS,
        PAIRS_BIAS,
        PAIRS_BYTES,
        PAIRS_BITS
    } pairs; /* an array with something for each pair */
} shapes[] = {
    { "prefill", 2, 1, 130, 300, 40, 24, ATTN_F32, 1, 1, ATTN_IMPL_TILED, NO_PAIRS },
    { "decode", 8, 2, 1, 2300, 32, 32, ATTN_F32, 0, 1, ATTN_IMPL_TILED, NO_PAIRS },
    { "shared copies", 1, 1, 700, 1100, 24, 40, ATTN_F16, 1, 1, ATTN_IMPL_TILED, NO_PAIRS },
    { "shared copies, 3 workers", 2, 1, 300, 500, 16, 16, ATTN_BF16, 0, 3, ATTN_IMPL_TILED,
      NO_PAIRS },
    { "split", 4, 1, 1, 2500, 64, 64, ATTN_F32, 0, 4, ATTN_IMPL_TILED, NO_PAIRS },
    { "split, 16 bits", 2, 1, 3, 1500, 64, 64, ATTN_F16, 1, 2, ATTN_IMPL_TILED, NO_PAIRS },
    { "naive", 2, 1, 40, 100, 16, 16, ATTN_F32, 1, 1, ATTN_IMPL_NAIVE, NO_PAIRS },
    /* K and V fit into the smallest cache, and what the pairs have does not. */
    { "bias", 1, 1, 300, 500, 4, 4, ATTN_F32, 0, 1, ATTN_IMPL_TILED, PAIRS_BIAS },
    { "boolean mask", 1, 1, 300, 500, 4, 4, ATTN_F32, 0, 1, ATTN_IMPL_TILED, PAIRS_BYTES },
    { "mask of bits", 1, 1, 300, 500, 4, 4, ATTN_F32, 0, 1, ATTN_IMPL_TILED, PAIRS_BITS },
};
enum {
    PREFILL,
    DECODE,
    COPIES,
    COPIES_3,
    SPLIT,
    SPLIT_16,
    NAIVE,
    WITH_BIAS,
    WITH_BYTES,
    WITH_BITS,
    SHAPES
};

static int backwards(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = n; i-- > 0;)
        task(arg, i, 0);
    return 0;
}

static void *numbers(int64_t count, int dtype)
{
    char *x = test_alloc((size_t)count * dtype_size(dtype));
    for (int64_t i = 0; i < count; i++)
        dtype_store(dtype, x + (size_t)i * dtype_size(dtype), 4 * rng_unit() - 2);
    return x;
}

static int64_t outputs_of(const struct shape *s)
{
    return s->heads * s->rows * (s->dim_v + 3);
}

/* o and, behind it, lse and stats, all f32. */
static void give_output(const struct shape *s, attn_params *p)
{
    float *out = test_alloc((size_t)outputs_of(s) * sizeof *out);
    p->o.data = out;
    p->lse.data = out + s->heads * s->rows * s->dim_v;
    p->stats.data = out + s->heads * s->rows * (s->dim_v + 1);
}

/* Without data: for attn_explain. */
static attn_params make_sizes(const struct shape *s)
{
    static float there[16];
    attn_params p = { .batch = 1 };
    p.num_heads_q = s->heads;
    p.num_heads_kv = s->kv_heads;
    p.seq_len_q = s->rows;
    p.seq_len_kv = s->keys;
    p.head_dim = s->dim;
    p.head_dim_v = s->dim_v;
    p.causal = s->causal;
    p.impl = s->impl;
    p.num_workers = s->workers;
    p.parallel_for = backwards;
    p.k.dtype = p.v.dtype = s->dtype;
    p.q.data = p.k.data = p.v.data = p.o.data = p.lse.data = there;
    p.stats.data = there;
    p.bias.data = s->pairs == PAIRS_BIAS ? there : NULL;
    p.bool_mask.data = s->pairs == PAIRS_BYTES ? (const uint8_t *)there : NULL;
    p.bit_mask.data = s->pairs == PAIRS_BITS ? (const uint8_t *)there : NULL;
    return p;
}

/* Bytes of which any may be 0, or any of whose bits. */
static const uint8_t *random_bytes(int64_t count)
{
    uint8_t *x = test_alloc((size_t)count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (uint8_t)(rng_chance(20) ? 0 : rng_u64());
    return x;
}

static attn_params make_call(const struct shape *s)
{
    attn_params p = make_sizes(s);
    p.q.data = numbers(s->heads * s->rows * s->dim, ATTN_F32);
    p.k.data = numbers(s->kv_heads * s->keys * s->dim, s->dtype);
    p.v.data = numbers(s->kv_heads * s->keys * s->dim_v, s->dtype);
    if (s->pairs == PAIRS_BIAS)
        p.bias.data = numbers(s->heads * s->rows * s->keys, ATTN_F32);
    if (s->pairs == PAIRS_BYTES)
        p.bool_mask.data = random_bytes(s->heads * s->rows * s->keys);
    if (s->pairs == PAIRS_BITS)
        p.bit_mask.data = random_bytes((s->heads * s->rows * s->keys + 7) / 8);
    give_output(s, &p);
    return p;
}

static attn_info explained(const attn_params *p)
{
    attn_info info;
    CHECK(attn_explain(p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
    return info;
}

/* ---- one shape without a text, to compare with ---------------------------------------------- */

static struct {
    int logs, level;
    char text[600];
} heard;

static void hear(void *user, int level, const char *text)
{
    (void)user;
    heard.logs++;
    heard.level = level;
    snprintf(heard.text, sizeof heard.text, "%s", text);
}

typedef struct reference {
    const struct shape *shape;
    attn_params p; /* without a text */
    attn_info info;
} reference;

static reference make_reference(const struct shape *s)
{
    reference r;
    r.shape = s;
    r.p = make_call(s);
    r.p.log = hear;
    heard.logs = 0;
    r.info = explained(&r.p);
    CHECK(test_run(&r.p) == ATTN_OK, "attn_forward failed");
    CHECK(heard.logs == 0, "without a text: '%s'", heard.text);
    return r;
}

/* Runs it with a text; nonzero when status and bits are those without. */
static int same_with(const reference *r, const char *text, int least)
{
    attn_params p = r->p;
    const int mark = test_mark();
    attn_status status;
    int same;
    p.tuning = text;
    give_output(r->shape, &p);
    heard.logs = 0;
    status = least ? test_run_least(&p) : test_run(&p);
    same =
        CHECK(status == ATTN_OK, "%s%s: status %d", r->shape->name,
              least ? ", least workspace" : "", (int)status) &&
        CHECK(memcmp(p.o.data, r->p.o.data, (size_t)outputs_of(r->shape) * sizeof(float)) == 0,
              "%s%s: other bits with '%s'", r->shape->name, least ? ", least workspace" : "", text);
    test_release_to(mark);
    return same;
}

/* ---- damaged texts --------------------------------------------------------------------------- */

#define HEAD "attn-tuning 1\n"

/* `says` is what has to be in the sentence, the line and what would be right. */
static const struct damage {
    const char *text, *says[2];
} damages[] = {
    { "", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { " \n\t\n", { "line 3: ", "it must begin with 'attn-tuning 1'" } },
    { "# only a comment", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { "/etc/attn/tuning.txt", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { "tile_keys 64 end", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { "attn-tuning", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { "attn-tuning 2\nend", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { "attn-tuning 10\nend", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { "Attn-Tuning 1\nend", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { "attn-tuning1\nend", { "line 2: ", "it must begin with 'attn-tuning 1'" } },
    { "\xef\xbb\xbf" HEAD "end", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    { HEAD, { "line 2: ", "it must end with 'end'" } },
    { HEAD "tile_keys 64\n", { "line 3: ", "it must end with 'end'" } },
    { HEAD "tile_keys 64\n# end", { "line 3: ", "it must end with 'end'" } },
    { HEAD "end\nend", { "line 3: ", "it must end with 'end'" } },
    { HEAD "end\n\ntile_keys 64\n", { "line 4: ", "it must end with 'end'" } },
    { HEAD "End", { "line 2: unknown word 'End'", "must be [SET.]NAME" } },
    { HEAD "tile_key 64\nend",
      { "line 2: unknown word 'tile_key'", "NAME tile_keys, item_rows, " } },
    { HEAD "tile_keyss 64\nend", { "unknown word 'tile_keyss'", "must be [SET.]NAME" } },
    { HEAD "a.b.tile_keys 64\nend", { "unknown word 'a.b.tile_keys'", "must be [SET.]NAME" } },
    { HEAD "avx2. 64\nend", { "unknown word 'avx2.'", "must be [SET.]NAME" } },
    { HEAD "tile_keys=64\nend", { "unknown word 'tile_keys=64'", "must be [SET.]NAME" } },
    { HEAD "64\nend", { "line 2: unknown word '64'", "must be [SET.]NAME" } },
    { HEAD "tile_keys 64 65\nend", { "line 2: unknown word '65'", "must be [SET.]NAME" } },
    { HEAD "tile_keys 64;\nend", { "tile_keys (64;)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys 0\nend", { "tile_keys (0)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys 8\nend", { "tile_keys (8)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys 2048\nend",
      { "tile_keys (2048)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys 96\nend", { "tile_keys (96)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys -64\nend", { "tile_keys (-64)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys 0x40\nend",
      { "tile_keys (0x40)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys 64.0\nend",
      { "tile_keys (64.0)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys\nend", { "line 3: tile_keys (end)", "must be a power of two from 16" } },
    { HEAD "tile_keys", { "line 2: tile_keys ()", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys item_rows 96 end", { "tile_keys (item_rows)", "must be a power of two" } },
    { HEAD "none.tile_keys 65\nend",
      { "tile_keys (65)", "must be a power of two from 16 to 1024" } },
    { HEAD "tile_keys 4294967360\nend",
      { "tile_keys (4294967360)", "must be a power of two from" } },
    { HEAD "tile_keys 18446744073709551680\nend",
      { "(18446744073709551680)", "must be a power of" } },
    { HEAD "item_rows 0\nend", { "item_rows (0)", "must be from 1 to 4096" } },
    { HEAD "item_rows 4097\nend", { "item_rows (4097)", "must be from 1 to 4096" } },
    { HEAD "item_bytes 16383\nend", { "item_bytes (16383)", "must be from 16384 to 1073741824" } },
    { HEAD "item_bytes 1073741825\nend", { "(1073741825)", "must be from 16384 to 1073741824" } },
    { HEAD "split_work 0\nend", { "split_work (0)", "must be from 1 to 1073741824" } },
    { HEAD "split_work 1073741825 end", { "(1073741825)", "must be from 1 to 1073741824" } },
    { HEAD "ahead 2\nend", { "line 2: ahead (2)", "must be 0 or 1" } },
    { HEAD "ahead yes\nend", { "line 2: ahead (yes)", "must be 0 or 1" } },
    { HEAD "auto_naive_keys 1048577\nend", { "(1048577)", "must be from 0 to 1048576" } },
    { HEAD "\x80\xff\x01\x7f\xfe\nend", { "line 2: unknown word", "must be [SET.]NAME" } },
    { "\xff\xd8\xff\xe0\x10JFIF", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
};

/* Whether reasons and log say the same sentence, once, and it holds `says`. */
static void check_sentence(const attn_params *p, const char *const *says)
{
    const attn_info info = explained(p);
    const char *found = strstr(info.reasons, "tuning is ignored: line ");
    CHECK(heard.logs == 1 && heard.level == ATTN_LOG_WARNING, "%d sentences, level %d", heard.logs,
          heard.level);
    CHECK(strncmp(heard.text, "tuning is ignored: line ", 24) == 0, "log: '%s'", heard.text);
    CHECK(found != NULL && strstr(found, heard.text) == found, "reasons: '%s', log: '%s'",
          info.reasons, heard.text);
    CHECK(strpbrk(heard.text, "\n\r\t\x7f") == NULL, "control characters: '%s'", heard.text);
    for (int i = 0; i < 2 && says != NULL; i++)
        CHECK(strstr(heard.text, says[i]) != NULL, "log: '%s', without '%s'", heard.text, says[i]);
}

/* A damaged text leaves sizes and bits as they are without one. */
static void check_damaged(const reference *r, const char *text, const char *const *says)
{
    attn_params p = r->p;
    attn_info info;
    p.tuning = text;
    info = explained(&p);
    CHECK(info.tile_keys == r->info.tile_keys && info.items == r->info.items &&
              info.key_parts == r->info.key_parts && info.impl == r->info.impl &&
              info.workspace_bytes == r->info.workspace_bytes,
          "sizes changed with '%s'", text);
    if (same_with(r, text, 0))
        check_sentence(&p, says);
}

static void check_damages(void)
{
    for (int s = 0; s < SHAPES; s++)
        if (begin_case("%s: damaged texts", shapes[s].name)) {
            const reference r = make_reference(&shapes[s]);
            for (size_t n = 0; n < LENGTH(damages); n++)
                check_damaged(&r, damages[n].text, damages[n].says);
        }
}

/* The name of the set that runs such a call. */
static const char *set_of(const struct shape *s)
{
    const attn_params p = make_sizes(s);
    return explained(&p).kernels_name;
}

/* A file as `bench tune` writes it, for the sets that run `shape` and for one that does not. */
static void good_file(const struct shape *s, char *text, size_t bytes)
{
    snprintf(text, bytes,
             "attn-tuning 1\n# some machine, 2026-01-01\n\n%s.tile_keys 32 # fewer\n"
             "%s.item_rows 48\nitem_bytes 65536\nnone.ahead 1\nahead 0\nsplit_work 1000000\n"
             "auto_naive_keys 64\nend\n",
             set_of(s), set_of(s));
}

/* Cut off at any byte before 'end' is complete it is damaged; after it only white space is left. */
static void check_cuts(void)
{
    char text[400];
    size_t whole;
    if (!begin_case("a good file cut off at every byte"))
        return;
    good_file(&shapes[DECODE], text, sizeof text);
    whole = strlen(text) - 1;
    for (int s = DECODE; s <= SPLIT; s += SPLIT - DECODE) {
        const reference r = make_reference(&shapes[s]);
        CHECK(same_with(&r, text, 0) && heard.logs == 0, "the whole file: '%s'", heard.text);
        for (size_t length = 0; length <= whole; length += s == DECODE ? 1 : 5) {
            char *cut = test_alloc_at(length + 1, PLACE_PAGE_AFTER);
            memcpy(cut, text, length);
            cut[length] = 0; /* as it is with a zero byte in the middle of a file */
            if (length < whole)
                check_damaged(&r, cut, NULL);
            else
                CHECK(same_with(&r, cut, 0) && heard.logs == 0, "without a line end: '%s'",
                      heard.text);
        }
    }
}

/* Random bytes in a good file, mostly damage: same bits, at most one sentence. */
/* Any text gives the bits of none, and one sentence at most. */
FUZZ_HARNESS(tuning, "a text as p.tuning: the bits of a call without, and at most one sentence")
{
    const reference r = make_reference(&shapes[rng_chance(50) ? SPLIT : DECODE]);
    char *text = test_alloc_at(count + 1, PLACE_PAGE_AFTER);
    memcpy(text, bytes, count);
    text[count] = '\0';
    same_with(&r, text, rng_chance(50));
    CHECK(heard.logs <= 1, "%d sentences", heard.logs);
}

static void check_garbage(void)
{
    for (int round = 0; round < 40; round++) {
        reference r;
        if (!begin_case("garbage, round %d", round))
            continue;
        r = make_reference(&shapes[round % 2 ? SPLIT : DECODE]);
        for (int i = 0; i < 20; i++) {
            char text[400];
            good_file(&shapes[DECODE], text, sizeof text);
            for (int64_t n = rng_int(1, 6); n > 0; n--) {
                const int64_t at = rng_int(0, (int64_t)strlen(text) - 1);
                text[at] = (char)rng_int(1, 255);
            }
            same_with(&r, text, 0);
            CHECK(heard.logs <= 1, "%d sentences", heard.logs);
        }
    }
}

/* Words far too long: the sentence still says what would be right. */
static void check_long_words(void)
{
    static const struct {
        const char *before;
        char letter;
        const char *after, *says[2];
    } words[] = {
        { HEAD "tile_keys ", '9', " end", { "line 2: tile_keys (9999", "must be a power of two" } },
        { HEAD "ahead ", '0', "2 end", { "line 2: ahead (0000", "must be 0 or 1" } },
        { HEAD "\n", 'x', " 1 end", { "line 3: unknown word 'xxxx", "auto_naive_keys" } },
        { "", 'x', "", { "line 1: ", "it must begin with 'attn-tuning 1'" } },
    };
    for (size_t n = 0; n < LENGTH(words); n++) {
        const size_t before = strlen(words[n].before);
        char *text;
        reference r;
        if (!begin_case("5000 times '%c'", words[n].letter))
            continue;
        text = test_alloc(before + 5000 + strlen(words[n].after) + 1);
        memcpy(text, words[n].before, before);
        memset(text + before, words[n].letter, 5000);
        memcpy(text + before + 5000, words[n].after, strlen(words[n].after) + 1);
        r = make_reference(&shapes[DECODE]);
        check_damaged(&r, text, words[n].says);
    }
}

/* ---- good texts ------------------------------------------------------------------------------ */

/* What says nothing to this machine, or says it in unusual ways. */
static void check_others(void)
{
    static const char *const nothing[] = {
        HEAD "end",
        "attn-tuning 1 end",
        HEAD "none.tile_keys 16\nnone.item_rows 1\nnone.ahead 0\nnone.split_work 1\nend\n",
        HEAD "avx1024.tile_keys 16\nriscv.item_bytes 16384 riscv_narrow.tile_keys 1024 end",
        "# first\n\n" HEAD "# tile_keys 16\nend # tile_keys 16\n# the last line",
        HEAD "item_bytes 1048576 split_work 524288 ahead 1 auto_naive_keys 0\nend",
    };
    for (int s = 0; s < SHAPES; s++)
        if (begin_case("%s: texts for other machines", shapes[s].name)) {
            const reference r = make_reference(&shapes[s]);
            for (size_t n = 0; n < LENGTH(nothing); n++) {
                attn_params p = r.p;
                attn_info info;
                p.tuning = nothing[n];
                info = explained(&p);
                CHECK(same_with(&r, nothing[n], 0) && heard.logs == 0, "'%s'", heard.text);
                CHECK(info.items == r.info.items && info.tile_keys == r.info.tile_keys &&
                          info.workspace_bytes == r.info.workspace_bytes,
                      "sizes changed");
                CHECK(strstr(info.reasons, "tuning: the usual sizes") != NULL, "reasons: '%s'",
                      info.reasons);
            }
        }
}

/* Line ends of other systems, tabs and comments right behind a value are white space. */
static void check_white_space(void)
{
    static const char *const texts[] = {
        "attn-tuning 1\r\ntile_keys 32\r\nend\r\n",
        "attn-tuning 1\rtile_keys 32\rend\r",
        "\tattn-tuning\t1\ttile_keys\n32\f\vend",
        "attn-tuning 1# version\ntile_keys 32# fewer\nend# that is all",
    };
    reference r;
    if (!begin_case("white space"))
        return;
    r = make_reference(&shapes[PREFILL]);
    for (size_t n = 0; n < LENGTH(texts); n++) {
        attn_params p = r.p;
        p.tuning = texts[n];
        CHECK(explained(&p).tile_keys == 32, "tile_keys %d with '%s'", explained(&p).tile_keys,
              texts[n]);
        CHECK(same_with(&r, texts[n], 0) && heard.logs == 0, "'%s'", heard.text);
    }
}

/* Every field at its extremes and between: the same bits, in the least workspace, too. */
static const struct setting {
    const char *name;
    int64_t values[8];
    int count;
} settings[] = {
    { "tile_keys", { 16, 32, 64, 128, 256, 512, 1024 }, 7 },
    { "item_rows", { 1, 2, 47, 48, 384, 4096 }, 6 },
    { "item_bytes", { 16384, 16385, 100000, 1 << 21, 1 << 30 }, 5 },
    { "split_work", { 1, 1 << 16, 1 << 20, 1 << 30 }, 4 },
    { "ahead", { 0, 1 }, 2 },
    { "auto_naive_keys", { 0, 1, 1000, 1 << 20 }, 4 },
};

static void put_setting(char *text, size_t bytes, const char *name, int64_t value)
{
    snprintf(text, bytes, HEAD "%s %lld\nend\n", name, (long long)value);
}

static void check_bits(void)
{
    for (int s = 0; s < SHAPES; s++)
        for (size_t n = 0; n < LENGTH(settings); n++)
            if (begin_case("%s: every %s", shapes[s].name, settings[n].name)) {
                const reference r = make_reference(&shapes[s]);
                for (int i = 0; i < settings[n].count; i++) {
                    char text[80];
                    put_setting(text, sizeof text, settings[n].name, settings[n].values[i]);
                    same_with(&r, text, 0);
                    same_with(&r, text, 1);
                    CHECK(heard.logs == 0, "'%s' with '%s'", heard.text, text);
                }
            }
}

/* A text of random values for the best two sets. */
static void random_text(char *text, size_t bytes)
{
    const attn_kernels *const sets[] = { attn_kernels_get(0), attn_kernels_get(1) };
    size_t at = (size_t)snprintf(text, bytes, HEAD);
    for (int64_t lines = rng_int(1, 10); lines > 0; lines--) {
        const struct setting *s = &settings[rng_int(0, (int64_t)LENGTH(settings) - 1)];
        const attn_kernels *set = sets[rng_int(0, 1)];
        const int named = set != NULL && rng_chance(70);
        at += (size_t)snprintf(text + at, bytes - at, "%s%s%s %lld\n", named ? set->name : "",
                               named ? "." : "", s->name,
                               (long long)s->values[rng_int(0, s->count - 1)]);
    }
    snprintf(text + at, bytes - at, "end\n");
}

static void check_random(void)
{
    for (int round = 0; round < 60; round++)
        if (begin_case("random values, round %d", round)) {
            const reference r = make_reference(&shapes[round % SHAPES]);
            char text[800];
            for (int i = 0; i < 4; i++) {
                random_text(text, sizeof text);
                same_with(&r, text, i % 2);
                CHECK(heard.logs == 0, "'%s' with '%s'", heard.text, text);
            }
        }
}

/* ---- the values take effect ------------------------------------------------------------------ */

static attn_info tuned(const struct shape *s, const char *name, int64_t value)
{
    attn_params p = make_sizes(s);
    attn_info info;
    char text[80], told[80];
    put_setting(text, sizeof text, name, value);
    p.tuning = text;
    info = explained(&p);
    snprintf(told, sizeof told, "; tuning: %s (%lld)", name, (long long)value);
    CHECK(strstr(info.reasons, told) != NULL, "reasons: '%s', without '%s'", info.reasons, told);
    return info;
}

static void check_tile_keys(void)
{
    size_t bytes[2] = { 0, 0 };
    for (int keys = 16; keys <= 1024; keys *= 2)
        for (int s = PREFILL; s <= DECODE; s++) {
            const attn_params usual = make_sizes(&shapes[s]);
            attn_info info = explained(&usual);
            if (keys != info.tile_keys)
                info = tuned(&shapes[s], "tile_keys", keys);
            if (keys / 2 >= usual.seq_len_kv) {
                CHECK(info.tile_keys < keys, "%s: tiles of %d keys, which there are not",
                      shapes[s].name, info.tile_keys);
                continue;
            }
            CHECK(info.tile_keys == keys, "%s: tile_keys %d, not %d", shapes[s].name,
                  info.tile_keys, keys);
            CHECK(info.workspace_bytes > bytes[s], "%s, %d keys: %lu bytes, %lu with half",
                  shapes[s].name, keys, (unsigned long)info.workspace_bytes,
                  (unsigned long)bytes[s]);
            bytes[s] = info.workspace_bytes;
        }
}

/* Row tiles of an item: the number with which they have at most item_rows rows; 12 at most. */
static void check_item_rows(void)
{
    static const int64_t rows[] = { 1, 48, 97, 192, 384, 4096 };
    const struct shape *s = &shapes[PREFILL];
    for (size_t n = 0; n < LENGTH(rows); n++) {
        const attn_info info = tuned(s, "item_rows", rows[n]);
        const int64_t all = s->heads * s->rows / s->kv_heads;
        const int64_t tiles = (all + info.tile_rows - 1) / info.tile_rows;
        int64_t each = rows[n] / info.tile_rows;
        each = each < 1 ? 1 : each > 12 ? 12 : each;
        CHECK(info.items == (tiles + each - 1) / each, "%d rows: %d items of %d tiles",
              (int)rows[n], (int)info.items, (int)tiles);
    }
}

/* Fewer bytes, fewer row tiles that share a copy; never none. */
static void check_item_bytes(void)
{
    const struct shape *s = &shapes[COPIES];
    const attn_info least = tuned(s, "item_bytes", 16384);
    const attn_info most = tuned(s, "item_bytes", 1 << 30);
    const size_t bytes = least.workspace_bytes_per_worker / 2 + most.workspace_bytes_per_worker / 2;
    const attn_info half = tuned(s, "item_bytes", (int64_t)bytes);
    CHECK(least.items == (s->rows + least.tile_rows - 1) / least.tile_rows, "%d items",
          (int)least.items);
    CHECK(half.items < least.items && half.workspace_bytes_per_worker <= bytes,
          "%d items, %lu bytes", (int)half.items, (unsigned long)half.workspace_bytes_per_worker);
    CHECK(most.items < half.items, "%d items, %d with fewer bytes", (int)most.items,
          (int)half.items);
}

static void check_split_work(void)
{
    const struct shape *s = &shapes[SPLIT];
    const int64_t work = s->keys * (s->dim + s->dim_v);
    struct shape small = *s;
    attn_params usual;
    small.keys = 40;
    usual = make_sizes(&small);
    CHECK(tuned(s, "split_work", work).key_parts > 1, "not split at the work of the call");
    CHECK(tuned(s, "split_work", work + 1).key_parts == 1, "split above the work of the call");
    CHECK(tuned(s, "split_work", 1 << 30).items == 1, "split into items");
    CHECK(explained(&usual).key_parts == 1, "40 keys split as usual");
    CHECK(tuned(&small, "split_work", 1).key_parts > 1, "40 keys not split when asked to");
}

/* What reads ahead. */
static int64_t lines_ahead;

static void *count_lines(int kernel, void *first)
{
    const attn_product *p = first;
    if (kernel == SPY_qk || kernel == SPY_pv)
        lines_ahead += p->ahead != NULL ? p->ahead->lines : 0;
    return first;
}

static attn_kernels counting_table(void)
{
    attn_kernels table = spy_on(attn_kernels_get(0), count_lines);
    table.name = "counting";
    lines_ahead = 0;
    return table;
}

static void check_ahead(void)
{
    static const int all[] = { PREFILL, DECODE, SPLIT, WITH_BIAS, WITH_BYTES, WITH_BITS };
#define SMALL HEAD "item_bytes 16384 " /* a cache that K and V of a head do not fit into */
    static const char *const texts[] = {
        SMALL "ahead 1 end",          SMALL "ahead 0 end", SMALL "none.ahead 0 end",
        SMALL "counting.ahead 0 end", SMALL "end",         HEAD "end"
    };
    enum { USUAL = 5 }; /* K and V of many rows stay in the cache */
    for (size_t n = 0; n < LENGTH(all); n++)
        for (size_t i = 0; i < LENGTH(texts); i++) {
            const attn_kernels table = counting_table();
            attn_params p = make_call(&shapes[all[n]]);
            p.kernels = &table;
            p.tuning = texts[i];
            CHECK(test_run(&p) == ATTN_OK && spy.calls[SPY_qk] + spy.calls[SPY_qk_runs] > 0,
                  "attn_forward failed");
            if (all[n] != SPLIT || (i % 2 == 1 && i != USUAL)) /* parts of keys need not */
                CHECK((lines_ahead > 0) == (i == USUAL ? all[n] == DECODE : i % 2 == 0),
                      "%s, '%s': %lld lines asked for ahead", shapes[all[n]].name, texts[i],
                      (long long)lines_ahead);
        }
}

/* A word with a set is for that set only, one without for all; of several the last one counts. */
static void check_sets(void)
{
    const char *wide = set_of(&shapes[PREFILL]), *narrow = set_of(&shapes[DECODE]);
    const int two = strcmp(wide, narrow) != 0;
    attn_params p[2];
    char text[200];
    p[0] = make_sizes(&shapes[PREFILL]);
    p[1] = make_sizes(&shapes[DECODE]);
    snprintf(text, sizeof text, HEAD "tile_keys 16\n%s.tile_keys 32\nend", wide);
    p[0].tuning = p[1].tuning = text;
    CHECK(explained(&p[0]).tile_keys == 32, "%s: %d", wide, explained(&p[0]).tile_keys);
    CHECK(explained(&p[1]).tile_keys == (two ? 16 : 32), "%s: %d", narrow,
          explained(&p[1]).tile_keys);
    snprintf(text, sizeof text, HEAD "%s.tile_keys 512\n%s.tile_keys 64\nend", narrow, wide);
    CHECK(explained(&p[0]).tile_keys == 64, "%s: %d", wide, explained(&p[0]).tile_keys);
    CHECK(explained(&p[1]).tile_keys == (two ? 512 : 64), "%s: %d", narrow,
          explained(&p[1]).tile_keys);
    snprintf(text, sizeof text, HEAD "%s.tile_keys 512\ntile_keys 16\nend", wide);
    CHECK(explained(&p[0]).tile_keys == 16, "the last one: %d", explained(&p[0]).tile_keys);
}

/* What the caller asks for comes first. */
static void check_caller(void)
{
    attn_params p = make_sizes(&shapes[PREFILL]);
    p.tuning = HEAD "tile_keys 32 auto_naive_keys 1000\nend";
    p.tile_keys = 512;
    CHECK(explained(&p).tile_keys == 512, "tile_keys %d", explained(&p).tile_keys);
    p.impl = ATTN_IMPL_AUTO;
    p.auto_naive_keys = p.seq_len_kv - 1;
    CHECK(explained(&p).impl == ATTN_IMPL_TILED, "auto_naive_keys of the text won");
    p.tuning = HEAD "auto_naive_keys 1\nend";
    p.auto_naive_keys = p.seq_len_kv;
    CHECK(explained(&p).impl == ATTN_IMPL_NAIVE, "auto_naive_keys of the text won");
}

/* auto_naive_keys is for impl=auto only. */
static void check_auto(void)
{
    static const int impls[] = { ATTN_IMPL_DEFAULT, ATTN_IMPL_TILED, ATTN_IMPL_NAIVE };
    char text[80];
    attn_params p = make_sizes(&shapes[PREFILL]);
    p.tuning = text;
    for (size_t n = 0; n < LENGTH(impls); n++) {
        p.impl = impls[n];
        for (int64_t keys = 0; keys <= 1 << 20; keys = 2 * keys + 1) {
            put_setting(text, sizeof text, "auto_naive_keys", keys);
            CHECK(explained(&p).impl == (impls[n] == ATTN_IMPL_NAIVE ? impls[n] : ATTN_IMPL_TILED),
                  "impl %d with auto_naive_keys %d", impls[n], (int)keys);
        }
    }
    p.impl = ATTN_IMPL_AUTO;
    for (int64_t more = -1; more <= 1; more++) {
        put_setting(text, sizeof text, "auto_naive_keys", p.seq_len_kv + more);
        CHECK(explained(&p).impl == (more < 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE),
              "%d keys, auto_naive_keys %d more: %s", (int)p.seq_len_kv, (int)more,
              explained(&p).impl_name);
    }
}

/* Naive keeps its bits, whatever the text says of tiles (impl=auto included). */
static void check_auto_bits(void)
{
    struct shape s = shapes[NAIVE];
    reference naive = make_reference(&s);
    naive.p.impl = ATTN_IMPL_AUTO;
    same_with(&naive, HEAD "auto_naive_keys 100 tile_keys 16 end", 0);
    s.impl = ATTN_IMPL_TILED;
    naive = make_reference(&s);
    naive.p.impl = ATTN_IMPL_AUTO;
    same_with(&naive, HEAD "auto_naive_keys 99 tile_keys 16 end", 0);
}

/* ---- workspace ------------------------------------------------------------------------------- */

/* Whether the workspace for these rows and keys holds every call of fewer. */
static void check_room(int64_t rows, int64_t keys, int dtype, int workers, const char *text)
{
    enum {
        HEADS = 8,
        DIM = 64,
        LONGEST = 5000,
        BYTES = LONGEST * HEADS * DIM * (int)sizeof(float)
    };
    static const int64_t lengths[] = { 1, 2, 4, 9, 24, 25, 64, 100, 256, 1024, 5000 };
    attn_params p = { .batch = 1, .num_heads_q = HEADS, .num_heads_kv = 2, .head_dim = DIM };
    size_t room = 0;
    char why[200], *there;
    p.k.dtype = p.v.dtype = dtype;
    p.num_workers = workers;
    p.tuning = text;
    p.seq_len_q = rows;
    p.seq_len_kv = keys;
    CHECK(attn_workspace_size(&p, &room) == ATTN_OK, "attn_workspace_size failed");
    there = malloc(4 * (size_t)BYTES + room); /* Nothing is read or written there. */
    p.q.data = there;
    p.k.data = there + BYTES;
    p.v.data = there + 2 * BYTES;
    p.o.data = there + 3 * BYTES;
    for (size_t n = 0; n < LENGTH(lengths) && lengths[n] <= keys; n++)
        for (size_t m = 0; m < LENGTH(lengths) && lengths[m] <= rows; m++) {
            p.seq_len_q = lengths[m];
            p.seq_len_kv = lengths[n];
            CHECK(strcmp(attn_check(&p, there + 4 * BYTES, room, why, sizeof why), "ok") == 0,
                  "room for %d rows of %d keys, %d of %d with '%s': %s", (int)rows, (int)keys,
                  (int)lengths[m], (int)lengths[n], text, why);
        }
    free(there);
}

/* The hardest: few tile_keys for the wide set, many for its narrow form; so few rows that two tiles
 * of the wide set take them, and one chunk of keys, so that there is little memory for states. */
static void check_shorter(void)
{
    char text[800];
    for (int round = 0; round < 200; round++) {
        if (!begin_case("workspace of shorter calls, round %d", round))
            continue;
        random_text(text, sizeof text);
        if (round % 4 == 0 && attn_kernels_get(1) != NULL)
            snprintf(text, sizeof text, HEAD "tile_keys 1024\n%s.tile_keys %d\nend",
                     attn_kernels_get(0)->name, 16 << round / 4 % 4);
        for (int workers = 1; workers <= 4; workers += 3) {
            const int64_t rows = rng_int(1, rng_chance(50) ? 30 : 2000);
            const int64_t keys = rng_chance(50) ? 1024 : 5000;
            check_room(rows, keys, (int)rng_int(ATTN_F32, ATTN_BF16), workers, text);
        }
    }
}

TEST_GROUP(tuning, RUN_ONCE, "p.tuning: the same bits, sizes as told; a damaged text is none")
{
    static const struct {
        const char *name;
        void (*check)(void);
    } single[] = {
        { "tile_keys takes effect", check_tile_keys },
        { "item_rows takes effect", check_item_rows },
        { "item_bytes takes effect", check_item_bytes },
        { "split_work takes effect", check_split_work },
        { "ahead takes effect", check_ahead },
        { "words of one set", check_sets },
        { "the caller first", check_caller },
        { "auto_naive_keys", check_auto },
        { "bits of impl=auto", check_auto_bits },
    };
    for (size_t i = 0; i < LENGTH(single); i++)
        if (begin_case("%s", single[i].name))
            single[i].check();
    check_damages();
    check_cuts();
    check_garbage();
    check_long_words();
    check_others();
    check_white_space();
    check_bits();
    check_random();
    check_shorter();
}
