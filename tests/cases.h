/* cases.h - what the files of the conformance runner share.
 * SPDX-License-Identifier: MIT
 *
 *     tests/cases.c          folders; one line a case
 *     tests/case_file.c      a folder of the format of tests/cases/README.md as a test_case
 *     tests/case_call.c      its tensors as one call of the library, and results compared
 *     tests/case_cache.c     keys that such a call reads from a cache
 *     tests/case_storage.c   the call again with K and V in another storage type
 *     tests/operators.c      operators as calls: attention of ONNX
 *     tests/operators_grad.c   the textbook's attention and its gradients
 *     tests/operators_cache.c  rotary embedding and caches alone
 *     tests/operators_ort.c  attention of onnxruntime
 *
 * Whatever these files do not know about a case - an operator, attribute, input or output - is a
 * failure, because ignoring it would compare something else than the case means.
 */
#ifndef ATTN_TESTS_CASES_H
#define ATTN_TESTS_CASES_H

#include "test.h"

#include "../attn.h"

#include <stdio.h>

enum { CASE_RANK = 5, CASE_TENSORS = 16, CASE_ATTRIBUTES = 32, CASE_WHY = 300, CASE_PATH = 1200 };

enum { F16, F32, F64, BOOL, I32, I64, CASE_TYPES };
typedef struct case_type {
    const char *name;
    size_t size;
} case_type;
extern const case_type case_types[CASE_TYPES];

typedef struct case_tensor {
    char name[64], file[128];
    int type, rank, used;
    int64_t dim[CASE_RANK], count;
    double rtol, atol;             /* of an output; negative = those of the case */
    struct case_tensor *zero_rows; /* of an output X: the output X_zero_rows; NULL = none */
    void *data;
} case_tensor;

typedef struct case_attribute {
    char name[64], value[64];
    int used;
} case_attribute;

typedef struct test_case {
    const char *dir; /* folder of the case */
    char name[160], op[64];
    int opset, ended;
    double rtol, atol;
    case_attribute attributes[CASE_ATTRIBUTES];
    case_tensor inputs[CASE_TENSORS], outputs[CASE_TENSORS];
    int attribute_count, input_count, output_count;
    int cached;              /* 1: its keys went through a cache */
    int stored;              /* calls that ran again in T.storage */
    double worst_stored;     /* their error in units of its bound */
    char left_out[CASE_WHY]; /* why a call did not run in T.storage */
    const char *doing;       /* begins the reason of a failure; NULL = nothing to say */
    char why[CASE_WHY];      /* what failed */
    char note[CASE_WHY];     /* what the reader should know beside the verdict */
    double worst;            /* error in units of its tolerance */
} test_case;

/* ---- tests/case_file.c */

/* Reads c->dir; 0 after case_fail. */
int case_read(test_case *c);
/* The same with another case.txt, which it closes; NULL = there is none. */
int case_read_from(test_case *c, FILE *text);
/* Opens a file of a folder; NULL also when the path is longer than any real one. */
FILE *case_open_file(const char *dir, const char *name);

/* Keeps the first reason; returns 0 so that callers can pass it on. */
int case_fail(test_case *c, const char *format, ...) TEST_FORMAT(2, 3);
void case_note(test_case *c, const char *text);

/* Asking for parts marks them as known. Attributes that are missing have the value `missing`;
 * tensors are NULL. */
const char *case_text(test_case *c, const char *name, const char *missing);
double case_number(test_case *c, const char *name, double missing);
int64_t case_integer(test_case *c, const char *name, int64_t missing);
case_tensor *case_input(test_case *c, const char *name);
case_tensor *case_output(test_case *c, const char *name); /* and its zero_rows */
/* 0, after case_fail, if nobody asked for some part. */
int case_all_known(test_case *c);
/* A finite number, or 0 after case_fail. */
int case_to_number(test_case *c, const char *text, double *number);

/* ---- tests/case_call.c. What returns int returns 0 after case_fail. */

/* A tensor as [batch, heads, seq, dim] with strides, whatever its rank. */
typedef struct case_view {
    int type;
    int64_t batch, heads, seq, dim;
    ptrdiff_t stride_batch, stride_head, stride_seq;
    const void *data;
} case_view;

/* An operator as a call. Set it to zero, then q, k, v and the past, then case_open_call. */
typedef struct case_call {
    attn_params p;
    case_view q, k, v;                 /* k and v: the new keys */
    case_view past_k, past_v;          /* seq 0: none */
    int cached;                        /* nonzero: keys go through an attn_cache */
    const int32_t *past_len, *new_len; /* [batch] keys of both in use; NULL = all */
    const int32_t *limit;              /* [batch] keys that may be seen; NULL = all */
    const attn_rope *rope;             /* of the new keys; NULL = as they are */
    const int64_t *positions;          /* of the new keys, for rope; NULL = their numbers */
    int storage;                       /* attn_dtype of the cache; ATTN_F32 = that of k and v */
    int64_t keys;                      /* in all: past and new */
    int64_t mask_keys;                 /* columns that the mask has; -1 = no limit */
    int stage;                         /* attn_logits_stage of `logits` */
    case_tensor *y, *logits, *lse, *present_k, *present_v; /* stored results; NULL = none */
    int backward;         /* nonzero: o, lse and stats are wanted though none may be stored */
    int64_t present_rows; /* that present_k and present_v have room for; 0 = keys */
    double factor;        /* on Y, applied when comparing */
    float constant;       /* of the score callback */
} case_call;

/* What a call gave, each in the order of the stored result. */
typedef struct case_results {
    attn_params p; /* of the last run, with its outputs */
    void *y, *present_k, *present_v;
    float *lse, *logits;
} case_results;

/* Rank 4: [batch, head, seq, dim]; rank 3: [batch, seq, head * dim]. */
int case_view_of(test_case *c, const case_tensor *t, int64_t heads, case_view *v);
attn_tensor case_view_input(const case_view *v);
/* Element i of a view, and of numbers of a type. */
float case_view_at(const case_view *v, int64_t i);
double case_element(int type, const void *data, int64_t i);
/* What an element of `want` may be off that is stored as w. */
double case_tolerance(const test_case *c, const case_tensor *want, double w);
/* The tensors of these names, both or neither, rank 4, as a->past_k and a->past_v. */
int case_set_past(test_case *c, case_call *a, const char *past_k, const char *past_v);
/* Sizes and tensors of the views. */
int case_open_call(test_case *c, case_call *a);
/* The attribute of that name; without it the default. */
void case_set_scale(test_case *c, case_call *a);
/* Query i of every batch entry stands at key i + offset. */
void case_set_offset(case_call *a, int64_t offset);
/* A mask or bias, aligned at the right to [batch, heads, queries, keys]; NULL = none. */
int case_set_mask(test_case *c, case_call *a, const case_tensor *m);
/* The numbers of a tensor as f32, which the library wants for tables. */
const float *case_floats(test_case *c, const case_tensor *t);
int case_has_shape(test_case *c, const case_tensor *t, int rank, const int64_t *dim);
/* Runs the call; if a->cached, in a contiguous cache and in a paged one, which must agree; and again with
 * K and V in T.storage. */
int case_compute(test_case *c, const case_call *a, case_results *r);
int case_compare_results(test_case *c, const case_call *a, const case_results *r);
/* All of `want`, against numbers of `type`, packed in the same way. */
int case_compare(test_case *c, case_tensor *want, int type, const void *got);
/* Says which NaN of stored outputs were not compared, because zero_rows were. */
void case_note_zero_rows(test_case *c);
/* Counts what really ran, and prints it over all cases of this process. `what` is kept. */
void case_count_executed(const char *what, const char *impl, const char *kernels);
void case_print_executed(void);

/* ---- tests/case_cache.c */

enum { CASE_PAGE = 5 }; /* keys of a page: with most lengths the last one is not full */

/* Appends the past of *a, then its new keys, to *cache in pages of page_size, 0 = contiguous; *p
 * gets the fields that say where they lie. */
int case_fill_cache(test_case *c, const case_call *a, int64_t page_size, attn_cache *cache,
                    attn_params *p);
/* Reads all keys back. */
int case_read_cache(test_case *c, const case_call *a, const attn_cache *cache, case_results *r);
/* A sentence of the library as the reason of a failure. */
int case_status(test_case *c, attn_status status, const char *why);

/* ---- tests/case_storage.c */

/* Runs the call with K and V in T.storage, in arrays and in caches, and checks it: docs/numerics.md says
 * how. A call that the type cannot hold is left out. */
int case_check_stored(test_case *c, const case_call *a);

/* ---- tests/operators.c */

/* Runs c->op and compares. */
int case_run(test_case *c);

/* ---- tests/operators_grad.c, tests/operators_cache.c, tests/operators_ort.c */

int case_run_sdpa_grad(test_case *c);
int case_run_rotary(test_case *c);
int case_run_scatter(test_case *c);
int case_run_group_query(test_case *c);
int case_run_multi_head(test_case *c);

#endif
