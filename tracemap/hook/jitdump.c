#include "jitdump.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "files.h"
#include "lock.h"
#include "settings.h"

#define MAGIC 0x4A695444u
#define VERSION 1u
#define PATH_BYTES (sizeof settings.jitdump + 64)

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#else
#define MACHINE EM_AARCH64
#endif

enum record { CODE_LOAD = 0, CODE_DEBUG_INFO = 2 };

struct file_head {
  uint32_t magic, version, size, machine, unused, pid;
  uint64_t ns, flags;
};

struct record_head {
  uint32_t record, size;
  uint64_t ns;
};

struct load {
  struct record_head head;
  uint32_t pid, tid;
  uint64_t address, code_address, size, index;
};

struct debug_info {
  struct record_head head;
  uint64_t address, count;
};

struct entry {
  uint64_t address;
  int32_t line, discriminator;
};

static struct lock lock;
static struct own_file file = {.descriptor = -1};
static bool begun;
static uint64_t loaded; /* number of functions so far */

void jitdump_lock(void) { lock_take(&lock); }
void jitdump_unlock(void) { lock_release(&lock); }

void jitdump_fork_child(void) {
  file_close(&file);
  begun = false;
  loaded = 0;
}

/* A process before this one may have had the same id. Other files are left alone. */
static bool is_old_dump(int opened) {
  uint32_t magic = 0;
  ssize_t size = pread(opened, &magic, sizeof magic, 0);
  return size == 0 || (size == sizeof magic && magic == MAGIC);
}

static int open_dump(const char *path) {
  int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (opened < 0) return -1;
  if (is_old_dump(opened) && !ftruncate(opened, 0) && fcntl(opened, F_SETFL, O_APPEND) >= 0) return opened;
  close(opened);
  errno = EEXIST;
  return -1;
}

/* The mapping stays as long as the process, for tools that attach later. */
static bool begin_file(void) {
  struct file_head head = {MAGIC, VERSION, sizeof head, MACHINE, 0, (uint32_t)getpid(), monotonic_ns(), 0};
  if (!file_append(&file, &head, sizeof head)) return false;
  return real_mmap(NULL, page_bytes(), PROT_READ | PROT_EXEC, MAP_PRIVATE, file.descriptor, 0) != MAP_FAILED;
}

static bool is_open(void) {
  if (begun) return file_is_open(&file);
  begun = true;
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "%s/jit-%d.dump", settings.jitdump, (int)getpid());
  file = file_of(open_dump(path));
  if (file_is_open(&file) && begin_file()) return true;
  say("%s cannot be written (%s): perf does not learn of kernels", path, strerror(errno));
  file_close(&file);
  return false;
}

/* Records are collected here, since each write is a system call. */
static char buffer[1 << 16];
static size_t used;
static bool failed;

static void flush(void) {
  if (used && !failed && !file_append(&file, buffer, used)) {
    failed = true;
    say("the jitdump is incomplete: %s", strerror(errno));
    file_close(&file);
  }
  used = 0;
}

static void put(const void *data, size_t size) {
  const char *rest = data;
  while (size) {
    size_t part = sizeof buffer - used < size ? sizeof buffer - used : size;
    memcpy(buffer + used, rest, part);
    used += part;
    rest += part;
    size -= part;
    if (used == sizeof buffer) flush();
  }
}

static void add_lines(const struct debug_table *table, const struct table_function *function, uint64_t bias) {
  const struct table_row *rows = table->rows + function->first_row;
  if (!function->row_count) return;
  struct debug_info info = {{CODE_DEBUG_INFO, sizeof info, monotonic_ns()}, function->low + bias, function->row_count};
  for (uint32_t place = 0; place < function->row_count; place++)
    info.head.size += (uint32_t)(sizeof(struct entry) + strlen(table->texts + rows[place].file) + 1);
  put(&info, sizeof info);
  for (uint32_t place = 0; place < function->row_count; place++) {
    const char *text = table->texts + rows[place].file;
    struct entry entry = {rows[place].address + bias, (int32_t)rows[place].line, 0};
    put(&entry, sizeof entry);
    put(text, strlen(text) + 1);
  }
}

static void add_function(const struct debug_table *table, const struct table_function *function, uint64_t bias) {
  const char *name = table->texts + function->name;
  uint64_t address = function->low + bias;
  struct load load = {
      .head = {CODE_LOAD, (uint32_t)(sizeof load + strlen(name) + 1 + function->size), 0},
      .pid = (uint32_t)getpid(),
      .tid = (uint32_t)syscall(SYS_gettid),
      .address = address,
      .code_address = address,
      .size = function->size,
      .index = loaded++,
  };
  add_lines(table, function, bias);
  load.head.ns = monotonic_ns();
  put(&load, sizeof load);
  put(name, strlen(name) + 1);
  put((const void *)(uintptr_t)address, function->size);
}

void jitdump_add(const struct debug_table *table, uint64_t bias, uintptr_t begin, uintptr_t end) {
  if (!settings.jitdump[0]) return;
  lock_take(&lock);
  if (is_open()) {
    failed = false;
    for (uint32_t place = 0; place < table->header->function_count; place++) {
      const struct table_function *function = &table->functions[place];
      uint64_t low = function->low + bias;
      if (low >= begin && low <= end && function->size <= end - low) add_function(table, function, bias);
    }
    flush();
  }
  lock_release(&lock);
}
