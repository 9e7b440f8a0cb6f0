/* SPDX-License-Identifier: Apache-2.0 */
/* migrate.h: the schema's versions on an open connection. Inside the layer only. */
#ifndef SQL_MIGRATE_H
#define SQL_MIGRATE_H

#include "sql/backend.h"

/* What is applied must be a beginning of what the program knows, text by text: else SQL_ESCHEMA.
 * *ret_version is the last one applied, 0 if none. */
int sql_schema_check(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t *ret_version, char *why, size_t why_size);
/* The same on a connection that cannot write. A database that was never migrated is an error. */
int sql_schema_look(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t *ret_version, char *why, size_t why_size);
/* Checks, then goes up or down to `version`, one transaction a step. */
int sql_schema_move(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t version, char *why, size_t why_size);
uint32_t sql_schema_newest(const struct sql_options *options);

#endif
