/* Export tables are patched in place: each function pointer is replaced with a trampoline, whose slot keeps the real one.
 * Slots are used again when an executable is unloaded.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "process.h"

/* Makes a table writable and back again; false where that cannot be. */
typedef bool (*table_access)(void *table, size_t size, bool writable);

/* Returns the executable's number, NO_EXECUTABLE if it was left alone. */
uint32_t tables_patch(const struct library *library, enum executable_kind kind, struct memory memory,
                      table_access access);

/* A kernel of a library that is not patched; NO_KERNEL if it is not to be recorded. */
uint32_t tables_add_kernel(const struct library *library, size_t ordinal);
void tables_release(uint32_t executable);
