/* Text on its way into a file, gathered so that it goes there in few pieces. */
#pragma once

#include "system.h"

#define PRINTED_AT_ONCE 1024u /* the most characters that one `print` adds */

struct printer {
  int file;
  int error; /* the first that occurred; nothing is written any more */
  size_t used;
  char waiting[65536];
};

void print_begin(struct printer *printer, int file);
void print(struct printer *printer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes what waits; false, with errno, if anything of the text could not be written. */
bool print_end(struct printer *printer);
