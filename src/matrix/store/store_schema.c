/* SPDX-License-Identifier: Apache-2.0 */
/* store_schema.c: the tables of store.h. */
#include "matrix/store/store.h"

const struct sql_migration mxstore_migrations[MXSTORE_MIGRATIONS] = {
    {
        .version = 1,
        .name = "matrix: session, keys, rooms, events",
        .up = "CREATE TABLE mx_session (\n"
              "    id BIGINT PRIMARY KEY DEFAULT 1 CHECK (id = 1),\n"
              "    user_id TEXT NOT NULL,\n"
              "    device_id TEXT NOT NULL,\n"
              "    homeserver TEXT NOT NULL,\n"
              "    login BIGINT NOT NULL,\n"
              "    access_token {blob},\n"
              "    refresh_token {blob},\n"
              "    token_expires_ms BIGINT NOT NULL,\n"
              "    account {blob} NOT NULL,\n"
              "    next_batch TEXT,\n"
              "    filter_id TEXT,\n"
              "    txn_next BIGINT NOT NULL,\n"
              "    fallback_rotated_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE TABLE mx_user (\n"
              "    user_id TEXT PRIMARY KEY,\n"
              "    is_outdated BIGINT NOT NULL,\n"
              "    change BIGINT NOT NULL\n"
              ");\n"
              "CREATE TABLE mx_device (\n"
              "    user_id TEXT NOT NULL,\n"
              "    device_id TEXT NOT NULL,\n"
              "    identity_key TEXT NOT NULL,\n"
              "    signing_key TEXT NOT NULL,\n"
              "    trust BIGINT NOT NULL,\n"
              "    is_deleted BIGINT NOT NULL,\n"
              "    body TEXT NOT NULL,\n"
              "    unwedged_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (user_id, device_id)\n"
              ");\n"
              "CREATE INDEX mx_device_key ON mx_device (identity_key);\n"
              "CREATE TABLE mx_olm (\n"
              "    identity_key TEXT NOT NULL,\n"
              "    session_id TEXT NOT NULL,\n"
              "    pickle {blob} NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    received_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (identity_key, session_id)\n"
              ");\n"
              "CREATE TABLE mx_outbound (\n"
              "    room_id TEXT PRIMARY KEY,\n"
              "    session_id TEXT NOT NULL,\n"
              "    pickle {blob} NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    message_count BIGINT NOT NULL\n"
              ");\n"
              "CREATE TABLE mx_share (\n"
              "    session_id TEXT NOT NULL,\n"
              "    user_id TEXT NOT NULL,\n"
              "    device_id TEXT NOT NULL,\n"
              "    identity_key TEXT NOT NULL,\n"
              "    message_index BIGINT NOT NULL,\n"
              "    withheld TEXT,\n"
              "    PRIMARY KEY (session_id, user_id, device_id)\n"
              ");\n"
              "CREATE TABLE mx_inbound (\n"
              "    room_id TEXT NOT NULL,\n"
              "    session_id TEXT NOT NULL,\n"
              "    sender_key TEXT NOT NULL,\n"
              "    signing_key TEXT NOT NULL,\n"
              "    pickle {blob} NOT NULL,\n"
              "    first_index BIGINT NOT NULL,\n"
              "    source BIGINT NOT NULL,\n"
              "    PRIMARY KEY (room_id, session_id)\n"
              ");\n"
              "CREATE TABLE mx_index (\n"
              "    session_id TEXT NOT NULL,\n"
              "    message_index BIGINT NOT NULL,\n"
              "    event_id TEXT NOT NULL,\n"
              "    PRIMARY KEY (session_id, message_index)\n"
              ");\n"
              "CREATE TABLE mx_room (\n"
              "    room_id TEXT PRIMARY KEY,\n"
              "    membership TEXT NOT NULL,\n"
              "    is_encrypted BIGINT NOT NULL,\n"
              "    rotation_ms BIGINT NOT NULL,\n"
              "    rotation_messages BIGINT NOT NULL,\n"
              "    is_sync_room BIGINT NOT NULL,\n"
              "    marker_event TEXT,\n"
              "    marker_ms BIGINT NOT NULL DEFAULT 0,\n"
              "    floor_ms BIGINT NOT NULL DEFAULT 9223372036854775807,\n"
              "    floor_revision BIGINT NOT NULL DEFAULT 0\n"
              ");\n"
              "CREATE TABLE mx_gap (\n"
              "    room_id TEXT NOT NULL,\n"
              "    from_token TEXT NOT NULL,\n"
              "    until_token TEXT,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (room_id, from_token)\n"
              ");\n"
              "CREATE TABLE mx_event (\n"
              "    event_id TEXT PRIMARY KEY,\n"
              "    seq BIGINT NOT NULL UNIQUE,\n"
              "    room_id TEXT NOT NULL,\n"
              "    sender TEXT NOT NULL,\n"
              "    type TEXT NOT NULL,\n"
              "    origin_ms BIGINT NOT NULL,\n"
              "    status BIGINT NOT NULL,\n"
              "    reason BIGINT NOT NULL,\n"
              "    lease_until_ms BIGINT NOT NULL,\n"
              "    attempts BIGINT NOT NULL,\n"
              "    body {blob} NOT NULL\n"
              ");\n"
              "CREATE INDEX mx_event_next ON mx_event (status, seq);\n"
              "CREATE TABLE mx_outbox (\n"
              "    txn_id TEXT PRIMARY KEY,\n"
              "    priority BIGINT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    room_id TEXT NOT NULL,\n"
              "    type TEXT NOT NULL,\n"
              "    content {blob} NOT NULL,\n"
              "    body {blob},\n"
              "    sending BIGINT NOT NULL,\n"
              "    lease_until_ms BIGINT NOT NULL,\n"
              "    attempts BIGINT NOT NULL,\n"
              "    event_id TEXT,\n"
              "    reason TEXT\n"
              ");\n"
              "CREATE INDEX mx_outbox_next ON mx_outbox (sending, priority, created_ms);\n"
              "CREATE TABLE mx_verification (\n"
              "    transaction_id TEXT PRIMARY KEY,\n"
              "    user_id TEXT NOT NULL,\n"
              "    device_id TEXT NOT NULL,\n"
              "    step TEXT NOT NULL,\n"
              "    updated_ms BIGINT NOT NULL\n"
              ");\n",
        .down = "DROP TABLE mx_verification;\nDROP TABLE mx_outbox;\nDROP TABLE mx_event;\n"
                "DROP TABLE mx_gap;\nDROP TABLE mx_room;\nDROP TABLE mx_index;\n"
                "DROP TABLE mx_inbound;\nDROP TABLE mx_share;\nDROP TABLE mx_outbound;\n"
                "DROP TABLE mx_olm;\nDROP TABLE mx_device;\nDROP TABLE mx_user;\n"
                "DROP TABLE mx_session;\n",
    },
    {
        .version = 2,
        .name = "matrix: keys withheld from us and asked for",
        .up = "CREATE TABLE mx_withheld (\n"
              "    room_id TEXT NOT NULL,\n"
              "    session_id TEXT NOT NULL,\n"
              "    reason BIGINT NOT NULL,\n"
              "    received_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (room_id, session_id)\n"
              ");\n"
              "CREATE TABLE mx_key_request (\n"
              "    room_id TEXT NOT NULL,\n"
              "    session_id TEXT NOT NULL,\n"
              "    request_id TEXT NOT NULL,\n"
              "    asking BIGINT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (room_id, session_id)\n"
              ");\n",
        .down = "DROP TABLE mx_key_request;\nDROP TABLE mx_withheld;\n",
    },
    {
        .version = 3,
        .name = "matrix: names, inviters and power levels of rooms",
        .up = "ALTER TABLE mx_room ADD COLUMN name TEXT;\n"
              "ALTER TABLE mx_room ADD COLUMN inviter TEXT;\n"
              "ALTER TABLE mx_room ADD COLUMN algorithm TEXT;\n"
              "ALTER TABLE mx_room ADD COLUMN own_level BIGINT NOT NULL DEFAULT 0;\n"
              "ALTER TABLE mx_room ADD COLUMN invite_level BIGINT NOT NULL DEFAULT 0;\n"
              "ALTER TABLE mx_room ADD COLUMN state_level BIGINT NOT NULL DEFAULT 0;\n",
        .down = "ALTER TABLE mx_room DROP COLUMN name;\n"
                "ALTER TABLE mx_room DROP COLUMN inviter;\n"
                "ALTER TABLE mx_room DROP COLUMN algorithm;\n"
                "ALTER TABLE mx_room DROP COLUMN own_level;\n"
                "ALTER TABLE mx_room DROP COLUMN invite_level;\n"
                "ALTER TABLE mx_room DROP COLUMN state_level;\n",
    },
    {
        .version = 4,
        .name = "matrix: held events by their room",
        /* mx_event_next has the held events of all rooms together. */
        .up = "CREATE INDEX mx_event_held ON mx_event (room_id, seq) WHERE status = 0;\n",
        .down = "DROP INDEX mx_event_held;\n",
    },
    {
        .version = 5,
        .name = "matrix: authors of events",
        .up = "ALTER TABLE mx_event ADD COLUMN proof BIGINT NOT NULL DEFAULT 0;\n"
              "ALTER TABLE mx_event ADD COLUMN device_id TEXT;\n"
              "ALTER TABLE mx_event ADD COLUMN identity_key TEXT;\n"
              "ALTER TABLE mx_event ADD COLUMN is_own BIGINT NOT NULL DEFAULT 0;\n",
        .down = "ALTER TABLE mx_event DROP COLUMN proof;\n"
                "ALTER TABLE mx_event DROP COLUMN device_id;\n"
                "ALTER TABLE mx_event DROP COLUMN identity_key;\n"
                "ALTER TABLE mx_event DROP COLUMN is_own;\n",
    },
    {
        .version = 6,
        .name = "matrix: the policy of unsent events",
        /* An event that waits since before has the strictest one, 1: it waits on. */
        .up = "ALTER TABLE mx_outbox ADD COLUMN policy BIGINT NOT NULL DEFAULT 1;\n",
        .down = "ALTER TABLE mx_outbox DROP COLUMN policy;\n",
    },
};
