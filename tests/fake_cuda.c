/* fake_cuda.c - stands for libcuda.so.1 where there is no GPU: memory of the host, time that goes
 * on with each command, one kernel, "add"; all other kernels do nothing.
 * SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_SUCH = 500 };
static int now;          /* milliseconds; its address stands for most objects */
static const int add[1]; /* and this one for the kernel */

int cuInit(unsigned flags)
{
    return (int)flags;
}
int cuDriverGetVersion(int *version)
{
    return *version = 12040, 0;
}
int cuDeviceGet(int *device, int index)
{
    return *device = index, 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    return *context = &now, device;
}
int cuCtxSetCurrent(void *context)
{
    return context != &now;
}
int cuDeviceGetDefaultMemPool(void **pool, int device)
{
    return *pool = &now, device;
}
int cuStreamCreate(void **stream, unsigned flags)
{
    return *stream = &now, (int)flags;
}
int cuStreamSynchronize(void *stream)
{
    return stream != &now;
}
int cuModuleUnload(void *module)
{
    return module != &now;
}
int cuEventSynchronize(void *event)
{
    return event == NULL;
}
int cuEventDestroy_v2(void *event)
{
    return free(event), 0;
}

int cuDeviceGetName(char *name, int room, int device)
{
    snprintf(name, (size_t)room, "a device that is none");
    return device;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = (size_t)1 << 30;
    return device;
}

int cuDeviceGetAttribute(int *value, int which, int device)
{
    *value = which == 1 ? 1024 : which == 8 ? 49152 : which == 16 ? 7 : 0;
    return device || *value == 0;
}

int cuMemPoolSetAttribute(void *pool, int which, void *value)
{
    return pool != &now || which != 4 || *(uint64_t *)value != UINT64_MAX;
}

int cuMemAllocAsync(uint64_t *at, size_t bytes, void *stream)
{
    void *const memory = malloc(bytes);
    if (memory)
        memset(memory, 0xff, bytes); /* NaN */
    *at = (uint64_t)(uintptr_t)memory;
    return !memory || stream != &now;
}

int cuMemFreeAsync(uint64_t at, void *stream)
{
    free((void *)(uintptr_t)at);
    return stream != &now;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    now++;
    return stream != &now;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
    memcpy(to, (void *)(uintptr_t)from, bytes);
    now++;
    return stream != &now;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return cuMemcpyHtoDAsync_v2(to, (void *)(uintptr_t)from, bytes, stream);
}

int cuModuleLoadDataEx(void **module, const void *ptx, unsigned count, int *names, void **values)
{
    *module = &now;
    if (strstr(ptx, ".version"))
        return 0;
    if (count == 2 && names[0] == 5 && names[1] == 6)
        snprintf(values[0], (size_t)(uintptr_t)values[1], "no .version");
    return NO_SUCH;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = strcmp(name, "add") ? module : (void *)(uintptr_t)add;
    return module != &now || !strcmp(name, "none");
}

/* add(to, from, number): an element of to for each of the grid, a block of 4 by 2. */
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **values, void **more)
{
    now += 2;
    if (shared || more || stream != &now || gx * gy * gz == 0)
        return NO_SUCH;
    if (function != (void *)(uintptr_t)add)
        return 0;
    if (bx != 4 || by != 2 || bz != 1 || gz != 1)
        return NO_SUCH;
    int32_t *const to = (int32_t *)(uintptr_t) * (uint64_t *)values[0];
    const int32_t *const from = (const int32_t *)(uintptr_t) * (uint64_t *)values[1];
    for (unsigned i = 0; i < gx * bx * gy * by; i++)
        to[i] = from[i] + *(int32_t *)values[2];
    return 0;
}

int cuEventCreate(void **event, unsigned flags)
{
    *event = calloc(1, sizeof now);
    return !*event || flags;
}

int cuEventRecord(void *event, void *stream)
{
    *(int *)event = now;
    return stream != &now;
}

int cuEventElapsedTime(float *ms, void *from, void *to)
{
    *ms = (float)(*(int *)to - *(int *)from);
    return 0;
}
