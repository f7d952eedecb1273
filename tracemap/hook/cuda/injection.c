/* The library that CUDA's driver loads into a process by CUDA_INJECTION64_PATH: it records each kernel, copy, fill and
 * migration of managed memory, with the driver's calls that submitted them, by CUPTI's activity records.
 *
 *   injection   begins, flushes and ends a recording; signals and forks; records of CUPTI to records of ours
 *   counting    counts of each launch, instead of activity
 *   recording   the files of the process
 *   cupti       NVIDIA's functions and records        layout   the files' layout
 *   and of the hook: files, lock, system, layout
 *
 * A thread of our own flushes a few times a second, so a killed program loses less than a second, and takes signals that
 * would end the program: it flushes, and then lets the signal end it.
 */
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdlib.h>

#include "../lock.h"
#include "counting.h"
#include "recording.h"

#define BUFFER_BYTES (256u << 10) /* small, since a flush leaves a buffer in which a record is incomplete */
#define FLUSH_MS 200
#define MOST_DEVICES 64u
#define MOST_MOVED 256u /* records that are written at once */

static struct cupti cupti;
/* A futex: the handler writes a signal's number, which wakes the thread. No descriptor, since programs may close all. */
static int ending_signal;
static bool begun, ended, abandoned, counting;
static bool is_set_up;
static int (*count_devices)(int *); /* the driver's */
static bool is_listening; /* atomic: the thread is there to take signals */
static struct lock end_lock;
static uint64_t from_ns, until_ns; /* the window on CUPTI's clock; records of work that began in it are kept */
static pthread_t flusher;

/* ---- clocks */

static struct activity_record moment(void) {
  struct activity_record best = {.kind = RECORDED_MOMENT, .bytes = UINT64_MAX};
  for (int attempt = 0; attempt < 4; attempt++) {
    uint64_t before = monotonic_ns(), middle = 0;
    if (cupti.cuptiGetTimestamp(&middle) != CUPTI_SUCCESS) continue;
    uint64_t after = monotonic_ns();
    if (after - before >= best.bytes) continue;
    best.start_ns = middle;
    best.end_ns = before + (after - before) / 2;
    best.bytes = after - before;
  }
  return best;
}

static void add_moment(void) {
  struct activity_record now = moment();
  if (now.start_ns) recording_add(&now, 1);
}

/* ---- records */

static bool is_submitting(uint32_t function) {
  switch (function) {
#define CASE(number) case number:
    SUBMITTING_CALLS(CASE)
    return true;
  default: return false;
  }
}

/* Also a record without times, of work that had not ended: readers count it. */
static bool is_in_window(const struct activity_record *record) {
  return !record->start_ns || (record->start_ns >= from_ns && record->start_ns < until_ns);
}

/* False if the record is not recorded. */
static bool convert(const struct activity *any, struct activity_record *record) {
  *record = (struct activity_record){0};
  switch (any->kind) {
  case ACTIVITY_KERNEL:
  case ACTIVITY_CONCURRENT_KERNEL: {
    const struct activity_kernel *own = (const void *)any;
    *record = (struct activity_record){
        .kind = RECORDED_KERNEL, .start_ns = own->start_ns, .end_ns = own->end_ns, .name = recording_name(own->name),
        .correlation = own->correlation, .device = own->device, .context = own->context, .stream = own->stream,
        .graph = own->graph, .graph_node = own->graph_node, .grid_x = (uint32_t)own->grid_x,
        .grid_y = (uint32_t)own->grid_y, .grid_z = (uint32_t)own->grid_z, .block_x = (uint32_t)own->block_x,
        .block_y = (uint32_t)own->block_y, .block_z = (uint32_t)own->block_z, .registers = own->registers,
        .static_shared = (uint32_t)own->static_shared, .dynamic_shared = (uint32_t)own->dynamic_shared};
    return true;
  }
  case ACTIVITY_MEMCPY: {
    const struct activity_copy *own = (const void *)any;
    *record = (struct activity_record){
        .kind = RECORDED_COPY, .detail = own->copy_kind, .start_ns = own->start_ns, .end_ns = own->end_ns,
        .bytes = own->bytes, .correlation = own->correlation, .device = own->device, .context = own->context,
        .stream = own->stream, .graph = own->graph, .graph_node = own->graph_node};
    return true;
  }
  case ACTIVITY_MEMCPY2: {
    const struct activity_peer_copy *own = (const void *)any;
    *record = (struct activity_record){
        .kind = RECORDED_COPY, .detail = own->copy_kind, .start_ns = own->start_ns, .end_ns = own->end_ns,
        .bytes = own->bytes, .correlation = own->correlation, .device = own->device, .context = own->context,
        .stream = own->stream, .graph = own->graph, .graph_node = own->graph_node};
    return true;
  }
  case ACTIVITY_MEMSET: {
    const struct activity_fill *own = (const void *)any;
    *record = (struct activity_record){
        .kind = RECORDED_FILL, .start_ns = own->start_ns, .end_ns = own->end_ns, .bytes = own->bytes,
        .correlation = own->correlation, .device = own->device, .context = own->context, .stream = own->stream,
        .graph = own->graph, .graph_node = own->graph_node};
    return true;
  }
  case ACTIVITY_DRIVER: {
    const struct activity_call *own = (const void *)any;
    if (!is_submitting(own->function)) return false;
    *record = (struct activity_record){.kind = RECORDED_CALL, .detail = own->function, .start_ns = own->start_ns,
                                       .end_ns = own->end_ns, .correlation = own->correlation, .thread = own->thread};
    return true;
  }
  case ACTIVITY_OVERHEAD: {
    const struct activity_overhead *own = (const void *)any;
    *record = (struct activity_record){.kind = RECORDED_OVERHEAD, .detail = own->overhead_kind, .start_ns = own->start_ns,
                                       .end_ns = own->end_ns};
    return true;
  }
  case ACTIVITY_UNIFIED_MEMORY_COUNTER: {
    const struct activity_migration *own = (const void *)any;
    bool is_to_host = own->counter == MIGRATION_TO_HOST;
    if (own->counter != MIGRATION_TO_DEVICE && !is_to_host && own->counter != MIGRATION_BETWEEN_DEVICES) return false;
    *record = (struct activity_record){.kind = RECORDED_MIGRATION, .detail = own->counter, .start_ns = own->start_ns,
                                       .end_ns = own->end_ns, .bytes = own->value,
                                       .device = is_to_host ? own->source_device : own->target_device};
    return true;
  }
  case ACTIVITY_DEVICE: recording_add_device((const void *)any); return false;
  default: return false;
  }
}

static void requested(uint8_t **buffer, size_t *size, size_t *max_records) {
  *size = BUFFER_BYTES;
  *max_records = 0;
  *buffer = aligned_alloc(8, BUFFER_BYTES);
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size) {
  (void)size;
  struct activity_record moved[MOST_MOVED];
  size_t count = 0, dropped = 0;
  struct activity *any = NULL;
  while (!abandoned && valid_size && cupti.cuptiActivityGetNextRecord(buffer, valid_size, &any) == CUPTI_SUCCESS) {
    if (!convert(any, moved + count) || !is_in_window(moved + count)) continue;
    if (++count < MOST_MOVED) continue;
    recording_add(moved, count);
    count = 0;
  }
  if (!abandoned && cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped)
    moved[count++] = (struct activity_record){.kind = RECORDED_DROPPED, .bytes = dropped, .stream = stream};
  if (count) recording_add(moved, count);
  free(buffer);
}

/* ---- what is recorded */

static bool enable(uint32_t kind, const char *what) {
  int status = cupti.cuptiActivityEnable(kind);
  if (status == CUPTI_SUCCESS) return true;
  const char *text = "unknown error";
  cupti.cuptiGetResultString(status, &text);
  char reason[512];
  bool is_forbidden = status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ||
                      status == CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED ||
                      status == CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES;
  snprintf(reason, sizeof reason, "CUPTI does not record %s: %s", what, text);
  if (!is_forbidden) {
    recording_lose(what, reason);
    return false;
  }
  snprintf(reason, sizeof reason, "this process may not profile the GPU (%s): run as root, set the driver's option "
           "NVreg_RestrictProfilingToAdminUsers=0, or start the container with --cap-add SYS_ADMIN", text);
  recording_refuse("no-permission", reason);
  return false;
}

static void enable_migration(uint32_t devices) {
  const char *asked = getenv("TRACEMAP_CUDA_MIGRATION");
  if (!cupti.cuptiActivityConfigureUnifiedMemoryCounter || (asked && !strcmp(asked, "0"))) return;
  struct migration_config config[2 * MOST_DEVICES];
  uint32_t count = 0;
  for (uint32_t device = 0; device < devices && device < MOST_DEVICES; device++) {
    config[count++] = (struct migration_config){SCOPE_SINGLE_DEVICE, MIGRATION_TO_DEVICE, device, 1};
    config[count++] = (struct migration_config){SCOPE_SINGLE_DEVICE, MIGRATION_TO_HOST, device, 1};
  }
  if (!count) return;
  int status = cupti.cuptiActivityConfigureUnifiedMemoryCounter(config, count);
  const char *text = "unknown error";
  if (status == CUPTI_SUCCESS) {
    enable(ACTIVITY_UNIFIED_MEMORY_COUNTER, "migration");
    return;
  }
  cupti.cuptiGetResultString(status, &text);
  recording_lose("migration", text);
}

/* What needs a driver that is initialized: it is not yet when it loads this library. */
static void set_up(void) {
  int devices = 0;
  if (is_set_up || counting || !count_devices || count_devices(&devices)) return;
  is_set_up = true;
  if (cupti.cuptiActivityEnableAndDump && cupti.cuptiActivityEnableAndDump(ACTIVITY_DEVICE) != CUPTI_SUCCESS)
    enable(ACTIVITY_DEVICE, "devices");
  enable_migration((uint32_t)devices);
}

/* ---- the end */

static void finish(void) {
  lock_take(&end_lock);
  if (begun && !ended && !abandoned) {
    ended = true;
    set_up(); /* of a program that ends at once */
    if (counting) counting_end();
    else cupti.cuptiActivityFlushAll(FLUSH_FORCED);
    add_moment();
    struct activity_record last = moment();
    recording_end(last.start_ns, last.end_ns);
  }
  lock_release(&end_lock);
}

static void on_exit_of_program(void) {
  if (process_is_own()) finish();
}

static void *flush_repeatedly(void *unused) {
  (void)unused;
  uint64_t begun_ns = monotonic_ns(), moment_ns = begun_ns;
  bool is_awaiting = !counting; /* the end of the driver's initialization, after which the program's work begins */
  for (;;) {
    const struct timespec period = {0, (is_awaiting ? 1 : FLUSH_MS) * 1000000};
    system_call(SYS_futex, (long)&ending_signal, FUTEX_WAIT_PRIVATE, 0, (long)&period, 0, 0);
    int number = __atomic_load_n(&ending_signal, __ATOMIC_ACQUIRE);
    if (number) {
      finish();
      struct sigaction plain = {.sa_handler = SIG_DFL};
      sigaction(number, &plain, NULL);
      kill(getpid(), number);
      return NULL;
    }
    lock_take(&end_lock);
    if (ended) {
      __atomic_store_n(&is_listening, false, __ATOMIC_RELEASE);
      lock_release(&end_lock);
      return NULL;
    }
    set_up();
    if (!counting && !is_awaiting) cupti.cuptiActivityFlushAll(0);
    is_awaiting = is_awaiting && !is_set_up && monotonic_ns() - begun_ns < SECOND_NS;
    if (monotonic_ns() - moment_ns >= SECOND_NS) {
      add_moment();
      moment_ns = monotonic_ns();
    }
    lock_release(&end_lock);
  }
}

/* ---- signals that would end the program, and forks */

static const int ending_signals[] = {SIGTERM, SIGINT, SIGHUP};

static void on_ending_signal(int number) {
  int error = errno;
  /* A child has no thread (after vfork it has the memory of its parent), nor has a program that already exits. */
  if (!__atomic_load_n(&is_listening, __ATOMIC_ACQUIRE) || !process_is_own()) {
    signal(number, SIG_DFL);
    raise(number);
  } else {
    __atomic_store_n(&ending_signal, number, __ATOMIC_RELEASE);
    system_call(SYS_futex, (long)&ending_signal, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
  }
  errno = error;
}

/* Only signals that nobody handles: a program with a handler ends by itself, and then flushes at exit. */
static void take_signals(void) {
  for (size_t place = 0; place < sizeof ending_signals / sizeof *ending_signals; place++) {
    struct sigaction present, ours = {.sa_handler = on_ending_signal, .sa_flags = SA_RESTART};
    if (sigaction(ending_signals[place], NULL, &present) || present.sa_flags & SA_SIGINFO || present.sa_handler != SIG_DFL)
      continue;
    sigemptyset(&ours.sa_mask);
    sigaction(ending_signals[place], &ours, NULL);
  }
}

/* CUDA does not work in a forked child, and the files are the parent's. No lock is held during a fork: one of CUPTI's
 * threads might wait for it with a lock of CUPTI's. So the child may inherit a lock from a thread that it lacks. */
static void after_fork_in_child(void) {
  process_is_new();
  abandoned = true;
  is_listening = false;
  end_lock = (struct lock){0};
  recording_abandon();
}

/* ---- the begin */

/* Separated by colons; used if no list is given. */
static const char system_names[] = "libcupti.so.13:libcupti.so.12:libcupti.so";

/* False if there is none; else `status` has the result of asking for its version. */
static bool open_cupti(const char *path, int *status) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  bool whole = true;
#define TAKE(name, arguments) cupti.name = (__typeof__(cupti.name))(uintptr_t)dlsym(library, #name);
#define CHECK(name, arguments) whole = whole && cupti.name;
  CUPTI_FUNCTIONS(TAKE)
  CUPTI_FUNCTIONS(CHECK)
  CUPTI_OPTIONAL_FUNCTIONS(TAKE)
  CUPTI_COUNTING_FUNCTIONS(TAKE)
  if (!whole) return false;
  *status = cupti.cuptiGetVersion(&cupti.version);
  return true;
}

static unsigned cuda_major_of(uint32_t version) { return version >= CUPTI_13_FIRST ? version / 10000 : 12; }

/* The driver's CUDA version, such as 13000; 0 if unknown. The driver is loaded, since it has loaded us. */
static int ask_driver(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!driver) driver = dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
  int (*ask)(int *) = driver ? (int (*)(int *))(uintptr_t)dlsym(driver, "cuDriverGetVersion") : NULL;
  count_devices = driver ? (int (*)(int *))(uintptr_t)dlsym(driver, "cuDeviceGetCount") : NULL;
  int version = 0;
  return ask && !ask(&version) ? version : 0;
}

/* The first library of the list that this driver can work with. */
static bool find_cupti(int driver) {
  char paths[8192], text[512];
  const char *given = getenv("TRACEMAP_CUDA_CUPTI");
  uint32_t unknown = 0, newer = 0;
  int status, failed = CUPTI_SUCCESS;
  snprintf(paths, sizeof paths, "%s", given && *given ? given : system_names);
  char *rest = NULL;
  for (char *path = strtok_r(paths, ":", &rest); path; path = strtok_r(NULL, ":", &rest)) {
    if (!open_cupti(path, &status)) continue;
    if (status != CUPTI_SUCCESS) failed = status;
    else if (!cupti_is_known(cupti.version)) unknown = cupti.version;
    else if (driver && cuda_major_of(cupti.version) > (unsigned)driver / 1000) newer = cupti.version;
    else return true;
  }
  if (unknown) {
    snprintf(text, sizeof text, "CUPTI of version %u is not known: install nvidia-cuda-cupti 13.0 or 13.1, or "
             "nvidia-cuda-cupti-cu12", unknown);
    recording_refuse("cupti-unknown", text);
  } else if (newer) {
    snprintf(text, sizeof text, "CUPTI of CUDA %u needs a newer driver than this one, of CUDA %d.%d: update the driver, or "
             "install nvidia-cuda-cupti-cu12", cuda_major_of(newer), driver / 1000, driver % 1000 / 10);
    recording_refuse("cupti-newer-than-driver", text);
  } else if (failed != CUPTI_SUCCESS) {
    snprintf(text, sizeof text, "CUPTI does not work with this driver (error %d): pip install 'nvidia-cuda-cupti<13.2'", failed);
    recording_refuse("cupti-failed", text);
  } else {
    recording_refuse("cupti-missing", "CUPTI is not installed: pip install 'tracemap[cuda]'");
  }
  return false;
}

/* Single calls where CUPTI can (from 12.5 on), since each record costs time in the call; else all. */
static void enable_calls(void) {
  bool are_single = cupti.cuptiActivityEnableDriverApi;
#define ENABLE(number) are_single = are_single && cupti.cuptiActivityEnableDriverApi(number, 1) == CUPTI_SUCCESS;
  SUBMITTING_CALLS(ENABLE)
  if (!are_single) enable(ACTIVITY_DRIVER, "calls");
}

/* Below 2^32, so that nanoseconds and bytes computed from it fit into 64 bits. */
static uint64_t number_of(const char *variable, uint64_t otherwise) {
  const char *text = getenv(variable);
  if (!text || !*text) return otherwise;
  char *end = NULL;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  if (!errno && !*end && *text != '-' && number <= UINT32_MAX) return number;
  say("CUDA: %s=%s is not a whole number below 2^32 and was ignored", variable, text);
  return otherwise;
}

static bool begin(const char *folder) {
  const char *keep = getenv("TRACEMAP_CUDA_KEEP");
  struct limits limits = {number_of("TRACEMAP_CUDA_MB", 1024) << 20, keep && !strcmp(keep, "newest")};
  if (!recording_begin(folder, limits)) return false;
  int driver = ask_driver();
  if (!find_cupti(driver)) return false;
  uint64_t skipped_ns = number_of("TRACEMAP_CUDA_SKIP_MS", 0) * 1000000u, seconds = number_of("TRACEMAP_CUDA_SECONDS", 0);
  recording_add_line("\"kind\":\"cupti\",\"version\":%u,\"driver\":%d,\"skipped_ns\":%" PRIu64, cupti.version, driver, skipped_ns);
  const char *metrics = getenv("TRACEMAP_CUDA_COUNTERS");
  counting = metrics && *metrics;
  if (counting) return counting_begin(&cupti, metrics);
  from_ns = skipped_ns ? moment().start_ns + skipped_ns : 0;
  until_ns = seconds ? moment().start_ns + skipped_ns + seconds * SECOND_NS : UINT64_MAX;
  int status = cupti.cuptiActivityRegisterCallbacks(requested, completed);
  if (status != CUPTI_SUCCESS) {
    const char *text = "unknown error";
    cupti.cuptiGetResultString(status, &text);
    recording_refuse("cupti-failed", text);
    return false;
  }
  if (!enable(ACTIVITY_CONCURRENT_KERNEL, "kernels")) return false;
  enable(ACTIVITY_MEMCPY, "copies");
  enable(ACTIVITY_MEMCPY2, "copies between devices");
  enable(ACTIVITY_MEMSET, "fills");
  enable(ACTIVITY_OVERHEAD, "overhead");
  if (!cupti.cuptiActivityEnableAndDump) enable(ACTIVITY_DEVICE, "devices");
  enable_calls();
  add_moment();
  return true;
}

static bool start_flusher(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  is_listening = true;
  bool started = !pthread_create(&flusher, NULL, flush_repeatedly, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started && !pthread_detach(flusher);
}

/* The driver calls this once, at the first use of CUDA in the process. */
PUBLIC int InitializeInjection(void) {
  const char *folder = getenv("TRACEMAP_CUDA_OUTPUT");
  if (begun || !folder || !*folder) return 1;
  process_is_new();
  libc_resolve();
  if (!begin(folder)) return 1;
  begun = true;
  atexit(on_exit_of_program);
  pthread_atfork(NULL, NULL, after_fork_in_child);
  if (start_flusher()) take_signals();
  else recording_lose("flushes", "no thread can be started: records are written at exit only");
  return 1;
}
