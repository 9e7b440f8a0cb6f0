/* SPDX-License-Identifier: Apache-2.0 */
/* package_store.h: the pool of key packages as statements. A claim is a lease: the package is the
 * claimer's for ten minutes. A commit whose Welcome names the package consumes it; otherwise it is
 * free again when the lease has passed. A last resort serves a device without a free package, and
 * is never used up. */
#ifndef SERVICES_DELIVERY_STORE_PACKAGE_STORE_H
#define SERVICES_DELIVERY_STORE_PACKAGE_STORE_H

#include "services/delivery/store/schema.h"

enum {
    PACKAGES_FREE_MAX = 100,   /* of a DID, that are not leased */
    PACKAGES_DEVICE_MAX = 200, /* of a device, that are not consumed */
    PACKAGE_THRESHOLD = 20,    /* the owner should publish more when fewer are free */
    PACKAGE_LEASES_MAX = 20,   /* of one DID's packages that one claimer may hold at a time */
    PACKAGE_DEVICES_MAX = 32,  /* devices of a DID that one claim serves */
    PACKAGE_LOW_CONVOS = 1000, /* conversations that hear of a low stock */
    PACKAGE_SKEW_S = 3600,
    PACKAGE_SPAN_S_MAX = 90 * 86400 + 3600,
};

/* All claims run on one writer, in one order: two that meet at one DID never choose the same row,
 * and two that name the same DIDs in another order cannot wait for each other. */
enum { PACKAGE_CLAIMS_KEY = 0x6b70 };

/* ---- storing -------------------------------------------------------------------------------- */

/* Store one. The limits are conditions of the INSERT, so that two uploads at once cannot pass them
 * together. */
SQL_STATEMENT(package_put,
    "INSERT INTO key_packages (ref, did, device, suite, bytes, not_after_s, is_last_resort,"
    " state, lease_until_s, uses, created_s) SELECT $1, $2, $3, $4, $5, $6, $7, 0, 0, 0, $8 WHERE"
    " NOT EXISTS (SELECT 1 FROM devices WHERE did = $2 AND device = $3 AND signature_key <> $9)"
    " AND ($12 = 0 OR EXISTS (SELECT 1 FROM devices WHERE did = $2 AND device = $3)) AND ($7 = 1 OR"
    " (SELECT COUNT(*) FROM key_packages WHERE did = $2 AND is_last_resort = 0 AND not_after_s > $8"
    " AND (state = 0 OR (state = 1 AND lease_until_s <= $8))) < $10) AND (SELECT COUNT(*)"
    " FROM key_packages WHERE did = $2 AND device = $3 AND state <> 2 AND not_after_s > $8) < $11"
    " ON CONFLICT DO NOTHING");
/* Columns: is it there, is the device registered with another key. */
SQL_STATEMENT(package_why_not,
    "SELECT (SELECT COUNT(*) FROM key_packages WHERE ref = $1 AND did = $2), (SELECT COUNT(*)"
    " FROM devices WHERE did = $2 AND device = $3 AND signature_key <> $4)");
/* A new last resort replaces the old one, which a claimer can still use until $5. */
SQL_STATEMENT(package_retire_last_resorts,
    "UPDATE key_packages SET not_after_s = $5 WHERE did = $1 AND device = $2 AND suite = $3"
    " AND is_last_resort = 1 AND ref <> $4 AND not_after_s > $5 AND created_s <= (SELECT created_s"
    " FROM key_packages WHERE ref = $4)");

/* ---- claims --------------------------------------------------------------------------------- */

/* $3 is now. */
#define PACKAGE_HAS_NO_LEASE "(state = 0 OR (state = 1 AND lease_until_s <= $3))"
#define PACKAGE_PICK                                                                               \
    "SELECT ref FROM (SELECT ref, ROW_NUMBER() OVER (PARTITION BY device ORDER BY is_last_resort," \
    " CASE WHEN is_last_resort = 1 THEN -created_s ELSE created_s END, ref) AS place"              \
    " FROM key_packages WHERE did = $1 AND ($2 = 0 OR suite = $2) AND not_after_s > $3"            \
    " AND (is_last_resort = 1 OR (" PACKAGE_HAS_NO_LEASE " AND NOT " PACKAGE_IS_BROUGHT            \
    " AND (SELECT COUNT(*) FROM key_packages held"                                                 \
    " WHERE held.did = $1 AND held.state = 1 AND held.lease_did = $4 AND held.lease_until_s > $3)" \
    " < $5))) AS picked WHERE place = 1 LIMIT $6"
#define PACKAGE_COLUMNS "ref, NULLIF(device, ''), bytes, suite, is_last_resort"
/* One package of each device of $1: the oldest free one, or the newest last resort. Columns: ref,
 * device (NULL: none), bytes, suite, is_last_resort. */
SQL_STATEMENT(package_claim,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state"
    " ELSE 1 END, lease_did = $4, lease_until_s = $7 WHERE ref IN (" PACKAGE_PICK ")"
    " AND (is_last_resort = 1 OR " PACKAGE_HAS_NO_LEASE ") RETURNING " PACKAGE_COLUMNS);
SQL_STATEMENT(
    package_peek, "SELECT " PACKAGE_COLUMNS " FROM key_packages WHERE ref IN (" PACKAGE_PICK ")");
/* The package that the device brought with its wish comes first: the device may have lost the keys
 * of older ones. That one is also taken from its holder: from a member who claimed the addition and
 * let it be, or from a stranger who cannot use it any more. */
#define PACKAGE_WISHED "(SELECT w.package FROM device_additions w WHERE w.id = $7)"
#define PACKAGE_MAY_LEASE                                                                          \
    "(is_last_resort = 1 OR state = 0"                                                             \
    " OR (state = 1 AND (ref = " PACKAGE_WISHED " OR lease_until_s <= $5)))"
/* Lease the package of a device for the claimed addition $7. Columns: ref, bytes, is_last_resort,
 * mlsDid. */
SQL_STATEMENT(package_lease,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END, lease_did"
    " = $4, lease_until_s = $6 WHERE ref = (SELECT ref FROM key_packages WHERE did = $1 AND device"
    " = $2 AND suite = $3 AND not_after_s > $5 AND " PACKAGE_MAY_LEASE " AND (ref = " PACKAGE_WISHED
    " OR NOT " PACKAGE_IS_BROUGHT ") ORDER BY CASE WHEN ref = " PACKAGE_WISHED " THEN 0 ELSE 1 END,"
    " is_last_resort, CASE WHEN is_last_resort = 1 THEN -created_s ELSE created_s END, ref LIMIT 1)"
    " AND " PACKAGE_MAY_LEASE " AND EXISTS (SELECT 1 FROM device_additions WHERE id = $7"
    " AND state = 1 AND claimed_by = $4 AND claim_until_ms > $8) RETURNING ref, bytes,"
    " is_last_resort, CASE WHEN device = '' THEN did ELSE did || '#' || device END");
/* The conversations of $1 if fewer than $3 packages are free. Columns: convo, free. */
SQL_STATEMENT(package_find_low,
    "SELECT m.convo, f.free FROM (SELECT COUNT(*) AS free FROM key_packages"
    " WHERE did = $1 AND is_last_resort = 0 AND not_after_s > $2 AND (state = 0 OR (state = 1"
    " AND lease_until_s <= $2)) AND NOT " PACKAGE_IS_BROUGHT ") AS f JOIN members m ON m.did = $1"
    " AND m.leave_seq IS NULL WHERE f.free < $3 LIMIT $4");
/* Only the holder of the lease, or a claimer who could hold it, learns whose packages these are. A
 * lease is never made shorter. A package that a device brought is for the member who has claimed
 * its addition. */
#define PACKAGE_IS_CLAIMED PACKAGE_IS_BROUGHT_AND(" AND a.state = 1 AND a.claimed_by = $2")
/* Lease the packages that a Welcome names until its commit is stored. Columns: ref, did, device,
 * is_last_resort, lease_until_s. */
SQL_STATEMENT(package_reserve,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END,"
    " lease_until_s = CASE WHEN lease_did = $2 AND lease_until_s > $4 THEN lease_until_s ELSE $4"
    " END, lease_did = $2 WHERE ref = $1 AND not_after_s > $3 AND (is_last_resort = 1 OR state = 0"
    " OR (state = 1 AND (lease_did = $2 OR lease_until_s <= $3))) AND (NOT " PACKAGE_IS_BROUGHT
    " OR " PACKAGE_IS_CLAIMED ") RETURNING ref, did, device, is_last_resort, lease_until_s");
/* Its owner. */
SQL_STATEMENT(package_find, "SELECT did, device FROM key_packages WHERE ref = $1");

/* ---- the owner's stock ---------------------------------------------------------------------- */

/* A package that is brought for one conversation is as good as leased. */
#define PACKAGE_IS_FREE "(" PACKAGE_HAS_NO_LEASE " AND NOT " PACKAGE_IS_BROUGHT ")"
/* Of $1 and its device $2 ("": all), at $3. Columns: suite, free; consumed in a day, in a week;
 * leased; last resorts, their uses. */
SQL_STATEMENT(package_count_free,
    "SELECT suite, COUNT(*) FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2)"
    " AND is_last_resort = 0 AND not_after_s > $3 AND " PACKAGE_IS_FREE " GROUP BY suite"
    " ORDER BY suite");
SQL_STATEMENT(package_count_consumed,
    "SELECT COUNT(CASE WHEN consumed_s > $3 THEN 1 END), COUNT(*) FROM key_packages WHERE did = $1"
    " AND ($2 = '' OR device = $2) AND is_last_resort = 0 AND state = 2 AND consumed_s > $4");
SQL_STATEMENT(package_count_leased,
    "SELECT COUNT(*) FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2)"
    " AND is_last_resort = 0 AND not_after_s > $3 AND state <> 2 AND NOT " PACKAGE_IS_FREE);
SQL_STATEMENT(package_count_last_resorts,
    "SELECT COUNT(*), CAST(COALESCE(SUM(uses), 0) AS BIGINT) FROM key_packages WHERE did = $1"
    " AND ($2 = '' OR device = $2) AND is_last_resort = 1 AND not_after_s > $3");
#define PACKAGE_STOCK(now)                                                                         \
    "ref, device, suite, not_after_s, is_last_resort, uses, created_s, consumed_s,"                \
    " CASE WHEN state = 2 THEN 0 WHEN not_after_s <= " now " THEN 1"                               \
    " WHEN (state = 1 AND lease_until_s > " now ") OR " PACKAGE_IS_BROUGHT " THEN 2 ELSE 3 END"
/* Columns: ref, device, suite, not_after_s, is_last_resort, uses, created_s, consumed_s, status: 0
 * consumed, 1 expired, 2 leased, 3 available. Now is the last value. */
#define PACKAGE_LIST(is)                                                                           \
    "SELECT " PACKAGE_STOCK("$5") " FROM key_packages WHERE did = $1 AND ($2 = '' OR device = $2)" \
                                  " AND ref " is " $3 ORDER BY ref LIMIT $4"
SQL_STATEMENT(package_list, PACKAGE_LIST(">"));
SQL_STATEMENT(package_get, PACKAGE_LIST("="));

SQL_STATEMENT(
    package_delete, "DELETE FROM key_packages WHERE ref = $1 AND did = $2 AND state <> 2");
SQL_STATEMENT(package_delete_of_device,
    "DELETE FROM key_packages WHERE did = $1 AND device = $2 AND state <> 2");
/* Column: ref. */
SQL_STATEMENT(package_list_refs,
    "SELECT ref FROM key_packages WHERE did = $1 AND device = $2 AND state <> 2"
    " AND not_after_s > $3 ORDER BY created_s LIMIT 1000");

#endif
