/* opencl_programs.c - the programs of a device: checked before their first use; kept as bytes and
 * taken back, whatever happened to them meanwhile.
 * SPDX-License-Identifier: MIT
 */
#include "../attn_opencl.h"
#include "gradients.h"
#include "laws.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words of kept programs: see attn_opencl.c. */
enum { MARK, BYTES, SUM, KEY, PROGRAMS, HEAD, NUMBER = HEAD, LENGTH, BINARY };

/* A call, its result on the CPU, and the programs that it needed. */
typedef struct subject {
    attn_opencl_options options;
    test_problem on_cpu;
    int programs;
    unsigned char *kept;
    size_t bytes;
    char heard[200]; /* last warning */
} subject;

static void hear(void *user, int level, const char *sentence)
{
    subject *s = user;
    if (level >= ATTN_LOG_WARNING && sentence[0] != 0)
        snprintf(s->heard, sizeof s->heard, "%s", sentence);
}

static attn_opencl_info info_of(const attn_opencl *gpu)
{
    attn_opencl_info info = { 0 };
    CHECK(attn_opencl_info_get(gpu, &info) == ATTN_OK, "no device");
    return info;
}

static attn_opencl *opened(subject *s, const void *binaries, size_t bytes)
{
    attn_opencl *gpu = test_alloc(attn_opencl_size());
    s->options.binaries = binaries;
    s->options.binaries_bytes = bytes;
    s->options.log = hear;
    s->options.log_user = s;
    s->heard[0] = 0;
    CHECK(attn_opencl_open(gpu, &s->options) == ATTN_OK, "%s", attn_opencl_why(gpu));
    return gpu;
}

static void runs_right(const subject *s, attn_opencl *gpu)
{
    const attn_backend backend = attn_opencl_backend(gpu, NULL);
    test_problem device = s->on_cpu;
    problem_new_output(&device);
    device.p.backend = &backend;
    CHECK(problem_run(&device) && problem_same_bits(&s->on_cpu, &device),
          "other bits than on the CPU");
}

static void make_subject(subject *s)
{
    const test_shape shape = {
        .batch = 1, .heads_q = 2, .heads_kv = 1, .seq_q = 5, .seq_kv = 40, .dim = 8, .dim_v = 8
    };
    attn_opencl *gpu = opened(s, NULL, 0);
    problem_make(&s->on_cpu, &shape);
    CHECK(problem_run(&s->on_cpu), "the CPU refuses");
    runs_right(s, gpu);
    s->programs = info_of(gpu).built;
    s->bytes = attn_opencl_binaries_get(gpu, NULL, 0);
    s->kept = test_alloc(s->bytes + 1);
    CHECK(attn_opencl_binaries_get(gpu, s->kept, s->bytes) == s->bytes, "another size");
    attn_opencl_close(gpu);
}

/* ---- there and back */

static void check_round_trip(subject *s)
{
    attn_opencl *gpu;
    attn_opencl_info info;
    if (!begin_case("programs given at opening"))
        return;
    make_subject(s);
    gpu = opened(s, s->kept, s->bytes);
    runs_right(s, gpu);
    info = info_of(gpu);
    CHECK(s->programs >= 2 && info.built == 0 && info.taken == s->programs,
          "%d built, %d taken, of %d", info.built, info.taken, s->programs);
    CHECK(strcmp(info.binaries_why, "ok") == 0 && s->heard[0] == 0, "%s; %s", info.binaries_why,
          s->heard);
    CHECK(attn_opencl_binaries_get(gpu, NULL, 0) > 0, "taken programs are not kept again");
    attn_opencl_close(gpu);
}

static void check_set(subject *s)
{
    attn_opencl *gpu;
    attn_opencl_info info;
    if (!begin_case("programs given later, twice"))
        return;
    make_subject(s);
    gpu = opened(s, NULL, 0);
    CHECK(attn_opencl_binaries_set(gpu, s->kept, s->bytes) == ATTN_OK, "%s",
          info_of(gpu).binaries_why);
    CHECK(attn_opencl_binaries_set(gpu, s->kept, s->bytes) == ATTN_OK, "%s",
          info_of(gpu).binaries_why);
    memset(s->kept, 0, s->bytes); /* they are copied */
    runs_right(s, gpu);
    info = info_of(gpu);
    CHECK(info.built == 1 && info.taken == s->programs - 1, "%d built, %d taken, of %d", info.built,
          info.taken, s->programs);
    attn_opencl_close(gpu);
}

static void check_room(subject *s)
{
    attn_opencl *gpu;
    unsigned char *to;
    size_t need;
    int touched = 0;
    if (!begin_case("no room, no device"))
        return;
    make_subject(s);
    gpu = opened(s, NULL, 0);
    CHECK(attn_opencl_binaries_set(gpu, NULL, 0) == ATTN_ERR_ARG, "NULL taken");
    CHECK(attn_opencl_binaries_set(NULL, s->kept, s->bytes) == ATTN_ERR_ARG, "taken by nobody");
    runs_right(s, gpu);
    need = attn_opencl_binaries_get(gpu, NULL, 0);
    to = test_alloc(need);
    memset(to, 0xa5, need);
    CHECK(attn_opencl_binaries_get(gpu, to, 10) == need, "another size without room");
    for (size_t i = 0; i < need; i++)
        touched += to[i] != 0xa5;
    CHECK(touched == 0, "%d bytes written", touched);
    CHECK(attn_opencl_binaries_get(gpu, to, need - 1) == need, "another size, a byte missing");
    attn_opencl_close(gpu);
    CHECK(attn_opencl_binaries_get(gpu, to, need) == 0, "programs of a closed object");
    CHECK(attn_opencl_binaries_set(gpu, s->kept, s->bytes) == ATTN_ERR_ARG, "a closed object");
}

/* ---- damage */

static uint64_t word_of(const unsigned char *kept, int word)
{
    uint64_t value;
    memcpy(&value, kept + (size_t)word * sizeof value, sizeof value);
    return value;
}

/* Sets the word and, with `sum`, makes the sum fit. */
static void set_word(unsigned char *kept, size_t bytes, int word, uint64_t value, int sum)
{
    uint64_t x = 0;
    memcpy(kept + (size_t)word * sizeof value, &value, sizeof value);
    for (size_t i = KEY * sizeof x; sum && i < bytes; i++)
        x = (x ^ kept[i]) * 1099511628211u;
    if (sum)
        memcpy(kept + SUM * sizeof x, &x, sizeof x);
}

static void refused(attn_opencl *gpu, const void *kept, size_t bytes, const char *sentence)
{
    const attn_status status = attn_opencl_binaries_set(gpu, kept, bytes);
    const attn_opencl_info info = info_of(gpu);
    CHECK(status == ATTN_ERR_UNSUPPORTED && info.taken == 0, "%s, %d taken",
          attn_status_string(status), info.taken);
    CHECK(strstr(info.binaries_why, sentence) != NULL, "it says \"%s\"", info.binaries_why);
}

/* Every byte of the first words, then one now and then. */
static void check_damaged(subject *s)
{
    attn_opencl *gpu;
    if (!begin_case("a byte of kept programs is damaged"))
        return;
    make_subject(s);
    gpu = opened(s, NULL, 0);
    for (size_t i = 0; i < s->bytes; i += i < BINARY * 8 + 64 ? 1 : s->bytes / 97 + 1) {
        const unsigned char right = s->kept[i];
        s->kept[i] = (unsigned char)(right ^ 1u << rng_int(0, 7));
        refused(gpu, s->kept, s->bytes, "kept programs: ");
        s->kept[i] = right;
    }
    runs_right(s, gpu);
    attn_opencl_close(gpu);
    s->kept[s->bytes / 2] ^= 1;
    gpu = opened(s, s->kept, s->bytes);
    CHECK(info_of(gpu).taken == 0 && strstr(info_of(gpu).binaries_why, "damaged") != NULL, "%s",
          info_of(gpu).binaries_why);
    runs_right(s, gpu);
    attn_opencl_close(gpu);
}

static void check_cut(subject *s)
{
    attn_opencl *gpu;
    if (!begin_case("kept programs are cut off"))
        return;
    make_subject(s);
    gpu = opened(s, NULL, 0);
    for (size_t n = 0; n < s->bytes; n += n < BINARY * 8 + 64 ? 1 : s->bytes / 53 + 1)
        refused(gpu, s->kept, n, n < HEAD * 8 ? "too short" : "cut off");
    refused(gpu, s->kept, s->bytes - 1, "cut off");
    refused(gpu, s->kept, s->bytes + 1, "followed by more");
    for (size_t n = HEAD * 8; n < s->bytes; n += s->bytes / 31 + 8) { /* as if they were all */
        unsigned char *cut = test_alloc(n);
        memcpy(cut, s->kept, n);
        set_word(cut, n, BYTES, n, 1);
        refused(gpu, cut, n, "damaged");
    }
    attn_opencl_close(gpu);
}

/* What no damage brings about, as the sum fits. */
static void check_lies(subject *s)
{
    static const struct {
        int word;
        uint64_t add;
        const char *sentence;
    } lies[] = {
        { MARK, 1, "of another format" },
        { KEY, 1, "of another device, driver or kernels.cl" },
        { PROGRAMS, 1, "damaged" },
        { PROGRAMS, (uint64_t)-1, "damaged" },
        { NUMBER, (uint64_t)1 << 32, "damaged" },
        { NUMBER, (uint64_t)1 << 63, "damaged" },
        { LENGTH, 8, "damaged" },
        { LENGTH, (uint64_t)-16, "damaged" },
        { LENGTH, (uint64_t)1 << 40, "damaged" },
        { LENGTH, (uint64_t)1 << 63, "damaged" },
    };
    attn_opencl *gpu;
    if (!begin_case("kept programs that lie"))
        return;
    make_subject(s);
    gpu = opened(s, NULL, 0);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const uint64_t right = word_of(s->kept, lies[i].word);
        set_word(s->kept, s->bytes, lies[i].word, right + lies[i].add, 1);
        refused(gpu, s->kept, s->bytes, lies[i].sentence);
        set_word(s->kept, s->bytes, lies[i].word, right, 1);
    }
    set_word(s->kept, s->bytes, LENGTH, UINT64_MAX, 1); /* rounded up it is 0 */
    refused(gpu, s->kept, s->bytes, "damaged");
    attn_opencl_close(gpu);
}

static void check_driver(subject *s)
{
    attn_opencl *gpu;
    attn_opencl_info info;
    if (!begin_case("the driver refuses a kept program") || getenv("ATTN_TEST_QUICK") != NULL)
        return; /* some drivers end the process: what is damaged never comes to them */
    make_subject(s);
    memset(s->kept + BINARY * 8, 0, 64);
    set_word(s->kept, s->bytes, PROGRAMS, word_of(s->kept, PROGRAMS), 1);
    gpu = opened(s, s->kept, s->bytes);
    info = info_of(gpu);
    CHECK(strcmp(info.binaries_why, "ok") == 0 && info.taken == s->programs - 1, "%s, %d taken",
          info.binaries_why, info.taken);
    CHECK(strstr(s->heard, "the driver refuses a kept program: OpenCL error") != NULL, "%s",
          s->heard);
    runs_right(s, gpu);
    CHECK(info_of(gpu).built == 1, "%d built", info_of(gpu).built);
    attn_opencl_close(gpu);
}

/* ---- first use */

typedef struct first_use {
    const char *name;
    int64_t rows, keys, dim_v;
    int dtype_k, dtype_v, impl, logits;
    float softcap;
    int quantised; /* K and V get types at random */
} first_use;

static const first_use first_uses[] = {
    { "few rows", 3, 40, 8, ATTN_F32, ATTN_F32, ATTN_IMPL_TILED, 0, 0, 0 },
    { "many rows", 40, 40, 100, ATTN_F16, ATTN_F16, ATTN_IMPL_TILED, 0, 0, 0 },
    { "wide values, modified", 40, 40, 200, ATTN_BF16, ATTN_BF16, ATTN_IMPL_TILED, 0, 5, 0 },
    { "mixed storage, parts", 1, 2100, 8, ATTN_F16, ATTN_F32, ATTN_IMPL_TILED, 0, 5, 0 },
    { "logits", 3, 40, 8, ATTN_F32, ATTN_F32, ATTN_IMPL_TILED, 1, 0, 0 },
    { "naive", 3, 40, 8, ATTN_F32, ATTN_F32, ATTN_IMPL_NAIVE, 0, 0, 0 },
    { "quantised", 3, 40, 32, ATTN_F32, ATTN_F32, ATTN_IMPL_TILED, 0, 0, 1 },
    { "quantised, logits", 40, 40, 160, ATTN_F32, ATTN_F32, ATTN_IMPL_TILED, 1, 0, 1 },
    { "quantised, naive", 3, 40, 32, ATTN_F32, ATTN_F32, ATTN_IMPL_NAIVE, 0, 0, 1 },
};

/* All that must be tried is, at once and only once, and nothing is dropped. */
static void check_first_use(subject *s, const first_use *f, int exact)
{
    attn_backend backend;
    attn_opencl *gpu;
    test_problem t;
    test_shape shape = { .batch = 1, .heads_q = 2, .heads_kv = 1 };
    int built;
    if (!begin_case("first use%s: %s", exact ? ", exact" : "", f->name))
        return;
    shape.seq_q = f->rows;
    shape.seq_kv = f->keys;
    shape.dim_v = f->dim_v;
    shape.dtype_k = f->dtype_k;
    shape.dtype_v = f->dtype_v;
    s->options.exact = exact;
    gpu = opened(s, NULL, 0);
    s->options.exact = 1;
    backend = attn_opencl_backend(gpu, NULL);
    shape.dim = f->quantised ? 32 : 8;
    problem_make(&t, &shape);
    if (f->quantised)
        quantise_for_levels(&t);
    t.p.softcap = f->softcap;
    t.p.impl = f->impl;
    if (f->logits)
        t.p.logits.data = test_alloc((size_t)(2 * f->rows * f->keys) * sizeof(float));
    t.p.backend = &backend;
    CHECK(problem_run(&t), "refused");
    built = info_of(gpu).built;
    CHECK(built >= 1 + exact, "%d programs", built);
    CHECK(problem_run(&t) && info_of(gpu).built == built, "built again");
    CHECK(info_of(gpu).dropped == 0 && s->heard[0] == 0, "%d dropped: %s", info_of(gpu).dropped,
          s->heard);
    attn_opencl_close(gpu);
}

/* Programs of gradients, with what is asked pair by pair and without. */
static void check_first_gradients(subject *s, int pairs, int exact)
{
    const test_shape shape = {
        .batch = 1, .heads_q = 2, .heads_kv = 1, .seq_q = 30, .seq_kv = 40, .dim = 8, .dim_v = 70
    };
    attn_backend backend;
    attn_opencl *gpu;
    attn_backward_info about;
    gradients_case c;
    int built;
    if (!begin_case("first use%s: gradients%s", exact ? ", exact" : "", pairs ? ", modified" : ""))
        return;
    problem_make(&c.t, &shape);
    c.t.p.softcap = pairs ? 5 : 0;
    gradients_attach(&c);
    if (!gradients_forward(&c))
        return;
    s->options.exact = exact;
    gpu = opened(s, NULL, 0);
    s->options.exact = 1;
    backend = attn_opencl_backend(gpu, NULL);
    c.t.p.backend = &backend;
    CHECK(attn_backward_explain(&c.t.p, &c.g, &about) == ATTN_OK &&
              strcmp(about.backend_name, "opencl") == 0,
          "refused: %s", about.reasons);
    built = info_of(gpu).built;
    CHECK(built == 1 + exact, "%d programs", built);
    CHECK(gradients_run(&c) && info_of(gpu).built == built, "built again");
    CHECK(info_of(gpu).dropped == 0 && s->heard[0] == 0, "%d dropped: %s", info_of(gpu).dropped,
          s->heard);
    attn_opencl_close(gpu);
}

static void check_first_uses(subject *s)
{
    for (size_t i = 0; i < 2 * (sizeof first_uses / sizeof *first_uses); i++)
        check_first_use(s, &first_uses[i / 2], i % 2);
    for (int i = 0; i < 4; i++)
        check_first_gradients(s, i / 2, i % 2);
}

TEST_GROUP(opencl_programs, RUN_IF_NAMED, "programs of a device: first use, kept; minutes")
{
    static subject s;
    attn_opencl *gpu = malloc(attn_opencl_size());
    attn_opencl_info info;
    memset(&s, 0, sizeof s);
    s.options.exact = 1;
    s.options.device = getenv("ATTN_TEST_DEVICE");
    s.options.build_options = getenv("ATTN_TEST_BUILD_OPTIONS");
    if (attn_opencl_open(gpu, &s.options) != ATTN_OK) {
        SKIP("%s", attn_opencl_why(gpu));
    } else if (attn_opencl_info_get(gpu, &info) != ATTN_OK || !info.exact) {
        SKIP("%s: %s", info.device, info.exact_why);
    } else {
        check_first_uses(&s);
        check_round_trip(&s);
        check_set(&s);
        check_room(&s);
        check_damaged(&s);
        check_cut(&s);
        check_lies(&s);
        check_driver(&s);
    }
    attn_opencl_close(gpu);
    free(gpu);
}
