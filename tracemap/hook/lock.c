#include "lock.h"

#include <linux/futex.h>

#define WAITED_FOR (1u << 31)

static uint32_t thread_numbers;
static __thread uint32_t own_number INITIAL_EXEC;

static uint32_t number(void) {
  if (!own_number) own_number = __atomic_add_fetch(&thread_numbers, 1, __ATOMIC_RELAXED) & ~WAITED_FOR;
  return own_number;
}

static void futex(struct lock *lock, int operation, uint32_t value) {
  system_call(SYS_futex, (long)&lock->holder, operation, value, 0, 0, 0);
}

/* One word names the holder, so a signal handler never sees a taken lock without its holder. */
static bool is_mine(const struct lock *lock) {
  return (__atomic_load_n(&lock->holder, __ATOMIC_RELAXED) & ~WAITED_FOR) == number();
}

static bool change(struct lock *lock, uint32_t from, uint32_t to) {
  return __atomic_compare_exchange_n(&lock->holder, &from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Other threads may be waiting, too, which this one cannot know. */
static void wait_for(struct lock *lock) {
  while (!change(lock, 0, number() | WAITED_FOR)) {
    uint32_t holder = __atomic_load_n(&lock->holder, __ATOMIC_RELAXED);
    if (!holder || (!(holder & WAITED_FOR) && !change(lock, holder, holder | WAITED_FOR))) continue;
    futex(lock, FUTEX_WAIT_PRIVATE, holder | WAITED_FOR);
  }
}

void lock_take(struct lock *lock) {
  if (is_mine(lock)) lock->depth++;
  else if (!change(lock, 0, number())) wait_for(lock);
}

bool lock_enter(struct lock *lock) {
  if (is_mine(lock)) return false;
  if (change(lock, 0, number())) return true;
  if (!process_is_own()) return false;
  wait_for(lock);
  return true;
}

void lock_release(struct lock *lock) {
  if (lock->depth) lock->depth--;
  else if (__atomic_exchange_n(&lock->holder, 0, __ATOMIC_RELEASE) & WAITED_FOR) futex(lock, FUTEX_WAKE_PRIVATE, 1);
}
