/*
 * Linux 6.18 (seen with 6.18.44) replaces a traced 5-byte nop that was hit once
 * by a call into a page that the kernel maps for the process, [uprobes-trampoline].
 * A forked child inherits the call and not the page, so its first hit is a
 * segmentation fault. Mapping the provider file's code anew in the child gives
 * it clean sites, and makes the kernel put the breakpoints of all tracers that
 * attached by path into them, so that the child is traced as before.
 *
 * The handler runs in the child of fork() before anything else does, with system
 * calls alone, and makes none where nobody traces.
 */
#define _GNU_SOURCE
#include "fork.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"

static SDTProvider_t *first_loaded;
static pthread_once_t is_registered = PTHREAD_ONCE_INIT;

static int is_traced(const SDTProvider_t *provider)
{
    for (const SDTProbeList_t *p = provider->probes; p; p = p->next)
        if (p->probe._fire && stapsdt_site_is_traced(p->probe._fire))
            return 1;
    return 0;
}

static int is_mapped_file(const SDTProvider_t *provider, int fd)
{
    struct stat facts;

    return fd >= 0 && !fstat(fd, &facts) && facts.st_dev == provider->_device &&
           facts.st_ino == provider->_inode;
}

static void renew_code(const SDTProvider_t *provider)
{
    int fd = provider->_fd;

    /* The program may have closed the descriptor, and its number may be another file's now. */
    if (!is_mapped_file(provider, fd))
        fd = open(provider->_filename, O_RDONLY | O_CLOEXEC);
    if (is_mapped_file(provider, fd))
        mmap(provider->_code, provider->_code_bytes, PROT_READ | PROT_EXEC,
             MAP_PRIVATE | MAP_FIXED, fd, 0);
    if (fd >= 0 && fd != provider->_fd)
        close(fd);
}

static void renew_all(void)
{
    for (SDTProvider_t *provider = first_loaded; provider; provider = provider->_next_loaded)
        if (is_traced(provider))
            renew_code(provider);
}

static void register_handler(void)
{
    pthread_atfork(NULL, NULL, renew_all);
}

int stapsdt_renew_on_fork(SDTProvider_t *provider)
{
    struct link_map *map;
    struct stat facts;
    const Elf64_Ehdr *header;

    if (dlinfo(provider->_handle, RTLD_DI_LINKMAP, &map) || fstat(provider->_fd, &facts))
        return -1;
    /* The code segment is the file's first, from its first byte on (see image.c). */
    header = (const Elf64_Ehdr *)map->l_addr;
    provider->_code = (void *)map->l_addr;
    provider->_code_bytes = ((const Elf64_Phdr *)(map->l_addr + header->e_phoff))->p_filesz;
    provider->_device = facts.st_dev;
    provider->_inode = facts.st_ino;
    pthread_once(&is_registered, register_handler);
    provider->_next_loaded = first_loaded;
    first_loaded = provider;
    return 0;
}

void stapsdt_forget_on_fork(SDTProvider_t *provider)
{
    for (SDTProvider_t **link = &first_loaded; *link; link = &(*link)->_next_loaded)
        if (*link == provider) {
            *link = provider->_next_loaded;
            return;
        }
}
