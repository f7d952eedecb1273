/* What the stand-ins of libcuda and libcupti tell each other: work that was submitted, with its times. */
#pragma once

#include <stdint.h>

enum work { WORK_CALL = 1, WORK_KERNEL, WORK_COPY, WORK_FILL, WORK_MIGRATION, WORK_END };

struct work_event {
  enum work kind;
  uint32_t function, correlation, thread; /* of the call */
  uint64_t start_ns, end_ns;              /* CLOCK_REALTIME */
  uint64_t bytes, graph_node;
  uint32_t device, stream, graph, copy_kind;
  uint32_t grid[3], block[3];
  const char *name;
};

/* libcuda calls this for each event; libcupti sets it by `standin_observe`, which libcuda exports. */
typedef void (*observer)(const struct work_event *event);
