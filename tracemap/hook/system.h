/* What the machine gives: clocks, cpus and their nodes. */
#pragma once

#include <stdint.h>
#include <time.h>

#include "attributes.h"

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

void system_begin(void);
uint64_t clock_ns(clockid_t clock); /* 0 if there is no such clock */
uint64_t monotonic_ns(void);
struct moment moment_now(void);
uint64_t ticks_in(uint64_t ns);

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
