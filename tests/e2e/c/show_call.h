/* Made-up handles, and one JSON line per call, for programs that call a real library. API is the library's
 * word. */
#include <stdarg.h>
#include <stdio.h>

#define FAKE(n) ((void *)(0x700012340000ULL + 0x1000 * (n)))

/* Prints a call with the arguments as JSON, in which ' stands for ". */
static void show(const char *function, int result, const char *format, ...)
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
	printf("{\"api\":\"" API "\",\"function\":\"%s\",\"ret\":%d,\"args\":{%s}}\n", function, result,
	       text);
}

#define SHOW(function, arguments, ...) show(#function, function arguments, __VA_ARGS__)
