/* A program that uses CUDA without IREE: it launches the kernels of a list, one name per line, on one stream a device.
 *
 *   host LIST ROUNDS [then]     then: exit (default), term (SIGTERM to itself), kill (SIGKILL after a second),
 *                               fork (a child that ends by exit, then the parent), wait (until a signal comes),
 *                               vfork (a child that SIGTERM ends, then the parent), unload (closes the CUDA library),
 *                               descriptors (closes all, gives their numbers to LIST.own, SIGTERM to itself),
 *                               elsewhere (changes its folder before it launches)
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define TAKE(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(driver, #name)

static long used_ms(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return 1000 * (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/* As a daemon that closes what it does not know; prints the processor's time of half a second of sleep. */
static void take_descriptors(const char *list) {
  char path[4096];
  snprintf(path, sizeof path, "%s.own", list);
  for (int number = 3; number < 2048; number++) close(number);
  int own = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  for (int number = 3; number < 2048; number++) dup2(own, number);
  long before = used_ms();
  usleep(500000);
  printf("%ld ms\n", used_ms() - before);
  fflush(stdout);
}

int main(int count, char **words) {
  void *driver = dlopen("libcuda.so", RTLD_NOW);
  FILE *list = count > 2 ? fopen(words[1], "r") : NULL;
  if (!driver || !list) return fprintf(stderr, "usage: host LIST ROUNDS [THEN], with libcuda.so: %s\n", dlerror()), 2;
  const char *then = count > 3 ? words[3] : "exit";
  TAKE(cuInit, unsigned);
  TAKE(cuDeviceGetCount, int *);
  TAKE(cuDevicePrimaryCtxRetain, void **, int);
  TAKE(cuCtxSetCurrent, void *);
  TAKE(cuStreamCreate, void **, unsigned);
  TAKE(cuStreamSynchronize, void *);
  TAKE(cuModuleGetFunction, void **, void *, const char *);
  TAKE(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  void *functions[4096], *streams[8];
  char name[4096];
  int known = 0, devices = 0;
  if (cuInit(0)) return 3;
  if (!strcmp(then, "elsewhere") && chdir("/")) return 5;
  cuDeviceGetCount(&devices);
  for (int device = 0; device < devices; device++) {
    void *context;
    cuDevicePrimaryCtxRetain(&context, device);
    cuCtxSetCurrent(context);
    cuStreamCreate(streams + device, 1);
  }
  while (known < 4096 && fscanf(list, "%4095s", name) == 1) cuModuleGetFunction(functions + known++, NULL, name);
  for (long round = 0; round < atol(words[2]); round++)
    for (int kernel = 0; kernel < known; kernel++)
      for (int device = 0; device < devices; device++)
        cuLaunchKernel(functions[kernel], 16, 1, 1, 32, 1, 1, 0, streams[device], NULL, NULL);
  for (int device = 0; device < devices; device++) cuStreamSynchronize(streams[device]);
  printf("done\n");
  fflush(stdout);
  if (!strcmp(then, "fork")) {
    pid_t child = fork();
    if (!child) exit(0);
    waitpid(child, NULL, 0);
  }
  if (!strcmp(then, "vfork")) {
    int status;
    pid_t child = vfork();
    if (!child) raise(SIGTERM), _exit(0);
    waitpid(child, &status, 0);
    usleep(300000); /* the parent's thread would end the parent */
    return WIFSIGNALED(status) ? 0 : 4;
  }
  if (!strcmp(then, "unload")) {
    void *library;
    while ((library = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW | RTLD_NOLOAD)) && known < 5000) {
      dlclose(library);
      dlclose(library);
      known++;
    }
    usleep(300000); /* the library's thread runs on */
  }
  if (!strcmp(then, "descriptors")) take_descriptors(words[1]), then = "term";
  if (!strcmp(then, "term")) kill(getpid(), SIGTERM);
  if (!strcmp(then, "kill")) {
    sleep(1);
    kill(getpid(), SIGKILL);
  }
  while (!strcmp(then, "term") || !strcmp(then, "wait")) pause();
  return 0;
}
