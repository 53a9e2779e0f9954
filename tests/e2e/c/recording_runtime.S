/*
 * A CUDA runtime for x86-64 that records failures like NVIDIA's: each exported function calls an inner one, which
 * fetches a state and stores the status there if it fails. The first argument must not be null.
 */
	.text

	.type fetch_state, @function
fetch_state:
	lea state(%rip), %rax
	mov %rax, (%rdi)
	ret

	.type store_status, @function
store_status:
	mov %esi, (%rdi)
	ret

	/* turns a status of the CUDA driver into one of the runtime */
	.type translate, @function
translate:
	mov %edi, %eax
	ret

	.type succeed, @function
succeed:
	xor %eax, %eax
	ret

	.macro runtime_function name, worker
	.type inner_\name, @function
inner_\name:
	push %rbp
	mov %rsp, %rbp
	push %rbx
	sub $0x18, %rsp
	test %rdi, %rdi
	je 3f
	call \worker
	test %eax, %eax
	mov %eax, %ebx
	je 2f
	mov %eax, %edi
	call translate
	mov %eax, %ebx
1:
	lea -0x18(%rbp), %rdi
	movq $0, -0x18(%rbp)
	call fetch_state
	mov -0x18(%rbp), %rdi
	test %rdi, %rdi
	je 2f
	mov %ebx, %esi
	call store_status
2:
	mov %ebx, %eax
	add $0x18, %rsp
	pop %rbx
	pop %rbp
	ret
3:
	mov $1, %ebx
	jmp 1b
	.size inner_\name, . - inner_\name

	.globl \name
	.type \name, @function
\name:
	push %rbp
	mov %rsp, %rbp
	call inner_\name
	pop %rbp
	ret
	.size \name, . - \name
	.endm

	runtime_function cudaMalloc, cuMemAlloc_v2@PLT
	runtime_function cudaFree, cuMemFree_v2@PLT
	runtime_function cudaMallocHost, succeed
	runtime_function cudaFreeHost, succeed
	runtime_function cudaMallocManaged, succeed
	runtime_function cudaMemcpy, succeed
	runtime_function cudaMemcpyAsync, cuMemcpyHtoD_v2@PLT
	runtime_function cudaMemset, succeed
	runtime_function cudaMemsetAsync, succeed

	.bss
state:
	.zero 8
	.section .note.GNU-stack, "", @progbits
