/*
 * libstapsdt: USDT probes that a running program defines for itself.
 *
 * The C interface is the one that PyPI's `stapsdt` package opens. How it works:
 * the probes of a provider become a small ELF shared object, the provider file,
 * with one site per probe (a nop and a return) and the .note.stapsdt records
 * that tracers read. The file is mapped by dlopen(); firing a probe is calling
 * its site, whose first instruction a tracer has replaced while it listens.
 *
 * What differs from the library of that name elsewhere:
 *
 * - x86-64 and arm64; other machines build and are told so at load time.
 * - All processes that load the same provider map one file. Its content depends
 *   on names and argument types alone, its name holds a hash of the content, and
 *   it stays after the process ends. So `usdt:FILE:PROBE` covers every process.
 * - The provider file can be run: it execs its arguments, which is what
 *   `bpftrace -c 'FILE program ...'` needs to find the probes beforehand.
 * - A site on x86-64 is one 5-byte nop, which Linux 6.18 turns into a call; a
 *   hit then costs a quarter to a third less than with a 1-byte nop. That call
 *   would be fatal in a forked child (see fork.c), which is taken care of.
 * - Handles stay valid memory for the life of the process: a provider destroyed
 *   twice, or a probe fired after that, does nothing.
 *
 * Defining, loading and unloading is for one thread at a time, and no thread may
 * fire while its provider is unloaded. Firing itself is free of locks.
 */
#ifndef QUICLAB_LIBSTAPSDT_H
#define QUICLAB_LIBSTAPSDT_H

#include <sys/types.h>

#define MAX_ARGUMENTS 6 /* those that travel in registers on both machines */

typedef enum {
    noError = -1,
    elfCreationError = 0,
    tmpCreationError = 1,
    sharedLibraryOpenError = 2,
    symbolLoadingError = 3,
    sharedLibraryCloseError = 4,
} SDTError_t;

/* Bytes of an argument; below zero when it is signed. */
typedef enum {
    noarg = 0,
    uint8 = 1,
    int8 = -1,
    uint16 = 2,
    int16 = -2,
    uint32 = 4,
    int32 = -4,
    uint64 = 8,
    int64 = -8,
} ArgType_t;

typedef enum {
    memfd_disabled = 0,
    memfd_enabled = 1,
} MemFDOption_t;

struct SDTProvider;

typedef struct SDTProbe {
    char *name;
    ArgType_t argFmt[MAX_ARGUMENTS];
    void *_fire; /* the site, or NULL while the provider is not loaded */
    struct SDTProvider *provider;
    int argCount;
} SDTProbe_t;

typedef struct SDTProbeList {
    SDTProbe_t probe;
    struct SDTProbeList *next;
} SDTProbeList_t;

typedef struct SDTProvider {
    char *name;
    SDTProbeList_t *probes; /* in the order they were added */
    SDTError_t error_code;
    char *error; /* one sentence, or NULL */

    void *_handle;
    char *_filename;
    char *_directory;
    int _fd;           /* of what is mapped */
    void *_code;       /* where its code is mapped */
    size_t _code_bytes;
    dev_t _device;
    ino_t _inode;
    MemFDOption_t _use_memfd;
    int _is_destroyed;
    struct SDTProvider *_next_loaded;
} SDTProvider_t;

/* NULL when the name is not made of ASCII letters, digits, '_', '-' and '.'. */
SDTProvider_t *providerInit(const char *name);

/*
 * argCount values of ArgType_t follow. NULL, and an error in the provider, when
 * the name or an argument cannot work or the provider is loaded already.
 */
SDTProbe_t *providerAddProbe(SDTProvider_t *provider, const char *name, int argCount, ...);

/* Keep the provider in anonymous memory; no other process shares it then. */
int providerUseMemfd(SDTProvider_t *provider, MemFDOption_t option);

/* 0 when good, -1 with an error in the provider when not. */
int providerLoad(SDTProvider_t *provider);
int providerUnload(SDTProvider_t *provider);
void providerDestroy(SDTProvider_t *provider);

void probeFire(SDTProbe_t *probe, ...);
int probeIsEnabled(SDTProbe_t *probe);

/* Beyond the common interface. */

/*
 * Folder of the provider file, made when absent. Without this call it is
 * $STAPSDT_DIRECTORY, $XDG_CACHE_HOME/libstapsdt or $HOME/.cache/libstapsdt.
 */
int providerSetDirectory(SDTProvider_t *provider, const char *directory);

/* Path of the mapped provider file, or NULL while nothing is loaded. */
const char *providerFile(const SDTProvider_t *provider);

/* What went wrong last, one sentence, or "". */
const char *providerError(const SDTProvider_t *provider);

/* Where the probe's site lies, or NULL while its provider is not loaded. */
void *probeSite(const SDTProbe_t *probe);

/*
 * What the provider file holds on a machine (EM_X86_64, EM_AARCH64): its bytes,
 * to be given to free(), or NULL. Works on any machine.
 */
unsigned char *providerImage(const SDTProvider_t *provider, int machine, unsigned long *size);

const char *stapsdtVersion(void);

#endif
