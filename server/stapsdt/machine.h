/* What differs between machines: the code in a provider file. */
#ifndef QUICLAB_STAPSDT_MACHINE_H
#define QUICLAB_STAPSDT_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "libstapsdt.h"

#define SITE_STRIDE_BYTES 16 /* so that no site crosses a page, which 6.18 cannot optimise */

typedef struct {
    int machine;
    size_t page_bytes; /* the largest page the machine may run with */
    const void *entry; /* what runs when the file is executed; WORDS follow it */
    size_t entry_bytes;
    const uint8_t *site;
    size_t site_bytes;
    size_t site_nop_bytes;
    const char *const *registers[4]; /* of 1, 2, 4 and 8 bytes, in the order of arguments */
} stapsdt_machine;

/* NULL when the machine has no sites. */
__attribute__((visibility("hidden"))) const stapsdt_machine *stapsdt_find_machine(int machine);

__attribute__((visibility("hidden"))) extern const char stapsdt_entry_words[];
__attribute__((visibility("hidden"))) extern const size_t stapsdt_entry_words_bytes;

#endif
