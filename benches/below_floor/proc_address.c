/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* cuGetProcAddress of the measured library. Linked with -Bsymbolic, so that it gives its own functions. */
#include <stdint.h>
#include <string.h>

#define FUNCTION(name, registers, words) int name(void);
#include "functions.def"
#undef FUNCTION

int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *status)
{
	static const struct {
		const char *name;
		int (*function)(void);
	} functions[] = {
#define FUNCTION(name, registers, words) {#name, name},
#include "functions.def"
#undef FUNCTION
	};
	size_t length = strlen(name);

	(void)version, (void)flags, (void)status;
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		const char *rest = functions[i].name + length;

		if (strncmp(functions[i].name, name, length) || (*rest && strcmp(rest, "_v2")))
			continue;
		*address = (void *)functions[i].function;
		return 0;
	}
	return 500;
}
