/* cl_on_cuda.c - the functions of OpenCL that attn_opencl.c, the bench and most tests call, on top
 * of the CUDA driver API, for machines whose NVIDIA driver has no OpenCL part. It has one device
 * and one stream. tools/cl_to_ptx compiles kernels to PTX, or they lie compiled in the folder
 * where it left them.
 * SPDX-License-Identifier: MIT
 *
 *     make build/cl_on_cuda/libOpenCL.so.1
 *     LD_LIBRARY_PATH=build/cl_on_cuda build/bench info
 *
 * CL_ON_CUDA_DIR names the folder of PTX, by default build/cl_on_cuda, and CL_ON_CUDA_COMPILER the
 * program that makes it. The file does not offer user events, out-of-order queues, arrays of the
 * host used in place, or programs as bytes.
 *
 * Tests run it with a simulated driver (tests/fake_cuda.c). On an H100 it has run one case. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the part of the CUDA driver API that is used */

typedef void *cu_handle;
typedef uint64_t cu_pointer;

#define CUDA_FUNCTIONS(X)                                                                          \
    X(cuInit, , (unsigned))                                                                        \
    X(cuDriverGetVersion, , (int *))                                                               \
    X(cuDeviceGet, , (int *, int))                                                                 \
    X(cuDeviceGetName, , (char *, int, int))                                                       \
    X(cuDeviceTotalMem, _v2, (size_t *, int))                                                      \
    X(cuDeviceGetAttribute, , (int *, int, int))                                                   \
    X(cuDeviceGetDefaultMemPool, , (cu_handle *, int))                                             \
    X(cuMemPoolSetAttribute, , (cu_handle, int, void *))                                           \
    X(cuDevicePrimaryCtxRetain, , (cu_handle *, int))                                              \
    X(cuCtxSetCurrent, , (cu_handle))                                                              \
    X(cuStreamCreate, , (cu_handle *, unsigned))                                                   \
    X(cuStreamSynchronize, , (cu_handle))                                                          \
    X(cuMemAllocAsync, , (cu_pointer *, size_t, cu_handle))                                        \
    X(cuMemFreeAsync, , (cu_pointer, cu_handle))                                                   \
    X(cuMemcpyHtoDAsync, _v2, (cu_pointer, const void *, size_t, cu_handle))                       \
    X(cuMemcpyDtoHAsync, _v2, (void *, cu_pointer, size_t, cu_handle))                             \
    X(cuMemcpyDtoDAsync, _v2, (cu_pointer, cu_pointer, size_t, cu_handle))                         \
    X(cuModuleLoadDataEx, , (cu_handle *, const void *, unsigned, int *, void **))                 \
    X(cuModuleUnload, , (cu_handle))                                                               \
    X(cuModuleGetFunction, , (cu_handle *, cu_handle, const char *))                               \
    X(cuLaunchKernel, ,                                                                            \
      (cu_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_handle, \
       void **, void **))                                                                          \
    X(cuEventCreate, , (cu_handle *, unsigned))                                                    \
    X(cuEventRecord, , (cu_handle, cu_handle))                                                     \
    X(cuEventSynchronize, , (cu_handle))                                                           \
    X(cuEventElapsedTime, , (float *, cu_handle, cu_handle))                                       \
    X(cuEventDestroy, _v2, (cu_handle))

#define MEMBER(name, suffix, arguments) int(*name) arguments;
static struct {
    CUDA_FUNCTIONS(MEMBER)
} cu;

#define SYMBOL(name, suffix, arguments) { #name #suffix, &cu.name },
static const struct {
    const char *name;
    void *to;
} symbols[] = { CUDA_FUNCTIONS(SYMBOL) };

enum { UNITS = 16, GROUP_THREADS = 1, GROUP_MEMORY = 8 }; /* CU_DEVICE_ATTRIBUTE_... */
enum { RELEASE_THRESHOLD = 4 };                           /* CU_MEMPOOL_ATTR_... */
enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };              /* CU_JIT_... */

/* ---- OpenCL: its types and numbers */

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_flags;
typedef void *cl_handle;

enum {
    OUT_OF_MEMORY = -4,
    OUT_OF_RESOURCES = -5,
    BUILD_FAILED = -11,
    INVALID_VALUE = -30,
    INVALID_KERNEL_NAME = -46,
    INVALID_ARGUMENT = -50,
    NO_PLATFORM = -1001
};
enum { USE_HOST_PTR = 8, COPY_HOST_PTR = 32, MAP_READ = 1 };
enum { PROFILING_START = 0x1282, PROFILING_END = 0x1283 };

/* ---- objects. Platform, device, context and queue are one object, which is never released. */

enum { MOST_ARGUMENTS = 64, LOG_BYTES = 8192 };

typedef struct memory {
    cu_pointer at;
    size_t bytes;
    char *mapped; /* on the host, while mapped */
    size_t from, mapped_bytes;
    cl_flags how;
    struct memory *next; /* list of live objects, which tells one from a number */
} memory;

typedef struct program {
    char *source;
    cu_handle module;
    char log[LOG_BYTES];
    int references; /* its kernels hold some of them */
} program;

typedef struct kernel {
    program *of;
    cu_handle function;
    int arguments;
    uint64_t values[MOST_ARGUMENTS];
} kernel;

typedef struct event {
    cu_handle begin, end;
} event;

static struct {
    int tried, there, device;
    cu_handle context, stream, base; /* base: the event from which times count */
    int events;                      /* number alive: at 0 base is set anew */
    memory *memories;
    pthread_mutex_t lock;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int load_driver(void)
{
    void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; library && i < sizeof symbols / sizeof *symbols; i++) {
        void *const symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return 0;
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return library != NULL;
}

/* Freed memory stays with the process, because each call takes some. */
static void keep_memory(void)
{
    uint64_t most = UINT64_MAX;
    cu_handle pool;
    if (!cu.cuDeviceGetDefaultMemPool(&pool, all.device))
        cu.cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &most);
}

static int open_driver(void)
{
    if (!load_driver() || cu.cuInit(0) || cu.cuDeviceGet(&all.device, 0))
        return 0;
    if (cu.cuDevicePrimaryCtxRetain(&all.context, all.device) || cu.cuCtxSetCurrent(all.context))
        return 0;
    keep_memory();
    return !cu.cuStreamCreate(&all.stream, 0) && !cu.cuEventCreate(&all.base, 0);
}

/* Makes the context current in the calling thread. */
static int ready(void)
{
    pthread_mutex_lock(&all.lock);
    if (!all.tried)
        all.there = open_driver();
    all.tried = 1;
    pthread_mutex_unlock(&all.lock);
    return all.there && !cu.cuCtxSetCurrent(all.context);
}

/* ---- answers */

static cl_int answer(const void *value, size_t bytes, size_t room, void *to, size_t *size)
{
    if (size)
        *size = bytes;
    if (to && room < bytes)
        return INVALID_VALUE;
    if (to)
        memcpy(to, value, bytes);
    return 0;
}

static cl_int answer_text(const char *text, size_t room, void *to, size_t *size)
{
    return answer(text, strlen(text) + 1, room, to, size);
}

static int attribute(int which)
{
    int value = 0;
    return cu.cuDeviceGetAttribute(&value, which, all.device) ? 0 : value;
}

/* Returns object, and sets *error to whether it exists. */
static void *created(void *object, cl_int otherwise, cl_int *error)
{
    if (error)
        *error = object ? 0 : otherwise;
    return object;
}

/* ---- platform, device */

cl_int clGetPlatformIDs(cl_uint room, cl_handle *platforms, cl_uint *count)
{
    const int there = ready();
    if (count)
        *count = (cl_uint)there;
    if (there && room > 0 && platforms)
        platforms[0] = &all;
    return there ? 0 : NO_PLATFORM;
}

cl_int clGetPlatformInfo(cl_handle platform, cl_uint what, size_t room, void *to, size_t *size)
{
    (void)platform, (void)what;
    return answer_text("CUDA driver API (cl_on_cuda)", room, to, size);
}

cl_int clGetDeviceIDs(cl_handle platform, cl_flags type, cl_uint room, cl_handle *devices,
                      cl_uint *count)
{
    (void)platform, (void)type;
    if (count)
        *count = 1;
    if (room > 0 && devices)
        devices[0] = &all;
    return 0;
}

static uint64_t device_number(cl_uint what)
{
    size_t bytes = 0;
    cu.cuDeviceTotalMem(&bytes, all.device);
    switch (what) {
    case 0x1000:
        return 4; /* a GPU */
    case 0x1002:
        return (uint64_t)attribute(UNITS);
    case 0x1004:
        return (uint64_t)attribute(GROUP_THREADS);
    case 0x1010:
        return bytes / 4;
    case 0x101F:
        return bytes;
    case 0x1023:
        return (uint64_t)attribute(GROUP_MEMORY);
    case 0x1026: /* little-endian */
    case 0x1027: /* available */
    case 0x1028: /* has a compiler */
        return 1;
    default:
        return 0; /* memory is not shared with the host; callers ask nothing else */
    }
}

/* Returns the size of an answer: 64 bits, size_t or 32 bits. */
static size_t width_of(cl_uint what)
{
    return what == 0x1000 || what == 0x1010 || what == 0x101F || what == 0x1023 || what == 0x1004
               ? 8
               : 4;
}

cl_int clGetDeviceInfo(cl_handle device, cl_uint what, size_t room, void *to, size_t *size)
{
    char words[128] = "";
    int version = 0;
    const uint64_t wide = ready() ? device_number(what) : 0;
    const uint32_t narrow = (uint32_t)wide;
    if (what == 0x1031)
        return answer(&device, sizeof device, room, to, size); /* platform */
    if (what == 0x102F)
        return answer_text("OpenCL 1.2 (cl_on_cuda)", room, to, size);
    if (what == 0x102B && cu.cuDeviceGetName(words, (int)sizeof words, all.device) == 0)
        return answer_text(words, room, to, size);
    if (what == 0x102D && cu.cuDriverGetVersion(&version) == 0) {
        snprintf(words, sizeof words, "CUDA %d.%d", version / 1000, version % 1000 / 10);
        return answer_text(words, room, to, size);
    }
    return width_of(what) == 8 ? answer(&wide, sizeof wide, room, to, size)
                               : answer(&narrow, sizeof narrow, room, to, size);
}

/* ---- context, queue */

cl_handle clCreateContext(const intptr_t *properties, cl_uint count, const cl_handle *devices,
                          void (*hear)(const char *, const void *, size_t, void *), void *user,
                          cl_int *error)
{
    (void)properties, (void)count, (void)devices, (void)hear, (void)user;
    return created(ready() ? &all : NULL, OUT_OF_RESOURCES, error);
}

cl_handle clCreateCommandQueue(cl_handle context, cl_handle device, cl_flags flags, cl_int *error)
{
    (void)device, (void)flags;
    return created(context, OUT_OF_RESOURCES, error);
}

/* The queue is in order, like the stream. */
cl_int clGetCommandQueueInfo(cl_handle queue, cl_uint what, size_t room, void *to, size_t *size)
{
    const cl_flags properties = 0;
    const cl_uint queue_properties = 0x1093;
    if (!queue || what != queue_properties)
        return INVALID_VALUE;
    return answer(&properties, sizeof properties, room, to, size);
}

cl_int clRetainContext(cl_handle context)
{
    return context ? 0 : INVALID_VALUE;
}

cl_int clReleaseContext(cl_handle context)
{
    return clRetainContext(context);
}

cl_int clRetainCommandQueue(cl_handle queue)
{
    return clRetainContext(queue);
}

cl_int clReleaseCommandQueue(cl_handle queue)
{
    return clRetainContext(queue);
}

cl_int clFlush(cl_handle queue)
{
    return clRetainContext(queue);
}

cl_int clFinish(cl_handle queue)
{
    (void)queue;
    return ready() && !cu.cuStreamSynchronize(all.stream) ? 0 : OUT_OF_RESOURCES;
}

/* ---- events */

/* Begins the event that the caller wants, if any. Returns 0 if it cannot be made. */
static int begin(cl_handle *to, event **e)
{
    *e = NULL;
    if (!to)
        return 1;
    if (!(*e = calloc(1, sizeof **e)) || cu.cuEventCreate(&(*e)->begin, 0) ||
        cu.cuEventCreate(&(*e)->end, 0))
        return 0;
    pthread_mutex_lock(&all.lock);
    const int first = all.events++ == 0;
    pthread_mutex_unlock(&all.lock);
    *to = *e;
    if (first && cu.cuEventRecord(all.base, all.stream))
        return 0;
    return !cu.cuEventRecord((*e)->begin, all.stream);
}

/* Returns the result of a command and ends its event. */
static cl_int end(event *e, int failed)
{
    if (e)
        failed |= cu.cuEventRecord(e->end, all.stream);
    return failed ? OUT_OF_RESOURCES : 0;
}

cl_int clGetEventProfilingInfo(cl_handle handle, cl_uint what, size_t room, void *to, size_t *size)
{
    const event *const e = handle;
    float ms = 0;
    if (what != PROFILING_START && what != PROFILING_END)
        return INVALID_VALUE;
    if (!ready() || cu.cuEventSynchronize(e->end) ||
        cu.cuEventElapsedTime(&ms, all.base, what == PROFILING_START ? e->begin : e->end))
        return OUT_OF_RESOURCES;
    const uint64_t nanoseconds = (uint64_t)(1e6 * (double)ms);
    return answer(&nanoseconds, sizeof nanoseconds, room, to, size);
}

cl_int clWaitForEvents(cl_uint count, const cl_handle *events)
{
    int failed = !ready();
    for (cl_uint i = 0; i < count && !failed; i++)
        failed = cu.cuEventSynchronize(((const event *)events[i])->end);
    return failed ? OUT_OF_RESOURCES : 0;
}

cl_int clReleaseEvent(cl_handle handle)
{
    event *const e = handle;
    if (!ready())
        return OUT_OF_RESOURCES;
    cu.cuEventDestroy(e->begin);
    cu.cuEventDestroy(e->end);
    free(e);
    pthread_mutex_lock(&all.lock);
    all.events--;
    pthread_mutex_unlock(&all.lock);
    return 0;
}

/* One stream runs commands in the order in which they were enqueued. */
cl_int clEnqueueMarkerWithWaitList(cl_handle queue, cl_uint waits, const cl_handle *wait,
                                   cl_handle *to)
{
    event *e;
    (void)queue, (void)waits, (void)wait;
    return ready() && begin(to, &e) ? end(e, 0) : OUT_OF_RESOURCES;
}

cl_int clEnqueueBarrierWithWaitList(cl_handle queue, cl_uint waits, const cl_handle *wait,
                                    cl_handle *to)
{
    return clEnqueueMarkerWithWaitList(queue, waits, wait, to);
}

/* ---- memory */

cl_handle clCreateBuffer(cl_handle context, cl_flags flags, size_t bytes, void *host, cl_int *error)
{
    memory *const m = flags & USE_HOST_PTR ? NULL : calloc(1, sizeof *m);
    (void)context;
    if (!m)
        return created(NULL, flags & USE_HOST_PTR ? INVALID_VALUE : OUT_OF_MEMORY, error);
    m->bytes = bytes;
    if (!ready() || cu.cuMemAllocAsync(&m->at, bytes, all.stream)) {
        free(m);
        return created(NULL, OUT_OF_MEMORY, error);
    }
    if (flags & COPY_HOST_PTR && (cu.cuMemcpyHtoDAsync(m->at, host, bytes, all.stream) ||
                                  cu.cuStreamSynchronize(all.stream))) {
        cu.cuMemFreeAsync(m->at, all.stream);
        free(m);
        return created(NULL, OUT_OF_RESOURCES, error);
    }
    pthread_mutex_lock(&all.lock);
    m->next = all.memories;
    all.memories = m;
    pthread_mutex_unlock(&all.lock);
    return created(m, 0, error);
}

cl_int clGetMemObjectInfo(cl_handle handle, cl_uint what, size_t room, void *to, size_t *size)
{
    const memory *const m = handle;
    const cl_uint mem_size = 0x1102;
    if (!m || what != mem_size)
        return INVALID_VALUE;
    return answer(&m->bytes, sizeof m->bytes, room, to, size);
}

/* Freeing is in the order of the stream, so earlier commands still have the memory. */
cl_int clReleaseMemObject(cl_handle handle)
{
    memory **at = &all.memories, *const m = handle;
    pthread_mutex_lock(&all.lock);
    while (*at && *at != m)
        at = &(*at)->next;
    if (*at)
        *at = m->next;
    pthread_mutex_unlock(&all.lock);
    const int failed = !ready() || cu.cuMemFreeAsync(m->at, all.stream);
    free(m->mapped);
    free(m);
    return failed ? OUT_OF_RESOURCES : 0;
}

static int is_memory(const void *handle)
{
    pthread_mutex_lock(&all.lock);
    const memory *m = all.memories;
    while (m && m != handle)
        m = m->next;
    pthread_mutex_unlock(&all.lock);
    return m != NULL;
}

/* Reads and writes of the host are done on return, blocking or not. */
static cl_int copied(event *e, int failed)
{
    const cl_int status = end(e, failed);
    return status || cu.cuStreamSynchronize(all.stream) ? OUT_OF_RESOURCES : 0;
}

cl_int clEnqueueReadBuffer(cl_handle queue, cl_handle from, cl_uint blocking, size_t offset,
                           size_t bytes, void *to, cl_uint waits, const cl_handle *wait,
                           cl_handle *done)
{
    const memory *const m = from;
    event *e;
    (void)queue, (void)blocking, (void)waits, (void)wait;
    if (offset + bytes > m->bytes)
        return INVALID_VALUE;
    if (!ready() || !begin(done, &e))
        return OUT_OF_RESOURCES;
    return copied(e, cu.cuMemcpyDtoHAsync(to, m->at + offset, bytes, all.stream));
}

cl_int clEnqueueWriteBuffer(cl_handle queue, cl_handle to, cl_uint blocking, size_t offset,
                            size_t bytes, const void *from, cl_uint waits, const cl_handle *wait,
                            cl_handle *done)
{
    const memory *const m = to;
    event *e;
    (void)queue, (void)blocking, (void)waits, (void)wait;
    if (offset + bytes > m->bytes)
        return INVALID_VALUE;
    if (!ready() || !begin(done, &e))
        return OUT_OF_RESOURCES;
    return copied(e, cu.cuMemcpyHtoDAsync(m->at + offset, from, bytes, all.stream));
}

cl_int clEnqueueCopyBuffer(cl_handle queue, cl_handle from, cl_handle to, size_t from_offset,
                           size_t to_offset, size_t bytes, cl_uint waits, const cl_handle *wait,
                           cl_handle *done)
{
    const memory *const source = from, *const target = to;
    event *e;
    (void)queue, (void)waits, (void)wait;
    if (from_offset + bytes > source->bytes || to_offset + bytes > target->bytes)
        return INVALID_VALUE;
    if (!ready() || !begin(done, &e))
        return OUT_OF_RESOURCES;
    return end(e, cu.cuMemcpyDtoDAsync(target->at + to_offset, source->at + from_offset, bytes,
                                       all.stream));
}

/* A map is a copy in ordinary memory of the host. */
cl_handle clEnqueueMapBuffer(cl_handle queue, cl_handle handle, cl_uint blocking, cl_flags flags,
                             size_t offset, size_t bytes, cl_uint waits, const cl_handle *wait,
                             cl_handle *done, cl_int *error)
{
    memory *const m = handle;
    event *e;
    (void)queue, (void)blocking, (void)waits, (void)wait;
    if (m->mapped || offset + bytes > m->bytes)
        return created(NULL, INVALID_VALUE, error);
    if (!ready() || !begin(done, &e))
        return created(NULL, OUT_OF_RESOURCES, error);
    m->mapped = malloc(bytes + 1);
    m->from = offset;
    m->mapped_bytes = bytes;
    m->how = flags;
    const int reads = m->mapped && flags & MAP_READ;
    const int failed =
        reads ? cu.cuMemcpyDtoHAsync(m->mapped, m->at + offset, bytes, all.stream) : !m->mapped;
    return created(copied(e, failed) ? NULL : m->mapped, OUT_OF_RESOURCES, error);
}

cl_int clEnqueueUnmapMemObject(cl_handle queue, cl_handle handle, void *at, cl_uint waits,
                               const cl_handle *wait, cl_handle *done)
{
    memory *const m = handle;
    event *e;
    int failed = 0;
    (void)queue, (void)waits, (void)wait;
    if (!at || at != m->mapped)
        return INVALID_VALUE;
    if (!ready() || !begin(done, &e))
        return OUT_OF_RESOURCES;
    if (m->how != MAP_READ)
        failed = cu.cuMemcpyHtoDAsync(m->at + m->from, at, m->mapped_bytes, all.stream);
    const cl_int status = copied(e, failed);
    free(m->mapped);
    m->mapped = NULL;
    return status;
}

/* ---- programs */

static char *text_of(const char *path)
{
    FILE *const f = fopen(path, "rb");
    char *text = NULL;
    if (f && !fseek(f, 0, SEEK_END)) {
        const long bytes = ftell(f);
        text = bytes > 0 ? calloc(1, (size_t)bytes + 1) : NULL;
        rewind(f);
        if (text && fread(text, 1, (size_t)bytes, f) != (size_t)bytes) {
            free(text);
            text = NULL;
        }
    }
    if (f)
        fclose(f);
    return text;
}

cl_handle clCreateProgramWithSource(cl_handle context, cl_uint count, const char **sources,
                                    const size_t *lengths, cl_int *error)
{
    program *const p = calloc(1, sizeof *p);
    const size_t bytes = count == 1 && lengths ? lengths[0] : 0;
    (void)context;
    if (p && bytes)
        p->source = calloc(1, bytes + 1);
    if (!p || !p->source) {
        free(p);
        return created(NULL, bytes ? OUT_OF_MEMORY : INVALID_VALUE, error);
    }
    memcpy(p->source, sources[0], bytes);
    p->references = 1;
    return created(p, 0, error);
}

static const char *setting(const char *name, const char *usual)
{
    const char *const value = getenv(name);
    return value && *value ? value : usual;
}

/* Makes FOLDER/OPTIONS, with "_" for all but letters, digits and "=._". */
static void name_files(const char *options, char *base, size_t bytes)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789=._";
    size_t at =
        (size_t)snprintf(base, bytes, "%.300s/", setting("CL_ON_CUDA_DIR", "build/cl_on_cuda"));
    for (; *options && at + 1 < bytes; options++)
        base[at++] = (char)(strchr(plain, *options) ? *options : '_');
    base[at] = '\0';
}

/* Tells whether BASE.cl is the source, and writes it if not. */
static int same_source(const program *p, const char *path)
{
    char *const before = text_of(path);
    const int same = before && !strcmp(before, p->source);
    free(before);
    if (same)
        return 1;
    FILE *const f = fopen(path, "wb");
    const int written = f && fputs(p->source, f) >= 0;
    if (!f || fclose(f) || !written)
        fprintf(stderr, "cl_on_cuda: cannot write %s\n", path);
    return 0;
}

/* Returns the PTX of source and options, from the folder or compiled into it. */
static char *find_ptx(program *p, const char *options)
{
    const char *const compiler = setting("CL_ON_CUDA_COMPILER", "tools/cl_to_ptx");
    char base[500], path[520], command[1600];
    name_files(options, base, sizeof base);
    snprintf(path, sizeof path, "%s.cl", base);
    const int same = same_source(p, path);
    snprintf(path, sizeof path, "%s.ptx", base);
    char *const ready_made = same ? text_of(path) : NULL;
    if (ready_made)
        return ready_made;
    snprintf(command, sizeof command, "%.300s '%s' %.600s", compiler, base, options);
    if (!system(command))
        return text_of(path);
    snprintf(p->log, sizeof p->log, "%.100s did not compile %.300s.cl", compiler, base);
    return NULL;
}

cl_int clBuildProgram(cl_handle handle, cl_uint count, const cl_handle *devices,
                      const char *options, void (*done)(cl_handle, void *), void *user)
{
    program *const p = handle;
    int names[] = { ERROR_LOG, ERROR_LOG_BYTES };
    void *values[] = { p->log, (void *)(uintptr_t)LOG_BYTES };
    (void)count, (void)devices, (void)done, (void)user;
    char *const ptx = ready() ? find_ptx(p, options ? options : "") : NULL;
    const int failed = !ptx || cu.cuModuleLoadDataEx(&p->module, ptx, 2, names, values);
    free(ptx);
    return failed ? BUILD_FAILED : 0;
}

cl_int clGetProgramBuildInfo(cl_handle handle, cl_handle device, cl_uint what, size_t room,
                             void *to, size_t *size)
{
    program *const p = handle;
    (void)device, (void)what;
    p->log[LOG_BYTES - 1] = 0;
    if (to && room > 0 && strlen(p->log) >= room)
        p->log[room - 1] = 0;
    return answer_text(p->log, room, to, size);
}

/* Compiled programs are files already, so none is handed out as bytes, and none is taken. */
cl_int clGetProgramInfo(cl_handle handle, cl_uint what, size_t room, void *to, size_t *size)
{
    (void)handle, (void)what, (void)room, (void)to, (void)size;
    return INVALID_VALUE;
}

cl_handle clCreateProgramWithBinary(cl_handle context, cl_uint count, const cl_handle *devices,
                                    const size_t *bytes, const unsigned char **binaries,
                                    cl_int *each, cl_int *error)
{
    (void)context, (void)count, (void)devices, (void)bytes, (void)binaries, (void)each;
    return created(NULL, INVALID_VALUE, error);
}

cl_int clReleaseProgram(cl_handle handle)
{
    program *const p = handle;
    pthread_mutex_lock(&all.lock);
    const int last = --p->references == 0;
    pthread_mutex_unlock(&all.lock);
    if (!last)
        return 0;
    if (ready() && p->module)
        cu.cuModuleUnload(p->module);
    free(p->source);
    free(p);
    return 0;
}

/* ---- kernels */

cl_handle clCreateKernel(cl_handle handle, const char *name, cl_int *error)
{
    kernel *const k = calloc(1, sizeof *k);
    if (!k)
        return created(NULL, OUT_OF_MEMORY, error);
    k->of = handle;
    if (!ready() || cu.cuModuleGetFunction(&k->function, k->of->module, name)) {
        free(k);
        return created(NULL, INVALID_KERNEL_NAME, error);
    }
    pthread_mutex_lock(&all.lock);
    k->of->references++;
    pthread_mutex_unlock(&all.lock);
    return created(k, 0, error);
}

cl_int clReleaseKernel(cl_handle handle)
{
    kernel *const k = handle;
    clReleaseProgram(k->of);
    free(k);
    return 0;
}

/* Memory objects become addresses. Every argument begins at 8 bytes of its own, as the driver wants
 * a pointer to each. */
cl_int clSetKernelArg(cl_handle handle, cl_uint index, size_t bytes, const void *value)
{
    kernel *const k = handle;
    void *object = NULL;
    if (index >= MOST_ARGUMENTS || bytes > sizeof *k->values || !value)
        return INVALID_ARGUMENT;
    memcpy(&k->values[index], value, bytes);
    if (bytes == sizeof object)
        memcpy(&object, value, bytes);
    if (object && is_memory(object))
        k->values[index] = ((const memory *)object)->at;
    if ((int)index >= k->arguments)
        k->arguments = (int)index + 1;
    return 0;
}

cl_int clEnqueueNDRangeKernel(cl_handle queue, cl_handle handle, cl_uint axes, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint waits,
                              const cl_handle *wait, cl_handle *done)
{
    kernel *const k = handle;
    void *values[MOST_ARGUMENTS];
    unsigned groups[3] = { 1, 1, 1 }, items[3] = { 1, 1, 1 };
    event *e;
    (void)queue, (void)waits, (void)wait;
    if (axes > 3 || offset || !local)
        return INVALID_VALUE;
    for (cl_uint i = 0; i < axes; i++) {
        if (local[i] == 0 || global[i] % local[i])
            return INVALID_VALUE;
        items[i] = (unsigned)local[i];
        groups[i] = (unsigned)(global[i] / local[i]);
    }
    for (int i = 0; i < k->arguments; i++)
        values[i] = &k->values[i];
    if (!ready() || !begin(done, &e))
        return OUT_OF_RESOURCES;
    return end(e, cu.cuLaunchKernel(k->function, groups[0], groups[1], groups[2], items[0],
                                    items[1], items[2], 0, all.stream, values, NULL));
}
