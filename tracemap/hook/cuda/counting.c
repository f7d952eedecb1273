#include "counting.h"

#include <stdlib.h>

#include "../lock.h"

#define SESSION_LAUNCHES 512u /* ranges between evaluations; the images take some 100 KB each */
#define MOST_METRICS 64u

static const struct cupti *cupti;
static struct lock lock;
static bool failed;
static char *names_data;
static const char *metrics[MOST_METRICS]; /* those that the chip has, once the session began */
static uint32_t metric_ids[MOST_METRICS];
static size_t metric_count;

static void *context, *host, *profiler; /* the first context that launches a kernel; others are not counted */
static uint8_t *availability, *config, *image;
static size_t config_size, image_size;
static uint32_t kernels[SESSION_LAUNCHES]; /* names of the launches since the last evaluation */
static size_t launched;
static uint32_t first_launch; /* number of the first of them in the process */

static bool fail(const char *slug, const char *format, const char *detail) {
  char text[1024];
  snprintf(text, sizeof text, format, detail);
  failed = true;
  recording_refuse(slug, text);
  return false;
}

/* False, with a refusal, unless the status says success. */
static bool check(int status, const char *what) {
  const char *name = "unknown error";
  char text[256];
  if (status == CUPTI_SUCCESS) return true;
  cupti->cuptiGetResultString(status, &name);
  if (status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES || status == CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES)
    return fail("no-permission", "this user may not count events on the GPU (%s, ERR_NVGPUCTRPERM): run as root, or set "
                "the option NVreg_RestrictProfilingToAdminUsers=0 of the driver's kernel module and load it again", name);
  snprintf(text, sizeof text, "%s: %s (%d)", what, name, status);
  return fail("counters-failed", "CUPTI's range profiler does not work here: %s", text);
}

static int host_of(const char *chip, void **made) {
  struct host_parameters parameters = PARAMETERS(host_parameters, host, .chip = chip, .availability = availability);
  int status = cupti->cuptiProfilerHostInitialize(&parameters);
  *made = parameters.host;
  return status;
}

static int add_metrics(void *to, const char **names, size_t count) {
  struct metrics_parameters parameters = PARAMETERS(metrics_parameters, count, .host = to, .metrics = names, .count = count);
  return cupti->cuptiProfilerHostConfigAddMetrics(&parameters);
}

static void end_host(void *which) {
  struct host_end_parameters parameters = PARAMETERS(host_end_parameters, host, .host = which);
  if (which) cupti->cuptiProfilerHostDeinitialize(&parameters);
}

/* Leaves only the metrics that the chip has. A host object is of no use after a metric that it lacks. */
static bool keep_known(const char *chip) {
  size_t kept = 0;
  for (size_t place = 0; place < metric_count; place++) {
    void *trial = NULL;
    if (!check(host_of(chip, &trial), chip)) return false;
    if (add_metrics(trial, metrics + place, 1) == CUPTI_SUCCESS) {
      metrics[kept] = metrics[place];
      metric_ids[kept++] = metric_ids[place];
    } else {
      recording_lose(metrics[place], "the GPU does not count it");
    }
    end_host(trial);
  }
  metric_count = kept;
  return kept || fail("counters-missing", "the GPU (%s) counts none of these events", chip);
}

static bool read_availability(void) {
  struct availability_parameters of = PARAMETERS(availability_parameters, image, .context = context);
  if (!check(cupti->cuptiProfilerGetCounterAvailability(&of), "counters")) return false;
  availability = calloc(1, of.image_size + 1);
  of.image = availability;
  return availability && check(cupti->cuptiProfilerGetCounterAvailability(&of), "counters");
}

static bool make_config(const char *chip) {
  struct config_size_parameters size;
  if (!keep_known(chip) || !check(host_of(chip, &host), chip) || !check(add_metrics(host, metrics, metric_count), "metrics"))
    return false;
  size = PARAMETERS(config_size_parameters, config_size, .host = host);
  if (!check(cupti->cuptiProfilerHostGetConfigImageSize(&size), "configuration")) return false;
  config_size = size.config_size;
  config = calloc(1, config_size + 1);
  struct config_parameters of = PARAMETERS(config_parameters, config, .host = host, .config_size = config_size, .config = config);
  return config && check(cupti->cuptiProfilerHostGetConfigImage(&of), "configuration");
}

/* Begins to count the launches that follow. */
static bool start(void) {
  struct image_parameters empty = PARAMETERS(image_parameters, image, .profiler = profiler, .image_size = image_size, .image = image);
  struct set_config_parameters of = PARAMETERS(
      set_config_parameters, level, .profiler = profiler, .config_size = config_size, .config = config, .image_size = image_size,
      .image = image, .range = AUTO_RANGE, .replay = KERNEL_REPLAY, .ranges = SESSION_LAUNCHES, .levels = 1, .least_level = 1);
  struct range_parameters started = PARAMETERS(range_parameters, profiler, .profiler = profiler);
  return check(cupti->cuptiRangeProfilerCounterDataImageInitialize(&empty), "image") &&
         check(cupti->cuptiRangeProfilerSetConfig(&of), "settings") && check(cupti->cuptiRangeProfilerStart(&started), "start");
}

/* In the first launch, since the profiler needs a driver that is initialized. */
static bool begin_session(void *of_context) {
  struct profiler_parameters parameters = {.size = sizeof parameters};
  struct enable_parameters enabled = PARAMETERS(enable_parameters, profiler, .context = of_context);
  struct chip_parameters chip = PARAMETERS(chip_parameters, name, .device = 0);
  uint32_t device = 0;
  context = of_context;
  if (!check(cupti->cuptiProfilerInitialize(&parameters), "profiler")) return false;
  if (!check(cupti->cuptiGetDeviceId(context, &device), "device")) return false;
  chip.device = device;
  if (!check(cupti->cuptiDeviceGetChipName(&chip), "chip") || !read_availability() || !make_config(chip.name)) return false;
  if (!check(cupti->cuptiRangeProfilerEnable(&enabled), "profiler")) return false;
  profiler = enabled.profiler;
  struct image_size_parameters size = PARAMETERS(image_size_parameters, image_size, .profiler = profiler, .metrics = metrics,
                                                 .count = metric_count, .ranges = SESSION_LAUNCHES, .nodes = SESSION_LAUNCHES);
  if (!check(cupti->cuptiRangeProfilerGetCounterDataSize(&size), "image")) return false;
  image_size = size.image_size;
  image = calloc(1, image_size + 1);
  return image && start();
}

/* Writes the counts of the launches since the last evaluation. */
static bool collect(void) {
  struct stop_parameters stopped = PARAMETERS(stop_parameters, is_all, .profiler = profiler);
  struct decode_parameters decoded = PARAMETERS(decode_parameters, dropped, .profiler = profiler);
  struct info_parameters info = PARAMETERS(info_parameters, ranges, .image = image, .image_size = image_size);
  char text[128];
  if (!check(cupti->cuptiRangeProfilerStop(&stopped), "stop") || !check(cupti->cuptiRangeProfilerDecodeData(&decoded), "data") ||
      !check(cupti->cuptiRangeProfilerGetCounterDataInfo(&info), "data"))
    return false;
  if (info.ranges != launched || decoded.dropped) {
    snprintf(text, sizeof text, "%zu ranges of %zu launches", info.ranges, launched);
    return fail("counters-failed", "CUPTI's range profiler did not count each launch: %s", text);
  }
  for (size_t range = 0; range < launched; range++) {
    double values[MOST_METRICS] = {0};
    struct activity_record records[MOST_METRICS];
    size_t known = 0;
    struct evaluate_parameters of = PARAMETERS(evaluate_parameters, values, .host = host, .image = image, .image_size = image_size,
                                               .range = range, .metrics = metrics, .count = metric_count, .values = values);
    if (!check(cupti->cuptiProfilerHostEvaluateToGpuValues(&of), "values")) return false;
    for (size_t place = 0; place < metric_count; place++)
      if (values[place] >= 0 && values[place] < 4e18) /* not a number: not counted */
        records[known++] = (struct activity_record){
            .kind = RECORDED_COUNT, .bytes = (uint64_t)(values[place] + 0.5), .detail = metric_ids[place],
            .name = kernels[range], .correlation = first_launch + (uint32_t)range};
    recording_add(records, known);
  }
  first_launch += (uint32_t)launched;
  launched = 0;
  return true;
}

static void on_launch(const struct callback_data *data) {
  if (!context && !begin_session(data->context)) return;
  if (data->context != context) {
    fail("counters-failed", "%s: launches of one context only can be counted", "several contexts");
    return;
  }
  if (launched == SESSION_LAUNCHES && (!collect() || !start())) return;
  kernels[launched++] = recording_name(data->symbol);
}

static void on_callback(void *user, uint32_t domain, uint32_t id, const void *data) {
  static __thread bool inside; /* CUPTI's own work in a callback is not the program's */
  (void)user, (void)id;
  if (inside) return;
  inside = true;
  lock_take(&lock);
  if (!failed && domain == DOMAIN_DRIVER_API && ((const struct callback_data *)data)->site == API_ENTER) on_launch(data);
  if (!failed && domain == DOMAIN_RESOURCE && context && ((const struct resource_data *)data)->context == context) {
    struct range_parameters ended = PARAMETERS(range_parameters, profiler, .profiler = profiler);
    if (collect()) cupti->cuptiRangeProfilerDisable(&ended);
    failed = true; /* the context ends: nothing more is counted */
  }
  lock_release(&lock);
  inside = false;
}

bool counting_begin(const struct cupti *functions, const char *names) {
  static const uint32_t launches[] = {307, 652}; /* cuLaunchKernel, cuLaunchKernelEx */
  bool whole = true;
  void *subscriber = NULL;
  char *rest = NULL;
  cupti = functions;
#define CHECK_COUNTING(name, arguments) whole = whole && cupti->name;
  CUPTI_COUNTING_FUNCTIONS(CHECK_COUNTING)
  if (!whole) return fail("counters-failed", "%s", "CUPTI before CUDA 12.6 has no range profiler: pip install 'tracemap[cuda]'");
  names_data = strdup(names);
  for (char *name = names_data ? strtok_r(names_data, ",", &rest) : NULL; name && metric_count < MOST_METRICS; name = strtok_r(NULL, ",", &rest)) {
    metric_ids[metric_count] = (uint32_t)metric_count;
    metrics[metric_count++] = name;
  }
  if (!check(cupti->cuptiSubscribe(&subscriber, on_callback, NULL), "callbacks")) return false;
  for (size_t place = 0; place < sizeof launches / sizeof *launches; place++)
    if (!check(cupti->cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER_API, launches[place]), "callbacks")) return false;
  return check(cupti->cuptiEnableCallback(1, subscriber, DOMAIN_RESOURCE, CONTEXT_DESTROY_STARTING), "callbacks");
}

void counting_end(void) {
  lock_take(&lock);
  if (!failed && context && launched) collect();
  failed = true;
  lock_release(&lock);
}
