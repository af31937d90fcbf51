/* report.h - what is printed: machine, table, winners.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "../cases/case.h"
#include "../cases/paths.h"
#include "../cases/presets.h"
#include "../machine/machine.h"
#include "../machine/probe.h"

#if defined __GNUC__
#define REPORT_FORMAT __attribute__((format(printf, 1, 2)))
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

/* Each case of a list may be a scenario of its own. */
enum { REPORT_MAX_SCENARIOS = PRESETS_MAX_CASES };

typedef struct bench_winner {
    const char *preset, *scenario, *winner, *over; /* paths; over: the slowest of the others */
    int cases, won;                                /* cases compared; won by the winner */
    double speedup;                                /* geometric mean over the cases, by P50 */
    double workspace_ratio;                        /* over's workspace / winner's, the same mean */
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

/* Whether row i is the first one of its scenario, skipped rows among them. */
int report_begins_scenario(const bench_result *results, int i);

/* Winners of scenarios unless another part has told them, threads, noise, how many were timed. */
void report_summary(const bench_result *results, int n, int told);

#endif
