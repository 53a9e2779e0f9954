/* What the parts of the stand-in NVML have in common (nvml.c). */
#ifndef STANDIN_NVML_H
#define STANDIN_NVML_H

#include "faults.h"
#include "nvml_types.h"

#include <stdio.h>

#define DEVICE(i) ((void *)(0x5a0000001000ULL + 0x1000ULL * (i)))
#define SECOND(device) ((device) != DEVICE(0))
#define DEVICES 2

/* Reads the lines of the file that STANDIN_NVML names, one after the other, until the end. */
#define EACH_LINE(line)                                                                                      \
	for (FILE *file_ = nvml_file(); file_; file_ = nvml_closed(file_))                                   \
		for (char line[200]; fgets(line, sizeof(line), file_);)

FILE *nvml_file(void);
FILE *nvml_closed(FILE *file);

/* Waits as long as the file says, and returns the error that the environment asks for. */
int nvml_enter(const char *function);

/* Writes a text of NVML. */
int nvml_text(char *out, unsigned int length, const char *value);

#define ENTER(name)                                                                                          \
	do {                                                                                                 \
		int fault_ = nvml_enter(#name);                                                              \
		if (fault_)                                                                                  \
			return fault_;                                                                       \
	} while (0)

#define ENTER_FIRST_ONLY(name, device)                                                                       \
	do {                                                                                                 \
		ENTER(name);                                                                                 \
		if (SECOND(device))                                                                          \
			return NOT_SUPPORTED;                                                                \
	} while (0)

#define READING(function, type, first, second)                                                               \
	int impl_##function(void *device, type *out)                                                         \
	{                                                                                                    \
		ENTER(function);                                                                             \
		*out = SECOND(device) ? (second) : (first);                                                  \
		return 0;                                                                                    \
	}

#define READING_OF_FIRST(function, type, value)                                                              \
	int impl_##function(void *device, type *out)                                                         \
	{                                                                                                    \
		ENTER_FIRST_ONLY(function, device);                                                          \
		*out = (value);                                                                              \
		return 0;                                                                                    \
	}

/* an instance of a partitioned GPU (nvml_mig.c), if this is its handle */
struct instance {
	unsigned int gpu, gpu_instance, compute_instance;
	char profile[20];
	unsigned long long bytes;
};
int nvml_instance(void *device, struct instance *instance);

#endif
