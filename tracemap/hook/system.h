/* Access to the compiler, the C library, the kernel and the machine, by a few functions. None of them allocates: the
 * program's own allocator may be waiting for us, or hold its lock.
 */
#pragma once

/* Headers of the C library that most files need. */
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
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define COLD __attribute__((cold, noinline))
#define PUBLIC __attribute__((visibility("default")))

/* For variables shared between files: reads do not go through the global offset table. */
#define HIDDEN __attribute__((visibility("hidden")))

/* For thread-local variables: a read does not call libdl, which might allocate; signal handlers may read them. */
#define INITIAL_EXEC __attribute__((tls_model("initial-exec")))

/* For functions that other libraries call before their own setup: a sanitizer looks up the functions that it replaces.
 * Such a function calls nothing that another library may replace (tests/hook/test_sanitizers.py checks that), and is
 * not instrumented if the hook is built with a sanitizer. */
#if defined(__clang__) && __has_attribute(disable_sanitizer_instrumentation)
#define EARLY __attribute__((disable_sanitizer_instrumentation, no_sanitize("undefined")))
#elif defined(__clang__)
#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))
#else
#define EARLY __attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined))
#endif

/* A system call without the C library; errors are negative error numbers. */
EARLY static inline long system_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  register long fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "+a"(number)
                   : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                   : "rcx", "r11", "memory");
  return number;
#elif defined(__aarch64__)
  register long first __asm__("x0") = a, second __asm__("x1") = b, third __asm__("x2") = c, fourth __asm__("x3") = d;
  register long fifth __asm__("x4") = e, sixth __asm__("x5") = f, called __asm__("x8") = number;
  __asm__ volatile("svc 0"
                   : "+r"(first)
                   : "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth), "r"(called)
                   : "memory", "cc");
  return first;
#else
#error "tracemap's hook knows x86-64 and AArch64 only"
#endif
}

/* ---- the process */

/* When the process begins, and in the child of a fork. */
void process_is_new(void);

/* False in a child created without libc's fork, for example by a bare clone: everything in it belongs to its parent. */
bool process_is_own(void);

/* Sets up a loaded sanitizer, if it is not yet set up: its functions replace libc's. */
void sanitizers_begin(void);

/* ---- text and files */

/* A buffer of fixed size; longer text is truncated. `data` always ends in a zero, at `used`. */
struct text {
  char *data;
  size_t size, used;
};

/* An empty text in a character array. */
#define TEXT_IN(array) {(array), sizeof(array), 0}

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A string as JSON, truncated at the end of the buffer; bytes other than ASCII are passed on unchanged. */
void text_add_json(struct text *text, const char *string);

/* The program's arguments as a field "command" of a JSON object, after a comma; the last ones may be missing. */
void text_add_command(struct text *text);

/* Prints a line on the program's standard error. Preserves errno. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Between these two calls, writing may exceed the program's file size limit (EFBIG) or go to a closed pipe (EPIPE)
 * without the signal that would end the program. Preserves errno. */
void write_signals_hold(sigset_t *before);
void write_signals_release(const sigset_t *before);

bool write_all(int file, const void *data, size_t size);

/* Moves a new descriptor out of the program's way: not among the standard ones, which may be closed, since the program
 * would print into it; and to a high number if possible, since programs that close all descriptors mostly start at 3.
 * -1, with errno and nothing open, on failure. */
int descriptor_aside(int opened);

/* Reads as much of a file as fits, and adds a zero; returns its length, 0 if it cannot be read. */
size_t read_file(const char *path, char *data, size_t size);

/* ---- the functions that the hook replaces: the C library's, or those of another library that also replaces them; and
 * memory by the page */

struct libc {
  void *(*dlsym)(void *handle, const char *name);
  void *(*dlopen)(const char *path, int mode);
  int (*dlclose)(void *handle);
  void *(*mmap)(void *address, size_t size, int protection, int flags, int file, off_t offset);
  int (*mprotect)(void *address, size_t size, int protection);
  int (*munmap)(void *address, size_t size);
  int (*clock_gettime)(clockid_t clock, struct timespec *time);
  int (*pthread_create)(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
  int (*thrd_create)(thrd_t *thread, thrd_start_t start, void *argument);
  int (*next_clock_gettime)(clockid_t clock, struct timespec *time); /* may belong to a library that fakes the time */
};

/* All NULL before `libc_resolve`; `dlsym` is set last. */
extern HIDDEN struct libc libc;
void libc_resolve(void);

/* These work at any time. All of the hook uses them, since the plain names would lead back into the hook. */
void *real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int real_mprotect(void *address, size_t size, int protection);
int real_munmap(void *address, size_t size);
int real_clock_gettime(clockid_t clock, struct timespec *time);
int next_clock_gettime(clockid_t clock, struct timespec *time); /* the function that the program would call without us */

size_t page_bytes(void);

/* Whether the whole range is readable, by asking the kernel. */
bool memory_is_readable(const void *begin, size_t size);

/* Zeroed memory of our own; NULL if there is none. Freed by `real_munmap`. */
void *new_pages(size_t size);

/* ---- clocks, cpus and their nodes */

#define SECOND_NS 1000000000u
#define CPUS 8192

/* The clock for ticks of calls: the CPU's own, or CLOCK_MONOTONIC if that is not steady. */
enum clock_kind { CLOCK_TICKS, CLOCK_NS };
extern HIDDEN enum clock_kind clock_kind;
const char *clock_name(void);

extern HIDDEN uint16_t node_of_cpu[CPUS];

/* One moment on both clocks. */
struct moment {
  uint64_t ticks, ns;
};

/* Called once, when the first executable is found. */
void system_begin(void);
uint64_t clock_ns(clockid_t clock); /* 0 if there is no such clock */
uint64_t monotonic_ns(void);
struct moment moment_now(void);

/* Number of ticks in a time, by the clock's rate since `system_begin`. */
uint64_t ticks_in(uint64_t ns);

/* The inverse; more precise the later it is called. */
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
