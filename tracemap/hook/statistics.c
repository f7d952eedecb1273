#include "statistics.h"

#include <math.h>

/* IREE's hook gives its microseconds this name; the text keeps it. */
#define DURATION_LABEL "duration_ms"

#define CPU_NUMBERS (UINT16_MAX + 1u)

struct work {
  void *pages;
  size_t size;
  float *sorted, *spare;          /* of the series that is being split */
  float *table;                   /* of the pair that is being printed */
  uint64_t *calls_of_cpu;
  uint16_t *buckets[MOST_SERIES]; /* quantile of each value */
};

static bool begin_work(struct work *work, const struct thread_calls *calls) {
  size_t cells = (size_t)settings.report.buckets * settings.report.buckets, count = calls->count;
  size_t cpus = CPU_NUMBERS * sizeof *work->calls_of_cpu;
  size_t floats = (2 * count + cells) * sizeof(float);
  work->size = cpus + floats + calls->series_count * count * sizeof **work->buckets;
  work->pages = new_pages(work->size);
  if (!work->pages) return false;
  work->calls_of_cpu = work->pages;
  work->sorted = (float *)(void *)((char *)work->pages + cpus);
  work->spare = work->sorted + count;
  work->table = work->spare + count;
  uint16_t *buckets = (uint16_t *)(void *)((char *)work->sorted + floats);
  for (unsigned series = 0; series < calls->series_count; series++) work->buckets[series] = buckets + series * count;
  return true;
}

/* ---- figures */

static float mean(const float *values, size_t count) {
  float sum = 0;
  for (size_t place = 0; place < count; place++) sum += values[place];
  return sum / (float)count; /* NaN if there are no values */
}

static float covariance(const float *left, const float *right, size_t count) {
  float left_mean = mean(left, count), right_mean = mean(right, count), sum = 0;
  for (size_t place = 0; place < count; place++) {
    /* Two statements: in one, a compiler may round once where IREE's hook rounds twice. */
    float product = (left[place] - left_mean) * (right[place] - right_mean);
    sum += product;
  }
  return sum / (float)count;
}

static float correlation(const float *left, const float *right, size_t count) {
  float spread = covariance(left, left, count) * covariance(right, right, count);
  return covariance(left, right, count) / sqrtf(spread);
}

/* Bits that compare in the order of the numbers. */
static uint32_t ordered_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits & 1u << 31 ? ~bits : bits | 1u << 31;
}

static unsigned digit(float value, unsigned shift) { return ordered_bits(value) >> shift & 0xff; }

/* Radix sort, lowest digit first: the C library's sort may allocate. After an even number of rounds, the values are in
 * their original array. */
static void sort(float *values, float *spare, size_t count) {
  for (unsigned shift = 0; shift < 32; shift += 8) {
    size_t places[256] = {0}, next = 0;
    for (size_t place = 0; place < count; place++) places[digit(values[place], shift)]++;
    for (unsigned number = 0; number < 256; number++) {
      size_t with_it = places[number];
      places[number] = next;
      next += with_it;
    }
    for (size_t place = 0; place < count; place++) spare[places[digit(values[place], shift)]++] = values[place];
    float *sorted = spare;
    spare = values;
    values = sorted;
  }
}

/* Begin of a quantile in sorted values; one past the last quantile gives their end. */
static size_t quantile_begin(size_t count, unsigned number) {
  return count * number / settings.report.buckets;
}

/* Number of the quantiles' lower bounds, except the first, that are below a value: ties go to the lower quantile. */
static uint16_t quantile_of(float value, const float *bounds) {
  unsigned low = 1, high = settings.report.buckets;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (bounds[middle] < value) low = middle + 1;
    else high = middle;
  }
  return (uint16_t)(low - 1);
}

/* Leaves the sorted values in `work`. */
static void split(const struct work *work, const float *values, uint16_t *buckets, size_t count) {
  float bounds[MOST_BUCKETS];
  memcpy(work->sorted, values, count * sizeof *values);
  sort(work->sorted, work->spare, count);
  for (unsigned number = 0; number < settings.report.buckets; number++)
    bounds[number] = work->sorted[quantile_begin(count, number)];
  for (size_t place = 0; place < count; place++) buckets[place] = quantile_of(values[place], bounds);
}

/* P(quantile of `of` | quantile of `given`): rows are quantiles of `of`; each nonempty column adds up to 1. */
static void fill_table(const struct work *work, const uint16_t *of, const uint16_t *given, size_t count) {
  unsigned buckets = settings.report.buckets;
  memset(work->table, 0, (size_t)buckets * buckets * sizeof(float));
  for (size_t place = 0; place < count; place++) work->table[(size_t)of[place] * buckets + given[place]] += 1;
  size_t sizes[MOST_BUCKETS] = {0};
  for (size_t place = 0; place < count; place++) sizes[given[place]]++;
  for (unsigned column = 0; column < buckets; column++) {
    if (!sizes[column]) continue;
    for (unsigned row = 0; row < buckets; row++) work->table[(size_t)row * buckets + column] /= (float)sizes[column];
  }
}

/* ---- text */

/* Prints NaN with a sign, as on x86, also on other CPUs. */
static void print_number(struct printer *printer, const char *before, float value, int digits) {
  if (isnan(value)) print(printer, "%s-nan", before);
  else print(printer, "%s%.*g", before, digits, (double)value);
}

static const char *label(const struct thread_calls *calls, unsigned series) {
  return series ? calls->names[series] : DURATION_LABEL;
}

static const char *shade(float probability) {
  static const char *const shades[] = {"  ", "_ ", "__", "▁_", "▁▁", "▂▁", "▂▂", "▃▂", "▃▃", "▄▃",
                                       "▄▄", "▅▄", "▅▅", "▆▅", "▆▆", "▇▆", "▇▇", "█▇", "██"};
  const unsigned count = sizeof shades / sizeof *shades;
  double level = pow((double)probability, settings.report.gamma) * count;
  return shades[level < count - 1 ? (unsigned)level : count - 1];
}

static void print_table(struct printer *printer, const float *table) {
  unsigned buckets = settings.report.buckets;
  print(printer, "        ");
  for (unsigned column = 0; column < buckets; column++) print(printer, " %2x", column);
  print(printer, "\n");
  for (unsigned row = 0; row < buckets; row++) {
    print(printer, "      %2x", row);
    for (unsigned column = 0; column < buckets; column++)
      print(printer, " %s", shade(table[(size_t)row * buckets + column]));
    print(printer, "\n");
  }
  print(printer, "\n");
}

static void print_pair(struct printer *printer, const struct thread_calls *calls, const struct work *work, unsigned of,
                       unsigned given) {
  const char *of_label = label(calls, of), *given_label = label(calls, given);
  print(printer, "  correlation of %s vs. %s:", of_label, given_label);
  print_number(printer, " ", correlation(calls->series[of], calls->series[given], calls->count), 2);
  print(printer, "\n");
  if (!settings.report.tables) return;
  print(printer, "  conditional probability of %s %u-ile (↓) given %s %u-ile (→):\n", of_label, settings.report.buckets,
        given_label, settings.report.buckets);
  fill_table(work, work->buckets[of], work->buckets[given], calls->count);
  print_table(printer, work->table);
}

static void print_series(struct printer *printer, const struct thread_calls *calls, const struct work *work,
                         unsigned series) {
  split(work, calls->series[series], work->buckets[series], calls->count);
  print(printer, "  %s:\n    mean:", label(calls, series));
  print_number(printer, " ", mean(calls->series[series], calls->count), 3);
  print(printer, "\n    %u-ile means:", settings.report.buckets);
  for (unsigned number = 0; number < settings.report.buckets; number++) {
    size_t begin = quantile_begin(calls->count, number), end = quantile_begin(calls->count, number + 1);
    print_number(printer, " ", mean(work->sorted + begin, end - begin), 3);
  }
  print(printer, "\n");
  for (unsigned of = 0; of < series; of++) print_pair(printer, calls, work, of, series);
}

static void print_cpus(struct printer *printer, const struct thread_calls *calls, const struct work *work) {
  for (size_t place = 0; place < calls->count; place++) work->calls_of_cpu[calls->cpus[place]]++;
  for (unsigned cpu = 0; cpu < CPU_NUMBERS; cpu++)
    if (work->calls_of_cpu[cpu]) print(printer, "    %" PRIu64 " calls on cpu %u\n", work->calls_of_cpu[cpu], cpu);
}

bool statistics_print(struct printer *printer, const struct thread_calls *calls) {
  struct work work;
  if (!begin_work(&work, calls)) return false;
  print(printer, "Statistics for thread %s:\n  %zu matching calls, of which:\n", calls->thread, calls->count);
  print_cpus(printer, calls, &work);
  for (unsigned series = 0; series < calls->series_count; series++) print_series(printer, calls, &work, series);
  real_munmap(work.pages, work.size);
  return true;
}
