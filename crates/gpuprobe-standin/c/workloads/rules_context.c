/* Rules about contexts, and memory that ends with them. */
#include "rules.h"

/* On a device that the runtime does not use. */
void rule_primary(void)
{
	void *context = NULL, *same = NULL;
	struct set set;

	must(!cuDevicePrimaryCtxRetain(&context, 2) && !cuDevicePrimaryCtxRetain(&same, 2), "two references");
	must(context == same && !cuCtxPushCurrent_v2(context), "it is current");
	set = allocate_set(2);
	must(!cuDevicePrimaryCtxRelease_v2(2), "not the last");
	show();
	must(!cuDevicePrimaryCtxRelease_v2(2), "the last");
	set_ended(&set, 2);
	show();
	must(!cuCtxPopCurrent_v2(NULL), "it is not current");
	must(free_set(&set) == FAMILIES, "what has ended cannot be freed");
	must(cuDevicePrimaryCtxRelease_v2(2), "it is released");
	show();
}

void rule_reset(void)
{
	struct set first = allocate_set(0), other;

	must(!cudaSetDevice(1), "another device");
	other = allocate_set(1);
	show();
	must(!cudaSetDevice(0) && !cudaDeviceReset(), "it is reset");
	set_ended(&first, 0);
	show();
	allocate_set(0);
	must(!free_set(&other), "the other device has its memory");
	set_freed(&other, 1);
	show();
}

void rule_context(void)
{
	void *first = NULL, *second = NULL;
	struct set set, outside = allocate_set(0);

	must(!cuCtxCreate_v2(&first, 0, 1), "a context");
	set = allocate_set(1);
	show();
	must(!cuCtxDestroy_v2(first), "it is destroyed");
	set_ended(&set, 1);
	show();
	must(!cuCtxCreate_v2(&second, 0, 2) && first == second, "another one has its handle");
	set = allocate_set(2);
	must(cuCtxDestroy_v2((char *)first + 1), "no context");
	show();
	must(!cuCtxPopCurrent_v2(NULL) && !cuCtxDestroy_v2(second), "it need not be current");
	set_ended(&set, 2);
	must(!cudaFree(outside.device), "the first device is as it was");
	freed(KIND_DEVICE, 0, SET_DEVICE_BYTES);
	show();
}

static void *destroy_slowly(void *unused)
{
	(void)unused;
	__atomic_store_n(&slow.begun, 1, __ATOMIC_RELEASE);
	must(!cuCtxDestroy_v2((void *)slow.argument), "it is destroyed");
	__atomic_store_n(&slow.returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

void rule_hurry(void)
{
	for (int i = 0, overlaps = 0; overlaps < ROUNDS; i++) {
		void *first = NULL, *second = NULL;
		struct set set, next;
		pthread_t thread;

		must(i < TRIES, "handles are given out again before the end has returned");
		must(!cuCtxCreate_v2(&first, 0, 1), "a context");
		set = allocate_set(1);
		must(!cuCtxPopCurrent_v2(NULL), "it is not current here");
		thread = start_slow(destroy_slowly, (uint64_t)first);
		must(!cuCtxCreate_v2(&second, 0, 2), "another one");
		next = allocate_set(2);
		overlaps += second == first && next.device == set.device &&
			    !__atomic_load_n(&slow.returned, __ATOMIC_ACQUIRE);
		pthread_join(thread, NULL);
		set_ended(&set, 1);
		if (overlaps == ROUNDS)
			return show();
		must(!cuCtxDestroy_v2(second), "and on");
		set_ended(&next, 2);
	}
}
