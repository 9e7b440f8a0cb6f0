/* SPDX-License-Identifier: Apache-2.0 */
/* client_transfer.c: a body that does not fit a message, shared by the asker and the client.
 *
 * Invariants:
 *  1. The asker has one reference, the job that carries the transfer another; the last one frees.
 *  2. `client` is set while a job carries the transfer, so that a cancel can wake the client.
 *  3. The client writes the body and the file only under the lock and while the transfer is not
 *     cancelled: after a cancel has returned, the file is the asker's alone.
 *  4. The body is readable once it is whole, and nobody writes it from then on. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/client_private.h"

enum { BODY_UNIT = 64 * 1024 };

struct http_client_transfer {
    enum http_client_transfer_kind kind;
    int fd; /* a duplicate of the asker's; -1: none */
    uint64_t offset;
    uint64_t size; /* of the request's body */
    _Atomic uint64_t progress;
    _Atomic uint64_t total; /* UINT64_MAX: not known */
    /* The rest is under the lock. */
    pthread_mutex_t lock;
    unsigned refs;
    tr_weak client;
    char *body; /* pages; NULL: none yet */
    size_t body_size;
    size_t body_capacity;
    bool is_used;
    bool is_cancelled;
    bool is_whole;
};

/* ---- life ---------------------------------------------------------------------------------- */

/* O_APPEND would ignore the place that is written to. */
static bool transfer_may_use(int fd, enum http_client_transfer_kind kind)
{
    int flags = fcntl(fd, F_GETFL), refused = kind == HTTP_CLIENT_TO_FILE ? O_RDONLY : O_WRONLY;

    return flags >= 0 && !(flags & O_APPEND) && (flags & O_ACCMODE) != refused;
}

static int transfer_take_file(
    struct http_client_transfer *transfer, const struct http_client_transfer_options *options)
{
    if (options->kind == HTTP_CLIENT_TO_MEMORY)
        return 0;
    if (!transfer_may_use(options->fd, options->kind))
        return TR_EINVAL;
    transfer->fd = base_fault_hit() ? -1 : fcntl(options->fd, F_DUPFD_CLOEXEC, 0);
    return transfer->fd < 0 ? TR_ENOMEM : 0;
}

int http_client_transfer_create(
    const struct http_client_transfer_options *options, struct http_client_transfer **ret_transfer)
{
    struct http_client_transfer *transfer;
    int rc;

    if (options->offset > HTTP_CLIENT_FILE_MAX || options->size > HTTP_CLIENT_FILE_MAX)
        return TR_EINVAL;
    transfer = base_calloc(sizeof *transfer);
    if (transfer == NULL)
        return TR_ENOMEM;
    transfer->fd = -1;
    rc = transfer_take_file(transfer, options);
    if (rc < 0) {
        base_free(transfer);
        return rc;
    }
    transfer->kind = options->kind;
    transfer->offset = options->offset;
    transfer->size = options->size;
    transfer->refs = 1;
    atomic_store(
        &transfer->total, options->kind == HTTP_CLIENT_FROM_FILE ? options->size : UINT64_MAX);
    pthread_mutex_init(&transfer->lock, NULL);
    *ret_transfer = transfer;
    return 0;
}

static void transfer_release(struct http_client_transfer *transfer)
{
    bool is_last;

    pthread_mutex_lock(&transfer->lock);
    is_last = --transfer->refs == 0;
    pthread_mutex_unlock(&transfer->lock);
    if (!is_last)
        return;
    if (transfer->fd >= 0)
        (void)close(transfer->fd);
    base_pages_free(transfer->body, transfer->body_capacity);
    pthread_mutex_destroy(&transfer->lock);
    base_free(transfer);
}

int http_client_transfer_attach(struct http_client_transfer *transfer, tr_sender client)
{
    bool was_used;

    pthread_mutex_lock(&transfer->lock);
    was_used = transfer->is_used;
    if (!was_used) {
        transfer->is_used = true;
        transfer->client = tr_sender_weaken(client);
        transfer->refs++;
    }
    pthread_mutex_unlock(&transfer->lock);
    return was_used ? TR_EINVAL : 0;
}

void http_client_transfer_detach(struct http_client_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    transfer->client = (tr_weak){ 0 };
    pthread_mutex_unlock(&transfer->lock);
    transfer_release(transfer);
}

/* A message without a job makes the client look for cancelled transfers. */
static void transfer_wake(tr_weak client)
{
    struct client_message message = { NULL };
    tr_sender sender;

    if (client.box == NULL || tr_weak_upgrade(client, "http transfer", &sender) < 0)
        return;
    /* Without memory the client notices at the next byte, or at the deadline. */
    (void)tr_tell_with(
        sender, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
    tr_sender_drop(&sender);
}

void http_client_transfer_cancel(struct http_client_transfer *transfer)
{
    tr_weak client;
    bool is_first;

    pthread_mutex_lock(&transfer->lock);
    is_first = !transfer->is_cancelled;
    transfer->is_cancelled = true;
    client = transfer->client;
    pthread_mutex_unlock(&transfer->lock);
    if (is_first)
        transfer_wake(client);
}

void http_client_transfer_destroy(struct http_client_transfer **transfer)
{
    if (*transfer == NULL)
        return;
    http_client_transfer_cancel(*transfer);
    transfer_release(*transfer);
    *transfer = NULL;
}

/* ---- for the asker ------------------------------------------------------------------------- */

enum http_client_transfer_kind http_client_transfer_kind(
    const struct http_client_transfer *transfer)
{
    return transfer->kind;
}

uint64_t http_client_transfer_offset(const struct http_client_transfer *transfer)
{
    return transfer->offset;
}

uint64_t http_client_transfer_progress(
    const struct http_client_transfer *transfer, uint64_t *ret_total)
{
    if (ret_total != NULL)
        *ret_total = atomic_load_explicit(&transfer->total, memory_order_relaxed);
    return atomic_load_explicit(&transfer->progress, memory_order_relaxed);
}

struct span http_client_transfer_body(struct http_client_transfer *transfer)
{
    struct span body = { NULL, 0 };

    pthread_mutex_lock(&transfer->lock);
    if (transfer->is_whole)
        body = (struct span){ transfer->body == NULL ? "" : transfer->body, transfer->body_size };
    pthread_mutex_unlock(&transfer->lock);
    return body;
}

char *http_client_transfer_text(struct http_client_transfer *transfer)
{
    char *text;

    pthread_mutex_lock(&transfer->lock);
    text = transfer->is_whole ? transfer->body : NULL;
    pthread_mutex_unlock(&transfer->lock);
    return text;
}

void http_client_transfer_forget(struct http_client_transfer *transfer, struct span part)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t from = (size_t)(part.at - transfer->body), until = from + part.size;

    tr_assert(transfer->is_whole && part.at >= transfer->body && until <= transfer->body_size);
    from = (from + page - 1) / page * page;
    until = until / page * page;
    if (from < until) /* on failure they stay until the transfer ends */
        (void)madvise(transfer->body + from, until - from, MADV_DONTNEED);
}

bool http_client_transfer_is_cancelled(struct http_client_transfer *transfer)
{
    bool is_cancelled;

    pthread_mutex_lock(&transfer->lock);
    is_cancelled = transfer->is_cancelled;
    pthread_mutex_unlock(&transfer->lock);
    return is_cancelled;
}

/* ---- the answer's body --------------------------------------------------------------------- */

static int transfer_error(int error)
{
    return error == ENOSPC || error == EDQUOT ? TR_ENOSPC : TR_EIO;
}

/* The server sends the whole file though a part was asked for: start anew. */
static int transfer_start_anew(struct http_client_transfer *transfer)
{
    if (transfer->offset > 0 && ftruncate(transfer->fd, 0) < 0)
        return transfer_error(errno);
    return 0;
}

static int transfer_begin_file(
    struct http_client_transfer *transfer, uint32_t status, uint64_t start)
{
    int rc = 0;

    if (status == 206) {
        if (transfer->offset == 0 || start != transfer->offset)
            return TR_EIO; /* another part than the one asked for */
        atomic_store_explicit(&transfer->progress, start, memory_order_relaxed);
        return 0;
    }
    pthread_mutex_lock(&transfer->lock);
    rc = transfer->is_cancelled ? TR_ECANCELLED : transfer_start_anew(transfer);
    pthread_mutex_unlock(&transfer->lock);
    return rc;
}

int http_client_transfer_begin(
    struct http_client_transfer *transfer, uint32_t status, uint64_t start, uint64_t total)
{
    int rc = 0;

    if (transfer->kind == HTTP_CLIENT_FROM_FILE ||
        (transfer->kind == HTTP_CLIENT_TO_FILE && status != 200 && status != 206))
        return 0;
    if (transfer->kind == HTTP_CLIENT_TO_FILE)
        rc = transfer_begin_file(transfer, status, start);
    atomic_store_explicit(&transfer->total, total, memory_order_relaxed);
    return rc < 0 ? rc : 1;
}

static int transfer_write(int fd, const char *bytes, size_t size, uint64_t at)
{
    while (size > 0) {
        ssize_t written = pwrite(fd, bytes, size, (off_t)at);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? transfer_error(errno) : TR_EIO;
        bytes += written;
        size -= (size_t)written;
        at += (uint64_t)written;
    }
    return 0;
}

/* Returns how much room to make: for all of an announced size, else for twice as much as before.
 * Untouched pages cost nothing. */
static size_t transfer_room(const struct http_client_transfer *transfer, size_t wanted)
{
    uint64_t total = atomic_load_explicit(&transfer->total, memory_order_relaxed);
    size_t room = transfer->body_capacity == 0 ? BODY_UNIT : 2 * transfer->body_capacity;

    if (total <= HTTP_CLIENT_LARGE_MAX && total + HTTP_CLIENT_PADDING > room)
        room = total + HTTP_CLIENT_PADDING;
    if (room < wanted)
        room = wanted;
    return (room + BODY_UNIT - 1) / BODY_UNIT * BODY_UNIT;
}

/* Under the lock. Pages grow without a copy, and freeing them gives them back to the system: a heap
 * would need half as much again, and might keep it. */
static int transfer_keep(struct http_client_transfer *transfer, const char *bytes, size_t size)
{
    size_t wanted = transfer->body_size + size + HTTP_CLIENT_PADDING;

    if (wanted > transfer->body_capacity) {
        size_t room = transfer_room(transfer, wanted);
        char *pages = transfer->body == NULL
                          ? base_pages_alloc(room, BODY_UNIT)
                          : base_pages_grow(transfer->body, transfer->body_capacity, room);

        if (pages == NULL)
            return TR_ENOMEM;
        transfer->body = pages;
        transfer->body_capacity = room;
    }
    memcpy(transfer->body + transfer->body_size, bytes, size);
    transfer->body_size += size;
    return 0;
}

int http_client_transfer_put(struct http_client_transfer *transfer, const void *bytes, size_t size)
{
    uint64_t at = atomic_load_explicit(&transfer->progress, memory_order_relaxed);
    int rc;

    tr_assert(transfer->kind != HTTP_CLIENT_FROM_FILE);
    pthread_mutex_lock(&transfer->lock);
    if (transfer->is_cancelled)
        rc = TR_ECANCELLED;
    else if (transfer->kind == HTTP_CLIENT_TO_MEMORY)
        rc = transfer_keep(transfer, bytes, size);
    else
        rc = transfer_write(transfer->fd, bytes, size, at);
    pthread_mutex_unlock(&transfer->lock);
    if (rc == 0)
        atomic_store_explicit(&transfer->progress, at + size, memory_order_relaxed);
    return rc;
}

void http_client_transfer_end(struct http_client_transfer *transfer)
{
    pthread_mutex_lock(&transfer->lock);
    transfer->is_whole = true;
    pthread_mutex_unlock(&transfer->lock);
}

/* ---- the request's body -------------------------------------------------------------------- */

int http_client_transfer_get(
    struct http_client_transfer *transfer, void *bytes, size_t size, size_t *ret_size)
{
    uint64_t at = atomic_load_explicit(&transfer->progress, memory_order_relaxed);
    uint64_t left = transfer->size - at;
    ssize_t got;

    tr_assert(transfer->kind == HTTP_CLIENT_FROM_FILE);
    if (http_client_transfer_is_cancelled(transfer))
        return TR_ECANCELLED;
    *ret_size = 0;
    if (size > left)
        size = left;
    if (size == 0)
        return 0;
    do
        got = pread(transfer->fd, bytes, size, (off_t)(transfer->offset + at));
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return TR_EIO; /* also if the file is shorter than was said */
    *ret_size = (size_t)got;
    atomic_store_explicit(&transfer->progress, at + (uint64_t)got, memory_order_relaxed);
    return 0;
}

void http_client_transfer_rewind(struct http_client_transfer *transfer, uint64_t at)
{
    tr_assert(at <= transfer->size);
    atomic_store_explicit(&transfer->progress, at, memory_order_relaxed);
}

uint64_t http_client_transfer_size(const struct http_client_transfer *transfer)
{
    return transfer->size;
}
