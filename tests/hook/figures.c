/* The hook's figures without the hook: `figures CSV BUCKETS GAMMA` prints the statistics of one thread's calls, which a
 * file of IREE's hook holds, and `figures` the events that have names, with their types and numbers.
 */
#include <stdlib.h>

#include "event_names.h"
#include "statistics.h"

#define MOST_CALLS 100000u

static uint16_t cpus[MOST_CALLS];
static float values[MOST_SERIES][MOST_CALLS];
static char lines[2][4096], thread[64];
static struct printer printer;

static void read_names(struct thread_calls *calls, char *line) {
  unsigned column = 0;
  char *rest = line, *name;
  for (; (name = strtok_r(rest, ",\n", &rest)); column++)
    if (column >= 3) calls->names[calls->series_count++] = name;
}

static void read_call(struct thread_calls *calls, char *line) {
  char *rest = line;
  snprintf(thread, sizeof thread, "%s", strtok_r(rest, ",", &rest));
  cpus[calls->count] = (uint16_t)atoi(strtok_r(rest, ",", &rest));
  strtok_r(rest, ",", &rest);
  for (unsigned series = 0; series < calls->series_count; series++)
    values[series][calls->count] = strtof(strtok_r(rest, ",\n", &rest), NULL);
  calls->count++;
}

static int print_statistics(char **words) {
  struct thread_calls calls = {.thread = thread, .cpus = cpus};
  settings.report = (struct report_settings){
      .wanted = true, .buckets = (unsigned)atoi(words[1]), .gamma = atof(words[2]), .tables = true};
  FILE *file = fopen(words[0], "r");
  if (!file || !fgets(lines[0], sizeof lines[0], file)) return 1;
  read_names(&calls, lines[0]);
  while (calls.count < MOST_CALLS && fgets(lines[1], sizeof lines[1], file)) read_call(&calls, lines[1]);
  fclose(file);
  for (unsigned series = 0; series < calls.series_count; series++) calls.series[series] = values[series];
  print_begin(&printer, STDOUT_FILENO);
  return statistics_print(&printer, &calls) && print_end(&printer) ? 0 : 1;
}

int main(int count, char **words) {
  struct event_name event;
  libc_resolve();
  if (count == 4) return print_statistics(words + 1);
  for (unsigned number = 0; event_at(number, &event); number++)
    printf("%s %u %" PRIu64 "\n", event.text, event.type, event.config);
  return 0;
}
