/* cases.h - what the files of the conformance runner share.
 * SPDX-License-Identifier: MIT
 *
 *     tests/cases.c          folders; one line a case
 *     tests/case_file.c      a folder of the format of tests/cases/README.md as a test_case
 *     tests/case_call.c      its tensors as one call of the library, and results compared
 *     tests/operators.c      operators as calls
 *
 * Whatever these files do not know about a case - an operator, attribute, input or output - is a
 * failure, because ignoring it would compare something else than the case means.
 */
#ifndef ATTN_TESTS_CASES_H
#define ATTN_TESTS_CASES_H

#include "test.h"

#include <stdio.h>

enum { CASE_RANK = 4, CASE_TENSORS = 16, CASE_ATTRIBUTES = 32, CASE_WHY = 300, CASE_PATH = 1200 };

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
    double rtol, atol; /* of an output; negative = those of the case */
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
    char why[CASE_WHY];  /* what failed */
    char note[CASE_WHY]; /* what the reader should know beside the verdict */
    double worst;        /* error in units of its tolerance */
} test_case;

/* ---- tests/case_file.c */

/* Reads c->dir; 0 after case_fail. */
int case_read(test_case *c);
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
case_tensor *case_output(test_case *c, const char *name);
/* 0, after case_fail, if nobody asked for some part. */
int case_all_known(test_case *c);
/* A finite number, or 0 after case_fail. */
int case_to_number(test_case *c, const char *text, double *number);

/* ---- tests/case_call.c */

/* A tensor as [batch, heads, seq, dim] with strides, whatever its rank. */
typedef struct case_view {
    int type;
    int64_t batch, heads, seq, dim;
    ptrdiff_t stride_batch, stride_head, stride_seq;
    const void *data;
} case_view;

typedef struct case_call {
    attn_params p;
    case_view q, k, v;
    int64_t past;       /* keys before the new ones */
    int64_t mask_keys;  /* columns that the mask has; -1 = no limit */
    case_tensor *y, *logits, *lse, *present_k, *present_v;
    double factor;      /* on Y, applied when comparing */
    float constant;     /* of the score callback */
} case_call;

/* All of these return 0 after case_fail. */

/* Sizes and tensors from Q, K, V; joins the past. */
int case_open_call(test_case *c, case_call *a, int64_t heads_q, int64_t heads_kv,
                   const char *past_k, const char *past_v);
/* A scale of 0 asks for all logits 0. */
void case_set_scale(case_call *a, double scale);
int case_set_mask(test_case *c, case_call *a);
/* Keys in use and the position of the first query of each batch entry. */
int case_set_lengths(test_case *c, case_call *a);
void case_set_window(case_call *a, int64_t left, int64_t right);
int case_run_call(test_case *c, case_call *a);
int case_run_logits(test_case *c, case_call *a, int64_t stage);
int case_compare_present(test_case *c, case_tensor *want, const case_view *got);
/* What really ran, over all cases of this process. */
void case_print_executed(void);

/* ---- tests/operators.c */

/* Runs c->op and compares. */
int case_run(test_case *c);

#endif
