/* ELF images in memory, loaded by libdl or mapped anonymously by IREE's own loader (then only their bytes identify
 * them), and the executable libraries in them.
 */
#pragma once

#include "abi.h"
#include "system.h"

/* ---- executable libraries of IREE's compiler */

/* The answer of a function named LIBRARY_QUERY; NULL if it has no library of this version. */
const struct library *library_asked(const void *query);

/* Whether it has an export with this number, in a layout that the hook knows. */
bool library_has(const struct library *library, size_t ordinal);

/* The export's name; a generated one in the buffer if it has none. */
const char *library_kernel_name(const struct library *library, size_t ordinal, char *made_up, size_t size);

/* The library in an image whose code has just become executable; NULL if it is not IREE's. The image's first page, and
 * every segment that the image declares as loaded, must be readable. */
const struct library *embedded_library(const char *base, size_t size, const char *code, size_t code_size);

/* ---- segments of an image */

#define SEGMENTS 16

struct image_segment {
  uintptr_t address; /* in memory */
  uint64_t offset;   /* in the file */
  size_t file_size;
  uint32_t flags; /* PF_R … */
};

/* The segments of an image that a loader reads, by address. */
struct image {
  uintptr_t bias;                 /* difference between addresses in memory and in the image */
  uintptr_t code_begin, code_end; /* of its only segment of code */
  unsigned count;
  struct image_segment segments[SEGMENTS];
};

/* Reads an image in memory, or in a mapped file, where addresses are those of the image; false unless it is valid, with
 * one segment of code and at most SEGMENTS in all, and unless all files of the read-only ones are readable. */
bool image_read(const char *base, size_t size, struct image *image);
bool image_read_file(const char *data, size_t size, struct image *image);

/* A checksum and the size of the read-only segments, without the ELF header (tracemap/machine/debug_file.py). `file`
 * has the bytes by offset; NULL: they are in memory. */
uint64_t image_identity(const struct image *image, const char *file);

/* ---- objects that libdl loaded */

bool object_is_loaded(const void *base);

/* The size of an object in memory, from its base; 0 if libdl loaded none there. */
size_t object_size(const void *inside, const void *base);

/* Makes memory that libdl protected writable, or protects it again; false if libdl loaded nothing there. */
bool object_access(void *address, size_t size, bool writable);

/* The name of an import and its new target. A list ends with a NULL name. */
struct import {
  const char *name;
  void *function;
};

/* Redirects the imports of one object; returns their number. The path identifies the object; if it is NULL, `inside`,
 * an address in the object, does. */
unsigned object_patch_imports(const void *inside, const char *path, const struct import *imports);
