/* SPDX-License-Identifier: Apache-2.0 */
/* session_store.h: users and their sessions in the database. Each function adds steps to a unit. */
#ifndef AUTH_SESSION_STORE_H
#define AUTH_SESSION_STORE_H

#include "sql/sql.h"
#include "support/buffer.h"

enum { SESSION_HASH_BYTES = 32 };

/* The step of session_store_create and session_store_rotate that returns the user: id, email, role. */
enum { SESSION_USER_STEP = 1 };

struct session_row {
    const char *id;
    const unsigned char *refresh_hash; /* SESSION_HASH_BYTES */
    const char *user_id;               /* for a user who is new */
    struct span issuer, subject;       /* identify the user */
    struct span email;                 /* absent: unknown or unverified */
    const char *role;
    struct span token_id; /* of the ID token, which serves once */
    int64_t token_expires_s;
    int64_t now_s;
    int64_t expires_s;
};
/* Remember the ID token, insert or update the user, and insert the session. Step 0 fails if the token
 * was used before. */
void session_store_create(struct sql_unit *unit, const struct session_row *row);

struct session_rotation {
    const char *id;
    const unsigned char *old_hash;
    const unsigned char *new_hash;
    int64_t now_s;
    int64_t expires_s;
};
/* Replace the refresh token's hash. Step 0 fails if the session ended or has another hash. */
void session_store_rotate(struct sql_unit *unit, const struct session_rotation *rotation);

/* End a session. The step returns the user's id, or no row if the session had ended. */
void session_store_end(struct sql_unit *unit, struct span id, int64_t now_s);
/* Find the role of a session's user. The step returns no row if the session does not stand. */
void session_store_find(struct sql_unit *unit, struct span id, struct span user_id, int64_t now_s);
/* Find a user: id, email, role, or no row. */
void session_store_find_user(struct sql_unit *unit, struct span user_id);
/* Delete sessions that expired before a time. */
void session_store_purge(struct sql_unit *unit, int64_t before_s);

/* Give the role "admin" to the users with these verified addresses and to no other. `admins` ends with
 * NULL; it may be NULL. Blocks. TR_ENOMEM, or the errors of sql.h. */
int session_store_set_admins(struct sql *sql, const char *const *admins);

#endif
