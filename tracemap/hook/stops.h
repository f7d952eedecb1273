/* When the program reads the CPU time of its process: a benchmark does so each time it stops its clock or lets it go on,
 * and IREE's writes the profile in between. The times, of CLOCK_MONOTONIC, go to the file that TRACEMAP_HOOK_STOPS names,
 * 8 bytes each; zeros follow the last. Without the variable nothing is written. A time is left out that is read while
 * another is being written: by two threads at once, or by a signal's handler.
 */
#pragma once

#include "system.h"

/* When the process begins, and in the child of a fork: the file is its parent's, if that has begun one. */
void stops_begin(void);
void stops_fork_child(void);

void stops_add(void);
