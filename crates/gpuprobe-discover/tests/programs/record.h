/* What the programs share. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

int probe(void);

/* Where the functions that are running will return to, for chains that libgcc cannot tell. */
extern void *labels[256];
extern int label_count;
#define LABEL() (labels[label_count++] = __builtin_return_address(0))

#ifdef __cplusplus
}
#endif

/* A function of its own, as it is written. */
#define KEPT __attribute__((noinline, noipa))
