#include "event_names.h"

#include <linux/perf_event.h>
#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* In the order of their numbers in linux/perf_event.h. */
static const char *const hardware[] = {
    "cpu-cycles",    "instructions", "cache-references",        "cache-misses",           "branch-instructions",
    "branch-misses", "bus-cycles",   "stalled-cycles-frontend", "stalled-cycles-backend", "ref-cycles",
};
static const char *const software[] = {
    "cpu-clock",    "task-clock",   "page-faults",      "context-switches", "cpu-migrations",
    "minor-faults", "major-faults", "alignment-faults", "emulation-faults",
};
static const char *const caches[] = {"L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node"};
static const char *const operations[] = {"load", "store", "prefetch"};

#define CACHE_EVENTS (COUNT(caches) * COUNT(operations) * 2)

static void set(struct event_name *event, const char *name, uint32_t type, uint64_t config) {
  snprintf(event->text, sizeof event->text, "%s", name);
  event->type = type;
  event->config = config;
}

/* For each cache and operation, first all accesses (`LLC-loads`), then the misses (`LLC-load-misses`). */
static void set_cache_event(struct event_name *event, unsigned number) {
  unsigned missed = number % 2, operation = number / 2 % COUNT(operations), cache = number / 2 / COUNT(operations);
  const char *plural = operation == PERF_COUNT_HW_CACHE_OP_PREFETCH ? "es" : "s";
  snprintf(event->text, sizeof event->text, "%s-%s%s", caches[cache], operations[operation],
           missed ? "-misses" : plural);
  event->type = PERF_TYPE_HW_CACHE;
  event->config = cache | operation << 8 | missed << 16;
}

bool event_at(unsigned number, struct event_name *event) {
  if (number < COUNT(hardware)) {
    set(event, hardware[number], PERF_TYPE_HARDWARE, number);
    return true;
  }
  number -= COUNT(hardware);
  if (number < COUNT(software)) {
    set(event, software[number], PERF_TYPE_SOFTWARE, number);
    return true;
  }
  number -= COUNT(software);
  if (number >= CACHE_EVENTS) return false;
  set_cache_event(event, number);
  return true;
}

static bool raw_named(const char *name, struct event_name *event) {
  size_t digits = name[0] == 'r' ? strspn(name + 1, "0123456789abcdefABCDEF") : 0;
  if (!digits || digits > 16 || name[1 + digits]) return false;
  set(event, name, PERF_TYPE_RAW, strtoull(name + 1, NULL, 16));
  return true;
}

bool event_named(const char *name, struct event_name *event) {
  for (unsigned number = 0; event_at(number, event); number++)
    if (!strcmp(event->text, name)) return true;
  return raw_named(name, event);
}

bool event_is_discrete(const struct event_name *event) {
  return event->type == PERF_TYPE_SOFTWARE && event->config != PERF_COUNT_SW_CPU_CLOCK &&
         event->config != PERF_COUNT_SW_TASK_CLOCK;
}

bool event_is_kernel_made(const struct event_name *event) {
  return event->type == PERF_TYPE_SOFTWARE &&
         (event->config == PERF_COUNT_SW_CONTEXT_SWITCHES || event->config == PERF_COUNT_SW_CPU_MIGRATIONS);
}
