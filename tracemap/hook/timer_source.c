#include "timer_source.h"

#include <sched.h>
#include <signal.h>
#include <ucontext.h>

#include "settings.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define IDLE_LIMIT 4u /* firings in a row outside of calls that stop the timer */

static __thread struct source *timed INITIAL_EXEC;
static struct sigaction previous;
static const char token; /* its address distinguishes our signals */

static void set_timer(struct source *source, uint64_t first_ns, uint64_t period_ns) {
  struct itimerspec time = {{(time_t)(period_ns / SECOND_NS), (long)(period_ns % SECOND_NS)},
                            {(time_t)(first_ns / SECOND_NS), (long)(first_ns % SECOND_NS)}};
  timer_settime(source->timer.timer, TIMER_ABSTIME, &time, NULL);
}

/* ---- in the signal handler: async-signal-safe code only, so no lock, no allocation, no message */

static uint64_t interrupted_ip(const void *context) {
  const ucontext_t *user = context;
#if defined(__x86_64__)
  return (uint64_t)user->uc_mcontext.gregs[REG_RIP];
#else
  return user->uc_mcontext.pc;
#endif
}

/* The link register, in which a function that calls no other keeps its return address; 0: there is none. */
static uint64_t interrupted_link(const void *context) {
#if defined(__x86_64__)
  (void)context;
  return 0;
#else
  return ((const ucontext_t *)context)->uc_mcontext.regs[30];
#endif
}

static const uint64_t *interrupted_stack(const void *context) {
  const ucontext_t *user = context;
#if defined(__x86_64__)
  return (const uint64_t *)user->uc_mcontext.gregs[REG_RSP];
#else
  return (const uint64_t *)user->uc_mcontext.sp;
#endif
}

static find_caller caller;

void timer_find_callers(find_caller function) { caller = function; }

static uint64_t sampled_ip(const void *context) {
  uint64_t ip = interrupted_ip(context);
  return caller ? caller(ip, interrupted_link(context), interrupted_stack(context)) : ip;
}

static void take_sample(struct timer_ring *timer, const void *context) {
  uint64_t head = timer->head;
  if (head - __atomic_load_n(&timer->tail, __ATOMIC_ACQUIRE) >= TIMER_RING) {
    __atomic_fetch_add(&timer->lost, 1, __ATOMIC_RELAXED);
    return;
  }
  timer->ring[head % TIMER_RING] =
      (struct sample){sampled_ip(context), monotonic_ns(), (uint32_t)sched_getcpu(), 0};
  __atomic_store_n(&timer->head, head + 1, __ATOMIC_RELEASE); /* last: a reader that sees it may read the sample */
}

/* The next call restarts the timer: it is made to drain the ring at once. */
static void pass_over(struct source *source) {
  struct timer_ring *timer = &source->timer;
  __atomic_fetch_add(&timer->outside, 1, __ATOMIC_RELAXED);
  if (++timer->idle < IDLE_LIMIT) return;
  set_timer(source, 0, 0);
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

/* An unused real-time signal. SIGPROF belongs to profilers of the program: one may start at any time and get our
 * signals, and restore the default action at its end, which would end the program. */
static int free_signal(void) {
  struct sigaction found;
  for (int number = SIGRTMAX; number >= SIGRTMIN; number--)
    if (!sigaction(number, NULL, &found) && !(found.sa_flags & SA_SIGINFO) && found.sa_handler == SIG_DFL) return number;
  return SIGPROF;
}

/* The signal that the timers of all threads send; called under the lock of the samplers. */
static int installed_signal(void) {
  static int number;
  struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  if (!number) sigaction(number = free_signal(), &action, &previous);
  return number;
}

static clockid_t timer_clock(void) {
  return settings.sampler == SAMPLE_BY_CPU_TIMER ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
}

static bool open_timer(struct source *source) {
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID,
                           .sigev_signo = installed_signal(),
                           .sigev_value.sival_ptr = (void *)(uintptr_t)&token,
                           .sigev_notify_thread_id = (pid_t)syscall(SYS_gettid)};
  if (timer_create(timer_clock(), &event, &source->timer.timer)) return false;
  source->method = "timer";
  source->period = SECOND_NS / settings.sample_hz;
  source->exclude_kernel = false;
  source->head = &source->timer.head;
  source->tail = &source->timer.tail;
  source->drain_after = samples_between_drains();
  timed = source;
  return true;
}

/* A pending signal may still arrive; it then finds no source. */
static void close_timer(struct source *source) {
  timer_delete(source->timer.timer);
  if (timed == source) timed = NULL;
}

/* The kernel does not copy timers to a forked child. */
static void forget_timer(struct source *source) {
  if (timed == source) timed = NULL;
}

/* ---- sampling */

static void start(struct source *source, uint64_t period) {
  source->timer.first_ns = clock_ns(timer_clock()) + period;
  set_timer(source, source->timer.first_ns, period);
}

static void stop(struct source *source) { set_timer(source, 0, 0); }

void timer_wake(struct source *source) {
  if (!source->timer.asleep) return;
  uint64_t now = clock_ns(timer_clock()), first = source->timer.first_ns, period = source->period;
  source->timer.asleep = false;
  source->timer.idle = 0;
  set_timer(source, now < first ? first : first + ((now - first) / period + 1) * period, period);
}

static void drain(struct source *source, struct samples *samples) {
  struct timer_ring *timer = &source->timer;
  uint64_t head = __atomic_load_n(&timer->head, __ATOMIC_ACQUIRE), tail = timer->tail;
  for (; tail < head; tail++) samples_add(samples, &timer->ring[tail % TIMER_RING]);
  __atomic_store_n(&timer->tail, tail, __ATOMIC_RELEASE); /* from now on the handler may write there again */
  samples->header.lost += __atomic_exchange_n(&timer->lost, 0, __ATOMIC_RELAXED);
  samples->header.outside += __atomic_exchange_n(&timer->outside, 0, __ATOMIC_RELAXED);
}

const struct means by_timer = {open_timer, close_timer, forget_timer, start, stop, drain};
