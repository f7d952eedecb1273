#include "system.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ---- the process */

static pid_t own_process;

void process_is_new(void) { own_process = (pid_t)system_call(SYS_getpid, 0, 0, 0, 0, 0, 0); }

EARLY bool process_is_own(void) { return own_process == (pid_t)system_call(SYS_getpid, 0, 0, 0, 0, 0, 0); }

/* A sanitizer's compiler calls this in each constructor; repeated calls do nothing. */
extern void __asan_init(void) __attribute__((weak));
extern void __hwasan_init(void) __attribute__((weak));
extern void __lsan_init(void) __attribute__((weak));
extern void __msan_init(void) __attribute__((weak));
extern void __tsan_init(void) __attribute__((weak));

void sanitizers_begin(void) {
  void (*const begins[])(void) = {__asan_init, __hwasan_init, __lsan_init, __msan_init, __tsan_init};
  for (size_t place = 0; place < sizeof begins / sizeof *begins; place++)
    if (begins[place]) begins[place]();
}

/* ---- text and files */

static void add_arguments(struct text *text, const char *format, va_list arguments) {
  int length = vsnprintf(text->data + text->used, text->size - text->used, format, arguments);
  if (length > 0) text->used += (size_t)length;
  if (text->used >= text->size) text->used = text->size - 1;
}

void text_add(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_arguments(text, format, arguments);
  va_end(arguments);
}

void text_add_json(struct text *text, const char *string) {
  text_add(text, "\"");
  for (const unsigned char *byte = (const unsigned char *)(string ? string : ""); *byte; byte++) {
    if (text->used + 64 > text->size) break; /* leave space to close the string and the object around it */
    if (*byte == '"' || *byte == '\\') text_add(text, "\\%c", *byte);
    else if (*byte < 0x20 || *byte == 0x7f) text_add(text, "\\u%04x", *byte);
    else text->data[text->used++] = (char)*byte;
  }
  text->data[text->used] = '\0';
  text_add(text, "\"");
}

void say(const char *format, ...) {
  int error = errno;
  char line[1024];
  struct text text = TEXT_IN(line);
  text_add(&text, "tracemap hook: ");
  va_list arguments;
  va_start(arguments, format);
  add_arguments(&text, format, arguments);
  va_end(arguments);
  line[text.used] = '\n'; /* replaces the zero; one write, so that lines of threads do not mix */
  write_all(STDERR_FILENO, line, text.used + 1);
  errno = error;
}

static void only_write_signals(sigset_t *set) {
  sigemptyset(set);
  sigaddset(set, SIGXFSZ);
  sigaddset(set, SIGPIPE);
}

void write_signals_hold(sigset_t *before) {
  sigset_t held;
  only_write_signals(&held);
  pthread_sigmask(SIG_BLOCK, &held, before);
}

void write_signals_release(const sigset_t *before) {
  int error = errno;
  const struct timespec at_once = {0, 0};
  sigset_t held;
  only_write_signals(&held);
  if (sigismember(before, SIGXFSZ)) sigdelset(&held, SIGXFSZ); /* do not consume signals that the program blocks itself */
  if (sigismember(before, SIGPIPE)) sigdelset(&held, SIGPIPE);
  while (sigtimedwait(&held, NULL, &at_once) > 0) continue;
  pthread_sigmask(SIG_SETMASK, before, NULL);
  errno = error;
}

bool write_all(int file, const void *data, size_t size) {
  const char *rest = data;
  sigset_t before;
  write_signals_hold(&before);
  while (size) {
    ssize_t written = write(file, rest, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    rest += written;
    size -= (size_t)written;
  }
  write_signals_release(&before);
  return !size;
}

#define STANDARD_DESCRIPTORS 3
#define FAR_DESCRIPTORS 256

int descriptor_aside(int opened) {
  if (opened < 0) return -1;
  int moved = fcntl(opened, F_DUPFD_CLOEXEC, FAR_DESCRIPTORS);
  if (moved < 0 && opened >= STANDARD_DESCRIPTORS) return opened; /* the limit is lower, or no descriptor is left */
  if (moved < 0) moved = fcntl(opened, F_DUPFD_CLOEXEC, STANDARD_DESCRIPTORS);
  int error = errno;
  close(opened);
  errno = error;
  return moved;
}

size_t read_file(const char *path, char *data, size_t size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? 0 : read(file, data, size - 1);
  if (file >= 0) close(file);
  data[got > 0 ? got : 0] = '\0';
  return got > 0 ? (size_t)got : 0;
}

void text_add_command(struct text *text) {
  char command[4096];
  size_t size = read_file("/proc/self/cmdline", command, sizeof command);
  text_add(text, ",\"command\":[");
  for (size_t place = 0; place < size && text->used + 512 < text->size; place += strlen(command + place) + 1) {
    if (place) text_add(text, ",");
    text_add_json(text, command + place);
  }
  text_add(text, "]");
}

/* ---- the C library, and memory by the page */

#if defined(__x86_64__)
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

struct libc libc;

/* By version, since plain dlsym would find our own function. */
#define LIBC(name, version) (__typeof__(libc.name))(uintptr_t)dlvsym(RTLD_NEXT, #name, version)
#define NEXT(name) (__typeof__(&(name)))(uintptr_t)ask(RTLD_NEXT, #name)

EARLY void libc_resolve(void) {
  if (libc.dlsym) return;
#ifdef TRACEMAP_HOOK_WITHOUT_PRELOAD
  libc = (struct libc){dlsym, dlopen, dlclose, mmap, mprotect, munmap, clock_gettime, pthread_create, thrd_create, clock_gettime};
#else
  __typeof__(libc.dlsym) ask = LIBC(dlsym, DLSYM_VERSION);
  libc.clock_gettime = LIBC(clock_gettime, "GLIBC_2.17");
  libc.next_clock_gettime = NEXT(clock_gettime);
  libc.mmap = NEXT(mmap);
  libc.mprotect = NEXT(mprotect);
  libc.munmap = NEXT(munmap);
  libc.dlopen = NEXT(dlopen);
  libc.dlclose = NEXT(dlclose);
  libc.pthread_create = NEXT(pthread_create);
  libc.thrd_create = NEXT(thrd_create);
  libc.dlsym = ask;
#endif
}

EARLY static long with_errno(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = (int)-result;
  return -1;
}

/* Other libraries may call this before our constructor has run; then it asks the kernel directly. */
EARLY void *real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  if (libc.mmap) return libc.mmap(address, size, protection, flags, file, offset);
  return (void *)with_errno(system_call(SYS_mmap, (long)address, (long)size, protection, flags, file, offset));
}

EARLY int real_mprotect(void *address, size_t size, int protection) {
  if (libc.mprotect) return libc.mprotect(address, size, protection);
  return (int)with_errno(system_call(SYS_mprotect, (long)address, (long)size, protection, 0, 0, 0));
}

EARLY int real_munmap(void *address, size_t size) {
  if (libc.munmap) return libc.munmap(address, size);
  return (int)with_errno(system_call(SYS_munmap, (long)address, (long)size, 0, 0, 0, 0));
}

EARLY static int ask_clock(clockid_t clock, struct timespec *time) {
  return (int)with_errno(system_call(SYS_clock_gettime, clock, (long)time, 0, 0, 0, 0));
}

EARLY int real_clock_gettime(clockid_t clock, struct timespec *time) {
  return libc.clock_gettime ? libc.clock_gettime(clock, time) : ask_clock(clock, time);
}

EARLY int next_clock_gettime(clockid_t clock, struct timespec *time) {
  return libc.next_clock_gettime ? libc.next_clock_gettime(clock, time) : ask_clock(clock, time);
}

size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* The kernel reads the set of signals first, and then rejects the invalid operation. */
static bool byte_is_readable(uintptr_t address) {
  return system_call(SYS_rt_sigprocmask, -1, (long)(address & ~(uintptr_t)7), 0, 8, 0, 0) != -EFAULT;
}

bool memory_is_readable(const void *begin, size_t size) {
  uintptr_t first = (uintptr_t)begin, end = first + size, page = page_bytes();
  if (end < first) return false;
  for (uintptr_t address = first; address < end; address = (address / page + 1) * page)
    if (!byte_is_readable(address)) return false;
  return true;
}

void *new_pages(size_t size) {
  void *pages = real_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}

/* ---- clocks, cpus and their nodes */

#define CALIBRATION_NS 2000000u

enum clock_kind clock_kind = CLOCK_NS;
uint16_t node_of_cpu[CPUS];

static struct moment begun;

uint64_t clock_ns(clockid_t clock) {
  struct timespec time;
  if (real_clock_gettime(clock, &time)) return 0;
  return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

uint64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* The kernel does not list a time stamp counter as a clock source if it is unsteady or differs between cores. */
static bool ticks_are_steady(void) {
#if defined(__x86_64__)
  const char *asked = getenv("TRACEMAP_HOOK_CLOCK");
  if (asked && !strcmp(asked, "monotonic")) return false;
  unsigned a, b, c, d;
  if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8)) return false;
  char names[256];
  read_file("/sys/devices/system/clocksource/clocksource0/available_clocksource", names, sizeof names);
  return strstr(names, "tsc") != NULL;
#else
  return true; /* AArch64's generic timer is steady by its specification */
#endif
}

const char *clock_name(void) { return clock_kind == CLOCK_TICKS ? "ticks" : "monotonic"; }

/* The closest of a few pairs of readings, in case of an interruption between the clocks. */
struct moment moment_now(void) {
  struct moment best = {0, 0};
  uint64_t narrowest = UINT64_MAX;
  for (int attempt = 0; attempt < 5; attempt++) {
    uint64_t before = ticks_now();
    uint64_t ns = monotonic_ns();
    uint64_t width = ticks_now() - before;
    if (width < narrowest) {
      narrowest = width;
      best = (struct moment){before + width / 2, ns};
    }
  }
  return best;
}

/* Calls `found` for each number in a file's list, such as `0-3,8`. */
static void each_listed(const char *path, void (*found)(unsigned number, unsigned context), unsigned context) {
  char list[4096], *place = list;
  read_file(path, list, sizeof list);
  while (*place >= '0' && *place <= '9') {
    unsigned long first = strtoul(place, &place, 10), last = *place == '-' ? strtoul(place + 1, &place, 10) : first;
    for (; first <= last && first < CPUS; first++) found((unsigned)first, context);
    if (*place == ',') place++;
  }
}

static void set_node(unsigned cpu, unsigned node) { node_of_cpu[cpu] = (uint16_t)node; }

static void read_cpus_of(unsigned node, unsigned unused) {
  (void)unused;
  char path[64];
  snprintf(path, sizeof path, "/sys/devices/system/node/node%u/cpulist", node);
  each_listed(path, set_node, node);
}

/* A library that fakes the time may have replaced libc's function: records use the kernel's time. */
static void check_clock(void) {
  Dl_info clock, known;
  if (dladdr((void *)(uintptr_t)libc.clock_gettime, &clock) && dladdr((void *)(uintptr_t)sched_getcpu, &known) &&
      clock.dli_fbase == known.dli_fbase)
    return;
  libc.clock_gettime = ask_clock;
}

void system_begin(void) {
  check_clock();
  clock_kind = ticks_are_steady() ? CLOCK_TICKS : CLOCK_NS;
  each_listed("/sys/devices/system/node/online", read_cpus_of, 0);
  begun = moment_now();
  /* Two moments this far apart give the clock's rate to a few parts in 10,000, even if the program is killed soon. */
  while (monotonic_ns() - begun.ns < CALIBRATION_NS) continue;
}

uint64_t ticks_in(uint64_t ns) {
  struct moment now = moment_now();
  double rate = now.ns > begun.ns ? (double)(now.ticks - begun.ticks) / (double)(now.ns - begun.ns) : 1;
  return (uint64_t)((double)ns * rate);
}

double ns_per_tick(void) {
  struct moment now = moment_now();
  if (clock_kind == CLOCK_NS || now.ticks <= begun.ticks) return 1;
  return (double)(now.ns - begun.ns) / (double)(now.ticks - begun.ticks);
}
