/* The files of a process: `cuda-STAMP.jsonl` with one fact per line, and its activity files (see layout.h).
 *
 * Functions may be called from any thread; they take one lock. A name is on disk before the first record with it.
 */
#pragma once

#include "../files.h"
#include "cupti.h"
#include "layout.h"

struct limits {
  uint64_t bytes; /* of all activity files together */
  bool keeps_newest; /* at the limit, the oldest file is removed; otherwise later records are left out */
};

/* Creates the process's file in a folder; false, with a message on standard error, if that fails. */
bool recording_begin(const char *folder, struct limits limits);

/* A line of JSON: `fields` is the content of its object, without the braces. */
void recording_add_line(const char *fields, ...) __attribute__((format(printf, 1, 2)));

/* Why nothing is recorded: a short name, and a sentence for people, also on standard error. */
void recording_refuse(const char *slug, const char *text);

/* Something that is not recorded, and why. */
void recording_lose(const char *what, const char *why);

/* The number of a kernel's name, which is written when it is new. */
uint32_t recording_name(const char *name);
void recording_add_device(const struct activity_device *device);

/* Appends records; they are written at once. */
void recording_add(const struct activity_record *records, size_t count);

/* The last line, with one moment on both clocks. */
void recording_end(uint64_t cupti_ns, uint64_t ns);

/* In a forked child: nothing more is written, since the files are the parent's. */
void recording_abandon(void);
