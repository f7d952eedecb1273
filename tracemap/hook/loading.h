/* Finds executables when they are loaded. For libdl: by their query symbol, which the runtime looks up. For IREE's own
 * loader: by their memory, which it reserves, writes, relocates, and then makes executable. The functions below replace
 * libc's to follow that.
 *
 * Export tables are patched in place: each function pointer is replaced by a trampoline, whose slot keeps the real one.
 * Slots are reused after an executable is unloaded.
 */
#pragma once

#include "abi.h"
#include "system.h"

void *hooked_dlsym(void *handle, const char *name);
void *hooked_dlopen(const char *path, int mode);
int hooked_dlclose(void *handle);

void *hooked_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int hooked_mprotect(void *address, size_t size, int protection);
int hooked_munmap(void *address, size_t size);

/* Registers a kernel of an unpatched table; NO_KERNEL if it is not to be recorded. */
uint32_t loading_add_kernel(const struct library *library, size_t ordinal);

/* Around a fork. Libdl's executables and memory reservations have separate locks, to avoid a deadlock with libdl's own
 * lock. */
void loading_lock(void);
void loading_unlock(void);
