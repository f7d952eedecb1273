/* What all files of threads have in common: their names, and the head that describes them (layout.h draws it). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "text.h"

/* Makes a thread's file, with `room` bytes of disk; -1 if it cannot be made, which is said as `consequence`. */
int file_make(unsigned thread, const char *suffix, off_t room, const char *consequence);

/* Room on disk: writing to a mapped file on a full one kills the program. */
bool file_reserve(int file, off_t offset, off_t size);

/* Writes all of it, or says false with errno. */
bool file_put(int file, const void *data, size_t size, uint64_t offset);

/* Begins the JSON that says what thread this is; the caller goes on and closes it. */
void about_begin(struct text *about);

struct head {
  const char *magic; /* 8 characters */
  const char *description;
  const struct text *about;
  uint32_t data_offset;
};

/* The preamble comes last: without it a file tells that its program was killed while it was set up. */
bool head_write(int file, const struct head *head);
