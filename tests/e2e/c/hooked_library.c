/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A test library with functions of every form that can be hooked. */
#include <stdlib.h>
#include <string.h>

/* returns the memory, or NULL for a count of 0 */
void *hk_alloc(size_t count, size_t size)
{
	return count ? calloc(count, size) : NULL;
}

int hk_free(void *memory)
{
	free(memory);
	return 0;
}

/* returns the memory in an output argument, with a status */
int hk_new(void **memory, size_t bytes, int status)
{
	*memory = status ? NULL : malloc(bytes);
	return status;
}

int hk_move(void *to, const void *from, size_t bytes, int kind)
{
	memcpy(to, from, bytes);
	return kind < 0;
}

/* returns the handle for a name in an output argument */
int hk_lookup(void **kernel, const char *name)
{
	*kernel = (void *)name;
	return 0;
}

int hk_launch(unsigned x, unsigned y, unsigned z, void *kernel)
{
	return x + y + z && kernel ? 0 : -7;
}

unsigned long hk_number(int *low, unsigned long *high)
{
	*low = -5;
	*high = 1UL << 40;
	return 77;
}

/* its effect is that of the calls inside it */
int hk_around(int (*inner)(void *), void *data)
{
	return inner(data);
}
