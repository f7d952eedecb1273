/* The environment: the fuzzer's bytes are lines of NAME=VALUE, and names of kernels, which have no `=`. */
#include "settings.h"

#include "event_names.h"
#include "fuzz.h"

static void check_settings(void) {
  if (!settings.every || settings.event_count > EVENTS || settings.sample_hz > MOST_SAMPLES_HZ) abort();
  if (settings.report.wanted && (!settings.report.buckets || settings.report.buckets > MOST_BUCKETS)) abort();
  for (unsigned event = 0; event < settings.event_count; event++)
    if (settings.events[event].mode >= EVENT_MODES) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input input = {data, size};
  char *kernels[16], *line;
  unsigned count = 0;
  clearenv();
  while ((line = take_line(&input))) {
    char *value = strchr(line, '=');
    if (!value && count < 16) {
      kernels[count++] = line;
      continue;
    }
    if (value && value > line) {
      *value = '\0';
      setenv(line, value + 1, true);
    }
    free(line);
  }
  memset(&settings, 0, sizeof settings);
  settings_read();
  check_settings();
  while (count) {
    struct event_name event;
    settings_want(kernels[--count]);
    event_named(kernels[count], &event);
    free(kernels[count]);
  }
  return 0;
}
