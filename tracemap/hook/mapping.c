#include "mapping.h"

#include <sys/mman.h>

static __thread struct file_mapping *of_thread INITIAL_EXEC; /* a list */
static struct file_mapping *of_all;
static struct sigaction previous;

/* ---- in the signal's handler */

static struct file_mapping *mapping_at(const char *address) {
  struct file_mapping *all = __atomic_load_n(&of_all, __ATOMIC_ACQUIRE);
  if (all && address >= all->pages && address < all->pages + all->size) return all;
  struct file_mapping *mapping = of_thread;
  while (mapping && (address < mapping->pages || address >= mapping->pages + mapping->size)) mapping = mapping->next;
  return mapping;
}

static bool replace_lost(const char *address) {
  struct file_mapping *mapping = mapping_at(address);
  if (!mapping) return false;
  mapping->lost = true;
  return system_call(SYS_mmap, (long)mapping->pages, (long)mapping->size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (long)mapping->pages;
}

/* Continue as the kernel does without a handler: the program's faulting instruction runs again, and ends it. */
static void end_by(int number, siginfo_t *info) {
  struct sigaction none = {.sa_handler = SIG_DFL};
  sigaction(number, &none, NULL);
  if (info->si_code <= 0)
    system_call(SYS_rt_tgsigqueueinfo, getpid(), system_call(SYS_gettid, 0, 0, 0, 0, 0, 0), number, (long)info, 0, 0);
}

static void hand_on(int number, siginfo_t *info, void *context) {
  struct sigaction before = previous;
  if (before.sa_flags & SA_RESETHAND) previous = (struct sigaction){.sa_handler = SIG_DFL};
  if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
  else if (before.sa_handler == SIG_DFL || (before.sa_handler == SIG_IGN && info->si_code > 0)) end_by(number, info);
  else if (before.sa_handler != SIG_IGN) before.sa_handler(number);
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
  int error = errno;
  if (info->si_code <= 0 || !replace_lost(info->si_addr)) hand_on(number, info, context);
  errno = error;
}

/* Once: a program that installs its own handler later knows this one, and may call it in turn. */
static void take_signal(void) {
  static bool taken;
  struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  if (__atomic_exchange_n(&taken, true, __ATOMIC_RELAXED)) return;
  sigaction(SIGBUS, NULL, &previous); /* first, since the signal may come as soon as the handler is installed */
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, NULL);
}

/* ---- mapping */

static void enter(struct file_mapping *mapping, bool for_all) {
  if (for_all) {
    __atomic_store_n(&of_all, mapping, __ATOMIC_RELEASE);
  } else {
    mapping->next = of_thread;
    of_thread = mapping;
  }
}

static void leave(struct file_mapping *mapping) {
  if (of_all == mapping) __atomic_store_n(&of_all, NULL, __ATOMIC_RELEASE);
  struct file_mapping **place = &of_thread;
  while (*place && *place != mapping) place = &(*place)->next;
  if (*place) *place = mapping->next;
}

bool file_map(struct file_mapping *mapping, const struct own_file *file, off_t offset, size_t size, int flags,
              bool for_all) {
  take_signal();
  char *pages = real_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file->descriptor, offset);
  if (pages == MAP_FAILED) return false;
  file_unmap(mapping);
  mapping->pages = pages;
  mapping->size = size;
  mapping->lost = false;
  enter(mapping, for_all);
  return true;
}

void file_unmap(struct file_mapping *mapping) {
  if (!mapping->pages) return;
  leave(mapping);
  real_munmap(mapping->pages, mapping->size);
  mapping->pages = NULL;
}
