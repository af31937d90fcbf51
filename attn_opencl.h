/* attn_opencl.h - attn_forward and attn_backward on a GPU or any other OpenCL 1.2 device. Needs
 * attn.h, attn.c and kernels.cl as bytes (kernels_cl.inc: see "Building").
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 *     attn_opencl *gpu = malloc(attn_opencl_size());
 *     if (attn_opencl_open(gpu, NULL) != ATTN_OK)
 *         puts(attn_opencl_why(gpu));                  // no device is an ordinary answer
 *     attn_backend backend = attn_opencl_backend(gpu, NULL);
 *     p.backend = &backend;                            // attn_workspace_size, attn_forward as ever
 *     ...
 *     attn_opencl_close(gpu);
 *     free(gpu);
 *
 * What runs. A device takes every call but those with callbacks (score, mask), and those that its
 *   memory cannot hold; what it refuses runs on the CPU, attn_explain says why, and p.log hears it.
 *   A call with arrays in call.buffers, or with an event, cannot run on the CPU: it ends with
 *   ATTN_ERR_UNSUPPORTED. One that the driver fails ends with ATTN_ERR_CALLBACK: p.log hears why.
 *   p.impl = ATTN_IMPL_NAIVE is the textbook on the device, of attn_backward that on the CPU.
 *   p.kernels, tile_keys, tuning, workers, shared_keys and g.gemms mean nothing to it.
 * Bits. By default the device divides keys as it likes and takes its own 2^x: within the bound of
 *   docs/numerics.md, the same bits in each run on one device and driver. With
 *   attn_opencl_options.exact every result has the bits of the CPU (docs/canon.md); where the
 *   device's arithmetic does not allow it (attn_opencl_open tries), calls are refused.
 * Data. Arrays of the host are copied to the device and back, or used in place where host and
 *   device share memory. Arrays on the device already, cl_mem or SVM, are named by
 *   attn_opencl_call.buffers.
 *   Lengths (q_len, kv_len, kv_begin, cu_seqlens, key_base, q_offset, prefix), tree_parents, page
 *   tables, block masks, slopes, sinks and the list of rows for logits are always the host's.
 * Memory. The library allocates nothing on the host; the driver does as it likes. The workspace of
 *   a call is host memory for descriptions. Device memory for copies and partial states is taken
 *   from the driver for the time of a call.
 * Threads. After attn_opencl_open one object serves many threads at once, each with its own
 *   attn_opencl_call, or NULL.
 * Driver. libOpenCL is loaded when the program runs; nothing is linked. Kernels are built when they
 *   are first needed, a second or more each. Many drivers keep them for the next start; or take
 *   them by attn_opencl_binaries_get, e.g. into a file, and give them back by options.binaries or
 *   attn_opencl_binaries_set. The library touches no file.
 * First use. Before the first call, or size of a workspace, that needs a program, a small problem
 *   runs on it and on the CPU. Where the results differ (in a bit with options.exact, else by more
 *   than 1e-4 where they are up to 1, or gradients up to 10) it is dropped with a line in
 *   options.log, and calls that need it are refused. A workspace sized before that may then be too
 *   small for the CPU: ask for its size again.
 * Building. Link with -ldl where dlopen needs it (glibc before 2.34). attn_opencl.c includes
 *   kernels_cl.inc, the bytes of kernels.cl as decimal numbers separated by commas. The Makefile
 *   makes it; so does
 *       od -An -v -tu1 kernels.cl | sed 's|[0-9][0-9]*|&,|g' > kernels_cl.inc
 */
#ifndef ATTN_OPENCL_H
#define ATTN_OPENCL_H

#include "attn.h"

#ifdef ATTN_PREFIX
#define attn_opencl_size ATTN_JOIN(ATTN_PREFIX, attn_opencl_size)
#define attn_opencl_open ATTN_JOIN(ATTN_PREFIX, attn_opencl_open)
#define attn_opencl_list ATTN_JOIN(ATTN_PREFIX, attn_opencl_list)
#define attn_opencl_close ATTN_JOIN(ATTN_PREFIX, attn_opencl_close)
#define attn_opencl_why ATTN_JOIN(ATTN_PREFIX, attn_opencl_why)
#define attn_opencl_build_log ATTN_JOIN(ATTN_PREFIX, attn_opencl_build_log)
#define attn_opencl_info_get ATTN_JOIN(ATTN_PREFIX, attn_opencl_info_get)
#define attn_opencl_binaries_get ATTN_JOIN(ATTN_PREFIX, attn_opencl_binaries_get)
#define attn_opencl_binaries_set ATTN_JOIN(ATTN_PREFIX, attn_opencl_binaries_set)
#define attn_opencl_backend ATTN_JOIN(ATTN_PREFIX, attn_opencl_backend)
#define attn_opencl_plan ATTN_JOIN(ATTN_PREFIX, attn_opencl_plan)
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_opencl attn_opencl;

/* How to open a device. Set it to zero, then assign. */
typedef struct attn_opencl_options {
    int exact;           /* nonzero: the bits of the CPU, or a refusal */
    const char *device;  /* a part of the name of a platform or device, "" or NULL = the best: a GPU
                          * before others, more compute units before fewer */
    const char *library; /* file of the ICD loader; NULL = the usual ones of the system */
    void *context;       /* the caller's cl_context, */
    void *device_id;     /* cl_device_id in it, */
    void *queue;         /* and cl_command_queue, in order: all three, or NULL and the library makes
                          * its own. They are retained until attn_opencl_close */
    int unchecked;       /* kernels are used at once, see "First use" above: to measure it */
    const char *build_options; /* more of them for the device's compiler, at most 99 letters, e.g.
                                * "-cl-intel-256-GRF-per-thread"; NULL = none. What makes it
                                * compute otherwise ("-cl-fast-relaxed-math") is found out by the
                                * checks of `exact` and of first uses */
    int profiling;             /* the library's own queue measures its commands: for call.times */
    double least_flops;   /* calls with fewer operations (2 * pairs * (head_dim + head_dim_v), half
                          * of it if causal) are refused and run on the CPU; `bench tune` finds
                          * where the device begins to win. 0 = all calls; naive ones always */
    const void *binaries; /* as attn_opencl_binaries_set takes them, but before the device is tried
                           * for `exact`; where they are not taken, opening goes on. NULL = none */
    size_t binaries_bytes;
    attn_log_fn log; /* hears what was chosen and what failed; NULL = silent */
    void *log_user;
} attn_opencl_options;

/* An array that is on the device. p.q.data and others are then addresses in address ..
 * address + bytes - 1, which are never read: they only name elements. The memory of a host copy
 * will do, or numbers that the caller makes up. Several may name parts of one mem; of those that
 * name an address the first counts. Set it to zero, then assign. */
typedef struct attn_opencl_buffer {
    size_t offset; /* of the array in mem, in bytes; a multiple of its element */
    const void *address;
    size_t bytes;
    void *mem; /* cl_mem, of the context that the object was opened with; */
    int svm;   /* nonzero: not a cl_mem, but what clSVMAlloc gave for that context. Where
                          * it is coarse-grained, the host has unmapped it */
} attn_opencl_buffer;

/* Where the time of a call went, in seconds by the device's clock. What the call took besides went
 * into launching: kernels built and enqueued, waiting. All 0 where the queue does not measure. */
typedef struct attn_opencl_times {
    double to_device; /* arrays of the host that were copied, in */
    double compute;   /* kernels */
    double to_host;   /* and out; waiting for the device does not count */
    int kernels;      /* launched */
} attn_opencl_times;

/* How one call of attn_forward or attn_backward uses the device. Set it to zero, then assign. */
typedef struct attn_opencl_call {
    int num_buffers;
    const attn_opencl_buffer *buffers;
    attn_opencl *gpu;  /* set by attn_opencl_backend */
    void *queue;       /* cl_command_queue, in order; NULL = the object's */
    int num_wait;      /* cl_events that must be complete before the device begins */
    void *const *wait; /* ... with a kernel; arrays of the host are copied before */
    void **event;      /* where not NULL, gets a cl_event of the end, which the caller releases;
                          * the call then returns at once. All arrays that the device writes must be
                          * in buffers, and workspace and arrays of the host stay as they are until
                          * then. It is not touched where the call fails or has nothing to do */
    attn_opencl_times *times; /* where not NULL, and event is NULL, filled in at the end; the
                               * commands are then measured one by one, which takes time itself */
} attn_opencl_call;

/* What was opened. */
typedef struct attn_opencl_info {
    int exact; /* the device's arithmetic gives the CPU's bits: tried with
                          * attn_opencl_options.exact, else 0 */
    int gpu;
    int shares_memory; /* with the host */
    int compute_units;
    size_t memory_bytes, allocation_bytes, local_bytes; /* of the device; largest array; a group */
    void *context, *device_id, *queue; /* cl_context, cl_device_id, cl_command_queue in use */
    char platform[64], device[128], version[64], driver[64];
    char exact_why[160];   /* why not, if it was tried */
    int built, taken;      /* programs that were built from source; taken from binaries */
    int dropped;           /* that failed on their first use */
    char binaries_why[64]; /* why binaries were not taken, or "ok"; "" = none were given */
} attn_opencl_info;

/* A device of some platform. */
typedef struct attn_opencl_device {
    int usable, gpu, compute_units;
    size_t memory_bytes;
    char platform[64], device[128], version[64], driver[64];
    char why[96]; /* why it cannot be used, or "ok" */
} attn_opencl_device;

/* How a device would run a call. */
typedef struct attn_opencl_plan_info {
    int runs;                                /* 0: it refuses, see why; the rest is then 0 */
    int forward, merge_parts, naive, logits; /* kernels that run; without forward the sizes below
                                              * are 0 but for device_bytes */
    int tile_rows, tile_columns;             /* query rows of a tile; columns of V */
    int64_t tiles;                           /* of all sequences and the query heads of a kv head */
    int64_t slices;                          /* that the columns of V are divided into */
    int64_t parts, part_keys; /* that the keys are divided into, at most 256; keys of a part,
                                  * 0 = not divided */
    int64_t items, groups;    /* tiles * num_heads_kv * parts * slices; work-groups for them */
    size_t local_bytes;       /* local memory of a work-group, at most info.local_bytes */
    size_t device_bytes;      /* for states between kernels and chunks, or a head's logits */
    char why[160];            /* "ok", or why not */
} attn_opencl_plan_info;

/* Bytes of memory for one object, aligned as malloc does. */
ATTN_API size_t attn_opencl_size(void);

/* Opens a device in memory of attn_opencl_size() bytes, options NULL = all zero. ATTN_OK; or
 * ATTN_ERR_UNSUPPORTED (no library, no platform, no device, or none that can run the kernels), or
 * ATTN_ERR_ARG, and attn_opencl_why has the sentence. attn_opencl_close may follow in any case, and
 * must before the memory is opened again. */
ATTN_API attn_status attn_opencl_open(attn_opencl *gpu, const attn_opencl_options *options);

/* The devices of all platforms, up to `most` of them to devices; returns how many there are. Of
 * options only library counts. gpu is memory as for attn_opencl_open, needs no attn_opencl_close
 * and then has attn_opencl_why: "ok", or why attn_opencl_open would find nothing. */
ATTN_API int attn_opencl_list(attn_opencl *gpu, const attn_opencl_options *options,
                              attn_opencl_device *devices, int most);

/* Releases everything. No call may be running. */
ATTN_API void attn_opencl_close(attn_opencl *gpu);

/* Why attn_opencl_open failed, or "ok". */
ATTN_API const char *attn_opencl_why(const attn_opencl *gpu);

/* What the device's compiler said last that was not empty: whole, or that it is longer than 8000
 * letters. */
ATTN_API const char *attn_opencl_build_log(const attn_opencl *gpu);

/* *info of an opened object. */
ATTN_API attn_status attn_opencl_info_get(const attn_opencl *gpu, attn_opencl_info *info);

/* All programs built so far, as bytes: writes them to `to` if they fit (else what is there is no
 * longer of use), and returns how many they are (to NULL = only that; 0 = nothing is open). No call
 * may be running. */
ATTN_API size_t attn_opencl_binaries_get(const attn_opencl *gpu, void *to, size_t bytes);

/* Takes programs that attn_opencl_binaries_get gave, in this process or another, instead of
 * building them; they are copied. ATTN_OK; ATTN_ERR_ARG (NULL, or nothing is open); or
 * ATTN_ERR_UNSUPPORTED: the bytes are damaged, or of another device, driver or version of the
 * kernels. info.binaries_why then has the sentence, nothing was taken, and kernels are built from
 * source. So are those that the driver refuses, which options.log hears of. A sum guards against
 * damage, not against malice: keep the bytes where a program would be safe. No call may be
 * running. */
ATTN_API attn_status attn_opencl_binaries_set(attn_opencl *gpu, const void *from, size_t bytes);

/* How a device of these compute_units, local_bytes and allocation_bytes would run attn_forward: no
 * device is needed, nothing else of *info counts but exact. Lengths are read, tensors are not.
 * ATTN_OK, or the error of p with its sentence in plan->why. Any thread may call it. */
ATTN_API attn_status attn_opencl_plan(const attn_opencl_info *info, const attn_params *p,
                                      attn_opencl_plan_info *plan);

/* For p.backend: calls run on gpu, as call says (NULL = host arrays only). Both must outlive it. */
ATTN_API attn_backend attn_opencl_backend(attn_opencl *gpu, attn_opencl_call *how);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_OPENCL_H */
