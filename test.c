/* test.c - runs the test groups: table, options, seed, cases, counting.
 * SPDX-License-Identifier: MIT
 *
 *     build/test [--kernels SET] [--impl IMPL] [--storage TYPE] [--redo] [--seed S]
 *                [--case N|NAME] [--share I/N] [--list] [--verbose] [--first] [--cases DIR...] [group...]
 *                [-- group's own arguments]
 *
 * IMPL is tiled, naive, or opencl (a device, with the bits of the CPU), opencl_free (in its own order)
 * or opencl_naive; calls that the device refuses run on the CPU and are counted at the end.
 * TYPE is f16 or bf16: tensors that a case would have as f32 are stored so. With --cases it may also be
 * e4m3, e5m2, q8_0, q5_0, q4_0 or i8: each case runs again with K and V in that type.
 * Groups run once for each kernel set that this CPU has; those that do not depend on it run once,
 * and those that take minutes on some devices only where they are named: TEST_GROUP says which.
 * With --share I/N only each Nth of these runs, from the Ith on: N processes do all of it.
 * With ATTN_TEST_SAMPLE=I/N in the environment only one in N of the cases runs, of those with the Ith
 * choice: N runs do all of them. What runs beside `make test` for each change takes turns so.
 * A failure prints the command that repeats it alone. The last line is "N passed, N failed, N
 * skipped"; the exit status is 0 only when nothing failed. With --first the first failure ends all.
 * What a group may use is in tests/test.h.
 */
#include "tests/test.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* build/groups.inc has a line TEST_GROUP(...) for each that begins so in tests/. */
#undef TEST_GROUP
#define TEST_GROUP(name, runs, what) void test_##name(void);
#include "groups.inc"
#undef TEST_GROUP
#define TEST_GROUP(name, runs, what) { #name, test_##name, runs, what },
static const test_group groups[] = {
#include "groups.inc"
};
enum { GROUP_COUNT = sizeof groups / sizeof *groups, MAX_NAMES = 64, MAX_SHOWN = 20 };

test_options T = { .seed = 1, .only_case = -1, .exact = 1 };

static struct {
    int64_t passed, failed, skipped;
    int share, shares, turn; /* --share; runs of groups so far, this process's or not */
    int sample, samples;     /* ATTN_TEST_SAMPLE */
    int fewer;               /* RUN_FEWER, and T.best is not set */
    int64_t case_number;     /* of the case open in this group; -1 = none yet */
    const char *group;
    char case_name[400];
    int64_t shown; /* failures of the group running, printed in full up to MAX_SHOWN */
    double worst;  /* of the group running */
    int capturing;
    int64_t captured;       /* failures since capture_begin */
    char last_failed[1000]; /* command of the last failure shown, not to repeat it */
} run = { .case_number = -1 };

/* ---- cases and checks ---------------------------------------------------------------------- */

static uint64_t splitmix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Neighbours differ in one parameter often, so which cases make a sample is random. */
static int is_chosen(uint64_t seed)
{
    if (T.case_name != NULL)
        return strcmp(run.case_name, T.case_name) == 0;
    if (T.only_case >= 0)
        return run.case_number == T.only_case;
    if (run.fewer && splitmix(~seed) % 4 != 0)
        return 0;
    return run.samples == 0 || (int)(splitmix(seed) % (uint64_t)run.samples) == run.sample - 1;
}

int begin_case(const char *format, ...)
{
    va_list arguments;
    uint64_t seed;
    test_release();
    run.case_number++;
    va_start(arguments, format);
    vsnprintf(run.case_name, sizeof run.case_name, format, arguments);
    va_end(arguments);
    seed = splitmix(T.seed ^ splitmix(hash_text(run.group) + (uint64_t)run.case_number));
    rng_seed(seed);
    if (!is_chosen(seed))
        return 0;
    if (T.verbose && !run.capturing)
        printf("  case %lld: %s\n", (long long)run.case_number, run.case_name);
    return 1;
}

void pass_over_case(void)
{
    run.case_number++;
}

int all_cases_run(void)
{
    return T.only_case < 0 && run.samples == 0 && !run.fewer;
}

/* The command line that repeats the open case alone. */
static void repeat_command(char *text, size_t size)
{
    const char *set = T.kernels != NULL ? T.kernels : T.only;
    snprintf(text, size, "build/test%s%s%s%s%s%s%s --seed %llu --case %lld %s",
             set != NULL ? " --kernels " : "", set != NULL ? set : "",
             T.device != NULL || T.impl != ATTN_IMPL_DEFAULT ? " --impl " : "",
             T.device != NULL              ? T.device
             : T.impl != ATTN_IMPL_DEFAULT ? attn_impl_name(T.impl)
                                           : "",
             T.storage != ATTN_F32 ? " --storage " : "",
             T.storage != ATTN_F32 ? dtype_name(T.storage) : "", T.force_redo ? " --redo" : "",
             (unsigned long long)T.seed, (long long)run.case_number, run.group);
}

static void show_place(void)
{
    char command[1000];
    if (run.group == NULL)
        return;
    repeat_command(command, sizeof command);
    if (strcmp(command, run.last_failed) == 0)
        return;
    printf("  in %s%s%s, case %lld: %s\n  again: %s\n", run.group, T.kernels != NULL ? ", " : "",
           T.kernels != NULL ? T.kernels : "", (long long)run.case_number, run.case_name, command);
    memcpy(run.last_failed, command, sizeof command);
}

int test_check(int held, const char *file, int line, const char *condition, const char *format, ...)
{
    va_list arguments;
    if (run.capturing) {
        run.captured += !held;
        return held;
    }
    if (held) {
        run.passed++;
        return 1;
    }
    run.failed++;
    run.shown++;
    if (run.shown == MAX_SHOWN + 1 && !T.verbose)
        printf("FAILED: more than %d checks; the rest is only counted (--verbose shows all)\n",
               MAX_SHOWN);
    if (run.shown > MAX_SHOWN && !T.verbose)
        return 0;
    printf("FAILED %s:%d: %s: ", file, line, condition);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    show_place();
    fflush(stdout);
    if (T.first)
        _Exit(1); /* whatever other threads are doing */
    return 0;
}

void test_skip(const char *format, ...)
{
    va_list arguments;
    if (run.capturing)
        return;
    run.skipped++;
    if (!T.verbose)
        return;
    printf("  skipped: ");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

void capture_begin(void)
{
    run.capturing = 1;
    run.captured = 0;
}

int64_t capture_end(void)
{
    run.capturing = 0;
    return run.captured;
}

int64_t test_failures(void)
{
    return run.failed;
}

void worst_note(double units)
{
    if (!run.capturing && !(units <= run.worst))
        run.worst = units;
}

double worst_seen(void)
{
    return run.worst;
}

/* A read or write beyond a guard page, or any other crash: say where before dying of it. */
static void crashed(int number)
{
    signal(number, SIG_DFL);
    printf("FAILED: signal %d\n", number);
    run.last_failed[0] = '\0';
    show_place();
    fflush(stdout);
    raise(number);
}

static void catch_crashes(void)
{
    signal(SIGSEGV, crashed);
    signal(SIGFPE, crashed);
    signal(SIGILL, crashed);
    signal(SIGABRT, crashed);
#ifdef SIGBUS
    signal(SIGBUS, crashed);
#endif
}

/* ---- the run --------------------------------------------------------------------------------- */

static void run_group(const test_group *group)
{
    const int64_t passed = run.passed, failed = run.failed, skipped = run.skipped;
    const clock_t begin = clock();
    if (run.shares > 0 && run.turn++ % run.shares != run.share - 1)
        return;
    run.group = group->name;
    run.case_number = -1;
    run.case_name[0] = '\0';
    run.worst = 0;
    run.shown = 0;
    run.fewer = group->runs == RUN_FEWER && !T.best;
    printf("%s%s%s\n", group->name, T.kernels != NULL ? ", " : "",
           T.kernels != NULL ? T.kernels : "");
    fflush(stdout);
    group->run();
    test_release();
    printf("  %lld passed, %lld failed, %lld skipped", (long long)(run.passed - passed),
           (long long)(run.failed - failed), (long long)(run.skipped - skipped));
    if (!(run.worst <= 0))
        printf("; worst error %.3f of its tolerance", run.worst);
    printf("; %.1f s\n", (double)(clock() - begin) / CLOCKS_PER_SEC);
    run.group = NULL;
}

static int is_wanted(const test_group *group, char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(group->name, names[i]) == 0)
            return 1;
    return count == 0 && group->runs != RUN_IF_NAMED;
}

static int runs_for_set(const test_group *group)
{
    if (group->runs == RUN_EACH_SET || group->runs == RUN_FEWER)
        return !T.fast;
    return group->runs == RUN_ROUNDED_TOO;
}

static void run_set(char *const *names, int count)
{
    if (T.only != NULL && strcmp(T.only, T.kernels) != 0)
        return;
    for (int g = 0; g < GROUP_COUNT; g++)
        if (runs_for_set(&groups[g]) && is_wanted(&groups[g], names, count))
            run_group(&groups[g]);
}

static void run_rounded(char *const *names, int count)
{
    if (test_rounding_set() == NULL || T.backend != NULL) {
        printf("p.fast: no kernel set of this CPU rounds, nothing to run with it\n");
        return;
    }
    T.fast = 1;
    T.best = 0;
    for (int i = 0; i < ROUNDING_SETS; i++) {
        T.kernels = rounding_sets[i];
        if (attn_kernels_find(T.kernels) != NULL)
            run_set(names, count);
    }
    T.fast = 0;
}

/* Groups that do not depend on the kernel set, then the others for each set. */
static void run_groups(char *const *names, int count)
{
    const attn_kernels *set;
    T.kernels = NULL;
    T.best = 1;
    for (int g = 0; g < GROUP_COUNT; g++)
        if ((groups[g].runs == RUN_ONCE || groups[g].runs == RUN_IF_NAMED) &&
            is_wanted(&groups[g], names, count))
            run_group(&groups[g]);
    for (int i = 0; (set = attn_kernels_get(i)) != NULL && (i == 0 || T.backend == NULL); i++) {
        T.kernels = attn_kernels_name(set);
        T.best = i == 0 || T.only != NULL;
        run_set(names, count);
    }
    run_rounded(names, count);
}

static void print_first_line(void)
{
    const attn_kernels *set;
    printf("attn %s test: kernel sets", attn_version());
    for (int i = 0; (set = attn_kernels_get(i)) != NULL; i++)
        printf(" %s", attn_kernels_name(set));
    printf("; seed %llu\n", (unsigned long long)T.seed);
}

static void print_list(void)
{
    for (int g = 0; g < GROUP_COUNT; g++)
        printf("%-16s %s\n", groups[g].name, groups[g].what);
}

/* ---- options --------------------------------------------------------------------------------- */

typedef struct command_line {
    char *names[MAX_NAMES];   /* of groups */
    char *folders[MAX_NAMES]; /* of conformance cases */
    int name_count, folder_count, list, help;
} command_line;

static const char usage[] =
    "usage: test [--kernels SET] [--impl IMPL] [--storage TYPE] [--redo] [--seed S]\n"
    "            [--case N|NAME] [--share I/N] [--list] [--verbose] [--first] [--cases DIR...] "
    "[group...]\n"
    "            [-- group's own arguments]\n\n"
    "--list names the groups; the first lines of test.c explain the options\n";

static int refuse(const char *what, const char *value)
{
    fprintf(stderr, "test: %s '%s'; `test --help` lists the options\n", what, value);
    return 2;
}

/* A case by its number, or all cases of a name. */
static void choose_case(char *value)
{
    char *end;
    T.only_case = strtoll(value, &end, 0);
    if (*end != '\0') {
        T.case_name = value;
        T.only_case = INT64_MAX;
    }
}

/* ATTN_F32: no other type has this name. */
static int storage_named(const char *name)
{
    for (int dtype = ATTN_F16; dtype <= ATTN_I8; dtype++)
        if (strcmp(dtype_name(dtype), name) == 0)
            return dtype;
    return ATTN_F32;
}

static int set_value(const char *option, char *value)
{
    if (strcmp(option, "--seed") == 0)
        T.seed = strtoull(value, NULL, 0);
    else if (strcmp(option, "--case") == 0)
        choose_case(value);
    else if (strcmp(option, "--kernels") == 0)
        T.only = value;
    else if (strcmp(option, "--impl") == 0 && strcmp(value, "tiled") == 0)
        T.impl = ATTN_IMPL_TILED;
    else if (strcmp(option, "--impl") == 0 && strcmp(value, "naive") == 0)
        T.impl = ATTN_IMPL_NAIVE;
    else if (strcmp(option, "--impl") == 0 && strncmp(value, "opencl", 6) == 0)
        T.device = value;
    else if (strcmp(option, "--storage") == 0 && storage_named(value) != ATTN_F32)
        T.storage = storage_named(value);
    else if (strcmp(option, "--share") != 0 ||
             sscanf(value, "%d/%d", &run.share, &run.shares) != 2 || run.share < 1 ||
             run.share > run.shares)
        return refuse(option, value);
    if (T.only != NULL && attn_kernels_find(T.only) == NULL)
        return refuse("no such kernel set on this CPU:", T.only);
    return 0;
}

static int set_flag(const char *option, command_line *line)
{
    if (strcmp(option, "--redo") == 0)
        T.force_redo = 1;
    else if (strcmp(option, "--verbose") == 0)
        T.verbose = 1;
    else if (strcmp(option, "--first") == 0)
        T.first = 1;
    else if (strcmp(option, "--list") == 0)
        line->list = 1;
    else if (strcmp(option, "--help") == 0)
        line->help = 1;
    else
        return refuse("unknown option", option);
    return 0;
}

/* ATTN_TEST_SAMPLE, if the environment has it. */
static int set_sample(void)
{
    const char *value = getenv("ATTN_TEST_SAMPLE");
    if (value == NULL)
        return 0;
    if (sscanf(value, "%d/%d", &run.sample, &run.samples) == 2 && run.sample >= 1 &&
        run.sample <= run.samples)
        return 0;
    return refuse("ATTN_TEST_SAMPLE is I/N with I from 1 to N, not", value);
}

static int takes_value(const char *option)
{
    static const char *const options[] = { "--seed", "--case",    "--kernels",
                                           "--impl", "--storage", "--share" };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strcmp(option, options[i]) == 0)
            return 1;
    return 0;
}

static int is_group(const char *name)
{
    for (int g = 0; g < GROUP_COUNT; g++)
        if (strcmp(groups[g].name, name) == 0)
            return 1;
    return 0;
}

/* A word without dashes: a folder after --cases, else a group. */
static int add_word(char *word, command_line *line, int folders)
{
    int *count = folders ? &line->folder_count : &line->name_count;
    if (*count == MAX_NAMES || (!folders && !is_group(word)))
        return refuse(folders ? "too many folders:" : "unknown group", word);
    (folders ? line->folders : line->names)[(*count)++] = word;
    return 0;
}

static int parse(int argc, char **argv, command_line *line)
{
    int folders = 0, status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        if (strcmp(argv[i], "--") == 0) {
            T.argc = argc - i - 1;
            T.argv = argv + i + 1;
            break;
        }
        if (strcmp(argv[i], "--cases") == 0) {
            folders = 1;
        } else if (argv[i][0] != '-') {
            status = add_word(argv[i], line, folders);
        } else if (!takes_value(argv[i])) {
            status = set_flag(argv[i], line);
        } else if (i + 1 == argc) {
            status = refuse("a value is missing after", argv[i]);
        } else {
            status = set_value(argv[i], argv[i + 1]);
            i++;
        }
    }
    return status;
}

/* Each folder with each kernel set would repeat much and show little: they run with the best set,
 * or the one asked for. */
static void run_folders(const command_line *line)
{
    T.kernels = T.only != NULL ? T.only : attn_kernels_name(attn_kernels_get(0));
    T.best = 1;
    for (int i = 0; i < line->folder_count; i++) {
        static char group[600];
        snprintf(group, sizeof group, "--cases %s", line->folders[i]);
        run.group = group;
        run.case_number = -1;
        if (run_cases(line->folders[i], 1) != 0)
            CHECK(0, "cannot run the cases of %s", line->folders[i]);
        test_release();
    }
}

int main(int argc, char **argv)
{
    static command_line line;
    const int status = parse(argc, argv, &line);
    if (status != 0 || set_sample() != 0)
        return 2;
    if (line.help)
        return printf("%s", usage) < 0;
    if (line.list) {
        print_list();
        return 0;
    }
    if (T.verbose) /* the case at work is seen also when the process is killed */
        setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (T.storage > ATTN_BF16 && line.folder_count == 0)
        return refuse("without --cases there is no --storage", dtype_name(T.storage));
    print_first_line();
    catch_crashes();
    if (T.device != NULL && !device_open(T.device))
        return 2;
    if (attn_params_size() != sizeof(attn_params))
        return refuse("attn.h and the library do not match:", attn_version());
    if (line.folder_count > 0)
        run_folders(&line);
    else
        run_groups(line.names, line.name_count);
    device_close();
    printf("%lld passed, %lld failed, %lld skipped\n", (long long)run.passed, (long long)run.failed,
           (long long)run.skipped);
    return run.failed != 0;
}
