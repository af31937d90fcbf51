/* attn_opencl.h - attn_forward and attn_backward on a GPU or any other OpenCL 1.2 device. It needs
 * attn.h, attn.c, attn_opencl.c and kernels.cl as bytes (kernels_cl.inc: see "Building").
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 *     attn_opencl *gpu = malloc(attn_opencl_size());
 *     if (attn_opencl_open(gpu, NULL) != ATTN_OK)
 *         puts(attn_opencl_why(gpu));                  // no error: the CPU computes then
 *     attn_backend backend = attn_opencl_backend(gpu, NULL);
 *     p.backend = &backend;                            // attn_workspace_size, attn_forward as ever
 *     ...
 *     attn_opencl_close(gpu);
 *     free(gpu);
 *
 * What runs. A device takes every call but those with callbacks (score, mask), i8, p.fast or p.recent, and
 *   those that its memory cannot hold. A call that it refuses runs on the CPU; attn_explain says why, and p.log
 *   hears it. A call with arrays in call.buffers, or with an event, cannot run on the CPU and ends
 *   with ATTN_ERR_UNSUPPORTED. A call that the driver fails ends with ATTN_ERR_CALLBACK, and p.log
 *   hears why. p.impl = ATTN_IMPL_NAIVE runs the textbook on the device for attn_forward, and on
 *   the CPU for attn_backward. The device does not look at p.kernels, tile_keys, tuning, workers,
 *   shared_keys and g.gemms.
 * Bits. By default the device divides keys as it likes and takes its own 2^x. Its results are
 *   within the bound of docs/numerics.md and have equal bits in each run on one device and driver.
 *   With attn_opencl_options.exact every result has the bits of the CPU (docs/canon.md).
 *   attn_opencl_open tries whether the device's arithmetic allows it, and if not, calls are
 *   refused.
 * Data. Arrays of the host are copied to the device and back, or used in place where host and
 *   device share memory. attn_opencl_call.buffers names arrays that are on the device already, as
 *   cl_mem or SVM. Lengths (q_len, kv_len, kv_begin, cu_seqlens, key_base, q_offset, prefix),
 *   tree_parents, page tables, block masks, slopes, sinks and the list of rows for logits are
 *   always the host's.
 * Memory. The library allocates nothing on the host; the driver does as it likes. The workspace of
 *   a call is host memory for descriptions. Device memory for copies, descriptions and partial
 *   states is taken from the driver. Up to 16 arrays of it, each at most 1/256 of the device's
 *   memory, stay with the object for later calls until attn_opencl_close: new memory would cost a
 *   call 0.1 ms and more.
 * Threads. After attn_opencl_open one object serves many threads at once, each with its own
 *   attn_opencl_call, or NULL.
 * Driver. libOpenCL is loaded when the program runs, and nothing is linked. Kernels are built when
 *   they are first needed, which takes a second or more each. Many drivers keep them for the next
 *   start. A program can also take them by attn_opencl_binaries_get, e.g. into a file, and give
 *   them back by options.binaries or attn_opencl_binaries_set. The library touches no file.
 * First use. Before the first call, or size of a workspace, that needs a program, a small problem
 *   runs on it and on the CPU. The program is dropped if the results differ: in a bit with
 *   options.exact, and otherwise by more than 1e-4 where results are up to 1, or gradients up to
 *   10. options.log then gets a line, and calls that need the program are refused. A workspace that
 *   was sized before may be too small for the CPU: ask for its size again.
 * Building. Link with -ldl where dlopen needs it (glibc before 2.34). attn_opencl.c includes
 *   kernels_cl.inc, the bytes of kernels.cl as decimal numbers separated by commas. The Makefile
 *   makes it, and so does
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

/* An attn_opencl is an open device. It lies in memory of attn_opencl_size() bytes. */
typedef struct attn_opencl attn_opencl;

/* An attn_opencl_options says how to open a device. Set it to zero, then assign. */
typedef struct attn_opencl_options {
    /* Nonzero asks for the bits of the CPU, or a refusal. */
    int exact;
    /* device is a part of the name of a platform or device; "" or NULL means the best: a GPU before
     * others, more compute units before fewer. */
    const char *device;
    /* library is the file of the ICD loader; NULL means the usual ones of the system. */
    const char *library;
    /* context is the caller's cl_context. This and the next two fields are given together and
     * retained until attn_opencl_close; NULL in all three lets the library make its own. */
    void *context;
    /* device_id is a cl_device_id in that context. */
    void *device_id;
    /* queue is a cl_command_queue in that context which takes its commands in order. */
    void *queue;
    /* Nonzero uses kernels at once, without "First use" above, so that it can be measured. */
    int unchecked;
    /* build_options are more of them for the device's compiler, at most 99 letters, e.g.
     * "-cl-intel-256-GRF-per-thread"; NULL means none. The checks of `exact` and of first uses find
     * out what makes it compute otherwise ("-cl-fast-relaxed-math"). */
    const char *build_options;
    /* Nonzero copies arrays of the host to a device that could use them where they lie. */
    int copies;
    /* Nonzero makes the library's own queue measure its commands, for call.times. */
    int profiling;
    /* Calls with fewer operations than least_flops (2 * pairs * (head_dim + head_dim_v), half of it
     * if causal) are refused and run on the CPU, except naive ones; 0 refuses none. `bench tune`
     * finds where the device begins to win. */
    double least_flops;
    /* binaries are as attn_opencl_binaries_set takes them, but come before the device is tried for
     * `exact`; where they are not taken, opening goes on. NULL means none. */
    const void *binaries;
    size_t binaries_bytes;
    /* log hears what was chosen and what failed; NULL means silence. */
    attn_log_fn log;
    /* log_user is the first argument of log. */
    void *log_user;
} attn_opencl_options;

/* An attn_opencl_buffer is an array that is on the device. p.q.data and others are then addresses
 * from address to address + bytes - 1, which are never read: they only name elements. The memory of
 * a host copy will do, or numbers that the caller makes up. Several buffers may name parts of one
 * mem; if several name an address, the first counts. Set it to zero, then assign. */
typedef struct attn_opencl_buffer {
    /* offset is the place of the array in mem, in bytes, a multiple of its element. */
    size_t offset;
    const void *address;
    size_t bytes;
    /* mem is a cl_mem of the context that the object was opened with. */
    void *mem;
    /* Nonzero means that mem is not a cl_mem, but what clSVMAlloc gave for that context; where it
     * is coarse-grained, the host has unmapped it. */
    int svm;
} attn_opencl_buffer;

/* An attn_opencl_times tells where the time of a call went, in seconds by the device's clock. The
 * rest of the call went into launching: building and enqueueing kernels, and waiting. All fields
 * are 0 where the queue does not measure. */
typedef struct attn_opencl_times {
    /* to_device is the time of copying arrays of the host to the device. */
    double to_device;
    /* compute is the time of kernels. */
    double compute;
    /* to_host is the time of copying arrays to the host; waiting for the device does not count. */
    double to_host;
    /* kernels counts the kernels launched. */
    int kernels;
} attn_opencl_times;

/* An attn_opencl_call says how one call of attn_forward or attn_backward uses the device. Set it to
 * zero, then assign. */
typedef struct attn_opencl_call {
    int num_buffers;
    /* buffers[num_buffers] name the arrays that are on the device. */
    const attn_opencl_buffer *buffers;
    /* gpu is set by attn_opencl_backend. */
    attn_opencl *gpu;
    /* queue is a cl_command_queue that takes its commands in order; NULL means the object's. */
    void *queue;
    int num_wait;
    /* wait[num_wait] are cl_events that must be complete before the device begins with a kernel;
     * arrays of the host are copied before. */
    void *const *wait;
    /* event, where not NULL, gets a cl_event of the end, which the caller releases, and the call
     * returns at once. All arrays that the device writes must then be in buffers, and workspace and
     * arrays of the host stay as they are until the end. It is not touched where the call fails or
     * has nothing to do. */
    void **event;
    /* times, where not NULL and event is NULL, is filled in at the end; the commands are then
     * measured one by one, which takes time itself. */
    attn_opencl_times *times;
} attn_opencl_call;

/* An attn_opencl_info tells what was opened. */
typedef struct attn_opencl_info {
    /* Nonzero means that the device's arithmetic gives the CPU's bits; it is tried only with
     * attn_opencl_options.exact, and 0 otherwise. */
    int exact;
    /* Nonzero means that the device is a GPU. */
    int gpu;
    /* Nonzero means that host and device share memory. */
    int shares_memory;
    int compute_units;
    /* These are the bytes of the device's memory, of its largest array and of a work-group's local
     * memory. */
    size_t memory_bytes, allocation_bytes, local_bytes;
    /* These are the cl_context, cl_device_id and cl_command_queue in use. */
    void *context, *device_id, *queue;
    char platform[64], device[128], version[64], driver[64];
    /* exact_why says why not, if exact was tried. */
    char exact_why[160];
    /* built counts programs that were built from source, and taken those from binaries. */
    int built, taken;
    /* dropped counts programs that failed on their first use. */
    int dropped;
    /* pool_bytes counts the device memory that calls have left for later ones. */
    size_t pool_bytes;
    /* binaries_why says why binaries were not taken, or "ok"; "" means that none were given. */
    char binaries_why[64];
} attn_opencl_info;

/* An attn_opencl_device is a device of some platform. */
typedef struct attn_opencl_device {
    /* usable is nonzero if the device can run the kernels, and gpu if it is a GPU. */
    int usable, gpu, compute_units;
    size_t memory_bytes;
    char platform[64], device[128], version[64], driver[64];
    /* why says why the device cannot be used, or "ok". */
    char why[96];
} attn_opencl_device;

/* An attn_opencl_plan_info tells how a device would run a call. */
typedef struct attn_opencl_plan_info {
    /* 0 means that the device refuses the call: `why` says why, and the rest is 0. */
    int runs;
    /* Nonzero marks the kernels that run; without forward the sizes below are 0 except
     * device_bytes. */
    int forward, merge_parts, naive, logits, rotate_queries, rotate_results;
    /* A tile has tile_rows query rows and tile_columns columns of V. */
    int tile_rows, tile_columns;
    /* tiles counts those of all sequences and of the query heads of a kv head. */
    int64_t tiles;
    /* slices is the number of slices that the columns of V are divided into. */
    int64_t slices;
    /* The keys are divided into parts, at most 128, of part_keys keys; a part_keys of 0 means that
     * they are not divided. */
    int64_t parts, part_keys;
    /* items is tiles * num_heads_kv * parts * slices, and groups counts the work-groups for
     * them. */
    int64_t items, groups;
    /* local_bytes is the local memory of a work-group, at most info.local_bytes. */
    size_t local_bytes;
    /* device_bytes is the memory for states between kernels and chunks, for a head's logits, and for
     * queries and results that are rotated or rounded. */
    size_t device_bytes;
    /* why is "ok", or says why not. */
    char why[160];
} attn_opencl_plan_info;

/* attn_opencl_size() returns the bytes of memory for one object, which is aligned as malloc
 * does. */
ATTN_API size_t attn_opencl_size(void);

/* attn_opencl_open() opens a device in memory of attn_opencl_size() bytes. Options of NULL mean all
 * zero.
 *
 * attn_opencl_close may follow in any case, and must before the memory is opened again. Returns
 * ATTN_ERR_UNSUPPORTED (no library, no platform, no device, or none that can run the kernels) or
 * ATTN_ERR_ARG, and attn_opencl_why then has the sentence. */
ATTN_API attn_status attn_opencl_open(attn_opencl *gpu, const attn_opencl_options *options);

/* attn_opencl_list() writes up to `most` devices of all platforms to `devices` and returns how many
 * there are.
 *
 * Of the options only library counts. gpu is memory as for attn_opencl_open and needs no
 * attn_opencl_close; attn_opencl_why then says "ok", or why attn_opencl_open would find nothing. */
ATTN_API int attn_opencl_list(attn_opencl *gpu, const attn_opencl_options *options,
                              attn_opencl_device *devices, int most);

/* attn_opencl_close() releases everything. No call may be running. */
ATTN_API void attn_opencl_close(attn_opencl *gpu);

/* attn_opencl_why() says why attn_opencl_open failed, or "ok". */
ATTN_API const char *attn_opencl_why(const attn_opencl *gpu);

/* attn_opencl_build_log() returns the last text of the device's compiler that was not empty. As a
 * special case, it only says so if the text is longer than 8000 letters. */
ATTN_API const char *attn_opencl_build_log(const attn_opencl *gpu);

/* attn_opencl_info_get() fills in *info of an opened object. Returns ATTN_ERR_ARG if nothing is
 * open. */
ATTN_API attn_status attn_opencl_info_get(const attn_opencl *gpu, attn_opencl_info *info);

/* attn_opencl_binaries_get() returns the bytes of all programs built so far, and writes them to
 * `to` if they fit.
 *
 * If they do not fit, the content of `to` is no longer of use. If `to` is NULL, it only counts. It
 * returns 0 if nothing is open. No call may be running. */
ATTN_API size_t attn_opencl_binaries_get(const attn_opencl *gpu, void *to, size_t bytes);

/* attn_opencl_binaries_set() takes programs that attn_opencl_binaries_get gave, in this process or
 * another, instead of building them.
 *
 * They are copied. Returns ATTN_ERR_ARG if `from` is NULL or nothing is open, and
 * ATTN_ERR_UNSUPPORTED if the bytes are damaged, or of another device, driver or version of the
 * kernels. info.binaries_why then has the sentence, nothing was taken, and kernels are built from
 * source. Programs that the driver refuses are also built from source, and options.log hears of
 * them. A sum guards against damage and not against malice: keep the bytes where a program would be
 * safe. No call may be running. */
ATTN_API attn_status attn_opencl_binaries_set(attn_opencl *gpu, const void *from, size_t bytes);

/* attn_opencl_plan() tells how a device of these compute_units, local_bytes and allocation_bytes
 * would run attn_forward.
 *
 * No device is needed, and of *info nothing else counts except exact. Lengths are read; tensors are
 * not. Any thread may call it. Returns the error of *p, with its sentence in plan->why. */
ATTN_API attn_status attn_opencl_plan(const attn_opencl_info *info, const attn_params *p,
                                      attn_opencl_plan_info *plan);

/* attn_opencl_backend() returns a backend for p.backend: calls run on gpu, as *how says.
 *
 * A `how` of NULL means host arrays only. gpu and *how must outlive the backend. */
ATTN_API attn_backend attn_opencl_backend(attn_opencl *gpu, attn_opencl_call *how);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_OPENCL_H */
