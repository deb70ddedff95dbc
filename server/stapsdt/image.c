/*
 * Lays out the provider file. Everything a tracer or the kernel maps for
 * execution has equal file offset and address, so that no reader of the notes
 * needs to convert one into the other:
 *
 *   ELF header, program headers, .hash, .dynsym, .dynstr, .text    read, execute
 *   .stapsdt.base (one byte, as systemtap's sys/sdt.h makes it)    read, execute
 *   .dynamic (glibc before 2.35 writes to it)                      read, write
 *   .note.stapsdt, .shstrtab, section headers                      not mapped
 */
#include "image.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

#define NOTE_OWNER "stapsdt"
#define NOTE_TYPE 3 /* NT_STAPSDT */
#define ARGUMENTS_BYTES (MAX_ARGUMENTS * sizeof("-8@%rdi "))

enum section {
    SECTION_NULL,
    SECTION_HASH,
    SECTION_DYNSYM,
    SECTION_DYNSTR,
    SECTION_TEXT,
    SECTION_BASE,
    SECTION_DYNAMIC,
    SECTION_NOTE,
    SECTION_NAMES,
    SECTION_COUNT,
};

static const char *const section_names[SECTION_COUNT] = {
    "", ".hash", ".dynsym", ".dynstr", ".text", ".stapsdt.base", ".dynamic", ".note.stapsdt",
    ".shstrtab",
};

enum { SEGMENT_CODE, SEGMENT_DATA, SEGMENT_DYNAMIC, SEGMENT_STACK, SEGMENT_COUNT };

enum { DYNAMIC_COUNT = 6 };

typedef struct {
    const SDTProvider_t *provider;
    const stapsdt_machine *machine;
    uint8_t *bytes; /* NULL while only sizes are asked for */
    size_t probe_count;
    size_t names_bytes; /* of all probes, with their final zeros */
    size_t note_bytes;
    size_t first_site; /* offset of the first probe's site */
    Elf64_Shdr sections[SECTION_COUNT];
    size_t section_table; /* offset */
    size_t size;
} layout;

static size_t round_up(size_t value, size_t step)
{
    return (value + step - 1) / step * step;
}

/* The argument part of a note: "-8@%rdi 8@%rsi" and so on. */
static void describe_arguments(const SDTProbe_t *probe, const stapsdt_machine *machine,
                               char text[ARGUMENTS_BYTES])
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < probe->argCount; i++) {
        int type = probe->argFmt[i];
        int bytes = abs(type);
        int row = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3;

        used += (size_t)snprintf(text + used, ARGUMENTS_BYTES - used, "%s%d@%s", i ? " " : "", type,
                                 machine->registers[row][i]);
    }
}

static size_t note_description_bytes(const layout *l, const SDTProbe_t *probe)
{
    char arguments[ARGUMENTS_BYTES];

    describe_arguments(probe, l->machine, arguments);
    return 3 * sizeof(uint64_t) + strlen(l->provider->name) + 1 + strlen(probe->name) + 1 +
           strlen(arguments) + 1;
}

static void place(layout *l, enum section section, size_t bytes, size_t alignment)
{
    l->size = round_up(l->size, alignment);
    l->sections[section].sh_offset = l->size;
    l->sections[section].sh_addr = l->size;
    l->sections[section].sh_size = bytes;
    l->sections[section].sh_addralign = alignment;
    l->size += bytes;
}

static void measure(layout *l)
{
    size_t entry_bytes = round_up(l->machine->entry_bytes + stapsdt_entry_words_bytes,
                                  SITE_STRIDE_BYTES);
    size_t names_bytes = 0;

    for (const SDTProbeList_t *p = l->provider->probes; p; p = p->next) {
        l->probe_count++;
        l->names_bytes += strlen(p->probe.name) + 1;
        l->note_bytes += sizeof(Elf64_Nhdr) + sizeof(NOTE_OWNER) +
                         round_up(note_description_bytes(l, &p->probe), 4);
    }
    for (int i = 0; i < SECTION_COUNT; i++)
        names_bytes += strlen(section_names[i]) + 1;

    l->size = sizeof(Elf64_Ehdr) + SEGMENT_COUNT * sizeof(Elf64_Phdr);
    /* One bucket and a chain through all symbols: 2 sizes, 1 head, a link each. */
    place(l, SECTION_HASH, (3 + 1 + l->probe_count) * sizeof(uint32_t), 8);
    place(l, SECTION_DYNSYM, (1 + l->probe_count) * sizeof(Elf64_Sym), 8);
    place(l, SECTION_DYNSTR, 1 + l->names_bytes, 1);
    place(l, SECTION_TEXT, entry_bytes + l->probe_count * SITE_STRIDE_BYTES, SITE_STRIDE_BYTES);
    l->first_site = l->sections[SECTION_TEXT].sh_offset + entry_bytes;
    place(l, SECTION_BASE, 1, 1);
    place(l, SECTION_DYNAMIC, DYNAMIC_COUNT * sizeof(Elf64_Dyn), 8);
    /* Mapped again one page further on, as linkers do: the same file page, writable. */
    l->sections[SECTION_DYNAMIC].sh_addr += l->machine->page_bytes;
    place(l, SECTION_NOTE, l->note_bytes, 4);
    l->sections[SECTION_NOTE].sh_addr = 0;
    place(l, SECTION_NAMES, names_bytes, 1);
    l->sections[SECTION_NAMES].sh_addr = 0;
    l->section_table = round_up(l->size, 8);
    l->size = l->section_table + SECTION_COUNT * sizeof(Elf64_Shdr);
}

static void write_header(layout *l)
{
    Elf64_Ehdr header = {
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT,
                    ELFOSABI_SYSV},
        .e_type = ET_DYN,
        .e_machine = (Elf64_Half)l->machine->machine,
        .e_version = EV_CURRENT,
        .e_entry = l->sections[SECTION_TEXT].sh_addr,
        .e_phoff = sizeof(Elf64_Ehdr),
        .e_shoff = l->section_table,
        .e_ehsize = sizeof(Elf64_Ehdr),
        .e_phentsize = sizeof(Elf64_Phdr),
        .e_phnum = SEGMENT_COUNT,
        .e_shentsize = sizeof(Elf64_Shdr),
        .e_shnum = SECTION_COUNT,
        .e_shstrndx = SECTION_NAMES,
    };

    memcpy(l->bytes, &header, sizeof(header));
}

static void write_segments(layout *l)
{
    const Elf64_Shdr *base = &l->sections[SECTION_BASE];
    const Elf64_Shdr *dynamic = &l->sections[SECTION_DYNAMIC];
    size_t code_bytes = base->sh_offset + base->sh_size;
    Elf64_Phdr segments[SEGMENT_COUNT] = {
        [SEGMENT_CODE] = {.p_type = PT_LOAD,
                          .p_flags = PF_R | PF_X,
                          .p_filesz = code_bytes,
                          .p_memsz = code_bytes,
                          .p_align = l->machine->page_bytes},
        [SEGMENT_DATA] = {.p_type = PT_LOAD,
                          .p_flags = PF_R | PF_W,
                          .p_offset = dynamic->sh_offset,
                          .p_vaddr = dynamic->sh_addr,
                          .p_paddr = dynamic->sh_addr,
                          .p_filesz = dynamic->sh_size,
                          .p_memsz = dynamic->sh_size,
                          .p_align = l->machine->page_bytes},
        /* Without this one the loader makes every stack executable. */
        [SEGMENT_STACK] = {.p_type = PT_GNU_STACK, .p_flags = PF_R | PF_W, .p_align = 16},
    };

    segments[SEGMENT_DYNAMIC] = segments[SEGMENT_DATA];
    segments[SEGMENT_DYNAMIC].p_type = PT_DYNAMIC;
    segments[SEGMENT_DYNAMIC].p_align = 8;
    memcpy(l->bytes + sizeof(Elf64_Ehdr), segments, sizeof(segments));
}

static void write_symbols(layout *l)
{
    uint32_t *hash = (uint32_t *)(l->bytes + l->sections[SECTION_HASH].sh_offset);
    Elf64_Sym *symbol = (Elf64_Sym *)(l->bytes + l->sections[SECTION_DYNSYM].sh_offset);
    char *names = (char *)l->bytes + l->sections[SECTION_DYNSTR].sh_offset;
    size_t site = l->first_site;
    size_t used = 1;

    hash[0] = 1;                             /* buckets */
    hash[1] = (uint32_t)(1 + l->probe_count); /* links */
    hash[2] = l->probe_count ? 1 : 0;        /* first symbol of the only bucket */
    for (size_t i = 1; i <= l->probe_count; i++)
        hash[3 + i] = i < l->probe_count ? (uint32_t)(i + 1) : 0;

    for (const SDTProbeList_t *p = l->provider->probes; p; p = p->next) {
        symbol++; /* number 0 is the empty one */
        symbol->st_name = (Elf64_Word)used;
        symbol->st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
        symbol->st_shndx = SECTION_TEXT;
        symbol->st_value = site;
        symbol->st_size = l->machine->site_bytes;
        strcpy(names + used, p->probe.name);
        used += strlen(p->probe.name) + 1;
        site += SITE_STRIDE_BYTES;
    }
}

static void write_code(layout *l)
{
    uint8_t *entry = l->bytes + l->sections[SECTION_TEXT].sh_offset;

    memcpy(entry, l->machine->entry, l->machine->entry_bytes);
    memcpy(entry + l->machine->entry_bytes, stapsdt_entry_words, stapsdt_entry_words_bytes);
    for (size_t i = 0; i < l->probe_count; i++)
        memcpy(l->bytes + l->first_site + i * SITE_STRIDE_BYTES, l->machine->site,
               l->machine->site_bytes);
}

static void write_dynamic(layout *l)
{
    Elf64_Dyn entries[DYNAMIC_COUNT] = {
        {.d_tag = DT_HASH, .d_un.d_ptr = l->sections[SECTION_HASH].sh_addr},
        {.d_tag = DT_STRTAB, .d_un.d_ptr = l->sections[SECTION_DYNSTR].sh_addr},
        {.d_tag = DT_SYMTAB, .d_un.d_ptr = l->sections[SECTION_DYNSYM].sh_addr},
        {.d_tag = DT_STRSZ, .d_un.d_val = l->sections[SECTION_DYNSTR].sh_size},
        {.d_tag = DT_SYMENT, .d_un.d_val = sizeof(Elf64_Sym)},
        {.d_tag = DT_NULL},
    };

    memcpy(l->bytes + l->sections[SECTION_DYNAMIC].sh_offset, entries, sizeof(entries));
}

static void write_notes(layout *l)
{
    uint8_t *at = l->bytes + l->sections[SECTION_NOTE].sh_offset;
    size_t site = l->first_site;

    for (const SDTProbeList_t *p = l->provider->probes; p; p = p->next) {
        char arguments[ARGUMENTS_BYTES];
        size_t description_bytes = note_description_bytes(l, &p->probe);
        Elf64_Nhdr header = {.n_namesz = sizeof(NOTE_OWNER),
                             .n_descsz = (Elf64_Word)description_bytes,
                             .n_type = NOTE_TYPE};
        uint64_t addresses[3] = {site, l->sections[SECTION_BASE].sh_addr, 0 /* no semaphore */};
        uint8_t *text = at + sizeof(header) + sizeof(NOTE_OWNER) + sizeof(addresses);

        describe_arguments(&p->probe, l->machine, arguments);
        memcpy(at, &header, sizeof(header));
        memcpy(at + sizeof(header), NOTE_OWNER, sizeof(NOTE_OWNER));
        memcpy(text - sizeof(addresses), addresses, sizeof(addresses));
        text = (uint8_t *)stpcpy((char *)text, l->provider->name) + 1;
        text = (uint8_t *)stpcpy((char *)text, p->probe.name) + 1;
        strcpy((char *)text, arguments);
        at += sizeof(header) + sizeof(NOTE_OWNER) + round_up(description_bytes, 4);
        site += SITE_STRIDE_BYTES;
    }
}

static void write_sections(layout *l)
{
    static const struct {
        Elf64_Word type, flags, link, info, entry_bytes;
    } facts[SECTION_COUNT] = {
        [SECTION_HASH] = {SHT_HASH, SHF_ALLOC, SECTION_DYNSYM, 0, sizeof(uint32_t)},
        [SECTION_DYNSYM] = {SHT_DYNSYM, SHF_ALLOC, SECTION_DYNSTR, 1, sizeof(Elf64_Sym)},
        [SECTION_DYNSTR] = {SHT_STRTAB, SHF_ALLOC, 0, 0, 0},
        [SECTION_TEXT] = {SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 0, 0, 0},
        [SECTION_BASE] = {SHT_PROGBITS, SHF_ALLOC, 0, 0, 0},
        [SECTION_DYNAMIC] = {SHT_DYNAMIC, SHF_ALLOC | SHF_WRITE, SECTION_DYNSTR, 0,
                             sizeof(Elf64_Dyn)},
        [SECTION_NOTE] = {SHT_NOTE, 0, 0, 0, 0},
        [SECTION_NAMES] = {SHT_STRTAB, 0, 0, 0, 0},
    };
    char *names = (char *)l->bytes + l->sections[SECTION_NAMES].sh_offset;
    size_t used = 0;

    for (int i = 0; i < SECTION_COUNT; i++) {
        Elf64_Shdr *section = &l->sections[i];

        section->sh_name = (Elf64_Word)used;
        section->sh_type = facts[i].type;
        section->sh_flags = facts[i].flags;
        section->sh_link = facts[i].link;
        section->sh_info = facts[i].info;
        section->sh_entsize = facts[i].entry_bytes;
        strcpy(names + used, section_names[i]);
        used += strlen(section_names[i]) + 1;
    }
    memcpy(l->bytes + l->section_table, l->sections, sizeof(l->sections));
}

uint8_t *stapsdt_image(const SDTProvider_t *provider, int machine, size_t *size)
{
    layout l = {.provider = provider, .machine = stapsdt_find_machine(machine)};

    if (!l.machine) {
        errno = ENOTSUP;
        return NULL;
    }
    measure(&l);
    l.bytes = calloc(1, l.size);
    if (!l.bytes)
        return NULL;
    write_header(&l);
    write_segments(&l);
    write_symbols(&l);
    write_code(&l);
    write_dynamic(&l);
    write_notes(&l);
    write_sections(&l);
    *size = l.size;
    return l.bytes;
}

int stapsdt_site_is_traced(const void *site)
{
    const stapsdt_machine *machine = stapsdt_find_machine(STAPSDT_HOST_MACHINE);

    return machine && memcmp(site, machine->site, machine->site_nop_bytes) != 0;
}
