/* SPDX-License-Identifier: Apache-2.0 */
/* schema.c: the tables of the delivery service. Sequence and epoch are columns of the conversation,
 * never derived from rows; UNIQUE guards everything that must not happen twice. */
#include "services/delivery/store/schema.h"

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
    {
        .version = 6,
        .name = "delivery: policy, invites, reports, warnings, consent, blocks, audit",
        .up = "ALTER TABLE convos ADD COLUMN invite_required BIGINT NOT NULL DEFAULT 0;\n"
              "ALTER TABLE convos ADD COLUMN allow_rejoin BIGINT NOT NULL DEFAULT 1;\n"
              "ALTER TABLE convos ADD COLUMN rejoin_days BIGINT NOT NULL DEFAULT 30;\n"
              "ALTER TABLE convos ADD COLUMN members_max BIGINT NOT NULL DEFAULT 0;\n"
              "ALTER TABLE convos ADD COLUMN app_window BIGINT NOT NULL DEFAULT -1;\n"
              "ALTER TABLE convos ADD COLUMN keep_admin BIGINT NOT NULL DEFAULT 1;\n"
              "ALTER TABLE convos ADD COLUMN opt_in_required BIGINT NOT NULL DEFAULT 0;\n"
              "ALTER TABLE members ADD COLUMN left_ms BIGINT;\n"
              "ALTER TABLE members ADD COLUMN was_removed BIGINT NOT NULL DEFAULT 0;\n"
              "CREATE TABLE invites (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    psk_hash {blob} NOT NULL,\n"
              "    target TEXT,\n"
              "    max_uses BIGINT NOT NULL,\n" /* 0: any number */
              "    uses BIGINT NOT NULL,\n"
              "    created_by TEXT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    expires_ms BIGINT NOT NULL,\n"
              "    revoked_ms BIGINT,\n"
              "    UNIQUE (convo, psk_hash)\n"
              ");\n"
              "CREATE TABLE reports (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    reporter TEXT NOT NULL,\n"
              "    target TEXT NOT NULL,\n"
              "    category TEXT NOT NULL,\n"
              "    content {blob} NOT NULL,\n" /* encrypted for the admins */
              "    state BIGINT NOT NULL,\n"   /* 0 pending, 1 resolved, 2 dismissed */
              "    action TEXT,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    resolved_by TEXT,\n"
              "    resolved_ms BIGINT\n"
              ");\n"
              "CREATE INDEX reports_in ON reports (convo, created_ms, id);\n"
              "CREATE TABLE warnings (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    target TEXT NOT NULL,\n"
              "    warned_by TEXT NOT NULL,\n"
              "    reason TEXT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    expires_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE INDEX warnings_in ON warnings (convo, target, created_ms);\n"
              "CREATE TABLE consents (\n" /* no row: never asked */
              "    did TEXT PRIMARY KEY,\n"
              "    opted_in BIGINT NOT NULL,\n"
              "    changed_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE TABLE blocks (\n"
              "    blocker TEXT NOT NULL,\n"
              "    blocked TEXT NOT NULL,\n"
              "    uri TEXT,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (blocker, blocked)\n"
              ");\n"
              "CREATE INDEX blocks_of ON blocks (blocked, blocker);\n"
              "CREATE TABLE chat_requests (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    sender TEXT NOT NULL,\n"
              "    recipient TEXT NOT NULL,\n"
              "    preview TEXT,\n"
              "    convo TEXT,\n"
              "    state BIGINT NOT NULL,\n" /* 0 pending, 1 accepted, 2 declined */
              "    created_ms BIGINT NOT NULL,\n"
              "    expires_ms BIGINT NOT NULL,\n"
              "    changed_ms BIGINT NOT NULL,\n"
              "    UNIQUE (sender, recipient)\n"
              ");\n"
              "CREATE INDEX chat_requests_to ON chat_requests (recipient, state, created_ms);\n"
              "CREATE TABLE held_messages (\n"
              "    request TEXT NOT NULL REFERENCES chat_requests (id),\n"
              "    part BIGINT NOT NULL,\n"
              "    bytes {blob} NOT NULL,\n"
              "    PRIMARY KEY (request, part)\n"
              ");\n"
              "CREATE TABLE audit (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    actor TEXT NOT NULL,\n"
              "    action TEXT NOT NULL,\n"
              "    convo TEXT,\n"
              "    target TEXT,\n"
              "    created_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE INDEX audit_in ON audit (convo, created_ms);\n"
              "CREATE INDEX audit_at ON audit (created_ms);\n",
        .down = "DROP TABLE audit;\nDROP TABLE held_messages;\nDROP TABLE chat_requests;\n"
                "DROP TABLE blocks;\nDROP TABLE consents;\nDROP TABLE warnings;\n"
                "DROP TABLE reports;\nDROP TABLE invites;\n"
                "ALTER TABLE members DROP COLUMN was_removed;\n"
                "ALTER TABLE members DROP COLUMN left_ms;\n"
                "ALTER TABLE convos DROP COLUMN opt_in_required;\n"
                "ALTER TABLE convos DROP COLUMN keep_admin;\n"
                "ALTER TABLE convos DROP COLUMN app_window;\n"
                "ALTER TABLE convos DROP COLUMN members_max;\n"
                "ALTER TABLE convos DROP COLUMN rejoin_days;\n"
                "ALTER TABLE convos DROP COLUMN allow_rejoin;\n"
                "ALTER TABLE convos DROP COLUMN invite_required;\n",
    },
    {
        .version = 7,
        .name = "delivery: provisional epochs, reports, receipts, retention",
        .up = "ALTER TABLE convos ADD COLUMN confirmed_epoch BIGINT NOT NULL DEFAULT 0;\n"
              /* the oldest row of the log, now or later; 1 is the creation, which has no row */
              "ALTER TABLE convos ADD COLUMN kept_from BIGINT NOT NULL DEFAULT 2;\n"
              "ALTER TABLE convos ADD COLUMN kept_chain {blob};\n" /* receipt before kept_from */
              "ALTER TABLE convos ADD COLUMN group_name TEXT;\n"   /* since a reset; else the id */
              "CREATE INDEX log_revoked ON log (convo, base_epoch) WHERE kind = 4;\n"
              "CREATE TABLE epoch_confirms (\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    epoch BIGINT NOT NULL,\n"
              "    did TEXT NOT NULL,\n"
              "    hash {blob} NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (convo, epoch, did)\n"
              ");\n"
              "CREATE INDEX epoch_confirms_at ON epoch_confirms (created_ms);\n"
              "CREATE TABLE commit_reports (\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    base_epoch BIGINT NOT NULL,\n"
              "    sha256 {blob} NOT NULL,\n"
              "    did TEXT NOT NULL,\n"
              "    reason TEXT,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (convo, base_epoch, sha256, did)\n"
              ");\n"
              "CREATE INDEX commit_reports_at ON commit_reports (created_ms);\n"
              "CREATE TABLE quarantines (\n"
              "    convo TEXT NOT NULL REFERENCES convos (id),\n"
              "    did TEXT NOT NULL,\n"
              "    until_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (convo, did)\n"
              ");\n",
        .down = "DROP TABLE quarantines;\nDROP TABLE commit_reports;\nDROP TABLE epoch_confirms;\n"
                "DROP INDEX log_revoked;\n"
                "ALTER TABLE convos DROP COLUMN group_name;\n"
                "ALTER TABLE convos DROP COLUMN kept_chain;\n"
                "ALTER TABLE convos DROP COLUMN kept_from;\n"
                "ALTER TABLE convos DROP COLUMN confirmed_epoch;\n",
    },
    {
        .version = 8,
        .name = "delivery: ids of messages, who asked for a conversation",
        /* the sender's name for the message, unless op holds it: see LOG_MESSAGE_ID */
        .up = "ALTER TABLE log ADD COLUMN message_id TEXT;\n"
              "CREATE INDEX log_messages ON log (convo, message_id)"
              " WHERE message_id IS NOT NULL;\n"
              "ALTER TABLE convos ADD COLUMN create_op TEXT;\n"
              "CREATE INDEX chat_requests_end ON chat_requests (state, expires_ms);\n"
              "CREATE INDEX chat_requests_done ON chat_requests (state, changed_ms);\n"
              "CREATE INDEX invites_end ON invites (expires_ms);\n"
              "CREATE INDEX invites_revoked ON invites (revoked_ms);\n",
        .down = "DROP INDEX invites_revoked;\nDROP INDEX invites_end;\n"
                "DROP INDEX chat_requests_done;\nDROP INDEX chat_requests_end;\n"
                "ALTER TABLE convos DROP COLUMN create_op;\nDROP INDEX log_messages;\n"
                "ALTER TABLE log DROP COLUMN message_id;\n",
    },
    {
        .version = 12,
        .name = "delivery: the key package of a wish to be added, how often it was wished",
        /* the ref of the package in a rejoin; no foreign key, because packages are deleted before
         * additions */
        .up = "ALTER TABLE device_additions ADD COLUMN package {blob};\n"
              "CREATE TABLE rejoins (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    did TEXT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE INDEX rejoins_of ON rejoins (did, created_ms);\n"
              "CREATE INDEX rejoins_at ON rejoins (created_ms);\n",
        .down = "DROP TABLE rejoins;\nALTER TABLE device_additions DROP COLUMN package;\n",
    },
    {
        .version = 13,
        .name = "delivery: push tokens of devices",
        .up = "CREATE TABLE push_tokens (\n"
              "    did TEXT NOT NULL,\n"
              "    device TEXT NOT NULL,\n"
              "    platform BIGINT NOT NULL,\n" /* enum push_platform */
              "    token TEXT NOT NULL,\n"
              "    changed_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (did, device)\n"
              ");\n",
        .down = "DROP TABLE push_tokens;\n",
    },
    {
        .version = 14,
        .name = "delivery: rare rows of the log by their kind, receipts",
        /* messages have no entry, because there are far more of them. Statements that use the first
         * index also say kind <> 1: SQLite does not conclude it from kind = 3 */
        .up = "CREATE INDEX log_kinds ON log (convo, kind, seq) WHERE kind <> 1;\n"
              "CREATE INDEX log_receipts ON log (convo, seq) WHERE receipt IS NOT NULL;\n",
        .down = "DROP INDEX log_receipts;\nDROP INDEX log_kinds;\n",
    },
    {
        .version = 15,
        .name = "delivery: the times of members do not overlap, and all but the last are marked",
        /* has_later: this interval has ended, and a later one of the same DID too */
        .up = "DELETE FROM members WHERE leave_seq IS NOT NULL AND EXISTS (SELECT 1 FROM members e"
              " WHERE e.convo = members.convo AND e.did = members.did"
              " AND e.join_seq < members.join_seq"
              " AND (e.leave_seq IS NULL OR e.leave_seq >= members.leave_seq));\n"
              "ALTER TABLE members ADD COLUMN has_later BIGINT NOT NULL DEFAULT 0;\n"
              "UPDATE members SET has_later = 1 WHERE leave_seq IS NOT NULL AND EXISTS (SELECT 1"
              " FROM members n WHERE n.convo = members.convo AND n.did = members.did"
              " AND n.join_seq > members.join_seq AND n.leave_seq IS NOT NULL);\n"
              "CREATE INDEX members_left ON members (convo, did)"
              " WHERE leave_seq IS NOT NULL AND has_later = 0;\n"
              "CREATE INDEX members_past ON members (convo, leave_seq) WHERE has_later = 1;\n",
        .down = "DROP INDEX members_past;\nDROP INDEX members_left;\n"
                "ALTER TABLE members DROP COLUMN has_later;\n",
    },
};
