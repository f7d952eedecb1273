#include "library.h"

#include <stdio.h>

const struct library *library_asked(const void *query) {
  static const uint64_t environment[64]; /* zeros: more than the structure has, and the library does not look at it */
  return ((library_query)(uintptr_t)query)(LIBRARY_VERSION, environment);
}

bool library_has(const struct library *library, size_t ordinal) {
  return library && library->header && library->header->version == LIBRARY_VERSION && library->exports.ptrs &&
         ordinal < library->exports.count;
}

const char *library_kernel_name(const struct library *library, uint32_t ordinal, char *made_up, size_t size) {
  const char *name = library->exports.names ? library->exports.names[ordinal] : NULL;
  if (name) return name;
  snprintf(made_up, size, "%s:%u", library->header->name ? library->header->name : "", ordinal);
  return made_up;
}
