/* The pool of closures: one small entry per slot, which hands its number to `hook_call` as the fourth argument.
 *
 * They are part of the library's code, so no memory is ever made executable at run time.
 */
#pragma once

#include <stdbool.h>

#include "abi.h"

export_function trampoline(uint32_t slot);
bool is_trampoline(export_function function);
