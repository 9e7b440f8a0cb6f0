/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: the database for commands that work on it without a server. */
#ifndef SERVER_STORE_H
#define SERVER_STORE_H

#include "ops/config.h"
#include "sql/sql.h"

struct store {
    const char *url;       /* points into the configuration or `made_url` */
    const char *data_path; /* points into the configuration */
    struct sql_migration *migrations;
    size_t migration_count;
    int lock_fd;    /* server.lock of the data directory; -1: not locked */
    char *made_url; /* of the database in the data directory; NULL: sql.url names it */
};

/* Merge the migrations of auth and of all services. The caller frees the list. */
int store_merge(char *why, size_t why_size, struct sql_migration **ret_list, size_t *ret_count);

/* Find the database of the settings. Opens no file. `config` outlives the store; call store_close
 * also after a failure. */
int store_find(struct store *store, const struct config *config, char *why, size_t why_size);
/* Release the lock and the memory. */
void store_close(struct store *store);
/* Return TR_ENOENT if the file of a SQLite database does not exist: SQLite would create an empty one.
 * PostgreSQL reports a missing database itself. */
int store_must_be_there(const struct store *store, char *why, size_t why_size);
/* Create the data directory if the database belongs into it. */
int store_make_place(const struct store *store, char *why, size_t why_size);
/* Keep servers from starting with this data directory until store_close. TR_EBUSY: a server runs.
 * Creates the directory if the database belongs into it; does nothing without a directory. */
int store_lock(struct store *store, char *why, size_t why_size);
bool store_is_postgresql(const struct store *store);
struct sql_options store_options(const struct store *store, bool is_exclusive);

#endif
