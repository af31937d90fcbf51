/* src/opencl/loader.c - OpenCL: types, constants and functions of its API (Khronos, OpenCL 1.2), loaded at run time.
 * SPDX-License-Identifier: MIT
 *
 * No header of OpenCL is needed. Every handle is a pointer.
 */
#pragma once

#include "../config.h"
#include "../../attn_opencl.h"

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#define CL_CALL __stdcall
#define LOADERS "OpenCL.dll"
#define OPEN_LIBRARY(file) ((void *)LoadLibraryA(file))
#define CLOSE_LIBRARY(library) FreeLibrary((HMODULE)(library))
#define FIND_SYMBOL(library, name) GetProcAddress((HMODULE)(library), name)
typedef FARPROC library_symbol;
#else
#include <dlfcn.h>
#define CL_CALL
#define LOADERS                                                                                    \
    "libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so", /* Android */                  \
        "/system/vendor/lib64/libOpenCL.so", "/System/Library/Frameworks/OpenCL.framework/OpenCL"
/* Drivers stay: they begin threads, and a loader that is opened again may find fewer devices. */
#ifndef RTLD_NODELETE
#define RTLD_NODELETE 0
#endif
#define OPEN_LIBRARY(file) dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)
#define CLOSE_LIBRARY(library) dlclose(library)
#define FIND_SYMBOL(library, name) dlsym(library, name)
typedef void *library_symbol;
#endif

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_flags;
typedef void *cl_handle;

enum {
    CL_SUCCESS = 0,
    INVALID_VALUE = -30,
    INVALID_QUEUE = -36,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_ENDIAN_LITTLE = 0x1026,
    CL_DEVICE_AVAILABLE = 0x1027,
    CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
    CL_DEVICE_NAME = 0x102B,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_DEVICE_PLATFORM = 0x1031,
    CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    CL_PLATFORM_NAME = 0x0902,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_MEM_SIZE = 0x1102,
    CL_PROGRAM_DEVICES = 0x1163,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_PROFILING_COMMAND_START = 0x1282,
    CL_PROFILING_COMMAND_END = 0x1283
};
#define CL_DEVICE_TYPE_GPU 4u
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu
#define CL_QUEUE_OUT_OF_ORDER 1u
#define CL_QUEUE_PROFILING_ENABLE 2u
#define CL_MEM_READ_WRITE 1u
#define CL_MEM_READ_ONLY 4u
#define CL_MEM_USE_HOST_PTR 8u
#define CL_MEM_ALLOC_HOST_PTR 16u
#define CL_MEM_COPY_HOST_PTR 32u
#define CL_MAP_READ 1u
#define CL_MAP_WRITE 2u
#define CL_MAP_WRITE_INVALIDATE_REGION 4u

/* Arguments: what to ask an object about; what comes before a command, and its own event. */
#define CL_QUERY cl_uint, size_t, void *, size_t *
#define CL_EVENTS cl_uint, const cl_handle *, cl_handle *
#define CL_DEVICES cl_uint, const cl_handle *

#define CL_FUNCTIONS(X)                                                                            \
    X(cl_int, clGetPlatformIDs, (cl_uint, cl_handle *, cl_uint *))                                 \
    X(cl_int, clGetPlatformInfo, (cl_handle, CL_QUERY))                                            \
    X(cl_int, clGetDeviceIDs, (cl_handle, cl_flags, cl_uint, cl_handle *, cl_uint *))              \
    X(cl_int, clGetDeviceInfo, (cl_handle, CL_QUERY))                                              \
    X(cl_handle, clCreateContext,                                                                  \
      (const intptr_t *, CL_DEVICES, void(CL_CALL *)(const char *, const void *, size_t, void *),  \
       void *, cl_int *))                                                                          \
    X(cl_int, clRetainContext, (cl_handle))                                                        \
    X(cl_int, clReleaseContext, (cl_handle))                                                       \
    X(cl_handle, clCreateCommandQueue, (cl_handle, cl_handle, cl_flags, cl_int *))                 \
    X(cl_int, clRetainCommandQueue, (cl_handle))                                                   \
    X(cl_int, clReleaseCommandQueue, (cl_handle))                                                  \
    X(cl_int, clGetCommandQueueInfo, (cl_handle, CL_QUERY))                                        \
    X(cl_handle, clCreateBuffer, (cl_handle, cl_flags, size_t, void *, cl_int *))                  \
    X(cl_int, clReleaseMemObject, (cl_handle))                                                     \
    X(cl_int, clGetMemObjectInfo, (cl_handle, CL_QUERY))                                           \
    X(cl_handle, clCreateProgramWithSource,                                                        \
      (cl_handle, cl_uint, const char **, const size_t *, cl_int *))                               \
    X(cl_handle, clCreateProgramWithBinary,                                                        \
      (cl_handle, CL_DEVICES, const size_t *, const unsigned char **, cl_int *, cl_int *))         \
    X(cl_int, clGetProgramInfo, (cl_handle, CL_QUERY))                                             \
    X(cl_int, clBuildProgram,                                                                      \
      (cl_handle, CL_DEVICES, const char *, void(CL_CALL *)(cl_handle, void *), void *))           \
    X(cl_int, clGetProgramBuildInfo, (cl_handle, cl_handle, CL_QUERY))                             \
    X(cl_int, clReleaseProgram, (cl_handle))                                                       \
    X(cl_handle, clCreateKernel, (cl_handle, const char *, cl_int *))                              \
    X(cl_int, clSetKernelArg, (cl_handle, cl_uint, size_t, const void *))                          \
    X(cl_int, clReleaseKernel, (cl_handle))                                                        \
    X(cl_int, clEnqueueNDRangeKernel,                                                              \
      (cl_handle, cl_handle, cl_uint, const size_t *, const size_t *, const size_t *, CL_EVENTS))  \
    X(cl_handle, clEnqueueMapBuffer,                                                               \
      (cl_handle, cl_handle, cl_uint, cl_flags, size_t, size_t, CL_EVENTS, cl_int *))              \
    X(cl_int, clEnqueueUnmapMemObject, (cl_handle, cl_handle, void *, CL_EVENTS))                  \
    X(cl_int, clEnqueueWriteBuffer,                                                                \
      (cl_handle, cl_handle, cl_uint, size_t, size_t, const void *, CL_EVENTS))                    \
    X(cl_int, clEnqueueReadBuffer,                                                                 \
      (cl_handle, cl_handle, cl_uint, size_t, size_t, void *, CL_EVENTS))                          \
    X(cl_int, clEnqueueMarkerWithWaitList, (cl_handle, CL_EVENTS))                                 \
    X(cl_int, clEnqueueBarrierWithWaitList, (cl_handle, CL_EVENTS))                                \
    X(cl_int, clGetEventProfilingInfo, (cl_handle, CL_QUERY))                                      \
    X(cl_int, clReleaseEvent, (cl_handle))                                                         \
    X(cl_int, clFlush, (cl_handle))                                                                \
    X(cl_int, clFinish, (cl_handle))

#define CL_MEMBER(type, name, arguments) type(CL_CALL *name) arguments;
typedef struct cl_api {
    CL_FUNCTIONS(CL_MEMBER)
} cl_api;

/* Names of functions, and where in cl_api their pointers are. */
#define CL_SYMBOL(type, name, arguments) { #name, offsetof(cl_api, name) },
static const struct cl_symbol {
    const char *name;
    size_t offset;
} cl_symbols[] = { CL_FUNCTIONS(CL_SYMBOL) };

static const char *cl_error_name(cl_int error)
{
    static const struct {
        cl_int error;
        const char *name;
    } names[] = {
        { -1, "device not found" },         { -3, "compiler not available" },
        { -4, "out of device memory" },     { -5, "out of resources" },
        { -6, "out of host memory" },       { -11, "kernels do not build" },
        { -30, "invalid value" },           { -34, "invalid context" },
        { -36, "invalid command queue" },   { -38, "invalid memory object" },
        { -37, "invalid host pointer" },    { -58, "invalid event" },
        { -42, "invalid binary" },          { -43, "invalid build options" },
        { -46, "no such kernel" },          { -52, "invalid kernel arguments" },
        { -54, "invalid work-group size" }, { -57, "invalid event wait list" },
        { -61, "invalid buffer size" },     { -1001, "no platform" },
    };
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error)
            return names[i].name;
    return "see the error codes of OpenCL";
}
