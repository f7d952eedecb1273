/* Programs that reserve memory for ends of their own, in places where it is easy to go wrong: `memory MODE` prints what
 * came out. `handler`: a signal's handler maps memory while the program does. `taken`: the first page of a reservation goes
 * by a system call, and another one is made executable. `image`: so does that of an ELF image whose other parts are not
 * there. `clone`: children of a bare clone map memory while the parent's threads do. `moved`: as `taken`, by mremap.
 */
#include <elf.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define SIZE (16 * PAGE)

static char *reserve(void) { return mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

static void map_and_unmap(void) {
  char *memory = reserve();
  mprotect(memory, PAGE, PROT_READ | PROT_WRITE);
  memory[0] = 1;
  munmap(memory, SIZE);
}

static void *map_often(void *unused) {
  for (int round = 0; round < 40000; round++) map_and_unmap();
  return unused;
}

static volatile sig_atomic_t signals;

static void on_signal(int number) {
  (void)number;
  map_and_unmap();
  signals = 1;
}

static int in_handler(void) {
  pthread_t threads[3];
  struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  signal(SIGALRM, on_signal);
  setitimer(ITIMER_REAL, &often, NULL);
  for (int thread = 0; thread < 3; thread++) pthread_create(&threads[thread], NULL, map_often, NULL);
  for (int thread = 0; thread < 3; thread++) pthread_join(threads[thread], NULL);
  setitimer(ITIMER_REAL, &never, NULL);
  return !signals;
}

/* None of libc's handlers of forks run; a lock that another thread has is never free again in the child. */
static int in_clones(void) {
  pthread_t threads[3];
  int failed = 0;
  for (int thread = 0; thread < 3; thread++) pthread_create(&threads[thread], NULL, map_often, NULL);
  for (int child = 0; child < 1000 && !failed; child++) {
    int status;
    long process = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (!process) {
      alarm(5);
      map_and_unmap();
      _exit(0);
    }
    failed += waitpid((pid_t)process, &status, 0) < 0 || status;
  }
  for (int thread = 0; thread < 3; thread++) pthread_join(threads[thread], NULL);
  return failed;
}

static int after_first_page(int moved) {
  char *memory = reserve(), *elsewhere = reserve();
  mprotect(memory, PAGE, PROT_READ | PROT_WRITE);
  memory[0] = 1;
  if (moved) mremap(memory, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere);
  else syscall(SYS_munmap, memory, PAGE);
  return mprotect(memory + 2 * PAGE, PAGE, PROT_READ | PROT_EXEC);
}

/* An image of which its loader has read the first page so far: the others cannot be read. */
static int with_image(void) {
  char *memory = reserve();
  mprotect(memory, PAGE, PROT_READ | PROT_WRITE);
  Elf64_Ehdr head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64}, .e_type = ET_DYN, .e_phoff = sizeof head,
                     .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 2};
  Elf64_Phdr segments[] = {{.p_type = PT_LOAD, .p_memsz = SIZE, .p_align = PAGE},
                           {.p_type = PT_DYNAMIC, .p_vaddr = 8 * PAGE, .p_memsz = PAGE}};
  memcpy(memory, &head, sizeof head);
  memcpy(memory + sizeof head, segments, sizeof segments);
  return mprotect(memory + 2 * PAGE, PAGE, PROT_READ | PROT_EXEC);
}

int main(int count, char **words) {
  if (count != 2) return 2;
  const char *mode = words[1];
  int failed = !strcmp(mode, "handler") ? in_handler()
               : !strcmp(mode, "clone") ? in_clones()
               : !strcmp(mode, "image") ? with_image()
                                        : after_first_page(!strcmp(mode, "moved"));
  printf("%d\n", failed);
  return failed;
}
