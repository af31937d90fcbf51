/* case.h - one thing to measure and what came of it.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_CASE_H
#define BENCH_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "data.h"

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
    SHARES_BUT_STORAGE, /* types of k and v: q and o alone are shared */
    SHARES_BUT_GEMMS    /* how the products of a backward call are divided, and threads */
} case_shares;

/* Where k and v lie: all but the first are caches of attn_cache.h. */
typedef enum keys_kind { KEYS_PLAIN, KEYS_CONTIGUOUS, KEYS_RING, KEYS_PAGED } keys_kind;

/* How keys are turned that a case appends. */
typedef enum keys_rope { KEYS_UNTURNED, KEYS_ROPE, KEYS_ROPE_TABLE } keys_rope;

typedef struct case_keys {
    keys_kind kind;
    int64_t page_size; /* of KEYS_PAGED; 0 otherwise */
    int64_t shared;    /* first keys that are the same in all batch entries: in pages that these
                        * share, else a copy for each; 0 = none */
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
    case_shares shares;
    int fixed;       /* FIXED_... */
    int naive_whole; /* the naive path materialises the logits of all heads at once */
} bench_case;

/* What the result holds, but for `from`, is what table, CSV and JSON show: see fields.c. */
typedef struct bench_result {
    const char *preset, *scenario, *path, *impl, *kernels, *dtype, *mask, *layout, *data;
    const char *pass; /* "forward", "backward"; "none" where keys are appended */
    const char *keys; /* where k and v lie: "plain", or a kind of cache */
    const char *k_dtype, *v_dtype;
    const char *tuning;        /* file whose text was used; "" = none */
    const char *device;        /* its name; "" = the CPU */
    const char *merge;         /* "lse", "mean"; "" = the case is dense */
    const char *variant;       /* "strided", "gathered"; likewise */
    const char *pattern_cache; /* "on", "off": built in every call; "" = there is none */
    const char *memory_pool;   /* "on", "off": workspace in every call */
    const char *branch_heads;  /* "same", "turned", "groups": which heads have which of them */
    char branches[96];         /* see dilated_text */
    char name[48];
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v, threads;
    int64_t row_stride;     /* elements from one row of q to the next */
    int64_t page_size;      /* keys of a page; 0 = not paged */
    int64_t shared_keys;    /* that the call was told of */
    int64_t kv_token_bytes; /* of k and v of one key */
    int64_t kv_bytes;       /* of k and v as they are stored */
    int64_t gemms;          /* products of a tile of a backward call; 0 = it is none */
    int64_t samples, workspace_bytes, peak_rss_bytes;
    int64_t theory_bytes;     /* model.h: beside the tensors, by the formula */
    int64_t rss_growth_bytes; /* of the peak in the first call, in a process of its own; 0 = not
                               * measured: `bench memory` */
    double matrix_share;      /* workspace / the whole matrix of logits */
    double intensity;         /* FLOPs / byte of q, k, v, o; backward of lse and gradients, too */
    double fma_peak_gflops, read_peak_gbytes_per_s; /* of as many threads; from memory */
    const char *roof; /* which of the two binds at this intensity: "compute", "memory" */
    double cycles_p10, cycles_p50; /* of one call, see measure.h; 0 = unknown */
    double ms_min, ms_mean, ms_std, ms_p50, ms_p95, ms_p99, cold_ms;
    double tokens_per_s, gflops;
    double gbytes_per_s;      /* kv_bytes / ms_p50 */
    double read_gbytes_per_s; /* of a loop that reads them, timed in turn; 0 = not for many rows */
    double pct_read_bw;       /* the loop's time / the call's, median of pairs; 0 = the same */
    double speedup;           /* over the case that it shares tensors with, likewise; 0 = none */
    double efficiency;        /* speedup / threads */
    double vs_first;          /* over the first path timed of this case, by P50; 0 = none */
    double visible;           /* share of the pairs that the mask shows */
    double pct_fma_peak, pct_avx2_peak;
    double pct_set_peak;  /* of the peak of the vector unit that the kernel set uses */
    double pct_running;   /* CPU time of its threads / time; below 100: others had the CPU, too */
    double max_err;       /* largest |o - oracle| over the sampled rows */
    double err_tolerance; /* the worst error in units of its tolerance */
    double phase_qk_ms, phase_softmax_ms, phase_pv_ms, phase_merge_ms; /* see phases.h */
    double phase_rest_ms;  /* of the phases' own call; all 0 = not asked for */
    double phase_clock_ms; /* that reading the clock took of it */
    double launch_ms, to_device_ms, compute_ms, to_host_ms; /* of a call on a device, which they add
                                                             * up to; all 0 on the CPU */
    double compute_gflops;                                  /* FLOPs / compute_ms */
    int64_t launches;                                       /* of kernels, by one call */
    int64_t ranks;       /* the sequence is divided among; 0 = one process, not divided */
    int64_t moved_bytes; /* between ranks, by one call */
    double exchange_ms;  /* in the transport, mean of the ranks */
    double rank_balance; /* pairs of the rank that has most / mean of all */
    int place, on_gpu;   /* place: a path_device */
    int absent;          /* nowhere on this machine or in this build: no case has the path */
    case_shares shares;  /* with the case that speedup is over */
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

/* Storage types of k and v, bytes of an element. */
int case_k_dtype(const bench_case *c);
int case_v_dtype(const bench_case *c);
int case_width(int dtype);

/* Whether batch entries share pages. */
int case_forks(const bench_case *c);

/* Keys that are stored, those of shared pages once. */
double case_stored_keys(const bench_case *c);

/* "B,Hq,Hkv,Sq,Skv,D,Dv", as --shape takes it; returns text. */
const char *case_shape(const bench_case *c, char *text, size_t text_bytes);

#endif
