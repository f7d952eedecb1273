/* The process's file: one line of JSON per loaded executable or kernel, on disk before the kernel's first call. And
 * common parts of the files of its threads: their names, and the head that describes them (see layout.h).
 *
 * It is opened when the first executable is found; the settings are read at the same time. Executables and kernels get
 * permanent numbers here.
 */
#pragma once

#include "abi.h"
#include "files.h"

#define NO_EXECUTABLE UINT32_MAX
#define NO_KERNEL UINT32_MAX

enum executable_kind { EMBEDDED_ELF, SYSTEM_ELF, RUNTIME_HOOK };

/* The memory range of an executable's code. */
struct memory {
  const void *base;
  size_t size;
};

/* The lock for everything loaded: this file, and the slots in loading.c. */
void process_lock(void);
void process_unlock(void);

/* The caller holds the lock. Nothing may be added after `process_begin` returned false. */
bool process_begin(void);
uint32_t process_add_executable(const char *name, enum executable_kind kind, struct memory memory); /* NO_…: no room */
uint32_t process_add_kernel(uint32_t executable, uint32_t ordinal, const char *name, export_function function);
void process_add_unload(uint32_t executable);

/* Logs a loss of this thread or of a kernel, and its reason. */
void process_add_loss(const char *what, const char *why);
void process_fork_child(void);

/* Without the lock. */
void process_end(void);

/* Reports and logs that this thread's `calls` or `samples` are lost; errno, if not 0, has details. Always false. */
bool process_lose_thread(const char *what, const char *why);

/* ---- files of threads */

/* Creates a file with `room` bytes of disk space, without the lock; on failure logs the loss and returns NO_FILE. */
struct own_file file_make(unsigned thread, const char *what, off_t room);

/* Begins the JSON that describes the thread; the caller continues and closes it. */
void about_begin(struct text *about);

/* `magic` has 8 characters. The preamble is written last: without it, readers know that the program was killed during
 * setup. */
bool head_write(const struct own_file *file, const char *magic, const char *description, const struct text *about,
                uint32_t data_offset);
