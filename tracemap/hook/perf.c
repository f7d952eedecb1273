#include "perf.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct perf_event_attr perf_attributes(uint32_t type, uint64_t config, bool exclude_kernel) {
  struct perf_event_attr attributes;
  memset(&attributes, 0, sizeof attributes); /* the kernel refuses a structure whose unknown bytes are not 0 */
  attributes.size = sizeof attributes;
  attributes.type = type;
  attributes.config = config;
  attributes.exclude_kernel = exclude_kernel;
  attributes.exclude_hv = 1;
  return attributes;
}

int perf_open(struct perf_event_attr *attributes, int group) {
  return (int)syscall(SYS_perf_event_open, attributes, 0, -1, group, PERF_FLAG_FD_CLOEXEC);
}
