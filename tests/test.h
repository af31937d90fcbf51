/* test.h - what every test group shares: options, cases, checks, random numbers, guarded memory.
 * SPDX-License-Identifier: MIT
 *
 * A group is a function that begins with TEST_GROUP, in any file of this folder: `make` finds it. It
 * opens cases and makes checks:
 *
 *     TEST_GROUP(example, RUN_ONCE, "what it shows, for build/test --list")
 *     {
 *         for (int d = 1; d <= 8; d++) {
 *             if (!begin_case("head_dim %d", d)) continue;     // --case N leaves the others out
 *             float *x = test_alloc((size_t)d * sizeof *x);    // freed by the next begin_case
 *             x[0] = rng_normal();                             // same numbers when run alone
 *             CHECK(x[0] < 9.0f, "x[0] = %g", (double)x[0]);
 *         }
 *     }
 *
 * Nothing here is safe to call from several threads at once.
 */
#ifndef ATTN_TESTS_TEST_H
#define ATTN_TESTS_TEST_H

#include "../attn_simd.h"

#include <stddef.h>
#include <stdint.h>

/* ---- options: what the command line asked for and which kernel set is under test */

typedef struct test_options {
    uint64_t seed;
    const char *kernels;         /* name of the set under test now; NULL in groups that run once */
    const char *only;            /* --kernels, or NULL */
    int best;                    /* nonzero: under test is the best set, or the one asked for */
    int impl;                    /* --impl, an attn_impl; ATTN_IMPL_DEFAULT = not given */
    int storage;                 /* --storage, an attn_dtype; ATTN_F32 = not given */
    int force_redo;              /* --redo */
    int fast;                    /* under test is the set that p.fast allows */
    const char *device;          /* the word after --impl that asks for one; NULL = none */
    const attn_backend *backend; /* --impl opencl...: runs every call that names none */
    int exact;             /* what runs promises the bits of docs/canon.md: CPU, --impl opencl */
    int verbose;           /* --verbose */
    int first;             /* --first */
    int64_t only_case;     /* --case N: the only case to run; -1 = all */
    const char *case_name; /* --case NAME: the only cases to run; only_case is >= 0 then */
    const attn_kernels *table; /* not NULL: this table is used, whatever the name (mutants) */
    int argc;                  /* arguments after "--", for a group's own use */
    char **argv;
} test_options;
extern test_options T;

/* The kernel sets that round, the best first. */
enum { ROUNDING_SETS = 3 };
extern const char *const rounding_sets[ROUNDING_SETS];

/* The one that p.fast allows here, or that --kernels asks for; NULL = none. */
const attn_kernels *test_rounding_set(void);

/* Each set: once for each kernel set; fewer: those, but for other sets than the best of this CPU and
 * the one asked for only one case in four, as random ones differ little in what kernels see; rounded:
 * once for each set, and once for each that p.fast allows here. */
enum { RUN_ONCE, RUN_EACH_SET, RUN_FEWER, RUN_ROUNDED_TOO, RUN_IF_NAMED };

/* Begins a line, and ends one: see the Makefile. */
#define TEST_GROUP(name, runs, what)                                                               \
    void test_##name(void);                                                                        \
    void test_##name(void)

/* Begins a line, too: what a fuzzer runs with bytes of its choice, see fuzz/corpus.c. Random numbers
 * are made of the bytes (rng_bytes); those that read texts take the bytes themselves. */
#define FUZZ_HARNESS(name, what)                                                                   \
    void fuzz_##name(const char *bytes, size_t count);                                             \
    void fuzz_##name(const char *bytes, size_t count)

typedef struct test_group {
    const char *name;
    void (*run)(void);
    int runs;
    const char *what;
} test_group;

/* Opens a device for --impl opencl (exact), opencl_free or opencl_naive: T.backend, T.exact,
 * T.impl; 0 with a sentence printed if there is none. ATTN_TEST_DEVICE is a part of its name,
 * ATTN_TEST_BUILD_OPTIONS are for its compiler. */
int device_open(const char *impl);
/* What ran on it, what it refused and why, to be printed last; closes it. */
void device_close(void);
/* Whether a device may refuse a call for this reason: the list in tests/device.c. */
int device_refused(const char *reason);

/* Runs the conformance cases of one folder (tests/cases.c), one CHECK or SKIP a case, and one line if
 * `lines` is set; returns nonzero when the folder cannot be read. */
int run_cases(const char *dir, int lines);

/* ---- cases and checks */

#ifndef PRINTF_STYLE /* what mingw's printf takes depends on who has asked for it: see the Makefile */
#define PRINTF_STYLE printf
#endif
#if defined __GNUC__
#define TEST_FORMAT(a, b) __attribute__((format(PRINTF_STYLE, a, b)))
#else
#define TEST_FORMAT(a, b)
#endif

/* Names the case, numbers it, seeds the random numbers from (seed, group, number) and releases the
 * memory of the case before, checking its canaries. 0 = --case leaves this one out: go on. */
int begin_case(const char *format, ...) TEST_FORMAT(1, 2);

/* The same when cases are many and left out often: counts a case as seen without opening it. */
void pass_over_case(void);

/* Whether neither --case nor ATTN_TEST_SAMPLE leaves cases out: only then must something have happened
 * in one of them. */
int all_cases_run(void);

/* Counts a pass or a failure; a failure prints the case, the text and the command that repeats it
 * (the first 20 of a group, all with --verbose). Returns whether the condition held. */
#define CHECK(condition, ...)                                                                      \
    test_check((condition) != 0, __FILE__, __LINE__, #condition, __VA_ARGS__)
int test_check(int held, const char *file, int line, const char *condition, const char *format, ...)
    TEST_FORMAT(5, 6);

/* Counts something that cannot be tested here, and prints why with --verbose. */
#define SKIP(...) test_skip(__VA_ARGS__)
void test_skip(const char *format, ...) TEST_FORMAT(1, 2);

/* Between these two nothing is counted or printed; the second returns how many checks failed: how
 * the selfcheck shows that a planted bug is noticed. */
void capture_begin(void);
int64_t capture_end(void);

/* Checks that failed so far, those between the two not among them. */
int64_t test_failures(void);

/* The worst error seen, in units of its tolerance; printed with the group's closing line. */
void worst_note(double units);
double worst_seen(void);

/* ---- random numbers: xorshift64* seeded through splitmix64 */

uint64_t hash_text(const char *text); /* FNV-1a, 64 bits */
void rng_seed(uint64_t seed);
/* From here to the next rng_seed, choices (rng_int, rng_chance, rng_pick) come from these bytes while
 * there are any. Values come from a generator that the first byte seeds: an input of a few hundred
 * bytes then says what a call is, and a fuzzer changes one thing of it by changing one byte. */
void rng_bytes(const void *bytes, size_t count);
/* What the next numbers depend on, so that something else may be drawn in between. */
typedef struct rng_state {
    uint64_t values, aside;
    unsigned variation;
    const unsigned char *choices, *choices_end; /* of rng_bytes, those not yet used */
} rng_state;
rng_state rng_now(void);
void rng_resume(rng_state state);
uint64_t rng_u64(void);
int64_t rng_int(int64_t low, int64_t high); /* both ends included */
int rng_chance(int percent);
/* From numbers of their own: what is chosen by them changes none of those that follow. */
int64_t rng_aside(int64_t low, int64_t high);
float rng_unit(void);   /* [0, 1) */
float rng_normal(void); /* about normal: mean 0, deviation 1, at most 6 */
int64_t rng_pick(const int64_t *values, int count);
int64_t common_divisor(int64_t a, int64_t b); /* the greatest; of a and 0 it is a */
/* A counter for what should vary but is no data (places, addresses); restarted with every case. */
unsigned test_variation(void);
#define RNG_PICK(array) rng_pick(array, (int)(sizeof(array) / sizeof *(array)))

/* ---- memory: all of it lives until the next begin_case, which checks its margins.
 * ANY alternates between HEAP (64 bytes of canary on both sides), PAGE_AFTER (the last byte is
 * followed by an inaccessible page) and PAGE_BEFORE. Without mmap all are HEAP. */

enum { PLACE_ANY = 0, PLACE_HEAP, PLACE_PAGE_AFTER, PLACE_PAGE_BEFORE };

void *test_alloc(size_t bytes); /* ANY, filled with NaN bytes (0xff); never NULL, also for 0 */
void *test_alloc_at(size_t bytes, int place);
/* Nonzero: every byte is this one. */
int all_bytes(const void *memory, size_t count, int byte);
/* Looks at all margins now; returns how many buffers were overrun. No CHECK of its own. */
int test_margins(void);
/* Frees everything now; begin_case does this. Overruns are counted as failures. */
void test_release(void);
/* For a short-lived buffer: what was allocated after the mark is freed, its margins unchecked. */
int test_mark(void);
void test_release_to(int mark);

/* a * b + c, rounded once; the fmaf of some C libraries (mingw's) is often a bit off. */
float exact_fma(float a, float b, float c);

/* ---- storage types, decoded and encoded without attn.c */

size_t dtype_size(int dtype); /* of f32, f16 or bf16, as in loads and stores */
const char *dtype_name(int dtype);
int dtype_unit(int dtype);                      /* numbers that are stored together */
size_t dtype_bytes(int dtype, int64_t numbers); /* of whole units */
float dtype_load(int dtype, const void *at);
void dtype_store(int dtype, void *at, float value); /* to nearest even, NaN canonical */
uint32_t float_bits(float value);
float float_from_bits(uint32_t bits);

/* ---- tensors [batch, heads, seq, dim] with NaN in every gap and margins around */

enum {
    LAYOUT_PACKED = 0,   /* [b, h, s, d], strides given as 0 */
    LAYOUT_BHSD,         /* the same, strides given as numbers */
    LAYOUT_BSHD,         /* [b, s, h, d]; with cu_seqlens [token, h, d] */
    LAYOUT_PADDED,       /* gaps after every row, head and batch entry */
    LAYOUT_QKV,          /* rows of three tensors interleaved: [b, s, 3, h, d], gaps NaN */
    LAYOUT_NEGATIVE_SEQ, /* last token first */
    LAYOUT_NEGATIVE,     /* all three axes reversed */
    LAYOUT_SHARED_HEADS, /* ATTN_STRIDE_BROADCAST over heads  (inputs only) */
    LAYOUT_SHARED_BATCH, /* ATTN_STRIDE_BROADCAST over batch  (inputs only) */
    LAYOUT_COUNT
};

typedef struct test_tensor {
    int dtype, layout;
    int64_t batch, heads, seq, dim;
    ptrdiff_t stride_batch, stride_head, stride_seq; /* as given: may be 0 or BROADCAST */
    ptrdiff_t step_batch, step_head, step_seq;       /* what they mean */
    void *data;                                      /* element (0, 0, 0, 0) */
    unsigned char *memory, *before;                  /* the whole block, and a copy of it */
    size_t bytes;
} test_tensor;

/* Makes the tensor; elements are NaN. */
void tensor_make(test_tensor *t, int dtype, int layout, int64_t batch, int64_t heads, int64_t seq,
                 int64_t dim);
float tensor_get(const test_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d);
void tensor_set(test_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d, float value);
void tensor_fill_normal(test_tensor *t, float factor); /* every element = factor * rng_normal() */
void tensor_fill(test_tensor *t, float value);
/* Remembers the present bytes as those to come back to. */
void tensor_remember(test_tensor *t);
/* Nonzero: nothing at all changed since tensor_remember (inputs). */
int tensor_unchanged(const test_tensor *t);
/* Nonzero: nothing but elements changed since tensor_remember (outputs). */
int tensor_gaps_unchanged(const test_tensor *t);
attn_tensor tensor_input(const test_tensor *t);
attn_output tensor_output(const test_tensor *t);

static inline int64_t larger64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A stride as an array has it, 0 along a shared axis, and as a call is given it. */
static inline ptrdiff_t step_of(ptrdiff_t stride)
{
    return stride != ATTN_STRIDE_BROADCAST ? stride : 0;
}

static inline ptrdiff_t stride_of(ptrdiff_t step)
{
    return step != 0 ? step : ATTN_STRIDE_BROADCAST;
}

/* A bias whose axes all share one element. */
static inline attn_bias one_element(const float *data)
{
    const ptrdiff_t shared = ATTN_STRIDE_BROADCAST;
    const attn_bias bias = { ATTN_F32, shared, shared, shared, shared, data };
    return bias;
}

/* ---- problems: one call with its tensors */

/* Whether a call is asked for the statistics of its rows. */
enum { STATS_OFTEN = 0, STATS_NEVER, STATS_ALWAYS };

typedef struct test_shape {
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim, dim_v;
    int dtype_q, dtype_k, dtype_v, dtype_o;
    int layout_q, layout_k, layout_v, layout_o;
    float factor_q, factor_k, factor_v; /* of the normal values; 0 = 1 */
    int varlen; /* nonzero: seq_q and seq_kv are totals, cut into `batch` random sequences */
    int no_lse;
    int stats; /* STATS_... */
} test_shape;

typedef struct test_problem {
    attn_params p;
    test_tensor q, k, v, o, lse; /* lse.dim = 1 */
    test_tensor stats;           /* dim = 2; there even where p.stats is empty */
} test_problem;

/* A small random shape: 1..2 batch entries, 1..2 heads, lengths 1..150 biased to the edges of 16,
 * head_dim 1..128; packed f32. */
test_shape shape_random(void);
/* Tensors with normal values, everything else zero. */
void problem_make(test_problem *t, const test_shape *shape);
/* Moves K and V to where caches keep them, NaN between: pages of page_size (0 = none), a ring. */
void problem_scatter(test_problem *t, int64_t page_size, int ring);
/* Moves them to a ring in which key `before` of each sequence lies in the first row. */
void problem_ring(test_problem *t, int64_t page_size, int64_t before);
/* Runs it and checks status, margins, inputs unchanged and output gaps. Nonzero: all held. */
int problem_run(test_problem *t);
/* The same by test_run_small. */
int problem_run_small(test_problem *t, int percent);
/* Nonzero: rows of o, lse, stats and state beyond q_len are as they were made. */
int problem_padding_untouched(const test_problem *t);
/* The same, then compares with the oracle; rows beyond q_len must be untouched. */
double problem_check(test_problem *t);
/* Outputs like t's own that another run can write to: o, lse, stats and p of t are replaced. */
void problem_new_output(test_problem *t);
/* Nonzero: o, lse and stats have the same bits, where both have them. */
int problem_same_bits(const test_problem *a, const test_problem *b);

/* Whether q, k, v and o of these sizes can be in memory: each array has fewer bytes than a quarter of
 * what a ptrdiff_t counts, 512 MiB in a 32-bit program. Else a call must be refused with
 * ATTN_ERR_OVERFLOW. Head widths are given, and no stride but that of the rows of k and v. */
int fits_memory(const attn_params *p);

/* ---- running */

/* A copy of *p with the options of T applied: kernels, impl and redo where p leaves them open. */
attn_params test_params(const attn_params *p);
/* Leaves packed strides 0 (strides.h) in three of four calls, in a layout by chance. */
void test_reword(attn_params *p, attn_gradients *g);
/* attn_forward of test_params(p), reworded, with a workspace of exactly the size asked for, at an odd address,
 * filled with NaN, between canaries, which are checked. Returns the status of attn_forward, or of
 * attn_workspace_size when that failed. */
attn_status test_run(const attn_params *p);
/* Whether attn_forward takes the call by the way of short ones. A run of such a call by the functions here
 * is compared with the long way. */
int test_is_short(const attn_params *p);
/* The smallest workspace that attn_check takes, and a run in it. */
size_t test_least_workspace(const attn_params *p);
attn_status test_run_least(const attn_params *p);
/* The same in a workspace `percent` of the way from there to what is asked for. */
attn_status test_run_small(const attn_params *p, int percent);

/* An error in units of its tolerance; HUGE_VAL where no finite number would say it. */
double tolerance_units(double value, double expected, double tolerance);
/* -0 and NaN with any other bits than the canonical ones are never stored. */
int is_stored_form(int dtype, const void *data, ptrdiff_t index);
/* Runs nothing: compares what *p points to (o, lse, stats; state with p->partial) against the oracle,
 * one CHECK in all. Notes and returns the worst error in units of the tolerance of tests/oracle.h. */
double compare_with_oracle(const attn_params *p);
/* The same where a logit may stand for up to this many keys that are alike. */
double compare_copies_with_oracle(const attn_params *p, int copies);
/* The same for p->logits. */
double compare_logits(const attn_params *p);

#endif
