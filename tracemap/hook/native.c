#include "native.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lock.h"
#include "process.h"
#include "sampler.h"
#include "settings.h"
#include "timer_source.h"

#define ROUND_NS 20000000 /* between two looks; a ring holds the samples of 0.2 s at the highest rate */

static bool active;
static struct lock lock; /* while objects are looked at: libdl has its own lock then, which a forked child would keep */
static unsigned thread_count;
static pthread_key_t key; /* a thread's sampler; its destructor runs at the thread's end */

/* ---- the file */

struct code {
  const char *bytes; /* of the file */
  size_t size;
  ElfW(Addr) address;
};

static struct code wanted; /* the first executable segment */

static const char *map_file(const char *path, size_t *size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  void *mapped = MAP_FAILED;
  if (file >= 0 && !fstat(file, &about) && about.st_size > 0) {
    *size = (size_t)about.st_size;
    mapped = real_mmap(NULL, *size, PROT_READ, MAP_PRIVATE, file, 0);
  }
  if (file >= 0) close(file);
  return mapped == MAP_FAILED ? NULL : mapped;
}

/* False for a file that is no ELF file of this machine, or has no machine code. */
static bool find_code(const char *file, size_t size) {
  const ElfW(Ehdr) *elf = (const void *)file;
  if (size < sizeof *elf || memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_ident[EI_CLASS] != ELFCLASS64) return false;
  if (elf->e_phentsize != sizeof(ElfW(Phdr)) || elf->e_phoff % _Alignof(ElfW(Phdr)) || elf->e_phoff > size) return false;
  if (elf->e_phnum > (size - elf->e_phoff) / sizeof(ElfW(Phdr))) return false;
  const ElfW(Phdr) *header = (const void *)(file + elf->e_phoff);
  for (unsigned left = elf->e_phnum; left--; header++) {
    if (header->p_type != PT_LOAD || !(header->p_flags & PF_X)) continue;
    if (header->p_offset > size || header->p_filesz > size - header->p_offset || !header->p_filesz) return false;
    wanted = (struct code){file + header->p_offset, header->p_filesz, header->p_vaddr};
    return true;
  }
  return false;
}

/* ---- loaded objects */

#define MOST_LOADED 16u

struct loaded {
  uintptr_t base;
  uint32_t executable;
  bool seen;
};

static struct loaded loaded[MOST_LOADED];
static unsigned loaded_count;

/* For the signal handler: begin and size of the code of each loaded copy; a size of 0 is no code. */
struct code_range {
  uintptr_t begin;
  size_t size;
};
static struct code_range ranges[MOST_LOADED];

static void set_range(unsigned place, uintptr_t base, size_t size) {
  __atomic_store_n(&ranges[place].size, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&ranges[place].begin, base + wanted.address, __ATOMIC_RELEASE);
  __atomic_store_n(&ranges[place].size, size, __ATOMIC_RELEASE);
}

static bool has_code(const struct dl_phdr_info *object) {
  for (unsigned place = 0; place < object->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &object->dlpi_phdr[place];
    if (header->p_type != PT_LOAD || !(header->p_flags & PF_X)) continue;
    if (header->p_vaddr != wanted.address || header->p_filesz != wanted.size) return false;
    return !memcmp((const void *)(object->dlpi_addr + header->p_vaddr), wanted.bytes, wanted.size);
  }
  return false;
}

static uintptr_t end_of(const struct dl_phdr_info *object) {
  uintptr_t end = 0;
  for (unsigned place = 0; place < object->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &object->dlpi_phdr[place];
    if (header->p_type == PT_LOAD && header->p_vaddr + header->p_memsz > end) end = header->p_vaddr + header->p_memsz;
  }
  return end;
}

/* Addresses of the file count from the object's base, which is 0 for a program that is not position-independent. */
static void add_object(const struct dl_phdr_info *object) {
  if (loaded_count == MOST_LOADED) return;
  const char *name = object->dlpi_name && *object->dlpi_name ? object->dlpi_name : "(program)";
  process_lock();
  uint32_t executable =
      process_add_executable(name, SYSTEM_ELF, (struct memory){(const void *)object->dlpi_addr, end_of(object)});
  process_unlock();
  if (executable == NO_EXECUTABLE) return;
  set_range(loaded_count, object->dlpi_addr, wanted.size);
  loaded[loaded_count++] = (struct loaded){object->dlpi_addr, executable, true};
}

struct look {
  unsigned long long adds, subs;
  bool changed;
};

/* Called for each object. The counts of objects that were ever loaded and unloaded tell whether anything changed. */
static int look_at(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)size;
  struct look *last = argument;
  if (!last->changed && object->dlpi_adds == last->adds && object->dlpi_subs == last->subs) return 1;
  last->changed = true;
  last->adds = object->dlpi_adds;
  last->subs = object->dlpi_subs;
  for (unsigned place = 0; place < loaded_count; place++) {
    if (loaded[place].base != object->dlpi_addr || !has_code(object)) continue;
    loaded[place].seen = true;
    return 0;
  }
  if (has_code(object)) add_object(object);
  return 0;
}

static void look(void) {
  static struct look last;
  for (unsigned place = 0; place < loaded_count; place++) loaded[place].seen = false;
  last.changed = false;
  dl_iterate_phdr(look_at, &last);
  for (unsigned place = loaded_count; last.changed && place--;) {
    if (loaded[place].seen) continue;
    process_lock();
    process_add_unload(loaded[place].executable);
    process_unlock();
    loaded_count--;
    loaded[place] = loaded[loaded_count];
    set_range(place, ranges[loaded_count].begin - wanted.address, ranges[loaded_count].size);
    set_range(loaded_count, 0, 0);
  }
}

/* ---- callers, in the signal handler */

/* The file's bytes of the code at an address of the library; NULL for other code. The copy in memory may be gone. */
static const unsigned char *code_at(uintptr_t address) {
  for (unsigned place = 0; place < MOST_LOADED; place++) {
    size_t size = __atomic_load_n(&ranges[place].size, __ATOMIC_ACQUIRE);
    size_t offset = address - __atomic_load_n(&ranges[place].begin, __ATOMIC_ACQUIRE);
    if (offset < size) return (const unsigned char *)wanted.bytes + offset;
  }
  return NULL;
}

#define LONGEST_CALL 7 /* bytes of a call instruction */

/* Whether a word of the stack is an address to which a function returns: right after a call in the library. */
static bool is_return(uintptr_t address) {
  const unsigned char *code = code_at(address);
  if (!code || code - LONGEST_CALL < (const unsigned char *)wanted.bytes) return false;
#if defined(__x86_64__)
  if (code[-5] == 0xe8) return true; /* a relative target; the others are FF /2, through a register or memory */
  for (int size = 2; size <= LONGEST_CALL; size++)
    if (code[-size] == 0xff && (code[1 - size] & 0x38) == 0x10) return true;
  return false;
#else
  uint32_t instruction; /* bl or blr */
  memcpy(&instruction, code - sizeof instruction, sizeof instruction);
  return (instruction & 0xfc000000u) == 0x94000000u || (instruction & 0xfffffc1fu) == 0xd63f0000u;
#endif
}

#define STACK_WORDS 64u /* searched for a return address */

/* A function outside of the library, such as `expf`, works for the code that called it. Functions like that save few
 * registers, so the first return address into the library is near the top of the stack. The page of the stack pointer
 * is there; the next one may not be, for a thread that has just begun. */
static uint64_t caller_in_library(uint64_t ip, uint64_t link, const uint64_t *stack) {
  if (code_at(ip)) return ip;
  if (is_return(link)) return link - 1;
  if ((uintptr_t)stack % sizeof *stack) return ip;
  uintptr_t page = page_bytes(), left = (page - (uintptr_t)stack % page) / sizeof *stack;
  for (unsigned place = 0; place < STACK_WORDS && place < left; place++)
    if (is_return(stack[place])) return stack[place] - 1;
  return ip;
}

/* ---- threads */

#define LEAST_STACK 65536u /* of a thread that is sampled: its begin and the handler take up to 16 KiB of it */

static bool main_ended;      /* the main thread has ended, and the process goes on without it */
static const char unsampled; /* its address stands for the sampler of a thread without one */

/* A canceled thread would keep the locks that it has here. */
static void end_of_thread(void *sampler) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  if (sampler != &unsampled) sampler_end(sampler);
  if (syscall(SYS_gettid) == getpid()) __atomic_store_n(&main_ended, true, __ATOMIC_RELEASE);
  pthread_setcancelstate(state, NULL);
}

static void begin_thread(void) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  struct sampler *sampler = sampler_begin(__atomic_fetch_add(&thread_count, 1, __ATOMIC_RELAXED));
  if (sampler) sampler_enter(sampler);
  pthread_setspecific(key, sampler ? (const void *)sampler : &unsampled);
  pthread_setcancelstate(state, NULL);
}

struct begun {
  union {
    void *(*posix)(void *);
    thrd_start_t c11;
  } start;
  void *argument;
};

static struct begun *new_begun(void *argument) {
  struct begun *begun = active ? malloc(sizeof *begun) : NULL;
  if (begun) begun->argument = argument;
  return begun;
}

static struct begun begin_begun(void *argument) {
  struct begun begun = *(struct begun *)argument;
  free(argument);
  begin_thread();
  return begun;
}

static void *run_thread(void *argument) {
  struct begun begun = begin_begun(argument);
  return begun.start.posix(begun.argument);
}

static int run_c11_thread(void *argument) {
  struct begun begun = begin_begun(argument);
  return begun.start.c11(begun.argument);
}

static bool has_room(const pthread_attr_t *attributes) {
  size_t size;
  if (!attributes || pthread_attr_getstacksize(attributes, &size) || size >= LEAST_STACK) return true;
  errno = 0;
  return process_lose_thread("samples", "its stack is smaller than 64 KiB");
}

int native_create_thread(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  struct begun *begun = active && has_room(attributes) ? new_begun(argument) : NULL;
  if (!begun) return libc.pthread_create(thread, attributes, start, argument);
  begun->start.posix = start;
  int status = libc.pthread_create(thread, attributes, run_thread, begun);
  if (status) free(begun);
  return status;
}

int native_create_c11_thread(thrd_t *thread, thrd_start_t start, void *argument) {
  struct begun *begun = new_begun(argument);
  if (!begun) return libc.thrd_create(thread, start, argument);
  begun->start.c11 = start;
  int status = libc.thrd_create(thread, run_c11_thread, begun);
  if (status != thrd_success) free(begun);
  return status;
}

/* Whether only the watcher is left, and the main thread's entry, which stays to the end of the process. */
static bool all_ended(void) {
  struct stat about;
  if (!__atomic_load_n(&main_ended, __ATOMIC_ACQUIRE)) return false;
  return !stat("/proc/self/task", &about) && about.st_nlink <= 2 + 2; /* two of the folder itself, as in any folder */
}

/* The program's signals are for its own threads. A program whose main thread ended goes on until its last thread ends,
 * so the watcher must not be that one forever. */
static void *watch(void *unused) {
  struct timespec pause = {0, ROUND_NS};
  while (!all_ended()) {
    lock_take(&lock);
    look();
    lock_release(&lock);
    samplers_end();
    nanosleep(&pause, NULL);
  }
  return unused;
}

static bool start_watching(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t watcher;
  int status = libc.pthread_create(&watcher, NULL, watch, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return !status && !pthread_detach(watcher);
}

static void begin_here(void) {
  process_lock();
  active = process_begin();
  process_unlock();
  if (!active) return;
  look();
  begin_thread();
  if (!start_watching()) say("the program cannot be sampled: no thread can be started");
}

void native_lock(void) { lock_take(&lock); }
void native_unlock(void) { lock_release(&lock); }

void native_begin(void) {
  const char *path = getenv("TRACEMAP_HOOK_NATIVE");
  if (!path || !*path) return;
  size_t size = 0;
  const char *file = map_file(path, &size);
  if (!file || !find_code(file, size)) return say("TRACEMAP_HOOK_NATIVE=%s has no machine code that can be read", path);
  pthread_key_create(&key, end_of_thread);
  timer_find_callers(caller_in_library);
  begin_here();
}

void native_fork_child(void) {
  if (!active) return;
  pthread_setspecific(key, NULL);
  main_ended = false;
  begin_here(); /* the loaded objects are those of the parent, as its file names them */
}
