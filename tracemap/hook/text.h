/* Text and messages, without any allocation: the program's own allocator may be waiting for us, or hold its lock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A buffer of fixed size; what does not fit is cut. `data` always ends in a zero, at `used`. */
struct text {
  char *data;
  size_t size, used;
};

/* An empty text in an array of characters. */
#define TEXT_IN(array) {(array), sizeof(array), 0}

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_json(struct text *text, const char *string);

/* A line on the program's standard error. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool write_all(int file, const void *data, size_t size);

/* Reads as much of a file as there is room for, and ends it with a zero; returns its length, 0 if it cannot be read. */
size_t read_file(const char *path, char *data, size_t size);
