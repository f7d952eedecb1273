#include "stops.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "files.h"

#define VARIABLE "TRACEMAP_HOOK_STOPS"
#define PART_BYTES (1u << 20) /* so much of the file is on disk and in memory at a time */
#define PART_TIMES (PART_BYTES / sizeof(uint64_t))

static bool wanted;
/* No mutex: the clock may be read by a signal's handler, and by the child of a fork, which waited for ever for one. */
static bool busy;
static struct own_file file = {.descriptor = -1};
static bool begun;
static uint64_t *part; /* NULL: nothing more is written */
static size_t used;
static off_t end;

/* Makes the next part of the file, which stays whole if the program is killed. */
static void next_part(void) {
  if (part) real_munmap(part, PART_BYTES);
  part = NULL;
  used = 0;
  if (!file_reserve(&file, end, PART_BYTES)) {
    say("what the program's clock leaves out is not recorded any more: %s", strerror(errno));
    return;
  }
  void *pages = real_mmap(NULL, PART_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.descriptor, end);
  end += PART_BYTES;
  if (pages != MAP_FAILED) part = pages;
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
