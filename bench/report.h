/* report.h - what is printed: table, summary, machine.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "case.h"
#include "machine.h"
#include "probe.h"

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

typedef struct bench_winner {
    const char *preset, *scenario, *winner, *over; /* over: the slowest of the others */
    int cases, won;                                /* cases compared; won by the winner */
    double speedup;                                /* geometric mean over the cases, by P50 */
    double workspace_ratio;                        /* over's workspace / winner's, the same mean */
} bench_winner;

/* One winner per scenario of at least two timed implementations; returns how many were written. */
int report_winners(const bench_result *results, int n, bench_winner *out, int max);

void report_machine(const machine_info *m, const probe_result *p);
void report_formulas(void);
void report_table_head(void);
void report_row(const bench_result *r);
void report_summary(const bench_result *results, int n);

#endif
