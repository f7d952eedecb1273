#include "code_files.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>

#include "debug_tables.h"
#include "files.h"
#include "images.h"
#include "settings.h"

/* The content of a file; NULL: it cannot be read. */
struct content {
  const char *data;
  size_t size;
};

static struct content read_content(const char *path) {
  struct content content = {NULL, 0};
  content.data = file_copy(path, &content.size);
  return content;
}

static void free_content(struct content *content) {
  if (content->data) real_munmap((void *)(uintptr_t)content->data, content->size);
}

static bool is_in_file(const struct content *content, const struct image_segment *segment) {
  return segment->offset <= content->size && segment->file_size <= content->size - segment->offset;
}

/* The ELF header of a code file has other places of sections, which no loader reads. */
static bool same_header(const ElfW(Ehdr) *one, const ElfW(Ehdr) *other) {
  ElfW(Ehdr) copy = *other;
  copy.e_shoff = one->e_shoff;
  copy.e_shentsize = one->e_shentsize;
  copy.e_shnum = one->e_shnum;
  copy.e_shstrndx = one->e_shstrndx;
  return !memcmp(one, &copy, sizeof copy);
}

static bool same_bytes(const char *one, const char *other, uint64_t offset, size_t size) {
  size_t header = offset < sizeof(ElfW(Ehdr)) ? sizeof(ElfW(Ehdr)) - offset : 0;
  if (header && (offset || size < header || !same_header((const void *)one, (const void *)other))) return false;
  return !memcmp(one + header, other + header, size - header);
}

/* ---- an executable in memory */

static uintptr_t page_of(uintptr_t address) { return address / page_bytes() * page_bytes(); }

static uintptr_t end_of(const struct image_segment *segment) {
  return page_of(segment->address + segment->file_size + page_bytes() - 1);
}

/* Whether each segment has its own pages, in memory and in the file. Pages of the machine may be larger than those that
 * the executable was linked for. */
static bool has_own_pages(const struct image *image) {
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    if ((segment->address - segment->offset) % page_bytes()) return false;
    if (place && page_of(segment->address) < end_of(segment - 1)) return false;
  }
  return image->count > 0;
}

/* Whether the read-only segments have the file's bytes. */
static bool has_content(const struct image *image, const struct content *content) {
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    if (!is_in_file(content, segment) || !memory_is_readable((const void *)segment->address, segment->file_size))
      return false;
    if (!(segment->flags & PF_W) && !same_bytes((const char *)segment->address, content->data + segment->offset,
                                                segment->offset, segment->file_size))
      return false;
  }
  return true;
}

static bool map_at(int file, const struct image_segment *segment, int protection) {
  uintptr_t begin = page_of(segment->address);
  off_t offset = (off_t)(segment->offset - (segment->address - begin));
  return real_mmap((void *)begin, end_of(segment) - begin, protection, MAP_PRIVATE | MAP_FIXED, file, offset) !=
         MAP_FAILED;
}

/* Relocated data is written to the new pages. The loader protects them afterwards. */
static bool back_segment(int file, const struct image_segment *segment) {
  uintptr_t begin = page_of(segment->address), size = end_of(segment) - begin;
  if (!segment->file_size) return true;
  if (!(segment->flags & PF_W)) return map_at(file, segment, PROT_READ | (segment->flags & PF_X ? PROT_EXEC : 0));
  void *copy = new_pages(size);
  if (!copy) return false;
  memcpy(copy, (const void *)begin, size);
  bool backed = map_at(file, segment, PROT_READ | PROT_WRITE);
  if (backed) memcpy((void *)begin, copy, size);
  real_munmap(copy, size);
  return backed;
}

bool code_file_back(const char *path, const char *base, size_t size) {
  struct image image;
  if (!image_read(base, size, &image) || !has_own_pages(&image)) return false;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  struct content content = {NULL, 0};
  content.data = file_copy_opened(file, &content.size);
  bool backed = content.data && has_content(&image, &content);
  if (!backed) say("%s is not used: its code is not that of the executable", path);
  for (unsigned place = 0; backed && place < image.count; place++) backed = back_segment(file, &image.segments[place]);
  free_content(&content);
  close(file);
  return backed;
}

/* ---- an executable in a file */

static bool same_file(const struct content *one, const struct content *other, const struct image *image) {
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    if (!is_in_file(other, segment) || !same_bytes(one->data + segment->offset, other->data + segment->offset,
                                                   segment->offset, segment->file_size))
      return false;
  }
  return image->count > 0;
}

bool code_file_for(const char *path, char *found, size_t size) {
  struct content content = read_content(path);
  struct image image;
  bool same = false;
  if (content.data && image_read_file(content.data, content.size, &image)) {
    uint64_t identity = image_identity(&image, content.data);
    for (const char *folder = settings.debug_info; !same && *folder; folder += strlen(folder) + 1) {
      struct debug_table table = debug_table_read(folder, identity);
      if (!table.header) continue;
      debug_table_code_file(&table, folder, found, size);
      debug_table_free(&table);
      struct content other = read_content(found);
      same = other.data && same_file(&content, &other, &image);
      free_content(&other);
    }
  }
  free_content(&content);
  return same;
}
