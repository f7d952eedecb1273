#include "runtime_hook.h"

#include <pthread.h>
#include <stdbool.h>

#include "attributes.h"
#include "calls.h"
#include "library.h"
#include "process.h"
#include "tables.h"
#include "trampolines.h"

struct known {
  const struct library *library;
  export_function function;
  uint32_t kernel;
};

static __thread struct known last_known INITIAL_EXEC;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void runtime_hook_lock(void) { pthread_mutex_lock(&lock); }
void runtime_hook_unlock(void) { pthread_mutex_unlock(&lock); }

/* Kernels that are not patched; statically linked ones, mostly. Looked up when another kernel runs than before. */
static uint32_t known_kernel(const struct library *library, size_t ordinal) {
  static struct known table[4096];
  static unsigned count;
  export_function function = library->exports.ptrs[ordinal];
  runtime_hook_lock();
  unsigned place = 0;
  while (place < count && (table[place].library != library || table[place].function != function)) place++;
  uint32_t kernel = place < count ? table[place].kernel : tables_add_kernel(library, ordinal);
  if (place == count && count < sizeof table / sizeof *table) table[count++] = (struct known){library, function, kernel};
  runtime_hook_unlock();
  return kernel;
}

/* Whether this call is ours to record: a trampoline records its own. */
static bool is_ours(const struct library *library, size_t ordinal) {
  return library_has(library, ordinal) && !is_trampoline(library->exports.ptrs[ordinal]);
}

void iree_hal_executable_library_call_hook_begin(struct string_view identifier, const struct library *library,
                                                 size_t ordinal) {
  (void)identifier;
  if (!is_ours(library, ordinal)) return;
  export_function function = library->exports.ptrs[ordinal];
  if (UNLIKELY(last_known.library != library || last_known.function != function))
    last_known = (struct known){library, function, known_kernel(library, ordinal)};
  if (last_known.kernel != NO_KERNEL) calls_begin(last_known.kernel);
}

void iree_hal_executable_library_call_hook_end(struct string_view identifier, const struct library *library,
                                               size_t ordinal) {
  (void)identifier;
  if (is_ours(library, ordinal)) calls_end();
}
