#include "watching.h"

#include <fcntl.h>
#include <unistd.h>

#include "files.h"
#include "lock.h"
#include "settings.h"

/* tracemap/capture/dispatches.py reads this. */
struct stop {
  uint32_t moment;
  uint32_t kernel;
  uint32_t process;
  uint32_t bindings;
  uint64_t constants, binding_ptrs, binding_lengths; /* addresses in this process */
  uint32_t constant_count;
  uint32_t workgroups[3];
};

static struct lock lock; /* one stop at a time */
static struct own_file asks = {.descriptor = -1}, answers = {.descriptor = -1};
static bool gone;

static struct own_file open_pipe(const char *name, int flags) {
  char path[sizeof settings.watch + 16];
  snprintf(path, sizeof path, "%s/%s", settings.watch, name);
  return file_of(open(path, flags | O_CLOEXEC));
}

static void lose_watcher(void) {
  gone = true;
  say("the dispatches are not watched any more: %s", errno ? strerror(errno) : "the watcher has ended");
}

static bool is_open(void) {
  if (file_is_open(&asks)) return file_is_ours(&asks) && file_is_ours(&answers);
  asks = open_pipe("asks", O_WRONLY);
  answers = open_pipe("answers", O_RDONLY);
  return file_is_open(&asks) && file_is_open(&answers);
}

static bool has_answer(void) {
  char answer;
  ssize_t size;
  do size = read(answers.descriptor, &answer, 1);
  while (size < 0 && errno == EINTR);
  if (size == 0) errno = 0;
  return size == 1;
}

static void stop(const struct stop *about) {
  int error = errno;
  sigset_t before;
  lock_take(&lock);
  if (!gone) {
    write_signals_hold(&before);
    bool told = is_open() && write_all(asks.descriptor, about, sizeof *about);
    write_signals_release(&before);
    if (!told || !has_answer()) lose_watcher();
  }
  lock_release(&lock);
  errno = error;
}

static void tell(enum watched_moment moment, uint32_t kernel, const struct dispatch_state *dispatch) {
  stop(&(struct stop){
      .moment = moment,
      .kernel = kernel,
      .process = (uint32_t)getpid(),
      .bindings = dispatch->binding_count,
      .constants = (uintptr_t)dispatch->constants,
      .binding_ptrs = (uintptr_t)dispatch->binding_ptrs,
      .binding_lengths = (uintptr_t)dispatch->binding_lengths,
      .constant_count = dispatch->constant_count,
      .workgroups = {dispatch->workgroup_count_x, dispatch->workgroup_count_y, dispatch->workgroup_count_z},
  });
}

bool watching(void) { return settings.watch[0]; }

void watching_begin(uint32_t kernel, const struct dispatch_state *dispatch, const struct workgroup_state *workgroup) {
  if (workgroup->workgroup_id_x || workgroup->workgroup_id_y || workgroup->workgroup_id_z) return;
  tell(DISPATCH_BEGINS, kernel, dispatch);
}

void watching_end(uint32_t kernel, const struct dispatch_state *dispatch, const struct workgroup_state *workgroup) {
  bool last = workgroup->workgroup_id_x + 1 == dispatch->workgroup_count_x &&
              workgroup->workgroup_id_y + 1 == dispatch->workgroup_count_y &&
              workgroup->workgroup_id_z + 1 == dispatch->workgroup_count_z;
  if (last) tell(DISPATCH_ENDS, kernel, dispatch);
}
