/* options.h - the command line.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdint.h>

enum { OPTIONS_MAX_NAMES = 16 };

typedef struct bench_options {
    int argc; /* the command line as it came */
    char **argv;
    const char *commands[OPTIONS_MAX_NAMES]; /* words without "--": presets and commands */
    int num_commands;
    const char *shape;   /* "B,Hq,Hkv,Sq,Skv,D[,Dv]" or NULL */
    const char *device;  /* a part of a name of an OpenCL platform or device; NULL = the best */
    const char *impl;    /* paths, or "all"; NULL = the preset's, or naive,tiled */
    const char *kernels; /* NULL = the best */
    const char *mask;    /* a name of masks.c; NULL = the preset's, or full */
    const char *segments, *dilations; /* "W,W,...", "R,R,..."; NULL = the preset's, or dense */
    const char *merge, *variant;      /* "lse", "mean"; "strided", "gathered"; NULL = both */
    const char *pattern_cache, *memory_pool; /* "on", "off"; NULL = both */
    const char *dtype;                       /* "f32", "f16", "bf16"; NULL = f32 */
    const char *layout;                      /* "bhsd", "bshd"; NULL = bhsd */
    const char *data;                        /* "trig", "normal"; NULL = the preset's */
    const char *gemms;  /* "5", "7"; NULL = the preset's, or as the library chooses */
    const char *tuning; /* file for p.tuning; NULL = none */
    const char *json, *csv, *output_dir;
    const char *baseline;    /* an older JSON file to compare with; NULL = none */
    const char *plant_wrong; /* for checks of the bench: a product to spoil, see plant.h */
    double plant_slowdown;   /* likewise: percent */
    int causal, backward, quick, phases, wide, list, help;
    int ranks;         /* 0 = the preset's */
    int threads;       /* -1 = the preset's, or 1 */
    int warmup, iters; /* -1 = the preset's */
    double min_time;   /* seconds; < 0 = the default */
    double max_time;   /* likewise; 0 = any */
    int64_t seed;
    int64_t max_seq_len; /* -1 = the preset's */
    uint64_t given;      /* which options, by their places in the table of options.c */
} bench_options;

/* 1 = understood; 0 = not, and a sentence was printed to stderr. */
int options_parse(bench_options *o, int argc, char **argv);

/* The word itself where it is a command and no preset; NULL = it is none. */
const char *options_command(const char *word);

/* 0 = what the command line asks for does not take one of its options, and a sentence was printed
 * to stderr. */
int options_taken(const bench_options *o);

/* All options, one a line. */
void options_print_help(void);

#endif
