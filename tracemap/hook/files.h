/* The hook's own files: their descriptors, and disk space for them.
 *
 * Programs may close descriptors that they do not know, as daemons do at their start; the number may then belong to one
 * of their files. So a file is identified by device and inode as well, and checked before every use: a descriptor that
 * is no longer ours is not written to, truncated or closed.
 */
#pragma once

#include "system.h"

struct own_file {
  int descriptor; /* -1: none */
  dev_t device;
  ino_t inode;
};

#define NO_FILE ((struct own_file){.descriptor = -1})

static inline bool file_is_open(const struct own_file *file) { return file->descriptor >= 0; }

/* Wraps a descriptor that was just opened; NO_FILE, with errno, if that failed or fails now. */
struct own_file file_of(int opened);

/* Whether the descriptor still belongs to that file; if not, errno is EBADF. */
bool file_is_ours(const struct own_file *file);

/* Its size; -1, with errno, if it is no longer ours. If it is smaller than the written size, another program has
 * truncated it. */
off_t file_size(const struct own_file *file);
void file_close(struct own_file *file);

/* All functions below return false, with errno, on failure, and if the file is no longer ours. */

/* Reserves disk space: writing to a mapped file on a full disk kills the program. */
bool file_reserve(const struct own_file *file, off_t offset, off_t size);

/* Reserves disk space after the file's end, without changing its size. */
bool file_keep_room(const struct own_file *file, off_t offset, off_t size);

/* Gives disk space back, if the file system can: the file gets a hole and keeps its size. */
bool file_release(const struct own_file *file, off_t offset, off_t size);

/* Writes all of it, at an offset or at the end. */
bool file_put(const struct own_file *file, const void *data, size_t size, uint64_t offset);
bool file_append(const struct own_file *file, const void *data, size_t size);

/* Sets its size. */
bool file_resize(const struct own_file *file, off_t size);

/* ---- other files */

/* The content of a file in memory of our own, to be freed by `real_munmap`; NULL if it cannot be read. It is not mapped:
 * another program might truncate it, and valgrind takes a mapped ELF file for one that is loaded. */
char *file_copy(const char *path, size_t *size);
char *file_copy_opened(int file, size_t *size);
