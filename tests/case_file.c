/* case_file.c - reads a folder of the format of tests/cases/README.md.
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 16, MAX_LINE = 200 };
static const double MAX_ELEMENTS = 268435456.0; /* 2^28: a larger tensor is a damaged file */

const case_type case_types[CASE_TYPES] = { { "f16", 2 },  { "f32", 4 }, { "f64", 8 },
                                           { "bool", 1 }, { "i32", 4 }, { "i64", 8 } };

int case_fail(test_case *c, const char *format, ...)
{
    va_list arguments;
    size_t used;
    if (c->why[0] != '\0')
        return 0;
    if (c->doing != NULL)
        snprintf(c->why, sizeof c->why, "%s: ", c->doing);
    used = strlen(c->why);
    va_start(arguments, format);
    vsnprintf(c->why + used, sizeof c->why - used, format, arguments);
    va_end(arguments);
    return 0;
}

void case_note(test_case *c, const char *text)
{
    const size_t used = strlen(c->note);
    snprintf(c->note + used, sizeof c->note - used, "%s%s", used > 0 ? "; " : "", text);
}

/* ---- reading case.txt -------------------------------------------------------------------------
 * Each reader gets the tokens of one line; it returns 0 after case_fail(). */

int case_to_number(test_case *c, const char *text, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return (end != text && *end == '\0' && *number - *number == 0) ||
           case_fail(c, "'%s' is not a finite number", text);
}

static int to_integer(test_case *c, const char *text, int64_t low, int64_t high, int64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || *number < low || *number > high)
        return case_fail(c, "'%s' is not an integer of %lld..%lld", text, (long long)low,
                         (long long)high);
    return 1;
}

static int copy_text(test_case *c, char *to, size_t size, const char *from)
{
    if (strlen(from) >= size)
        return case_fail(c, "'%s' is too long", from);
    memcpy(to, from, strlen(from) + 1);
    return 1;
}

static int read_format(test_case *c, char **token, int count)
{
    (void)count;
    return (strcmp(token[1], "attncase") == 0 && strcmp(token[2], "1") == 0) ||
           case_fail(c, "the format is '%s %s', not 'attncase 1'", token[1], token[2]);
}

static int read_case(test_case *c, char **token, int count)
{
    const char *folder = strrchr(c->dir, '/');
    (void)count;
    folder = folder != NULL ? folder + 1 : c->dir;
    return strcmp(folder, token[1]) == 0 || case_fail(c, "its name inside is '%s'", token[1]);
}

static int read_op(test_case *c, char **token, int count)
{
    (void)count;
    return copy_text(c, c->op, sizeof c->op, token[1]);
}

static int read_opset(test_case *c, char **token, int count)
{
    int64_t opset;
    (void)count;
    if (!to_integer(c, token[1], 1, 1000, &opset))
        return 0;
    c->opset = (int)opset;
    return 1;
}

static int to_tolerance(test_case *c, const char *text, double *number)
{
    return case_to_number(c, text, number) &&
           (*number >= 0 || case_fail(c, "the tolerance '%s' is negative", text));
}

static int read_tolerance(test_case *c, char **token, int count)
{
    (void)count;
    return to_tolerance(c, token[1], strcmp(token[0], "rtol") == 0 ? &c->rtol : &c->atol);
}

static int read_attribute(test_case *c, char **token, int count)
{
    case_attribute *a = &c->attributes[c->attribute_count];
    (void)count;
    if (c->attribute_count == CASE_ATTRIBUTES)
        return case_fail(c, "more than %d attributes", CASE_ATTRIBUTES);
    c->attribute_count++;
    return copy_text(c, a->name, sizeof a->name, token[1]) &&
           copy_text(c, a->value, sizeof a->value, token[3]);
}

static int read_type(test_case *c, case_tensor *t, const char *name)
{
    for (t->type = 0; t->type < CASE_TYPES; t->type++)
        if (strcmp(case_types[t->type].name, name) == 0)
            return 1;
    return case_fail(c, "%s has the unknown type '%s'", t->name, name);
}

static int read_dims(test_case *c, case_tensor *t, char **token, int count)
{
    double product = 1;
    int64_t rank;
    if (!to_integer(c, token[0], 0, CASE_RANK, &rank))
        return 0;
    t->rank = (int)rank;
    if (count != t->rank + 2)
        return case_fail(c, "%s has rank %d and %d more words", t->name, t->rank, count - 1);
    t->count = 1;
    for (int i = 0; i < t->rank; i++) {
        if (!to_integer(c, token[1 + i], 0, 1 << 28, &t->dim[i]))
            return 0;
        product *= (double)t->dim[i];
        if (product > MAX_ELEMENTS)
            return case_fail(c, "%s is too large", t->name);
        t->count *= t->dim[i];
    }
    return 1;
}

/* input|output SLOT NAME TYPE RANK DIM... FILE */
static int read_tensor(test_case *c, char **token, int count)
{
    const int is_input = strcmp(token[0], "input") == 0;
    int *used = is_input ? &c->input_count : &c->output_count;
    case_tensor *t = (is_input ? c->inputs : c->outputs) + *used;
    if (*used == CASE_TENSORS)
        return case_fail(c, "more than %d %ss", CASE_TENSORS, token[0]);
    ++*used;
    t->rtol = t->atol = -1;
    return copy_text(c, t->name, sizeof t->name, token[2]) && read_type(c, t, token[3]) &&
           read_dims(c, t, token + 4, count - 4) &&
           copy_text(c, t->file, sizeof t->file, token[count - 1]);
}

static case_tensor *find_tensor(case_tensor *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

/* tol OUTPUT RTOL ATOL */
static int read_output_tolerance(test_case *c, char **token, int count)
{
    case_tensor *t = find_tensor(c->outputs, c->output_count, token[1]);
    (void)count;
    if (t == NULL)
        return case_fail(c, "a tolerance for '%s', which is no output", token[1]);
    return to_tolerance(c, token[2], &t->rtol) && to_tolerance(c, token[3], &t->atol);
}

static int read_end(test_case *c, char **token, int count)
{
    (void)token, (void)count;
    c->ended = 1;
    return 1;
}

/* Lines with another first word (comments, source, dim, need ...) are for other readers. */
static const struct {
    const char *word;
    int tokens; /* at least */
    int (*read)(test_case *c, char **token, int count);
} lines[] = {
    { "format", 3, read_format },  { "case", 2, read_case },
    { "op", 2, read_op },          { "opset", 2, read_opset },
    { "rtol", 2, read_tolerance }, { "atol", 2, read_tolerance },
    { "attr", 4, read_attribute }, { "input", 6, read_tensor },
    { "output", 6, read_tensor },  { "tol", 4, read_output_tolerance },
    { "end", 1, read_end },
};

static int read_line(test_case *c, char *line, int is_first)
{
    char *token[MAX_TOKENS];
    int count = 0;
    for (char *at = strtok(line, " "); at != NULL; at = strtok(NULL, " ")) {
        if (count == MAX_TOKENS && line[0] != '#')
            return case_fail(c, "a line of more than %d words", MAX_TOKENS);
        if (count < MAX_TOKENS)
            token[count++] = at;
    }
    if (is_first && (count == 0 || strcmp(token[0], "format") != 0))
        return case_fail(c, "case.txt does not begin with 'format'");
    for (size_t i = 0; count > 0 && i < sizeof lines / sizeof *lines; i++) {
        if (strcmp(token[0], lines[i].word) != 0)
            continue;
        return count >= lines[i].tokens ? lines[i].read(c, token, count)
                                        : case_fail(c, "a '%s' line of %d words", token[0], count);
    }
    return 1;
}

FILE *case_open_file(const char *dir, const char *name)
{
    char path[CASE_PATH];
    if (strlen(dir) + strlen(name) + 2 > sizeof path)
        return NULL;
    strcpy(path, dir);
    strcat(path, "/");
    strcat(path, name);
    return fopen(path, "rb");
}

static int read_text(test_case *c, FILE *file)
{
    char line[MAX_LINE + 2];
    int held = 1;
    if (file == NULL)
        return case_fail(c, "case.txt cannot be read");
    for (int n = 0; held && !c->ended && fgets(line, sizeof line, file) != NULL; n++) {
        const size_t length = strcspn(line, "\n");
        if (line[length] == '\0')
            held = case_fail(c, "line %d of case.txt is too long or cut short", n + 1);
        line[length] = '\0';
        held = held && read_line(c, line, n == 0);
    }
    fclose(file);
    return held && (c->ended || case_fail(c, "case.txt does not reach its 'end'"));
}

/* ---- reading tensors ------------------------------------------------------------------------- */

/* Little-endian files on any machine. */
static void to_host_order(case_tensor *t)
{
    const uint16_t probe = 1;
    const size_t size = case_types[t->type].size;
    unsigned char *at = t->data;
    if (*(const unsigned char *)&probe == 1)
        return;
    for (int64_t n = 0; n < t->count; n++, at += size)
        for (size_t i = 0; i < size / 2; i++) {
            const unsigned char swap = at[i];
            at[i] = at[size - 1 - i];
            at[size - 1 - i] = swap;
        }
}

static int read_file(test_case *c, case_tensor *t)
{
    const size_t bytes = (size_t)t->count * case_types[t->type].size;
    FILE *file = case_open_file(c->dir, t->file);
    size_t got;
    int more;
    if (file == NULL)
        return case_fail(c, "the file %s of %s is missing", t->file, t->name);
    t->data = test_alloc(bytes);
    got = fread(t->data, 1, bytes, file);
    more = fgetc(file) != EOF;
    fclose(file);
    if (got != bytes || more)
        return case_fail(c, "%s of %s has %s than the %lu bytes of its shape", t->file, t->name,
                         more ? "more" : "less", (unsigned long)bytes);
    to_host_order(t);
    return 1;
}

/* The library stores no f64: inputs are rounded to f32. */
static void round_to_f32(case_tensor *t)
{
    float *rounded;
    if (t->type != F64)
        return;
    rounded = test_alloc((size_t)t->count * sizeof *rounded);
    for (int64_t i = 0; i < t->count; i++)
        rounded[i] = (float)((const double *)t->data)[i];
    t->data = rounded;
    t->type = F32;
}

static int read_tensors(test_case *c)
{
    for (int i = 0; i < c->input_count; i++) {
        if (!read_file(c, &c->inputs[i]))
            return 0;
        round_to_f32(&c->inputs[i]);
    }
    for (int i = 0; i < c->output_count; i++)
        if (!read_file(c, &c->outputs[i]))
            return 0;
    return 1;
}

/* ---- asking a case for its parts; what nobody asked for is unknown --------------------------- */

const char *case_text(test_case *c, const char *name, const char *missing)
{
    for (int i = 0; i < c->attribute_count; i++)
        if (strcmp(c->attributes[i].name, name) == 0) {
            c->attributes[i].used = 1;
            return c->attributes[i].value;
        }
    return missing;
}

double case_number(test_case *c, const char *name, double missing)
{
    const char *text = case_text(c, name, NULL);
    double number = missing;
    if (text != NULL)
        case_to_number(c, text, &number);
    return number;
}

int64_t case_integer(test_case *c, const char *name, int64_t missing)
{
    const char *text = case_text(c, name, NULL);
    int64_t number = missing;
    if (text != NULL && !to_integer(c, text, -INT32_MAX, INT32_MAX, &number))
        number = missing;
    return number;
}

case_tensor *case_input(test_case *c, const char *name)
{
    case_tensor *t = find_tensor(c->inputs, c->input_count, name);
    if (t != NULL)
        t->used = 1;
    return t;
}

case_tensor *case_output(test_case *c, const char *name)
{
    char twin[80];
    case_tensor *t = find_tensor(c->outputs, c->output_count, name);
    if (t == NULL)
        return NULL;
    snprintf(twin, sizeof twin, "%s_zero_rows", name);
    t->zero_rows = find_tensor(c->outputs, c->output_count, twin);
    if (t->zero_rows != NULL)
        t->zero_rows->used = 1;
    t->used = 1;
    return t;
}

int case_all_known(test_case *c)
{
    for (int i = 0; i < c->attribute_count; i++)
        if (!c->attributes[i].used)
            return case_fail(c, "unknown attribute '%s'", c->attributes[i].name);
    for (int i = 0; i < c->input_count; i++)
        if (!c->inputs[i].used)
            return case_fail(c, "unknown input '%s'", c->inputs[i].name);
    for (int i = 0; i < c->output_count; i++)
        if (!c->outputs[i].used)
            return case_fail(c, "unknown output '%s'", c->outputs[i].name);
    return 1;
}

int case_read_from(test_case *c, FILE *text)
{
    return read_text(c, text) && read_tensors(c);
}

int case_read(test_case *c)
{
    return case_read_from(c, case_open_file(c->dir, "case.txt"));
}
