/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.c: TLS handshakes, one step at a time on the blocking pool, because a signature would
 * keep a worker busy for too long. While a step runs it owns the stream. The connection has none
 * meanwhile and only records edges. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/connection.h"
#include "net/tls.h"

struct step {
    struct net_stream stream;
    int result;
};

static void step_drop(void *argument)
{
    struct step *step = argument;

    net_stream_close(&step->stream);
    base_free(step);
}

static int step_run(void *argument)
{
    struct step *step = argument;

    step->result = net_tls_handshake(&step->stream);
    return 0;
}

void http_handshake_go(struct http_connection *connection)
{
    struct step *step;

    if (connection->handshake == HANDSHAKE_RUNNING || !connection->is_readable)
        return;
    step = base_calloc(sizeof *step);
    if (step == NULL) {
        http_connection_fail(connection);
        return;
    }
    step->stream = connection->stream;
    connection->is_readable = false;
    if (tr_offload(connection->ctx, step_run, step, step_drop, HTTP_TAG_HANDSHAKE) < 0) {
        base_free(step);
        http_connection_fail(connection); /* the pool is full, which is overload */
        return;
    }
    connection->stream.table = NULL;
    connection->handshake = HANDSHAKE_RUNNING;
}

void http_handshake_event(struct http_connection *connection, const struct tr_event *event)
{
    struct step *step = (struct step *)(uintptr_t)event->value;

    tr_assert(connection->handshake == HANDSHAKE_RUNNING);
    connection->stream = step->stream;
    connection->handshake = HANDSHAKE_WAITING;
    if (http_connection_is_gone(connection)) {
        /* The connection closed while the step ran. */
    } else if (step->result == 1) {
        connection->handshake = HANDSHAKE_DONE;
        connection->is_readable = true;
        connection->active_ns = connection->now_ns;
        if (strcmp(net_tls_protocol(&connection->stream), "h2") == 0)
            http2_start(connection);
    } else if (step->result == NET_GONE) {
        metric_add(connection->server->stats.handshakes_bad, 1);
        http_connection_fail(connection);
    }
    base_free(step);
}
