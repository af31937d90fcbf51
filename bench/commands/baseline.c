/* baseline.c - `--baseline FILE`: this run against an older one of the same kind of machine.
 * SPDX-License-Identifier: MIT
 *
 * What is compared is cycles_p10, the 10 % quantile of a call's clock cycles in which a CPU ran it:
 * others on the machine only add to it, another clock rate does not change it. In 25 runs on a
 * shared virtual machine it lay within 5 % of its median where arithmetic is the roof, but in one
 * run of 15 it was 5 to 14 % above, all through that run's quarter of a second; where memory is the
 * roof, within 6 % from the last cache and from -12 to +28 % beyond it. So what looks slower by
 * more than 5 % is measured again, up to 5 times, all such cases in rounds so that some time lies
 * between, and the least counts: a slow kernel stays slow. */
#include "commands.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../report/report.h"

#define SUSPECT 1.05      /* measured again above this */
#define SLOWER 1.10       /* a case, where arithmetic is the roof */
#define SLOWER_MEMORY 1.3 /* where memory is */
#define SLOWER_MEAN 1.05  /* the geometric mean of the cases where arithmetic is the roof */

enum { ROUNDS = 5 };

/* What makes two rows the same case. */
static const char *const text_keys[] = { "preset", "case",   "path",    "kernels", "dtype",
                                         "mask",   "layout", "k_dtype", "v_dtype" };

enum { NUM_KEYS = sizeof text_keys / sizeof *text_keys };

typedef struct pair {
    const bench_result *now;
    const char *old;       /* NULL = the file has no such row */
    double before, cycles; /* old and new; the least of all measurements */
    int times;             /* measured again */
} pair;

/* ---- opening */

static int refuse(const char *path, const char *why)
{
    fprintf(stderr, "bench: --baseline \"%s\": %s\n", path, why);
    return 0;
}

/* A sentence that names both where a text of the machine is another one. */
static int same_machine(const char *d, const char *path, const char *key, const char *now)
{
    const char *const old = json_text(json_member(d, "machine"), key);
    char why[400], shown[160];
    if (old && !strcmp(old, now))
        return 1;
    snprintf(why, sizeof why, "its machine is another one: %s \"%.150s\", here \"%.150s\"", key,
             old ? utf8_printable(old, shown, sizeof shown) : "unknown", now);
    return refuse(path, why);
}

static int is_ours(const char *d, const char *path, const machine_info *machine)
{
    const char *const rows = json_member(d, "results");
    const double schema = json_number(d, "schema");
    char why[160];
    if (!rows || *rows != '[' || !json_member(d, "schema"))
        return refuse(path, "not a file that bench wrote with --json");
    if (schema != BENCH_SCHEMA) {
        snprintf(why, sizeof why, "its schema is version %.9g, this bench reads version %d", schema,
                 BENCH_SCHEMA);
        return refuse(path, why);
    }
    return same_machine(d, path, "cpu", machine->cpu) && same_machine(d, path, "isa", machine->isa);
}

char *baseline_open(const char *path, const machine_info *machine)
{
    char why[160], sentence[220];
    FILE *const f = fopen(path, "rb");
    if (!f)
        return refuse(path, strerror(errno)), NULL;
    char *const b = json_read(f, why, sizeof why);
    fclose(f);
    if (!b) {
        snprintf(sentence, sizeof sentence, "not JSON: %s", why);
        refuse(path, sentence);
    }
    if (b && is_ours(b, path, machine))
        return b;
    free(b);
    return NULL;
}

/* ---- pairing */

/* Random numbers are the same by the same seed. */
static int same_inputs(const char *b, const char *old, const bench_result *r, uint64_t seed)
{
    const char *const data = json_text(old, "data");
    if (!data || strcmp(data, r->data))
        return 0;
    return r->from->data == DATA_TRIG || json_number(b, "seed") == (double)seed;
}

static int same_case(const char *old, const bench_result *r)
{
    const char *const now[NUM_KEYS] = { r->preset, r->name,   r->path,    r->kernels, r->dtype,
                                        r->mask,   r->layout, r->k_dtype, r->v_dtype };
    const char *const pass = json_text(old, "pass"); /* files of before there were several */
    int same =
        json_number(old, "threads") == (double)r->threads &&
        (json_member(old, "integer") ? json_number(old, "integer") : 0) == (double)r->integer &&
        (json_member(old, "fast") ? json_number(old, "fast") : 0) == (double)r->fast &&
        (!pass || !strcmp(pass, r->pass));
    for (int i = 0; same && i < NUM_KEYS; i++) {
        const char *const text = json_text(old, text_keys[i]);
        same = text && !strcmp(text, now[i]);
    }
    return same;
}

static const char *first_row(const char *b)
{
    return json_first(json_member(b, "results"));
}

static const char *find_old(const char *b, const bench_result *r, uint64_t seed)
{
    const char *row = first_row(b);
    while (row && !(same_case(row, r) && same_inputs(b, row, r, seed)))
        row = json_next(row);
    return row;
}

static int can_compare(const pair *p)
{
    return p->old && !p->now->skipped[0] && p->before > 0 && p->cycles > 0;
}

static double ratio_of(const pair *p)
{
    return p->cycles / p->before;
}

static void make_pairs(const char *b, const bench_result *results, int n, uint64_t seed,
                       pair *pairs)
{
    for (int i = 0; i < n; i++) {
        pairs[i].now = &results[i];
        pairs[i].old = find_old(b, &results[i], seed);
        pairs[i].before = json_number(pairs[i].old, "cycles_p10");
        pairs[i].cycles = results[i].cycles_p10;
        pairs[i].times = 0;
    }
}

/* ---- judging */

baseline_verdict baseline_judge(double ratio, const char *roof)
{
    const double limit = strcmp(roof, "memory") ? SLOWER : SLOWER_MEMORY;
    if (ratio > limit)
        return BASELINE_IS_SLOWER;
    if (ratio > SUSPECT)
        return BASELINE_SUSPECT;
    return ratio < 1 / limit ? BASELINE_IS_FASTER : BASELINE_SAME;
}

/* Above it a case is worth another measurement. */
static int looks_slower(const pair *p)
{
    return can_compare(p) && ratio_of(p) > SUSPECT;
}

static void measure_again(bench_context *x, pair *p)
{
    bench_result again;
    run_case(x, p->now->from, p->now->path, &again);
    p->times++;
    if (!again.skipped[0] && again.cycles_p10 < p->cycles)
        p->cycles = again.cycles_p10;
}

static void measure_suspects(bench_context *x, pair *pairs, int n)
{
    x->deadline = 0; /* of the run itself */
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < n; i++)
            if (looks_slower(&pairs[i]))
                measure_again(x, &pairs[i]);
}

/* Geometric mean where arithmetic is the roof; 1 = there is no such case. */
static double mean_ratio(const pair *pairs, int n)
{
    double sum = 0;
    int cases = 0;
    for (int i = 0; i < n; i++) {
        if (!can_compare(&pairs[i]) || !strcmp(pairs[i].now->roof, "memory"))
            continue;
        sum += log(ratio_of(&pairs[i]));
        cases++;
    }
    return cases ? exp(sum / cases) : 1;
}

/* ---- saying */

static void say_pair(const pair *p)
{
    static const char *const words[] = { "same", "FASTER", "SLOWER", "same (within the noise)" };
    const bench_result *const r = p->now;
    if (r->skipped[0])
        return;
    say("  %-26s %-12s %-13s %3d ", r->name, r->path, r->kernels, (int)r->threads);
    if (!p->old)
        say("not in the baseline\n");
    else if (!can_compare(p))
        say("no clock rate: not compared\n");
    else {
        say("%12.0f %12.0f %6.3f  %s", p->before, p->cycles, ratio_of(p),
            words[baseline_judge(ratio_of(p), r->roof)]);
        say(p->times ? ", measured again %d times\n" : "\n", p->times);
    }
}

/* Rows of the file that this run did not measure. */
static void say_missing(const char *b, const pair *pairs, int n)
{
    for (const char *row = first_row(b); row; row = json_next(row)) {
        const char *const name = json_text(row, "case"), *const path = json_text(row, "path");
        char shown[64], way[24];
        int found = 0;
        for (int i = 0; i < n; i++)
            found |= pairs[i].old == row && !pairs[i].now->skipped[0];
        if (!found)
            say("  %-26s %-12s in the baseline, not measured now\n",
                utf8_printable(name ? name : "?", shown, sizeof shown),
                utf8_printable(path ? path : "?", way, sizeof way));
    }
}

static int say_verdict(const pair *pairs, int n)
{
    const double mean = mean_ratio(pairs, n);
    int compared = 0, slower = 0, faster = 0;
    for (int i = 0; i < n; i++) {
        if (!can_compare(&pairs[i]))
            continue;
        const baseline_verdict v = baseline_judge(ratio_of(&pairs[i]), pairs[i].now->roof);
        compared++;
        slower += v == BASELINE_IS_SLOWER;
        faster += v == BASELINE_IS_FASTER;
    }
    const int bad = slower > 0 || mean > SLOWER_MEAN;
    say("%d compared: %d slower, %d faster; mean ratio where arithmetic is the roof %.3f%s\n",
        compared, slower, faster, mean, bad ? ": SLOWER than the baseline" : "");
    if (!compared)
        fprintf(stderr, "bench: --baseline: no case of this run, inputs too, is in the file\n");
    return !compared ? 1 : bad ? BASELINE_SLOWER : 0;
}

int baseline_compare(const char *b, bench_context *x, const bench_result *results, int n)
{
    pair *const pairs = calloc((size_t)n + 1, sizeof *pairs);
    if (!pairs)
        return 1;
    make_pairs(b, results, n, x->seed, pairs);
    measure_suspects(x, pairs, n);
    say("\nagainst the baseline, clock cycles of a call (10 %% quantile); slower: ratio above "
        "%.2f, where\n  memory is the roof above %.2f, or the mean above %.2f\n",
        SLOWER, SLOWER_MEMORY, SLOWER_MEAN);
    say("  %-26s %-12s %-13s %3s %12s %12s %6s  %s\n", "case", "path", "kernels", "thr", "old",
        "new", "ratio", "verdict");
    for (int i = 0; i < n; i++)
        say_pair(&pairs[i]);
    say_missing(b, pairs, n);
    const int status = say_verdict(pairs, n);
    free(pairs);
    return status;
}
