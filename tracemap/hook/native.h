/* Samples of a native library: all threads of the program are sampled, from their begin to their end.
 *
 * The variable TRACEMAP_HOOK_NATIVE names a copy of the library's or program's file. An object in memory is the same if
 * its machine code is, whatever its name, and wherever it lies. A thread of our own looks for it, and takes samples out
 * of the rings, so that neither loading nor calls are intercepted.
 */
#pragma once

#include "system.h"

/* Called when the process begins, and in a forked child; nothing happens without the variable. */
void native_begin(void);
void native_fork_child(void);

/* Around a fork. */
void native_lock(void);
void native_unlock(void);

/* Create a thread of the program that is sampled as well. */
int native_create_thread(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int native_create_c11_thread(thrd_t *thread, thrd_start_t start, void *argument);
