/* SPDX-License-Identifier: Apache-2.0 */
/* import_store.h: the statements of an import. */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_STORE_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_STORE_H

#include "sql/sql.h"

/* The mark is a row of the audit log: an import of the conversation has begun, or is whole. The
 * result is an enum state of import.c. */
#define IMPORT_MARK "SELECT 1 FROM audit WHERE id = 'import:' || $1 AND action = "
SQL_STATEMENT(import_find_convo, "SELECT CASE WHEN EXISTS (" IMPORT_MARK "'importBegun') THEN 1"
                                 " WHEN NOT EXISTS (SELECT 1 FROM convos WHERE id = $1) THEN 0"
                                 " WHEN EXISTS (" IMPORT_MARK "'import') THEN 2 ELSE 3 END");
SQL_STATEMENT(import_put_mark,
    "INSERT INTO audit (id, actor, action, convo, target, created_ms)"
    " VALUES ('import:' || $1, 'import catbird', 'importBegun', $1, NULL, $2)");
SQL_STATEMENT(import_end_mark,
    "UPDATE audit SET action = 'import' WHERE id = 'import:' || $1 AND action = 'importBegun'");
SQL_STATEMENT(import_put_convo,
    "INSERT INTO convos (id, kind, suite, creator, name, description, epoch, seq, created_ms,"
    " active_ms, open_join, invite_required, allow_rejoin, rejoin_days, members_max)"
    " VALUES ($1, 1, $2, COALESCE($3, ''), NULLIF($4, ''), NULLIF($5, ''), 0, 0, $6, $6, 0, $7,"
    " $8, $9, $10)");
SQL_STATEMENT(import_set_convo,
    "UPDATE convos SET epoch = $2, confirmed_epoch = $2, seq = $3, kept_from = $4, active_ms = $5,"
    " group_id = $6, group_info = $7, group_info_epoch = $8, chain = $9 WHERE id = $1");
/* The source does not say why a member left. It counts as removed: it comes back when it is added.
 */
SQL_STATEMENT(import_put_member,
    "INSERT INTO members (convo, did, join_seq, leave_seq, joined_ms, is_admin, is_moderator,"
    " unread_extra, read_seq, left_ms, was_removed)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8, $9, $10)");
SQL_STATEMENT(import_put_log,
    "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, op, sha256, bytes, created_ms,"
    " receipt, message_id) VALUES ($1, $2, $3, $4, $5, COALESCE($6, ''), $7, $8, $9,"
    " $10, $11, $12)");
SQL_STATEMENT(import_put_package,
    "INSERT INTO key_packages (ref, did, device, suite, bytes, not_after_s, is_last_resort, state,"
    " lease_until_s, uses, created_s, consumed_s)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, $9, $10, $11) ON CONFLICT DO NOTHING");
SQL_STATEMENT(import_put_device,
    "INSERT INTO devices (did, device, name, signature_key, created_ms)"
    " VALUES ($1, $2, COALESCE($3, ''), $4, $5) ON CONFLICT DO NOTHING");
SQL_STATEMENT(import_put_welcome,
    "INSERT INTO welcomes (convo, seq, part, bytes, created_ms) VALUES ($1, $2, $3, $4, $5)");
/* Finds the device by the package, where the package is still known. */
SQL_STATEMENT(import_put_target,
    "INSERT INTO welcome_targets (convo, seq, part, ref, did, device, state, changed_ms, why)"
    " VALUES ($1, $2, $3, $4, $5, COALESCE((SELECT k.device FROM key_packages k WHERE k.ref = $4"
    " AND k.did = $5), $6, ''), $7, $8, $9) ON CONFLICT DO NOTHING");
/* Forget what an earlier run left of a conversation; of its log, 1000 rows at a time. */
SQL_STATEMENT(import_forget_log,
    "DELETE FROM log WHERE convo = $1 AND seq IN (SELECT l.seq FROM log l"
    " WHERE l.convo = $1 ORDER BY l.seq LIMIT 1000)");
SQL_STATEMENT(import_forget_targets, "DELETE FROM welcome_targets WHERE convo = $1");
SQL_STATEMENT(import_forget_welcomes, "DELETE FROM welcomes WHERE convo = $1");
SQL_STATEMENT(import_forget_members, "DELETE FROM members WHERE convo = $1");
SQL_STATEMENT(import_forget_convo, "DELETE FROM convos WHERE id = $1");
SQL_STATEMENT(
    import_forget_mark, "DELETE FROM audit WHERE id = 'import:' || $1 AND action = 'importBegun'");

#endif
