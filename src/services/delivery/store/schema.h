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

/* log.kind: enum mls_content, and what became of commits. */
enum {
    LOG_REVOKED = 4, /* a commit that was rolled back: nobody is to process it */
    LOG_REVOKE = 5,  /* the notice of that; its bytes are the SHA-256 of the commit */
    LOG_FORMER = 6,  /* a commit of the group before a reset */
    LOG_RESET = 7,   /* the notice of a reset; its bytes are the new group's id */
};

/* Parts of statements about `log l`. What was said in $convo while $did was in, the commit that
 * removed it included. Who is in now has not every row looked up (members_now has one such row at
 * most). No two times of a DID overlap: of who is out only the last one that had begun is looked
 * at, however often it came and went. */
#define LOG_SEEN_BY(convo, did)                                                                    \
    " AND (l.seq > (SELECT n.join_seq FROM members n WHERE n.convo = " convo " AND n.did = " did   \
    " AND n.leave_seq IS NULL) OR (SELECT COALESCE(m.leave_seq, l.seq) FROM members m"             \
    " WHERE m.convo = l.convo AND m.did = " did " AND m.join_seq < l.seq"                          \
    " ORDER BY m.join_seq DESC LIMIT 1) >= l.seq)"
/* What the sender called a message; NULL: delivery_message_id makes one up. An op that stands for
 * such a name is msg:SENDER:NAME. */
#define LOG_MESSAGE_ID                                                                             \
    "COALESCE(l.message_id,"                                                                       \
    " CASE WHEN l.op LIKE 'msg:%' THEN SUBSTR(l.op, LENGTH(l.sender) + 6) END)"
/* The first rows of $convo that `page` (a SELECT of l.seq AS seq, LENGTH(l.bytes) AS size) finds:
 * as many as have $bytes together, but one in any case. */
#define LOG_CUT(columns, page, convo, bytes)                                                       \
    "WITH page AS (" page "), cut AS (SELECT seq, size, SUM(size) OVER (ORDER BY seq) AS total"    \
    " FROM page) SELECT " columns " FROM cut JOIN log l ON l.convo = " convo                       \
    " AND l.seq = cut.seq WHERE cut.total <= " bytes " OR cut.total = cut.size ORDER BY l.seq"
enum { LOG_PAGE_BYTES = 8 << 20 }; /* of messages in an answer, if there is more than one */

/* A row of key_packages that its device has brought with its wish to be added to a conversation
 * (rejoin). While that is wished, by a member, it is for who adds the device there and for nobody
 * else. `more` are conditions of the wish `a`. A last resort is never used up: it serves others
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
