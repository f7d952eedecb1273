#include "loading.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include "calls.h"
#include "debug_info.h"
#include "images.h"
#include "lock.h"
#include "process.h"
#include "settings.h"

/* ---- export tables, for both loaders */

/* The process lock protects everything in this section. */
static uint32_t free_slots[SLOTS]; /* a stack of released slots */
static uint32_t free_count, fresh_slot;

static uint32_t take_slot(void) {
  if (free_count) return free_slots[--free_count];
  return fresh_slot < SLOTS ? fresh_slot++ : UINT32_MAX;
}

/* Reports and logs that a kernel is not recorded; errno, if not 0, has details. */
static void lose(const char *name, const char *why) {
  char reason[512];
  struct text text = TEXT_IN(reason);
  text_add(&text, "%s: %s", name, why);
  if (errno) text_add(&text, ": %s", strerror(errno));
  say("a kernel is not recorded: %s", reason);
  process_add_loss("kernel", reason);
}

static void patch_export(const struct library *library, uint32_t ordinal, uint32_t executable) {
  char made_up[256];
  const char *name = library_kernel_name(library, ordinal, made_up, sizeof made_up);
  export_function *entry = &library->exports.ptrs[ordinal];
  if (!*entry || is_trampoline(*entry) || !settings_want(name)) return;
  uint32_t slot = take_slot();
  if (slot == UINT32_MAX) {
    errno = 0;
    return lose(name, "too many kernels are loaded at once for the hook to distinguish");
  }
  uint32_t kernel = process_add_kernel(executable, ordinal, name, *entry);
  if (kernel == NO_KERNEL) {
    free_slots[free_count++] = slot;
    return lose(name, "there is no room for its name");
  }
  slots[slot] = (struct slot){*entry, kernel, executable};
  __atomic_store_n(entry, trampoline(slot), __ATOMIC_RELEASE); /* last: other threads may call it at once */
}

/* Makes a table writable, or read-only again; false if that is impossible. The table of an embedded executable is still
 * writable, unless its segment is already protected. */
static bool set_writable(const struct library *library, enum executable_kind kind, bool writable) {
  return kind == EMBEDDED_ELF ||
         object_access((void *)library->exports.ptrs, library->exports.count * sizeof(export_function), writable);
}

/* Returns the executable's number; NO_EXECUTABLE if its table was not patched. */
static uint32_t patch_table(const struct library *library, enum executable_kind kind, struct memory memory) {
  if (!library_has(library, 0) || is_trampoline(library->exports.ptrs[0])) return NO_EXECUTABLE;
  uint32_t executable = NO_EXECUTABLE;
  process_lock();
  if (process_begin() && set_writable(library, kind, true)) {
    executable = process_add_executable(library->header->name, kind, memory);
    if (executable == NO_EXECUTABLE) lose(library->header->name, "there is no room for its name");
    else
      for (uint32_t ordinal = 0; ordinal < library->exports.count; ordinal++)
        patch_export(library, ordinal, executable);
    set_writable(library, kind, false);
  }
  process_unlock();
  return executable;
}

uint32_t loading_add_kernel(const struct library *library, size_t ordinal) {
  char made_up[256];
  const char *name = library_kernel_name(library, ordinal, made_up, sizeof made_up);
  uint32_t kernel = NO_KERNEL;
  process_lock();
  if (process_begin() && settings_want(name)) {
    uint32_t executable = process_add_executable(library->header->name, RUNTIME_HOOK, (struct memory){NULL, 0});
    if (executable != NO_EXECUTABLE)
      kernel = process_add_kernel(executable, (uint32_t)ordinal, name, library->exports.ptrs[ordinal]);
    if (kernel == NO_KERNEL) lose(name, "there is no room for its name");
  }
  process_unlock();
  return kernel;
}

static COLD void release(uint32_t executable) {
  process_lock();
  for (uint32_t slot = 0; slot < fresh_slot; slot++) {
    if (!slots[slot].target || slots[slot].executable != executable) continue;
    slots[slot] = (struct slot){NULL, NO_KERNEL, NO_EXECUTABLE};
    free_slots[free_count++] = slot;
  }
  process_add_unload(executable);
  process_unlock();
}

/* ---- by libdl */

struct opened {
  void *handle;
  const void *base;
  uint32_t executable;
  struct debug_entry debug;
};

static struct opened opened[SLOTS]; /* untouched pages take no memory */
static size_t opened_count;

static struct lock opened_lock;

/* The runtime may ask for the query function several times. */
static bool is_known(const void *base) {
  for (size_t place = 0; place < opened_count; place++)
    if (opened[place].base == base) return true;
  return false;
}

static void look_at_opened(void *handle, const void *function) {
  Dl_info info;
  const struct library *library = library_asked(function);
  if (!library || !dladdr(function, &info)) return;
  if (!lock_enter(&opened_lock)) return;
  if (opened_count < SLOTS) {
    struct memory memory = {info.dli_fbase, object_size(function, info.dli_fbase)};
    struct debug_entry debug = NO_DEBUG_ENTRY;
    if (!is_known(info.dli_fbase)) debug = debug_info_add(info.dli_fbase, memory.size, true);
    uint32_t executable = patch_table(library, SYSTEM_ELF, memory);
    if (executable != NO_EXECUTABLE || settings.debug_info[0])
      opened[opened_count++] = (struct opened){handle, info.dli_fbase, executable, debug};
  }
  lock_release(&opened_lock);
}

static COLD void *query_symbol(void *handle, const char *name) {
  void *function = libc.dlsym(handle, name);
  int error = errno;
  if (function) look_at_opened(handle, function);
  errno = error;
  return function;
}

/* Written out by hand: a sanitizer replaces strcmp, and looks it up here before it can be called. */
EARLY static bool is_query(const char *name) {
  const char *query = LIBRARY_QUERY;
  while (name && *query && *name == *query) name++, query++;
  return name && *name == *query;
}

/* Every other name is passed on by a tail call: libc uses the return address to identify the caller. */
EARLY void *hooked_dlsym(void *handle, const char *name) {
  if (UNLIKELY(!libc.dlsym)) libc_resolve();
  if (UNLIKELY(is_query(name))) return query_symbol(handle, name);
  return libc.dlsym(handle, name);
}

/* Loads a file with debug information in place of a temporary file with the same code. A file that is loaded already is
 * not loaded again: both would share their data. */
static COLD void *open_temporary(const char *path, int mode) {
  char file[sizeof settings.debug_info + 512];
  if (!debug_info_file(path, file, sizeof file)) return libc.dlopen(path, mode);
  void *loaded = libc.dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
  if (loaded) libc.dlclose(loaded);
  void *handle = loaded ? NULL : libc.dlopen(file, mode | (debug_info_keeps_code() ? RTLD_NODELETE : 0));
  return handle ? handle : libc.dlopen(path, mode);
}

#define TEMPORARY_NAME "iree_dylib_" /* the runtime's name for files of executables */

/* Written out by hand, as above. */
EARLY static bool is_temporary(const char *path) {
  const char *name = path, *begin = TEMPORARY_NAME;
  for (; path && *path; path++)
    if (*path == '/') name = path + 1;
  while (name && *begin && *name == *begin) name++, begin++;
  return name && !*begin;
}

EARLY void *hooked_dlopen(const char *path, int mode) {
  if (UNLIKELY(!libc.dlopen)) libc_resolve();
  if (UNLIKELY(is_temporary(path))) return open_temporary(path, mode);
  return libc.dlopen(path, mode);
}

/* A handle may be closed several times; its executable is unloaded when libdl no longer has it. */
static COLD void closed(const void *handle) {
  if (!lock_enter(&opened_lock)) return;
  for (size_t place = 0; place < opened_count; place++) {
    if (opened[place].handle != handle || object_is_loaded(opened[place].base)) continue;
    debug_info_remove(opened[place].debug);
    if (opened[place].executable != NO_EXECUTABLE) release(opened[place].executable);
    opened[place--] = opened[--opened_count];
  }
  lock_release(&opened_lock);
}

EARLY int hooked_dlclose(void *handle) {
  if (UNLIKELY(!libc.dlclose)) libc_resolve();
  int status = libc.dlclose(handle);
  if (opened_count) closed(handle);
  return status;
}

/* ---- by IREE's own loader */

#define OTHERS 1024u /* reservations without an executable, or without one yet */
#define RESERVATIONS (SLOTS + OTHERS)

struct reservation {
  const char *base;
  size_t size;
  bool readable; /* the first page can be read */
  uint32_t executable;
  bool looked_at; /* whether it is known to hold an executable, recorded or not */
  struct debug_entry debug;
};

static struct reservation reservations[RESERVATIONS]; /* untouched pages take no memory */
static unsigned reservation_end;                      /* all from here on are free */
static unsigned reservation_oldest;                   /* replaced first if there are too many */
static unsigned reserved_executables;

/* Number of reservations in use; written under the lock, read without it for a fast exit. It is in a data section that
 * is touched at startup: a page fault here would count for the first kernel that calls munmap. */
static unsigned reservation_count __attribute__((section(".data")));

static struct lock reservations_lock;

/* Mostly there are none, so the program's calls take no lock. */
EARLY static bool any_reserved(void) { return __atomic_load_n(&reservation_count, __ATOMIC_ACQUIRE); }

/* Returns whether its memory stays mapped. */
static COLD bool end_reserved(const struct reservation *reservation) {
  reserved_executables--;
  debug_info_remove(reservation->debug);
  if (reservation->executable != NO_EXECUTABLE) release(reservation->executable);
  return debug_info_keeps_code();
}

static bool forget(struct reservation *reservation) {
  struct reservation old = *reservation;
  *reservation = (struct reservation){.executable = NO_EXECUTABLE};
  __atomic_sub_fetch(&reservation_count, 1, __ATOMIC_RELEASE);
  return old.looked_at && end_reserved(&old);
}

/* The place of the oldest reservation without an executable; NULL if all have one. */
static struct reservation *emptied_reservation(void) {
  for (unsigned tries = 0; tries < reservation_end; tries++) {
    struct reservation *oldest = &reservations[reservation_oldest++ % reservation_end];
    if (!oldest->base || oldest->looked_at) continue;
    forget(oldest);
    return oldest;
  }
  return NULL;
}

/* Programs reserve memory for other purposes, too. Executables always find a place, since each has a slot. */
static struct reservation *free_reservation(void) {
  if (reservation_count - reserved_executables >= OTHERS) return emptied_reservation();
  for (unsigned place = 0; place < reservation_end; place++)
    if (!reservations[place].base) return &reservations[place];
  return reservation_end < RESERVATIONS ? &reservations[reservation_end++] : emptied_reservation();
}

static void remember(const void *base, size_t size) {
  if (!lock_enter(&reservations_lock)) return;
  struct reservation *reservation = free_reservation();
  if (reservation) {
    *reservation = (struct reservation){.base = base, .size = size, .executable = NO_EXECUTABLE};
    __atomic_add_fetch(&reservation_count, 1, __ATOMIC_RELEASE);
  }
  lock_release(&reservations_lock);
}

static struct reservation *reservation_of(const char *address) {
  for (unsigned place = 0; place < reservation_end; place++) {
    struct reservation *found = &reservations[place];
    if (found->base && address >= found->base && address < found->base + found->size) return found;
  }
  return NULL;
}

static COLD void look_at_reserved(struct reservation *reservation, const char *code, size_t code_size) {
  const struct library *library = embedded_library(reservation->base, reservation->size, code, code_size);
  struct memory memory = {reservation->base, reservation->size};
  if (!library) return;
  reservation->debug = debug_info_add(reservation->base, reservation->size, false);
  reservation->executable = patch_table(library, EMBEDDED_ELF, memory);
  reservation->looked_at = reservation->executable != NO_EXECUTABLE || reservation->debug.entry;
  if (reservation->looked_at) reserved_executables++;
}

/* This function and the next preserve errno: they run inside successful calls, which must not change it. */
static void protection_changed(const char *address, size_t size, int protection) {
  if (!lock_enter(&reservations_lock)) return;
  int error = errno;
  struct reservation *reservation = reservation_of(address);
  if (reservation) {
    if (address == reservation->base) reservation->readable = protection & PROT_READ;
    if (protection & PROT_EXEC && reservation->readable && !reservation->looked_at)
      look_at_reserved(reservation, address, size);
  }
  lock_release(&reservations_lock);
  errno = error;
}

/* Returns whether the memory stays mapped. */
static bool unmapped(const char *address, size_t size) {
  if (!lock_enter(&reservations_lock)) return false;
  int error = errno;
  bool stays = false;
  for (unsigned place = 0; place < reservation_end; place++) {
    struct reservation *found = &reservations[place];
    if (found->base && found->base >= address && found->base < address + size) stays |= forget(found);
  }
  lock_release(&reservations_lock);
  errno = error;
  return stays;
}

EARLY void *hooked_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  void *mapped = real_mmap(address, size, protection, flags, file, offset);
  if (mapped == MAP_FAILED) return mapped;
  if (UNLIKELY(protection == PROT_NONE && !address && (flags & MAP_ANONYMOUS)))
    remember(mapped, size);
  else if (UNLIKELY((flags & MAP_FIXED) && any_reserved()))
    protection_changed(mapped, size, protection & ~PROT_EXEC); /* may make readable memory unreadable */
  return mapped;
}

EARLY int hooked_mprotect(void *address, size_t size, int protection) {
  int status = real_mprotect(address, size, protection);
  if (UNLIKELY(!status && any_reserved())) protection_changed(address, size, protection);
  return status;
}

EARLY int hooked_munmap(void *address, size_t size) {
  /* Before the call, since another thread may get the address as soon as it is free. */
  if (UNLIKELY(any_reserved()) && unmapped(address, size)) return 0;
  return real_munmap(address, size);
}

/* ---- forks */

void loading_lock(void) {
  lock_take(&opened_lock);
  lock_take(&reservations_lock);
  debug_info_lock();
}

void loading_unlock(void) {
  debug_info_unlock();
  lock_release(&reservations_lock);
  lock_release(&opened_lock);
}
