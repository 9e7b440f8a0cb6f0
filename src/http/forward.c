/* SPDX-License-Identifier: Apache-2.0 */
/* forward.c: the client's address behind proxies. Each proxy appends the address it saw to
 * X-Forwarded-For. The list is read from its end, and only as far as trusted proxies wrote it: the
 * client may have invented the rest. */
#include <string.h>

#include "http/connection.h"
#include "http/request.h"

enum { HOPS_MAX = 16 };

static bool is_trusted(const struct http_server *server, const struct net_peer *peer)
{
    for (size_t i = 0; i < server->proxy_count; i++)
        if (net_cidr_has(&server->proxies[i], peer))
            return true;
    /* A peer of the unix socket is on this machine. */
    return peer->is_local && server->proxy_count > 0;
}

/* Walk one header's list from its end. Returns true if the client was found or the walk must
 * stop. */
static bool forward_walk(
    const struct http_server *server, struct span list, struct net_peer *peer, unsigned *hops)
{
    const char *end = list.at + list.size;

    for (;;) {
        const char *comma = memrchr(list.at, ',', (size_t)(end - list.at));
        const char *from = comma == NULL ? list.at : comma + 1;
        struct net_peer next;

        if (++*hops > HOPS_MAX ||
            net_peer_parse(span_trimmed((struct span){ from, (size_t)(end - from) }), &next) < 0)
            return true;
        *peer = next;
        if (!is_trusted(server, &next))
            return true;
        if (comma == NULL)
            return false;
        end = comma;
    }
}

void http_forward_peer(struct http_request *request)
{
    const struct http_server *server = request->connection->server;
    struct net_peer peer = request->connection->peer;
    unsigned hops = 0;

    if (server->proxy_count > 0 && is_trusted(server, &peer))
        for (uint32_t i = request->head.field_count; i-- > 0;) {
            const struct http_header *field = &request->head.fields[i];

            if (span_is_nocase(field->name, "x-forwarded-for") &&
                forward_walk(server, field->value, &peer, &hops))
                break;
        }
    request->peer_size = net_peer_text(&peer, request->peer, sizeof request->peer);
}
