/* machine.c - what the program runs on.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _XOPEN_SOURCE 700
#define MACHINE_POSIX 1
#endif
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MACHINE_POSIX
#include <sys/resource.h>
#include <unistd.h>
#elif defined _WIN32
#include <windows.h>
#endif

#ifndef BENCH_CFLAGS
#define BENCH_CFLAGS "unknown"
#endif
#ifndef BENCH_REVISION
#define BENCH_REVISION "unknown"
#endif

#if defined __clang__
#define COMPILER "clang " __clang_version__
#elif defined __GNUC__
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

#if defined __linux__
#define SYSTEM "linux"
#elif defined __APPLE__
#define SYSTEM "macos"
#elif defined _WIN32
#define SYSTEM "windows"
#else
#define SYSTEM "other"
#endif

/* The value of the first line of /proc/cpuinfo whose key is one of keys. */
static int read_cpuinfo(const char *const *keys, char *out, size_t bytes)
{
    FILE *const f = fopen("/proc/cpuinfo", "r");
    char line[256];
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (!value)
            continue;
        for (int i = 0; keys[i] && !found; i++)
            found = !strncmp(line, keys[i], strlen(keys[i]));
        value += strspn(value, ": \t");
        if (found)
            snprintf(out, bytes, "%.*s", (int)strcspn(value, "\n"), value);
    }
    if (f)
        fclose(f);
    return found;
}

#if defined __GNUC__ && (defined __x86_64__ || defined __i386__)
#define ISA(name)                                                                                  \
    {                                                                                              \
        name, __builtin_cpu_supports(name) != 0                                                    \
    }

static void describe_isa(char *out, size_t bytes)
{
    const struct {
        const char *name;
        int has;
    } sets[] = { ISA("sse2"),       ISA("sse4.1"),    ISA("avx"),      ISA("fma"),
                 ISA("avx2"),       ISA("avx512f"),   ISA("avx512bw"), ISA("avx512vl"),
                 ISA("avx512vnni"), ISA("avx512bf16") };
    size_t n = 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].has)
            n += (size_t)snprintf(out + n, bytes - n, "%s%s", n ? " " : "", sets[i].name);
}
#else
#ifdef __ARM_NEON
#define ISA "neon"
#else
#define ISA "unknown"
#endif

static void describe_isa(char *out, size_t bytes)
{
    snprintf(out, bytes, "%s", ISA);
}
#endif

int machine_has(const char *names)
{
    char isa[160], found[164], one[32];
    describe_isa(isa, sizeof isa);
    snprintf(found, sizeof found, " %s ", isa);
    for (const char *at = names; *at; at += strcspn(at, " "), at += *at == ' ') {
        snprintf(one, sizeof one, " %.*s ", (int)strcspn(at, " "), at);
        if (!strstr(found, one))
            return 0;
    }
    return 1;
}

#ifdef MACHINE_POSIX
/* A limit that the system keeps for containers as a number in a file; "max" or no file = none. */
static int64_t read_limit(const char *path, int64_t otherwise)
{
    FILE *const f = fopen(path, "r");
    long long value = 0;
    const int ok = f && fscanf(f, "%lld", &value) == 1 && value > 0;
    if (f)
        fclose(f);
    return ok && value < otherwise ? (int64_t)value : otherwise;
}

/* Size of a cache of the first CPU, where Linux tells it. */
static int64_t read_cache(int index)
{
    char path[64];
    long long kib = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    FILE *const f = fopen(path, "r");
    if (!f)
        return 0;
    if (fscanf(f, "%lldK", &kib) != 1)
        kib = 0;
    fclose(f);
    return (int64_t)kib * 1024;
}

static int64_t usable_memory(int64_t memory)
{
    struct rlimit r;
    memory = read_limit("/sys/fs/cgroup/memory.max", memory);
    memory = read_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", memory);
    if (!getrlimit(RLIMIT_AS, &r) && r.rlim_cur != RLIM_INFINITY &&
        (memory == 0 || r.rlim_cur < (rlim_t)memory))
        memory = (int64_t)r.rlim_cur;
    return memory;
}

#ifdef _SC_PHYS_PAGES
#define MEMORY ((int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE))
#else
#define MEMORY 0
#endif
#ifdef _SC_NPROCESSORS_ONLN
#define CPUS ((int)sysconf(_SC_NPROCESSORS_ONLN))
#else
#define CPUS 0
#endif

static void describe_memory(machine_info *m)
{
    m->memory = MEMORY;
    m->cpus = CPUS;
    m->l1d = read_cache(0); /* index 1 is the instruction cache */
    m->l2 = read_cache(2);
    m->l3 = read_cache(3);
    m->memory_usable = usable_memory(m->memory);
}
#elif defined _WIN32
static void describe_memory(machine_info *m)
{
    MEMORYSTATUSEX memory = { .dwLength = sizeof memory };
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    m->cpus = (int)system.dwNumberOfProcessors;
    m->memory = GlobalMemoryStatusEx(&memory) ? (int64_t)memory.ullTotalPhys : 0;
    m->memory_usable = m->memory;
}
#else
static void describe_memory(machine_info *m)
{
    m->cpus = 1;
}
#endif

/* The name, and on x86 family and model, since a virtual machine may shorten the name. */
static void describe_cpu(char *out, size_t bytes)
{
    static const char *const names[] = { "model name", "Model", "cpu model", "uarch", NULL };
    static const char *const families[] = { "cpu family", NULL };
    static const char *const models[] = { "model\t", NULL };
    char family[16], model[16];
    if (!read_cpuinfo(names, out, bytes))
        snprintf(out, bytes, "unknown");
    else if (read_cpuinfo(families, family, sizeof family) &&
             read_cpuinfo(models, model, sizeof model))
        snprintf(out + strlen(out), bytes - strlen(out), " (family %s model %s)", family, model);
}

void machine_describe(machine_info *out)
{
    memset(out, 0, sizeof *out);
    describe_cpu(out->cpu, sizeof out->cpu);
    describe_isa(out->isa, sizeof out->isa);
    describe_memory(out);
    out->system = SYSTEM;
    out->compiler = COMPILER;
    out->flags = BENCH_CFLAGS;
    out->revision = BENCH_REVISION;
}
