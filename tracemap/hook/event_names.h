/* Linux's names of events, built by their rule, and raw events by number. Names must match exactly; an unknown name is
 * never replaced by one that begins alike.
 */
#pragma once

#include "system.h"

struct event_name {
  char text[32];
  uint32_t type;
  uint64_t config;
};

/* The known event with that index, from 0, in Linux's order; false after the last one. */
bool event_at(unsigned number, struct event_name *event);

/* The event with exactly that name, or the raw number after an `r`; false if there is none. */
bool event_named(const char *name, struct event_name *event);

/* Linux's software events that are not times; and events made by the kernel, which are 0 if kernel mode is excluded. */
bool event_is_discrete(const struct event_name *event);
bool event_is_kernel_made(const struct event_name *event);
