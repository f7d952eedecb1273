#include "timer_source.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "attributes.h"
#include "settings.h"
#include "system.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define IDLE_LIMIT 4u /* firings outside of calls in a row, after which the timer is stopped */

static __thread struct source *timed INITIAL_EXEC;
static struct sigaction previous;
static const char token; /* its address tells our signals from others' */

static void set_timer(struct source *source, uint64_t first_ns, uint64_t period_ns) {
  struct itimerspec time = {{(time_t)(period_ns / SECOND_NS), (long)(period_ns % SECOND_NS)},
                            {(time_t)(first_ns / SECOND_NS), (long)(first_ns % SECOND_NS)}};
  timer_settime(source->timer.timer, TIMER_ABSTIME, &time, NULL);
}

/* ---- in the signal's handler: only what is safe there, so no lock, no allocation, no message */

static uint64_t interrupted_ip(const void *context) {
  const ucontext_t *user = context;
#if defined(__x86_64__)
  return (uint64_t)user->uc_mcontext.gregs[REG_RIP];
#else
  return user->uc_mcontext.pc;
#endif
}

static void take_sample(struct timer_ring *timer, const void *context) {
  uint64_t head = timer->head;
  if (head - __atomic_load_n(&timer->tail, __ATOMIC_ACQUIRE) >= TIMER_RING) {
    __atomic_fetch_add(&timer->lost, 1, __ATOMIC_RELAXED);
    return;
  }
  timer->ring[head % TIMER_RING] =
      (struct sample){interrupted_ip(context), monotonic_ns(), (uint32_t)sched_getcpu(), 0};
  __atomic_store_n(&timer->head, head + 1, __ATOMIC_RELEASE); /* last: whoever sees it may read the sample */
}

/* The next call starts the timer again: its way of emptying the ring is taken at once. */
static void pass_over(struct source *source) {
  struct timer_ring *timer = &source->timer;
  __atomic_fetch_add(&timer->outside, 1, __ATOMIC_RELAXED);
  if (++timer->idle < IDLE_LIMIT) return;
  timer_source_stop(source);
  timer->asleep = true;
  __atomic_store_n(&source->drain_from, 0, __ATOMIC_RELAXED);
}

static void hand_on(int number, siginfo_t *info, void *context) {
  if (previous.sa_flags & SA_SIGINFO) previous.sa_sigaction(number, info, context);
  else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) previous.sa_handler(number);
}

static void on_signal(int number, siginfo_t *info, void *context) {
  int error = errno;
  struct source *source = timed;
  if (info->si_code != SI_TIMER || info->si_value.sival_ptr != &token) {
    hand_on(number, info, context);
  } else if (source && source->inside) {
    source->timer.idle = 0;
    take_sample(&source->timer, context);
  } else if (source) {
    pass_over(source);
  }
  errno = error;
}

/* ---- opening */

static void install_handler(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGPROF, &action, &previous);
}

bool timer_source_open(struct source *source) {
  static bool installed;
  if (!installed) install_handler();
  installed = true;
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
  event.sigev_value.sival_ptr = (void *)(uintptr_t)&token;
  event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
  if (timer_create(CLOCK_MONOTONIC, &event, &source->timer.timer)) return false;
  source->timer.exists = true;
  source->method = "timer";
  source->period = SECOND_NS / settings.sample_hz;
  source->exclude_kernel = false;
  source->head = &source->timer.head;
  source->drain_after = DRAIN_SAMPLES;
  timed = source;
  return true;
}

/* A signal that is under way may still come; it then finds no source. */
void timer_source_close(struct source *source) {
  if (source->timer.exists) timer_delete(source->timer.timer);
  source->timer.exists = false;
  if (timed == source) timed = NULL;
}

/* The kernel copies no timer for the child. */
void timer_source_fork_child(void) { timed = NULL; }

/* ---- sampling */

void timer_source_start(struct source *source, uint64_t period) {
  source->timer.first_ns = monotonic_ns() + period;
  set_timer(source, source->timer.first_ns, period);
}

void timer_source_stop(struct source *source) { set_timer(source, 0, 0); }

/* Starts a timer that was stopped, on the same grid: were it set from the call on, short calls would never be met. */
void timer_source_wake(struct source *source) {
  if (!source->timer.asleep) return;
  uint64_t now = monotonic_ns(), first = source->timer.first_ns, period = source->period;
  source->timer.asleep = false;
  source->timer.idle = 0;
  set_timer(source, now < first ? first : first + ((now - first) / period + 1) * period, period);
}

void timer_source_drain(struct source *source, struct samples *samples) {
  struct timer_ring *timer = &source->timer;
  uint64_t head = __atomic_load_n(&timer->head, __ATOMIC_ACQUIRE), tail = timer->tail;
  for (; tail < head; tail++) samples_add(samples, &timer->ring[tail % TIMER_RING]);
  __atomic_store_n(&timer->tail, tail, __ATOMIC_RELEASE); /* only now may the handler write there again */
  samples->header.lost += __atomic_exchange_n(&timer->lost, 0, __ATOMIC_RELAXED);
  samples->header.outside += __atomic_exchange_n(&timer->outside, 0, __ATOMIC_RELAXED);
}

void timer_source_discard(struct source *source) {
  __atomic_store_n(&source->timer.tail, __atomic_load_n(&source->timer.head, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}
