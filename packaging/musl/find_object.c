/* Debian's unwinder asks glibc where the tables of a function are; musl has no such call, and the
 * older way of asking, which this does by it. Only a static program on 64 bits is meant. */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* As glibc's <dlfcn.h> lays it out. */
struct found {
    unsigned long long flags;
    void *start;
    void *end;
    struct link_map *link_map;
    void *tables;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t address;
    struct found *found;
};

static int look(struct dl_phdr_info *object, size_t size, void *data)
{
    struct search *search = data;
    void *tables = NULL;
    int has_it = 0;

    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + part->p_vaddr;

        if (part->p_type == PT_GNU_EH_FRAME)
            tables = (void *)start;
        if (part->p_type == PT_LOAD && search->address - start < part->p_memsz) {
            search->found->start = (void *)start;
            search->found->end = (void *)(start + part->p_memsz);
            has_it = 1;
        }
    }
    search->found->tables = tables;
    return has_it && tables;
}

int _dl_find_object(void *address, struct found *found)
{
    struct search search = { (uintptr_t)address, found };

    found->flags = 0;
    found->link_map = NULL;
    return dl_iterate_phdr(look, &search) ? 0 : -1;
}
