/* paths.c - the ways in which a case can be computed, by name: implementation, kernels, threads.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include "../../attn_simd.h"

#include <stdio.h>
#include <string.h>

#include "../machine/machine.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { NAME_BYTES = 32 };

#define ALONE PATH_ONE_PROCESS

static const bench_path paths[] = {
    { "naive", "naive", NULL, NULL, PATH_GIVEN, PATH_ANY, PATH_USUAL, PATH_CPU, ALONE,
      "the textbook formula, kernels and threads as given" },
    { "tiled", "tiled", NULL, NULL, PATH_GIVEN, PATH_ANY, PATH_USUAL, PATH_CPU, ALONE,
      "online softmax over tiles, kernels and threads as given" },
    { "auto", "auto", NULL, NULL, PATH_GIVEN, PATH_ANY, 0, PATH_CPU, ALONE,
      "what the library chooses" },
    { "naive_scalar", "naive", "scalar", NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_CPU, ALONE,
      "naive, compiled without vectors" },
    { "naive_simd", "naive", NULL, NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_CPU, ALONE,
      "naive, the best kernel set" },
    { "tiled_scalar", "tiled", "scalar", NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_CPU, ALONE,
      "tiled, compiled without vectors" },
    { "tiled_portable", "tiled", "portable_fma", "portable", PATH_ONE, PATH_ANY, PATH_RANKED,
      PATH_CPU, ALONE, "attn.c alone: vectorised by the compiler" },
    { "tiled_sse2", "tiled", "sse2", NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_CPU, ALONE,
      "tiled, SSE2" },
    { "tiled_avx2", "tiled", "avx2", NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_CPU, ALONE,
      "tiled, AVX2" },
    { "tiled_avx512", "tiled", "avx512", NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_CPU, ALONE,
      "tiled, AVX-512" },
    { "tiled_neon", "tiled", "neon", NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_CPU, ALONE,
      "tiled, NEON" },
    { "tiled_threads", "tiled", NULL, NULL, PATH_MANY, PATH_WHOLE, PATH_RANKED, PATH_CPU, ALONE,
      "tiled, threads share heads and row tiles" },
    { "split_kv", "tiled", NULL, NULL, PATH_MANY, PATH_DIVIDED, PATH_RANKED, PATH_CPU, ALONE,
      "tiled, few rows: threads share the keys" },
    { "opencl_naive", "naive", NULL, NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_HOST_ARRAYS, ALONE,
      "naive on a device" },
    { "opencl", "tiled", NULL, NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_HOST_ARRAYS, ALONE,
      "tiled on a device, arrays of the host" },
    { "opencl_resident", "tiled", NULL, NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_DEVICE_ARRAYS,
      ALONE, "tiled on a device, q, k, v and o on it" },
    { "opencl_exact", "tiled", NULL, NULL, PATH_ONE, PATH_ANY, PATH_RANKED, PATH_EXACT, ALONE,
      "tiled on a device, the bits of the CPU" },
    { "append", "append", NULL, NULL, PATH_ONE, PATH_ANY, 0, PATH_CPU, ALONE,
      "keys and values put into a cache: cases of preset cache" },
    { "ring", "tiled", NULL, NULL, PATH_GIVEN, PATH_ANY, 0, PATH_CPU, PATH_CONTIGUOUS,
      "a rank for each thread, runs of the sequence; keys go round" },
    { "ring_zigzag", "tiled", NULL, NULL, PATH_GIVEN, PATH_ANY, 0, PATH_CPU, PATH_ZIGZAG,
      "the same, a run from the beginning and one from the end each" },
    { "ring_striped", "tiled", NULL, NULL, PATH_GIVEN, PATH_ANY, 0, PATH_CPU, PATH_STRIPED,
      "the same, small runs in turn" },
    { "all_gather", "tiled", NULL, NULL, PATH_GIVEN, PATH_ANY, 0, PATH_CPU, PATH_GATHER,
      "a rank for each thread; all keys come to each of them first" },
};

#undef ALONE

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

static void add_all(path_list *list, int use)
{
    for (int i = 0; i < LENGTH(paths); i++)
        if ((paths[i].use & use) == use)
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
            add_all(list, PATH_RANKED);
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
        return path->use & PATH_USUAL;
    if (!strcmp(impl, "devices"))
        return path->device != PATH_CPU;
    return !strcmp(impl, "all") ? path->use & PATH_RANKED : !strcmp(impl, path->name);
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
