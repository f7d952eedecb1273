/* NVIDIA's profiling library CUPTI, opened at run time: its functions, and the fields of its records that we read.
 *
 * The definitions are ours, since its headers are not installed where this is compiled. Sources: cupti_activity.h,
 * cupti_driver_cbid.h and cupti_result.h in the packages nvidia-cuda-cupti-cu12 (12.0 to 12.9) and nvidia-cuda-cupti
 * (13.0 to 13.5). The records grow at their end only: in all of these versions, the fields below have these offsets
 * (tests/gpu/test_layout.py compares them with the headers). Other versions are refused by number.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `cuptiGetVersion`: 18 is CUDA 12.0, 28 is 12.9; from 13.0 on, 10000 * major + 100 * minor + patch. */
#define CUPTI_12_FIRST 18u
#define CUPTI_12_LAST 28u
#define CUPTI_13_FIRST 130000u
#define CUPTI_13_LAST 130599u

/* ---- results */

#define CUPTI_SUCCESS 0
#define CUPTI_ERROR_INSUFFICIENT_PRIVILEGES 35
#define CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED 33
#define CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES 40

/* ---- kinds of records */

#define ACTIVITY_MEMCPY 1u
#define ACTIVITY_MEMSET 2u
#define ACTIVITY_KERNEL 3u
#define ACTIVITY_DRIVER 4u
#define ACTIVITY_DEVICE 8u
#define ACTIVITY_CONCURRENT_KERNEL 10u
#define ACTIVITY_OVERHEAD 17u
#define ACTIVITY_MEMCPY2 22u
#define ACTIVITY_UNIFIED_MEMORY_COUNTER 25u

#define FLUSH_FORCED 1u

/* ---- records: `at_…` are gaps with fields that we do not read */

struct activity {
  uint32_t kind;
};

/* CUpti_ActivityKernel9 to 13. */
struct activity_kernel {
  uint32_t kind;
  uint16_t at_4;
  uint16_t registers;
  uint64_t at_8;
  uint64_t start_ns, end_ns, completed_ns;
  uint32_t device, context, stream;
  int32_t grid_x, grid_y, grid_z, block_x, block_y, block_z;
  int32_t static_shared, dynamic_shared;
  uint32_t at_84[2];
  uint32_t correlation;
  uint64_t at_96;
  const char *name;
  uint64_t at_112[4];
  uint64_t graph_node;
  uint32_t at_152;
  uint32_t graph;
};

/* CUpti_ActivityMemcpy5 to 7. */
struct activity_copy {
  uint32_t kind;
  uint8_t copy_kind, at_5[3];
  uint64_t bytes, start_ns, end_ns;
  uint32_t device, context, stream, correlation;
  uint64_t at_48[2];
  uint64_t graph_node;
  uint32_t graph;
};

/* CUpti_ActivityMemcpyPtoP4, between devices. */
struct activity_peer_copy {
  uint32_t kind;
  uint8_t copy_kind, at_5[3];
  uint64_t bytes, start_ns, end_ns;
  uint32_t device, context, stream, source_device, source_context, target_device, target_context, correlation;
  uint64_t at_64;
  uint64_t graph_node;
  uint32_t graph;
};

/* CUpti_ActivityMemset4 and 5. */
struct activity_fill {
  uint32_t kind;
  uint32_t value;
  uint64_t bytes, start_ns, end_ns;
  uint32_t device, context, stream, correlation;
  uint64_t at_48[2];
  uint64_t graph_node;
  uint32_t graph;
};

/* CUpti_ActivityAPI. */
struct activity_call {
  uint32_t kind;
  uint32_t function;
  uint64_t start_ns, end_ns;
  uint32_t process, thread, correlation;
};

/* CUpti_ActivityOverhead, 2 and 3. */
struct activity_overhead {
  uint32_t kind;
  uint32_t overhead_kind;
  uint64_t at_8[2];
  uint64_t start_ns, end_ns;
};

/* CUpti_ActivityUnifiedMemoryCounter2 and 3; `value` is a number of bytes for transfers. */
struct activity_migration {
  uint32_t kind;
  uint32_t counter;
  uint64_t value, start_ns, end_ns;
  uint64_t at_32;
  uint32_t source_device, target_device;
  uint32_t at_48;
  uint32_t process;
};

#define MIGRATION_TO_DEVICE 1u
#define MIGRATION_TO_HOST 2u
#define MIGRATION_BETWEEN_DEVICES 8u

/* CUpti_ActivityDevice4 to 6. */
struct activity_device {
  uint32_t kind;
  uint32_t at_4;
  uint64_t bandwidth_kb_s, memory_bytes;
  uint32_t at_24;
  uint32_t l2_bytes;
  uint32_t at_32;
  uint32_t clock_khz;
  uint32_t at_40;
  uint32_t multiprocessors;
  uint32_t at_48[14];
  uint32_t capability_major, capability_minor;
  uint32_t id;
  uint32_t at_116;
  uint8_t uuid[16];
  const char *name;
  uint8_t at_144;
  uint8_t is_mig;
  uint16_t at_146;
  uint32_t at_148;
  uint32_t gpu_instance, compute_instance;
};

#define AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
AT(activity_kernel, start_ns, 16);
AT(activity_kernel, device, 40);
AT(activity_kernel, static_shared, 76);
AT(activity_kernel, correlation, 92);
AT(activity_kernel, name, 104);
AT(activity_kernel, graph_node, 144);
AT(activity_kernel, graph, 156);
AT(activity_copy, correlation, 44);
AT(activity_copy, graph_node, 64);
AT(activity_peer_copy, correlation, 60);
AT(activity_peer_copy, graph_node, 72);
AT(activity_fill, correlation, 44);
AT(activity_fill, graph_node, 64);
AT(activity_call, correlation, 32);
AT(activity_overhead, start_ns, 24);
AT(activity_migration, source_device, 40);
AT(activity_device, l2_bytes, 28);
AT(activity_device, clock_khz, 36);
AT(activity_device, multiprocessors, 44);
AT(activity_device, capability_major, 104);
AT(activity_device, uuid, 120);
AT(activity_device, name, 136);
AT(activity_device, is_mig, 145);
AT(activity_device, gpu_instance, 152);

/* CUpti_ActivityUnifiedMemoryCounterConfig; the scope is a single device of the process. */
struct migration_config {
  uint32_t scope, counter, device, enable;
};
#define SCOPE_SINGLE_DEVICE 1u

/* CUpti_CallbackData and CUpti_ResourceData. */
struct callback_data {
  uint32_t site;
  const char *function;
  const void *parameters;
  void *result;
  const char *symbol;
  void *context;
};

struct resource_data {
  void *context;
};

#define DOMAIN_DRIVER_API 1u
#define DOMAIN_RESOURCE 3u
#define CONTEXT_DESTROY_STARTING 2u
#define API_ENTER 0u

/* ---- parameters of the range profiler: each has its size first. Newer versions have more fields at the end, and
 * go by the size that they are given. */

#define SIZED size_t size; void *reserved
#define SIZE_TO(type, last) (offsetof(struct type, last) + sizeof(((struct type *)0)->last))
#define PARAMETERS(type, last, ...) (struct type){.size = SIZE_TO(type, last), .reserved = NULL, __VA_ARGS__}

struct profiler_parameters { size_t size; void *reserved; };
struct chip_parameters { SIZED; size_t device; const char *name; };
struct availability_parameters { SIZED; void *context; size_t image_size; uint8_t *image; };
struct host_parameters { SIZED; uint32_t type, at_20; const char *chip; const uint8_t *availability; void *host; };
struct host_end_parameters { SIZED; void *host; };
struct metrics_parameters { SIZED; void *host; const char **metrics; size_t count; };
struct config_size_parameters { SIZED; void *host; size_t config_size; };
struct config_parameters { SIZED; void *host; size_t config_size; uint8_t *config; };
struct evaluate_parameters { SIZED; void *host; const uint8_t *image; size_t image_size, range; const char **metrics; size_t count; double *values; };
struct enable_parameters { SIZED; void *context; void *profiler; };
struct range_parameters { SIZED; void *profiler; };
struct image_size_parameters { SIZED; void *profiler; const char **metrics; size_t count, ranges; uint32_t nodes, at_52; size_t image_size; };
struct image_parameters { SIZED; void *profiler; size_t image_size; uint8_t *image; };
struct set_config_parameters {
  SIZED;
  void *profiler;
  size_t config_size;
  const uint8_t *config;
  size_t image_size;
  uint8_t *image;
  uint32_t range, replay;
  size_t ranges;
  uint16_t levels, least_level, at_76[2];
  size_t pass;
  uint16_t level;
};
struct stop_parameters { SIZED; void *profiler; size_t pass, level; uint8_t is_all; };
struct decode_parameters { SIZED; void *profiler; size_t dropped; };
struct info_parameters { SIZED; const uint8_t *image; size_t image_size, ranges; };

#define AUTO_RANGE 1u
#define KERNEL_REPLAY 2u

/* ---- functions */

typedef void (*callback)(void *user, uint32_t domain, uint32_t id, const void *data);

typedef void (*buffer_requested)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*buffer_completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size);

/* X(name, arguments): functions that all versions have. */
#define CUPTI_FUNCTIONS(X)                                                                   \
  X(cuptiGetVersion, (uint32_t * version))                                                   \
  X(cuptiGetResultString, (int result, const char **text))                                   \
  X(cuptiGetTimestamp, (uint64_t * timestamp))                                               \
  X(cuptiActivityEnable, (uint32_t kind))                                                    \
  X(cuptiActivityRegisterCallbacks, (buffer_requested requested, buffer_completed completed)) \
  X(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid_size, struct activity **record)) \
  X(cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *dropped))    \
  X(cuptiActivityFlushAll, (uint32_t flag))

/* Functions that may be missing: the first came with 12.5. */
#define CUPTI_OPTIONAL_FUNCTIONS(X)                                                          \
  X(cuptiActivityEnableDriverApi, (uint32_t function, uint8_t enable))                       \
  X(cuptiActivityEnableAndDump, (uint32_t kind))                                             \
  X(cuptiActivityConfigureUnifiedMemoryCounter, (struct migration_config * config, uint32_t count))

/* Functions for counters: the range profiler came with 12.6. All take one of the parameters above. */
#define CUPTI_COUNTING_FUNCTIONS(X)                                                          \
  X(cuptiSubscribe, (void **subscriber, callback called, void *user))                        \
  X(cuptiEnableCallback, (uint32_t enable, void *subscriber, uint32_t domain, uint32_t id))  \
  X(cuptiGetDeviceId, (void *context, uint32_t *device))                                     \
  X(cuptiProfilerInitialize, (struct profiler_parameters * parameters))                      \
  X(cuptiDeviceGetChipName, (struct chip_parameters * parameters))                           \
  X(cuptiProfilerGetCounterAvailability, (struct availability_parameters * parameters))      \
  X(cuptiProfilerHostInitialize, (struct host_parameters * parameters))                      \
  X(cuptiProfilerHostDeinitialize, (struct host_end_parameters * parameters))                \
  X(cuptiProfilerHostConfigAddMetrics, (struct metrics_parameters * parameters))             \
  X(cuptiProfilerHostGetConfigImageSize, (struct config_size_parameters * parameters))       \
  X(cuptiProfilerHostGetConfigImage, (struct config_parameters * parameters))                \
  X(cuptiProfilerHostEvaluateToGpuValues, (struct evaluate_parameters * parameters))         \
  X(cuptiRangeProfilerEnable, (struct enable_parameters * parameters))                       \
  X(cuptiRangeProfilerDisable, (struct range_parameters * parameters))                       \
  X(cuptiRangeProfilerGetCounterDataSize, (struct image_size_parameters * parameters))       \
  X(cuptiRangeProfilerCounterDataImageInitialize, (struct image_parameters * parameters))    \
  X(cuptiRangeProfilerSetConfig, (struct set_config_parameters * parameters))                \
  X(cuptiRangeProfilerStart, (struct range_parameters * parameters))                         \
  X(cuptiRangeProfilerStop, (struct stop_parameters * parameters))                           \
  X(cuptiRangeProfilerDecodeData, (struct decode_parameters * parameters))                   \
  X(cuptiRangeProfilerGetCounterDataInfo, (struct info_parameters * parameters))

struct cupti {
#define CUPTI_MEMBER(name, arguments) int(*name) arguments;
  CUPTI_FUNCTIONS(CUPTI_MEMBER)
  CUPTI_OPTIONAL_FUNCTIONS(CUPTI_MEMBER)
  CUPTI_COUNTING_FUNCTIONS(CUPTI_MEMBER)
#undef CUPTI_MEMBER
  uint32_t version;
};

/* Whether records of this version have the fields above. */
static inline bool cupti_is_known(uint32_t version) {
  return (version >= CUPTI_12_FIRST && version <= CUPTI_12_LAST) ||
         (version >= CUPTI_13_FIRST && version <= CUPTI_13_LAST);
}

/* Calls of the driver that submit work: `CUpti_driver_api_trace_cbid`, the same in all versions. */
#define SUBMITTING_CALLS(X)                                                                  \
  X(216) /* cuMemsetD8Async */ X(218) /* cuMemsetD16Async */ X(220) /* cuMemsetD32Async */   \
  X(249) /* cuMemsetD8 */ X(251) /* cuMemsetD32 */                                           \
  X(276) /* cuMemcpyHtoD */ X(277) /* cuMemcpyHtoDAsync */                                   \
  X(278) /* cuMemcpyDtoH */ X(279) /* cuMemcpyDtoHAsync */                                   \
  X(305) /* cuMemcpy */ X(306) /* cuMemcpyAsync */ X(307) /* cuLaunchKernel */               \
  X(514) /* cuGraphLaunch */ X(652) /* cuLaunchKernelEx */
