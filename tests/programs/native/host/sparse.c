/* Calls the function of sparse.mlir for so many milliseconds, by its C interface: `program HOW MS [LIBRARY]`.
 *
 *   linked      the function is in this program, or in a library that it was linked with
 *   opened      from a library that is opened, and closed at the end
 *   reopened    the same, opened and closed again and again
 *   thread      as `opened`, in a second thread
 *   c11         as `thread`, in a thread of C11
 *   left        as `thread`; the main thread ends first
 *   canceled    as `opened`, after threads that are canceled as they begin
 *   small       in a thread with a small stack
 *   forked      as `opened`, in a child
 *   forks       in a child of a program that opened the library
 *   waits       without a library
 *   idle        the library is opened, but not called
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

struct memref {
  void *allocated, *aligned;
  int64_t offset, size, stride;
};
struct scalar {
  void *allocated, *aligned;
  int64_t offset;
};

typedef void function(struct memref *, struct memref *, struct memref *, struct memref *, struct memref *,
                      struct memref *, struct scalar *);

#ifdef LINKED
function _mlir_ciface_kernel;
#endif

static int64_t starts[513], columns[8192];
static float values[8192], x[512], y[512], z[512], dot[1];

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static struct memref memref(void *data, int64_t size) { return (struct memref){data, data, 0, size, 1}; }

static void call(function *called, double ms) {
  struct memref a = memref(starts, 513), b = memref(columns, 8192), c = memref(values, 8192), d = memref(x, 512),
                e = memref(y, 512), f = memref(z, 512);
  struct scalar g = {dot, dot, 0};
  for (double end = now_ms() + ms; now_ms() < end;) called(&a, &b, &c, &d, &e, &f, &g);
}

static const char *library;
static double duration_ms;

static void *open_library(function **called) {
  void *opened = dlopen(library, RTLD_NOW);
  if (!opened) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  *called = (function *)(uintptr_t)dlsym(opened, "_mlir_ciface_kernel");
  return opened;
}

static void *call_opened(void *unused) {
  function *called;
  void *opened = open_library(&called);
  call(called, duration_ms);
  dlclose(opened);
  return unused;
}

static function *known;

static void *call_known(void *unused) {
  call(known, duration_ms);
  return unused;
}

static int call_in_c11(void *unused) {
  call_opened(unused);
  return 7;
}

static void *wait_forever(void *unused) {
  for (;;) pause();
  return unused;
}

static void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

int main(int count, char **words) {
  if (count < 3) return 2;
  const char *how = words[1];
  duration_ms = atof(words[2]);
  library = count > 3 ? words[3] : "";
  for (int64_t place = 0; place < 8192; place++) {
    columns[place] = place * 97 % 512;
    values[place] = 0.001f * (float)(place % 89);
  }
#ifdef LINKED
  if (!strcmp(how, "linked")) call(_mlir_ciface_kernel, duration_ms);
#endif
  if (!strcmp(how, "opened")) call_opened(NULL);
  if (!strcmp(how, "reopened")) {
    double all = duration_ms;
    duration_ms = all / 8;
    for (int round = 0; round < 8; round++) call_opened(NULL);
  }
  if (!strcmp(how, "thread")) {
    pthread_t thread;
    pthread_create(&thread, NULL, call_opened, NULL);
    pthread_join(thread, NULL);
  }
  if (!strcmp(how, "c11")) {
    thrd_t thread;
    int result = 0;
    if (thrd_create(&thread, call_in_c11, NULL) != thrd_success) fail("no thread");
    thrd_join(thread, &result);
    if (result != 7) fail("another result");
  }
  if (!strcmp(how, "left")) {
    pthread_t thread;
    pthread_create(&thread, NULL, call_opened, NULL);
    pthread_exit(NULL);
  }
  if (!strcmp(how, "canceled")) {
    for (int round = 0; round < 200; round++) {
      pthread_t thread;
      void *result;
      pthread_create(&thread, NULL, wait_forever, NULL);
      pthread_cancel(thread);
      pthread_join(thread, &result);
      if (result != PTHREAD_CANCELED) fail("not canceled");
    }
    call_opened(NULL);
  }
  if (!strcmp(how, "small")) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    open_library(&known);
    if (pthread_create(&thread, &attributes, call_known, NULL)) fail("no thread");
    pthread_join(thread, NULL);
  }
  if (!strcmp(how, "forks")) {
    function *called;
    open_library(&called);
    usleep(50000); /* the hook looks for libraries meanwhile */
    if (!fork()) {
      call(called, duration_ms);
      exit(0);
    }
    wait(NULL);
  }
  if (!strcmp(how, "forked")) {
    pid_t child = fork();
    if (!child) {
      call_opened(NULL);
      exit(0);
    }
    waitpid(child, NULL, 0);
  }
  if (!strcmp(how, "idle")) {
    function *called;
    open_library(&called);
    usleep((useconds_t)(duration_ms * 1e3));
  }
  return 0;
}
