/* A program that uses CUDA without IREE: it launches the kernels of a list, one name per line, on one stream a device.
 *
 *   host LIST ROUNDS [then]     then: exit (default), term (SIGTERM to itself), kill (SIGKILL after a second),
 *                               fork (a child that ends by exit, then the parent), wait (until a signal comes)
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TAKE(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(driver, #name)

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
  if (!strcmp(then, "term")) kill(getpid(), SIGTERM);
  if (!strcmp(then, "kill")) {
    sleep(1);
    kill(getpid(), SIGKILL);
  }
  while (!strcmp(then, "term") || !strcmp(then, "wait")) pause();
  return 0;
}
