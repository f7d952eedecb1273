/* The process's file: what was loaded, a line of JSON each, so that it is on disk before the first call of a kernel.
 * And what the files of its threads have in common: their names, and the head that describes them (layout.h draws it).
 *
 * It is opened when the first executable is seen, which is also when the settings are read. Executables and kernels are
 * numbered here, and keep their numbers for ever.
 */
#pragma once

#include "abi.h"
#include "files.h"

#define NO_EXECUTABLE UINT32_MAX
#define NO_KERNEL UINT32_MAX

enum executable_kind { EMBEDDED_ELF, SYSTEM_ELF, RUNTIME_HOOK };

/* Where the code of an executable lies. */
struct memory {
  const void *base;
  size_t size;
};

/* The lock of all that is loaded: of this file, and of the slots in tables.c. */
void process_lock(void);
void process_unlock(void);

/* With the lock held. Nothing is to be added after `process_begin` was false. */
bool process_begin(void);
uint32_t process_add_executable(const char *name, enum executable_kind kind, struct memory memory); /* NO_…: no room */
uint32_t process_add_kernel(uint32_t executable, uint32_t ordinal, const char *name, export_function function);
void process_add_unload(uint32_t executable);

/* Notes what is missing from the files, of this thread or of a kernel, and why. */
void process_add_loss(const char *what, const char *why);
void process_fork_child(void);

/* Without the lock. */
void process_end(void);

/* Says and notes that this thread's `calls` or `samples` are lost; errno, if it is not 0, tells more. Always false. */
bool process_lose_thread(const char *what, const char *why);

/* ---- files of threads */

/* Makes one for what is lost if it cannot be made, with `room` bytes of disk, without the lock; then NO_FILE. */
struct own_file file_make(unsigned thread, const char *what, off_t room);

/* Begins the JSON that says what thread this is; the caller goes on and closes it. */
void about_begin(struct text *about);

/* `magic` has 8 characters. The preamble comes last: without it a file tells that its program was killed while it was
 * set up. */
bool head_write(const struct own_file *file, const char *magic, const char *description, const struct text *about,
                uint32_t data_offset);
