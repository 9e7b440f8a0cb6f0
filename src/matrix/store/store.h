/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: the data of a Matrix client on disk, as rows and units of SQL. No I/O of its own: callers
 * add steps to a unit and submit it (sql.h).
 *
 * 1. One unit per /sync answer: next_batch, ratchets, one-time keys and received events are stored
 *    together, before the next request. The server deletes to-device messages once the new token is
 *    used, so anything else would lose keys.
 * 2. next_batch is the transport's cursor; a room's marker is the reader's. They are different
 *    columns and move apart.
 * 3. A ratchet is stored before its bytes leave; a transaction id before its first request.
 * 4. Secrets (pickles, tokens, texts that the server never sees) are sealed with the host's key, which
 *    is not in the database.
 * 5. Encryption of a room is sticky: no statement takes it back. */
#ifndef MATRIX_STORE_STORE_H
#define MATRIX_STORE_STORE_H

#include "sql/sql.h"

enum { MXSTORE_MIGRATIONS = 7 };
extern const struct sql_migration mxstore_migrations[MXSTORE_MIGRATIONS];

/* ---- rows ------------------------------------------------------------------------------------ */

/* Each list has the columns of a table, in the order of its statements: FIRST, then NEXT for the
 * others. It declares the struct, the names in SELECT and INSERT, and the table of columns. An
 * absent text or blob, {NULL, 0}, is NULL. */

enum mxstore_login { MXSTORE_LOGGED_IN, MXSTORE_SOFT_LOGGED_OUT, MXSTORE_LOGGED_OUT };
/* The one session of a database. user_id and device_id never change: a store of another device
 * would reuse its keys. */
#define MXSTORE_SESSION(FIRST, NEXT)                                                               \
    FIRST(TEXT, user_id)                                                                           \
    NEXT(TEXT, device_id)                                                                          \
    NEXT(TEXT, homeserver)                                                                         \
    NEXT(INT, login)          /* enum mxstore_login */                                             \
    NEXT(BLOB, access_token)  /* sealed */                                                         \
    NEXT(BLOB, refresh_token) /* sealed */                                                         \
    NEXT(INT, token_expires_ms)                                                                    \
    NEXT(BLOB, account) /* a pickle */                                                             \
    NEXT(TEXT, filter_id)                                                                          \
    NEXT(INT, txn_next) /* the next transaction id of this device */                               \
    NEXT(INT, fallback_rotated_ms)

/* A user whose devices are tracked. A query clears is_outdated only if `change` is still the same:
 * a newer change may arrive while it runs. */
#define MXSTORE_USER(FIRST, NEXT)                                                                  \
    FIRST(TEXT, user_id)                                                                           \
    NEXT(INT, is_outdated)                                                                         \
    NEXT(INT, change)

enum mxstore_trust { MXSTORE_UNVERIFIED, MXSTORE_VERIFIED, MXSTORE_BLOCKED };
/* The keys of a known device never change. */
#define MXSTORE_DEVICE(FIRST, NEXT)                                                                \
    FIRST(TEXT, user_id)                                                                           \
    NEXT(TEXT, device_id)                                                                          \
    NEXT(TEXT, identity_key)                                                                       \
    NEXT(TEXT, signing_key)                                                                        \
    NEXT(INT, trust) /* enum mxstore_trust */                                                      \
    NEXT(INT, is_deleted)                                                                          \
    NEXT(TEXT, body)       /* device_keys as signed */                                             \
    NEXT(INT, unwedged_ms) /* the last attempt to replace its session */

#define MXSTORE_OLM(FIRST, NEXT)                                                                   \
    FIRST(TEXT, identity_key)                                                                      \
    NEXT(TEXT, session_id)                                                                         \
    NEXT(BLOB, pickle)                                                                             \
    NEXT(INT, created_ms)                                                                          \
    NEXT(INT, received_ms) /* the session received on last is the one to send on */

#define MXSTORE_OUTBOUND(FIRST, NEXT)                                                              \
    FIRST(TEXT, room_id)                                                                           \
    NEXT(TEXT, session_id)                                                                         \
    NEXT(BLOB, pickle)                                                                             \
    NEXT(INT, created_ms)                                                                          \
    NEXT(INT, message_count)

/* A device that has a room's session, from which index on, or the code why it was withheld. */
#define MXSTORE_SHARE(FIRST, NEXT)                                                                 \
    FIRST(TEXT, session_id)                                                                        \
    NEXT(TEXT, user_id)                                                                            \
    NEXT(TEXT, device_id)                                                                          \
    NEXT(TEXT, identity_key)                                                                       \
    NEXT(INT, message_index)                                                                       \
    NEXT(TEXT, withheld)

enum mxstore_source { MXSTORE_FROM_OWNER, MXSTORE_FORWARDED, MXSTORE_IMPORTED };
/* A received session, once for each device that has brought it. */
#define MXSTORE_INBOUND(FIRST, NEXT)                                                               \
    FIRST(TEXT, room_id)                                                                           \
    NEXT(TEXT, session_id)                                                                         \
    NEXT(TEXT, sender_key)                                                                         \
    NEXT(TEXT, signing_key)                                                                        \
    NEXT(BLOB, pickle)                                                                             \
    NEXT(INT, first_index)                                                                         \
    NEXT(INT, source)   /* enum mxstore_source */                                                  \
    NEXT(INT, received) /* by the clock of sessions (megolm.h) */                                  \
    NEXT(INT, used)     /* the same, when it decrypted last; 0: never */

#define MXSTORE_ROOM(FIRST, NEXT)                                                                  \
    FIRST(TEXT, room_id)                                                                           \
    NEXT(TEXT, membership)                                                                         \
    NEXT(INT, is_encrypted) /* never goes back to 0 */                                             \
    NEXT(INT, rotation_ms)                                                                         \
    NEXT(INT, rotation_messages)                                                                   \
    NEXT(INT, is_sync_room)                                                                        \
    NEXT(TEXT, name)        /* absent: it has none */                                              \
    NEXT(TEXT, inviter)     /* the user who invited us; absent: nobody did */                      \
    NEXT(TEXT, algorithm)   /* of m.room.encryption; absent: none was given */                     \
    NEXT(INT, own_level)    /* our power */                                                        \
    NEXT(INT, invite_level) /* the power that an invitation needs */                               \
    NEXT(INT, state_level)  /* the power that a state event needs, unless its type has its own */

enum mxstore_status {
    MXSTORE_HELD, /* ciphertext without its key; `reason` says why */
    MXSTORE_ENQUEUED,
    MXSTORE_LEASED,
    MXSTORE_RETRYING,
    MXSTORE_APPLIED,
    MXSTORE_ABANDONED,
};
/* X(name, text): what is known about the device that wrote an event. The four from UNVERIFIED on follow
 * that device, whose own keys came with the session: its trust may change later. */
#define MXSTORE_PROOFS(X)                                                                          \
    X(UNKNOWN, "unknown")       /* not decrypted yet, or stored by an older version */             \
    X(SERVER, "unencrypted")    /* the homeserver may have written it */                           \
    X(US, "own")                /* this device encrypted it */                                     \
    X(UNVERIFIED, "unverified") /* and then in the order of enum mxstore_trust */                  \
    X(VERIFIED, "verified")                                                                        \
    X(BLOCKED, "blocked")                                                                          \
    X(GONE, "gone")           /* the device was deleted, or is listed with other keys */           \
    X(FORWARDED, "forwarded") /* another device of ours gave the session and names the author */   \
    X(IMPORTED, "imported")   /* a key file did */
#define MXSTORE__PROOF_ENUM(name, text) MXSTORE_BY_##name,
enum mxstore_proof { MXSTORE_PROOFS(MXSTORE__PROOF_ENUM) MXSTORE_PROOF_COUNT };
#undef MXSTORE__PROOF_ENUM
/* Return the word for a stored proof; that of UNKNOWN for a number out of range. */
const char *mxstore_proof_text(int64_t proof);

/* A received event, or one that this device sent. event_id is the only test for duplicates, whichever
 * request brought it. */
#define MXSTORE_EVENT(FIRST, NEXT)                                                                 \
    FIRST(TEXT, event_id)                                                                          \
    NEXT(INT, seq) /* the order in which events become readable and are applied */                 \
    NEXT(TEXT, room_id)                                                                            \
    NEXT(TEXT, sender)                                                                             \
    NEXT(TEXT, type)                                                                               \
    NEXT(INT, origin_ms)                                                                           \
    NEXT(INT, status) /* enum mxstore_status */                                                    \
    NEXT(INT, reason) /* 0, or an MX_E* code */                                                    \
    NEXT(INT, lease_until_ms)                                                                      \
    NEXT(INT, attempts)                                                                            \
    NEXT(BLOB, body)         /* of a decrypted event sealed; mxclient_body_open reads it */        \
    NEXT(INT, proof)         /* enum mxstore_proof, as it was at decryption */                     \
    NEXT(TEXT, device_id)    /* of the author; absent: not known */                                \
    NEXT(TEXT, identity_key) /* the same */                                                        \
    NEXT(INT, is_own)        /* this device sent it */

enum mxstore_sending { MXSTORE_PENDING, MXSTORE_SENDING, MXSTORE_SENT, MXSTORE_FAILED };
/* An event to send. The encrypted body is stored with the ratchet, before the first request. */
#define MXSTORE_OUTBOX(FIRST, NEXT)                                                                \
    FIRST(TEXT, txn_id)                                                                            \
    NEXT(INT, priority)                                                                            \
    NEXT(INT, created_ms)                                                                          \
    NEXT(TEXT, room_id)                                                                            \
    NEXT(TEXT, type)                                                                               \
    NEXT(BLOB, content) /* sealed */                                                               \
    NEXT(BLOB, body)    /* as it is sent */                                                        \
    NEXT(INT, sending)  /* enum mxstore_sending */                                                 \
    NEXT(INT, lease_until_ms)                                                                      \
    NEXT(INT, attempts)                                                                            \
    NEXT(TEXT, event_id)                                                                           \
    NEXT(TEXT, reason)                                                                             \
    NEXT(INT, policy) /* enum mxclient_policy: the devices that get its key */

/* A hole in a room's timeline, from its newer end back to its older one, to be filled by /messages
 * before the marker passes it. A walk shrinks the row from either end. */
#define MXSTORE_GAP(FIRST, NEXT)                                                                   \
    FIRST(TEXT, room_id)                                                                           \
    NEXT(TEXT, from_token)                                                                         \
    NEXT(TEXT, until_token)                                                                        \
    NEXT(INT, created_ms)

/* A user's word why it withholds a session's key from us. The key itself deletes the row. */
#define MXSTORE_WITHHELD(FIRST, NEXT)                                                              \
    FIRST(TEXT, room_id)                                                                           \
    NEXT(TEXT, session_id)                                                                         \
    NEXT(TEXT, sender)                                                                             \
    NEXT(INT, reason) /* an MX_E* code */                                                          \
    NEXT(INT, received_ms)

enum mxstore_asking { MXSTORE_WANTED, MXSTORE_ASKED, MXSTORE_CAME };
/* A key that we ask our other devices for. */
#define MXSTORE_KEY_REQUEST(FIRST, NEXT)                                                           \
    FIRST(TEXT, room_id)                                                                           \
    NEXT(TEXT, session_id)                                                                         \
    NEXT(TEXT, request_id)                                                                         \
    NEXT(INT, asking) /* enum mxstore_asking */                                                    \
    NEXT(INT, created_ms)

/* A verification under way. After a restart it is cancelled. */
#define MXSTORE_VERIFICATION(FIRST, NEXT)                                                          \
    FIRST(TEXT, transaction_id)                                                                    \
    NEXT(TEXT, user_id)                                                                            \
    NEXT(TEXT, device_id)                                                                          \
    NEXT(TEXT, step)                                                                               \
    NEXT(INT, updated_ms)

/* X(list, noun): all of the above. */
#define MXSTORE_ROWS(X)                                                                            \
    X(MXSTORE_SESSION, session)                                                                    \
    X(MXSTORE_USER, user)                                                                          \
    X(MXSTORE_DEVICE, device)                                                                      \
    X(MXSTORE_OLM, olm)                                                                            \
    X(MXSTORE_OUTBOUND, outbound)                                                                  \
    X(MXSTORE_SHARE, share)                                                                        \
    X(MXSTORE_INBOUND, inbound)                                                                    \
    X(MXSTORE_ROOM, room)                                                                          \
    X(MXSTORE_EVENT, event)                                                                        \
    X(MXSTORE_OUTBOX, outbox)                                                                      \
    X(MXSTORE_GAP, gap)                                                                            \
    X(MXSTORE_WITHHELD, withheld)                                                                  \
    X(MXSTORE_KEY_REQUEST, key_request)                                                            \
    X(MXSTORE_VERIFICATION, verification)

/* Views are read as rows and never stored whole. Cursors have steps with a condition below: a row
 * that is stored whole could take one back. */
#define MXSTORE_TOKEN(FIRST, NEXT) FIRST(TEXT, next_batch)
#define MXSTORE_CURSOR(FIRST, NEXT)                                                                \
    FIRST(TEXT, room_id)                                                                           \
    NEXT(TEXT, marker_event)                                                                       \
    NEXT(INT, marker_ms)                                                                           \
    NEXT(INT, floor_ms) /* MXSTORE_NO_FLOOR: no ciphertext waits */                                \
    NEXT(INT, floor_revision)
#define MXSTORE_NO_FLOOR INT64_MAX
/* A readable event, and its proof by what is known of its device now. */
#define MXSTORE_READABLE(FIRST, NEXT) MXSTORE_EVENT(FIRST, NEXT) NEXT(INT, proof_now)
/* An event that cannot be read, without its ciphertext; and how many have the same reason. */
#define MXSTORE_UNREAD(FIRST, NEXT)                                                                \
    FIRST(INT, seq)                                                                                \
    NEXT(TEXT, room_id)                                                                            \
    NEXT(TEXT, event_id)                                                                           \
    NEXT(TEXT, sender)                                                                             \
    NEXT(INT, origin_ms)                                                                           \
    NEXT(INT, status) /* MXSTORE_HELD or MXSTORE_ABANDONED */                                      \
    NEXT(INT, reason)
#define MXSTORE_UNREAD_COUNT(FIRST, NEXT)                                                          \
    FIRST(INT, status)                                                                             \
    NEXT(INT, reason)                                                                              \
    NEXT(INT, events)
#define MXSTORE_VIEWS(X)                                                                           \
    X(MXSTORE_TOKEN, token)                                                                        \
    X(MXSTORE_CURSOR, cursor)                                                                      \
    X(MXSTORE_READABLE, readable)                                                                  \
    X(MXSTORE_UNREAD, unread)                                                                      \
    X(MXSTORE_UNREAD_COUNT, unread_count)

/* clang-format off */
#define MXSTORE__MEMBER_INT(name) int64_t name;
#define MXSTORE__MEMBER_TEXT(name) struct span name;
#define MXSTORE__MEMBER_BLOB(name) struct span name;
#define MXSTORE__MEMBER(kind, name) MXSTORE__MEMBER_##kind(name)
#define MXSTORE__STRUCT(list, noun) struct mxstore_##noun { list(MXSTORE__MEMBER, MXSTORE__MEMBER) };
MXSTORE_ROWS(MXSTORE__STRUCT)
MXSTORE_VIEWS(MXSTORE__STRUCT)
#define MXSTORE__ENUM(list, noun) MXSTORE_IS_##noun,
enum mxstore_kind { MXSTORE_ROWS(MXSTORE__ENUM) MXSTORE_VIEWS(MXSTORE__ENUM) MXSTORE_KINDS };
/* clang-format on */

/* Add the step that stores a row, a struct of this kind, whole: it inserts or replaces. The unit
 * fails with SQL_EROWS for a session of another user or device, a device with other keys, and an
 * outbound session that goes back. An event that is stored already stays as it is. */
void mxstore_put(struct sql_unit *unit, enum mxstore_kind kind, const void *row);
/* Add the step that reads the row with this key, or, of a key of two parts, all rows with its first
 * part. For a session and its token the key is ignored. Readable and unread events have steps of their
 * own. */
void mxstore_get(struct sql_unit *unit, enum mxstore_kind kind, struct span key);
/* Add the step that reads all rows of a kind, but not of a view, in the order of their keys. */
void mxstore_list(struct sql_unit *unit, enum mxstore_kind kind);
/* Add the step that reads the held events of a room after a seq, in its order. */
void mxstore_get_held(
    struct sql_unit *unit, struct span room_id, int64_t after_seq, uint32_t count_max);
/* Return the revision of the room's floor as such a step with at least one row saw it. */
int64_t mxstore_held_revision(const struct sql_unit *unit, uint32_t step);
/* Add the step that reads the readable events after a seq, MXSTORE_IS_readable, in its order; with
 * `own` also those that this device sent. */
void mxstore_get_events(struct sql_unit *unit, int64_t after_seq, uint32_t count_max, bool own);
/* Add the step that reads the events after a seq that cannot be read, MXSTORE_IS_unread, in its order. */
void mxstore_get_unread(struct sql_unit *unit, int64_t after_seq, uint32_t count_max);
/* Add the step that counts all of them by status and reason, MXSTORE_IS_unread_count. */
void mxstore_count_unread(struct sql_unit *unit);
/* Add the step that reads the oldest unsent outbox row of each room, the oldest first. */
void mxstore_get_unsent(struct sql_unit *unit, uint32_t count_max);
/* Add the step that reads the outbox rows that are not sent, given up ones too, in their order, whose
 * number (of the transaction id) is above `after`. */
void mxstore_get_outbox(struct sql_unit *unit, int64_t after, uint32_t count_max);
/* Add the step that reads the largest seq of an event, one integer; 0 without events. */
void mxstore_get_last_seq(struct sql_unit *unit);
/* Add the step that counts the outbox rows that are neither sent nor given up, and those that are
 * given up: two integers. */
void mxstore_count_unsent(struct sql_unit *unit);
/* Copy a row of a step that has ended. Spans point into the unit. */
void mxstore_row(const struct sql_unit *unit, uint32_t step, uint32_t row, enum mxstore_kind kind,
    void *ret_row);

/* ---- steps with a condition ------------------------------------------------------------------- */

/* Each fails its unit with SQL_EROWS if the condition does not hold. */

/* Move next_batch on from the token that the request was made with; {NULL, 0} is none. */
void mxstore_advance_token(struct sql_unit *unit, struct span from, struct span to);
/* Note that a message index of a session belongs to this event. Fails for a replay: the index
 * belongs to another event. */
void mxstore_note_index(
    struct sql_unit *unit, struct span session_id, int64_t message_index, struct span event_id);
/* Guard an event whose row is in this unit before this step, or was stored: if its message index
 * belongs to another event already, it is a replay, and the row is abandoned with `reason`, its body
 * emptied. Never fails the unit: a replay must not stop a whole answer. */
void mxstore_guard_index(struct sql_unit *unit, struct span session_id, int64_t message_index,
    struct span event_id, int reason);
/* Replace held ciphertext by what it decrypted to: the row's type, body, author and seq. An event that
 * is not held stays as it is. Its new seq comes after all others, so that a reader who has passed its
 * former one sees it. */
void mxstore_release_event(struct sql_unit *unit, const struct mxstore_event *row);
/* Note why an event is still held, or (`status` MXSTORE_ABANDONED) that no key can help. */
void mxstore_judge_held(
    struct sql_unit *unit, struct span event_id, enum mxstore_status status, int reason);
/* Forget a gap: it is filled, or its newer end has another token now. */
void mxstore_close_gap(struct sql_unit *unit, struct span room_id, struct span from_token);
/* Note when a received session decrypted last, or forget it; no condition. */
void mxstore_use_inbound(struct sql_unit *unit, const struct mxstore_inbound *row);
void mxstore_drop_inbound(struct sql_unit *unit, const struct mxstore_inbound *row);
/* Forget a session with a device, or, with an absent id, all of them; no condition. */
void mxstore_drop_olm(struct sql_unit *unit, struct span identity_key, struct span session_id);
/* Forget a user's notice, or a request for a key. */
void mxstore_drop_withheld(
    struct sql_unit *unit, struct span room_id, struct span session_id, struct span sender);
void mxstore_drop_key_request(struct sql_unit *unit, struct span room_id, struct span session_id);
/* Store the body of a pending outbox row that has none, with the type that it is sent as. */
void mxstore_set_body(
    struct sql_unit *unit, struct span txn_id, struct span type, struct span body);
/* Give up an outbox row; it is kept, with the reason. */
void mxstore_fail_outbox(struct sql_unit *unit, struct span txn_id, struct span reason);
/* Make a claimed outbox row pending again, with the reason why this try failed. */
void mxstore_delay_outbox(struct sql_unit *unit, struct span txn_id, struct span reason);
/* Make an outbox row that is not sent pending, as if it had not been tried; or forget it. */
void mxstore_retry_outbox(struct sql_unit *unit, struct span txn_id);
void mxstore_drop_outbox(struct sql_unit *unit, struct span txn_id);
/* Claim an outbox row until `lease_until_ms`, which counts an attempt: it is pending, or its lease
 * ended before now. */
void mxstore_claim_outbox(
    struct sql_unit *unit, struct span txn_id, int64_t now_ms, int64_t lease_until_ms);
/* Note the answer to a claimed outbox row. */
void mxstore_sent_outbox(struct sql_unit *unit, struct span txn_id, struct span event_id);
/* Forget outbox rows that were sent and are older than a time; no condition. */
void mxstore_prune_outbox(struct sql_unit *unit, int64_t before_ms);
/* Note that a query has answered, if no later change has arrived: no condition on the row count. */
void mxstore_clear_outdated(struct sql_unit *unit, struct span user_id, int64_t change);

/* A room's floor is the time of the earliest ciphertext that waits for a key. It is lowered at any
 * time, which counts a revision up, and raised only by a walk that saw the latest revision. The
 * marker only moves forward, stays below the floor, and stays where it is while the room has a gap.
 * A marker or a floor that must not move stays, and the unit goes on. */
void mxstore_move_marker(
    struct sql_unit *unit, struct span room_id, struct span event_id, int64_t origin_ms);
void mxstore_lower_floor(struct sql_unit *unit, struct span room_id, int64_t origin_ms);
void mxstore_raise_floor(
    struct sql_unit *unit, struct span room_id, int64_t revision, int64_t origin_ms);

#endif
