/* An executable as IREE makes them, in the system's ELF: three kernels of known behaviour, version 6 of the interface. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "abi.h"

static int empty(const void *environment, const struct dispatch_state *dispatch,
                 const struct workgroup_state *workgroup) {
  (void)environment, (void)dispatch, (void)workgroup;
  return 0;
}

static int add_up(const void *environment, const struct dispatch_state *dispatch,
                  const struct workgroup_state *workgroup) {
  (void)environment, (void)dispatch;
  volatile unsigned sum = 0;
  for (unsigned number = 0; number < 1000; number++) sum += number ^ workgroup->workgroup_id_x;
  return (int)(sum & 0);
}

#define TOUCHED_PAGES 8

/* Exactly eight page faults: it writes to pages that were never there. */
static int touch_pages(const void *environment, const struct dispatch_state *dispatch,
                       const struct workgroup_state *workgroup) {
  (void)environment, (void)dispatch, (void)workgroup;
  char *pages = mmap(NULL, TOUCHED_PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return 1;
  madvise(pages, TOUCHED_PAGES * 4096, MADV_NOHUGEPAGE);
  for (int page = 0; page < TOUCHED_PAGES; page++) pages[page * 4096] = 1;
  return munmap(pages, TOUCHED_PAGES * 4096);
}

static export_function ptrs[] = {empty, add_up, touch_pages};
static const char *const names[] = {"empty", "add_up", "touch_pages"};
static const struct library_header header = {.version = LIBRARY_VERSION, .name = "kernels"};
static const struct library library = {.header = &header, .exports = {.count = 3, .ptrs = ptrs, .names = names}};

__attribute__((visibility("default"))) const struct library *iree_hal_executable_library_query(uint32_t version,
                                                                                                 const void *environment) {
  (void)environment;
  return version == LIBRARY_VERSION ? &library : NULL;
}
