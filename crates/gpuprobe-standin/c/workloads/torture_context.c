/* Contexts that are created, used by many threads, and end with live memory. */
#include "torture.h"

#define USES 3

/* Uses the memory of a scope that others may use too; the scope does not end meanwhile. */
static void use(struct worker *w, struct scope *scope)
{
	uint64_t popped = 0;

	if (CALL(w, cuCtxPushCurrent_v2, cuCtxPushCurrent_v2((void *)scope->context)))
		return;
	for (unsigned int i = 0; i < USES; i++)
		allocate_or_free(w, scope);
	must(!CALL(w, cuCtxPopCurrent_v2, cuCtxPopCurrent_v2((void **)&popped)), "a context is popped");
	must(popped == scope->context, "it is the one that was pushed");
}

static void create(struct worker *w, struct scope *scope)
{
	uint64_t context = 0, popped = 0;

	scope->device = (int)random_below(w, (unsigned long)options.devices);
	if (CALL(w, cuCtxCreate_v2, cuCtxCreate_v2((void **)&context, 0, scope->device)))
		return;
	scope->context = context;
	for (unsigned int i = 0; i < USES; i++)
		allocate_or_free(w, scope);
	must(!CALL(w, cuCtxPopCurrent_v2, cuCtxPopCurrent_v2((void **)&popped)), "a new context is popped");
	must(popped == context, "the new context is the current one");
}

/* The context may be current when it ends, and then is no longer current. */
static void destroy(struct worker *w, struct scope *scope)
{
	int is_current =
	    random_below(w, 2) && !CALL(w, cuCtxPushCurrent_v2, cuCtxPushCurrent_v2((void *)scope->context));
	uint64_t popped = 0;

	if (CALL(w, cuCtxDestroy_v2, cuCtxDestroy_v2((void *)scope->context))) {
		if (is_current)
			must(!CALL(w, cuCtxPopCurrent_v2, cuCtxPopCurrent_v2((void **)&popped)), "it stays");
		return;
	}
	end_all(w, scope);
	scope->context = 0;
}

void context_step(struct worker *w)
{
	struct scope *scope = &scopes[DEVICES + random_below(w, CONTEXTS)];

	if (random_below(w, 20) == 0) {
		if (pthread_rwlock_trywrlock(&scope->users))
			return;
		if (scope->context)
			destroy(w, scope);
		else
			create(w, scope);
	} else {
		if (pthread_rwlock_tryrdlock(&scope->users))
			return;
		if (scope->context)
			use(w, scope);
	}
	pthread_rwlock_unlock(&scope->users);
}

static void retain(struct worker *w, struct scope *scope)
{
	uint64_t context = 0;

	if (CALL(w, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain((void **)&context, scope->device)))
		return;
	scope->context = context;
	scope->references++;
}

/* The last release ends the memory in it; one release too many fails. */
static void release(struct worker *w, struct scope *scope)
{
	int result = CALL(w, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2(scope->device));

	must(scope->references || result, "a context without references cannot be released");
	if (result)
		return;
	if (!--scope->references) {
		end_all(w, scope);
		scope->context = 0;
	}
}

void primary_step(struct worker *w)
{
	struct scope *scope = &scopes[options.devices];

	if (random_below(w, 8) == 0) {
		if (pthread_rwlock_trywrlock(&scope->users))
			return;
		if (random_below(w, 2))
			retain(w, scope);
		else
			release(w, scope);
	} else {
		if (pthread_rwlock_tryrdlock(&scope->users))
			return;
		if (scope->context)
			use(w, scope);
	}
	pthread_rwlock_unlock(&scope->users);
}
