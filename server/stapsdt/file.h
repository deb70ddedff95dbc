/* One provider file for all processes: found or made, never replaced. */
#ifndef QUICLAB_STAPSDT_FILE_H
#define QUICLAB_STAPSDT_FILE_H

#include <stddef.h>
#include <stdint.h>

/*
 * The path of a file in the directory that holds exactly these bytes, made when
 * absent, and in *fd an open descriptor of it. NULL when it cannot be trusted or
 * made; then *reason is one sentence. A NULL directory means the default one.
 * Path and reason are to be given to free().
 */
__attribute__((visibility("hidden"))) char *stapsdt_keep_file(const char *directory,
                                                              const char *provider_name,
                                                              const uint8_t *bytes, size_t size,
                                                              int *fd, char **reason);

/* The same bytes in anonymous memory; its descriptor, or -1 with errno. */
__attribute__((visibility("hidden"))) int stapsdt_keep_in_memory(const char *provider_name,
                                                                 const uint8_t *bytes, size_t size);

/* printf into memory of its own; NULL without memory. */
__attribute__((visibility("hidden"), format(printf, 1, 2))) char *
stapsdt_sentence(const char *format, ...);

#endif
