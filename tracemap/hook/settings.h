/* The environment variables that configure the hook. */
#pragma once

#include "system.h"

#define EVENTS 16 /* most counters per call */
#define MOST_SAMPLES_HZ 20000u
#define MOST_BUCKETS 1024u

/* How a counter is read; counters.h describes the costs. */
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

/* A timer of CPU time has the kernel's tick rate, but never interrupts a thread that waits in a system call. */
enum sampler_choice { SAMPLE_BY_EITHER, SAMPLE_BY_PERF, SAMPLE_BY_TIMER, SAMPLE_BY_CPU_TIMER };

/* The report of IREE's own hook, requested by that hook's variables: only statistics of calls are kept, and printed
 * when a thread or the program ends. */
struct report_settings {
  bool wanted;
  bool lists_events;   /* and do nothing else */
  char events[4096];   /* names of events, comma-separated; event_choice.c turns them into `settings.events` */
  char csv[4096];      /* a folder for the calls as well; empty: none */
  unsigned buckets;    /* number of quantiles */
  double gamma;        /* shades show probability to this power */
  bool tables;         /* of conditional probabilities */
};

struct settings {
  char output[4096];     /* the folder of the record files; empty: nothing is recorded */
  struct report_settings report;
  char filter[512];      /* glob over kernel names; for a report, one exact name; empty: all */
  uint64_t skip_ns;      /* of each thread, from its first call */
  uint64_t budget;       /* most calls to record in all; 0: no limit */
  uint64_t every;        /* record one call out of this number */
  uint64_t thread_bytes; /* size limit of a thread's file */
  bool keeps_newest;     /* a full file of calls drops its oldest ones */
  bool record_calls;     /* false: calls are only passed on, for samples or a watcher alone */
  char watch[4096];      /* a folder with the pipes of a watcher; empty: none */
  char debug_info[8192]; /* folders of debug information, each ended by a zero, and an empty one; see debug_info.h */
  char jitdump[4096];    /* the folder of the file for `perf inject --jit`; empty: none */
  uint64_t sample_hz;    /* samples of a thread per second of its CPU time; 0: none */
  enum sampler_choice sampler;
  unsigned event_count;
  struct event_setting events[EVENTS];
};

/* Constant after the first executable is found, except for `report.events`, which event_choice.c turns into
 * `events`. */
extern HIDDEN struct settings settings;

/* Called when the process begins. Relative folders are resolved against the working folder at that time. The variables
 * of a report are read here, so that errors in them are reported at once. */
void settings_begin(void);

/* Called when the first executable is found. */
void settings_read(void);

/* Called before each use of `debug_info` and `jitdump`, which are read once: their executables may be loaded before the
 * first one is found. */
void settings_read_debug_info(void);

/* Whether the filter accepts a kernel with this name. */
bool settings_want(const char *name);
