/* A jitdump: a file from which `perf inject --jit` learns of code in anonymous memory, with its lines. The file is
 * `jit-PID.dump`; the process maps a page of it as code, so that perf sees it (linux/tools/perf/Documentation/
 * jitdump-specification.txt).
 */
#pragma once

#include "debug_tables.h"

/* Adds the functions of an image that is loaded with this bias, if the settings name a folder. `begin` and `end` are
 * the readable range of the image's code. */
void jitdump_add(const struct debug_table *table, uint64_t bias, uintptr_t begin, uintptr_t end);

/* Around a fork; the child begins its own file. */
void jitdump_lock(void);
void jitdump_unlock(void);
void jitdump_fork_child(void);
