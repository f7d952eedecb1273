#include "stops.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "mapping.h"

#define VARIABLE "TRACEMAP_HOOK_STOPS"
#define PART_BYTES (1u << 20) /* size of the part of the file that is mapped at a time */
#define PART_TIMES (PART_BYTES / sizeof(uint64_t))

static bool wanted;
/* No mutex: a signal handler may read the clock, and a forked child would wait for a mutex forever. */
static bool busy;
static struct own_file file = {.descriptor = -1};
static bool begun;
static struct file_mapping pages;
static uint64_t *part; /* NULL: nothing more is written */
static size_t used;
static off_t end;

/* Maps the next part of the file; the file stays valid if the program is killed. */
static void next_part(void) {
  bool cut = pages.lost || (file_is_ours(&file) && file_size(&file) < end);
  part = NULL;
  used = 0;
  if (cut || !file_reserve(&file, end, PART_BYTES)) {
    say("what the program's clock leaves out is not recorded any more: %s",
        cut ? "another program has cut the file" : strerror(errno));
    return;
  }
  if (file_map(&pages, &file, end, PART_BYTES, MAP_POPULATE, true)) part = (uint64_t *)(void *)pages.pages;
  end += PART_BYTES;
}

static COLD void begin(void) {
  const char *path = getenv(VARIABLE);
  begun = true;
  if (!path) return;
  file = file_of(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file_is_open(&file)) next_part();
  else say("%s cannot be made (%s): what the program's clock leaves out is not recorded", path, strerror(errno));
}

void stops_begin(void) {
  const char *path = getenv(VARIABLE);
  wanted = path && *path;
}

void stops_fork_child(void) { wanted = wanted && !begun; }

void stops_add(void) {
  if (LIKELY(!wanted) || __atomic_exchange_n(&busy, true, __ATOMIC_ACQUIRE)) return;
  int error = errno;
  uint64_t now = monotonic_ns();
  if (UNLIKELY(!begun)) begin();
  if (UNLIKELY(part && used == PART_TIMES)) next_part();
  if (LIKELY(part)) part[used++] = now;
  errno = error;
  __atomic_store_n(&busy, false, __ATOMIC_RELEASE);
}
