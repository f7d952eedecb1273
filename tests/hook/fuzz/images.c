/* ELF images in memory, as IREE's own loader maps them of a file: here the fuzzer's bytes are the file.
 *
 * What the hook may look at is the image's first page, and the segments that the image itself says are loaded; all else
 * of the reservation is poisoned, so that AddressSanitizer finds a look at a byte of it.
 */
#include <elf.h>
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "fuzz.h"
#include "images.h"

#define RESERVED ((size_t)1 << 20)
#define PAGE 4096u
#if defined(__x86_64__)
#define RETURN 0xc3 /* `ret`: code of the image may be called, at any place in it */
#else
#define RETURN 0 /* no instruction is so short: nothing is called */
#endif

static char *reserved(void) {
  static char *base;
  if (!base) base = mmap(NULL, RESERVED, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) abort();
  ASAN_UNPOISON_MEMORY_REGION(base, RESERVED);
  memset(base, 0, RESERVED);
  return base;
}

struct file {
  const uint8_t *data;
  size_t size;
  const Elf64_Phdr *headers;
  unsigned count;
};

/* The program headers; none where they do not lie in the file. */
static void read_headers(struct file *file) {
  Elf64_Ehdr elf;
  if (file->size < sizeof elf) return;
  memcpy(&elf, file->data, sizeof elf);
  if (elf.e_phoff % 8 || elf.e_phoff > file->size || elf.e_phnum > (file->size - elf.e_phoff) / sizeof(Elf64_Phdr)) return;
  file->headers = (const void *)(file->data + elf.e_phoff);
  file->count = elf.e_phnum;
}

/* The lowest page that a segment is loaded to, by its alignment, as the loader finds it. */
static uint64_t lowest(const struct file *file) {
  uint64_t lowest = UINT64_MAX;
  for (unsigned place = 0; place < file->count; place++) {
    const Elf64_Phdr *header = &file->headers[place];
    uint64_t begin = header->p_align ? header->p_vaddr / header->p_align * header->p_align : header->p_vaddr;
    if (header->p_type == PT_LOAD && begin < lowest) lowest = begin;
  }
  return lowest;
}

/* What of a segment lies in the reservation; the size is 0 where nothing does. */
struct part {
  size_t begin, size;
};

static struct part part_of(const Elf64_Phdr *header, uint64_t lowest) {
  uint64_t begin = header->p_vaddr - lowest;
  if (header->p_type != PT_LOAD || header->p_vaddr < lowest || begin >= RESERVED) return (struct part){0, 0};
  return (struct part){begin, header->p_memsz < RESERVED - begin ? header->p_memsz : RESERVED - begin};
}

static void copy_segment(char *base, const struct file *file, const Elf64_Phdr *header, struct part part) {
  if (header->p_offset >= file->size) return;
  size_t size = part.size;
  if (size > header->p_filesz) size = header->p_filesz;
  if (size > file->size - header->p_offset) size = file->size - header->p_offset;
  memcpy(base + part.begin, file->data + header->p_offset, size);
}

static void load(char *base, const struct file *file) {
  uint64_t first = lowest(file);
  memcpy(base, file->data, file->size < PAGE ? file->size : PAGE);
  for (unsigned place = 0; place < file->count; place++) {
    struct part part = part_of(&file->headers[place], first);
    copy_segment(base, file, &file->headers[place], part);
    if (file->headers[place].p_flags & PF_X) memset(base + part.begin, RETURN, part.size);
  }
}

/* By what stands in memory then: a segment may have come to lie over the headers. */
static void poison_what_is_not_loaded(char *base) {
  struct file image = {(const uint8_t *)base, PAGE, NULL, 0};
  read_headers(&image);
  uint64_t first = lowest(&image);
  ASAN_POISON_MEMORY_REGION(base + PAGE, RESERVED - PAGE);
  for (unsigned place = 0; place < image.count; place++) {
    struct part part = part_of(&image.headers[place], first);
    ASAN_UNPOISON_MEMORY_REGION(base + part.begin, part.size);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *aligned = malloc(size ? size : 1); /* the fuzzer's bytes may begin anywhere */
  memcpy(aligned, data, size);
  struct file file = {aligned, size, NULL, 0};
  read_headers(&file);
  char *base = reserved();
  load(base, &file);
  poison_what_is_not_loaded(base);
  uint64_t first = lowest(&file);
  for (unsigned place = 0; place < file.count; place++) {
    struct part code = part_of(&file.headers[place], first);
    if (file.headers[place].p_flags & PF_X) embedded_library(base, RESERVED, base + code.begin, RETURN ? code.size : 0);
  }
  embedded_library(base, size < RESERVED ? size : RESERVED, base, 0);
  free(aligned);
  return 0;
}
