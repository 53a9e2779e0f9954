// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* An older release of the kernel module, which reports GPU errors only by a function. */
#define WITHOUT_TRACEPOINT
#include "standin.c"
