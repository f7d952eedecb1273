/* The environment variables that steer the hook. */
#pragma once

#include "system.h"

#define EVENTS 16 /* the most counters per call */
#define MOST_SAMPLES_HZ 20000u

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

struct settings {
  char output[4096];     /* the folder of the record files; empty: nothing is recorded */
  char filter[512];      /* glob over kernel names; empty: all */
  uint64_t skip_ns;      /* of each thread, since its first call */
  uint64_t budget;       /* calls to record in all; 0: no limit */
  uint64_t every;        /* record one call in this many */
  uint64_t thread_bytes; /* the largest file of a thread */
  bool record_calls;     /* otherwise calls are passed on, for samples alone */
  uint64_t sample_hz;    /* samples of a thread per second of its CPU time; 0: none */
  enum sampler_choice sampler;
  unsigned event_count;
  struct event_setting events[EVENTS];
};

/* They do not change after `settings_read`, which is called once, when the first executable is seen. */
extern HIDDEN struct settings settings;
void settings_read(void);

/* Whether the filter lets a kernel of this name through. */
bool settings_want(const char *name);
