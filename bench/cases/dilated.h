/* dilated.h - cases of dilated attention: who sees whom, what the call needs, the call, its check.
 * SPDX-License-Identifier: MIT
 *
 * Which branches show a key to a row, and how many pairs that makes, is computed here from the
 * definition of attn_long.h and not by the library. */
#ifndef BENCH_DILATED_H
#define BENCH_DILATED_H

#include "../../attn.h"
#include "../../tests/oracle.h"
#include "case.h"

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

/* Whether it is a mean of softmaxes, which has no lse. */
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

/* Faults for checks of the bench: the call is told of another segment, step, first position of the
 * heads, or merging than the case has. */
typedef enum dilated_fault {
    DILATED_RIGHT,
    DILATED_LENGTH,
    DILATED_STEP,
    DILATED_HEADS,
    DILATED_MERGE,
    DILATED_FAULTS
} dilated_fault;
void dilated_plant(dilated_job *job, dilated_fault fault);

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

/* Row i of head h of entry b in double: o and o_tolerance. 0 = done, 1 = no memory. */
int dilated_row(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                oracle_result *out);

/* The same of one softmax over the keys that these branches show, of which alive, lse and
 * lse_tolerance are written, too. */
int dilated_softmax(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                    unsigned branches, oracle_result *out);

void dilated_free(dilated_job *job);

#endif
