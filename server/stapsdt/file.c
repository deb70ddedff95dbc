/*
 * Processes that load the same provider must map the same inode, or a tracer
 * that attaches by path misses some of them. So the file is linked into place
 * only where nothing stands yet, and whoever loses that race takes the winner's
 * file. Its name holds a hash of its content. As it is code that gets mapped,
 * nobody else may be able to write it: owner, mode and content are checked.
 */
#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHERS_CAN_WRITE (S_IWGRP | S_IWOTH)

char *stapsdt_sentence(const char *format, ...)
{
    char *text = NULL;
    va_list values;

    va_start(values, format);
    if (vasprintf(&text, format, values) < 0)
        text = NULL;
    va_end(values);
    return text;
}

/* FNV-1a, 64 bits. It names the file; what decides is the comparison of content. */
static uint64_t hash_of(const uint8_t *bytes, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static char *default_directory(void)
{
    const char *directory = secure_getenv("STAPSDT_DIRECTORY");
    const char *cache = secure_getenv("XDG_CACHE_HOME");
    const char *home = secure_getenv("HOME");

    if (directory && *directory)
        return strdup(directory);
    if (cache && *cache == '/') /* the XDG specification has relative ones ignored */
        return stapsdt_sentence("%s/libstapsdt", cache);
    if (home && *home == '/')
        return stapsdt_sentence("%s/.cache/libstapsdt", home);
    return NULL;
}

/* mkdir -p, for the owner alone. */
static int make_directory(const char *directory)
{
    char *path = strdup(directory);
    int result = -1;

    if (!path)
        return -1;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0700) && errno != EEXIST)
            goto out;
        *slash = '/';
    }
    result = mkdir(path, 0700) && errno != EEXIST ? -1 : 0;
out:
    free(path);
    return result;
}

/* A descriptor of a directory that only this user can write to; *path is its canonical name. */
static int open_directory(const char *asked, char **path, char **reason)
{
    struct stat facts;
    int fd;

    if (make_directory(asked) || !(*path = realpath(asked, NULL))) {
        *reason = stapsdt_sentence("%s cannot be made or reached: %s", asked, strerror(errno));
        return -1;
    }
    fd = open(*path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts)) {
        *reason = stapsdt_sentence("%s cannot be opened: %s", *path, strerror(errno));
    } else if (facts.st_uid != geteuid()) {
        *reason = stapsdt_sentence("%s belongs to user %u and this process runs as %u; "
                                   "give a directory of its own",
                                   *path, facts.st_uid, geteuid());
    } else if (facts.st_mode & OTHERS_CAN_WRITE) {
        *reason = stapsdt_sentence("%s has mode %04o, so others can put code there; "
                                   "chmod go-w it or give another directory",
                                   *path, facts.st_mode & 07777);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static int holds(int fd, const uint8_t *bytes, size_t size)
{
    uint8_t part[4096];
    size_t seen = 0;

    for (;;) {
        ssize_t got = read(fd, part, sizeof(part));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got == 0 && seen == size;
        if ((size_t)got > size - seen || memcmp(part, bytes + seen, (size_t)got))
            return 0;
        seen += (size_t)got;
    }
}

/* 1 when the file is there and as it must be, and open; 0 when there is none, -1 with a reason. */
static int check_file(int directory_fd, const char *directory, const char *name,
                      const uint8_t *bytes, size_t size, int *checked, char **reason)
{
    struct stat facts;
    /* O_NONBLOCK: a FIFO put there must not make this wait. */
    int fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 || fstat(fd, &facts))
        *reason = stapsdt_sentence("%s/%s cannot be opened: %s; remove it", directory, name,
                                   errno == ELOOP ? "it is a symbolic link" : strerror(errno));
    else if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid())
        *reason = stapsdt_sentence("%s/%s is not a file of user %u; remove it", directory, name,
                                   geteuid());
    else if (facts.st_mode & OTHERS_CAN_WRITE)
        *reason = stapsdt_sentence("%s/%s has mode %04o, so others can change it; remove it",
                                   directory, name, facts.st_mode & 07777);
    else if (!holds(fd, bytes, size))
        *reason = stapsdt_sentence("%s/%s does not hold what this library puts there; remove it",
                                   directory, name);
    else
        *checked = fd;
    if (fd >= 0 && fd != *checked)
        close(fd);
    return *checked >= 0 ? 1 : -1;
}

static int write_all(int fd, const uint8_t *bytes, size_t size)
{
    while (size) {
        ssize_t done = write(fd, bytes, size);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        bytes += done;
        size -= (size_t)done;
    }
    return 0;
}

/* Written aside, complete and synced, then linked: 0 when the name exists afterwards. */
static int make_file(int directory_fd, const char *name, const uint8_t *bytes, size_t size)
{
    char aside[64];
    int result = -1;
    int saved;
    int fd;

    snprintf(aside, sizeof(aside), ".provider-%d.tmp", getpid());
    unlinkat(directory_fd, aside, 0); /* of a dead process that had this number */
    fd = openat(directory_fd, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0700);
    if (fd < 0)
        return -1;
    /* Readable for tracers of other users; closed before anyone can want to run it. */
    if (!write_all(fd, bytes, size) && !fchmod(fd, 0755) && !fsync(fd))
        result = 0;
    saved = errno;
    close(fd);
    errno = saved;
    if (!result && linkat(directory_fd, aside, directory_fd, name, 0) && errno != EEXIST)
        result = -1;
    saved = errno;
    unlinkat(directory_fd, aside, 0);
    errno = saved;
    return result;
}

char *stapsdt_keep_file(const char *asked_directory, const char *provider_name,
                        const uint8_t *bytes, size_t size, int *fd, char **reason)
{
    char *asked = asked_directory ? strdup(asked_directory) : default_directory();
    char *name = stapsdt_sentence("%s-%016llx.so", provider_name,
                                  (unsigned long long)hash_of(bytes, size));
    char *directory = NULL;
    char *path = NULL;
    int directory_fd = -1;
    int state = -1;

    *fd = -1;
    *reason = NULL;
    if (!asked || !name)
        *reason = stapsdt_sentence("no directory for the provider file: neither HOME nor "
                                   "XDG_CACHE_HOME is set; set STAPSDT_DIRECTORY");
    else if ((directory_fd = open_directory(asked, &directory, reason)) >= 0)
        state = check_file(directory_fd, directory, name, bytes, size, fd, reason);
    if (state == 0) {
        if (make_file(directory_fd, name, bytes, size))
            *reason = stapsdt_sentence("%s/%s cannot be written: %s", directory, name,
                                       strerror(errno));
        else
            state = check_file(directory_fd, directory, name, bytes, size, fd, reason);
    }
    if (state == 1)
        path = stapsdt_sentence("%s/%s", directory, name);
    if (directory_fd >= 0)
        close(directory_fd);
    free(directory);
    free(name);
    free(asked);
    return path;
}

int stapsdt_keep_in_memory(const char *provider_name, const uint8_t *bytes, size_t size)
{
    int fd = memfd_create(provider_name, MFD_CLOEXEC);

    if (fd >= 0 && write_all(fd, bytes, size)) {
        int saved = errno;

        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}
