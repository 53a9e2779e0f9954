/* Prints one JSON line per call. Formats use ' instead of ". */
#ifndef STANDIN_ARGS_PRINT_H
#define STANDIN_ARGS_PRINT_H

#include <stdarg.h>
#include <stdio.h>

#define HEX "'0x%lx'"

static void __attribute__((format(printf, 4, 5)))
line(const char *api, const char *function, int result, const char *format, ...)
{
	char text[1024];
	va_list values;

	va_start(values, format);
	vsnprintf(text, sizeof(text), format, values);
	va_end(values);
	for (char *c = text; *c; c++) {
		if (*c == '\'')
			*c = '"';
	}
	printf("{\"api\":\"%s\",\"function\":\"%s\",\"ret\":%d,\"args\":{%s}}\n", api, function, result,
	       text);
}

/* An address in the form of the format. */
static inline unsigned long at(const void *address)
{
	return (unsigned long)address;
}

/* Calls a function and prints its arguments; values are read before the call. */
#define SHOW_OF(api, function, call_arguments, ...)                                                          \
	do {                                                                                                 \
		int result_ = function call_arguments;                                                       \
		line(api, #function, result_, __VA_ARGS__);                                                  \
	} while (0)

#define SHOW(...) SHOW_OF("runtime", __VA_ARGS__)
#define SHOW_DRIVER(...) SHOW_OF("driver", __VA_ARGS__)

#endif
