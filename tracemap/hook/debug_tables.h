/* Tables of functions and lines that `tracemap debug-info` wrote into a folder, one file for each executable
 * (tracemap/reports/debug_info.py). They are copied to memory and checked before use.
 */
#pragma once

#include "system.h"

struct table_function {
  uint64_t low, size; /* its address in the image, and its size in bytes */
  uint32_t name;      /* places of texts are offsets in `texts` */
  uint32_t first_row, row_count;
  uint32_t unused;
};

struct table_row {
  uint64_t address; /* in the image; the row ends at the next one of its function */
  uint32_t line;
  uint32_t file;
};

struct table_header {
  char magic[8];
  uint64_t identity;
  uint32_t function_count, row_count, address_count, texts_size, symbols_size;
  uint32_t unused;
};

struct debug_table {
  const struct table_header *header; /* NULL: there is no table */
  const struct table_function *functions;
  const struct table_row *rows;
  const uint32_t *addresses; /* offsets of addresses in `symbols`, to be moved to where the image is loaded */
  const char *texts;         /* the first one is the name of the code file */
  const char *symbols;       /* an ELF file without code, with debug information */
  size_t size;
};

/* Reads the table of an executable from a folder; without one, `header` is NULL. A damaged one is reported. */
struct debug_table debug_table_read(const char *folder, uint64_t identity);
void debug_table_free(struct debug_table *table);

/* The path of its code file. */
void debug_table_code_file(const struct debug_table *table, const char *folder, char *path, size_t size);
