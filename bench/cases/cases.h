/* cases.h - one thing to measure and what came of it; masks, paths, presets.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include <stddef.h>
#include <stdint.h>

#include "../../attn.h"
#include "columns.h"

/* ---- data.c: reproducible inputs. */

enum { DATA_Q, DATA_K, DATA_V, DATA_DOUT }; /* of q, k, v; of the gradient by o */

typedef enum data_kind {
    DATA_TRIG,  /* q = sin, k = cos, v = tan of the running index, kept off the poles of tan; dout
                 * = cos */
    DATA_NORMAL /* standard normal numbers from a seed; a million of them, again and again */
} data_kind;

/* Fills n elements of storage type dtype (an attn_dtype) for tensor `which`. */
void data_fill(void *out, int dtype, size_t n, int which, data_kind kind, uint64_t seed);

/* ---- case.c: one thing to measure and what came of it. */

typedef enum case_layout {
    LAYOUT_BHSD, /* [batch, head, seq, dim] */
    LAYOUT_BSHD  /* [batch, seq, head, dim]: the rows of a head are heads * dim elements apart */
} case_layout;

/* What a case shares the tensors of the first one of its group for: all but this is the same. */
typedef enum case_shares {
    SHARES_NOTHING,
    SHARES_BUT_THREADS,
    SHARES_BUT_MASK,
    SHARES_BUT_PATTERN, /* mask, branches, what is kept between calls */
    SHARES_BUT_KEYS,    /* where the keys lie, how they are turned */
    SHARES_BUT_STORAGE, /* types of k and v, how scores are computed: q and o alone are shared */
    SHARES_BUT_GEMMS    /* how the products of a backward call are divided, and threads */
} case_shares;

/* Where k and v lie: all but the first are caches of attn_cache.h. */
typedef enum keys_kind { KEYS_PLAIN, KEYS_CONTIGUOUS, KEYS_RING, KEYS_PAGED } keys_kind;

/* Products of numbers rounded to bf16 (p.fast): computed where the CPU has units for them, or what the
 * case is about, so that it is skipped elsewhere. */
typedef enum case_fast { FAST_OFF, FAST_ALLOWED, FAST_NEEDED } case_fast;

/* How keys are turned that a case appends. */
typedef enum keys_rope { KEYS_UNTURNED, KEYS_ROPE, KEYS_ROPE_TABLE } keys_rope;

typedef struct case_keys {
    keys_kind kind;
    int64_t page_size; /* of KEYS_PAGED; 0 otherwise */
    int64_t shared;    /* first keys that are the same in all batch entries: in pages that these
                        * share, else a copy for each; 0 = none */
    int64_t recent;    /* keys that a row reads unrounded: attn_cache.recent */
    int untold;        /* the call is not told that they are the same */
    int typed;         /* k and v are stored as follows; 0 = as the case's dtype says */
    int k_dtype, v_dtype;
    keys_rope rope;
} case_keys;

/* Dilated attention: the branches of attn_long.h, and how their results become one. */
enum { DILATED_MAX_BRANCHES = 8 };
typedef struct case_dilated {
    int branches; /* 0 = the case is dense */
    int64_t segment[DILATED_MAX_BRANCHES], dilation[DILATED_MAX_BRANCHES];
    int rotate;   /* head h begins at position h mod dilation of a segment; else at 0 */
    int groups;   /* the heads are divided among the branches; else each head has all of them */
    int mean;     /* of the branches' results; else one softmax over all of them, by LSE */
    int gathered; /* what takes part is copied first; else read where it lies */
} case_dilated;

/* What is in the case's name, so that options leave it alone. */
enum {
    FIXED_MASK = 1,
    FIXED_STORAGE = 2,
    FIXED_LAYOUT = 4,
    FIXED_PASS = 8,
    FIXED_ALL = 15,
    FIXED_PATTERN = 16 /* branches, merging, what is kept: the preset's list has heeded them */
};

typedef struct bench_case {
    const char *preset, *scenario; /* scenario: cases that one winner is named for */
    char name[48];
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v;
    int mask;          /* a mask_kind of masks.h */
    int64_t mask_size; /* of windows, chunks and cells; 0 = goes with the shape */
    int dtype;
    case_keys keys;
    int integer; /* scores of quantised keys in whole numbers: p.integer */
    int fast;    /* products of numbers rounded to bf16: a case_fast */
    int appends; /* attn_cache_append of seq_q = seq_kv keys an entry, in place of attention */
    case_dilated dilated;
    int pattern_anew; /* index of what takes part, or cells of a mask: in every call */
    int memory_anew;  /* workspace: allocated for every call and freed after it */
    int backward;     /* attn_backward in place of attn_forward, whose result it needs, untimed */
    int gemms;        /* matrix products of a tile of it: 5 or 7; 0 = as the library chooses */
    data_kind data;
    case_layout layout;     /* of q, k, v and o */
    int warmup, iterations; /* iterations 0: doubled until min_time */
    double max_time;        /* seconds that a call and all samples may take; 0 = any */
    int device_iterations;  /* of paths of a device; 0 = the same */
    const char *kernels;    /* NULL = those of the command line, or the best */
    const char *impl;       /* see path_wanted; NULL = those of the command line */
    int group;              /* neighbours of one group are timed in turn; 0 = alone */
    int threads;            /* 0 = those of the command line */
    int ranks;              /* processes that share it; 0 = it has one */
    case_shares shares;
    int fixed;       /* FIXED_... */
    int naive_whole; /* the naive path materialises the logits of all heads at once */
} bench_case;

/* What came of a case: the columns, and what only the bench itself looks at. */
#define RESULT_TEXT(key, ...) const char *key;
#define RESULT_NAME(key, member, bytes, ...) char member[bytes];
#define RESULT_INT(key, ...) int64_t key;
#define RESULT_REAL(key, ...) double key;

typedef struct bench_result {
    RESULT_COLUMNS(RESULT_TEXT, RESULT_NAME, RESULT_INT, RESULT_REAL, RESULT_REAL)
    int place, on_gpu;  /* place: a path_device */
    int absent;         /* nowhere on this machine or in this build: no case has the path */
    case_shares shares; /* with the case that speedup is over */
    const bench_case *from;
    char skipped[280]; /* why it was not timed; "" = it was */
} bench_result;

const char *case_layout_name(case_layout layout);
const char *case_dtype_name(int dtype);
const char *case_data_name(data_kind data);
const char *case_keys_name(keys_kind kind);
const char *case_pass_name(const bench_case *c);

/* Of the result: how branches are merged, how their rows are reached, which heads have which, and
 * whether a pattern and the workspace are kept between calls. */
const char *case_merge_name(const bench_case *c);
const char *case_variant_name(const bench_case *c);
const char *case_heads_name(const bench_case *c);
const char *case_pattern_name(const bench_case *c);
const char *case_memory_name(const bench_case *c);

/* Sets the storage of k and v, "f16", or "q8_0/q4_0": K, then V. 0 = there is no such type, and the case
 * is of no use. */
int case_set_types(bench_case *c, const char *text);

/* Storage types of k and v, and the bytes of a key and its value. */
int case_k_dtype(const bench_case *c);
int case_v_dtype(const bench_case *c);
double case_key_bytes(const bench_case *c);
/* Bytes of n numbers, which are whole units; numbers of a unit. */
size_t case_bytes(int dtype, int64_t n);
/* The bytes of a row of n numbers, with its scale. */
size_t case_row_bytes(int dtype, int64_t n);
/* Each row of i8 has this scale, 1/21, in an array of its own: no number of data_fill exceeds 6. */
#define CASE_SCALE (1.0f / 21)
int case_unit(int dtype);

/* Whether batch entries share pages. */
int case_forks(const bench_case *c);

/* Keys that are stored, those of shared pages once. */
double case_stored_keys(const bench_case *c);

/* ---- model.c: what a case costs on paper. */

typedef struct bench_model {
    double pairs;          /* visible (query, key) pairs over batch and heads, counted exactly; a
                          * dilated case's once for each branch that shows them */
    double flops;          /* 2 * pairs * (head_dim + head_dim_v); of a backward call 2 * pairs *
                          * (3 head_dim + 2 head_dim_v), its five products */
    double kv_token_bytes; /* k and v of one key, all heads */
    double kv_bytes;       /* k and v as they are stored */
    double tensor_bytes;   /* q, k, v and o; those that only append have no q and o; backward twice,
                          * for the gradients, and stats */
    double logits_bytes;   /* of the whole batch * heads * seq_q * seq_kv matrix, f32 */
} bench_model;

/* The bytes alone, at once; model_of also counts pairs, in proportion to batch * seq_q. */
void model_sizes(const bench_case *c, bench_model *out);
void model_of(const bench_case *c, bench_model *out);

/* FLOPs for each byte of tensor_bytes, each read or written once: what a call needs at least. */
double model_intensity(const bench_model *m);

/* Which limit binds a call of that intensity: "compute" or "memory"; "" = a peak is unknown. */
const char *model_roof(double intensity, double gflops, double gbytes_per_s);

/* What the formula asks for beside the tensors: naive the logits of one head for each thread that
 * has a head, backward the probabilities and their gradients for each that has a kv head; tiled its
 * workspace, which does not depend on the length, backward not on its square (the library's own
 * figure). */
double model_theory_bytes(const bench_case *c, int naive, int threads, double workspace_bytes);

/* Workspace as a share of the whole batch * heads * seq_q * seq_kv matrix in f32. */
double model_matrix_share(const bench_model *m, double workspace_bytes);

/* ---- masks.c: the masks that a case can have, and how many pairs each of them shows.
 *
 * One table: name, what it sets in attn_params (with small arrays of its own) and its visible
 * pairs, counted here from the definition and not by the library. Masks that a length alone does
 * not settle follow a fixed pattern of the case's shape, see masks.c. */

typedef enum mask_kind {
    MASK_FULL, /* none */
    /* by position */
    MASK_CAUSAL,
    MASK_CAUSAL_TOP_LEFT,
    MASK_CAUSAL_OFFSET,
    MASK_WINDOW,
    MASK_WINDOW_BOTH,
    MASK_CHUNKED,
    MASK_PREFIX,
    /* by lengths and documents */
    MASK_KV_LENGTHS,
    MASK_Q_LENGTHS,
    MASK_LEFT_PADDING,
    MASK_VARLEN,
    MASK_DOCUMENTS,
    /* by arrays and callbacks */
    MASK_BOOLEAN,
    MASK_BITS,
    MASK_BLOCKS,
    MASK_BLOCKS_CSR,
    MASK_BLOCKS_TENTH,
    MASK_LOCAL_GLOBAL,
    MASK_LOCAL_STRIDED,
    MASK_BIGBIRD,
    MASK_LISTED,
    MASK_CALLBACK,
    MASK_CALLBACK_TILES,
    MASK_TREE,
    /* modifiers of the logits, which hide nothing */
    MASK_BIAS,
    MASK_BIAS_F16,
    MASK_BIAS_BF16,
    MASK_ALIBI,
    MASK_SOFTCAP,
    MASK_SCORE,
    /* and of the softmax */
    MASK_SINKS,
    MASK_SOFTMAX1,
    MASK_DROPOUT,
    MASK_INSIGHT,
    MASK_TOP8,
    MASK_MASS,
    /* and keys left out, which forward calls of impl tiled alone do */
    MASK_ALIBI_SKIP,
    NUM_MASKS
} mask_kind;

const char *mask_name(int kind);
const char *mask_what(int kind);

/* The kind of this name; -1 = there is none. */
int mask_find(const char *name);

/* Visible (query, key) pairs of the case over batch and heads, exactly. Takes time in proportion to
 * batch * seq_q. */
double mask_pairs(const bench_case *c);

/* Whether attn_explain counts the pairs of this kind, too: others it counts as visible. */
int mask_explained(int kind);

/* Whether every key is seen by some row, so that all of k and v is read. */
int mask_reads_all(int kind);

/* Whether attn_long.h builds the cells of this kind. */
int mask_is_pattern(int kind);

/* Whether the kind adds a bias for each pair. */
int mask_has_bias(int kind);

/* Derivative of the score callback of MASK_SCORE. */
float mask_score_derivative(void *user, const attn_pair *at, float logit);

/* Bytes of the arrays whose size goes with seq_q * seq_kv. */
double mask_bytes(const bench_case *c);

enum { MASK_MAX_ARRAYS = 3 };

typedef struct mask_arrays {
    void *owned[MASK_MAX_ARRAYS];
    int n;
} mask_arrays;

/* The layout of the case's tensors: varlen packs them as [token, head, dim], whatever it says. */
case_layout mask_layout(const bench_case *c);

/* Sets the fields of the mask in *p, which holds the sizes of the case; varlen changes these.
 * 0 = no memory; mask_free in any case. */
int mask_set(const bench_case *c, attn_params *p, mask_arrays *arrays);

/* Builds the cells of a pattern once more, where they are, as a program does that keeps none; 0 =
 * failed. For others it does nothing. */
int mask_again(const bench_case *c, mask_arrays *arrays);

void mask_free(mask_arrays *arrays);

/* ---- patterns.c: masks of cells that attn_long.h builds: built once, or in every call.
 *
 * All of them are causal. How many keys a row sees is counted here from the definition of the
 * pattern and not by the library. */

/* Keys that row i sees; cell: rows and keys of a cell. */
int64_t pattern_keys(const bench_case *c, int64_t cell, int64_t i);

/* Builds the cells and sets them in *p; 0 = no memory. */
int pattern_set(const bench_case *c, int64_t cell, attn_params *p, mask_arrays *arrays);

/* Builds them once more, where they are. */
int pattern_again(const bench_case *c, int64_t cell, mask_arrays *arrays);

/* ---- paths.c: the ways in which a case can be computed, by name: implementation, kernels,
 * threads. */

typedef enum path_threads {
    PATH_GIVEN, /* those of the case or of the command line */
    PATH_ONE,
    PATH_MANY /* --threads, or all CPUs */
} path_threads;

typedef enum path_keys {
    PATH_ANY,
    PATH_WHOLE,  /* threads share heads and row tiles alone */
    PATH_DIVIDED /* the library divides the keys among threads: few rows */
} path_keys;

typedef enum path_device {
    PATH_CPU,
    PATH_HOST_ARRAYS,   /* an OpenCL device; arrays of the host, copied or used in place */
    PATH_DEVICE_ARRAYS, /* arrays that are on the device already */
    PATH_EXACT          /* arrays of the host, the bits of the CPU */
} path_device;

/* How a sequence is divided among ranks, as many as threads: see attn_ring.h. */
typedef enum path_ring {
    PATH_ONE_PROCESS,
    PATH_CONTIGUOUS,
    PATH_ZIGZAG,
    PATH_STRIPED,
    PATH_GATHER /* contiguous; all keys come to every rank first */
} path_ring;

typedef struct bench_path {
    const char *name, *impl; /* impl: of attn_params_from_string */
    const char *what;
    const char *kernels;   /* set; NULL = that of case or command line, or the best */
    const char *otherwise; /* the set where the CPU cannot run that one; NULL = none */
    path_threads threads;
    path_keys keys;
    int usual, ranked; /* runs where nothing else is said; is one of --impl all */
    path_device device;
    path_ring ring;
} bench_path;

enum { PATHS_MAX = 24 };

const bench_path *path_get(int index);         /* NULL beyond the last */
const bench_path *path_find(const char *name); /* NULL = there is none */
int path_index(const bench_path *path);

/* The path's kernels for this number of rows a tile, a narrow set where the library would take one too;
 * NULL where the path leaves the choice open or this CPU cannot run them. */
const attn_kernels *path_kernels(const bench_path *path, int64_t rows);

/* 1 = it can run on this machine with these threads; 0, and why holds the reason. */
int path_usable(const bench_path *path, int threads, char *why, size_t bytes);

/* Whether it appends to a cache in place of attention. */
int path_appends(const bench_path *path);

/* Text for p.tuning without which the path would not be what its name says; NULL = none. */
const char *path_tuning(const bench_path *path);

/* Whether keys divided into this number of parts are what the path is about. */
int path_fits(const bench_path *path, int key_parts, int threads, char *why, size_t bytes);

typedef struct path_list {
    const bench_path *paths[PATHS_MAX];
    int n, given; /* given: by --impl; else each case takes its own of all */
    int device;   /* one of a device is named, not only meant by "all" */
} path_list;

/* "a,b" or "all", or NULL: no --impl; 0 and the wrong name in why. */
int path_list_parse(const char *text, path_list *list, char *why, size_t bytes);

/* Whether a case runs so that asks for this impl: the name of a path, "all", "devices" = each of a
 * device, NULL = the usual. */
int path_wanted(const path_list *list, const char *impl, const bench_path *path);

/* Whether such a case runs with several threads by one of its paths. */
int path_list_has_threads(const path_list *list, const char *impl);

/* Whether such a case runs on a device, which there is, by one of its paths. */
int path_list_has_device(const path_list *list, const char *impl);

/* ---- presets.c: named lists of cases. */

enum { PRESETS_MAX_CASES = 1024, PRESETS_MAX_SEQ_LEN = 1048576 };

typedef struct case_list {
    bench_case cases[PRESETS_MAX_CASES + 1]; /* one more, for those that are lost */
    int n;
    int lost; /* cases that found no place: nothing may be measured then */
} case_list;

typedef struct preset_choice {
    int quick;           /* the reduced list */
    const char *kernels; /* NULL, or the only set wanted by presets that compare sets */
    int threads;         /* that presets compare with one thread */
    int64_t max_seq_len; /* of preset extreme */
    /* of preset dilated: */
    const bench_case *sizes; /* those above 0 are taken; NULL = the preset's */
    case_dilated dilated;    /* its branches are taken; none = the preset's */
    /* 0 = both, 1 = the first, 2 = the second: LSE or mean, strided or gathered, on or off */
    int ranks; /* most ranks of a ring; 0 = the preset's */
    int merge, variant, pattern_cache, memory_pool;
} preset_choice;

/* Appends the cases of a preset, or with "all" those of every one. 0 = no such preset. */
int preset_cases(const char *name, const preset_choice *want, case_list *list);

/* "N,N,..." of 1 to 2^28 each: how many, at most `most`; 0 = the text is something else. */
int case_sizes(const char *text, int64_t *sizes, int most);

/* Appends the case of a text "B,Hq,Hkv,Sq,Skv,D[,Dv]"; 0 = not such a text. */
int shape_case(const char *text, case_list *list);

/* Name and purpose of preset i; 0 beyond the last. */
int preset_describe(int i, const char **name, const char **what);

/* ---- list.c: what `bench --list` prints. */

void list_presets(void);
void list_masks(void);

/* threads: of cases that do not say. */
void list_cases(const case_list *list, int threads);

#endif
