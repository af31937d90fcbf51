/* cases.c - runs folders of operator conformance cases, one line a case.
 * SPDX-License-Identifier: MIT
 *
 * The format is described in tests/cases/README.md: a text file names an operator, its attributes
 * and its tensors, raw little-endian files hold them. Three operators are known: Attention (ONNX),
 * FlexAttention (ONNX preview) and SdpaGrad (the textbook formula; its forward outputs). Whatever
 * this file does not know about a case - an operator, attribute, input or output - is a failure,
 * because ignoring it would compare something else than the case means.
 *
 * Tensors go to the library where they lie: rank 3 and rank 4 are strides, a mask of any rank is
 * strides of 0. Only a past is joined with the new keys in a buffer of its own.
 */
#include "test.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_RANK = 4, MAX_TENSORS = 16, MAX_ATTRIBUTES = 32, MAX_TOKENS = 16, MAX_LINE = 200,
    MAX_TEXT = 300, MAX_PATH = 1200
};
static const double HOPELESS = 1e9; /* units: an error that no tolerance covers */
static const double MAX_ELEMENTS = 268435456.0; /* 2^28: a larger tensor is a damaged file */

enum { F16, F32, F64, BOOL, I32, I64, TYPE_COUNT };
static const struct {
    const char *name;
    size_t size;
} types[TYPE_COUNT] = {{"f16", 2}, {"f32", 4}, {"f64", 8}, {"bool", 1}, {"i32", 4}, {"i64", 8}};

typedef struct tensor {
    char name[64], file[128];
    int type, rank, used;
    int64_t dim[MAX_RANK], count;
    double rtol, atol; /* of an output; negative = those of the case */
    void *data;
} tensor;

typedef struct attribute {
    char name[64], value[64];
    int used;
} attribute;

typedef struct test_case {
    const char *dir;  /* folder of the case */
    char name[160], op[64];
    int opset, ended;
    double rtol, atol;
    attribute attributes[MAX_ATTRIBUTES];
    tensor inputs[MAX_TENSORS], outputs[MAX_TENSORS];
    int attribute_count, input_count, output_count;
    char why[MAX_TEXT];  /* what failed */
    char note[MAX_TEXT]; /* what the reader should know beside the verdict */
    double worst;        /* error in units of its tolerance */
} test_case;

static int fail(test_case *c, const char *format, ...) TEST_FORMAT(2, 3);

/* Keeps the first reason; returns 0 so that callers can pass it on. */
static int fail(test_case *c, const char *format, ...)
{
    va_list arguments;
    if (c->why[0] == '\0') {
        va_start(arguments, format);
        vsnprintf(c->why, sizeof c->why, format, arguments);
        va_end(arguments);
    }
    return 0;
}

static void add_note(test_case *c, const char *text)
{
    const size_t used = strlen(c->note);
    snprintf(c->note + used, sizeof c->note - used, "%s%s", used > 0 ? "; " : "", text);
}

/* ---- reading case.txt -------------------------------------------------------------------------
 * Each reader gets the tokens of one line; it returns 0 after fail(). */

static int to_number(test_case *c, const char *text, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return (end != text && *end == '\0' && *number - *number == 0) ||
           fail(c, "'%s' is not a finite number", text);
}

static int to_integer(test_case *c, const char *text, int64_t low, int64_t high, int64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || *number < low || *number > high)
        return fail(c, "'%s' is not an integer of %lld..%lld", text, (long long)low,
                    (long long)high);
    return 1;
}

static int copy_text(test_case *c, char *to, size_t size, const char *from)
{
    if (strlen(from) >= size)
        return fail(c, "'%s' is too long", from);
    memcpy(to, from, strlen(from) + 1);
    return 1;
}

static int read_format(test_case *c, char **token, int count)
{
    (void)count;
    return (strcmp(token[1], "attncase") == 0 && strcmp(token[2], "1") == 0) ||
           fail(c, "the format is '%s %s', not 'attncase 1'", token[1], token[2]);
}

static int read_case(test_case *c, char **token, int count)
{
    const char *folder = strrchr(c->dir, '/');
    (void)count;
    folder = folder != NULL ? folder + 1 : c->dir;
    return strcmp(folder, token[1]) == 0 || fail(c, "its name inside is '%s'", token[1]);
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
    return to_number(c, text, number) &&
           (*number >= 0 || fail(c, "the tolerance '%s' is negative", text));
}

static int read_tolerance(test_case *c, char **token, int count)
{
    (void)count;
    return to_tolerance(c, token[1], strcmp(token[0], "rtol") == 0 ? &c->rtol : &c->atol);
}

static int read_attribute(test_case *c, char **token, int count)
{
    attribute *a = &c->attributes[c->attribute_count];
    (void)count;
    if (c->attribute_count == MAX_ATTRIBUTES)
        return fail(c, "more than %d attributes", MAX_ATTRIBUTES);
    c->attribute_count++;
    return copy_text(c, a->name, sizeof a->name, token[1]) &&
           copy_text(c, a->value, sizeof a->value, token[3]);
}

static int read_type(test_case *c, tensor *t, const char *name)
{
    for (t->type = 0; t->type < TYPE_COUNT; t->type++)
        if (strcmp(types[t->type].name, name) == 0)
            return 1;
    return fail(c, "%s has the unknown type '%s'", t->name, name);
}

static int read_dims(test_case *c, tensor *t, char **token, int count)
{
    double product = 1;
    int64_t rank;
    if (!to_integer(c, token[0], 0, MAX_RANK, &rank))
        return 0;
    t->rank = (int)rank;
    if (count != t->rank + 2)
        return fail(c, "%s has rank %d and %d more words", t->name, t->rank, count - 1);
    t->count = 1;
    for (int i = 0; i < t->rank; i++) {
        if (!to_integer(c, token[1 + i], 0, 1 << 28, &t->dim[i]))
            return 0;
        product *= (double)t->dim[i];
        if (product > MAX_ELEMENTS)
            return fail(c, "%s is too large", t->name);
        t->count *= t->dim[i];
    }
    return 1;
}

/* input|output SLOT NAME TYPE RANK DIM... FILE */
static int read_tensor(test_case *c, char **token, int count)
{
    const int is_input = strcmp(token[0], "input") == 0;
    int *used = is_input ? &c->input_count : &c->output_count;
    tensor *t = (is_input ? c->inputs : c->outputs) + *used;
    if (*used == MAX_TENSORS)
        return fail(c, "more than %d %ss", MAX_TENSORS, token[0]);
    ++*used;
    t->rtol = t->atol = -1;
    return copy_text(c, t->name, sizeof t->name, token[2]) && read_type(c, t, token[3]) &&
           read_dims(c, t, token + 4, count - 4) &&
           copy_text(c, t->file, sizeof t->file, token[count - 1]);
}

static tensor *find_tensor(tensor *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

/* tol OUTPUT RTOL ATOL */
static int read_output_tolerance(test_case *c, char **token, int count)
{
    tensor *t = find_tensor(c->outputs, c->output_count, token[1]);
    (void)count;
    if (t == NULL)
        return fail(c, "a tolerance for '%s', which is no output", token[1]);
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
    {"format", 3, read_format},  {"case", 2, read_case},        {"op", 2, read_op},
    {"opset", 2, read_opset},    {"rtol", 2, read_tolerance},   {"atol", 2, read_tolerance},
    {"attr", 4, read_attribute}, {"input", 6, read_tensor},     {"output", 6, read_tensor},
    {"tol", 4, read_output_tolerance}, {"end", 1, read_end},
};

static int read_line(test_case *c, char *line, int is_first)
{
    char *token[MAX_TOKENS];
    int count = 0;
    for (char *at = strtok(line, " "); at != NULL; at = strtok(NULL, " ")) {
        if (count == MAX_TOKENS && line[0] != '#')
            return fail(c, "a line of more than %d words", MAX_TOKENS);
        if (count < MAX_TOKENS)
            token[count++] = at;
    }
    if (is_first && (count == 0 || strcmp(token[0], "format") != 0))
        return fail(c, "case.txt does not begin with 'format'");
    for (size_t i = 0; count > 0 && i < sizeof lines / sizeof *lines; i++) {
        if (strcmp(token[0], lines[i].word) != 0)
            continue;
        return count >= lines[i].tokens ? lines[i].read(c, token, count)
                                        : fail(c, "a '%s' line of %d words", token[0], count);
    }
    return 1;
}

/* Opens a file of the case's folder; NULL also when the path is longer than any real one. */
static FILE *open_file(const char *dir, const char *name)
{
    char path[MAX_PATH];
    if (strlen(dir) + strlen(name) + 2 > sizeof path)
        return NULL;
    strcpy(path, dir);
    strcat(path, "/");
    strcat(path, name);
    return fopen(path, "rb");
}

static int read_text(test_case *c)
{
    char line[MAX_LINE + 2];
    FILE *file = open_file(c->dir, "case.txt");
    int held = 1;
    if (file == NULL)
        return fail(c, "case.txt cannot be read");
    for (int n = 0; held && !c->ended && fgets(line, sizeof line, file) != NULL; n++) {
        const size_t length = strcspn(line, "\n");
        if (line[length] == '\0')
            held = fail(c, "line %d of case.txt is too long or cut short", n + 1);
        line[length] = '\0';
        held = held && read_line(c, line, n == 0);
    }
    fclose(file);
    return held && (c->ended || fail(c, "case.txt does not reach its 'end'"));
}

/* ---- reading tensors ------------------------------------------------------------------------- */

/* Little-endian files on any machine. */
static void to_host_order(tensor *t)
{
    const uint16_t probe = 1;
    const size_t size = types[t->type].size;
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

static int read_file(test_case *c, tensor *t)
{
    const size_t bytes = (size_t)t->count * types[t->type].size;
    FILE *file = open_file(c->dir, t->file);
    size_t got;
    int more;
    if (file == NULL)
        return fail(c, "the file %s of %s is missing", t->file, t->name);
    t->data = test_alloc(bytes);
    got = fread(t->data, 1, bytes, file);
    more = fgetc(file) != EOF;
    fclose(file);
    if (got != bytes || more)
        return fail(c, "%s of %s has %s than the %lu bytes of its shape", t->file, t->name,
                    more ? "more" : "less", (unsigned long)bytes);
    to_host_order(t);
    return 1;
}

/* The library stores no f64: inputs are rounded to f32. */
static void round_to_f32(tensor *t)
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

static const char *text_of(test_case *c, const char *name, const char *missing)
{
    for (int i = 0; i < c->attribute_count; i++)
        if (strcmp(c->attributes[i].name, name) == 0) {
            c->attributes[i].used = 1;
            return c->attributes[i].value;
        }
    return missing;
}

static double number_of(test_case *c, const char *name, double missing)
{
    const char *text = text_of(c, name, NULL);
    double number = missing;
    if (text != NULL)
        to_number(c, text, &number);
    return number;
}

static int64_t integer_of(test_case *c, const char *name, int64_t missing)
{
    const char *text = text_of(c, name, NULL);
    int64_t number = missing;
    if (text != NULL && !to_integer(c, text, -INT32_MAX, INT32_MAX, &number))
        number = missing;
    return number;
}

static tensor *input_of(test_case *c, const char *name)
{
    tensor *t = find_tensor(c->inputs, c->input_count, name);
    if (t != NULL)
        t->used = 1;
    return t;
}

static tensor *output_of(test_case *c, const char *name)
{
    tensor *t = find_tensor(c->outputs, c->output_count, name);
    if (t != NULL)
        t->used = 1;
    return t;
}

static int all_known(test_case *c)
{
    for (int i = 0; i < c->attribute_count; i++)
        if (!c->attributes[i].used)
            return fail(c, "unknown attribute '%s'", c->attributes[i].name);
    for (int i = 0; i < c->input_count; i++)
        if (!c->inputs[i].used)
            return fail(c, "unknown input '%s'", c->inputs[i].name);
    for (int i = 0; i < c->output_count; i++)
        if (!c->outputs[i].used)
            return fail(c, "unknown output '%s'", c->outputs[i].name);
    return 1;
}

/* ---- tensors as the library sees them -------------------------------------------------------- */

/* A tensor as [batch, heads, seq, dim] with strides, whatever its rank. */
typedef struct view {
    int type;
    int64_t batch, heads, seq, dim;
    ptrdiff_t stride_batch, stride_head, stride_seq;
    const void *data;
} view;

/* Rank 4: [batch, head, seq, dim]; rank 3: [batch, seq, head * dim]. */
static int view_of(test_case *c, const tensor *t, int64_t heads, view *v)
{
    memset(v, 0, sizeof *v);
    if (t->type != F16 && t->type != F32)
        return fail(c, "%s has type %s", t->name, types[t->type].name);
    v->type = t->type;
    v->data = t->data;
    v->batch = t->dim[0];
    if (t->rank == 4) {
        v->heads = t->dim[1], v->seq = t->dim[2], v->dim = t->dim[3];
        v->stride_seq = (ptrdiff_t)v->dim;
        v->stride_head = (ptrdiff_t)(v->seq * v->dim);
    } else if (t->rank == 3 && heads > 0 && t->dim[2] % heads == 0) {
        v->heads = heads, v->seq = t->dim[1], v->dim = t->dim[2] / heads;
        v->stride_head = (ptrdiff_t)v->dim;
        v->stride_seq = (ptrdiff_t)t->dim[2];
    } else {
        return fail(c, "%s of rank %d does not hold %lld heads", t->name, t->rank,
                    (long long)heads);
    }
    v->stride_batch = (ptrdiff_t)(v->heads * v->seq * v->dim);
    return 1;
}

/* Copies the keys of `from` to the rows of `to` (packed, seq_to rows a head) from `first` on. */
static void copy_rows(const view *from, unsigned char *to, int64_t seq_to, int64_t first)
{
    const size_t size = types[from->type].size;
    const size_t row = (size_t)from->dim * size;
    for (int64_t b = 0; b < from->batch; b++)
        for (int64_t h = 0; h < from->heads; h++)
            for (int64_t s = 0; s < from->seq; s++) {
                const int64_t at = b * from->stride_batch + h * from->stride_head +
                                   s * from->stride_seq;
                const int64_t into = (b * from->heads + h) * seq_to + first + s;
                memcpy(to + (size_t)into * row,
                       (const unsigned char *)from->data + (size_t)at * size, row);
            }
}

/* The past followed by the new keys, packed; either may be NULL. */
static int join(test_case *c, const tensor *past, view *v)
{
    view old = *v, joined = *v;
    unsigned char *data;
    old.seq = 0;
    if (past != NULL && (past->rank != 4 || !view_of(c, past, 0, &old)))
        return fail(c, "%s must have rank 4", past->name);
    if (old.type != v->type || old.batch != v->batch || old.heads != v->heads || old.dim != v->dim)
        return fail(c, "%s does not fit the new keys", past->name);
    joined.seq = old.seq + v->seq;
    joined.stride_seq = (ptrdiff_t)v->dim;
    joined.stride_head = (ptrdiff_t)(joined.seq * v->dim);
    joined.stride_batch = joined.stride_head * (ptrdiff_t)v->heads;
    data = test_alloc((size_t)(joined.stride_batch * v->batch) * types[v->type].size);
    copy_rows(&old, data, joined.seq, 0);
    copy_rows(v, data, joined.seq, old.seq);
    joined.data = data;
    *v = joined;
    return 1;
}

static attn_tensor input_view(const view *v)
{
    attn_tensor t = {0};
    t.dtype = v->type == F16 ? ATTN_F16 : ATTN_F32;
    t.stride_batch = v->stride_batch;
    t.stride_head = v->stride_head;
    t.stride_seq = v->stride_seq;
    t.data = v->data;
    return t;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static double element(int type, const void *data, int64_t i)
{
    if (type == F64)
        return ((const double *)data)[i];
    if (type == F32)
        return (double)((const float *)data)[i];
    return (double)dtype_load(ATTN_F16, (const unsigned char *)data + 2 * i);
}

/* abs(g - w) in units of atol + rtol * abs(w). NaN and infinities must coincide. */
static double error_units(double g, double w, double rtol, double atol)
{
    double off = g - w, allowed = rtol * (w < 0 ? -w : w) + atol;
    if (g == w || (g != g && w != w))
        return 0;
    if (g != g || w != w || off - off != 0 || allowed == 0)
        return HOPELESS;
    return (off < 0 ? -off : off) / allowed;
}

/* `got` is packed like the stored output, of type F16 or F32; `factor` multiplies it. */
static int compare(test_case *c, tensor *want, int type, const void *got, double factor)
{
    const double rtol = want->rtol < 0 ? c->rtol : want->rtol;
    const double atol = want->atol < 0 ? c->atol : want->atol;
    char twin[80];
    tensor *zero_rows;
    snprintf(twin, sizeof twin, "%s_zero_rows", want->name);
    zero_rows = output_of(c, twin);
    if (zero_rows != NULL && zero_rows->count == want->count) {
        add_note(c, "textbook NaN replaced by its zero rows");
        want = zero_rows;
    }
    for (int64_t i = 0; i < want->count; i++) {
        const double g = factor * element(type, got, i), w = element(want->type, want->data, i);
        const double units = error_units(g, w, rtol, atol);
        if (units > 1)
            fail(c, "%s[%lld] is %.9g, stored is %.9g", want->name, (long long)i, g, w);
        if (units > c->worst)
            c->worst = units;
    }
    return c->why[0] == '\0';
}

static int has_shape(test_case *c, const tensor *t, int rank, const int64_t *dim)
{
    int held = t->rank == rank && (t->type == F16 || t->type == F32 || t->type == F64);
    for (int i = 0; held && i < rank; i++)
        held = t->dim[i] == dim[i];
    return held || fail(c, "output %s has another shape or type than the inputs give", t->name);
}

/* ---- one call -------------------------------------------------------------------------------- */

typedef struct call {
    attn_params p;
    view q, k, v;
    int64_t past;       /* keys before the new ones */
    int64_t mask_keys;  /* columns that the mask has; -1 = no limit */
    tensor *y, *logits, *lse, *present_k, *present_v;
    double factor;      /* on Y, applied when comparing */
    float constant;     /* of the score callback */
} call;

/* What really ran, over all cases of this process. */
static struct {
    const char *impl, *kernels;
    int64_t calls;
} executed[16];
enum { MAX_EXECUTED = sizeof executed / sizeof *executed };

static void count_execution(const attn_params *p)
{
    const attn_params used = test_params(p);
    attn_info info;
    int i = 0;
    if (attn_explain(&used, &info) != ATTN_OK)
        return;
    while (i < MAX_EXECUTED - 1 && executed[i].calls > 0 &&
           (strcmp(executed[i].impl, info.impl_name) != 0 ||
            strcmp(executed[i].kernels, info.kernels_name) != 0))
        i++;
    executed[i].impl = info.impl_name;
    executed[i].kernels = info.kernels_name;
    executed[i].calls++;
}

static int execute(test_case *c, const attn_params *p)
{
    const attn_params used = test_params(p);
    char text[200];
    const attn_status status = test_run(p);
    if (status == ATTN_OK) {
        count_execution(p);
        return 1;
    }
    return fail(c, "%s: %s", attn_status_string(status),
                attn_check(&used, NULL, 0, text, sizeof text));
}

/* Sizes and tensors from Q, K, V; joins the past. */
static int open_call(test_case *c, call *a, int64_t heads_q, int64_t heads_kv, const char *past_k,
                     const char *past_v)
{
    tensor *q = input_of(c, "Q"), *k = input_of(c, "K"), *v = input_of(c, "V");
    tensor *old_k = input_of(c, past_k), *old_v = input_of(c, past_v);
    if (q == NULL || k == NULL || v == NULL)
        return fail(c, "one of Q, K, V is missing");
    if (!view_of(c, q, heads_q, &a->q) || !view_of(c, k, heads_kv, &a->k) ||
        !view_of(c, v, heads_kv, &a->v))
        return 0;
    if ((old_k == NULL) != (old_v == NULL))
        return fail(c, "%s and %s must be given together", past_k, past_v);
    a->past = old_k != NULL && old_k->rank == 4 ? old_k->dim[2] : 0;
    if (old_k != NULL || a->present_k != NULL)
        if (!join(c, old_k, &a->k))
            return 0;
    if (old_v != NULL || a->present_v != NULL)
        if (!join(c, old_v, &a->v))
            return 0;
    if (a->k.batch != a->q.batch || a->v.batch != a->q.batch || a->k.heads != a->v.heads ||
        a->k.seq != a->v.seq || a->k.dim != a->q.dim)
        return fail(c, "the shapes of Q, K and V do not fit");
    if (a->q.heads == 0 || a->k.heads == 0)
        return fail(c, "a tensor without heads");
    if ((heads_q > 0 && a->q.heads != heads_q) || (heads_kv > 0 && a->k.heads != heads_kv))
        return fail(c, "the numbers of heads do not fit the shapes");
    a->mask_keys = -1;
    a->factor = 1;
    a->p.batch = a->q.batch;
    a->p.num_heads_q = a->q.heads;
    a->p.num_heads_kv = a->k.heads;
    a->p.seq_len_q = a->q.seq;
    a->p.seq_len_kv = a->k.seq;
    a->p.head_dim = a->q.dim;
    a->p.head_dim_v = a->v.dim;
    a->p.q = input_view(&a->q);
    a->p.k = input_view(&a->k);
    a->p.v = input_view(&a->v);
    return 1;
}

/* A scale of 0 asks for all logits 0; to the library 0 means the default, so q becomes 0. */
static void set_scale(call *a, double scale)
{
    a->p.scale = (float)scale;
    if (a->p.scale != 0)
        return;
    a->p.q.data = memset(test_alloc((size_t)a->q.dim * 4), 0, (size_t)a->q.dim * 4);
    a->p.q.stride_batch = a->p.q.stride_head = a->p.q.stride_seq = ATTN_STRIDE_BROADCAST;
}

/* Strides of a mask aligned at the right to [batch, heads, q, keys]; 0 where it is broadcast. A
 * last dimension shorter than the keys ends the visible keys (from opset 24 on also one of 1). */
static int mask_strides(test_case *c, call *a, const tensor *m, ptrdiff_t *stride)
{
    const int64_t size[4] = {a->q.batch, a->q.heads, a->q.seq, a->k.seq};
    ptrdiff_t step = 1;
    for (int axis = 3; axis >= 0; axis--) {
        const int from = axis - (4 - m->rank);
        const int64_t dim = from >= 0 ? m->dim[from] : 1;
        const int broadcast = from < 0 || (dim == 1 && (axis < 3 || c->opset < 24));
        stride[axis] = broadcast || dim == 1 ? 0 : step;
        if (axis == 3 && !broadcast && dim < size[3])
            a->mask_keys = dim;
        else if (!broadcast && dim != size[axis])
            return fail(c, "axis %d of %s is %lld, not %lld or 1", from, m->name, (long long)dim,
                        (long long)size[axis]);
        step *= (ptrdiff_t)dim;
    }
    return 1;
}

static int set_mask(test_case *c, call *a)
{
    const tensor *m = input_of(c, "attn_mask");
    ptrdiff_t stride[4];
    if (m == NULL)
        return 1;
    if (!mask_strides(c, a, m, stride))
        return 0;
    if (m->count == 0) {
        a->mask_keys = 0;
    } else if (m->type == BOOL) {
        const attn_mask mask = {0, stride[0], stride[1], stride[2], stride[3], m->data};
        a->p.bool_mask = mask;
    } else if (m->type == F16 || m->type == F32) {
        const attn_bias bias = {m->type == F16 ? ATTN_F16 : ATTN_F32, stride[0], stride[1],
                                stride[2], stride[3], m->data};
        a->p.bias = bias;
    } else {
        return fail(c, "%s has type %s", m->name, types[m->type].name);
    }
    return 1;
}

/* Keys in use and the position of the first query of each batch entry. */
static int set_lengths(test_case *c, call *a)
{
    const tensor *nonpad = input_of(c, "nonpad_kv_seqlen");
    const size_t bytes = (size_t)a->q.batch * sizeof(int32_t);
    int32_t *keys = test_alloc(bytes), *offset = test_alloc(bytes);
    const int64_t limit = a->mask_keys >= 0 ? a->mask_keys : a->k.seq;
    const int has_past = input_of(c, "past_key") != NULL;
    if (nonpad != NULL && (nonpad->type != I64 || nonpad->count != a->q.batch))
        return fail(c, "nonpad_kv_seqlen must be i64, one a batch entry");
    for (int64_t b = 0; b < a->q.batch; b++) {
        int64_t length = nonpad != NULL ? ((const int64_t *)nonpad->data)[b] : a->k.seq;
        if (length < -INT32_MAX / 2 || length > INT32_MAX / 2)
            return fail(c, "nonpad_kv_seqlen[%lld] is out of range", (long long)b);
        offset[b] = (int32_t)(has_past || nonpad == NULL ? a->past : length - a->q.seq);
        length = length < limit ? length : limit;
        keys[b] = (int32_t)(length > 0 ? length : 0);
    }
    a->p.kv_len = keys;
    a->p.q_offset = offset;
    a->p.alignment = ATTN_ALIGN_OFFSET;
    return 1;
}

static void set_window(call *a, int64_t left, int64_t right)
{
    if (left < 0 && right < 0)
        return;
    a->p.window = ATTN_WINDOW;
    a->p.window_left = left < 0 ? -1 : left;
    a->p.window_right = right < 0 ? -1 : right;
}

/* An output buffer in the order of the stored tensor `want`, f16 if that is f16, else f32. */
static int give_output(test_case *c, call *a, tensor *want)
{
    const int is_half = want->type == F16;
    const view *q = &a->q;
    const int64_t dim4[] = {q->batch, q->heads, q->seq, a->v.dim};
    const int64_t dim3[] = {q->batch, q->seq, q->heads * a->v.dim};
    const ptrdiff_t d = (ptrdiff_t)a->v.dim, s = (ptrdiff_t)q->seq, h = (ptrdiff_t)q->heads;
    attn_output o = {0};
    if (!has_shape(c, want, want->rank == 3 ? 3 : 4, want->rank == 3 ? dim3 : dim4))
        return 0;
    o.dtype = is_half ? ATTN_F16 : ATTN_F32;
    o.data = test_alloc((size_t)want->count * (is_half ? 2 : 4));
    o.stride_batch = h * s * d;
    o.stride_head = want->rank == 3 ? d : s * d;
    o.stride_seq = want->rank == 3 ? h * d : d;
    a->p.o = o;
    return 1;
}

/* Logits are asked for in the same call at the stages that know the masks. The two before them hold
 * every pair, also those of keys beyond the length: a call of their own, without lengths. */
static int run_logits(test_case *c, call *a, int64_t stage)
{
    const int64_t dim[] = {a->q.batch, a->q.heads, a->q.seq, a->k.seq};
    attn_params raw = a->p;
    if (a->logits == NULL)
        return 1;
    if (stage < ATTN_LOGITS_RAW || stage > ATTN_LOGITS_SOFTMAX)
        return fail(c, "qk_matmul_output_mode is %lld", (long long)stage);
    if (!has_shape(c, a->logits, 4, dim))
        return 0;
    raw.o.data = raw.lse.data = NULL;
    raw.logits.stage = (int)stage;
    raw.logits.data = test_alloc((size_t)a->logits->count * sizeof(float));
    if (stage <= ATTN_LOGITS_SOFTCAP)
        raw.kv_len = NULL;
    return execute(c, &raw) && compare(c, a->logits, F32, raw.logits.data, 1);
}

static int run_call(test_case *c, call *a)
{
    const int64_t rows[] = {a->q.batch, a->q.heads, a->q.seq};
    if (a->y == NULL)
        return fail(c, "there is no output Y");
    if (!give_output(c, a, a->y))
        return 0;
    if (a->lse != NULL) {
        if (!has_shape(c, a->lse, 3, rows))
            return 0;
        a->p.lse.data = test_alloc((size_t)a->lse->count * sizeof(float));
    }
    if (!execute(c, &a->p))
        return 0;
    compare(c, a->y, a->y->type == F16 ? F16 : F32, a->p.o.data, a->factor);
    if (a->lse != NULL)
        compare(c, a->lse, F32, a->p.lse.data, 1);
    return c->why[0] == '\0';
}

static int compare_present(test_case *c, tensor *want, const view *got)
{
    const int64_t dim[] = {got->batch, got->heads, got->seq, got->dim};
    if (want == NULL)
        return 1;
    return has_shape(c, want, 4, dim) && compare(c, want, got->type, got->data, 1);
}

/* ---- operators ------------------------------------------------------------------------------- */

static int run_attention(test_case *c)
{
    call a = {0};
    const int64_t heads_q = integer_of(c, "q_num_heads", 0);
    const int64_t heads_kv = integer_of(c, "kv_num_heads", 0);
    const int64_t stage = integer_of(c, "qk_matmul_output_mode", 0);
    const int64_t left = integer_of(c, "left_window_size", -1);
    const int64_t right = integer_of(c, "right_window_size", -1);
    const double softcap = number_of(c, "softcap", 0);
    text_of(c, "softmax_precision", NULL); /* read and ignored: always f32 here */
    a.y = output_of(c, "Y");
    a.present_k = output_of(c, "present_key");
    a.present_v = output_of(c, "present_value");
    a.logits = output_of(c, "qk_matmul_output");
    if (!open_call(c, &a, heads_q, heads_kv, "past_key", "past_value"))
        return 0;
    a.p.causal = integer_of(c, "is_causal", 0) != 0;
    a.p.softcap = softcap > 0 ? (float)softcap : 0;
    set_window(&a, left, right);
    if (text_of(c, "scale", NULL) != NULL)
        set_scale(&a, number_of(c, "scale", 0));
    if (!set_mask(c, &a) || !set_lengths(c, &a) || !all_known(c))
        return 0;
    return run_call(c, &a) && run_logits(c, &a, stage) &&
           compare_present(c, a.present_k, &a.k) && compare_present(c, a.present_v, &a.v);
}

static float add_constant(void *user, const attn_pair *at, float logit)
{
    (void)at;
    return logit + *(const float *)user;
}

static float add_q_minus_k(void *user, const attn_pair *at, float logit)
{
    (void)user;
    return logit + (float)(at->i - at->j);
}

static int score_none(call *a, double x)
{
    (void)a, (void)x;
    return 1;
}

static int score_add_constant(call *a, double x)
{
    a->constant = (float)x;
    a->p.score = add_constant;
    a->p.callback_user = &a->constant;
    return 1;
}

static int score_softcap(call *a, double x)
{
    a->p.softcap = (float)x;
    return x > 0;
}

static int score_causal(call *a, double x)
{
    (void)x;
    a->p.causal = 1;
    a->p.alignment = ATTN_ALIGN_TOP_LEFT;
    return 1;
}

static int score_distance(call *a, double x)
{
    (void)x;
    a->p.score = add_q_minus_k;
    return 1;
}

static int prob_multiply(call *a, double x)
{
    a->factor = x;
    return 1;
}

/* FlexAttention's sub-graphs, each restated by the case as one word with at most one number. */
static const struct {
    const char *attribute, *word;
    int (*apply)(call *a, double x);
} modifiers[] = {
    {"score_mod", "none", score_none},
    {"score_mod", "add_constant", score_add_constant},
    {"score_mod", "softcap", score_softcap},
    {"score_mod", "causal_top_left", score_causal},
    {"score_mod", "add_q_minus_k", score_distance},
    {"prob_mod", "none", score_none},
    {"prob_mod", "multiply_constant", prob_multiply},
};

static int modify(test_case *c, call *a, const char *which)
{
    const char *text = text_of(c, which, "none");
    const size_t length = strcspn(text, ":");
    double x = 0;
    if (text[length] == ':' && !to_number(c, text + length + 1, &x))
        return 0;
    for (size_t i = 0; i < sizeof modifiers / sizeof *modifiers; i++)
        if (strcmp(modifiers[i].attribute, which) == 0 &&
            strlen(modifiers[i].word) == length && strncmp(modifiers[i].word, text, length) == 0 &&
            modifiers[i].apply(a, x))
            return 1;
    return fail(c, "unknown %s '%s'", which, text);
}

static int run_flex_attention(test_case *c)
{
    call a = {0};
    char text[80];
    a.y = output_of(c, "Y");
    if (!open_call(c, &a, 0, 0, "past_key", "past_value"))
        return 0;
    if (text_of(c, "scale", NULL) != NULL)
        set_scale(&a, number_of(c, "scale", 0));
    if (!modify(c, &a, "score_mod") || !modify(c, &a, "prob_mod") || !all_known(c))
        return 0;
    if (a.factor != 1) {
        snprintf(text, sizeof text, "prob_mod done by the runner: %g * O", a.factor);
        add_note(c, text);
    }
    return run_call(c, &a);
}

static int run_sdpa_grad(test_case *c)
{
    static const char *const gradients[] = {"dQ", "dK", "dV", "dMask", "dQ_zero_rows",
                                            "dK_zero_rows", "dV_zero_rows"};
    call a = {0};
    const int64_t shift = integer_of(c, "causal_offset", 0);
    const double softcap = number_of(c, "softcap", 0);
    int32_t *offset;
    input_of(c, "dY");
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        output_of(c, gradients[i]);
    output_of(c, "Y_zero_rows");
    a.y = output_of(c, "Y");
    a.lse = output_of(c, "lse");
    if (!open_call(c, &a, 0, 0, "past_key", "past_value"))
        return 0;
    a.p.causal = integer_of(c, "is_causal", 0) != 0;
    a.p.softcap = softcap > 0 ? (float)softcap : 0;
    if (text_of(c, "scale", NULL) != NULL)
        set_scale(&a, number_of(c, "scale", 0));
    offset = test_alloc((size_t)a.q.batch * sizeof *offset);
    for (int64_t b = 0; b < a.q.batch; b++)
        offset[b] = (int32_t)shift;
    a.p.q_offset = offset;
    a.p.alignment = ATTN_ALIGN_OFFSET;
    add_note(c, "forward only");
    if (!set_mask(c, &a) || !all_known(c))
        return 0;
    return a.mask_keys < 0 ? run_call(c, &a) : fail(c, "attn_mask is shorter than the keys");
}

static int not_built(test_case *c)
{
    return fail(c, "not built: %s", c->op);
}

static const struct {
    const char *name;
    int (*run)(test_case *c);
} operators[] = {
    {"Attention", run_attention},     {"FlexAttention", run_flex_attention},
    {"SdpaGrad", run_sdpa_grad},      {"RotaryEmbedding", not_built},
    {"TensorScatter", not_built},     {"GroupQueryAttention", not_built},
    {"MultiHeadAttention", not_built},
};

static int run_operator(test_case *c)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (strcmp(operators[i].name, c->op) == 0)
            return operators[i].run(c);
    return fail(c, "unknown operator '%s'", c->op);
}

/* ---- folders --------------------------------------------------------------------------------- */

static int run_case(const char *dir, const char *name, double *worst)
{
    static test_case c;
    char path[MAX_PATH];
    int held;
    memset(&c, 0, sizeof c);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    c.dir = path;
    held = read_text(&c) && read_tensors(&c) && run_operator(&c);
    worst_note(c.worst);
    *worst = c.worst > *worst ? c.worst : *worst;
    printf("%-69s %s %8.5f  %s%s%s\n", name, held ? "ok    " : "FAILED", c.worst, c.why,
           c.why[0] != '\0' && c.note[0] != '\0' ? "; " : "", c.note);
    CHECK(held, "%s: %s", path, c.why);
    return held;
}

static void print_origin(const char *dir)
{
    printf("%s: no cases.list here. Case folders of this format are exported from the node tests "
           "of github.com/onnx/onnx, from onnxruntime and from PyTorch's autograd; "
           "tests/cases/README.md describes the format and tests/make_cases.py writes some.\n",
           dir);
}

static void print_executed(void)
{
    for (int i = 0; i < MAX_EXECUTED; i++)
        if (executed[i].calls > 0)
            printf("executed so far: %s with %s: %lld calls\n", executed[i].impl,
                   executed[i].kernels, (long long)executed[i].calls);
}

int run_cases(const char *dir)
{
    char name[160];
    double worst = 0;
    int64_t passed = 0, count = 0;
    FILE *list = open_file(dir, "cases.list");
    if (list == NULL) {
        print_origin(dir);
        return 1;
    }
    printf("%s (error in units of its tolerance)\n", dir);
    while (fgets(name, sizeof name, list) != NULL) {
        name[strcspn(name, "\r\n")] = '\0';
        if (name[0] == '\0' || !begin_case("%s/%s", dir, name))
            continue;
        count++;
        passed += run_case(dir, name, &worst);
    }
    fclose(list);
    printf("%s: %lld of %lld cases passed; worst error %.3f of its tolerance\n", dir,
           (long long)passed, (long long)count, worst);
    print_executed();
    return count == 0 && T.only_case < 0;
}
