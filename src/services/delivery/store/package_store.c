/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/store/package_store.h"

#include "services/delivery/store/schema.h"

/* ---- storing -------------------------------------------------------------------------------- */

const struct sql_statement package_put = {
    .text =
        "INSERT INTO key_packages (ref, did, device, suite, bytes, not_after_s, is_last_resort, "
        "state,"
        " lease_until_s, uses, created_s) SELECT $1, $2, $3, $4, $5, $6, $7, 0, 0, 0, $8"
        " WHERE NOT EXISTS (SELECT 1 FROM devices WHERE did = $2 AND device = $3"
        " AND signature_key <> $9)"
        " AND ($12 = 0 OR EXISTS (SELECT 1 FROM devices WHERE did = $2 AND device = $3))"
        " AND ($7 = 1 OR (SELECT COUNT(*) FROM key_packages WHERE did = $2 AND is_last_resort = 0"
        " AND not_after_s > $8 AND (state = 0 OR (state = 1 AND lease_until_s <= $8))) < $10)"
        " AND (SELECT COUNT(*) FROM key_packages WHERE did = $2 AND device = $3 AND state <> 2"
        " AND not_after_s > $8) < $11"
        " ON CONFLICT DO NOTHING",
};
const struct sql_statement package_why_not = {
    .text =
        "SELECT (SELECT COUNT(*) FROM key_packages WHERE ref = $1 AND did = $2),"
        " (SELECT COUNT(*) FROM devices WHERE did = $2 AND device = $3 AND signature_key <> $4)",
};
const struct sql_statement package_retire_last_resorts = {
    .text = "UPDATE key_packages SET not_after_s = $5 WHERE did = $1 AND device = $2 AND suite = $3"
            " AND is_last_resort = 1 AND ref <> $4 AND not_after_s > $5"
            " AND created_s <= (SELECT created_s FROM key_packages WHERE ref = $4)",
};

/* ---- claims --------------------------------------------------------------------------------- */

/* $3 is now. */
#define HAS_NO_LEASE "(state = 0 OR (state = 1 AND lease_until_s <= $3))"
#define PICK                                                                                       \
    "SELECT ref FROM (SELECT ref, ROW_NUMBER() OVER (PARTITION BY device ORDER BY is_last_resort," \
    " CASE WHEN is_last_resort = 1 THEN -created_s ELSE created_s END, ref) AS place"              \
    " FROM key_packages WHERE did = $1 AND ($2 = 0 OR suite = $2) AND not_after_s > $3"            \
    " AND (is_last_resort = 1 OR (" HAS_NO_LEASE " AND NOT " PACKAGE_IS_BROUGHT                    \
    " AND (SELECT COUNT(*) FROM key_packages held"                                                 \
    " WHERE held.did = $1 AND held.state = 1 AND held.lease_did = $4 AND held.lease_until_s > $3)" \
    " < $5))) AS picked WHERE place = 1 LIMIT $6"
#define PACKAGE_COLUMNS "ref, NULLIF(device, ''), bytes, suite, is_last_resort"

const struct sql_statement package_claim = {
    .text = "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END,"
            " lease_did = $4, lease_until_s = $7 WHERE ref IN (" PICK ")"
            " AND (is_last_resort = 1 OR " HAS_NO_LEASE ") RETURNING " PACKAGE_COLUMNS,
};
const struct sql_statement package_peek = {
    .text = "SELECT " PACKAGE_COLUMNS " FROM key_packages WHERE ref IN (" PICK ")",
};

/* The package that the device brought with its wish comes first: the device may have lost the keys
 * of older ones. That one is also taken from its holder: from a member who claimed the addition and
 * let it be, or from a stranger who cannot use it any more. */
#define WISHED "(SELECT w.package FROM device_additions w WHERE w.id = $7)"
#define MAY_LEASE                                                                                  \
    "(is_last_resort = 1 OR state = 0"                                                             \
    " OR (state = 1 AND (ref = " WISHED " OR lease_until_s <= $5)))"
const struct sql_statement package_lease = {
    .text =
        "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END,"
        " lease_did = $4, lease_until_s = $6"
        " WHERE ref = (SELECT ref FROM key_packages WHERE did = $1 AND device = $2 AND suite = $3"
        " AND not_after_s > $5 AND " MAY_LEASE " AND (ref = " WISHED " OR NOT " PACKAGE_IS_BROUGHT
        ")"
        " ORDER BY CASE WHEN ref = " WISHED " THEN 0 ELSE 1 END, is_last_resort,"
        " CASE WHEN is_last_resort = 1 THEN -created_s ELSE created_s END, ref LIMIT 1)"
        " AND " MAY_LEASE " AND EXISTS (SELECT 1 FROM device_additions WHERE id = $7 AND state = 1 "
        "AND claimed_by = $4"
        " AND claim_until_ms > $8)"
        " RETURNING ref, bytes, is_last_resort,"
        " CASE WHEN device = '' THEN did ELSE did || '#' || device END",
};
const struct sql_statement package_find_low = {
    .text = "SELECT m.convo, f.free FROM (SELECT COUNT(*) AS free FROM key_packages WHERE did = $1"
            " AND is_last_resort = 0 AND not_after_s > $2 AND (state = 0 OR (state = 1"
            " AND lease_until_s <= $2)) AND NOT " PACKAGE_IS_BROUGHT
            ") AS f JOIN members m ON m.did = $1 AND m.leave_seq IS NULL"
            " WHERE f.free < $3 LIMIT $4",
};

/* Only the holder of the lease, or a claimer who could hold it, learns whose packages these are. A
 * lease is never made shorter. A package that a device brought is for the member who has claimed
 * its addition. */
#define IS_CLAIMED PACKAGE_IS_BROUGHT_AND(" AND a.state = 1 AND a.claimed_by = $2")
const struct sql_statement package_reserve = {
    .text = "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END,"
            " lease_until_s = CASE WHEN lease_did = $2 AND lease_until_s > $4 THEN lease_until_s "
            "ELSE $4"
            " END, lease_did = $2 WHERE ref = $1 AND not_after_s > $3 AND (is_last_resort = 1"
            " OR state = 0 OR (state = 1 AND (lease_did = $2 OR lease_until_s <= $3)))"
            " AND (NOT " PACKAGE_IS_BROUGHT " OR " IS_CLAIMED ")"
            " RETURNING ref, did, device, is_last_resort, lease_until_s",
};
const struct sql_statement package_find = {
    .text = "SELECT state FROM key_packages WHERE ref = $1",
};

/* ---- the owner's stock ---------------------------------------------------------------------- */

/* A package that is brought for one conversation is as good as leased. */
#define IS_FREE "(" HAS_NO_LEASE " AND NOT " PACKAGE_IS_BROUGHT ")"

const struct sql_statement package_count_free = {
    .text = "SELECT suite, COUNT(*) FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2)"
            " AND is_last_resort = 0 AND not_after_s > $3 AND " IS_FREE
            " GROUP BY suite ORDER BY suite",
};
const struct sql_statement package_count_consumed = {
    .text = "SELECT COUNT(CASE WHEN consumed_s > $3 THEN 1 END), COUNT(*) FROM key_packages"
            " WHERE did = $1 AND ($2 = '' OR device = $2) AND is_last_resort = 0 AND state = 2"
            " AND consumed_s > $4",
};
const struct sql_statement package_count_leased = {
    .text = "SELECT COUNT(*) FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2)"
            " AND is_last_resort = 0 AND not_after_s > $3 AND state <> 2 AND NOT " IS_FREE,
};
const struct sql_statement package_count_last_resorts = {
    .text =
        "SELECT COUNT(*), CAST(COALESCE(SUM(uses), 0) AS BIGINT) FROM key_packages"
        " WHERE did = $1 AND ($2 = '' OR device = $2) AND is_last_resort = 1 AND not_after_s > $3",
};
#define STOCK_COLUMNS(now)                                                                         \
    "ref, device, suite, not_after_s, is_last_resort, uses, created_s, consumed_s,"                \
    " CASE WHEN state = 2 THEN 0 WHEN not_after_s <= " now " THEN 1"                               \
    " WHEN (state = 1 AND lease_until_s > " now ") OR " PACKAGE_IS_BROUGHT " THEN 2 ELSE 3 END"
const struct sql_statement package_list = {
    .text = "SELECT " STOCK_COLUMNS(
        "$5") " FROM key_packages WHERE did = $1"
              " AND ($2 = '' OR device = $2) AND ref > $3 ORDER BY ref LIMIT $4",
};
const struct sql_statement package_get = {
    .text = "SELECT " STOCK_COLUMNS("$3") " FROM key_packages WHERE did = $1 AND ref = $2",
};
const struct sql_statement package_delete = {
    .text = "DELETE FROM key_packages WHERE ref = $1 AND did = $2 AND state <> 2",
};
const struct sql_statement package_delete_of_device = {
    .text = "DELETE FROM key_packages WHERE did = $1 AND device = $2 AND state <> 2",
};
const struct sql_statement package_list_refs = {
    .text = "SELECT ref FROM key_packages WHERE did = $1 AND device = $2 AND state <> 2"
            " AND not_after_s > $3 ORDER BY created_s LIMIT 1000",
};
