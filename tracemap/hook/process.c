#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "layout.h"
#include "settings.h"
#include "system.h"
#include "text.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static bool begun, silent; /* silent: nothing can be written, so nothing is hooked */
static uint32_t executable_count, kernel_count;
static char stamp[64]; /* in the names of all files of this process: processes of one number follow each other */

/* Of the process that this one was forked from. */
static uint32_t inherited_kernels, inherited_executables;
static uint64_t forked_ns;
static char parent_stamp[64];

void process_lock(void) { pthread_mutex_lock(&lock); }
void process_unlock(void) { pthread_mutex_unlock(&lock); }

/* A line that was cut is still a line: the next one stays whole. */
static void write_line(struct text *text) {
  text_add(text, "\n");
  if (text->data[text->used - 1] != '\n') text->data[text->used - 1] = '\n';
  if (file >= 0 && !write_all(file, text->data, text->used)) {
    say("the process's file cannot be written: %s", strerror(errno));
    close(file);
    file = -1;
  }
}

static void add_command(struct text *text) {
  char command[4096];
  size_t size = read_file("/proc/self/cmdline", command, sizeof command);
  text_add(text, ",\"command\":[");
  for (size_t place = 0; place < size && text->used + 512 < text->size; place += strlen(command + place) + 1) {
    if (place) text_add(text, ",");
    text_add_json(text, command + place);
  }
  text_add(text, "]");
}

static void write_process(void) {
  char line[16384];
  struct text text = TEXT_IN(line);
  struct moment now = moment_now();
  text_add(&text, "{\"kind\":\"process\",\"version\":%d,\"pid\":%d,\"stamp\":", FORMAT_VERSION, (int)getpid());
  text_add_json(&text, stamp);
  text_add(&text, ",\"parent\":");
  text_add_json(&text, parent_stamp);
  text_add(&text, ",\"inherited_executables\":%u,\"forked_ns\":%" PRIu64, inherited_executables, forked_ns);
  text_add(&text, ",\"inherited_kernels\":%u,\"clock\":\"%s\",\"ticks\":%" PRIu64 ",\"ns\":%" PRIu64,
           inherited_kernels, clock_name(), now.ticks, now.ns);
  text_add(&text, ",\"every\":%" PRIu64 ",\"skip_ns\":%" PRIu64 ",\"budget\":%" PRIu64 ",\"filter\":", settings.every,
           settings.skip_ns, settings.budget);
  text_add_json(&text, settings.filter);
  add_command(&text);
  text_add(&text, "}");
  write_line(&text);
}

static void open_file(void) {
  char path[sizeof settings.output + 128];
  snprintf(stamp, sizeof stamp, "%d-%" PRIx64, (int)getpid(), monotonic_ns());
  snprintf(path, sizeof path, "%s/hook-%s.jsonl", settings.output, stamp);
  file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) say("%s cannot be made (%s): nothing is recorded", path, strerror(errno));
  silent = file < 0;
  if (!silent) write_process();
}

/* False if nothing can be recorded. */
bool process_begin(void) {
  if (!begun) {
    begun = true;
    settings_read();
    system_begin();
    silent = !settings.output[0];
    if (silent) say("TRACEMAP_HOOK_OUTPUT names no folder: nothing is recorded");
    else open_file();
  } else if (file < 0 && !silent) {
    open_file(); /* in a forked child */
  }
  return !silent;
}

uint32_t process_add_executable(const char *name, enum executable_kind kind, struct memory memory) {
  static const char *const kinds[] = {"embedded", "system", "runtime"};
  char line[8192];
  struct text text = TEXT_IN(line);
  text_add(&text, "{\"kind\":\"executable\",\"id\":%u,\"name\":", executable_count);
  text_add_json(&text, name);
  text_add(&text, ",\"elf\":\"%s\",\"base\":\"%p\",\"size\":%zu,\"ns\":%" PRIu64 "}", kinds[kind], memory.base,
           memory.size, monotonic_ns());
  write_line(&text);
  return executable_count++;
}

uint32_t process_add_kernel(uint32_t executable, uint32_t ordinal, const char *name, const void *address) {
  char line[8192];
  struct text text = TEXT_IN(line);
  text_add(&text, "{\"kind\":\"kernel\",\"id\":%u,\"executable\":%u,\"ordinal\":%u,\"address\":\"%p\",\"name\":",
           kernel_count, executable, ordinal, address);
  text_add_json(&text, name);
  text_add(&text, "}");
  write_line(&text);
  return kernel_count++;
}

void process_add_unload(uint32_t executable) {
  char line[128];
  struct text text = TEXT_IN(line);
  text_add(&text, "{\"kind\":\"unload\",\"executable\":%u,\"ns\":%" PRIu64 "}", executable, monotonic_ns());
  write_line(&text);
}

/* The name of a new thread's file; false if nothing can be recorded. */
bool process_path(char *path, size_t size, unsigned thread, const char *suffix) {
  process_lock();
  bool ready = process_begin();
  if (ready) snprintf(path, size, "%s/hook-%s-%u.%s", settings.output, stamp, thread, suffix);
  process_unlock();
  return ready;
}

void process_end(void) {
  process_lock();
  if (file >= 0) {
    char line[128];
    struct text text = TEXT_IN(line);
    struct moment now = moment_now();
    text_add(&text, "{\"kind\":\"end\",\"ticks\":%" PRIu64 ",\"ns\":%" PRIu64 "}", now.ticks, now.ns);
    write_line(&text);
  }
  process_unlock();
}

/* The child writes files of its own; which kernels it inherits, its parent's file tells. */
void process_fork_child(void) {
  if (!begun) return;
  if (file >= 0) close(file);
  file = -1;
  inherited_kernels = kernel_count;
  inherited_executables = executable_count;
  forked_ns = monotonic_ns();
  memcpy(parent_stamp, stamp, sizeof stamp);
}
