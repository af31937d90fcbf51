/* src/forward.c - attn_forward, and what a caller may ask about a call.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "convert.c"
#include "validate.c"
#include "gather.c"
#include "run.c"
#include "short.c"

ATTN_API const char *attn_version(void)
{
    return ATTN_VERSION_STRING;
}

ATTN_API size_t attn_params_size(void)
{
    return sizeof(attn_params);
}

ATTN_API const char *attn_impl_name(int impl)
{
    /* The names are in the order of attn_impl. */
    static const char *const names[] = { "default", "tiled", "naive", "auto" };
    return impl >= 0 && impl < COUNT_OF(names) ? names[impl] : NULL;
}

ATTN_API const char *attn_status_string(attn_status status)
{
    static const char *const names[] = { "ok",
                                         "bad argument",
                                         "sizes exceed the address space",
                                         "workspace too small",
                                         "not supported",
                                         "callback failed",
                                         "cache full",
                                         "damaged data" };
    const int s = (int)status;
    return s >= 0 && s < COUNT_OF(names) ? names[s] : "unknown status";
}

#define FIXED_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(call)))

/* workspace_bytes counts the bytes for `workers` workers; 0 where there is nothing to do. */
static int64_t workspace_bytes(const problem *pr, const plan *pl, int workers)
{
    if (is_empty(&pr->p))
        return 0;
    return plus(plus(FIXED_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* plan_call plans a call, with its prefix once for the batch where that is possible. */
static void plan_call(const problem *pr, plan *pl, int small, int64_t worker_bytes)
{
    int64_t items;
    begin_plan(pr, pl, small);
    pl->worker_bytes = min64(worker_bytes, pl->tuning.item_bytes - FIXED_BYTES);
    pl->modified = has_modifier(&pr->p);
    plan_masks(&pr->p, pl);
    divide_plan(pr, pl);
    items = pl->split.parts ? TOO_BIG : pl->items;
    if (!small && !is_empty(&pr->p))
        pl->prefix_keys = prefix_of(pr, &pl->prefix_why);
    if (!pl->prefix_keys)
        return;
    divide_plan(pr, pl);
    pl->prefix_why = plan_prefix(pr, pl, items);
    if (pl->prefix_why) {
        pl->prefix_keys = 0;
        divide_plan(pr, pl);
    }
}

/* workers_within tells how many of the plan's workers fit. */
static int workers_within(const problem *pr, const plan *pl, size_t bytes)
{
    const int64_t one = workspace_bytes(pr, pl, 1), most = workspace_bytes(pr, pl, pl->workers);
    if ((uint64_t)bytes >= (uint64_t)most)
        return pl->workers;
    if ((uint64_t)bytes < (uint64_t)one)
        return 0;
    return (int)(((int64_t)bytes - one) / pl->slot_bytes) + 1;
}

/* plan_within takes the plan that lets most workers run, and returns how many run, or 0 if the
 * workspace is too small. The candidates are the best plan; that plan with what there is for each
 * worker, as a shorter call may want larger slots or memory to divide keys than the call whose
 * workspace it is; and the small plan. Fewer rows, keys, row tiles and tree slots need less each in
 * a small plan, so the workspace of a call holds any shorter one. Where not even that fits, tiles of keys
 * are halved until one worker does: to a block, or to a panel with kernels whose sums follow panels. */
static int plan_within(const problem *pr, plan *pl, size_t bytes)
{
    const int64_t usual = INT64_MAX, limit = ADDRESS_LIMIT;
    const int64_t room = (uint64_t)bytes < (uint64_t)limit ? (int64_t)bytes : limit;
    const int64_t each = room / pr->p.num_workers - FIXED_BYTES;
    const struct {
        int small;
        int64_t worker_bytes;
    } tries[] = { { 0, usual }, { 0, each }, { 1, usual } };
    int best = -1, most = -1, last = -1, least, n, i;
    for (i = 0; i < COUNT_OF(tries); i++) {
        plan_call(pr, pl, tries[i].small, tries[i].worker_bytes);
        last = i;
        n = workers_within(pr, pl, bytes);
        if (n > most) {
            most = n;
            best = i;
        }
        if (i == 0 && n == pl->workers)
            break;
    }
    least = pl->kernels->pack_values ? ATTN_PANEL_KEYS : ATTN_BLOCK;
    for (i = 2; most == 0 && pr->p.tile_keys >> (i - 1) >= least; i++) {
        plan_call(pr, pl, i, usual);
        most = workers_within(pr, pl, bytes);
        last = best;
    }
    if (most > 0 && last != best) /* Otherwise the small plan tells how much is needed. */
        plan_call(pr, pl, tries[best].small, tries[best].worker_bytes);
    return most;
}

/* ask_backend returns above 0 where the backend takes the call, 0 where the CPU does, and below 0
 * where nobody can. *why (may be NULL) then gets the backend's reason. */
static int ask_backend(const problem *pr, text *why)
{
    const attn_backend *backend = pr->p.backend;
    char reason[160];
    int answer;
    if (!backend)
        return 0;
    reason[0] = 0;
    answer = backend->supports(backend, pr, reason, sizeof reason);
    reason[sizeof reason - 1] = 0;
    if (answer <= 0 && why) {
        put(why, backend->name);
        put(why, " refused: ");
        put(why, reason);
    }
    return answer;
}

/* check_workspace_apart is check_call_apart with the bytes of a workspace that a run uses. */
static attn_status check_workspace_apart(const attn_params *p, const void *workspace, int64_t bytes,
                                         text *why)
{
    const area a = area_of_bytes("the workspace", workspace, bytes);
    return check_call_apart(p, &a, why);
}

/* A backend has one size, and there is no plan of the CPU. */
static attn_status check_backend(const problem *pr, const void *workspace, size_t bytes, text *why)
{
    size_t need = 0;
    const attn_status status = pr->p.backend->workspace_size(pr->p.backend, pr, &need);
    if (status)
        return bad(why, status, "the backend cannot size its workspace");
    return bytes < need ? too_small(why, (int64_t)bytes, (int64_t)need, "attn_workspace_size")
                        : check_workspace_apart(&pr->p, workspace, (int64_t)need, why);
}

static attn_status check_size_limit(const problem *pr, const plan *pl, text *why)
{
    const int64_t need = workspace_bytes(pr, pl, pl->workers);
    const int too_long = pl->impl == ATTN_IMPL_NAIVE && pr->max_kv_len > INT32_MAX;
    if (need < ADDRESS_LIMIT && !too_long)
        return ATTN_OK;
    return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", pr->p.seq_len_kv,
                     ": the workspace would exceed the address space (naive needs "
                     "seq_len_q * seq_len_kv floats)");
}

/* plan_cpu plans a call that the CPU takes, within `room` bytes; *workers of it can run. */
static attn_status plan_cpu(problem *pr, plan *pl, int *workers, size_t room, text *why)
{
    attn_status status;
    settle_workers(&pr->p);
    *workers = plan_within(pr, pl, room);
    status = check_size_limit(pr, pl, why);
    if (!status && *workers == 0)
        status = too_small(why, (int64_t)room, workspace_bytes(pr, pl, 1), "attn_workspace_size");
    return status;
}

/* open_forward puts problem and plan where items find them: at the start of the workspace. */
static call *open_forward(const problem *pr, const plan *pl, int workers, void *workspace)
{
    char *base = align_memory(workspace);
    call *c = (call *)(void *)base;
    c->pr = *pr;
    c->pl = *pl;
    c->slot_count = workers;
    base += aligned((int64_t)sizeof *c);
    c->shared = (float *)(void *)base;
    c->slots = base + pl->shared_bytes;
    ATTN_ASSERT((uintptr_t)c->slots % ALIGNMENT == 0);
    ATTN_ASSERT(workers <= pl->workers);
    return c;
}

/* check_call checks everything that can be wrong before a run, in the order in which attn_forward
 * finds it. *opened (NULL means not wanted) becomes the run in the workspace if the CPU has one to
 * do, or else NULL. */
OWN_FRAME static attn_status check_call(const attn_params *p, void *workspace, size_t bytes,
                                        call **opened, text *why)
{
    const size_t room = workspace ? bytes : 0;
    problem pr;
    plan pl;
    int workers, answer;
    attn_status status = validate(p, &pr, 1, why);
    if (opened)
        *opened = NULL;
    if (status)
        return status;
    answer = ask_backend(&pr, NULL);
    if (answer < 0) {
        ask_backend(&pr, why);
        return ATTN_ERR_UNSUPPORTED;
    }
    if (answer && !is_empty(p))
        return check_backend(&pr, workspace, room, why);
    settle_gather(p, &pr, may_gather(&pr) && is_sparse(&pr));
    status = plan_cpu(&pr, &pl, &workers, room, why);
    if (!status && !is_empty(p))
        status = check_workspace_apart(&pr.p, workspace, workspace_bytes(&pr, &pl, workers), why);
    if (!status && opened && !is_empty(p))
        *opened = open_forward(&pr, &pl, workers, workspace);
    return status;
}

ATTN_API const char *attn_check(const attn_params *p, const void *workspace, size_t bytes,
                                char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    short_call c;
    attn_status status = begin_short(p, workspace, bytes, &c);
    if (status && HAS_LONG_CALLS)
        status = check_call(p, (void *)(uintptr_t)workspace, bytes, NULL, &why);
    else
        put(&why, why_not_short(status));
    return verdict(status, buffer, &why);
}

ATTN_API attn_status attn_problem_of(const attn_params *p, attn_problem *pr, char *buffer,
                                     size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    return pr ? validate(p, pr, 0, &why) : bad(&why, ATTN_ERR_ARG, "problem is NULL");
}

ATTN_API attn_sequence attn_sequence_of(const attn_problem *pr, int64_t b)
{
    return sequence_of(&pr->p, b);
}

/* leave_one_row makes the problem one with one query row, which may divide its keys where more rows
 * do not, and take another kernel set, whose tiles have more keys. */
static void leave_one_row(const attn_params *asked, problem *pr)
{
    pr->p.seq_len_q = min64(asked->seq_len_q, 1);
    pr->p.part.row_count = min64(asked->part.row_count, 1);
    pr->max_q_len = min64(pr->max_q_len, 1);
    pr->p.kernels = asked->kernels;
    pr->p.tile_keys = asked->tile_keys;
    resolve_kernels(pr);
}

/* size_of_call gives what attn_workspace_size says of a call without a backend: enough for all
 * workers, whether the prefix will be shared or not, whether keys will be gathered, and for one row. It changes *pr. */
static attn_status size_of_call(const attn_params *asked, problem *pr, text *why, size_t *bytes)
{
    int64_t most = 0;
    int row, n;
    plan pl;
    attn_status status = ATTN_OK;
    pr->size_query = 1;
    for (row = 0; row < 2 && !status; row++) {
        if (row)
            leave_one_row(asked, pr);
        for (n = 0; n < 4 && !status; n++) {
            pr->p.shared_keys = n % 2 ? 0 : asked->shared_keys;
            settle_gather(asked, pr, n / 2 && may_gather(pr));
            plan_call(pr, &pl, 0, INT64_MAX);
            status = check_size_limit(pr, &pl, why);
            most = max64(most, workspace_bytes(pr, &pl, pl.workers));
        }
    }
    *bytes = status ? 0 : (size_t)most;
    return status;
}

OWN_FRAME ATTN_API attn_status attn_workspace_size(const attn_params *p, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    int answer;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    if (!HAS_LONG_CALLS)
        return size_of_short(p, bytes);
    status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    answer = ask_backend(&pr, NULL);
    if (answer < 0)
        return ATTN_ERR_UNSUPPORTED;
    if (answer)
        return pr.p.backend->workspace_size(pr.p.backend, &pr, bytes);
    return size_of_call(p, &pr, &why, bytes);
}

static void tell_log(const attn_params *p, int level, const char *sentence)
{
    if (HAS_SENTENCES && p->log)
        p->log(p->log_user, level, sentence);
}

/* forward_backend runs the call on the backend and returns 1, or logs why not and returns 0. */
OWN_FRAME static int forward_backend(const attn_params *p, void *workspace, size_t bytes,
                                     attn_status *status)
{
    char sentence[256];
    text why = text_in(sentence, sizeof sentence);
    problem pr;
    validate(p, &pr, 1, &why); /* It cannot fail, as check_call has passed. */
    if (ask_backend(&pr, &why) > 0) {
        *status = p->backend->run(p->backend, &pr, workspace, bytes);
        return 1;
    }
    tell_log(p, ATTN_LOG_INFO, sentence);
    return 0;
}

/* forward_cpu runs a call that names no backend. */
static attn_status forward_cpu(const attn_params *p, void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    call *c;
    const attn_status status = check_call(p, workspace, bytes, &c, &why);
    return status || !c ? status : run_lists(c);
}

/* A damaged tuning text only costs speed. */
OWN_FRAME static void warn_of_tuning(const attn_params *p)
{
    char sentence[256];
    text why = text_in(sentence, sizeof sentence);
    tuning t;
    if (p->tuning && p->log && !read_tuning(p->tuning, "", &t, &why))
        tell_log(p, ATTN_LOG_WARNING, sentence);
}

ATTN_API attn_status attn_forward(const attn_params *p, void *workspace, size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    call *c;
    attn_status status = forward_short(p, workspace, workspace_bytes);
    if (!status || !HAS_LONG_CALLS)
        return status;
    status = check_call(p, workspace, workspace_bytes, &c, &why);
    if (status || is_empty(p))
        return status;
    if (p->backend && forward_backend(p, workspace, workspace_bytes, &status))
        return status;
    warn_of_tuning(p);
    /* NULL means that a backend took the call, and then did not. */
    return c ? run_lists(c) : ATTN_ERR_CALLBACK;
}
