/* counts.c - what a case costs on paper; how many cases presets have, and in which groups.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "../../attn.h"
#include "../../bench/cases/cases.h"
#include "../../bench/run.h"
#include "selfcheck.h"

/* ---- counts on paper */

static void check_model(void)
{
    bench_case c = { 0 };
    bench_model m;
    c.batch = 2;
    c.heads_q = 4;
    c.heads_kv = 2;
    c.seq_q = 3;
    c.seq_kv = 5;
    c.head_dim = 16;
    c.head_dim_v = 8;
    model_of(&c, &m);
    expect(m.pairs == 2 * 4 * 15, "pairs without a mask", m.pairs);
    expect(m.flops == 2 * 120 * 24, "FLOPs without a mask", m.flops);
    expect(m.kv_bytes == 4 * 20 * 24, "bytes of k and v", m.kv_bytes);
    expect(m.tensor_bytes == 4 * (24 * 24 + 20 * 24), "bytes of tensors", m.tensor_bytes);
    c.mask = MASK_CAUSAL; /* the rows see 3, 4 and 5 keys */
    model_of(&c, &m);
    expect(m.pairs == 2 * 4 * 12, "causal pairs", m.pairs);
    c.seq_q = 5;
    c.seq_kv = 3; /* 0, 0, 1, 2 and 3 keys */
    model_of(&c, &m);
    expect(m.pairs == 2 * 4 * 6, "causal pairs of rows without keys", m.pairs);
}

static const preset_choice whole = { .threads = 2, .max_seq_len = PRESETS_MAX_SEQ_LEN };

/* How many cases of a preset have this length and batch; 0 = any. */
static int count_cases(const char *preset, int64_t seq_q, int64_t seq_kv, int64_t batch)
{
    static case_list list;
    int n = 0;
    list.n = 0;
    preset_cases(preset, &whole, &list);
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        n += (!seq_q || c->seq_q == seq_q) && (!seq_kv || c->seq_kv == seq_kv) &&
             (!batch || c->batch == batch);
    }
    return n;
}

/* For one set: every row full and causal; groups stay together and fit. */
static void check_prefill(void)
{
    static case_list list;
    const preset_choice one = { .kernels = "portable",
                                .threads = 2,
                                .max_seq_len = PRESETS_MAX_SEQ_LEN };
    int longest = 0, strided = 0;
    list.n = 0;
    preset_cases("prefill", &one, &list);
    for (int i = 0, length = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        length = i && c->group && c->group == c[-1].group ? length + 1 : 1;
        if (length > longest)
            longest = length;
        strided += c->layout == LAYOUT_BSHD;
    }
    expect(list.n == 38 + 16, "prefill: 19 rows, full and causal; 8 of p.fast, twice", list.n);
    expect(strided == 4, "prefill: strided, two widths", strided);
    expect(longest == 7 && longest <= RUN_MAX_GROUP, "prefill: groups fit", longest);
    list.n = 0;
    preset_cases("prefill", &whole, &list);
    const char *const best = attn_kernels_name(attn_kernels_get(0));
    int slow = 0;
    for (int i = 0; i < list.n; i++)
        slow +=
            list.cases[i].kernels && !strcmp(list.cases[i].kernels, "sse2") && strcmp(best, "sse2");
    expect(list.n >= 38 + 16 && slow == 0, "prefill: sse2 only where it is the best set", slow);
}

/* Whether the cases of preset threads are pairs that differ by threads alone. */
static int pairs_match(const case_list *list)
{
    int good = 1;
    for (int i = 0; i + 1 < list->n; i += 2) {
        const bench_case *const one = &list->cases[i], *const two = one + 1;
        good &= one->threads == 1 && !one->shares && two->threads == 2 && two->shares;
        good &= one->group > 0 && one->group == two->group;
        good &= i == 0 || one->group != one[-1].group;
        good &= !strcmp(one->name, two->name) && one->mask == two->mask;
        good &= one->heads_q == two->heads_q && one->heads_kv == two->heads_kv;
        good &= one->seq_q == two->seq_q && one->seq_kv == two->seq_kv;
    }
    return good;
}

static void check_threads(void)
{
    static case_list list;
    list.n = 0;
    preset_cases("threads", &whole, &list);
    expect(list.n == 8, "threads: 4 rows, one thread and several", list.n);
    expect(pairs_match(&list), "threads: pairs differ by threads alone", 0);
}

static void check_presets(void)
{
    case_list list = { .n = 0 };
    expect(count_cases("decode", 1, 0, 1) == 45, "decode: 39 grouped, 6 of MLA",
           count_cases("decode", 1, 0, 1));
    expect(count_cases("decode", 0, 16384, 0) == 21, "decode: half of them long",
           count_cases("decode", 0, 16384, 0));
    expect(preset_cases("none", &whole, &list) == 0, "an unknown preset is none", 0);
    expect(!shape_case("1,2,3", &list), "a short shape is refused", 0);
    expect(!shape_case("1,2,3,4,5,6,7,8", &list), "a long shape is refused", 0);
    expect(!shape_case("1,2,2,0,5,6", &list), "a size of 0 is refused", 0);
}

void check_counts(void)
{
    check_model();
    check_prefill();
    check_threads();
    check_presets();
}
