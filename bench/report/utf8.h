/* utf8.h - texts from outside, which may hold anything.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_UTF8_H
#define BENCH_UTF8_H

#include <stddef.h>

/* Bytes of the character that begins here; 0 = no valid UTF-8 begins here, or the text ends. */
int utf8_length(const char *text);

/* A copy, cut off where it must be, with ? for each control character and wrong byte, which could
 * command a terminal; returns to. */
const char *utf8_printable(const char *text, char *to, size_t bytes);

#endif
