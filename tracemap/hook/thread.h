/* A thread's record file: its head stays mapped, its records are written through a window that moves on. */
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
  bool gated;              /* whether calls are skipped for any reason */
  bool broken;             /* no calls can or shall be recorded; they are only passed on */
  bool full;               /* no room for another window */
  struct sampler *sampler; /* NULL: no samples are taken */
  unsigned event_count;
  struct counters counters;
  uint64_t skip_until;     /* ticks */
  uint64_t until_next;     /* calls that one-in-N still passes over */
  bool cut;                /* by another program; nothing more is recorded, and that was said */
  struct file_mapping page;   /* the head of the file */
  struct file_mapping window;
  off_t window_end;
  struct own_file file;
  unsigned number;
  char name[16];           /* what a report calls it */
  struct thread *next;     /* among those that are to be reported */
};

/* NULL before the thread's first call and after its end. */
extern HIDDEN __thread struct thread *current_thread INITIAL_EXEC;

/* The first call of a thread takes both steps: in between, its file is open and nothing is chosen or sampled yet, so that
 * the cost of a call can be measured. The second returns what is the current thread from then on. */
struct thread *thread_open(void);
struct thread *thread_start(struct thread *thread);
void thread_end(struct thread *thread);
void thread_fork_child(void);

/* Reports the threads that go on while the program ends; those that end meanwhile wait. */
void threads_report(void);
void threads_lock(void);
void threads_unlock(void);

/* Whether this call is one to record, where not all are. */
bool thread_passes(struct thread *thread);

/* Where the next record goes when the window is full; NULL if there is no room. */
struct record *thread_next_window(struct thread *thread);
void thread_refresh_clock(struct thread *thread);
