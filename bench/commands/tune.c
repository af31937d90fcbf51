/* tune.c - `bench tune`: measures which sizes suit this machine and writes them for p.tuning.
 * SPDX-License-Identifier: MIT
 *
 * One field after the other; each keeps what those before it chose. All values of a field are timed
 * in turn on the same data in the same workspace, the usual one twice. What wins is timed again
 * against the usual value, and taken only if it wins again. */
#include "commands.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../attn.h"
#include "../../tests/tuned_bits.h"
#include "../clock.h"
#include "../measure.h"
#include "../report/report.h"

#define SECONDS 45.0
#define QUICK_SECONDS 12.0
#define REASON "usual value kept: "

/* Why calls were not timed often enough. */
static const char *too_few(void)
{
    return stop_wanted() ? stop_cause() : "the calls take too long for the time there is";
}

enum { MAX_VALUES = 8, SAMPLES = 101, QUICK_SAMPLES = 31, MIN_SAMPLES = 5 };
enum { WIDE, NARROW, SETS };
enum { DEVICE_WEIGHT = 12 };

/* ---- what is tried */

static const tune_case
    prefill_64 = { "prefill 1024 causal, 1 x 64", 1, 1, 1024, 1024, 64, ATTN_F32, 1, 1 },
    prefill_128 = { "prefill 1024 causal, 1 x 128", 1, 1, 1024, 1024, 128, ATTN_F32, 1, 1 },
    prefill_f16 = { "prefill 1024 causal f16, 1 x 128", 1, 1, 1024, 1024, 128, ATTN_F16, 1, 1 },
    decode = { "decode 4096, 32/8 x 128", 32, 8, 1, 4096, 128, ATTN_F32, 0, 1 };

static const struct field {
    const char *name;
    int set;
    int64_t values[MAX_VALUES]; /* the usual one first; -1 = left to the library */
    int count;
    const tune_case *cases[TUNE_MAX_CASES];
} fields[] = {
    { "tile_keys",
      WIDE,
      { -1, 16, 32, 64, 128, 256, 512, 1024 },
      8,
      { &prefill_64, &prefill_128 } },
    { "item_rows", WIDE, { 128, 48, 96, 192, 288, 384 }, 6, { &prefill_64, &prefill_128 } },
    { "item_bytes",
      WIDE,
      { 1 << 20, 1 << 18, 1 << 19, 1 << 21, 1 << 22 },
      5,
      { &prefill_f16, NULL } },
    { "ahead", WIDE, { 1, 0 }, 2, { &prefill_64, &prefill_128 } },
    { "tile_keys", NARROW, { -1, 16, 32, 64, 128, 256, 512, 1024 }, 8, { &decode, NULL } },
    { "ahead", NARROW, { 1, 0 }, 2, { &decode, NULL } },
};
enum { FIELDS = sizeof fields / sizeof *fields };

int tune_candidate(int field, int value, const char **name, int64_t *out)
{
    if (field >= FIELDS || value >= fields[field].count)
        return 0;
    *name = fields[field].name;
    *out = fields[field].values[value];
    return 1;
}

/* ---- one call and its data */

typedef struct variant {
    attn_params p;
    const tune_subject *of;
    char text[TUNING_BYTES];
} variant;

typedef struct tune {
    const bench_context *x;
    const attn_kernels *sets[SETS]; /* NULL = there is none */
    pool *two;                      /* workers */
    double deadline;
    int weight_left, samples;
    tuning_list chosen;
    tune_crossover device;
} tune;

static float *filled(size_t n, int dtype, int which)
{
    float *const data = malloc(n * sizeof *data);
    if (data)
        data_fill(data, dtype, n, which, DATA_NORMAL, 1);
    return data;
}

void tune_close(tune_subject *s)
{
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->o);
    free(s->workspace);
    memset(s, 0, sizeof *s);
}

int tune_open(const tune_case *c, pool *workers, tune_subject *s)
{
    const size_t queries = (size_t)c->heads_q * (size_t)c->seq_q * (size_t)c->head_dim;
    const size_t keys = (size_t)c->heads_kv * (size_t)c->seq_kv * (size_t)c->head_dim;
    const attn_params p = { .batch = 1,
                            .num_heads_q = c->heads_q,
                            .num_heads_kv = c->heads_kv,
                            .seq_len_q = c->seq_q,
                            .seq_len_kv = c->seq_kv,
                            .head_dim = c->head_dim,
                            .causal = c->causal,
                            .num_workers = c->workers,
                            .parallel_for = c->workers > 1 ? pool_parallel_for : NULL,
                            .parallel_user = workers };
    memset(s, 0, sizeof *s);
    s->p = p;
    s->p.q.dtype = s->p.k.dtype = s->p.v.dtype = s->p.o.dtype = c->dtype;
    s->p.q.data = s->q = filled(queries, c->dtype, DATA_Q);
    s->p.k.data = s->k = filled(keys, c->dtype, DATA_K);
    s->p.v.data = s->v = filled(keys, c->dtype, DATA_V);
    s->p.o.data = s->o = filled(queries, c->dtype, DATA_Q); /* its pages are touched */
    if (s->q && s->k && s->v && s->o)
        return 1;
    tune_close(s);
    return 0;
}

static int open_subject(const tune *t, const tune_case *c, int set, tune_subject *s)
{
    const int ok = tune_open(c, t->two, s);
    s->p.kernels = t->sets[set];
    return ok;
}

/* The subject with the settings chosen so far and, unless value is negative, one more. */
static int make_variant(const tune *t, tune_subject *s, const char *name, int64_t value, variant *v)
{
    size_t need = 0;
    v->of = s;
    v->p = s->p;
    v->p.tuning = v->text;
    tuning_compose(v->text, &t->chosen, attn_kernels_name(s->p.kernels), name, value);
    if (attn_workspace_size(&v->p, &need) != ATTN_OK)
        return 0;
    if (need <= s->workspace_bytes)
        return 1;
    free(s->workspace); /* all variants run in the same one */
    s->workspace = malloc(need);
    s->workspace_bytes = s->workspace ? need : 0;
    return s->workspace != NULL;
}

static int call(void *argument)
{
    const variant *const v = argument;
    return stop_wanted() ||
           attn_forward(&v->p, v->of->workspace, v->of->workspace_bytes) != ATTN_OK;
}

/* Times the variants in turn; 0 when they cannot be timed often enough in `seconds`. */
static int time_variants(const tune *t, variant *variants, int n, double seconds, measure_job *jobs)
{
    measure_plan plan = { 1, t->samples, 0, seconds };
    if (measure_once(call, &variants[0]) < 0)
        return 0; /* the first one meets new memory */
    if (measure_once(call, &variants[0]) * n * (MIN_SAMPLES + 1) > seconds)
        return 0;
    for (int i = 0; i < n; i++) {
        const measure_job job = { .call = call, .arg = &variants[i] };
        jobs[i] = job;
    }
    return measure_in_turn(&plan, jobs, n) && jobs[0].result.seconds.n >= MIN_SAMPLES;
}

/* Of the median, as a share of it: twice its deviation. */
static double error_of(const bench_stats *s)
{
    return 2 * s->p50_error / s->p50;
}

/* ---- choosing */

/* How much faster b is than a: the geometric mean over the cases, or the worst one if that is
 * slower, so that no case pays for another. */
static double gain_of(const tune_trial *a, const tune_trial *b, int cases)
{
    double product = 1, worst = 1;
    for (int c = 0; c < cases; c++) {
        const double ratio = a->seconds[c] / b->seconds[c];
        product *= ratio;
        if (ratio < worst)
            worst = ratio;
    }
    return worst < 1 ? worst - 1 : cases == 2 ? sqrt(product) - 1 : product - 1;
}

/* Of the usual value's two measurements; its better medians count. */
static double noise_of(const tune_trial *a, const tune_trial *b, int cases, tune_trial *usual)
{
    double noise = 0;
    *usual = *a;
    for (int c = 0; c < cases; c++) {
        noise = fmax(noise, fabs(a->seconds[c] / b->seconds[c] - 1));
        noise = fmax(noise, fmax(a->error[c], b->error[c]));
        if (b->seconds[c] < a->seconds[c])
            usual->seconds[c] = b->seconds[c];
    }
    return noise;
}

int tune_choose(const tune_trial *trials, int n, int cases, double *gain, double *noise)
{
    tune_trial usual;
    int best = 0;
    *noise = noise_of(&trials[0], &trials[n - 1], cases, &usual);
    *gain = 0;
    for (int i = 1; i < n - 1; i++) {
        const double g = gain_of(&usual, &trials[i], cases);
        if (best && g <= *gain)
            continue;
        best = i;
        *gain = g;
    }
    return *gain > TUNE_LEAST_GAIN && *gain > *noise ? best : 0;
}

/* The time is shared by weight, about the number of calls in turn; what a step leaves goes to those
 * after it. */
static double step_seconds(tune *t, int weight)
{
    const double left = t->deadline - clock_seconds();
    const double seconds = left > 0 ? left * weight / t->weight_left : 0;
    t->weight_left -= weight;
    return seconds;
}

/* Times values[0], the usual one, the others and the usual one again on one subject. */
static int time_values(const tune *t, tune_subject *s, const char *name, const int64_t *values,
                       int n, double seconds, int which, tune_trial *trials)
{
    variant *const variants = calloc((size_t)n + 1, sizeof *variants);
    measure_job jobs[TUNE_MAX_TRIALS];
    int ok = variants != NULL;
    for (int i = 0; ok && i <= n; i++)
        ok = make_variant(t, s, name, values[i < n ? i : 0], &variants[i]);
    ok = ok && time_variants(t, variants, n + 1, seconds, jobs);
    for (int i = 0; ok && i <= n; i++) {
        trials[i].value = values[i < n ? i : 0];
        trials[i].seconds[which] = jobs[i].result.seconds.p50;
        trials[i].error[which] = error_of(&jobs[i].result.seconds);
    }
    free(variants);
    return ok;
}

static int count_cases(const struct field *f)
{
    return f->cases[1] ? 2 : 1;
}

static int weight_of(const struct field *f)
{
    return (f->count + 1) * count_cases(f);
}

static int time_field(const tune *t, const struct field *f, tune_subject *subjects,
                      const int64_t *values, int n, double seconds, tune_trial *trials)
{
    const int cases = count_cases(f);
    int ok = 1;
    for (int c = 0; ok && c < cases; c++)
        ok = time_values(t, &subjects[c], f->name, values, n, seconds / cases, c, trials);
    return ok;
}

/* ---- the fields with a list of values */

/* Values that give the same plan as the usual one need no time. */
static int drop_equal(const tune *t, const struct field *f, tune_subject *subjects, int64_t *values)
{
    static variant usual, other; /* of 1 KiB each */
    attn_info a, b;
    int n = 0;
    for (int i = 0; i < f->count; i++) {
        int differs = i == 0 || !strcmp(f->name, "ahead");
        for (int c = 0; !differs && c < count_cases(f); c++)
            differs = make_variant(t, &subjects[c], f->name, f->values[0], &usual) &&
                      make_variant(t, &subjects[c], f->name, f->values[i], &other) &&
                      attn_explain(&usual.p, &a) == ATTN_OK &&
                      attn_explain(&other.p, &b) == ATTN_OK &&
                      (a.tile_keys != b.tile_keys || a.items != b.items ||
                       a.workspace_bytes != b.workspace_bytes);
        if (differs)
            values[n++] = f->values[i];
    }
    return n;
}

static void say_trials(const tune_trial *trials, int n, int cases)
{
    for (int i = 0; i < n; i++) {
        char value[24] = "usual";
        if (i > 0 && i < n - 1)
            snprintf(value, sizeof value, "%lld", (long long)trials[i].value);
        if (i == n - 1)
            snprintf(value, sizeof value, "usual again");
        say("  %-12s", value);
        for (int c = 0; c < cases; c++)
            say(" %9.4f", 1e3 * trials[i].seconds[c]);
        say("\n");
    }
}

/* The winner against the usual value once more: the best of many is partly luck. */
static int wins_again(const tune *t, const struct field *f, tune_subject *subjects, int64_t value,
                      double seconds, double *gain, double *noise)
{
    const int64_t values[] = { f->values[0], value };
    tune_trial trials[3];
    double again, apart;
    if (!time_field(t, f, subjects, values, 2, seconds, trials))
        return 0;
    const int won = tune_choose(trials, 3, count_cases(f), &again, &apart);
    say("  once more: %+.1f %%, noise %.1f %%\n", 1e2 * again, 1e2 * apart);
    if (again < *gain)
        *gain = again;
    if (apart > *noise)
        *noise = apart;
    return won && *gain > *noise;
}

static void tune_subjects(tune *t, const struct field *f, tune_subject *subjects, double seconds)
{
    const char *const set = attn_kernels_name(t->sets[f->set]);
    int64_t values[MAX_VALUES];
    tune_trial trials[TUNE_MAX_TRIALS];
    double gain, noise;
    const int n = drop_equal(t, f, subjects, values);
    if (n < 2 || !time_field(t, f, subjects, values, n, seconds * 2 / 3, trials)) {
        say("  " REASON "%s\n", n < 2 ? "no other makes a difference" : too_few());
        return;
    }
    say_trials(trials, n + 1, count_cases(f));
    const int best = tune_choose(trials, n + 1, count_cases(f), &gain, &noise);
    if (!best) {
        say("  " REASON "the best other is at %+.1f %%, noise %.1f %%\n", 1e2 * gain, 1e2 * noise);
    } else if (!wins_again(t, f, subjects, trials[best].value, seconds / 3, &gain, &noise)) {
        say("  " REASON "%lld did not win twice%s%s\n", (long long)trials[best].value,
            stop_wanted() ? ": " : "", stop_wanted() ? stop_cause() : "");
    } else {
        tuning_add(&t->chosen, set, f->name, trials[best].value, gain, noise);
        say("  chosen: %lld, %+.1f %%, noise %.1f %%\n", (long long)trials[best].value, 1e2 * gain,
            1e2 * noise);
    }
}

static void tune_field(tune *t, const struct field *f)
{
    const double seconds = step_seconds(t, weight_of(f));
    stop_step(t->x);
    tune_subject subjects[TUNE_MAX_CASES] = { { 0 } };
    int ok = 1;
    say("%s of %s, ms:", f->name, attn_kernels_name(t->sets[f->set]));
    for (int c = 0; c < count_cases(f); c++)
        say("%s %s", c ? ";" : "", f->cases[c]->name);
    say("\n");
    if (!t->sets[f->set]) {
        say("  skipped: the best set has no narrow form\n");
        return;
    }
    for (int c = 0; ok && c < count_cases(f); c++)
        ok = open_subject(t, f->cases[c], f->set, &subjects[c]);
    if (ok)
        tune_subjects(t, f, subjects, seconds);
    else
        say("  skipped: no memory\n");
    for (int c = 0; c < count_cases(f); c++)
        tune_close(&subjects[c]);
}

/* ---- two ways to compute the same call: a, b, and a again */

typedef struct duel {
    double a, b, gain, noise; /* seconds; how much faster b is; as that of tune_choose */
} duel;

/* -1 = a wins, 1 = b wins, 0 = neither by enough. */
static int verdict(const duel *d)
{
    const double least = d->noise > TUNE_LEAST_GAIN ? d->noise : TUNE_LEAST_GAIN;
    return d->gain > least ? 1 : 1 / (1 + d->gain) - 1 > least ? -1 : 0;
}

static int fight(const tune *t, variant v[3], double seconds, duel *d)
{
    measure_job jobs[3];
    tune_trial trials[3] = { { 0 } }, best;
    v[2] = v[0];
    v[2].p.tuning = v[2].text;
    if (!time_variants(t, v, 3, seconds, jobs))
        return 0;
    for (int i = 0; i < 3; i++) {
        trials[i].seconds[0] = jobs[i].result.seconds.p50;
        trials[i].error[0] = error_of(&jobs[i].result.seconds);
    }
    d->noise = noise_of(&trials[0], &trials[2], 1, &best);
    d->a = best.seconds[0];
    d->b = trials[1].seconds[0];
    d->gain = d->a / d->b - 1;
    return 1;
}

/* ---- dividing the keys among workers */

enum { SPLIT_DIM = 128, SPLIT_USUAL = 512, SPLIT_LEAST = 64, SPLIT_MOST = 8192, SPLIT_WEIGHT = 12 };
#define SPLIT_CPUS 1.3 /* that two workers use at least when there are two CPUs */

/* a: whole, b: divided. */
static int split_duel(const tune *t, int set, int keys, double seconds, duel *d)
{
    const tune_case c = { "", 4, 1, 1, keys, SPLIT_DIM, ATTN_F32, 0, 2 };
    static variant v[3];
    tune_subject s;
    if (!open_subject(t, &c, set, &s))
        return 0;
    const int ok = make_variant(t, &s, "split_work", 1 << 30, &v[0]) &&
                   make_variant(t, &s, "split_work", 1, &v[1]) && fight(t, v, seconds, d);
    tune_close(&s);
    if (ok)
        say("  %-12d %9.4f %9.4f  %+.1f %%, noise %.1f %%\n", keys, 1e3 * d->a, 1e3 * d->b,
            1e2 * d->gain, 1e2 * d->noise);
    return ok;
}

/* Keys from which on dividing pays, going from the usual number as far as the other side wins;
 * 0 = cannot be timed. */
static int split_keys(const tune *t, int set, double seconds, duel *last)
{
    duel d;
    int keys = SPLIT_USUAL;
    if (!split_duel(t, set, keys, seconds, &d))
        return 0;
    *last = d;
    if (verdict(&d) > 0) {
        while (keys > SPLIT_LEAST && split_duel(t, set, keys / 2, seconds, &d) && verdict(&d) > 0) {
            keys /= 2;
            *last = d;
        }
        return keys;
    }
    while (verdict(&d) < 0 && keys < SPLIT_MOST) {
        keys *= 2;
        *last = d;
        if (!split_duel(t, set, keys, seconds, &d))
            return 0;
    }
    return keys;
}

static int two_cpus(const tune *t, int set, double seconds)
{
    const tune_case c = { "", 4, 1, 1, SPLIT_MOST, SPLIT_DIM, ATTN_F32, 0, 2 };
    static variant v;
    measure_job job;
    tune_subject s;
    if (t->x->machine.cpus < 2 || !t->two || !open_subject(t, &c, set, &s))
        return 0;
    const int ok =
        make_variant(t, &s, "split_work", 1, &v) && time_variants(t, &v, 1, seconds, &job);
    tune_close(&s);
    return ok && (job.result.running <= 0 || job.result.running > SPLIT_CPUS);
}

static void tune_split(tune *t)
{
    const int set = t->sets[NARROW] ? NARROW : WIDE;
    const double seconds = step_seconds(t, SPLIT_WEIGHT) / 8;
    const char *const name = attn_kernels_name(t->sets[set]);
    duel d;
    say("split_work of %s, 2 threads, decode, 4/1 x %d, ms: keys, whole, divided\n", name,
        SPLIT_DIM);
    if (!two_cpus(t, set, seconds)) {
        say("  skipped: %s\n",
            stop_wanted() ? stop_cause() : "there are no two CPUs for two threads");
        return;
    }
    const int keys = split_keys(t, set, seconds, &d);
    if (keys == 0 || keys == SPLIT_USUAL) {
        say("  " REASON "%s\n", keys ? "from 512 keys on" : too_few());
        return;
    }
    tuning_add(&t->chosen, name, "split_work", (int64_t)keys * 2 * SPLIT_DIM, fabs(d.gain),
               d.noise);
    say("  chosen: %d, from %d keys on\n", keys * 2 * SPLIT_DIM, keys);
}

/* ---- naive or tiled */

enum { NAIVE_LEAST = 64, NAIVE_MOST = 1024, NAIVE_WEIGHT = 12 };

/* a: tiled, b: naive; prints and returns the verdict. */
static int naive_wins(const tune *t, int keys, int causal, double seconds, duel *d)
{
    const tune_case c = { "", 2, 2, keys, keys, 64, ATTN_F32, causal, 1 };
    static variant v[3];
    tune_subject s;
    if (!open_subject(t, &c, WIDE, &s))
        return 0;
    s.p.impl = ATTN_IMPL_NAIVE;
    int ok = make_variant(t, &s, "", -1, &v[1]);
    s.p.impl = ATTN_IMPL_TILED;
    ok = ok && make_variant(t, &s, "", -1, &v[0]) && fight(t, v, seconds, d);
    tune_close(&s);
    if (!ok)
        return 0;
    say("  %-4d %-7s %9.4f %9.4f  %+.1f %%, noise %.1f %%\n", keys, causal ? "causal" : "full",
        1e3 * d->a, 1e3 * d->b, 1e2 * d->gain, 1e2 * d->noise);
    return verdict(d) > 0;
}

/* Up to where naive wins at every length measured, with and without a mask: `auto` knows the number
 * of keys only. */
static void tune_auto(tune *t)
{
    const double seconds = step_seconds(t, NAIVE_WEIGHT) / 10;
    int64_t most = 0;
    duel d = { 0 }, last = { 0 };
    say("auto_naive_keys of %s, 2 x 64, ms: keys, tiled, naive\n",
        attn_kernels_name(t->sets[WIDE]));
    for (int keys = NAIVE_LEAST; keys <= NAIVE_MOST; keys *= 2) {
        if (!naive_wins(t, keys, 0, seconds, &d) || !naive_wins(t, keys, 1, seconds, &d))
            break;
        most = keys;
        last = d;
    }
    if (most == 0) {
        say("  " REASON "naive does not win\n");
        return;
    }
    tuning_add(&t->chosen, attn_kernels_name(t->sets[WIDE]), "auto_naive_keys", most, last.gain,
               last.noise);
    say("  chosen: %lld\n", (long long)most);
}

/* ---- the file */

static int write_file(const tune *t, const char *path)
{
    const machine_info *const m = &t->x->machine;
    char date[OUTPUT_DATE];
    output out;
    FILE *const f = output_open(&out, path);
    if (!f)
        return 0;
    fprintf(f, "attn-tuning 1\n# For p.tuning of attn.h, written by `bench tune`; never needed.\n");
    fprintf(f, "# machine: %s, %d CPUs, %s\n# date: %s\n# attn %s, revision %s; %s\n", m->cpu,
            m->cpus, m->system, output_date(OUTPUT_ISO_8601, date), attn_version(), m->revision,
            m->compiler);
    for (int i = 0; i < t->chosen.n; i++) {
        const tuning_setting *const s = &t->chosen.settings[i];
        fprintf(f, "%s.%s %lld # %.1f %% faster, noise %.1f %%\n", s->set, s->name,
                (long long)s->value, 1e2 * s->gain, 1e2 * s->noise);
    }
    if (t->device.flops > 0)
        fprintf(f, "# %s: attn_opencl_options.least_flops = %.0f, from %d keys on\n",
                t->device.device, t->device.flops, t->device.keys);
    if (stop_wanted())
        fprintf(f, "# %s before all sizes were tried\n", stop_cause());
    else if (!t->chosen.n)
        fprintf(f, "# the usual sizes are the best here\n");
    fprintf(f, "end\n");
    return output_close(&out);
}

/* Writes the file and reads it again as a program would. */
static int finish(const tune *t, const char *path)
{
    char text[TUNING_BYTES], why[300];
    tuning_compose(text, &t->chosen, "", "", -1);
    if (!tuning_taken(text, why, sizeof why) || !tuning_same_bits(text, 0)) {
        fprintf(stderr, "bench: not written: %s\n", why[0] ? why : "the result has other bits");
        return 0;
    }
    if (!write_file(t, path))
        return 0;
    char *const written = tuning_read(path);
    const int ok = written && tuning_taken(written, why, sizeof why);
    if (written && !ok)
        fprintf(stderr, "bench: %s: %s\n", path, why);
    free(written);
    if (ok)
        say("\nthe same bits with it as without: checked; wrote %s\n", path);
    return ok;
}

static void find_sets(tune *t)
{
    const char *const asked = t->x->kernels;
    const attn_kernels *const second = attn_kernels_get(1);
    t->sets[WIDE] = asked ? attn_kernels_find(asked) : attn_kernels_get(0);
    char narrow[64];
    snprintf(narrow, sizeof narrow, "%.50s_narrow", attn_kernels_name(t->sets[WIDE]));
    if (!asked && !strcmp(attn_kernels_name(second), narrow))
        t->sets[NARROW] = second;
}

int tune_command(bench_context *x, int quick, const char *path)
{
    tune t = { .x = x, .weight_left = SPLIT_WEIGHT + NAIVE_WEIGHT + DEVICE_WEIGHT };
    const double begin = clock_seconds();
    t.deadline = begin + (quick ? QUICK_SECONDS : SECONDS);
    t.samples = quick ? QUICK_SAMPLES : SAMPLES;
    find_sets(&t);
    t.two = pool_create(2);
    say("machine   %s, %d CPUs, %s\nmedians of up to %d calls in turn; a value is chosen when it "
        "is faster by more\nthan %.0f %% and than the noise, twice\n\n",
        x->machine.cpu, x->machine.cpus, x->machine.system, t.samples, 1e2 * TUNE_LEAST_GAIN);
    for (int i = 0; i < FIELDS; i++)
        t.weight_left += weight_of(&fields[i]);
    stop_on_signals();
    for (int i = 0; i < FIELDS && !stop_wanted(); i++)
        tune_field(&t, &fields[i]);
    if (!stop_wanted())
        tune_split(&t);
    if (!stop_wanted())
        tune_auto(&t);
    if (!stop_wanted())
        tune_device(x, step_seconds(&t, DEVICE_WEIGHT), &t.device);
    pool_destroy(t.two);
    const int ok = finish(&t, path);
    if (stop_wanted())
        say("%s, after ", stop_cause());
    say("%.0f seconds\n", clock_seconds() - begin);
    return !ok ? 1 : stop_wanted() ? stop_status() : 0;
}

/* ---- texts for p.tuning: composed, read from a file, shown to the library */

void tuning_add(tuning_list *list, const char *set, const char *name, int64_t value, double gain,
                double noise)
{
    const tuning_setting s = { set, name, value, gain, noise };
    if (list->n < TUNING_MAX_SETTINGS)
        list->settings[list->n++] = s;
}

void tuning_compose(char text[TUNING_BYTES], const tuning_list *list, const char *set,
                    const char *name, int64_t value)
{
    size_t at = (size_t)snprintf(text, TUNING_BYTES, "attn-tuning 1\n");
    for (int i = 0; i < list->n; i++) {
        const tuning_setting *const s = &list->settings[i];
        at += (size_t)snprintf(text + at, TUNING_BYTES - at, "%.32s.%s %lld\n", s->set, s->name,
                               (long long)s->value);
    }
    if (value >= 0)
        at += (size_t)snprintf(text + at, TUNING_BYTES - at, "%.32s.%s %lld\n", set, name,
                               (long long)value);
    snprintf(text + at, TUNING_BYTES - at, "end\n");
}

/* ---- files */

char *tuning_read(const char *path)
{
    size_t bytes;
    errno = 0;
    FILE *const f = fopen(path, "rb");
    char *const text = f ? files_load(f, TUNING_MAX_FILE, &bytes) : NULL;
    if (!text)
        fprintf(stderr, "bench: cannot read %s: %s\n", path,
                errno ? strerror(errno) : "it is larger than 1 MiB");
    if (f)
        fclose(f);
    return text;
}

/* ---- the library's opinion */

typedef struct sentence {
    char *text;
    size_t bytes;
} sentence;

static void note(void *user, int level, const char *text)
{
    const sentence *const s = user;
    (void)level;
    snprintf(s->text, s->bytes, "%s", text);
}

int tuning_taken(const char *text, char *why, size_t why_bytes)
{
    sentence s = { why, why_bytes };
    float one = 1, o;
    size_t bytes = 0;
    attn_params p = { 0 };
    p.batch = p.num_heads_q = p.seq_len_q = p.seq_len_kv = p.head_dim = 1;
    p.q.data = p.k.data = p.v.data = &one;
    p.o.data = &o;
    p.tuning = text;
    p.log = note;
    p.log_user = &s;
    why[0] = '\0';
    void *const workspace = attn_workspace_size(&p, &bytes) == ATTN_OK ? malloc(bytes) : NULL;
    if (attn_forward(&p, workspace, bytes) != ATTN_OK && !why[0])
        snprintf(why, why_bytes, "no memory to ask the library");
    free(workspace);
    return !why[0];
}
