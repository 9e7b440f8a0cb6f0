/* SPDX-License-Identifier: Apache-2.0 */
/* schema.h: see schema.c. */
#ifndef SERVICES_DELIVERY_SCHEMA_H
#define SERVICES_DELIVERY_SCHEMA_H

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

enum { DELIVERY_MIGRATIONS = 5 };
extern const struct sql_migration delivery_migrations[DELIVERY_MIGRATIONS];

#endif
