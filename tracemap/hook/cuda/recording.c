#include "recording.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

#include "../lock.h"

#define PARTS 8u /* activity files at most, so that the newest 7/8 of the limit are always there */
#define LEAST_PART_BYTES (1u << 20)

static struct lock lock;
static char folder[4096], stamp[64];
static struct limits limits;
static struct own_file process_file = {.descriptor = -1}, part_file = {.descriptor = -1};
static unsigned part;       /* number of the next activity file */
static uint64_t part_bytes; /* bytes of records in the present one */
static uint64_t written;    /* records in all activity files so far, so that readers know if some are missing */
static uint64_t left_out;   /* records beyond the limit, or that could not be written */
static bool is_full;

static void part_path(char *path, size_t size, unsigned number) {
  snprintf(path, size, "%s/cuda-%s-%u.activity", folder, stamp, number);
}

/* ---- lines of the process's file */

static char line_data[16384];
static struct text line = TEXT_IN(line_data);

static bool fail(const char *why) {
  if (!is_full) say("CUDA: activity is not recorded any more: %s", why);
  is_full = true;
  return false;
}

/* After a line that was written in part, as on a full disk, nothing more is written: readers ignore the last part of a
 * line, and no record may have a name that is not there. */
static void write_line(void) {
  text_add(&line, "}\n");
  line.data[line.used - 1] = '\n'; /* also if the line was truncated */
  if (file_is_open(&process_file) && !file_append(&process_file, line.data, line.used)) {
    fail(strerror(errno));
    file_close(&process_file);
  }
  line.used = 0;
}

void recording_add_line(const char *fields, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, fields);
  vsnprintf(text, sizeof text, fields, arguments);
  va_end(arguments);
  lock_take(&lock);
  text_add(&line, "{%s", text);
  write_line();
  lock_release(&lock);
}

static void add_sentence(const char *kind, const char *what, const char *name, const char *sentence, const char *text) {
  lock_take(&lock);
  text_add(&line, "{\"kind\":\"%s\",\"%s\":\"%s\",\"%s\":", kind, what, name, sentence);
  text_add_json(&line, text);
  write_line();
  lock_release(&lock);
}

void recording_refuse(const char *slug, const char *text) {
  say("CUDA: %s", text);
  add_sentence("refused", "slug", slug, "text", text);
}

void recording_lose(const char *what, const char *why) { add_sentence("lost", "what", what, "why", why); }

bool recording_begin(const char *output, struct limits chosen) {
  char path[sizeof folder + 128];
  /* The program may change its folder before the first record. */
  if (!realpath(output, folder)) snprintf(folder, sizeof folder, "%s", output);
  snprintf(stamp, sizeof stamp, "%d-%" PRIx64, (int)getpid(), monotonic_ns());
  snprintf(path, sizeof path, "%s/cuda-%s.jsonl", folder, stamp);
  limits = chosen;
  process_file = file_of(open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_is_open(&process_file)) {
    say("CUDA: %s cannot be made (%s): nothing is recorded", path, strerror(errno));
    return false;
  }
  text_add(&line, "{\"kind\":\"process\",\"version\":%d,\"pid\":%d,\"stamp\":\"%s\"", FORMAT_VERSION, (int)getpid(), stamp);
  text_add_command(&line);
  write_line();
  return true;
}

void recording_end(uint64_t cupti_ns, uint64_t ns) {
  lock_take(&lock);
  text_add(&line, "{\"kind\":\"end\",\"cupti_ns\":%" PRIu64 ",\"ns\":%" PRIu64 ",\"left_out\":%" PRIu64, cupti_ns, ns, left_out);
  text_add(&line, ",\"records\":%" PRIu64, written);
  write_line();
  lock_release(&lock);
}

void recording_abandon(void) {
  lock = (struct lock){0}; /* a thread that the child lacks may hold it */
  file_close(&process_file);
  file_close(&part_file);
  is_full = true;
}

/* ---- names: a hash table, since the program may load modules at any time and CUPTI's pointers need not last */

static char **names;
static uint32_t *buckets; /* number of a name plus 1; 0: empty */
static uint32_t name_count, bucket_count;

static uint64_t hash_of(const char *name) {
  uint64_t hash = 1469598103934665603u;
  for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 1099511628211u;
  return hash;
}

static uint32_t *bucket_of(const char *name) {
  uint32_t place = (uint32_t)hash_of(name) & (bucket_count - 1);
  while (buckets[place] && strcmp(names[buckets[place] - 1], name)) place = (place + 1) & (bucket_count - 1);
  return buckets + place;
}

static bool grow(void) {
  uint32_t count = bucket_count ? 2 * bucket_count : 1024;
  uint32_t *larger = calloc(count, sizeof *larger);
  char **more = realloc(names, count * sizeof *names);
  if (more) names = more;
  if (!larger || !more) {
    free(larger);
    return false;
  }
  free(buckets);
  buckets = larger;
  bucket_count = count;
  for (uint32_t number = 0; number < name_count; number++) *bucket_of(names[number]) = number + 1;
  return true;
}

uint32_t recording_name(const char *name) {
  if (!name) name = "";
  lock_take(&lock);
  uint32_t number = UINT32_MAX;
  if (2 * name_count < bucket_count || grow()) {
    uint32_t *bucket = bucket_of(name);
    char *copy = *bucket ? NULL : strdup(name);
    if (copy) {
      names[name_count] = copy;
      *bucket = ++name_count;
      text_add(&line, "{\"kind\":\"kernel\",\"id\":%u,\"name\":", name_count - 1);
      text_add_json(&line, name);
      write_line();
    }
    if (*bucket) number = *bucket - 1;
  }
  lock_release(&lock);
  return number;
}

void recording_add_device(const struct activity_device *device) {
  char uuid[33] = "";
  for (size_t place = 0; place < sizeof device->uuid; place++) snprintf(uuid + 2 * place, 3, "%02x", device->uuid[place]);
  lock_take(&lock);
  text_add(&line, "{\"kind\":\"device\",\"id\":%u,\"bandwidth_kb_s\":%" PRIu64 ",\"memory_bytes\":%" PRIu64, device->id,
           device->bandwidth_kb_s, device->memory_bytes);
  text_add(&line, ",\"l2_bytes\":%u,\"clock_khz\":%u,\"multiprocessors\":%u,\"major\":%u,\"minor\":%u", device->l2_bytes,
           device->clock_khz, device->multiprocessors, device->capability_major, device->capability_minor);
  text_add(&line, ",\"mig\":%s,\"uuid\":\"%s\",\"name\":", device->is_mig ? "true" : "false", uuid);
  text_add_json(&line, device->name);
  write_line();
  lock_release(&lock);
}

/* ---- activity files */

static bool next_part(void) {
  char path[sizeof folder + 160], about[64];
  struct activity_header header = {part, sizeof(struct activity_record)};
  struct preamble preamble = {
      .magic = ACTIVITY_MAGIC, .version = FORMAT_VERSION, .description_bytes = sizeof ACTIVITY_DESCRIPTION - 1,
      .header_offset = HEADER_OFFSET, .about_offset = ABOUT_OFFSET, .data_offset = ACTIVITY_DATA_OFFSET};
  preamble.about_bytes = (uint32_t)snprintf(about, sizeof about, "{\"earlier\":%" PRIu64 "}", written);
  file_close(&part_file);
  if (part >= PARTS && limits.keeps_newest) {
    part_path(path, sizeof path, part - PARTS);
    unlink(path);
  } else if (part >= PARTS) {
    return fail("the size limit is reached");
  }
  part_path(path, sizeof path, part++);
  part_file = file_of(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  part_bytes = 0;
  /* The preamble is written last: without it, readers know that the program was killed during setup. */
  if (file_is_open(&part_file) && file_resize(&part_file, ACTIVITY_DATA_OFFSET) &&
      file_put(&part_file, ACTIVITY_DESCRIPTION, preamble.description_bytes, DESCRIPTION_OFFSET) &&
      file_put(&part_file, &header, sizeof header, HEADER_OFFSET) && file_put(&part_file, about, preamble.about_bytes, ABOUT_OFFSET) &&
      file_put(&part_file, &preamble, sizeof preamble, 0))
    return true;
  file_close(&part_file);
  return fail(strerror(errno));
}

void recording_add(const struct activity_record *records, size_t count) {
  lock_take(&lock);
  uint64_t share = limits.bytes / PARTS > LEAST_PART_BYTES ? limits.bytes / PARTS : LEAST_PART_BYTES;
  while (count && !is_full) {
    if ((!file_is_open(&part_file) || part_bytes >= share) && !next_part()) break;
    size_t fits = (share - part_bytes) / sizeof *records + 1, now = count < fits ? count : fits, size = now * sizeof *records;
    if (!file_put(&part_file, records, size, ACTIVITY_DATA_OFFSET + part_bytes)) {
      fail(strerror(errno));
      break;
    }
    part_bytes += size;
    written += now;
    records += now;
    count -= now;
  }
  left_out += count;
  lock_release(&lock);
}
