/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A process with a thread that has a hostile stack. Prints its pid:
 *
 *     hostile_stack spin ADDRESS     spins with this stack pointer
 *     hostile_stack asleep ADDRESS   sleeps with this stack pointer
 *     hostile_stack overwritten      waits for a stream while another thread overwrites its stack with random
 * words hostile_stack changing         its stack grows and shrinks all the time hostile_stack deep waits for
 * a stream below 100 MB of frames
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAME_BYTES 1000
#define DEEP_BYTES (100L << 20)
#define STACK_BYTES (128L << 20)

int cuStreamSynchronize(void *stream);

static uintptr_t overwritten_from, overwritten_to;

static uint64_t random_word(void)
{
	static uint64_t state = 1;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static __attribute__((noinline)) long recurse(long depth, int (*last)(void *))
{
	volatile char bytes[FRAME_BYTES];

	bytes[depth % FRAME_BYTES] = 1;
	if (depth == 0)
		return last ? last(NULL) : 0;
	return recurse(depth - 1, last) + bytes[depth % FRAME_BYTES];
}

static void *spin(void *address)
{
	__asm__ volatile("mov %0, %%rsp\n1: pause\njmp 1b" ::"r"(address) : "memory");
	return NULL;
}

static void *sleep_for_ever(void *address)
{
	__asm__ volatile("mov %0, %%rsp\n1: mov %1, %%eax\nsyscall\njmp 1b" ::"r"(address), "i"(SYS_pause)
			 : "rax", "rcx", "r11", "memory");
	return NULL;
}

static void *wait_overwritten(void *bytes)
{
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);

	overwritten_from = frame - (uintptr_t)bytes;
	__atomic_store_n(&overwritten_to, frame + 256, __ATOMIC_RELEASE);
	cuStreamSynchronize(NULL);
	return bytes;
}

static void *change(void *unused)
{
	for (;;)
		recurse((long)(random_word() % 60), NULL);
	return unused;
}

static void *wait_deep(void *unused)
{
	recurse(DEEP_BYTES / FRAME_BYTES, cuStreamSynchronize);
	return unused;
}

static void overwrite(void)
{
	uintptr_t to;

	while (!(to = __atomic_load_n(&overwritten_to, __ATOMIC_ACQUIRE)))
		;
	for (uintptr_t at = overwritten_from; at < to; at += 8)
		*(volatile uint64_t *)at = random_word();
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	void *address = argc > 2 ? (void *)strtoull(argv[2], NULL, 16) : NULL;
	void *(*run)(void *) = !strcmp(mode, "spin")	      ? spin
			       : !strcmp(mode, "asleep")      ? sleep_for_ever
			       : !strcmp(mode, "overwritten") ? wait_overwritten
			       : !strcmp(mode, "changing")    ? change
			       : !strcmp(mode, "deep")	      ? wait_deep
							      : NULL;
	pthread_attr_t large;
	pthread_t thread;

	pthread_attr_init(&large);
	pthread_attr_setstacksize(&large, STACK_BYTES);
	if (!run || pthread_create(&thread, &large, run, address))
		return 1;
	/* until it waits */
	usleep(200000);
	if (run == wait_overwritten)
		overwrite();
	printf("%d\n", getpid());
	fflush(stdout);
	while (run == wait_overwritten)
		overwrite();
	for (;;)
		pause();
}
