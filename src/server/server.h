/* SPDX-License-Identifier: Apache-2.0 */
/* server.h: one `troupe serve` process: the runtime, the admin listener, the database, auth, the
 * services of main.c and the public listener. The command waits for signals and calls these
 * functions from the main thread. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <limits.h>
#include <stdatomic.h>

#include "auth/auth.h"
#include "auth/session.h"
#include "ops/admin.h"
#include "ops/config.h"
#include "ops/otlp.h"
#include "ops/probe.h"
#include "ops/sandbox.h"
#include "ops/service.h"
#include "ops/systemd.h"

/* The services of this program, ended by NULL. main.c defines the list. */
extern const struct service *const server_services[];

/* The first two services are the server's own: health and sessions. */
enum { SERVER_SERVICES_MAX = 16, SERVER_OWN_SERVICES = 2, SERVER_WHY_SIZE = 512 };

/* The branches of the supervision tree that every server has; those of the services follow. */
enum server_branch { SERVER_OPS, SERVER_SQL, SERVER_AUTH, SERVER_PUBLIC, SERVER_BRANCHES };
enum { SERVER_BRANCHES_MAX = SERVER_BRANCHES + SERVER_SERVICES_MAX };

struct server_tree {
    struct tr_supervisor root;
    struct tr_child rows[SERVER_BRANCHES_MAX];
    struct tr_supervisor branches[SERVER_BRANCHES_MAX];
    tr_sender senders[SERVER_BRANCHES_MAX]; /* of the branches */
    tr_sender sender;                       /* of the root */
    tr_sender guard;
};

struct server {
    /* Set by the caller before server_start; all of it outlives the server. */
    const struct config_sources *sources; /* a reload reads them again */
    const char *version;
    struct config config;

    char data_path[PATH_MAX];
    bool has_made_data; /* this start made the data directory */
    int lock_fd;        /* server.lock in the data directory, locked; -1: not locked */
    bool has_address;   /* this process wrote admin.address in the data directory */
    char public_address[256];
    const char *service_did;
    struct systemd systemd;
    struct sandbox_report sandbox;
    struct tr_system *system;
    struct server_tree tree;
    _Atomic bool has_failed; /* the root of the tree gave up; set before the SIGTERM to ourselves */
    struct admin *admin;
    struct sql_migration *migrations;
    struct sql *sql;
    struct probe *probe;
    struct http_client *client;
    struct auth *auth;
    struct crypto_key *session_key;
    struct sessions *sessions;
    struct session_provider *providers;
    const char **admins;
    char *auth_texts; /* memory that providers and admins point into */
    struct service session_service;
    struct http_route session_routes[AUTH_SESSION_ROUTES];
    struct http_client *trace_client; /* its own: a collector is often on a private address */
    struct otlp *otlp;
    const struct service *services[SERVER_SERVICES_MAX];
    void *states[SERVER_SERVICES_MAX];
    size_t service_count;
    size_t started_count;
    struct http_route *routes;
    const char **proxies;
    char *proxy_texts;
    struct http_server *public_http;
    tr_sender watchdog;
};

/* Set every field that is not zero before a start. */
void server_init(struct server *server, const struct config_sources *sources, const char *version);
/* Start every part, in order, until the server answers requests. The caller has one thread only:
 * this enters the sandbox. On failure `why` says what to do; call server_stop all the same. */
int server_start(struct server *server, char *why, size_t why_size);
/* Read the settings again and apply those that are safe to change. The log reports the result. */
void server_reload(struct server *server);
/* Stop accepting requests and wait for those in flight, at most server.drain_timeout. Returns the
 * number of requests that were cut. */
uint32_t server_drain(struct server *server);
/* Stop every part that has started, in reverse order, and free it. */
void server_stop(struct server *server);
/* Release the data directory, as the last step. After a failed start, remove the directory if this
 * start made it and it is empty. */
void server_close_data(struct server *server, bool has_failed);

#endif
