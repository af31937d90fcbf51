/* board.h - what board.c needs from the machine under it. ports/bare gives it without an operating
 * system, board_os.c with one.
 * SPDX-License-Identifier: MIT
 */
#ifndef BOARD_H
#define BOARD_H

void board_print(const char *text);

/* The instructions since the last start, to some tens; 0 where the program cannot count. */
void board_start_counting(void);
unsigned long board_counted(void);

/* Paints the stack that is not in use, and tells how many bytes of the paint have gone since; 0 where
 * the stack cannot be painted. */
void board_paint_stack(void);
unsigned long board_stack_used(void);

#endif
