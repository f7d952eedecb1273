#include "tables.h"

#include "calls.h"
#include "library.h"
#include "settings.h"
#include "text.h"
#include "trampolines.h"

/* All of this under the lock of the process. */
static uint32_t free_slots[SLOTS]; /* a stack of slots that were given back */
static uint32_t free_count, fresh_slot;

static uint32_t take_slot(void) {
  if (free_count) return free_slots[--free_count];
  return fresh_slot < SLOTS ? fresh_slot++ : UINT32_MAX;
}

static uint32_t add_kernel(uint32_t executable, uint32_t ordinal, const char *name, export_function function) {
  return process_add_kernel(executable, ordinal, name, (const void *)(uintptr_t)function);
}

static void patch_export(const struct library *library, uint32_t ordinal, uint32_t executable) {
  char made_up[256];
  const char *name = library_kernel_name(library, ordinal, made_up, sizeof made_up);
  export_function *entry = &library->exports.ptrs[ordinal];
  if (!*entry || is_trampoline(*entry) || !settings_want(name)) return;
  uint32_t slot = take_slot();
  if (slot == UINT32_MAX) {
    say("%s is not recorded: more than %u kernels are loaded at once", name, SLOTS);
    return;
  }
  slots[slot] = (struct slot){*entry, add_kernel(executable, ordinal, name, *entry), executable};
  __atomic_store_n(entry, trampoline(slot), __ATOMIC_RELEASE); /* last: other threads may call it at once */
}

uint32_t tables_patch(const struct library *library, enum executable_kind kind, struct memory memory,
                      table_access access) {
  if (!library_has(library, 0) || is_trampoline(library->exports.ptrs[0])) return NO_EXECUTABLE;
  uint32_t executable = NO_EXECUTABLE;
  size_t size = library->exports.count * sizeof(export_function);
  process_lock();
  if (process_begin() && access((void *)library->exports.ptrs, size, true)) {
    executable = process_add_executable(library->header->name, kind, memory);
    for (uint32_t ordinal = 0; ordinal < library->exports.count; ordinal++) patch_export(library, ordinal, executable);
    access((void *)library->exports.ptrs, size, false);
  }
  process_unlock();
  return executable;
}

uint32_t tables_add_kernel(const struct library *library, size_t ordinal) {
  if (!library_has(library, ordinal)) return NO_KERNEL;
  char made_up[256];
  const char *name = library_kernel_name(library, (uint32_t)ordinal, made_up, sizeof made_up);
  uint32_t kernel = NO_KERNEL;
  process_lock();
  if (process_begin() && settings_want(name)) {
    uint32_t executable = process_add_executable(library->header->name, RUNTIME_HOOK, (struct memory){NULL, 0});
    kernel = add_kernel(executable, (uint32_t)ordinal, name, library->exports.ptrs[ordinal]);
  }
  process_unlock();
  return kernel;
}

void tables_release(uint32_t executable) {
  process_lock();
  for (uint32_t slot = 0; slot < fresh_slot; slot++) {
    if (!slots[slot].target || slots[slot].executable != executable) continue;
    slots[slot] = (struct slot){NULL, NO_KERNEL, NO_EXECUTABLE};
    free_slots[free_count++] = slot;
  }
  process_add_unload(executable);
  process_unlock();
}
