/* A thread's record file: its head stays mapped; records are written through a moving window. */
#pragma once

#include "counters.h"
#include "files.h"
#include "layout.h"
#include "mapping.h"
#include "sampler.h"

struct thread {
  char *cursor;            /* where the next record goes */
  char *limit;             /* end of the window */
  struct header *header;   /* in the file */
  uint32_t record_bytes;
  bool gated;              /* some calls may be skipped */
  bool broken;             /* no calls can or may be recorded; they are only passed on */
  bool full;               /* no space for another window */
  struct sampler *sampler; /* NULL: no samples */
  unsigned event_count;
  struct counters counters;
  uint64_t skip_until;     /* ticks */
  uint64_t until_next;     /* calls still to skip with `every` */
  bool cut;                /* truncated by another program: recording has stopped, and that was reported */
  struct file_mapping page;   /* the head of the file */
  struct file_mapping window;
  off_t window_end;
  struct own_file file;
  unsigned number;
  char name[16];           /* in reports */
  struct thread *next;     /* in the list of threads to report */
};

/* NULL before the thread's first call and after its end. */
extern HIDDEN __thread struct thread *current_thread INITIAL_EXEC;

/* The two steps of a thread's first call. In between, its file is open, but no call is filtered or sampled, so that the
 * cost of a call can be measured. The second returns the current thread from then on. */
struct thread *thread_open(void);
struct thread *thread_start(struct thread *thread);
void thread_end(struct thread *thread);
void thread_fork_child(void);

/* Reports the threads that still run while the program ends; ending threads wait meanwhile. */
void threads_report(void);
void threads_lock(void);
void threads_unlock(void);

/* Whether to record this call, if not all are recorded. */
bool thread_passes(struct thread *thread);

/* The place of the next record when the window is full; NULL without space. */
struct record *thread_next_window(struct thread *thread);
void thread_refresh_clock(struct thread *thread);
