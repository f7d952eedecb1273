/* What IREE's own hook tells of a thread: its statistics on the program's standard output and, where that is asked for,
 * its calls as CSV. They are made of the thread's records.
 */
#pragma once

#include "settings.h"

struct reported {
  const char *name; /* the thread's */
  int file;         /* of its calls; it may go on writing */
  uint32_t record_bytes;
  unsigned event_count;
};

/* One at a time. Says nothing of a thread without calls. */
void report_thread(const struct reported *thread);
