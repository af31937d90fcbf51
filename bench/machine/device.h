/* device.h - the OpenCL device: opened once, when something first needs it.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include "../../attn_opencl.h"

/* How the device adds up: as it likes, or with the bits of the CPU. An object for each. */
typedef enum device_order { DEVICE_FREE, DEVICE_EXACT, DEVICE_ORDERS } device_order;

/* Before anything is opened. name: a part of the name of a platform or device, NULL = the best; a
 * device that is no GPU is taken only where `any` says so: its kernels take seconds to build, and
 * it computes on the CPU, where the library does so itself. */
void device_choose(const char *name, int any);

/* NULL: why has the whole sentence. */
attn_opencl *device_get(device_order order, char *why, size_t bytes);

/* What was opened; NULL = nothing was, or could be. */
const attn_opencl_info *device_opened(void);

/* As device_choose was told: for attn_opencl_list. */
attn_opencl_options device_options(device_order order);

void device_close(void);

/* ---- arrays on the device, for the object of DEVICE_FREE */

void *device_new(size_t bytes, const void *host); /* a cl_mem with a copy of host; NULL = there is
                                                   * no memory */
int device_read(void *mem, void *host, size_t bytes);
void device_free(void *mem);

/* GB/s of copying one array on the device to another, bytes read and written; measured once. 0 =
 * not possible. */
double device_copy_rate(void);

#endif
