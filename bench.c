/* bench.c - measures attn: presets or single shapes, table, JSON, CSV.
 * SPDX-License-Identifier: MIT
 *
 *     build/bench --quick                  latency and llm, reduced, under a minute (`make bench`)
 *     build/bench latency llm              the whole presets (gemma, extreme, ...: --help)
 *     build/bench masks                    each mask and modifier against none
 *     build/bench --shape 1,32,8,512,512,128 --mask window --dtype f16 --threads 2
 *     build/bench extreme                  to a million tokens: causal, window, cells, dilated
 *     build/bench dilated                  dilated attention and masks of cells against dense
 *     build/bench --shape 1,8,8,65536,65536,64 --segments 2048,8192 --dilations 1,4
 *     build/bench decode                   K and V of few rows against a plain loop that reads them
 *     build/bench cache                    storage types, pages and rings of a KV cache; appending
 *     build/bench threads                  1, 2, ... threads: speed-up and efficiency
 *     build/bench backward                 gradients; --backward: those of other cases
 *     build/bench rank --quick             every path on a few cases, and which is the fastest
 *     build/bench llm --quick --phases     where the time goes: Q K^T, softmax, P V, merge
 *     build/bench llm --impl all           every path on other cases
 *     build/bench device                   the OpenCL device, its paths
 *     build/bench llm --impl tiled,opencl  against the CPU
 *     build/bench prefill                  each kernel set against its goals (`make performance`)
 *     build/bench kernels                  the single kernels of each set
 *     build/bench tune                     sizes for this machine (`make tune`): build/tuning.txt
 *     build/bench memory                   peak memory over the length, naive and tiled
 *     build/bench info                     what this machine can do
 *
 * --baseline FILE compares with the JSON of an older run; exit status 3 = slower.
 *
 * Parts, in bench/:
 *   measure, suite, clock, stats   the measuring core, which knows nothing of attention
 *   options, dilation, run, phases   the command line; one case by one path; where its time goes
 *   cases/      what is measured: lists, masks, paths, inputs, FLOPs and bytes on paper
 *   machine/    on what: its description, measured peaks, peak memory, threads
 *   report/     what is said and written: table, winners, ranking, verdicts, progress, JSON, CSV
 *   commands/   kernels, tune, memory, --baseline, faults on purpose
 *   selfcheck/  the bench shows that it would notice */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "bench/cases/list.h"
#include "bench/cases/masks.h"
#include "bench/cases/paths.h"
#include "bench/cases/presets.h"
#include "bench/clock.h"
#include "bench/commands/baseline.h"
#include "bench/commands/fresh.h"
#include "bench/commands/info.h"
#include "bench/commands/kernels.h"
#include "bench/commands/memory.h"
#include "bench/commands/plant.h"
#include "bench/commands/tune.h"
#include "bench/commands/tuning.h"
#include "bench/dilation.h"
#include "bench/machine/device.h"
#include "bench/options.h"
#include "bench/phases.h"
#include "bench/report/files.h"
#include "bench/report/output.h"
#include "bench/report/progress.h"
#include "bench/report/ranking.h"
#include "bench/report/report.h"
#include "bench/report/verdicts.h"
#include "bench/run.h"
#include "bench/selfcheck/selfcheck.h"

#define QUICK_SECONDS 40.0 /* of measuring; the rest of the minute is for slow first calls */
#define QUICK_MIN_TIME 0.3
#define QUICK_SHARE 8.0 /* seconds of min_time, all runs together: samples are doubled up to it */
#define QUICK_SEQ_LEN 65536
#define MIN_TIME 1.0

enum { MAX_TILE_DIM = 65536 };
enum { MIN_COMPARED = 2 }; /* threads against one, where the machine has but one CPU */
enum { KERNEL_SAMPLES = 101, QUICK_KERNEL_SAMPLES = 21, QUICK_KERNEL_DIM = 128 };

static int complain(const char *what, const char *about)
{
    fprintf(stderr, "bench: %s \"%s\"\n", what, about);
    return 0;
}

/* ---- what to run */

static int parse_paths(const char *text, path_list *list)
{
    char wrong[64];
    const int comma = text && *text && text[strlen(text) - 1] == ',';
    if (comma)
        return complain("--impl is a list of paths that ends with one, not", text);
    if (path_list_parse(text, list, wrong, sizeof wrong))
        return 1;
    return complain("--impl is all or a list of paths, which `bench info` shows, not", wrong);
}

/* Index of name in a list that ends with NULL; -1 = none. */
static int index_of(const char *name, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

/* An option that would make a case something else than its name says; NULL = none. */
static const char *misleading(const bench_options *o, const case_list *list)
{
    int fixed = 0;
    for (int i = 0; i < list->n; i++)
        fixed |= list->cases[i].fixed;
    if (fixed & FIXED_MASK && (o->mask || o->causal || o->segments))
        return o->mask ? "--mask" : o->causal ? "--causal" : "--segments";
    if (fixed & FIXED_STORAGE && o->dtype)
        return "--dtype";
    if (fixed & FIXED_PASS && (o->backward || o->gemms))
        return o->backward ? "--backward" : "--gemms";
    return fixed & FIXED_LAYOUT && o->layout ? "--layout" : NULL;
}

static int preset_known(const char *name)
{
    const char *preset, *what;
    for (int i = 0; preset_describe(i, &preset, &what); i++)
        if (!strcmp(name, preset))
            return 1;
    return !strcmp(name, "all");
}

/* Whether another word asks for what word i does: its cases would be measured twice. */
static int said_twice(const bench_options *o, int i)
{
    const int all = !strcmp(o->commands[i], "all");
    for (int j = 0; j < o->num_commands; j++) {
        if (j < i && !strcmp(o->commands[j], o->commands[i]))
            return 1;
        if (!all && !strcmp(o->commands[j], "all"))
            return 1;
    }
    return 0;
}

/* Whether the cases compare one thread with one. */
static int alone(const bench_options *o, const case_list *list)
{
    for (int i = 0; i < list->n; i++)
        if (list->cases[i].shares == SHARES_BUT_THREADS && o->threads == 1)
            return 1;
    return 0;
}

/* Whether each case is timed by itself, on one thread. */
static int one_by_one(const bench_options *o, const case_list *list)
{
    int grouped = o->threads > 1;
    for (int i = 0; i < list->n; i++)
        grouped |= list->cases[i].group || list->cases[i].threads > 1;
    return !grouped;
}

static int gemms_possible(const bench_options *o)
{
    if (!o->backward)
        return complain("--gemms is of gradients: it needs", "--backward");
    return !strcmp(o->gemms, "5") || !strcmp(o->gemms, "7") ||
           complain("--gemms is 5 or 7, not", o->gemms);
}

/* What the command line says about every case. */
static int apply_options(const bench_options *o, const preset_choice *want, case_list *list)
{
    static const char *const layouts[] = { "bhsd", "bshd", NULL };
    static const char *const dtypes[] = { "f32", "f16", "bf16", NULL };
    static const char *const kinds[] = { "trig", "normal", NULL };
    const int dtype = o->dtype ? index_of(o->dtype, dtypes) : ATTN_F32;
    const int data = o->data ? index_of(o->data, kinds) : 0;
    if (dtype < 0)
        return complain("--dtype is f32, f16 or bf16, not", o->dtype);
    const int layout = o->layout ? index_of(o->layout, layouts) : LAYOUT_BHSD;
    if (layout < 0)
        return complain("--layout is bhsd or bshd, not", o->layout);
    const int mask = o->mask ? mask_find(o->mask) : MASK_CAUSAL;
    if (mask < 0)
        return complain("--mask is a name that `bench --list` shows, not", o->mask);
    if (o->mask && o->causal)
        return complain("--causal is --mask causal and excludes --mask", o->mask);
    if (misleading(o, list))
        return complain("the cases of this preset are what they are (--shape takes all); they do "
                        "not take",
                        misleading(o, list));
    if (o->plant_slowdown > 0 && !one_by_one(o, list))
        return complain("cases in groups or on threads do not take", "--plant-slowdown");
    if (alone(o, list))
        return complain("threads compares one with --threads from 2, not", "1");
    if (data < 0)
        return complain("--data is trig or normal, not", o->data);
    if (o->gemms && !gemms_possible(o))
        return 0;
    for (int i = 0; i < list->n; i++) {
        bench_case *const c = &list->cases[i];
        if (o->dtype)
            c->dtype = dtype;
        if (o->layout)
            c->layout = (case_layout)layout;
        if (o->causal || o->mask)
            c->mask = mask;
        if (o->data)
            c->data = (data_kind)data;
        if (o->backward)
            c->backward = 1;
        dilation_apply(want, c);
        if (o->gemms)
            c->gemms = o->gemms[0] - '0';
        if (o->quick)
            c->iterations = 0;
        if (o->quick)
            c->warmup = 1;
        if (o->min_time >= 0)
            c->iterations = 0;
        if (o->max_time >= 0)
            c->max_time = o->max_time;
        if (o->warmup >= 0)
            c->warmup = o->warmup;
        if (o->iters >= 0)
            c->iterations = o->iters;
        if (o->quick || o->min_time >= 0 || o->iters >= 0)
            c->device_iterations = 0;
    }
    const char *const unused = dilation_unused(want, list);
    return !unused || complain("no case here has a use for", unused);
}

static int collect_cases(const bench_options *o, const machine_info *machine, case_list *list)
{
    const int cpus = machine->cpus < MIN_COMPARED ? MIN_COMPARED : machine->cpus;
    const int64_t longest = o->quick ? QUICK_SEQ_LEN : PRESETS_MAX_SEQ_LEN;
    preset_choice want = { .quick = o->quick,
                           .kernels = o->kernels,
                           .threads = o->threads > 0 ? o->threads : cpus,
                           .ranks = o->ranks,
                           .max_seq_len = o->max_seq_len > 0 ? o->max_seq_len : longest };
    static case_list shape;
    const char *about;
    const char *const wrong = dilation_choose(o, &want, &about);
    int ok = 1, shaped = 0;
    if (wrong)
        return complain(wrong, about);
    if (o->shape && !shape_case(o->shape, &shape))
        return complain("--shape is B,Hq,Hkv,Sq,Skv,D[,Dv], whole numbers from 1 to 268435456 "
                        "(2^28), not",
                        o->shape);
    want.shape = o->shape ? shape.cases : NULL;
    list->n = list->lost = 0;
    for (int i = 0; ok && i < o->num_commands; i++) {
        ok = preset_known(o->commands[i]);
        if (!ok)
            return complain("no such preset or command:", o->commands[i]);
        shaped |= !strcmp(o->commands[i], "dilated");
        if (!said_twice(o, i))
            preset_cases(o->commands[i], &want, list);
    }
    if (ok && o->num_commands == 0 && !o->shape) {
        preset_cases("latency", &want, list);
        preset_cases("llm", &want, list);
    }
    if (ok && o->shape && !shaped)
        shape_case(o->shape, list);
    if (ok && list->lost)
        ok = complain("more cases than one run can hold: leave out", "a preset");
    return ok && apply_options(o, &want, list);
}

/* ---- commands */

/* With --shape only its head_dim counts; --quick is one width and few samples. */
static int command_kernels(const bench_options *o, bench_context *x)
{
    static case_list list;
    int64_t head_dim = o->quick ? QUICK_KERNEL_DIM : 0;
    if (o->shape && (!shape_case(o->shape, &list) || list.cases[0].head_dim > MAX_TILE_DIM))
        return complain("--shape is B,Hq,Hkv,Sq,Skv,D for kernels with D up to 65536, not",
                        o->shape),
               2;
    if (o->iters == 0)
        return complain("kernels needs --iters from 1, not", "0"), 2;
    if (o->shape)
        head_dim = list.cases[0].head_dim;
    x->kernel_samples = o->iters > 0 ? o->iters : o->quick ? QUICK_KERNEL_SAMPLES : KERNEL_SAMPLES;
    return kernels_command(x, head_dim, o->csv);
}

/* To build/, where everything else goes that can be made again. */
static int command_tune(const bench_options *o, bench_context *x)
{
    const char *const folder = o->output_dir ? o->output_dir : "build";
    char path[FILES_MAX_PATH];
    if (!files_inside(folder, "tuning.txt", path) || !output_possible(path))
        return 2;
    return tune_command(x, o->quick, path);
}

static int command_memory(const bench_options *o, bench_context *x)
{
    static bench_result results[MEMORY_MAX_POINTS];
    int n;
    if (!fresh_available())
        return complain("this needs fork, which this system does not have:", "memory"), 2;
    if (!files_possible(o))
        return 2;
    probe_machine(&x->probe);
    report_machine(&x->machine, &x->probe);
    say("\n");
    const int status = memory_command(x, o->quick, results, &n);
    return files_write(o, x, results, n) ? status : 1;
}

/* ---- measuring */

/* How many cases from the first on are timed in turn. */
static int group_length(const bench_case *first, int n)
{
    int length = 1;
    while (length < n && length < RUN_MAX_GROUP && first->group &&
           first[length].group == first->group && !strcmp(first[length].scenario, first->scenario))
        length++;
    return length;
}

static int count_runs(const case_list *list, const path_list *paths)
{
    int n = 0;
    for (int i = 0; i < list->n; i++)
        for (int j = 0; j < paths->n; j++)
            n += path_wanted(paths, list->cases[i].impl, paths->paths[j]) != 0;
    return n;
}

/* results[n] against the first path that was timed of its case; its speed-up on its own tensors
 * where it has one. */
static void compare_first(bench_result *results, int n)
{
    int first = 0;
    bench_result *const r = &results[n];
    if (r->skipped[0])
        return;
    while (results[first].skipped[0] || !report_same_case(&results[first], r))
        first++;
    if (r->shares == SHARES_BUT_THREADS)
        r->efficiency = r->speedup / (double)r->threads;
    if (first < n)
        r->vs_first = results[first].ms_p50 / r->ms_p50;
    if (r->speedup > 0)
        r->vs_first = r->speedup;
}

/* x->runs_left runs; 1 = nothing was wrong, and something was timed or only a device is missing. */
static int run_all(const bench_options *o, bench_context *x, const case_list *list,
                   const path_list *paths, bench_result *results)
{
    int n = 0, wrong = 0, timed = 0, no_device = 0, length;
    report_table_head(list, paths, o->wide);
    for (int i = 0; i < list->n; i += length) {
        length = group_length(&list->cases[i], list->n - i);
        for (int j = 0; j < paths->n; j++) {
            if (!path_wanted(paths, list->cases[i].impl, paths->paths[j]))
                continue;
            progress_show(list->cases[i].preset, list->cases[i].name, paths->paths[j]->name);
            run_group(x, &list->cases[i], length, paths->paths[j]->name, &results[n]);
            progress_step(length);
            for (const int end = n + length; n < end; n++) {
                compare_first(results, n);
                report_row(&results[n]);
                wrong += run_was_wrong(&results[n]);
                timed += !results[n].skipped[0];
                no_device += results[n].absent && paths->paths[j]->device;
            }
        }
    }
    report_legend(results, n);
    phases_report(results, n);
    const int ranked = ranking_report(results, n), judged = verdicts_report(results, n);
    report_summary(results, n, ranked || judged);
    return (timed > 0 || no_device > 0) && wrong == 0;
}

/* 0 = they cannot be had. */
static int start_workers(bench_context *x, int n)
{
    if (n == 1)
        return 1;
    x->workers = pool_create(n);
    return x->workers || x->threads == 1 ? 1 : complain("threads cannot be had here:", "--threads");
}

/* As many as any case or path wants. */
static int make_pool(bench_context *x, const case_list *list, const path_list *paths)
{
    int most = x->threads;
    for (int i = 0; i < list->n; i++) {
        const bench_case *const c = &list->cases[i];
        if (c->threads > most)
            most = c->threads;
        if (path_list_has_threads(paths, c->impl) && x->many > most)
            most = x->many;
    }
    return start_workers(x, most);
}

/* What the command line says of every case, which their names do not tell. */
static void say_options(const bench_options *o)
{
    const char *const said[][2] = { { "mask", o->mask     ? o->mask
                                              : o->causal ? "causal"
                                                          : NULL },
                                    { "dtype", o->dtype },
                                    { "layout", o->layout },
                                    { "pass", o->backward ? "backward" : NULL },
                                    { "gemms", o->gemms },
                                    { "data", o->data },
                                    { "tuning", o->tuning } };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (said[i][1])
            say("%-9s %s\n", said[i][0], said[i][1]);
}

static int measure_cases(const bench_options *o, bench_context *x, const case_list *list,
                         const path_list *paths, const baseline *b)
{
    const int runs = count_runs(list, paths);
    if (!make_pool(x, list, paths))
        return 2;
    bench_result *const results = calloc((size_t)runs + 1, sizeof *results);
    if (!results)
        return 1;
    probe_machine(&x->probe);
    report_machine(&x->machine, &x->probe);
    report_device(list, paths);
    say("attn      %s, kernels %s, %d thread%s\n", attn_version(),
        x->kernels ? x->kernels : attn_kernels_name(attn_kernels_get(0)), x->threads,
        x->threads > 1 ? "s" : "");
    say_options(o);
    say("\n");
    if (o->quick)
        x->deadline = clock_seconds() + QUICK_SECONDS;
    if (o->quick && o->min_time < 0)
        x->min_time = fmin(x->min_time, QUICK_SHARE / runs);
    x->runs_left = runs;
    progress_begin(runs, x->deadline);
    const int good = run_all(o, x, list, paths, results);
    const int slower = good && b ? baseline_compare(b, x, results, runs) : 0;
    const int written = files_write(o, x, results, runs);
    free(results);
    return good && written ? slower : 1;
}

/* The older run is read, and where results go is tried, before anything is measured. */
static int measure_against(const bench_options *o, bench_context *x, const case_list *list,
                           const path_list *paths)
{
    if (!files_possible(o))
        return 2;
    baseline *const b = o->baseline ? baseline_open(o->baseline, &x->machine) : NULL;
    const int status = o->baseline && !b ? 2 : measure_cases(o, x, list, paths, b);
    baseline_close(b);
    return status;
}

/* A text that the library ignores would be measured as if there were none. */
static int read_tuning(const bench_options *o, bench_context *x)
{
    char why[300];
    x->tuning = tuning_read(o->tuning);
    x->tuning_file = o->tuning;
    if (!x->tuning || tuning_taken(x->tuning, why, sizeof why))
        return x->tuning != NULL;
    fprintf(stderr, "bench: --tuning \"%s\": %s\n", o->tuning, why);
    return 0;
}

static int make_context(const bench_options *o, bench_context *x)
{
    memset(x, 0, sizeof *x);
    machine_describe(&x->machine);
    x->threads = o->threads > 0 ? o->threads : 1;
    x->many = o->threads > 0 ? o->threads : x->machine.cpus;
    x->kernels = o->kernels;
    x->phases = o->phases;
    x->seed = (uint64_t)o->seed;
    x->tuning_file = "";
    x->min_time = o->min_time >= 0 ? o->min_time : o->quick ? QUICK_MIN_TIME : MIN_TIME;
    if (o->kernels && !attn_kernels_find(o->kernels))
        return complain("this CPU or build has no kernel set", o->kernels);
    x->plant_slowdown = o->plant_slowdown;
    x->plant_wrong = o->plant_wrong;
    if (o->plant_wrong && !plant_wrong(attn_kernels_get(0), o->plant_wrong))
        return complain("--plant-wrong is qk, pv, outer or gradient, not", o->plant_wrong);
    return !o->tuning || read_tuning(o, x);
}

static int command_selfcheck(const bench_options *o, bench_context *x)
{
    (void)o;
    return !start_workers(x, x->threads) || selfcheck(x, o->device != NULL) ? 1 : 0;
}

typedef int command_fn(const bench_options *o, bench_context *x); /* returns the exit status */

/* What the first word asks for; NULL = it is a preset, or there is none. */
static command_fn *command_of(const bench_options *o)
{
    static const struct {
        const char *name;
        command_fn *run;
    } commands[] = { { "info", info_command },
                     { "kernels", command_kernels },
                     { "tune", command_tune },
                     { "memory", command_memory },
                     { "selfcheck", command_selfcheck } };
    for (size_t i = 0; o->num_commands && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(o->commands[0], commands[i].name))
            return commands[i].run;
    return NULL;
}

/* A word that is no preset stands alone; says so. */
static int mixes_commands(const bench_options *o)
{
    for (int i = 0; i < o->num_commands && o->num_commands > 1; i++)
        if (options_command(o->commands[i]))
            return !complain("this stands alone, without presets or other commands:",
                             o->commands[i]);
    return 0;
}

static int dispatch(const bench_options *o, bench_context *x)
{
    static case_list list; /* 200 KiB: off the stack */
    path_list paths;
    if (mixes_commands(o))
        return 2;
    command_fn *const command = command_of(o);
    if (command && !options_taken(o))
        return 2;
    if (!make_context(o, x) || !parse_paths(o->impl, &paths))
        return 2;
    device_choose(o->device, o->device || paths.device);
    if (command)
        return command(o, x);
    if (!collect_cases(o, &x->machine, &list) || !options_taken(o))
        return 2;
    if (o->list) {
        list_presets();
        list_masks();
        list_cases(&list, x->threads);
        return 0;
    }
    return list.n ? measure_against(o, x, &list, &paths) : 0;
}

static int run(const bench_options *o)
{
    static const bench_context none;
    bench_context context = none;
    if (o->help || o->argc == 1) {
        options_print_help();
        printf("\n");
        list_presets();
        return 0;
    }
    report_use_colour();
    const int status = dispatch(o, &context);
    pool_destroy(context.workers);
    device_close();
    free(context.tuning);
    report_free();
    return status;
}

/* A full disk shows only here: nothing else looks at what printing returns. */
static int all_printed(void)
{
    if (!fflush(stdout) && !ferror(stdout))
        return 1;
    fprintf(stderr, "bench: cannot write all of the standard output\n");
    return 0;
}

int main(int argc, char **argv)
{
    bench_options options;
    if (!options_parse(&options, argc, argv))
        return 2;
    const int status = run(&options);
    return all_printed() || status ? status : 1;
}
