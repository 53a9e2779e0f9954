/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program that has the symbols and the memory of a CPython 3.12 but is none:
 *
 *     forged_python LIBRARY FORM ROUNDS
 *
 * Its thread state has three frames of one code object: forged_function in forged.py. FORM says what is wrong
 * with it; see `forms`. In each round it allocates with the libcuda of the command line, with another size.
 * It prints {"pid","allocations","bytes"} and waits for a line.
 */
#include "allocate_rounds.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define MANY_FRAMES 10000
#define UNMAPPED 0x10
/* offsets of 3.12 */
#define KEY_IN_RUNTIME 1548
#define C_FRAME_IN_THREAD 56
#define ADAPTIVE_CODE 192

struct text {
	uint64_t references, type, length, hash;
	uint32_t state, pad;
	char characters[64];
};

struct bytes {
	uint64_t references, type, size, hash;
	uint8_t content[16];
};

struct type {
	uint64_t references, type, size;
	const char *name;
};

struct frame {
	uint64_t code, previous, unused[5], instruction;
	uint8_t pad[6], owner, pad2[57];
};

union code {
	uint64_t word[64];
	int32_t number[128];
};

/* found by their names */
unsigned char _PyRuntime[0x4000];
const unsigned long Py_Version = 0x030c01f0;

static struct type code_type = {.name = "code"}, text_type = {.name = "str"}, bytes_type = {.name = "bytes"};
static struct text name, file;
static struct bytes table;
static union code code;
static struct frame frames[MANY_FRAMES];
static uint64_t c_frame[4], thread_state[32];
static pthread_key_t key;

static void set_key(uint32_t number)
{
	memcpy(_PyRuntime + KEY_IN_RUNTIME, &number, sizeof(number));
}

static void set_text(struct text *text, const char *characters)
{
	text->type = (uint64_t)&text_type;
	text->length = strlen(characters);
	/* compact ASCII with characters of one byte */
	text->state = 1 << 2 | 1 << 5 | 1 << 6;
	strcpy(text->characters, characters);
}

static void link_frames(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		frames[i].code = (uint64_t)&code;
		frames[i].instruction = (uint64_t)&code + ADAPTIVE_CODE;
		frames[i].previous = i + 1 < count ? (uint64_t)&frames[i + 1] : 0;
	}
}

static void set_all(void)
{
	/* one instruction of the first line, and one of the next */
	static const uint8_t two_lines[] = {0xd0, 0, 0, 0xd8, 0, 0};

	set_text(&name, "forged_function");
	set_text(&file, "forged.py");
	table.type = (uint64_t)&bytes_type;
	table.size = sizeof(two_lines);
	memcpy(table.content, two_lines, sizeof(two_lines));
	code.word[0] = 1;
	code.word[1] = (uint64_t)&code_type;
	code.number[17] = 7;
	code.word[14] = (uint64_t)&file;
	code.word[15] = code.word[16] = (uint64_t)&name;
	code.word[17] = (uint64_t)&table;
	link_frames(3);
	c_frame[0] = (uint64_t)&frames[0];
	thread_state[C_FRAME_IN_THREAD / 8] = (uint64_t)c_frame;
	pthread_key_create(&key, NULL);
	pthread_setspecific(key, thread_state);
	set_key(key);
}

static void valid(void)
{
}

static void garbage(void)
{
	srand(7);
	for (unsigned i = 0; i < sizeof(_PyRuntime); i++)
		_PyRuntime[i] = rand();
}

static void key_out_of_range(void)
{
	set_key(5000);
}

static void key_of_no_block(void)
{
	set_key(1000);
}

static void key_negative(void)
{
	set_key(UINT32_MAX);
}

static void thread_unmapped(void)
{
	pthread_setspecific(key, (void *)UNMAPPED);
}

/* an address of the Linux kernel */
static void thread_of_kernel(void)
{
	pthread_setspecific(key, (void *)0xffff888000000000);
}

static void frame_unmapped(void)
{
	c_frame[0] = UNMAPPED;
}

static void cycle(void)
{
	frames[2].previous = (uint64_t)&frames[0];
}

/* the end of what can be read is in the middle of a frame */
static void frame_at_end(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mprotect(pages + 4096, 4096, PROT_NONE);
	memcpy(pages + 4096 - 64, &frames[1], 64);
	frames[0].previous = (uint64_t)pages + 4096 - 64;
}

static void cycle_without_code(void)
{
	frames[0].owner = frames[1].owner = frames[2].owner = 3;
	frames[2].previous = (uint64_t)&frames[0];
}

static void many_frames(void)
{
	link_frames(MANY_FRAMES);
}

static void code_unmapped(void)
{
	frames[0].code = frames[1].code = frames[2].code = UNMAPPED;
}

static void code_of_other_type(void)
{
	code.word[1] = (uint64_t)&text_type;
}

static void type_unmapped(void)
{
	code.word[1] = UNMAPPED;
}

static void name_unmapped(void)
{
	code.word[15] = code.word[16] = UNMAPPED;
}

static void name_too_long(void)
{
	name.length = 1ull << 40;
}

static void file_of_no_kind(void)
{
	file.state = 7 << 2 | 1 << 5;
}

static void table_too_large(void)
{
	table.size = 1ull << 40;
}

static void instruction_outside(void)
{
	for (unsigned i = 0; i < 3; i++)
		frames[i].instruction = (uint64_t)&code - 4096;
}

static const struct {
	const char *name;
	void (*set)(void);
} forms[] = {
    {"valid", valid},
    {"garbage", garbage},
    {"key_out_of_range", key_out_of_range},
    {"key_of_no_block", key_of_no_block},
    {"key_negative", key_negative},
    {"thread_unmapped", thread_unmapped},
    {"thread_of_kernel", thread_of_kernel},
    {"frame_unmapped", frame_unmapped},
    {"frame_at_end", frame_at_end},
    {"cycle", cycle},
    {"cycle_without_code", cycle_without_code},
    {"many_frames", many_frames},
    {"code_unmapped", code_unmapped},
    {"code_of_other_type", code_of_other_type},
    {"type_unmapped", type_unmapped},
    {"name_unmapped", name_unmapped},
    {"name_too_long", name_too_long},
    {"file_of_no_kind", file_of_no_kind},
    {"table_too_large", table_too_large},
    {"instruction_outside", instruction_outside},
};

/* `changing`: another thread changes what is read, all the time */
static void *change(void *unused)
{
	(void)unused;
	for (uint64_t i = 0;; i++) {
		frames[i % 3].previous = i % 5 ? (uint64_t)&frames[i % 7] : UNMAPPED;
		frames[i % 3].owner = i % 11 ? 0 : 3;
		code.word[15] = i % 2 ? (uint64_t)&name : (uint64_t)&table;
		c_frame[0] = i % 13 ? (uint64_t)&frames[i % 3] : i;
		__asm__ volatile("" ::: "memory");
	}
	return NULL;
}

static int set_form(const char *form)
{
	pthread_t thread;

	set_all();
	if (!strcmp(form, "changing"))
		return pthread_create(&thread, NULL, change, NULL);
	for (unsigned i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		if (!strcmp(form, forms[i].name)) {
			forms[i].set();
			return 0;
		}
	}
	fprintf(stderr, "no form %s\n", form);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	return set_form(argv[2]) || allocate_rounds(argv[1], argv[3]);
}
