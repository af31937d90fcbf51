/* device.c - the OpenCL device: opened once, when something first needs it.
 * SPDX-License-Identifier: MIT */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tests/system.h"
#include "../clock.h"

#define NO_DEVICE "no OpenCL device"
#define COPY_BYTES ((size_t)256 << 20)
#define COPY_BYTES_CPU ((size_t)64 << 20)
enum { COPIES = 10 };

static struct {
    const char *name;
    int any;
    struct {
        attn_opencl *gpu;
        int tried;
        char why[256];
        attn_opencl_info info;
    } of[DEVICE_ORDERS];
} device;

void device_choose(const char *name, int any)
{
    device.name = name;
    device.any = any;
}

/* Why an opened object is of no use; "" = it is. */
static void judge(const attn_opencl_info *info, device_order order, char *why, size_t bytes)
{
    why[0] = '\0';
    if (!info->gpu && !device.any)
        snprintf(why, bytes, NO_DEVICE " (%.100s is no GPU: --impl opencl or --device takes it)",
                 info->device);
    else if (order == DEVICE_EXACT && !info->exact)
        snprintf(why, bytes, NO_DEVICE " (%.160s)", info->exact_why);
}

static void open_device(device_order order)
{
    const attn_opencl_options options = { .device = device.name,
                                          .exact = order == DEVICE_EXACT,
                                          .profiling = 1 };
    attn_opencl *const gpu = malloc(attn_opencl_size());
    char *const why = device.of[order].why;
    const size_t bytes = sizeof device.of[order].why;
    attn_opencl_info info;
    device.of[order].tried = 1;
    if (!gpu) {
        snprintf(why, bytes, NO_DEVICE " (no memory)");
        return;
    }
    if (attn_opencl_open(gpu, &options) != ATTN_OK)
        snprintf(why, bytes, NO_DEVICE " (%.200s)", attn_opencl_why(gpu));
    else if (attn_opencl_info_get(gpu, &info) == ATTN_OK)
        judge(&info, order, why, bytes);
    if (!why[0]) {
        device.of[order].gpu = gpu;
        device.of[order].info = info;
        return;
    }
    attn_opencl_close(gpu);
    free(gpu);
}

attn_opencl *device_get(device_order order, char *why, size_t bytes)
{
    if (!device.of[order].tried)
        open_device(order);
    snprintf(why, bytes, "%s", device.of[order].why);
    return device.of[order].gpu;
}

const attn_opencl_info *device_opened(void)
{
    for (int order = 0; order < DEVICE_ORDERS; order++)
        if (device.of[order].gpu)
            return &device.of[order].info;
    return NULL;
}

/* ---- arrays on the device, by the library that the object has loaded already: in the context of
 * the object that adds as it likes, where there is one */

typedef void *handle;

static struct {
    handle (*create)(handle context, uint64_t flags, size_t bytes, void *host, int32_t *error);
    int32_t (*release)(handle mem);
    int32_t (*read)(handle queue, handle mem, uint32_t blocking, size_t offset, size_t bytes,
                    void *host, uint32_t waits, const handle *wait, handle *event);
    int32_t (*copy)(handle queue, handle from, handle to, size_t from_offset, size_t to_offset,
                    size_t bytes, uint32_t waits, const handle *wait, handle *event);
    int32_t (*finish)(handle queue);
    int tried, there;
} cl;

enum { READ_WRITE = 1, COPY_HOST = 32 };

static int load(void)
{
    void *const library = system_opencl();
    return library && system_find(library, "clCreateBuffer", &cl.create) &&
           system_find(library, "clReleaseMemObject", &cl.release) &&
           system_find(library, "clEnqueueReadBuffer", &cl.read) &&
           system_find(library, "clEnqueueCopyBuffer", &cl.copy) &&
           system_find(library, "clFinish", &cl.finish);
}

static int loaded(void)
{
    if (!cl.tried)
        cl.there = load();
    cl.tried = 1;
    return cl.there && device_opened();
}

void *device_new(size_t bytes, const void *host)
{
    int32_t error = 0;
    if (!loaded())
        return NULL;
    const uint64_t flags = READ_WRITE | (host ? COPY_HOST : 0);
    handle const mem =
        cl.create(device_opened()->context, flags, bytes, (void *)(uintptr_t)host, &error);
    return error ? NULL : mem;
}

int device_read(void *mem, void *host, size_t bytes)
{
    return !cl.read(device_opened()->queue, mem, 1, 0, bytes, host, 0, NULL, NULL);
}

void device_free(void *mem)
{
    if (mem)
        cl.release(mem);
}

/* Seconds of one copy, the least of several; negative = it fails. */
static double copy_seconds(handle from, handle to, size_t bytes)
{
    double least = -1;
    for (int i = 0; i < COPIES; i++) {
        const double begin = clock_seconds();
        if (cl.copy(device_opened()->queue, from, to, 0, 0, bytes, 0, NULL, NULL) ||
            cl.finish(device_opened()->queue))
            return -1;
        const double seconds = clock_seconds() - begin;
        if (least < 0 || seconds < least)
            least = seconds;
    }
    return least;
}

double device_copy_rate(void)
{
    static double rate = -1;
    if (rate >= 0 || !device_opened())
        return rate > 0 ? rate : 0;
    const size_t bytes = device_opened()->gpu ? COPY_BYTES : COPY_BYTES_CPU;
    handle const from = device_new(bytes, NULL), to = device_new(bytes, NULL);
    const double seconds = from && to ? copy_seconds(from, to, bytes) : -1;
    rate = seconds > 0 ? 2e-9 * (double)bytes / seconds : 0;
    device_free(from);
    device_free(to);
    return rate;
}

void device_close(void)
{
    for (int order = 0; order < DEVICE_ORDERS; order++) {
        if (device.of[order].gpu)
            attn_opencl_close(device.of[order].gpu);
        free(device.of[order].gpu);
    }
    memset(&device, 0, sizeof device);
}
