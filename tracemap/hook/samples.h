/* Samples of one thread's program counter: their source and their file.
 *
 * Samples arrive in a ring, of the kernel or of the timer. They are taken out between calls and written in batches: a
 * separate write would cost more than the sample.
 */
#pragma once

#include "layout.h"
#include "process.h"

/* ---- the file */

struct samples {
  struct own_file file;
  bool full; /* no room for another batch */
  clockid_t cpu_clock;
  uint64_t cpu_first;
  unsigned waiting; /* samples of the batch */
  struct sample batch[128];
  struct samples_header header; /* the file's header after the next flush */
};

/* Starts sampling. False, with a message, without a file or disk space. */
bool samples_open(struct samples *samples, unsigned thread, const struct text *about, uint64_t period,
                  uint64_t cost_ns);
void samples_add(struct samples *samples, const struct sample *sample);

/* Writes the waiting samples and the header. */
void samples_flush(struct samples *samples);

/* ---- sources */

#define TIMER_RING 4096u   /* samples; a power of two */

/* Number of samples after which a ring is drained: a sixteenth of a second, at most 64. A killed program loses no
 * more. */
unsigned samples_between_drains(void);

struct source;

/* A source of samples. `open` returns false on failure, with errno or the source's `reason`. Both `open` and
 * `fork_child`, which handles a forked child's copy of the source, are called under the lock of the samplers. */
struct means {
  bool (*open)(struct source *source);
  void (*close)(struct source *source);
  void (*fork_child)(struct source *source);
  void (*start)(struct source *source, uint64_t period);
  void (*stop)(struct source *source);
  void (*drain)(struct source *source, struct samples *samples);
};

/* State of perf_source.c. */
struct perf_ring {
  int event; /* perf's descriptor, or -1 */
  struct perf_event_mmap_page *page;
  size_t bytes;
};

/* State of timer_source.c. Its signal interrupts the thread anywhere, and is the only writer of `head`. */
struct timer_ring {
  timer_t timer;
  volatile bool asleep;   /* stopped, since it fired only outside of calls */
  unsigned idle;          /* number of such firings in a row */
  uint64_t first_ns;      /* origin of the timer's grid */
  uint64_t head, tail;    /* samples */
  uint64_t lost, outside; /* since the ring was last drained */
  struct sample ring[TIMER_RING];
};

struct source {
  /* Read and written by each call. */
  const uint64_t *head;  /* of the ring: only grows, in samples or in bytes */
  uint64_t drain_from;   /* the head at which the next call drains the ring */
  volatile bool inside;  /* a call is running; the timer takes no samples of idle time */

  uint64_t *tail;        /* of the ring: everything before it was taken out */
  uint64_t drain_after;  /* how far the head moves between drains */
  uint64_t period;
  const struct means *means; /* NULL: not open */
  const char *method;    /* cycles, cpu-clock or timer */
  bool exclude_kernel;
  char reason[128];      /* why perf was not used */
  struct perf_ring perf;
  struct timer_ring timer;
};
