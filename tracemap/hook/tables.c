/* Export tables are patched in place: each function pointer is replaced with a trampoline, whose slot keeps the real one.
 *
 * Slots are used again when an executable is unloaded, kernels keep their numbers for ever. What was loaded is written to
 * the process's file, a line of JSON each, so that it is on disk before the first call of a kernel.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hook.h"

struct slot slots[SLOTS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t free_slots[SLOTS]; /* a stack of slots that were given back */
static uint32_t free_count, fresh_slot;
static uint32_t executable_count, kernel_count;
static uint32_t inherited_kernels, inherited_executables; /* of the process that this one was forked from */
static uint64_t forked_ns;
static int process_file = -1;
static bool begun, silent; /* silent: nothing can be written, so nothing is hooked */
static char stamp[64], parent_stamp[64];

void tables_lock(void) { pthread_mutex_lock(&lock); }
void tables_unlock(void) { pthread_mutex_unlock(&lock); }

static void write_line(struct text *text) {
  text_add(text, "\n");
  if (text->data[text->used - 1] != '\n') text->data[text->used - 1] = '\n';
  if (process_file >= 0 && !write_all(process_file, text->data, text->used)) {
    say("the process's file cannot be written: %s", strerror(errno));
    close(process_file);
    process_file = -1;
  }
}

static void add_command(struct text *text) {
  char command[4096];
  int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t size = file < 0 ? 0 : read(file, command, sizeof command - 1);
  if (file >= 0) close(file);
  if (size < 0) size = 0;
  command[size] = '\0';
  text_add(text, ",\"command\":[");
  for (ssize_t place = 0; place < size && text->used + 512 < text->size; place += (ssize_t)strlen(command + place) + 1) {
    if (place) text_add(text, ",");
    text_add_json(text, command + place);
  }
  text_add(text, "]");
}

static void write_process(void) {
  char line[16384];
  struct text text = {line, sizeof line, 0};
  struct moment now = moment_now();
  text_add(&text, "{\"kind\":\"process\",\"version\":%d,\"pid\":%d,\"stamp\":", FORMAT_VERSION, (int)getpid());
  text_add_json(&text, stamp);
  text_add(&text, ",\"parent\":");
  text_add_json(&text, parent_stamp);
  text_add(&text, ",\"inherited_executables\":%u,\"forked_ns\":%llu", inherited_executables,
           (unsigned long long)forked_ns);
  text_add(&text, ",\"inherited_kernels\":%u,\"clock\":\"%s\",\"ticks\":%llu,\"ns\":%llu", inherited_kernels,
           clock_kind == CLOCK_TICKS ? "ticks" : "monotonic", (unsigned long long)now.ticks,
           (unsigned long long)now.ns);
  text_add(&text, ",\"every\":%llu,\"skip_ns\":%llu,\"budget\":%llu,\"filter\":", (unsigned long long)settings.every,
           (unsigned long long)settings.skip_ns, (unsigned long long)settings.budget);
  text_add_json(&text, settings.filter);
  add_command(&text);
  text_add(&text, "}");
  write_line(&text);
}

static void open_process_file(void) {
  char path[sizeof settings.output + 128];
  snprintf(stamp, sizeof stamp, "%d-%llx", (int)getpid(), (unsigned long long)monotonic_ns());
  snprintf(path, sizeof path, "%s/hook-%s.jsonl", settings.output, stamp);
  process_file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (process_file < 0) say("%s cannot be made (%s): nothing is recorded", path, strerror(errno));
  silent = process_file < 0;
  if (!silent) write_process();
}

/* With the lock held; false if nothing can be recorded. */
static bool begin(void) {
  if (!begun) {
    begun = true;
    settings_read();
    system_begin();
    threads_set_up();
    silent = !settings.output[0];
    if (silent) say("TRACEMAP_HOOK_OUTPUT names no folder: nothing is recorded");
    else open_process_file();
  } else if (process_file < 0 && !silent) {
    open_process_file(); /* in a forked child */
  }
  return !silent;
}

static uint32_t take_slot(void) {
  if (free_count) return free_slots[--free_count];
  return fresh_slot < SLOTS ? fresh_slot++ : UINT32_MAX;
}

static const char *kernel_name(const struct library *library, uint32_t ordinal, char *made_up, size_t size) {
  const char *name = library->exports.names ? library->exports.names[ordinal] : NULL;
  if (name) return name;
  snprintf(made_up, size, "%s:%u", library->header->name ? library->header->name : "", ordinal);
  return made_up;
}

static uint32_t add_executable(const struct library *library, enum executable_kind kind, struct memory memory) {
  static const char *const kinds[] = {"embedded", "system", "runtime"};
  char line[8192];
  struct text text = {line, sizeof line, 0};
  text_add(&text, "{\"kind\":\"executable\",\"id\":%u,\"name\":", executable_count);
  text_add_json(&text, library->header->name);
  text_add(&text, ",\"elf\":\"%s\",\"base\":\"%p\",\"size\":%zu,\"ns\":%llu}", kinds[kind], memory.base, memory.size,
           (unsigned long long)monotonic_ns());
  write_line(&text);
  return executable_count++;
}

static uint32_t add_kernel(uint32_t executable, uint32_t ordinal, const char *name, export_function function) {
  char line[8192];
  struct text text = {line, sizeof line, 0};
  text_add(&text, "{\"kind\":\"kernel\",\"id\":%u,\"executable\":%u,\"ordinal\":%u,\"address\":\"%p\",\"name\":",
           kernel_count, executable, ordinal, (void *)(uintptr_t)function);
  text_add_json(&text, name);
  text_add(&text, "}");
  write_line(&text);
  return kernel_count++;
}

static bool wanted(const char *name) { return !settings.filter[0] || settings_match(settings.filter, name); }

static void patch_export(const struct library *library, uint32_t ordinal, uint32_t executable) {
  char made_up[256];
  const char *name = kernel_name(library, ordinal, made_up, sizeof made_up);
  export_function *entry = &library->exports.ptrs[ordinal];
  if (!*entry || is_trampoline(*entry) || !wanted(name)) return;
  uint32_t slot = take_slot();
  if (slot == UINT32_MAX) {
    say("%s is not recorded: more than %u kernels are loaded at once", name, SLOTS);
    return;
  }
  slots[slot] = (struct slot){*entry, add_kernel(executable, ordinal, name, *entry), executable};
  __atomic_store_n(entry, trampoline(slot), __ATOMIC_RELEASE);
}

static bool usable(const struct library *library) {
  return library && library->header && library->header->version == LIBRARY_VERSION && library->exports.ptrs &&
         library->exports.count;
}

uint32_t tables_patch(const struct library *library, enum executable_kind kind, struct memory memory,
                      table_access access) {
  if (!usable(library) || is_trampoline(library->exports.ptrs[0])) return NO_EXECUTABLE;
  uint32_t executable = NO_EXECUTABLE;
  size_t size = library->exports.count * sizeof(export_function);
  tables_lock();
  if (begin() && access((void *)library->exports.ptrs, size, true)) {
    executable = add_executable(library, kind, memory);
    for (uint32_t ordinal = 0; ordinal < library->exports.count; ordinal++) patch_export(library, ordinal, executable);
    access((void *)library->exports.ptrs, size, false);
  }
  tables_unlock();
  return executable;
}

/* A kernel of a library that is not patched; NO_KERNEL if it is not to be recorded. */
uint32_t tables_add_kernel(const struct library *library, uint32_t ordinal) {
  char made_up[256];
  uint32_t kernel = NO_KERNEL;
  if (!usable(library) || ordinal >= library->exports.count) return kernel;
  const char *name = kernel_name(library, ordinal, made_up, sizeof made_up);
  tables_lock();
  if (begin() && wanted(name))
    kernel = add_kernel(add_executable(library, RUNTIME_HOOK, (struct memory){NULL, 0}), ordinal, name,
                        library->exports.ptrs[ordinal]);
  tables_unlock();
  return kernel;
}

void tables_release(uint32_t executable) {
  tables_lock();
  for (uint32_t slot = 0; slot < fresh_slot; slot++) {
    if (!slots[slot].target || slots[slot].executable != executable) continue;
    slots[slot] = (struct slot){NULL, NO_KERNEL, NO_EXECUTABLE};
    free_slots[free_count++] = slot;
  }
  char line[128];
  struct text text = {line, sizeof line, 0};
  text_add(&text, "{\"kind\":\"unload\",\"executable\":%u,\"ns\":%llu}", executable,
           (unsigned long long)monotonic_ns());
  write_line(&text);
  tables_unlock();
}

/* The name of a new thread's file; false if nothing can be recorded. */
bool tables_ready(char *path, size_t size, unsigned thread, const char *suffix) {
  tables_lock();
  bool ready = begin();
  if (ready) snprintf(path, size, "%s/hook-%s-%u.%s", settings.output, stamp, thread, suffix);
  tables_unlock();
  return ready;
}

void tables_end(void) {
  tables_lock();
  if (process_file >= 0) {
    char line[128];
    struct text text = {line, sizeof line, 0};
    struct moment now = moment_now();
    text_add(&text, "{\"kind\":\"end\",\"ticks\":%llu,\"ns\":%llu}", (unsigned long long)now.ticks,
             (unsigned long long)now.ns);
    write_line(&text);
  }
  tables_unlock();
}

/* The child writes files of its own; which kernels it inherits, its parent's file tells. Called with the lock held. */
void tables_fork_child(void) {
  if (process_file >= 0) close(process_file);
  process_file = -1;
  inherited_kernels = kernel_count;
  inherited_executables = executable_count;
  forked_ns = monotonic_ns();
  memcpy(parent_stamp, stamp, sizeof stamp);
}
