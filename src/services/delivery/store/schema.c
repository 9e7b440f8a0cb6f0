/* SPDX-License-Identifier: Apache-2.0 */
/* schema.c: the tables of the delivery service. Sequence and epoch are columns of the conversation,
 * never derived from rows; UNIQUE guards everything that must not happen twice. */
#include "services/delivery/store/schema.h"

#include "services/common/tables.h"

#define ID COLUMN("id", "TEXT PRIMARY KEY")
#define CONVO COLUMN("convo", "TEXT NOT NULL REFERENCES convos (id)")
#define CREATED LAST("created_ms BIGINT NOT NULL")

/* clang-format off */
const struct sql_migration delivery_migrations[DELIVERY_MIGRATIONS] = {
    {
        3, "delivery: conversations, members, log",
        TABLE("convos",
            ID COLUMN("group_id", "{blob}")
            BIGINT("kind") /* 0 undecided, 1 mls, 2 numbered */
            TEXT("suite") TEXT("creator") COLUMN("name", "TEXT") COLUMN("description", "TEXT")
            BIGINT("epoch") BIGINT("seq") BIGINT("created_ms") BIGINT("active_ms")
            BIGINT("open_join") COLUMN("group_info", "{blob}")
            COLUMN("group_info_epoch", "BIGINT")
            LAST("chain {blob}") /* hash of the newest receipt */)
        TABLE("members",
            CONVO TEXT("did") BIGINT("join_seq") COLUMN("leave_seq", "BIGINT")
            BIGINT("joined_ms") BIGINT("is_admin") BIGINT("is_moderator") BIGINT("unread_extra")
            BIGINT("read_seq") KEY("convo, did, join_seq"))
        UNIQUE_INDEX("members_now", "members (convo, did) WHERE leave_seq IS NULL")
        INDEX("members_of", "members (did, convo) WHERE leave_seq IS NULL")
        TABLE("log",
            CONVO BIGINT("seq")
            BIGINT("kind") /* enum mls_content */
            BIGINT("base_epoch")
            BIGINT("epoch") /* after it */
            TEXT("sender") COLUMN("op", "TEXT") BLOB("sha256") BLOB("bytes")
            BIGINT("created_ms") COLUMN("receipt", "{blob}") KEY("convo, seq"))
        UNIQUE_INDEX("log_commits", "log (convo, base_epoch) WHERE kind = 3")
        UNIQUE_INDEX("log_ops", "log (convo, op) WHERE op IS NOT NULL"),
        DROP_TABLE("log") DROP_TABLE("members") DROP_TABLE("convos"),
    },
    {
        4, "delivery: key packages, welcomes, devices",
        TABLE("key_packages",
            COLUMN("ref", "{blob} PRIMARY KEY")
            TEXT("did") TEXT("device") BIGINT("suite") BLOB("bytes") BIGINT("not_after_s")
            BIGINT("is_last_resort")
            BIGINT("state") /* 0 free, 1 leased, 2 consumed */
            COLUMN("lease_did", "TEXT") BIGINT("lease_until_s") BIGINT("uses")
            BIGINT("created_s") LAST("consumed_s BIGINT"))
        INDEX("key_packages_of", "key_packages (did, suite, state, created_s)")
        TABLE("welcomes",
            CONVO BIGINT("seq") BIGINT("part") BLOB("bytes") BIGINT("created_ms")
            KEY("convo, seq, part"))
        TABLE("welcome_targets",
            TEXT("convo") BIGINT("seq") BIGINT("part") BLOB("ref") TEXT("did") TEXT("device")
            BIGINT("state") /* 0 waiting, 1 fetched, 2 confirmed, 3 invalid */
            BIGINT("changed_ms") COLUMN("PRIMARY KEY", "(convo, seq, ref)")
            LAST("FOREIGN KEY (convo, seq, part) REFERENCES welcomes (convo, seq, part)"))
        INDEX("welcome_targets_of", "welcome_targets (did, convo, state)")
        TABLE("devices",
            TEXT("did") TEXT("device") TEXT("name") BLOB("signature_key") BIGINT("created_ms")
            KEY("did, device")),
        DROP_TABLE("devices") DROP_TABLE("welcome_targets") DROP_TABLE("welcomes")
        DROP_TABLE("key_packages"),
    },
    {
        5, "delivery: devices that wait to be added, why a welcome failed",
        TABLE("device_additions",
            ID /* did#device/convo */
            CONVO TEXT("did") TEXT("device")
            BIGINT("kind")  /* 0 a new device, 1 its welcome was no good */
            BIGINT("state") /* 0 pending, 1 claimed, 2 completed */
            COLUMN("why", "TEXT") COLUMN("claimed_by", "TEXT") BIGINT("claim_until_ms")
            BIGINT("created_ms") LAST("changed_ms BIGINT NOT NULL"))
        INDEX("device_additions_in", "device_additions (convo, state)")
        INDEX("device_additions_of", "device_additions (did, device)")
        ADD_COLUMN("welcome_targets", "why TEXT")
        INDEX("welcome_targets_done", "welcome_targets (state, changed_ms)")
        INDEX("key_packages_end", "key_packages (not_after_s)")
        INDEX("key_packages_state", "key_packages (state, lease_until_s)"),
        DROP_INDEX("key_packages_state") DROP_INDEX("key_packages_end")
        DROP_INDEX("welcome_targets_done") DROP_COLUMN("welcome_targets", "why")
        DROP_TABLE("device_additions"),
    },
    {
        6, "delivery: policy, invites, reports, warnings, consent, blocks, audit",
        ADD_COLUMN("convos", "invite_required BIGINT NOT NULL DEFAULT 0")
        ADD_COLUMN("convos", "allow_rejoin BIGINT NOT NULL DEFAULT 1")
        ADD_COLUMN("convos", "rejoin_days BIGINT NOT NULL DEFAULT 30")
        ADD_COLUMN("convos", "members_max BIGINT NOT NULL DEFAULT 0")
        ADD_COLUMN("convos", "app_window BIGINT NOT NULL DEFAULT -1")
        ADD_COLUMN("convos", "keep_admin BIGINT NOT NULL DEFAULT 1")
        ADD_COLUMN("convos", "opt_in_required BIGINT NOT NULL DEFAULT 0")
        ADD_COLUMN("members", "left_ms BIGINT")
        ADD_COLUMN("members", "was_removed BIGINT NOT NULL DEFAULT 0")
        TABLE("invites",
            ID CONVO BLOB("psk_hash") COLUMN("target", "TEXT")
            BIGINT("max_uses") /* 0: any number */
            BIGINT("uses") TEXT("created_by") BIGINT("created_ms") BIGINT("expires_ms")
            COLUMN("revoked_ms", "BIGINT") LAST("UNIQUE (convo, psk_hash)"))
        TABLE("reports",
            ID CONVO TEXT("reporter") TEXT("target") TEXT("category")
            BLOB("content") /* encrypted for the admins */
            BIGINT("state") /* 0 pending, 1 resolved, 2 dismissed */
            COLUMN("action", "TEXT") BIGINT("created_ms") COLUMN("resolved_by", "TEXT")
            LAST("resolved_ms BIGINT"))
        INDEX("reports_in", "reports (convo, created_ms, id)")
        TABLE("warnings",
            ID CONVO TEXT("target") TEXT("warned_by") TEXT("reason") BIGINT("created_ms")
            LAST("expires_ms BIGINT NOT NULL"))
        INDEX("warnings_in", "warnings (convo, target, created_ms)")
        TABLE("consents", /* no row: never asked */
            COLUMN("did", "TEXT PRIMARY KEY") BIGINT("opted_in")
            LAST("changed_ms BIGINT NOT NULL"))
        TABLE("blocks",
            TEXT("blocker") TEXT("blocked") COLUMN("uri", "TEXT") BIGINT("created_ms")
            KEY("blocker, blocked"))
        INDEX("blocks_of", "blocks (blocked, blocker)")
        TABLE("chat_requests",
            ID TEXT("sender") TEXT("recipient") COLUMN("preview", "TEXT")
            COLUMN("convo", "TEXT")
            BIGINT("state") /* 0 pending, 1 accepted, 2 declined */
            BIGINT("created_ms") BIGINT("expires_ms") BIGINT("changed_ms")
            LAST("UNIQUE (sender, recipient)"))
        INDEX("chat_requests_to", "chat_requests (recipient, state, created_ms)")
        TABLE("held_messages",
            COLUMN("request", "TEXT NOT NULL REFERENCES chat_requests (id)") BIGINT("part")
            BLOB("bytes") KEY("request, part"))
        TABLE("audit",
            ID TEXT("actor") TEXT("action") COLUMN("convo", "TEXT") COLUMN("target", "TEXT")
            CREATED)
        INDEX("audit_in", "audit (convo, created_ms)")
        INDEX("audit_at", "audit (created_ms)"),
        DROP_TABLE("audit") DROP_TABLE("held_messages") DROP_TABLE("chat_requests")
        DROP_TABLE("blocks") DROP_TABLE("consents") DROP_TABLE("warnings") DROP_TABLE("reports")
        DROP_TABLE("invites") DROP_COLUMN("members", "was_removed")
        DROP_COLUMN("members", "left_ms") DROP_COLUMN("convos", "opt_in_required")
        DROP_COLUMN("convos", "keep_admin") DROP_COLUMN("convos", "app_window")
        DROP_COLUMN("convos", "members_max") DROP_COLUMN("convos", "rejoin_days")
        DROP_COLUMN("convos", "allow_rejoin") DROP_COLUMN("convos", "invite_required"),
    },
    {
        7, "delivery: provisional epochs, reports, receipts, retention",
        ADD_COLUMN("convos", "confirmed_epoch BIGINT NOT NULL DEFAULT 0")
        /* the oldest row of the log, now or later; 1 is the creation, which has no row */
        ADD_COLUMN("convos", "kept_from BIGINT NOT NULL DEFAULT 2")
        ADD_COLUMN("convos", "kept_chain {blob}") /* receipt before kept_from */
        ADD_COLUMN("convos", "group_name TEXT")   /* since a reset; else the id */
        INDEX("log_revoked", "log (convo, base_epoch) WHERE kind = 4")
        TABLE("epoch_confirms",
            CONVO BIGINT("epoch") TEXT("did") BLOB("hash") BIGINT("created_ms")
            KEY("convo, epoch, did"))
        INDEX("epoch_confirms_at", "epoch_confirms (created_ms)")
        TABLE("commit_reports",
            CONVO BIGINT("base_epoch") BLOB("sha256") TEXT("did") COLUMN("reason", "TEXT")
            BIGINT("created_ms") KEY("convo, base_epoch, sha256, did"))
        INDEX("commit_reports_at", "commit_reports (created_ms)")
        TABLE("quarantines", CONVO TEXT("did") BIGINT("until_ms") KEY("convo, did")),
        DROP_TABLE("quarantines") DROP_TABLE("commit_reports") DROP_TABLE("epoch_confirms")
        DROP_INDEX("log_revoked") DROP_COLUMN("convos", "group_name")
        DROP_COLUMN("convos", "kept_chain") DROP_COLUMN("convos", "kept_from")
        DROP_COLUMN("convos", "confirmed_epoch"),
    },
    {
        8, "delivery: ids of messages, who asked for a conversation",
        /* the sender's name for the message, unless op holds it: see LOG_MESSAGE_ID */
        ADD_COLUMN("log", "message_id TEXT")
        INDEX("log_messages", "log (convo, message_id) WHERE message_id IS NOT NULL")
        ADD_COLUMN("convos", "create_op TEXT")
        INDEX("chat_requests_end", "chat_requests (state, expires_ms)")
        INDEX("chat_requests_done", "chat_requests (state, changed_ms)")
        INDEX("invites_end", "invites (expires_ms)")
        INDEX("invites_revoked", "invites (revoked_ms)"),
        DROP_INDEX("invites_revoked") DROP_INDEX("invites_end") DROP_INDEX("chat_requests_done")
        DROP_INDEX("chat_requests_end") DROP_COLUMN("convos", "create_op")
        DROP_INDEX("log_messages") DROP_COLUMN("log", "message_id"),
    },
    {
        12, "delivery: the key package of a wish to be added, how often it was wished",
        /* the ref of the package in a rejoin; no foreign key, because packages are deleted before
         * additions */
        ADD_COLUMN("device_additions", "package {blob}")
        TABLE("rejoins", ID TEXT("did") CREATED)
        INDEX("rejoins_of", "rejoins (did, created_ms)")
        INDEX("rejoins_at", "rejoins (created_ms)"),
        DROP_TABLE("rejoins") DROP_COLUMN("device_additions", "package"),
    },
    {
        13, "delivery: push tokens of devices",
        TABLE("push_tokens",
            TEXT("did") TEXT("device")
            BIGINT("platform") /* enum push_platform */
            TEXT("token") BIGINT("changed_ms") KEY("did, device")),
        DROP_TABLE("push_tokens"),
    },
    {
        14, "delivery: rare rows of the log by their kind, receipts",
        /* messages have no entry, because there are far more of them. Statements that use the first
         * index also say kind <> 1: SQLite does not conclude it from kind = 3 */
        INDEX("log_kinds", "log (convo, kind, seq) WHERE kind <> 1")
        INDEX("log_receipts", "log (convo, seq) WHERE receipt IS NOT NULL"),
        DROP_INDEX("log_receipts") DROP_INDEX("log_kinds"),
    },
    {
        15, "delivery: the times of members do not overlap, and all but the last are marked",
        /* has_later: this interval has ended, and a later one of the same DID too */
        "DELETE FROM members WHERE leave_seq IS NOT NULL AND EXISTS (SELECT 1 FROM members e"
        " WHERE e.convo = members.convo AND e.did = members.did AND e.join_seq < members.join_seq"
        " AND (e.leave_seq IS NULL OR e.leave_seq >= members.leave_seq));\n"
        ADD_COLUMN("members", "has_later BIGINT NOT NULL DEFAULT 0")
        "UPDATE members SET has_later = 1 WHERE leave_seq IS NOT NULL AND EXISTS (SELECT 1"
        " FROM members n WHERE n.convo = members.convo AND n.did = members.did"
        " AND n.join_seq > members.join_seq AND n.leave_seq IS NOT NULL);\n"
        INDEX("members_left", "members (convo, did) WHERE leave_seq IS NOT NULL AND has_later = 0")
        INDEX("members_past", "members (convo, leave_seq) WHERE has_later = 1"),
        DROP_INDEX("members_past") DROP_INDEX("members_left")
        DROP_COLUMN("members", "has_later"),
    },
};
