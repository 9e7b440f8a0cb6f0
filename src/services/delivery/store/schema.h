/* SPDX-License-Identifier: Apache-2.0 */
/* schema.h: see schema.c. */
#ifndef SERVICES_DELIVERY_STORE_SCHEMA_H
#define SERVICES_DELIVERY_STORE_SCHEMA_H

#include "sql/sql.h"

enum { CONVO_UNDECIDED = 0, CONVO_MLS = 1, CONVO_NUMBERED = 2 };
enum { PACKAGE_FREE = 0, PACKAGE_LEASED = 1, PACKAGE_CONSUMED = 2 };
enum { WELCOME_WAITING = 0, WELCOME_FETCHED = 1, WELCOME_CONFIRMED = 2, WELCOME_INVALID = 3 };

enum { REPORT_PENDING = 0, REPORT_RESOLVED = 1, REPORT_DISMISSED = 2 };
enum { REQUEST_PENDING = 0, REQUEST_ACCEPTED = 1, REQUEST_DECLINED = 2 };

/* log.kind: enum mls_content, and later states of commits. */
enum {
    LOG_REVOKED = 4, /* a revoked commit: no member processes it */
    LOG_REVOKE = 5,  /* the notice of a revocation; its bytes are the SHA-256 of the commit */
    LOG_FORMER = 6,  /* a commit of the group before a reset */
    LOG_RESET = 7,   /* the notice of a reset; its bytes are the new group's id */
};

/* Parts of statements about `log l`. LOG_SEEN_BY selects the rows of $convo from the time of $did's
 * membership, including the commit that removed it. For a current member one lookup decides
 * (members_now has at most one such row). Intervals of a DID do not overlap, so for a former member
 * only the last interval that began before the row matters, however many there are. */
#define LOG_SEEN_BY(convo, did)                                                                    \
    " AND (l.seq > (SELECT n.join_seq FROM members n WHERE n.convo = " convo " AND n.did = " did   \
    " AND n.leave_seq IS NULL) OR (SELECT COALESCE(m.leave_seq, l.seq) FROM members m"             \
    " WHERE m.convo = l.convo AND m.did = " did " AND m.join_seq < l.seq"                          \
    " ORDER BY m.join_seq DESC LIMIT 1) >= l.seq)"
/* The sender's name for a message; NULL: delivery_message_id makes one up. An op that holds such a
 * name is msg:SENDER:NAME. */
#define LOG_MESSAGE_ID                                                                             \
    "COALESCE(l.message_id,"                                                                       \
    " CASE WHEN l.op LIKE 'msg:%' THEN SUBSTR(l.op, LENGTH(l.sender) + 6) END)"
/* Selects the first rows of $convo in `page` (a SELECT of l.seq AS seq, LENGTH(l.bytes) AS size):
 * as many as fit into $bytes, but at least one. */
#define LOG_CUT(columns, page, convo, bytes)                                                       \
    "WITH page AS (" page "), cut AS (SELECT seq, size, SUM(size) OVER (ORDER BY seq) AS total"    \
    " FROM page) SELECT " columns " FROM cut JOIN log l ON l.convo = " convo                       \
    " AND l.seq = cut.seq WHERE cut.total <= " bytes " OR cut.total = cut.size ORDER BY l.seq"
enum { LOG_PAGE_BYTES = 8 << 20 }; /* of messages in an answer with more than one */

/* Selects a row of key_packages that a device brought with its rejoin. While the addition is
 * pending and its account is a member, only the member who adds the device may use the package.
 * `more` are conditions on the addition `a`. A last resort is never used up, so others may use it
 * meanwhile. */
#define PACKAGE_IS_BROUGHT_AND(more)                                                               \
    "(key_packages.is_last_resort = 0 AND EXISTS (SELECT 1 FROM device_additions a"                \
    " JOIN members o ON o.convo = a.convo AND o.did = a.did AND o.leave_seq IS NULL"               \
    " WHERE a.did = key_packages.did AND a.device = key_packages.device"                           \
    " AND a.package = key_packages.ref AND a.state <> 2" more "))"
#define PACKAGE_IS_BROUGHT PACKAGE_IS_BROUGHT_AND("")

enum { DELIVERY_MIGRATIONS = 10 };
extern const struct sql_migration delivery_migrations[DELIVERY_MIGRATIONS];

#endif
