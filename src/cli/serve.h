/* SPDX-License-Identifier: Apache-2.0 */
/* serve.h: the parts of a server, started in order and stopped in reverse. cmd_serve.c listens to
 * signals; this knows what they mean. */
#ifndef CLI_SERVE_H
#define CLI_SERVE_H

#include <limits.h>

#include "auth/auth.h"
#include "auth/session.h"
#include "cli/options.h"
#include "ops/admin.h"
#include "ops/otlp.h"
#include "ops/probe.h"
#include "ops/sandbox.h"
#include "ops/service.h"
#include "ops/systemd.h"

/* What is served besides health; main.c has the list. Ends with NULL. */
extern const struct service *const cli_services[];

enum { SERVE_SERVICES_MAX = 16, SERVE_WHY_SIZE = 512 };

struct serve {
    const struct options *options; /* borrowed: read again by a reload */
    const char *version;
    struct config config;
    char data_path[PATH_MAX];
    bool has_made_data; /* the directory */
    int lock_fd;        /* server.lock in it, locked; -1: not ours */
    bool has_address;   /* admin.address in it is ours */
    char public_address[256];
    const char *service_did;
    struct systemd systemd;
    struct sandbox_report sandbox;
    struct tr_system *system;
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
    char *auth_texts; /* what providers and admins point into */
    struct service session_service;
    struct http_route session_routes[AUTH_SESSION_ROUTES];
    struct http_client *trace_client; /* of its own: a collector is often on a private address */
    struct otlp *otlp;
    const struct service *services[SERVE_SERVICES_MAX];
    void *states[SERVE_SERVICES_MAX];
    size_t service_count;
    size_t started_count;
    struct http_route *routes;
    const char **proxies;
    char *proxy_texts;
    struct http_server *server;
    tr_sender watchdog;
};

/* All of it, until requests are served. On failure `why` says what to do, and serve_stop is still
 * to be called. Single-threaded until it begins: it enters the sandbox. */
int serve_start(struct serve *serve, char *why, size_t why_size);
/* Read the settings again and apply what is safe; the log says what happened. */
void serve_reload(struct serve *serve);
/* Stop accepting and finish what is in flight. Returns the number of requests that were cut. */
uint32_t serve_drain(struct serve *serve);
void serve_stop(struct serve *serve);

/* serve_auth.c */

/* The client for requests to others, the verifier if there is a service DID, and sessions if there are
 * providers. */
int serve_start_auth(struct serve *serve, char *why, size_t why_size);
/* Can the key sets of providers that are files be used? Before anything is made. */
int serve_check_key_files(const struct config *config, char *why, size_t why_size);
void serve_reload_auth(struct serve *serve);
void serve_stop_auth(struct serve *serve);

/* serve_files.c */

/* log.level, log.format and log.levels. */
int serve_apply_log(const struct config *config, char *why, size_t why_size);
/* TR_EBUSY if a server runs with this data. Makes nothing. */
int serve_find_other(struct serve *serve, char *why, size_t why_size);
/* Make the data directory and find its real path; then give up what is not needed; then make it
 * ours, TR_EBUSY if it is another server's. */
int serve_open_data(struct serve *serve, char *why, size_t why_size);
int serve_enter_sandbox(struct serve *serve, char *why, size_t why_size);
int serve_lock_data(struct serve *serve, char *why, size_t why_size);
/* The same without a server: the directory is the caller's until *ret_fd is closed. */
int serve_lock_path(const char *data_path, int *ret_fd, char *why, size_t why_size);
/* The last thing: the directory is nobody's. A start that failed takes it away if it has made it
 * and nothing is in it. */
void serve_leave_data(struct serve *serve, bool has_failed);
/* Refuses a kind of database that this directory was not used with, where its data is not. */
int serve_check_database(struct serve *serve, char *why, size_t why_size);
int serve_write_database(struct serve *serve); /* once it is open */
/* The admin's address in the data directory, for the commands that look for it. Only while the
 * directory is ours; what another server wrote there is not removed. */
int serve_write_address(struct serve *serve);
void serve_remove_address(struct serve *serve);

#endif
