/* SPDX-License-Identifier: Apache-2.0 */
/* migrate.h: check and change the schema's version on an open connection. Private to this
 * folder. */
#ifndef SQL_MIGRATE_H
#define SQL_MIGRATE_H

#include "sql/backend.h"

/* Check that the applied migrations are the first ones of the program's list, text by text; else
 * SQL_ESCHEMA. *ret_version is the last applied one, or 0. */
int sql_schema_check(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t *ret_version, char *why, size_t why_size);
/* Check on a read-only connection. A database without migrations is an error. */
int sql_schema_look(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t *ret_version, char *why, size_t why_size);
/* Check, then migrate up or down to `version`, with one transaction per step. */
int sql_schema_move(const struct sql_backend *backend, struct sql_connection *connection,
    const struct sql_options *options, uint32_t version, char *why, size_t why_size);
uint32_t sql_schema_newest(const struct sql_options *options);

#endif
