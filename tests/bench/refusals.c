/* refusals.c - wrong results and wrong kernels are refused.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "../../attn_simd.h"
#include "../../bench/cases/cases.h"
#include "../kernel_tiles.h"
#include "selfcheck.h"

/* ---- a wrong element must be refused, a right result must not */

static void check_refusal(bench_context *context)
{
    static const char *const impls[] = { "naive", "tiled" };
    for (int i = 0; i < 2; i++) {
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
            for (int spoil = 0; spoil < 2; spoil++) {
                case_list list = { .n = 0 };
                bench_result r;
                shape_case("1,4,2,40,40,32", &list);
                list.cases[0].dtype = dtype;
                list.cases[0].iterations = 1;
                faults.spoil = spoil;
                run_case(context, &list.cases[0], impls[i], &r);
                expect(spoil ? run_was_wrong(&r) : !r.skipped[0],
                       spoil ? "a spoilt result is refused" : "a right result is timed",
                       r.err_tolerance);
            }
        }
    }
    faults.spoil = 0;
}

/* Rows that are sampled, spoilt one after the other: `apart` rows of one head lie between two. */
static void check_places(bench_context *context, const char *shape, int rows, int apart)
{
    case_list list = { .n = 0 };
    bench_result r;
    shape_case(shape, &list);
    list.cases[0].iterations = 1;
    for (int row = 1; row <= rows; row += apart) {
        faults.spoil = row;
        run_case(context, &list.cases[0], "tiled", &r);
        expect(run_was_wrong(&r), "a spoilt result is refused, whichever sampled row it is", row);
    }
    faults.spoil = 0;
}

/* ---- so must a wrong kernel */

enum { CHECKED_DIM = 24 };

static int kernel_refused(const attn_kernels *set, int entry, int spoil)
{
    return kernel_check(set, entry, CHECKED_DIM, spoil) == 0;
}

/* Wrong kernels, most of them right ones of this set with something missing. */
static const attn_kernels *right;

static void idle_softcap(float *s, int n, float cap2, float icap2)
{
    (void)s, (void)n, (void)cap2, (void)icap2;
}

static void idle_hide(float *s, int n, const uint32_t *alive, int from)
{
    (void)s, (void)n, (void)alive, (void)from;
}

/* The first round goes without its key. */
static void drop_unkeyed(float *p, int n, const attn_drop *of)
{
    attn_drop d = *of;
    d.round_keys[0][0] = 0;
    right->drop(p, n, &d);
}

static void idle_rescale(float *x, const float *alpha, int64_t count)
{
    (void)x, (void)alpha, (void)count;
}

static void clip_end_only(float *s, int n, const int *begin, const int *end)
{
    static const int none[ATTN_KERNEL_MAX_ROWS];
    (void)begin;
    right->clip(s, n, none, end);
}

static void narrow_down(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &from[i], sizeof u);
        to[i] = (uint16_t)(u >> 16);
    }
}

static void qk_lane_lost(const attn_product *p)
{
    right->qk(p);
    p->to[0] = 7;
}

static void qk_units_lane_lost(const attn_product *p)
{
    right->qk_units(p);
    p->to[0] = 7;
}

/* The last unit is left as it was. */
static void pack_units_short(float *to, const float *const *q, int64_t head_dim)
{
    right->pack_units(to, q, head_dim - 32);
}

static void pv_lane_lost(const attn_product *p)
{
    right->pv(p);
    p->to[0] = 7;
}

static void idle_gradient(float *s, float *dp, int n, const attn_row_stats *of)
{
    (void)s, (void)dp, (void)n, (void)of;
}

static void outer_lane_lost(const attn_outer *f)
{
    attn_term term = *f->term;
    attn_outer one = *f;
    term.lanes.end--;
    one.term = &term;
    one.count = 1;
    right->outer(&one);
}

static int silent_max(const float *s, int n, float *m, float *l, float *alpha)
{
    return right->running_max(s, n, m, l, alpha) & ~ATTN_RAISED;
}

static int always_calm(const float *s, int n, float *m, float *l, float *alpha)
{
    return right->running_max(s, n, m, l, alpha) | ATTN_IS_CALM;
}

static void refused_names(const attn_kernels *set, char *names, size_t bytes)
{
    size_t n = 0;
    names[0] = '\0';
    for (int i = 0; i < num_kernel_entries; i++)
        if (kernel_refused(set, i, 0) && n < bytes)
            n += (size_t)snprintf(names + n, bytes - n, "%s ", kernel_entries[i].name);
}

/* Exactly the entries that use the kernel are refused. */
#define PLANT(kernel, wrong, expected)                                                             \
    do {                                                                                           \
        attn_kernels planted = *right;                                                             \
        char names[256];                                                                           \
        planted.kernel = wrong;                                                                    \
        refused_names(&planted, names, sizeof names);                                              \
        expect(!strcmp(names, expected), #wrong " is refused in " expected "alone", 0);            \
    } while (0)

static void check_wrong_kernels(void)
{
    right = attn_kernels_get(0);
    PLANT(softcap, idle_softcap, "softcap ");
    PLANT(clip, clip_end_only, "clip ");
    PLANT(hide, idle_hide, "hide ");
    PLANT(drop, drop_unkeyed, "drop ");
    PLANT(narrow_bf16, narrow_down, "narrow_bf16 ");
    PLANT(rescale, idle_rescale, "rescale tile ");
    PLANT(qk, qk_lane_lost, "qk tile ");
    PLANT(qk_units, qk_units_lane_lost, "pack_units qk_units ");
    PLANT(pack_units, pack_units_short, "pack_units qk_units ");
    PLANT(pv, pv_lane_lost, "pv tile ");
    PLANT(running_max, silent_max, "running_max tile ");
    PLANT(running_max, always_calm, "running_max ");
    PLANT(gradient, idle_gradient, "gradient ");
    PLANT(outer, outer_lane_lost, "outer ");
    PLANT(outer_select, right->outer, "outer_select ");
}

static void check_kernels(void)
{
    for (int k = 0; attn_kernels_get(k); k++) {
        for (int i = 0; i < num_kernel_entries; i++) {
            const attn_kernels *const set = attn_kernels_get(k);
            expect(!kernel_refused(set, i, 0), "a right kernel is timed", i);
            expect(kernel_refused(set, i, 1), "a kernel that is off by one bit is refused", i);
        }
    }
    check_wrong_kernels();
}

void check_refusals(bench_context *context)
{
    check_refusal(context);
    check_places(context, "2,3,1,2,40,32,16", 12, 1); /* batch entries and heads: each row */
    check_places(context, "1,1,1,45,40,32", 45, 4);
    check_kernels();
}
