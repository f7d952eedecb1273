/* Executables that libdl loads are found by their query symbol, which the runtime looks up. These two functions stand
 * before libc's.
 */
#pragma once

void *hooked_dlsym(void *handle, const char *name);
int hooked_dlclose(void *handle);

void opened_lock(void);
void opened_unlock(void);
