/* Tables of debug information: what is read of a file is handed to gdb and perf. The fuzzer's bytes are the table's file,
 * with the identity that is looked for, and then an ELF file.
 */
#include "debug_tables.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "debugger.h"
#include "fuzz.h"
#include "images.h"
#include "jitdump.h"
#include "settings.h"

static char folder[] = "/dev/shm/hook-fuzz-XXXXXX";
static char path[128];
static const char code[4096];

static void remove_folder(void) {
  unlink(path);
  snprintf(path, sizeof path, "%s/jit-%d.dump", folder, (int)getpid());
  unlink(path);
  snprintf(path, sizeof path, "%s/code", folder);
  rmdir(path);
  rmdir(folder);
}

static void begin(void) {
  if (path[0]) return;
  if (!mkdtemp(folder)) abort();
  snprintf(path, sizeof path, "%s/code", folder);
  if (mkdir(path, 0700)) abort();
  snprintf(path, sizeof path, "%s/code/%016x.lines", folder, 0);
  snprintf(settings.jitdump, sizeof settings.jitdump, "%s", folder);
  atexit(remove_folder);
}

static void write_file(const uint8_t *data, size_t size) {
  static const uint64_t identity = 0;
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || write(file, data, size) != (ssize_t)size) abort();
  if (size >= 16 && pwrite(file, &identity, sizeof identity, 8) != sizeof identity) abort();
  close(file);
}

/* So that functions at the begin of an image lie in the code. */
static void use_table(const struct debug_table *table) {
  char file[16384];
  uint64_t bias = (uintptr_t)code - (table->header->function_count ? table->functions[0].low : 0);
  debug_table_code_file(table, folder, file, sizeof file);
  debugger_remove(debugger_add(table, bias));
  jitdump_add(table, bias, (uintptr_t)code, (uintptr_t)code + sizeof code);
}

static void use_image(const uint8_t *data, size_t size) {
  char *copy = aligned_alloc(16, (size + 15) / 16 * 16 + 16);
  if (!copy) abort();
  memcpy(copy, data, size);
  struct image image;
  if (image_read_file(copy, size, &image)) image_identity(&image, copy);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  begin();
  write_file(data, size);
  struct debug_table table = debug_table_read(folder, 0);
  if (table.header) use_table(&table);
  debug_table_free(&table);
  use_image(data, size);
  jitdump_fork_child(); /* the next one begins its own file */
  return 0;
}
