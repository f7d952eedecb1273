/* The hot path: one call of a workgroup through a trampoline. No lock, no allocation, no system call without events. */
#include <sched.h>

#include "hook.h"

static inline struct record *next_record(struct thread *thread) {
  thread->header->seen++;
  if (UNLIKELY(thread->gated)) return thread_gated(thread);
  if (UNLIKELY(thread->cursor == thread->limit)) return thread_next_window(thread);
  return (struct record *)(void *)thread->cursor;
}

static inline void fill(struct record *record, uint32_t kernel, uint64_t start, uint64_t end) {
  unsigned cpu = (unsigned)sched_getcpu();
  record->start_ticks = start;
  record->duration_ticks = end - start;
  record->kernel = kernel;
  record->cpu = (uint16_t)cpu;
  record->node = node_of_cpu[cpu % CPUS];
}

static inline void fill_workgroup(struct record *record, const struct dispatch_state *dispatch,
                                  const struct workgroup_state *workgroup) {
  record->workgroup_x = workgroup->workgroup_id_x;
  record->workgroup_y = workgroup->workgroup_id_y;
  record->workgroup_z = workgroup->workgroup_id_z;
  record->workgroups_x = dispatch->workgroup_count_x;
  record->workgroups_y = dispatch->workgroup_count_y;
  record->workgroups_z = dispatch->workgroup_count_z;
  record->flags = 0;
}

/* The record counts from the moment that `count` says so; the program may be killed before or after. */
static inline void commit(struct thread *thread) {
  thread->cursor += thread->record_bytes;
  __atomic_store_n(&thread->header->count, thread->header->count + 1, __ATOMIC_RELEASE);
  __atomic_store_n(&thread->header->in_flight, 0, __ATOMIC_RELEASE);
  if (UNLIKELY((thread->header->count & 1023) == 0)) thread_refresh_clock(thread);
}

static void fill_events(struct thread *thread, struct record *record, const uint64_t before[EVENTS],
                        const uint64_t after[EVENTS], uint64_t missed) {
  for (unsigned event = 0; event < thread->event_count; event++) record->events[event] = after[event] - before[event];
  if (missed) record->flags |= FLAG_NOT_RUNNING;
}

/* Time is read inside the events: they are read by system calls, which are no part of the call. */
static __attribute__((noinline)) int call_with_events(struct thread *thread, struct record *record,
                                                      const struct slot *slot, const void *environment,
                                                      const struct dispatch_state *dispatch,
                                                      const struct workgroup_state *workgroup) {
  uint64_t before[EVENTS], after[EVENTS];
  counters_read(&thread->counters, before);
  uint64_t missed = thread->counters.enabled - thread->counters.running;
  uint64_t start = ticks_now();
  int status = slot->target(environment, dispatch, workgroup);
  uint64_t end = ticks_now();
  counters_read(&thread->counters, after);
  missed = thread->counters.enabled - thread->counters.running - missed;
  fill(record, slot->kernel, start, end);
  fill_workgroup(record, dispatch, workgroup);
  fill_events(thread, record, before, after, missed);
  commit(thread);
  return status;
}

static inline int call_slot(struct thread *thread, const struct slot *slot, const void *environment,
                            const struct dispatch_state *dispatch, const struct workgroup_state *workgroup) {
  struct record *record = next_record(thread);
  if (UNLIKELY(!record)) return slot->target(environment, dispatch, workgroup);
  __atomic_store_n(&thread->header->in_flight, 1 + (uint64_t)slot->kernel, __ATOMIC_RELAXED);
  if (thread->event_count) return call_with_events(thread, record, slot, environment, dispatch, workgroup);
  uint64_t start = ticks_now();
  int status = slot->target(environment, dispatch, workgroup);
  uint64_t end = ticks_now();
  fill(record, slot->kernel, start, end);
  fill_workgroup(record, dispatch, workgroup);
  commit(thread);
  return status;
}

__attribute__((visibility("hidden"))) int hook_call(const void *environment, const struct dispatch_state *dispatch,
                                                    const struct workgroup_state *workgroup, uint32_t index) {
  struct thread *thread = current_thread;
  if (UNLIKELY(!thread)) thread = thread_begin();
  const struct slot *slot = &slots[index];
  if (UNLIKELY(thread->broken)) return slot->target(environment, dispatch, workgroup);
  return call_slot(thread, slot, environment, dispatch, workgroup);
}

/* ---- the runtime's own hook: begin and end come as two calls, without the workgroup */

struct open_call {
  struct record *record;
  uint64_t start, missed;
  uint64_t before[EVENTS];
  uint32_t kernel;
};

static __thread struct open_call open_call __attribute__((tls_model("initial-exec")));

void calls_begin(uint32_t kernel) {
  struct thread *thread = current_thread;
  if (UNLIKELY(!thread)) thread = thread_begin();
  open_call.record = thread->broken ? NULL : next_record(thread);
  if (!open_call.record) return;
  open_call.kernel = kernel;
  __atomic_store_n(&thread->header->in_flight, 1 + (uint64_t)kernel, __ATOMIC_RELAXED);
  if (thread->event_count) counters_read(&thread->counters, open_call.before);
  open_call.missed = thread->counters.enabled - thread->counters.running;
  open_call.start = ticks_now();
}

void calls_end(void) {
  uint64_t end = ticks_now(), after[EVENTS];
  struct thread *thread = current_thread;
  struct record *record = open_call.record;
  open_call.record = NULL;
  if (!record || !thread) return;
  fill(record, open_call.kernel, open_call.start, end);
  record->workgroup_x = record->workgroup_y = record->workgroups_x = record->workgroups_y = 0;
  record->workgroup_z = record->workgroups_z = 0;
  record->flags = FLAG_NO_WORKGROUP;
  if (thread->event_count) {
    counters_read(&thread->counters, after);
    uint64_t missed = thread->counters.enabled - thread->counters.running - open_call.missed;
    fill_events(thread, record, open_call.before, after, missed);
  }
  commit(thread);
}

/* ---- its own cost */

static int empty_workgroup(const void *environment, const struct dispatch_state *dispatch,
                           const struct workgroup_state *workgroup) {
  (void)environment, (void)dispatch, (void)workgroup;
  __asm__ volatile("" ::: "memory"); /* the calls below are not to be optimised away */
  return 0;
}

/* Hooks a few hundred empty calls, into the window that real records will overwrite. */
void calls_measure(struct thread *thread) {
  enum { ROUNDS = 8, CALLS = 32 };
  static const struct dispatch_state dispatch;
  static const struct workgroup_state workgroup;
  struct slot slot = {empty_workgroup, 0, 0};
  __asm__ volatile("" : "+m"(slot)); /* the target is not to be known to the compiler */
  const char *begin = thread->cursor;
  bool gated = thread->gated;
  uint64_t overhead = UINT64_MAX, empty = UINT64_MAX;
  thread->gated = false;
  for (int round = 0; round < ROUNDS; round++) {
    thread->cursor = thread->window + (begin - thread->window);
    uint64_t start = ticks_now();
    for (int call = 0; call < CALLS; call++) call_slot(thread, &slot, NULL, &dispatch, &workgroup);
    uint64_t spent = ticks_now() - start;
    uint64_t plain = ticks_now();
    for (int call = 0; call < CALLS; call++) slot.target(NULL, &dispatch, &workgroup);
    plain = ticks_now() - plain;
    uint64_t added = spent > plain ? (spent - plain) / CALLS : 0;
    if (added < overhead) overhead = added;
  }
  for (int call = 0; call < CALLS; call++) {
    const struct record *record = (const void *)(thread->window + (begin - thread->window) + call * thread->record_bytes);
    if (record->duration_ticks < empty) empty = record->duration_ticks;
  }
  thread->cursor = thread->window + (begin - thread->window);
  thread->gated = gated;
  thread->header->overhead_ticks = overhead;
  thread->header->empty_ticks = empty;
  thread->header->seen = 0;
  __atomic_store_n(&thread->header->count, 0, __ATOMIC_RELEASE);
}
