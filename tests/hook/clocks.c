/* Reads the CPU time of its process where a lock would never be free again: in the child of a fork that comes while
 * another thread reads it, and in a signal's handler. `clocks fork|handler`, and `clocks cut FILE`, where its file is cut; the child and the program end themselves
 * after a minute or two.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void read_clock(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
}

static void *read_for_ever(void *unused) {
  for (;;) read_clock();
  return unused;
}

static void on_signal(int number) {
  (void)number;
  read_clock();
}

static int fork_often(void) {
  pthread_t reader;
  read_clock(); /* the file of the times is of the process that reads first: without this, it may be a child's */
  if (pthread_create(&reader, NULL, read_for_ever, NULL)) return 2;
  for (int child = 0; child < 300; child++) {
    int status;
    pid_t process = fork();
    if (!process) {
      alarm(60);
      read_clock();
      _exit(0);
    }
    if (waitpid(process, &status, 0) < 0 || status) return 1;
  }
  return 0;
}

static int interrupt_often(void) {
  signal(SIGUSR1, on_signal);
  alarm(120);
  struct itimerspec often = {{0, 50000}, {0, 50000}};
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
  timer_t timer;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &often, NULL)) return 2;
  for (int call = 0; call < 2000000; call++) read_clock();
  return 0;
}

/* Another program cuts the file of the times, of which a part is on disk at a time. */
static int read_while_cut(const char *path) {
  read_clock();
  if (truncate(path, 0)) return 3;
  for (int call = 0; call < 200000; call++) read_clock();
  return 0;
}

int main(int count, char **words) {
  if (count == 3) return read_while_cut(words[2]);
  if (count != 2) return 2;
  return !strcmp(words[1], "fork") ? fork_often() : interrupt_often();
}
