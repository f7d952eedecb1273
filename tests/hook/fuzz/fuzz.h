/* What the harnesses have in common: the fuzzer's bytes taken piece by piece. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
  const uint8_t *data;
  size_t size;
};

/* The next number of so many bytes; what is not there is 0. */
static inline uint64_t take_number(struct input *input, size_t bytes) {
  uint64_t number = 0;
  size_t there = bytes < input->size ? bytes : input->size;
  memcpy(&number, input->data, there);
  input->data += there;
  input->size -= there;
  return number;
}

/* The next line, without its end, as a string of its own; NULL behind the last. */
static inline char *take_line(struct input *input) {
  if (!input->size) return NULL;
  const uint8_t *end = memchr(input->data, '\n', input->size);
  size_t length = end ? (size_t)(end - input->data) : input->size;
  char *line = malloc(length + 1);
  memcpy(line, input->data, length);
  line[length] = '\0';
  input->data += length + (end != NULL);
  input->size -= length + (end != NULL);
  return line;
}
