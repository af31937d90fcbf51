/* count_arm.c - instructions by SysTick, where an emulator takes a nanosecond for each (-icount shift=0).
 * SPDX-License-Identifier: MIT
 */
#include "../board.h"

#include <stdint.h>

/* It counts down from 2^24 - 1; CURRENT is 0 before the first tick. */
#define SYSTICK ((volatile uint32_t *)0xe000e010)
enum { CONTROL, RELOAD, CURRENT, ON = 5, LAST = 0xffffff };

/* A symbol of the linker script, whose address is the number. */
extern char clock_hz[];

void board_start_counting(void)
{
    SYSTICK[CONTROL] = 0;
    SYSTICK[RELOAD] = LAST;
    SYSTICK[CURRENT] = 0;
    SYSTICK[CONTROL] = ON;
}

unsigned long board_counted(void)
{
    return (unsigned long)((uint64_t)(-SYSTICK[CURRENT] & LAST) * 1000000000 / (uintptr_t)clock_hz);
}
