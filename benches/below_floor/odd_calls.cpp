/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Calls that do not return in the usual order. A probe on the return of a function replaces its return
 * address: then an exception ends the program, and so does a fiber that yields inside the call. A trampoline
 * replaces nothing, so all of these must pass through it while its places are probed.
 */
#include <csetjmp>
#include <ucontext.h>
#include "odd_calls.h"

namespace
{

jmp_buf back;
ucontext_t main_context, fiber_context;
any_function called;
int steps;

long throws()
{
	throw 42;
}

long jumps()
{
	longjmp(back, 1);
}

/* Yields to the other side in the middle of the call. */
long yields()
{
	bool is_fiber = steps++ % 2;

	swapcontext(is_fiber ? &fiber_context : &main_context, is_fiber ? &main_context : &fiber_context);
	return 0;
}

void fiber()
{
	for (;;)
		called();
}

bool pass_exception(any_function wrapper)
{
	try {
		wrapper();
	} catch (int number) {
		return number == 42;
	}
	return false;
}

bool pass_jump(any_function wrapper)
{
	if (setjmp(back))
		return true;
	wrapper();
	return false;
}

bool pass_fibers(any_function wrapper)
{
	static char stack[1 << 16];

	called = wrapper;
	steps = 0;
	getcontext(&fiber_context);
	fiber_context.uc_stack = {.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
	makecontext(&fiber_context, fiber, 0);
	for (int i = 0; i < 1000; i++)
		wrapper();
	return steps >= 2000;
}

} /* namespace */

int odd_calls_pass(const char *name, any_function wrapper)
{
	bool passed = true;

	for (int i = 0; i < 100; i++) {
		interposer_set_original(name, throws);
		passed = passed && pass_exception(wrapper);
		interposer_set_original(name, jumps);
		passed = passed && pass_jump(wrapper);
	}
	interposer_set_original(name, yields);
	return passed && pass_fibers(wrapper);
}
