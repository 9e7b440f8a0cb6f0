/* SPDX-License-Identifier: Apache-2.0 */
/* sync_link.h: the requests to a Matrix engine as JSON lines, over a Unix socket or within a process.
 *
 *     {"id":1,"do":"send","room":"!r:x","type":"m.room.message","content":{…}}
 *     {"id":1,"ok":true,"result":"m1.2"}          or
 *     {"id":1,"ok":false,"code":-5,"text":"…"}
 *
 * 1. Every request is answered once, in the order in which the engine ends them. `do` is a verb of
 *    engine.h in small letters; sync_wire.c has the members. `timeline` lists the events after `after`
 *    by their numbers, with those that cannot be read; `unread` counts these by reason; sync_held.c
 *    answers both.
 * 2. A line over its limit closes the connection. A request over the limit is answered with TR_EFULL;
 *    so is a connection over the limit, with the id 0, and closed. A request whose result cannot be
 *    written is answered with the reason. A connection that ends cancels its requests, which get no
 *    answer.
 * 3. The socket has the mode 0600, and others cannot write its directory. Both ends check that the
 *    other one is a process of the same user. */
#ifndef CLI_SYNC_LINK_H
#define CLI_SYNC_LINK_H

#include <sys/types.h>

#include "json/json.h"
#include "json/json_write.h"
#include "matrix/client/engine.h"

enum {
    SYNC_LINE_MAX = 96 << 20, /* a key file with the most sessions fits */
    SYNC_PEERS_MAX = 32,
    SYNC_REQUESTS_MAX = 8, /* of one connection */
    SYNC_EVENTS_MAX = 50,  /* in one answer */
};

struct sync_link_options {
    tr_sender engine;                /* borrowed, like the key; both outlive the link */
    struct sql *sql;                 /* the engine's; borrowed too */
    const struct mx_pickle_key *key; /* opens stored texts */
    int listen_fd;                   /* taken; -1: none */
    int client_fd;                   /* a connection of this process; taken; -1: none */
    uid_t uid;                       /* the user whose processes may connect */
};
/* Start to serve. On failure the descriptors stay the caller's. */
int sync_link_spawn(struct tr_system *system, const struct sync_link_options *options,
    const struct tr_spawn_options *spawn, tr_sender *ret_link);

/* Return whether the process at the other end of a Unix socket is this user's. */
bool sync_link_is_of(int fd, uid_t uid);

/* Return the sentence of a code: of the database, of the Matrix code or of the library. sync_text.c */
const char *sync_error_text(int rc);

/* ---- sync_wire.c: requests and answers as JSON ------------------------------------------------ */

/* Create the job of a request. TR_EINVAL: no such verb, or a member is not valid; TR_EIO: a file
 * cannot be opened; TR_ENOMEM. */
int sync_wire_read(const struct json *request, struct mxengine_job **ret_job);
/* Append the line of an answer. `job` may be NULL after a failure of the request. */
int sync_wire_write(const struct mxengine_job *job, int64_t id, int status,
    const struct mx_pickle_key *key, struct buffer *out);
/* Return whether an answer with this error may have a sentence about it, `result`. */
bool sync_wire_has_reason(int status);
/* Write an event that can be read. */
void sync_wire_put_event(const struct mxstore_readable *event, const struct mx_pickle_key *key,
    struct json_writer *writer);

/* ---- sync_held.c: stored events ---------------------------------------------------------------- */

/* Create the unit of a request `timeline` or `unread`; false for another verb. */
bool sync_held_read(const struct json *request, struct sql_unit **ret_unit);
/* Append the line of its answer. The unit has ended. */
int sync_held_write(const struct sql_unit *unit, const struct mx_pickle_key *key, bool is_count,
    int64_t id, struct buffer *out);

#endif
