#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "layout.h"
#include "process.h"
#include "settings.h"

bool file_reserve(int file, off_t offset, off_t size) {
  if (!fallocate(file, 0, offset, size)) return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
  static const char zeros[65536];
  for (off_t place = offset; place < offset + size; place += (off_t)sizeof zeros)
    if (!file_put(file, zeros, sizeof zeros, (uint64_t)place)) return false;
  return true;
}

bool file_put(int file, const void *data, size_t size, uint64_t offset) {
  return pwrite(file, data, size, (off_t)offset) == (ssize_t)size;
}

int file_make(unsigned thread, const char *suffix, off_t room, const char *consequence) {
  char path[sizeof settings.output + 160];
  if (!process_path(path, sizeof path, thread, suffix)) return -1;
  int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file >= 0 && (!room || file_reserve(file, 0, room))) return file;
  say("%s cannot be made (%s): %s", path, strerror(errno), consequence);
  if (file >= 0) close(file);
  return -1;
}

void about_begin(struct text *about) {
  char name[32] = "";
  prctl(PR_GET_NAME, name, 0, 0, 0);
  text_add(about, "{\"pid\":%d,\"tid\":%d,\"name\":", (int)getpid(), (int)syscall(SYS_gettid));
  text_add_json(about, name);
}

bool head_write(int file, const struct head *head) {
  struct preamble preamble = {
      .version = FORMAT_VERSION,
      .description_bytes = (uint32_t)strlen(head->description),
      .about_bytes = (uint32_t)head->about->used,
      .header_offset = HEADER_OFFSET,
      .about_offset = ABOUT_OFFSET,
      .data_offset = head->data_offset,
  };
  memcpy(preamble.magic, head->magic, sizeof preamble.magic);
  return file_put(file, head->description, preamble.description_bytes, DESCRIPTION_OFFSET) &&
         file_put(file, head->about->data, preamble.about_bytes, ABOUT_OFFSET) &&
         file_put(file, &preamble, sizeof preamble, 0);
}
