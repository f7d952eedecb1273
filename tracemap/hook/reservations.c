#include "reservations.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "attributes.h"
#include "embedded.h"
#include "libc.h"
#include "tables.h"

#define RESERVATIONS 1024u

struct reservation {
  const char *base;
  size_t size;
  bool readable; /* the first page can be looked at */
  uint32_t executable;
};

static struct reservation reservations[RESERVATIONS];
static unsigned reservation_count;  /* in use; written under the lock, read without it to pass quickly */
static unsigned reservation_oldest; /* what gives way when there are too many */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void reservations_lock(void) { pthread_mutex_lock(&lock); }
void reservations_unlock(void) { pthread_mutex_unlock(&lock); }

/* Mostly there are none, and the program's calls pass without a lock. */
static bool any_reserved(void) { return __atomic_load_n(&reservation_count, __ATOMIC_ACQUIRE); }

static void count_reservations(unsigned count) { __atomic_store_n(&reservation_count, count, __ATOMIC_RELEASE); }

static void forget(struct reservation *reservation) {
  uint32_t executable = reservation->executable;
  *reservation = (struct reservation){NULL, 0, false, NO_EXECUTABLE};
  count_reservations(reservation_count - 1);
  if (executable != NO_EXECUTABLE) tables_release(executable);
}

/* A free place, or that of the oldest reservation that holds no executable; NULL if all do. */
static struct reservation *free_reservation(void) {
  for (unsigned place = 0; place < RESERVATIONS; place++)
    if (!reservations[place].base) return &reservations[place];
  for (unsigned tries = 0; tries < RESERVATIONS; tries++) {
    struct reservation *oldest = &reservations[reservation_oldest++ % RESERVATIONS];
    if (oldest->executable != NO_EXECUTABLE) continue;
    forget(oldest);
    return oldest;
  }
  return NULL;
}

static void remember(const void *base, size_t size) {
  reservations_lock();
  struct reservation *reservation = free_reservation();
  if (reservation) {
    *reservation = (struct reservation){base, size, false, NO_EXECUTABLE};
    count_reservations(reservation_count + 1);
  }
  reservations_unlock();
}

static struct reservation *reservation_of(const char *address) {
  for (unsigned place = 0; place < RESERVATIONS; place++) {
    struct reservation *found = &reservations[place];
    if (found->base && address >= found->base && address < found->base + found->size) return found;
  }
  return NULL;
}

/* The table lies in memory that is still writable, unless its segment was protected already. */
static bool embedded_table_access(void *table, size_t size, bool writable) {
  (void)table, (void)size, (void)writable;
  return true;
}

static void look_at(struct reservation *reservation, const char *code, size_t code_size) {
  const struct library *library = embedded_library(reservation->base, reservation->size, code, code_size);
  struct memory memory = {reservation->base, reservation->size};
  if (library) reservation->executable = tables_patch(library, EMBEDDED_ELF, memory, embedded_table_access);
}

static void protection_changed(const char *address, size_t size, int protection) {
  reservations_lock();
  struct reservation *reservation = reservation_of(address);
  if (reservation) {
    if (address == reservation->base) reservation->readable = protection & PROT_READ;
    if (protection & PROT_EXEC && reservation->readable && reservation->executable == NO_EXECUTABLE)
      look_at(reservation, address, size);
  }
  reservations_unlock();
}

static void unmapped(const char *address, size_t size) {
  reservations_lock();
  for (unsigned place = 0; place < RESERVATIONS; place++) {
    struct reservation *found = &reservations[place];
    if (found->base && found->base >= address && found->base < address + size) forget(found);
  }
  reservations_unlock();
}

/* What is mapped over a reservation may take away what could be read there. */
static void mapped_over(const char *address, int protection) {
  reservations_lock();
  struct reservation *reservation = reservation_of(address);
  if (reservation && address == reservation->base) reservation->readable = protection & PROT_READ;
  reservations_unlock();
}

void *hooked_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  void *mapped = real_mmap(address, size, protection, flags, file, offset);
  if (mapped == MAP_FAILED) return mapped;
  int error = errno;
  if (UNLIKELY(protection == PROT_NONE && !address && (flags & MAP_ANONYMOUS)))
    remember(mapped, size);
  else if (UNLIKELY((flags & MAP_FIXED) && any_reserved()))
    mapped_over(mapped, protection);
  errno = error;
  return mapped;
}

int hooked_mprotect(void *address, size_t size, int protection) {
  int status = real_mprotect(address, size, protection);
  if (UNLIKELY(!status && any_reserved())) {
    int error = errno;
    protection_changed(address, size, protection);
    errno = error;
  }
  return status;
}

int hooked_munmap(void *address, size_t size) {
  /* First, since the address may be given to another thread as soon as it is free. */
  if (UNLIKELY(any_reserved())) {
    int error = errno;
    unmapped(address, size);
    errno = error;
  }
  return real_munmap(address, size);
}
