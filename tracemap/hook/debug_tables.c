#include "debug_tables.h"

#include "files.h"

#define MAGIC "tmlines1"

static bool functions_fit(const struct debug_table *table) {
  const struct table_header *header = table->header;
  for (uint32_t place = 0; place < header->function_count; place++) {
    const struct table_function *function = &table->functions[place];
    if (function->name >= header->texts_size || function->low + function->size < function->low ||
        function->first_row > header->row_count || function->row_count > header->row_count - function->first_row)
      return false;
  }
  for (uint32_t place = 0; place < header->row_count; place++)
    if (table->rows[place].file >= header->texts_size) return false;
  return true;
}

static bool addresses_fit(const struct debug_table *table) {
  for (uint32_t place = 0; place < table->header->address_count; place++)
    if (table->header->symbols_size < sizeof(uint64_t) ||
        table->addresses[place] > table->header->symbols_size - sizeof(uint64_t))
      return false;
  return true;
}

/* Fills in the pointers; false unless all sizes and places fit. */
static bool is_valid(struct debug_table *table, const char *data, uint64_t identity) {
  const struct table_header *header = (const void *)data;
  if (table->size < sizeof *header || memcmp(header->magic, MAGIC, sizeof header->magic)) return false;
  uint64_t functions = sizeof *header, rows = functions + header->function_count * sizeof *table->functions;
  uint64_t addresses = rows + header->row_count * sizeof *table->rows;
  uint64_t texts = addresses + header->address_count * sizeof *table->addresses;
  uint64_t symbols = texts + header->texts_size;
  if (header->identity != identity || symbols + header->symbols_size != table->size) return false;
  if (!header->texts_size || data[symbols - 1]) return false;
  table->header = header;
  table->functions = (const void *)(data + functions);
  table->rows = (const void *)(data + rows);
  table->addresses = (const void *)(data + addresses);
  table->texts = data + texts;
  table->symbols = data + symbols;
  return functions_fit(table) && addresses_fit(table) && !strchr(table->texts, '/');
}

struct debug_table debug_table_read(const char *folder, uint64_t identity) {
  struct debug_table table = {0};
  char path[8192];
  snprintf(path, sizeof path, "%s/code/%016" PRIx64 ".lines", folder, identity);
  char *data = file_copy(path, &table.size);
  if (!data) return table;
  if (is_valid(&table, data, identity)) return table;
  say("%s is damaged: write the folder again with `tracemap debug-info`", path);
  real_munmap(data, table.size);
  return (struct debug_table){0};
}

void debug_table_free(struct debug_table *table) {
  if (table->header) real_munmap((void *)(uintptr_t)table->header, table->size);
  *table = (struct debug_table){0};
}

void debug_table_code_file(const struct debug_table *table, const char *folder, char *path, size_t size) {
  snprintf(path, size, "%s/code/%s", folder, table->texts);
}
