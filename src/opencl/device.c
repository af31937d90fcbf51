/* src/opencl/device.c - the opened device: which one, and what it can do.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "loader.c"
#include "plan.c"

enum { ROWS_KINDS = 4, COLUMNS_KINDS = 3 };
#define VARIANTS (PART_COUNT * 2 * KV_TYPES * ROWS_KINDS * COLUMNS_KINDS * 2 * 2)

typedef struct check_data {
    float in[3 * CL_CHECKS], out[CL_CHECKS];
} check_data;

/* A pool_slot keeps memory of the device between calls. */
enum { POOL_SLOTS = 16 };
enum slot_state { SLOT_EMPTY, SLOT_LOCKED, SLOT_FULL };
typedef struct pool_slot {
    int volatile state; /* the thread that made it SLOT_LOCKED reads and writes the rest */
    cl_handle memory;
    cl_handle queue; /* whose commands may still use the memory; NULL = nobody does */
    int64_t volatile bytes;
} pool_slot;

struct attn_opencl {
    cl_api cl;
    void *library;
    cl_handle device, context, queue;
    attn_opencl_info info;
    attn_opencl_options options; /* pointers but log's are of use while it is opened */
    device_limits limits;        /* exact: asked for */
    attn_opencl_call plain;      /* of a backend without a call of its own */
    char build_options[100];     /* of the caller */
    char why[256], build_log[8001];
    int volatile log_taken;                /* nonzero: a thread writes build_log */
    check_data check;                      /* of attn_opencl_open */
    cl_handle volatile programs[VARIANTS]; /* NULL = not built yet */
    int volatile verdicts[VARIANTS];       /* enum verdict, of a first use */
    int volatile built, taken;             /* of them from source, from kept binaries */
    int volatile pool_turn;                /* the slot that gives way when none is empty */
    pool_slot pool[POOL_SLOTS];
};

static void say(const attn_opencl *gpu, int level, const char *sentence)
{
    if (gpu->options.log)
        gpu->options.log(gpu->options.log_user, level, sentence);
}

static void release(cl_int(CL_CALL *by)(cl_handle), cl_handle object)
{
    if (object)
        by(object);
}

/* explain_error says "what: OpenCL error -5 (out of resources)". */
static void explain_error(text *why, const char *what, cl_int error)
{
    put(why, what);
    put(why, ": OpenCL error ");
    put_int(why, error);
    put(why, " (");
    put(why, cl_error_name(error));
    put(why, ")");
}

/* ---- Devices */

enum { MOST_PLATFORMS = 16, MOST_DEVICES = 32 };

static int find_functions(attn_opencl *gpu)
{
    int i;
    for (i = 0; i < COUNT_OF(cl_symbols); i++) {
        const library_symbol found = FIND_SYMBOL(gpu->library, cl_symbols[i].name);
        if (!found)
            return 0;
        memcpy((char *)&gpu->cl + cl_symbols[i].offset, &found, sizeof found);
    }
    return 1;
}

static int load_library(attn_opencl *gpu, text *why)
{
    static const char *const loaders[] = { LOADERS };
    const char *const file = gpu->options.library;
    int i;
    for (i = 0; i < (file ? 1 : COUNT_OF(loaders)) && !gpu->library; i++)
        gpu->library = OPEN_LIBRARY(file ? file : loaders[i]);
    if (gpu->library && find_functions(gpu))
        return 1;
    put(why, gpu->library ? "the OpenCL library lacks a function of OpenCL 1.2: "
                          : "no OpenCL library: ");
    put(why, file ? file : loaders[0]);
    return 0;
}

static uint64_t device_number(const attn_opencl *gpu, cl_handle device, cl_uint what, size_t bytes)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    void *const to = bytes == sizeof narrow ? (void *)&narrow : &wide;
    if (gpu->cl.clGetDeviceInfo(device, what, bytes, to, NULL))
        return 0;
    return bytes == sizeof narrow ? narrow : wide;
}

#define DEVICE_UINT(device, what) ((uint32_t)device_number(gpu, device, what, 4))
#define DEVICE_ULONG(device, what) device_number(gpu, device, what, 8)
#define DEVICE_SIZE(device, what) device_number(gpu, device, what, sizeof(size_t))

/* device_text reads a text of a device or, with `platform`, of its platform. */
static void device_text(const attn_opencl *gpu, cl_handle device, int platform, cl_uint what,
                        char *to, size_t bytes)
{
    char words[512];
    cl_handle of = device;
    text out = text_in(to, bytes);
    words[0] = 0;
    if (platform)
        gpu->cl.clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof of, &of, NULL);
    if (platform)
        gpu->cl.clGetPlatformInfo(of, what, sizeof words, words, NULL);
    else
        gpu->cl.clGetDeviceInfo(of, what, sizeof words, words, NULL);
    words[sizeof words - 1] = 0;
    put(&out, words);
}

/* holds returns whether `part` occurs in `whole`, letter for letter. */
static int holds(const char *whole, const char *part)
{
    const size_t length = strlen(part);
    for (; *whole; whole++)
        if (strncmp(whole, part, length) == 0)
            return 1;
    return length == 0;
}

static uint32_t host_is_little(void)
{
    const uint32_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first;
}

/* device_fault says why the device cannot run the kernels, or gives NULL: it can. */
static const char *device_fault(const attn_opencl *gpu, cl_handle device)
{
    if (!DEVICE_UINT(device, CL_DEVICE_AVAILABLE))
        return "the driver says that it is not available";
    if (!DEVICE_UINT(device, CL_DEVICE_COMPILER_AVAILABLE))
        return "its driver has no compiler";
    if (DEVICE_UINT(device, CL_DEVICE_ENDIAN_LITTLE) != host_is_little())
        return "its byte order is not the host's";
    if (DEVICE_SIZE(device, CL_DEVICE_MAX_WORK_GROUP_SIZE) < CL_TX * CL_TY)
        return "its work-groups have less than 256 items";
    return NULL;
}

static void list_device(const attn_opencl *gpu, cl_handle device, attn_opencl_device *to)
{
    const char *fault = device_fault(gpu, device);
    text why = text_in(to->why, sizeof to->why);
    to->usable = fault == NULL;
    put(&why, fault ? fault : "ok");
    to->gpu = (DEVICE_ULONG(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_GPU) != 0;
    to->compute_units = (int)DEVICE_UINT(device, CL_DEVICE_MAX_COMPUTE_UNITS);
    to->memory_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_GLOBAL_MEM_SIZE);
    device_text(gpu, device, 0, CL_DEVICE_NAME, to->device, sizeof to->device);
    device_text(gpu, device, 0, CL_DEVICE_VERSION, to->version, sizeof to->version);
    device_text(gpu, device, 0, CL_DRIVER_VERSION, to->driver, sizeof to->driver);
    device_text(gpu, device, 1, CL_PLATFORM_NAME, to->platform, sizeof to->platform);
}

/* rank_device ranks a device among others; one that cannot be used, or is not wanted, has 0. */
static double rank_device(const attn_opencl_device *d, const char *wanted)
{
    if (!d->usable || (wanted && !holds(d->device, wanted) && !holds(d->platform, wanted)))
        return 0;
    return (d->gpu ? 1e6 : 1) * (1 + (double)d->compute_units);
}

/* A device_walk goes over the devices of all platforms. */
typedef struct device_walk {
    cl_uint platforms, devices;
    const char *wanted;
    cl_handle best; /* NULL = none */
    double best_rank;
    attn_opencl_device *list; /* the first `room` of them */
    int room;
} device_walk;

static void visit_device(const attn_opencl *gpu, cl_handle device, device_walk *walk)
{
    attn_opencl_device found = { 0 };
    double rank;
    list_device(gpu, device, &found);
    rank = rank_device(&found, walk->wanted);
    if ((int)walk->devices < walk->room)
        walk->list[walk->devices] = found;
    walk->devices++;
    if (rank > walk->best_rank) {
        walk->best_rank = rank;
        walk->best = device;
    }
}

static void walk_devices(const attn_opencl *gpu, device_walk *walk, text *why)
{
    cl_handle platforms[MOST_PLATFORMS], devices[MOST_DEVICES];
    cl_uint count, p, d;
    const char *named;
    if (gpu->cl.clGetPlatformIDs(MOST_PLATFORMS, platforms, &walk->platforms))
        walk->platforms = 0;
    for (p = 0; p < walk->platforms && p < MOST_PLATFORMS; p++) {
        if (gpu->cl.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &count))
            continue;
        for (d = 0; d < count && d < MOST_DEVICES; d++)
            visit_device(gpu, devices[d], walk);
    }
    if (walk->platforms == 0) {
        put(why, "no OpenCL platform: the loader is there, but no driver is installed for it");
    } else if (!walk->best) {
        put_int(why, walk->platforms);
        put(why, " OpenCL platforms, ");
        put_int(why, walk->devices);
        put(why, " devices, none ");
        named = walk->wanted && walk->devices ? walk->wanted : "";
        put(why, *named ? "named " : "that can run the kernels");
        put(why, named);
    }
}

static device_limits limits_of(const attn_opencl_info *info, int exact)
{
    const device_limits limits = { info->compute_units, info->local_bytes, info->allocation_bytes,
                                   exact, 0 };
    return limits;
}

static void describe_device(attn_opencl *gpu)
{
    attn_opencl_info *info = &gpu->info;
    const cl_handle device = gpu->device;
    attn_opencl_device found;
    list_device(gpu, device, &found);
    info->context = gpu->context;
    info->device_id = device;
    info->queue = gpu->queue;
    info->gpu = found.gpu;
    info->shares_memory =
        !gpu->options.copies && DEVICE_UINT(device, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
    info->compute_units = found.compute_units;
    info->memory_bytes = found.memory_bytes;
    info->allocation_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    info->local_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_LOCAL_MEM_SIZE);
    memcpy(info->device, found.device, sizeof info->device);
    memcpy(info->version, found.version, sizeof info->version);
    memcpy(info->driver, found.driver, sizeof info->driver);
    memcpy(info->platform, found.platform, sizeof info->platform);
    gpu->limits = limits_of(info, gpu->limits.exact);
}

/* is_in_order matters: kernels of a call rely on the order in which they were handed over. */
static int is_in_order(const attn_opencl *gpu, cl_handle queue)
{
    cl_flags properties = 0;
    return gpu->cl.clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties,
                                         NULL) == CL_SUCCESS &&
           !(properties & CL_QUEUE_OUT_OF_ORDER);
}

/* open_queue takes the caller's context, device and queue, or makes our own. */
static attn_status open_queue(attn_opencl *gpu, text *why)
{
    const attn_opencl_options *o = &gpu->options;
    const int given = (o->context != NULL) + (o->device_id != NULL) + (o->queue != NULL);
    const cl_flags flags = o->profiling ? CL_QUEUE_PROFILING_ENABLE : 0;
    cl_int error = CL_SUCCESS;
    device_walk walk = { .wanted = o->device };
    if (given == 3 && !is_in_order(gpu, o->queue))
        return bad(why, ATTN_ERR_ARG, "options.queue must take its commands in order");
    if (given == 3) {
        gpu->device = o->device_id;
        gpu->context = o->context;
        gpu->queue = o->queue;
        gpu->cl.clRetainContext(gpu->context);
        gpu->cl.clRetainCommandQueue(gpu->queue);
        return ATTN_OK;
    }
    if (given != 0)
        return bad(why, ATTN_ERR_ARG,
                   "context, device_id and queue must be given together or not at all");
    walk_devices(gpu, &walk, why);
    gpu->device = walk.best;
    if (!gpu->device)
        return ATTN_ERR_UNSUPPORTED;
    gpu->context = gpu->cl.clCreateContext(NULL, 1, &gpu->device, NULL, NULL, &error);
    if (!error)
        gpu->queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, flags, &error);
    if (error)
        explain_error(why, "the device cannot be opened", error);
    return error ? ATTN_ERR_UNSUPPORTED : ATTN_OK;
}
