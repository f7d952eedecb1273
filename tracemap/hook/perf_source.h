/* Samples by the kernel's perf interface, for the calling thread.
 *
 *   cycles      the processor's counter of cycles interrupts, where the kernel gives one
 *   cpu-clock   else the kernel's timer does, while the thread runs; both write to a ring that is mapped here
 *
 * A sample that finds the kernel running has the address in user space that called it or was interrupted.
 */
#pragma once

#include "samples.h"

extern HIDDEN const struct means by_perf;

/* Cycles are not to be used any more; false if they were not to be used already. With the lock of the samplers held. */
bool perf_give_up_cycles(void);
