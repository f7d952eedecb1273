/* Buffered text output to a file, in few writes. */
#pragma once

#include "system.h"

#define PRINTED_AT_ONCE 1024u /* most characters per `print` */

struct printer {
  int file;
  int error; /* the first error; nothing is written after it */
  size_t used;
  char waiting[65536];
};

void print_begin(struct printer *printer, int file);
void print(struct printer *printer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes the rest; false, with errno, if any part of the text could not be written. */
bool print_end(struct printer *printer);
