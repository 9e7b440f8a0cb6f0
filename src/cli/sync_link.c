/* SPDX-License-Identifier: Apache-2.0 */
/* sync_link.c: one actor has the listener and all connections. Descriptors are watched for edges, so
 * every event reads and writes until the kernel says no more. */
#include "cli/sync_link.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "net/socket.h"

enum { TAG_LISTEN = 1, TAG_PEER = 16, TAG_JOB = 1024, LINK_READ_BYTES = 64 << 10 };

/* A request under way. */
enum link_kind { LINK_FREE, LINK_JOB, LINK_TIMELINE, LINK_UNREAD };
struct link_request {
    enum link_kind kind;
    struct mxengine_job *job; /* LINK_JOB */
    int64_t id;
};

struct link_peer {
    int fd; /* -1: closed; the place is free once its requests have ended */
    struct tr_cancel *cancel;
    struct buffer in;  /* a part of a line */
    struct buffer out; /* not sent yet */
    struct link_request requests[SYNC_REQUESTS_MAX];
};

struct link {
    struct sync_link_options options;
    struct sql_client sql;
    struct link_peer peers[SYNC_PEERS_MAX];
};

struct link_message {
    int nothing;
};

/* ---- connections ------------------------------------------------------------------------------ */

static bool link_peer_is_free(const struct link_peer *peer)
{
    if (peer->fd >= 0)
        return false;
    for (int i = 0; i < SYNC_REQUESTS_MAX; i++)
        if (peer->requests[i].kind != LINK_FREE)
            return false;
    return true;
}

/* Close a connection. Its requests end with TR_ECANCELLED. */
static void link_close(struct link_peer *peer, struct tr_context *ctx)
{
    if (peer->fd < 0)
        return;
    (void)tr_fd_forget(ctx, peer->fd);
    close(peer->fd);
    peer->fd = -1;
    tr_cancel_fire(peer->cancel);
    mx_wipe_buffer(&peer->in);
    mx_wipe_buffer(&peer->out);
}

/* Close a connection over the limit, and say so: its command would take a silent end for a crash. */
static void link_refuse(int fd)
{
    struct buffer line = { 0 };

    if (sync_wire_write(NULL, 0, TR_EFULL, NULL, &line) == 0)
        (void)send(fd, line.bytes, line.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    buffer_free(&line);
    close(fd);
}

/* Take a connected descriptor; a connection over the limit is closed. */
static int link_add(struct link *link, struct tr_context *ctx, int fd)
{
    for (uint32_t i = 0; i < SYNC_PEERS_MAX; i++) {
        struct link_peer *peer = &link->peers[i];
        int rc;

        if (!link_peer_is_free(peer))
            continue;
        tr_cancel_destroy(&peer->cancel);
        rc = tr_cancel_create(NULL, &peer->cancel);
        if (rc == 0)
            rc = tr_fd_watch(ctx, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, TAG_PEER + i);
        if (rc != 0)
            break;
        peer->fd = fd;
        peer->in.size_max = peer->out.size_max = SYNC_LINE_MAX;
        return 0;
    }
    link_refuse(fd);
    return TR_ELIMIT;
}

bool sync_link_is_of(int fd, uid_t uid)
{
    struct ucred peer;
    socklen_t size = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == uid;
}

static void link_accept(struct link *link, struct tr_context *ctx)
{
    enum net_accept accepted = NET_ACCEPTED;
    struct net_peer address;
    int fd;

    while (accepted == NET_ACCEPTED || accepted == NET_ACCEPT_AGAIN) {
        accepted = net_accept(link->options.listen_fd, &fd, &address);
        if (accepted == NET_ACCEPTED && !sync_link_is_of(fd, link->options.uid))
            close(fd);
        else if (accepted == NET_ACCEPTED)
            (void)link_add(link, ctx, fd);
    }
}

static void link_flush(struct link_peer *peer, struct tr_context *ctx)
{
    size_t done = 0;

    while (done < peer->out.size) {
        ssize_t wrote = send(peer->fd, peer->out.bytes + done, peer->out.size - done, MSG_NOSIGNAL);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0 && errno != EAGAIN) {
            link_close(peer, ctx);
            return;
        }
        if (wrote < 0)
            break;
        done += (size_t)wrote;
    }
    if (done == peer->out.size)
        mx_wipe_buffer(&peer->out); /* answers have texts and keys */
    else
        buffer_consume(&peer->out, done);
    peer->out.size_max = SYNC_LINE_MAX;
}

/* Send an answer, whose line this takes. One that could not be written, for `rc`, is an error of the
 * request, not the end of the connection: other requests of it go on. */
static void link_send(
    struct link_peer *peer, struct tr_context *ctx, int64_t id, struct buffer *line, int rc)
{
    if (rc != 0) {
        mx_wipe_buffer(line);
        rc = sync_wire_write(NULL, id, rc, NULL, line);
    }
    if (rc == 0)
        rc = buffer_span(&peer->out, mxclient_span(line));
    mx_wipe_buffer(line);
    if (rc != 0)
        link_close(peer, ctx);
    else
        link_flush(peer, ctx);
}

static void link_answer(struct link *link, struct link_peer *peer, struct tr_context *ctx,
    const struct link_request *request, int status)
{
    struct buffer line = { .size_max = SYNC_LINE_MAX };

    if (peer->fd >= 0)
        link_send(peer, ctx, request->id, &line,
            sync_wire_write(request->job, request->id, status, link->options.key, &line));
}

/* ---- requests --------------------------------------------------------------------------------- */

static struct link_request *link_place(struct link_peer *peer)
{
    for (int i = 0; i < SYNC_REQUESTS_MAX; i++)
        if (peer->requests[i].kind == LINK_FREE)
            return &peer->requests[i];
    return NULL;
}

/* Read the store for a request that the engine does not answer. */
static int link_read_store(struct link *link, struct tr_context *ctx, struct sql_unit *unit,
    struct link_request *place, uint32_t tag)
{
    int rc = place == NULL
                 ? TR_EFULL
                 : sql_read(ctx, &link->sql, unit, &(struct sql_submit_options){ .tag = tag });

    if (rc != 0)
        sql_unit_destroy(unit);
    return rc;
}

static void link_ask(
    struct link *link, struct link_peer *peer, struct tr_context *ctx, const struct json *line)
{
    struct link_request *place = link_place(peer), request = { .kind = LINK_JOB };
    uint32_t tag = TAG_JOB + (uint32_t)(peer - link->peers) * SYNC_REQUESTS_MAX;
    struct span verb = { "", 0 };
    struct sql_unit *unit;
    int rc;

    if (place != NULL)
        tag += (uint32_t)(place - peer->requests);
    (void)json_int(json_get(line, "id"), &request.id);
    if (sync_held_read(line, &unit)) {
        (void)json_string(json_get(line, "do"), &verb);
        request.kind = span_is(verb, "unread") ? LINK_UNREAD : LINK_TIMELINE;
        rc = link_read_store(link, ctx, unit, place, tag);
    } else
        rc = place == NULL ? TR_EFULL : sync_wire_read(line, &request.job);
    if (rc == 0 && request.kind == LINK_JOB) {
        request.job->cancel = peer->cancel;
        rc = mxengine_ask(ctx, link->options.engine, request.job, tag);
    }
    if (rc == 0) {
        tr_assert(place != NULL); /* without one rc is TR_EFULL */
        *place = request;
        return;
    }
    link_answer(link, peer, ctx, &request, rc);
    mxengine_job_unref(request.job);
}

static void link_take_line(
    struct link *link, struct link_peer *peer, struct tr_context *ctx, struct span text)
{
    struct json_doc doc = { 0 };

    if (json_parse_copy(&doc, text, JSON_UNIQUE_KEYS) == 0)
        link_ask(link, peer, ctx, json_root(&doc));
    else
        link_close(peer, ctx); /* the answer would have no id */
    mx_wipe_buffer(&doc.copy); /* it may have a password */
    json_doc_free(&doc);
}

/* Handle every complete line and keep the rest. The bytes before `from` have no newline. */
static void link_take_lines(
    struct link *link, struct link_peer *peer, struct tr_context *ctx, size_t from)
{
    size_t start = 0;

    while (peer->fd >= 0 && from < peer->in.size) {
        const char *end = memchr(peer->in.bytes + from, '\n', peer->in.size - from);

        if (end == NULL)
            break;
        from = (size_t)(end - peer->in.bytes);
        link_take_line(link, peer, ctx, (struct span){ peer->in.bytes + start, from - start });
        start = ++from;
    }
    if (peer->fd < 0)
        return;
    if (start == peer->in.size)
        mx_wipe_buffer(&peer->in);
    else
        buffer_consume(&peer->in, start);
    peer->in.size_max = SYNC_LINE_MAX;
}

static void link_read(struct link *link, struct link_peer *peer, struct tr_context *ctx)
{
    while (peer->fd >= 0) {
        char *place = buffer_reserve(&peer->in, LINK_READ_BYTES);
        size_t from = peer->in.size;
        ssize_t got = place == NULL ? 0 : recv(peer->fd, place, LINK_READ_BYTES, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            link_close(peer, ctx);
            return;
        }
        buffer_grew(&peer->in, (size_t)got);
        link_take_lines(link, peer, ctx, from);
    }
}

/* Answer a request that read the store. */
static void link_answer_store(struct link *link, struct link_peer *peer, struct tr_context *ctx,
    const struct link_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&link->sql, event);
    struct buffer line = { .size_max = SYNC_LINE_MAX };

    tr_assert(unit != NULL);
    if (peer->fd >= 0)
        link_send(peer, ctx, request->id, &line,
            sync_held_write(
                unit, link->options.key, request->kind == LINK_UNREAD, request->id, &line));
    sql_unit_destroy(unit);
}

/* ---- the actor -------------------------------------------------------------------------------- */

static enum tr_next link_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct link *link = self;

    if (event->kind == TR_EVENT_FD && event->tag == TAG_LISTEN)
        link_accept(link, ctx);
    else if (event->kind == TR_EVENT_FD) {
        struct link_peer *peer = &link->peers[event->tag - TAG_PEER];

        if (peer->fd == event->fd)
            link_flush(peer, ctx);
        if (peer->fd == event->fd)
            link_read(link, peer, ctx);
    } else if (event->kind == TR_EVENT_REPLY && event->tag >= TAG_JOB) {
        uint32_t number = event->tag - TAG_JOB;
        struct link_peer *peer = &link->peers[number / SYNC_REQUESTS_MAX];
        struct link_request *place = &peer->requests[number % SYNC_REQUESTS_MAX];
        struct link_request request = *place;

        tr_assert(request.kind != LINK_FREE);
        *place = (struct link_request){ 0 };
        if (request.kind == LINK_JOB)
            link_answer(link, peer, ctx, &request, event->status);
        else
            link_answer_store(link, peer, ctx, &request, event);
        mxengine_job_unref(request.job);
    }
    return TR_GO;
}

static enum tr_next link_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO; /* nobody tells it anything */
}

static int link_start(void *self, struct tr_context *ctx)
{
    struct link *link = self;
    int rc = 0;

    sql_client_init(&link->sql, link->options.sql);
    for (int i = 0; i < SYNC_PEERS_MAX; i++)
        link->peers[i].fd = -1;
    if (link->options.listen_fd >= 0)
        rc = tr_fd_watch(ctx, link->options.listen_fd, EPOLLIN | EPOLLET, TAG_LISTEN);
    if (rc == 0 && link->options.client_fd >= 0)
        rc = link_add(link, ctx, link->options.client_fd);
    return rc;
}

static void link_finish(void *self)
{
    struct link *link = self;

    sql_client_fini(&link->sql);
    if (link->options.listen_fd >= 0)
        close(link->options.listen_fd);
    for (int i = 0; i < SYNC_PEERS_MAX; i++) {
        struct link_peer *peer = &link->peers[i];

        if (peer->fd >= 0)
            close(peer->fd);
        for (int j = 0; j < SYNC_REQUESTS_MAX; j++)
            mxengine_job_unref(peer->requests[j].job);
        tr_cancel_destroy(&peer->cancel);
        mx_wipe_buffer(&peer->in);
        mx_wipe_buffer(&peer->out);
    }
}

static const struct tr_type link_type = {
    .name = "sync-link",
    .message_size = sizeof(struct link_message),
    .state_size = sizeof(struct link),
    .start = link_start,
    .handle = link_handle,
    .event = link_event,
    .finish = link_finish,
};

int sync_link_spawn(struct tr_system *system, const struct sync_link_options *options,
    const struct tr_spawn_options *spawn, tr_sender *ret_link)
{
    struct link link = { .options = *options };

    return tr_spawn(system, &link_type, &link, spawn, ret_link);
}
