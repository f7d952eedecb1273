/* The kernel's perf interface for the calling thread, and its counters. They are opened per thread and keep running:
 * the count of a call is a difference.
 *
 * There are three ways to read an event; the cheapest possible one is used:
 *   ring    discrete software events: every event writes 8 bytes to a ring that overwrites itself, so the position of
 *           the ring's head is the count; no system call
 *   rdpmc   hardware events, if the kernel allows user space to read the counter; no system call
 *   group   everything else: one read of the whole group
 */
#pragma once

#include <linux/perf_event.h>

#include "settings.h"

struct perf_event_attr perf_attributes(uint32_t type, uint64_t config, bool exclude_kernel);

/* Opens an event; `group` is the descriptor of the group's leader, or -1. Returns a descriptor; -1, with errno, on
 * error. */
int perf_open(struct perf_event_attr *attributes, int group);

struct counters {
  unsigned count;
  int files[EVENTS];
  int leader;                      /* of the group; -1: no group */
  unsigned events[EVENT_MODES][EVENTS], counts[EVENT_MODES]; /* events read in each way, and their number */
  volatile struct perf_event_mmap_page *pages[EVENTS];
  uint64_t enabled, running;       /* of the group, at its last reading */
};

/* Opens all events of the settings for the calling thread; false, with a message, on error. `counters` must be
 * zeroed. */
bool counters_open(struct counters *counters);
void counters_close(struct counters *counters);
void counters_read(struct counters *counters, uint64_t values[EVENTS]);
