/* Executables are found as they are loaded: those that libdl loads, by their query symbol, which the runtime looks up;
 * those that IREE's own loader does, by the memory that they lie in, which it reserves, writes, relocates, and then
 * makes executable. The functions below stand before libc's and follow that.
 *
 * Their export tables are patched in place: each function pointer is replaced with a trampoline, whose slot keeps the
 * real one. Slots are used again when an executable is unloaded.
 */
#pragma once

#include "abi.h"
#include "system.h"

void *hooked_dlsym(void *handle, const char *name);
int hooked_dlclose(void *handle);

void *hooked_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int hooked_mprotect(void *address, size_t size, int protection);
int hooked_munmap(void *address, size_t size);

/* A kernel that the library has, of a table that is not patched; NO_KERNEL if it is not to be recorded. */
uint32_t loading_add_kernel(const struct library *library, size_t ordinal);

/* Around a fork. What libdl loads and what memory is reserved have a lock each, so that none is held by a thread that
 * waits for libdl while libdl's owner waits for it. */
void loading_lock(void);
void loading_unlock(void);
