/*
 * Ranges of NVTX around GPU operations:
 *
 *   nvtx_ranges --threads N --rounds N --pause US
 *
 * NVTX is a header that makes calls through a table of pointers. At the first call it loads the library that
 * NVTX_INJECTION64_PATH names, which may put its own functions there. This is the same table, from documented
 * facts. Each thread has in each round: a range in a range, both with a kernel; a range of a domain with a
 * registered string and a color, which overlaps them; a range that begins in one thread and ends in the main
 * thread; and a mark. Prints {"pid","rounds","threads","attached"} and, for each kind of range, one line
 * {"name","domain","kind","count","color"}.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cuda_api.h"

#define MAX_THREADS 16
#define COLOR 0xff3080c0u

/* nvtxEventAttributes_t */
struct attributes {
	uint16_t version, size;
	uint32_t category;
	int32_t color_type;
	uint32_t color;
	int32_t payload_type, reserved;
	uint64_t payload;
	int32_t message_type;
	const void *message;
};
_Static_assert(sizeof(struct attributes) == 48, "nvtxEventAttributes_t");

enum { MESSAGE_BYTES = 1, MESSAGE_WIDE = 2, MESSAGE_REGISTERED = 3 };

/* NVTX_CBID_CORE_* and NVTX_CBID_CORE2_* */
enum {
	MARK_A = 2,
	RANGE_START_A = 5,
	RANGE_END = 7,
	RANGE_PUSH_EX = 8,
	RANGE_PUSH_A = 9,
	RANGE_PUSH_W = 10,
	RANGE_POP = 11,
	CORE_SIZE = 16,
	DOMAIN_RANGE_PUSH_EX = 4,
	DOMAIN_RANGE_POP = 5,
	DOMAIN_REGISTER_STRING_A = 10,
	DOMAIN_CREATE_A = 12,
	CORE2_SIZE = 16,
};

static void *core[CORE_SIZE], *core2[CORE2_SIZE];
static void **core_places[CORE_SIZE + 1], **core2_places[CORE2_SIZE + 1];
static unsigned int threads = 2, rounds = 10, pause_us;
static int is_attached;
static void *kernel;

static int module_table(unsigned int module, void ****table, unsigned int *size)
{
	if (module != 1 && module != 5)
		return 0;
	*table = module == 1 ? core_places : core2_places;
	*size = module == 1 ? CORE_SIZE : CORE2_SIZE;
	return 1;
}

static const void *export_table(uint32_t number)
{
	static const struct {
		size_t bytes;
		int (*module_table)(unsigned int, void ****, unsigned int *);
	} callbacks = {sizeof(callbacks), module_table};

	return number == 1 ? &callbacks : NULL;
}

static void attach(void)
{
	const char *path = getenv("NVTX_INJECTION64_PATH");
	void *library = path ? dlopen(path, RTLD_LAZY) : NULL;
	int (*initialize)(const void *(*)(uint32_t));

	for (unsigned int i = 1; i < CORE_SIZE; i++)
		core_places[i] = &core[i];
	for (unsigned int i = 1; i < CORE2_SIZE; i++)
		core2_places[i] = &core2[i];
	initialize =
	    library ? (int (*)(const void *(*)(uint32_t)))dlsym(library, "InitializeInjectionNvtx2") : NULL;
	is_attached = initialize && initialize(export_table) == 1;
}

/* Calls through a pointer, if a library has set it. */
#define CALL(pointer, type, ...) ((pointer) ? ((type)(pointer))(__VA_ARGS__) : 0)

typedef int (*push_text)(const char *);
typedef int (*push_wide)(const wchar_t *);
typedef int (*push_attributes)(const struct attributes *);
typedef int (*pop_range)(void);
typedef uint64_t (*start_text)(const char *);
typedef int (*domain_push)(void *, const struct attributes *);
typedef int (*domain_pop)(void *);
typedef void *(*create_text)(const char *);
typedef void *(*register_text)(void *, const char *);

struct thread {
	pthread_t id;
	uint64_t *started;
	int result;
};

static void pause_a_while(void)
{
	if (pause_us)
		usleep(pause_us);
}

static int launch(void)
{
	pause_a_while();
	return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static void *work(void *argument)
{
	struct thread *thread = argument;
	void *domain = CALL(core2[DOMAIN_CREATE_A], create_text, "loader");
	void *fetch = CALL(core2[DOMAIN_REGISTER_STRING_A], register_text, domain, "fetch");
	struct attributes attributes = {.version = 3, .size = sizeof(attributes), .color_type = 1};

	attributes.color = COLOR;
	for (unsigned int i = 0; i < rounds; i++) {
		CALL(core[RANGE_PUSH_A], push_text, "step");
		thread->result |= launch();
		attributes.message_type = MESSAGE_REGISTERED;
		attributes.message = fetch;
		CALL(core2[DOMAIN_RANGE_PUSH_EX], domain_push, domain, &attributes);
		CALL(core[RANGE_PUSH_W], push_wide, L"vorwärts");
		thread->result |= launch();
		CALL(core[RANGE_POP], pop_range);
		if (core[MARK_A])
			((void (*)(const char *))core[MARK_A])("half");
		attributes.message_type = MESSAGE_BYTES;
		attributes.message = "backward";
		CALL(core[RANGE_PUSH_EX], push_attributes, &attributes);
		CALL(core[RANGE_POP], pop_range);
		CALL(core[RANGE_POP], pop_range);
		CALL(core2[DOMAIN_RANGE_POP], domain_pop, domain);
		thread->started[i] = CALL(core[RANGE_START_A], start_text, "batch");
	}
	return NULL;
}

static void print(const char *name, const char *domain, const char *kind, unsigned int color)
{
	printf("{\"name\":\"%s\",\"domain\":\"%s\",\"kind\":\"%s\",\"count\":%u,\"color\":%u}\n", name,
	       domain, kind, threads * rounds, color);
}

int main(int count, char **arguments)
{
	static struct thread all[MAX_THREADS];
	void *module = NULL;
	int result = 0;

	for (int i = 1; i + 1 < count; i += 2) {
		unsigned int value = (unsigned int)atoi(arguments[i + 1]);

		if (!strcmp(arguments[i], "--threads"))
			threads = value;
		else if (!strcmp(arguments[i], "--rounds"))
			rounds = value;
		else if (!strcmp(arguments[i], "--pause"))
			pause_us = value;
		else
			return 2;
	}
	if (!threads || threads > MAX_THREADS)
		return 2;
	attach();
	result |= cuInit(0) | cuModuleLoadData(&module, "image");
	result |= cuModuleGetFunction(&kernel, module, "gemm");
	for (unsigned int i = 0; i < threads; i++) {
		all[i].started = calloc(rounds, sizeof(uint64_t));
		result |= !all[i].started || pthread_create(&all[i].id, NULL, work, &all[i]);
	}
	for (unsigned int i = 0; i < threads; i++) {
		pthread_join(all[i].id, NULL);
		result |= all[i].result;
		for (unsigned int round = 0; core[RANGE_END] && round < rounds; round++)
			((void (*)(uint64_t))core[RANGE_END])(all[i].started[round]);
	}
	printf("{\"pid\":%d,\"rounds\":%u,\"threads\":%u,\"attached\":%s}\n", (int)getpid(), rounds, threads,
	       is_attached ? "true" : "false");
	print("step", "", "nested", 0);
	print("vorwärts", "", "nested", 0);
	print("backward", "", "nested", COLOR);
	print("fetch", "loader", "nested", COLOR);
	print("batch", "", "process", 0);
	print("half", "", "mark", 0);
	return result;
}
