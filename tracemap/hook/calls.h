/* The hot path: one call of a workgroup. No lock, no allocation, and no system call unless events are counted.
 *
 * Calls come through trampolines: one small entry per slot, which passes its number to `hook_call` as the fourth
 * argument. Trampolines are part of the library's code: no memory is made executable at run time.
 */
#pragma once

#include "abi.h"
#include "system.h"

#define SLOTS 16384u /* hooked exports of all executables that are loaded at the same time */

/* The target of a trampoline. Written before the trampoline enters any table, then only read. */
struct slot {
  export_function target;
  uint32_t kernel;
  uint32_t executable;
};

extern HIDDEN struct slot slots[SLOTS];

export_function trampoline(uint32_t slot);
bool is_trampoline(export_function function);

/* The jump target of the trampolines. */
HIDDEN int hook_call(const void *environment, const struct dispatch_state *dispatch,
                     const struct workgroup_state *workgroup, uint32_t slot);

/* The runtime's own hook: begin and end are two calls in one thread, without the workgroup. */
void calls_begin(uint32_t kernel);
void calls_end(void);
