/* Samples by a timer's signal, whose handler writes to a ring of its own: where the perf interface is forbidden.
 *
 * Clocks of CPU time tick with the kernel only (250 times a second, often), so the timer is one of wall time. It lies on
 * a fixed grid and takes no sample outside of calls; a thread that idles stops it.
 */
#pragma once

#include "samples.h"
#include "source.h"

/* False, with errno, where there is no timer to be had. With the lock of the samplers held. */
bool timer_source_open(struct source *source);
void timer_source_close(struct source *source);
void timer_source_fork_child(void);

void timer_source_start(struct source *source, uint64_t period);
void timer_source_stop(struct source *source);
void timer_source_wake(struct source *source);
void timer_source_drain(struct source *source, struct samples *samples);
void timer_source_discard(struct source *source);
