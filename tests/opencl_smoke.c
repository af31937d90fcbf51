/* opencl_smoke.c - a device within seconds: opening one and what cannot be opened, the list of all, and
 * one call in the device's own order against the oracle. All else is in tests/opencl.sh.
 * SPDX-License-Identifier: MIT
 */
#include "../attn_opencl.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors of opening: no device is needed ------------------------------------------------- */

static void refuses(attn_opencl *gpu, const attn_opencl_options *o, attn_status want,
                    const char *sentence)
{
    const attn_status got = attn_opencl_open(gpu, o);
    CHECK(got == want, "%s, not %s", attn_status_string(got), attn_status_string(want));
    CHECK(strstr(attn_opencl_why(gpu), sentence) != NULL, "it says \"%s\"", attn_opencl_why(gpu));
    attn_opencl_close(gpu);
}

static void check_opening(attn_opencl *gpu)
{
    attn_opencl_options o = { 0 };
    attn_opencl_info info;
    if (!begin_case("opening what is not there"))
        return;
    CHECK(attn_opencl_open(NULL, NULL) == ATTN_ERR_ARG, "NULL opened");
    o.library = "/no/such/libOpenCL.so";
    refuses(gpu, &o, ATTN_ERR_UNSUPPORTED, "no OpenCL library: /no/such/libOpenCL.so");
#if defined __linux__ && defined __GLIBC__
    o.library = "libm.so.6";
    refuses(gpu, &o, ATTN_ERR_UNSUPPORTED, ": libm.so.6"); /* lacks a function; static: not there */
#endif
    CHECK(attn_opencl_info_get(gpu, &info) == ATTN_ERR_ARG, "a closed object has a device");
    attn_opencl_close(gpu); /* once more is harmless */
}

static void check_choosing(attn_opencl *gpu)
{
    attn_opencl_options o = { 0 };
    char letters[101];
    if (!begin_case("devices that cannot be chosen"))
        return;
    o.device = "no such device";
    refuses(gpu, &o, ATTN_ERR_UNSUPPORTED, "none named no such device");
    o.device = NULL;
    o.context = gpu;
    refuses(gpu, &o, ATTN_ERR_ARG, "must be given together");
    o.context = NULL;
    memset(letters, 'x', sizeof letters - 1);
    letters[sizeof letters - 1] = 0;
    o.build_options = letters;
    refuses(gpu, &o, ATTN_ERR_ARG, "build_options has more than 99 letters");
}

/* What attn_opencl_open takes is in the list, which agrees with it on why there is nothing. */
static void check_list(attn_opencl *gpu)
{
    attn_opencl_options o = { 0 };
    attn_opencl_device list[32];
    attn_opencl_info info;
    char why[256];
    int count, again, i, usable = 0, found = 0;
    if (!begin_case("the list of devices"))
        return;
    o.library = "/no/such/libOpenCL.so";
    CHECK(attn_opencl_list(gpu, &o, list, 32) == 0, "devices without a library");
    CHECK(strstr(attn_opencl_why(gpu), "no OpenCL library: /no/such/libOpenCL.so") != NULL,
          "it says \"%s\"", attn_opencl_why(gpu));
    count = attn_opencl_list(gpu, NULL, list, 32);
    snprintf(why, sizeof why, "%s", attn_opencl_why(gpu));
    again = attn_opencl_list(gpu, NULL, NULL, 0);
    CHECK(count == again, "%d devices, and %d without room", count, again);
    for (i = 0; i < count && i < 32; i++)
        usable += list[i].usable;
    if (attn_opencl_open(gpu, NULL) == ATTN_OK && attn_opencl_info_get(gpu, &info) == ATTN_OK) {
        CHECK(strcmp(why, "ok") == 0 && usable > 0, "%d devices usable, \"%s\"", usable, why);
        for (i = 0; i < count && i < 32; i++)
            found += list[i].usable && strcmp(list[i].device, info.device) == 0 &&
                     strcmp(list[i].driver, info.driver) == 0 &&
                     list[i].compute_units == info.compute_units && list[i].gpu == info.gpu;
        CHECK(found >= 1, "%s is not in the list", info.device);
    } else {
        CHECK(usable == 0 && strcmp(why, attn_opencl_why(gpu)) == 0, "\"%s\", then \"%s\"", why,
              attn_opencl_why(gpu));
    }
    attn_opencl_close(gpu);
}

/* m and l of a row are one of many pairs: a device in its own order has another one than the CPU. */
static void check_statistics(const test_problem *t, const test_tensor *stats)
{
    for (int64_t h = 0; h < t->p.num_heads_q; h++)
        for (int64_t i = 0; i < t->p.seq_len_q; i++) {
            const double m = tensor_get(stats, 0, h, i, 0), l = tensor_get(stats, 0, h, i, 1);
            const double want = tensor_get(&t->lse, 0, h, i, 0), got = (m + log2(l)) * log(2);
            CHECK(fabs(got - want) <= 1e-5 * (1 + fabs(want)), "(%g, %g) for an LSE of %g", m, l,
                  want);
        }
}

/* Kernels as they are written: a CPU's compiler takes seconds to optimise one. */
static void check_call(attn_opencl *gpu)
{
    const test_shape shape = {
        .batch = 1, .heads_q = 2, .heads_kv = 1, .seq_q = 20, .seq_kv = 70, .dim = 24, .dim_v = 24
    };
    attn_opencl_options o = { 0 };
    attn_backend backend;
    attn_info about = { 0 };
    test_problem t;
    test_tensor stats;
    if (!begin_case("a causal call"))
        return;
    o.device = getenv("ATTN_TEST_DEVICE");
    o.build_options = "-cl-opt-disable";
    if (attn_opencl_open(gpu, &o) != ATTN_OK) {
        SKIP("%s", attn_opencl_why(gpu));
        return;
    }
    backend = attn_opencl_backend(gpu, NULL);
    problem_make(&t, &shape);
    t.p.causal = 1;
    t.p.backend = &backend;
    tensor_make(&stats, ATTN_F32, LAYOUT_PADDED, 1, shape.heads_q, shape.seq_q, 2);
    tensor_remember(&stats);
    t.p.stats = tensor_output(&stats);
    CHECK(attn_explain(&t.p, &about) == ATTN_OK && strcmp(about.backend_name, "opencl") == 0,
          "refused: %s", about.reasons);
    problem_check(&t);
    CHECK(tensor_gaps_unchanged(&stats), "statistics written outside their elements");
    check_statistics(&t, &stats);
    attn_opencl_close(gpu);
}

TEST_GROUP(opencl_smoke, RUN_ONCE, "a device within seconds: opening, the list of all, one call")
{
    attn_opencl *gpu = malloc(attn_opencl_size());
    check_opening(gpu);
    check_list(gpu);
    if (attn_opencl_open(gpu, NULL) == ATTN_OK)
        check_choosing(gpu);
    else
        SKIP("%s", attn_opencl_why(gpu));
    attn_opencl_close(gpu);
    check_call(gpu);
    free(gpu);
}
