#include "printing.h"

#include <stdarg.h>

void print_begin(struct printer *printer, int file) {
  printer->file = file;
  printer->error = 0;
  printer->used = 0;
}

bool print_end(struct printer *printer) {
  if (!printer->error && !write_all(printer->file, printer->waiting, printer->used)) printer->error = errno;
  printer->used = 0;
  errno = printer->error;
  return !printer->error;
}

void print(struct printer *printer, const char *format, ...) {
  if (printer->used + PRINTED_AT_ONCE > sizeof printer->waiting) print_end(printer);
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(printer->waiting + printer->used, PRINTED_AT_ONCE, format, arguments);
  va_end(arguments);
  if (length > 0) printer->used += (size_t)length < PRINTED_AT_ONCE ? (size_t)length : PRINTED_AT_ONCE - 1;
}
