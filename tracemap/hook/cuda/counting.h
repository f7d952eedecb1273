/* Counts of each kernel launch by CUPTI's range profiler, in an execution of their own: no activity is recorded there.
 *
 * The profiler makes one range per launch of its context and runs each kernel as often as the metrics need (kernel
 * replay). A callback of CUPTI's tells the kernel of each launch, in the same order. After SESSION_LAUNCHES, and before
 * the context ends, the counts are evaluated and written.
 */
#pragma once

#include "recording.h"

/* Counts metrics, separated by commas, from the first launch on; false, with a refusal, if CUPTI cannot. */
bool counting_begin(const struct cupti *functions, const char *metrics);

/* Writes the counts so far. */
void counting_end(void);
