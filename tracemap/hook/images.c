#include "images.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define FIRST_PAGE 4096u /* readable for every page size */

const struct library *library_asked(const void *query) {
  static const uint64_t environment[64]; /* zeros: larger than the structure, which the library does not read */
  return ((library_query)(uintptr_t)query)(LIBRARY_VERSION, environment);
}

bool library_has(const struct library *library, size_t ordinal) {
  return library && library->header && library->header->version == LIBRARY_VERSION && library->exports.ptrs &&
         ordinal < library->exports.count;
}

const char *library_kernel_name(const struct library *library, size_t ordinal, char *made_up, size_t size) {
  const char *name = library->exports.names ? library->exports.names[ordinal] : NULL;
  if (name) return name;
  snprintf(made_up, size, "%s:%zu", library->header->name ? library->header->name : "", ordinal);
  return made_up;
}

/* ---- ELF structures of any image */

/* A memory range; `end` is exclusive. */
struct range {
  uintptr_t begin, end;
};

static struct range range_of(const void *address, size_t size) {
  return (struct range){(uintptr_t)address, (uintptr_t)address + size};
}

static struct range segment_range(const struct dl_phdr_info *image, const ElfW(Phdr) * header) {
  uintptr_t begin = image->dlpi_addr + header->p_vaddr;
  return (struct range){begin, begin + header->p_memsz};
}

/* The loaded segment that contains a range; NULL if there is none. */
static const ElfW(Phdr) * segment_of(const struct dl_phdr_info *image, struct range range) {
  for (unsigned place = 0; place < image->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &image->dlpi_phdr[place];
    struct range outer = segment_range(image, header);
    if (header->p_type == PT_LOAD && range.begin >= outer.begin && range.begin <= range.end && range.end <= outer.end)
      return header;
  }
  return NULL;
}

/* The range of all loaded segments, with the alignment of the first; all memory if the numbers are invalid. */
static struct range reach_of(const struct dl_phdr_info *image) {
  struct range reach = {UINTPTR_MAX, 0};
  for (unsigned place = 0; place < image->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &image->dlpi_phdr[place];
    if (header->p_type != PT_LOAD) continue;
    struct range segment = segment_range(image, header);
    if (segment.end < segment.begin) return (struct range){0, UINTPTR_MAX};
    segment.begin -= header->p_vaddr % (header->p_align ? header->p_align : 1);
    if (segment.begin < reach.begin) reach.begin = segment.begin;
    if (segment.end > reach.end) reach.end = segment.end;
  }
  return reach;
}

/* Entries of an image's dynamic section, by tag; missing ones are 0. */
struct dynamic {
  ElfW(Addr) values[DT_NUM];
};

/* False if no loaded segment has a dynamic section. */
static bool read_dynamic(const struct dl_phdr_info *image, struct dynamic *dynamic) {
  *dynamic = (struct dynamic){0};
  unsigned place = 0;
  while (place < image->dlpi_phnum && image->dlpi_phdr[place].p_type != PT_DYNAMIC) place++;
  if (place == image->dlpi_phnum) return false;
  struct range range = segment_range(image, &image->dlpi_phdr[place]);
  if (!segment_of(image, range) || range.begin % _Alignof(ElfW(Dyn))) return false;
  if (!memory_is_readable((const void *)range.begin, range.end - range.begin)) return false;
  const ElfW(Dyn) *entry = (const void *)range.begin;
  for (size_t count = (range.end - range.begin) / sizeof *entry; count-- && entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag > 0 && entry->d_tag < DT_NUM) dynamic->values[entry->d_tag] = entry->d_un.d_ptr;
  return true;
}

/* ---- embedded executables: every address and size below comes from the file. Memory is read only inside a loaded and
 * readable segment, since other programs' loaders keep images in memory, too, and unmap parts of them */

/* The data at an address of the image; NULL unless it lies entirely in one segment, with the right alignment. */
static const void *image_at(const struct dl_phdr_info *image, ElfW(Addr) address, size_t size, size_t alignment) {
  const void *found = (const void *)(image->dlpi_addr + address);
  bool fits = (uintptr_t)found % alignment == 0 && segment_of(image, range_of(found, size));
  return fits && memory_is_readable(found, size) ? found : NULL;
}

/* Fills in the information that libdl would have if it had loaded the image. */
static bool read_image(const char *base, size_t size, struct dl_phdr_info *image) {
  if (size < sizeof(ElfW(Ehdr)) || !memory_is_readable(base, size < FIRST_PAGE ? size : FIRST_PAGE)) return false;
  const ElfW(Ehdr) *elf = (const void *)base;
  if (memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_type != ET_DYN)
    return false;
  /* In valid files, program headers follow the ELF header. */
  size_t headers = elf->e_phoff + (size_t)elf->e_phnum * sizeof(ElfW(Phdr)), readable = size;
  if (readable > FIRST_PAGE) readable = FIRST_PAGE;
  if (elf->e_phentsize != sizeof(ElfW(Phdr)) || elf->e_phoff % _Alignof(ElfW(Phdr)) || elf->e_phoff > FIRST_PAGE ||
      headers > readable)
    return false;
  *image = (struct dl_phdr_info){.dlpi_phdr = (const void *)(base + elf->e_phoff), .dlpi_phnum = elf->e_phnum};
  struct range reach = reach_of(image);
  image->dlpi_addr = (uintptr_t)base - reach.begin;
  return reach.begin < reach.end && reach.end - reach.begin <= size;
}

static const void *find_symbol(const struct dl_phdr_info *image, const struct dynamic *dynamic, const char *name) {
  const uint32_t *buckets = image_at(image, dynamic->values[DT_HASH], 2 * sizeof(uint32_t), _Alignof(uint32_t));
  uint32_t count = buckets ? buckets[1] : 0;
  size_t names_size = dynamic->values[DT_STRSZ], size = strlen(name) + 1;
  const ElfW(Sym) *symbols =
      image_at(image, dynamic->values[DT_SYMTAB], count * sizeof(ElfW(Sym)), _Alignof(ElfW(Sym)));
  const char *names = image_at(image, dynamic->values[DT_STRTAB], names_size, 1);
  if (!symbols || !names) return NULL;
  for (uint32_t place = 1; place < count; place++) {
    const ElfW(Sym) *symbol = &symbols[place];
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_name + size > names_size) continue;
    if (!memcmp(names + symbol->st_name, name, size)) return image_at(image, symbol->st_value, 1, 1);
  }
  return NULL;
}

const struct library *embedded_library(const char *base, size_t size, const char *code, size_t code_size) {
  struct dl_phdr_info image;
  struct dynamic dynamic;
  if (!read_image(base, size, &image) || !read_dynamic(&image, &dynamic)) return NULL;
  const char *function = find_symbol(&image, &dynamic, LIBRARY_QUERY);
  if (!function || function < code || function >= code + code_size) return NULL;
  __builtin___clear_cache((char *)(uintptr_t)code, (char *)(uintptr_t)code + code_size);
  return library_asked(function);
}

/* ---- segments of an image */

/* Adds the segments of an image, whose numbers may be any; `reach` is what they may cover. */
static bool add_segments(const struct dl_phdr_info *info, struct image *image) {
  unsigned codes = 0;
  *image = (struct image){.bias = info->dlpi_addr};
  for (unsigned place = 0; place < info->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[place];
    if (header->p_type != PT_LOAD) continue;
    struct range range = segment_range(info, header);
    if (image->count == SEGMENTS || range.end < range.begin || header->p_filesz > header->p_memsz) return false;
    image->segments[image->count++] =
        (struct image_segment){range.begin, header->p_offset, header->p_filesz, header->p_flags};
    if (!(header->p_flags & PF_X)) continue;
    image->code_begin = range.begin;
    image->code_end = range.begin + header->p_filesz;
    codes++;
  }
  return codes == 1;
}

bool image_read(const char *base, size_t size, struct image *image) {
  struct dl_phdr_info info;
  if (!read_image(base, size, &info) || !add_segments(&info, image)) return false;
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    if (!(segment->flags & PF_W) && !memory_is_readable((const void *)segment->address, segment->file_size)) return false;
  }
  return true;
}

bool image_read_file(const char *data, size_t size, struct image *image) {
  const ElfW(Ehdr) *elf = (const void *)data;
  if (size < sizeof *elf || memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_ident[EI_CLASS] != ELFCLASS64) return false;
  if (elf->e_phentsize != sizeof(ElfW(Phdr)) || elf->e_phoff % _Alignof(ElfW(Phdr)) || elf->e_phoff > size ||
      elf->e_phnum > (size - elf->e_phoff) / sizeof(ElfW(Phdr)))
    return false;
  struct dl_phdr_info info = {.dlpi_phdr = (const void *)(data + elf->e_phoff), .dlpi_phnum = elf->e_phnum};
  if (!add_segments(&info, image)) return false;
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    if (segment->offset > size || segment->file_size > size - segment->offset) return false;
  }
  return true;
}

/* The CRC-32 of zlib and gzip (RFC 1952, 8). */
static uint32_t add_to_checksum(uint32_t checksum, const unsigned char *data, size_t size) {
  static uint32_t table[256];
  if (!table[255]) /* other threads may write the same numbers; the last one says that all are there */
    for (uint32_t byte = 0; byte < 256; byte++) {
      uint32_t value = byte;
      for (int bit = 0; bit < 8; bit++) value = value & 1 ? 0xEDB88320u ^ value >> 1 : value >> 1;
      __atomic_store_n(&table[byte], value, __ATOMIC_RELEASE);
    }
  checksum = ~checksum;
  while (size--) checksum = table[(checksum ^ *data++) & 0xFF] ^ checksum >> 8;
  return ~checksum;
}

uint64_t image_identity(const struct image *image, const char *file) {
  uint32_t checksum = 0;
  uint64_t size = 0;
  for (unsigned place = 0; place < image->count; place++) {
    const struct image_segment *segment = &image->segments[place];
    size_t header = segment->offset < sizeof(ElfW(Ehdr)) ? sizeof(ElfW(Ehdr)) - segment->offset : 0;
    if (segment->flags & PF_W || segment->file_size <= header) continue;
    const char *data = file ? file + segment->offset : (const char *)segment->address;
    checksum = add_to_checksum(checksum, (const unsigned char *)data + header, segment->file_size - header);
    size += segment->file_size - header;
  }
  return (uint64_t)checksum << 32 | (uint32_t)size;
}

/* ---- objects that libdl loaded */

struct search {
  struct range inside; /* an address range in the object, if the path is unknown */
  const char *path;
  struct dl_phdr_info *object;
};

static bool is_file(const char *path, const char *name) {
  struct stat wanted, found;
  return *name && !stat(path, &wanted) && !stat(name, &found) && wanted.st_dev == found.st_dev &&
         wanted.st_ino == found.st_ino;
}

static int look_at(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  const struct search *search = data;
  if (search->path ? !is_file(search->path, info->dlpi_name) : !segment_of(info, search->inside)) return 0;
  *search->object = *info;
  return 1;
}

/* Copies the information about an object: libdl holds its lock during the search, so all else happens afterwards. */
static bool find_object(struct range inside, const char *path, struct dl_phdr_info *object) {
  struct search search = {inside, path, object};
  return dl_iterate_phdr(look_at, &search);
}

static int same_base(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  return (const void *)info->dlpi_addr == data;
}

bool object_is_loaded(const void *base) { return dl_iterate_phdr(same_base, (void *)(uintptr_t)base); }

size_t object_size(const void *inside, const void *base) {
  struct dl_phdr_info object;
  return find_object(range_of(inside, 1), NULL, &object) ? reach_of(&object).end - (uintptr_t)base : 0;
}

/* The region that libdl protects after relocation ends at a page boundary; the rest stays writable. */
static bool is_protected(const struct dl_phdr_info *object, const ElfW(Phdr) * header, struct range range) {
  struct range relro = segment_range(object, header);
  uintptr_t page = page_bytes();
  return header->p_type == PT_GNU_RELRO && range.begin < relro.end / page * page &&
         range.end > relro.begin / page * page;
}

bool object_access(void *address, size_t size, bool writable) {
  struct dl_phdr_info object;
  struct range range = range_of(address, size);
  if (!find_object(range, NULL, &object)) return false;
  bool read_only = !(segment_of(&object, range)->p_flags & PF_W);
  for (unsigned place = 0; place < object.dlpi_phnum; place++)
    read_only |= is_protected(&object, &object.dlpi_phdr[place], range);
  if (!read_only) return true;
  uintptr_t page = page_bytes(), begin = range.begin / page * page, end = (range.end + page - 1) / page * page;
  return !real_mprotect((void *)begin, end - begin, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

/* `table` and `size` are the tags of a list of relocations. On the platforms that the hook supports, libdl has turned
 * the addresses in the dynamic section into pointers. */
static unsigned patch_relocations(const struct dl_phdr_info *object, const struct dynamic *dynamic, unsigned table,
                                  unsigned size, const struct import *imports) {
  const ElfW(Rela) *relocations = (const void *)dynamic->values[table];
  const ElfW(Sym) *symbols = (const void *)dynamic->values[DT_SYMTAB];
  const char *names = (const void *)dynamic->values[DT_STRTAB];
  size_t count = relocations && symbols && names ? dynamic->values[size] / sizeof *relocations : 0;
  unsigned patched = 0;
  for (size_t place = 0; place < count; place++) {
    const ElfW(Rela) *relocation = &relocations[place];
    const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(relocation->r_info)];
    if (!ELF64_R_SYM(relocation->r_info) || relocation->r_addend) continue;
    for (const struct import *import = imports; import->name; import++) {
      if (strcmp(names + symbol->st_name, import->name)) continue;
      void **entry = (void **)(object->dlpi_addr + relocation->r_offset);
      if (!object_access(entry, sizeof *entry, true)) continue;
      __atomic_store_n(entry, import->function, __ATOMIC_RELEASE);
      object_access(entry, sizeof *entry, false);
      patched++;
    }
  }
  return patched;
}

unsigned object_patch_imports(const void *inside, const char *path, const struct import *imports) {
  struct dl_phdr_info object;
  struct dynamic dynamic;
  if (!find_object(range_of(inside, 1), path, &object) || !read_dynamic(&object, &dynamic)) return 0;
  return patch_relocations(&object, &dynamic, DT_JMPREL, DT_PLTRELSZ, imports) +
         patch_relocations(&object, &dynamic, DT_RELA, DT_RELASZ, imports);
}
