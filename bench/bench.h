/* bench.h - the command line, what it asks for, and the program.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdint.h>

#include "cases/cases.h"
#include "run.h"

enum { OPTIONS_MAX_NAMES = 16 };

typedef struct bench_options {
    int argc; /* the command line as it came */
    char **argv;
    const char *commands[OPTIONS_MAX_NAMES]; /* words without "--": presets and commands */
    int num_commands;
    const char *shape; /* "B,Hq,Hkv,Sq,Skv,D[,Dv]" or NULL */
    int64_t batch_size, num_heads, num_kv_heads, seq_length,
        head_dim;        /* single sizes; 0 = not said */
    const char *device;  /* a part of a name of an OpenCL platform or device; NULL = the best */
    const char *impl;    /* paths, or "all"; NULL = the preset's, or naive,tiled */
    const char *kernels; /* NULL = the best */
    const char *mask;    /* a name of masks.c; NULL = the preset's, or full */
    const char *types;   /* "K[/V]"; NULL = the preset's, or as dtype */
    const char *segments, *dilations; /* "W,W,...", "R,R,..."; NULL = the preset's, or dense */
    /* 1 + the place of a word among those that the option knows; 0 = not said: */
    int merge, variant;             /* lse, mean; strided, gathered */
    int pattern_cache, memory_pool; /* on, off */
    int dtype, layout, data, gemms; /* as their enumerations; 5, 7 */
    const char *tuning;             /* file for p.tuning; NULL = none */
    const char *json, *csv, *output_dir;
    const char *baseline; /* an older JSON file to compare with; NULL = none */
    int causal, backward, integer, fast, quick, phases, wide, list, mpi, help;
    int ranks;         /* 0 = the preset's */
    int threads;       /* -1 = the preset's, or 1 */
    int warmup, iters; /* -1 = the preset's */
    double min_time;   /* seconds; < 0 = the default */
    double max_time;   /* seconds; 0 = any */
    int64_t seed;
    int64_t max_seq_len; /* -1 = the preset's */
    uint64_t given;      /* which options, by their places in the table of options.c */
} bench_options;

/* 1 = understood; 0 = not, and a sentence was printed to stderr. */
int options_parse(bench_options *o, int argc, char **argv);

/* Whether the word is a command and no preset; command i, NULL beyond the last. */
int options_is_command(const char *word);
const char *options_command(int i);

/* 0 = what the command line asks for does not take one of its options, and a sentence was printed
 * to stderr. */
int options_taken(const bench_options *o);

/* All options, one a line. */
void options_print_help(void);

/* ---- choose.c */

/* Says to stderr that `about` is not what it should be; 0. */
int complain(const char *what, const char *about);

/* The known word that is nearest to another one, by letters inserted, deleted and replaced. Begins
 * as { word, NULL, 0 }; best stays NULL where no word is near enough to be meant. */
typedef struct nearest_word {
    const char *word, *best;
    int letters;
} nearest_word;
void nearest_try(nearest_word *n, const char *known);

/* Complains about n->word and names the best, or says where the words are listed; 0. */
int nearest_complain(const char *what, const nearest_word *n, const char *list);

/* The paths of --impl; the cases of presets and options. 0 = they cannot be, and a sentence was
 * printed to stderr. */
int choose_paths(const char *text, path_list *list);
int choose_cases(const bench_options *o, const machine_info *machine, case_list *list);

/* Fills in the branches that want has. NULL = understood; else what is wrong, and *about: with what. */
const char *dilation_choose(const bench_options *o, preset_choice *want, const char **about);

/* Puts in the place of the cases those that processes can share: with 1, 2, 4, ... and all ranks
 * each, and their path. 0 = there are none, and a sentence was printed to stderr. */
int choose_shared(const bench_options *o, int processes, path_list *paths, case_list *list);

/* Makes a case what was chosen, unless its preset's list has heeded it. */
void dilation_apply(const preset_choice *want, bench_case *c);

/* ---- program.c */

/* What commands and cases need; 0 = it cannot be had, and a sentence was printed to stderr. */
int bench_context_make(const bench_options *o, bench_context *x);
int bench_workers(bench_context *x, int n);
void bench_context_free(bench_context *x);

/* The whole program; returns its exit status. watch: see run.h. */
int bench_main(int argc, char **argv, run_watch *watch);

#endif
