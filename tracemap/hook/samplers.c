/* Where samples of the program counter come from, for the calling thread.
 *
 *   cycles      the processor's counter of cycles interrupts, where the kernel gives one
 *   cpu-clock   else the kernel's timer does, while the thread runs; both write to a ring that is mapped here
 *   timer       where the kernel's perf interface is forbidden: a signal, whose handler writes to a ring of its own.
 *               Clocks of CPU time tick with the kernel only (250 times a second, often), so the timer is one of wall
 *               time. It lies on a fixed grid and takes no sample outside of calls; a thread that idles stops it.
 *
 * A sample that finds the kernel running has the address in user space that called it or was interrupted.
 */
#include <asm/perf_regs.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "hook.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#if defined(__x86_64__)
#define USER_IP PERF_REG_X86_IP
#else
#define USER_IP PERF_REG_ARM64_PC
#endif

#ifndef CYCLES_TYPE /* tests take another counter, so that they can run where the processor's is hidden */
#define CYCLES_TYPE PERF_TYPE_HARDWARE
#define CYCLES_CONFIG PERF_COUNT_HW_CPU_CYCLES
#endif

#define SECOND_NS 1000000000u
#define RING_SECONDS 4u         /* how long a call may take before samples are lost */
#define CALIBRATION_NS 1000000u /* in which cycles are counted */

/* ---- the kernel's perf interface */

struct perf_sample {
  struct perf_event_header header;
  uint64_t ip;
  uint32_t pid, tid;
  uint64_t time;
  uint32_t cpu, unused;
  uint64_t abi, user_ip; /* the second is there where the first is not 0 */
};

static int event_open(struct perf_event_attr *attr) {
  return (int)syscall(SYS_perf_event_open, attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static struct perf_event_attr event_attributes(uint32_t type, uint64_t config, bool exclude_kernel) {
  struct perf_event_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.size = sizeof attr;
  attr.type = type;
  attr.config = config;
  attr.exclude_hv = 1;
  attr.exclude_kernel = exclude_kernel;
  return attr;
}

/* Cycles in a second of this thread's running; 0 where there is no such counter. */
static uint64_t cycles_hz(void) {
  struct perf_event_attr attr = event_attributes(CYCLES_TYPE, CYCLES_CONFIG, true);
  attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  int file = event_open(&attr);
  if (file < 0) return 0;
  for (uint64_t begin = monotonic_ns(); monotonic_ns() - begin < CALIBRATION_NS;) continue;
  struct {
    uint64_t cycles, enabled_ns, running_ns;
  } counted;
  bool counts = read(file, &counted, sizeof counted) == sizeof counted && counted.running_ns;
  close(file);
  return counts ? (uint64_t)((double)counted.cycles * SECOND_NS / (double)counted.running_ns) : 0;
}

/* Periods are fixed, so that every sample weighs the same. */
static int open_sampling(struct sampler *sampler, uint32_t type, uint64_t config, uint64_t period, unsigned precise) {
  struct perf_event_attr attr = event_attributes(type, config, sampler->exclude_kernel);
  attr.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU | PERF_SAMPLE_REGS_USER;
  attr.sample_regs_user = 1ull << USER_IP;
  attr.sample_period = sampler->period = period;
  attr.use_clockid = 1;
  attr.clockid = CLOCK_MONOTONIC;
  attr.precise_ip = precise & 3u;
  attr.disabled = 1;
  return event_open(&attr);
}

#define NO_CYCLES 1u
static uint64_t known_hz; /* of the cycles; 0: not measured yet */

static bool open_cycles(struct sampler *sampler) {
  if (!known_hz) known_hz = cycles_hz();
  if (known_hz < SECOND_NS / 1000) known_hz = NO_CYCLES;
  sampler->method = "cycles";
  for (int precise = 2; precise >= 0 && known_hz != NO_CYCLES && sampler->event < 0; precise--)
    sampler->event =
        open_sampling(sampler, CYCLES_TYPE, CYCLES_CONFIG, known_hz / settings.sample_hz, (unsigned)precise);
  return sampler->event >= 0;
}

static bool open_clock(struct sampler *sampler) {
  sampler->method = "cpu-clock";
  sampler->event =
      open_sampling(sampler, PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, SECOND_NS / settings.sample_hz, 0);
  return sampler->event >= 0;
}

/* The kernel limits what a user may map in all; a smaller ring does, where there are many threads. */
static bool map_ring(struct sampler *sampler) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), wanted = settings.sample_hz * RING_SECONDS * sizeof(struct perf_sample);
  size_t size = page * 16;
  while (size < wanted && size < (1u << 20)) size *= 2;
  for (; size >= page; size /= 2) {
    void *mapped = real_mmap(NULL, page + size, PROT_READ | PROT_WRITE, MAP_SHARED, sampler->event, 0);
    if (mapped == MAP_FAILED) continue;
    sampler->page = mapped;
    sampler->ring_bytes = size;
    sampler->head = (const uint64_t *)(const void *)&sampler->page->data_head;
    return true;
  }
  return false;
}

static bool open_perf(struct sampler *sampler) {
  for (int attempt = 0; attempt < 2; attempt++) {
    sampler->exclude_kernel = attempt; /* what is forbidden to users where perf_event_paranoid is 2 */
    if ((open_cycles(sampler) || open_clock(sampler)) && map_ring(sampler)) return true;
    struct text text = {sampler->reason, sizeof sampler->reason, 0};
    text_add(&text, "%s", strerror(errno));
    if (sampler->event >= 0) close(sampler->event);
    sampler->event = -1;
  }
  return false;
}

static void copy_from_ring(const struct sampler *sampler, uint64_t place, void *target, size_t size) {
  const char *ring = (const char *)sampler->page + sysconf(_SC_PAGESIZE);
  size_t offset = place & (sampler->ring_bytes - 1), first = sampler->ring_bytes - offset;
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

static void drain_perf(struct sampler *sampler, struct batch *batch) {
  uint64_t head = __atomic_load_n(sampler->head, __ATOMIC_ACQUIRE), tail = sampler->page->data_tail;
  while (tail < head) {
    struct perf_sample record;
    memset(&record, 0, sizeof record);
    copy_from_ring(sampler, tail, &record.header, sizeof record.header);
    if (record.header.size < sizeof record.header) break;
    copy_from_ring(sampler, tail, &record, record.header.size < sizeof record ? record.header.size : sizeof record);
    tail += record.header.size;
    if (record.header.type == PERF_RECORD_SAMPLE) {
      struct sample sample = sample_of(&record);
      if (batch) batch_add(batch, &sample);
    } else if (record.header.type == PERF_RECORD_LOST) {
      uint64_t id_and_lost[2];
      memcpy(id_and_lost, (const char *)&record + sizeof record.header, sizeof id_and_lost);
      sampler->header.lost += id_and_lost[1];
    } else if (record.header.type == PERF_RECORD_THROTTLE) {
      sampler->header.throttled++;
    }
  }
  __atomic_store_n(&sampler->page->data_tail, head, __ATOMIC_RELEASE);
}

/* ---- the timer */

#define IDLE_LIMIT 4u /* firings outside of calls in a row, after which the timer is stopped */

static __thread struct sampler *timed __attribute__((tls_model("initial-exec")));
static struct sigaction previous;
static const char token; /* its address tells our signals from others' */

static void set_timer(struct sampler *sampler, uint64_t first, uint64_t period) {
  struct itimerspec time = {{(time_t)(period / SECOND_NS), (long)(period % SECOND_NS)},
                            {(time_t)(first / SECOND_NS), (long)(first % SECOND_NS)}};
  timer_settime(sampler->timer, TIMER_ABSTIME, &time, NULL);
}

static uint64_t interrupted_ip(const void *context) {
  const ucontext_t *user = context;
#if defined(__x86_64__)
  return (uint64_t)user->uc_mcontext.gregs[REG_RIP];
#else
  return user->uc_mcontext.pc;
#endif
}

static void take_sample(struct sampler *sampler, const void *context) {
  uint64_t head = sampler->timer_head;
  if (head - __atomic_load_n(&sampler->timer_tail, __ATOMIC_ACQUIRE) >= TIMER_RING) {
    __atomic_store_n(&sampler->timer_lost, sampler->timer_lost + 1, __ATOMIC_RELAXED);
    return;
  }
  sampler->ring[head % TIMER_RING] =
      (struct sample){interrupted_ip(context), monotonic_ns(), (uint32_t)sched_getcpu(), 0};
  __atomic_store_n(&sampler->timer_head, head + 1, __ATOMIC_RELEASE);
}

/* The next call starts the timer again: its way of emptying the ring is taken at once. */
static void pass_over(struct sampler *sampler) {
  __atomic_store_n(&sampler->timer_outside, sampler->timer_outside + 1, __ATOMIC_RELAXED);
  if (++sampler->idle < IDLE_LIMIT) return;
  set_timer(sampler, 0, 0);
  sampler->asleep = true;
  __atomic_store_n(&sampler->drain_from, 0, __ATOMIC_RELAXED);
}

static void hand_on(int number, siginfo_t *info, void *context) {
  if (previous.sa_flags & SA_SIGINFO) previous.sa_sigaction(number, info, context);
  else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) previous.sa_handler(number);
}

static void on_signal(int number, siginfo_t *info, void *context) {
  int error = errno;
  struct sampler *sampler = timed;
  if (info->si_code != SI_TIMER || info->si_value.sival_ptr != &token) {
    hand_on(number, info, context);
  } else if (sampler && sampler->inside) {
    sampler->idle = 0;
    take_sample(sampler, context);
  } else if (sampler) {
    pass_over(sampler);
  }
  errno = error;
}

static void install_handler(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGPROF, &action, &previous);
}

static bool open_timer(struct sampler *sampler) {
  static bool installed;
  if (!installed) install_handler();
  installed = true;
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
  event.sigev_value.sival_ptr = (void *)(uintptr_t)&token;
  event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
  if (timer_create(CLOCK_MONOTONIC, &event, &sampler->timer)) return false;
  sampler->has_timer = true;
  sampler->method = "timer";
  sampler->period = SECOND_NS / settings.sample_hz;
  sampler->exclude_kernel = false;
  sampler->head = &sampler->timer_head;
  timed = sampler;
  return true;
}

static void drain_timer(struct sampler *sampler, struct batch *batch) {
  uint64_t head = __atomic_load_n(&sampler->timer_head, __ATOMIC_ACQUIRE), tail = sampler->timer_tail;
  for (; tail < head; tail++)
    if (batch) batch_add(batch, &sampler->ring[tail % TIMER_RING]);
  __atomic_store_n(&sampler->timer_tail, tail, __ATOMIC_RELEASE);
  sampler->header.lost = __atomic_load_n(&sampler->timer_lost, __ATOMIC_RELAXED);
  sampler->header.outside = __atomic_load_n(&sampler->timer_outside, __ATOMIC_RELAXED);
}

/* ---- either */

/* False, with errno, where neither is to be had; nothing runs yet. Called with the lock held, as what follows is. */
bool source_open(struct sampler *sampler) {
  sampler->event = -1;
  if (settings.sampler != SAMPLE_BY_TIMER && open_perf(sampler)) return true;
  return settings.sampler != SAMPLE_BY_PERF && open_timer(sampler);
}

/* Where cycles gave no sample: the same without them. What is not of cycles stays as it is. */
bool source_open_without_cycles(struct sampler *sampler) {
  if (known_hz == NO_CYCLES) return true;
  known_hz = NO_CYCLES;
  source_close(sampler);
  sampler->page = NULL;
  return source_open(sampler);
}

void source_start(struct sampler *sampler, uint64_t period) {
  sampler->timer_first = monotonic_ns() + period;
  if (sampler->event < 0) {
    set_timer(sampler, sampler->timer_first, period);
    return;
  }
  ioctl(sampler->event, PERF_EVENT_IOC_PERIOD, &period);
  ioctl(sampler->event, PERF_EVENT_IOC_ENABLE, 0);
}

void source_stop(struct sampler *sampler) {
  if (sampler->event >= 0) ioctl(sampler->event, PERF_EVENT_IOC_DISABLE, 0);
  else set_timer(sampler, 0, 0);
}

/* Starts a timer that was stopped, on the same grid: were it set from the call on, short calls would never be met. */
void source_wake(struct sampler *sampler) {
  if (!sampler->asleep) return;
  uint64_t now = monotonic_ns(), first = sampler->timer_first, period = sampler->period;
  sampler->asleep = false;
  sampler->idle = 0;
  set_timer(sampler, now < first ? first : first + ((now - first) / period + 1) * period, period);
}

/* Without a batch the samples are thrown away. */
void source_drain(struct sampler *sampler, struct batch *batch) {
  if (sampler->event >= 0) drain_perf(sampler, batch);
  else drain_timer(sampler, batch);
}

void source_close(struct sampler *sampler) {
  if (sampler->has_timer) timer_delete(sampler->timer);
  if (timed == sampler) timed = NULL;
  if (sampler->page) real_munmap(sampler->page, (size_t)sysconf(_SC_PAGESIZE) + sampler->ring_bytes);
  if (sampler->event >= 0) close(sampler->event);
}

/* The child has neither the timer nor the ring: the kernel copies none of them. */
void source_fork_child(struct sampler *sampler) {
  timed = NULL;
  if (sampler->event >= 0) close(sampler->event);
}
