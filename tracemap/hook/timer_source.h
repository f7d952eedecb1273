/* Samples by a timer signal, whose handler writes to its own ring; for systems that forbid the perf interface.
 *
 * Clocks of CPU time have only the kernel's tick rate (often 250 per second), so the timer uses wall time. It fires on
 * a fixed grid and takes no samples outside of calls; an idle thread stops it.
 */
#pragma once

#include "samples.h"

extern HIDDEN const struct means by_timer;

/* Restarts a stopped timer on the same grid: if it started with a call, short calls would never be sampled. */
void timer_wake(struct source *source);

/* Chooses the address of a sample, in the signal handler, from the interrupted one, the link register (0: none) and the
 * stack. NULL: the interrupted address. */
typedef uint64_t (*find_caller)(uint64_t ip, uint64_t link, const uint64_t *stack);
void timer_find_callers(find_caller function);
