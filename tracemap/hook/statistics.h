/* The statistics of IREE's own hook for the calls of one thread: means, quantiles, correlations, conditional
 * probabilities. As there, sums are in single precision and in order, and the text is identical to the last character.
 * `tracemap/runs/hook/stats.py` computes the same from recordings.
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
  const float *series[MOST_SERIES]; /* a value per call; the first series is the duration in microseconds */
};

/* Uses `settings.report`. False, before anything is printed, if memory is short. */
bool statistics_print(struct printer *printer, const struct thread_calls *calls);
