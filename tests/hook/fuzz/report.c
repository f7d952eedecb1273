/* A thread's records read back for a report: the fuzzer's bytes say how many events there are, how they are shown, what
 * the thread is called, and are the records.
 */
#include "report.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "fuzz.h"
#include "layout.h"

static char folder[] = "/tmp/hook-fuzz-XXXXXX";

static void remove_folder(void) { rmdir(folder); }

static void set_up(struct input *input) {
  static const double gammas[] = {0, 0.5, 1, 1e-300, 1e300};
  if (!settings.report.wanted) {
    if (!mkdtemp(folder)) abort();
    atexit(remove_folder);
  }
  settings.report.wanted = true;
  settings.report.buckets = 1 + (unsigned)take_number(input, 2) % MOST_BUCKETS;
  settings.report.gamma = gammas[take_number(input, 1) % 5];
  settings.report.tables = settings.report.buckets <= 32; /* larger ones take long to print, no more */
  settings.event_count = (unsigned)take_number(input, 1) % (EVENTS + 1);
  bool csv = take_number(input, 1) & 1;
  snprintf(settings.report.csv, sizeof settings.report.csv, "%s", csv ? folder : "");
  for (unsigned event = 0; event < settings.event_count; event++)
    snprintf(settings.events[event].name, sizeof settings.events[event].name, "event-%u", event);
}

/* Whatever a thread calls itself, its calls stand in the folder. */
static void remove_files(void) {
  DIR *opened = opendir(folder);
  if (!opened) abort();
  for (struct dirent *entry; (entry = readdir(opened));) {
    if (entry->d_name[0] == '.') continue;
    if (strncmp(entry->d_name, "iree_hook_", 10) || unlinkat(dirfd(opened), entry->d_name, 0)) abort();
  }
  closedir(opened);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input input = {data, size};
  char name[16];
  set_up(&input);
  for (unsigned place = 0; place < sizeof name; place++) name[place] = (char)take_number(&input, 1);
  name[sizeof name - 1] = '\0';
  int file = memfd_create("calls", MFD_CLOEXEC);
  if (file < 0 || pwrite(file, input.data, input.size, DATA_OFFSET) != (ssize_t)input.size) abort();
  uint32_t record_bytes = (uint32_t)(sizeof(struct record) + settings.event_count * sizeof(uint64_t));
  report_thread(&(struct reported){name, file, record_bytes, settings.event_count});
  close(file);
  remove_files();
  return 0;
}
