/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c: the actor of one client.
 *
 * Every turn has the same steps: record the event, run the transport, send the output in one write,
 * set the timer, and check whether the connection is over.
 *
 * Invariants:
 *   1. The descriptor is watched edge-triggered while it is open, so a request needs no epoll_ctl.
 *      is_readable stays true until a read finds the socket empty.
 *   2. There is one timer, never later than the earliest deadline. A deadline that moved away is
 *      noticed when the timer fires, so a busy connection sets it about once a minute.
 *   3. After LIFE_GONE nothing is read or written. The actor lives on until the events of its
 *      requests have come, since they own memory. */
#include "http/connection.h"

#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "net/tls.h"

enum {
    TAG_READY = 1,
    TAG_TIMER = 2,
    RETRY_NS = 1000000,
    ROUNDS_MAX = 64,
    CAPACITY = 1024,
    TURN_BYTES = 1 << 20, /* one turn reads at most this, then other actors run */
};

/* ---- for transports ------------------------------------------------------------------------ */

ssize_t http_connection_read(struct http_connection *connection, char *bytes, size_t size)
{
    ssize_t got = net_read(&connection->stream, bytes, size);

    if (got > 0) {
        connection->turn_bytes += (uint64_t)got;
        connection->active_ns = connection->now_ns;
        /* A short read has emptied the socket, and the next byte comes with an edge. That does not
         * hold if the end was announced or if TLS keeps bytes back. */
        if ((size_t)got < size && connection->peer_state == PEER_SENDS &&
            connection->stream.tls == NULL)
            connection->is_readable = false;
    } else if (got == NET_END) {
        connection->peer_state = PEER_ENDED;
        connection->is_readable = false;
    } else if (got == NET_AGAIN) {
        connection->is_readable = false;
    } else {
        http_connection_fail(connection);
    }
    return got;
}

bool http_connection_may_read(struct http_connection *connection)
{
    if (!connection->is_readable)
        return false;
    if (connection->turn_bytes < TURN_BYTES)
        return true;
    http_connection_again(connection);
    return false;
}

void http_connection_fail(struct http_connection *connection)
{
    if (http_connection_is_gone(connection))
        return;
    connection->life = LIFE_GONE;
    if (connection->cancel != NULL)
        tr_cancel_fire(connection->cancel);
    connection->cut += connection->transport->gone(connection);
    while (connection->streams != NULL)
        http_stream_close(connection, connection->streams);
    http_output_drop(&connection->output);
}

static bool connection_drains_final(const struct http_connection *connection)
{
    return connection->is_draining && connection->output.is_final;
}

static void connection_restart_wait(struct http_connection *connection)
{
    connection->output_ns = connection->now_ns;
    connection->output_from = connection->output.sent;
    if (connection_drains_final(connection))
        connection->output_unsent = net_unsent(&connection->stream);
}

void http_connection_final_output(struct http_connection *connection)
{
    connection->output.is_final = true;
    if (connection->output_ns != 0)
        connection_restart_wait(connection);
}

void http_connection_again(struct http_connection *connection)
{
    connection->wants_again = true;
}

/* ---- the turn ------------------------------------------------------------------------------ */

/* Record since when output waits for the peer. */
static void connection_note_waiting(struct http_connection *connection)
{
    bool took_some = connection->output.sent > connection->output_from;

    if (connection->output_ns == 0 || (took_some && connection_drains_final(connection)))
        connection_restart_wait(connection);
}

static void connection_flush(struct http_connection *connection)
{
    struct http_output *output = &connection->output;

    if (http_output_is_empty(output))
        return;
    output->now_ns = connection->now_ns;
    switch (http_output_flush(output, &connection->stream)) {
    case 0:
        connection->output_ns = 0;
        connection->active_ns = connection->now_ns;
        break;
    case HTTP_OUTPUT_LATER:
        connection->output_ns = 0;
        break;
    case HTTP_OUTPUT_MORE:
        connection->output_ns = 0;
        connection->wants_again = true;
        break;
    case NET_AGAIN:
        connection_note_waiting(connection);
        break;
    default:
        http_connection_fail(connection);
    }
}

static uint64_t connection_output_deadline(const struct http_connection *connection)
{
    const struct http_limits *limits = &connection->server->limits;
    uint64_t sent = connection->output.sent - connection->output_from;

    if (connection->output_ns == 0)
        return UINT64_MAX;
    if (connection_drains_final(connection))
        return connection->output_ns + limits->linger_ns;
    return connection->output_ns + limits->output_ns +
           sent / limits->body_rate_min * UINT64_C(1000000000);
}

static void connection_arm(struct http_connection *connection)
{
    uint64_t at = connection->transport->deadline(connection);

    at = http_earliest(at, connection_output_deadline(connection));
    at = http_earliest(at, http_streams_deadline(connection));
    if (connection->output.resume_ns != 0)
        at = http_earliest(at, connection->output.resume_ns);
    if (connection->wants_again)
        at = http_earliest(at, connection->now_ns + RETRY_NS);
    if (at >= connection->armed_ns)
        return;
    if (connection->armed_ns != UINT64_MAX)
        tr_timer_stop(connection->ctx, connection->timer_id);
    connection->armed_ns = UINT64_MAX;
    /* Without memory for a timer the connection goes on, and the next turn tries again. */
    if (tr_after(connection->ctx, at > connection->now_ns ? at - connection->now_ns : 1, TAG_TIMER,
            &connection->timer_id) == 0)
        connection->armed_ns = at;
}

/* Returns true if the peer has read since the wait began. The kernel signals a writable socket only
 * when much of its buffer is free, so a peer on a slow line may read for longer than its deadline
 * without an event. */
static bool has_read_on(const struct http_connection *connection)
{
    return connection_drains_final(connection) &&
           net_unsent(&connection->stream) < connection->output_unsent;
}

static void connection_on_timer(struct http_connection *connection)
{
    uint64_t now = connection->now_ns;

    connection->armed_ns = UINT64_MAX;
    if (now >= connection_output_deadline(connection) && has_read_on(connection))
        connection_restart_wait(connection);
    if (now >= connection_output_deadline(connection)) {
        metric_add(connection->server->stats.slow_readers, 1);
        http_connection_fail(connection);
        return;
    }
    if (now >= http_streams_deadline(connection))
        http_streams_beat(connection);
    if (now >= connection->transport->deadline(connection)) {
        if (connection->handshake != HANDSHAKE_DONE)
            http_connection_fail(connection);
        else
            connection->transport->expired(connection);
    }
}

static void connection_close_stream(struct http_connection *connection)
{
    if (connection->stream.table == NULL)
        return; /* already closed, or owned by a step of the handshake */
    tr_fd_forget(connection->ctx, connection->stream.fd);
    net_stream_close(&connection->stream);
}

static void connection_enter_turn(struct http_connection *connection, struct tr_context *ctx)
{
    connection->ctx = ctx;
    connection->now_ns = tr_now_ns(ctx);
    connection->batch = 0;
    connection->turn_bytes = 0;
}

static enum tr_next connection_leave_turn(struct http_connection *connection)
{
    enum tr_next next = TR_GO;
    bool go;

    if (connection->handshake != HANDSHAKE_DONE && !http_connection_is_gone(connection))
        http_handshake_go(connection);
    go = !http_connection_is_gone(connection) && connection->handshake == HANDSHAKE_DONE;
    for (int round = 0; go; round++) {
        connection->wants_drained = false;
        connection->transport->run(connection);
        if (!http_connection_is_gone(connection))
            connection_flush(connection);
        go = connection->wants_drained && connection->life == LIFE_OPEN &&
             http_output_is_empty(&connection->output);
        if (round == ROUNDS_MAX && go) {
            connection->wants_again = true;
            go = false;
        }
    }
    if (connection->life == LIFE_DONE)
        http_connection_fail(connection);
    if (http_connection_is_gone(connection)) {
        connection_close_stream(connection);
        if (connection->transport->is_idle(connection) &&
            connection->handshake != HANDSHAKE_RUNNING)
            next = TR_STOP;
    } else {
        if (connection->wants_again) {
            struct http_message again = { .kind = MESSAGE_RUN };

            /* If the box is full or memory is out, the timer runs the connection again. */
            connection->wants_again = tr_self_tell(connection->ctx, &again, sizeof again) < 0;
        }
        connection_arm(connection);
        connection->transport->shrink(connection);
    }
    connection->ctx = NULL;
    return next;
}

static void connection_on_ready(struct http_connection *connection, unsigned ready)
{
    if (ready & (EPOLLERR | EPOLLHUP)) {
        /* Both directions are closed, so an answer would reach no reader. */
        http_connection_fail(connection);
        return;
    }
    if (ready & EPOLLRDHUP && connection->peer_state == PEER_SENDS)
        connection->peer_state = PEER_HUNG_UP;
    /* TLS may want to write in order to read. */
    if (ready & (EPOLLIN | EPOLLRDHUP) || connection->stream.tls != NULL ||
        connection->handshake != HANDSHAKE_DONE)
        connection->is_readable = true;
}

static enum tr_next connection_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct http_connection *connection = state;

    connection_enter_turn(connection, ctx);
    switch (event->kind) {
    case TR_EVENT_FD:
        if (!http_connection_is_gone(connection))
            connection_on_ready(connection, event->ready);
        break;
    case TR_EVENT_TIMER:
        if (!http_connection_is_gone(connection))
            connection_on_timer(connection);
        break;
    case TR_EVENT_REPLY:
    case TR_EVENT_WORK:
        if (event->tag == HTTP_TAG_HANDSHAKE)
            http_handshake_event(connection, event);
        else
            connection->transport->event(connection, event);
        break;
    case TR_EVENT_SIGNAL:
    case TR_EVENT_DOWN:
    case TR_EVENT_EXIT:
    case TR_EVENT_NET:
        break;
    }
    return connection_leave_turn(connection);
}

static void connection_drain(struct http_connection *connection)
{
    if (connection->is_draining)
        return;
    connection->is_draining = true;
    connection->drain_ns = connection->now_ns;
    if (connection->output.is_final)
        http_connection_final_output(
            connection); /* a stream ended before the drain: give it the same time */
    http_streams_drain(connection);
    connection->transport->drain(connection);
}

static enum tr_next connection_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct http_connection *connection = state;
    struct http_message *message = bytes;
    struct http_stream_state *stream = NULL;

    connection_enter_turn(connection, ctx);
    if (!http_connection_is_gone(connection))
        stream = http_stream_find(connection, message->id);
    switch (message->kind) {
    case MESSAGE_FRAME:
        if (stream != NULL)
            http_stream_frame(connection, stream, message->frame);
        else
            http_frame_unref(message->frame);
        break;
    case MESSAGE_END:
        if (stream != NULL)
            http_stream_end_with(connection, stream, message->frame, (uint16_t)message->code);
        else
            http_frame_unref(message->frame);
        break;
    case MESSAGE_SLOW:
        if (stream != NULL)
            http_stream_slow(connection, stream);
        break;
    case MESSAGE_DRAIN:
        if (!http_connection_is_gone(connection))
            connection_drain(connection);
        break;
    case MESSAGE_CUT:
        http_connection_fail(connection);
        break;
    case MESSAGE_RUN:
        break;
    }
    return connection_leave_turn(connection);
}

/* ---- start and end ------------------------------------------------------------------------- */

static int connection_start(void *state, struct tr_context *ctx)
{
    struct http_connection *connection = state;
    int rc;

    connection_enter_turn(connection, ctx);
    connection->active_ns = connection->now_ns;
    rc = tr_fd_watch(ctx, connection->stream.fd,
        EPOLLIN | EPOLLOUT | EPOLLRDHUP | connection->server->fd_events, TAG_READY);
    if (rc == 0)
        connection_arm(connection);
    connection->ctx = NULL;
    return rc;
}

static void connection_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct http_connection *connection = state;

    (void)why;
    connection_enter_turn(connection, ctx);
    http_connection_fail(connection);
    connection_close_stream(connection);
    connection->ctx = NULL;
}

static void connection_finish(void *state)
{
    struct http_connection *connection = state;

    while (connection->streams != NULL)
        http_stream_close(connection, connection->streams);
    http_output_drop(&connection->output);
    connection->transport->fini(connection);
    net_stream_close(&connection->stream);
    tr_cancel_destroy(&connection->cancel);
    http_server_leave(connection->server, connection->entry, connection->cut);
}

static void connection_message_drop(void *bytes)
{
    struct http_message *message = bytes;

    http_frame_unref(message->frame);
}

static const char *connection_message_name(const void *bytes)
{
    static const char *const names[] = { "frame", "end", "slow", "drain", "cut", "run" };
    const struct http_message *message = bytes;

    return names[message->kind];
}

const struct tr_type http_connection_type = {
    .name = "http connection",
    .message_size = sizeof(struct http_message),
    .state_size = sizeof(struct http_connection),
    .start = connection_start,
    .handle = connection_handle,
    .event = connection_event,
    .stop = connection_stop,
    .finish = connection_finish,
    .message_drop = connection_message_drop,
    .message_name = connection_message_name,
};

void http_connection_start(struct http_server *server, int fd, const struct net_peer *peer)
{
    struct http_connection connection = { .server = server,
        .peer = *peer,
        .transport = &http1_transport,
        .armed_ns = UINT64_MAX,
        .http1 = { .keeps_alive = true } };
    struct tr_spawn_options options = { .owner = "http server",
        .box = { .capacity = CAPACITY, .full = TR_FULL_FAIL } };
    struct http_entry *entry = base_calloc(sizeof *entry);
    tr_sender sender;

    tr_assert(fd >= 0);
    if (entry == NULL) {
        close(fd);
        return;
    }
    connection.entry = entry;
    net_stream_open(&connection.stream, fd);
    if (server->tls != NULL) {
        connection.handshake = HANDSHAKE_WAITING;
        if (net_tls_wrap(server->tls, &connection.stream) < 0) {
            net_stream_close(&connection.stream);
            base_free(entry);
            return;
        }
    }
    http_server_enter(server, entry);
    if (tr_spawn(server->system, &http_connection_type, &connection, &options, &sender) < 0) {
        net_stream_close(&connection.stream);
        http_server_started(server, entry, (tr_sender){ 0 });
        http_server_leave(server, entry, 0);
        return;
    }
    http_server_started(server, entry, sender);
}

void http_connection_order(tr_sender sender, enum http_order order)
{
    struct http_message message = { .kind =
                                        order == HTTP_ORDER_DRAIN ? MESSAGE_DRAIN : MESSAGE_CUT };
    struct tr_send_options options = { .lane = TR_CONTROL };

    if (sender.box != NULL)
        tr_tell_with(sender, &message, sizeof message, &options);
}
