#include "objects.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "libc.h"

/* A piece of memory, up to but without `end`. */
struct range {
  uintptr_t begin, end;
};

static struct range segment_range(const struct dl_phdr_info *info, const ElfW(Phdr) * header) {
  uintptr_t begin = info->dlpi_addr + header->p_vaddr;
  return (struct range){begin, begin + header->p_memsz};
}

static bool covers(struct range outer, struct range inner) { return inner.begin >= outer.begin && inner.end <= outer.end; }

/* The segment that holds all of a range; NULL if none of the object does. */
static const ElfW(Phdr) * segment_of(const struct dl_phdr_info *info, struct range range) {
  for (unsigned place = 0; place < info->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[place];
    if (header->p_type == PT_LOAD && covers(segment_range(info, header), range)) return header;
  }
  return NULL;
}

static struct range byte_at(const void *address) { return (struct range){(uintptr_t)address, (uintptr_t)address + 1}; }

static struct range whole_pages(struct range range) {
  uintptr_t page = page_bytes();
  return (struct range){range.begin / page * page, (range.end + page - 1) / page * page};
}

/* ---- what is protected */

struct access {
  struct range range;
  bool found, read_only;
};

/* What libdl protects after relocation ends at a page's border; what follows it stays writable. */
static bool is_protected(const struct dl_phdr_info *info, const ElfW(Phdr) * header, struct range range) {
  struct range relro = segment_range(info, header);
  uintptr_t page = page_bytes();
  return header->p_type == PT_GNU_RELRO && range.begin < relro.end / page * page &&
         range.end > relro.begin / page * page;
}

static int find_protection(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct access *access = data;
  const ElfW(Phdr) *segment = segment_of(info, access->range);
  if (!segment) return 0;
  access->found = true;
  access->read_only = !(segment->p_flags & PF_W);
  for (unsigned place = 0; place < info->dlpi_phnum; place++)
    access->read_only |= is_protected(info, &info->dlpi_phdr[place], access->range);
  return 1;
}

bool object_access(void *address, size_t size, bool writable) {
  struct access access = {{(uintptr_t)address, (uintptr_t)address + size}, false, false};
  dl_iterate_phdr(find_protection, &access);
  if (!access.found) return false;
  if (!access.read_only) return true;
  struct range pages = whole_pages(access.range);
  int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  return !real_mprotect((void *)pages.begin, pages.end - pages.begin, protection);
}

/* ---- where they lie */

static int same_base(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  return (const void *)info->dlpi_addr == data;
}

bool object_is_loaded(const void *base) { return dl_iterate_phdr(same_base, (void *)(uintptr_t)base); }

struct extent {
  const void *inside;
  uintptr_t end;
};

static int find_extent(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct extent *extent = data;
  if (!segment_of(info, byte_at(extent->inside))) return 0;
  extent->end = 0;
  for (unsigned place = 0; place < info->dlpi_phnum; place++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[place];
    uintptr_t end = segment_range(info, header).end;
    if (header->p_type == PT_LOAD && end > extent->end) extent->end = end;
  }
  return 1;
}

size_t object_size(const void *inside, const void *base) {
  struct extent extent = {inside, (uintptr_t)base};
  dl_iterate_phdr(find_extent, &extent);
  return extent.end - (uintptr_t)base;
}

/* ---- imports: what an object's calls of other libraries' functions go through */

struct search {
  const void *inside;
  const char *path;
  const struct import *imports;
  unsigned patched;
};

static bool is_object(const struct dl_phdr_info *info, const struct search *search) {
  if (search->inside) return segment_of(info, byte_at(search->inside)) != NULL;
  struct stat wanted, found;
  return info->dlpi_name[0] && !stat(search->path, &wanted) && !stat(info->dlpi_name, &found) &&
         wanted.st_dev == found.st_dev && wanted.st_ino == found.st_ino;
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
      if (!object_access(entry, sizeof *entry, true)) continue;
      __atomic_store_n(entry, import->function, __ATOMIC_RELEASE);
      object_access(entry, sizeof *entry, false);
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

/* Copies what is known of it: imports are patched after the search, since libdl's lock is held while it goes on. */
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

unsigned object_patch_imports(const void *inside, const char *path, const struct import *imports) {
  struct search search = {inside, path, imports, 0};
  struct found_object found = {.search = &search};
  if (dl_iterate_phdr(find_object, &found) && found.dynamic) patch_object(&found.info, found.dynamic, &search);
  return search.patched;
}
