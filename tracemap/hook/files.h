/* Files of the hook's own: their descriptors, and room on disk for them.
 *
 * Programs close descriptors that they do not know, as daemons do when they begin, and the number is that of a file of
 * theirs then. So a file is known by more than its number, and looked at before anything is done with it: what is not
 * ours any more is neither written to nor cut nor closed.
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

/* What was just opened, as ours; NO_FILE, with errno, where that failed or fails now. */
struct own_file file_of(int opened);

/* Whether its descriptor still is that of this file; errno says that it is a bad one where it is not. */
bool file_is_ours(const struct own_file *file);

/* Its size; -1, with errno, where it is not ours any more. One that is less than what was written says that another
 * program has cut it. */
off_t file_size(const struct own_file *file);
void file_close(struct own_file *file);

/* All that follows says false with errno where it cannot be done, and where the file is not ours any more. */

/* Room on disk: writing to a mapped file on a full one kills the program. */
bool file_reserve(const struct own_file *file, off_t offset, off_t size);

/* Takes disk ahead of the file's end, which stays where it is. */
bool file_keep_room(const struct own_file *file, off_t offset, off_t size);

/* Gives room on disk back, where the file system can: the file has a hole there, and its size. */
bool file_release(const struct own_file *file, off_t offset, off_t size);

/* Writes all of it, at a place or at the end. */
bool file_put(const struct own_file *file, const void *data, size_t size, uint64_t offset);
bool file_append(const struct own_file *file, const void *data, size_t size);

/* Gives it a size. */
bool file_resize(const struct own_file *file, off_t size);
