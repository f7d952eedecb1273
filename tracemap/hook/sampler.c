#include "sampler.h"

#include "lock.h"
#include "perf_source.h"
#include "settings.h"
#include "timer_source.h"

static struct lock lock;
static struct sampler *samplers; /* of living threads */

void samplers_lock(void) { lock_take(&lock); }
void samplers_unlock(void) { lock_release(&lock); }

/* ---- from the ring to the file */

static uint64_t head_of(const struct source *source) { return __atomic_load_n(source->head, __ATOMIC_ACQUIRE); }

/* By the thread itself, or by the thread that ends the process; the second one leaves it to the first. */
static void drain(struct sampler *sampler) {
  if (__atomic_exchange_n(&sampler->busy, true, __ATOMIC_ACQUIRE)) return;
  sampler->source.means->drain(&sampler->source, &sampler->samples);
  samples_flush(&sampler->samples);
  __atomic_store_n(&sampler->busy, false, __ATOMIC_RELEASE);
}

static void set_drain(struct source *source) {
  __atomic_store_n(&source->drain_from, head_of(source) + source->drain_after, __ATOMIC_RELAXED);
}

/* Called before a workgroup, when the ring is full or the timer must restart. The timer may fire and stop itself at any
 * point in here: then `drain_from` is 0, and the next call comes here again. */
COLD void sampler_catch_up(struct sampler *sampler) {
  int error = errno;
  set_drain(&sampler->source);
  timer_wake(&sampler->source);
  drain(sampler);
  errno = error;
}

/* ---- what a sample costs */

static uint64_t thread_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/* A loop that reads the clock loses the time of a sample; the least of a few measurements counts. Larger values have
 * other causes, such as a hypervisor, whose time even counts on the thread's own clock. */
static uint64_t measure_cost(struct source *source) {
  enum { SAMPLES = 9, PERIOD_NS = 100000, LIMIT_NS = 20000000 };
  uint64_t least = UINT64_MAX, plain = UINT64_MAX, begin = thread_ns(), before = begin, head = head_of(source);
  unsigned count = 0;
  source->inside = true;
  source->means->start(source, source->period / (SECOND_NS / settings.sample_hz / PERIOD_NS + 1));
  while (count < SAMPLES && before - begin < LIMIT_NS) {
    uint64_t after = thread_ns(), seen = head_of(source);
    if (seen == head) {
      plain = after - before < plain ? after - before : plain; /* the time of the loop itself */
    } else {
      after = thread_ns(); /* the whole sample, and two rounds of the loop, lie between the two readings */
      least = after - before < least ? after - before : least;
      seen = head_of(source);
      count++;
    }
    head = seen;
    before = after;
  }
  source->means->stop(source);
  __atomic_store_n(source->tail, head_of(source), __ATOMIC_RELEASE); /* discards these samples */
  source->inside = false;
  if (!count) return 0;
  return least > 2 * plain ? least - 2 * plain : least;
}

static uint64_t known_cost; /* of a sample, measured by the process's first thread; 0: unknown */

/* False, with errno, if there is no source; nothing runs yet. The caller holds the lock. */
static bool open_source(struct source *source) {
  if (settings.sampler < SAMPLE_BY_TIMER && by_perf.open(source)) source->means = &by_perf;
  else if (settings.sampler != SAMPLE_BY_PERF && by_timer.open(source)) source->means = &by_timer;
  return source->means;
}

static void close_source(struct source *source) {
  if (source->means) source->means->close(source);
  source->means = NULL;
}

/* The first thread's result holds for all: they open their sources one after another, under the lock. */
static bool open_measured(struct source *source) {
  if (!open_source(source)) return false;
  if (!known_cost) known_cost = measure_cost(source);
  if (known_cost) return true;
  /* No sample came: the counters of some virtual machines count, but never interrupt. */
  if (perf_give_up_cycles()) {
    close_source(source);
    if (!open_source(source)) return false;
  }
  known_cost = measure_cost(source);
  return true;
}

/* ---- begin and end */

static void describe(const struct source *source, struct text *about) {
  about_begin(about);
  text_add(about, ",\"sampler\":\"%s\",\"hz\":%u,\"exclude_kernel\":%s,\"perf_error\":", source->method,
           (unsigned)settings.sample_hz, source->exclude_kernel ? "true" : "false");
  text_add_json(about, source->means == &by_perf ? "" : source->reason);
  text_add(about, "}");
}

static bool set_up(struct sampler *sampler, unsigned thread) {
  struct source *source = &sampler->source;
  samplers_lock();
  bool opened = open_measured(source);
  uint64_t cost_ns = known_cost;
  samplers_unlock();
  if (!opened) {
    if (*source->reason) errno = 0;
    return process_lose_thread("samples", *source->reason ? source->reason : "there is no way to take them");
  }
  char line[SAMPLES_DATA_OFFSET - ABOUT_OFFSET];
  struct text about = TEXT_IN(line);
  describe(source, &about);
  return samples_open(&sampler->samples, thread, &about, source->period, cost_ns);
}

static void release(struct sampler *sampler) {
  close_source(&sampler->source);
  file_close(&sampler->samples.file);
  real_munmap(sampler, sizeof *sampler);
}

struct sampler *sampler_begin(unsigned thread) {
  if (!settings.sample_hz) return NULL;
  struct sampler *sampler = new_pages(sizeof *sampler);
  if (!sampler) return NULL;
  sampler->samples.file = NO_FILE;
  if (!set_up(sampler, thread)) {
    release(sampler);
    return NULL;
  }
  samplers_lock();
  sampler->next = samplers;
  samplers = sampler;
  samplers_unlock();
  set_drain(&sampler->source);
  sampler->source.means->start(&sampler->source, sampler->source.period);
  return sampler;
}

void sampler_end(struct sampler *sampler) {
  sampler->source.means->stop(&sampler->source);
  samplers_lock();
  struct sampler **place = &samplers;
  while (*place && *place != sampler) place = &(*place)->next;
  if (*place) *place = sampler->next;
  sampler->samples.header.closed = 1;
  drain(sampler);
  samplers_unlock();
  release(sampler);
}

/* The process ends while threads still run: save the content of their rings. */
void samplers_end(void) {
  samplers_lock();
  for (struct sampler *sampler = samplers; sampler; sampler = sampler->next) drain(sampler);
  samplers_unlock();
}

/* The child samples anew. The caller holds the lock; the samplers are copies of threads that the child does not
 * have. */
void samplers_fork_child(void) {
  for (struct sampler *sampler = samplers, *next; sampler; sampler = next) {
    next = sampler->next;
    sampler->source.means->fork_child(&sampler->source);
    file_close(&sampler->samples.file);
    real_munmap(sampler, sizeof *sampler);
  }
  samplers = NULL;
}
