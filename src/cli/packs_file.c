/* SPDX-License-Identifier: Apache-2.0 */
/* packs_file.c: messages, the line of progress, and files of `troupe packs`. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/env.h>

#include "base/alloc.h"
#include "cli/packs_command.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { READ_BYTES = 256 << 10, BAR = 24 };
#define SHOW_EVERY_NS UINT64_C(200000000)

int packs_fail(const char *format, ...)
{
    char text[2048];
    va_list arguments;

    fflush(stdout);
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    /* The text may quote a server: it must not control the terminal. */
    for (char *at = text; *at != '\0'; at++)
        if (((unsigned char)*at < ' ' && *at != '\n') || *at == 0x7f)
            *at = '?';
    fprintf(stderr, "troupe packs: %s\n", text);
    return CLI_FAILED;
}

int packs_wrong_pack(const struct packs_arguments *arguments, const char *what, const char *name)
{
    char text[512];

    snprintf(text, sizeof text,
        "%s 1 to 128 of a-z 0-9 . _ - and does not begin with a dot, unlike '%.130s'", what, name);
    return cli_wrong(arguments->command, text, NULL);
}

int packs_wrong_version(const struct packs_arguments *arguments)
{
    char text[512];

    snprintf(text, sizeof text,
        "--version has 1 to 64 of A-Z a-z 0-9 . + _ - and does not begin with a dot, unlike "
        "'%.70s'",
        arguments->version);
    return cli_wrong(arguments->command, text, NULL);
}

int packs_check_trust(const struct packs_arguments *arguments)
{
    struct manifest_keys keys = { 0 };

    if (arguments->trust == NULL || manifest_keys_add(&keys, span_of(arguments->trust)) == 0)
        return CLI_OK;
    return cli_wrong(
        arguments->command, "--trust takes an Ed25519 key like z6Mk..., not", arguments->trust);
}

void packs_print_retry(const struct packs_arguments *arguments, long status)
{
    if (arguments->quiet)
        return;
    if (status == 0)
        fprintf(stderr, "The server is unreachable; retrying for %d s.\n", PACKS_TRY_S);
    else
        fprintf(stderr, "The server is busy (%ld); retrying for %d s.\n", status, PACKS_TRY_S);
}

/* ---- progress ------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    const struct tr_env *env = tr_env_real();

    return env->now_ns(env->data);
}

/* The transfer that Ctrl-C reports; NULL: none. */
static struct packs_progress *_Atomic stoppable;

/* Append a number of bytes in MB with one decimal place. snprintf is not safe in a signal handler. */
static char *append_mb(char *at, uint64_t bytes)
{
    char digits[24];
    size_t count = 0;
    uint64_t tenths = (bytes + 50000) / 100000;

    do {
        digits[count++] = (char)('0' + tenths % 10);
        tenths /= 10;
    } while (tenths > 0 || count < 2);
    while (count > 1)
        *at++ = digits[--count];
    *at++ = '.';
    *at++ = digits[0];
    return at;
}

static void on_interrupt(int number)
{
    const struct packs_progress *progress = atomic_load(&stoppable);
    char text[160], *at = text;

    if (progress != NULL) {
        at = stpcpy(at, progress->is_shown ? "\r\033[KStopped at " : "Stopped at ");
        at = append_mb(at, atomic_load(&progress->at));
        at = stpcpy(at, " of ");
        at = append_mb(at, progress->total);
        at = stpcpy(at, " MB; run the same command again to go on.\n");
        (void)!write(STDERR_FILENO, text, (size_t)(at - text));
    }
    raise(number); /* SA_RESETHAND: this ends the process once the handler returns */
}

void packs_progress_stop_on_signal(struct packs_progress *progress)
{
    const struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };
    struct sigaction old;

    atomic_store(&stoppable, progress);
    if (sigaction(SIGINT, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        (void)sigaction(SIGINT, &action, NULL);
}

void packs_progress_start(
    struct packs_progress *progress, const char *what, uint64_t at, uint64_t total, bool quiet)
{
    atomic_store(&stoppable, NULL);
    *progress = (struct packs_progress){ .what = what,
        .total = total,
        .start_at = at,
        .at = at,
        .start_ns = now_ns(),
        .is_shown = !quiet && isatty(STDERR_FILENO) };
}

void packs_progress_wait(struct packs_progress *progress, const char *text)
{
    if (!progress->is_shown)
        return;
    fprintf(stderr, "\r%-10s %s\033[K", progress->what, text);
    fflush(stderr);
    progress->shown_ns = 1; /* so that the line is cleared, and the first count shown at once */
}

void packs_progress_show(struct packs_progress *progress, uint64_t at)
{
    uint64_t now = now_ns();
    double seconds = (double)(now - progress->start_ns) / 1e9;
    unsigned part, filled;

    atomic_store(&progress->at, at);
    if (!progress->is_shown || now - progress->shown_ns < SHOW_EVERY_NS)
        return;
    progress->shown_ns = now;
    part = progress->total == 0 ? 100 : (unsigned)(at * 100 / progress->total);
    filled = part * BAR / 100;
    fprintf(stderr, "\r%-10s [%.*s%*s] %3u%%  %.1f of %.1f MB  %.1f MB/s\033[K", progress->what,
        (int)filled, "########################", (int)(BAR - filled), "", part, (double)at / 1e6,
        (double)progress->total / 1e6,
        seconds > 0 && at > progress->start_at ? (double)(at - progress->start_at) / 1e6 / seconds
                                               : 0.0);
    fflush(stderr);
}

void packs_progress_end(struct packs_progress *progress)
{
    if (progress->is_shown && progress->shown_ns != 0)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

/* ---- files ---------------------------------------------------------------------------------- */

bool packs_hash(int fd, struct packs_progress *progress, char ret_hex[65], uint64_t *ret_size)
{
    struct crypto_sha256_stream hash = { 0 };
    uint8_t digest[CRYPTO_SHA256_BYTES];
    char *bytes = base_alloc(READ_BYTES);
    uint64_t size = 0;
    ssize_t got = -1;

    if (bytes == NULL || crypto_sha256_stream_init(&hash) != 0) {
        base_free(bytes);
        errno = ENOMEM;
        return false;
    }
    while ((got = pread(fd, bytes, READ_BYTES, (off_t)size)) > 0 || (got < 0 && errno == EINTR)) {
        if (got < 0)
            continue;
        crypto_sha256_stream_update(&hash, bytes, (size_t)got);
        size += (uint64_t)got;
        if (progress != NULL)
            packs_progress_show(progress, size);
    }
    crypto_sha256_stream_digest(&hash, digest);
    crypto_sha256_stream_fini(&hash);
    ret_hex[crypto_hex_encode(digest, sizeof digest, ret_hex)] = '\0';
    *ret_size = size;
    base_free(bytes);
    return got == 0;
}

bool packs_read(int folder, const char *path, size_t size_max, struct buffer *ret_text)
{
    int fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat status;
    ssize_t got = 1;

    if (fd < 0)
        return false;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(fd);
        errno = EINVAL;
        return false;
    }
    *ret_text = (struct buffer){ .size_max = size_max + 8192 }; /* read in steps of 4096 */
    while (got > 0) {
        char *to = buffer_reserve(ret_text, 4096);

        got = to == NULL ? -1 : read(fd, to, 4096);
        if (got > 0)
            buffer_grew(ret_text, (size_t)got);
    }
    close(fd);
    ret_text->size_max = 0;
    if (got == 0 && ret_text->size <= size_max && buffer_append(ret_text, "", 1) == 0) {
        ret_text->size--;
        return true;
    }
    buffer_free(ret_text);
    errno = EFBIG;
    return false;
}

static bool write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, bytes, size);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return false;
        bytes += done;
        size -= (size_t)done;
    }
    return fsync(fd) == 0;
}

bool packs_write(const char *path, unsigned mode, const void *bytes, size_t size)
{
    char *temporary;
    int fd, error;
    bool is_done;

    if (asprintf(&temporary, "%s.%ld", path, (long)getpid()) < 0)
        return false;
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    is_done = fd >= 0 && write_all(fd, bytes, size);
    error = errno;
    if (fd >= 0 && close(fd) != 0 && is_done) {
        is_done = false;
        error = errno;
    }
    if (is_done && rename(temporary, path) != 0) {
        is_done = false;
        error = errno;
    }
    if (!is_done && fd >= 0)
        unlink(temporary);
    free(temporary);
    errno = error;
    return is_done;
}
