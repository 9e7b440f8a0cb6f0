/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: the steps of a start that have a file of their own. A step returns 0, or an error code
 * and in `why` a sentence that says what to do. */
#ifndef SERVER_PARTS_H
#define SERVER_PARTS_H

#include "server/server.h"

/* ---- auth.c ---- */

/* Start the HTTP client for requests to other servers, the verifier of service tokens, and, where
 * auth.providers is set, sessions. */
int server_start_auth(struct server *server, char *why, size_t why_size);
/* Read the providers' key files once, before the start creates anything. */
int server_check_key_files(const struct config *config, char *why, size_t why_size);
/* Apply the rates of the settings and read the providers' key files again. */
void server_reload_auth(struct server *server);
void server_stop_auth(struct server *server);

/* ---- data.c: the data directory ---- */

/* Return TR_EBUSY if a server runs with this data directory. Creates no file. */
int server_find_other(struct server *server, char *why, size_t why_size);
/* Create the data directory if it does not exist, and resolve its path. */
int server_open_data(struct server *server, char *why, size_t why_size);
/* Lock the data directory for this process. TR_EBUSY: another server has it. */
int server_lock_data(struct server *server, char *why, size_t why_size);
/* Lock a data directory without a server; the caller closes *ret_fd to release it. */
int server_lock_path(const char *data_path, int *ret_fd, char *why, size_t why_size);
/* Refuse a kind of database other than the one that this directory was used with: the data would
 * seem lost. */
int server_check_database(struct server *server, char *why, size_t why_size);
/* Note the kind of the open database for the next start. */
int server_write_database(struct server *server);
/* Write the admin address into the data directory: the commands find the server by it. */
int server_write_address(struct server *server);
/* Remove that file, unless another server wrote it. */
void server_remove_address(struct server *server);

/* ---- public.c: the public listener ---- */

/* Bind both ports and close them again, so that a start that cannot listen creates no files. */
int server_try_ports(struct server *server, char *why, size_t why_size);
int server_start_public(struct server *server, char *why, size_t why_size);
/* Add to `why` what the operator can do about a listener that failed to start; `option` is the
 * command line's name for its address. */
void server_explain_listen(
    int rc, const char *listen, const char *option, char *why, size_t why_size);

/* ---- tree.c: the supervision tree ---- */

int server_start_tree(struct server *server, char *why, size_t why_size);
/* The supervisor of a service's branch; borrowed. */
tr_sender server_supervisor_of(const struct server *server, size_t service_index);
/* Drop the tree, after every part under it has stopped. */
void server_stop_tree(struct server *server);

/* ---- reload.c, sandbox.c ---- */

/* Apply log.level, log.format and log.levels. */
int server_apply_log(const struct config *config, char *why, size_t why_size);
/* Become server.user, then give up every file and system call that the server does not need. */
int server_enter_sandbox(struct server *server, char *why, size_t why_size);

#endif
