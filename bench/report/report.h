/* report.h - what is said and written: table, summaries, JSON, CSV.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stddef.h>
#include <stdio.h>

#include "../bench.h"
#include "../cases/cases.h"
#include "../machine/machine.h"
#include "../run.h"

/* ---- report.c: what is printed: machine, table, winners. */

#ifndef PRINTF_STYLE /* what mingw's printf takes depends on who has asked for it: see the Makefile */
#define PRINTF_STYLE printf
#endif
#if defined __GNUC__
#define REPORT_FORMAT __attribute__((format(PRINTF_STYLE, 1, 2)))
#else
#define REPORT_FORMAT
#endif

/* Prints, and keeps a copy without colours for the JSON's "console". */
void say(const char *format, ...) REPORT_FORMAT;
const char *report_console(void);
void report_free(void);

/* Colours only on a terminal, and not with NO_COLOR set. */
void report_use_colour(void);

/* What follows is printed so: escape codes go to the terminal only, never into the copy. */
typedef enum report_style { PLAIN, BOLD, FAINT, GREEN, YELLOW } report_style;
void report_colour(report_style style);

/* A line of its own after an empty one, bold. */
void report_heading(const char *text);

/* "preset: scenario", or the scenario alone where it begins with the preset's name; returns to. */
enum { REPORT_TITLE = 96 };
const char *report_title(const char *preset, const char *scenario, char to[REPORT_TITLE]);

/* Each case of a list may be a scenario of its own. */
enum { REPORT_MAX_SCENARIOS = PRESETS_MAX_CASES };

typedef struct bench_winner {
    const char *preset, *scenario, *winner, *over; /* paths; over: the slowest of the others */
    int cases, won;                                /* cases compared; won by the winner */
    double speedup;                                /* geometric mean over the cases, by P50 */
    double workspace_ratio;                        /* over's workspace / winner's, the same mean */
    double ms_mean; /* of a call of the winner: the mean of its ms_mean over the cases */
} bench_winner;

/* One winner per scenario of at least two timed paths; returns how many were written. */
int report_winners(const bench_result *results, int n, bench_winner *out, int max);

void report_machine(const machine_info *m, const probe_result *p);

/* The device, where one of these cases runs on it. */
void report_device(const case_list *cases, const path_list *paths);

/* The table: columns as wide as these cases and paths need; a title before each scenario. */
void report_table_head(const case_list *cases, const path_list *paths, int wide);
void report_row(const bench_result *r);
void report_legend(const bench_result *results, int n);

/* Geometric mean of n ratios whose logarithms sum up to so much. */
double report_mean(double log_sum, int n);

/* Whether other programs disturbed a timed row: its median is far above its minimum. */
int report_noisy(const bench_result *r);

/* Whether two results are of the same case; whether they are of the same scenario. */
int report_same_case(const bench_result *a, const bench_result *b);
int report_same_scenario(const bench_result *a, const bench_result *b);

/* Whether no row before row i is like it: like(row i, an earlier one). */
int report_is_first(const bench_result *results, int i,
                    int (*like)(const bench_result *a, const bench_result *b));

/* What follows from all rows: legend, phases, groups, scaling, noise, how many were timed. Last
 * come the ranking and the verdicts, or the winners where there are neither. */
void report_summary(const bench_result *results, int n);

/* ---- fields.c: the fields of a result, as one table for the printed table, CSV and JSON. */

typedef enum field_kind { FIELD_NAME, FIELD_TEXT, FIELD_INT, FIELD_REAL, FIELD_MAYBE } field_kind;

/* When the table has it: DEVICE, in runs on one. */
typedef enum field_show { SHOW_ALWAYS, SHOW_WIDE, SHOW_DEVICE } field_show;

typedef struct result_field {
    const char *key; /* in CSV and JSON */
    field_kind kind; /* NAME: characters in the result itself; TEXT: a pointer to them; MAYBE: a
                        * REAL of which 0 means that it is not known */
    size_t offset;
    const char *title; /* in the table; NULL = not shown there */
    int width;         /* of the table's column; negative = left-aligned; 0 = as its texts need */
    int decimals;      /* in the table */
    double unit;       /* the table shows the value divided by this */
    field_show show;
} result_field;

extern const result_field result_fields[];
extern const int num_result_fields;

/* Whether it is a text, else a number. */
int field_is_text(const result_field *f);
const char *field_text(const result_field *f, const bench_result *r);
/* A number as CSV and JSON write it: counts in full, others to 9 digits. */
void field_put_number(FILE *f, double x);

double field_number(const result_field *f, const bench_result *r);

/* ---- files.c: where results go: the files that the command line names. */

enum { FILES_MAX_PATH = 4000 };

/* folder/name to path[FILES_MAX_PATH]; the folder is there now. These return 0 when it cannot be,
 * and a sentence was printed to stderr. */
int files_inside(const char *folder, const char *name, char *path);

/* What is left of a file, ended by a zero byte, to be freed; NULL = it cannot be read, is larger than
 * `most` bytes, or memory is short. */
char *files_load(FILE *f, size_t most, size_t *bytes);

/* Whether --json, --csv and --output-dir can be written, each to a file of its own. */
int files_possible(const bench_options *o);

/* --json, --csv and --output-dir, each said on stdout; 1 = all that were asked for are written. */
int files_write(const bench_options *o, const bench_context *x, const bench_result *results, int n);

/* ---- json.c: everything as one JSON file, or the rows as CSV. */

#define BENCH_SCHEMA 1

typedef struct bench_record {
    int argc;
    char **argv; /* "options" */
    const machine_info *machine;
    const probe_result *probe;
    int threads; /* of the command line */
    int64_t seed;
    const char *console;
    const bench_result *results;
    int num_results;
} bench_record;

/* 1 = written; 0 = not, and a sentence was printed to stderr. */
int json_write(const char *path, const bench_record *r);
int csv_write(const char *path, const bench_record *r);

/* ---- output.c: a file that is written whole or not at all.
 *
 * It is written to PATH.part, which takes the place of PATH at the end: an older file survives a
 * full disk. Devices, pipes and links are written as they are: renaming would replace them. */

enum { OUTPUT_MAX_PATH = 4096 };

typedef struct output {
    const char *path;
    char part[OUTPUT_MAX_PATH]; /* what is written to; path itself where nothing is renamed */
    FILE *file;
} output;

/* NULL = it cannot be written; all print a sentence to stderr then. path must outlive *out. */
FILE *output_open(output *out, const char *path);

/* 1 = all of it is in its place now. */
int output_close(output *out);

/* 1 = the path can be written: tried without a change to a file that is there. */
int output_possible(const char *path);

/* The time now in UTC, by a format of strftime, or "unknown"; returns to. */
#define OUTPUT_ISO_8601 "%Y-%m-%dT%H:%M:%SZ"
enum { OUTPUT_DATE = 32 };
const char *output_date(const char *format, char to[OUTPUT_DATE]);

/* Whether two paths that are possible name one file. */
int output_same(const char *a, const char *b);

/* ---- utf8.c: texts from outside, which may hold anything. */

/* Bytes of the character that begins here; 0 = no valid UTF-8 begins here, or the text ends. */
int utf8_length(const char *text);

/* A copy, cut off where it must be, with ? for each control character and wrong byte, which could
 * command a terminal; returns to. */
const char *utf8_printable(const char *text, char *to, size_t bytes);

/* ---- progress.c: how far a long run is, on stderr. */

/* Of this number of runs; work: the sum of what run_expected says of them; deadline: of
 * clock_seconds, 0 = none. On a terminal one line that is rewritten, elsewhere a line every 10 s of
 * runs that last over 30 s. */
void progress_begin(int runs, double work, double deadline);

/* Before a run of n cases: shows what comes. */
void progress_show(const char *preset, const char *name, const char *path);

/* After it, before anything is printed: wipes the line. ran: 0 = it was skipped without a call, so
 * that its work is neither done nor left. */
void progress_step(int runs, double work, int ran);

/* Seconds left when `done` of `work` took `elapsed`, at most `limit` unless that is 0. */
double progress_left(double done, double work, double elapsed, double limit);

/* "40 s", "11 minutes" or "7.0 hours"; returns to. */
enum { PROGRESS_TIME = 32 };
const char *progress_time(double seconds, char to[PROGRESS_TIME]);

/* Whether a line is due elsewhere than on a terminal: so long after the begin, and so long after
 * the line before it. */
int progress_due(double elapsed, double since_last);

/* ---- ranking.c: the fastest path of each case, and all paths in order. */

typedef struct bench_rank {
    const char *path;
    int cases, won; /* timed; won, of equal paths by the later one */
    double share;   /* geometric mean over its cases of the best time / its own, by P50: 1 = always
                     * the fastest */
} bench_rank;

/* Best first; how many were written. Only cases that the path was timed in count for it. */
int ranking_of(const bench_result *results, int n, bench_rank *out, int max);

/* Prints both where more than two paths were timed; 0 = nothing. */
int ranking_report(const bench_result *results, int n);

/* ---- summaries.c: rows against the first of their group, rows of ranks, of preset cache. */

/* Prints the tables that have rows. */
void report_groups(const bench_result *results, int n);

/* ---- scaling.c: how time and memory grow with the length: exponents of scenarios that differ
 * in it. */

enum { SCALING_LEAST = 3 }; /* lengths of a scenario that exponents are fitted for */

/* Rows of one scenario and path that differ in the number of keys, and rows with it, alone. Each
 * exponent is the slope of a quantity over the keys, both as logarithms. */
typedef struct bench_scaling {
    const char *preset, *scenario, *path;
    int64_t shortest, longest; /* keys */
    int cases;
    double pairs, time, workspace;
} bench_scaling;

/* At most max of them are written; returns how many. */
int scaling_of(const bench_result *results, int n, bench_scaling *out, int max);

/* Prints them; nothing where there are none. */
void scaling_report(const bench_result *results, int n);

/* ---- verdicts.c: naive against tiled and CPU against device in words, and what comparable
 * suites expect. */

/* What is compared; the second of each is "ours", the first "theirs". */
typedef enum verdict_kind {
    VERDICT_TILED,        /* naive and tiled on the CPU: of the same kernels and threads, those
                           * compiled without vectors left out */
    VERDICT_TILED_DEVICE, /* naive and tiled on the device */
    VERDICT_DEVICE,       /* the CPU's fastest path and the device with arrays of the host */
    VERDICT_RESIDENT,     /* and with arrays that are on it */
    VERDICT_KINDS
} verdict_kind;

enum { VERDICT_TEXT = 32 };

/* One scenario: rows of both of the same case. */
typedef struct bench_verdict {
    const char *preset, *scenario;
    char text[VERDICT_TEXT]; /* from the table of thresholds */
    int cases, won;          /* compared; in which ours was the faster one, by P50 */
    double speedup;          /* ours over theirs, geometric mean */
    double memory_saved;     /* share of theirs' workspace, geometric mean */
    double ms_mean; /* of a call of the faster one: the mean of its ms_mean over the cases */
    double launch, transfer, compute; /* shares of our calls on the device, summed over the cases */
    int64_t shortest, longest;        /* keys, of the cases compared */
    int64_t crossover; /* from this number of keys on ours is faster at every length; 0 =
                                * it is not at the longest one */
    int noisy;         /* pairs of which a row was disturbed */
} bench_verdict;

int verdicts_of(verdict_kind kind, const bench_result *results, int n, bench_verdict *out, int max);

/* What is called so much speed: "tiled is much faster" and the like. */
void verdict_text(verdict_kind kind, double speedup, char text[VERDICT_TEXT]);

/* An expectation next to what the rows say. */
typedef struct bench_expectation {
    const char *claim;
    int cases;       /* rows that it is measured from; 0 = not measured, and why says the reason */
    double measured; /* in its unit: percent or times */
    const char *unit, *why;
    int met;   /* measured reaches the lower end of what is claimed */
    int noisy; /* pairs of which a row was disturbed */
} bench_expectation;

/* Expectation i from these rows; 0 beyond the last. */
int verdicts_expectation(const bench_result *results, int n, int i, bench_expectation *out);

/* Prints the expectations, where one is measured, and the verdicts; 0 = no row has its
 * counterpart. */
int verdicts_report(const bench_result *results, int n);

/* ---- caches.c: decoding of preset cache: what it costs where the keys lie. */

/* What pages of one size, or a ring, cost in decoding over a contiguous cache. */
typedef struct caches_cost {
    const char *keys;
    int64_t page_size;
    int cases;
    double mean, worst; /* percent of the time; mean: of the geometric mean of the ratios */
    const char *worst_case;
    double goal; /* 0 = none */
    int noisy;   /* rows that were disturbed */
} caches_cost;

/* One for each place of keys that decoding was timed with, in order of appearance. */
int caches_costs(const bench_result *results, int n, caches_cost *out, int max);

/* Prints nothing where there are no such rows. */
void caches_report(const bench_result *results, int n);

#endif
