/* A runtime built with IREE's own hook calls begin and end around each workgroup; they are found by their names. */
#pragma once

#include <stddef.h>

#include "abi.h"
#include "attributes.h"

PUBLIC void iree_hal_executable_library_call_hook_begin(struct string_view identifier, const struct library *library,
                                                        size_t ordinal);
PUBLIC void iree_hal_executable_library_call_hook_end(struct string_view identifier, const struct library *library,
                                                      size_t ordinal);

void runtime_hook_lock(void);
void runtime_hook_unlock(void);
