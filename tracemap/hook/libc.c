#include "libc.h"

#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

struct libc libc;

/* By version, since plain dlsym would be our own. */
#define RESOLVE(name) libc.name = (__typeof__(libc.name))(uintptr_t)dlvsym(RTLD_NEXT, #name, DLSYM_VERSION)

void libc_resolve(void) {
  if (libc.dlsym) return;
#ifdef TRACEMAP_HOOK_WITHOUT_PRELOAD
  libc = (struct libc){dlsym, dlclose, mmap, mprotect, munmap};
#else
  RESOLVE(mmap);
  RESOLVE(mprotect);
  RESOLVE(munmap);
  RESOLVE(dlclose);
  RESOLVE(dlsym);
#endif
}

/* Other libraries may call us before our constructor ran; then the kernel is asked directly. */
void *real_mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  if (libc.mmap) return libc.mmap(address, size, protection, flags, file, offset);
  return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

int real_mprotect(void *address, size_t size, int protection) {
  return libc.mprotect ? libc.mprotect(address, size, protection)
                       : (int)syscall(SYS_mprotect, address, size, protection);
}

int real_munmap(void *address, size_t size) {
  return libc.munmap ? libc.munmap(address, size) : (int)syscall(SYS_munmap, address, size);
}

size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *new_pages(size_t size) {
  void *pages = real_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}
