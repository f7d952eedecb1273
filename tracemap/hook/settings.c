#include "settings.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

struct settings settings;

const char *const event_modes[] = {[EVENT_GROUP] = "group", [EVENT_RING] = "ring", [EVENT_USER] = "rdpmc"};

static void copy(char *target, size_t size, const char *name) {
  const char *value = getenv(name);
  if (snprintf(target, size, "%s", value ? value : "") >= (int)size) {
    say("%s is too long and was ignored", name);
    target[0] = '\0';
  }
}

static char began_in[4096]; /* working folder at the start; empty: unknown */

/* Files are created when threads begin and end; a daemon may have changed its folder by then. */
static void copy_folder(char *target, size_t size, const char *name) {
  copy(target, size, name);
  size_t before = strlen(began_in) + 1, length = strlen(target);
  if (!length || target[0] == '/' || !began_in[0]) return;
  if (before + length >= size) {
    say("%s is too long and was ignored", name);
    target[0] = '\0';
    return;
  }
  memmove(target + before, target, length + 1);
  memcpy(target, began_in, before - 1);
  target[before - 1] = '/';
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

/* An event is NAME|TYPE|CONFIG|CONFIG1|MODE, as `tracemap hook env` writes it; semicolons separate events. */
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
  if (!strcmp(word, "cpu-timer")) return SAMPLE_BY_CPU_TIMER;
  if (*word && strcmp(word, "auto")) say("TRACEMAP_HOOK_SAMPLER=%s was ignored: it is auto, perf, timer or cpu-timer", word);
  return SAMPLE_BY_EITHER;
}

static bool read_keep(void) {
  char word[16];
  copy(word, sizeof word, "TRACEMAP_HOOK_KEEP");
  if (!strcmp(word, "newest")) return true;
  if (*word && strcmp(word, "oldest")) say("TRACEMAP_HOOK_KEEP=%s was ignored: it is oldest or newest", word);
  return false;
}

static void read_sampling(void) {
  settings.sample_hz = number("TRACEMAP_HOOK_SAMPLE_HZ", 0);
  settings.sampler = read_sampler();
  if (settings.sample_hz <= MOST_SAMPLES_HZ) return;
  say("TRACEMAP_HOOK_SAMPLE_HZ=%" PRIu64 " is too many: %u samples a second are taken", settings.sample_hz,
      MOST_SAMPLES_HZ);
  settings.sample_hz = MOST_SAMPLES_HZ;
}

/* ---- the variables of IREE's own hook */

#define IREE_PREFIX "IREE_HOOK_"

/* Those of our variables that request an action; the others, such as the clock, only modify it. */
static bool ask_for_recording(void) {
  static const char *const asking[] = {
      "TRACEMAP_HOOK_OUTPUT",       "TRACEMAP_HOOK_FILTER",    "TRACEMAP_HOOK_SKIP_MS",
      "TRACEMAP_HOOK_CALLS",        "TRACEMAP_HOOK_EVERY",     "TRACEMAP_HOOK_EVENTS",
      "TRACEMAP_HOOK_RECORD_CALLS", "TRACEMAP_HOOK_SAMPLE_HZ", "TRACEMAP_HOOK_SAMPLER",    "TRACEMAP_HOOK_STOPS",
      "TRACEMAP_HOOK_WATCH",        "TRACEMAP_HOOK_NATIVE",
  };
  for (size_t place = 0; place < sizeof asking / sizeof *asking; place++) {
    const char *value = getenv(asking[place]);
    if (value && *value) return true;
  }
  return false;
}

static bool ask_for_report(void) {
  char **variable = environ;
  while (variable && *variable && strncmp(*variable, IREE_PREFIX, strlen(IREE_PREFIX))) variable++;
  return variable && *variable;
}

/* With a decimal point, whatever the program's locale; negative numbers are rejected. */
static double decimal(const char *name, double otherwise) {
  const char *value = getenv(name);
  if (!value || !*value) return otherwise;
  char *end;
  double parsed = strtod_l(value, &end, newlocale(LC_ALL_MASK, "C", NULL));
  if (!*end && isfinite(parsed) && parsed >= 0) return parsed;
  say("%s=%s is not a number that it can be and was ignored", name, value);
  return otherwise;
}

static unsigned read_buckets(void) {
  const char *name = IREE_PREFIX "BUCKET_COUNT";
  uint64_t buckets = number(name, 16);
  if (buckets && buckets <= MOST_BUCKETS) return (unsigned)buckets;
  say("%s=%" PRIu64 " was ignored: it is a number from 1 to %u", name, buckets, MOST_BUCKETS);
  return 16;
}

static void read_report(struct report_settings *report) {
  report->wanted = ask_for_report() && !ask_for_recording();
  if (!report->wanted) return;
  copy(settings.filter, sizeof settings.filter, IREE_PREFIX "FILTER_NAME");
  settings.skip_ns = (uint64_t)(fmin(decimal(IREE_PREFIX "SKIP_START_MS", 0), 1e12) * 1e6);
  copy(report->events, sizeof report->events, IREE_PREFIX "PERF_EVENT_TYPES");
  copy_folder(report->csv, sizeof report->csv - 128, IREE_PREFIX "OUTPUT_CSV");
  report->buckets = read_buckets();
  report->gamma = decimal(IREE_PREFIX "GAMMA", 0.5);
  report->tables = !getenv(IREE_PREFIX "NO_PROBABILITY_TABLE");
  report->lists_events = getenv(IREE_PREFIX "LIST_EVENT_TYPES");
}

/* Unknown names, invalid values and a missing folder are reported at once. */
static void check_report(const struct report_settings *report) {
  static const char known[] = " FILTER_NAME SKIP_START_MS PERF_EVENT_TYPES LIST_EVENT_TYPES OUTPUT_CSV BUCKET_COUNT "
                              "NO_PROBABILITY_TABLE GAMMA ";
  for (char **variable = environ; variable && *variable; variable++) {
    if (strncmp(*variable, IREE_PREFIX, strlen(IREE_PREFIX))) continue;
    char name[64];
    int length = (int)strcspn(*variable, "=");
    snprintf(name, sizeof name, " %.*s ", length - (int)strlen(IREE_PREFIX), *variable + strlen(IREE_PREFIX));
    if (!strstr(known, name)) say("%.*s is no variable of IREE's hook and was ignored", length, *variable);
  }
  struct stat about;
  if (report->csv[0] && (stat(report->csv, &about) || !S_ISDIR(about.st_mode)))
    say("%s=%s is no folder: make it, or no calls are written there", IREE_PREFIX "OUTPUT_CSV", report->csv);
}

static void read_all(void) {
  copy_folder(settings.output, sizeof settings.output - 128, "TRACEMAP_HOOK_OUTPUT");
  copy(settings.filter, sizeof settings.filter, "TRACEMAP_HOOK_FILTER");
  settings.skip_ns = number("TRACEMAP_HOOK_SKIP_MS", 0) * 1000000;
  settings.budget = number("TRACEMAP_HOOK_CALLS", 0);
  settings.every = number("TRACEMAP_HOOK_EVERY", 1);
  if (!settings.every) settings.every = 1;
  settings.thread_bytes = number("TRACEMAP_HOOK_THREAD_BYTES", 1ull << 30);
  copy_folder(settings.watch, sizeof settings.watch, "TRACEMAP_HOOK_WATCH");
  settings.record_calls = !settings.watch[0] && number("TRACEMAP_HOOK_RECORD_CALLS", 1) != 0;
  read_sampling();
  read_events();
  read_report(&settings.report);
  settings.keeps_newest = read_keep() && !settings.report.wanted; /* a report uses all calls */
}

void settings_begin(void) {
  if (!getcwd(began_in, sizeof began_in)) began_in[0] = '\0';
  if (!ask_for_report() || ask_for_recording()) return;
  read_all();
  check_report(&settings.report);
}

/* A report requested at the start has been read already; the program may have requested a recording since then. */
void settings_read(void) {
  if (!settings.report.wanted || ask_for_recording()) read_all();
}

/* Turns A:B into folders that each end with a zero. */
static void read_folders(char *folders, size_t size, const char *name) {
  char text[sizeof settings.debug_info / 2], folder[sizeof settings.output];
  size_t used = 0;
  copy(text, sizeof text, name);
  char *rest = text, *word;
  while ((word = strtok_r(rest, ":", &rest))) {
    bool is_relative = word[0] != '/' && began_in[0];
    int length = snprintf(folder, sizeof folder, "%s%s%s", is_relative ? began_in : "", is_relative ? "/" : "", word);
    if (length >= (int)sizeof folder || used + (size_t)length + 2 > size) {
      say("%s is too long: %s and all after it were ignored", name, word);
      break;
    }
    memcpy(folders + used, folder, (size_t)length + 1);
    used += (size_t)length + 1;
  }
  folders[used] = '\0';
}

static void read_debug_info(void) {
  read_folders(settings.debug_info, sizeof settings.debug_info, "TRACEMAP_HOOK_DEBUG_INFO");
  copy_folder(settings.jitdump, sizeof settings.jitdump, "TRACEMAP_HOOK_JITDUMP");
  struct stat about;
  for (const char *folder = settings.debug_info; *folder; folder += strlen(folder) + 1)
    if (stat(folder, &about) || !S_ISDIR(about.st_mode))
      say("TRACEMAP_HOOK_DEBUG_INFO: %s is no folder: write it with `tracemap debug-info`", folder);
  if (settings.jitdump[0] && !settings.debug_info[0])
    say("TRACEMAP_HOOK_JITDUMP needs TRACEMAP_HOOK_DEBUG_INFO, a folder that `tracemap debug-info` wrote");
}

void settings_read_debug_info(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_debug_info);
}

/* Matches one [set] of a glob against a character; returns the rest of the pattern, NULL if the set is not closed. */
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

/* Matches one character, `?` or set of a glob; returns the rest of the pattern, NULL if it does not match. */
static const char *match_one(const char *pattern, char character) {
  bool matches = *pattern && (*pattern == '?' || *pattern == character);
  const char *after_set = *pattern == '[' ? match_set(pattern + 1, character, &matches) : NULL;
  if (!matches) return NULL;
  return after_set ? after_set : pattern + 1;
}

/* Like fnmatch, which may allocate. Backtracks only to the last star, so time is at most pattern times name. */
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

bool settings_want(const char *name) {
  if (settings.report.wanted && settings.filter[0]) return !strcmp(settings.filter, name);
  return !settings.filter[0] || matches_glob(settings.filter, name);
}
