/* A thread's file of samples. They come in batches: a write of its own for each would cost more than the sample. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "layout.h"
#include "text.h"

struct samples {
  int file;
  bool full; /* no room for another batch */
  clockid_t cpu_clock;
  uint64_t cpu_first;
  unsigned waiting; /* samples of the batch */
  struct sample batch[128];
  struct samples_header header; /* what the file's is to be, at the next flush */
};

/* False, which is said, where there is no file or no room. `about` is what head.about of the file says. */
bool samples_open(struct samples *samples, unsigned thread, const struct text *about);

/* Notes the moment from which on samples are taken. */
void samples_begin(struct samples *samples, uint64_t period, uint64_t cost_ns);
void samples_add(struct samples *samples, const struct sample *sample);

/* Writes what waits, and the header. */
void samples_flush(struct samples *samples);
