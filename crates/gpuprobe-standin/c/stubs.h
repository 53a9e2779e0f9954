/*
 * Assembler macros of the exported functions. Every export is a stub with a chosen prologue that jumps to its
 * implementation, so that probe placement meets each instruction pattern seen in real libraries.
 *
 *   STUB name, target      an export that jumps to target
 *   GENERIC name           impl_name (weak): calls standin_generic("name"), unless C code defines
 *                          impl_name; a frame of its own, as each function behind a real export is
 *   TAIL name, export      an export that jumps to another export of the same library
 *   ALIAS name, export     a weak second name at the same address
 */
/* clang-format off */
/* the linker would name the symbols of this file after the compiler's temporary file, which differs in each build */
.file "stubs.S"

#if defined(__x86_64__)

.macro PROLOGUE target
#if defined(PROLOGUE_PUSH)
	push %rbp
	.cfi_adjust_cfa_offset 8
	mov %rsp, %rbp
	pop %rbp
	.cfi_adjust_cfa_offset -8
#elif defined(PROLOGUE_ENDBR_PUSH)
	endbr64
	push %rbp
	.cfi_adjust_cfa_offset 8
	mov %rsp, %rbp
	pop %rbp
	.cfi_adjust_cfa_offset -8
#elif defined(PROLOGUE_CMP_JE)
	cmpl $0x5a5a, standin_cmp_word(%rip)
	je 1f
	jmp \target
1:
#elif defined(PROLOGUE_MOV)
	mov %rdi, %r11
	lea -8(%rsp), %rsp
	.cfi_adjust_cfa_offset 8
	mov %r11, (%rsp)
	lea 8(%rsp), %rsp
	.cfi_adjust_cfa_offset -8
#elif defined(PROLOGUE_SUB_THEN_PUSH)
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	push %rbx
	.cfi_adjust_cfa_offset 8
	pop %rbx
	.cfi_adjust_cfa_offset -8
	add $8, %rsp
	.cfi_adjust_cfa_offset -8
#elif defined(PROLOGUE_NOP)
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
#elif defined(PROLOGUE_LOOP_BACK)
	mov $3, %eax
1:	nop
	dec %eax
	jnz 1b
#else
#error "no prologue chosen"
#endif
	jmp \target
.endm

.macro NAME_AND_CALL label, target
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	lea \label(%rip), %rdi
	call \target
	add $8, %rsp
	.cfi_adjust_cfa_offset -8
	ret
.endm

#elif defined(__aarch64__)

.macro PUSH_AND_POP
	stp x29, x30, [sp, -16]!
	.cfi_adjust_cfa_offset 16
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	mov x29, sp
	ldp x29, x30, [sp], 16
	.cfi_adjust_cfa_offset -16
	.cfi_restore x29
	.cfi_restore x30
.endm

/* the assembler knows the names of hints only for a newer architecture */
.macro PROLOGUE target
#if defined(PROLOGUE_PUSH)
	PUSH_AND_POP
#elif defined(PROLOGUE_ENDBR_PUSH)
	hint 25 /* paciasp */
	.cfi_negate_ra_state
	PUSH_AND_POP
	hint 29 /* autiasp */
	.cfi_negate_ra_state
#elif defined(PROLOGUE_CMP_JE)
	hint 34 /* bti c */
	cbz x0, 1f
	b \target
1:
#elif defined(PROLOGUE_MOV)
	mov x9, x0
	sub sp, sp, 16
	.cfi_adjust_cfa_offset 16
	str x9, [sp]
	add sp, sp, 16
	.cfi_adjust_cfa_offset -16
#elif defined(PROLOGUE_SUB_THEN_PUSH)
	sub sp, sp, 16
	.cfi_adjust_cfa_offset 16
	PUSH_AND_POP
	add sp, sp, 16
	.cfi_adjust_cfa_offset -16
#elif defined(PROLOGUE_NOP)
	nop
#elif defined(PROLOGUE_LOOP_BACK)
	mov w9, 3
1:	nop
	subs w9, w9, 1
	b.ne 1b
#else
#error "no prologue chosen"
#endif
	b \target
.endm

.macro NAME_AND_CALL label, target
	stp x29, x30, [sp, -16]!
	.cfi_adjust_cfa_offset 16
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	adrp x0, \label
	add x0, x0, :lo12:\label
	bl \target
	ldp x29, x30, [sp], 16
	.cfi_adjust_cfa_offset -16
	.cfi_restore x29
	.cfi_restore x30
	ret
.endm

#else
#error "no stubs for this architecture"
#endif

.macro STUB name, target
	.text
	.p2align 4
	.globl \name
#ifdef STATIC_RUNTIME
	.hidden \name
#endif
	.type \name, %function
\name:
.Lstub_\name:
	.cfi_startproc
	PROLOGUE \target
	.cfi_endproc
.Lend_\name:
	.size \name, . - \name
.endm

.macro TAIL name, export
	STUB \name, .Lstub_\export
.endm

.macro ALIAS name, export
	.weak \name
	.type \name, %function
	.set \name, .Lstub_\export
	.size \name, .Lend_\export - .Lstub_\export
.endm

.macro GENERIC name
	.section .rodata.names, "a"
.Lname_\name:
	.asciz "\name"
	.text
	.p2align 4
	.weak impl_\name
	.hidden impl_\name
	.hidden standin_generic
	.type impl_\name, %function
impl_\name:
	.cfi_startproc
	NAME_AND_CALL .Lname_\name, standin_generic
	.cfi_endproc
	.size impl_\name, . - impl_\name
.endm

	.data
	.p2align 2
standin_cmp_word:
	.long 0
	.section .note.GNU-stack, "", %progbits
	    /* clang-format on */
