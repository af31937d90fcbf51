/* tuning.c - sizes for a machine: what is chosen, written, read and used.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../attn.h"
#include "../../bench/cases/cases.h"
#include "../../bench/commands/commands.h"
#include "../../bench/report/report.h"
#include "../tuned_bits.h"
#include "selfcheck.h"

/* ---- tuning */

/* What is chosen when the usual value takes 100 and then `again`, and another value `other`, in a
 * first case, and in a second one 100, 100 and `second`. */
static int chosen(double again, double other, double second, double error)
{
    double gain, noise;
    const tune_trial trials[] = { { 1, { 100, 100 }, { error, 0 } },
                                  { 2, { 102, 102 }, { 0, 0 } },
                                  { 3, { other, second }, { 0, 0 } },
                                  { 1, { again, 100 }, { 0, 0 } } };
    return tune_choose(trials, 4, 2, &gain, &noise);
}

static void check_choice(void)
{
    expect(chosen(100, 90, 90, 0) == 2, "the faster value is chosen", chosen(100, 90, 90, 0));
    expect(chosen(100, 99, 99, 0) == 0, "1 % are not enough", chosen(100, 99, 99, 0));
    expect(chosen(100, 103, 103, 0) == 0, "a slower value is not chosen", 0);
    expect(chosen(120, 90, 90, 0) == 0, "a gain below the noise is not enough", 0);
    expect(chosen(95, 90, 100, 0) == 0, "the better median of the usual value counts", 0);
    expect(chosen(100, 90, 90, 0.2) == 0, "a gain below the medians' error is not enough", 0);
    expect(chosen(100, 80, 101, 0) == 0, "one case does not pay for another", 0);
    expect(chosen(100, 90, 100, 0) == 2, "one case alone may gain", 0);
}

/* The library takes every candidate and calls the usual ones usual. */
static void check_candidates(void)
{
    const char *name;
    int64_t value;
    int n = 0, refused = 0, unusual = 0;
    for (int f = 0; tune_candidate(f, 0, &name, &value); f++)
        for (int i = 0; tune_candidate(f, i, &name, &value); i++, n++) {
            const tuning_list none = { .n = 0 };
            char text[TUNING_BYTES], why[300];
            float one = 1;
            attn_params p = { 0 };
            attn_info info;
            tuning_compose(text, &none, attn_kernels_name(attn_kernels_get(0)), name, value);
            refused += !tuning_taken(text, why, sizeof why);
            p.batch = p.num_heads_q = p.seq_len_kv = p.head_dim = 1;
            p.seq_len_q = 100;
            p.q.data = p.k.data = p.v.data = p.o.data = &one;
            p.tuning = text;
            attn_explain(&p, &info);
            unusual += i == 0 && !strstr(info.reasons, "tuning: the usual sizes");
        }
    expect(n > 20 && refused == 0, "the library takes every candidate", refused);
    expect(unusual == 0, "the usual values are those of the library", unusual);
}

static void check_tuning(void)
{
    static tuning_list list;
    char text[TUNING_BYTES], why[300];
    tuning_add(&list, "none", "tile_keys", 64, 0, 0);
    tuning_compose(text, &list, "none", "ahead", 0);
    expect(!strcmp(text, "attn-tuning 1\nnone.tile_keys 64\nnone.ahead 0\nend\n"),
           "a text is composed", (double)strlen(text));
    expect(tuning_taken(text, why, sizeof why), "the library takes it", 0);
    expect(!tuning_taken("attn-tuning 1\ntile_keys 65\nend", why, sizeof why) &&
               strstr(why, "tile_keys (65) must be"),
           "a damaged text is noticed", 0);
    expect(tuning_same_bits("attn-tuning 1 tile_keys 32 split_work 1 end", 0),
           "the same bits with a text", 0);
    expect(!tuning_same_bits(text, 1), "one other bit is noticed", 0);
    FILE *const f = tmpfile();
    if (!f)
        return;
    for (int i = 0; i < 3000; i++)
        fputs("# long\n", f);
    rewind(f);
    size_t bytes;
    char *const back = files_load(f, TUNING_MAX_FILE, &bytes);
    expect(back && strlen(back) == 21000 && bytes == 21000, "a long file is read whole",
           back ? 1 : 0);
    free(back);
    fclose(f);
}

/* A case with a text is measured and says so; its result is the same as without. */
static void check_tuned_run(bench_context *context)
{
    case_list list = { .n = 0 };
    bench_result r;
    char text[] = "attn-tuning 1 tile_keys 16 end";
    int64_t bytes = 0;
    shape_case("1,2,2,100,300,32", &list);
    list.cases[0].iterations = 1;
    for (int tuned = 0; tuned < 2; tuned++) {
        context->tuning = tuned ? text : NULL;
        context->tuning_file = tuned ? "file" : "";
        run_case(context, &list.cases[0], "tiled", &r);
        expect(!r.skipped[0] && !strcmp(r.tuning, tuned ? "file" : ""), "a tuned case", tuned);
        expect(!tuned || r.workspace_bytes < bytes, "its text has an effect",
               (double)r.workspace_bytes);
        bytes = r.workspace_bytes;
    }
    context->tuning = NULL;
    context->tuning_file = "";
}

void check_tunings(bench_context *context)
{
    check_choice();
    check_candidates();
    check_tuning();
    check_tuned_run(context);
}
