/* A runtime reduced to what the hook sees of one: it loads executables, calls workgroups from threads, forks, unloads.
 *
 * Usage: host KERNELS.so MODE [THREADS [CALLS [KERNEL [EMBEDDED.so]]]]; what each mode does is said beside it.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

static const char *path;
static unsigned thread_count = 2, call_count = 1000, kernel;

static void fail(const char *what) {
  fprintf(stderr, "host: %s: %s\n", what, dlerror());
  exit(1);
}

static const struct library *load(void **handle) {
  *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*handle) fail("dlopen");
  library_query query;
  void *found = dlsym(*handle, LIBRARY_QUERY);
  if (!found) fail("dlsym");
  memcpy(&query, &found, sizeof found);
  return query(LIBRARY_VERSION, NULL);
}

static void call_all(const struct library *library) {
  struct dispatch_state dispatch = {.workgroup_count_x = call_count, .workgroup_count_y = 1, .workgroup_count_z = 1};
  struct workgroup_state workgroup = {0};
  for (unsigned call = 0; call < call_count; call++) {
    workgroup.workgroup_id_x = call;
    if (library->exports.ptrs[kernel](NULL, &dispatch, &workgroup)) exit(3);
  }
}

static void *call_in_thread(void *library) {
  call_all(library);
  return NULL;
}

static const char *embedded_path;

/* Where an embedded image's addresses lie in memory; the sizes of its pages are those of the machine. */
struct image {
  char *base;
  const Elf64_Phdr *headers;
  unsigned count;
};

static void relocate(const struct image *image, const Elf64_Dyn *entry) {
  Elf64_Addr relocations = 0, size = 0;
  for (; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_RELA) relocations = entry->d_un.d_ptr;
    if (entry->d_tag == DT_RELASZ) size = entry->d_un.d_val;
  }
  const Elf64_Rela *relocation = (const void *)(image->base + relocations);
  for (size_t count = size / sizeof *relocation; count--; relocation++) {
    char *value = image->base + relocation->r_addend;
    memcpy(image->base + relocation->r_offset, &value, sizeof value); /* all of them are relative */
  }
}

static void protect(const struct image *image) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  for (unsigned place = 0; place < image->count; place++) {
    const Elf64_Phdr *header = &image->headers[place];
    if (header->p_type != PT_LOAD) continue;
    uintptr_t begin = header->p_vaddr / page * page, end = header->p_vaddr + header->p_memsz;
    int protection = PROT_READ | (header->p_flags & PF_W ? PROT_WRITE : 0) | (header->p_flags & PF_X ? PROT_EXEC : 0);
    if (mprotect(image->base + begin, (end - begin + page - 1) / page * page, protection)) exit(7);
  }
}

/* Loads an image as IREE's own loader does: room without rights, segments, relocations, and last the rights. */
static void call_embedded(void) {
  enum { ROOM = 1 << 20 };
  static char file[ROOM];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (!file[0]) {
    FILE *opened = fopen(embedded_path, "rb");
    if (!opened || !fread(file, 1, ROOM, opened)) exit(7);
    fclose(opened);
  }
  pthread_mutex_unlock(&lock);
  const Elf64_Ehdr *elf = (const void *)file;
  struct image image = {mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                        (const void *)(file + elf->e_phoff), elf->e_phnum};
  if (image.base == MAP_FAILED || mprotect(image.base, ROOM, PROT_READ | PROT_WRITE)) exit(7);
  const Elf64_Dyn *dynamic = NULL;
  for (unsigned place = 0; place < image.count; place++) {
    const Elf64_Phdr *header = &image.headers[place];
    if (header->p_type == PT_LOAD) memcpy(image.base + header->p_vaddr, file + header->p_offset, header->p_filesz);
    if (header->p_type == PT_DYNAMIC) dynamic = (const void *)(image.base + header->p_vaddr);
  }
  relocate(&image, dynamic);
  protect(&image);
  library_query query;
  char *entry = image.base + elf->e_entry; /* what the image is linked to begin with */
  memcpy(&query, &entry, sizeof entry);
  call_all(query(LIBRARY_VERSION, NULL));
  munmap(image.base, ROOM);
}

static pthread_barrier_t all_called;

/* No thread ends before each has called. */
static void *call_together(void *library) {
  call_all(library);
  pthread_barrier_wait(&all_called);
  return NULL;
}

static void *load_and_call(void *unused) {
  (void)unused;
  for (int time = 0; time < 20; time++) {
    void *handle;
    call_all(load(&handle));
    dlclose(handle);
  }
  return NULL;
}

/* All at once, from many threads: what is loaded by libdl and by a loader like IREE's own comes and goes while others
 * call, and every fourth thread forks in between. */
static void *storm(void *library) {
  static unsigned threads;
  unsigned number = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
  for (unsigned time = 0; time < 4; time++) {
    void *handle;
    call_all(load(&handle));
    dlclose(handle);
    if (embedded_path) call_embedded();
    if (number % 4 == time) {
      pid_t child = fork();
      if (!child) {
        call_all(library);
        exit(0);
      }
      int status;
      if (waitpid(child, &status, 0) < 0 || status) exit(6);
    }
    call_all(library);
  }
  return NULL;
}

static void in_threads(void *(*body)(void *), void *argument) {
  pthread_t threads[64];
  for (unsigned thread = 0; thread < thread_count; thread++) pthread_create(&threads[thread], NULL, body, argument);
  for (unsigned thread = 0; thread < thread_count; thread++) pthread_join(threads[thread], NULL);
}

/* Calls by the main thread, a fork, calls on both sides; the child loads once more. */
static void fork_and_call(const struct library *library) {
  call_all(library);
  pid_t child = fork();
  if (!child) {
    void *handle;
    call_all(library);
    call_all(load(&handle));
    in_threads(call_in_thread, (void *)(uintptr_t)library);
    exit(0);
  }
  int status;
  if (waitpid(child, &status, 0) < 0 || status) exit(4);
  call_all(library);
}

__attribute__((weak)) void iree_hal_executable_library_call_hook_begin(struct string_view identifier,
                                                                       const struct library *library, size_t ordinal);
__attribute__((weak)) void iree_hal_executable_library_call_hook_end(struct string_view identifier,
                                                                     const struct library *library, size_t ordinal);

static int linked_in(const void *environment, const struct dispatch_state *dispatch,
                     const struct workgroup_state *workgroup) {
  (void)environment, (void)dispatch, (void)workgroup;
  return 0;
}

/* As a runtime that is built with IREE's hook does: around each workgroup, here of a library that is linked in. */
static void call_with_runtime_hook(const struct library *library) {
  static export_function ptrs[] = {linked_in};
  static const char *const names[] = {"linked_in"};
  static const struct library_header header = {.version = LIBRARY_VERSION, .name = "static"};
  static const struct library own = {.header = &header, .exports = {.count = 1, .ptrs = ptrs, .names = names}};
  const struct string_view identifier = {"host", 4};
  const struct library *both[] = {&own, library};
  for (unsigned call = 0; call < call_count; call++)
    for (int place = 0; place < 2; place++) {
      struct dispatch_state dispatch = {.workgroup_count_x = 1, .workgroup_count_y = 1, .workgroup_count_z = 1};
      struct workgroup_state workgroup = {0};
      if (iree_hal_executable_library_call_hook_begin)
        iree_hal_executable_library_call_hook_begin(identifier, both[place], 0);
      both[place]->exports.ptrs[0](NULL, &dispatch, &workgroup);
      if (iree_hal_executable_library_call_hook_end)
        iree_hal_executable_library_call_hook_end(identifier, both[place], 0);
    }
}

__attribute__((weak)) const struct plugin *iree_hal_executable_plugin_query(uint32_t version, void *reserved);

/* Where the hook is linked in rather than preloaded, it is reached as IREE reaches its plugins. */
static void load_plugin(void) {
  void *self;
  if (!iree_hal_executable_plugin_query) return;
  const struct plugin *plugin = iree_hal_executable_plugin_query(PLUGIN_VERSION, NULL);
  if (plugin->load(NULL, 0, NULL, &self)) exit(5);
}

static volatile sig_atomic_t own_signals;

static void count_signal(int number) {
  (void)number;
  own_signals++;
}

/* A program that has a profiler of its own; prints whether that went on. */
static void call_profiled(const struct library *library) {
  struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
  signal(SIGPROF, count_signal);
  setitimer(ITIMER_PROF, &often, NULL);
  call_all(library);
  setitimer(ITIMER_PROF, &never, NULL);
  printf("%d\n", own_signals > 0);
}

/* A program that closes all descriptors that it did not open, as daemons do, and has files of its own in their place. */
static void call_after_closing(const struct library *library, const char *folder) {
  enum { FILES = 8, LINES = 20000 };
  static const char line[] = "a line of the program\n";
  char name[4096];
  int files[FILES];
  call_all(library);
  for (int file = 3; file < sysconf(_SC_OPEN_MAX); file++) close(file);
  for (int file = 0; file < FILES; file++) {
    snprintf(name, sizeof name, "%s/own-%d.txt", folder, file);
    files[file] = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    for (int number = 0; number < LINES; number++)
      if (write(files[file], line, sizeof line - 1) != sizeof line - 1) exit(8);
  }
  call_all(library);
  in_threads(call_in_thread, (void *)(uintptr_t)library);
  void *handle;
  call_all(load(&handle));
  for (int file = 0; file < FILES; file++)
    if (lseek(files[file], 0, SEEK_END) != LINES * (off_t)(sizeof line - 1)) exit(9);
}

/* A program whose profiler begins and ends while it is hooked; prints how many signals came to it that it did not ask for. */
static void call_around_profiler(const struct library *library) {
  call_all(library);
  signal(SIGPROF, count_signal);
  call_all(library);
  signal(SIGPROF, SIG_DFL);
  call_all(library);
  printf("%d\n", (int)own_signals);
}

/* A program that goes to another folder before it loads anything, as daemons do, and to one more before its threads call. */
static void call_elsewhere(const char *library) {
  if (chdir("/")) exit(8);
  path = library;
  void *handle;
  const struct library *loaded = load(&handle);
  if (chdir("/proc")) exit(8);
  in_threads(call_in_thread, (void *)(uintptr_t)loaded);
}

/* What the program raises itself is counted; what a write has caused is none of the program's. */
static void own_bus_error(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  if (info->si_code > 0) _exit(9);
  own_signals++;
}

/* A program whose record files another one cuts to so many bytes while it runs; it calls on in the threads that it has, and
 * in new ones. Prints how often a SIGBUS of its own came to its own handler, which was there before. */
static void call_while_cut(const struct library *library, const char *folder, off_t size) {
  char name[4096 + 256];
  struct sigaction own = {.sa_sigaction = own_bus_error, .sa_flags = SA_SIGINFO};
  sigaction(SIGBUS, &own, NULL);
  call_all(library);
  DIR *listed = opendir(folder);
  for (struct dirent *entry; (entry = readdir(listed));) {
    snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
    if (entry->d_name[0] != '.' && truncate(name, size)) exit(8);
  }
  closedir(listed);
  call_all(library);
  in_threads(call_in_thread, (void *)(uintptr_t)library);
  void *handle;
  call_all(load(&handle));
  raise(SIGBUS);
  printf("%d\n", (int)own_signals);
}

/* A write beyond the end of a file of the program's own. */
static void write_beyond(void) {
  int file = fileno(tmpfile());
  char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  page[0] = 1;
}

/* A child of a bare clone, as sandboxes make them: none of libc's handlers of forks run. It ends as programs do. */
static void call_around_clone(const struct library *library) {
  call_all(library);
  long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (!child) exit(0);
  int status;
  if (waitpid((pid_t)child, &status, 0) < 0 || status) exit(4);
  call_all(library);
}

static unsigned staying;

/* Threads that go on when the program ends. */
static void *call_and_stay(void *library) {
  call_all(library);
  __atomic_add_fetch(&staying, 1, __ATOMIC_RELEASE);
  for (;;) pause();
  return NULL;
}

static void until_all_stay(void *library) {
  for (unsigned thread = 0; thread < thread_count; thread++) {
    pthread_t unused;
    pthread_create(&unused, NULL, call_and_stay, library);
  }
  while (__atomic_load_n(&staying, __ATOMIC_ACQUIRE) < thread_count) usleep(1000);
}

/* What a call costs, in the process that is hooked or not: nanoseconds per call, best of many rounds. */
static void measure(const struct library *library) {
  double best = 1e9;
  for (int round = 0; round < 50; round++) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    call_all(library);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    if (ns / call_count < best) best = ns / call_count;
  }
  printf("%.3f\n", best);
}

int main(int count, char **words) {
  if (count < 3) return 2;
  path = words[1];
  if (count > 3) thread_count = (unsigned)atoi(words[3]);
  if (count > 4) call_count = (unsigned)atoi(words[4]);
  if (count > 5) kernel = (unsigned)atoi(words[5]);
  if (count > 6) embedded_path = words[6];
  load_plugin();
  if (!strcmp(words[2], "elsewhere")) return call_elsewhere(path), 0;
  void *handle;
  const struct library *library = load(&handle);
  const char *mode = words[2];
  if (!strcmp(mode, "threads")) in_threads(call_in_thread, (void *)(uintptr_t)library);
  else if (!strcmp(mode, "together")) {
    pthread_barrier_init(&all_called, NULL, thread_count);
    in_threads(call_together, (void *)(uintptr_t)library);
  } else if (!strcmp(mode, "churn")) in_threads(load_and_call, NULL);
  else if (!strcmp(mode, "storm")) in_threads(storm, (void *)(uintptr_t)library);
  else if (!strcmp(mode, "fork")) fork_and_call(library);
  else if (!strcmp(mode, "runtime")) call_with_runtime_hook(library);
  else if (!strcmp(mode, "measure")) measure(library);
  else if (!strcmp(mode, "profiled")) call_profiled(library);
  else if (!strcmp(mode, "unprofiled")) call_around_profiler(library);
  else if (!strcmp(mode, "printing")) {
    call_all(library);
    printf("printed\n");
    fprintf(stderr, "printed\n");
  } else if (!strcmp(mode, "closing")) call_after_closing(library, words[6]);
  else if (!strcmp(mode, "cut")) call_while_cut(library, words[6], atoi(words[7]));
  else if (!strcmp(mode, "raise")) call_all(library), raise(SIGBUS);
  else if (!strcmp(mode, "beyond")) call_all(library), write_beyond();
  else if (!strcmp(mode, "clone")) call_around_clone(library);
  else if (!strcmp(mode, "stay")) until_all_stay((void *)(uintptr_t)library);
  else if (!strcmp(mode, "next")) printf("%d\n", dlsym(RTLD_NEXT, "malloc") == dlsym(RTLD_DEFAULT, "malloc"));
  else if (!strcmp(mode, "skip")) {
    call_all(library);
    usleep(400000); /* the first calls may be held up for nearly as long */
    call_all(library);
  } else return 2;
  dlclose(handle);
  return 0;
}
