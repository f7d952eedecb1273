/* A thread's record file: its head stays mapped, its records are written through a window that moves on.
 *
 * Room on disk is reserved before a window is mapped, since writing to a mapped file on a full disk kills the program.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook.h"

__thread struct thread *current_thread __attribute__((tls_model("initial-exec")));

static pthread_key_t key;
static unsigned thread_count;
static uint64_t recorded; /* calls of all threads; counted only where there is a budget */

/* What a thread without a file has. */
static struct thread broken_thread = {.broken = true};

static bool reserve(int file, off_t offset, off_t size) {
  if (!fallocate(file, 0, offset, size)) return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
  static const char zeros[65536];
  for (off_t place = offset; place < offset + size; place += (off_t)sizeof zeros)
    if (pwrite(file, zeros, sizeof zeros, place) != (ssize_t)sizeof zeros) return false;
  return true;
}

static size_t window_bytes(const struct thread *thread) {
  return WINDOW_BYTES / thread->record_bytes * thread->record_bytes;
}

/* Maps the window that holds the file from `offset` on. A record may straddle pages, never windows. */
static bool map_window(struct thread *thread, off_t offset) {
  off_t page = sysconf(_SC_PAGESIZE), first = offset / page * page;
  size_t size = (size_t)(offset - first) + window_bytes(thread);
  if (!reserve(thread->file, first, (off_t)size)) return false;
  char *mapped = real_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, thread->file, first);
  if (mapped == MAP_FAILED) return false;
  if (thread->window) real_munmap(thread->window, (size_t)(thread->limit - thread->window));
  thread->window = mapped;
  thread->window_offset = first;
  thread->cursor = mapped + (offset - first);
  thread->limit = thread->cursor + window_bytes(thread);
  return true;
}

static void describe(struct thread *thread) {
  char name[32] = "";
  struct text text = {thread->about, sizeof thread->about, 0};
  prctl(PR_GET_NAME, name, 0, 0, 0);
  text_add(&text, "{\"pid\":%d,\"tid\":%d,\"name\":", (int)getpid(), (int)syscall(SYS_gettid));
  text_add_json(&text, name);
  text_add(&text, ",\"clock\":\"%s\",\"events\":[", clock_kind == CLOCK_TICKS ? "ticks" : "monotonic");
  for (unsigned event = 0; event < thread->event_count; event++) {
    text_add(&text, event ? ",{\"name\":" : "{\"name\":");
    text_add_json(&text, settings.events[event].name);
    static const char *const modes[] = {"group", "ring", "rdpmc"};
    text_add(&text, ",\"mode\":\"%s\"}", modes[settings.events[event].mode]);
  }
  text_add(&text, "]}");
}

static void write_head(struct thread *thread) {
  static const char description[] = LAYOUT_DESCRIPTION;
  describe(thread);
  struct preamble preamble = {
      .version = FORMAT_VERSION,
      .description_bytes = sizeof description - 1,
      .about_bytes = (uint32_t)strlen(thread->about),
      .header_offset = HEADER_OFFSET,
      .about_offset = ABOUT_OFFSET,
      .data_offset = DATA_OFFSET,
  };
  memcpy(thread->page + DESCRIPTION_OFFSET, description, sizeof description - 1);
  memcpy(thread->page + ABOUT_OFFSET, thread->about, preamble.about_bytes);
  struct moment now = moment_now();
  *thread->header = (struct header){.first_ticks = now.ticks,
                                    .first_ns = now.ns,
                                    .last_ticks = now.ticks,
                                    .last_ns = now.ns,
                                    .record_bytes = thread->record_bytes};
  memcpy(preamble.magic, FORMAT_MAGIC, sizeof preamble.magic);
  memcpy(thread->page, &preamble, sizeof preamble);
}

static bool open_files(struct thread *thread, unsigned number) {
  char path[sizeof settings.output + 160];
  if (!tables_ready(path, sizeof path, number, "calls")) return false;
  thread->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (thread->file < 0 || !reserve(thread->file, 0, DATA_OFFSET)) {
    say("%s cannot be made (%s): a thread is not recorded", path, strerror(errno));
    return false;
  }
  thread->page = real_mmap(NULL, DATA_OFFSET, PROT_READ | PROT_WRITE, MAP_SHARED, thread->file, 0);
  if (thread->page == MAP_FAILED) {
    thread->page = NULL;
    return false;
  }
  thread->header = (struct header *)(void *)(thread->page + HEADER_OFFSET);
  return true;
}

static bool set_up(struct thread *thread, unsigned number) {
  if (!settings.record_calls || !open_files(thread, number)) return false;
  if (!counters_open(&thread->counters)) return false;
  thread->event_count = thread->counters.count;
  thread->record_bytes = (uint32_t)(sizeof(struct record) + thread->event_count * sizeof(uint64_t));
  write_head(thread);
  if (!map_window(thread, DATA_OFFSET)) {
    say("no room for records (%s): a thread is not recorded", strerror(errno));
    return false;
  }
  calls_measure(thread);
  thread->gated = settings.skip_ns || settings.budget || settings.every > 1;
  thread->skip_until = settings.skip_ns ? ticks_now() + skip_ticks(settings.skip_ns) : 0;
  return true;
}

static void release_file(struct thread *thread) {
  counters_close(&thread->counters);
  if (thread->window) real_munmap(thread->window, (size_t)(thread->limit - thread->window));
  if (thread->page) real_munmap(thread->page, DATA_OFFSET);
  if (thread->file >= 0) close(thread->file);
  thread->window = thread->page = NULL;
  thread->file = -1;
}

static void release(struct thread *thread) {
  release_file(thread);
  real_munmap(thread, sizeof *thread);
}

/* The first call of a thread; returns a thread that records nothing if it cannot be set up or shall not. */
COLD struct thread *thread_begin(void) {
  int error = errno;
  struct thread *thread =
      real_mmap(NULL, sizeof *thread, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (thread == MAP_FAILED) return &broken_thread;
  thread->file = thread->counters.leader = -1;
  unsigned number = __atomic_fetch_add(&thread_count, 1, __ATOMIC_RELAXED);
  if (!set_up(thread, number)) {
    release_file(thread);
    thread->broken = true;
  }
  thread->sampler = sampler_begin(number);
  if (thread->broken && !thread->sampler) {
    release(thread);
    thread = &broken_thread;
  }
  current_thread = thread;
  if (thread != &broken_thread) pthread_setspecific(key, thread);
  errno = error;
  return thread;
}

static bool wanted(struct thread *thread) {
  if (thread->skip_until) {
    if (ticks_now() < thread->skip_until) return false;
    thread->skip_until = 0;
  }
  if (thread->until_next) {
    thread->until_next--;
    return false;
  }
  if (settings.budget && __atomic_load_n(&recorded, __ATOMIC_RELAXED) >= settings.budget) return false;
  if (settings.budget && __atomic_fetch_add(&recorded, 1, __ATOMIC_RELAXED) >= settings.budget) return false;
  thread->until_next = settings.every - 1;
  return true;
}

/* Whether this call is one to record, where not all are. */
COLD bool thread_passes(struct thread *thread) {
  bool passes = wanted(thread);
  if (!passes) thread->header->passed_over++;
  return passes;
}

COLD struct record *thread_next_window(struct thread *thread) {
  int error = errno;
  off_t offset = thread->window_offset + (off_t)(thread->cursor - thread->window);
  bool allowed = !thread->full && (uint64_t)offset + WINDOW_BYTES <= settings.thread_bytes + DATA_OFFSET;
  if (!allowed || !map_window(thread, offset)) {
    if (!thread->full) say("a thread's file is full: its further calls are counted, not recorded");
    thread->full = true;
    thread->header->lost++;
    errno = error;
    return NULL;
  }
  thread_refresh_clock(thread);
  errno = error;
  return (struct record *)(void *)thread->cursor;
}

void thread_refresh_clock(struct thread *thread) {
  struct moment now = moment_now();
  thread->header->last_ticks = now.ticks;
  thread->header->last_ns = now.ns;
  uint64_t bytes = (uint64_t)thread->window_offset + (uint64_t)(thread->cursor - thread->window) - DATA_OFFSET;
  thread->header->count = bytes / thread->record_bytes;
}

static void end_file(struct thread *thread) {
  off_t end = thread->window_offset + (off_t)(thread->cursor - thread->window);
  thread_refresh_clock(thread);
  thread->header->closed = 1;
  if (ftruncate(thread->file, end)) say("a thread's file cannot be cut to its records: %s", strerror(errno));
}

void thread_end(struct thread *thread) {
  current_thread = NULL;
  if (thread == &broken_thread) return;
  if (thread->sampler) sampler_end(thread->sampler);
  if (!thread->broken) end_file(thread);
  release(thread);
}

static void end_of_thread(void *thread) { thread_end(thread); }

static void before_fork(void) {
  entries_lock();
  tables_lock();
  samplers_lock();
}

static void after_fork_in_parent(void) {
  samplers_unlock();
  tables_unlock();
  entries_unlock();
}

/* The child's files are its own: what it inherited is unmapped, not closed as ended. */
static void after_fork_in_child(void) {
  struct thread *thread = current_thread;
  current_thread = NULL;
  if (thread && thread != &broken_thread) {
    pthread_setspecific(key, NULL);
    release(thread);
  }
  tables_fork_child();
  samplers_fork_child();
  samplers_unlock();
  tables_unlock();
  entries_unlock();
}

void threads_set_up(void) {
  pthread_key_create(&key, end_of_thread);
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
