/* The parts of IREE's executable library interface, version 6, and plugin interface, version 1, that the hook needs.
 *
 * Only the fields that the hook reads have names; order and sizes are those of the interface.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LIBRARY_VERSION 6u
#define LIBRARY_QUERY "iree_hal_executable_library_query"

struct library_header {
  uint32_t version;
  const char *name;
  uint32_t features;
  uint32_t sanitizer;
};

struct dispatch_state {
  uint32_t workgroup_size_x, workgroup_size_y;
  uint16_t workgroup_size_z;
  uint16_t constant_count;
  uint32_t workgroup_count_x, workgroup_count_y;
  uint16_t workgroup_count_z;
  uint8_t max_concurrency;
  uint8_t binding_count;
  const uint32_t *constants;
  void *const *binding_ptrs;
  const size_t *binding_lengths;
};

struct workgroup_state {
  uint32_t workgroup_id_x, workgroup_id_y;
  uint16_t workgroup_id_z;
  uint16_t reserved;
  uint32_t processor_id;
  void *local_memory;
  uint32_t local_memory_size;
};

typedef int (*export_function)(const void *environment, const struct dispatch_state *dispatch,
                               const struct workgroup_state *workgroup);

struct library {
  const struct library_header *header;
  struct {
    uint32_t count;
    const char *const *symbols;
  } imports;
  struct {
    uint32_t count;
    export_function *ptrs;
    const void *attributes;
    const void *parameters;
    const void *occupancy;
    const char *const *names;
    const char *const *tags;
    const void *parameter_names;
    const void *source_locations;
    const void *stage_locations;
  } exports;
};

/* Returns a pointer to a struct library, whose first field is the header; NULL for another version. */
typedef const struct library *(*library_query)(uint32_t version, const void *environment);

struct string_view {
  const char *data;
  size_t size;
};

#define PLUGIN_VERSION 1u

struct plugin_header {
  uint32_t version;
  const char *name;
  const char *description;
  uint32_t features;
  uint32_t sanitizer;
  uint64_t reserved[8];
};

struct plugin_resolve_params {
  size_t count;
  const char *const *symbol_names;
  void **out_fn_ptrs;
  void **out_fn_contexts;
};

/* A status is a pointer whose low bits are its code; 0 means success. */
struct plugin {
  const struct plugin_header *header;
  void *(*load)(const void *environment, size_t param_count, const void *params, void **out_self);
  void (*unload)(void *self);
  void *(*resolve)(void *self, const struct plugin_resolve_params *params, uint32_t *out_resolution);
};
