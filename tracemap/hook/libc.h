/* The C library's own functions, behind those of the hook that stand before them; and memory by the page. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "attributes.h"

struct libc {
  void *(*dlsym)(void *handle, const char *name);
  int (*dlclose)(void *handle);
  void *(*mmap)(void *address, size_t size, int protection, int flags, int file, off_t offset);
  int (*mprotect)(void *address, size_t size, int protection);
  int (*munmap)(void *address, size_t size);
};

/* All NULL before `libc_resolve`; `dlsym` is set last. */
extern HIDDEN struct libc libc;
void libc_resolve(void);

/* These work at any time, and are what all of the hook uses: the names themselves would lead back into it. */
void *real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset);
int real_mprotect(void *address, size_t size, int protection);
int real_munmap(void *address, size_t size);

size_t page_bytes(void);

/* Memory of our own, zeroed; NULL if there is none. It goes by `real_munmap`. */
void *new_pages(size_t size);
