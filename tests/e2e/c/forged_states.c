/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program that has the symbols of a CPython 3.11 with two interpreters but is none:
 *
 *     forged_states LIBRARY FORM ROUNDS
 *
 * The calling thread has a state in the main interpreter, which says that it runs code, but not on the stack
 * of the thread. FORM says what else is wrong; see `forms`.
 */
#include "allocate_rounds.h"
#include <pthread.h>
#include <string.h>

#define MANY_STATES 10000
#define UNMAPPED 0x10
/* offsets of 3.11 */
#define FIRST_IN_RUNTIME 40
#define MAIN_IN_RUNTIME 48
#define KEY_IN_RUNTIME 596

struct interpreter {
	uint64_t next, unused, first_thread;
};

struct state {
	uint64_t previous, next, interpreter, unused[4], c_frame, pad[24];
};

/* found by their names */
unsigned char _PyRuntime[0x4000];
const unsigned long Py_Version = 0x030b07f0;

static struct interpreter main_one, newer;
static struct state states[MANY_STATES];
/* the second word is the innermost frame, which cannot be read */
static uint64_t c_frame[2] = {0, UNMAPPED};
/* on the stack of the calling thread */
static uint64_t *on_stack;

static void set_in_runtime(unsigned at, uint64_t word)
{
	memcpy(_PyRuntime + at, &word, sizeof(word));
}

/* A list of states of an interpreter. */
static void link_states(struct interpreter *of, struct state *first, unsigned count)
{
	of->first_thread = (uint64_t)first;
	for (unsigned i = 0; i < count; i++) {
		first[i].previous = i ? (uint64_t)&first[i - 1] : 0;
		first[i].next = i + 1 < count ? (uint64_t)&first[i + 1] : 0;
		first[i].interpreter = (uint64_t)of;
	}
}

static void set_all(void)
{
	pthread_key_t key;
	uint32_t number;

	link_states(&main_one, &states[0], 2);
	link_states(&newer, &states[2], 2);
	newer.next = (uint64_t)&main_one;
	states[0].c_frame = (uint64_t)c_frame;
	set_in_runtime(FIRST_IN_RUNTIME, (uint64_t)&newer);
	set_in_runtime(MAIN_IN_RUNTIME, (uint64_t)&main_one);
	pthread_key_create(&key, NULL);
	pthread_setspecific(key, &states[0]);
	number = key;
	memcpy(_PyRuntime + KEY_IN_RUNTIME, &number, sizeof(number));
}

static void on_no_stack(void)
{
}

static void idle(void)
{
	c_frame[1] = 0;
}

static void on_own_stack(void)
{
	states[2].c_frame = (uint64_t)on_stack;
}

static void cycle_of_states(void)
{
	states[3].next = (uint64_t)&states[2];
}

static void state_is_its_own_next(void)
{
	states[2].next = (uint64_t)&states[2];
}

static void many_states(void)
{
	link_states(&newer, &states[2], MANY_STATES - 2);
}

static void state_of_other_interpreter(void)
{
	states[3].interpreter = (uint64_t)&main_one;
}

static void state_unmapped(void)
{
	states[2].next = UNMAPPED;
}

static void cycle_of_interpreters(void)
{
	newer.next = (uint64_t)&newer;
}

static void main_is_not_the_last(void)
{
	newer.next = 0;
}

static void interpreter_unmapped(void)
{
	set_in_runtime(FIRST_IN_RUNTIME, UNMAPPED);
}

static const struct {
	const char *name;
	void (*set)(void);
} forms[] = {
    {"on_no_stack", on_no_stack},
    {"idle", idle},
    {"on_own_stack", on_own_stack},
    {"cycle_of_states", cycle_of_states},
    {"state_is_its_own_next", state_is_its_own_next},
    {"many_states", many_states},
    {"state_of_other_interpreter", state_of_other_interpreter},
    {"state_unmapped", state_unmapped},
    {"cycle_of_interpreters", cycle_of_interpreters},
    {"main_is_not_the_last", main_is_not_the_last},
    {"interpreter_unmapped", interpreter_unmapped},
};

int main(int argc, char **argv)
{
	uint64_t frame[2] = {0, UNMAPPED};

	if (argc != 4)
		return 2;
	on_stack = frame;
	set_all();
	for (unsigned i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		if (!strcmp(argv[2], forms[i].name)) {
			forms[i].set();
			return allocate_rounds(argv[1], argv[3]);
		}
	}
	fprintf(stderr, "no form %s\n", argv[2]);
	return 1;
}
