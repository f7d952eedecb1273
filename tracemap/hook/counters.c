#include "counters.h"

#include <sys/ioctl.h>
#include <sys/mman.h>

struct perf_event_attr perf_attributes(uint32_t type, uint64_t config, bool exclude_kernel) {
  struct perf_event_attr attributes;
  memset(&attributes, 0, sizeof attributes); /* the kernel rejects a structure whose unknown bytes are not 0 */
  attributes.size = sizeof attributes;
  attributes.type = type;
  attributes.config = config;
  attributes.exclude_kernel = exclude_kernel;
  attributes.exclude_hv = 1;
  return attributes;
}

int perf_open(struct perf_event_attr *attributes, int group) {
  return descriptor_aside((int)syscall(SYS_perf_event_open, attributes, 0, -1, group, PERF_FLAG_FD_CLOEXEC));
}

/* ---- counters of calls */

#define RING_RECORD 8u /* bytes: a sample of type 0 is only its header */

static size_t pages_bytes(enum event_mode mode) { return page_bytes() * (mode == EVENT_RING ? 2 : 1); }

static struct perf_event_attr attributes_of(const struct event_setting *event, bool leads) {
  struct perf_event_attr attributes = perf_attributes(event->type, event->config, event->exclude_kernel);
  attributes.config1 = event->config1;
  if (event->mode == EVENT_RING) attributes.sample_period = 1;
  if (event->mode == EVENT_GROUP)
    attributes.read_format = PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  attributes.disabled = leads; /* the group starts to count as a whole, once it is complete */
  return attributes;
}

static bool open_event(struct counters *counters, unsigned event) {
  const struct event_setting *setting = &settings.events[event];
  bool grouped = setting->mode == EVENT_GROUP, leads = grouped && counters->leader < 0;
  struct perf_event_attr attributes = attributes_of(setting, leads);
  int file = perf_open(&attributes, grouped ? counters->leader : -1);
  if (file < 0) return false;
  counters->files[event] = file;
  counters->events[setting->mode][counters->counts[setting->mode]++] = event;
  if (leads) counters->leader = file;
  if (grouped) return true;
  /* The page with a counter's state. A ring mapped read-only overwrites itself and never stops counting. */
  void *mapped = real_mmap(NULL, pages_bytes(setting->mode), PROT_READ, MAP_SHARED, file, 0);
  counters->pages[event] = mapped == MAP_FAILED ? NULL : mapped;
  return mapped != MAP_FAILED;
}

bool counters_open(struct counters *counters) {
  counters->leader = -1;
  for (unsigned event = 0; event < EVENTS; event++) counters->files[event] = -1;
  counters->count = settings.event_count;
  for (unsigned event = 0; event < settings.event_count; event++) {
    if (open_event(counters, event)) continue;
    say("the event %s cannot be opened: %s", settings.events[event].name, strerror(errno));
    return false;
  }
  if (counters->leader >= 0) ioctl(counters->leader, PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP);
  return true;
}

void counters_close(struct counters *counters) {
  for (unsigned event = 0; event < counters->count; event++) {
    if (counters->pages[event])
      real_munmap((void *)(uintptr_t)counters->pages[event], pages_bytes(settings.events[event].mode));
    if (counters->files[event] >= 0) close(counters->files[event]);
  }
  counters->count = 0;
}

#if defined(__x86_64__)
static uint64_t read_counter(uint32_t counter) {
  uint32_t low, high;
  __asm__ volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(counter));
  return (uint64_t)high << 32 | low;
}
#endif

/* The protocol of perf_event_mmap_page: read again if the kernel changed the page meanwhile. */
static uint64_t user_count(volatile struct perf_event_mmap_page *page) {
  uint32_t sequence;
  uint64_t count;
  do {
    sequence = page->lock;
    __asm__ volatile("" ::: "memory");
    count = (uint64_t)page->offset;
#if defined(__x86_64__)
    uint32_t index = page->index;
    if (page->cap_user_rdpmc && index) {
      unsigned unused = 64u - page->pmc_width;
      count += (uint64_t)((int64_t)(read_counter(index - 1) << unused) >> unused);
    }
#endif
    __asm__ volatile("" ::: "memory");
  } while (page->lock != sequence);
  return count;
}

static void read_group(struct counters *counters, uint64_t values[EVENTS]) {
  uint64_t data[3 + EVENTS];
  const unsigned *events = counters->events[EVENT_GROUP], count = counters->counts[EVENT_GROUP];
  ssize_t size = read(counters->leader, data, (3 + count) * sizeof(uint64_t));
  if (size < (ssize_t)(3 * sizeof(uint64_t))) return;
  counters->enabled = data[1];
  counters->running = data[2];
  for (unsigned place = 0; place < count; place++) values[events[place]] = data[3 + place];
}

void counters_read(struct counters *counters, uint64_t values[EVENTS]) {
  for (unsigned place = 0; place < counters->counts[EVENT_RING]; place++) {
    unsigned event = counters->events[EVENT_RING][place];
    values[event] = counters->pages[event]->data_head / RING_RECORD;
  }
  for (unsigned place = 0; place < counters->counts[EVENT_USER]; place++) {
    unsigned event = counters->events[EVENT_USER][place];
    values[event] = user_count(counters->pages[event]);
  }
  if (counters->counts[EVENT_GROUP]) read_group(counters, values);
}
