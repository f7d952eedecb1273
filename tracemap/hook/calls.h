/* The hot path: one call of a workgroup. No lock, no allocation, no system call without events.
 *
 * Calls come through trampolines, the pool of closures: one small entry per slot, which hands its number to `hook_call`
 * as the fourth argument. They are part of the library's code: no memory is ever made executable at run time.
 */
#pragma once

#include "abi.h"
#include "system.h"

#define SLOTS 16384u /* hooked exports of all executables that are loaded at one time */

/* What the trampoline of that number calls. Written before the trampoline stands in any table, then only read. */
struct slot {
  export_function target;
  uint32_t kernel;
  uint32_t executable;
};

extern HIDDEN struct slot slots[SLOTS];

export_function trampoline(uint32_t slot);
bool is_trampoline(export_function function);

/* Where the trampolines jump to. */
HIDDEN int hook_call(const void *environment, const struct dispatch_state *dispatch,
                     const struct workgroup_state *workgroup, uint32_t slot);

/* The runtime's own hook: begin and end come as two calls of one thread, without the workgroup. */
void calls_begin(uint32_t kernel);
void calls_end(void);
