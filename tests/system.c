/* system.c - see system.h: one form for POSIX, one for Windows, one for neither.
 * SPDX-License-Identifier: MIT
 */
#define _DEFAULT_SOURCE /* mmap and MAP_ANONYMOUS beside -std=c99 */
#define WIN32_LEAN_AND_MEAN
#include "system.h"

#include <string.h>

#if defined __unix__ || defined __APPLE__
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

size_t system_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *system_map(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

int system_forbid(void *at, size_t bytes)
{
    return mprotect(at, bytes, PROT_NONE) == 0;
}

void system_unmap(void *pages, size_t bytes)
{
    munmap(pages, bytes);
}

/* A child touches the byte; it must die of it. */
int system_dies(volatile unsigned char *at)
{
    int status = 0;
    pid_t child;
    fflush(NULL);
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        fclose(stderr); /* sanitizers would tell the world */
        *at = 1;
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static const char *const opencl_names[] = { "libOpenCL.so.1", "libOpenCL.so",
                                            "/System/Library/Frameworks/OpenCL.framework/OpenCL" };

static void *open_library(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static void *find_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}
#elif defined _WIN32
#include <windows.h>

size_t system_page(void)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

void *system_map(size_t bytes)
{
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

int system_forbid(void *at, size_t bytes)
{
    DWORD before;
    return VirtualProtect(at, bytes, PAGE_NOACCESS, &before) != 0;
}

void system_unmap(void *pages, size_t bytes)
{
    (void)bytes;
    VirtualFree(pages, 0, MEM_RELEASE);
}

/* There is no fork: the system tries the write itself. */
int system_dies(volatile unsigned char *at)
{
    return IsBadWritePtr((void *)(size_t)at, 1) != 0;
}

static const char *const opencl_names[] = { "OpenCL.dll" };

static void *open_library(const char *name)
{
    return (void *)LoadLibraryA(name);
}

static void *find_symbol(void *library, const char *name)
{
    void *symbol;
    const FARPROC found = GetProcAddress((HMODULE)library, name);
    memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}
#else
size_t system_page(void)
{
    return 0;
}

void *system_map(size_t bytes)
{
    (void)bytes;
    return NULL;
}

int system_forbid(void *at, size_t bytes)
{
    (void)at, (void)bytes;
    return 0;
}

void system_unmap(void *pages, size_t bytes)
{
    (void)pages, (void)bytes;
}

int system_dies(volatile unsigned char *at)
{
    (void)at;
    return -1;
}

static const char *const opencl_names[] = { "" };

static void *open_library(const char *name)
{
    (void)name;
    return NULL;
}

static void *find_symbol(void *library, const char *name)
{
    (void)library, (void)name;
    return NULL;
}
#endif

#ifdef __wasi__
FILE *system_temporary_file(void)
{
    return NULL;
}
#else
FILE *system_temporary_file(void)
{
    return tmpfile();
}
#endif

void *system_opencl(void)
{
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof opencl_names / sizeof *opencl_names; i++)
        library = open_library(opencl_names[i]);
    return library;
}

int system_find(void *library, const char *name, void *to)
{
    void *const symbol = find_symbol(library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}
