/* Physical memory: created, mapped at several addresses, retained, released and unmapped in every order. */
#include "torture.h"

#define OBJECTS 64
#define MAPPINGS 4
#define GRANULARITY ((size_t)2 << 20)
#define LARGEST (4 * GRANULARITY)
#define NO_HANDLE 0x1234ULL

/* One thread at a time uses it; its handle's number may have belonged to another one a moment ago. */
struct object {
	pthread_mutex_t lock;
	uint64_t base, handle;
	size_t size;
	int device;
	unsigned int references;
	unsigned char is_mapped[MAPPINGS];
};

static struct object objects[OBJECTS];

void vmm_prepare(void)
{
	for (unsigned int i = 0; i < OBJECTS; i++) {
		pthread_mutex_init(&objects[i].lock, NULL);
		must(!cuMemAddressReserve(&objects[i].base, MAPPINGS * LARGEST, 0, 0, 0), "addresses");
	}
}

static unsigned int mappings(const struct object *object)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < MAPPINGS; i++)
		count += object->is_mapped[i];
	return count;
}

static void create(struct worker *w, struct object *object)
{
	int device = (int)random_below(w, (unsigned long)options.devices);
	struct CUmemAllocationProp prop = {.type = 1, .location = {1, device}};
	struct sums *sums = &w->totals.sums[KIND_VMM][device];

	object->size = GRANULARITY * (1 + random_below(w, LARGEST / GRANULARITY));
	object->device = device;
	if (CALL(w, cuMemCreate, cuMemCreate(&object->handle, object->size, &prop, 0)))
		return;
	object->references = 1;
	sums->allocations++;
	sums->allocated_bytes += object->size;
}

static void end_if_unused(struct worker *w, struct object *object)
{
	struct sums *sums = &w->totals.sums[KIND_VMM][object->device];

	if (object->references || mappings(object))
		return;
	sums->frees++;
	sums->freed_bytes += object->size;
}

/* The next mapping follows the previous one, so that one call can unmap several. */
static void map(struct worker *w, struct object *object)
{
	unsigned long at = random_below(w, MAPPINGS);
	uint64_t address = object->base + at * object->size;
	int result = CALL(w, cuMemMap, cuMemMap(address, object->size, 0, object->handle, 0));

	must(result || (!object->is_mapped[at] && object->references), "what is mapped, or has no handle");
	if (!result)
		object->is_mapped[at] = 1;
}

static void unmap(struct worker *w, struct object *object)
{
	unsigned long from = random_below(w, MAPPINGS), to = from;
	int result;

	/* a hole in the range makes it fail */
	while (to < MAPPINGS && (object->is_mapped[to] || random_below(w, 30) == 0))
		to++;
	if (to == from)
		return;
	result =
	    CALL(w, cuMemUnmap, cuMemUnmap(object->base + from * object->size, (to - from) * object->size));
	for (unsigned long i = from; i < to; i++) {
		must(result || object->is_mapped[i], "what is not mapped cannot be unmapped");
		if (!result)
			object->is_mapped[i] = 0;
	}
	if (!result)
		end_if_unused(w, object);
}

static void retain(struct worker *w, struct object *object)
{
	unsigned long at = random_below(w, MAPPINGS);
	uint64_t inside = object->base + at * object->size + random_below(w, object->size), handle = 0;
	int result = CALL(w, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle(&handle, inside));

	must(result || object->is_mapped[at], "what is not mapped cannot be retained");
	if (result)
		return;
	object->handle = handle;
	object->references++;
}

static void release(struct worker *w, struct object *object)
{
	int result = CALL(w, cuMemRelease, cuMemRelease(object->references ? object->handle : NO_HANDLE));

	must(result || object->references, "what has no reference cannot be released");
	if (result)
		return;
	object->references--;
	end_if_unused(w, object);
}

void vmm_step(struct worker *w)
{
	struct object *object = &objects[random_below(w, OBJECTS)];

	if (pthread_mutex_trylock(&object->lock))
		return;
	if (!object->references && !mappings(object))
		create(w, object);
	else if (random_below(w, 10) < 3)
		map(w, object);
	else if (random_below(w, 7) < 3)
		unmap(w, object);
	else if (random_below(w, 4) == 0)
		retain(w, object);
	else if (object->references || random_below(w, 20) == 0)
		release(w, object);
	pthread_mutex_unlock(&object->lock);
}
