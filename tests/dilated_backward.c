/* dilated_backward.c - gradients of dilated attention.
 * SPDX-License-Identifier: MIT
 *
 * Of one softmax: oracle_backward of the call whose bias holds what all branches say. Of a mean:
 * the sum over branches of the same for one branch alone, dout divided by the branches of the head.
 */
#include "dilated.h"
#include "gradients.h"
#include "oracle.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 500, LAWS = 60 };

typedef struct backward_case {
    dilated_case c;
    gradients_case s;
} backward_case;

static int has_sums(const dilated_case *c)
{
    return c->t.p.lse.data != NULL || c->t.p.stats.data != NULL;
}

/* The forward call, and tensors for gradients. */
static int attach(backward_case *b)
{
    if (!dilated_run(&b->c.t.p, &b->c.d))
        return 0;
    memset(&b->s, 0, sizeof b->s);
    b->s.t = b->c.t;
    if (b->s.t.lse.data == NULL) /* of a mean: for the tensors' sake alone */
        tensor_make(&b->s.t.lse, ATTN_F32, LAYOUT_PACKED, 1, 1, 1, 1);
    gradients_attach(&b->s);
    memset(&b->s.g.dbias, 0, sizeof b->s.g.dbias);
    b->s.g.dslopes = NULL;
    b->s.out[ORACLE_DBIAS].memory = b->s.out[ORACLE_DSLOPES].memory = NULL;
    if (b->c.d.merge == ATTN_DILATED_MEAN)
        memset(&b->s.g.dlse, 0, sizeof b->s.g.dlse);
    gradients_remember(&b->s);
    return 1;
}

static int make(backward_case *b)
{
    do
        dilated_make(&b->c, rng_chance(30) ? 0 : 5, 45);
    while (b->c.d.merge == ATTN_DILATED_LSE &&
           (!has_sums(&b->c) || !dilated_is_one_softmax(&b->c)));
    return attach(b);
}

static int run(const attn_params *asked, const attn_dilated *d, const attn_gradients *given)
{
    attn_gradients reworded = *given, *g = &reworded;
    attn_params p = gradients_params(asked);
    char text[300];
    size_t need = 0;
    attn_status status;
    void *workspace;
    p.backend = NULL;
    test_reword(&p, g);
    status = attn_dilated_backward_workspace_size(&p, d, g, &need);
    workspace = test_alloc(need);
    if (status == ATTN_OK)
        status = attn_dilated_backward(&p, d, g, workspace, need);
    return CHECK(status == ATTN_OK, "%s: %s", attn_status_string(status),
                 attn_dilated_backward_check(&p, d, g, workspace, need, text, sizeof text)) &&
           CHECK(test_margins() == 0, "an array was overrun");
}

/* ---- a mean ---------------------------------------------------------------------------------- */

static int branches_of(const dilated_case *c, int64_t h)
{
    int count = 0;
    for (int n = 0; n < c->d.num_branches; n++) {
        const attn_dilated_branch *b = &c->branches[n];
        count += h >= b->head_begin && (b->head_count == 0 || h < b->head_begin + b->head_count);
    }
    return count;
}

/* A copy of dout by the number of branches. */
static test_tensor divided_dout(const backward_case *b)
{
    const test_tensor *from = &b->s.dout;
    test_tensor to;
    tensor_make(&to, ATTN_F32, from->layout == LAYOUT_PACKED ? LAYOUT_BHSD : from->layout,
                from->batch, from->heads, from->seq, from->dim);
    for (int64_t n = 0; n < from->batch; n++)
        for (int64_t h = 0; h < from->heads; h++)
            for (int64_t i = 0; i < from->seq; i++)
                for (int64_t d = 0; d < from->dim; d++)
                    tensor_set(&to, n, h, i, d,
                               tensor_get(from, n, h, i, d) / (float)branches_of(&b->c, h));
    return to;
}

static void add_expected(oracle_gradient *sum, const oracle_gradient *part)
{
    const int64_t count = part->size[0] * part->size[1] * part->size[2] * part->size[3];
    for (int64_t n = 0; n < count; n++) {
        sum->value[n] += part->value[n];
        sum->tolerance[n] += part->tolerance[n];
    }
}

static int expect_mean(backward_case *b, oracle_gradient expected[ORACLE_GRADIENTS])
{
    attn_gradients g = b->s.g;
    test_tensor dout = divided_dout(b);
    for (int n = 0; n < b->c.d.num_branches; n++) {
        dilated_case one = b->c;
        oracle_gradient part[ORACLE_GRADIENTS];
        attn_params p;
        one.branches[0] = b->c.branches[n];
        one.d.branches = one.branches;
        one.d.num_branches = 1;
        p = dilated_one_softmax(&one);
        g.dout = tensor_input(&dout);
        if (oracle_backward(&p, &g, n == 0 ? expected : part) != 0)
            return 0;
        for (int which = ORACLE_DQ; n > 0 && which <= ORACLE_DV; which++)
            add_expected(&expected[which], &part[which]);
        if (n > 0)
            oracle_backward_free(part);
    }
    return 1;
}

static void check_oracle(backward_case *b)
{
    oracle_gradient expected[ORACLE_GRADIENTS];
    int done;
    if (b->c.d.merge == ATTN_DILATED_MEAN) {
        done = expect_mean(b, expected);
    } else {
        const attn_params p = dilated_one_softmax(&b->c);
        done = oracle_backward(&p, &b->s.g, expected) == 0;
    }
    if (!CHECK(done, "no memory"))
        return;
    gradients_check(&b->s, expected);
    oracle_backward_free(expected);
}

static void drop_outputs(gradients_case *s)
{
    if (rng_chance(10))
        s->g.dq.data = NULL;
    if (rng_chance(10))
        s->g.dk.data = NULL;
    if (rng_chance(10) && (s->g.dq.data != NULL || s->g.dk.data != NULL))
        s->g.dv.data = NULL;
}

static void run_oracle(void)
{
    for (int n = 0; n < ROUNDS; n++) {
        backward_case b;
        if (!begin_case("gradients, %d", n))
            continue;
        if (!make(&b))
            continue;
        drop_outputs(&b.s);
        b.c.d.variant = rng_chance(30); /* changes nothing, but has no statistics */
        b.c.d.variant &= b.s.t.p.stats.data == NULL;
        if (b.s.t.p.stats.data != NULL && b.s.t.p.lse.data != NULL)
            tensor_fill(&b.s.t.lse, NAN); /* is not read */
        if (!run(&b.s.t.p, &b.c.d, &b.s.g))
            continue;
        CHECK(tensor_unchanged(&b.s.t.q) && tensor_unchanged(&b.s.t.k) &&
                  tensor_unchanged(&b.s.t.v) && tensor_unchanged(&b.s.t.o) &&
                  tensor_unchanged(&b.s.t.stats) && tensor_unchanged(&b.s.dout) &&
                  tensor_unchanged(&b.s.dlse),
              "an input was changed");
        check_oracle(&b);
    }
}

int dilated_gradients_square(dilated_case *c, attn_gradients *g, int64_t most_positions)
{
    backward_case b;
    do
        dilated_make_square(&b.c, most_positions > 200 ? 2 : 5, most_positions, 0);
    while (b.c.d.merge == ATTN_DILATED_LSE && (!has_sums(&b.c) || !dilated_is_one_softmax(&b.c)));
    if (!attach(&b))
        return 0;
    b.s.g.dsinks = NULL;
    b.s.out[ORACLE_DSINKS].memory = NULL;
    drop_outputs(&b.s);
    if (!run(&b.s.t.p, &b.c.d, &b.s.g))
        return 0;
    if (most_positions < 200)
        check_oracle(&b);
    *c = b.c;
    c->d.branches = c->branches;
    *g = b.s.g;
    return 1;
}

/* ---- laws ------------------------------------------------------------------------------------ */

static void run_workers(void)
{
    for (int n = 0; n < LAWS; n++) {
        backward_case b;
        gradients_case other;
        pool threads = pool_of((int)rng_int(2, 4), (int)rng_int(0, POOL_ORDERS - 1), n % 3 == 0);
        if (!begin_case("gradients, threads, %d", n))
            continue;
        if (!make(&b))
            continue;
        gradients_twin(&b.s, &other);
        memset(&other.g.dbias, 0, sizeof other.g.dbias);
        other.g.dslopes = NULL;
        other.t.p.num_workers = threads.workers;
        other.t.p.parallel_for = pool_for;
        other.t.p.parallel_user = &threads;
        if (run(&b.s.t.p, &b.c.d, &b.s.g) && run(&other.t.p, &b.c.d, &other.g))
            gradients_same(&b.s, &other, "threads");
    }
}

/* One branch of all positions: attn_backward's bits. */
static void run_one(void)
{
    for (int n = 0; n < LAWS; n++) {
        backward_case b;
        gradients_case other;
        if (!begin_case("gradients, one branch of all positions, %d", n))
            continue;
        if (!make(&b))
            continue;
        b.c.d.merge = ATTN_DILATED_LSE;
        b.c.d.num_branches = 1;
        memset(&b.c.branches[0], 0, sizeof b.c.branches[0]);
        if ((b.s.t.p.lse.data == NULL && b.s.t.p.stats.data == NULL) ||
            !dilated_run(&b.s.t.p, &b.c.d))
            continue;
        gradients_remember(&b.s);
        gradients_twin(&b.s, &other);
        memset(&other.g.dbias, 0, sizeof other.g.dbias);
        other.g.dslopes = NULL;
        other.g.gemms = 5;
        if (run(&b.s.t.p, &b.c.d, &b.s.g) && T.impl != ATTN_IMPL_NAIVE &&
            CHECK(backward_run(&other.t.p, &other.g) == ATTN_OK, "attn_backward"))
            gradients_same(&b.s, &other, "attn_backward");
    }
}

void dilated_gradients(void)
{
    run_oracle();
    run_workers();
    run_one();
}
