// SPDX-License-Identifier: MIT
/*
 * Makes a known number of ioctls to the stand-in kernel module, through its own libcuda and directly, and
 * prints these numbers.
 *
 *   cc -shared -DLIBRARY: the library       cc: the program
 *
 *   program          makes ioctls
 *   program XID...   makes the GPU report these errors, one after the other, between failing calls
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ALLOCATIONS 5
#define FREES 3
#define RECURSIONS 2
#define FAILURES 2
#define TOUCHES 2

/* NV01_MEMORY_LOCAL_USER; NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION; an unknown one */
#define CLASS_OF_MEMORY 0x40
#define COMMAND 0x101
#define UNKNOWN_COMMAND 0xdead

#define REQUEST(number, bytes) _IOC(_IOC_READ | _IOC_WRITE, 'F', number, bytes)

int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int make_ioctl(int fd, unsigned int number, unsigned int bytes, uint32_t third, uint32_t fourth);

#ifdef LIBRARY
static int control = -1, unified = -1;

int make_ioctl(int fd, unsigned int number, unsigned int bytes, uint32_t third, uint32_t fourth)
{
	uint32_t words[16] = {1, 2, third, fourth};

	return ioctl(fd, REQUEST(number, bytes), words);
}

/* Makes three ioctls. */
int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
	uint32_t words[64] = {0};

	if (!bytes)
		return 1;
	if (control < 0) {
		control = open("/dev/nvidiactl", O_RDWR);
		unified = open("/dev/nvidia-uvm", O_RDWR);
	}
	if (make_ioctl(control, 0x2b, 48, 3, CLASS_OF_MEMORY) || make_ioctl(control, 0x2a, 32, COMMAND, 0) ||
	    ioctl(unified, 33, words))
		return 2;
	*address = 0x7f0000000000 + bytes;
	return 0;
}
#else
static void must(int is_so, const char *what)
{
	if (!is_so) {
		perror(what);
		exit(1);
	}
}

/* A failing call before each error, and one after the last; then touches unified memory. */
static int report_errors(int gpu, int unified, char **numbers)
{
	uint64_t address;

	for (; *numbers; numbers++) {
		must(cuMemAlloc_v2(&address, 0) == 1, "cuMemAlloc_v2");
		must(make_ioctl(gpu, 0xe2, 16, strtoul(*numbers, NULL, 10), 0) == 0, "report");
	}
	must(cuMemAlloc_v2(&address, 0) == 1, "cuMemAlloc_v2");
	for (int i = 0; i < TOUCHES; i++)
		must(ioctl(unified, 0x7001, &address) == 0, "touch");
	printf("{\"pid\":%d,\"touches\":%d}\n", getpid(), TOUCHES);
	return 0;
}

int main(int count, char **arguments)
{
	int gpu = open("/dev/nvidia0", O_RDWR), unified = open("/dev/nvidia-uvm", O_RDWR);
	uint32_t words[16] = {0};
	uint64_t address;

	must(gpu >= 0 && unified >= 0, "open");
	if (count > 1)
		return report_errors(gpu, unified, arguments + 1);
	for (int i = 0; i < ALLOCATIONS; i++)
		must(cuMemAlloc_v2(&address, 4096) == 0, "cuMemAlloc_v2");
	must(ioctl(unified, 0x30000001, words) == 0, "initialize");
	for (int i = 0; i < FREES; i++)
		must(make_ioctl(gpu, 0x29, 16, 0, 0) == 0, "free");
	must(make_ioctl(gpu, 0x2a, 32, UNKNOWN_COMMAND, 0) == 0, "control");
	for (int i = 0; i < RECURSIONS; i++)
		must(make_ioctl(gpu, 0xe0, 16, 0, 0) == 3, "recurse");
	for (int i = 0; i < FAILURES; i++)
		must(make_ioctl(gpu, 0xe1, 16, 0, 0) < 0, "fail");
	printf("{\"pid\":%d,\"allocations\":%d,\"frees\":%d,\"recursions\":%d,\"failures\":%d}\n", getpid(),
	       ALLOCATIONS, FREES, RECURSIONS, FAILURES);
	return 0;
}
#endif
