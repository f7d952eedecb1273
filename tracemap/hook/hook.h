/* What the parts of the hook have in common. Everything here is hidden from other libraries.
 *
 *   entries.c      ways in: interposed functions, the plugin, attach(), the runtime's own hook
 *   elf.c          finds the query symbol in an embedded ELF, and imports to patch in a loaded object
 *   tables.c       patches export tables with trampolines; slots, kernels, the process's file
 *   trampolines.c  the pool of closures, in assembly
 *   calls.c        the hot path: one call of a workgroup
 *   threads.c      a thread's record file: begin, next window, end; fork
 *   sampling.c     a thread's samples: their file, and the ring that is emptied into it
 *   samplers.c     where samples come from: the kernel's perf interface, or a timer's signal
 *   events.c       counters of the kernel's perf interface
 *   settings.c     the environment variables
 *   system.c       clocks, cpus, text, messages
 */
#ifndef TRACEMAP_HOOK_HOOK_H
#define TRACEMAP_HOOK_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "abi.h"
#include "layout.h"

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define PUBLIC __attribute__((visibility("default")))
#define COLD __attribute__((cold, noinline))

#define SLOTS 16384u       /* hooked exports of all executables that are loaded at one time */
#define EVENTS 16          /* counters per call */
#define CPUS 8192
#define WINDOW_BYTES (1u << 20)

/* ---- settings.c */

enum event_mode { EVENT_GROUP, EVENT_RING, EVENT_USER };

struct event_setting {
  char name[64];
  uint32_t type;
  uint64_t config;
  uint64_t config1;
  enum event_mode mode;
  bool exclude_kernel;
};

enum sampler_choice { SAMPLE_BY_EITHER, SAMPLE_BY_PERF, SAMPLE_BY_TIMER };

#define MOST_SAMPLES_HZ 20000u

struct settings {
  char output[4096];    /* the folder of the record files; empty: nothing is recorded */
  char filter[512];     /* glob over kernel names; empty: all */
  uint64_t skip_ns;     /* of each thread, since its first call */
  uint64_t budget;      /* calls to record in all; 0: no limit */
  uint64_t every;       /* record one call in this many */
  uint64_t thread_bytes; /* the largest file of a thread */
  bool record_calls;    /* otherwise calls are passed on, for samples alone */
  uint64_t sample_hz;   /* samples of a thread per second of its CPU time; 0: none */
  enum sampler_choice sampler;
  unsigned event_count;
  struct event_setting events[EVENTS];
};

extern struct settings settings;
void settings_read(void);
bool settings_match(const char *pattern, const char *name);

/* ---- system.c */

enum clock_kind { CLOCK_TICKS, CLOCK_NS };
extern enum clock_kind clock_kind;

struct moment {
  uint64_t ticks, ns;
};

void system_begin(void);
uint64_t monotonic_ns(void);
struct moment moment_now(void);
extern uint16_t node_of_cpu[CPUS];
uint64_t skip_ticks(uint64_t ns);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Text is put together in buffers of fixed size: no allocation while the program's own allocator may be waiting. */
struct text {
  char *data;
  size_t size, used;
};
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_json(struct text *text, const char *string);
bool write_all(int file, const void *data, size_t size);

static inline uint64_t ticks_now(void) {
#if defined(__x86_64__)
  if (LIKELY(clock_kind == CLOCK_TICKS)) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
  }
  return monotonic_ns();
#elif defined(__aarch64__)
  uint64_t count;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
#error "tracemap's hook knows x86-64 and AArch64 only"
#endif
}

/* ---- tables.c */

struct slot {
  export_function target;
  uint32_t kernel;
  uint32_t executable;
};

extern struct slot slots[SLOTS];

enum executable_kind { EMBEDDED_ELF, SYSTEM_ELF, RUNTIME_HOOK };

#define NO_EXECUTABLE UINT32_MAX
#define NO_KERNEL UINT32_MAX

/* Makes a table writable and back again; NULL where it is writable. */
typedef bool (*table_access)(void *table, size_t size, bool writable);

struct memory {
  const void *base;
  size_t size;
};

/* Returns the executable's number, NO_EXECUTABLE if it was left alone. */
uint32_t tables_patch(const struct library *library, enum executable_kind kind, struct memory memory,
                      table_access access);
uint32_t tables_add_kernel(const struct library *library, uint32_t ordinal);
void tables_release(uint32_t executable);
void tables_end(void);
void tables_lock(void);
void tables_unlock(void);
void tables_fork_child(void);
bool tables_ready(char *path, size_t size, unsigned thread, const char *suffix);

/* ---- trampolines.c */

export_function trampoline(uint32_t slot);
bool is_trampoline(export_function function);

/* ---- events.c */

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

bool counters_open(struct counters *counters);
void counters_close(struct counters *counters);
void counters_read(struct counters *counters, uint64_t values[EVENTS]);

/* ---- sampling.c */

struct perf_event_mmap_page;

#define TIMER_RING 4096u /* samples; a power of two */

/* Samples come in by a ring, the kernel's or the timer's, and leave it for the file between calls. */
struct sampler {
  const uint64_t *head;   /* of the ring: it only grows */
  uint64_t drain_from;    /* the head from which on the ring is emptied at the next call */
  volatile bool inside;   /* a call is running; the timer takes no samples of idle time */
  bool busy;              /* the ring is being emptied */
  struct sampler *next;
  int file;
  clockid_t cpu_clock;
  uint64_t cpu_first;
  uint64_t period;
  const char *method;     /* cycles, cpu-clock or timer */
  char reason[128];       /* why perf was not used */
  bool exclude_kernel;
  bool full;

  int event;              /* perf's descriptor; -1: the timer is used */
  struct perf_event_mmap_page *page;
  size_t ring_bytes;

  timer_t timer;
  bool has_timer;
  volatile bool asleep;   /* it was stopped since it fired outside of calls only */
  unsigned idle;          /* how often in a row it did */
  uint64_t timer_first;
  uint64_t timer_head, timer_tail; /* samples */
  uint64_t timer_lost, timer_outside;

  struct samples_header header;
  struct sample ring[TIMER_RING];
};

struct sampler *sampler_begin(unsigned thread);
void sampler_end(struct sampler *sampler);
void sampler_catch_up(struct sampler *sampler);
void samplers_end(void);
void samplers_lock(void);
void samplers_unlock(void);
void samplers_fork_child(void);

static inline void sampler_enter(struct sampler *sampler) {
  uint64_t head = __atomic_load_n(sampler->head, __ATOMIC_RELAXED);
  if (UNLIKELY(head >= __atomic_load_n(&sampler->drain_from, __ATOMIC_RELAXED))) sampler_catch_up(sampler);
  sampler->inside = true;
}

static inline void sampler_leave(struct sampler *sampler) { sampler->inside = false; }

/* ---- samplers.c */

/* Where samples go that leave the ring. */
struct batch {
  struct sampler *sampler;
  unsigned count;
  struct sample samples[128];
};

void batch_add(struct batch *batch, const struct sample *sample);

bool source_open(struct sampler *sampler);
bool source_open_without_cycles(struct sampler *sampler);
void source_start(struct sampler *sampler, uint64_t period);
void source_stop(struct sampler *sampler);
void source_wake(struct sampler *sampler);
void source_drain(struct sampler *sampler, struct batch *batch);
void source_close(struct sampler *sampler);
void source_fork_child(struct sampler *sampler);

/* ---- threads.c */

struct thread {
  char *cursor;           /* where the next record goes */
  char *limit;            /* end of the window */
  struct header *header;  /* in the file */
  uint32_t record_bytes;
  bool gated;             /* whether calls are skipped for any reason */
  struct sampler *sampler; /* NULL: no samples are taken */
  unsigned event_count;
  struct counters counters;
  uint64_t skip_until;    /* ticks */
  uint64_t until_next;    /* calls that one-in-N still passes over */
  char *page;             /* the mapped head of the file */
  char *window;
  off_t window_offset;
  int file;
  bool full;              /* no room for another window */
  bool broken;            /* no calls can or shall be recorded; they are only passed on */
  char about[DATA_OFFSET - ABOUT_OFFSET];
};

extern __thread struct thread *current_thread __attribute__((tls_model("initial-exec")));

struct thread *thread_begin(void);
bool thread_passes(struct thread *thread);
struct record *thread_next_window(struct thread *thread);
void thread_refresh_clock(struct thread *thread);
void thread_end(struct thread *thread);
void threads_set_up(void);

/* ---- calls.c */

int hook_call(const void *environment, const struct dispatch_state *dispatch, const struct workgroup_state *workgroup,
              uint32_t slot);
void calls_measure(struct thread *thread);
void calls_begin(uint32_t kernel);
void calls_end(void);

/* ---- elf.c */

const struct library *elf_embedded_library(const char *base, size_t size, const char *code, size_t code_size);
bool elf_table_access(void *table, size_t size, bool writable);
struct import {
  const char *name;
  void *function;
};
unsigned elf_patch_imports(const void *inside, const char *path, const struct import *imports);
bool elf_is_loaded(const void *base);
size_t elf_loaded_size(const void *inside, const void *base);

/* ---- entries.c: the real functions behind the interposed ones */

void entries_lock(void);
void entries_unlock(void);
void *real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int real_mprotect(void *address, size_t size, int protection);
int real_munmap(void *address, size_t size);

#endif
