/*
 * stacks MODE [N]: CUDA calls that overlap on several stacks of one thread, N rounds (default 100).
 *
 *   alt-above, alt-below   a signal handler on an alternate stack above or below the thread's stack calls
 *                          CUDA while a CUDA call of the thread is open; one mapping, no guard pages
 *   alt-frame              the alternate stack is an array in the frame of main
 *   alt-jump               the handler leaves a CUDA call of its own by siglongjmp
 *   fibers                 two fibers (swapcontext) yield inside a CUDA call and return in both orders
 *   fibers-array           the same with adjacent stacks in one array
 *   fibers-frame           the same with stacks that are arrays in the frame of main
 *   fibers-dropped         a fiber is dropped, and its stack unmapped, while its CUDA call is open
 *   deep-jump              longjmp out of a CUDA call far down the stack, then calls far above it
 *   signal-jump            a signal handler leaves a CUDA call that only waits, by siglongjmp
 *   timer-above            like alt-above, but a timer interrupts a copy; the handler also frees what the
 *                          thread has allocated
 *   timer-fibers           like fibers, but a timer interrupts a copy and its handler switches to the other
 *                          fiber
 *   all                    one after the other, without those that a timer interrupts
 *
 * Prints {"pid","mode","rounds","made"}: how many calls were made. `deep-jump`, `alt-jump` and
 * `fibers-dropped` also make calls that never return; these are part of `made`, and `left` counts them.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <pthread.h>

#include "cuda_api.h"

#define STACK_BYTES (256 << 10)

static volatile unsigned long made, left;
static int rounds = 100;
static int failed;

/* The simple calls: they return before anything else happens on the thread. */
static void allocate_and_free(void)
{
	void *block = NULL;

	failed |= cudaMalloc(&block, 4096);
	failed |= cudaFree(block);
	made += 2;
}

static void call_out(void (*callback)(void *))
{
	made++;
	failed |= cudaLaunchHostFunc(NULL, callback, NULL);
}

/* Signal handlers on an alternate stack */

static void on_signal(int number)
{
	(void)number;
	allocate_and_free();
}

static void interrupt(void *unused)
{
	(void)unused;
	raise(SIGUSR1);
}

static sigjmp_buf before_signal;

static void jump_out_of_handler(void *unused)
{
	(void)unused;
	left++;
	siglongjmp(before_signal, 1);
}

static void on_signal_jump(int number)
{
	(void)number;
	call_out(jump_out_of_handler);
}

static void handle_on(void *stack, int number, void (*handler)(int))
{
	stack_t alternate = {.ss_sp = stack, .ss_size = STACK_BYTES};
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};

	failed |= sigaltstack(&alternate, NULL);
	failed |= sigaction(number, &action, NULL);
}

static void *interrupted(void *alternate)
{
	handle_on(alternate, SIGUSR1, on_signal);
	for (int i = 0; i < rounds; i++) {
		call_out(interrupt);
		allocate_and_free();
	}
	failed |= sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
	return NULL;
}

static void *map_stacks(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		exit(9);
	return memory;
}

/* Runs a thread whose own stack and alternate stack share one mapping. */
static void run_with_alternate_stack(int above, void *(*body)(void *))
{
	char *memory = map_stacks(2 * STACK_BYTES);
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, above ? memory : memory + STACK_BYTES, STACK_BYTES);
	failed |= pthread_create(&thread, &attributes, body, above ? memory + STACK_BYTES : (void *)memory);
	failed |= pthread_join(thread, NULL);
}

static void run_in_frame(void)
{
	char alternate[STACK_BYTES];

	interrupted(alternate);
}

static void run_handler_jumps(void)
{
	static volatile int round;

	handle_on(map_stacks(STACK_BYTES), SIGUSR1, on_signal_jump);
	for (round = 0; round < rounds; round++) {
		if (!sigsetjmp(before_signal, 1))
			raise(SIGUSR1);
		allocate_and_free();
	}
}

/* Fibers */

static ucontext_t scheduler, fibers[2];
static int running;

static void yield(void *unused)
{
	int self = running;

	(void)unused;
	swapcontext(&fibers[self], &scheduler);
}

static void resume(int fiber)
{
	running = fiber;
	swapcontext(&scheduler, &fibers[fiber]);
}

static void yield_in_callback(void)
{
	call_out(yield);
}

/* The first action of a fiber: a CUDA call in which it yields. */
static void (*call_and_yield)(void) = yield_in_callback;

static void fiber_main(void)
{
	for (;;) {
		call_and_yield();
		allocate_and_free();
		yield(NULL);
	}
}

static void start_fiber(int fiber, void *stack)
{
	getcontext(&fibers[fiber]);
	fibers[fiber].uc_stack.ss_sp = stack;
	fibers[fiber].uc_stack.ss_size = STACK_BYTES;
	fibers[fiber].uc_link = NULL;
	makecontext(&fibers[fiber], fiber_main, 0);
}

/* Both fibers are inside a call; then each continues to its next yield, in one order and in the other. */
static void run_fibers(char *stacks)
{
	start_fiber(0, stacks);
	start_fiber(1, stacks + STACK_BYTES);
	for (int i = 0; i < rounds; i++) {
		int first = i & 1, returns_first = i >> 1 & 1;

		resume(first);
		resume(!first);
		allocate_and_free();
		resume(returns_first);
		resume(!returns_first);
		resume(first);
		resume(!first);
		allocate_and_free();
		resume(!returns_first);
		resume(returns_first);
	}
}

static void run_fibers_in_frame(void)
{
	char stacks[2 * STACK_BYTES];

	run_fibers(stacks);
}

static void run_dropped(void)
{
	for (int i = 0; i < rounds; i++) {
		void *stack = map_stacks(STACK_BYTES);

		start_fiber(0, stack);
		resume(0);
		left++;
		munmap(stack, STACK_BYTES);
		allocate_and_free();
	}
}

/* Jumps */

static jmp_buf far_above;

static void jump_far(void *unused)
{
	(void)unused;
	left++;
	longjmp(far_above, 1);
}

static int descend(int levels)
{
	volatile char frame[512];

	frame[0] = (char)levels;
	if (levels)
		return descend(levels - 1) + frame[0];
	call_out(jump_far);
	return 0;
}

static void run_deep_jumps(void)
{
	static volatile int round;

	for (round = 0; round < rounds; round++) {
		if (!setjmp(far_above))
			descend(100);
		allocate_and_free();
	}
}

static void on_alarm(int number)
{
	(void)number;
	siglongjmp(before_signal, 1);
}

/* STANDIN_DELAY makes cudaDeviceSynchronize take longer than the timer. */
static int wait_down(int levels)
{
	volatile char frame[512];

	frame[0] = (char)levels;
	if (levels)
		return wait_down(levels - 1) + frame[0];
	made++;
	left++;
	failed |= cudaDeviceSynchronize();
	/* not interrupted */
	failed = 1;
	return 0;
}

static void run_signal_jumps(void)
{
	struct sigaction action = {.sa_handler = on_alarm};
	static volatile int round;

	failed |= sigaction(SIGALRM, &action, NULL);
	/* the first call loads the driver, which must not be jumped out of */
	allocate_and_free();
	for (round = 0; round < rounds; round++) {
		if (!sigsetjmp(before_signal, 1)) {
			ualarm(10000, 0);
			wait_down(100);
		}
		allocate_and_free();
	}
}

/* Copies that a timer interrupts. STANDIN_DELAY makes them take longer than the timer. */

static void *copied_to, *to_free;
static volatile int interruptions;

static void copy_until_interrupted(void)
{
	static char from[64];
	int before = interruptions;

	ualarm(300, 0);
	do {
		made++;
		failed |= cudaMemcpy(copied_to, from, sizeof(from), COPY_H2D);
	} while (interruptions == before);
}

static void on_timer(int number)
{
	(void)number;
	interruptions++;
	made++;
	failed |= cudaFree(to_free);
	allocate_and_free();
}

static void on_timer_yield(int number)
{
	(void)number;
	interruptions++;
	yield(NULL);
}

/* The first call loads the driver, which must not be interrupted. */
static void prepare_copies(void)
{
	made++;
	failed |= cudaMalloc(&copied_to, 4096);
}

static void mask_timer(int how)
{
	sigset_t timer;

	sigemptyset(&timer);
	sigaddset(&timer, SIGALRM);
	failed |= pthread_sigmask(how, &timer, NULL);
}

static void *copy_interrupted(void *alternate)
{
	handle_on(alternate, SIGALRM, on_timer);
	mask_timer(SIG_UNBLOCK);
	for (int i = 0; i < rounds; i++) {
		made++;
		failed |= cudaMalloc(&to_free, 4096);
		copy_until_interrupted();
		allocate_and_free();
	}
	failed |= sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
	return NULL;
}

static void run_timer_above(void)
{
	prepare_copies();
	/* otherwise the waiting thread would be interrupted */
	mask_timer(SIG_BLOCK);
	run_with_alternate_stack(1, copy_interrupted);
}

static void run_timer_fibers(void)
{
	struct sigaction action = {.sa_handler = on_timer_yield};

	prepare_copies();
	failed |= sigaction(SIGALRM, &action, NULL);
	call_and_yield = copy_until_interrupted;
	run_fibers(map_stacks(2 * STACK_BYTES));
}

static void run_above(void)
{
	run_with_alternate_stack(1, interrupted);
}

static void run_below(void)
{
	run_with_alternate_stack(0, interrupted);
}

static void run_mapped_fibers(void)
{
	run_fibers(map_stacks(2 * STACK_BYTES));
}

static void run_fibers_in_array(void)
{
	static char array[2 * STACK_BYTES];

	run_fibers(array);
}

static const struct {
	const char *name;
	void (*run)(void);
	int alone;
} modes[] = {
    {.name = "alt-above", .run = run_above},
    {.name = "alt-below", .run = run_below},
    {.name = "alt-frame", .run = run_in_frame},
    {.name = "alt-jump", .run = run_handler_jumps},
    {.name = "fibers", .run = run_mapped_fibers},
    {.name = "fibers-array", .run = run_fibers_in_array},
    {.name = "fibers-frame", .run = run_fibers_in_frame},
    {.name = "fibers-dropped", .run = run_dropped},
    {.name = "deep-jump", .run = run_deep_jumps},
    {.name = "signal-jump", .run = run_signal_jumps},
    {.name = "timer-above", .run = run_timer_above, .alone = 1},
    {.name = "timer-fibers", .run = run_timer_fibers, .alone = 1},
};

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "all";
	int found = 0;

	/* read at the first call */
	setenv("STANDIN_DELAY", "cudaDeviceSynchronize:1000000,cudaMemcpy:1500", 1);
	if (count > 2)
		rounds = atoi(words[2]);
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		if (strcmp(mode, modes[i].name) && (strcmp(mode, "all") || modes[i].alone))
			continue;
		modes[i].run();
		found = 1;
	}
	if (!found)
		return 2;
	printf("{\"pid\":%d,\"mode\":\"%s\",\"rounds\":%d,\"made\":%lu,\"left\":%lu}\n", (int)getpid(), mode,
	       rounds, made, left);
	return failed ? 1 : 0;
}
