/* Debug information of executables for other tools: perf, gdb, valgrind. `tracemap debug-info` writes it into folders
 * (TRACEMAP_HOOK_DEBUG_INFO, separated by colons, as in PATH); the hook hands it to the tools when an executable is
 * loaded, and takes it back when it is unloaded.
 */
#pragma once

#include "system.h"

/* Nothing, if no folder has the executable's table. */
struct debug_entry {
  void *entry;
};

#define NO_DEBUG_ENTRY ((struct debug_entry){NULL})

/* For an executable in memory, of which nothing runs yet. `is_file`: libdl has loaded it from a file. */
struct debug_entry debug_info_add(const char *base, size_t size, bool is_file);
void debug_info_remove(struct debug_entry entry);

/* Finds the file for libdl to load in place of this one; false if there is none. */
bool debug_info_file(const char *path, char *found, size_t size);

/* Whether code stays in memory when its executable is unloaded: callgrind looks up lines when the program ends. */
bool debug_info_keeps_code(void);

/* Around a fork. */
void debug_info_lock(void);
void debug_info_unlock(void);
void debug_info_fork_child(void);
