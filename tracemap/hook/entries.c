/* The entry points. Each file uses only files that stand further down in this list; tests/hook/test_layers.py checks
 * that.
 *
 *   entries         LD_PRELOAD: functions that replace libc's
 *                   attach(): the same functions, put into the imports of one loaded object
 *                   plugin: IREE loads the library itself, and the library attaches to the loader
 *                   a runtime that was built with IREE's own hook
 *                   begin and end of the process, and forks
 *   loading         finds executables when libdl or IREE's own loader loads them, and patches their tables
 *   debug_info      debug information of executables for perf, gdb and valgrind
 *   debugger        registers it with gdb                    jitdump         the file for `perf inject --jit`
 *   code_files      the same code with debug information     debug_tables    the files of `tracemap debug-info`
 *   calls           the hot path: one call of a workgroup, through the trampolines in the patched tables
 *   thread          a thread's file of calls                 native          samples of a native library
 *   sampler         a thread's samples: from their source to their file
 *   perf_source     samples by the kernel's perf interface    timer_source    samples by a timer's signal
 *   samples         a thread's file of samples; common parts of both sources
 *   report          the report of IREE's own hook             event_choice    which requested events can be counted
 *   statistics      statistics of a thread's calls, as text   process         the process's file; common parts of files
 *   counters        counts of events, for each call           settings        the environment variables
 *   images          reads ELF images in memory                printing        buffered text output
 *   event_names     Linux's names of events                   files           the hook's own files, and disk space
 *   stops           when the program stops its own clock     watching        stops the program for a watcher
 *   native_call     calls a function of a native library
 *   mapping         mapped files                              lock            locks that work in every context
 *   system          compiler, C library, kernel and machine
 *   abi, layout     IREE's interface, the layout of record files
 */
#include <dlfcn.h>

#include "calls.h"
#include "debug_info.h"
#include "event_choice.h"
#include "images.h"
#include "loading.h"
#include "lock.h"
#include "native.h"
#include "settings.h"
#include "stops.h"
#include "thread.h"

/* ---- the process begins, forks and ends */

static struct lock known_lock; /* for the kernels that the runtime's own hook has reported */

/* Takes all locks, in their fixed order. */
static void before_fork(void) {
  native_lock();
  threads_lock();
  loading_lock();
  lock_take(&known_lock);
  process_lock();
  samplers_lock();
}

static void after_fork_in_parent(void) {
  samplers_unlock();
  process_unlock();
  lock_release(&known_lock);
  loading_unlock();
  threads_unlock();
  native_unlock();
}

static void after_fork_in_child(void) {
  process_is_new();
  thread_fork_child();
  process_fork_child();
  samplers_fork_child();
  stops_fork_child();
  debug_info_fork_child();
  after_fork_in_parent(); /* here, too, the forking thread holds every lock */
  native_fork_child();
}

/* For the variables of IREE's hook: a process that only lists the names of events does nothing else. */
static void begin_report(void) {
  if (!settings.report.lists_events) return events_choose();
  events_list();
  _exit(0);
}

__attribute__((constructor)) static void begin(void) {
  process_is_new();
  libc_resolve();
  sanitizers_begin();
  settings_begin();
  if (settings.report.wanted) begin_report();
  stops_begin();
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  native_begin();
}

/* A child of a bare clone shares its parent's files and must not touch them. */
__attribute__((destructor)) static void end(void) {
  if (!process_is_own()) return;
  if (current_thread) thread_end(current_thread);
  threads_report();
  samplers_end();
  process_end();
}

/* ---- LD_PRELOAD */

#ifndef TRACEMAP_HOOK_WITHOUT_PRELOAD /* sanitizers have their own mmap, which must stay the first */

/* All of these are tail calls; see `hooked_dlsym` for the reason. The C library's headers declare these names, too. */
EARLY PUBLIC void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  return hooked_mmap(address, size, protection, flags, file, offset);
}

EARLY PUBLIC void *mmap64(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  return hooked_mmap(address, size, protection, flags, file, offset);
}

EARLY PUBLIC int mprotect(void *address, size_t size, int protection) { return hooked_mprotect(address, size, protection); }
EARLY PUBLIC int munmap(void *address, size_t size) { return hooked_munmap(address, size); }
EARLY PUBLIC void *dlsym(void *handle, const char *name) { return hooked_dlsym(handle, name); }
EARLY PUBLIC void *dlopen(const char *path, int mode) { return hooked_dlopen(path, mode); }
PUBLIC int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  libc_resolve();
  return native_create_thread(thread, attributes, start, argument);
}

PUBLIC int thrd_create(thrd_t *thread, thrd_start_t start, void *argument) {
  libc_resolve();
  return native_create_c11_thread(thread, start, argument);
}

EARLY PUBLIC int dlclose(void *handle) { return hooked_dlclose(handle); }

EARLY PUBLIC int clock_gettime(clockid_t clock, struct timespec *time) {
  int status = next_clock_gettime(clock, time);
  if (UNLIKELY(clock == CLOCK_PROCESS_CPUTIME_ID)) stops_add();
  return status;
}

#endif

/* ---- attach() and the plugin */

#define IMPORT(name, function) {name, (void *)(uintptr_t)(function)}

static unsigned attach(const void *inside, const char *path) {
  libc_resolve();
  const struct import imports[] = {
      IMPORT("mmap", hooked_mmap),     IMPORT("mmap64", hooked_mmap),   IMPORT("mprotect", hooked_mprotect),
      IMPORT("munmap", hooked_munmap), IMPORT("dlsym", hooked_dlsym),   IMPORT("dlopen", hooked_dlopen),
      IMPORT("dlclose", hooked_dlclose),
      {NULL, NULL},
  };
  return object_patch_imports(inside, path, imports);
}

/* Hooks everything that the loaded library with that path loads from now on; returns the number of changed imports. */
PUBLIC unsigned tracemap_hook_attach(const char *path) { return attach(NULL, path); }

/* The current time, in the ticks of calls and by CLOCK_MONOTONIC, for readers of the records of a running process. */
PUBLIC void tracemap_hook_moment(uint64_t ticks_and_ns[2]) {
  struct moment now = moment_now();
  ticks_and_ns[0] = now.ticks;
  ticks_and_ns[1] = now.ns;
}

static void *plugin_load(const void *environment, size_t param_count, const void *params, void **out_self) {
  (void)environment, (void)param_count, (void)params;
  *out_self = NULL;
  if (!attach(__builtin_return_address(0), NULL)) say("this runtime cannot be hooked: it imports no mprotect and no dlsym");
  return NULL;
}

/* Executables may outlive the plugin, and their tables point into this library, so it stays loaded. */
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
  /* Takes one more reference, so that closing the plugin does not unload the trampolines. */
  if (dladdr((void *)(uintptr_t)plugin_load, &info)) dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  return &plugin;
}

/* ---- a runtime built with IREE's own hook: it looks up these two functions and calls them around each workgroup */

struct known {
  const struct library *library;
  export_function function;
  uint32_t kernel;
};

static __thread struct known last_known INITIAL_EXEC;

/* Unpatched kernels, mostly statically linked ones. Looked up when the kernel changes. */
static uint32_t known_kernel(const struct library *library, size_t ordinal) {
  static struct known table[4096];
  static unsigned count;
  export_function function = library->exports.ptrs[ordinal];
  lock_take(&known_lock);
  unsigned place = 0;
  while (place < count && (table[place].library != library || table[place].function != function)) place++;
  uint32_t kernel = place < count ? table[place].kernel : loading_add_kernel(library, ordinal);
  if (place == count && count < sizeof table / sizeof *table) table[count++] = (struct known){library, function, kernel};
  lock_release(&known_lock);
  return kernel;
}

/* Whether to record this call here: a trampoline records its own calls. */
static bool is_ours(const struct library *library, size_t ordinal) {
  return library_has(library, ordinal) && !is_trampoline(library->exports.ptrs[ordinal]);
}

PUBLIC void iree_hal_executable_library_call_hook_begin(struct string_view identifier, const struct library *library,
                                                        size_t ordinal) {
  (void)identifier;
  if (!is_ours(library, ordinal)) return;
  export_function function = library->exports.ptrs[ordinal];
  if (UNLIKELY(last_known.library != library || last_known.function != function))
    last_known = (struct known){library, function, known_kernel(library, ordinal)};
  if (last_known.kernel != NO_KERNEL) calls_begin(last_known.kernel);
}

PUBLIC void iree_hal_executable_library_call_hook_end(struct string_view identifier, const struct library *library,
                                                      size_t ordinal) {
  (void)identifier;
  if (is_ours(library, ordinal)) calls_end();
}
