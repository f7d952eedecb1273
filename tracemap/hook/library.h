/* Executable libraries, as IREE's compiler makes them: how one is asked for, and whether the hook knows its kind. */
#pragma once

#include <stdbool.h>

#include "abi.h"

/* What a function named LIBRARY_QUERY answers; NULL if it has no library of this version. */
const struct library *library_asked(const void *query);

/* Whether it has an export of this number, in a layout that the hook knows. */
bool library_has(const struct library *library, size_t ordinal);

/* The export's name; where it has none, one made up in the buffer. */
const char *library_kernel_name(const struct library *library, uint32_t ordinal, char *made_up, size_t size);
