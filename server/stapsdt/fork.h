/* Makes forked children able to fire while somebody traces. */
#ifndef QUICLAB_STAPSDT_FORK_H
#define QUICLAB_STAPSDT_FORK_H

#include "libstapsdt.h"

__attribute__((visibility("hidden"))) int stapsdt_renew_on_fork(SDTProvider_t *provider);
__attribute__((visibility("hidden"))) void stapsdt_forget_on_fork(SDTProvider_t *provider);

#endif
