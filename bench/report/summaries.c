/* summaries.c - tables below the table: rows that were timed in turn with the first of their group,
 * told against that one; rows of ranks; of preset cache.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <string.h>

#define GIB 1073741824.0
#define MIB 1048576.0
#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* The row that a row was timed in turn with. */
static const bench_result *first_of(const bench_result *results, const bench_result *r)
{
    while (r > results && r->shares != SHARES_NOTHING)
        r--;
    return r;
}

/* Time as a share of that of the first of the group, which has none itself. */
static void say_share(const bench_result *r, int width)
{
    if (r->speedup > 0)
        say(" %*.1f %%", width, 100 / r->speedup);
    else
        say(" %*s", width + 2, "-");
}

static long long kib_of(const bench_result *r)
{
    return (long long)(r->workspace_bytes / 1024);
}

/* ---- a row of each table */

static void say_threads(const bench_result *results, const bench_result *r)
{
    (void)results;
    say("  %-22s %7d %8.2fx %9.0f %% %15.1f %%\n", r->name, (int)r->threads, r->speedup,
        100 * r->efficiency, r->pct_read_bw);
}

static void say_mask(const bench_result *results, const bench_result *r)
{
    (void)results;
    say("  %-22s %9.1f %% %12.1f %%\n", r->name, 100 / r->speedup, 100 * r->visible);
}

static void say_products(const bench_result *results, const bench_result *r)
{
    (void)results;
    say("  %-22s %7d %9d %10.1f %% %7lld KiB\n", r->name, (int)r->threads, (int)r->gemms,
        100 / r->speedup, kib_of(r));
}

static void say_pattern(const bench_result *results, const bench_result *r)
{
    static const char *const anew[] = { "-", "pattern", "memory", "pattern, memory" };
    const int pattern = !strcmp(r->pattern_cache, "off"), memory = !strcmp(r->memory_pool, "off");
    const double pairs = r->visible / first_of(results, r)->visible;
    say("  %-10s %-30s %9.2f %% %11.2f %% %10.1f %% %7lld KiB  %s\n", r->scenario, r->name,
        100 / r->speedup, 100 * pairs, 100 * pairs * r->speedup, kib_of(r),
        anew[pattern + 2 * memory]);
}

/* How many CPUs the ranks can use at once is told by the peak that the row was given. */
static void say_ranks(const bench_result *results, const bench_result *r)
{
    const double one = first_of(results, r)->fma_peak_gflops;
    const double cpus = one > 0 ? r->fma_peak_gflops / one : (double)r->threads;
    const double speedup = r->speedup > 0 ? r->speedup : 1;
    say("  %-14s %-8s %5d %10.3f %8.2fx %9.0f %% %10.0f %% %10.2f %12.3f %8.2f %6lld KiB\n",
        r->path, r->pass, (int)r->ranks, r->ms_p50, speedup, 100 * speedup / (double)r->ranks,
        100 * speedup / cpus, (double)r->moved_bytes / MIB, r->exchange_ms, r->rank_balance,
        kib_of(r));
}

/* Of processes. Computing alone has no overlap. */
static void say_processes(const bench_result *results, const bench_result *r)
{
    const double speedup = r->speedup > 0 ? r->speedup : 1;
    (void)results;
    say("  %-13s %-8s %-26s %10.3f", r->path, r->pass, r->name, r->ms_p50);
    if (r->processes == 1 || r->speedup > 0)
        say(" %8.2fx %9.0f %%", speedup, 100 * speedup / (double)r->processes);
    else
        say(" %9s %11s", "-", "-");
    say(" %10.2f %12.3f %11.3f %9.3f", (double)r->moved_bytes / MIB, r->exchange_ms,
        r->exchange_awaited_ms, r->exchange_alone_ms);
    if (r->exchange_alone_ms > 0)
        say(" %6.0f %%", 100 * r->overlap);
    else
        say(" %8s", "-");
    say(" %8.2f\n", r->compute_balance);
}

static void say_storage(const bench_result *results, const bench_result *r)
{
    (void)results;
    say("  %-26s %-4s  %-4s %8lld %11.0f %10.3f %9.1f %10.1f", r->name, r->k_dtype, r->v_dtype,
        (long long)r->kv_token_bytes, GIB / (double)r->kv_token_bytes, r->ms_p50, r->gbytes_per_s,
        r->pct_read_bw);
    say_share(r, 9);
    say("\n");
}

static void say_place(const bench_result *results, const bench_result *r)
{
    (void)results;
    say("  %-34s %10.3f", r->name, r->ms_p50);
    say_share(r, 10);
    say(" %13.1f %17lld\n", (double)r->kv_bytes / MIB, (long long)r->shared_keys);
}

static void say_append(const bench_result *results, const bench_result *r)
{
    (void)results;
    say("  %-34s %8.0f %12.2f", r->name, 1e9 / r->tokens_per_s, r->gbytes_per_s);
    say_share(r, 10);
    say("\n");
}

/* ---- the tables, in the order in which they are printed */

#define TURN ", on the same tensors (median of pairs)"
#define PLACE_TITLES                                                                               \
    "  case                                   P50 ms  of the time   MiB of K, V  keys told shared"

#define STORAGE_TITLES                                                                             \
    "  case                       K     V      bytes  tokens/GiB     P50 ms      GB/s      %read " \
    "of "                                                                                          \
    "the time"

static const struct summary {
    /* Which rows it has: all of ranks, threads (1) or processes (2), a scenario of preset cache, or those
     * of a group. */
    int ranks;
    const char *scenario;
    case_shares shares;
    const char *heading, *titles;
    void (*say)(const bench_result *results, const bench_result *r);
    const char *legend; /* NULL = none */
} groups[] = {
    { 0, NULL, SHARES_BUT_THREADS, "threads against one" TURN,
      "  case                   threads  speed-up  efficiency  of the read rate", say_threads,
      NULL },
    { 0, NULL, SHARES_BUT_MASK, "masks against none" TURN,
      "  case                   of the time  of the pairs", say_mask, NULL },
    { 0, NULL, SHARES_BUT_GEMMS, "products and threads against five on one thread" TURN,
      "  case                   threads  products  of the time   workspace", say_products, NULL },
    { 0, NULL, SHARES_BUT_PATTERN, "dilated attention and cells against dense" TURN,
      "  scenario   case                           of the time  of the pairs  dense speed"
      "   workspace  in every call",
      say_pattern,
      "dense speed: pairs per second, as a share of those of the dense call;\n"
      "  a pair counts once for each branch that shows it\n" },
    { 1, NULL, SHARES_NOTHING, "ranks against one" TURN,
      "  path           pass     ranks     P50 ms  speed-up  efficiency  of its CPUs  moved MiB"
      "  exchange ms  balance  workspace",
      say_ranks,
      "efficiency: speed-up / ranks; of its CPUs: / CPUs that the ranks run on at once; moved: by "
      "all\n  ranks in one call; exchange: a rank's time in the transport, waiting for slower "
      "ranks included;\n  balance: pairs of the rank that has most / mean; workspace: of all "
      "ranks\n" },
    { 2, NULL, SHARES_NOTHING, "processes against one, one after the other",
      "  path          pass     case                           P50 ms  speed-up  efficiency  moved "
      "MiB  exchange ms  awaited ms  alone ms  overlap  balance",
      say_processes,
      "P50: of the slowest rank; efficiency: speed-up / processes; moved: by all ranks in one call; "
      "exchange:\n  a rank's time in the transport, waiting for slower ranks included; awaited: of "
      "that, for messages; alone:\n  for the same messages with nothing to compute; overlap: 1 - "
      "awaited / alone; balance: computation of the\n  slowest rank / mean\n" },
    { 0, "storage", SHARES_NOTHING,
      "storage of K and V; bytes of a token of one layer = heads_kv * (head_dim * bytes of K + "
      "head_dim_v * bytes of V)",
      STORAGE_TITLES, say_storage, NULL },
    { 0, "quantised", SHARES_NOTHING,
      "quantised K and V, exactly and in whole numbers (integer), against f16" TURN, STORAGE_TITLES,
      say_storage, NULL },
}, cached[] = {
    { 0, "prefill", SHARES_NOTHING, "a chunk of a prompt after keys that are cached", PLACE_TITLES,
      say_place, NULL },
    { 0, "shared", SHARES_NOTHING, "one prompt for a whole batch", PLACE_TITLES, say_place, NULL },
    { 0, "append", SHARES_NOTHING, "appending K and V of a token, from f32, one layer",
      "  case                               ns/token  GB/s stored  of the time", say_append,
      NULL },
};

static int has(const struct summary *s, const bench_result *r)
{
    if (r->skipped[0])
        return 0;
    if (s->ranks || r->ranks)
        return s->ranks == (r->processes ? 2 : r->ranks > 0);
    if (s->scenario)
        return !strcmp(r->preset, "cache") && !strcmp(r->scenario, s->scenario);
    return r->speedup > 0 && r->shares == s->shares;
}

static void say_summary(const struct summary *s, const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        if (!has(s, &results[i]))
            continue;
        if (!said++) {
            report_heading(s->heading);
            say("%s\n", s->titles);
        }
        s->say(results, &results[i]);
    }
    if (said && s->legend)
        say("%s", s->legend);
}

void report_groups(const bench_result *results, int n)
{
    for (int i = 0; i < LENGTH(groups); i++)
        say_summary(&groups[i], results, n);
    caches_report(results, n);
    for (int i = 0; i < LENGTH(cached); i++)
        say_summary(&cached[i], results, n);
}
