#include "embedded.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#include "library.h"

#define FIRST_PAGE 4096u /* of every size of pages, so much can be read */

/* Every address and size below comes from the file, and is looked at only where it lies in a segment that is loaded. */
struct image {
  const char *base; /* where the reservation begins */
  size_t size;
  const char *bias; /* base minus the lowest address of the image */
  const ElfW(Phdr) * headers;
  unsigned header_count;
};

static bool holds(const ElfW(Phdr) * header, ElfW(Addr) address, size_t size) {
  return header->p_type == PT_LOAD && address >= header->p_vaddr && size <= header->p_memsz &&
         address - header->p_vaddr <= header->p_memsz - size;
}

/* What lies at an address of the image; NULL if it does not lie in one segment, wholly. */
static const void *image_at(const struct image *image, ElfW(Addr) address, size_t size) {
  for (unsigned place = 0; place < image->header_count; place++)
    if (holds(&image->headers[place], address, size)) return image->bias + address;
  return NULL;
}

/* Where the image begins, with the alignment of its segments; UINTPTR_MAX if it has none. */
static ElfW(Addr) lowest_address(const struct image *image) {
  ElfW(Addr) lowest = UINTPTR_MAX;
  for (unsigned place = 0; place < image->header_count; place++) {
    const ElfW(Phdr) *header = &image->headers[place];
    ElfW(Addr) start = header->p_vaddr - header->p_vaddr % (header->p_align ? header->p_align : 1);
    if (header->p_type == PT_LOAD && start < lowest) lowest = start;
  }
  return lowest;
}

static bool fits(const struct image *image, ElfW(Addr) lowest) {
  for (unsigned place = 0; place < image->header_count; place++) {
    const ElfW(Phdr) *header = &image->headers[place];
    ElfW(Addr) offset = header->p_vaddr - lowest;
    if (header->p_type == PT_LOAD && (offset > image->size || header->p_memsz > image->size - offset)) return false;
  }
  return true;
}

static bool read_image(const char *base, size_t size, struct image *image) {
  if (size < sizeof(ElfW(Ehdr))) return false;
  const ElfW(Ehdr) *elf = (const void *)base;
  if (memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_type != ET_DYN)
    return false;
  /* Real program headers follow the ELF header. */
  size_t headers = elf->e_phoff + (size_t)elf->e_phnum * sizeof(ElfW(Phdr)), readable = size;
  if (readable > FIRST_PAGE) readable = FIRST_PAGE;
  if (elf->e_phentsize != sizeof(ElfW(Phdr)) || elf->e_phoff > FIRST_PAGE || headers > readable) return false;
  *image = (struct image){base, size, base, (const void *)(base + elf->e_phoff), elf->e_phnum};
  ElfW(Addr) lowest = lowest_address(image);
  if (lowest == UINTPTR_MAX) return false;
  image->bias = base - lowest;
  return fits(image, lowest);
}

struct symbols {
  const ElfW(Sym) * table;
  const char *names;
  size_t names_size;
  uint32_t count;
};

static void read_dynamic(const struct image *image, const ElfW(Dyn) * dynamic, size_t count, struct symbols *symbols) {
  ElfW(Addr) table = 0, names = 0, hash = 0;
  for (size_t place = 0; place < count && dynamic[place].d_tag != DT_NULL; place++) {
    ElfW(Addr) value = dynamic[place].d_un.d_ptr;
    if (dynamic[place].d_tag == DT_SYMTAB) table = value;
    if (dynamic[place].d_tag == DT_STRTAB) names = value;
    if (dynamic[place].d_tag == DT_STRSZ) symbols->names_size = value;
    if (dynamic[place].d_tag == DT_HASH) hash = value;
  }
  const uint32_t *buckets = image_at(image, hash, 2 * sizeof(uint32_t));
  symbols->count = buckets ? buckets[1] : 0;
  symbols->table = image_at(image, table, symbols->count * sizeof(ElfW(Sym)));
  symbols->names = image_at(image, names, symbols->names_size);
}

static const void *find_symbol(const struct image *image, const struct symbols *symbols, const char *name) {
  if (!symbols->table || !symbols->names || !symbols->names_size) return NULL;
  size_t size = strlen(name) + 1;
  for (uint32_t place = 1; place < symbols->count; place++) {
    const ElfW(Sym) *symbol = &symbols->table[place];
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_name + size > symbols->names_size) continue;
    if (!memcmp(symbols->names + symbol->st_name, name, size)) return image_at(image, symbol->st_value, 1);
  }
  return NULL;
}

const struct library *embedded_library(const char *base, size_t size, const char *code, size_t code_size) {
  struct image image;
  struct symbols symbols = {0};
  if (!read_image(base, size, &image)) return NULL;
  for (unsigned place = 0; place < image.header_count; place++) {
    const ElfW(Phdr) *header = &image.headers[place];
    if (header->p_type != PT_DYNAMIC) continue;
    const ElfW(Dyn) *dynamic = image_at(&image, header->p_vaddr, header->p_memsz);
    if (dynamic) read_dynamic(&image, dynamic, header->p_memsz / sizeof *dynamic, &symbols);
  }
  const char *function = find_symbol(&image, &symbols, LIBRARY_QUERY);
  if (!function || function < code || function >= code + code_size) return NULL;
  __builtin___clear_cache((char *)(uintptr_t)code, (char *)(uintptr_t)code + code_size);
  return library_asked(function);
}
