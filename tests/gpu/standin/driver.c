/* A libcuda for machines without a GPU: the entry points that IREE's runtime and tests/gpu/standin/host.c call.
 *
 * Memory is the host's, copies and fills are carried out, and kernels compute nothing. Work takes time on the clock of a
 * device that works through each stream in order: kernels take the times recorded on a real GPU (STANDIN_TIMES, a file
 * with `nanoseconds name` per line, taken in turn), others 2 us. Waits last until that time. As the real driver does,
 * `cuInit` loads the library named by CUDA_INJECTION64_PATH and calls its InitializeInjection.
 *
 *   STANDIN_DEVICES        number of devices (1)      STANDIN_DRIVER   the driver's CUDA version (13000)
 *   STANDIN_NO_INJECTION   ignore CUDA_INJECTION64_PATH
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

#define API __attribute__((visibility("default")))
#define OK 0
#define INVALID 1
#define OUT_OF_MEMORY 2
#define NOT_INITIALIZED 3
#define NOT_FOUND 500
#define NOT_READY 600

typedef struct stream { uint32_t id, device; uint64_t end_ns; } *CUstream;
typedef struct event { uint64_t at_ns; } *CUevent;
typedef struct function { char *name; } *CUfunction;
typedef struct context { uint32_t device; } *CUcontext;
typedef struct module { int unused; } *CUmodule;
typedef struct node { struct work_event work; void *to; const void *from; struct node *next; uint64_t id; } *CUgraphNode;
typedef struct graph { CUgraphNode first, last; uint32_t id; } *CUgraph, *CUgraphExec;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static observer observed;
static bool initialized;
static uint32_t correlation, streams = 12, graphs;
static uint64_t nodes;
static struct context contexts[8];
static __thread CUcontext current;
static struct stream default_stream = {7, 0, 0};

API void standin_observe(observer told) { observed = told; }

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void wait_until(uint64_t ns) {
  for (uint64_t now = now_ns(); now < ns; now = now_ns())
    if (ns - now > 100000) usleep((useconds_t)((ns - now - 50000) / 1000));
}

static long number_of(const char *variable, long otherwise) {
  const char *text = getenv(variable);
  return text && *text ? strtol(text, NULL, 10) : otherwise;
}

/* ---- times of kernels */

struct timed { char *name; uint64_t *ns; size_t count, next; struct timed *after; };
static struct timed *timed_kernels;

static struct timed *timed_of(const char *name) {
  struct timed *own = timed_kernels;
  while (own && strcmp(own->name, name)) own = own->after;
  return own;
}

static void read_times(void) {
  const char *path = getenv("STANDIN_TIMES");
  FILE *file = path ? fopen(path, "r") : NULL;
  char name[4096];
  unsigned long long ns;
  while (file && fscanf(file, "%llu %4095s", &ns, name) == 2) {
    struct timed *own = timed_of(name);
    if (!own) {
      own = calloc(1, sizeof *own);
      own->name = strdup(name);
      own->after = timed_kernels;
      timed_kernels = own;
    }
    own->ns = realloc(own->ns, (own->count + 1) * sizeof *own->ns);
    own->ns[own->count++] = ns;
  }
  if (file) fclose(file);
}

static uint64_t duration_of(const struct work_event *work) {
  struct timed *own = work->kind == WORK_KERNEL ? timed_of(work->name) : NULL;
  if (own) return own->ns[own->next++ % own->count];
  return 2000 + work->bytes / 1000;
}

/* ---- work */

static void tell(struct work_event work) { if (observed) observed(&work); }

/* Puts work at the end of a stream; the caller holds the mutex. */
static void run(struct work_event work, CUstream stream, uint32_t call) {
  uint64_t ready = now_ns() + 1000;
  stream = stream ? stream : &default_stream;
  work.start_ns = ready > stream->end_ns ? ready : stream->end_ns + 500;
  work.end_ns = stream->end_ns = work.start_ns + duration_of(&work);
  work.device = stream->device;
  work.stream = stream->id;
  work.correlation = call;
  tell(work);
}

static int submit(struct work_event work, CUstream stream, uint32_t function) {
  uint64_t start = now_ns();
  pthread_mutex_lock(&mutex);
  uint32_t call = ++correlation;
  run(work, stream, call);
  tell((struct work_event){.kind = WORK_CALL, .function = function, .correlation = call, .start_ns = start,
                           .end_ns = now_ns(), .thread = (uint32_t)syscall(SYS_gettid)});
  pthread_mutex_unlock(&mutex);
  return OK;
}

/* ---- the driver, devices and contexts */

API int cuInit(unsigned flags) {
  static bool begun;
  const char *path = getenv("CUDA_INJECTION64_PATH");
  (void)flags;
  if (begun) return OK;
  begun = true;
  read_times();
  for (uint32_t device = 0; device < 8; device++) contexts[device].device = device;
  void *library = path && *path && !number_of("STANDIN_NO_INJECTION", 0) ? dlopen(path, RTLD_NOW) : NULL;
  int (*initialize)(void) = library ? (int (*)(void))(uintptr_t)dlsym(library, "InitializeInjection") : NULL;
  if (initialize) initialize();
  __atomic_store_n(&initialized, true, __ATOMIC_RELEASE);
  return OK;
}

API int cuDriverGetVersion(int *version) { *version = (int)number_of("STANDIN_DRIVER", 13000); return OK; }
API int cuGetErrorName(int error, const char **text) { *text = error ? "STANDIN_ERROR" : "CUDA_SUCCESS"; return OK; }
API int cuGetErrorString(int error, const char **text) { *text = error ? "error of the stand-in" : "no error"; return OK; }
API int cuDeviceGetCount(int *count) { if (!__atomic_load_n(&initialized, __ATOMIC_ACQUIRE)) return NOT_INITIALIZED; *count = (int)number_of("STANDIN_DEVICES", 1); return OK; }
API int cuDeviceGet(int *device, int number) { *device = number; return OK; }
API int cuDeviceGetName(char *name, int size, int device) { snprintf(name, (size_t)size, "stand-in %d", device); return OK; }
API int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0, 16); uuid[15] = (char)device; return OK; }

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
  case 1: case 2: case 3: *value = 1024; break; /* threads per block, and in x and y */
  case 4: *value = 64; break;              /* in z */
  case 8: case 97: *value = 99 << 10; break; /* shared memory per block */
  case 75: *value = 9; break;              /* capability */
  case 76: *value = 0; break;
  case 115: *value = (int)number_of("STANDIN_POOLS", 0); break; /* memory pools */
  default: *value = 1;
  }
  return OK;
}

API int cuDevicePrimaryCtxRetain(CUcontext *context, int device) { *context = contexts + device; return OK; }
API int cuDevicePrimaryCtxRelease(int device) { tell((struct work_event){.kind = WORK_END, .device = (uint32_t)device}); return OK; }
API int cuCtxCreate(CUcontext *context, unsigned flags, int device) { (void)flags; *context = current = contexts + device; return OK; }
API int cuCtxDestroy(CUcontext context) { (void)context; return OK; }
API int cuCtxSetCurrent(CUcontext context) { current = context; return OK; }
API int cuCtxPushCurrent(CUcontext context) { current = context; return OK; }
API int cuCtxPopCurrent(CUcontext *context) { if (context) *context = current; return OK; }

/* ---- streams and events */

API int cuStreamCreate(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = calloc(1, sizeof **stream);
  pthread_mutex_lock(&mutex);
  (*stream)->id = ++streams;
  pthread_mutex_unlock(&mutex);
  (*stream)->device = current ? current->device : 0;
  return OK;
}

API int cuStreamDestroy(CUstream stream) { free(stream); return OK; }
API int cuStreamSynchronize(CUstream stream) { wait_until((stream ? stream : &default_stream)->end_ns); return OK; }

API int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  (void)flags;
  stream = stream ? stream : &default_stream;
  if (event->at_ns > stream->end_ns) stream->end_ns = event->at_ns;
  return OK;
}

API int cuEventCreate(CUevent *event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return OK; }
API int cuEventDestroy(CUevent event) { free(event); return OK; }

API int cuEventRecord(CUevent event, CUstream stream) {
  uint64_t end = (stream ? stream : &default_stream)->end_ns, now = now_ns();
  event->at_ns = end > now ? end : now;
  return OK;
}

API int cuEventQuery(CUevent event) { return now_ns() < event->at_ns ? NOT_READY : OK; }
API int cuEventSynchronize(CUevent event) { wait_until(event->at_ns); return OK; }
API int cuEventElapsedTime(float *ms, CUevent from, CUevent to) { *ms = (float)(to->at_ns - from->at_ns) / 1e6f; return OK; }

API int cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
  wait_until((stream ? stream : &default_stream)->end_ns);
  function(data);
  return OK;
}

/* ---- memory */

static int allocate(void **memory, size_t size) { return posix_memalign(memory, 4096, size ? size : 1) ? OUT_OF_MEMORY : OK; }

API int cuMemAlloc(void **memory, size_t size) { return allocate(memory, size); }
API int cuMemAllocManaged(void **memory, size_t size, unsigned flags) { (void)flags; return allocate(memory, size); }
API int cuMemHostAlloc(void **memory, size_t size, unsigned flags) { (void)flags; return allocate(memory, size); }
API int cuMemFree(void *memory) { free(memory); return OK; }
API int cuMemFreeHost(void *memory) { free(memory); return OK; }
API int cuMemHostRegister(void *memory, size_t size, unsigned flags) { (void)memory, (void)size, (void)flags; return OK; }
API int cuMemHostUnregister(void *memory) { (void)memory; return OK; }
API int cuMemHostGetDevicePointer(void **device, void *host, unsigned flags) { (void)flags; *device = host; return OK; }
API int cuMemPoolCreate(void **pool, const void *properties) { (void)properties; *pool = malloc(1); return OK; }
API int cuMemPoolDestroy(void *pool) { free(pool); return OK; }
API int cuMemPoolSetAccess(void *pool, const void *access, size_t count) { (void)pool, (void)access, (void)count; return OK; }
API int cuMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) { (void)pool, (void)attribute; *value = 0; return OK; }
API int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { (void)pool, (void)attribute, (void)value; return OK; }
API int cuMemPoolTrimTo(void *pool, size_t size) { (void)pool, (void)size; return OK; }
API int cuMemAllocFromPoolAsync(void **memory, size_t size, void *pool, CUstream stream) { (void)pool, (void)stream; return allocate(memory, size); }
API int cuMemFreeAsync(void *memory, CUstream stream) { (void)stream; free(memory); return OK; }

API int cuMemPrefetchAsync(void *memory, size_t size, int device, CUstream stream) {
  (void)memory, (void)device;
  pthread_mutex_lock(&mutex);
  run((struct work_event){.kind = WORK_MIGRATION, .bytes = size}, stream, 0);
  pthread_mutex_unlock(&mutex);
  return OK;
}

API int cuMemcpyAsync(void *to, const void *from, size_t size, CUstream stream) {
  memmove(to, from, size);
  return submit((struct work_event){.kind = WORK_COPY, .bytes = size, .copy_kind = 8}, stream, 306);
}

API int cuMemcpyHtoDAsync(void *to, const void *from, size_t size, CUstream stream) {
  memmove(to, from, size);
  return submit((struct work_event){.kind = WORK_COPY, .bytes = size, .copy_kind = 1}, stream, 277);
}

#define FILL(name, type, function)                                                                   \
  API int name(type *to, type value, size_t count, CUstream stream) {                                \
    for (size_t place = 0; place < count; place++) to[place] = value;                                \
    return submit((struct work_event){.kind = WORK_FILL, .bytes = count * sizeof(type)}, stream, function); \
  }
FILL(cuMemsetD8Async, uint8_t, 216)
FILL(cuMemsetD16Async, uint16_t, 218)
FILL(cuMemsetD32Async, uint32_t, 220)

/* ---- kernels */

API int cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, void *options, void **values) {
  (void)image, (void)count, (void)options, (void)values;
  *module = calloc(1, sizeof **module);
  return OK;
}

API int cuModuleUnload(CUmodule module) { free(module); return OK; }
API int cuModuleGetGlobal(void **memory, size_t *size, CUmodule module, const char *name) { (void)memory, (void)size, (void)module, (void)name; return NOT_FOUND; }
API int cuFuncSetAttribute(CUfunction function, int attribute, int value) { (void)function, (void)attribute, (void)value; return OK; }

API int cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)module;
  *function = malloc(sizeof **function);
  (*function)->name = strdup(name);
  return OK;
}

API int cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, CUstream stream, void **parameters, void **extra) {
  (void)shared, (void)parameters, (void)extra;
  return submit((struct work_event){.kind = WORK_KERNEL, .name = function->name, .grid = {x, y, z}, .block = {bx, by, bz}},
                stream, 307);
}

/* ---- graphs: nodes run in the order in which they were added */

struct kernel_parameters { CUfunction function; unsigned grid[3], block[3], shared; void **parameters, **extra; };
struct side { size_t x, y, z, level; int type; void *host, *device, *array, *reserved; size_t pitch, height; };
struct copy_parameters { struct side from, to; size_t width, height, depth; };
struct fill_parameters { void *to; size_t pitch; unsigned value, element_bytes; size_t width, height; };

static int add(CUgraphNode *node, CUgraph graph, struct work_event work) {
  *node = calloc(1, sizeof **node);
  (*node)->work = work;
  (*node)->id = ++nodes;
  if (graph->last) graph->last->next = *node;
  else graph->first = *node;
  graph->last = *node;
  return OK;
}

API int cuGraphCreate(CUgraph *graph, unsigned flags) { (void)flags; *graph = calloc(1, sizeof **graph); (*graph)->id = ++graphs; return OK; }
API int cuGraphDestroy(CUgraph graph) { (void)graph; return OK; } /* its executable one shares the nodes */
API int cuGraphExecDestroy(CUgraphExec graph) { (void)graph; return OK; }
API int cuGraphGetNodes(CUgraph graph, CUgraphNode *listed, size_t *count) {
  size_t found = 0;
  for (CUgraphNode node = graph->first; node; node = node->next, found++)
    if (listed && found < *count) listed[found] = node;
  *count = found;
  return OK;
}

API int cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, void *a, void *b, size_t c) { (void)a, (void)b, (void)c; *executable = graph; return OK; }
API int cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const void *after, size_t count) { (void)after, (void)count; return add(node, graph, (struct work_event){0}); }
API int cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const void *after, size_t count, CUevent event) { (void)event; return cuGraphAddEmptyNode(node, graph, after, count); }

API int cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const void *after, size_t count, const struct kernel_parameters *of) {
  (void)after, (void)count;
  struct work_event work = {.kind = WORK_KERNEL, .name = of->function->name};
  memcpy(work.grid, of->grid, sizeof work.grid);
  memcpy(work.block, of->block, sizeof work.block);
  return add(node, graph, work);
}

API int cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const void *after, size_t count, const struct copy_parameters *of, CUcontext context) {
  (void)after, (void)count, (void)context;
  int status = add(node, graph, (struct work_event){.kind = WORK_COPY, .bytes = of->width * of->height * of->depth, .copy_kind = 8});
  (*node)->to = (char *)(of->to.device ? of->to.device : of->to.host) + of->to.x;
  (*node)->from = (char *)(of->from.device ? of->from.device : of->from.host) + of->from.x;
  return status;
}

API int cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const void *after, size_t count, const struct fill_parameters *of, CUcontext context) {
  (void)after, (void)count, (void)context;
  return add(node, graph, (struct work_event){.kind = WORK_FILL, .bytes = of->width * of->height * of->element_bytes});
}

API int cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  uint64_t start = now_ns();
  pthread_mutex_lock(&mutex);
  uint32_t call = ++correlation;
  for (CUgraphNode node = graph->first; node; node = node->next) {
    if (!node->work.kind) continue;
    if (node->to) memmove(node->to, node->from, node->work.bytes);
    node->work.graph = graph->id;
    node->work.graph_node = ((uint64_t)graph->id << 32) + node->id;
    run(node->work, stream, call);
  }
  tell((struct work_event){.kind = WORK_CALL, .function = 514, .correlation = call, .start_ns = start, .end_ns = now_ns(),
                           .thread = (uint32_t)syscall(SYS_gettid)});
  pthread_mutex_unlock(&mutex);
  return OK;
}

/* ---- the functions by name */

API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  (void)version, (void)flags;
  Dl_info own;
  static void *library;
  if (!library && dladdr((void *)(uintptr_t)cuInit, &own)) library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = library ? dlsym(library, name) : NULL;
  return *function ? OK : NOT_FOUND;
}
