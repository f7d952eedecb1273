/* A thread's sampler: the source of its samples, and the file that they are moved to, between calls and at the end.
 *
 * A killed program loses the samples in the ring: about 64, or those of the running call. Samples outside of calls are
 * kept; their addresses show that.
 */
#pragma once

#include "samples.h"

struct sampler {
  struct source source;
  struct samples samples;
  bool busy; /* the ring is being emptied */
  struct sampler *next;
};

/* At a thread's first call; NULL if the thread is not, or cannot be, sampled. */
struct sampler *sampler_begin(unsigned thread);
void sampler_end(struct sampler *sampler);
void sampler_catch_up(struct sampler *sampler);

/* Of all threads. The lock is taken after that of the process. */
void samplers_end(void);
void samplers_lock(void);
void samplers_unlock(void);
void samplers_fork_child(void);

static inline void sampler_enter(struct sampler *sampler) {
  struct source *source = &sampler->source;
  uint64_t head = __atomic_load_n(source->head, __ATOMIC_RELAXED);
  if (UNLIKELY(head >= __atomic_load_n(&source->drain_from, __ATOMIC_RELAXED))) sampler_catch_up(sampler);
  source->inside = true;
}

static inline void sampler_leave(struct sampler *sampler) { sampler->source.inside = false; }
