/* verify.c - whether what a call wrote is right.
 * SPDX-License-Identifier: MIT */
#include "stages.h"

#include <stdlib.h>
#include <string.h>

#include "../../tests/sampled.h"

static attn_status plain_size(const bench_run *run, const attn_params *p, size_t *bytes)
{
    char why[200];
    return run_is_dilated(run) ? dilated_size(&run->dilated, p, NULL, bytes, why, sizeof why)
                               : attn_workspace_size(p, bytes);
}

/* One call with plain arrays, on the CPU where the path has its bits, by one process. */
static int call_plain(bench_run *run)
{
    attn_params p = run->plain;
    size_t need = run->workspace_bytes;
    p.key_base = run->p.key_base;
    if (run->path->device == PATH_EXACT)
        p.backend = NULL;
    if (plain_size(run, &p, &need) != ATTN_OK)
        return 0;
    void *const workspace = malloc(need);
    const int done =
        workspace && (run_is_dilated(run) ? dilated_call(&run->dilated, &p, NULL, workspace, need)
                                          : attn_forward(&p, workspace, need)) == ATTN_OK;
    free(workspace);
    return done;
}

/* Where the keys lie changes no bit: keys in another order would be within the tolerance. Nor does
 * a device in exact mode, or a ring that is canonical. */
static int verify_bits(bench_run *run, bench_result *r)
{
    const size_t bytes = run_sizes(run).o;
    void *const before = malloc(bytes);
    const char *const where = run->path->device == PATH_EXACT ? "on the CPU"
                              : run_is_divided(run)           ? "in one process"
                                                              : "with plain arrays";
    if (!before)
        return run_no_memory(run, r);
    memcpy(before, run->o, bytes);
    memset(run->o, 0xff, bytes); /* as before the first call, in rows that none is to write */
    const int done = call_plain(run), same = done && !memcmp(before, run->o, bytes);
    free(before);
    if (!done)
        return run_skip(r, "the call %s failed", where);
    return same || run_skip(r, RUN_WRONG ": other bits than %s; not timed", where);
}

int run_verify(bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    sampled_errors errors = { 0, 0 };
    char why[200] = "no memory for the double oracle";
    if (!(c->appends    ? sampled_append(&run->append, &errors, why, sizeof why)
          : c->backward ? sampled_gradients(&run->gradients, &run->plain, &errors)
                        : sampled_rows(c, &run->plain, &errors)))
        return run_skip(r, "%s", why);
    r->max_err = errors.max_err;
    r->err_tolerance = errors.err_tolerance;
    const int exact = (run->path->device == PATH_EXACT || run->rings.canonical) && !c->backward;
    /* Recent keys hold what is stored, but in blocks of their own. */
    const int bits = (c->keys.kind != KEYS_PLAIN && !c->keys.recent) || exact;
    if (r->err_tolerance <= 1 && bits && !c->appends)
        return verify_bits(run, r);
    if (r->err_tolerance <= 1)
        return 1;
    return run_skip(r, RUN_WRONG ": off by %.3g, %.3g times the tolerance; not timed", r->max_err,
                    r->err_tolerance);
}

int run_was_wrong(const bench_result *r)
{
    return !strncmp(r->skipped, RUN_WRONG, strlen(RUN_WRONG));
}
