/* dropout.c - what attn_dropout_keep says is what attn_forward does, and both are Philox4x32-10.
 * SPDX-License-Identifier: MIT
 */
#include "laws.h"
#include "oracle.h"
#include "slices.h"

#include <math.h>
#include <string.h>

/* The two neighbouring dropout_p at which one pair of the problem changes from dropped to kept: the
 * threshold to its last bit. */
static float edge_probability(const test_problem *t)
{
    attn_params p = t->p;
    const int64_t b = rng_int(0, p.batch - 1), h = rng_int(0, p.num_heads_q - 1);
    const int64_t i = rng_int(0, p.seq_len_q - 1), j = rng_int(0, p.seq_len_kv - 1);
    uint32_t low = float_bits(1e-9f), high = float_bits(0.99f); /* kept at low, dropped at high */
    while (high - low > 1) {
        p.dropout_p = float_from_bits(low + (high - low) / 2);
        if (oracle_kept(&p, b, h, i, j))
            low = low + (high - low) / 2;
        else
            high = low + (high - low) / 2;
    }
    return float_from_bits(rng_chance(50) ? low : high);
}

/* With the identity for V column j of O is p_j, or exactly 0 where j was dropped. */
void law_dropout(int round)
{
    test_problem t;
    test_shape s;
    int64_t *base;
    int wrong = 0, kept = 0;
    memset(&s, 0, sizeof s);
    s.batch = rng_int(1, 2);
    s.heads_q = rng_int(1, 3);
    s.seq_q = rng_int(1, 20);
    s.seq_kv = rng_int(1, 60);
    s.dim = rng_int(1, 8);
    s.dim_v = s.seq_kv;
    problem_make(&t, &s);
    base = test_alloc((size_t)s.batch * sizeof *base);
    for (int64_t b = 0; b < s.batch; b++)
        base[b] = rng_chance(30) ? (int64_t)1 << 33 : rng_int(0, 3000);
    tensor_fill(&t.v, 0);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < t.v.heads; h++)
            for (int64_t j = 0; j < s.seq_kv; j++)
                tensor_set(&t.v, b, h, j, j, 1);
    tensor_remember(&t.v);
    t.p.key_base = base;
    t.p.dropout_seed = rng_u64();
    t.p.dropout_p = round % 4 == 0 ? 0.05f + 0.9f * rng_unit() : edge_probability(&t);
    if (!problem_run(&t))
        return;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads_q; h++)
            for (int64_t i = 0; i < s.seq_q; i++)
                for (int64_t j = 0; j < s.seq_kv; j++) {
                    attn_pair at;
                    int told;
                    at.batch = b, at.head = h, at.i = i, at.j = j;
                    at.pos = base[b] + i + slice_offset(&t.p, b);
                    at.n = base[b] + j;
                    told = attn_dropout_keep(t.p.dropout_seed, t.p.dropout_p, &at);
                    kept += told;
                    wrong += told != (tensor_get(&t.o, b, h, i, j) != 0) ||
                             told != oracle_kept(&t.p, b, h, i, j);
                }
    CHECK(wrong == 0, "%d pairs of %lld are not dropped as told (%d kept)", wrong,
          (long long)(s.batch * s.heads_q * s.seq_q * s.seq_kv), kept);
}

/* The known answers published with Random123. A pair is kept iff word 0 >= floor(p 2^32), so the
 * two binary32 values of p on both sides of word / 2^32 show its upper 24 bits. */
void law_philox(int round)
{
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t word;
    } known[] = {
        { { 0, 0, 0, 0 }, 0, 0x6627e8d5u },
        { { 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu },
          0xffffffffffffffffu,
          0x408f276du },
        { { 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u },
          0x299f31d0a4093822u,
          0xd16cfe09u },
    };
    (void)round;
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        const double exact = (double)known[n].word / 4294967296.0;
        float below = (float)exact, above;
        attn_pair at;
        memset(&at, 0, sizeof at);
        at.n = known[n].counter[0], at.pos = known[n].counter[1];
        at.head = known[n].counter[2], at.batch = known[n].counter[3];
        if ((double)below > exact)
            below = nextafterf(below, 0);
        above = nextafterf(below, 1);
        CHECK(attn_dropout_keep(known[n].key, below, &at) == 1 &&
                  attn_dropout_keep(known[n].key, above, &at) == 0,
              "known answer %lu", (unsigned long)n);
    }
    CHECK(attn_dropout_keep(1, 0.5f, NULL) == 0, "no pair");
}

/* What attn_forward refuses has a meaning here: 1 or more drops everything, not above 0 nothing. */
void law_keep_range(int round)
{
    const float drop[] = { 1.0f, 2.0f, 4294967296.0f, HUGE_VALF };
    const float keep[] = {
        0.0f, -0.0f, -1.0f, -HUGE_VALF, float_from_bits(0x7fc00000u), float_from_bits(0xffc00000u)
    };
    (void)round;
    for (int n = 0; n < 50; n++) {
        const uint64_t seed = rng_u64();
        attn_pair at;
        memset(&at, 0, sizeof at);
        at.n = rng_int(0, 10000), at.pos = rng_int(0, 10000), at.head = rng_int(0, 100);
        for (size_t i = 0; i < sizeof drop / sizeof *drop; i++)
            CHECK(attn_dropout_keep(seed, drop[i], &at) == 0, "dropout_p %g", (double)drop[i]);
        for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
            CHECK(attn_dropout_keep(seed, keep[i], &at) == 1, "dropout_p %g", (double)keep[i]);
    }
}
