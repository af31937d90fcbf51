/* numerics.c - the error over the number of keys stays within the bound of docs/numerics.md.
 * SPDX-License-Identifier: MIT
 *
 * 1K to 16K keys; `make numerics` goes on to 1M.
 */
#include "error_table.h"
#include "test.h"

static void check_cell(void *user, const error_cell *cell)
{
    (void)user;
    if (!begin_case("%lld keys of %s: data %d, path %d, quantity %d",
                    (long long)error_table_keys(cell->length), dtype_name(cell->dtype), cell->data,
                    cell->path, cell->quantity))
        return;
    if (cell->quantity != ERROR_O_STORED) /* its tolerance holds half an ulp that is used up */
        worst_note(cell->units);
    CHECK(cell->bound <= 1, "%.3g times the bound", cell->bound);
    CHECK(cell->units <= 1, "%.3g times the tolerance", cell->units);
}

static void check_bits(void *user, const char *name, const error_cell *at, int64_t different)
{
    (void)user;
    if (begin_case("%lld keys of %s: data %d, %s", (long long)error_table_keys(at->length),
                   dtype_name(at->dtype), at->data, name))
        CHECK(different == 0, "%lld numbers differ from a decode step", (long long)different);
}

TEST_GROUP(numerics, RUN_ONCE, "the error to 16K keys stays within docs/numerics.md")
{
    const error_sink sink = { NULL, check_cell, check_bits };
    const char *failed = error_table_measure(3, &sink);
    if (begin_case("all of them"))
        CHECK(failed == NULL, "%s", failed);
}
