#include "perf_source.h"

#include <asm/perf_regs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "counters.h"

#if defined(__x86_64__)
#define USER_IP PERF_REG_X86_IP
#else
#define USER_IP PERF_REG_ARM64_PC
#endif

#ifndef CYCLES_TYPE /* tests use another counter, to run where the CPU's counter is hidden */
#define CYCLES_TYPE PERF_TYPE_HARDWARE
#define CYCLES_CONFIG PERF_COUNT_HW_CPU_CYCLES
#endif

#define RING_SECONDS 4u         /* longest call without lost samples */
#define CALIBRATION_NS 1000000u /* time to count cycles */
#define SAMPLE_BYTES 56u        /* in the kernel's ring; longer ones only make it drain earlier */

/* A record in the kernel's ring, in the format that `open_sampling` requests. */
struct perf_sample {
  struct perf_event_header header;
  uint64_t ip;
  uint32_t pid, tid;
  uint64_t time;
  uint32_t cpu, unused;
  uint64_t abi, user_ip; /* user_ip is present only if abi is not 0 */
};

/* ---- opening */

/* Cycles per second while this thread runs; 0 without such a counter. */
static uint64_t cycles_hz(void) {
  struct perf_event_attr attributes = perf_attributes(CYCLES_TYPE, CYCLES_CONFIG, true);
  attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  int file = perf_open(&attributes, -1);
  if (file < 0) return 0;
  for (uint64_t begin = monotonic_ns(); monotonic_ns() - begin < CALIBRATION_NS;) continue;
  struct {
    uint64_t cycles, enabled_ns, running_ns;
  } counted;
  bool counts = read(file, &counted, sizeof counted) == sizeof counted && counted.running_ns;
  close(file);
  return counts ? (uint64_t)((double)counted.cycles * SECOND_NS / (double)counted.running_ns) : 0;
}

/* The period is fixed, so every sample has the same weight. */
static bool open_sampling(struct source *source, uint32_t type, uint64_t config, uint64_t period, unsigned precise) {
  struct perf_event_attr attributes = perf_attributes(type, config, source->exclude_kernel);
  attributes.sample_type =
      PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU | PERF_SAMPLE_REGS_USER;
  attributes.sample_regs_user = 1ull << USER_IP;
  attributes.sample_period = source->period = period;
  attributes.use_clockid = 1;
  attributes.clockid = CLOCK_MONOTONIC;
  attributes.precise_ip = precise & 3u;
  attributes.disabled = 1;
  source->perf.event = perf_open(&attributes, -1);
  return source->perf.event >= 0;
}

#define NO_CYCLES 1u
static uint64_t known_hz; /* cycles per second; 0: not measured yet */

static bool open_cycles(struct source *source) {
  if (!known_hz) known_hz = cycles_hz();
  if (known_hz < SECOND_NS / 1000) known_hz = NO_CYCLES;
  if (known_hz == NO_CYCLES) return false;
  source->method = "cycles";
  for (unsigned precise = 3; precise--;) /* the kernel rejects levels that the CPU does not support */
    if (open_sampling(source, CYCLES_TYPE, CYCLES_CONFIG, known_hz / settings.sample_hz, precise)) return true;
  return false;
}

static bool open_clock(struct source *source) {
  source->method = "cpu-clock";
  return open_sampling(source, PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, SECOND_NS / settings.sample_hz, 0);
}

/* The kernel limits the memory that a user may map in all; with many threads, use a smaller ring. */
static bool map_ring(struct source *source) {
  size_t page = page_bytes(), wanted = settings.sample_hz * RING_SECONDS * sizeof(struct perf_sample);
  size_t size = page * 16;
  while (size < wanted && size < (1u << 20)) size *= 2;
  for (; size >= page; size /= 2) {
    void *mapped = real_mmap(NULL, page + size, PROT_READ | PROT_WRITE, MAP_SHARED, source->perf.event, 0);
    if (mapped == MAP_FAILED) continue;
    source->perf.page = mapped;
    source->perf.bytes = size;
    source->head = (const uint64_t *)(const void *)&source->perf.page->data_head;
    source->tail = (uint64_t *)(void *)&source->perf.page->data_tail;
    size_t wanted_bytes = samples_between_drains() * SAMPLE_BYTES;
    source->drain_after = wanted_bytes < size / 4 ? wanted_bytes : size / 4;
    return true;
  }
  return false;
}

static void close_ring(struct source *source) {
  if (source->perf.page) real_munmap(source->perf.page, page_bytes() + source->perf.bytes);
  if (source->perf.event >= 0) close(source->perf.event);
  source->perf = (struct perf_ring){.event = -1};
}

static bool open_ring(struct source *source) {
  for (int attempt = 0; attempt < 2; attempt++) {
    source->exclude_kernel = attempt; /* users may not sample kernel mode if perf_event_paranoid is 2 */
    if ((open_cycles(source) || open_clock(source)) && map_ring(source)) return true;
    struct text reason = TEXT_IN(source->reason);
    text_add(&reason, "%s", strerror(errno));
    close_ring(source);
  }
  return false;
}

/* The kernel does not map the ring in a forked child. */
static void close_inherited(struct source *source) { close(source->perf.event); }

bool perf_give_up_cycles(void) {
  bool used = known_hz != NO_CYCLES;
  known_hz = NO_CYCLES;
  return used;
}

/* ---- sampling */

static void start(struct source *source, uint64_t period) {
  ioctl(source->perf.event, PERF_EVENT_IOC_PERIOD, &period);
  ioctl(source->perf.event, PERF_EVENT_IOC_ENABLE, 0);
}

static void stop(struct source *source) { ioctl(source->perf.event, PERF_EVENT_IOC_DISABLE, 0); }

static void copy_from_ring(const struct perf_ring *perf, uint64_t place, void *target, size_t size) {
  const char *ring = (const char *)perf->page + page_bytes();
  size_t offset = place & (perf->bytes - 1), first = perf->bytes - offset;
  if (first > size) first = size;
  memcpy(target, ring + offset, first);
  memcpy((char *)target + first, ring, size - first);
}

static struct sample sample_of(const struct perf_sample *from) {
  bool user = (from->header.misc & PERF_RECORD_MISC_CPUMODE_MASK) == PERF_RECORD_MISC_USER;
  bool known = from->header.size >= sizeof *from && from->abi;
  return (struct sample){.ip = user ? from->ip : known ? from->user_ip : 0,
                         .time_ns = from->time,
                         .cpu = from->cpu,
                         .flags = user ? 0 : SAMPLE_IN_KERNEL};
}

/* Also handles records without a sample: lost samples, and throttling. */
static void add_record(const struct perf_sample *record, struct samples *samples) {
  if (record->header.type == PERF_RECORD_SAMPLE) {
    struct sample sample = sample_of(record);
    samples_add(samples, &sample);
  } else if (record->header.type == PERF_RECORD_LOST) {
    uint64_t id_and_lost[2];
    memcpy(id_and_lost, (const char *)record + sizeof record->header, sizeof id_and_lost);
    samples->header.lost += id_and_lost[1];
  } else if (record->header.type == PERF_RECORD_THROTTLE) {
    samples->header.throttled++;
  }
}

static void drain(struct source *source, struct samples *samples) {
  const struct perf_ring *perf = &source->perf;
  uint64_t head = __atomic_load_n(source->head, __ATOMIC_ACQUIRE), tail = *source->tail;
  while (tail < head) {
    struct perf_sample record;
    memset(&record, 0, sizeof record); /* fields that a shorter record lacks are 0 */
    copy_from_ring(perf, tail, &record.header, sizeof record.header);
    if (record.header.size < sizeof record.header) break;
    copy_from_ring(perf, tail, &record, record.header.size < sizeof record ? record.header.size : sizeof record);
    tail += record.header.size;
    add_record(&record, samples);
  }
  __atomic_store_n(source->tail, head, __ATOMIC_RELEASE);
}

const struct means by_perf = {open_ring, close_ring, close_inherited, start, stop, drain};
