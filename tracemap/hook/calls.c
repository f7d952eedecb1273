#include "calls.h"

#include <sched.h>

#include "thread.h"
#include "watching.h"

#define CLOCK_REFRESH 65536u /* bytes of records between two readings of both clocks */

struct slot slots[SLOTS];

/* The place of the next record; NULL if this call is not recorded. The kernel stays there if the call never returns. */
static inline struct record *begin_record(struct thread *thread, uint32_t kernel) {
  struct record *record = (struct record *)(void *)thread->cursor;
  if (UNLIKELY(thread->gated) && !thread_passes(thread)) return NULL;
  if (UNLIKELY(thread->cursor == thread->limit)) record = thread_next_window(thread);
  if (UNLIKELY(!record)) return NULL;
  record->kernel = kernel;
  record->flags = FLAG_BEGUN;
  return record;
}

/* The field that marks a record as complete is written last, since the program may be killed at any time. */
static inline void end_record(struct thread *thread, struct record *record, uint64_t start, uint64_t end) {
  unsigned cpu = (unsigned)sched_getcpu();
  record->duration_ticks = end - start;
  record->cpu = (uint16_t)cpu;
  record->node = node_of_cpu[cpu % CPUS];
  __atomic_store_n(&record->start_ticks, start, __ATOMIC_RELEASE);
  thread->cursor += thread->record_bytes;
  if (UNLIKELY(((uintptr_t)thread->cursor & (CLOCK_REFRESH - 1)) < thread->record_bytes)) thread_refresh_clock(thread);
}

static inline void add_workgroup(struct record *record, const struct dispatch_state *dispatch,
                                 const struct workgroup_state *workgroup) {
  record->workgroup_x = workgroup->workgroup_id_x;
  record->workgroup_y = workgroup->workgroup_id_y;
  record->workgroup_z = workgroup->workgroup_id_z;
  record->workgroups_x = dispatch->workgroup_count_x;
  record->workgroups_y = dispatch->workgroup_count_y;
  record->workgroups_z = dispatch->workgroup_count_z;
}

static uint64_t time_stopped(const struct thread *thread) {
  return thread->counters.enabled - thread->counters.running;
}

static void add_events(struct thread *thread, struct record *record, const uint64_t before[EVENTS], uint64_t stopped) {
  uint64_t after[EVENTS] = {0};
  counters_read(&thread->counters, after);
  for (unsigned event = 0; event < thread->event_count; event++) record->events[event] = after[event] - before[event];
  if (time_stopped(thread) != stopped) record->flags |= FLAG_NOT_RUNNING;
}

/* Time is read inside the events: reading events may take system calls, which are not part of the call. */
static __attribute__((noinline)) int call_with_events(struct thread *thread, struct record *record,
                                                      const struct slot *slot, const void *environment,
                                                      const struct dispatch_state *dispatch,
                                                      const struct workgroup_state *workgroup) {
  uint64_t before[EVENTS];
  counters_read(&thread->counters, before);
  uint64_t stopped = time_stopped(thread), start = ticks_now();
  int status = slot->target(environment, dispatch, workgroup);
  uint64_t end = ticks_now();
  add_events(thread, record, before, stopped);
  add_workgroup(record, dispatch, workgroup);
  end_record(thread, record, start, end);
  return status;
}

static inline int call_slot(struct thread *thread, const struct slot *slot, const void *environment,
                            const struct dispatch_state *dispatch, const struct workgroup_state *workgroup) {
  struct record *record = begin_record(thread, slot->kernel);
  if (UNLIKELY(!record)) return slot->target(environment, dispatch, workgroup);
  if (thread->event_count) return call_with_events(thread, record, slot, environment, dispatch, workgroup);
  add_workgroup(record, dispatch, workgroup);
  uint64_t start = ticks_now();
  int status = slot->target(environment, dispatch, workgroup);
  end_record(thread, record, start, ticks_now());
  return status;
}

/* ---- the first call of a thread measures the hook's own cost */

static int empty_workgroup(const void *environment, const struct dispatch_state *dispatch,
                           const struct workgroup_state *workgroup) {
  (void)environment, (void)dispatch, (void)workgroup;
  __asm__ volatile("" ::: "memory"); /* keeps the calls below from being optimised away */
  return 0;
}

/* Hooks a few hundred empty calls, in place of the first records, and restores their memory afterwards. */
static void measure(struct thread *thread) {
  enum { ROUNDS = 8, CALLS = 32 };
  static const struct dispatch_state dispatch;
  static const struct workgroup_state workgroup;
  struct slot slot = {empty_workgroup, 0, 0};
  __asm__ volatile("" : "+m"(slot)); /* hides the target from the compiler */
  char *first = thread->cursor;
  uint64_t overhead = UINT64_MAX, empty = UINT64_MAX;
  for (int round = 0; round < ROUNDS; round++) {
    thread->cursor = first;
    uint64_t begin = ticks_now();
    for (int call = 0; call < CALLS; call++) call_slot(thread, &slot, NULL, &dispatch, &workgroup);
    uint64_t between = ticks_now();
    for (int call = 0; call < CALLS; call++) slot.target(NULL, &dispatch, &workgroup);
    uint64_t end = ticks_now(), added = (2 * between - begin - end) / CALLS;
    if (added < overhead) overhead = added;
  }
  for (const char *place = first; place < thread->cursor; place += thread->record_bytes) {
    const struct record *record = (const void *)place;
    if (record->duration_ticks < empty) empty = record->duration_ticks;
  }
  memset(first, 0, (size_t)(thread->cursor - first));
  thread->cursor = first;
  thread->header->overhead_ticks = overhead;
  thread->header->empty_ticks = empty;
}

static COLD struct thread *first_call(void) {
  int error = errno;
  struct thread *thread = thread_open();
  if (!thread->broken) measure(thread);
  thread = thread_start(thread);
  errno = error;
  return thread;
}

static inline struct thread *this_thread(void) {
  struct thread *thread = current_thread;
  return UNLIKELY(!thread) ? first_call() : thread;
}

/* ---- through a trampoline */

/* A thread without a file of calls; its dispatches may be watched. */
static __attribute__((noinline)) int call_unrecorded(const struct slot *slot, const void *environment,
                                                     const struct dispatch_state *dispatch,
                                                     const struct workgroup_state *workgroup) {
  if (LIKELY(!watching())) return slot->target(environment, dispatch, workgroup);
  watching_begin(slot->kernel, dispatch, workgroup);
  int status = slot->target(environment, dispatch, workgroup);
  watching_end(slot->kernel, dispatch, workgroup);
  return status;
}

/* Samples alone cost a call almost nothing: two reads and two writes of thread-local data. */
static __attribute__((noinline)) int call_sampled(struct thread *thread, const struct slot *slot,
                                                  const void *environment, const struct dispatch_state *dispatch,
                                                  const struct workgroup_state *workgroup) {
  sampler_enter(thread->sampler);
  int status = thread->broken ? slot->target(environment, dispatch, workgroup)
                              : call_slot(thread, slot, environment, dispatch, workgroup);
  sampler_leave(thread->sampler);
  return status;
}

int hook_call(const void *environment, const struct dispatch_state *dispatch,
              const struct workgroup_state *workgroup, uint32_t index) {
  struct thread *thread = this_thread();
  const struct slot *slot = &slots[index];
  if (UNLIKELY(thread->sampler != NULL)) return call_sampled(thread, slot, environment, dispatch, workgroup);
  if (UNLIKELY(thread->broken)) return call_unrecorded(slot, environment, dispatch, workgroup);
  return call_slot(thread, slot, environment, dispatch, workgroup);
}

#define TRAMPOLINE_BYTES 16

extern HIDDEN const char hook_trampolines[];

#if defined(__x86_64__)
#define TRAMPOLINE "endbr64\n movl $number, %ecx\n jmp hook_call\n"
#elif defined(__aarch64__)
#define TRAMPOLINE "hint #34\n mov w3, #number\n b hook_call\n" /* hint #34 is `bti c` */
#endif

__asm__(".pushsection .text\n"
        ".balign 16\n"
        ".hidden hook_trampolines\n"
        ".globl hook_trampolines\n"
        ".type hook_trampolines, %function\n"
        "hook_trampolines:\n"
        ".set number, 0\n"
        ".rept 16384\n" TRAMPOLINE ".balign 16\n"
        ".set number, number + 1\n"
        ".endr\n"
        ".size hook_trampolines, . - hook_trampolines\n"
        ".popsection\n");

_Static_assert(SLOTS == 16384, "the assembly above makes one entry per slot");

export_function trampoline(uint32_t slot) {
  return (export_function)(uintptr_t)(hook_trampolines + (size_t)slot * TRAMPOLINE_BYTES);
}

bool is_trampoline(export_function function) {
  uintptr_t address = (uintptr_t)function, begin = (uintptr_t)hook_trampolines;
  return address >= begin && address < begin + (size_t)SLOTS * TRAMPOLINE_BYTES;
}

/* ---- the runtime's own hook */

struct open_call {
  struct record *record;
  uint64_t start, stopped;
  uint64_t before[EVENTS];
};

static __thread struct open_call open_call INITIAL_EXEC;

void calls_begin(uint32_t kernel) {
  struct thread *thread = this_thread();
  if (thread->sampler) sampler_enter(thread->sampler);
  open_call.record = thread->broken ? NULL : begin_record(thread, kernel);
  if (!open_call.record) return;
  if (thread->event_count) counters_read(&thread->counters, open_call.before);
  open_call.stopped = time_stopped(thread);
  open_call.start = ticks_now();
}

void calls_end(void) {
  uint64_t end = ticks_now();
  struct thread *thread = current_thread;
  struct record *record = open_call.record;
  if (thread && thread->sampler) sampler_leave(thread->sampler);
  open_call.record = NULL;
  if (!record || !thread) return;
  if (thread->event_count) add_events(thread, record, open_call.before, open_call.stopped);
  record->flags |= FLAG_NO_WORKGROUP;
  end_record(thread, record, open_call.start, end);
}
