/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/session_store.h"

#include <troupe/error.h>

#include "auth/auth_store.h"
#include "base/assert.h"

SQL_STATEMENT(put_user,
    "INSERT INTO auth_users (id, issuer, subject, email, role, created_s, seen_s)"
    " VALUES ($1, $2, $3, $4, $5, $6, $6)"
    " ON CONFLICT (issuer, subject) DO UPDATE"
    " SET email = excluded.email, role = excluded.role, seen_s = excluded.seen_s"
    " RETURNING id, email, role");
SQL_STATEMENT(put_session,
    "INSERT INTO auth_sessions (id, user_id, refresh_hash, created_s, expires_s)"
    " SELECT $1, id, $4, $5, $6 FROM auth_users WHERE issuer = $2 AND subject = $3");

static void put_user_step(struct sql_unit *unit, const struct session_row *row)
{
    sql_unit_step(unit, &put_user, 1);
    sql_unit_text(unit, span_of(row->user_id));
    sql_unit_text(unit, row->issuer);
    sql_unit_text(unit, row->subject);
    if (row->email.at != NULL)
        sql_unit_text(unit, row->email);
    else
        sql_unit_null(unit);
    sql_unit_text(unit, span_of(row->role));
    sql_unit_int(unit, row->now_s);
}

void session_store_create(struct sql_unit *unit, const struct session_row *row)
{
    tr_assert(row->issuer.size > 0);
    tr_assert(row->subject.size > 0);
    auth_store_remember_token(unit, row->issuer, row->token_id, row->token_expires_s);
    put_user_step(unit, row);
    sql_unit_step(unit, &put_session, 1);
    sql_unit_text(unit, span_of(row->id));
    sql_unit_text(unit, row->issuer);
    sql_unit_text(unit, row->subject);
    sql_unit_blob(unit, row->refresh_hash, SESSION_HASH_BYTES);
    sql_unit_int(unit, row->now_s);
    sql_unit_int(unit, row->expires_s);
}

SQL_STATEMENT(rotate_session,
    "UPDATE auth_sessions SET refresh_hash = $3, expires_s = $4"
    " WHERE id = $1 AND refresh_hash = $2 AND revoked_s IS NULL AND expires_s > $5");
SQL_STATEMENT(user_of_session,
    "SELECT u.id, u.email, u.role FROM auth_sessions s JOIN auth_users u ON u.id = s.user_id"
    " WHERE s.id = $1");

void session_store_rotate(struct sql_unit *unit, const struct session_rotation *rotation)
{
    tr_assert(rotation->expires_s > rotation->now_s);
    sql_unit_step(unit, &rotate_session, 1);
    sql_unit_text(unit, span_of(rotation->id));
    sql_unit_blob(unit, rotation->old_hash, SESSION_HASH_BYTES);
    sql_unit_blob(unit, rotation->new_hash, SESSION_HASH_BYTES);
    sql_unit_int(unit, rotation->expires_s);
    sql_unit_int(unit, rotation->now_s);
    sql_unit_step(unit, &user_of_session, 1);
    sql_unit_text(unit, span_of(rotation->id));
}

SQL_STATEMENT(end_session, "UPDATE auth_sessions SET revoked_s = $2"
                           " WHERE id = $1 AND revoked_s IS NULL RETURNING user_id");

void session_store_end(struct sql_unit *unit, struct span id, int64_t now_s)
{
    sql_unit_step(unit, &end_session, SQL_ROWS_ANY);
    sql_unit_text(unit, id);
    sql_unit_int(unit, now_s);
}

SQL_STATEMENT(find_session,
    "SELECT u.role FROM auth_sessions s JOIN auth_users u ON u.id = s.user_id"
    " WHERE s.id = $1 AND u.id = $2 AND s.revoked_s IS NULL AND s.expires_s > $3");

void session_store_find(struct sql_unit *unit, struct span id, struct span user_id, int64_t now_s)
{
    sql_unit_step(unit, &find_session, SQL_ROWS_ANY);
    sql_unit_text(unit, id);
    sql_unit_text(unit, user_id);
    sql_unit_int(unit, now_s);
}

SQL_STATEMENT(find_user, "SELECT id, email, role FROM auth_users WHERE id = $1");

void session_store_find_user(struct sql_unit *unit, struct span user_id)
{
    sql_unit_step(unit, &find_user, SQL_ROWS_ANY);
    sql_unit_text(unit, user_id);
}

SQL_STATEMENT(purge_sessions, "DELETE FROM auth_sessions WHERE expires_s < $1");

void session_store_purge(struct sql_unit *unit, int64_t before_s)
{
    sql_unit_step(unit, &purge_sessions, SQL_ROWS_ANY);
    sql_unit_int(unit, before_s);
}

SQL_STATEMENT(drop_admins, "UPDATE auth_users SET role = 'user' WHERE role = 'admin'");
SQL_STATEMENT(raise_admin, "UPDATE auth_users SET role = 'admin' WHERE lower(email) = lower($1)");

int session_store_set_admins(struct sql *sql, const char *const *admins)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    if (unit == NULL)
        return TR_ENOMEM;
    sql_unit_step(unit, &drop_admins, SQL_ROWS_ANY);
    for (size_t i = 0; admins != NULL && admins[i] != NULL; i++) {
        sql_unit_step(unit, &raise_admin, SQL_ROWS_ANY);
        sql_unit_text(unit, span_of(admins[i]));
    }
    rc = sql_write_wait(sql, unit);
    sql_unit_destroy(unit);
    return rc;
}
