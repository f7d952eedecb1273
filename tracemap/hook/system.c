#include "system.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "text.h"

#define CALIBRATION_NS 2000000u

enum clock_kind clock_kind = CLOCK_NS;
uint16_t node_of_cpu[CPUS];

static struct moment begun;

uint64_t clock_ns(clockid_t clock) {
  struct timespec time;
  if (clock_gettime(clock, &time)) return 0;
  return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

uint64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

#if defined(__x86_64__)
/* The kernel takes a time stamp counter that is not steady, or differs between cores, off its list of clock sources. */
static bool tsc_is_steady(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8)) return false;
  char names[256];
  read_file("/sys/devices/system/clocksource/clocksource0/available_clocksource", names, sizeof names);
  return strstr(names, "tsc") != NULL;
}
#endif

static enum clock_kind chosen_clock(void) {
  const char *asked = getenv("TRACEMAP_HOOK_CLOCK");
#if defined(__x86_64__)
  return asked && !strcmp(asked, "monotonic") ? CLOCK_NS : tsc_is_steady() ? CLOCK_TICKS : CLOCK_NS;
#else
  (void)asked;
  return CLOCK_TICKS; /* AArch64's generic timer is steady by its specification */
#endif
}

const char *clock_name(void) { return clock_kind == CLOCK_TICKS ? "ticks" : "monotonic"; }

/* The narrowest of a few readings of both clocks, so that an interruption between them does no harm. */
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

/* The next range of a list such as `0-3,8`; false at its end. */
static bool next_range(char **place, unsigned long *first, unsigned long *last) {
  if (**place < '0' || **place > '9') return false;
  *first = *last = strtoul(*place, place, 10);
  if (**place == '-') *last = strtoul(*place + 1, place, 10);
  if (**place == ',') ++*place;
  return true;
}

static void read_cpus_of(unsigned long node) {
  char path[64], list[4096], *place = list;
  snprintf(path, sizeof path, "/sys/devices/system/node/node%lu/cpulist", node);
  read_file(path, list, sizeof list);
  unsigned long first, last;
  while (next_range(&place, &first, &last))
    for (unsigned long cpu = first; cpu <= last && cpu < CPUS; cpu++) node_of_cpu[cpu] = (uint16_t)node;
}

static void read_nodes(void) {
  char online[1024], *place = online;
  read_file("/sys/devices/system/node/online", online, sizeof online);
  unsigned long first, last;
  while (next_range(&place, &first, &last))
    for (unsigned long node = first; node <= last && node < 4096; node++) read_cpus_of(node);
}

/* Called once, when the first executable is seen. */
void system_begin(void) {
  clock_kind = chosen_clock();
  read_nodes();
  begun = moment_now();
  /* Two moments this far apart give the clock's rate to a few parts in 10,000, should the program be killed at once. */
  while (monotonic_ns() - begun.ns < CALIBRATION_NS) continue;
}

/* How many ticks a time takes, by the clock's rate since `system_begin`. */
uint64_t ticks_in(uint64_t ns) {
  struct moment now = moment_now();
  double rate = now.ns > begun.ns ? (double)(now.ticks - begun.ticks) / (double)(now.ns - begun.ns) : 1;
  return (uint64_t)((double)ns * rate);
}
