#include "report.h"

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "layout.h"
#include "statistics.h"

#ifndef CSV_DURATION
#define CSV_DURATION "%g" /* as in IREE's hook; tests use a format that loses no digit */
#endif

static struct printer printer; /* too large for the stack of an ending thread */

/* ---- records */

struct records {
  const char *mapped;
  size_t size;
  size_t count;
  uint32_t record_bytes;
};

static const struct record *record_at(const struct records *records, size_t place) {
  return (const void *)(records->mapped + DATA_OFFSET + place * records->record_bytes);
}

static bool is_whole(const struct record *record) {
  return __atomic_load_n(&record->start_ticks, __ATOMIC_ACQUIRE) != 0;
}

static bool map_records(struct records *records, const struct reported *thread) {
  struct stat about;
  if (fstat(thread->file, &about) || about.st_size <= DATA_OFFSET) return false;
  void *mapped = real_mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, thread->file, 0);
  if (mapped == MAP_FAILED) return false;
  *records = (struct records){mapped, (size_t)about.st_size, 0, thread->record_bytes};
  size_t most = (records->size - DATA_OFFSET) / thread->record_bytes;
  while (records->count < most && is_whole(record_at(records, records->count))) records->count++;
  return true;
}

/* ---- series */

struct memory {
  void *pages;
  size_t size;
};

/* Whole nanoseconds, as in recordings. */
static float duration_us(const struct record *record, double ns_per_tick) {
  return (float)(rint((double)(int64_t)record->duration_ticks * ns_per_tick) / 1000);
}

static void fill_series(const struct records *records, unsigned event_count, float *values, uint16_t *cpus) {
  double rate = ns_per_tick();
  for (size_t place = 0; place < records->count; place++) {
    const struct record *record = record_at(records, place);
    cpus[place] = record->cpu;
    values[place] = duration_us(record, rate);
    for (unsigned event = 0; event < event_count; event++)
      values[(1 + event) * records->count + place] = (float)record->events[event];
  }
}

/* False if memory is short. */
static bool read_calls(struct thread_calls *calls, struct memory *memory, const struct records *records,
                       const struct reported *thread) {
  size_t count = records->count, floats = (1 + thread->event_count) * count * sizeof(float);
  *memory = (struct memory){NULL, floats + count * sizeof *calls->cpus};
  memory->pages = new_pages(memory->size);
  if (!memory->pages) return false;
  float *values = memory->pages;
  uint16_t *cpus = (uint16_t *)(void *)((char *)memory->pages + floats);
  *calls = (struct thread_calls){.count = count, .cpus = cpus, .series_count = 1 + thread->event_count};
  for (unsigned series = 0; series < calls->series_count; series++) {
    calls->names[series] = series ? settings.events[series - 1].name : "duration_us";
    calls->series[series] = values + series * count;
  }
  fill_series(records, thread->event_count, values, cpus);
  return true;
}

/* ---- CSV */

/* Replaces all characters outside a class: threads choose their own names. */
static void make_plain(char *name, bool for_path) {
  for (; *name; name++) {
    bool word = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') || (*name >= '0' && *name <= '9');
    if (for_path ? !word && !strchr("_.-", *name) : *name < ' ' || *name > '~') *name = for_path ? '_' : '?';
  }
}

/* Never overwrites the file of another thread with the same name. */
static int make_csv(const char *thread) {
  char name[64], path[sizeof settings.report.csv + 128];
  snprintf(name, sizeof name, "%s", *thread ? thread : "thread");
  make_plain(name, true);
  int file = -1;
  errno = EEXIST;
  for (unsigned number = 1; file < 0 && errno == EEXIST && number; number++) {
    char suffix[16] = "";
    if (number > 1) snprintf(suffix, sizeof suffix, "-%u", number);
    snprintf(path, sizeof path, "%s/iree_hook_%s%s.csv", settings.report.csv, name, suffix);
    file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file >= 0 && number > 1) say("there are calls of another thread %s: these are in %s", name, path);
  }
  if (file < 0) say("%s cannot be made: %s", path, strerror(errno));
  return file;
}

static void print_call(const struct record *record, const char *thread, float duration, unsigned event_count) {
  print(&printer, "%s,%u,%u," CSV_DURATION, thread, record->cpu, record->node, (double)duration);
  for (unsigned event = 0; event < event_count; event++) print(&printer, ",%" PRIu64, record->events[event]);
  print(&printer, "\n");
}

static void write_csv(const struct records *records, const struct thread_calls *calls) {
  char thread[64];
  snprintf(thread, sizeof thread, "%s", calls->thread);
  for (char *mark = thread; (mark = strpbrk(mark, ",\""));) *mark = '?';
  int file = make_csv(calls->thread);
  if (file < 0) return;
  print_begin(&printer, file);
  print(&printer, "thread,cpu,node");
  for (unsigned series = 0; series < calls->series_count; series++) print(&printer, ",%s", calls->names[series]);
  print(&printer, "\n");
  for (size_t place = 0; place < calls->count; place++)
    print_call(record_at(records, place), thread, calls->series[0][place], calls->series_count - 1);
  if (!print_end(&printer)) say("the calls of thread %s are not all written: %s", thread, strerror(errno));
  close(file);
}

/* ---- a thread's report */

/* The program's own output comes first, unless another thread holds its lock and may never return. */
static void begin_output(void) {
  if (!ftrylockfile(stdout)) {
    fflush_unlocked(stdout);
    funlockfile(stdout);
  }
  print_begin(&printer, STDOUT_FILENO);
}

static void say_what_was_not_counted(const struct records *records, const char *thread) {
  size_t stopped = 0;
  for (size_t place = 0; place < records->count; place++)
    stopped += (record_at(records, place)->flags & FLAG_NOT_RUNNING) != 0;
  if (stopped)
    say("thread %s: in %zu calls the counters did not run all the time, so counts are too small; count fewer events",
        thread, stopped);
}

static void report_records(const struct records *records, const struct reported *thread) {
  char name[64];
  struct thread_calls calls;
  struct memory memory;
  snprintf(name, sizeof name, "%s", thread->name);
  make_plain(name, false);
  if (!read_calls(&calls, &memory, records, thread)) return say("there is no memory for the statistics of %s", name);
  calls.thread = name;
  begin_output();
  if (!statistics_print(&printer, &calls)) say("there is no memory for the statistics of %s", name);
  print_end(&printer);
  if (settings.report.csv[0]) write_csv(records, &calls);
  say_what_was_not_counted(records, name);
  real_munmap(memory.pages, memory.size);
}

void report_thread(const struct reported *thread) {
  struct records records;
  if (!map_records(&records, thread)) return;
  locale_t plain = newlocale(LC_ALL_MASK, "C", NULL), before = uselocale(plain); /* decimal points in numbers */
  if (records.count) report_records(&records, thread);
  uselocale(before);
  real_munmap((void *)(uintptr_t)records.mapped, records.size);
}
