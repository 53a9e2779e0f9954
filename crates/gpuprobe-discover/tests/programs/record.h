/* Declarations shared by the test programs. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

int probe(void);

/* Return addresses of the running functions, for chains that libgcc cannot unwind. */
extern void *labels[256];
extern int label_count;
#define LABEL() (labels[label_count++] = __builtin_return_address(0))

#ifdef __cplusplus
}
#endif

/* Keeps a function from being inlined or cloned. */
#define NOINLINE __attribute__((noinline, noipa))
