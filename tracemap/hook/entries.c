/* The ways in. All else lies below: each file uses only what stands further down here, which tests/test_hook_layers.py
 * checks.
 *
 *   entries         LD_PRELOAD: functions that stand before libc's
 *                   attach(): the same functions, put into the imports of one loaded object
 *                   plugin: IREE loads the library itself; it attaches to whoever loaded it
 *                   begin and end of the process, and forks
 *   reservations    finds embedded executables, by the memory that is made executable
 *   opened          finds executables that libdl loads, by the symbol that is looked up
 *   runtime_hook    the way in of a runtime that was built with IREE's own hook
 *   tables          patches export tables
 *   trampolines     what the tables point to then: one entry per slot, which calls
 *   calls           the hot path: one call of a workgroup
 *   thread          a thread's file of calls
 *   sampler         a thread's samples: from their source to their file
 *   perf_source     samples by the kernel's perf interface    timer_source    by a timer's signal
 *   samples         a thread's file of samples                source          what both sources have
 *   counters        counts of events, for each call           files           what all files of threads have
 *   process         the process's file: what was loaded       settings        the environment variables
 *   embedded        reads ELF images in memory                objects         looks at what libdl loaded
 *   perf, library, system, libc, text                         what the hook asks of others, each behind few functions
 *   abi, layout, attributes                                   IREE's interface, the layout of record files
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "abi.h"
#include "attributes.h"
#include "libc.h"
#include "objects.h"
#include "opened.h"
#include "process.h"
#include "reservations.h"
#include "runtime_hook.h"
#include "sampler.h"
#include "text.h"
#include "thread.h"

/* ---- the process begins, forks and ends */

/* Locks in the order in which they are taken. The first three are apart, so that none is held by a thread that waits for
 * libdl while libdl's owner waits for it. */
static void before_fork(void) {
  opened_lock();
  runtime_hook_lock();
  reservations_lock();
  process_lock();
  samplers_lock();
}

static void after_fork_in_parent(void) {
  samplers_unlock();
  process_unlock();
  reservations_unlock();
  runtime_hook_unlock();
  opened_unlock();
}

static void after_fork_in_child(void) {
  thread_fork_child();
  process_fork_child();
  samplers_fork_child();
  after_fork_in_parent(); /* here too, every lock is the forking thread's */
}

__attribute__((constructor)) static void begin(void) {
  libc_resolve();
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

__attribute__((destructor)) static void end(void) {
  if (current_thread) thread_end(current_thread);
  samplers_end();
  process_end();
}

/* ---- LD_PRELOAD */

#ifndef TRACEMAP_HOOK_WITHOUT_PRELOAD /* sanitizers have a mmap of their own, which must stay the first */

/* Tail calls, all of them: `hooked_dlsym` says why. The C library's headers declare these names too. */
PUBLIC void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  return hooked_mmap(address, size, protection, flags, file, offset);
}

PUBLIC void *mmap64(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  return hooked_mmap(address, size, protection, flags, file, offset);
}

PUBLIC int mprotect(void *address, size_t size, int protection) { return hooked_mprotect(address, size, protection); }
PUBLIC int munmap(void *address, size_t size) { return hooked_munmap(address, size); }
PUBLIC void *dlsym(void *handle, const char *name) { return hooked_dlsym(handle, name); }
PUBLIC int dlclose(void *handle) { return hooked_dlclose(handle); }

#endif

/* ---- attach() and the plugin */

#define IMPORT(name, function) {name, (void *)(uintptr_t)(function)}

static unsigned attach(const void *inside, const char *path) {
  libc_resolve();
  const struct import imports[] = {
      IMPORT("mmap", hooked_mmap),     IMPORT("mmap64", hooked_mmap),   IMPORT("mprotect", hooked_mprotect),
      IMPORT("munmap", hooked_munmap), IMPORT("dlsym", hooked_dlsym),   IMPORT("dlclose", hooked_dlclose),
      {NULL, NULL},
  };
  return object_patch_imports(inside, path, imports);
}

/* Hooks what the loaded library of that path loads from now on; returns the number of its imports that were changed. */
PUBLIC unsigned tracemap_hook_attach(const char *path) { return attach(NULL, path); }

static void *plugin_load(const void *environment, size_t param_count, const void *params, void **out_self) {
  (void)environment, (void)param_count, (void)params;
  *out_self = NULL;
  if (!attach(__builtin_return_address(0), NULL)) say("this runtime cannot be hooked: it imports no mprotect and no dlsym");
  return NULL;
}

/* Executables may outlive the plugin: their tables point into this library, so it stays. */
static void plugin_unload(void *self) { (void)self; }

#define STATUS_NOT_FOUND 5
#define MISSING_OPTIONAL 1u

/* The plugin provides nothing; names that begin with `?` may stay unresolved. */
static void *plugin_resolve(void *self, const struct plugin_resolve_params *params, uint32_t *out_resolution) {
  (void)self;
  bool required = false;
  *out_resolution = 0;
  for (size_t place = 0; place < params->count; place++) {
    if (params->out_fn_ptrs[place]) continue;
    if (params->symbol_names[place][0] == '?') *out_resolution |= MISSING_OPTIONAL;
    else required = true;
  }
  return (void *)(uintptr_t)(required ? STATUS_NOT_FOUND : 0);
}

PUBLIC const struct plugin *iree_hal_executable_plugin_query(uint32_t version, void *reserved) {
  (void)reserved;
  static const struct plugin_header header = {
      .version = PLUGIN_VERSION, .name = "tracemap", .description = "records every call of a workgroup"};
  static const struct plugin plugin = {&header, plugin_load, plugin_unload, plugin_resolve};
  if (version < PLUGIN_VERSION) return NULL;
  Dl_info info;
  /* One reference more, so that closing the plugin does not unload the trampolines. */
  if (dladdr((void *)(uintptr_t)plugin_load, &info)) dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  return &plugin;
}
