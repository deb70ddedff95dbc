/*
 * Firing a probe: its site is called, by the recorder where that is armed.
 */
#ifndef QUICLAB_FIRE_H
#define QUICLAB_FIRE_H

#include "probes.h"

/* Bit n is set while probe n is recorded in this process, too (recorder.c). */
extern uint64_t quiclab_recorded;

void quiclab_record(enum probe probe, int64_t a, int64_t b, int64_t c, int64_t d);

static inline void fire(enum probe probe, int64_t a, int64_t b, int64_t c, int64_t d)
{
    uintptr_t site = quiclab_sites[probe];

    if (__builtin_expect(quiclab_recorded >> probe & 1, 0))
        quiclab_record(probe, a, b, c, d);
    else if (site)
        call_site(site, a, b, c, d);
}

#endif
