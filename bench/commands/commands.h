/* commands.h - what stands alone on the command line, and --baseline.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_COMMANDS_H
#define BENCH_COMMANDS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../../attn.h"
#include "../bench.h"
#include "../run.h"
#include "json_read.h"

/* ---- baseline.c: `--baseline FILE`: this run against an older one of the same kind of
 * machine. */

#define BASELINE_SLOWER 3 /* exit status */

/* The JSON of an older run, see json_read.c, to be freed; NULL when it is not one or of another kind
 * of machine, and a sentence was printed to stderr. */
char *baseline_open(const char *path, const machine_info *machine);

/* Compares n results with those of the file, case by case, measures again what looks slower, and
 * prints a table. 0 = not slower; BASELINE_SLOWER; 1 = nothing could be compared. */
int baseline_compare(const char *b, bench_context *x, const bench_result *results, int n);

typedef enum baseline_verdict {
    BASELINE_SAME,
    BASELINE_IS_FASTER,
    BASELINE_IS_SLOWER,
    BASELINE_SUSPECT
} baseline_verdict;

/* What a ratio of new to old cycles says of a row with that roof. */
baseline_verdict baseline_judge(double ratio, const char *roof);

/* ---- fresh.c: a case in a process of its own. */

/* 0 = this system has no fork. */
int fresh_available(void);

/* run_case in a child of this process, which must have no threads. What goes wrong with the child
 * is said in r->skipped. */
void fresh_run(bench_context *x, const bench_case *c, const char *impl, bench_result *r);

/* ---- info.c: what this machine can do: measured peaks, kernel sets, paths and why not, two
 * plans. */

/* Prints it, and writes the files that are asked for; returns the exit status. */
int info_command(const bench_options *o, bench_context *x);

/* ---- kernels.c: times the single kernels of the sets, each checked against the portable set
 * first. */

/* `bench kernels`: every entry of x->kernels, or of each set, for head_dim or 64, 128 and 256 (0),
 * x->kernel_samples samples of each; csv may be NULL. Returns the exit status. */
int kernels_command(bench_context *x, int64_t head_dim, const char *csv);

/* ---- memory.c: `bench memory`: how memory grows with the length, one fresh process for each
 * point. */

enum { MEMORY_MAX_POINTS = 32 };

/* The exponent of n lengths and their growth; bytes that cannot be told from none count as that
 * many: see memory.c. */
double memory_exponent(const double *lengths, const double *growth, int n);

/* The exponent by which n bytes grow from one length to the next: what does not grow is not in it.
 * Lengths are in one ratio. */
double memory_growth_exponent(const double *lengths, const double *bytes, int n);

/* Prints the table and the exponents. *n results are written, at most MEMORY_MAX_POINTS. Returns
 * the exit status: 0 = all exponents are what they should be. */
int memory_command(bench_context *x, int quick, bench_result *results, int *n);

/* ---- tuning.c: texts for p.tuning: composed, read from a file, shown to the library. */

enum { TUNING_BYTES = 1024, TUNING_MAX_SETTINGS = 12, TUNING_MAX_FILE = 1 << 20 };

typedef struct tuning_setting {
    const char *set, *name; /* a kernel set and a word of attn.h, p.tuning */
    int64_t value;
    double gain, noise; /* measured; for the comment */
} tuning_setting;

typedef struct tuning_list {
    tuning_setting settings[TUNING_MAX_SETTINGS];
    int n;
} tuning_list;

void tuning_add(tuning_list *list, const char *set, const char *name, int64_t value, double gain,
                double noise);

/* A text of these settings and, unless value is negative, of one more. */
void tuning_compose(char text[TUNING_BYTES], const tuning_list *list, const char *set,
                    const char *name, int64_t value);

/* The text of a file, to be freed; NULL = it cannot be read or is larger than TUNING_MAX_FILE, and a
 * sentence was printed to stderr. */
char *tuning_read(const char *path);

/* 1 = the library takes the text; 0 = it ignores it, and why holds its sentence. */
int tuning_taken(const char *text, char *why, size_t why_bytes);

/* ---- tune.c: `bench tune`: measures which sizes suit this machine and writes them for
 * p.tuning. */

/* A call that is tried, and its data: random numbers. */
typedef struct tune_case {
    const char *name;
    int heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, causal, workers;
} tune_case;

typedef struct tune_subject {
    float *q, *k, *v, *o;
    attn_params p;
    void *workspace; /* NULL to begin with */
    size_t workspace_bytes;
} tune_subject;

/* 0 = no memory. */
int tune_open(const tune_case *c, pool *workers, tune_subject *s);
void tune_close(tune_subject *s);

enum { TUNE_MAX_CASES = 2, TUNE_MAX_TRIALS = 10 };

/* One value tried. */
typedef struct tune_trial {
    int64_t value;
    double seconds[TUNE_MAX_CASES]; /* medians */
    double error[TUNE_MAX_CASES];   /* of the medians, as shares of them */
} tune_trial;

#define TUNE_LEAST_GAIN 0.02

/* Which of n >= 2 trials to take: the first and the last are the usual value, measured twice. The
 * fastest that is ahead of the usual one by more than TUNE_LEAST_GAIN and than the noise, and
 * behind in no case; else 0. The noise is how far the two lie apart, or their error where that is
 * more. *gain is that of the fastest, taken or not. */
int tune_choose(const tune_trial *trials, int n, int cases, double *gain, double *noise);

/* Candidate `value` of field `field` as the table of what is tried has it, with its name; 0 beyond
 * the last. Value 0 is the usual one (-1 = none can be named). */
int tune_candidate(int field, int value, const char **name, int64_t *out);

/* `bench tune`: returns the exit status. */
int tune_command(bench_context *x, int quick, const char *path);

/* ---- tune_device.c: from how many operations on the OpenCL device is faster than the CPU. */

typedef struct tune_crossover {
    char device[128]; /* "" = there is none */
    double flops;     /* for attn_opencl_options.least_flops; 0 = nothing can be said */
    int keys;         /* of the shortest call at which it won */
} tune_crossover;

/* Prints what it measures: prefills of growing length with arrays of the host, by all threads of
 * the CPU and by the device in turn. */
void tune_device(bench_context *x, double seconds, tune_crossover *out);

/* The first of n growing lengths from which on the device was faster at each one; n = at none. */
int tune_crossover_of(const double *cpu_seconds, const double *device_seconds, int n);

#endif
