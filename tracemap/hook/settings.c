#include "settings.h"

#include <stdlib.h>

struct settings settings;

const char *const event_modes[] = {[EVENT_GROUP] = "group", [EVENT_RING] = "ring", [EVENT_USER] = "rdpmc"};

static void copy(char *target, size_t size, const char *name) {
  const char *value = getenv(name);
  if (snprintf(target, size, "%s", value ? value : "") >= (int)size) {
    say("%s is too long and was ignored", name);
    target[0] = '\0';
  }
}

static uint64_t number(const char *name, uint64_t otherwise) {
  const char *value = getenv(name);
  if (!value || !*value) return otherwise;
  char *end;
  errno = 0;
  unsigned long long parsed = strtoull(value, &end, 10);
  if (errno || *end || *value == '-') {
    say("%s=%s is not a whole number and was ignored", name, value);
    return otherwise;
  }
  return parsed;
}

/* One event is NAME|TYPE|CONFIG|CONFIG1|MODE, as `tracemap hook env` writes it; events are parted by semicolons. */
static bool read_event(struct event_setting *event, const char *text) {
  char mode[16], rest[16] = "";
  if (sscanf(text, "%63[^|]|%" SCNu32 "|%" SCNx64 "|%" SCNx64 "|%15[^+]%15s", event->name, &event->type, &event->config,
             &event->config1, mode, rest) < 5)
    return false;
  event->exclude_kernel = !strcmp(rest, "+user");
  for (event->mode = 0; event->mode < EVENT_MODES; event->mode++)
    if (!strcmp(mode, event_modes[event->mode])) return true;
  return false;
}

static void read_events(void) {
  char text[EVENTS * 160];
  copy(text, sizeof text, "TRACEMAP_HOOK_EVENTS");
  settings.event_count = 0;
  char *rest = text, *word;
  while ((word = strtok_r(rest, ";", &rest))) {
    if (settings.event_count == EVENTS || !read_event(&settings.events[settings.event_count], word))
      say("TRACEMAP_HOOK_EVENTS: %s was ignored: not an event that `tracemap hook env` writes, or too many", word);
    else
      settings.event_count++;
  }
}

static enum sampler_choice read_sampler(void) {
  char word[16];
  copy(word, sizeof word, "TRACEMAP_HOOK_SAMPLER");
  if (!strcmp(word, "perf")) return SAMPLE_BY_PERF;
  if (!strcmp(word, "timer")) return SAMPLE_BY_TIMER;
  if (*word && strcmp(word, "auto")) say("TRACEMAP_HOOK_SAMPLER=%s was ignored: it is auto, perf or timer", word);
  return SAMPLE_BY_EITHER;
}

static void read_sampling(void) {
  settings.sample_hz = number("TRACEMAP_HOOK_SAMPLE_HZ", 0);
  settings.sampler = read_sampler();
  if (settings.sample_hz <= MOST_SAMPLES_HZ) return;
  say("TRACEMAP_HOOK_SAMPLE_HZ=%" PRIu64 " is too many: %u samples a second are taken", settings.sample_hz,
      MOST_SAMPLES_HZ);
  settings.sample_hz = MOST_SAMPLES_HZ;
}

void settings_read(void) {
  copy(settings.output, sizeof settings.output - 128, "TRACEMAP_HOOK_OUTPUT");
  copy(settings.filter, sizeof settings.filter, "TRACEMAP_HOOK_FILTER");
  settings.skip_ns = number("TRACEMAP_HOOK_SKIP_MS", 0) * 1000000;
  settings.budget = number("TRACEMAP_HOOK_CALLS", 0);
  settings.every = number("TRACEMAP_HOOK_EVERY", 1);
  if (!settings.every) settings.every = 1;
  settings.thread_bytes = number("TRACEMAP_HOOK_THREAD_BYTES", 1ull << 30);
  settings.record_calls = number("TRACEMAP_HOOK_RECORD_CALLS", 1) != 0;
  read_sampling();
  read_events();
}

/* One [set] of a glob against a character; returns what follows it, NULL (and no answer) if the set is not closed. */
static const char *match_set(const char *set, char character, bool *matches) {
  bool negated = *set == '!' || *set == '^', found = false;
  if (negated) set++;
  for (const char *first = set; *set && (*set != ']' || set == first); set++) {
    if (set[1] == '-' && set[2] && set[2] != ']') {
      found |= set[0] <= character && character <= set[2];
      set += 2;
    } else {
      found |= *set == character;
    }
  }
  if (!*set) return NULL;
  *matches = found != negated;
  return set + 1;
}

/* One character, `?` or set of a glob; returns what follows it, NULL if it does not match. */
static const char *match_one(const char *pattern, char character) {
  bool matches = *pattern && (*pattern == '?' || *pattern == character);
  const char *after_set = *pattern == '[' ? match_set(pattern + 1, character, &matches) : NULL;
  if (!matches) return NULL;
  return after_set ? after_set : pattern + 1;
}

/* Like fnmatch, which may allocate. Backtracks to the last star only, so it takes no more than pattern times name. */
static bool matches_glob(const char *pattern, const char *name) {
  const char *star = NULL, *retry = NULL, *next;
  while (*name) {
    if (*pattern == '*') {
      star = ++pattern;
      retry = name;
    } else if ((next = match_one(pattern, *name))) {
      pattern = next;
      name++;
    } else if (star) {
      pattern = star;
      name = ++retry;
    } else {
      return false;
    }
  }
  while (*pattern == '*') pattern++;
  return !*pattern;
}

bool settings_want(const char *name) { return !settings.filter[0] || matches_glob(settings.filter, name); }
