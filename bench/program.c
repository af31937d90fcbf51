/* program.c - what a command line does: a command, or the measurement of cases.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../attn.h"
#include "cases/cases.h"
#include "clock.h"
#include "commands/commands.h"
#include "bench.h"
#include "machine/machine.h"
#include "machine/team.h"
#include "run.h"
#include "report/report.h"

#define QUICK_SECONDS 40.0 /* of measuring; the rest of the minute is for slow first calls */
#define QUICK_MIN_TIME 0.3
#define QUICK_SHARE 8.0 /* seconds of min_time, all runs together: samples are doubled up to it */
#define MIN_TIME 1.0

enum { MAX_TILE_DIM = 65536 };
enum { KERNEL_SAMPLES = 101, QUICK_KERNEL_SAMPLES = 21, QUICK_KERNEL_DIM = 128 };

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
    stop_on_signals();
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

static double group_expected(const bench_context *x, const bench_case *cases, int n,
                             const char *path)
{
    double seconds = 0;
    for (int i = 0; i < n; i++)
        seconds += run_expected(x, &cases[i], path);
    return seconds;
}

/* How many runs, and how long they take on the machine that was measured. */
typedef struct work {
    int runs;
    double seconds;
} work;

/* Of cases i to end. */
static work work_of(const bench_context *x, const case_list *list, const path_list *paths, int i,
                    int end)
{
    work w = { 0, 0 };
    for (; i < end; i++)
        for (int j = 0; j < paths->n; j++) {
            if (!path_wanted(paths, list->cases[i].impl, paths->paths[j]))
                continue;
            w.runs++;
            w.seconds += run_expected(x, &list->cases[i], paths->paths[j]->name);
        }
    return w;
}

#define LONG_RUN 60.0

/* How long each preset takes that takes long, before it begins; what all of them do. */
static work say_long(const bench_context *x, const case_list *list, const path_list *paths)
{
    char text[PROGRESS_TIME];
    work all = { 0, 0 };
    int last = 0, told = 0;
    for (int i = 0; i < list->n; i = last) {
        while (last < list->n && !strcmp(list->cases[last].preset, list->cases[i].preset))
            last++;
        const work w = work_of(x, list, paths, i, last);
        all.runs += w.runs;
        all.seconds += w.seconds;
        if (w.seconds <= LONG_RUN || x->deadline > 0)
            continue;
        say("%-9s about %s for %s\n", told++ ? "" : "time", progress_time(w.seconds, text),
            list->cases[i].preset);
    }
    if (told)
        say("          by FLOPs at half of the FMA peak; --max-time S leaves out calls that take "
            "longer "
            "and\n          ends samples then, --quick takes a minute; Ctrl-C keeps what was "
            "timed\n");
    return all;
}

/* Processes against the row of one, which stands first of the case. */
static void compare_alone(const bench_result *results, bench_result *r)
{
    const bench_result *one = r;
    while (one > results && one->processes > 1)
        one--;
    if (one->skipped[0] || one->processes != 1)
        return;
    r->speedup = one->ms_p50 / r->ms_p50;
    r->efficiency = r->speedup / (double)r->processes;
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
    if (r->processes > 1)
        compare_alone(results, r);
    else if (r->shares == SHARES_BUT_THREADS)
        r->efficiency = r->speedup / (double)r->threads;
    if (first < n)
        r->vs_first = results[first].ms_p50 / r->ms_p50;
    if (r->speedup > 0)
        r->vs_first = r->speedup;
}

/* Cases that are timed in turn, by one path, to results[0] and on. */
static void measure_group(bench_context *x, const bench_case *cases, int n, const char *path,
                          bench_result *results)
{
    int ran = 0;
    progress_show(cases->preset, cases->name, path);
    run_group(x, cases, n, path, results);
    for (int i = 0; i < n; i++)
        ran |= results[i].cold_ms > 0;
    progress_step(n, group_expected(x, cases, n, path), ran);
}

/* Returns how many results there are: fewer than x->runs_left after Ctrl-C. */
static int run_all(const bench_options *o, bench_context *x, const case_list *list,
                   const path_list *paths, bench_result *results)
{
    int n = 0, length;
    report_table_head(list, paths, o->wide);
    for (int i = 0; i < list->n; i += length) {
        length = group_length(&list->cases[i], list->n - i);
        for (int j = 0; j < paths->n; j++) {
            if (!path_wanted(paths, list->cases[i].impl, paths->paths[j]))
                continue;
            if (!team_all(!stop_wanted()))
                break;
            measure_group(x, &list->cases[i], length, paths->paths[j]->name, &results[n]);
            for (const int end = n + length; n < end; n++) {
                compare_first(results, n);
                report_row(&results[n]);
            }
        }
    }
    report_summary(results, n);
    return n;
}

/* A device that is missing is no failure. */
static int was_timed(const bench_result *r)
{
    return !r->skipped[0] || (r->absent && r->place);
}

static int count(const bench_result *results, int n, int (*is)(const bench_result *r))
{
    int found = 0;
    for (int i = 0; i < n; i++)
        found += is(&results[i]) != 0;
    return found;
}

/* Compares and writes the results; the exit status. */
static int finish(const bench_options *o, bench_context *x, const char *b, int runs,
                  const bench_result *results, int n)
{
    const int wrong = count(results, n, run_was_wrong), timed = count(results, n, was_timed);
    const int good = timed && !wrong, stopped = stop_wanted();
    if (stopped)
        say("%s: %d of %d runs are above\n", stop_cause(), n, runs);
    const int slower = good && !stopped && b ? baseline_compare(b, x, results, n) : 0;
    if ((team_rank() == 0 && !files_write(o, x, results, n)) || wrong)
        return 1;
    return stopped ? stop_status() : good ? slower : 1;
}

/* 0 = they cannot be had. */
int bench_workers(bench_context *x, int n)
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
    return bench_workers(x, most);
}

/* What the command line says of every case, which their names do not tell. */
static void say_options(const bench_options *o)
{
    const char *const said[][2] = {
        { "mask", o->mask     ? o->mask
                  : o->causal ? "causal"
                              : NULL },
        { "dtype", o->dtype ? case_dtype_name(o->dtype - 1) : NULL },
        { "K, V", o->types },
        { "scores", o->integer ? "in whole numbers" : NULL },
        { "products", o->fast ? "of rounded numbers (fast)" : NULL },
        { "layout", o->layout ? case_layout_name((case_layout)(o->layout - 1)) : NULL },
        { "pass", o->backward ? "backward" : NULL },
        { "gemms", o->gemms == 1 ? "5"
                   : o->gemms    ? "7"
                                 : NULL },
        { "data", o->data ? case_data_name((data_kind)(o->data - 1)) : NULL },
        { "tuning", o->tuning }
    };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (said[i][1])
            say("%-9s %s\n", said[i][0], said[i][1]);
}

/* The library's sentence about a shape of the user that it refuses by every path, before the machine
 * is measured. */
static int refused_shape(bench_context *x, const case_list *list, const path_list *paths)
{
    char why[400];
    int asked = 0, refused = 0;
    for (int j = 0; j < paths->n; j++) {
        const bench_case *const c = &list->cases[list->n - 1];
        if (strcmp(c->preset, "shape") || !path_wanted(paths, c->impl, paths->paths[j]))
            continue;
        asked++;
        refused += run_refused(x, c, paths->paths[j]->name, why, sizeof why);
    }
    if (asked == 0 || refused < asked)
        return 0;
    fprintf(stderr, "bench: the shape %s: %s\n", list->cases[list->n - 1].name, why);
    return 1;
}

static void introduce(const bench_options *o, bench_context *x, const case_list *list,
                      const path_list *paths)
{
    if (team_rank() == 0)
        probe_machine(&x->probe);
    team_rest();
    report_machine(&x->machine, &x->probe);
    report_device(list, paths);
    say("attn      %s, kernels %s, %d thread%s\n", attn_version(),
        x->kernels ? x->kernels : attn_kernels_name(attn_kernels_get(0)), x->threads,
        x->threads > 1 ? "s" : "");
    if (o->mpi)
        say("ranks     %d process%s on %d host%s, with these threads each\n", team_size(),
            team_size() > 1 ? "es" : "", team_hosts(), team_hosts() > 1 ? "s" : "");
    say_options(o);
}

static int measure_cases(const bench_options *o, bench_context *x, const case_list *list,
                         const path_list *paths, const char *b)
{
    if (!make_pool(x, list, paths) || refused_shape(x, list, paths))
        return 2;
    bench_result *const results = calloc((size_t)(list->n * paths->n), sizeof *results);
    if (!results)
        return 1;
    stop_on_signals();
    introduce(o, x, list, paths);
    if (o->quick)
        x->deadline = clock_seconds() + QUICK_SECONDS;
    const work all = say_long(x, list, paths);
    say("\n");
    if (o->quick && o->min_time < 0)
        x->min_time = fmin(x->min_time, QUICK_SHARE / all.runs);
    x->runs_left = all.runs;
    progress_begin(all.runs, all.seconds, x->deadline);
    const int n = run_all(o, x, list, paths, results);
    const int status = finish(o, x, b, all.runs, results, n);
    free(results);
    return status;
}

/* The older run is read, and where results go is tried, before anything is measured. */
static int measure_against(const bench_options *o, bench_context *x, const case_list *list,
                           const path_list *paths)
{
    if (!team_all(team_rank() > 0 || files_possible(o)))
        return 2;
    char *const b = o->baseline ? baseline_open(o->baseline, &x->machine) : NULL;
    const int status = o->baseline && !b ? 2 : measure_cases(o, x, list, paths, b);
    free(b);
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

int bench_context_make(const bench_options *o, bench_context *x)
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
    return !o->tuning || read_tuning(o, x);
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
                     { "memory", command_memory } };
    for (size_t i = 0; o->num_commands && i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(o->commands[0], commands[i].name))
            return commands[i].run;
    return NULL;
}

/* A word that is no preset stands alone; says so. */
static int mixes_commands(const bench_options *o)
{
    for (int i = 0; i < o->num_commands && o->num_commands > 1; i++)
        if (options_is_command(o->commands[i]))
            return !complain("this stands alone, without presets or other commands:",
                             o->commands[i]);
    return 0;
}

/* Whether a case runs by a path of a device. */
static int asks_device(const case_list *list, const path_list *paths)
{
    for (int i = 0; i < list->n; i++)
        for (int j = 0; j < paths->n; j++)
            if (paths->paths[j]->device && path_wanted(paths, list->cases[i].impl, paths->paths[j]))
                return 1;
    return 0;
}

static int dispatch(const bench_options *o, run_watch *watch, bench_context *x)
{
    static case_list list; /* 200 KiB: off the stack */
    path_list paths;
    if (mixes_commands(o))
        return 2;
    command_fn *const command = command_of(o);
    if (command && !options_taken(o))
        return 2;
    if (!bench_context_make(o, x) || !choose_paths(o->impl, &paths))
        return 2;
    x->watch = watch;
    device_choose(o->device, o->device || paths.device);
    if (command)
        return command(o, x);
    if (!choose_cases(o, &x->machine, &list) || !options_taken(o))
        return 2;
    if (o->device && !asks_device(&list, &paths))
        return complain("no case here has a use for", "--device"), 2;
    if (o->mpi && !choose_shared(o, team_size(), &paths, &list))
        return 2;
    if (o->list) {
        list_presets();
        list_masks();
        list_cases(&list, x->threads);
        return 0;
    }
    return list.n ? measure_against(o, x, &list, &paths) : 0;
}

void bench_context_free(bench_context *x)
{
    pool_destroy(x->workers);
    device_close();
    free(x->tuning);
    report_free();
}

static int run(const bench_options *o, run_watch *watch)
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
    const int status = dispatch(o, watch, &context);
    bench_context_free(&context);
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

static int parse_and_run(int argc, char **argv, run_watch *watch)
{
    bench_options options;
    if (!options_parse(&options, argc, argv))
        return 2;
    const int status = run(&options, watch);
    return all_printed() || status ? status : 1;
}

/* Before anything is printed, which only one process of a team does. */
int bench_main(int argc, char **argv, run_watch *watch)
{
    int mpi = 0;
    for (int i = 1; i < argc; i++)
        mpi |= !strcmp(argv[i], "--mpi");
    if (!mpi)
        return parse_and_run(argc, argv, watch);
    return team_begin(argv) ? team_end(parse_and_run(argc, argv, watch)) : 2;
}
