/* The interface by which debuggers learn of code that a program has made itself (gdb's manual, "JIT Compilation
 * Interface"): a list of ELF files in memory, and a function at which the debugger stops when the list changes.
 */
#pragma once

#include "debug_tables.h"

struct debugger_entry;

/* Adds the debug information of an image, moved by `bias`; NULL if there is no memory. */
struct debugger_entry *debugger_add(const struct debug_table *table, uint64_t bias);
void debugger_remove(struct debugger_entry *entry);

/* Around a fork. */
void debugger_lock(void);
void debugger_unlock(void);
