/* Linux's names of events, by the rule that they follow, and raw events by their number. They are exact: a name that is
 * not known is none, never the first that begins alike.
 */
#pragma once

#include "system.h"

struct event_name {
  char text[32];
  uint32_t type;
  uint64_t config;
};

/* The known event of that number, from 0 on, in Linux's order; false behind the last one. */
bool event_at(unsigned number, struct event_name *event);

/* The event of exactly that name, or of the raw number behind an `r`; false if there is none. */
bool event_named(const char *name, struct event_name *event);

/* Those of Linux itself that are not times; and those that its kernel makes, so that they are 0 without its part. */
bool event_is_discrete(const struct event_name *event);
bool event_is_kernel_made(const struct event_name *event);
