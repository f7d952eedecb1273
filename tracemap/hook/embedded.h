/* Executables as ELF images in memory: IREE's own loader maps them anonymously, so nothing but their bytes tells of them. */
#pragma once

#include <stddef.h>

#include "abi.h"

/* The library of an image whose code has just become executable; NULL if it is none of IREE's. The image's first page can
 * be read, and every segment that the image itself says is loaded. */
const struct library *embedded_library(const char *base, size_t size, const char *code, size_t code_size);
