#include "sampler.h"

#include "lock.h"
#include "perf_source.h"
#include "settings.h"
#include "timer_source.h"

static struct lock lock;
static struct sampler *samplers; /* of the threads that live */

void samplers_lock(void) { lock_take(&lock); }
void samplers_unlock(void) { lock_release(&lock); }

/* ---- from the ring to the file */

static uint64_t head_of(const struct source *source) { return __atomic_load_n(source->head, __ATOMIC_ACQUIRE); }

/* By the thread itself, or by the one that ends the process: whoever comes second leaves it to the first. */
static void drain(struct sampler *sampler) {
  if (__atomic_exchange_n(&sampler->busy, true, __ATOMIC_ACQUIRE)) return;
  sampler->source.means->drain(&sampler->source, &sampler->samples);
  samples_flush(&sampler->samples);
  __atomic_store_n(&sampler->busy, false, __ATOMIC_RELEASE);
}

static void set_drain(struct source *source) {
  __atomic_store_n(&source->drain_from, head_of(source) + source->drain_after, __ATOMIC_RELAXED);
}

/* Before a call, when the ring has filled up or the timer is to be started again. The timer may fire and stop itself at
 * any place in here: then `drain_from` is 0, and the next call comes here again. */
COLD void sampler_catch_up(struct sampler *sampler) {
  int error = errno;
  set_drain(&sampler->source);
  timer_wake(&sampler->source);
  drain(sampler);
  errno = error;
}

/* ---- what a sample costs */

static uint64_t thread_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

/* A loop that reads the clock loses the time that a sample takes: the least of a few. More is another's doing: of a host
 * that runs other machines, too, whose time even the thread's own clock counts. */
static uint64_t measure_cost(struct source *source) {
  enum { SAMPLES = 9, PERIOD_NS = 100000, LIMIT_NS = 20000000 };
  uint64_t least = UINT64_MAX, plain = UINT64_MAX, begin = thread_ns(), before = begin, head = head_of(source);
  unsigned count = 0;
  source->inside = true;
  source->means->start(source, source->period / (SECOND_NS / settings.sample_hz / PERIOD_NS + 1));
  while (count < SAMPLES && before - begin < LIMIT_NS) {
    uint64_t after = thread_ns(), seen = head_of(source);
    if (seen == head) {
      plain = after - before < plain ? after - before : plain; /* what the loop itself takes */
    } else {
      after = thread_ns(); /* before one look and after the other: all of the sample lies between, and two rounds */
      least = after - before < least ? after - before : least;
      seen = head_of(source);
      count++;
    }
    head = seen;
    before = after;
  }
  source->means->stop(source);
  __atomic_store_n(source->tail, head_of(source), __ATOMIC_RELEASE); /* these samples are thrown away */
  source->inside = false;
  if (!count) return 0;
  return least > 2 * plain ? least - 2 * plain : least;
}

static uint64_t known_cost; /* of the process's samples, by its first thread; 0: not known */

/* False, with errno, where no means is to be had; nothing runs yet. With the lock held. */
static bool open_source(struct source *source) {
  if (settings.sampler != SAMPLE_BY_TIMER && by_perf.open(source)) source->means = &by_perf;
  else if (settings.sampler != SAMPLE_BY_PERF && by_timer.open(source)) source->means = &by_timer;
  return source->means;
}

static void close_source(struct source *source) {
  if (source->means) source->means->close(source);
  source->means = NULL;
}

/* What the first thread finds out is so for all: they open their sources one after another, with the lock held. */
static bool open_measured(struct source *source) {
  if (!open_source(source)) return false;
  if (!known_cost) known_cost = measure_cost(source);
  if (known_cost) return true;
  /* No sample came: there are virtual machines whose counters count and never interrupt. */
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

/* The process ends while threads still live: what their rings hold is kept, and they run on. */
void samplers_end(void) {
  samplers_lock();
  for (struct sampler *sampler = samplers; sampler; sampler = sampler->next) drain(sampler);
  samplers_unlock();
}

/* The child samples anew. With the lock held; the samplers are copies, of threads that the child has not got. */
void samplers_fork_child(void) {
  for (struct sampler *sampler = samplers, *next; sampler; sampler = next) {
    next = sampler->next;
    sampler->source.means->fork_child(&sampler->source);
    file_close(&sampler->samples.file);
    real_munmap(sampler, sizeof *sampler);
  }
  samplers = NULL;
}
