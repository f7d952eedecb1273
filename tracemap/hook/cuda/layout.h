/* Record files of CUDA activity: `cuda-STAMP.jsonl` for the process, `cuda-STAMP-N.activity` for its records.
 *
 * An activity file has the structure of the hook's files (see ../layout.h): preamble, description of its fields, header
 * and records, all of the same size. Records are appended whole, so what was written stays readable if the program is
 * killed; readers ignore a last incomplete one. When a file has its share of the size limit, the next one begins; as
 * JSON it has the number of records in all `earlier` ones.
 */
#pragma once

#include "../layout.h"

#define ACTIVITY_MAGIC "TMAPCUDA"
#define ACTIVITY_DATA_OFFSET 8192

#define ACTIVITY_HEADER_FIELDS(X)                                                        \
  X(uint64_t, u8, part)             /* number of the file, from 0 */                     \
  X(uint64_t, u8, record_bytes)

/* Times are CUPTI's. A `moment` has CUPTI's time in start_ns, CLOCK_MONOTONIC in end_ns, and in bytes the width in ns
 * within which both were read. `dropped` has the number of lost records in bytes. A `count` has the count of a launch in
 * bytes, the launch's number in correlation, and the metric's in detail. */
#define ACTIVITY_RECORD_FIELDS(X)                                                        \
  X(uint64_t, u8, start_ns)                                                              \
  X(uint64_t, u8, end_ns)                                                                \
  X(uint64_t, u8, bytes)                                                                 \
  X(uint64_t, u8, graph_node)       /* 0: not launched by a graph */                     \
  X(uint32_t, u4, kind)             /* enum recorded */                                  \
  X(uint32_t, u4, detail)           /* a copy's direction, a call's function, … */       \
  X(uint32_t, u4, name)             /* index of the kernel's name in the process's file */     \
  X(uint32_t, u4, correlation)      /* the same for a call and the work it submits */    \
  X(uint32_t, u4, device)                                                                \
  X(uint32_t, u4, context)                                                               \
  X(uint32_t, u4, stream)                                                                \
  X(uint32_t, u4, thread)           /* of a call */                                      \
  X(uint32_t, u4, graph)                                                                 \
  X(uint32_t, u4, grid_x)                                                                \
  X(uint32_t, u4, grid_y)                                                                \
  X(uint32_t, u4, grid_z)                                                                \
  X(uint32_t, u4, block_x)                                                               \
  X(uint32_t, u4, block_y)                                                               \
  X(uint32_t, u4, block_z)                                                               \
  X(uint32_t, u4, registers)                                                             \
  X(uint32_t, u4, static_shared)                                                         \
  X(uint32_t, u4, dynamic_shared)

enum recorded { RECORDED_KERNEL = 1, RECORDED_COPY, RECORDED_FILL, RECORDED_MIGRATION, RECORDED_CALL, RECORDED_OVERHEAD,
                RECORDED_MOMENT, RECORDED_DROPPED, RECORDED_COUNT };

struct activity_header {
  ACTIVITY_HEADER_FIELDS(LAYOUT_MEMBER)
};

struct activity_record {
  ACTIVITY_RECORD_FIELDS(LAYOUT_MEMBER)
};

#define ACTIVITY_DESCRIPTION "header\n" ACTIVITY_HEADER_FIELDS(LAYOUT_LINE) "record\n" ACTIVITY_RECORD_FIELDS(LAYOUT_LINE)

_Static_assert(sizeof(struct activity_header) == 0 ACTIVITY_HEADER_FIELDS(LAYOUT_SIZE), "the header has gaps");
_Static_assert(sizeof(struct activity_record) == 0 ACTIVITY_RECORD_FIELDS(LAYOUT_SIZE), "the record has gaps");
_Static_assert(sizeof(ACTIVITY_DESCRIPTION) - 1 <= HEADER_OFFSET - DESCRIPTION_OFFSET, "the description is too long");
