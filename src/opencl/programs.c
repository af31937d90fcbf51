/* src/opencl/programs.c - programs: kernels are built when they are first needed.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "device.c"

static const unsigned char kernels_source[] = {
#include "kernels_cl.inc"
};

static const int row_kinds[ROWS_KINDS] = { FEW_ROWS, 16, 32, 64 };

static int row_kind(int rows)
{
    int kind = 0;
    while (row_kinds[kind] != rows)
        kind++;
    return kind;
}

static int variant_number(const variant *v)
{
    int n = v->part;
    n = n * 2 + v->exact;
    n = n * KV_TYPES + v->kv_type;
    n = n * ROWS_KINDS + row_kind(v->rows);
    n = n * COLUMNS_KINDS + (v->columns == 256 ? 2 : v->columns == 128 ? 1 : 0);
    return (n * 2 + v->pairs) * 2 + v->whole;
}

static variant variant_of(int number)
{
    variant v;
    v.whole = number % 2;
    number /= 2;
    v.pairs = number % 2;
    number /= 2;
    v.columns = 64 << number % COLUMNS_KINDS;
    number /= COLUMNS_KINDS;
    v.rows = row_kinds[number % ROWS_KINDS];
    number /= ROWS_KINDS;
    v.kv_type = number % KV_TYPES;
    number /= KV_TYPES;
    v.exact = number % 2;
    v.part = number / 2;
    return v;
}

enum { MOST_OPTIONS = 320 }; /* letters of all options of a program */

static void put_option(text *t, const char *name, int value)
{
    put(t, " -D");
    put(t, name);
    put(t, "=");
    put_int(t, value);
}

static void build_options(const attn_opencl *gpu, const variant *v, char *to, size_t bytes)
{
    static const char *const parts[PART_COUNT] = { "PART_FORWARD", "PART_ROWS",  "PART_ROTATE",
                                                   "PART_NAIVE",   "PART_CHECK", "PART_BACKWARD" };
    text t = text_in(to, bytes);
    put(&t, "-cl-std=CL1.2");
    put_option(&t, parts[v->part], 1);
    put_option(&t, "EXACT", v->exact);
    put_option(&t, "KV_TYPE", v->kv_type);
    put_option(&t, "BM", v->rows);
    put_option(&t, "DVB", v->columns);
    put_option(&t, "PAIRS", v->pairs);
    put_option(&t, "WHOLE", v->whole);
    put_option(&t, "INLINE", gpu->info.gpu);
    put(&t, gpu->build_options[0] ? " " : "");
    put(&t, gpu->build_options);
}

/* Several threads may build one program at once, or try it; the first to store it wins. */
#if GNU_C
#define LOAD(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define STORE_FIRST(at, expected, value)                                                           \
    __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#define STORE(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define COUNT_ONE(at) __atomic_fetch_add(at, 1, __ATOMIC_RELAXED)
#else
#define LOAD(at) (*(at))
#define STORE_FIRST(at, expected, value) ((void)(expected), *(at) = (value), 1)
#define STORE(at, value) (*(at) = (value))
#define COUNT_ONE(at) (*(at))++
#endif

/* keep_build_log keeps what the compiler said, if anything. Of several threads that build at once
 * one is heard. A log is given whole or not at all. */
static void keep_build_log(attn_opencl *gpu, cl_handle program, int failed)
{
    text log = text_in(gpu->build_log, sizeof gpu->build_log);
    size_t bytes = 0;
    int expected = 0;
    gpu->cl.clGetProgramBuildInfo(program, gpu->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    if ((bytes <= 1 && !failed) || !STORE_FIRST(&gpu->log_taken, &expected, 1))
        return;
    if (bytes > sizeof gpu->build_log) {
        put(&log, "the compiler's log is too long to be kept: ");
        put_int(&log, (int64_t)bytes);
        put(&log, " letters");
    } else if (gpu->cl.clGetProgramBuildInfo(program, gpu->device, CL_PROGRAM_BUILD_LOG,
                                             sizeof gpu->build_log, gpu->build_log, NULL) ||
               bytes == 0) {
        put(&log, "the compiler says nothing");
    }
    gpu->build_log[sizeof gpu->build_log - 1] = 0;
    if (failed)
        say(gpu, ATTN_LOG_WARNING, gpu->build_log);
    STORE(&gpu->log_taken, 0);
}

/* finish_program builds the program that was created, or releases it. */
static cl_handle finish_program(attn_opencl *gpu, const variant *v, cl_handle program,
                                cl_int *error)
{
    char options[MOST_OPTIONS];
    build_options(gpu, v, options, sizeof options);
    *error = gpu->cl.clBuildProgram(program, 1, &gpu->device, options, NULL, NULL);
    keep_build_log(gpu, program, *error != CL_SUCCESS);
    if (!*error)
        return program;
    gpu->cl.clReleaseProgram(program);
    return NULL;
}

static cl_handle build_program(attn_opencl *gpu, const variant *v, cl_int *error)
{
    const char *source = (const char *)kernels_source;
    const size_t length = sizeof kernels_source;
    cl_handle program = gpu->cl.clCreateProgramWithSource(gpu->context, 1, &source, &length, error);
    if (*error)
        return NULL;
    COUNT_ONE(&gpu->built);
    return finish_program(gpu, v, program, error);
}

/* publish_program puts the program into its slot and returns the one that is there: another may
 * have come first. */
static cl_handle publish_program(attn_opencl *gpu, int number, cl_handle program)
{
    cl_handle before = NULL;
    if (STORE_FIRST(&gpu->programs[number], &before, program))
        return program;
    gpu->cl.clReleaseProgram(program);
    return before;
}

static cl_handle find_program(attn_opencl *gpu, const variant *v, cl_int *error)
{
    const int number = variant_number(v);
    cl_handle program = LOAD(&gpu->programs[number]);
    *error = CL_SUCCESS;
    if (program)
        return program;
    program = build_program(gpu, v, error);
    return program ? publish_program(gpu, number, program) : NULL;
}
