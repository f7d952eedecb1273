#include "thread.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include "event_choice.h"
#include "lock.h"
#include "process.h"
#include "report.h"

#define WINDOW_BYTES (1u << 20)

__thread struct thread *current_thread INITIAL_EXEC;

static pthread_key_t key; /* its destructor runs at a thread's end */
static unsigned thread_count;
static uint64_t recorded; /* calls of all threads; counted only if there is a budget */

/* For a thread that could not get memory, or has neither a file nor samples. Never written to. */
static struct thread broken_thread = {.broken = true};

/* ---- the window */

static off_t cursor_offset(const struct thread *thread) {
  return thread->window_end - (off_t)(thread->limit - thread->cursor);
}

/* Maps the window of the file from `offset` on. A record may cross pages, but never windows. */
static bool map_window(struct thread *thread, off_t offset) {
  off_t page = (off_t)page_bytes(), first = offset / page * page;
  size_t window = WINDOW_BYTES / thread->record_bytes * thread->record_bytes;
  size_t size = (size_t)(offset - first) + window;
  if (!file_reserve(&thread->file, first, (off_t)size)) return false;
  if (!file_map(&thread->window, &thread->file, first, size, MAP_POPULATE, false)) return false;
  thread->window_end = first + (off_t)size;
  thread->cursor = thread->window.pages + (offset - first);
  thread->limit = thread->cursor + window;
  return true;
}

/* Whether another program has truncated the file; reports and logs that once. Later writes are not in the file. */
static bool is_cut(struct thread *thread) {
  int error = errno;
  off_t size = file_size(&thread->file);
  bool cut = thread->page.lost || thread->window.lost || (size >= 0 && size < thread->window_end);
  errno = 0;
  if (cut && !thread->cut) process_lose_thread("calls", "another program has cut their file");
  errno = error;
  thread->cut |= cut;
  return thread->cut;
}

/* Frees the disk space of the oldest window. Its records are marked as dropped first, so that concurrent readers do not
 * take the rest for records. */
static bool drop_oldest(struct thread *thread) {
  uint64_t dropped = thread->header->dropped, records = WINDOW_BYTES / thread->record_bytes;
  off_t first = DATA_OFFSET + (off_t)(dropped * thread->record_bytes);
  __atomic_store_n(&thread->header->dropped, dropped + records, __ATOMIC_RELEASE);
  if (file_release(&thread->file, first, (off_t)(records * thread->record_bytes))) return true;
  thread->header->dropped = dropped;
  say("older calls cannot be given up where the files of threads lie: %s", strerror(errno));
  return false;
}

/* Whether another window fits; a file that keeps the newest calls frees space for it. */
static bool has_room(struct thread *thread, off_t offset) {
  uint64_t kept = (uint64_t)offset - DATA_OFFSET - thread->header->dropped * thread->record_bytes;
  return kept + WINDOW_BYTES <= settings.thread_bytes || (settings.keeps_newest && drop_oldest(thread));
}

/* A child of a bare clone shares its parent's files: it stops recording. */
static bool go_on(struct thread *thread) {
  if (!process_is_own()) {
    thread->broken = true;
    return false;
  }
  off_t offset = cursor_offset(thread);
  if (!is_cut(thread) && has_room(thread, offset) && map_window(thread, offset)) {
    thread_refresh_clock(thread);
    return true;
  }
  if (!thread->cut) say("a thread's file is full: its further calls are counted, not recorded");
  thread->full = true;
  return false;
}

COLD struct record *thread_next_window(struct thread *thread) {
  int error = errno;
  bool ready = !thread->full && go_on(thread);
  if (thread->full) thread->header->lost++;
  errno = error;
  return ready ? (struct record *)(void *)thread->cursor : NULL;
}

void thread_refresh_clock(struct thread *thread) {
  if (UNLIKELY(thread->page.lost || thread->window.lost)) is_cut(thread);
  struct moment now = moment_now();
  thread->header->last_ticks = now.ticks;
  thread->header->last_ns = now.ns;
  thread->header->count = ((uint64_t)cursor_offset(thread) - DATA_OFFSET) / thread->record_bytes;
}

/* ---- the file */

static void describe(const struct thread *thread, struct text *about) {
  about_begin(about);
  text_add(about, ",\"clock\":\"%s\",\"events\":[", clock_name());
  for (unsigned event = 0; event < thread->event_count; event++) {
    text_add(about, event ? ",{\"name\":" : "{\"name\":");
    text_add_json(about, settings.events[event].name);
    text_add(about, ",\"mode\":\"%s\"}", event_modes[settings.events[event].mode]);
  }
  text_add(about, "]}");
}

static bool write_head(struct thread *thread) {
  char line[8192]; /* enough for EVENTS names */
  struct text about = TEXT_IN(line);
  describe(thread, &about);
  struct moment now = moment_now();
  *thread->header = (struct header){.first_ticks = now.ticks,
                                    .first_ns = now.ns,
                                    .last_ticks = now.ticks,
                                    .last_ns = now.ns,
                                    .record_bytes = thread->record_bytes};
  return head_write(&thread->file, FORMAT_MAGIC, LAYOUT_DESCRIPTION, &about, DATA_OFFSET);
}

static bool open_file(struct thread *thread) {
  thread->file = file_make(thread->number, "calls", DATA_OFFSET);
  if (!file_is_open(&thread->file)) return false;
  if (!file_map(&thread->page, &thread->file, 0, DATA_OFFSET, 0, false))
    return process_lose_thread("calls", "their file cannot be mapped");
  thread->header = (struct header *)(void *)(thread->page.pages + HEADER_OFFSET);
  return true;
}

static bool set_up(struct thread *thread) {
  if (!settings.record_calls || !open_file(thread)) return false;
  if (!counters_open(&thread->counters)) return process_lose_thread("calls", "their events cannot be counted");
  thread->event_count = thread->counters.count;
  thread->record_bytes = (uint32_t)(sizeof(struct record) + thread->event_count * sizeof(uint64_t));
  if (write_head(thread) && map_window(thread, DATA_OFFSET)) return true;
  return process_lose_thread("calls", "there is no room for them");
}

static void release_file(struct thread *thread) {
  counters_close(&thread->counters);
  file_unmap(&thread->window);
  file_unmap(&thread->page);
  file_close(&thread->file);
}

static void release(struct thread *thread) {
  release_file(thread);
  real_munmap(thread, sizeof *thread);
}

/* ---- reports, once per thread: when it ends, or when the program does */

static struct lock reported_lock; /* held also while a report is printed */
static struct thread *to_report;

void threads_lock(void) { lock_take(&reported_lock); }
void threads_unlock(void) { lock_release(&reported_lock); }

static void report_later(struct thread *thread) {
  prctl(PR_GET_NAME, thread->name, 0, 0, 0);
  threads_lock();
  thread->next = to_report;
  to_report = thread;
  threads_unlock();
}

static void report(const struct thread *thread) {
  if (!file_is_ours(&thread->file)) return say("the calls of a thread cannot be read: the program has closed their file");
  report_thread(&(struct reported){thread->name, thread->file.descriptor, thread->record_bytes, thread->event_count});
}

static void report_now(const struct thread *thread) {
  threads_lock();
  struct thread **place = &to_report;
  while (*place && *place != thread) place = &(*place)->next;
  if (*place) {
    *place = thread->next;
    report(thread);
  }
  threads_unlock();
}

void threads_report(void) {
  threads_lock();
  for (; to_report; to_report = to_report->next) report(to_report);
  threads_unlock();
}

/* Handles the program's requests since its start; mostly they were handled then. */
static void prepare_report(void) {
  if (settings.report.lists_events) events_list();
  settings.record_calls = !settings.report.lists_events;
  if (settings.record_calls) events_choose();
}

/* ---- a thread's first call, and its end */

static void end_of_thread(void *thread) { thread_end(thread); }
static void prepare(void) {
  pthread_key_create(&key, end_of_thread);
  if (settings.report.wanted) prepare_report();
}

/* Returns a thread that records nothing if it cannot, or must not, be set up. */
struct thread *thread_open(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  process_lock(); /* makes the settings of the thread that loaded the first executable visible here */
  process_unlock();
  pthread_once(&once, prepare);
  struct thread *thread = new_pages(sizeof *thread);
  if (!thread) return &broken_thread;
  thread->file = NO_FILE;
  thread->number = __atomic_fetch_add(&thread_count, 1, __ATOMIC_RELAXED);
  thread->broken = !set_up(thread);
  if (thread->broken) {
    if (file_is_open(&thread->file)) file_resize(&thread->file, 0); /* the file was never set up */
    release_file(thread);
  }
  return thread;
}

struct thread *thread_start(struct thread *thread) {
  if (thread == &broken_thread) return thread; /* not made current: there may be memory at its next call */
  thread->gated = settings.skip_ns || settings.budget || settings.every > 1;
  thread->skip_until = settings.skip_ns ? ticks_now() + ticks_in(settings.skip_ns) : 0;
  thread->sampler = sampler_begin(thread->number);
  if (thread->broken && !thread->sampler) {
    release(thread);
    return current_thread = &broken_thread;
  }
  if (settings.report.wanted) report_later(thread);
  current_thread = thread;
  pthread_setspecific(key, thread);
  return thread;
}

/* Truncates the file to its records. A file that was already cut is not extended: the gap would look like records. */
static void end_file(struct thread *thread) {
  off_t end = cursor_offset(thread), size = file_size(&thread->file);
  if (is_cut(thread) && size >= 0) end = size < DATA_OFFSET ? 0 : size < end ? size : end;
  if (!file_resize(&thread->file, end)) say("a thread's file cannot be cut to its records: %s", strerror(errno));
}

void thread_end(struct thread *thread) {
  current_thread = NULL;
  if (thread == &broken_thread || !process_is_own()) return;
  if (thread->sampler) sampler_end(thread->sampler);
  if (!thread->broken) {
    thread_refresh_clock(thread);
    thread->header->closed = 1;
    if (settings.report.wanted) report_now(thread);
    end_file(thread);
  }
  release(thread);
}

/* The child creates its own files; inherited ones are unmapped, but not marked as closed. */
void thread_fork_child(void) {
  struct thread *thread = current_thread;
  current_thread = NULL;
  to_report = NULL;
  if (!thread || thread == &broken_thread) return;
  pthread_setspecific(key, NULL);
  release(thread);
}

/* ---- which calls are recorded */

static bool wanted(struct thread *thread) {
  if (thread->skip_until) {
    if (ticks_now() < thread->skip_until) return false;
    thread->skip_until = 0;
  }
  if (thread->until_next) {
    thread->until_next--;
    return false;
  }
  /* This check avoids writes to a shared variable once the budget is spent. */
  if (settings.budget && __atomic_load_n(&recorded, __ATOMIC_RELAXED) >= settings.budget) return false;
  if (settings.budget && __atomic_fetch_add(&recorded, 1, __ATOMIC_RELAXED) >= settings.budget) return false;
  thread->until_next = settings.every - 1;
  return true;
}

COLD bool thread_passes(struct thread *thread) {
  bool passes = wanted(thread);
  if (!passes) thread->header->passed_over++;
  return passes;
}
