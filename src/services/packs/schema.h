/* SPDX-License-Identifier: Apache-2.0 */
/* schema.h: see schema.c. */
#ifndef SERVICES_PACKS_SCHEMA_H
#define SERVICES_PACKS_SCHEMA_H

#include "sql/sql.h"

enum pack_state { PACK_DRAFT = 0, PACK_PUBLISHED = 1, PACK_DISABLED = 2 };
enum release_state { RELEASE_DRAFT = 0, RELEASE_PUBLISHED = 1, RELEASE_DEPRECATED = 2 };
enum pack_key_state { PACK_KEY_CURRENT = 0, PACK_KEY_RETIRED = 1 };

enum { PACKS_MIGRATIONS = 1 };
extern const struct sql_migration packs_migrations[PACKS_MIGRATIONS];

#endif
