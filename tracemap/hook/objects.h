/* Objects that libdl loaded: how far they reach, what of them is protected, and what their imports point to. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

bool object_is_loaded(const void *base);

/* How far an object reaches in memory, from its base on; 0 if libdl loaded none there. */
size_t object_size(const void *inside, const void *base);

/* Makes what libdl protected writable, and protects it again; false where libdl loaded nothing. */
bool object_access(void *address, size_t size, bool writable);

/* An import, by name, and what it is to point to. A list of them ends with a name of NULL. */
struct import {
  const char *name;
  void *function;
};

/* Points the imports of one object elsewhere; returns how many there were. `inside` is an address in the object; where it
 * is NULL, the path tells which it is. */
unsigned object_patch_imports(const void *inside, const char *path, const struct import *imports);
