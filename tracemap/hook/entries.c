/* The ways in.
 *
 *   LD_PRELOAD     dlsym, dlclose, mmap, mprotect and munmap below stand before libc's
 *   attach()       the same functions, put into the imports of one loaded object
 *   plugin         IREE loads the library itself; it attaches to whoever loaded it
 *   runtime hook   a runtime built with IREE's hook calls begin and end around each workgroup
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook.h"

#if defined(__x86_64__)
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

typedef void *(*dlsym_function)(void *, const char *);
typedef int (*dlclose_function)(void *);
typedef void *(*mmap_function)(void *, size_t, int, int, int, off_t);
typedef int (*mprotect_function)(void *, size_t, int);
typedef int (*munmap_function)(void *, size_t);

static dlsym_function next_dlsym;
static dlclose_function next_dlclose;
static mmap_function next_mmap;
static mprotect_function next_mprotect;
static munmap_function next_munmap;

/* Three locks, so that none is held by a thread that waits for libdl while libdl's owner waits for it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of reservations */
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

/* In the order in which they are taken: before the lock of the tables. */
void entries_lock(void) {
  pthread_mutex_lock(&opened_lock);
  pthread_mutex_lock(&known_lock);
  pthread_mutex_lock(&lock);
}

void entries_unlock(void) {
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&known_lock);
  pthread_mutex_unlock(&opened_lock);
}

/* Other libraries may call us before our constructor ran; then the kernel is asked directly. */
void *real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  if (next_mmap) return next_mmap(address, size, protection, flags, file, offset);
  return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

int real_mprotect(void *address, size_t size, int protection) {
  return next_mprotect ? next_mprotect(address, size, protection)
                       : (int)syscall(SYS_mprotect, address, size, protection);
}

int real_munmap(void *address, size_t size) {
  return next_munmap ? next_munmap(address, size) : (int)syscall(SYS_munmap, address, size);
}

/* An object pointer becomes a function pointer, which ISO C does not convert. */
#define RESOLVE(target, address)                     \
  do {                                               \
    void *resolved_ = (address);                     \
    memcpy(&(target), &resolved_, sizeof resolved_); \
  } while (0)

static void resolve(void) {
  if (next_dlsym) return;
#ifdef TRACEMAP_HOOK_WITHOUT_PRELOAD
  next_mmap = mmap;
  next_mprotect = mprotect;
  next_munmap = munmap;
  next_dlclose = dlclose;
  next_dlsym = dlsym;
  return;
#endif
  RESOLVE(next_mmap, dlvsym(RTLD_NEXT, "mmap", DLSYM_VERSION));
  RESOLVE(next_mprotect, dlvsym(RTLD_NEXT, "mprotect", DLSYM_VERSION));
  RESOLVE(next_munmap, dlvsym(RTLD_NEXT, "munmap", DLSYM_VERSION));
  RESOLVE(next_dlclose, dlvsym(RTLD_NEXT, "dlclose", DLSYM_VERSION));
  RESOLVE(next_dlsym, dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION));
}

__attribute__((constructor)) static void begin(void) { resolve(); }

__attribute__((destructor)) static void end(void) {
  if (current_thread) thread_end(current_thread);
  samplers_end();
  tables_end();
}

/* ---- memory that was reserved: IREE's loader reserves, writes, relocates, and then makes the code executable */

#define RESERVATIONS 1024u

struct reservation {
  const char *base;
  size_t size;
  bool readable; /* the first page can be looked at */
  uint32_t executable;
};

static struct reservation reservations[RESERVATIONS];
static unsigned reservation_count;  /* in use; read without the lock to pass quickly */
static unsigned reservation_oldest; /* what gives way when there are too many */

static void forget(struct reservation *reservation) {
  uint32_t executable = reservation->executable;
  *reservation = (struct reservation){NULL, 0, false, NO_EXECUTABLE};
  reservation_count--;
  if (executable != NO_EXECUTABLE) tables_release(executable);
}

/* A free place, or that of the oldest reservation that holds no executable; NULL if all do. */
static struct reservation *free_reservation(void) {
  for (unsigned place = 0; place < RESERVATIONS; place++)
    if (!reservations[place].base) return &reservations[place];
  for (unsigned tries = 0; tries < RESERVATIONS; tries++) {
    struct reservation *oldest = &reservations[reservation_oldest++ % RESERVATIONS];
    if (oldest->executable != NO_EXECUTABLE) continue;
    forget(oldest);
    return oldest;
  }
  return NULL;
}

static void remember(const void *base, size_t size) {
  pthread_mutex_lock(&lock);
  struct reservation *reservation = free_reservation();
  if (reservation) {
    *reservation = (struct reservation){base, size, false, NO_EXECUTABLE};
    __atomic_store_n(&reservation_count, reservation_count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
}

static struct reservation *reservation_of(const char *address) {
  for (unsigned place = 0; place < RESERVATIONS; place++) {
    struct reservation *found = &reservations[place];
    if (found->base && address >= found->base && address < found->base + found->size) return found;
  }
  return NULL;
}

/* The table lies in memory that is still writable, unless its segment was protected already. */
static bool embedded_table_access(void *table, size_t size, bool writable) {
  (void)table, (void)size, (void)writable;
  return true;
}

static void look_at(struct reservation *reservation, const char *code, size_t code_size) {
  const struct library *library =
      elf_embedded_library(reservation->base, reservation->size, code, code_size);
  struct memory memory = {reservation->base, reservation->size};
  if (library) reservation->executable = tables_patch(library, EMBEDDED_ELF, memory, embedded_table_access);
}

static void protection_changed(const char *address, size_t size, int protection) {
  pthread_mutex_lock(&lock);
  struct reservation *reservation = reservation_of(address);
  if (reservation) {
    if (address == reservation->base) reservation->readable = protection & PROT_READ;
    if (protection & PROT_EXEC && reservation->readable && reservation->executable == NO_EXECUTABLE)
      look_at(reservation, address, size);
  }
  pthread_mutex_unlock(&lock);
}

static void unmapped(const char *address, size_t size) {
  pthread_mutex_lock(&lock);
  for (unsigned place = 0; place < RESERVATIONS; place++) {
    struct reservation *found = &reservations[place];
    if (found->base && found->base >= address && found->base < address + size) forget(found);
  }
  pthread_mutex_unlock(&lock);
}

/* What is mapped over a reservation may take away what could be read there. */
static void mapped_over(const char *address, int protection) {
  pthread_mutex_lock(&lock);
  struct reservation *reservation = reservation_of(address);
  if (reservation && address == reservation->base) reservation->readable = protection & PROT_READ;
  pthread_mutex_unlock(&lock);
}

static void *hooked_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  void *mapped = real_mmap(address, size, protection, flags, file, offset);
  if (mapped == MAP_FAILED) return mapped;
  int error = errno;
  if (UNLIKELY(protection == PROT_NONE && !address && (flags & MAP_ANONYMOUS)))
    remember(mapped, size);
  else if (UNLIKELY((flags & MAP_FIXED) && __atomic_load_n(&reservation_count, __ATOMIC_ACQUIRE)))
    mapped_over(mapped, protection);
  errno = error;
  return mapped;
}

static int hooked_mprotect(void *address, size_t size, int protection) {
  int status = real_mprotect(address, size, protection);
  if (UNLIKELY(!status && __atomic_load_n(&reservation_count, __ATOMIC_ACQUIRE))) {
    int error = errno;
    protection_changed(address, size, protection);
    errno = error;
  }
  return status;
}

static int hooked_munmap(void *address, size_t size) {
  /* First, since the address may be given to another thread as soon as it is free. */
  if (UNLIKELY(__atomic_load_n(&reservation_count, __ATOMIC_ACQUIRE))) {
    int error = errno;
    unmapped(address, size);
    errno = error;
  }
  return real_munmap(address, size);
}

/* ---- executables that libdl loads */

struct opened {
  void *handle;
  const void *base;
  uint32_t executable;
};

static struct opened *opened;
static size_t opened_count, opened_size;

/* Makes room for one more; the list lives in pages of its own, and old ones are given back. */
static bool grow_opened(void) {
  if (opened_count < opened_size) return true;
  size_t size = opened_size ? opened_size * 2 : 256;
  struct opened *grown = real_mmap(NULL, size * sizeof *grown, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (grown == MAP_FAILED) return false;
  if (opened) {
    memcpy(grown, opened, opened_count * sizeof *grown);
    real_munmap(opened, opened_size * sizeof *opened);
  }
  opened = grown;
  opened_size = size;
  return true;
}

static void look_at_handle(void *handle, void *function) {
  static const uint64_t environment[64];
  library_query query;
  RESOLVE(query, function);
  Dl_info info;
  const struct library *library = query(LIBRARY_VERSION, environment);
  if (!library || !dladdr(function, &info)) return;
  pthread_mutex_lock(&opened_lock);
  if (grow_opened()) {
    struct memory memory = {info.dli_fbase, elf_loaded_size(function, info.dli_fbase)};
    uint32_t executable = tables_patch(library, SYSTEM_ELF, memory, elf_table_access);
    if (executable != NO_EXECUTABLE) opened[opened_count++] = (struct opened){handle, info.dli_fbase, executable};
  }
  pthread_mutex_unlock(&opened_lock);
}

static COLD void *query_symbol(void *handle, const char *name) {
  void *function = next_dlsym(handle, name);
  int error = errno;
  if (function) look_at_handle(handle, function);
  errno = error;
  return function;
}

/* Every other name is handed on as a tail call: libc looks at the return address to find out who asks. */
static inline __attribute__((always_inline)) void *look_up(void *handle, const char *name) {
  if (UNLIKELY(!next_dlsym)) resolve();
  if (UNLIKELY(name && !strcmp(name, LIBRARY_QUERY))) return query_symbol(handle, name);
  return next_dlsym(handle, name);
}

static void *hooked_dlsym(void *handle, const char *name) { return look_up(handle, name); }

static void closed(void *handle) {
  pthread_mutex_lock(&opened_lock);
  for (size_t place = 0; place < opened_count; place++) {
    if (opened[place].handle != handle || elf_is_loaded(opened[place].base)) continue;
    tables_release(opened[place].executable);
    opened[place--] = opened[--opened_count];
  }
  pthread_mutex_unlock(&opened_lock);
}

static int hooked_dlclose(void *handle) {
  if (UNLIKELY(!next_dlclose)) resolve();
  int status = next_dlclose(handle);
  if (opened_count) closed(handle);
  return status;
}

/* ---- LD_PRELOAD */

#ifndef TRACEMAP_HOOK_WITHOUT_PRELOAD /* sanitizers have a mmap of their own, which must stay the first */

/* The C library's headers declare these with attributes of their own; the names are what counts. */
PUBLIC void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  return hooked_mmap(address, size, protection, flags, file, offset);
}

PUBLIC void *mmap64(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  return hooked_mmap(address, size, protection, flags, file, offset);
}

PUBLIC int mprotect(void *address, size_t size, int protection) { return hooked_mprotect(address, size, protection); }
PUBLIC int munmap(void *address, size_t size) { return hooked_munmap(address, size); }
PUBLIC void *dlsym(void *handle, const char *name) { return look_up(handle, name); }
PUBLIC int dlclose(void *handle) { return hooked_dlclose(handle); }

#endif

/* ---- attach() and the plugin */

#define IMPORT(name, function) {name, (void *)(uintptr_t)(function)}

static unsigned attach(const void *inside, const char *path) {
  resolve();
  const struct import imports[] = {
      IMPORT("mmap", hooked_mmap),     IMPORT("mmap64", hooked_mmap),   IMPORT("mprotect", hooked_mprotect),
      IMPORT("munmap", hooked_munmap), IMPORT("dlsym", hooked_dlsym),   IMPORT("dlclose", hooked_dlclose),
      {NULL, NULL},
  };
  return elf_patch_imports(inside, path, imports);
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

/* ---- runtimes built with IREE's hook */

struct known {
  const struct library *library;
  export_function function;
  uint32_t kernel;
};

static __thread struct known last_known __attribute__((tls_model("initial-exec")));

/* Kernels that are not patched; statically linked ones, mostly. Looked up when another kernel runs than before. */
static uint32_t known_kernel(const struct library *library, size_t ordinal) {
  static struct known table[4096];
  static unsigned count;
  export_function function = library->exports.ptrs[ordinal];
  pthread_mutex_lock(&known_lock);
  unsigned place = 0;
  while (place < count && (table[place].library != library || table[place].function != function)) place++;
  uint32_t kernel = place < count ? table[place].kernel : tables_add_kernel(library, (uint32_t)ordinal);
  if (place == count && count < sizeof table / sizeof *table) table[count++] = (struct known){library, function, kernel};
  pthread_mutex_unlock(&known_lock);
  return kernel;
}

static bool calls_itself(const struct library *library, size_t ordinal) {
  return !library || !library->header || library->header->version != LIBRARY_VERSION ||
         ordinal >= library->exports.count || is_trampoline(library->exports.ptrs[ordinal]);
}

PUBLIC void iree_hal_executable_library_call_hook_begin(struct string_view identifier, const struct library *library,
                                                        size_t ordinal) {
  (void)identifier;
  if (calls_itself(library, ordinal)) return; /* a trampoline will record it */
  export_function function = library->exports.ptrs[ordinal];
  if (UNLIKELY(last_known.library != library || last_known.function != function))
    last_known = (struct known){library, function, known_kernel(library, ordinal)};
  if (last_known.kernel != NO_KERNEL) calls_begin(last_known.kernel);
}

PUBLIC void iree_hal_executable_library_call_hook_end(struct string_view identifier, const struct library *library,
                                                      size_t ordinal) {
  (void)identifier;
  if (!calls_itself(library, ordinal)) calls_end();
}
