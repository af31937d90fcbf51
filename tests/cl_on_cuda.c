/* cl_on_cuda.c - tools/cl_on_cuda.c on a driver that is none: memory, kernels, times, errors. The
 * first argument is the library.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void *handle;

#define FUNCTIONS(X)                                                                               \
    X(handle, clCreateBuffer, (handle, uint64_t, size_t, void *, int32_t *))                       \
    X(int32_t, clReleaseMemObject, (handle))                                                       \
    X(handle, clEnqueueMapBuffer,                                                                  \
      (handle, handle, uint32_t, uint64_t, size_t, size_t, uint32_t, const handle *, handle *,     \
       int32_t *))                                                                                 \
    X(int32_t, clEnqueueUnmapMemObject,                                                            \
      (handle, handle, void *, uint32_t, const handle *, handle *))                                \
    X(int32_t, clEnqueueReadBuffer,                                                                \
      (handle, handle, uint32_t, size_t, size_t, void *, uint32_t, const handle *, handle *))      \
    X(int32_t, clEnqueueCopyBuffer,                                                                \
      (handle, handle, handle, size_t, size_t, size_t, uint32_t, const handle *, handle *))        \
    X(handle, clCreateProgramWithSource,                                                           \
      (handle, uint32_t, const char **, const size_t *, int32_t *))                                \
    X(int32_t, clBuildProgram, (handle, uint32_t, const handle *, const char *, handle, handle))   \
    X(int32_t, clGetProgramBuildInfo, (handle, handle, uint32_t, size_t, void *, size_t *))        \
    X(int32_t, clReleaseProgram, (handle))                                                         \
    X(handle, clCreateKernel, (handle, const char *, int32_t *))                                   \
    X(int32_t, clSetKernelArg, (handle, uint32_t, size_t, const void *))                           \
    X(int32_t, clReleaseKernel, (handle))                                                          \
    X(int32_t, clEnqueueNDRangeKernel,                                                             \
      (handle, handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,         \
       const handle *, handle *))                                                                  \
    X(int32_t, clGetEventProfilingInfo, (handle, uint32_t, size_t, void *, size_t *))              \
    X(int32_t, clReleaseEvent, (handle))                                                           \
    X(int32_t, clGetPlatformIDs, (uint32_t, handle *, uint32_t *))                                 \
    X(int32_t, clFinish, (handle))

#define MEMBER(type, name, arguments) type(*name) arguments;
static struct {
    FUNCTIONS(MEMBER)
} cl;

enum { ITEMS = 48 };
static int passed, failed;
static handle queue;

#define EXPECT(held) expect((held) != 0, #held, __LINE__)

static void expect(int held, const char *what, int line)
{
    passed += held;
    failed += !held;
    if (!held)
        printf("FAILED line %d: %s\n", line, what);
}

static int load(const char *path)
{
    void *const library = dlopen(path, RTLD_NOW);
    int all = library != NULL;
    if (!all)
        puts(dlerror());
#define FIND(type, name, arguments)                                                                \
    if (all) {                                                                                     \
        void *const symbol = dlsym(library, #name);                                                \
        memcpy(&cl.name, &symbol, sizeof symbol);                                                  \
        all = symbol != NULL;                                                                      \
    }
    FUNCTIONS(FIND)
    return all;
}

static double seconds(handle event)
{
    uint64_t from = 0, to = 0;
    EXPECT(cl.clGetEventProfilingInfo(event, 0x1282, sizeof from, &from, NULL) == 0);
    EXPECT(cl.clGetEventProfilingInfo(event, 0x1283, sizeof to, &to, NULL) == 0);
    EXPECT(cl.clReleaseEvent(event) == 0);
    return 1e-9 * (double)(to - from);
}

static handle build(const char *source, int32_t *error)
{
    const size_t length = strlen(source);
    handle const program = cl.clCreateProgramWithSource(queue, 1, &source, &length, error);
    *error = cl.clBuildProgram(program, 1, &queue, "-DX=1", NULL, NULL);
    return program;
}

/* to = from + 5 by a kernel; to read back in two ways. */
static void check_kernel(void)
{
    const size_t global[] = { 12, 4 }, local[] = { 4, 2 }, odd[] = { 13, 4 };
    int32_t numbers[ITEMS], got[ITEMS], error = 1, five = 5;
    for (int i = 0; i < ITEMS; i++)
        numbers[i] = i * i;
    handle const from = cl.clCreateBuffer(queue, 32, sizeof numbers, numbers, &error);
    handle const to = cl.clCreateBuffer(queue, 1, sizeof numbers, NULL, &error);
    handle const program = build("add", &error);
    EXPECT(error == 0);
    handle const kernel = cl.clCreateKernel(program, "add", &error);
    handle event = NULL;
    EXPECT(cl.clReleaseProgram(program) == 0); /* the kernel keeps it */
    EXPECT(error == 0 && cl.clSetKernelArg(kernel, 0, sizeof to, &to) == 0);
    EXPECT(cl.clSetKernelArg(kernel, 1, sizeof from, &from) == 0);
    EXPECT(cl.clSetKernelArg(kernel, 2, sizeof five, &five) == 0);
    EXPECT(cl.clEnqueueNDRangeKernel(queue, kernel, 2, NULL, odd, local, 0, NULL, NULL) != 0);
    EXPECT(cl.clEnqueueNDRangeKernel(queue, kernel, 2, NULL, global, local, 0, NULL, &event) == 0);
    EXPECT(seconds(event) == 0.002); /* of the simulated clock */
    EXPECT(cl.clEnqueueReadBuffer(queue, to, 1, 4, sizeof got - 4, got + 1, 0, NULL, NULL) == 0);
    for (int i = 1; i < ITEMS; i++)
        EXPECT(got[i] == i * i + 5);
    EXPECT(cl.clEnqueueCopyBuffer(queue, to, from, 0, 8, 16, 0, NULL, &event) == 0);
    EXPECT(seconds(event) == 0.001);
    int32_t *const at =
        cl.clEnqueueMapBuffer(queue, from, 1, 1, 0, sizeof got, 0, NULL, NULL, &error);
    EXPECT(error == 0 && at[1] == 1 && at[2] == 5 && at[3] == 6 && at[6] == 36);
    EXPECT(cl.clEnqueueUnmapMemObject(queue, from, at, 0, NULL, NULL) == 0);
    EXPECT(cl.clReleaseKernel(kernel) == 0);
    EXPECT(cl.clReleaseMemObject(from) == 0 && cl.clReleaseMemObject(to) == 0);
}

static void check_mapping(void)
{
    int32_t error = 1, got[4] = { 0 };
    handle const memory = cl.clCreateBuffer(queue, 1, sizeof got, NULL, &error);
    int32_t *at = cl.clEnqueueMapBuffer(queue, memory, 1, 4, 4, 8, 0, NULL, NULL, &error);
    EXPECT(error == 0 && at != NULL);
    at[0] = 7, at[1] = 8;
    EXPECT(cl.clEnqueueUnmapMemObject(queue, memory, at, 0, NULL, NULL) == 0);
    EXPECT(cl.clEnqueueReadBuffer(queue, memory, 1, 0, sizeof got, got, 0, NULL, NULL) == 0);
    EXPECT(got[0] == -1 && got[1] == 7 && got[2] == 8 && got[3] == -1);
    EXPECT(cl.clEnqueueReadBuffer(queue, memory, 1, 8, sizeof got, got, 0, NULL, NULL) != 0);
    EXPECT(cl.clCreateBuffer(queue, 8, sizeof got, got, &error) == NULL && error != 0);
    EXPECT(cl.clReleaseMemObject(memory) == 0);
}

static void check_errors(void)
{
    char log[200] = "";
    int32_t error = 0;
    handle program = build("does not compile", &error);
    EXPECT(error == -11);
    EXPECT(cl.clGetProgramBuildInfo(program, queue, 0x1183, sizeof log, log, NULL) == 0);
    EXPECT(strstr(log, "did not compile") != NULL);
    EXPECT(cl.clReleaseProgram(program) == 0);
    program = build("is no PTX", &error);
    EXPECT(error == -11);
    EXPECT(cl.clGetProgramBuildInfo(program, queue, 0x1183, sizeof log, log, NULL) == 0);
    EXPECT(strcmp(log, "no .version") == 0);
    EXPECT(cl.clReleaseProgram(program) == 0);
    program = build("add", &error);
    EXPECT(cl.clCreateKernel(program, "none", &error) == NULL && error == -46);
    EXPECT(cl.clReleaseProgram(program) == 0);
}

int main(int argc, char **argv)
{
    uint32_t platforms = 0;
    if (argc < 2 || !load(argv[1]))
        return 1;
    EXPECT(cl.clGetPlatformIDs(1, &queue, &platforms) == 0 && platforms == 1);
    check_kernel();
    check_mapping();
    check_errors();
    EXPECT(cl.clFinish(queue) == 0);
    printf("cl_on_cuda: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
