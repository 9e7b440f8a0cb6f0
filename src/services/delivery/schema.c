/* SPDX-License-Identifier: Apache-2.0 */
/* schema.c: the tables of the delivery service. Sequence and epoch are fields of the conversation,
 * never derived from rows; what must not happen twice is UNIQUE. */
#include "services/delivery/schema.h"

const struct sql_migration delivery_migrations[DELIVERY_MIGRATIONS] = {
    {
        .version = 3,
        .name = "delivery: conversations, members, log",
        .up = "CREATE TABLE convos (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    group_id {blob},\n"
              "    kind BIGINT NOT NULL,\n" /* 0 undecided, 1 mls, 2 numbered */
              "    suite TEXT NOT NULL,\n"
              "    creator TEXT NOT NULL,\n"
              "    name TEXT,\n"
              "    description TEXT,\n"
              "    epoch BIGINT NOT NULL,\n"
              "    seq BIGINT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    active_ms BIGINT NOT NULL,\n"
              "    open_join BIGINT NOT NULL,\n"
              "    group_info {blob},\n"
              "    group_info_epoch BIGINT,\n"
              "    chain {blob}\n" /* hash of the newest receipt */
              ");\n"
              "CREATE TABLE members (\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    did TEXT NOT NULL,\n"
              "    join_seq BIGINT NOT NULL,\n"
              "    leave_seq BIGINT,\n"
              "    joined_ms BIGINT NOT NULL,\n"
              "    is_admin BIGINT NOT NULL,\n"
              "    is_moderator BIGINT NOT NULL,\n"
              "    unread_extra BIGINT NOT NULL,\n"
              "    read_seq BIGINT NOT NULL,\n"
              "    PRIMARY KEY (convo, did, join_seq)\n"
              ");\n"
              "CREATE UNIQUE INDEX members_now ON members (convo, did) WHERE leave_seq IS NULL;\n"
              "CREATE INDEX members_of ON members (did, convo) WHERE leave_seq IS NULL;\n"
              "CREATE TABLE log (\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    seq BIGINT NOT NULL,\n"
              "    kind BIGINT NOT NULL,\n" /* enum mls_content */
              "    base_epoch BIGINT NOT NULL,\n"
              "    epoch BIGINT NOT NULL,\n" /* after it */
              "    sender TEXT NOT NULL,\n"
              "    op TEXT,\n"
              "    sha256 {blob} NOT NULL,\n"
              "    bytes {blob} NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    receipt {blob},\n"
              "    PRIMARY KEY (convo, seq)\n"
              ");\n"
              "CREATE UNIQUE INDEX log_commits ON log (convo, base_epoch) WHERE kind = 3;\n"
              "CREATE UNIQUE INDEX log_ops ON log (convo, op) WHERE op IS NOT NULL;\n",
        .down = "DROP TABLE log;\nDROP TABLE members;\nDROP TABLE convos;\n",
    },
    {
        .version = 4,
        .name = "delivery: key packages, welcomes, devices",
        .up = "CREATE TABLE key_packages (\n"
              "    ref {blob} PRIMARY KEY,\n"
              "    did TEXT NOT NULL,\n"
              "    device TEXT NOT NULL,\n"
              "    suite BIGINT NOT NULL,\n"
              "    bytes {blob} NOT NULL,\n"
              "    not_after_s BIGINT NOT NULL,\n"
              "    is_last_resort BIGINT NOT NULL,\n"
              "    state BIGINT NOT NULL,\n" /* 0 free, 1 leased, 2 consumed */
              "    lease_did TEXT,\n"
              "    lease_until_s BIGINT NOT NULL,\n"
              "    uses BIGINT NOT NULL,\n"
              "    created_s BIGINT NOT NULL,\n"
              "    consumed_s BIGINT\n"
              ");\n"
              "CREATE INDEX key_packages_of ON key_packages (did, suite, state, created_s);\n"
              "CREATE TABLE welcomes (\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    seq BIGINT NOT NULL,\n"
              "    part BIGINT NOT NULL,\n"
              "    bytes {blob} NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (convo, seq, part)\n"
              ");\n"
              "CREATE TABLE welcome_targets (\n"
              "    convo TEXT NOT NULL,\n"
              "    seq BIGINT NOT NULL,\n"
              "    part BIGINT NOT NULL,\n"
              "    ref {blob} NOT NULL,\n"
              "    did TEXT NOT NULL,\n"
              "    device TEXT NOT NULL,\n"
              "    state BIGINT NOT NULL,\n" /* 0 waiting, 1 fetched, 2 confirmed, 3 invalid */
              "    changed_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (convo, seq, ref),\n"
              "    FOREIGN KEY (convo, seq, part) REFERENCES welcomes (convo, seq, part)\n"
              ");\n"
              "CREATE INDEX welcome_targets_of ON welcome_targets (did, convo, state);\n"
              "CREATE TABLE devices (\n"
              "    did TEXT NOT NULL,\n"
              "    device TEXT NOT NULL,\n"
              "    name TEXT NOT NULL,\n"
              "    signature_key {blob} NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (did, device)\n"
              ");\n",
        .down = "DROP TABLE devices;\nDROP TABLE welcome_targets;\nDROP TABLE welcomes;\n"
                "DROP TABLE key_packages;\n",
    },
    {
        .version = 5,
        .name = "delivery: devices that wait to be added, why a welcome failed",
        .up = "CREATE TABLE device_additions (\n"
              "    id TEXT PRIMARY KEY,\n" /* did#device/convo */
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    did TEXT NOT NULL,\n"
              "    device TEXT NOT NULL,\n"
              "    kind BIGINT NOT NULL,\n"  /* 0 a new device, 1 its welcome was no good */
              "    state BIGINT NOT NULL,\n" /* 0 pending, 1 claimed, 2 completed */
              "    why TEXT,\n"
              "    claimed_by TEXT,\n"
              "    claim_until_ms BIGINT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    changed_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE INDEX device_additions_in ON device_additions (convo, state);\n"
              "CREATE INDEX device_additions_of ON device_additions (did, device);\n"
              "ALTER TABLE welcome_targets ADD COLUMN why TEXT;\n"
              "CREATE INDEX welcome_targets_done ON welcome_targets (state, changed_ms);\n"
              "CREATE INDEX key_packages_end ON key_packages (not_after_s);\n"
              "CREATE INDEX key_packages_state ON key_packages (state, lease_until_s);\n",
        .down = "DROP INDEX key_packages_state;\nDROP INDEX key_packages_end;\n"
                "DROP INDEX welcome_targets_done;\n"
                "ALTER TABLE welcome_targets DROP COLUMN why;\n"
                "DROP TABLE device_additions;\n",
    },
};
