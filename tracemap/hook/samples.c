#include "samples.h"

#include "settings.h"

#define DRAINS_PER_SECOND 16u
#define MOST_BETWEEN_DRAINS 64u

unsigned samples_between_drains(void) {
  uint64_t wanted = settings.sample_hz / DRAINS_PER_SECOND;
  return wanted < 1 ? 1 : wanted > MOST_BETWEEN_DRAINS ? MOST_BETWEEN_DRAINS : (unsigned)wanted;
}

static bool put_header(const struct samples *samples) {
  return file_put(&samples->file, &samples->header, sizeof samples->header, HEADER_OFFSET);
}

bool samples_open(struct samples *samples, unsigned thread, const struct text *about, uint64_t period,
                  uint64_t cost_ns) {
  /* A clock that another thread, which ends the process, can read as well. */
  if (pthread_getcpuclockid(pthread_self(), &samples->cpu_clock)) samples->cpu_clock = CLOCK_THREAD_CPUTIME_ID;
  samples->cpu_first = clock_ns(samples->cpu_clock);
  uint64_t now = monotonic_ns();
  samples->header = (struct samples_header){
      .period = period, .cost_ns = cost_ns, .first_ns = now, .last_ns = now, .record_bytes = sizeof(struct sample)};
  samples->file = file_make(thread, "samples", 0);
  if (!file_is_open(&samples->file)) return false;
  if (file_resize(&samples->file, SAMPLES_DATA_OFFSET) && put_header(samples) &&
      head_write(&samples->file, SAMPLES_MAGIC, SAMPLES_DESCRIPTION, about, SAMPLES_DATA_OFFSET))
    return true;
  process_lose_thread("samples", "there is no room for them");
  return file_resize(&samples->file, 0) && false;
}

/* Whether another program has truncated the file; this is reported and logged. */
static bool is_cut(const struct samples *samples, off_t written) {
  off_t size = file_size(&samples->file);
  if (size < 0 || size >= written) return false;
  errno = 0;
  process_lose_thread("samples", "another program has cut their file");
  return true;
}

static void write_batch(struct samples *samples) {
  uint64_t size = samples->waiting * sizeof *samples->batch;
  uint64_t offset = SAMPLES_DATA_OFFSET + samples->header.count * sizeof *samples->batch;
  if (!samples->full && is_cut(samples, (off_t)offset)) samples->full = true;
  if (!samples->full &&
      (offset + size > settings.thread_bytes || !file_put(&samples->file, samples->batch, size, offset))) {
    say("a thread's file of samples is full: its further samples are counted, not kept");
    file_resize(&samples->file, (off_t)offset); /* removes an incompletely written batch */
    samples->full = true;
  }
  if (samples->full) samples->header.lost += samples->waiting;
  else samples->header.count += samples->waiting;
  samples->waiting = 0;
}

void samples_add(struct samples *samples, const struct sample *sample) {
  samples->batch[samples->waiting++] = *sample;
  if (samples->waiting == sizeof samples->batch / sizeof *samples->batch) write_batch(samples);
}

void samples_flush(struct samples *samples) {
  if (samples->waiting) write_batch(samples);
  uint64_t cpu_ns = clock_ns(samples->cpu_clock);
  samples->header.last_ns = monotonic_ns();
  if (cpu_ns) samples->header.cpu_ns = cpu_ns - samples->cpu_first; /* 0: the thread has ended */
  put_header(samples);
}
