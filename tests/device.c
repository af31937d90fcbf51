/* device.c - runs the calls of the tests on an OpenCL device: --impl opencl and its like.
 * SPDX-License-Identifier: MIT
 */
#include "../attn.h"
#include "../attn_opencl.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    attn_opencl *opened;
    attn_backend backend;
    attn_backend inner; /* what attn_opencl.c gave */
    int64_t took, gradients, refused;
} device;

/* Refusals that are expected, by a word of the reason. */
static const char *const expected[] = {
    "score is set, but a device",
    "mask is set, but a device", /* which cannot call the host */
    "part.rows (1) is set, but a device",
    "part.keys (1) is set, but a device",
    "naive on a device has no raw states",
    "naive gradients are the CPU's",
    "gradients of keys in a cache are the CPU's",
    "nothing to do", /* batch 0 */
};

static void hear(void *user, int level, const char *sentence)
{
    (void)user;
    if (level >= ATTN_LOG_WARNING)
        printf("  device: %s\n", sentence);
}

int device_refused(const char *reason)
{
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(reason, expected[i]) != NULL)
            return 1;
    return 0;
}

static int supports(const attn_backend *self, const attn_problem *problem, char *why,
                    size_t why_bytes)
{
    (void)self;
    if (device.inner.supports(&device.inner, problem, why, why_bytes))
        return 1;
    device.refused++;
    return 0;
}

static attn_status workspace_size(const attn_backend *self, const attn_problem *problem,
                                  size_t *bytes)
{
    (void)self;
    return device.inner.workspace_size(&device.inner, problem, bytes);
}

static attn_status run_call(const attn_backend *self, const attn_problem *problem, void *workspace,
                            size_t bytes)
{
    (void)self;
    device.took++;
    return device.inner.run(&device.inner, problem, workspace, bytes);
}

static int supports_gradients(const attn_backend *self, const attn_problem *problem,
                              const attn_gradient_call *g, char *why, size_t why_bytes)
{
    (void)self;
    if (device.inner.supports_gradients(&device.inner, problem, g, why, why_bytes))
        return 1;
    device.refused++;
    return 0;
}

static attn_status gradients_size(const attn_backend *self, const attn_problem *problem,
                                  const attn_gradient_call *g, size_t *bytes)
{
    (void)self;
    return device.inner.gradients_size(&device.inner, problem, g, bytes);
}

static attn_status run_gradients(const attn_backend *self, const attn_problem *problem,
                                 const attn_gradient_call *g, void *workspace, size_t bytes)
{
    (void)self;
    device.gradients++;
    return device.inner.run_gradients(&device.inner, problem, g, workspace, bytes);
}

int device_open(const char *impl)
{
    attn_opencl_options options = { 0 };
    attn_opencl_info info;
    attn_status status;
    options.device = getenv("ATTN_TEST_DEVICE");
    options.exact = T.exact = strcmp(impl, "opencl") == 0;
    options.unchecked = getenv("ATTN_TEST_UNCHECKED") != NULL; /* planted bugs are to show */
    options.build_options = getenv("ATTN_TEST_BUILD_OPTIONS");
    options.log = hear;
    if (strcmp(impl, "opencl_naive") == 0)
        T.impl = ATTN_IMPL_NAIVE;
    else if (strcmp(impl, "opencl") != 0 && strcmp(impl, "opencl_free") != 0) {
        printf("test: --impl %s: opencl, opencl_free or opencl_naive\n", impl);
        return 0;
    }
    device.opened = malloc(attn_opencl_size());
    status = attn_opencl_open(device.opened, &options);
    if (status != ATTN_OK || attn_opencl_info_get(device.opened, &info) != ATTN_OK) {
        printf("test: no OpenCL device: %s\n", attn_opencl_why(device.opened));
        device_close();
        return 0;
    }
    printf("device: %s, %s, %s, driver %s\n", info.device, info.platform, info.version,
           info.driver);
    device.inner = attn_opencl_backend(device.opened, NULL);
    device.backend = device.inner;
    device.backend.supports = supports;
    device.backend.workspace_size = workspace_size;
    device.backend.run = run_call;
    device.backend.supports_gradients = supports_gradients;
    device.backend.gradients_size = gradients_size;
    device.backend.run_gradients = run_gradients;
    T.backend = &device.backend;
    return 1;
}

void device_close(void)
{
    if (device.opened == NULL)
        return;
    if (T.backend != NULL)
        printf("device: %lld calls, %lld of gradients; %lld times asked in vain\n",
               (long long)device.took, (long long)device.gradients, (long long)device.refused);
    T.backend = NULL;
    attn_opencl_close(device.opened);
    free(device.opened);
    device.opened = NULL;
}
