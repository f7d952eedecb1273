#include "process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "layout.h"
#include "lock.h"
#include "settings.h"

static struct lock lock;
static struct own_file file = {.descriptor = -1};
static bool begun, silent; /* silent: nothing can be written, so nothing is hooked */
static uint32_t executable_count, kernel_count;
static char stamp[64]; /* part of all file names of this process, since process ids are reused */

/* Of the process that forked this one. */
static uint32_t inherited_kernels, inherited_executables;
static uint64_t forked_ns;
static char parent_stamp[64];

void process_lock(void) { lock_take(&lock); }
void process_unlock(void) { lock_release(&lock); }

static char line_data[16384];
static struct text line = TEXT_IN(line_data); /* the next line of the file; `write_line` ends and empties it */

/* Disk space is reserved in advance, so that losses and the end can still be logged on a full disk. */
#define ROOM_BYTES 65536u
#define LOSSES_BYTES 4096u /* part of it for lines about losses */
#define END_BYTES 256u     /* part of that for the last line */

static uint64_t written, room;

static bool has_room(size_t size) {
  struct rlimit limit;
  if (!getrlimit(RLIMIT_FSIZE, &limit) && written + size > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  if (written + size <= room) return true;
  if (file_keep_room(&file, (off_t)room, ROOM_BYTES)) room += ROOM_BYTES;
  else if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EFBIG) room = UINT64_MAX; /* no reservation possible */
  else return false;
  return true;
}

static bool write_process(void);

/* Another program has truncated the file: start again with the process and the losses. The next line waits. */
static bool begin_again(void) {
  static char data[sizeof line_data];
  size_t size = line.used;
  memcpy(data, line.data, size);
  line.used = 0;
  written = room = 0;
  say("another program has cut the file of what is loaded: what was loaded before is missing there");
  bool begun_again = file_resize(&file, 0) && write_process();
  if (begun_again) process_add_loss("calls", "another program has cut the file of what was loaded");
  memcpy(line.data, data, size);
  line.used = size;
  return begun_again;
}

/* Whether the file still exists. A file that the program has closed is not started again, since its content is gone. */
static bool is_there(void) {
  if (!file_is_open(&file)) return false;
  off_t size = file_size(&file);
  if (size > (off_t)written) return file_resize(&file, (off_t)written); /* remove data that another program appended */
  if (size >= 0) return size == (off_t)written || begin_again();
  silent = true;
  file_close(&file);
  say("the program has closed the file of what is loaded: nothing more of that is recorded");
  return false;
}

/* Writes the line and leaves `kept` bytes of space; false on failure. A truncated line still ends, so the next one
 * stays complete. */
static bool write_line(size_t kept) {
  text_add(&line, "}\n");
  line.data[line.used - 1] = '\n';
  bool ready = is_there();
  size_t size = line.used;
  line.used = 0;
  if (!ready || !has_room(size + kept)) return false;
  if (file_append(&file, line.data, size)) {
    written += size;
    return true;
  }
  int error = errno;
  if (!file_resize(&file, (off_t)written)) file_close(&file); /* no other line may follow half a line */
  errno = error;
  return false;
}

static bool write_process(void) {
  struct moment now = moment_now();
  text_add(&line, "{\"kind\":\"process\",\"version\":%d,\"pid\":%d,\"stamp\":\"%s\",\"parent\":\"%s\"", FORMAT_VERSION,
           (int)getpid(), stamp, parent_stamp);
  text_add(&line, ",\"inherited_executables\":%u,\"forked_ns\":%" PRIu64 ",\"inherited_kernels\":%u",
           inherited_executables, forked_ns, inherited_kernels);
  text_add(&line, ",\"clock\":\"%s\",\"ticks\":%" PRIu64 ",\"ns\":%" PRIu64, clock_name(), now.ticks, now.ns);
  text_add(&line, ",\"every\":%" PRIu64 ",\"skip_ns\":%" PRIu64 ",\"budget\":%" PRIu64 ",\"filter\":", settings.every,
           settings.skip_ns, settings.budget);
  text_add_json(&line, settings.filter);
  text_add_command(&line);
  return write_line(0);
}

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

/* A report uses a memory file, so a killed program leaves nothing behind. Kernels that are new enough are told that the
 * file holds no code. */
static struct own_file new_file(const char *path, int flags) {
  if (!settings.report.wanted) return file_of(open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  int made = memfd_create(path, MFD_CLOEXEC | MFD_NOEXEC_SEAL);
  return file_of(made < 0 && errno == EINVAL ? memfd_create(path, MFD_CLOEXEC) : made);
}

static void drop_file(struct own_file *made, const char *path) {
  if (!settings.report.wanted) unlink(path);
  file_close(made);
}

static void open_file(void) {
  char path[sizeof settings.output + 128];
  snprintf(stamp, sizeof stamp, "%d-%" PRIx64, (int)getpid(), monotonic_ns());
  snprintf(path, sizeof path, "%s/hook-%s.jsonl", settings.output, stamp);
  file = new_file(path, O_WRONLY | O_APPEND);
  written = room = 0;
  silent = !file_is_open(&file) || !write_process();
  if (silent) say("%s cannot be made (%s): nothing is recorded", path, strerror(errno));
  if (silent && file_is_open(&file)) drop_file(&file, path);
}

bool process_begin(void) {
  if (!begun) {
    begun = true;
    settings_read();
    system_begin();
    silent = !settings.output[0] && !settings.report.wanted;
    if (!silent) open_file();
    else if (!getenv("TRACEMAP_HOOK_STOPS") && !getenv("TRACEMAP_HOOK_DEBUG_INFO")) say("TRACEMAP_HOOK_OUTPUT names no folder: nothing is recorded");
  } else if (!file_is_open(&file) && !silent) {
    open_file(); /* in a forked child */
  }
  return !silent;
}

uint32_t process_add_executable(const char *name, enum executable_kind kind, struct memory memory) {
  static const char *const kinds[] = {"embedded", "system", "runtime"};
  text_add(&line, "{\"kind\":\"executable\",\"id\":%u,\"elf\":\"%s\",\"base\":\"%p\",\"size\":%zu,\"ns\":%" PRIu64,
           executable_count, kinds[kind], memory.base, memory.size, monotonic_ns());
  text_add(&line, ",\"name\":"); /* last, like a kernel's name: truncating it affects nothing else */
  text_add_json(&line, name);
  return write_line(LOSSES_BYTES) ? executable_count++ : NO_EXECUTABLE;
}

uint32_t process_add_kernel(uint32_t executable, uint32_t ordinal, const char *name, export_function function) {
  text_add(&line, "{\"kind\":\"kernel\",\"id\":%u,\"executable\":%u,\"ordinal\":%u,\"address\":\"%p\",\"name\":",
           kernel_count, executable, ordinal, (const void *)(uintptr_t)function);
  text_add_json(&line, name);
  return write_line(LOSSES_BYTES) ? kernel_count++ : NO_KERNEL;
}

void process_add_unload(uint32_t executable) {
  text_add(&line, "{\"kind\":\"unload\",\"executable\":%u,\"ns\":%" PRIu64, executable, monotonic_ns());
  write_line(LOSSES_BYTES);
}

void about_begin(struct text *about) {
  char name[32] = "";
  prctl(PR_GET_NAME, name, 0, 0, 0);
  text_add(about, "{\"pid\":%d,\"tid\":%d,\"name\":", (int)getpid(), (int)syscall(SYS_gettid));
  text_add_json(about, name);
}

void process_add_loss(const char *what, const char *why) {
  text_add(&line, "{\"kind\":\"lost\",\"what\":\"%s\",\"why\":", what);
  text_add_json(&line, why);
  text_add(&line, ",\"thread\":");
  about_begin(&line);
  text_add(&line, "}");
  write_line(END_BYTES);
}

bool process_lose_thread(const char *what, const char *why) {
  char reason[512];
  struct text text = TEXT_IN(reason);
  text_add(&text, "%s", why);
  if (errno) text_add(&text, ": %s", strerror(errno));
  say("a thread's %s are not recorded: %s", what, reason);
  process_lock();
  process_add_loss(what, reason);
  process_unlock();
  return false;
}

void process_end(void) {
  process_lock();
  if (is_there()) {
    struct moment now = moment_now();
    text_add(&line, "{\"kind\":\"end\",\"ticks\":%" PRIu64 ",\"ns\":%" PRIu64, now.ticks, now.ns);
    write_line(0);
    if (!file_resize(&file, (off_t)written)) say("room that was kept for the process's file stays taken: %s", strerror(errno));
  }
  process_unlock();
}

/* The child writes its own files; its parent's file lists the inherited kernels. */
void process_fork_child(void) {
  if (!begun) return;
  file_close(&file);
  inherited_kernels = kernel_count;
  inherited_executables = executable_count;
  forked_ns = monotonic_ns();
  memcpy(parent_stamp, stamp, sizeof stamp);
}

/* ---- files of threads */

struct own_file file_make(unsigned thread, const char *what, off_t room) {
  char path[sizeof settings.output + 160];
  process_lock();
  bool ready = process_begin();
  if (ready) snprintf(path, sizeof path, "%s/hook-%s-%u.%s", settings.output, stamp, thread, what);
  process_unlock();
  if (!ready) return NO_FILE;
  struct own_file file = new_file(path, O_RDWR);
  if (file_is_open(&file) && (!room || file_reserve(&file, 0, room))) return file;
  process_lose_thread(what, "their file cannot be made");
  if (file_is_open(&file)) drop_file(&file, path);
  return NO_FILE;
}

bool head_write(const struct own_file *file, const char *magic, const char *description, const struct text *about,
                uint32_t data_offset) {
  struct preamble preamble = {
      .version = FORMAT_VERSION,
      .description_bytes = (uint32_t)strlen(description),
      .about_bytes = (uint32_t)about->used,
      .header_offset = HEADER_OFFSET,
      .about_offset = ABOUT_OFFSET,
      .data_offset = data_offset,
  };
  memcpy(preamble.magic, magic, sizeof preamble.magic);
  return file_put(file, description, preamble.description_bytes, DESCRIPTION_OFFSET) &&
         file_put(file, about->data, preamble.about_bytes, ABOUT_OFFSET) &&
         file_put(file, &preamble, sizeof preamble, 0);
}
