/* Locks of the hook's own, since the C library's are more than can be had in every place where the program calls mmap or
 * dlsym: before a sanitizer that stands before them is set up, in a signal's handler, and in a child that was made
 * without libc's fork.
 */
#pragma once

#include "system.h"

struct lock {
  uint32_t holder; /* the number of the thread that has it, 0: none; and a bit that says whether others wait */
  unsigned depth;  /* how often more that one has taken it, such as by a fork in a signal's handler */
};

/* Waits for it; a thread that has it already takes it once more. */
void lock_take(struct lock *lock);
void lock_release(struct lock *lock);

/* For calls of the program's that must come to their end in every place: false where this thread has it already, which a
 * signal's handler has interrupted then, and where the one that has it was left behind by a bare clone. */
bool lock_enter(struct lock *lock);
