/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/import/import_store.h"

const struct sql_statement import_find_convo = {
    .text = "SELECT (SELECT COUNT(*) FROM convos WHERE id = $1),"
            " (SELECT action FROM audit WHERE id = $2)",
};
const struct sql_statement import_put_mark = {
    .text = "INSERT INTO audit (id, actor, action, convo, target, created_ms)"
            " VALUES ($1, 'import catbird', 'importBegun', $2, NULL, $3)",
};
const struct sql_statement import_put_convo = {
    .text =
        "INSERT INTO convos (id, kind, suite, creator, name, description, epoch, seq, created_ms,"
        " active_ms, open_join, invite_required, allow_rejoin, rejoin_days, members_max)"
        " VALUES ($1, 1, $2, $3, $4, $5, 0, 0, $6, $6, 0, $7, $8, $9, $10)",
};
const struct sql_statement import_set_convo = {
    .text = "UPDATE convos SET epoch = $2, confirmed_epoch = $2, seq = $3, kept_from = $4, "
            "active_ms = $5,"
            " group_id = $6, group_info = $7, group_info_epoch = $8, chain = $9 WHERE id = $1",
};
const struct sql_statement import_put_member = {
    .text =
        "INSERT INTO members (convo, did, join_seq, leave_seq, joined_ms, is_admin, is_moderator,"
        " unread_extra, read_seq, left_ms, was_removed)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8, $9, $10)",
};
const struct sql_statement import_forget_targets = {
    .text = "DELETE FROM welcome_targets WHERE convo = $1",
};
const struct sql_statement import_forget_welcomes = {
    .text = "DELETE FROM welcomes WHERE convo = $1",
};
const struct sql_statement import_forget_log = {
    .text = "DELETE FROM log WHERE convo = $1 AND seq IN (SELECT l.seq FROM log l"
            " WHERE l.convo = $1 ORDER BY l.seq LIMIT 1000)",
};
const struct sql_statement import_forget_members = {
    .text = "DELETE FROM members WHERE convo = $1",
};
const struct sql_statement import_forget_convo = {
    .text = "DELETE FROM convos WHERE id = $1",
};
const struct sql_statement import_forget_mark = {
    .text = "DELETE FROM audit WHERE id = $1 AND action = 'importBegun'",
};
const struct sql_statement import_count_log = {
    .text = "SELECT COUNT(*) FROM log WHERE convo = $1",
};
const struct sql_statement import_put_log = {
    .text = "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, op, sha256, bytes, "
            "created_ms,"
            " receipt, message_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
};
const struct sql_statement import_put_package = {
    .text = "INSERT INTO key_packages (ref, did, device, suite, bytes, not_after_s, "
            "is_last_resort, state,"
            " lease_until_s, uses, created_s, consumed_s)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, $9, $10, $11) ON CONFLICT DO NOTHING",
};
const struct sql_statement import_put_device = {
    .text = "INSERT INTO devices (did, device, name, signature_key, created_ms) VALUES ($1, $2, "
            "$3, $4, $5)"
            " ON CONFLICT DO NOTHING",
};
const struct sql_statement import_put_welcome = {
    .text =
        "INSERT INTO welcomes (convo, seq, part, bytes, created_ms) VALUES ($1, $2, $3, $4, $5)",
};
const struct sql_statement import_put_target = {
    .text =
        "INSERT INTO welcome_targets (convo, seq, part, ref, did, device, state, changed_ms, why)"
        " VALUES ($1, $2, $3, $4, $5, COALESCE((SELECT k.device FROM key_packages k WHERE k.ref = "
        "$4"
        " AND k.did = $5), $6), $7, $8, $9) ON CONFLICT DO NOTHING",
};
