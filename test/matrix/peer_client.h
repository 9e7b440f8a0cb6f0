/* SPDX-License-Identifier: Apache-2.0 */
/* peer_client.h: one Matrix client on src/matrix/client, with a database of its own and blocking
 * requests. The sync loop is the only request in the background. */
#ifndef TEST_MATRIX_PEER_CLIENT_H
#define TEST_MATRIX_PEER_CLIENT_H

#include "matrix/client/send.h"
#include "peer_http.h"

/* The calls of a client to its user. Texts stay until the function returns. */
struct peer_listener {
    void *data;
    /* An event was stored, or released. */
    void (*on_event)(void *data, const struct mxstore_event *event);
    void (*on_member)(void *data, struct span room_id, const struct mxclient_event *event);
    void (*on_verify)(void *data, const struct mxclient_verify_news *news);
    void (*on_session)(void *data, enum mxclient_state former); /* its request was answered */
};

struct peer_client {
    struct mxclient client;
    struct peer_listener listener;
    struct tr_system *system;
    struct sql *sql;
    struct json_doc doc; /* the answer of peer_ask */
    struct peer_transfer ask;
    struct buffer user; /* to log in again after a soft logout */
    struct buffer password;
    CURLM *multi;
    struct peer_transfer sync;
    struct json_doc sync_doc;
    struct mxclient_request sync_request;
    bool is_syncing;
    bool is_first_sync;
    int64_t sync_sent_ms;
    int64_t sync_next_ms;
    int64_t seq_told; /* of the last event that the listener has */
};

/* Open the database at `path`; true if there is a login in it to continue. */
bool peer_client_open(struct peer_client *peer, const char *path);
void peer_client_close(struct peer_client *peer);
/* Drop all that is in memory and load it again. */
void peer_client_restart(struct peer_client *peer);
/* Log in for the first time. Returns 0, or why the session does not accept the answer. */
int peer_client_login(
    struct peer_client *peer, struct span url, struct span user, struct span word);
int peer_client_logout(struct peer_client *peer);

extern const struct mx_random peer_random;
int64_t peer_now_ms(void);
void peer_pass_ms(int64_t ms); /* the client's clock goes forward */
/* Send a request until it has a final verdict: waits, refreshes and logs in again in between. The
 * answer is in peer->doc. Ends the request. */
struct mxclient_outcome peer_ask(struct peer_client *peer, struct mxclient_request *request);
/* The same for a body of this type and an answer that is no JSON. */
struct mxclient_answer peer_ask_raw(
    struct peer_client *peer, struct mxclient_request *request, const char *type);
void peer_commit(struct peer_client *peer, struct sql_unit *unit);

/* Continue the sync loop: wait up to `limit_ms` for the answer or for `fd` (-1: none), and do all that
 * is due. Returns true if `fd` can be read. */
bool peer_turn(struct peer_client *peer, int fd, int64_t limit_ms);
/* Take the steps of verifications that are due, send their messages and tell their news. */
void peer_verify(struct peer_client *peer);
/* Query the devices of outdated users. */
void peer_query(struct peer_client *peer);
/* Do all that a message to a room needs; the last need is MXCLIENT_NEED_NOTHING, or says what is
 * missing. */
enum mxclient_need peer_prepare(struct peer_client *peer, struct mxclient_room *room);
/* Send an event. The answer is in peer->doc. Fails like mxclient_send, TR_EAGAIN if something is
 * missing, TR_EACCES if the server refuses. */
int peer_send(
    struct peer_client *peer, struct mxclient_room *room, const struct mxclient_message *message);

#endif
