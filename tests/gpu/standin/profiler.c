/* A libcupti for machines without a GPU: the activity interface, with the records of the stand-in's driver.
 *
 * Records have the sizes of CUPTI's own structures by version; what lies behind the fields that all versions share is
 * filled with a pattern. A flush hands over buffers whose records are all complete, a forced one all buffers; work that
 * has not ended then has no times.
 *
 *   STANDIN_CUPTI    the version that `cuptiGetVersion` tells (130001)
 *   STANDIN_DROP     of this many records drop one, and count it
 *   STANDIN_FORBID   refuse to record kernels, as for a process without permission
 *   STANDIN_MIG      the device is a part of a GPU      STANDIN_CAPABILITY   its major compute capability (9)
 *   STANDIN_FORBID_COUNTERS   refuse to count, as for a user without permission
 *   STANDIN_LACKS    a metric that the chip lacks
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../tracemap/hook/cuda/cupti.h"
#include "standin.h"

#define API __attribute__((visibility("default")))
#define INVALID_PARAMETER 1
#define MAX_LIMIT_REACHED 12
#define NOT_READY 13
#define NOT_INITIALIZED 15

/* The size of each kind of record by version, from NVIDIA's headers. */
struct sizes { uint32_t version; size_t kernel, copy, fill, overhead, migration, device; };
static const struct sizes all_sizes[] = {
    {18, 208, 88, 88, 40, 64, 176},       {20, 208, 88, 88, 40, 64, 184},      {21, 208, 88, 88, 48, 64, 184},
    {22, 208, 88, 88, 56, 64, 184},       {26, 208, 96, 88, 56, 104, 184},     {130000, 216, 96, 88, 56, 104, 184},
    {130100, 224, 96, 88, 56, 104, 184},  {130200, 224, 96, 88, 56, 104, 192}, {130300, 232, 96, 88, 56, 104, 192},
    {130400, 248, 112, 104, 56, 104, 192}};

struct piece { uint8_t *data; size_t size, used; uint64_t ends_ns; struct piece *next; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool enabled[128], calls[1024];
static buffer_requested request;
static buffer_completed complete;
static struct piece *first, *last;
static size_t dropped, seen;
static const struct sizes *sizes;

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static long number_of(const char *variable, long otherwise) {
  const char *text = getenv(variable);
  return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static uint32_t version(void) { return (uint32_t)number_of("STANDIN_CUPTI", 130001); }

static size_t size_of(const struct activity *record) {
  switch (record->kind) {
  case ACTIVITY_CONCURRENT_KERNEL: return sizes->kernel;
  case ACTIVITY_MEMCPY: return sizes->copy;
  case ACTIVITY_MEMSET: return sizes->fill;
  case ACTIVITY_DRIVER: return 40;
  case ACTIVITY_UNIFIED_MEMORY_COUNTER: return sizes->migration;
  case ACTIVITY_DEVICE: return sizes->device;
  default: return sizes->overhead;
  }
}

/* Under the mutex. */
static void append(const void *record, size_t known, uint64_t end_ns) {
  long every = number_of("STANDIN_DROP", 0);
  size_t size = size_of(record);
  if (every && ++seen % (size_t)every == 0) {
    dropped++;
    return;
  }
  if (!last || last->used + size > last->size) {
    struct piece *piece = calloc(1, sizeof *piece);
    size_t most;
    request(&piece->data, &piece->size, &most);
    if (last) last->next = piece;
    else first = piece;
    last = piece;
  }
  memset(last->data + last->used, 0xa5, size);
  memcpy(last->data + last->used, record, known < size ? known : size);
  last->used += size;
  if (end_ns > last->ends_ns) last->ends_ns = end_ns;
}

/* ---- the range profiler: the count of a kernel's launch is made up, from its name, the metric and its number */

struct host { const char *metrics[64]; size_t count; bool is_broken; };
struct range { const char *kernel; uint32_t number; };
struct image { size_t count, most; struct range ranges[]; };
struct launches { const char *kernel; uint32_t count; struct launches *next; };
static callback called;
static void *user;
static struct launches *all_launches;
static struct image *collected;
static size_t pending_count, session_most;
static struct range pending[4096];
static bool counts;

/* As zlib's. */
static uint32_t checksum(const char *text) {
  uint32_t sum = 0xffffffff;
  for (; *text; text++) {
    sum ^= (uint8_t)*text;
    for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum;
}

static void count_launch(const char *kernel) {
  struct launches *own = all_launches;
  while (own && strcmp(own->kernel, kernel)) own = own->next;
  if (!own) {
    own = calloc(1, sizeof *own);
    *own = (struct launches){strdup(kernel), 0, all_launches};
    all_launches = own;
  }
  uint32_t number = own->count++;
  if (counts && pending_count < 4096) pending[pending_count++] = (struct range){own->kernel, number};
}

static int context_of_all;

static void tell_subscriber(const struct work_event *work) {
  if (!called) return;
  if (work->kind == WORK_END) called(user, DOMAIN_RESOURCE, CONTEXT_DESTROY_STARTING, &(struct resource_data){&context_of_all});
  if (work->kind != WORK_KERNEL) return;
  struct callback_data data = {.site = API_ENTER, .function = "cuLaunchKernel", .symbol = work->name, .context = &context_of_all};
  called(user, DOMAIN_DRIVER_API, 307, &data);
  data.site = API_ENTER + 1;
  called(user, DOMAIN_DRIVER_API, 307, &data);
  count_launch(work->name);
}

/* NVIDIA's sizes, of CUPTI 13.0. */
#define EXPECT(parameters, bytes) if ((parameters)->size != (bytes) || (parameters)->reserved) return INVALID_PARAMETER

static void observe_driver(void);

/* As NVIDIA's, some need a driver that is initialized: not yet while it loads the library. */
static bool is_initialized(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!driver) driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
  int count, (*ask)(int *) = driver ? (int (*)(int *))(uintptr_t)dlsym(driver, "cuDeviceGetCount") : NULL;
  return ask && !ask(&count);
}

API int cuptiSubscribe(void **subscriber, callback function, void *data) { observe_driver(); *subscriber = &called; called = function; user = data; return CUPTI_SUCCESS; }
API int cuptiEnableCallback(uint32_t enable, void *subscriber, uint32_t domain, uint32_t id) { (void)enable, (void)domain, (void)id; return subscriber == &called ? CUPTI_SUCCESS : INVALID_PARAMETER; }
API int cuptiGetDeviceId(void *context, uint32_t *device) { *device = 0; return context == &context_of_all ? CUPTI_SUCCESS : INVALID_PARAMETER; }

API int cuptiProfilerInitialize(struct profiler_parameters *of) { EXPECT(of, 16); return is_initialized() ? CUPTI_SUCCESS : NOT_INITIALIZED; }
API int cuptiDeviceGetChipName(struct chip_parameters *of) { EXPECT(of, 32); of->name = "GH100"; return CUPTI_SUCCESS; }

API int cuptiProfilerGetCounterAvailability(struct availability_parameters *of) {
  EXPECT(of, 40);
  if (!of->image) of->image_size = 64;
  else memset(of->image, 1, of->image_size);
  return CUPTI_SUCCESS;
}

API int cuptiProfilerHostInitialize(struct host_parameters *of) {
  EXPECT(of, 48);
  if (of->type || strcmp(of->chip, "GH100") || !of->availability || !*of->availability) return INVALID_PARAMETER;
  of->host = calloc(1, sizeof(struct host));
  return CUPTI_SUCCESS;
}

API int cuptiProfilerHostDeinitialize(struct host_end_parameters *of) { EXPECT(of, 24); free(of->host); return CUPTI_SUCCESS; }

/* As NVIDIA's: after a metric that the chip lacks, the object is of no use. */
API int cuptiProfilerHostConfigAddMetrics(struct metrics_parameters *of) {
  EXPECT(of, 40);
  struct host *host = of->host;
  const char *lacked = getenv("STANDIN_LACKS");
  if (host->is_broken) return 999;
  for (size_t place = 0; place < of->count; place++) {
    if (lacked && !strcmp(lacked, of->metrics[place])) {
      host->is_broken = true;
      return INVALID_PARAMETER;
    }
    host->metrics[host->count++] = of->metrics[place];
  }
  return CUPTI_SUCCESS;
}

API int cuptiProfilerHostGetConfigImageSize(struct config_size_parameters *of) { EXPECT(of, 32); of->config_size = 8; return CUPTI_SUCCESS; }
API int cuptiProfilerHostGetConfigImage(struct config_parameters *of) { EXPECT(of, 40); memset(of->config, 2, of->config_size); return CUPTI_SUCCESS; }

API int cuptiRangeProfilerEnable(struct enable_parameters *of) {
  EXPECT(of, 32);
  if (number_of("STANDIN_FORBID_COUNTERS", 0)) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  of->profiler = &session_most;
  return of->context == &context_of_all ? CUPTI_SUCCESS : INVALID_PARAMETER;
}

API int cuptiRangeProfilerDisable(struct range_parameters *of) { EXPECT(of, 24); return CUPTI_SUCCESS; }

API int cuptiRangeProfilerGetCounterDataSize(struct image_size_parameters *of) {
  EXPECT(of, 64);
  of->image_size = sizeof(struct image) + of->ranges * sizeof(struct range);
  return of->nodes >= of->ranges ? CUPTI_SUCCESS : INVALID_PARAMETER;
}

API int cuptiRangeProfilerCounterDataImageInitialize(struct image_parameters *of) {
  EXPECT(of, 40);
  struct image *image = (void *)of->image;
  *image = (struct image){0, (of->image_size - sizeof *image) / sizeof(struct range)};
  return CUPTI_SUCCESS;
}

API int cuptiRangeProfilerSetConfig(struct set_config_parameters *of) {
  EXPECT(of, 90);
  if (of->range != AUTO_RANGE || of->replay != KERNEL_REPLAY || of->levels != 1 || *of->config != 2) return INVALID_PARAMETER;
  collected = (void *)of->image;
  session_most = of->ranges;
  return CUPTI_SUCCESS;
}

API int cuptiRangeProfilerStart(struct range_parameters *of) { EXPECT(of, 24); counts = true; pending_count = 0; return CUPTI_SUCCESS; }
API int cuptiRangeProfilerStop(struct stop_parameters *of) { EXPECT(of, 41); counts = false; of->is_all = 1; return CUPTI_SUCCESS; }

API int cuptiRangeProfilerDecodeData(struct decode_parameters *of) {
  EXPECT(of, 32);
  size_t most = session_most < collected->most ? session_most : collected->most;
  collected->count = pending_count < most ? pending_count : most;
  of->dropped = pending_count - collected->count;
  memcpy(collected->ranges, pending, collected->count * sizeof *pending);
  return CUPTI_SUCCESS;
}

API int cuptiRangeProfilerGetCounterDataInfo(struct info_parameters *of) {
  EXPECT(of, 40);
  of->ranges = ((const struct image *)(const void *)of->image)->count;
  return CUPTI_SUCCESS;
}

API int cuptiProfilerHostEvaluateToGpuValues(struct evaluate_parameters *of) {
  EXPECT(of, 72);
  const struct range *range = ((const struct image *)(const void *)of->image)->ranges + of->range;
  char text[4096];
  for (size_t place = 0; place < of->count; place++) {
    snprintf(text, sizeof text, "%s %s", range->kernel, of->metrics[place]);
    of->values[place] = checksum(text) % 1000 + range->number;
  }
  return ((struct host *)of->host)->count ? CUPTI_SUCCESS : NOT_INITIALIZED;
}

static void on_work(const struct work_event *work) {
  tell_subscriber(work);
  pthread_mutex_lock(&mutex);
  if (work->kind == WORK_CALL && (enabled[ACTIVITY_DRIVER] || calls[work->function])) {
    struct activity_call record = {ACTIVITY_DRIVER, work->function, work->start_ns, work->end_ns, 0, work->thread, work->correlation};
    append(&record, sizeof record, work->end_ns);
  } else if (work->kind == WORK_KERNEL && enabled[ACTIVITY_CONCURRENT_KERNEL]) {
    struct activity_kernel record = {
        .kind = ACTIVITY_CONCURRENT_KERNEL, .registers = 32, .start_ns = work->start_ns, .end_ns = work->end_ns,
        .device = work->device, .context = work->device + 1, .stream = work->stream, .grid_x = (int)work->grid[0],
        .grid_y = (int)work->grid[1], .grid_z = (int)work->grid[2], .block_x = (int)work->block[0],
        .block_y = (int)work->block[1], .block_z = (int)work->block[2], .correlation = work->correlation,
        .name = work->name, .graph_node = work->graph_node, .graph = work->graph};
    append(&record, sizeof record, work->end_ns);
  } else if (work->kind == WORK_COPY && enabled[ACTIVITY_MEMCPY]) {
    struct activity_copy record = {
        .kind = ACTIVITY_MEMCPY, .copy_kind = (uint8_t)work->copy_kind, .bytes = work->bytes, .start_ns = work->start_ns,
        .end_ns = work->end_ns, .device = work->device, .context = work->device + 1, .stream = work->stream,
        .correlation = work->correlation, .graph_node = work->graph_node, .graph = work->graph};
    append(&record, sizeof record, work->end_ns);
  } else if (work->kind == WORK_FILL && enabled[ACTIVITY_MEMSET]) {
    struct activity_fill record = {
        .kind = ACTIVITY_MEMSET, .bytes = work->bytes, .start_ns = work->start_ns, .end_ns = work->end_ns,
        .device = work->device, .context = work->device + 1, .stream = work->stream, .correlation = work->correlation,
        .graph_node = work->graph_node, .graph = work->graph};
    append(&record, sizeof record, work->end_ns);
  } else if (work->kind == WORK_MIGRATION && enabled[ACTIVITY_UNIFIED_MEMORY_COUNTER]) {
    struct activity_migration record = {.kind = ACTIVITY_UNIFIED_MEMORY_COUNTER, .counter = MIGRATION_TO_DEVICE,
                                        .value = work->bytes, .start_ns = work->start_ns, .end_ns = work->end_ns};
    append(&record, sizeof record, work->end_ns);
  }
  pthread_mutex_unlock(&mutex);
}

API int cuptiGetVersion(uint32_t *told) { *told = version(); return CUPTI_SUCCESS; }
API int cuptiGetTimestamp(uint64_t *time) { *time = now_ns(); return CUPTI_SUCCESS; }

API int cuptiGetResultString(int status, const char **text) {
  *text = status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_OF_STANDIN";
  return CUPTI_SUCCESS;
}

API int cuptiActivityRegisterCallbacks(buffer_requested requested, buffer_completed completed) {
  request = requested;
  complete = completed;
  for (size_t place = 0; place < sizeof all_sizes / sizeof *all_sizes; place++)
    if (all_sizes[place].version <= version()) sizes = all_sizes + place;
  observe_driver();
  return CUPTI_SUCCESS;
}

static void observe_driver(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!driver) driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
  void (*observe)(observer) = driver ? (void (*)(observer))(uintptr_t)dlsym(driver, "standin_observe") : NULL;
  if (!observe) abort();
  observe(on_work);
}

API int cuptiActivityEnable(uint32_t kind) {
  if (kind == ACTIVITY_CONCURRENT_KERNEL && number_of("STANDIN_FORBID", 0)) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  enabled[kind] = true;
  return CUPTI_SUCCESS;
}

API int cuptiActivityEnableAndDump(uint32_t kind) {
  if (kind != ACTIVITY_DEVICE || !is_initialized()) return NOT_INITIALIZED;
  enabled[kind] = true;
  pthread_mutex_lock(&mutex);
  for (uint32_t id = 0; id < (uint32_t)number_of("STANDIN_DEVICES", 1); id++) {
    struct activity_device record = {.kind = ACTIVITY_DEVICE, .bandwidth_kb_s = 3352320000, .memory_bytes = 85029158912,
                                     .l2_bytes = 52428800, .clock_khz = 1980000, .multiprocessors = 132,
                                     .capability_major = (uint32_t)number_of("STANDIN_CAPABILITY", 9), .id = id, .name = "stand-in",
                                     .is_mig = number_of("STANDIN_MIG", 0) != 0};
    append(&record, sizeof record, 0);
  }
  pthread_mutex_unlock(&mutex);
  return CUPTI_SUCCESS;
}

/* NVIDIA's came with 12.5, whose version is 23. */
API int cuptiActivityEnableDriverApi(uint32_t function, uint8_t enable) {
  if (version() < 23) return INVALID_PARAMETER;
  calls[function] = enable;
  return CUPTI_SUCCESS;
}

API int cuptiActivityConfigureUnifiedMemoryCounter(struct migration_config *config, uint32_t count) {
  if (!is_initialized()) return NOT_INITIALIZED;
  return config && count == 2 * (uint32_t)number_of("STANDIN_DEVICES", 1) ? CUPTI_SUCCESS : INVALID_PARAMETER;
}

API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, struct activity **record) {
  uint8_t *next = *record ? (uint8_t *)*record + size_of(*record) : buffer;
  if (next >= buffer + valid) return MAX_LIMIT_REACHED;
  *record = (struct activity *)(void *)next;
  return CUPTI_SUCCESS;
}

API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
  (void)context, (void)stream;
  pthread_mutex_lock(&mutex);
  *count = dropped;
  dropped = 0;
  pthread_mutex_unlock(&mutex);
  return CUPTI_SUCCESS;
}

/* Work of this record that has not ended has no times. */
static void take_times(struct piece *piece) {
  struct activity *record = NULL;
  uint64_t now = now_ns();
  while (cuptiActivityGetNextRecord(piece->data, piece->used, &record) == CUPTI_SUCCESS) {
    struct activity_kernel *kernel = (struct activity_kernel *)(void *)record;
    if (record->kind == ACTIVITY_CONCURRENT_KERNEL && kernel->end_ns > now) kernel->start_ns = kernel->end_ns = 0;
  }
}

API int cuptiActivityFlushAll(uint32_t flag) {
  struct piece *done = NULL, **end = &done;
  pthread_mutex_lock(&mutex);
  while (first && (flag & FLUSH_FORCED || first->ends_ns <= now_ns())) {
    *end = first;
    first = first->next;
    (*end)->next = NULL;
    end = &(*end)->next;
  }
  if (!first) last = NULL;
  pthread_mutex_unlock(&mutex);
  while (done) {
    struct piece *next = done->next;
    if (flag & FLUSH_FORCED) take_times(done);
    complete(NULL, 0, done->data, done->size, done->used);
    free(done);
    done = next;
  }
  return CUPTI_SUCCESS;
}
