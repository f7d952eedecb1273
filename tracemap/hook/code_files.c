#include "code_files.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "debug_tables.h"
#include "images.h"
#include "settings.h"

/* A mapped file; NULL pages: none. */
struct mapped {
  const char *pages;
  size_t size;
  int file;
};

static struct mapped map_file(const char *path) {
  struct stat about;
  struct mapped mapped = {NULL, 0, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (mapped.file < 0) return mapped;
  if (!fstat(mapped.file, &about) && S_ISREG(about.st_mode) && about.st_size >= (off_t)sizeof(ElfW(Ehdr))) {
    mapped.size = (size_t)about.st_size;
    void *pages = real_mmap(NULL, mapped.size, PROT_READ, MAP_PRIVATE, mapped.file, 0);
    if (pages != MAP_FAILED) mapped.pages = pages;
  }
  return mapped;
}

static void unmap_file(struct mapped *mapped) {
  if (mapped->pages) real_munmap((void *)(uintptr_t)mapped->pages, mapped->size);
  if (mapped->file >= 0) close(mapped->file);
}

static bool is_in_file(const struct mapped *mapped, const struct image_segment *segment) {
  return segment->offset <= mapped->size && segment->file_size <= mapped->size - segment->offset;
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

/* Whether each segment has its own pages, fits the file, and, if it is read-only, has the file's bytes. */
static bool can_back(const struct mapped *mapped, const struct image *image) {
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    if (!is_in_file(mapped, segment) || (segment->address - segment->offset) % page_bytes()) return false;
    if (place && page_of(segment->address) < end_of(segment - 1)) return false;
    if (!memory_is_readable((const void *)segment->address, segment->file_size)) return false;
    if (!(segment->flags & PF_W) && !same_bytes((const char *)segment->address, mapped->pages + segment->offset,
                                                segment->offset, segment->file_size))
      return false;
  }
  return image->count > 0;
}

static bool map_at(const struct mapped *mapped, const struct image_segment *segment, int protection) {
  uintptr_t begin = page_of(segment->address);
  off_t offset = (off_t)(segment->offset - (segment->address - begin));
  return real_mmap((void *)begin, end_of(segment) - begin, protection, MAP_PRIVATE | MAP_FIXED, mapped->file, offset) !=
         MAP_FAILED;
}

/* Relocated data is written to the new pages. The loader protects them afterwards. */
static bool back_segment(const struct mapped *mapped, const struct image_segment *segment) {
  uintptr_t begin = page_of(segment->address), size = end_of(segment) - begin;
  if (!segment->file_size) return true;
  if (!(segment->flags & PF_W)) return map_at(mapped, segment, PROT_READ | (segment->flags & PF_X ? PROT_EXEC : 0));
  void *copy = new_pages(size);
  if (!copy) return false;
  memcpy(copy, (const void *)begin, size);
  bool backed = map_at(mapped, segment, PROT_READ | PROT_WRITE);
  if (backed) memcpy((void *)begin, copy, size);
  real_munmap(copy, size);
  return backed;
}

bool code_file_back(const char *path, const char *base, size_t size) {
  struct image image;
  if (!image_read(base, size, &image)) return false;
  struct mapped mapped = map_file(path);
  bool backed = mapped.pages && can_back(&mapped, &image);
  if (!backed) say("%s is not used: its code is not that of the executable", path);
  for (unsigned place = 0; backed && place < image.count; place++) backed = back_segment(&mapped, &image.segments[place]);
  unmap_file(&mapped);
  return backed;
}

/* ---- an executable in a file */

static bool same_file(const struct mapped *one, const struct mapped *other, const struct image *image) {
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    if (!is_in_file(other, segment) || !same_bytes(one->pages + segment->offset, other->pages + segment->offset,
                                                   segment->offset, segment->file_size))
      return false;
  }
  return image->count > 0;
}

bool code_file_for(const char *path, char *found, size_t size) {
  struct mapped mapped = map_file(path);
  struct image image;
  bool same = false;
  if (mapped.pages && image_read_file(mapped.pages, mapped.size, &image)) {
    uint64_t identity = image_identity(&image, mapped.pages);
    for (const char *folder = settings.debug_info; !same && *folder; folder += strlen(folder) + 1) {
      struct debug_table table = debug_table_read(folder, identity);
      if (!table.header) continue;
      debug_table_code_file(&table, folder, found, size);
      debug_table_free(&table);
      struct mapped other = map_file(found);
      same = other.pages && same_file(&mapped, &other, &image);
      unmap_file(&other);
    }
  }
  unmap_file(&mapped);
  return same;
}
