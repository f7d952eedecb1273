/* The statistics of IREE's own hook, of the calls of one thread: means, quantiles, correlations, conditional
 * probabilities. Sums are made in single precision and in order, as there, and the text is that one's to the last
 * character; `tracemap/measurements/hook/stats.py` makes the same of recordings.
 */
#pragma once

#include "printing.h"
#include "settings.h"

#define MOST_SERIES (1 + EVENTS)

struct thread_calls {
  const char *thread;
  size_t count;         /* at least one */
  const uint16_t *cpus; /* of each call */
  unsigned series_count;
  const char *names[MOST_SERIES];
  const float *series[MOST_SERIES]; /* a value of each call; the first series is its duration in microseconds */
};

/* As `settings.report` has it. False, before anything is printed, if there is no memory. */
bool statistics_print(struct printer *printer, const struct thread_calls *calls);
