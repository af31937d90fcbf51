/* utf8.c - texts from outside, which may hold anything.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <string.h>

/* By RFC 3629: the leading bytes, and what the second may be; the others are 80 to bf. */
static const struct {
    unsigned char first, last, low, high;
    int bytes;
} forms[] = {
    { 0x01, 0x7f, 0, 0xff, 1 },    { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
    { 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
    { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
};

int utf8_length(const char *text)
{
    const unsigned char *const t = (const unsigned char *)text;
    size_t i = 0;
    while (i < sizeof forms / sizeof *forms && (*t < forms[i].first || *t > forms[i].last))
        i++;
    if (i == sizeof forms / sizeof *forms)
        return 0;
    if (forms[i].bytes > 1 && (t[1] < forms[i].low || t[1] > forms[i].high))
        return 0;
    for (int k = 2; k < forms[i].bytes; k++)
        if (t[k] < 0x80 || t[k] > 0xbf)
            return 0;
    return forms[i].bytes;
}

/* U+0000 to U+001F, U+007F to U+009F. */
static int is_control(const char *text)
{
    const unsigned char a = (unsigned char)text[0], b = (unsigned char)text[1];
    return a < 0x20 || a == 0x7f || (a == 0xc2 && b < 0xa0);
}

const char *utf8_printable(const char *text, char *to, size_t bytes)
{
    size_t at = 0;
    while (*text) {
        const int n = utf8_length(text);
        const int shown = n && !is_control(text);
        const size_t taken = n ? (size_t)n : 1;
        if (at + taken >= bytes)
            break;
        if (shown)
            memcpy(to + at, text, taken);
        else
            to[at] = '?';
        at += shown ? taken : 1;
        text += taken;
    }
    to[at] = '\0';
    return to;
}
