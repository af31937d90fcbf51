/* paths.h - the ways in which a case can be computed, by name: implementation, kernels, threads.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PATHS_H
#define BENCH_PATHS_H

#include <stddef.h>

#include "../../attn.h"

typedef enum path_threads {
    PATH_GIVEN, /* those of the case or of the command line */
    PATH_ONE,
    PATH_MANY /* --threads, or all CPUs */
} path_threads;

typedef enum path_keys {
    PATH_ANY,
    PATH_WHOLE,  /* threads share heads and row tiles alone */
    PATH_DIVIDED /* the library divides the keys among threads: few rows */
} path_keys;

typedef enum path_device {
    PATH_CPU,
    PATH_HOST_ARRAYS,   /* an OpenCL device; arrays of the host, copied or used in place */
    PATH_DEVICE_ARRAYS, /* arrays that are on the device already */
    PATH_EXACT          /* arrays of the host, the bits of the CPU */
} path_device;

/* How a sequence is divided among ranks, as many as threads: see attn_ring.h. */
typedef enum path_ring {
    PATH_ONE_PROCESS,
    PATH_CONTIGUOUS,
    PATH_ZIGZAG,
    PATH_STRIPED,
    PATH_GATHER /* contiguous; all keys come to every rank first */
} path_ring;

typedef enum path_use {
    PATH_USUAL = 1, /* runs where nothing else is said */
    PATH_RANKED = 2 /* one of --impl all */
} path_use;

typedef struct bench_path {
    const char *name, *impl; /* impl: of attn_params_from_string */
    const char *kernels;     /* set; NULL = that of case or command line, or the best */
    const char *otherwise;   /* the set where the CPU cannot run that one; NULL = none */
    path_threads threads;
    path_keys keys;
    int use; /* sum of path_use */
    path_device device;
    path_ring ring;
    const char *what;
} bench_path;

enum { PATHS_MAX = 24 };

const bench_path *path_get(int index);         /* NULL beyond the last */
const bench_path *path_find(const char *name); /* NULL = there is none */
int path_index(const bench_path *path);

/* The path's kernels for so many rows a tile, a narrow set where the library would take one too;
 * NULL where the path leaves the choice open or this CPU cannot run them. */
const attn_kernels *path_kernels(const bench_path *path, int64_t rows);

/* 1 = it can run on this machine with so many threads; 0, and why holds the reason. */
int path_usable(const bench_path *path, int threads, char *why, size_t bytes);

/* Whether it appends to a cache in place of attention. */
int path_appends(const bench_path *path);

/* Text for p.tuning without which the path would not be what its name says; NULL = none. */
const char *path_tuning(const bench_path *path);

/* Whether keys divided into so many parts are what the path is about. */
int path_fits(const bench_path *path, int key_parts, int threads, char *why, size_t bytes);

typedef struct path_list {
    const bench_path *paths[PATHS_MAX];
    int n, given; /* given: by --impl; else each case takes its own of all */
    int device;   /* one of a device is named, not only meant by "all" */
} path_list;

/* "a,b" or "all", or NULL: no --impl; 0 and the wrong name in why. */
int path_list_parse(const char *text, path_list *list, char *why, size_t bytes);

/* Whether a case runs so that asks for this impl: the name of a path, "all", "devices" = each of a
 * device, NULL = the usual. */
int path_wanted(const path_list *list, const char *impl, const bench_path *path);

/* Whether such a case runs with several threads by one of its paths. */
int path_list_has_threads(const path_list *list, const char *impl);

/* Whether such a case runs on a device, which there is, by one of its paths. */
int path_list_has_device(const path_list *list, const char *impl);

#endif
