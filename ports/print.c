/* print.c - numbers printed and hashed, without printf, which takes more room than some boards have.
 * SPDX-License-Identifier: MIT
 */
#include "board.h"

#include <string.h>

void print_number(uint64_t x, unsigned base, int digits)
{
    char text[24];
    char *at = text + sizeof text;
    *--at = '\0';
    for (; digits > 0 || x != 0; x /= base, digits--)
        *--at = "0123456789abcdef"[x % base];
    board_print(at);
}

void print_value(const char *what, uint64_t x)
{
    board_print(what);
    print_number(x, 10, 1);
    board_print("\n");
}

uint64_t hash_floats(uint64_t hash, const float *x, size_t n)
{
    for (size_t i = 0; i < 4 * n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i / 4, sizeof bits);
        hash = (hash ^ (bits >> i % 4 * 8 & 255)) * UINT64_C(0x100000001b3);
    }
    return hash;
}
