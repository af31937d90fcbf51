/* relative.c - the summary of cases that were timed in turn with another on the same tensors.
 * SPDX-License-Identifier: MIT */
#include "relative.h"

#include "report.h"

void relative_masks(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->speedup <= 0 || r->shares != SHARES_BUT_MASK) continue;
        if (!said++)
            say("\nmasks against none, in turn on the same tensors: time over its time, and the "
                "share of pairs shown\n");
        say("  %-9s %-16s %-6s %6.1f %% of the time, %5.1f %% of the pairs\n", r->scenario,
            r->mask, r->impl, 100 / r->speedup, 100 * r->visible);
    }
}
