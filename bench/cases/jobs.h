/* jobs.h - what a case needs beside its tensors: caches, branches, gradients, ranks, a device.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_JOBS_H
#define BENCH_JOBS_H

#include <stddef.h>
#include <stdint.h>

#include "../../attn.h"
#include "cases.h"
#include "../machine/machine.h"

/* ---- keys.c: the caches that hold the keys and values of a case.
 *
 * Pages lie in the order of a shuffled free list, as after hours of use, and a ring has gone round
 * once and a third: nothing lies where plain arrays would have it. */

enum { KEYS_APPEND_CAPACITY = 4096 }; /* of a sequence, where a case only appends */

typedef struct keys_store {
    attn_cache cache;
    void *memory;
} keys_store;

/* Bytes of k and v in the case's cache; 0 = it has none. */
double keys_cache_bytes(const bench_case *c);

/* An empty cache for the case, full of NaN. 0 with a sentence in why: there is none; keys_free in
 * any case. */
int keys_make(const bench_case *c, uint64_t seed, keys_store *s, char *why, size_t why_bytes);

/* Appends the plain arrays p->k and p->v to it; 0 with a sentence. */
int keys_fill(const bench_case *c, const attn_params *p, keys_store *s, char *why,
              size_t why_bytes);

/* Sets in *p where the keys lie now; 0 with a sentence. */
int keys_view(const bench_case *c, const keys_store *s, attn_params *p, char *why,
              size_t why_bytes);

void keys_free(keys_store *s);

/* ---- append.c: cases that append keys and values to a cache: the call. */

typedef struct append_job {
    keys_store store;
    attn_rope rope;
    attn_cache_step step;
    float *table;     /* cos, then sin, of every position of the cache; NULL = none */
    float *read_back; /* k, then v, of one sequence, for the check */
} append_job;

/* An empty cache and a step of the plain arrays p->k and p->v. 0 with a sentence in why;
 * append_free in any case. */
int append_make(const bench_case *c, const attn_params *p, uint64_t seed, append_job *job,
                char *why, size_t why_bytes);

/* A measure_fn: appends the step; a cache that is full is emptied before. */
int append_call(void *job);

void append_free(append_job *job);

/* ---- dilated.c: cases of dilated attention: who sees whom, what the call needs, the call.
 *
 * Which branches show a key to a row, and how many pairs that makes, is computed here from the
 * definition of attn_long.h and not by the library. */

/* ---- on paper */

/* "2048/1 4096/2", segment / dilation of each branch; "" where the case is dense. */
enum { DILATED_TEXT = 96 };
const char *dilated_text(const bench_case *c, char text[DILATED_TEXT]);

/* The branches, bit n for branch n, in which the row of head h at position i and key j take part in
 * the same segment; masks hide further pairs. */
unsigned dilated_branches(const bench_case *c, int64_t h, int64_t i, int64_t j);

/* All branches that the head has. */
unsigned dilated_head_branches(const bench_case *c, int64_t h);

/* How many branches show key j to row i: how often the pair counts. */
int dilated_times(const bench_case *c, int64_t h, int64_t i, int64_t j);

/* Pairs over batch, heads and branches, exactly: a pair counts once for each branch that shows it.
 * Takes time in proportion to seq_q * heads. */
double dilated_pairs(const bench_case *c);

/* Whether it is a mean of softmaxes, which has no stats. */
int dilated_is_mean(const bench_case *c);

/* Whether every key is seen by some row of its head. */
int dilated_reads_all(const bench_case *c);

/* ---- the call */

typedef struct dilated_job {
    attn_dilated d; /* num_branches 0: the case is dense */
    attn_dilated_branch branches[DILATED_MAX_BRANCHES];
    int32_t *index; /* NULL = none, or computed in each call */
} dilated_job;

/* Sets what the job says of the call; no memory is taken. */
void dilated_describe(const bench_case *c, dilated_job *job);

/* The bytes of workspace that the call asks for, with g a backward one; otherwise the status, and
 * why says it. */
attn_status dilated_size(const dilated_job *job, const attn_params *p, const attn_gradients *g,
                         size_t *bytes, char *why, size_t why_bytes);

/* The index of what takes part, where the case keeps one; 0 = no memory. */
int dilated_make(const bench_case *c, dilated_job *job);

/* Bytes of that index. */
double dilated_index_bytes(const bench_case *c, const dilated_job *job);

attn_status dilated_call(const dilated_job *job, const attn_params *p, const attn_gradients *g,
                         void *workspace, size_t workspace_bytes);

void dilated_free(dilated_job *job);

/* ---- gradients.c: cases that compute gradients: what the call needs, the call.
 *
 * Asked for are dq, dk and dv, dbias where the case has a bias and dsinks where it has sinks. o and
 * stats come from a forward call with the library's own choice of kernels, before anything is timed,
 * so that a fault planted in the kernels of the backward call is not in them. */

enum { GRADIENTS_MAX_ARRAYS = 7 };

typedef struct gradients_job {
    const bench_case *c;
    const dilated_job *dilated; /* NULL = the case is dense */
    attn_gradients g;
    void *owned[GRADIENTS_MAX_ARRAYS]; /* stats and what g points to */
    int num_owned;
} gradients_job;

/* Bytes beside q, k, v, o, stats and the gradients of the first four: of dbias. */
double gradients_more_bytes(const bench_case *c);

/* Sets what *p and job->g say of the call, with the address `any` wherever one is looked at. */
void gradients_describe(const bench_case *c, attn_params *p, gradients_job *job, void *any);

/* What attn_backward would do, in the fields of *info that both calls have, and with how many
 * products for a tile. Otherwise its status, and why says it. */
attn_status gradients_explain(gradients_job *job, const attn_params *p, attn_info *info, int *gemms,
                              char *why, size_t why_bytes);

/* The arrays: NaN in those that the call writes. p->q to p->o are there; o and stats are written by
 * a forward call. 0 with a sentence; gradients_free in any case. */
int gradients_make(attn_params *p, uint64_t seed, gradients_job *job, char *why, size_t why_bytes);

void gradients_free(gradients_job *job);

/* ---- rings.c: a case divided among ranks: a thread each, with a transport within the process, or a
 * process each, of which this is one.
 *
 * Each rank has arrays of its own for its positions of q, k, v, o and, backward, stats, dout, dq,
 * dk and dv: filled from the case's arrays before the first call, and copied back after it. */

typedef struct rings_rank rings_rank;

typedef struct rings_job {
    const bench_case *c;
    const dilated_job *dilated;      /* of the case, dense or not */
    attn_ring ring;                  /* but for transport and stats, which each rank has */
    int num_ranks;                   /* 0 = the case is not divided */
    int canonical;                   /* the result has the bits of one process */
    const attn_transport *transport; /* of this process, the one rank that it is; NULL = threads */
    rings_rank *ranks;
} rings_job;

/* Sets what the job says of a call by a path of a ring; otherwise num_ranks becomes 0. */
void rings_describe(const bench_case *c, const bench_path *path, int ranks,
                    const dilated_job *dilated, rings_job *job);

/* Whether the case can be divided; 0 with a sentence. */
int rings_possible(const rings_job *job, char *why, size_t why_bytes);

/* The bytes of workspace of all ranks together; otherwise the status, and why says it. */
attn_status rings_size(rings_job *job, const attn_params *p, const attn_gradients *g, size_t *bytes,
                       char *why, size_t why_bytes);

/* The ranks' arrays and workspaces, with what p and g (NULL = a forward call) point to; 0 = no
 * memory. */
int rings_make(rings_job *job, const attn_params *p, const attn_gradients *g);

/* One call by all ranks. */
attn_status rings_call(rings_job *job);

/* A rank's own keys. */
void *rings_keys(const rings_job *job, int rank, size_t *bytes);

/* Copies what the ranks wrote to where p and g point; of processes on rank 0. 0 = it failed. */
int rings_collect(rings_job *job);

/* What the last call did on the rank that this process is. */
const attn_ring_stats *rings_own(const rings_job *job);

/* What the last call moved, in all; seconds in the transport, mean of the ranks; pairs of the rank
 * that had most over the mean. */
typedef struct rings_figures {
    double moved_bytes, exchange_seconds, balance;
} rings_figures;
rings_figures rings_told(const rings_job *job);

void rings_free(rings_job *job);

/* ---- on_device.c: a call of attn_forward on the OpenCL device, and where its time goes. */

enum { ON_DEVICE_ARRAYS = 4 };

typedef struct device_job {
    attn_backend backend;
    attn_opencl_call how;
    attn_opencl_buffer arrays[ON_DEVICE_ARRAYS]; /* q, k, v, o of a path whose arrays are there */
} device_job;

/* Makes p a call of the path's device; the job must stay where it is. 0 with a sentence. */
int on_device(const bench_path *path, attn_params *p, device_job *job, char *why, size_t bytes);

/* Whether the call that was explained runs there; 0 with the reason. */
int on_device_taken(const attn_info *info, char *why, size_t bytes);

/* Copies q, k, v to the device, makes an o there, and has the call use them. bytes: of each of the
 * four. 0 = there is no memory. */
int on_device_place(const attn_params *p, const size_t sizes[ON_DEVICE_ARRAYS], device_job *job);

/* What the device wrote into o, where o is on the device. */
int on_device_fetch(const attn_params *p, device_job *job);

void on_device_free(device_job *job);

/* Fills in r's times of a call, from `calls` further ones that are measured command by command: of
 * these the one whose time is the median, so that its parts add up. call returns 0 if it worked.
 * 0 = a call failed. */
int on_device_split(int (*call)(void *), void *arg, device_job *job, int calls, bench_result *r);

#endif
