/* Logs when the program reads the CPU time of its process: a benchmark does so whenever it stops or restarts its clock,
 * and IREE's benchmark writes the profile in between. Times of CLOCK_MONOTONIC go to the file in TRACEMAP_HOOK_STOPS, 8
 * bytes each, followed by zeros. Without the variable nothing is written. A time that is read while another one is
 * being written, by a second thread or a signal handler, is left out.
 */
#pragma once

#include "system.h"

/* When the process begins, and in a forked child: the file belongs to the parent if the parent has started it. */
void stops_begin(void);
void stops_fork_child(void);

void stops_add(void);
