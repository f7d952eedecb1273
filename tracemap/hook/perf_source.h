/* Samples by the kernel's perf interface, for the calling thread.
 *
 *   cycles      interrupts of the CPU's cycle counter, if the kernel provides one
 *   cpu-clock   otherwise the kernel's timer, while the thread runs; both write to a ring mapped here
 *
 * A sample taken in the kernel has the user-space address that called it or was interrupted.
 */
#pragma once

#include "samples.h"

extern HIDDEN const struct means by_perf;

/* Stops using cycles; false if they were not in use. The caller holds the lock of the samplers. */
bool perf_give_up_cycles(void);
