@ start_arm.S - Cortex-M: the vector table, the FPU, and semihosting calls.
@ SPDX-License-Identifier: MIT
    .syntax unified
    .thumb

    .section .vectors, "a"
    .word stack_top
    .word reset
    .rept 14
    .word fault
    .endr

    .text
    .global reset, semihost
    .thumb_func
reset:
#ifdef __ARM_FP
    ldr r0, =0xe000ed88 @ CPACR: coprocessors 10 and 11 are the FPU
    ldr r1, [r0]
    orr r1, r1, #0xf00000
    str r1, [r0]
    dsb
    isb
#endif
    bl start

    .thumb_func
fault:
    movs r0, #99
    bl board_exit

@ int semihost(int operation, void *argument)
    .thumb_func
semihost:
    bkpt 0xab
    bx lr
