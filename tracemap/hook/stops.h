/* When the program reads the CPU time of its process: a benchmark does so each time it stops its clock or lets it go on,
 * and IREE's writes the profile in between. The times, of CLOCK_MONOTONIC, go to the file that TRACEMAP_HOOK_STOPS names,
 * 8 bytes each; zeros follow the last. Without the variable nothing is written.
 */
#pragma once

#include "system.h"

void stops_add(void);
