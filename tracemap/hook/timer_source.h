/* Samples by a timer's signal, whose handler writes to a ring of its own: where the perf interface is forbidden.
 *
 * Clocks of CPU time tick with the kernel only (250 times a second, often), so the timer is one of wall time. It lies on
 * a fixed grid and takes no sample outside of calls; a thread that idles stops it.
 */
#pragma once

#include "samples.h"

extern HIDDEN const struct means by_timer;

/* Starts a timer that was stopped, on the same grid: were it set from the call on, short calls would never be met. */
void timer_wake(struct source *source);
