/* Selects the requested events of a report that are known and that this machine can open together. */
#pragma once

#include "event_names.h"
#include "settings.h"

/* Called when the process begins, or in the first call of a thread; fills `settings.events`, once. Events that cannot
 * be counted are left out, with a message. */
void events_choose(void);

/* Prints every name that Linux knows on standard error, with the reason if it cannot be counted here. */
void events_list(void);
