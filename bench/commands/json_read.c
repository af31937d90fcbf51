/* json_read.c - reads JSON, written for files that may be damaged: every limit is checked.
 * SPDX-License-Identifier: MIT
 *
 * One pass checks the whole document and decodes its texts in place, where they never become
 * longer: a quote, the bytes, a zero byte, and blanks up to what follows. A value is the place where
 * it begins; its first character tells the kind. */
#include "json_read.h"

#include <stdlib.h>
#include <string.h>

#include "../report/report.h"

/* ---- checking and decoding */

typedef struct json_reader {
    char *at, *end;
    int depth;
    const char *wrong; /* the first thing that was; NULL = nothing so far */
} json_reader;

static int refuse(json_reader *d, const char *wrong)
{
    if (!d->wrong)
        d->wrong = wrong;
    return 0;
}

static const char *blanks(const char *at)
{
    return at + strspn(at, " \n\t\r");
}

/* The zero byte behind the document ends them, too. */
static void skip_blanks(json_reader *d)
{
    d->at += strspn(d->at, " \n\t\r");
}

static int next_is(const json_reader *d, char c)
{
    return d->at < d->end && *d->at == c;
}

/* ---- texts */

/* Four hexadecimal digits; -1 = they are not. */
static long read_hex(json_reader *d)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    long code = 0;
    if (d->end - d->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char *const digit = *d->at ? strchr(digits, *d->at++) : NULL;
        if (!digit)
            return -1;
        code = code * 16 + (long)((digit - digits) % 16);
    }
    return code;
}

/* The code point after \u, two halves of a pair as one; -1 = there is none. */
static long read_code(json_reader *d)
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
static int read_escape(json_reader *d, char **to)
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

static int read_text(json_reader *d)
{
    if (!next_is(d, '"'))
        return refuse(d, "a text is missing");
    char *to = ++d->at;
    while (d->at < d->end && *d->at != '"') {
        if ((unsigned char)*d->at < 0x20)
            return refuse(d, "a control character in a text");
        if (*d->at != '\\') {
            *to++ = *d->at++;
            continue;
        }
        d->at++;
        if (!read_escape(d, &to))
            return refuse(d, "a wrong escape in a text");
    }
    if (d->at == d->end)
        return refuse(d, "a text does not end");
    d->at++;
    *to++ = '\0';
    memset(to, ' ', (size_t)(d->at - to));
    return 1;
}

/* ---- values */

static int read_digits(json_reader *d)
{
    const char *const start = d->at;
    while (d->at < d->end && *d->at >= '0' && *d->at <= '9')
        d->at++;
    return d->at > start;
}

/* The grammar is stricter than strtod's: no +1, no 01, no .5, no 1., no hexadecimals, no NaN. */
static int read_number(json_reader *d)
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
    return 1;
}

static int read_value(json_reader *d);

/* What stands before a member's value. */
static int read_key(json_reader *d)
{
    if (!read_text(d))
        return 0;
    skip_blanks(d);
    if (!next_is(d, ':'))
        return refuse(d, "a colon is missing");
    d->at++;
    return 1;
}

/* A list or an object, whose first character it stands at. */
static int read_children(json_reader *d)
{
    const int keyed = *d->at++ == '{';
    if (++d->depth > JSON_MAX_DEPTH)
        return refuse(d, "too deep");
    skip_blanks(d);
    for (int n = 0; !next_is(d, keyed ? '}' : ']'); n++) {
        if (n && !next_is(d, ','))
            return refuse(d, "a comma is missing");
        d->at += n > 0;
        skip_blanks(d);
        if ((keyed && !read_key(d)) || !read_value(d))
            return 0;
        skip_blanks(d);
    }
    d->at++;
    d->depth--;
    return 1;
}

/* 0 = no value begins here. */
static int read_value(json_reader *d)
{
    static const char *const words[] = { "null", "false", "true" };
    skip_blanks(d);
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(words[i]);
        if ((size_t)(d->end - d->at) < length || memcmp(d->at, words[i], length))
            continue;
        d->at += length;
        return 1;
    }
    if (next_is(d, '[') || next_is(d, '{'))
        return read_children(d);
    return next_is(d, '"') ? read_text(d) : read_number(d);
}

/* ---- documents */

/* The text itself, decoded, or NULL. */
static char *decode(char *text, size_t bytes, char *why, size_t why_bytes)
{
    json_reader d = { .at = text, .end = text + bytes };
    if (bytes > JSON_MAX_BYTES)
        refuse(&d, "too long");
    else if (read_value(&d))
        skip_blanks(&d);
    if (d.at < d.end)
        refuse(&d, "something follows the value");
    if (!d.wrong)
        return text;
    snprintf(why, why_bytes, "%s (byte %ld)", d.wrong, (long)(d.at - text));
    free(text);
    return NULL;
}

char *json_parse(const char *text, size_t bytes, char *why, size_t why_bytes)
{
    char *const copy = malloc(bytes + 1);
    if (!copy)
        return snprintf(why, why_bytes, "no memory"), NULL;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return decode(copy, bytes, why, why_bytes);
}

char *json_read(FILE *f, char *why, size_t why_bytes)
{
    size_t bytes;
    char *const text = files_load(f, JSON_MAX_BYTES, &bytes);
    if (!text)
        return snprintf(why, why_bytes, "it cannot be read, or is too long"), NULL;
    return decode(text, bytes, why, why_bytes);
}

/* ---- values of a document that is decoded */

/* What is behind the value that begins here: behind a key there is a colon. */
static const char *end_of(const char *v)
{
    if (*v == '"')
        return v + strlen(v) + 1;
    if (*v != '[' && *v != '{')
        return v + strcspn(v, ",:]} \n\t\r");
    const char *at = blanks(v + 1);
    while (*at != ']' && *at != '}') {
        at = blanks(end_of(at));
        if (*at == ',' || *at == ':')
            at = blanks(at + 1);
    }
    return at + 1;
}

const char *json_first(const char *v)
{
    v = v ? blanks(v) : "";
    if (*v != '[' && *v != '{')
        return NULL;
    v = blanks(v + 1);
    return *v != ']' && *v != '}' ? v : NULL;
}

const char *json_next(const char *child)
{
    const char *at = blanks(end_of(child));
    if (*at == ':')
        at = blanks(end_of(blanks(at + 1)));
    return *at == ',' ? blanks(at + 1) : NULL;
}

const char *json_member(const char *object, const char *key)
{
    for (const char *v = json_first(object); v; v = json_next(v)) {
        const char *const colon = blanks(end_of(v));
        if (*v == '"' && *colon == ':' && !strcmp(v + 1, key))
            return blanks(colon + 1);
    }
    return NULL;
}

const char *json_text(const char *object, const char *key)
{
    const char *const v = json_member(object, key);
    return v && *v == '"' ? v + 1 : NULL;
}

double json_number(const char *object, const char *key)
{
    const char *const v = json_member(object, key);
    return v && strchr("-0123456789", *v) ? strtod(v, NULL) : -1;
}
