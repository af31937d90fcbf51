/* files.c - checks of the parts that compute and read: costs, exponents, JSON, verdicts.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/cases/cases.h"
#include "../../bench/commands/commands.h"
#include "../../bench/stats.h"
#include "selfcheck.h"

/* ---- costs */

static void check_costs(void)
{
    bench_case c = { .batch = 2,
                     .heads_q = 4,
                     .heads_kv = 2,
                     .seq_q = 3,
                     .seq_kv = 5,
                     .head_dim = 16,
                     .head_dim_v = 8 };
    bench_model m;
    model_of(&c, &m);
    /* 120 pairs, 5760 FLOPs, 4224 bytes (selfcheck.c) */
    expect(fabs(model_intensity(&m) - 5760.0 / 4224) < 1e-12, "intensity", model_intensity(&m));
    expect(!strcmp(model_roof(3, 100, 30), "memory"), "3 * 30 < 100: memory binds", 0);
    expect(!strcmp(model_roof(4, 100, 30), "compute"), "4 * 30 > 100: arithmetic binds", 0);
    expect(!*model_roof(4, 0, 30) && !*model_roof(4, 100, 0), "without a peak nobody knows", 0);
    expect(model_theory_bytes(&c, 1, 1, 7) == 60, "naive: logits of a head", 0);
    expect(model_theory_bytes(&c, 1, 3, 7) == 180, "of a head for each thread", 0);
    expect(model_theory_bytes(&c, 1, 99, 7) == 480, "but not more than there are heads", 0);
    expect(model_theory_bytes(&c, 0, 3, 7) == 7, "tiled: its workspace", 0);
    expect(model_matrix_share(&m, 120) == 0.25, "share of 480 bytes of logits",
           model_matrix_share(&m, 120));
}

/* ---- exponents */

static void check_exponents(void)
{
    const double x[] = { 1024, 4096, 16384, 65536 }, noisy_x[] = { 1, 10, 100 };
    double y[4], noisy_y[] = { 1, 20, 100 };
    for (int i = 0; i < 4; i++)
        y[i] = 3 * x[i] * x[i];
    expect(fabs(bench_exponent(x, y, 4) - 2) < 1e-12, "3 x^2", bench_exponent(x, y, 4));
    for (int i = 0; i < 4; i++)
        y[i] = 700 / sqrt(x[i]);
    expect(fabs(bench_exponent(x, y, 4) + 0.5) < 1e-12, "700 / sqrt(x)", bench_exponent(x, y, 4));
    /* by hand: the middle point is not seen by a symmetrical fit */
    expect(fabs(bench_exponent(noisy_x, noisy_y, 3) - 1) < 1e-12, "three points off a line",
           bench_exponent(noisy_x, noisy_y, 3));
    for (int i = 0; i < 4; i++)
        y[i] = i * 349525.0; /* 0 to 1 MiB: cannot be told from none */
    expect(memory_exponent(x, y, 4) == 0, "noise has no exponent", memory_exponent(x, y, 4));
    for (int i = 0; i < 4; i++)
        y[i] = 283116 + 16 * x[i];
    expect(memory_exponent(x, y, 4) > 0.05, "four floats a key too many are seen",
           memory_exponent(x, y, 4));
    for (int i = 0; i < 4; i++)
        y[i] = 4 * x[i] * x[i];
    expect(fabs(memory_exponent(x, y, 4) - 2) < 1e-12, "a matrix", memory_exponent(x, y, 4));
    for (int i = 0; i < 4; i++)
        y[i] = 1e7 + 8 * x[i];
    expect(fabs(memory_growth_exponent(x, y, 4) - 1) < 1e-12, "a line, however high it begins",
           memory_growth_exponent(x, y, 4));
    for (int i = 0; i < 4; i++)
        y[i] = 1e7 + 4 * x[i] * x[i];
    expect(fabs(memory_growth_exponent(x, y, 4) - 2) < 1e-12, "so is a matrix",
           memory_growth_exponent(x, y, 4));
    for (int i = 0; i < 4; i++)
        y[i] = 1e7;
    expect(memory_growth_exponent(x, y, 4) == 0, "what does not grow",
           memory_growth_exponent(x, y, 4));
}

/* ---- JSON */

static char *parse(const char *text)
{
    char why[160];
    return json_parse(text, strlen(text), why, sizeof why);
}

static const char good[] =
    " {\"schema\": 1, \"none\": null, \"yes\": true, \"no\": false, \"empty\": {}, \"list\": []"
    ",\r\n\t\"text\": \"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00z\", \"zero\": -0.5e-1,"
    "\"results\": [{\"case\": \"x\", \"ms\": 12.5}, {\"case\": \"y\", \"ms\": 1E+2}, [[7]]]} ";

static void check_values(void)
{
    char *const d = parse(good);
    expect(d != NULL, "a document is read", 0);
    if (!d)
        return;
    const char *const rows = json_member(d, "results");
    const char *const second = json_next(json_first(rows)), *const list = json_next(second);
    expect(json_number(d, "schema") == 1, "a number", json_number(d, "schema"));
    expect(json_number(d, "zero") == -0.05, "a fraction", json_number(d, "zero"));
    expect(*json_member(d, "none") == 'n', "null", 0);
    expect(*json_member(d, "yes") == 't', "true", 0);
    expect(*json_member(d, "no") == 'f', "false", 0);
    expect(!strcmp(json_text(d, "text"), "a\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80z"),
           "a text with every escape", 0);
    expect(!strcmp(json_text(second, "case"), "y"), "the second of a list", 0);
    expect(json_number(second, "ms") == 100, "its number", json_number(second, "ms"));
    expect(*json_first(json_first(list)) == '7', "a list in a list", 0);
    expect(!json_next(list), "the list ends", 0);
    expect(!json_first(json_member(d, "empty")), "an empty object", 0);
    expect(!json_text(d, "schema") && json_number(d, "text") == -1, "another kind", 0);
    expect(!json_member(NULL, "x") && !json_member(second, "x"), "no such member", 0);
    free(d);
}

static void check_broken(void)
{
    static const char *const bad[] = { "",
                                       " ",
                                       "{",
                                       "[",
                                       "\"",
                                       "nul",
                                       "nulll",
                                       "True",
                                       "[1,]",
                                       "[,1]",
                                       "[1 2]",
                                       "[1x2]",
                                       "{\"a\"}",
                                       "{\"a\":}",
                                       "{\"a\":1,}",
                                       "{a:1}",
                                       "{'a':1}",
                                       "{1:1}",
                                       "[1]]",
                                       "{} {}",
                                       "01",
                                       "+1",
                                       "1.",
                                       ".5",
                                       "-",
                                       "1e",
                                       "1e+",
                                       "0x10",
                                       "NaN",
                                       "Infinity",
                                       "1e999",
                                       "-1e999",
                                       "\"\\x\"",
                                       "\"\\u12\"",
                                       "\"\\u12g4\"",
                                       "\"\\ud800\"",
                                       "\"\\udc00\"",
                                       "\"\\ud800\\u0041\"",
                                       "\"\\u0000\"",
                                       "\"a\nb\"",
                                       "\"a",
                                       "// 1",
                                       "[1] // no" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *const d = parse(bad[i]);
        expect(d == NULL, bad[i], (double)i);
        free(d);
    }
}

/* Lists in lists: the last that is allowed and the first that is not. */
static void check_depth(void)
{
    char text[4 * JSON_MAX_DEPTH];
    for (int more = 0; more < 2; more++) {
        const size_t depth = (size_t)(JSON_MAX_DEPTH + more);
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        text[2 * depth] = '\0';
        char *const d = parse(text);
        expect((d != NULL) == !more, "depth has a limit", more);
        free(d);
    }
}

/* Every part of a document is refused; with any byte changed it is refused or read, no more. The
 * copies end where their memory does. */
static void check_damage(void)
{
    const size_t bytes = sizeof good - 2;
    char why[160];
    int taken = 0, tried = 0;
    for (size_t n = 0; n + 1 < bytes; n++) {
        char *const part = malloc(n + 1);
        if (!part)
            return;
        memcpy(part, good, n);
        char *const d = json_parse(part, n, why, sizeof why);
        taken += d != NULL;
        free(d);
        free(part);
    }
    expect(taken == 0, "parts of a document are refused", taken);
    for (size_t i = 0; i < bytes; i++) {
        for (int c = 0; c < 256; c += 5, tried++) {
            char damaged[sizeof good];
            memcpy(damaged, good, sizeof good);
            damaged[i] = (char)c;
            free(json_parse(damaged, bytes, why, sizeof why));
        }
    }
    expect(tried > 5000, "damaged documents end the reader in no other way", tried);
}

/* ---- verdicts */

static void check_judgements(void)
{
    expect(baseline_judge(1.0, "compute") == BASELINE_SAME, "as fast", 0);
    expect(baseline_judge(1.04, "compute") == BASELINE_SAME, "4 % are the same", 0);
    expect(baseline_judge(1.07, "compute") == BASELINE_SUSPECT, "7 % are measured again", 0);
    expect(baseline_judge(1.11, "compute") == BASELINE_IS_SLOWER, "11 % are slower", 0);
    expect(baseline_judge(1.11, "") == BASELINE_IS_SLOWER, "also without a roof", 0);
    expect(baseline_judge(1.2, "memory") == BASELINE_SUSPECT, "memory is noisier", 0);
    expect(baseline_judge(1.31, "memory") == BASELINE_IS_SLOWER, "31 % are slower", 0);
    expect(baseline_judge(0.9, "compute") == BASELINE_IS_FASTER, "10 % less is faster", 0);
    expect(baseline_judge(0.9, "memory") == BASELINE_SAME, "but not where memory binds", 0);
}

void check_files(void)
{
    check_costs();
    check_exponents();
    check_values();
    check_broken();
    check_depth();
    check_damage();
    check_judgements();
}
