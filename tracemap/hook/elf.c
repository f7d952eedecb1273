/* Reads ELF images in memory: executables that IREE's own loader is about to finish, and objects that libdl loaded. */
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hook.h"

/* ---- embedded ELF: mapped anonymously by IREE's loader, so nothing but its memory tells of it */

struct image {
  const char *base; /* where the reservation begins */
  size_t size;
  const char *bias; /* base minus the lowest address of the image */
  const ElfW(Phdr) * headers;
  unsigned header_count;
};

/* Whether an address of the image lies in a segment that is loaded, wholly. */
static bool loaded_range(const struct image *image, ElfW(Addr) address, size_t size) {
  for (unsigned place = 0; place < image->header_count; place++) {
    const ElfW(Phdr) *header = &image->headers[place];
    if (header->p_type == PT_LOAD && address >= header->p_vaddr && size <= header->p_memsz &&
        address - header->p_vaddr <= header->p_memsz - size)
      return true;
  }
  return false;
}

static bool read_image(const char *base, size_t size, struct image *image) {
  if (size < sizeof(ElfW(Ehdr))) return false;
  const ElfW(Ehdr) *elf = (const void *)base;
  if (memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_type != ET_DYN)
    return false;
  /* The first page is what is known to be readable; real program headers follow the ELF header. */
  size_t headers = elf->e_phoff + (size_t)elf->e_phnum * sizeof(ElfW(Phdr));
  if (elf->e_phentsize != sizeof(ElfW(Phdr)) || elf->e_phoff > 4096 || headers > 4096 || headers > size) return false;
  *image = (struct image){base, size, base, (const void *)(base + elf->e_phoff), elf->e_phnum};
  ElfW(Addr) lowest = UINTPTR_MAX;
  for (unsigned place = 0; place < image->header_count; place++) {
    const ElfW(Phdr) *header = &image->headers[place];
    if (header->p_type != PT_LOAD) continue;
    ElfW(Addr) start = header->p_vaddr - header->p_vaddr % (header->p_align ? header->p_align : 1);
    if (start < lowest) lowest = start;
  }
  if (lowest == UINTPTR_MAX) return false;
  image->bias = base - lowest;
  for (unsigned place = 0; place < image->header_count; place++) {
    const ElfW(Phdr) *header = &image->headers[place];
    if (header->p_type == PT_LOAD && (header->p_vaddr - lowest > size || header->p_memsz > size - (header->p_vaddr - lowest)))
      return false;
  }
  return true;
}

struct symbols {
  const ElfW(Sym) * table;
  const char *names;
  size_t names_size;
  uint32_t count;
};

static const void *image_at(const struct image *image, ElfW(Addr) address, size_t size) {
  return loaded_range(image, address, size) ? image->bias + address : NULL;
}

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

/* The library of an image whose code has just become executable; NULL if it is none of IREE's. */
const struct library *elf_embedded_library(const char *base, size_t size, const char *code, size_t code_size) {
  struct image image;
  struct symbols symbols = {0};
  if (!read_image(base, size, &image)) return NULL;
  for (unsigned place = 0; place < image.header_count; place++) {
    const ElfW(Phdr) *header = &image.headers[place];
    if (header->p_type == PT_DYNAMIC && loaded_range(&image, header->p_vaddr, header->p_memsz))
      read_dynamic(&image, (const void *)(image.bias + header->p_vaddr), header->p_memsz / sizeof(ElfW(Dyn)), &symbols);
  }
  const char *function = find_symbol(&image, &symbols, LIBRARY_QUERY);
  if (!function || function < code || function >= code + code_size) return NULL;
  __builtin___clear_cache((char *)(uintptr_t)code, (char *)(uintptr_t)code + code_size);
  static const uint64_t environment[64]; /* zeros: more than the structure has, and the library does not look at it */
  return ((library_query)(uintptr_t)function)(LIBRARY_VERSION, environment);
}

/* ---- objects of libdl */

struct access {
  uintptr_t address;
  size_t size;
  bool found, read_only;
};

static bool covers(uintptr_t begin, uintptr_t end, const struct access *access) {
  return access->address >= begin && access->address + access->size <= end;
}

/* What libdl protects after relocation ends at a page's border; what follows it stays writable. */
static int find_protection(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct access *access = data;
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  for (unsigned place = 0; place < info->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[place];
    uintptr_t begin = info->dlpi_addr + header->p_vaddr, end = begin + header->p_memsz;
    if (header->p_type == PT_LOAD && covers(begin, end, access)) {
      access->found = true;
      access->read_only |= !(header->p_flags & PF_W);
    }
    if (header->p_type == PT_GNU_RELRO && access->address < end / page * page &&
        access->address + access->size > begin / page * page)
      access->read_only = true;
  }
  return access->found;
}

/* Makes what libdl protected writable, and protects it again. */
bool elf_table_access(void *table, size_t size, bool writable) {
  struct access access = {(uintptr_t)table, size, false, false};
  dl_iterate_phdr(find_protection, &access);
  if (!access.found) return false;
  if (!access.read_only) return true;
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uintptr_t begin = access.address / page * page, end = (access.address + size + page - 1) / page * page;
  return !real_mprotect((void *)begin, end - begin, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

static int same_base(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  return (const void *)info->dlpi_addr == data;
}

bool elf_is_loaded(const void *base) { return dl_iterate_phdr(same_base, (void *)(uintptr_t)base); }

struct extent {
  uintptr_t inside, end;
};

static int find_extent(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct extent *extent = data;
  uintptr_t last = 0;
  bool found = false;
  for (unsigned place = 0; place < info->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[place];
    uintptr_t begin = info->dlpi_addr + header->p_vaddr, end = begin + header->p_memsz;
    if (header->p_type != PT_LOAD) continue;
    found |= extent->inside >= begin && extent->inside < end;
    if (end > last) last = end;
  }
  if (found) extent->end = last;
  return found;
}

/* How far an object that libdl loaded reaches in memory, from its base on; 0 if it is none. */
size_t elf_loaded_size(const void *inside, const void *base) {
  struct extent extent = {(uintptr_t)inside, (uintptr_t)base};
  dl_iterate_phdr(find_extent, &extent);
  return extent.end - (uintptr_t)base;
}

/* ---- imports of one object: what its calls of other libraries' functions go through */

struct search {
  const void *inside; /* an address in the object; NULL: the path tells */
  const char *path;
  const struct import *imports;
  unsigned patched;
};

static bool is_object(const struct dl_phdr_info *info, const struct search *search) {
  if (!search->inside) {
    struct stat wanted, found;
    return info->dlpi_name[0] && !stat(search->path, &wanted) && !stat(info->dlpi_name, &found) &&
           wanted.st_dev == found.st_dev && wanted.st_ino == found.st_ino;
  }
  uintptr_t address = (uintptr_t)search->inside;
  for (unsigned place = 0; place < info->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[place];
    uintptr_t begin = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_LOAD && address >= begin && address < begin + header->p_memsz) return true;
  }
  return false;
}

struct relocations {
  const ElfW(Rela) * table;
  size_t count;
};

static void patch_relocations(const struct dl_phdr_info *info, const struct relocations *relocations,
                              const ElfW(Sym) * symbols, const char *names, struct search *search) {
  for (size_t place = 0; place < relocations->count; place++) {
    const ElfW(Rela) *relocation = &relocations->table[place];
    const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(relocation->r_info)];
    if (!ELF64_R_SYM(relocation->r_info) || relocation->r_addend) continue;
    for (const struct import *import = search->imports; import->name; import++) {
      if (strcmp(names + symbol->st_name, import->name)) continue;
      void **entry = (void **)(info->dlpi_addr + relocation->r_offset);
      if (!elf_table_access(entry, sizeof *entry, true)) continue;
      __atomic_store_n(entry, import->function, __ATOMIC_RELEASE);
      elf_table_access(entry, sizeof *entry, false);
      search->patched++;
    }
  }
}

/* libdl has turned the addresses of this table into pointers, on the platforms that the hook knows. */
static void patch_object(const struct dl_phdr_info *info, const ElfW(Dyn) * dynamic, struct search *search) {
  struct relocations lazy = {0}, eager = {0};
  const ElfW(Sym) *symbols = NULL;
  const char *names = NULL;
  for (; dynamic->d_tag != DT_NULL; dynamic++) {
    ElfW(Addr) value = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) symbols = (const void *)value;
    if (dynamic->d_tag == DT_STRTAB) names = (const void *)value;
    if (dynamic->d_tag == DT_JMPREL) lazy.table = (const void *)value;
    if (dynamic->d_tag == DT_PLTRELSZ) lazy.count = value / sizeof(ElfW(Rela));
    if (dynamic->d_tag == DT_RELA) eager.table = (const void *)value;
    if (dynamic->d_tag == DT_RELASZ) eager.count = value / sizeof(ElfW(Rela));
  }
  if (!symbols || !names) return;
  if (lazy.table) patch_relocations(info, &lazy, symbols, names, search);
  if (eager.table) patch_relocations(info, &eager, symbols, names, search);
}

struct found_object {
  struct dl_phdr_info info;
  const ElfW(Dyn) * dynamic;
  const struct search *search;
};

static int find_object(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct found_object *found = data;
  if (!is_object(info, found->search)) return 0;
  for (unsigned place = 0; place < info->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[place];
    if (header->p_type == PT_DYNAMIC) found->dynamic = (const void *)(info->dlpi_addr + header->p_vaddr);
  }
  found->info = *info;
  return 1;
}

/* Points the imports of one object elsewhere; returns how many there were. */
unsigned elf_patch_imports(const void *inside, const char *path, const struct import *imports) {
  struct search search = {inside, path, imports, 0};
  struct found_object found = {.search = &search};
  if (dl_iterate_phdr(find_object, &found) && found.dynamic) patch_object(&found.info, found.dynamic, &search);
  return search.patched;
}
