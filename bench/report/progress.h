/* progress.h - how far a long run is, on stderr.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PROGRESS_H
#define BENCH_PROGRESS_H

/* Of so many runs; deadline: of clock_seconds, 0 = none. On a terminal one line that is rewritten,
 * elsewhere a line every 10 s of runs that last over 30 s. */
void progress_begin(int runs, double deadline);

/* Before a run of so many cases: shows what comes. */
void progress_show(const char *preset, const char *name, const char *path);

/* After it, before anything is printed: wipes the line. */
void progress_step(int runs);

/* Seconds left when `done` of `runs` took `elapsed`, at most `limit` unless that is 0. */
double progress_left(int done, int runs, double elapsed, double limit);

/* Whether a line is due elsewhere than on a terminal: so long after the begin, and so long after
 * the line before it. */
int progress_due(double elapsed, double since_last);

#endif
