/* SPDX-License-Identifier: Apache-2.0 */
/* server.h: the state that the connections of a server share.
 *
 * Shared by threads:
 *   lock             protects entries, listeners_* and cut, and writes of connections
 *   atomics          in_flight, connections, is_draining, body_bytes, and the fields of shed.c
 * Everything else is written before the first listener starts and only read after that. */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "http/http.h"
#include "http/router.h"
#include "http/stats.h"
#include "net/address.h"
#include "net/stream.h"

struct net_tls;

/* A connection as the server knows it: enough to send it a message. */
struct http_entry {
    struct http_entry *next, *prev;
    tr_sender sender;
    bool is_started, has_left;
};

struct http_server {
    struct tr_system *system;
    const struct tr_env *env;
    struct http_limits limits; /* with all defaults filled in */
    struct http_router router;
    void *gate_service;
    struct http_route_stats *route_stats; /* by index of the route */
    struct http_server_stats stats;
    struct net_tls *tls; /* NULL: no TLS */
    struct net_cidr *proxies;
    size_t proxy_count;
    bool quiet;
    unsigned fd_events; /* EPOLLET, and TR_FD_FIRST for a server that comes first */
    void (*on_done)(
        void *data, const struct http_request *request, unsigned status, uint64_t took_ns);
    void *on_done_data;
    char name[32];
    char address[NET_ADDRESS_TEXT_MAX];
    struct net_address bound;

    tr_sender *listeners;
    uint32_t listener_count;

    _Atomic uint32_t in_flight;
    _Atomic uint32_t places;      /* limit of requests in flight: shed.c */
    _Atomic uint64_t shortest_ns; /* the shortest request of this window */
    _Atomic uint64_t window_ns;   /* end of the window */
    _Atomic uint64_t best_ns;     /* the shortest of all windows */
    _Atomic bool has_shed;        /* a request was shed in this window */
    _Atomic uint64_t shed_told_ns;
    _Atomic uint64_t body_bytes; /* of all requests, in memory */
    _Atomic bool is_draining;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct http_entry entries; /* head of the ring */
    _Atomic uint32_t connections;
    uint32_t listeners_live;
    uint32_t listeners_started; /* listeners that listen */
    uint32_t cut;               /* requests cut off before their answer was sent */
};

/* listener.c: start the actor that accepts. Takes the descriptor on success. */
int http_listener_start(
    struct http_server *server, int fd, tr_sender supervisor, tr_sender *ret_sender);
/* Stop accepting. `is_patient`: clients that are connecting now are still served. */
void http_listener_drain(tr_sender sender, bool is_patient);

/* connection.c: start the actor of an accepted descriptor. Closes the descriptor on failure. */
void http_connection_start(struct http_server *server, int fd, const struct net_peer *peer);
enum http_order { HTTP_ORDER_DRAIN, HTTP_ORDER_CUT };
void http_connection_order(tr_sender sender, enum http_order order);

/* Enter a connection, record its actor ({0} if it could not start), and remove it again. The last
 * two may come in any order. `cut` is the number of requests lost with the connection. */
void http_server_enter(struct http_server *server, struct http_entry *entry);
void http_server_started(struct http_server *server, struct http_entry *entry, tr_sender sender);
void http_server_leave(struct http_server *server, struct http_entry *entry, uint32_t cut);
/* Count a listener that listens now; count one that ended. */
void http_server_listener_started(struct http_server *server);
void http_server_listener_ended(struct http_server *server);

#endif
