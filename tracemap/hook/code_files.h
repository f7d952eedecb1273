/* Code files of `tracemap debug-info`: ELF files with the same code and data as an executable, and with debug
 * information of the model. An executable in memory is backed by its code file, and the code file is loaded in place of
 * a temporary file of the runtime, so that tools find the debug information by the file's name. This happens only if
 * all that a loader reads is the same, byte for byte.
 */
#pragma once

#include "system.h"

/* Maps the code file in place of an image in anonymous memory, of which nothing runs yet; false if it was left alone. */
bool code_file_back(const char *path, const char *base, size_t size);

/* Finds the code file of an ELF file in the settings' folders; false if there is none with the same content. */
bool code_file_for(const char *path, char *found, size_t size);
