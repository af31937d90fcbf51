/* relative.c - the summary of cases that were timed in turn with another on the same tensors.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <string.h>

void relative_threads(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->speedup <= 0 || r->shares != SHARES_BUT_THREADS || r->ranks)
            continue;
        if (!said++) {
            report_heading("threads against one, on the same tensors (median of pairs)");
            say("  %-22s threads  speed-up  efficiency  of the read rate\n", "case");
        }
        say("  %-22s %7d %8.2fx %9.0f %% %15.1f %%\n", r->name, (int)r->threads, r->speedup,
            100 * r->efficiency, r->pct_read_bw);
    }
}

void relative_masks(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->speedup <= 0 || r->shares != SHARES_BUT_MASK)
            continue;
        if (!said++) {
            report_heading("masks against none, on the same tensors (median of pairs)");
            say("  %-22s of the time  of the pairs\n", "case");
        }
        say("  %-22s %9.1f %% %12.1f %%\n", r->name, 100 / r->speedup, 100 * r->visible);
    }
}

void relative_products(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->speedup <= 0 || r->shares != SHARES_BUT_GEMMS)
            continue;
        if (!said++) {
            report_heading("products and threads against five on one thread, on the same tensors "
                           "(median of pairs)");
            say("  %-22s threads  products  of the time   workspace\n", "case");
        }
        say("  %-22s %7d %9d %10.1f %% %7lld KiB\n", r->name, (int)r->threads, (int)r->gemms,
            100 / r->speedup, (long long)(r->workspace_bytes / 1024));
    }
}

/* The dense row that a row was timed in turn with. */
static const bench_result *dense_of(const bench_result *results, const bench_result *r)
{
    while (r > results && r->shares != SHARES_NOTHING)
        r--;
    return r;
}

static const char *anew_of(const bench_result *r)
{
    const int pattern = !strcmp(r->pattern_cache, "off"), memory = !strcmp(r->memory_pool, "off");
    return pattern && memory ? "pattern, memory" : pattern ? "pattern" : memory ? "memory" : "-";
}

void relative_patterns(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->speedup <= 0 || r->shares != SHARES_BUT_PATTERN)
            continue;
        if (!said++) {
            report_heading("dilated attention and cells against dense, on the same tensors (median "
                           "of pairs)");
            say("  %-10s %-30s of the time  of the pairs  dense speed   workspace  in every call\n",
                "scenario", "case");
        }
        const double pairs = r->visible / dense_of(results, r)->visible;
        say("  %-10s %-30s %9.2f %% %11.2f %% %10.1f %% %7lld KiB  %s\n", r->scenario, r->name,
            100 / r->speedup, 100 * pairs, 100 * pairs * r->speedup,
            (long long)(r->workspace_bytes / 1024), anew_of(r));
    }
    if (said)
        say("dense speed: pairs per second, as a share of those of the dense call;\n"
            "  a pair counts once for each branch that shows it\n");
}

/* CPUs that the threads of a row can use at once, by the peak that they were given. */
static double cpus_of(const bench_result *results, const bench_result *r)
{
    const double one = dense_of(results, r)->fma_peak_gflops;
    return one > 0 ? r->fma_peak_gflops / one : (double)r->threads;
}

void relative_ranks(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->skipped[0] || !r->ranks)
            continue;
        const double speedup = r->speedup > 0 ? r->speedup : 1, cpus = cpus_of(results, r);
        if (!said++) {
            report_heading("ranks against one, on the same tensors (median of pairs)");
            say("  %-14s %-8s ranks     P50 ms  speed-up  efficiency  of its CPUs  moved MiB  "
                "exchange ms  balance  workspace\n",
                "path", "pass");
        }
        say("  %-14s %-8s %5d %10.3f %8.2fx %9.0f %% %10.0f %% %10.2f %12.3f %8.2f %6lld KiB\n",
            r->path, r->pass, (int)r->ranks, r->ms_p50, speedup, 100 * speedup / (double)r->ranks,
            100 * speedup / cpus, (double)r->moved_bytes / 1048576, r->exchange_ms, r->rank_balance,
            (long long)(r->workspace_bytes / 1024));
    }
    if (said)
        say("efficiency: speed-up / ranks; of its CPUs: / CPUs that the ranks run on at once; "
            "moved: by all\n  ranks in one call; exchange: a rank's time in the transport, waiting "
            "for slower ranks included;\n  balance: pairs of the rank that has most / mean; "
            "workspace: of all ranks\n");
}
