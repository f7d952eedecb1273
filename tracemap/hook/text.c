#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static void add_arguments(struct text *text, const char *format, va_list arguments) {
  int length = vsnprintf(text->data + text->used, text->size - text->used, format, arguments);
  if (length > 0) text->used += (size_t)length;
  if (text->used >= text->size) text->used = text->size - 1;
}

void text_add(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_arguments(text, format, arguments);
  va_end(arguments);
}

/* A string as JSON, cut where the buffer would end; other bytes than ASCII are handed on as they are. */
void text_add_json(struct text *text, const char *string) {
  text_add(text, "\"");
  for (const unsigned char *byte = (const unsigned char *)(string ? string : ""); *byte; byte++) {
    if (text->used + 64 > text->size) break; /* room for what closes the string and the object around it */
    if (*byte == '"' || *byte == '\\') text_add(text, "\\%c", *byte);
    else if (*byte < 0x20 || *byte == 0x7f) text_add(text, "\\u%04x", *byte);
    else text->data[text->used++] = (char)*byte;
  }
  text->data[text->used] = '\0';
  text_add(text, "\"");
}

void say(const char *format, ...) {
  char line[1024];
  struct text text = TEXT_IN(line);
  text_add(&text, "tracemap hook: ");
  va_list arguments;
  va_start(arguments, format);
  add_arguments(&text, format, arguments);
  va_end(arguments);
  line[text.used] = '\n'; /* in the place of the zero: written at once, so that lines of threads do not mix */
  write_all(STDERR_FILENO, line, text.used + 1);
}

bool write_all(int file, const void *data, size_t size) {
  const char *rest = data;
  while (size) {
    ssize_t written = write(file, rest, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    rest += written;
    size -= (size_t)written;
  }
  return true;
}

size_t read_file(const char *path, char *data, size_t size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? 0 : read(file, data, size - 1);
  if (file >= 0) close(file);
  data[got > 0 ? got : 0] = '\0';
  return got > 0 ? (size_t)got : 0;
}
