/* Counters of the kernel's perf interface, opened per thread and left running: a call's count is a difference.
 *
 * Three ways of reading, the cheapest that fits an event:
 *   ring    discrete software events: every event writes 8 bytes to a ring that overwrites itself, so the ring's head
 *           counts them; no system call
 *   rdpmc   hardware events where the kernel allows to read the counter from user space; no system call
 *   group   everything else: one read of the whole group
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "settings.h"

struct perf_event_mmap_page;

struct counters {
  unsigned count;
  int files[EVENTS];
  int leader;                      /* of the group; -1: none is read by a group */
  unsigned group[EVENTS], group_count;
  unsigned ring[EVENTS], ring_count;
  unsigned user[EVENTS], user_count;
  volatile struct perf_event_mmap_page *pages[EVENTS];
  uint64_t enabled, running;       /* of the group, when it was last read */
};

/* All of the settings' events for the calling thread, or false, which is said. */
bool counters_open(struct counters *counters);
void counters_close(struct counters *counters);
void counters_read(struct counters *counters, uint64_t values[EVENTS]);
