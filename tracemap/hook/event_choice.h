/* Which of the events that a report asks for are counted: those that are known and that this machine opens together. */
#pragma once

#include "event_names.h"
#include "settings.h"

/* When the process begins, or in the first call of a thread; makes `settings.events`, once. What cannot be counted is
 * said and left out. */
void events_choose(void);

/* Every name that Linux knows, on the program's standard error, with the reason where it cannot be counted here. */
void events_list(void);
