/* options.c - the command line, as a table.
 * SPDX-License-Identifier: MIT */
#include "bench.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind {
    FLAG,
    TEXT,
    WORD,
    SECONDS,
    COUNT,
    POSITIVE,
    THREADS,
    SEED,
    LENGTH,
    SIZE
} option_kind;

#define AT(field) offsetof(bench_options, field)
#define MOST 1000000000

/* The whole numbers that a kind takes, and the bytes of its field. */
static const struct {
    size_t bytes;
    long least, most;
} numbers[] = {
    [COUNT] = { sizeof(int), 0, MOST },      [POSITIVE] = { sizeof(int), 1, MOST },
    [THREADS] = { sizeof(int), 1, 1024 },    [SEED] = { sizeof(int64_t), 0, MOST },
    [LENGTH] = { sizeof(int64_t), 1, MOST }, [SIZE] = { sizeof(int64_t), 1, 1 << 28 },
};

/* What takes an option: a bit each. CASES: presets and --shape. */
enum { LIST = 1, INFO = 2, KERNELS = 4, TUNE = 8, MEMORY = 16, CASES = 32, EVERY = 63 };

static const struct {
    const char *name;
    option_kind kind;
    size_t offset;
    int takers;               /* nothing else takes it: it would be ignored there */
    const char *value, *what; /* value: of a WORD the words, " a|b" */
} table[] = {
    { "--quick", FLAG, AT(quick), CASES | LIST | KERNELS | TUNE | MEMORY, "",
      "reduced presets, under a minute (what `make bench` runs)" },
    { "--shape", TEXT, AT(shape), CASES | LIST | KERNELS, " B,Hq,Hkv,Sq,Skv,D[,Dv]",
      "one case of this shape" },
    { "--batch-size", SIZE, AT(batch_size), CASES | LIST, " N",
      "one case of 1 x 8 heads x 1024 x 64, or preset dilated, with this batch" },
    { "--num-heads", SIZE, AT(num_heads), CASES | LIST, " N",
      "with this number of heads, of K and V, too" },
    { "--num-kv-heads", SIZE, AT(num_kv_heads), CASES | LIST, " N",
      "with this number of heads of K and V" },
    { "--seq-length", SIZE, AT(seq_length), CASES | LIST, " N",
      "with this number of rows and keys" },
    { "--head-dim", SIZE, AT(head_dim), CASES | LIST, " N", "with rows of this width" },
    { "--mask", TEXT, AT(mask), CASES | LIST, " NAME",
      "mask or modifier; `bench --list` lists them (full)" },
    { "--causal", FLAG, AT(causal), CASES | LIST, "", "--mask causal: aligned to the last key" },
    { "--backward", FLAG, AT(backward), CASES | LIST, "",
      "the gradients of each case, by attn_backward" },
    { "--gemms", WORD, AT(gemms), CASES | LIST, " 5|7",
      "products for a tile of them: 7 computes two twice (the library's choice)" },
    { "--segments", TEXT, AT(segments), CASES | LIST, " W,W,...",
      "dilated attention: positions of a segment, for each branch" },
    { "--dilations", TEXT, AT(dilations), CASES | LIST, " R,R,...",
      "with it: the dilations of the branches (1 each)" },
    { "--merge", WORD, AT(merge), CASES | LIST, " lse|mean",
      "of the branches: one softmax, or the mean of theirs (lse; preset dilated: both)" },
    { "--variant", WORD, AT(variant), CASES | LIST, " strided|gathered",
      "rows read where they lie, or copied (strided; preset dilated: both)" },
    { "--pattern-cache", WORD, AT(pattern_cache), CASES | LIST, " on|off",
      "indices and cells once, or in every call (on; preset dilated: both)" },
    { "--memory-pool", WORD, AT(memory_pool), CASES | LIST, " on|off",
      "workspace once, or in every call (on; preset dilated: both)" },
    { "--ranks", POSITIVE, AT(ranks), CASES | LIST, " N",
      "most ranks of the rings of preset dilated (8); paths ring...: --threads" },
    { "--dtype", WORD, AT(dtype), CASES | LIST, " f32|f16|bf16", "storage type of q, k, v, o" },
    { "--types", TEXT, AT(types), CASES | LIST, " K[/V]",
      "storage of k and v: f32 f16 bf16 e4m3 e5m2 q8_0 q5_0 q4_0 i8 (as --dtype)" },
    { "--integer", FLAG, AT(integer), CASES | LIST, "",
      "scores of q8_0, q5_0, q4_0 and i8 keys in whole numbers (p.integer)" },
    { "--fast", FLAG, AT(fast), CASES | LIST, "",
      "products of numbers rounded to bf16, where this CPU has units (p.fast)" },
    { "--layout", WORD, AT(layout), CASES | LIST, " bhsd|bshd",
      "order of batch, seq, head, dim in memory (bhsd)" },
    { "--threads", THREADS, AT(threads), CASES | LIST | INFO, " N",
      "worker threads (1; all CPUs: preset threads, paths with threads)" },
    { "--impl", TEXT, AT(impl), CASES, " a,b",
      "paths to compare, `bench info` lists them; all = each (naive,tiled)" },
    { "--device", TEXT, AT(device), CASES | INFO | TUNE, " NAME",
      "OpenCL device, by a part of its name or its platform's (the best GPU)" },
    { "--kernels", TEXT, AT(kernels), CASES | LIST | KERNELS | TUNE | MEMORY, " SET",
      "kernel set; `bench info` lists them (the best)" },
    { "--phases", FLAG, AT(phases), CASES, "",
      "where the time goes: Q K^T, softmax, P V, merge, rest" },
    { "--tuning", TEXT, AT(tuning), CASES | INFO | MEMORY, " FILE",
      "sizes for this machine, as `bench tune` writes them" },
    { "--data", WORD, AT(data), CASES, " trig|normal",
      "inputs: sin, cos, tan, or seeded random numbers" },
    { "--seed", SEED, AT(seed), CASES | MEMORY, " N", "seed of the random numbers (1)" },
    { "--warmup", COUNT, AT(warmup), CASES, " N", "calls before the first timed one" },
    { "--iters", POSITIVE, AT(iters), CASES | KERNELS, " N",
      "timed calls; without it they double until --min-time" },
    { "--min-time", SECONDS, AT(min_time), CASES, " S",
      "seconds that the timed calls last at least" },
    { "--max-time", SECONDS, AT(max_time), CASES, " S",
      "seconds that a call may take, else it is skipped (preset extreme: 150; 0 = any)" },
    { "--max-seq-len", LENGTH, AT(max_seq_len), CASES | LIST, " N",
      "longest of preset extreme (1048576)" },
    { "--json", TEXT, AT(json), CASES | INFO | MEMORY, " FILE", "write everything as JSON" },
    { "--csv", TEXT, AT(csv), CASES | INFO | KERNELS | MEMORY, " FILE", "write the rows as CSV" },
    { "--output-dir", TEXT, AT(output_dir), CASES | INFO | TUNE | MEMORY, " DIR",
      "write DIR/bench-TIME.json and .csv, TIME in UTC; tune: DIR/tuning.txt" },
    { "--baseline", TEXT, AT(baseline), CASES, " FILE",
      "compare with an older --json of this kind of machine; status 3 = slower" },
    { "--wide", FLAG, AT(wide), CASES, "",
      "more columns: mean, std, min, P99, GB/s, FLOPs per byte, ..." },
    { "--mpi", FLAG, AT(mpi), CASES, "",
      "the sequence divided among the processes of mpirun (`make build/bench_mpi`)" },
    { "--list", FLAG, AT(list), LIST, "", "print presets, masks and cases, measure nothing" },
    { "--help", FLAG, AT(help), EVERY, "", "this text" },
};

enum { NUM_OPTIONS = sizeof table / sizeof *table };

/* Words that are no presets. */
static const struct {
    const char *name;
    int taker;
} commands[] = { { "info", INFO }, { "kernels", KERNELS }, { "tune", TUNE }, { "memory", MEMORY } };

void options_print_help(void)
{
    printf("usage: bench [option...] "
           "[info | kernels | tune | memory | all | preset...]\n\n");
    for (int i = 0; i < NUM_OPTIONS; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s%s", table[i].name, table[i].value);
        printf("  %-34s %s\n", left, table[i].what);
    }
    printf("\n  %-34s %s\n", "info", "this machine: measured peaks, kernel sets, usable paths");
    printf("  %-34s %s\n", "kernels",
           "single kernels of each set (--kernels, --shape for its D, --iters, --csv)");
    printf("  %-34s %s\n", "tune",
           "measures sizes for p.tuning and writes build/tuning.txt (--kernels, --output-dir)");
    printf("  %-34s %s\n", "all", "every preset");
    printf("  %-34s %s\n", "memory",
           "peak memory over the length, a process for each point (--quick, --kernels, --csv...)");
    printf("\nexit status: 0 = done; 1 = a wrong result, nothing measured or not all written;\n"
           "  2 = the command line or a file that it names; 3 = slower than the baseline;\n"
           "  130 = Ctrl-C, 143 = SIGTERM, with what was timed by then written\n");
}

/* The option that `name` is, up to a "=". */
static int find_option(const char *name)
{
    const size_t length = strcspn(name, "=");
    for (int i = 0; i < NUM_OPTIONS; i++)
        if (strlen(table[i].name) == length && !strncmp(table[i].name, name, length))
            return i;
    return -1;
}

/* 1 + the place of text among " a|b|c"; 0 = it is none of them. */
static int word_of(const char *words, const char *text)
{
    const size_t length = strlen(text);
    for (int n = 1; *words; n++) {
        const size_t one = strcspn(++words, "|");
        if (one == length && !strncmp(words, text, length))
            return n;
        words += one;
    }
    return 0;
}

/* "--name is a, b or c, not ...". */
static int wrong_word(const char *name, const char *words, const char *text)
{
    fprintf(stderr, "bench: %s is ", name);
    while (*words++) {
        const size_t one = strcspn(words, "|");
        const char *const next = words + one;
        fprintf(stderr, "%.*s%s", (int)one, words,
                !*next                  ? ", not "
                : strchr(next + 1, '|') ? ", "
                                        : " or ");
        words = next;
    }
    fprintf(stderr, "\"%s\"\n", text);
    return 0;
}

/* Stores text as the option's kind; 0 when it is not such a value. */
static int store(bench_options *o, int i, const char *text)
{
    char *const at = (char *)o + table[i].offset;
    char *end = NULL;
    const option_kind kind = table[i].kind;
    errno = 0;
    if (kind == TEXT) {
        memcpy(at, &text, sizeof text);
        return *text != '\0';
    }
    if (kind == SECONDS) {
        const double value = strtod(text, &end);
        memcpy(at, &value, sizeof value);
        /* strtod takes hexadecimal digits and names, too */
        return end != text && !*end && value >= 0 && value <= 86400 &&
               !text[strspn(text, "0123456789.eE+-")];
    }
    const long value = strtol(text, &end, 10);
    const int narrow = (int)value;
    const int64_t wide = value;
    if (end == text || *end || errno || value < numbers[kind].least || value > numbers[kind].most)
        return 0;
    memcpy(at, numbers[kind].bytes == sizeof narrow ? (const void *)&narrow : &wide,
           numbers[kind].bytes);
    return 1;
}

/* "--threads cannot be "x": it takes a whole number from 1 to 1024". */
static int wrong_value(int i, const char *text)
{
    const option_kind kind = table[i].kind;
    fprintf(stderr, "bench: %s cannot be \"%s\": it takes ", table[i].name, text);
    if (kind == TEXT)
        fprintf(stderr, "a text that is not empty\n");
    else if (kind == SECONDS)
        fprintf(stderr, "seconds from 0 to 86400\n");
    else
        fprintf(stderr, "a whole number from %ld to %ld\n", numbers[kind].least,
                numbers[kind].most);
    return 0;
}

static int unknown(char *name)
{
    nearest_word near = { name, NULL, 0 };
    name[strcspn(name, "=")] = '\0';
    for (int i = 0; i < NUM_OPTIONS; i++)
        nearest_try(&near, table[i].name);
    return nearest_complain("unknown option", &near, "bench --help");
}

static int misread(const char *what, const char *about)
{
    fprintf(stderr, "bench: %s \"%s\"; `bench --help` lists the options\n", what, about);
    return 0;
}

static void set_int(bench_options *o, int i, int value)
{
    memcpy((char *)o + table[i].offset, &value, sizeof value);
}

static int set_value(bench_options *o, int i, const char *value)
{
    if (table[i].kind == WORD) {
        const int word = word_of(table[i].value, value);
        set_int(o, i, word);
        return word || wrong_word(table[i].name, table[i].value, value);
    }
    return store(o, i, value) || wrong_value(i, value);
}

/* One option at argv[*at], "--name value" or "--name=value"; moves *at past a value of its own. */
static int parse_option(bench_options *o, int argc, char **argv, int *at)
{
    char *const name = argv[*at];
    const char *value = strchr(name, '=');
    const int i = find_option(name);
    if (i < 0)
        return unknown(name);
    if (o->given >> i & 1 && table[i].kind != FLAG)
        return misread("given twice:", table[i].name);
    o->given |= UINT64_C(1) << i;
    if (table[i].kind == FLAG) {
        set_int(o, i, 1);
        return !value || misread("no value is taken by", table[i].name);
    }
    value = value ? value + 1 : argv[++*at];
    return *at < argc ? set_value(o, i, value) : misread("a value is missing after", name);
}

/* Of a command; 0 = the word is none. */
static int taker_of_word(const char *word)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(commands[i].name, word))
            return commands[i].taker;
    return 0;
}

const char *options_command(int i)
{
    return i < (int)(sizeof commands / sizeof *commands) ? commands[i].name : NULL;
}

int options_is_command(const char *word)
{
    return taker_of_word(word) != 0;
}

/* What this command line asks for, as one of the takers. */
static int taker_of(const bench_options *o)
{
    const int command = o->num_commands ? taker_of_word(o->commands[0]) : 0;
    return command ? command : o->list ? LIST : CASES;
}

int options_taken(const bench_options *o)
{
    const int taker = taker_of(o);
    const char *const who = taker == LIST     ? "--list"
                            : o->num_commands ? o->commands[0]
                                              : "a measurement";
    for (int i = 0; i < NUM_OPTIONS; i++) {
        if (!(o->given >> i & 1) || table[i].takers & taker)
            continue;
        fprintf(stderr, "bench: %s does not take %s\n", who, table[i].name);
        return 0;
    }
    return 1;
}

int options_parse(bench_options *o, int argc, char **argv)
{
    memset(o, 0, sizeof *o);
    o->threads = o->warmup = o->iters = -1;
    o->min_time = o->max_time = -1;
    o->seed = 1;
    o->max_seq_len = -1;
    o->argc = argc;
    o->argv = argv;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--", 2)) {
            if (!parse_option(o, argc, argv, &i))
                return 0;
        } else if (o->num_commands < OPTIONS_MAX_NAMES) {
            o->commands[o->num_commands++] = argv[i];
        } else {
            return misread("too many words:", argv[i]);
        }
    }
    return 1;
}
