/* ELF images in memory: those that libdl loaded, and those that IREE's own loader maps anonymously, so that nothing but
 * their bytes tells of them; and the libraries of executables that are found in them.
 */
#pragma once

#include "abi.h"
#include "system.h"

/* ---- executable libraries, as IREE's compiler makes them */

/* What a function named LIBRARY_QUERY answers; NULL if it has no library of this version. */
const struct library *library_asked(const void *query);

/* Whether it has an export of this number, in a layout that the hook knows. */
bool library_has(const struct library *library, size_t ordinal);

/* The export's name; where it has none, one made up in the buffer. */
const char *library_kernel_name(const struct library *library, size_t ordinal, char *made_up, size_t size);

/* The library of an image whose code has just become executable; NULL if it is none of IREE's. The image's first page
 * can be read, and every segment that the image itself says is loaded. */
const struct library *embedded_library(const char *base, size_t size, const char *code, size_t code_size);

/* ---- objects that libdl loaded */

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

/* Points the imports of one object elsewhere; returns how many there were. The path tells which it is; where that is
 * NULL, `inside`, an address in it, does. */
unsigned object_patch_imports(const void *inside, const char *path, const struct import *imports);
