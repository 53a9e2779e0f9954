/* Contexts that are created, used by many threads, and end with memory in them. */
#include "torture.h"

#define USES 3

/* Uses the memory of a place that others may use as well; it does not end meanwhile. */
static void use(struct worker *w, struct place *place)
{
	uint64_t popped = 0;

	if (CALL(w, cuCtxPushCurrent_v2, cuCtxPushCurrent_v2((void *)place->context)))
		return;
	for (unsigned int i = 0; i < USES; i++)
		allocate_or_free(w, place);
	must(!CALL(w, cuCtxPopCurrent_v2, cuCtxPopCurrent_v2((void **)&popped)), "a context is popped");
	must(popped == place->context, "it is the one that was pushed");
}

static void create(struct worker *w, struct place *place)
{
	uint64_t context = 0, popped = 0;

	place->device = (int)random_below(w, (unsigned long)options.devices);
	if (CALL(w, cuCtxCreate_v2, cuCtxCreate_v2((void **)&context, 0, place->device)))
		return;
	place->context = context;
	for (unsigned int i = 0; i < USES; i++)
		allocate_or_free(w, place);
	must(!CALL(w, cuCtxPopCurrent_v2, cuCtxPopCurrent_v2((void **)&popped)), "a new context is popped");
	must(popped == context, "the new context is the current one");
}

/* It may be current while it ends, and then is so no longer. */
static void destroy(struct worker *w, struct place *place)
{
	int is_current =
	    random_below(w, 2) && !CALL(w, cuCtxPushCurrent_v2, cuCtxPushCurrent_v2((void *)place->context));
	uint64_t popped = 0;

	if (CALL(w, cuCtxDestroy_v2, cuCtxDestroy_v2((void *)place->context))) {
		if (is_current)
			must(!CALL(w, cuCtxPopCurrent_v2, cuCtxPopCurrent_v2((void **)&popped)), "it stays");
		return;
	}
	end_all(w, place);
	place->context = 0;
}

void context_step(struct worker *w)
{
	struct place *place = &places[DEVICES + random_below(w, CONTEXTS)];

	if (random_below(w, 20) == 0) {
		if (pthread_rwlock_trywrlock(&place->users))
			return;
		if (place->context)
			destroy(w, place);
		else
			create(w, place);
	} else {
		if (pthread_rwlock_tryrdlock(&place->users))
			return;
		if (place->context)
			use(w, place);
	}
	pthread_rwlock_unlock(&place->users);
}

static void retain(struct worker *w, struct place *place)
{
	uint64_t context = 0;

	if (CALL(w, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain((void **)&context, place->device)))
		return;
	place->context = context;
	place->references++;
}

/* The last one ends what is in it; one too many fails. */
static void release(struct worker *w, struct place *place)
{
	int result = CALL(w, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2(place->device));

	must(place->references || result, "what nobody holds cannot be released");
	if (result)
		return;
	if (!--place->references) {
		end_all(w, place);
		place->context = 0;
	}
}

void primary_step(struct worker *w)
{
	struct place *place = &places[options.devices];

	if (random_below(w, 8) == 0) {
		if (pthread_rwlock_trywrlock(&place->users))
			return;
		if (random_below(w, 2))
			retain(w, place);
		else
			release(w, place);
	} else {
		if (pthread_rwlock_tryrdlock(&place->users))
			return;
		if (place->context)
			use(w, place);
	}
	pthread_rwlock_unlock(&place->users);
}
