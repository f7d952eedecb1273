#include "lock.h"

#include <linux/futex.h>

static __thread char self INITIAL_EXEC;

static void futex(struct lock *lock, int operation, long value) {
  system_call(SYS_futex, (long)&lock->state, operation, value, 0, 0, 0);
}

static bool is_mine(const struct lock *lock) {
  return __atomic_load_n(&lock->owner, __ATOMIC_RELAXED) == &self;
}

static bool try_to_take(struct lock *lock) {
  uint32_t none = 0;
  return __atomic_compare_exchange_n(&lock->state, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void wait_for(struct lock *lock) {
  while (__atomic_exchange_n(&lock->state, 2, __ATOMIC_ACQUIRE)) futex(lock, FUTEX_WAIT_PRIVATE, 2);
}

static void own(struct lock *lock) { __atomic_store_n(&lock->owner, &self, __ATOMIC_RELAXED); }

void lock_take(struct lock *lock) {
  if (is_mine(lock)) {
    lock->depth++;
    return;
  }
  if (!try_to_take(lock)) wait_for(lock);
  own(lock);
}

bool lock_enter(struct lock *lock) {
  if (is_mine(lock)) return false;
  if (!try_to_take(lock)) {
    if (!process_is_own()) return false;
    wait_for(lock);
  }
  own(lock);
  return true;
}

void lock_release(struct lock *lock) {
  if (lock->depth) {
    lock->depth--;
    return;
  }
  __atomic_store_n(&lock->owner, NULL, __ATOMIC_RELAXED);
  if (__atomic_exchange_n(&lock->state, 0, __ATOMIC_RELEASE) == 2) futex(lock, FUTEX_WAKE_PRIVATE, 1);
}
