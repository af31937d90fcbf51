/* count_riscv.c - instructions by the counter of the CPU.
 * SPDX-License-Identifier: MIT
 */
#include "../board.h"

static unsigned long begin;

static unsigned long executed(void)
{
    unsigned long count;
    __asm__ volatile(".option arch, +zicsr\n\tcsrr %0, minstret" : "=r"(count));
    return count;
}

void board_start_counting(void)
{
    begin = executed();
}

unsigned long board_counted(void)
{
    return executed() - begin;
}
