/* Samples of the program counter, of one thread: the source that they come from, and the file that they go to.
 *
 * They come in by a ring, the kernel's or the timer's, leave it between calls, and are written in batches: a write of
 * its own for each would cost more than the sample.
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
  struct samples_header header; /* what the file's is to be, at the next flush */
};

/* From now on samples are taken. False, which is said, where there is no file or no room. */
bool samples_open(struct samples *samples, unsigned thread, const struct text *about, uint64_t period,
                  uint64_t cost_ns);
void samples_add(struct samples *samples, const struct sample *sample);

/* Writes what waits, and the header. */
void samples_flush(struct samples *samples);

/* ---- sources */

#define TIMER_RING 4096u   /* samples; a power of two */

/* After how many samples a ring is emptied: sixteen times a second, or every 64. A killed program loses no more. */
unsigned samples_between_drains(void);

struct source;

/* A means of taking samples. Opening says false where it is not to be had, with errno or the source's `reason`; it and
 * `fork_child`, for the copy that a forked child has of the source, are called with the lock of the samplers held. */
struct means {
  bool (*open)(struct source *source);
  void (*close)(struct source *source);
  void (*fork_child)(struct source *source);
  void (*start)(struct source *source, uint64_t period);
  void (*stop)(struct source *source);
  void (*drain)(struct source *source, struct samples *samples);
};

/* What perf_source.c has. */
struct perf_ring {
  int event; /* perf's descriptor, or -1 */
  struct perf_event_mmap_page *page;
  size_t bytes;
};

/* What timer_source.c has. Its signal interrupts the thread anywhere, and is the only writer of `head`. */
struct timer_ring {
  timer_t timer;
  volatile bool asleep;   /* it was stopped since it fired outside of calls only */
  unsigned idle;          /* how often in a row it did */
  uint64_t first_ns;      /* the grid that it fires on */
  uint64_t head, tail;    /* samples */
  uint64_t lost, outside; /* since the ring was emptied */
  struct sample ring[TIMER_RING];
};

struct source {
  /* What each call reads and writes. */
  const uint64_t *head;  /* of the ring: it only grows, in samples or in bytes */
  uint64_t drain_from;   /* the head from which on the ring is emptied at the next call */
  volatile bool inside;  /* a call is running; the timer takes no samples of idle time */

  uint64_t *tail;        /* of the ring: what lies before it was taken out */
  uint64_t drain_after;  /* how far the head moves until the ring is emptied */
  uint64_t period;
  const struct means *means; /* NULL: not open */
  const char *method;    /* cycles, cpu-clock or timer */
  bool exclude_kernel;
  char reason[128];      /* why perf was not used */
  struct perf_ring perf;
  struct timer_ring timer;
};
