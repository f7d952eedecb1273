#include "opened.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "attributes.h"
#include "libc.h"
#include "library.h"
#include "objects.h"
#include "tables.h"

struct opened {
  void *handle;
  const void *base;
  uint32_t executable;
};

static struct opened *opened;
static size_t opened_count, opened_size;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void opened_lock(void) { pthread_mutex_lock(&lock); }
void opened_unlock(void) { pthread_mutex_unlock(&lock); }

/* Makes room for one more; the list lives in pages of its own, and old ones are given back. */
static bool grow(void) {
  if (opened_count < opened_size) return true;
  size_t size = opened_size ? opened_size * 2 : 256;
  struct opened *grown = new_pages(size * sizeof *grown);
  if (!grown) return false;
  if (opened) {
    memcpy(grown, opened, opened_count * sizeof *grown);
    real_munmap(opened, opened_size * sizeof *opened);
  }
  opened = grown;
  opened_size = size;
  return true;
}

static void look_at(void *handle, const void *function) {
  Dl_info info;
  const struct library *library = library_asked(function);
  if (!library || !dladdr(function, &info)) return;
  opened_lock();
  if (grow()) {
    struct memory memory = {info.dli_fbase, object_size(function, info.dli_fbase)};
    uint32_t executable = tables_patch(library, SYSTEM_ELF, memory, object_access);
    if (executable != NO_EXECUTABLE) opened[opened_count++] = (struct opened){handle, info.dli_fbase, executable};
  }
  opened_unlock();
}

static COLD void *query_symbol(void *handle, const char *name) {
  void *function = libc.dlsym(handle, name);
  int error = errno;
  if (function) look_at(handle, function);
  errno = error;
  return function;
}

/* Every other name is handed on as a tail call: libc looks at the return address to find out who asks. */
void *hooked_dlsym(void *handle, const char *name) {
  if (UNLIKELY(!libc.dlsym)) libc_resolve();
  if (UNLIKELY(name && !strcmp(name, LIBRARY_QUERY))) return query_symbol(handle, name);
  return libc.dlsym(handle, name);
}

/* A handle may be closed more often than once; its executable is gone when libdl has it no more. */
static void closed(const void *handle) {
  opened_lock();
  for (size_t place = 0; place < opened_count; place++) {
    if (opened[place].handle != handle || object_is_loaded(opened[place].base)) continue;
    tables_release(opened[place].executable);
    opened[place--] = opened[--opened_count];
  }
  opened_unlock();
}

int hooked_dlclose(void *handle) {
  if (UNLIKELY(!libc.dlclose)) libc_resolve();
  int status = libc.dlclose(handle);
  if (opened_count) closed(handle);
  return status;
}
