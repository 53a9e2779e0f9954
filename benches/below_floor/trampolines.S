/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Functions that call a function of the CUDA driver and have two places to probe: their first instruction, and
 * the first instruction of another function that they jump to when the call has returned. At both the stack
 * pointer is the one that the caller gave, so the arguments and the result are where a probe on the function
 * itself and a probe on its return find them. Nothing is below the stack pointer, so a 5-byte nop may become a
 * call there (Linux 6.18). No return address is replaced, and the unwinder can pass.
 *
 *   TRAMPOLINE family, place, function, words    `words` of arguments are on the stack
 */
/* clang-format off */
	.macro PLACE place
	.ifc \place, nop
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
	.else
	push %rbp
	.cfi_adjust_cfa_offset 8
	pop %rbp
	.cfi_adjust_cfa_offset -8
	.endif
	.endm

	.macro TRAMPOLINE family, place, function, words
	.p2align 5
	.globl \family\()_enter_\function
	.type \family\()_enter_\function, @function
\family\()_enter_\function:
	.cfi_startproc
	PLACE \place
	push %rbp
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rbp, 0
	mov %rsp, %rbp
	.cfi_def_cfa_register %rbp
	.if \words
	sub $(\words + \words % 2) * 8, %rsp
	.set word, 0
	.rept \words
	mov 16 + 8 * word(%rbp), %rax
	mov %rax, 8 * word(%rsp)
	.set word, word + 1
	.endr
	.endif
	call *original_\function(%rip)
	leave
	.cfi_def_cfa %rsp, 8
	.cfi_restore %rbp
	jmp .L\family\()_leave_\function
	.cfi_endproc
	.size \family\()_enter_\function, . - \family\()_enter_\function

	.p2align 5
	.globl \family\()_leave_\function
	.type \family\()_leave_\function, @function
\family\()_leave_\function:
.L\family\()_leave_\function:
	.cfi_startproc
	PLACE \place
	ret
	.cfi_endproc
	.size \family\()_leave_\function, . - \family\()_leave_\function
	.endm

	.text
/* one for the interposer itself, the others for measurements: probes are on places in a file */
#define FUNCTION(name, registers, words) \
	TRAMPOLINE interposed, nop, name, words ; \
	TRAMPOLINE unprobed, nop, name, words ; \
	TRAMPOLINE empty, nop, name, words ; \
	TRAMPOLINE empty_push, push, name, words ; \
	TRAMPOLINE counted, nop, name, words
#include "functions.def"

	.macro REPORT name
	.p2align 5
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
	PLACE nop
	ret
	.cfi_endproc
	.size \name, . - \name
	.endm

	REPORT report_empty
	REPORT report_counted

/* RTLD_DEFAULT is 0 and RTLD_NEXT is -1: both depend on who calls, so the return address must stay. */
	.p2align 4
	.globl dlsym
	.type dlsym, @function
dlsym:
	.cfi_startproc
	lea 1(%rdi), %rax
	cmp $1, %rax
	jbe 1f
	jmp interposed_dlsym
1:	jmp *real_dlsym(%rip)
	.cfi_endproc
	.size dlsym, . - dlsym
	.section .note.GNU-stack, "", @progbits
