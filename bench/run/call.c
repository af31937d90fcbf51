/* call.c - one call of a run.
 * SPDX-License-Identifier: MIT */
#include "stages.h"

#include <stdlib.h>

static attn_status attend(bench_run *run, void *workspace)
{
    const attn_gradients *const g = run_gradients(run);
    const size_t bytes = run->workspace_bytes;
    if (run_is_divided(run))
        return rings_call(&run->rings);
    if (run_is_dilated(run))
        return dilated_call(&run->dilated, &run->p, g, workspace, bytes);
    if (run->c->pattern_anew && !mask_again(run->c, &run->mask))
        return ATTN_ERR_ARG;
    return g ? attn_backward(&run->p, g, workspace, bytes)
             : attn_forward(&run->p, workspace, bytes);
}

/* As a program without a pool of memory does it. */
static int call_anew(bench_run *run)
{
    void *const workspace = malloc(run->workspace_bytes + 1);
    const int failed = !workspace || attend(run, workspace) != ATTN_OK;
    free(workspace);
    return failed;
}

int run_call(void *argument)
{
    bench_run *const run = argument;
    if (run->c->appends)
        return append_call(&run->append);
    if (run->c->memory_anew && !run_is_divided(run))
        return call_anew(run);
    return attend(run, run->workspace) != ATTN_OK;
}

int run_timed_call(void *run)
{
    return stop_wanted() || run_call(run);
}
