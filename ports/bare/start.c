/* start.c - what happens before main and behind it, and board.h, on a machine without an operating
 * system. A debugger or an emulator takes what is printed by semihosting.
 * SPDX-License-Identifier: MIT
 *
 * The symbols are those of link.ld; start_*.S calls start.
 */
#include "../board.h"

#include <stddef.h>
#include <stdint.h>

extern uint32_t data_load[], data_begin[], data_end[], bss_begin[], bss_end[], stack_end[];

enum { SYS_WRITE0 = 0x04, SYS_EXIT_EXTENDED = 0x20, EXITED = 0x20026 };
#define PAINT UINT32_C(0xa5a5a5a5)

int main(int argc, char **argv);
int semihost(int operation, void *argument);
void start(void);

void board_print(const char *text)
{
    semihost(SYS_WRITE0, (void *)(uintptr_t)text);
}

void board_exit(int status)
{
    uintptr_t block[2] = { EXITED, (uintptr_t)status };
    semihost(SYS_EXIT_EXTENDED, block);
    for (;;)
        ;
}

/* A word of the stack below the function's own. */
static uint32_t *free_top(void)
{
    return (uint32_t *)__builtin_frame_address(0) - 32;
}

void board_paint_stack(void)
{
    uint32_t *const top = free_top();
    for (volatile uint32_t *at = stack_end; at < top; at++)
        *at = PAINT;
}

unsigned long board_stack_used(void)
{
    uint32_t *const top = free_top();
    uint32_t *at = stack_end;
    while (at < top && *at == PAINT)
        at++;
    return (unsigned long)((char *)top - (char *)at);
}

void start(void)
{
    const volatile uint32_t *from = data_load;
    for (volatile uint32_t *to = data_begin; to < data_end;)
        *to++ = *from++;
    for (volatile uint32_t *to = bss_begin; to < bss_end;)
        *to++ = 0;
    board_exit(main(0, NULL));
}
