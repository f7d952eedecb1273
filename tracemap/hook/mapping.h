/* Files of the hook's own in memory, where the program writes to them without a system call.
 *
 * Another program may cut such a file, or its disk may turn out to be full: the next write to its pages would end this
 * program by SIGBUS. The handler of this signal puts other memory in their place, and the program goes on.
 * A SIGBUS that is not the hook's goes where it went before.
 */
#pragma once

#include "files.h"

struct file_mapping {
  char *pages; /* NULL: none */
  size_t size;
  volatile bool lost; /* the pages are not the file's any more */
  struct file_mapping *next;
};

/* Maps a part of a file, with mmap's `flags`, in the place of what was mapped before, which stays if it cannot be; false
 * then, with errno. Only the thread that mapped it may write to it; but where `for_all` is true every thread may, and
 * there is one such mapping in the process. It stays where it is, until `file_unmap`. */
bool file_map(struct file_mapping *mapping, const struct own_file *file, off_t offset, size_t size, int flags,
              bool for_all);
void file_unmap(struct file_mapping *mapping);
