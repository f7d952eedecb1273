/* Hints for the compiler, under short names. */
#pragma once

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define COLD __attribute__((cold, noinline))
#define PUBLIC __attribute__((visibility("default")))

/* For variables of other files: they are read directly, without a detour through the global offset table. */
#define HIDDEN __attribute__((visibility("hidden")))

/* For variables of threads: reading one calls nothing of libdl's, which might allocate; signal handlers may read them. */
#define INITIAL_EXEC __attribute__((tls_model("initial-exec")))
