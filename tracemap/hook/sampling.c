/* A thread's samples: the ring that they come in by is emptied into a file, between calls and at the end.
 *
 * A killed program loses what is in the ring: some 64 samples, or those of the call that ran. Samples that are taken
 * outside of calls are kept; their addresses tell.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook.h"

#define DRAIN_SAMPLES 64u
#define PERF_SAMPLE_BYTES 56u /* of the kernel's ring; one that is a little longer only drains earlier */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sampler *samplers; /* of the threads that live */

void samplers_lock(void) { pthread_mutex_lock(&lock); }
void samplers_unlock(void) { pthread_mutex_unlock(&lock); }

/* ---- the file */

static bool put(const struct sampler *sampler, const void *data, size_t size, uint64_t offset) {
  return pwrite(sampler->file, data, size, (off_t)offset) == (ssize_t)size;
}

static void write_header(struct sampler *sampler) {
  struct timespec cpu;
  sampler->header.last_ns = monotonic_ns();
  if (!clock_gettime(sampler->cpu_clock, &cpu))
    sampler->header.cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec - sampler->cpu_first;
  put(sampler, &sampler->header, sizeof sampler->header, HEADER_OFFSET);
}

static void describe(const struct sampler *sampler, struct text *text) {
  char name[32] = "";
  prctl(PR_GET_NAME, name, 0, 0, 0);
  text_add(text, "{\"pid\":%d,\"tid\":%d,\"name\":", (int)getpid(), (int)syscall(SYS_gettid));
  text_add_json(text, name);
  text_add(text, ",\"sampler\":\"%s\",\"hz\":%llu,\"exclude_kernel\":%s,\"perf_error\":", sampler->method,
           (unsigned long long)settings.sample_hz, sampler->exclude_kernel ? "true" : "false");
  text_add_json(text, sampler->event < 0 ? sampler->reason : "");
  text_add(text, "}");
}

/* The preamble comes last: without it the file tells that its program was killed while it was set up. */
static bool write_head(struct sampler *sampler) {
  static const char description[] = SAMPLES_DESCRIPTION;
  char about[SAMPLES_DATA_OFFSET - ABOUT_OFFSET];
  struct text text = {about, sizeof about, 0};
  describe(sampler, &text);
  struct preamble preamble = {
      .version = FORMAT_VERSION,
      .description_bytes = sizeof description - 1,
      .about_bytes = (uint32_t)text.used,
      .header_offset = HEADER_OFFSET,
      .about_offset = ABOUT_OFFSET,
      .data_offset = SAMPLES_DATA_OFFSET,
  };
  memcpy(preamble.magic, SAMPLES_MAGIC, sizeof preamble.magic);
  return !ftruncate(sampler->file, SAMPLES_DATA_OFFSET) &&
         put(sampler, description, sizeof description - 1, DESCRIPTION_OFFSET) &&
         put(sampler, about, text.used, ABOUT_OFFSET) &&
         put(sampler, &sampler->header, sizeof sampler->header, HEADER_OFFSET) &&
         put(sampler, &preamble, sizeof preamble, 0);
}

static bool open_file(struct sampler *sampler, unsigned thread) {
  char path[sizeof settings.output + 160];
  if (!tables_ready(path, sizeof path, thread, "samples")) return false;
  sampler->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (sampler->file >= 0) return true;
  say("%s cannot be made (%s): a thread is not sampled", path, strerror(errno));
  return false;
}

/* ---- from the ring to the file */

static void write_batch(struct batch *batch) {
  struct sampler *sampler = batch->sampler;
  uint64_t size = batch->count * sizeof *batch->samples;
  uint64_t offset = SAMPLES_DATA_OFFSET + sampler->header.count * sizeof *batch->samples;
  if (!sampler->full && (offset + size > settings.thread_bytes || !put(sampler, batch->samples, size, offset))) {
    say("a thread's file of samples is full: its further samples are counted, not kept");
    sampler->full = true;
  }
  if (sampler->full) sampler->header.lost += batch->count;
  else sampler->header.count += batch->count;
  batch->count = 0;
}

void batch_add(struct batch *batch, const struct sample *sample) {
  batch->samples[batch->count++] = *sample;
  if (batch->count == sizeof batch->samples / sizeof *batch->samples) write_batch(batch);
}

/* By the thread itself, or by the one that ends the process: whoever comes second leaves it to the first. */
static void drain(struct sampler *sampler) {
  if (__atomic_exchange_n(&sampler->busy, true, __ATOMIC_ACQUIRE)) return;
  struct batch batch;
  batch.sampler = sampler;
  batch.count = 0;
  source_drain(sampler, &batch);
  if (batch.count) write_batch(&batch);
  write_header(sampler);
  __atomic_store_n(&sampler->busy, false, __ATOMIC_RELEASE);
}

static uint64_t head_of(const struct sampler *sampler) { return __atomic_load_n(sampler->head, __ATOMIC_ACQUIRE); }

static void set_drain(struct sampler *sampler) {
  uint64_t room = DRAIN_SAMPLES; /* the head of the kernel's ring counts bytes, that of ours samples */
  if (sampler->page) room *= PERF_SAMPLE_BYTES;
  if (sampler->page && room > sampler->ring_bytes / 4) room = sampler->ring_bytes / 4;
  __atomic_store_n(&sampler->drain_from, head_of(sampler) + room, __ATOMIC_RELAXED);
}

/* Before a call, when the ring has filled up or the timer is to be started again. The timer may fire and stop itself at
 * any place in here: then `drain_from` is 0, and the next call comes here again. */
COLD void sampler_catch_up(struct sampler *sampler) {
  int error = errno;
  set_drain(sampler);
  source_wake(sampler);
  drain(sampler);
  errno = error;
}

/* ---- what a sample costs */

static uint64_t middle_of(uint64_t *values, unsigned count) {
  for (unsigned place = 1; place < count; place++)
    for (unsigned at = place; at && values[at] < values[at - 1]; at--) {
      uint64_t value = values[at];
      values[at] = values[at - 1];
      values[at - 1] = value;
    }
  return count ? values[count / 2] : 0;
}

/* A loop that reads the clock loses the time that a sample takes: the median of a few, one soon after another. */
static uint64_t measure_cost(struct sampler *sampler) {
  enum { SAMPLES = 9, PERIOD_NS = 100000, LIMIT_NS = 4000000 };
  uint64_t gaps[SAMPLES], begin = monotonic_ns(), before = begin, head = head_of(sampler);
  unsigned count = 0;
  sampler->inside = true;
  source_start(sampler, sampler->period / (1000000000u / settings.sample_hz / PERIOD_NS + 1));
  while (count < SAMPLES && before - begin < LIMIT_NS) {
    uint64_t seen = head_of(sampler), after = monotonic_ns();
    if (seen != head) gaps[count++] = after - before;
    head = seen;
    before = after;
  }
  source_stop(sampler);
  source_drain(sampler, NULL);
  sampler->inside = false;
  return middle_of(gaps, count);
}

static uint64_t known_cost; /* of the process's samples, by its first thread; 0: not known */

/* What the first thread finds out is so for all: they open their samplers one after another. */
static bool open_source(struct sampler *sampler) {
  bool opened = source_open(sampler);
  if (opened && !known_cost) known_cost = measure_cost(sampler);
  if (opened && !known_cost) { /* there are virtual machines whose counters count and never interrupt */
    opened = source_open_without_cycles(sampler);
    if (opened) known_cost = measure_cost(sampler);
  }
  return opened;
}

/* ---- begin and end */

static void begin_header(struct sampler *sampler, uint64_t cost) {
  struct timespec cpu = {0, 0};
  if (pthread_getcpuclockid(pthread_self(), &sampler->cpu_clock)) sampler->cpu_clock = CLOCK_THREAD_CPUTIME_ID;
  clock_gettime(sampler->cpu_clock, &cpu);
  sampler->cpu_first = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
  uint64_t now = monotonic_ns();
  sampler->header = (struct samples_header){.period = sampler->period,
                                            .cost_ns = cost,
                                            .first_ns = now,
                                            .last_ns = now,
                                            .record_bytes = sizeof(struct sample)};
}

static bool set_up(struct sampler *sampler, unsigned thread) {
  samplers_lock();
  bool opened = open_source(sampler);
  uint64_t cost = known_cost;
  samplers_unlock();
  if (!opened) {
    say("a thread cannot be sampled: %s", *sampler->reason ? sampler->reason : strerror(errno));
    return false;
  }
  begin_header(sampler, cost);
  if (!open_file(sampler, thread)) return false;
  if (write_head(sampler)) return true;
  say("no room for samples (%s): a thread is not sampled", strerror(errno));
  return false;
}

static void release(struct sampler *sampler) {
  source_close(sampler);
  if (sampler->file >= 0) close(sampler->file);
  real_munmap(sampler, sizeof *sampler);
}

/* At a thread's first call; NULL if no samples are to be taken, or cannot be. */
struct sampler *sampler_begin(unsigned thread) {
  if (!settings.sample_hz) return NULL;
  struct sampler *sampler =
      real_mmap(NULL, sizeof *sampler, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (sampler == MAP_FAILED) return NULL;
  sampler->file = sampler->event = -1;
  if (!set_up(sampler, thread)) {
    release(sampler);
    return NULL;
  }
  samplers_lock();
  sampler->next = samplers;
  samplers = sampler;
  samplers_unlock();
  set_drain(sampler);
  source_start(sampler, sampler->period);
  return sampler;
}

void sampler_end(struct sampler *sampler) {
  source_stop(sampler);
  samplers_lock();
  struct sampler **place = &samplers;
  while (*place && *place != sampler) place = &(*place)->next;
  if (*place) *place = sampler->next;
  sampler->header.closed = 1;
  drain(sampler);
  samplers_unlock();
  release(sampler);
}

/* The process ends while threads still live: what their rings hold is kept, and they run on. */
void samplers_end(void) {
  samplers_lock();
  for (struct sampler *sampler = samplers; sampler; sampler = sampler->next) drain(sampler);
  samplers_unlock();
}

/* The child samples anew. Called with the lock held; the samplers are copies, of threads that the child has not got. */
void samplers_fork_child(void) {
  for (struct sampler *sampler = samplers, *next; sampler; sampler = next) {
    next = sampler->next;
    source_fork_child(sampler);
    close(sampler->file);
    real_munmap(sampler, sizeof *sampler);
  }
  samplers = NULL;
}
