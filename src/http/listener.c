/* SPDX-License-Identifier: Apache-2.0 */
/* listener.c: the actor that accepts connections. Each worker has one listener on the same port.
 * The kernel spreads clients over them, and a connection is homed on the worker that accepted it.
 *
 * Without a free descriptor accept would fail for ever, since the edge has passed. So the listener
 * keeps one descriptor in reserve. It closes the reserve, accepts the client, closes it at once,
 * and pauses for a moment.
 *
 * A drained listener lets no new client connect. It stays for LAST_NS to accept the clients whose
 * TCP handshake has begun. */
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/server.h"
#include "net/socket.h"
#include "support/log.h"

enum {
    TAG_READY = 1,
    TAG_PAUSED = 2,
    TAG_LAST = 3,
    BATCH = 64,
    LAST_MAX = 4096,
    PAUSE_NS = 100000000,
    LAST_NS = 100000000,
};

#define FULL_BODY                                                                                  \
    "{\"error\":\"Overloaded\",\"message\":\"The server has too many connections; retry in 1 "     \
    "s.\"}"
_Static_assert(sizeof FULL_BODY - 1 == 85, "the Content-Length below");

enum listener_order { LISTENER_GO_ON, LISTENER_DRAIN, LISTENER_END };
struct listener_message {
    uint32_t order;
};

struct listener {
    struct http_server *server;
    int fd;
    int reserve_fd;
    bool is_paused;
};

static void listener_shed(struct http_server *server, int fd)
{
    static const char text[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        "Content-Length: 85\r\nRetry-After: 1\r\nConnection: close\r\n\r\n" FULL_BODY;

    metric_add(server->stats.shed_connections, 1);
    if (server->tls == NULL && send(fd, text, sizeof text - 1, MSG_NOSIGNAL) < 0) {
        /* The client sees only the close. */
    }
    close(fd);
}

static void listener_admit(struct http_server *server, int fd, const struct net_peer *peer)
{
    if (atomic_load_explicit(&server->connections, memory_order_relaxed) >=
        server->limits.connections_max) {
        listener_shed(server, fd);
        return;
    }
    metric_add(server->stats.accepted, 1);
    http_connection_start(server, fd, peer);
}

/* Turn one client away because no descriptor is left, and pause. */
static void listener_pause(struct listener *listener, struct tr_context *ctx)
{
    struct net_peer peer;
    int fd;

    metric_add(listener->server->stats.accept_pauses, 1);
    LOG(LOG_WARN, "http", "the process has no descriptor left; accepting pauses",
        LOG_TEXT("server", listener->server->name));
    if (listener->reserve_fd >= 0) {
        close(listener->reserve_fd);
        if (net_accept(listener->fd, &fd, &peer) == NET_ACCEPTED)
            close(fd);
        listener->reserve_fd = eventfd(0, EFD_CLOEXEC);
    }
    listener->is_paused = tr_after(ctx, PAUSE_NS, TAG_PAUSED, NULL) == 0;
}

/* Returns false if no client waits. */
static bool listener_accept(struct listener *listener, struct tr_context *ctx, unsigned count)
{
    struct net_peer peer;
    int fd;

    while (count-- > 0 && !listener->is_paused) {
        switch (net_accept(listener->fd, &fd, &peer)) {
        case NET_ACCEPTED:
            listener_admit(listener->server, fd, &peer);
            break;
        case NET_ACCEPT_NOTHING:
            return false;
        case NET_ACCEPT_AGAIN:
            break;
        case NET_ACCEPT_NO_FD:
            listener_pause(listener, ctx);
            break;
        }
    }
    return !listener->is_paused;
}

static void listener_accept_batch(struct listener *listener, struct tr_context *ctx)
{
    struct listener_message more = { LISTENER_GO_ON };

    if (listener_accept(listener, ctx, BATCH))
        tr_self_tell(ctx, &more, sizeof more);
}

static int listener_start(void *state, struct tr_context *ctx)
{
    const struct listener_message end = { LISTENER_END };
    struct listener *listener = state;
    int rc = tr_fd_watch(ctx, listener->fd, EPOLLIN | listener->server->fd_events, TAG_READY);

    if (rc < 0)
        return rc;
    if (tr_self_restarts(ctx) == 0)
        http_server_listener_started(listener->server);
    else if (atomic_load_explicit(&listener->server->is_draining, memory_order_relaxed))
        rc = tr_self_tell(ctx, &end, sizeof end); /* the failure may have lost the order to drain */
    return rc;
}

/* The socket stays open: clients that connect meanwhile wait in the kernel's queue. */
static int listener_reset(void *state, enum tr_why why)
{
    (void)why;
    ((struct listener *)state)->is_paused = false;
    return 0;
}

static enum tr_next listener_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct listener *listener = state;

    if (event->kind == TR_EVENT_TIMER && event->tag == TAG_LAST) {
        listener_accept(listener, ctx, LAST_MAX);
        return TR_STOP;
    }
    if (event->kind == TR_EVENT_TIMER)
        listener->is_paused = false;
    listener_accept_batch(listener, ctx);
    return TR_GO;
}

static enum tr_next listener_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct listener *listener = state;
    const struct listener_message *message = bytes;

    if (message->order == LISTENER_GO_ON) {
        listener_accept_batch(listener, ctx);
        return TR_GO;
    }
    /* Accept the clients that the kernel has let in: closing now would reset them. */
    net_listen_no_more(listener->fd);
    listener_accept(listener, ctx, LAST_MAX);
    if (message->order == LISTENER_DRAIN && tr_after(ctx, LAST_NS, TAG_LAST, NULL) == 0)
        return TR_GO;
    return TR_STOP;
}

static void listener_finish(void *state)
{
    struct listener *listener = state;

    close(listener->fd);
    if (listener->reserve_fd >= 0)
        close(listener->reserve_fd);
    http_server_listener_ended(listener->server);
}

static const struct tr_type listener_type = {
    .name = "http listener",
    .message_size = sizeof(struct listener_message),
    .state_size = sizeof(struct listener),
    .start = listener_start,
    .handle = listener_handle,
    .event = listener_event,
    .finish = listener_finish,
    .reset = listener_reset,
};

int http_listener_start(
    struct http_server *server, int fd, tr_sender supervisor, tr_sender *ret_sender)
{
    struct listener listener = {
        .server = server, .fd = fd, .reserve_fd = eventfd(0, EFD_CLOEXEC)
    };
    int rc = tr_spawn(server->system, &listener_type, &listener,
        &(struct tr_spawn_options){ .owner = "http server", .supervisor = supervisor }, ret_sender);

    if (rc < 0 && listener.reserve_fd >= 0)
        close(listener.reserve_fd);
    return rc;
}

void http_listener_drain(tr_sender sender, bool is_patient)
{
    struct listener_message message = { is_patient ? LISTENER_DRAIN : LISTENER_END };
    struct tr_send_options options = { .lane = TR_CONTROL };

    tr_tell_with(sender, &message, sizeof message, &options);
}
