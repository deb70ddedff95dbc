/* The provider file as bytes: a pure function of names, types and machine. */
#ifndef QUICLAB_STAPSDT_IMAGE_H
#define QUICLAB_STAPSDT_IMAGE_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

#include "libstapsdt.h"

#if defined(__x86_64__)
#define STAPSDT_HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define STAPSDT_HOST_MACHINE EM_AARCH64
#else
#define STAPSDT_HOST_MACHINE EM_NONE
#endif

/* NULL with errno ENOTSUP for a machine without sites, else ENOMEM. */
__attribute__((visibility("hidden"))) uint8_t *stapsdt_image(const SDTProvider_t *provider,
                                                             int machine, size_t *size);

/* Whether a tracer has replaced the first instruction of this machine's site. */
__attribute__((visibility("hidden"))) int stapsdt_site_is_traced(const void *site);

#endif
