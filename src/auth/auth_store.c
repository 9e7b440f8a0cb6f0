/* SPDX-License-Identifier: Apache-2.0 */
/* auth_store.c: the schema of this folder, and the statements on ids of used tokens. */
#include "auth/auth_store.h"

#include "base/assert.h"
#include "sql/unit.h"

/* ---- schema --------------------------------------------------------------------------------- */

const struct sql_migration auth_migrations[] = {
    {
        .version = 1,
        .name = "auth: token ids that were used",
        .up = "CREATE TABLE auth_jti (\n"
              "    issuer TEXT NOT NULL,\n"
              "    jti TEXT NOT NULL,\n"
              "    expires_s BIGINT NOT NULL,\n"
              "    PRIMARY KEY (issuer, jti)\n"
              ");\n"
              "CREATE INDEX auth_jti_expires ON auth_jti (expires_s);\n",
        .down = "DROP TABLE auth_jti;\n",
    },
    {
        .version = 2,
        .name = "auth: users and sessions",
        .up = "CREATE TABLE auth_users (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    issuer TEXT NOT NULL,\n"
              "    subject TEXT NOT NULL,\n"
              "    email TEXT,\n"
              "    role TEXT NOT NULL,\n"
              "    created_s BIGINT NOT NULL,\n"
              "    seen_s BIGINT NOT NULL,\n"
              "    UNIQUE (issuer, subject)\n"
              ");\n"
              "CREATE TABLE auth_sessions (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    user_id TEXT NOT NULL REFERENCES auth_users (id),\n"
              "    refresh_hash {blob} NOT NULL,\n"
              "    created_s BIGINT NOT NULL,\n"
              "    expires_s BIGINT NOT NULL,\n"
              "    revoked_s BIGINT\n"
              ");\n"
              "CREATE INDEX auth_sessions_expires ON auth_sessions (expires_s);\n"
              "CREATE INDEX auth_sessions_user ON auth_sessions (user_id);\n",
        .down = "DROP TABLE auth_sessions;\nDROP TABLE auth_users;\n",
    },
};
const size_t auth_migration_count = sizeof auth_migrations / sizeof auth_migrations[0];

/* ---- token ids ------------------------------------------------------------------------------ */

SQL_STATEMENT(consume,
    "INSERT INTO auth_jti (issuer, jti, expires_s) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING");

void auth_store_remember_token(
    struct sql_unit *unit, struct span issuer, struct span id, int64_t expires_s)
{
    tr_assert(issuer.size > 0);
    tr_assert(id.size > 0);
    sql_unit_step(unit, &consume, 1);
    sql_unit_text(unit, issuer);
    sql_unit_text(unit, id);
    sql_unit_int(unit, expires_s);
}

void auth_consume(struct sql_unit *unit, const struct auth_claims *claims)
{
    tr_assert(unit == NULL || unit->step_count == unit->decision.step_count);
    if (unit == NULL || claims->kind != AUTH_SERVICE)
        return;
    auth_store_remember_token(unit, claims->issuer, claims->jti, (int64_t)claims->expires_s);
}

SQL_STATEMENT(find_consumed, "SELECT 1 FROM auth_jti WHERE issuer = $1 AND jti = $2");

void auth_find(struct sql_unit *unit, const struct auth_claims *claims)
{
    sql_unit_step(unit, &find_consumed, SQL_ROWS_ANY);
    sql_unit_text(unit, claims->issuer);
    sql_unit_text(unit, claims->jti);
}

bool auth_is_replay(const struct sql_unit *unit)
{
    int64_t step = sql_unit_failed_step(unit);

    return sql_unit_status(unit) == SQL_EROWS && step >= 0 &&
           unit->steps[step].statement == &consume;
}

SQL_STATEMENT(purge_token_ids, "DELETE FROM auth_jti WHERE expires_s < $1");

void auth_store_purge_token_ids(struct sql_unit *unit, int64_t before_s)
{
    sql_unit_step(unit, &purge_token_ids, SQL_ROWS_ANY);
    sql_unit_int(unit, before_s);
}
