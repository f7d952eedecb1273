/* What the hook asks of the compiler, the C library, the kernel and the machine, each behind few functions. None of
 * them allocates: the program's own allocator may be waiting for us, or hold its lock.
 */
#pragma once

/* What nearly every file takes of the C library, for those that include this one. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define COLD __attribute__((cold, noinline))
#define PUBLIC __attribute__((visibility("default")))

/* For variables of other files: they are read directly, without a detour through the global offset table. */
#define HIDDEN __attribute__((visibility("hidden")))

/* For variables of threads: reading one calls nothing of libdl's, which might allocate; signal handlers may read them. */
#define INITIAL_EXEC __attribute__((tls_model("initial-exec")))

/* ---- text and files */

/* A buffer of fixed size; what does not fit is cut. `data` always ends in a zero, at `used`. */
struct text {
  char *data;
  size_t size, used;
};

/* An empty text in an array of characters. */
#define TEXT_IN(array) {(array), sizeof(array), 0}

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A string as JSON, cut where the buffer would end; other bytes than ASCII are handed on as they are. */
void text_add_json(struct text *text, const char *string);

/* A line on the program's standard error. Leaves errno as it is. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Between the two, files may be written and grow: where the program has a limit on their size, what goes beyond it says
 * EFBIG and no more, and a pipe that nobody reads any more says EPIPE. Otherwise a signal would come with it, which ends
 * the program. Leaves errno as it is. */
void write_signals_hold(sigset_t *before);
void write_signals_release(const sigset_t *before);

bool write_all(int file, const void *data, size_t size);

/* A descriptor that was just opened, where it is not in the program's way: not among the standard ones, should they be
 * closed, since the program would print into it; and far up where that can be, since programs that close all of theirs
 * mostly begin at 3 and open others there. -1, with errno and nothing open, where that cannot be. */
int descriptor_aside(int opened);

/* Reads as much of a file as there is room for, and ends it with a zero; returns its length, 0 if it cannot be read. */
size_t read_file(const char *path, char *data, size_t size);

/* ---- the C library's own functions, behind those of the hook that stand before them; and memory by the page */

struct libc {
  void *(*dlsym)(void *handle, const char *name);
  int (*dlclose)(void *handle);
  void *(*mmap)(void *address, size_t size, int protection, int flags, int file, off_t offset);
  int (*mprotect)(void *address, size_t size, int protection);
  int (*munmap)(void *address, size_t size);
  int (*clock_gettime)(clockid_t clock, struct timespec *time);
};

/* All NULL before `libc_resolve`; `dlsym` is set last. */
extern HIDDEN struct libc libc;
void libc_resolve(void);

/* These work at any time, and are what all of the hook uses: the names themselves would lead back into it. */
void *real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int real_mprotect(void *address, size_t size, int protection);
int real_munmap(void *address, size_t size);
int real_clock_gettime(clockid_t clock, struct timespec *time);

size_t page_bytes(void);

/* Memory of our own, zeroed; NULL if there is none. It goes by `real_munmap`. */
void *new_pages(size_t size);

/* ---- clocks, cpus and their nodes */

#define SECOND_NS 1000000000u
#define CPUS 8192

/* Which clock counts the ticks of calls: the processor's own, or CLOCK_MONOTONIC where that is not steady. */
enum clock_kind { CLOCK_TICKS, CLOCK_NS };
extern HIDDEN enum clock_kind clock_kind;
const char *clock_name(void);

extern HIDDEN uint16_t node_of_cpu[CPUS];

/* One moment on both clocks. */
struct moment {
  uint64_t ticks, ns;
};

/* Called once, when the first executable is seen. */
void system_begin(void);
uint64_t clock_ns(clockid_t clock); /* 0 if there is no such clock */
uint64_t monotonic_ns(void);
struct moment moment_now(void);

/* How many ticks a time takes, by the clock's rate since `system_begin`. */
uint64_t ticks_in(uint64_t ns);

/* The other way round; better the later it is asked for. */
double ns_per_tick(void);

static inline uint64_t ticks_now(void) {
#if defined(__x86_64__)
  if (LIKELY(clock_kind == CLOCK_TICKS)) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
  }
  return monotonic_ns();
#elif defined(__aarch64__)
  uint64_t count;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
#error "tracemap's hook knows x86-64 and AArch64 only"
#endif
}
