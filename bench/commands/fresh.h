/* fresh.h - a case in a process of its own.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_FRESH_H
#define BENCH_FRESH_H

#include "../run.h"

/* 0 = this system has no fork. */
int fresh_available(void);

/* run_case in a child of this process, which must have no threads. What goes wrong with the child
 * is said in r->skipped. */
void fresh_run(bench_context *x, const bench_case *c, const char *impl, bench_result *r);

#endif
