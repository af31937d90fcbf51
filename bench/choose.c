/* choose.c - the cases and paths that a command line asks for.
 * SPDX-License-Identifier: MIT */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "cases/presets_list.h"

enum { QUICK_SEQ_LEN = 65536 };
enum { MIN_COMPARED = 2 }; /* threads against one, where the machine has but one CPU */

int complain(const char *what, const char *about)
{
    fprintf(stderr, "bench: %s \"%s\"\n", what, about);
    return 0;
}

/* ---- words that are not known */

enum { MAX_WORD = 32 };

static int letters_between(const char *a, const char *b)
{
    int row[MAX_WORD];
    for (int j = 0; j < MAX_WORD; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j < MAX_WORD && b[j - 1]; j++) {
            const int replaced = diagonal + (a[i - 1] != b[j - 1]);
            const int moved = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            diagonal = row[j];
            row[j] = replaced < moved ? replaced : moved;
        }
    }
    return row[strlen(b)];
}

/* A known word that the other one begins counts as one letter away. No word is meant that would
 * replace all letters of the other. */
void nearest_try(nearest_word *n, const char *known)
{
    enum { LEAST_BEGUN = 4 };
    const size_t length = strlen(known), begun = strlen(n->word);
    const int begins = begun >= LEAST_BEGUN && begun < length && !strncmp(known, n->word, begun);
    const int letters = length >= MAX_WORD ? MAX_WORD
                        : begins           ? 1
                                           : letters_between(n->word, known);
    if (letters > (int)(length + 2) / 4 + 1 || letters >= (int)begun ||
        (n->best && letters >= n->letters))
        return;
    n->best = known;
    n->letters = letters;
}

int nearest_complain(const char *what, const nearest_word *n, const char *list)
{
    if (n->best)
        fprintf(stderr, "bench: %s \"%s\"; did you mean \"%s\"?\n", what, n->word, n->best);
    else
        fprintf(stderr, "bench: %s \"%s\"; `%s` lists them\n", what, n->word, list);
    return 0;
}

/* ---- dilated attention, patterns and memory */

const char *dilation_choose(const bench_options *o, preset_choice *want, const char **about)
{
    case_dilated *const d = &want->dilated;
    *about = o->dilations;
    if (!o->segments && o->dilations)
        return "--dilations is of --segments, which is missing:";
    if (!o->segments)
        return NULL;
    *about = o->segments;
    d->branches = case_sizes(o->segments, d->segment, DILATED_MAX_BRANCHES);
    if (!d->branches)
        return "--segments is W,W,..., 1 to 8 numbers from 1 to 268435456, not";
    for (int n = 0; n < d->branches; n++)
        d->dilation[n] = 1;
    *about = o->dilations;
    if (o->dilations && case_sizes(o->dilations, d->dilation, DILATED_MAX_BRANCHES) != d->branches)
        return "--dilations is R,R,..., a number from 1 for each segment, not";
    return NULL;
}

void dilation_apply(const preset_choice *want, bench_case *c)
{
    if (c->fixed & FIXED_PATTERN)
        return;
    if (want->dilated.branches)
        c->dilated = want->dilated;
    if (want->merge)
        c->dilated.mean = want->merge == 2;
    if (want->variant)
        c->dilated.gathered = want->variant == 2;
    if (want->pattern_cache)
        c->pattern_anew = want->pattern_cache == 2;
    if (want->memory_pool)
        c->memory_anew = want->memory_pool == 2;
}

/* An option that no case of the list has a use for; NULL = none. */
static const char *unused(const bench_options *o, const preset_choice *want, const case_list *list)
{
    int dilated = 0, patterns = 0, rings = 0, extreme = 0;
    for (int i = 0; i < list->n; i++) {
        const bench_case *const c = &list->cases[i];
        dilated |= c->dilated.branches > 0;
        patterns |= c->dilated.branches > 0 || mask_is_pattern(c->mask);
        rings |= !strcmp(c->preset, "dilated");
        extreme |= !strcmp(c->preset, "extreme");
    }
    if ((o->ranks && !rings) || (o->max_seq_len > 0 && !extreme))
        return o->ranks && !rings ? "--ranks" : "--max-seq-len";
    if (!dilated && (want->merge || want->variant))
        return want->merge ? "--merge" : "--variant";
    return !patterns && want->pattern_cache ? "--pattern-cache" : NULL;
}

/* ---- sizes */

/* The sizes that are said, one at a time or by --shape; 0 = not said. */
static bench_case sizes_of(const bench_options *o)
{
    const bench_case sizes = { .batch = o->batch_size,
                               .heads_q = o->num_heads,
                               .heads_kv = o->num_kv_heads ? o->num_kv_heads : o->num_heads,
                               .seq_q = o->seq_length,
                               .seq_kv = o->seq_length,
                               .head_dim = o->head_dim,
                               .head_dim_v = o->head_dim };
    return sizes;
}

/* An option of a single size that is given; NULL = none. */
static const char *single_size(const bench_options *o)
{
    return o->batch_size     ? "--batch-size"
           : o->num_heads    ? "--num-heads"
           : o->num_kv_heads ? "--num-kv-heads"
           : o->seq_length   ? "--seq-length"
           : o->head_dim     ? "--head-dim"
                             : NULL;
}

/* Whether single sizes contradict --shape or a preset; says so. */
static int sizes_contradict(const bench_options *o)
{
    const char *const single = single_size(o);
    if (single && o->shape)
        return !complain("--shape says all sizes and excludes", single);
    for (int i = 0; single && i < o->num_commands; i++) {
        if (!strcmp(o->commands[i], "dilated"))
            continue;
        fprintf(stderr, "bench: preset %s has sizes of its own and does not take \"%s\"\n",
                o->commands[i], single);
        return 1;
    }
    return 0;
}

/* Appends the one case that single sizes say; what they leave is 1 x 8 heads x 1024 x 64. */
static void single_case(const bench_case *sizes, case_list *list)
{
    char text[160];
    const long long b = sizes->batch ? sizes->batch : 1, h = sizes->heads_q ? sizes->heads_q : 8,
                    kv = sizes->heads_kv ? sizes->heads_kv : h,
                    s = sizes->seq_q ? sizes->seq_q : 1024,
                    d = sizes->head_dim ? sizes->head_dim : 64;
    snprintf(text, sizeof text, "%lld,%lld,%lld,%lld,%lld,%lld", b, h, kv, s, s, d);
    shape_case(text, list);
}

/* ---- cases that processes share */

/* Whether the path divides the case: that of a row of rings, else what --impl says, or zigzag, or runs
 * where the case has branches. */
static int is_shared(const path_list *paths, const bench_case *c, const bench_path *path)
{
    const bench_path *const own = c->impl ? path_find(c->impl) : NULL;
    const path_ring usual = c->dilated.branches ? PATH_CONTIGUOUS : PATH_ZIGZAG;
    if (!path->ring || c->seq_q != c->seq_kv || c->shares != SHARES_NOTHING)
        return 0;
    if (own && own->ring)
        return path == own;
    if (c->dilated.branches && path->ring != PATH_CONTIGUOUS)
        return 0;
    return strcmp(c->preset, "dilated") && (paths->given || path->ring == usual);
}

/* A row of rings has its ranks as its name. */
static void share(const bench_case *c, const bench_path *path, int ranks, case_list *list)
{
    bench_case *const to = case_append(list, c->preset, c->scenario);
    const int rings = c->impl && path_find(c->impl) && path_find(c->impl)->ring;
    *to = *c;
    to->impl = path->name;
    to->ranks = ranks;
    to->threads = to->group = 0;
    snprintf(to->name, sizeof to->name, "%.30s%s%d rank%s", rings ? "" : c->name, rings ? "" : ", ",
             ranks, ranks > 1 ? "s" : "");
}

int choose_shared(const bench_options *o, int processes, path_list *paths, case_list *list)
{
    static case_list shared;
    if (o->ranks)
        return complain("--mpi has as many ranks as processes and excludes", "--ranks");
    if (o->baseline)
        return complain("--mpi has no baseline of its own and excludes", "--baseline");
    shared.n = shared.lost = 0;
    for (int i = 0; i < list->n; i++)
        for (int j = 0; j < paths->n; j++) {
            if (!is_shared(paths, &list->cases[i], paths->paths[j]))
                continue;
            for (int ranks = 1; ranks < processes; ranks *= 2)
                share(&list->cases[i], paths->paths[j], ranks, &shared);
            share(&list->cases[i], paths->paths[j], processes, &shared);
        }
    *list = shared;
    paths->given = 0; /* each case has its own */
    return list->n > 0 ||
           complain("no case here can be divided among processes: it needs as many rows "
                    "as keys and, with branches, --impl ring, for",
                    "--mpi");
}

/* ---- what to run */

int choose_paths(const char *text, path_list *list)
{
    char wrong[64];
    const int comma = text && *text && text[strlen(text) - 1] == ',';
    if (comma)
        return complain("--impl is a list of paths that ends with one, not", text);
    if (path_list_parse(text, list, wrong, sizeof wrong))
        return 1;
    nearest_word near = { wrong, NULL, 0 };
    nearest_try(&near, "all");
    for (int i = 0; path_get(i); i++)
        nearest_try(&near, path_get(i)->name);
    return nearest_complain("no such path:", &near, "bench info");
}

/* A mask_kind; negative = there is none of that name, which is said. */
static int choose_mask(const char *name)
{
    const int kind = mask_find(name);
    nearest_word near = { name, NULL, 0 };
    for (int i = 0; i < NUM_MASKS; i++)
        nearest_try(&near, mask_name(i));
    if (kind < 0)
        nearest_complain("no such mask:", &near, "bench --list");
    return kind;
}

/* An option that would make a case something else than its name says; NULL = none. */
static const char *misleading(const bench_options *o, const case_list *list)
{
    int fixed = 0;
    for (int i = 0; i < list->n; i++)
        fixed |= list->cases[i].fixed;
    if (fixed & FIXED_MASK && (o->mask || o->causal || o->segments))
        return o->mask ? "--mask" : o->causal ? "--causal" : "--segments";
    if (fixed & FIXED_STORAGE && (o->dtype || o->types || o->integer || o->fast))
        return o->dtype ? "--dtype" : o->types ? "--types" : o->integer ? "--integer" : "--fast";
    if (fixed & FIXED_PASS && (o->backward || o->gemms))
        return o->backward ? "--backward" : "--gemms";
    return fixed & FIXED_LAYOUT && o->layout ? "--layout" : NULL;
}

/* Says so where it is none. */
static int preset_known(const char *name)
{
    nearest_word near = { name, NULL, 0 };
    const char *preset, *what, *command;
    nearest_try(&near, "all");
    for (int i = 0; preset_describe(i, &preset, &what); i++)
        nearest_try(&near, preset);
    for (int i = 0; (command = options_command(i)) != NULL; i++)
        nearest_try(&near, command);
    return (near.best && !near.letters) ||
           nearest_complain("no such preset or command:", &near, "bench --help");
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

/* Storage types, and scores in whole numbers, of one case; 0, and says why. */
static int apply_storage(const bench_options *o, bench_case *c)
{
    if (o->dtype)
        c->dtype = o->dtype - 1;
    if (o->types && !case_set_types(c, o->types))
        return complain("--types is K or K/V, each of f32, f16, bf16, e4m3, e5m2, q8_0, q5_0, "
                        "q4_0 and i8, not",
                        o->types);
    c->integer |= o->integer;
    if (o->fast)
        c->fast = FAST_ALLOWED;
    return !c->integer || case_k_dtype(c) >= ATTN_Q8_0 ||
           complain("--integer needs K in q8_0, q5_0, q4_0 or i8 (--types), not",
                    case_dtype_name(case_k_dtype(c)));
}

/* What the command line says about every case. */
static int apply_options(const bench_options *o, const preset_choice *want, case_list *list)
{
    const int mask = o->mask ? choose_mask(o->mask) : MASK_CAUSAL;
    if (mask < 0)
        return 0;
    if (o->mask && o->causal)
        return complain("--causal is --mask causal and excludes --mask", o->mask);
    if (misleading(o, list))
        return complain("the cases of this preset are what they are (--shape takes all); they do "
                        "not take",
                        misleading(o, list));
    if (alone(o, list))
        return complain("threads compares one with --threads from 2, not", "1");
    if (o->gemms && !o->backward)
        return complain("--gemms is of gradients: it needs", "--backward");
    for (int i = 0; i < list->n; i++) {
        bench_case *const c = &list->cases[i];
        if (!apply_storage(o, c))
            return 0;
        if (o->layout)
            c->layout = (case_layout)(o->layout - 1);
        if (o->causal || o->mask)
            c->mask = mask;
        if (o->data)
            c->data = (data_kind)(o->data - 1);
        if (o->backward)
            c->backward = 1;
        dilation_apply(want, c);
        if (o->gemms)
            c->gemms = o->gemms == 1 ? 5 : 7;
        if (o->quick)
            c->warmup = 1;
        if (o->quick || o->min_time >= 0)
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
    const char *const idle = unused(o, want, list);
    return !idle || complain("no case here has a use for", idle);
}

int choose_cases(const bench_options *o, const machine_info *machine, case_list *list)
{
    const int cpus = machine->cpus < MIN_COMPARED ? MIN_COMPARED : machine->cpus;
    const int64_t longest = o->quick ? QUICK_SEQ_LEN : PRESETS_MAX_SEQ_LEN;
    preset_choice want = { .quick = o->quick,
                           .kernels = o->kernels,
                           .threads = o->threads > 0 ? o->threads : cpus,
                           .ranks = o->ranks,
                           .merge = o->merge,
                           .variant = o->variant,
                           .pattern_cache = o->pattern_cache,
                           .memory_pool = o->memory_pool,
                           .max_seq_len = o->max_seq_len > 0 ? o->max_seq_len : longest };
    static case_list shape;
    bench_case sizes = sizes_of(o);
    const char *about;
    const char *const wrong = dilation_choose(o, &want, &about);
    int shaped = 0;
    if (wrong)
        return complain(wrong, about);
    if (o->shape && !shape_case(o->shape, &shape))
        return complain("--shape is B,Hq,Hkv,Sq,Skv,D[,Dv], whole numbers from 1 to 268435456 "
                        "(2^28), not",
                        o->shape);
    if (o->shape)
        sizes = shape.cases[0];
    want.sizes = &sizes;
    list->n = list->lost = 0;
    for (int i = 0; i < o->num_commands; i++)
        if (!preset_known(o->commands[i]))
            return 0;
    if (sizes_contradict(o))
        return 0;
    for (int i = 0; i < o->num_commands; i++) {
        shaped |= !strcmp(o->commands[i], "dilated");
        if (!said_twice(o, i))
            preset_cases(o->commands[i], &want, list);
    }
    if (o->num_commands == 0 && single_size(o))
        single_case(&sizes, list);
    else if (o->num_commands == 0 && !o->shape) {
        preset_cases("latency", &want, list);
        preset_cases("llm", &want, list);
    }
    if (o->shape && !shaped)
        shape_case(o->shape, list);
    if (list->lost)
        return complain("more cases than one run can hold: leave out", "a preset");
    return apply_options(o, &want, list);
}
