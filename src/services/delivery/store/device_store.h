/* SPDX-License-Identifier: Apache-2.0 */
/* device_store.h: devices of accounts, and their wishes to be added to conversations, as statements.
 *
 * A member claims the wish of a device for a minute, adds the device by a commit, and completes it:
 *
 *   pending ──claim──▶ claimed ──complete──▶ completed
 *      ▲──60 s passed─────┘        pending ──the device joined by itself──▶ completed
 */
#ifndef SERVICES_DELIVERY_STORE_DEVICE_STORE_H
#define SERVICES_DELIVERY_STORE_DEVICE_STORE_H

#include "services/delivery/store/schema.h"

enum { DEVICES_MAX = 20, DEVICE_CLAIM_MS = 60000, DEVICE_PACKAGES_MAX = 200 };
enum { ADDITION_PENDING = 0, ADDITION_CLAIMED = 1, ADDITION_COMPLETED = 2 };

/* ---- devices -------------------------------------------------------------------------------- */

/* Free key packages of the device `d` at the time `now`, in seconds. */
#define DEVICE_FREE_PACKAGES(now)                                                                  \
    "(SELECT COUNT(*) FROM key_packages WHERE did = d.did AND device = d.device"                   \
    " AND is_last_resort = 0 AND not_after_s > " now                                               \
    " AND (state = 0 OR (state = 1 AND lease_until_s <= " now ")) AND NOT " PACKAGE_IS_BROUGHT ")"
/* Register, unless $1 has $6 other devices. The same key again changes the name; another key
 * changes nothing. */
SQL_STATEMENT(device_put,
    "INSERT INTO devices (did, device, name, signature_key, created_ms)"
    " SELECT $1, $2, $3, $4, $5 WHERE (SELECT COUNT(*) FROM devices WHERE did = $1"
    " AND device <> $2) < $6 ON CONFLICT (did, device) DO UPDATE SET name = excluded.name"
    " WHERE devices.signature_key = excluded.signature_key");
/* Columns: signature_key, mlsDid. */
SQL_STATEMENT(device_get_key,
    "SELECT signature_key, did || '#' || device FROM devices WHERE did = $1 AND device = $2");
/* A new device asks to be added wherever its account is. Column: convo. */
SQL_STATEMENT(device_put_additions,
    "INSERT INTO device_additions (id, convo, did, device, kind, state, claim_until_ms, created_ms,"
    " changed_ms) SELECT m.did || '#' || d.device || '/' || m.convo, m.convo, m.did, d.device, 0,"
    " 0, 0, $3, $3 FROM members m JOIN devices d ON d.did = m.did WHERE m.did = $1"
    " AND d.device = $2 AND d.created_ms = $3 AND m.leave_seq IS NULL AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets t WHERE t.convo = m.convo AND t.did = m.did AND t.device = d.device"
    " AND t.state <= 2) ON CONFLICT DO NOTHING RETURNING convo");
/* Columns: device, name, mlsDid, signature_key, created_ms, free key packages. */
SQL_STATEMENT(device_list,
    "SELECT d.device, d.name, CASE WHEN d.device = '' THEN d.did ELSE d.did || '#' || d.device END,"
    " d.signature_key, d.created_ms, " DEVICE_FREE_PACKAGES(
        "$2") " FROM devices d"
              " WHERE d.did = $1 ORDER BY d.created_ms, d.device");
/* Delete the device, then what belongs to it. */
SQL_STATEMENT(device_delete, "DELETE FROM devices WHERE did = $1 AND device = $2");
SQL_STATEMENT(
    device_delete_additions, "DELETE FROM device_additions WHERE did = $1 AND device = $2");
SQL_STATEMENT(device_delete_push_token, "DELETE FROM push_tokens WHERE did = $1 AND device = $2");
/* Only of a registered device. */
SQL_STATEMENT(device_put_push_token,
    "INSERT INTO push_tokens (did, device, platform, token, changed_ms) SELECT d.did, d.device, $3,"
    " $4, $5 FROM devices d WHERE d.did = $1 AND d.device = $2 ON CONFLICT (did, device) DO UPDATE"
    " SET platform = excluded.platform, token = excluded.token, changed_ms = excluded.changed_ms");
SQL_STATEMENT(device_end_welcomes,
    "UPDATE welcome_targets SET state = 3, why = 'the device was deleted', changed_ms = $3"
    " WHERE did = $1 AND device = $2 AND state <= 1");
/* The conversations of $1 after $3, as its device $2 sees them. Columns: convo, name, epoch,
 * active_ms, joined_ms, members, additions that wait, Welcomes that wait, Welcomes that failed and
 * were the newest, is the device in the group.
 * A device is missing from a group while somebody has to add it, or its newest Welcome failed. */
SQL_STATEMENT(device_list_expected,
    "SELECT q.*, CASE WHEN q.adding + q.waiting + q.failed = 0 THEN 1 ELSE 0 END"
    " FROM (SELECT c.id AS id, c.name, c.epoch, c.active_ms, m.joined_ms, (SELECT COUNT(*)"
    " FROM members o WHERE o.convo = c.id AND o.leave_seq IS NULL) AS members, (SELECT COUNT(*)"
    " FROM device_additions a WHERE a.convo = c.id AND a.did = m.did AND a.device = $2"
    " AND a.state <> 2) AS adding, (SELECT COUNT(*) FROM welcome_targets t WHERE t.convo = c.id"
    " AND t.did = m.did AND t.device = $2 AND t.state <= 1 AND t.seq >= m.join_seq) AS waiting,"
    " (SELECT COUNT(*) FROM welcome_targets t WHERE t.convo = c.id AND t.did = m.did"
    " AND t.device = $2 AND t.state = 3 AND t.seq >= m.join_seq AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets n WHERE n.convo = t.convo AND n.did = t.did AND n.device = t.device"
    " AND n.seq > t.seq)) AS failed FROM members m JOIN convos c ON c.id = m.convo WHERE m.did = $1"
    " AND m.leave_seq IS NULL AND c.id > $3 ORDER BY c.id LIMIT $4) AS q ORDER BY q.id");
enum { EXPECTED_CONVO, EXPECTED_WAITING = 7, EXPECTED_FAILED = 8, EXPECTED_IS_IN = 9 };
enum { EXPECTED_MAX = 1000 };
/* Columns: free key packages, last resorts. */
SQL_STATEMENT(device_count_packages,
    "SELECT " DEVICE_FREE_PACKAGES("$3") ", (SELECT COUNT(*) FROM key_packages p"
                                         " WHERE p.did = d.did AND p.device = d.device AND "
                                         "p.is_last_resort = 1 AND p.not_after_s > $3)"
                                         " FROM devices d WHERE d.did = $1 AND d.device = $2");

/* ---- additions ------------------------------------------------------------------------------ */

/* The caller $2 is a member. */
#define ADDITION_IS_OF_MEMBER                                                                      \
    "EXISTS (SELECT 1 FROM members m WHERE m.convo = a.convo AND m.did = $2"                       \
    " AND m.leave_seq IS NULL)"
/* The device of an account that left is not added any more. */
#define ADDITION_OWNER_IS_IN                                                                       \
    "EXISTS (SELECT 1 FROM members o WHERE o.convo = a.convo AND o.did = a.did"                    \
    " AND o.leave_seq IS NULL)"
#define ADDITION_IF_CLAIMED "CASE WHEN a.state = 1 AND a.claim_until_ms > "
/* $3 asks to be added again. Nothing changes if its DID is no member, or while a claim runs. */
SQL_STATEMENT(addition_put,
    "INSERT INTO device_additions AS a (id, convo, did, device, kind, state, why, claim_until_ms,"
    " created_ms, changed_ms) SELECT m.did || '#' || $3 || '/' || m.convo, m.convo, m.did, $3,"
    " 1, 0, $4, 0, $5, $5 FROM members m WHERE m.convo = $1 AND m.did = $2 AND m.leave_seq IS NULL"
    " ON CONFLICT (id) DO UPDATE SET kind = 1, state = 0, why = excluded.why, claimed_by = NULL,"
    " claim_until_ms = 0, changed_ms = excluded.changed_ms WHERE a.state <> 1"
    " OR a.claim_until_ms <= $5");
/* Column: id, if the caller is a member. */
SQL_STATEMENT(addition_find_request,
    "SELECT id FROM device_additions WHERE convo = $1 AND did = $2 AND device = $3"
    " AND state <> 2 AND EXISTS (SELECT 1 FROM members m WHERE m.convo = $1 AND m.did = $2"
    " AND m.leave_seq IS NULL)");
/* Columns: id, convo, did, device, mlsDid, device name, kind, is claimed, claimed_by, claim until,
 * why, created_ms. */
SQL_STATEMENT(addition_list,
    "SELECT a.id, a.convo, a.did, a.device, CASE WHEN a.device = '' THEN a.did"
    " ELSE a.did || '#' || a.device END, d.name, a.kind, " ADDITION_IF_CLAIMED
    "$4 THEN 1 ELSE 0 END, " ADDITION_IF_CLAIMED "$4 THEN a.claimed_by END, " ADDITION_IF_CLAIMED
    "$4 THEN a.claim_until_ms END, a.why, a.created_ms FROM device_additions a LEFT JOIN devices d"
    " ON d.did = a.did AND d.device = a.device WHERE a.state <> 2 AND ($2 = '' OR a.convo = $2)"
    " AND a.convo IN (SELECT convo FROM members WHERE did = $1 AND leave_seq IS NULL)"
    " AND " ADDITION_OWNER_IS_IN " ORDER BY a.created_ms, a.id LIMIT $3");
/* If caller and owner are members. Columns: did, device, convo, suite, state. */
SQL_STATEMENT(addition_find,
    "SELECT a.did, a.device, a.convo, c.suite, a.state FROM device_additions a JOIN convos c"
    " ON c.id = a.convo WHERE a.id = $1 AND " ADDITION_IS_OF_MEMBER " AND " ADDITION_OWNER_IS_IN);
SQL_STATEMENT(addition_claim,
    "UPDATE device_additions AS a SET state = 1, claimed_by = $2, claim_until_ms = $4,"
    " changed_ms = $3 WHERE a.id = $1 AND (a.state = 0 OR (a.state = 1 AND (a.claim_until_ms <= $3"
    " OR a.claimed_by = $2))) AND " ADDITION_IS_OF_MEMBER " AND " ADDITION_OWNER_IS_IN);
/* Give the claim back if it led to no package: it would only keep others away. */
SQL_STATEMENT(addition_unclaim,
    "UPDATE device_additions SET state = 0, claimed_by = NULL, claim_until_ms = 0"
    " WHERE id = $1 AND state = 1 AND claimed_by = $2 AND NOT EXISTS (SELECT 1 FROM key_packages p"
    " WHERE p.did = device_additions.did AND p.device = device_additions.device AND p.suite = $3"
    " AND p.lease_did = $2 AND p.lease_until_s > $4 AND p.not_after_s > $4)");
SQL_STATEMENT(addition_complete,
    "UPDATE device_additions AS a SET state = 2, changed_ms = $3 WHERE a.id = $1 AND a.state <> 2"
    " AND (a.did = $2 OR (a.state = 1 AND a.claimed_by = $2 AND a.claim_until_ms > $3))"
    " AND " ADDITION_IS_OF_MEMBER);

/* ---- rejoins -------------------------------------------------------------------------------- */

/* A rejoin brings a package: count it, find the member and the suite of its conversation, wish for
 * it, end Welcomes for older packages, find a Welcome that answers it (column: created_ms). */
SQL_STATEMENT(rejoin_forget_old, "DELETE FROM rejoins WHERE did = $1 AND created_ms <= $2");
SQL_STATEMENT(rejoin_put,
    "INSERT INTO rejoins (id, did, created_ms) SELECT $1, $2, $3 WHERE (SELECT COUNT(*)"
    " FROM rejoins WHERE did = $2) < $4");
SQL_STATEMENT(rejoin_find_suite, "SELECT 1 FROM convos WHERE id = $1 AND suite = $2");
/* A member that works on the wish goes on, and is given the new package when it claims again. */
SQL_STATEMENT(rejoin_put_wish,
    "INSERT INTO device_additions AS a (id, convo, did, device, kind, state, why, claim_until_ms,"
    " created_ms, changed_ms, package) SELECT $1, $2, $3, $4, 1, 0, '', 0, $5, $5, p.ref"
    " FROM key_packages p WHERE p.ref = $6 AND p.did = $3"
    " AND p.device = $4 AND p.not_after_s > $7 AND (p.is_last_resort = 1 OR p.state <> 2) AND"
    " NOT EXISTS (SELECT 1 FROM welcome_targets t WHERE t.convo = $2 AND t.ref = $6 AND t.did = $3"
    " AND t.state <= 1) ON CONFLICT (id) DO UPDATE SET package = excluded.package, kind = 1,"
    " why = '', claimed_by = " ADDITION_IF_CLAIMED "$5 THEN a.claimed_by END,"
    " claim_until_ms = " ADDITION_IF_CLAIMED "$5 THEN a.claim_until_ms ELSE 0 END,"
    " state = " ADDITION_IF_CLAIMED "$5 THEN 1 ELSE 0 END, changed_ms = excluded.changed_ms");
/* Welcomes for packages that the device had before are no good to it. */
SQL_STATEMENT(rejoin_end_others,
    "UPDATE welcome_targets SET state = 3, why = 'the device asked to rejoin', changed_ms = $4"
    " WHERE convo = $1 AND did = $2 AND (device = $3 OR device = '' OR $3 = '') AND state <= 1"
    " AND ref <> $6 AND EXISTS (SELECT 1 FROM device_additions a WHERE a.id = $5 AND a.package = $6"
    " AND a.state <> 2)");
/* A last resort that was joined with before is as good as new. */
SQL_STATEMENT(rejoin_find_welcome,
    "SELECT w.created_ms FROM welcome_targets t JOIN welcomes w ON w.convo = t.convo"
    " AND w.seq = t.seq AND w.part = t.part WHERE t.convo = $1 AND t.ref = $2 AND t.did = $3"
    " AND (t.state <= 1 OR (t.state = 2 AND EXISTS (SELECT 1 FROM key_packages p WHERE p.ref = $2"
    " AND p.state = 2))) ORDER BY t.seq DESC LIMIT 1");

#endif
