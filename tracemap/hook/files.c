#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>

struct own_file file_of(int opened) {
  struct stat about;
  int descriptor = descriptor_aside(opened);
  if (descriptor < 0) return NO_FILE;
  if (!fstat(descriptor, &about)) return (struct own_file){descriptor, about.st_dev, about.st_ino};
  close(descriptor);
  return NO_FILE;
}

off_t file_size(const struct own_file *file) {
  struct stat about;
  if (file_is_open(file) && !fstat(file->descriptor, &about) && about.st_dev == file->device &&
      about.st_ino == file->inode)
    return about.st_size;
  errno = EBADF;
  return -1;
}

bool file_is_ours(const struct own_file *file) { return file_size(file) >= 0; }

void file_close(struct own_file *file) {
  if (file_is_open(file) && file_is_ours(file)) close(file->descriptor);
  *file = NO_FILE;
}

static bool take(const struct own_file *file, int mode, off_t offset, off_t size) {
  if (!file_is_ours(file)) return false;
  sigset_t before;
  write_signals_hold(&before); /* for a memory file, reserved space counts against the program's file size limit, too */
  bool taken = !fallocate(file->descriptor, mode, offset, size);
  write_signals_release(&before);
  return taken;
}

bool file_reserve(const struct own_file *file, off_t offset, off_t size) {
  if (take(file, 0, offset, size)) return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
  static const char zeros[65536];
  for (off_t place = offset; place < offset + size; place += (off_t)sizeof zeros)
    if (!file_put(file, zeros, sizeof zeros, (uint64_t)place)) return false;
  return true;
}

bool file_keep_room(const struct own_file *file, off_t offset, off_t size) {
  return take(file, FALLOC_FL_KEEP_SIZE, offset, size);
}

bool file_release(const struct own_file *file, off_t offset, off_t size) {
  return take(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size);
}

bool file_put(const struct own_file *file, const void *data, size_t size, uint64_t offset) {
  if (!file_is_ours(file)) return false;
  sigset_t before;
  write_signals_hold(&before);
  ssize_t put = pwrite(file->descriptor, data, size, (off_t)offset);
  write_signals_release(&before);
  if (put >= 0 && put < (ssize_t)size) errno = ENOSPC; /* a short write means that the rest does not fit */
  return put == (ssize_t)size;
}

bool file_append(const struct own_file *file, const void *data, size_t size) {
  return file_is_ours(file) && write_all(file->descriptor, data, size);
}

bool file_resize(const struct own_file *file, off_t size) {
  if (!file_is_ours(file)) return false;
  sigset_t before;
  write_signals_hold(&before);
  bool resized = !ftruncate(file->descriptor, size);
  write_signals_release(&before);
  return resized;
}

/* ---- other files */

#define MOST_BYTES (1u << 30)

static bool read_all(int file, char *data, size_t size) {
  while (size) {
    ssize_t got = read(file, data, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= (size_t)got;
  }
  return true;
}

char *file_copy_opened(int file, size_t *size) {
  struct stat about;
  char *data = NULL;
  if (!fstat(file, &about) && S_ISREG(about.st_mode) && about.st_size > 0 && about.st_size <= MOST_BYTES) {
    *size = (size_t)about.st_size;
    data = new_pages(*size);
    if (data && !read_all(file, data, *size)) {
      real_munmap(data, *size);
      data = NULL;
    }
  }
  return data;
}

char *file_copy(const char *path, size_t *size) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return NULL;
  char *data = file_copy_opened(file, size);
  close(file);
  return data;
}
