/* The kernel's perf interface, for the calling thread; and its counters, opened per thread and left running: a call's
 * count is a difference.
 *
 * Three ways of reading, the cheapest that fits an event:
 *   ring    discrete software events: every event writes 8 bytes to a ring that overwrites itself, so the ring's head
 *           counts them; no system call
 *   rdpmc   hardware events where the kernel allows to read the counter from user space; no system call
 *   group   everything else: one read of the whole group
 */
#pragma once

#include <linux/perf_event.h>

#include "settings.h"

struct perf_event_attr perf_attributes(uint32_t type, uint64_t config, bool exclude_kernel);

/* A descriptor; `group` is that of the group's leader, or -1. Returns -1, with errno, where it is not to be had. */
int perf_open(struct perf_event_attr *attributes, int group);

struct counters {
  unsigned count;
  int files[EVENTS];
  int leader;                      /* of the group; -1: none is read by a group */
  unsigned events[EVENT_MODES][EVENTS], counts[EVENT_MODES]; /* which are read in each way, and how many */
  volatile struct perf_event_mmap_page *pages[EVENTS];
  uint64_t enabled, running;       /* of the group, when it was last read */
};

/* All of the settings' events for the calling thread, or false, which is said. The counters are zeros before. */
bool counters_open(struct counters *counters);
void counters_close(struct counters *counters);
void counters_read(struct counters *counters, uint64_t values[EVENTS]);
