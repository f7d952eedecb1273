/* A source of samples of the program counter, for one thread. Samples come in by a ring, the kernel's or the timer's,
 * and leave it between calls.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "layout.h"

#define TIMER_RING 4096u   /* samples; a power of two */
#define DRAIN_SAMPLES 64u  /* after how many a ring is emptied */

struct perf_event_mmap_page;

/* What perf_source.c has. */
struct perf_ring {
  int event; /* perf's descriptor; -1: the timer is used */
  struct perf_event_mmap_page *page;
  size_t bytes;
};

/* What timer_source.c has. Its signal interrupts the thread anywhere, and is the only writer of `head`. */
struct timer_ring {
  timer_t timer;
  bool exists;
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

  uint64_t drain_after;  /* how far the head moves until then */
  uint64_t period;
  const char *method;    /* cycles, cpu-clock or timer */
  bool exclude_kernel;
  char reason[128];      /* why perf was not used */
  struct perf_ring perf;
  struct timer_ring timer;
};
