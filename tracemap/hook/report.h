/* The report of IREE's own hook about a thread, made from its records: statistics on the program's standard output and,
 * on request, its calls as CSV.
 */
#pragma once

#include "settings.h"

struct reported {
  const char *name; /* the thread's */
  int file;         /* its calls; the thread may still be writing */
  uint32_t record_bytes;
  unsigned event_count;
};

/* One thread at a time. Prints nothing for a thread without calls. */
void report_thread(const struct reported *thread);
