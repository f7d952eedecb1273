/* The hook's own files, mapped into memory, so that writing needs no system call.
 *
 * Another program may truncate such a file, or its disk may be full: the next write to its pages would end this program
 * by SIGBUS. The handler of this signal maps other memory in their place, and the program continues. Any other SIGBUS
 * goes where it went before.
 */
#pragma once

#include "files.h"

struct file_mapping {
  char *pages; /* NULL: none */
  size_t size;
  volatile bool lost; /* the pages no longer belong to the file */
  struct file_mapping *next;
};

/* Maps a part of a file with mmap's `flags`, replacing the previous mapping; that stays on failure (false, with errno).
 * Only the thread that mapped it may write to it. With `for_all`, every thread may write, and the process has only one
 * such mapping. It stays at its address until `file_unmap`. */
bool file_map(struct file_mapping *mapping, const struct own_file *file, off_t offset, size_t size, int flags,
              bool for_all);
void file_unmap(struct file_mapping *mapping);
