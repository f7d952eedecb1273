#include "debug_info.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "code_files.h"
#include "debug_tables.h"
#include "debugger.h"
#include "images.h"
#include "jitdump.h"
#include "settings.h"

static struct debug_table find_table(uint64_t identity, const char **folder) {
  struct debug_table table = {0};
  for (*folder = settings.debug_info; **folder; *folder += strlen(*folder) + 1) {
    table = debug_table_read(*folder, identity);
    if (table.header) break;
  }
  return table;
}

/* Whether libdl has loaded the code file itself, so that debuggers know of it. */
static bool is_code_file(const char *base, const char *path) {
  Dl_info info;
  return dladdr(base, &info) && info.dli_fname && !strcmp(info.dli_fname, path);
}

struct debug_entry debug_info_add(const char *base, size_t size, bool is_file) {
  struct image image;
  const char *folder;
  settings_read_debug_info();
  if (!settings.debug_info[0] || !image_read(base, size, &image)) return NO_DEBUG_ENTRY;
  struct debug_table table = find_table(image_identity(&image, NULL), &folder);
  if (!table.header) return NO_DEBUG_ENTRY;
  char path[sizeof settings.debug_info + 512];
  debug_table_code_file(&table, folder, path, sizeof path);
  struct debug_entry entry = NO_DEBUG_ENTRY;
  if (!is_file) code_file_back(path, base, size);
  if (!is_file || !is_code_file(base, path)) entry.entry = debugger_add(&table, image.bias);
  jitdump_add(&table, image.bias, image.code_begin, image.code_end);
  debug_table_free(&table);
  return entry;
}

void debug_info_remove(struct debug_entry entry) { debugger_remove(entry.entry); }

bool debug_info_file(const char *path, char *found, size_t size) {
  int error = errno;
  settings_read_debug_info();
  bool is_found = settings.debug_info[0] && code_file_for(path, found, size);
  errno = error;
  return is_found;
}

/* valgrind preloads libraries of its own. */
bool debug_info_keeps_code(void) {
  const char *preloaded = settings.debug_info[0] ? getenv("LD_PRELOAD") : NULL;
  return preloaded && strstr(preloaded, "vgpreload_");
}

void debug_info_lock(void) {
  debugger_lock();
  jitdump_lock();
}

void debug_info_unlock(void) {
  jitdump_unlock();
  debugger_unlock();
}

void debug_info_fork_child(void) { jitdump_fork_child(); }
