#include "event_choice.h"

#include "counters.h"
#include "printing.h"

/* Opens events as counters.c does, one by one; events that are read together join the group of the first. */
struct trial {
  int files[EVENTS];
  unsigned count;
  int leader; /* -1: none yet */
};

static int try_to_open(const struct event_setting *setting, int leader) {
  struct perf_event_attr attributes = perf_attributes(setting->type, setting->config, setting->exclude_kernel);
  attributes.disabled = 1;
  return perf_open(&attributes, setting->mode == EVENT_GROUP ? leader : -1);
}

/* Without kernel mode if only that is allowed, unless the event would be 0 then. Returns a descriptor, or -1 with
 * errno. Hardware events form one group, so that none of them is multiplexed. */
static int open_event(const struct event_name *event, int leader, struct event_setting *setting) {
  *setting = (struct event_setting){.type = event->type, .config = event->config};
  snprintf(setting->name, sizeof setting->name, "%s", event->text);
  setting->mode = event_is_discrete(event) ? EVENT_RING : EVENT_GROUP;
  int file = try_to_open(setting, leader);
  if (file >= 0 || errno != EACCES || event_is_kernel_made(event)) return file;
  setting->exclude_kernel = true;
  return try_to_open(setting, leader);
}

/* The meaning of an error number here. */
static const char *reason(int error, bool beside_others) {
  if (error == ENOENT || error == ENODEV || error == EOPNOTSUPP)
    return "this machine has no such counter (virtual machines often hide them)";
  if (error == EACCES || error == EPERM) return "not allowed (sysctl kernel.perf_event_paranoid=1 helps)";
  if (error == EINVAL && beside_others) return "the processor cannot count it together with those before it";
  return strerror(error);
}

static void leave_out(const char *name, const char *why) { say("the event %s is left out: %s", name, why); }

static bool is_chosen(const struct trial *trial, const char *name) {
  for (unsigned event = 0; event < trial->count; event++)
    if (!strcmp(settings.events[event].name, name)) return true;
  return false;
}

static void choose(struct trial *trial, const char *name) {
  struct event_name event;
  if (!event_named(name, &event))
    return leave_out(name, "there is none of that name (a raw one goes by its number, such as r01c2)");
  if (is_chosen(trial, name)) return leave_out(name, "it is named twice");
  if (trial->count == EVENTS) return leave_out(name, "more events than can be counted in a call");
  struct event_setting *setting = &settings.events[trial->count];
  int file = open_event(&event, trial->leader, setting);
  if (file < 0) return leave_out(name, reason(errno, trial->leader >= 0));
  trial->files[trial->count++] = file;
  if (setting->mode == EVENT_GROUP && trial->leader < 0) trial->leader = file;
}

void events_choose(void) {
  if (!settings.report.events[0]) return;
  struct trial trial = {.leader = -1};
  char *rest = settings.report.events, *name;
  while ((name = strtok_r(rest, ",", &rest))) choose(&trial, name);
  settings.report.events[0] = '\0';
  settings.event_count = trial.count;
  while (trial.count) close(trial.files[--trial.count]);
}

void events_list(void) {
  static struct printer printer;
  struct event_name event;
  print_begin(&printer, STDERR_FILENO);
  for (unsigned number = 0; event_at(number, &event); number++) {
    struct event_setting unused;
    int file = open_event(&event, -1, &unused);
    print(&printer, "%-40s [generic] %s\n", event.text, file < 0 ? reason(errno, false) : "");
    if (file >= 0) close(file);
  }
  print_end(&printer);
}
