/* The environment variables that steer the hook. */
#pragma once

#include "system.h"

#define EVENTS 16 /* the most counters per call */
#define MOST_SAMPLES_HZ 20000u
#define MOST_BUCKETS 1024u

/* How a counter is read; counters.h says what each costs. */
enum event_mode { EVENT_GROUP, EVENT_RING, EVENT_USER, EVENT_MODES };
extern HIDDEN const char *const event_modes[EVENT_MODES]; /* their names */

struct event_setting {
  char name[64];
  uint32_t type;
  uint64_t config;
  uint64_t config1;
  enum event_mode mode;
  bool exclude_kernel;
};

enum sampler_choice { SAMPLE_BY_EITHER, SAMPLE_BY_PERF, SAMPLE_BY_TIMER };

/* What IREE's own hook does, asked for by that one's variables: nothing is kept of the calls but their statistics,
 * printed when their thread or the program ends. */
struct report_settings {
  bool wanted;
  bool lists_events;   /* and do nothing else */
  char events[4096];   /* names of events, parted by commas; event_choice.c makes `settings.events` of them */
  char csv[4096];      /* a folder for the calls as well; empty: none */
  unsigned buckets;    /* how many quantiles */
  double gamma;        /* shades show probability to this power */
  bool tables;         /* of conditional probabilities */
};

struct settings {
  char output[4096];     /* the folder of the record files; empty: nothing is recorded */
  struct report_settings report;
  char filter[512];      /* glob over kernel names, for a report one name exactly; empty: all */
  uint64_t skip_ns;      /* of each thread, since its first call */
  uint64_t budget;       /* calls to record in all; 0: no limit */
  uint64_t every;        /* record one call in this many */
  uint64_t thread_bytes; /* the largest file of a thread */
  bool keeps_newest;     /* a file of calls that is full gives up its oldest ones */
  bool record_calls;     /* otherwise calls are passed on, for samples alone */
  uint64_t sample_hz;    /* samples of a thread per second of its CPU time; 0: none */
  enum sampler_choice sampler;
  unsigned event_count;
  struct event_setting events[EVENTS];
};

/* They do not change after the first executable is seen, but for `report.events`, of which event_choice.c makes `events`. */
extern HIDDEN struct settings settings;

/* When the process begins. Folders without a `/` before them lie below the place where that is, wherever the program goes.
 * A report is asked for here, so that what is wrong with its variables is said at once. */
void settings_begin(void);

/* When the first executable is seen. */
void settings_read(void);

/* Whether the filter lets a kernel of this name through. */
bool settings_want(const char *name);
