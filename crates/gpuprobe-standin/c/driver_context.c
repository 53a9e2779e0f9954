/* Visible devices, contexts, the current context of a thread, and the end of a context. */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define CONTEXT_STACK 16
#define MAX_CONTEXTS 1024
#define FIRST_CONTEXT 0x560000001000ULL
#define CONTEXT_STEP 0x1000

struct spinlock driver_lock;

/* The first rows are the primary contexts of the devices. */
static struct context contexts[MAX_CONTEXTS];
static __thread uint64_t stack[CONTEXT_STACK];
static __thread unsigned int depth;

/*
 * CUDA_VISIBLE_DEVICES selects devices and their order, by number or by UUID. Devices after an invalid entry
 * are not visible. Numbers follow the bus order, except that STANDIN_FASTEST is the first device unless
 * CUDA_DEVICE_ORDER is PCI_BUS_ID.
 */
static struct {
	pthread_once_t once;
	int count, physical[DEVICES], order[DEVICES];
} visible = {.once = PTHREAD_ONCE_INIT};

static int is_visible(int physical)
{
	for (int i = 0; i < visible.count; i++) {
		if (visible.physical[i] == physical)
			return 1;
	}
	return 0;
}

static void put_in_order(void)
{
	const char *order = getenv("CUDA_DEVICE_ORDER"), *fastest = getenv("STANDIN_FASTEST");
	int first = fastest ? atoi(fastest) : 0;

	if (first < 0 || first >= DEVICES || (order && !strcmp(order, "PCI_BUS_ID")))
		first = 0;
	visible.order[0] = first;
	for (int i = 1; i < DEVICES; i++)
		visible.order[i] = i <= first ? i - 1 : i;
}

/* The device that an entry of the list selects; -1 for none. A unique prefix of a UUID is enough. */
static int chosen(const char *entry, size_t length, int by_number)
{
	int found = -1;
	char *end;

	if (by_number) {
		long number = strtol(entry, &end, 10);

		return end == entry || number < 0 || number >= DEVICES ? -1 : visible.order[number];
	}
	for (int device = 0; length > 4 && device < DEVICES; device++) {
		char name[48] = "GPU", *at = name + 3;
		unsigned char uuid[16];

		device_uuid(device, uuid);
		for (int i = 0; i < 16; i++)
			at += sprintf(at, "%s%02x", i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
				      uuid[i]);
		if (strncasecmp(name, entry, length))
			continue;
		if (found >= 0)
			return -1;
		found = device;
	}
	return found;
}

static void look(void)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	int by_number = text && !strchr("GM", text[0]);

	put_in_order();
	if (!text) {
		memcpy(visible.physical, visible.order, sizeof(visible.order));
		visible.count = DEVICES;
		return;
	}
	while (*text) {
		size_t length = strcspn(text, ",");
		int device = chosen(text, length, by_number);

		if (device < 0)
			return;
		if (is_visible(device)) {
			/* a device that is listed twice makes the whole list invalid */
			visible.count = 0;
			return;
		}
		visible.physical[visible.count++] = device;
		text += length + (text[length] == ',');
	}
}

int device_count(void)
{
	pthread_once(&visible.once, look);
	return visible.count;
}

int device_physical(int device)
{
	return device >= 0 && device < device_count() ? visible.physical[device] : -1;
}

static uint64_t handle_of(const struct context *context)
{
	return FIRST_CONTEXT + CONTEXT_STEP * (uint64_t)(context - contexts);
}

/* NULL if there is none, or it has ended. */
static struct context *find(uint64_t handle)
{
	uint64_t index = (handle - FIRST_CONTEXT) / CONTEXT_STEP;

	if (handle < FIRST_CONTEXT || index >= MAX_CONTEXTS || handle_of(&contexts[index]) != handle)
		return NULL;
	return contexts[index].references ? &contexts[index] : NULL;
}

uint64_t context_current(void)
{
	return depth ? stack[depth - 1] : 0;
}

struct context *context_to_use(int *error)
{
	struct context *context;

	if (!depth) {
		/*
		 * a thread without a current context uses the first device, even if its primary context has
		 * no references
		 */
		*error = device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
		return &contexts[0];
	}
	context = find(stack[depth - 1]);
	*error = context ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return context;
}

void context_describe(uint32_t *device, uint32_t *number)
{
	struct context *context;
	int error;

	spin_lock(&driver_lock);
	context = context_to_use(&error);
	*device = context ? (uint32_t)context->device : 0;
	*number = context ? (uint32_t)(context - contexts) + 1 : 0;
	spin_unlock(&driver_lock);
}

static void push(uint64_t context)
{
	if (depth < CONTEXT_STACK)
		stack[depth++] = context;
}

/* A fork copies nothing: the child starts as if it had never called the driver. */
static void before_fork(void)
{
	spin_lock(&driver_lock);
}

static void after_fork(void)
{
	spin_unlock(&driver_lock);
}

static void begin_anew(void)
{
	for (unsigned int i = 0; i < MAX_CONTEXTS; i++) {
		heap_drop(&contexts[i]);
		contexts[i].references = 0;
	}
	vmm_forget();
	depth = 0;
	after_fork();
}

__attribute__((constructor)) static void watch_forks(void)
{
	for (int i = 0; i < DEVICES; i++)
		contexts[i].device = i;
	pthread_atfork(before_fork, after_fork, begin_anew);
}

int impl_cuCtxGetDevice(int *device)
{
	struct context *context;
	int error;

	ENTER(cuCtxGetDevice);
	spin_lock(&driver_lock);
	context = context_to_use(&error);
	if (!error)
		*device = context->device;
	spin_unlock(&driver_lock);
	return error;
}

int impl_cuDevicePrimaryCtxRetain(uint64_t *context, int device)
{
	ENTER(cuDevicePrimaryCtxRetain);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	spin_lock(&driver_lock);
	contexts[device].references++;
	spin_unlock(&driver_lock);
	*context = handle_of(&contexts[device]);
	return CUDA_SUCCESS;
}

/* The last release frees everything the context owns. */
int impl_cuDevicePrimaryCtxRelease_v2(int device)
{
	int error = CUDA_SUCCESS;

	ENTER(cuDevicePrimaryCtxRelease_v2);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	spin_lock(&driver_lock);
	if (!contexts[device].references)
		error = CUDA_ERROR_INVALID_CONTEXT;
	else if (!--contexts[device].references)
		heap_drop(&contexts[device]);
	spin_unlock(&driver_lock);
	LEAVE(cuDevicePrimaryCtxRelease_v2);
	return error;
}

/* References to the context stay valid; it is empty. */
int impl_cuDevicePrimaryCtxReset_v2(int device)
{
	ENTER(cuDevicePrimaryCtxReset_v2);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	spin_lock(&driver_lock);
	heap_drop(&contexts[device]);
	spin_unlock(&driver_lock);
	LEAVE(cuDevicePrimaryCtxReset_v2);
	return CUDA_SUCCESS;
}

int impl_cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	ENTER(cuDevicePrimaryCtxGetState);
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = 0;
	*active = contexts[device].references > 0;
	return CUDA_SUCCESS;
}

/* The handle of an ended context is reused first. */
static int create(uint64_t *handle, int device)
{
	struct context *context = NULL;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (device_physical(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	spin_lock(&driver_lock);
	for (unsigned int i = DEVICES; !context && i < MAX_CONTEXTS; i++) {
		if (!contexts[i].references)
			context = &contexts[i];
	}
	if (context) {
		context->device = device;
		context->references = 1;
		*handle = handle_of(context);
		push(*handle);
	}
	spin_unlock(&driver_lock);
	return context ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int impl_cuCtxCreate_v2(uint64_t *context, unsigned int flags, int device)
{
	(void)flags;
	ENTER(cuCtxCreate_v2);
	return create(context, device);
}

int impl_cuCtxCreate_v3(uint64_t *context, void *affinity, int count, unsigned int flags, int device)
{
	(void)affinity;
	(void)count;
	(void)flags;
	ENTER(cuCtxCreate_v3);
	return create(context, device);
}

int impl_cuCtxCreate_v4(uint64_t *context, void *params, unsigned int flags, int device)
{
	(void)params;
	(void)flags;
	ENTER(cuCtxCreate_v4);
	return create(context, device);
}

int impl_cuCtxDestroy_v2(uint64_t handle)
{
	struct context *context;

	ENTER(cuCtxDestroy_v2);
	spin_lock(&driver_lock);
	context = find(handle);
	/* a primary context ends only through its own functions */
	if (context && context < contexts + DEVICES)
		context = NULL;
	if (context) {
		heap_drop(context);
		context->references = 0;
	}
	spin_unlock(&driver_lock);
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context_current() == handle)
		depth--;
	LEAVE(cuCtxDestroy_v2);
	return CUDA_SUCCESS;
}

int impl_cuCtxGetCurrent(uint64_t *context)
{
	ENTER(cuCtxGetCurrent);
	*context = context_current();
	return CUDA_SUCCESS;
}

static int is_context(uint64_t handle)
{
	int found;

	spin_lock(&driver_lock);
	found = find(handle) != NULL;
	spin_unlock(&driver_lock);
	return found;
}

/* Replaces the current context; 0 leaves the thread without one. */
int impl_cuCtxSetCurrent(uint64_t context)
{
	ENTER(cuCtxSetCurrent);
	if (context && !is_context(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth)
		depth--;
	if (context)
		push(context);
	return CUDA_SUCCESS;
}

int impl_cuCtxPushCurrent_v2(uint64_t context)
{
	ENTER(cuCtxPushCurrent_v2);
	if (!is_context(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	push(context);
	return CUDA_SUCCESS;
}

int impl_cuCtxPopCurrent_v2(uint64_t *context)
{
	ENTER(cuCtxPopCurrent_v2);
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context)
		*context = context_current();
	depth--;
	return CUDA_SUCCESS;
}
