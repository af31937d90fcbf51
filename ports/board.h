/* board.h - what programs for boards need from the machine under them, and how they print. ports/bare has
 * the former without an operating system, board_os.c with one; print.c has the latter.
 * SPDX-License-Identifier: MIT
 */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

void board_print(const char *text);
void board_exit(int status);

/* The instructions since the last start, to some tens; 0 where the program cannot count. */
void board_start_counting(void);
unsigned long board_counted(void);

/* Paints the stack that is not in use, and tells how many bytes of the paint have gone since; 0 where
 * the stack cannot be painted. */
void board_paint_stack(void);
unsigned long board_stack_used(void);

/* At least `digits` digits, and a line: `what` and x. */
void print_number(uint64_t x, unsigned base, int digits);
void print_value(const char *what, uint64_t x);

/* FNV-1a of the numbers, each from its lowest byte on; the first hash is FIRST_HASH. */
#define FIRST_HASH UINT64_C(0xcbf29ce484222325)
uint64_t hash_floats(uint64_t hash, const float *x, size_t n);

#endif
