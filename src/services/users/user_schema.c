/* SPDX-License-Identifier: Apache-2.0 */
/* user_schema.c: the tables of users.h. A row gets a new number when it changes, so the numbers of a
 * user's rows have gaps; they are unique and only grow. */
#include "services/common/tables.h"
#include "services/users/users.h"

#define USER TEXT("user_id")

/* clang-format off */
const struct sql_migration users_migrations[USERS_MIGRATIONS] = {
    {
        10, "packs: what a user's devices keep in step",
        TABLE("user_sync", COLUMN("user_id", "TEXT PRIMARY KEY") LAST("seq BIGINT NOT NULL"))
        TABLE("user_devices",
            USER TEXT("device") COLUMN("os", "TEXT") COLUMN("model", "TEXT")
            COLUMN("app_version", "TEXT") BIGINT("pushed_ms") KEY("user_id, device"))
        TABLE("user_items",
            USER BIGINT("kind") TEXT("item") BIGINT("seq")
            BIGINT("updated_ms") /* by the device's clock */
            BIGINT("stored_ms") BIGINT("is_deleted") TEXT("device")
            TEXT("body") /* members of a JSON object, without its braces */
            KEY("user_id, kind, item"))
        UNIQUE_INDEX("user_items_seq", "user_items (user_id, seq)")
        TABLE("user_conflicts",
            USER BIGINT("seq") /* of the write that met the other one */
            BIGINT("kind") TEXT("item") BIGINT("is_incoming_kept")
            TEXT("device") /* of the losing write, like the next three */
            BIGINT("updated_ms") BIGINT("is_deleted") TEXT("body") BIGINT("created_ms")
            KEY("user_id, seq"))
        INDEX("user_conflicts_at", "user_conflicts (created_ms)"),
        DROP_TABLE("user_conflicts") DROP_TABLE("user_items") DROP_TABLE("user_devices")
        DROP_TABLE("user_sync"),
    },
    {
        11, "packs: of which run of the server a user's numbers are",
        TABLE("user_epochs",
            USER BIGINT("after_seq") /* the last number of the epoch before */
            TEXT("epoch") KEY("user_id, after_seq"))
        /* The numbers from before there were epochs make up one. */
        "INSERT INTO user_epochs (user_id, after_seq, epoch)"
        " SELECT user_id, 0, '0' FROM user_sync WHERE seq > 0;\n",
        DROP_TABLE("user_epochs"),
    },
};
