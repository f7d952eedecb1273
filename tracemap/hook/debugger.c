#include "debugger.h"

#include <sys/mman.h>

#include "lock.h"

/* Names, types and order are those of the interface. */
struct debugger_entry {
  struct debugger_entry *next, *previous;
  const char *symbols;
  uint64_t size;
};

struct jit_descriptor {
  uint32_t version;
  uint32_t action;
  struct debugger_entry *changed, *first;
};

enum { NOTHING, ADDED, REMOVED };

extern PUBLIC struct jit_descriptor __jit_debug_descriptor;
extern PUBLIC void __jit_debug_register_code(void);

struct jit_descriptor __jit_debug_descriptor = {1, NOTHING, NULL, NULL};

/* Debuggers set a breakpoint here. */
COLD void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }

static struct lock lock;

void debugger_lock(void) { lock_take(&lock); }
void debugger_unlock(void) { lock_release(&lock); }

static void tell(uint32_t action, struct debugger_entry *entry) {
  __jit_debug_descriptor.changed = entry;
  __jit_debug_descriptor.action = action;
  __jit_debug_register_code();
  __jit_debug_descriptor.action = NOTHING;
  __jit_debug_descriptor.changed = NULL;
}

struct debugger_entry *debugger_add(const struct debug_table *table, uint64_t bias) {
  size_t size = sizeof(struct debugger_entry) + table->header->symbols_size;
  struct debugger_entry *entry = new_pages(size);
  if (!entry) return NULL;
  char *symbols = (char *)(entry + 1);
  memcpy(symbols, table->symbols, table->header->symbols_size);
  for (uint32_t place = 0; place < table->header->address_count; place++) {
    uint64_t address;
    memcpy(&address, symbols + table->addresses[place], sizeof address);
    address += bias;
    memcpy(symbols + table->addresses[place], &address, sizeof address);
  }
  entry->symbols = symbols;
  entry->size = table->header->symbols_size;
  lock_take(&lock);
  entry->next = __jit_debug_descriptor.first;
  if (entry->next) entry->next->previous = entry;
  __jit_debug_descriptor.first = entry;
  tell(ADDED, entry);
  lock_release(&lock);
  return entry;
}

void debugger_remove(struct debugger_entry *entry) {
  if (!entry) return;
  lock_take(&lock);
  if (entry->previous) entry->previous->next = entry->next;
  else __jit_debug_descriptor.first = entry->next;
  if (entry->next) entry->next->previous = entry->previous;
  tell(REMOVED, entry);
  lock_release(&lock);
  real_munmap(entry, sizeof *entry + entry->size);
}
