/* SPDX-License-Identifier: Apache-2.0 */
/* schema.h: see schema.c. */
#ifndef SERVICES_DELIVERY_SCHEMA_H
#define SERVICES_DELIVERY_SCHEMA_H

#include "sql/sql.h"

enum { CONVO_UNDECIDED = 0, CONVO_MLS = 1, CONVO_NUMBERED = 2 };
enum { PACKAGE_FREE = 0, PACKAGE_LEASED = 1, PACKAGE_CONSUMED = 2 };
enum { WELCOME_WAITING = 0, WELCOME_FETCHED = 1, WELCOME_CONFIRMED = 2, WELCOME_INVALID = 3 };

enum { DELIVERY_MIGRATIONS = 3 };
extern const struct sql_migration delivery_migrations[DELIVERY_MIGRATIONS];

#endif
