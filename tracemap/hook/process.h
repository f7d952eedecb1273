/* The process's file: what was loaded, a line of JSON each, so that it is on disk before the first call of a kernel.
 *
 * It is opened when the first executable is seen, which is also when the settings are read. Executables and kernels are
 * numbered here, and keep their numbers for ever.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NO_EXECUTABLE UINT32_MAX
#define NO_KERNEL UINT32_MAX

enum executable_kind { EMBEDDED_ELF, SYSTEM_ELF, RUNTIME_HOOK };

/* Where the code of an executable lies. */
struct memory {
  const void *base;
  size_t size;
};

/* The lock of all that is loaded: of this file, and of the slots in tables.c. */
void process_lock(void);
void process_unlock(void);

/* With the lock held. Nothing is to be added after `process_begin` was false. */
bool process_begin(void);
uint32_t process_add_executable(const char *name, enum executable_kind kind, struct memory memory);
uint32_t process_add_kernel(uint32_t executable, uint32_t ordinal, const char *name, const void *address);
void process_add_unload(uint32_t executable);
void process_fork_child(void);

/* Without the lock. */
bool process_path(char *path, size_t size, unsigned thread, const char *suffix);
void process_end(void);
