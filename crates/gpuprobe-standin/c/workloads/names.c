/*
 * names [--runtime] [--wait]: kernels with difficult names. Each is looked up at the driver, or registered
 * with the runtime, and launched a different number of times. Prints {"pid","ready"}, continues after a line,
 * and prints {"pid","kernels":[{"name":"bytes in hex","launches":n}]}; with --wait it exits after another
 * line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_api.h"

#define LONG 10000
#define TEMPLATES 40

static int failed;

static const char *const bad[] = {
    "plain_kernel",
    "quote\"s and back\\slash\\",
    "line\nfeed\ttab\r\vreturn",
    "\x1b[2J\x1b[31mred\x07\x1b]0;title\x07",
    "<script>alert('&amp;')</script>",
    "bad\xff\xfe\x80utf8\xc3",
    "k\"} 1\ngpuprobe_build_info{version=\"0",
    "\"}\n{\"type\":\"end\",\"events\":0}\n",
    "\xe2\x80\xae"
    "backwards\xe2\x80\xa8"
    "separated",
    "other",
    "%s%n${HOME}`id`",
};

static void wait_for_line(void)
{
	fflush(stdout);
	for (int c = getchar(); c != '\n' && c != EOF; c = getchar())
		;
}

/* So many equal letters, and a different one at the end. */
static char *repeated(size_t count, char last)
{
	char *name = malloc(count + 1);

	memset(name, 'K', count);
	name[count - 1] = last;
	name[count] = 0;
	return name;
}

/* The substitution number of a repeated part of a mangled name. */
static void again(char *out, int number)
{
	const char *digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

	if (number < 36)
		sprintf(out, "S%c_", digits[number]);
	else
		sprintf(out, "S%c%c_", digits[number / 36], digits[number % 36]);
}

/* f(A<int, int>, B<first, first>, ...): each argument is twice as long as the previous one. */
static char *exploding(void)
{
	char *name = malloc(64 * TEMPLATES), previous[8];

	strcpy(name, "_Z1f1AIiiE");
	for (int i = 0; i < TEMPLATES; i++) {
		again(previous, i ? 2 * i : 0);
		sprintf(name + strlen(name), "3B%02dI%s%sE", i, previous, previous);
	}
	return name;
}

/* A name without a terminating zero that ends at unmapped memory. */
static const char *unended(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memset(two, 'E', page);
	munmap(two + page, page);
	return two + page - 100;
}

static void print_kernel(const char *comma, const char *name, int launches)
{
	printf("%s{\"name\":\"", comma);
	for (const unsigned char *at = (const unsigned char *)name; *at; at++)
		printf("%02x", *at);
	printf("\",\"launches\":%d}", launches);
}

static void launch(const char *name, int launches, void *module)
{
	void *function = NULL;

	failed |= cuModuleGetFunction(&function, module, name);
	for (int i = 0; i < launches; i++)
		failed |= cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

/* Registers like a compiled program, with a host function of its own. */
static void launch_registered(const char *name, int launches, void **binary)
{
	struct dim3 one = {1, 1, 1};
	char *function = malloc(1);

	__cudaRegisterFunction(binary, function, function, name, -1, NULL, NULL, NULL, NULL, NULL);
	for (int i = 0; i < launches; i++)
		failed |= cudaLaunchKernel(function, one, one, NULL, 0, NULL);
}

int main(int argc, char **argv)
{
	const char *names[32];
	int by_runtime = argc > 1 && !strcmp(argv[1], "--runtime");
	size_t count = 0;
	void *module = NULL, **binary;

	for (; count < sizeof(bad) / sizeof(*bad); count++)
		names[count] = bad[count];
	names[count++] = repeated(300, 'a');
	names[count++] = repeated(300, 'b');
	names[count++] = repeated(LONG, 'K');
	names[count++] = exploding();
	failed |= cuInit(0);
	failed |= cuModuleLoadData(&module, "image");
	binary = __cudaRegisterFatBinary(NULL);
	printf("{\"pid\":%d,\"ready\":true}\n", (int)getpid());
	wait_for_line();
	__cudaRegisterFunction(binary, "unended", NULL, unended(), -1, NULL, NULL, NULL, NULL, NULL);
	__cudaRegisterFunction(binary, "nowhere", NULL, (const char *)8, -1, NULL, NULL, NULL, NULL, NULL);
	for (size_t i = 0; i < count; i++) {
		if (by_runtime)
			launch_registered(names[i], (int)i + 1, binary);
		else
			launch(names[i], (int)i + 1, module);
	}
	printf("{\"pid\":%d,\"kernels\":[", (int)getpid());
	for (size_t i = 0; i < count; i++)
		print_kernel(i ? "," : "", names[i], (int)i + 1);
	printf("]}\n");
	fflush(stdout);
	if (!strcmp(argv[argc - 1], "--wait"))
		wait_for_line();
	return failed;
}
