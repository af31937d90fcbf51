# start_riscv.S - RV32: the stack, the FPU, and semihosting calls.
# SPDX-License-Identifier: MIT
    .option arch, +zicsr

    .section .vectors, "ax"
    .global reset, semihost
reset:
    la sp, stack_top
    la tp, tls_begin # errno
    la t0, fault
    csrw mtvec, t0
#ifdef __riscv_flen
    li t0, 0x2000 # mstatus.FS
    csrs mstatus, t0
#endif
    call start

    .balign 4
fault:
    li a0, 99
    call board_exit

# int semihost(int operation, void *argument): these three instructions, none of them short, in one page
    .balign 16
    .option norvc
semihost:
    slli x0, x0, 0x1f
    ebreak
    srai x0, x0, 7
    ret
