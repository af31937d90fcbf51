/* paths.c - the ways in which a case can be computed, by name: implementation, kernels, threads.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include "../../attn_simd.h"

#include <stdio.h>
#include <string.h>

#include "../machine/machine.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { NAME_BYTES = 32 };

/* What a row does not name is the first of its kind: kernels and threads as given, one process. */
static const bench_path paths[] = {
    { "naive", "naive", "the textbook formula, kernels and threads as given", .usual = 1 },
    { "tiled", "tiled", "online softmax over tiles, kernels and threads as given", .usual = 1 },
    { "auto", "auto", "what the library chooses", .usual = 0 },
    { "naive_scalar", "naive", "naive, compiled without vectors", .kernels = "scalar",
      .threads = PATH_ONE, .ranked = 1 },
    { "naive_simd", "naive", "naive, the best kernel set", .threads = PATH_ONE, .ranked = 1 },
    { "tiled_scalar", "tiled", "tiled, compiled without vectors", .kernels = "scalar",
      .threads = PATH_ONE, .ranked = 1 },
    { "tiled_portable", "tiled", "attn.c alone: vectorised by the compiler",
      .kernels = "portable_fma", .otherwise = "portable", .threads = PATH_ONE, .ranked = 1 },
    { "tiled_sse2", "tiled", "tiled, SSE2", .kernels = "sse2", .threads = PATH_ONE, .ranked = 1 },
    { "tiled_avx2", "tiled", "tiled, AVX2", .kernels = "avx2", .threads = PATH_ONE, .ranked = 1 },
    { "tiled_avx512", "tiled", "tiled, AVX-512", .kernels = "avx512", .threads = PATH_ONE,
      .ranked = 1 },
    { "tiled_neon", "tiled", "tiled, NEON", .kernels = "neon", .threads = PATH_ONE, .ranked = 1 },
    { "tiled_threads", "tiled", "tiled, threads share heads and row tiles", .threads = PATH_MANY,
      .keys = PATH_WHOLE, .ranked = 1 },
    { "split_kv", "tiled", "tiled, few rows: threads share the keys", .threads = PATH_MANY,
      .keys = PATH_DIVIDED, .ranked = 1 },
    { "opencl_naive", "naive", "naive on a device", .threads = PATH_ONE, .ranked = 1,
      .device = PATH_HOST_ARRAYS },
    { "opencl", "tiled", "tiled on a device, arrays of the host", .threads = PATH_ONE, .ranked = 1,
      .device = PATH_HOST_ARRAYS },
    { "opencl_resident", "tiled", "tiled on a device, q, k, v and o on it", .threads = PATH_ONE,
      .ranked = 1, .device = PATH_DEVICE_ARRAYS },
    { "opencl_exact", "tiled", "tiled on a device, the bits of the CPU", .threads = PATH_ONE,
      .ranked = 1, .device = PATH_EXACT },
    { "append", "append", "keys and values put into a cache: cases of preset cache",
      .threads = PATH_ONE },
    { "ring", "tiled", "a rank for each thread, runs of the sequence; keys go round",
      .ring = PATH_CONTIGUOUS },
    { "ring_zigzag", "tiled", "the same, a run from the beginning and one from the end each",
      .ring = PATH_ZIGZAG },
    { "ring_striped", "tiled", "the same, small runs in turn", .ring = PATH_STRIPED },
    { "all_gather", "tiled", "a rank for each thread; all keys come to each of them first",
      .ring = PATH_GATHER },
};

const bench_path *path_get(int index)
{
    return index < LENGTH(paths) ? &paths[index] : NULL;
}

const bench_path *path_find(const char *name)
{
    for (int i = 0; i < LENGTH(paths); i++)
        if (!strcmp(paths[i].name, name))
            return &paths[i];
    return NULL;
}

int path_index(const bench_path *path)
{
    return (int)(path - paths);
}

/* ---- what a path needs */

static const attn_kernels *find_set(const char *name)
{
    if (!name)
        return NULL;
    return strcmp(name, "scalar") ? attn_kernels_find(name) : scalar_kernels();
}

const attn_kernels *path_kernels(const bench_path *path, int64_t rows)
{
    char name[NAME_BYTES];
    const attn_kernels *const set = find_set(path->kernels);
    if (!set)
        return find_set(path->otherwise);
    snprintf(name, sizeof name, "%.20s_narrow", path->kernels);
    const attn_kernels *const narrow = attn_kernels_find(name);
    return narrow && rows <= narrow->rows ? narrow : set;
}

const char *path_tuning(const bench_path *path)
{
    return path->keys == PATH_WHOLE ? "attn-tuning 1 split_work 1073741824 end" : NULL;
}

int path_appends(const bench_path *path)
{
    return !strcmp(path->impl, "append");
}

int path_usable(const bench_path *path, int threads, char *why, size_t bytes)
{
    why[0] = '\0';
    if (path->device)
        device_get(path->device == PATH_EXACT ? DEVICE_EXACT : DEVICE_FREE, why, bytes);
    else if (path->kernels && !path_kernels(path, INT64_MAX))
        snprintf(why, bytes, "this CPU or build has no kernel set %s", path->kernels);
    else if (path->threads == PATH_MANY && threads < 2)
        snprintf(why, bytes, "needs two threads, has one (--threads N)");
    return !why[0];
}

int path_fits(const bench_path *path, int key_parts, int threads, char *why, size_t bytes)
{
    why[0] = '\0';
    if (path->keys == PATH_DIVIDED && key_parts < 2)
        snprintf(why, bytes, "%d threads have work without dividing these keys", threads);
    if (path->keys == PATH_WHOLE && key_parts > 1)
        snprintf(why, bytes, "with --tuning the keys are divided here: see split_kv");
    return !why[0];
}

/* ---- lists of paths */

static int add_path(path_list *list, const bench_path *path)
{
    for (int i = 0; i < list->n; i++)
        if (list->paths[i] == path)
            return 1; /* said twice, run once */
    list->paths[list->n++] = path;
    return 1;
}

static void add_all(path_list *list, int ranked)
{
    for (int i = 0; i < LENGTH(paths); i++)
        if (paths[i].ranked || !ranked)
            add_path(list, &paths[i]);
}

int path_list_parse(const char *text, path_list *list, char *why, size_t bytes)
{
    char name[NAME_BYTES];
    list->n = 0;
    list->given = text != NULL;
    list->device = 0;
    if (!text)
        add_all(list, 0);
    for (; text && *text; text += strcspn(text, ","), text += *text == ',') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(text, ","), text);
        const bench_path *const path = path_find(name);
        if (!strcmp(name, "all"))
            add_all(list, 1);
        else if (path)
            list->device |= add_path(list, path) && path->device;
        else
            return snprintf(why, bytes, "%s", name), 0;
    }
    return list->n > 0;
}

int path_wanted(const path_list *list, const char *impl, const bench_path *path)
{
    if (list->given)
        return 1;
    if (!impl)
        return path->usual;
    if (!strcmp(impl, "devices"))
        return path->device != PATH_CPU;
    return !strcmp(impl, "all") ? path->ranked : !strcmp(impl, path->name);
}

int path_list_has_threads(const path_list *list, const char *impl)
{
    for (int i = 0; i < list->n; i++)
        if (list->paths[i]->threads == PATH_MANY && path_wanted(list, impl, list->paths[i]))
            return 1;
    return 0;
}

int path_list_has_device(const path_list *list, const char *impl)
{
    char why[200];
    for (int i = 0; i < list->n; i++)
        if (list->paths[i]->device && path_wanted(list, impl, list->paths[i]) &&
            path_usable(list->paths[i], 1, why, sizeof why))
            return 1;
    return 0;
}
