/* The process's file: executables and kernels of the fuzzer's names, and that each line is JSON then, whatever was cut. */
#include "process.h"

#include <dirent.h>
#include <fcntl.h>

#include "fuzz.h"
#include "settings.h"

static char folder[] = "/tmp/hook-fuzz-XXXXXX";

static void remove_folder(void) { rmdir(folder); }

static void begin(void) {
  if (settings.output[0]) return;
  if (!mkdtemp(folder)) abort();
  setenv("TRACEMAP_HOOK_OUTPUT", folder, true);
  atexit(remove_folder);
}

/* ---- JSON, just enough to say that a text is some */

static const char *value(const char *text, unsigned depth);

static const char *string(const char *text) {
  for (text++; *text != '"'; text++) {
    if ((unsigned char)*text < 0x20) abort();
    if (*text != '\\') continue;
    text++;
    if (*text == 'u' && strspn(text + 1, "0123456789abcdef") < 4) abort();
    if (!*text || !strchr("\"\\u", *text)) abort();
  }
  return text + 1;
}

static const char *members(const char *text, char end, unsigned depth) {
  if (*++text == end) return text + 1;
  for (;; text++) {
    if (end == '}') {
      if (*text != '"') abort();
      text = string(text);
      if (*text++ != ':') abort();
    }
    text = value(text, depth + 1);
    if (*text == end) return text + 1;
    if (*text != ',') abort();
  }
}

static const char *value(const char *text, unsigned depth) {
  if (depth > 4) abort();
  if (*text == '{') return members(text, '}', depth);
  if (*text == '[') return members(text, ']', depth);
  if (*text == '"') return string(text);
  size_t digits = strspn(text, "0123456789");
  if (!digits) abort();
  return text + digits;
}

static void check_lines(int file) {
  static char text[1 << 20];
  ssize_t size = pread(file, text, sizeof text - 1, 0);
  if (size <= 0 || text[size - 1] != '\n') abort();
  text[size] = '\0';
  for (const char *line = text; *line; line++) {
    line = value(line, 0);
    if (*line != '\n') abort();
  }
}

/* ---- */

static void add_all(struct input *input) {
  char *name;
  struct memory memory = {folder, take_number(input, 8)};
  unsigned kind = (unsigned)take_number(input, 1) % 3;
  for (unsigned lines = 0; lines < 16 && (name = take_line(input)); lines++) {
    uint32_t executable = process_add_executable(name, (enum executable_kind)kind, memory);
    process_add_kernel(executable, executable, name, NULL);
    process_add_loss("kernel", name);
    process_add_unload(executable);
    free(name);
  }
}

static void close_file(void) {
  char path[512];
  DIR *opened = opendir(folder);
  if (!opened) abort();
  for (struct dirent *entry; (entry = readdir(opened));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    int file = open(path, O_RDONLY);
    check_lines(file);
    close(file);
    unlink(path);
  }
  closedir(opened);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input input = {data, size};
  begin();
  process_lock();
  if (process_begin()) add_all(&input);
  process_unlock();
  process_end();
  close_file();
  process_fork_child(); /* the next one makes a file of its own, as a child does */
  return 0;
}
