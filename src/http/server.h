/* SPDX-License-Identifier: Apache-2.0 */
/* server.h: what the connections of a server share.
 *
 * What threads share, all of it:
 *   lock             entries, listeners_*, cut; connections is written under it
 *   in_flight, connections, places and what they come from  atomic
 *   is_draining      atomic; set once
 * Everything else is written before the first listener starts and then only read. */
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

/* A connection as the server knows it: enough to tell it something. */
struct http_entry {
    struct http_entry *next, *prev;
    tr_sender sender;
    bool is_started, has_left;
};

struct http_server {
    struct tr_system *system;
    const struct tr_env *env;
    struct http_limits limits; /* no zeros */
    struct http_router router;
    void *gate_service;
    struct http_route_stats *route_stats; /* by index of the route */
    struct http_server_stats stats;
    struct net_tls *tls; /* NULL: in the clear */
    struct net_cidr *proxies;
    size_t proxy_count;
    bool quiet;
    unsigned fd_events; /* EPOLLET, and how early it is heard */
    void (*on_done)(
        void *data, const struct http_request *request, unsigned status, uint64_t took_ns);
    void *on_done_data;
    char name[32];
    char address[NET_ADDRESS_TEXT_MAX];
    struct net_address bound;

    tr_sender *listeners;
    uint32_t listener_count;

    _Atomic uint32_t in_flight;
    _Atomic uint32_t places;      /* for requests in flight: shed.c */
    _Atomic uint64_t shortest_ns; /* of the requests of this window */
    _Atomic uint64_t window_ns;   /* when it ends */
    _Atomic uint64_t best_ns;     /* of the windows' shortest */
    _Atomic bool has_shed;        /* in this window */
    _Atomic uint64_t shed_told_ns;
    _Atomic uint64_t body_bytes; /* of requests, in memory */
    _Atomic bool is_draining;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct http_entry entries; /* head of the ring */
    _Atomic uint32_t connections;
    uint32_t listeners_live;
    uint32_t listeners_started; /* those that have begun to listen */
    uint32_t cut;               /* requests that were closed on before their answer was out */
};

/* listener.c: takes the descriptor on success. */
int http_listener_start(
    struct http_server *server, int fd, tr_sender supervisor, tr_sender *ret_sender);
/* `is_patient`: who is connecting now is waited for. */
void http_listener_drain(tr_sender sender, bool is_patient);

/* connection.c: an accepted descriptor becomes an actor, and is closed on failure. */
void http_connection_start(struct http_server *server, int fd, const struct net_peer *peer);
enum http_order { HTTP_ORDER_DRAIN, HTTP_ORDER_CUT };
void http_connection_order(tr_sender sender, enum http_order order);

/* A connection comes, has its actor (or none, if that failed), and goes; the last two in any order.
 * `cut`: requests that were lost with it. */
void http_server_enter(struct http_server *server, struct http_entry *entry);
void http_server_started(struct http_server *server, struct http_entry *entry, tr_sender sender);
void http_server_leave(struct http_server *server, struct http_entry *entry, uint32_t cut);
/* A listener has begun to listen; it has ended. */
void http_server_listener_started(struct http_server *server);
void http_server_listener_ended(struct http_server *server);

#endif
