/* Stops the program at the begin and end of each dispatch, for a watcher that reads its memory meanwhile, such as
 * `tracemap numerics`. TRACEMAP_HOOK_WATCH names a folder with two named pipes: the program writes a `moment` per stop
 * to `asks` and goes on when it has read a byte from `answers`. If the watcher is gone, the program goes on unwatched.
 *
 * A dispatch begins with its first workgroup and ends with its last, so there must be one worker.
 */
#pragma once

#include "abi.h"
#include "system.h"

enum watched_moment { DISPATCH_BEGINS = 1, DISPATCH_ENDS = 2 };

/* Whether there is a watcher. */
bool watching(void);

/* Around the call of a workgroup: stops if this is the first, or the last, workgroup of its dispatch. */
void watching_begin(uint32_t kernel, const struct dispatch_state *dispatch, const struct workgroup_state *workgroup);
void watching_end(uint32_t kernel, const struct dispatch_state *dispatch, const struct workgroup_state *workgroup);
