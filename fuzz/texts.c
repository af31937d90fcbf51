/* texts.c - harnesses of what reads text from outside: options, JSON of the bench, case files.
 * SPDX-License-Identifier: MIT
 */
#include "../bench/commands/json_read.h"
#include "../tests/cases.h"
#include "../tests/system.h"
#include "../tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes up to the first zero as a text that ends before a guard page. */
static char *text_of(const char *bytes, size_t count)
{
    char *text = test_alloc_at(count + 1, PLACE_PAGE_AFTER);
    memcpy(text, bytes, count);
    text[count] = '\0';
    return text;
}

/* ---- options --------------------------------------------------------------------------------- */

FUZZ_HARNESS(options, "options as text: a wrong one changes nothing, a right one is stable")
{
    enum { WHY = 200 };
    const char *text = text_of(bytes, count);
    attn_params p, before, again;
    char *why = test_alloc_at(WHY, PLACE_PAGE_AFTER), small[9];
    attn_status status;
    memset(&p, 0, sizeof p);
    before = p;
    status = attn_params_from_string(&p, text, why, WHY);
    again = p;
    CHECK(memchr(why, '\0', WHY) != NULL && why[0] != '\0', "no sentence");
    if (status != ATTN_OK)
        CHECK(memcmp(&p, &before, sizeof p) == 0, "a wrong text changed something");
    CHECK(attn_params_from_string(&again, text, small, sizeof small) == status &&
              memcmp(&p, &again, sizeof p) == 0 && strncmp(small, why, sizeof small - 1) == 0,
          "another result in the second run");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Visits every value; returns how many they are. */
static size_t walk(const char *value)
{
    size_t values = 1;
    for (const char *child = json_first(value); child != NULL; child = json_next(child)) {
        values += walk(child);
        if (*child == '"' && *value == '{') {
            const char *member = json_member(value, child + 1), *text = json_text(value, child + 1);
            const char *next = json_next(child);
            CHECK(member != NULL && (next == NULL || member < next), "a key is no member");
            CHECK(text == NULL || text == member + 1, "a text is not its member");
            values += member != NULL ? walk(member) : 0;
            json_number(value, child + 1);
        }
    }
    return values;
}

FUZZ_HARNESS(json, "JSON that the bench reads back: a sentence, or every value found")
{
    char why[100] = "";
    char *parsed = json_parse(bytes, count, why, sizeof why);
    CHECK((parsed != NULL) == (why[0] == '\0'), "a document and a sentence, or neither");
    if (parsed != NULL)
        walk(parsed);
    free(parsed);
}

/* ---- case files ------------------------------------------------------------------------------ */

/* The text is the input; tensors are files of a case that is there. */
FUZZ_HARNESS(cases, "case.txt of a conformance case")
{
    static test_case c;
    FILE *file = system_temporary_file();
    int held;
    memset(&c, 0, sizeof c);
    c.dir = "tests/cases/bool_mask_empty_row_softmax";
    if (file == NULL || fwrite(bytes, 1, count, file) != count) {
        SKIP("no temporary file");
        return;
    }
    rewind(file);
    held = case_read_from(&c, file);
    CHECK(held == (c.why[0] == '\0'), "%s: '%s'", held ? "read" : "refused", c.why);
    CHECK(c.attribute_count <= CASE_ATTRIBUTES && c.input_count <= CASE_TENSORS &&
              c.output_count <= CASE_TENSORS,
          "more than there is room for");
}
