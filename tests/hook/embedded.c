/* An executable as IREE makes them to be embedded, without a C library: one kernel, version 6 of the interface. It is
 * linked so that it begins with its query, and all its relocations are relative. */
#include "abi.h"

static int embedded(const void *environment, const struct dispatch_state *dispatch,
                    const struct workgroup_state *workgroup) {
  (void)environment, (void)dispatch, (void)workgroup;
  return 0;
}

static export_function ptrs[] = {embedded};
static const char *const names[] = {"embedded"};
static const struct library_header header = {.version = LIBRARY_VERSION, .name = "embedded"};
static const struct library library = {.header = &header, .exports = {.count = 1, .ptrs = ptrs, .names = names}};

__attribute__((visibility("default"))) const struct library *iree_hal_executable_library_query(uint32_t version,
                                                                                                 const void *environment) {
  (void)environment;
  return version == LIBRARY_VERSION ? &library : 0;
}
