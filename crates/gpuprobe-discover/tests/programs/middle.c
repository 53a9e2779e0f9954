/* A library between two functions of the program. */
#include "record.h"

static NOINLINE int hidden(int (*callback)(int), int value)
{
	return callback(value) + 1;
}

int middle(int (*callback)(int), int value)
{
	return hidden(callback, value) + 1;
}
