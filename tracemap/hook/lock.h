/* The hook's own locks. The C library's need more than is available in every context where the program calls mmap or
 * dlsym: before a sanitizer that replaces them is set up, in a signal handler, and in a child created without libc's
 * fork.
 */
#pragma once

#include "system.h"

struct lock {
  uint32_t holder; /* thread id of the holder, 0: none; one bit says whether others wait */
  unsigned depth;  /* number of nested acquisitions by the holder, for example a fork in a signal handler */
};

/* Waits for the lock; its holder may take it again. */
void lock_take(struct lock *lock);
void lock_release(struct lock *lock);

/* For hooked functions, which must never block: false if this thread already has the lock (a signal handler has
 * interrupted it), or if a bare clone left the holder behind. */
bool lock_enter(struct lock *lock);
