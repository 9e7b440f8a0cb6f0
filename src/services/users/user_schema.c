/* SPDX-License-Identifier: Apache-2.0 */
/* user_schema.c: the tables of users.h. A row gets a new number when it changes, so the numbers of a
 * user's rows have gaps; they are unique and only grow. */
#include "services/users/users.h"

const struct sql_migration users_migrations[USERS_MIGRATIONS] = {
    {
        .version = 10,
        .name = "packs: what a user's devices keep in step",
        .up = "CREATE TABLE user_sync (\n"
              "    user_id TEXT PRIMARY KEY,\n"
              "    seq BIGINT NOT NULL\n"
              ");\n"
              "CREATE TABLE user_devices (\n"
              "    user_id TEXT NOT NULL,\n"
              "    device TEXT NOT NULL,\n"
              "    os TEXT,\n"
              "    model TEXT,\n"
              "    app_version TEXT,\n"
              "    pushed_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (user_id, device)\n"
              ");\n"
              "CREATE TABLE user_items (\n"
              "    user_id TEXT NOT NULL,\n"
              "    kind BIGINT NOT NULL,\n"
              "    item TEXT NOT NULL,\n"
              "    seq BIGINT NOT NULL,\n"
              "    updated_ms BIGINT NOT NULL,\n" /* by the device's clock */
              "    stored_ms BIGINT NOT NULL,\n"
              "    is_deleted BIGINT NOT NULL,\n"
              "    device TEXT NOT NULL,\n"
              "    body TEXT NOT NULL,\n" /* members of a JSON object, without its braces */
              "    PRIMARY KEY (user_id, kind, item)\n"
              ");\n"
              "CREATE UNIQUE INDEX user_items_seq ON user_items (user_id, seq);\n"
              "CREATE TABLE user_conflicts (\n"
              "    user_id TEXT NOT NULL,\n"
              "    seq BIGINT NOT NULL,\n" /* of the write that met the other one */
              "    kind BIGINT NOT NULL,\n"
              "    item TEXT NOT NULL,\n"
              "    is_incoming_kept BIGINT NOT NULL,\n"
              "    device TEXT NOT NULL,\n" /* of the losing write, like the next three */
              "    updated_ms BIGINT NOT NULL,\n"
              "    is_deleted BIGINT NOT NULL,\n"
              "    body TEXT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (user_id, seq)\n"
              ");\n"
              "CREATE INDEX user_conflicts_at ON user_conflicts (created_ms);\n",
        .down = "DROP TABLE user_conflicts;\nDROP TABLE user_items;\nDROP TABLE user_devices;\n"
                "DROP TABLE user_sync;\n",
    },
    {
        .version = 11,
        .name = "packs: of which run of the server a user's numbers are",
        .up = "CREATE TABLE user_epochs (\n"
              "    user_id TEXT NOT NULL,\n"
              "    after_seq BIGINT NOT NULL,\n" /* the last number of the epoch before */
              "    epoch TEXT NOT NULL,\n"
              "    PRIMARY KEY (user_id, after_seq)\n"
              ");\n"
              /* The numbers from before there were epochs make up one. */
              "INSERT INTO user_epochs (user_id, after_seq, epoch)"
              " SELECT user_id, 0, '0' FROM user_sync WHERE seq > 0;\n",
        .down = "DROP TABLE user_epochs;\n",
    },
};
