/* Clocks, cpus and nodes, text in fixed buffers, messages. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "hook.h"

enum clock_kind clock_kind = CLOCK_NS;
uint16_t node_of_cpu[CPUS];

static struct moment loaded;

#define CALIBRATION_NS 2000000u

uint64_t monotonic_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Reads a small file of the kernel's; returns its length. */
static size_t read_file(const char *path, char *data, size_t size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? 0 : read(file, data, size - 1);
  if (file >= 0) close(file);
  data[got > 0 ? got : 0] = '\0';
  return got > 0 ? (size_t)got : 0;
}

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
  loaded = moment_now();
  /* Two moments this far apart give the clock's rate to a few parts in 10,000, should the program be killed at once. */
  while (monotonic_ns() - loaded.ns < CALIBRATION_NS) continue;
}

uint64_t skip_ticks(uint64_t ns) {
  struct moment now = moment_now();
  double rate = now.ns > loaded.ns ? (double)(now.ticks - loaded.ticks) / (double)(now.ns - loaded.ns) : 1;
  return (uint64_t)((double)ns * rate);
}

void say(const char *format, ...) {
  char line[1024];
  struct text text = {line, sizeof line, 0};
  text_add(&text, "tracemap hook: ");
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line + text.used, sizeof line - text.used - 1, format, arguments);
  va_end(arguments);
  size_t used = text.used + (length > 0 ? (size_t)length : 0);
  if (used > sizeof line - 2) used = sizeof line - 2;
  line[used] = '\n';
  write_all(STDERR_FILENO, line, used + 1);
}

void text_add(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text->data + text->used, text->size - text->used, format, arguments);
  va_end(arguments);
  if (length > 0) text->used += (size_t)length;
  if (text->used >= text->size) text->used = text->size - 1;
}

/* A string as JSON, cut where the buffer would end; other bytes than ASCII are handed on as they are. */
void text_add_json(struct text *text, const char *string) {
  text_add(text, "\"");
  for (const unsigned char *byte = (const unsigned char *)(string ? string : ""); *byte; byte++) {
    if (text->used + 64 > text->size) break;
    if (*byte == '"' || *byte == '\\') text_add(text, "\\%c", *byte);
    else if (*byte < 0x20 || *byte == 0x7f) text_add(text, "\\u%04x", *byte);
    else text->data[text->used++] = (char)*byte;
  }
  text->data[text->used] = '\0';
  text_add(text, "\"");
}

bool write_all(int file, const void *data, size_t size) {
  const char *rest = data;
  while (size) {
    ssize_t written = write(file, rest, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    rest += written;
    size -= (size_t)written;
  }
  return true;
}
