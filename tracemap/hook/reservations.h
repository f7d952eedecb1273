/* Embedded executables are found by the memory that they lie in: IREE's loader reserves it, writes, relocates, and then
 * makes the code executable. These three functions stand before libc's and follow that.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

void *hooked_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int hooked_mprotect(void *address, size_t size, int protection);
int hooked_munmap(void *address, size_t size);

void reservations_lock(void);
void reservations_unlock(void);
