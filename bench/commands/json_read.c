/* json_read.c - reads JSON, written for files that may be damaged: every limit is checked.
 * SPDX-License-Identifier: MIT
 *
 * Texts are decoded in place, in the document's own copy, which is never longer than what it is
 * decoded from. Values lie in one array and name one another by place, so that it may move. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>

struct json_document {
    char *text, *at, *end;
    json_value *values;
    int num_values, capacity, depth;
    const char *wrong; /* the first thing that was; NULL = nothing so far */
};

static int refuse(json_document *d, const char *wrong)
{
    if (!d->wrong)
        d->wrong = wrong;
    return 0;
}

static void skip_blanks(json_document *d)
{
    while (d->at < d->end && (*d->at == ' ' || *d->at == '\n' || *d->at == '\t' || *d->at == '\r'))
        d->at++;
}

static int next_is(const json_document *d, char c)
{
    return d->at < d->end && *d->at == c;
}

/* Place of a new value; 0 = the limit or memory. */
static int add_value(json_document *d, json_kind kind)
{
    static const json_value none;
    if (d->num_values == JSON_MAX_VALUES)
        return refuse(d, "too many values");
    if (d->num_values == d->capacity) {
        const int capacity = 2 * d->capacity + 64;
        json_value *const grown = realloc(d->values, (size_t)capacity * sizeof *grown);
        if (!grown)
            return refuse(d, "no memory");
        d->values = grown;
        d->capacity = capacity;
    }
    d->values[d->num_values] = none;
    d->values[d->num_values].kind = kind;
    return d->num_values++;
}

/* ---- texts */

/* Four hexadecimal digits; -1 = they are not. */
static long read_hex(json_document *d)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    long code = 0;
    if (d->end - d->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char *const digit = *d->at ? strchr(digits, *d->at++) : NULL;
        if (!digit)
            return -1;
        code = code * 16 + (digit - digits) % 16;
    }
    return code;
}

/* The code point after \u, two halves of a pair as one; -1 = there is none. */
static long read_code(json_document *d)
{
    const long high = read_hex(d);
    if (high < 0xd800 || high > 0xdfff)
        return high;
    if (high > 0xdbff || d->end - d->at < 6 || d->at[0] != '\\' || d->at[1] != 'u')
        return -1;
    d->at += 2;
    const long low = read_hex(d);
    if (low < 0xdc00 || low > 0xdfff)
        return -1;
    return 0x10000 + (high - 0xd800) * 1024 + (low - 0xdc00);
}

/* As UTF-8; what is behind it. */
static char *put_code(char *to, long code)
{
    static const long limits[] = { 0x80, 0x800, 0x10000, 0x200000 };
    static const int lead[] = { 0, 0xc0, 0xe0, 0xf0 };
    int more = 0;
    while (code >= limits[more])
        more++;
    *to++ = (char)(lead[more] | (int)(code >> (6 * more)));
    while (more-- > 0)
        *to++ = (char)(0x80 | (int)(code >> (6 * more) & 0x3f));
    return to;
}

/* What follows a backslash, to *to; 0 = nothing that may. */
static int read_escape(json_document *d, char **to)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (d->at == d->end)
        return 0;
    const char name = *d->at++;
    if (name == 'u') {
        const long code = read_code(d);
        if (code > 0)
            *to = put_code(*to, code);
        return code > 0;
    }
    const char *const found = name ? strchr(names, name) : NULL;
    if (found)
        *(*to)++ = meanings[found - names];
    return found != NULL;
}

/* A text that begins here; NULL = it is none. */
static const char *read_text(json_document *d)
{
    if (!next_is(d, '"'))
        return refuse(d, "a text is missing"), NULL;
    char *const text = ++d->at, *to = text;
    while (d->at < d->end && *d->at != '"') {
        if ((unsigned char)*d->at < 0x20)
            return refuse(d, "a control character in a text"), NULL;
        if (*d->at != '\\') {
            *to++ = *d->at++;
            continue;
        }
        d->at++;
        if (!read_escape(d, &to))
            return refuse(d, "a wrong escape in a text"), NULL;
    }
    if (d->at == d->end)
        return refuse(d, "a text does not end"), NULL;
    d->at++;
    *to = '\0';
    return text;
}

/* ---- values */

static int read_digits(json_document *d)
{
    const char *const start = d->at;
    while (d->at < d->end && *d->at >= '0' && *d->at <= '9')
        d->at++;
    return d->at > start;
}

/* The grammar is stricter than strtod's: no +1, no 01, no .5, no 1., no hexadecimals, no NaN. */
static int read_number(json_document *d)
{
    const char *const start = d->at;
    if (next_is(d, '-'))
        d->at++;
    const int zero = next_is(d, '0');
    if (zero)
        d->at++;
    if (!zero && !read_digits(d))
        return refuse(d, "neither a value nor a number");
    if (next_is(d, '.') && (d->at++, !read_digits(d)))
        return refuse(d, "a number ends in a point");
    if (next_is(d, 'e') || next_is(d, 'E')) {
        d->at++;
        if (next_is(d, '+') || next_is(d, '-'))
            d->at++;
        if (!read_digits(d))
            return refuse(d, "an exponent without digits");
    }
    const double number = strtod(start, NULL); /* ends where this did: what follows is checked */
    if (number - number != 0)
        return refuse(d, "a number is too large");
    const int place = add_value(d, JSON_NUMBER);
    d->values[place].number = number;
    return place;
}

static int read_value(json_document *d);

/* One child of the value at `parent`, behind the child at `last`; its place. */
static int read_child(json_document *d, int parent, int last)
{
    const int keyed = d->values[parent].kind == JSON_OBJECT;
    const char *key = NULL;
    skip_blanks(d);
    if (keyed && !(key = read_text(d)))
        return 0;
    skip_blanks(d);
    if (keyed && !next_is(d, ':'))
        return refuse(d, "a colon is missing");
    d->at += keyed;
    const int place = read_value(d);
    if (!place)
        return 0;
    d->values[place].key = key;
    if (last)
        d->values[last].next = place;
    else
        d->values[parent].first = place;
    return place;
}

/* A list or an object, whose first character it stands at. */
static int read_children(json_document *d, json_kind kind)
{
    const char close = kind == JSON_LIST ? ']' : '}';
    const int parent = add_value(d, kind);
    int last = 0;
    if (d->wrong)
        return 0;
    if (++d->depth > JSON_MAX_DEPTH)
        return refuse(d, "too deep");
    d->at++;
    skip_blanks(d);
    while (!next_is(d, close)) {
        if (last && !next_is(d, ','))
            return refuse(d, "a comma is missing");
        if (last)
            d->at++;
        if (!(last = read_child(d, parent, last)))
            return 0;
        skip_blanks(d);
    }
    d->at++;
    d->depth--;
    return parent;
}

/* Place of the value that begins here; 0 = it is none (place 0 is kept free). */
static int read_value(json_document *d)
{
    static const char *const words[] = { "null", "false", "true" };
    skip_blanks(d);
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(words[i]);
        if ((size_t)(d->end - d->at) < length || memcmp(d->at, words[i], length))
            continue;
        d->at += length;
        return add_value(d, (json_kind)(JSON_NULL + i));
    }
    if (next_is(d, '['))
        return read_children(d, JSON_LIST);
    if (next_is(d, '{'))
        return read_children(d, JSON_OBJECT);
    if (!next_is(d, '"'))
        return read_number(d);
    const char *const text = read_text(d);
    const int place = text ? add_value(d, JSON_TEXT) : 0;
    if (place)
        d->values[place].text = text;
    return place;
}

/* ---- documents */

static void read_all(json_document *d)
{
    add_value(d, JSON_NULL);
    if (d->wrong || !read_value(d))
        return;
    skip_blanks(d);
    if (d->at < d->end)
        refuse(d, "something follows the value");
}

json_document *json_parse(const char *text, size_t bytes, char *why, size_t why_bytes)
{
    json_document *const d = calloc(1, sizeof *d);
    if (d)
        d->text = malloc(bytes + 1);
    if (!d || !d->text) {
        snprintf(why, why_bytes, "no memory");
        json_free(d);
        return NULL;
    }
    memcpy(d->text, text, bytes);
    d->text[bytes] = '\0';
    d->at = d->text;
    d->end = d->text + bytes;
    if (bytes > JSON_MAX_BYTES)
        refuse(d, "too long");
    else
        read_all(d);
    if (!d->wrong)
        return d;
    snprintf(why, why_bytes, "%s (byte %ld)", d->wrong, (long)(d->at - d->text));
    json_free(d);
    return NULL;
}

json_document *json_read(FILE *f, char *why, size_t why_bytes)
{
    json_document *d = NULL;
    size_t bytes = 0, capacity = 0, got = 1;
    char *text = NULL;
    while (got > 0 && bytes <= JSON_MAX_BYTES) {
        if (bytes == capacity) {
            char *const grown = realloc(text, capacity = 2 * capacity + 4096);
            if (!grown)
                break;
            text = grown;
        }
        got = fread(text + bytes, 1, capacity - bytes, f);
        bytes += got;
    }
    if (got > 0 && bytes <= JSON_MAX_BYTES)
        snprintf(why, why_bytes, "no memory");
    else if (ferror(f))
        snprintf(why, why_bytes, "it cannot be read");
    else
        d = json_parse(text, bytes, why, why_bytes);
    free(text);
    return d;
}

void json_free(json_document *d)
{
    if (!d)
        return;
    free(d->text);
    free(d->values);
    free(d);
}

const json_value *json_top(const json_document *d)
{
    return &d->values[1];
}

const json_value *json_first(const json_document *d, const json_value *v)
{
    return v && v->first ? &d->values[v->first] : NULL;
}

const json_value *json_next(const json_document *d, const json_value *v)
{
    return v && v->next ? &d->values[v->next] : NULL;
}

const json_value *json_member(const json_document *d, const json_value *object, const char *key)
{
    for (const json_value *v = json_first(d, object); v; v = json_next(d, v))
        if (v->key && !strcmp(v->key, key))
            return v;
    return NULL;
}

const char *json_text(const json_document *d, const json_value *object, const char *key)
{
    const json_value *const v = json_member(d, object, key);
    return v && v->kind == JSON_TEXT ? v->text : NULL;
}

double json_number(const json_document *d, const json_value *object, const char *key)
{
    const json_value *const v = json_member(d, object, key);
    return v && v->kind == JSON_NUMBER ? v->number : -1;
}
