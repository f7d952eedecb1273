/* Samples by the kernel's perf interface, for the calling thread.
 *
 *   cycles      the processor's counter of cycles interrupts, where the kernel gives one
 *   cpu-clock   else the kernel's timer does, while the thread runs; both write to a ring that is mapped here
 *
 * A sample that finds the kernel running has the address in user space that called it or was interrupted.
 */
#pragma once

#include "samples.h"
#include "source.h"

/* False, and the source says why, where it is not to be had. With the lock of the samplers held. */
bool perf_source_open(struct source *source);
void perf_source_close(struct source *source);
void perf_source_fork_child(struct source *source);

/* Cycles are not to be used any more; false if they were not to be used already. With the lock held. */
bool perf_source_give_up_cycles(void);

void perf_source_start(struct source *source, uint64_t period);
void perf_source_stop(struct source *source);
void perf_source_drain(struct source *source, struct samples *samples);
void perf_source_discard(struct source *source);
