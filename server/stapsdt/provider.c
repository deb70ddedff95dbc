/* The interface: providers and probes as handles, and their life. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "fork.h"
#include "image.h"
#include "libstapsdt.h"

#define NAME_BYTES_MAX 200 /* leaves room for the hash in a file name of 255 */

typedef void site_function(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

/* Takes over the sentence. -1, so that a failing function can return it. */
static int fail(SDTProvider_t *provider, SDTError_t code, char *sentence)
{
    free(provider->error);
    provider->error_code = code;
    provider->error = sentence;
    return -1;
}

static void forget_error(SDTProvider_t *provider)
{
    free(provider->error);
    provider->error = NULL;
    provider->error_code = noError;
}

static int is_usable(const SDTProvider_t *provider)
{
    return provider && !provider->_is_destroyed;
}

/* Names go into a file name, and through tracers' attach points: `usdt:FILE:NAME`. */
static int is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.";

    return name && *name && *name != '.' && strlen(name) <= NAME_BYTES_MAX &&
           strspn(name, allowed) == strlen(name);
}

static int is_type(int type)
{
    int bytes = abs(type);

    return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

SDTProvider_t *providerInit(const char *name)
{
    SDTProvider_t *provider;

    if (!is_name(name))
        return NULL;
    provider = calloc(1, sizeof(*provider));
    if (!provider)
        return NULL;
    provider->name = strdup(name);
    if (!provider->name) {
        free(provider);
        return NULL;
    }
    provider->error_code = noError;
    provider->_fd = -1;
    return provider;
}

/* 0 when a probe of that name and arguments can be added. */
static int check_probe(SDTProvider_t *provider, const char *name, int argument_count)
{
    if (provider->_handle)
        return fail(provider, elfCreationError,
                    stapsdt_sentence("provider %s is loaded; add probes before that",
                                     provider->name));
    if (!is_name(name))
        return fail(provider, elfCreationError,
                    stapsdt_sentence("a probe of provider %s has a name that is not made of 1 to "
                                     "%d ASCII letters, digits, '_', '-' and '.'",
                                     provider->name, NAME_BYTES_MAX));
    if (argument_count < 0 || argument_count > MAX_ARGUMENTS)
        return fail(provider, elfCreationError,
                    stapsdt_sentence("probe %s has %d arguments; 0 to %d are possible", name,
                                     argument_count, MAX_ARGUMENTS));
    for (const SDTProbeList_t *p = provider->probes; p; p = p->next)
        if (!strcmp(p->probe.name, name))
            return fail(provider, elfCreationError,
                        stapsdt_sentence("probe %s is defined twice", name));
    return 0;
}

/* 0 when all types are possible ones. */
static int read_types(SDTProvider_t *provider, SDTProbe_t *probe, va_list types)
{
    for (int i = 0; i < probe->argCount; i++) {
        int type = va_arg(types, int);

        if (!is_type(type))
            return fail(provider, elfCreationError,
                        stapsdt_sentence("argument %d of probe %s has type %d; 1, 2, 4 and 8 "
                                         "bytes are possible, negative when signed",
                                         i, probe->name, type));
        probe->argFmt[i] = type;
    }
    return 0;
}

SDTProbe_t *providerAddProbe(SDTProvider_t *provider, const char *name, int argument_count, ...)
{
    SDTProbeList_t *entry;
    SDTProbeList_t **end;
    va_list types;
    int result;

    if (!is_usable(provider) || check_probe(provider, name, argument_count))
        return NULL;
    entry = calloc(1, sizeof(*entry));
    if (!entry || !(entry->probe.name = strdup(name))) {
        free(entry);
        fail(provider, elfCreationError, stapsdt_sentence("no memory for probe %s", name));
        return NULL;
    }
    entry->probe.provider = provider;
    entry->probe.argCount = argument_count;
    va_start(types, argument_count);
    result = read_types(provider, &entry->probe, types);
    va_end(types);
    if (result) {
        free(entry->probe.name);
        free(entry);
        return NULL;
    }
    for (end = &provider->probes; *end; end = &(*end)->next)
        ;
    *end = entry;
    return &entry->probe;
}

int providerUseMemfd(SDTProvider_t *provider, MemFDOption_t option)
{
    if (!is_usable(provider) || provider->_handle)
        return 0;
    provider->_use_memfd = option;
    return 1;
}

int providerSetDirectory(SDTProvider_t *provider, const char *directory)
{
    char *copy = directory && *directory ? strdup(directory) : NULL;

    if (!is_usable(provider) || provider->_handle || !copy) {
        free(copy);
        return -1;
    }
    free(provider->_directory);
    provider->_directory = copy;
    return 0;
}

/* Puts the bytes where dlopen() can map them: provider->_filename names the place. */
static int keep(SDTProvider_t *provider, const uint8_t *bytes, size_t size)
{
    char *reason = NULL;

    if (provider->_use_memfd == memfd_enabled) {
        /* Stays open while loaded: glibc tells libraries apart by this name first. */
        provider->_fd = stapsdt_keep_in_memory(provider->name, bytes, size);
        if (provider->_fd < 0)
            return fail(provider, tmpCreationError,
                        stapsdt_sentence("no anonymous memory for provider %s: %s", provider->name,
                                         strerror(errno)));
        provider->_filename = stapsdt_sentence("/proc/self/fd/%d", provider->_fd);
    } else {
        provider->_filename = stapsdt_keep_file(provider->_directory, provider->name, bytes, size,
                                                &provider->_fd, &reason);
    }
    if (!provider->_filename)
        return fail(provider, tmpCreationError, reason);
    return 0;
}

static int map(SDTProvider_t *provider)
{
    const char *hint;

    provider->_handle = dlopen(provider->_filename, RTLD_NOW | RTLD_LOCAL);
    if (!provider->_handle) {
        hint = dlerror();
        return fail(provider, sharedLibraryOpenError,
                    stapsdt_sentence("%s (is that file system mounted noexec?)",
                                     hint ? hint : provider->_filename));
    }
    for (SDTProbeList_t *p = provider->probes; p; p = p->next) {
        p->probe._fire = dlsym(provider->_handle, p->probe.name);
        if (!p->probe._fire)
            return fail(provider, symbolLoadingError,
                        stapsdt_sentence("%s has no site for probe %s", provider->_filename,
                                         p->probe.name));
    }
    return stapsdt_renew_on_fork(provider)
               ? fail(provider, sharedLibraryOpenError,
                      stapsdt_sentence("%s was mapped, and not found in memory",
                                       provider->_filename))
               : 0;
}

/* Back to "not loaded"; 0 when the mapping is gone. */
static int release(SDTProvider_t *provider)
{
    int result = 0;

    for (SDTProbeList_t *p = provider->probes; p; p = p->next)
        p->probe._fire = NULL;
    stapsdt_forget_on_fork(provider);
    if (provider->_handle && dlclose(provider->_handle))
        result = -1;
    provider->_handle = NULL;
    if (provider->_fd >= 0)
        close(provider->_fd);
    provider->_fd = -1;
    free(provider->_filename);
    provider->_filename = NULL;
    return result;
}

int providerLoad(SDTProvider_t *provider)
{
    uint8_t *bytes;
    size_t size = 0;
    int result;

    if (!is_usable(provider))
        return -1;
    if (provider->_handle)
        return 0;
    forget_error(provider);
    bytes = stapsdt_image(provider, STAPSDT_HOST_MACHINE, &size);
    if (!bytes)
        return fail(provider, elfCreationError,
                    stapsdt_sentence(errno == ENOTSUP
                                         ? "this machine has no probe sites; x86-64 and arm64 have"
                                         : "no memory for the provider file"));
    result = keep(provider, bytes, size);
    free(bytes);
    if (!result)
        result = map(provider);
    if (result)
        release(provider);
    return result;
}

int providerUnload(SDTProvider_t *provider)
{
    if (!is_usable(provider))
        return -1;
    if (release(provider))
        return fail(provider, sharedLibraryCloseError,
                    stapsdt_sentence("provider %s cannot be unmapped", provider->name));
    return 0;
}

void providerDestroy(SDTProvider_t *provider)
{
    if (!is_usable(provider))
        return;
    release(provider);
    forget_error(provider);
    free(provider->_directory);
    provider->_directory = NULL;
    /* The handles themselves stay: somebody may still hold, fire or destroy them. */
    provider->_is_destroyed = 1;
}

/* As many low bytes as the type has, extended by its sign or by zeros. */
static int64_t narrow(int64_t value, int type)
{
    switch (type) {
    case uint8:
        return (uint8_t)value;
    case int8:
        return (int8_t)value;
    case uint16:
        return (uint16_t)value;
    case int16:
        return (int16_t)value;
    case uint32:
        return (uint32_t)value;
    case int32:
        return (int32_t)value;
    default:
        return value;
    }
}

void probeFire(SDTProbe_t *probe, ...)
{
    int64_t values[MAX_ARGUMENTS] = {0};
    va_list arguments;

    if (!probe || !probe->_fire)
        return;
    va_start(arguments, probe);
    for (int i = 0; i < probe->argCount; i++)
        values[i] = narrow(va_arg(arguments, int64_t), probe->argFmt[i]);
    va_end(arguments);
    ((site_function *)probe->_fire)(values[0], values[1], values[2], values[3], values[4],
                                    values[5]);
}

int probeIsEnabled(SDTProbe_t *probe)
{
    return probe && probe->_fire && stapsdt_site_is_traced(probe->_fire);
}

const char *providerFile(const SDTProvider_t *provider)
{
    return is_usable(provider) ? provider->_filename : NULL;
}

const char *providerError(const SDTProvider_t *provider)
{
    return provider && provider->error ? provider->error : "";
}

void *probeSite(const SDTProbe_t *probe)
{
    return probe ? probe->_fire : NULL;
}

unsigned char *providerImage(const SDTProvider_t *provider, int machine, unsigned long *size)
{
    size_t bytes = 0;
    uint8_t *image = is_usable(provider) ? stapsdt_image(provider, machine, &bytes) : NULL;

    *size = bytes;
    return image;
}

const char *stapsdtVersion(void)
{
    return "1.0 (quiclab)";
}
