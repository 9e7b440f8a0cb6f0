/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: the database that the settings name, for commands that work on it without a server. */
#ifndef SERVER_STORE_H
#define SERVER_STORE_H

#include "ops/config.h"
#include "sql/sql.h"

/* Of a command that works on the database. */
struct store {
    const char *url;       /* points into `config` or `made_url` */
    const char *data_path; /* points into `config` */
    struct sql_migration *migrations;
    size_t migration_count;
    int lock_fd; /* server.lock of the data directory; -1: not locked */
    char *made_url;
};

/* What this program's server has for migrations, merged. The caller frees the list. */
int store_merge(char *why, size_t why_size, struct sql_migration **ret_list, size_t *ret_count);

/* Opens nothing. `config` outlives the store. */
int store_find(struct store *store, const struct config *config, char *why, size_t why_size);
void store_leave(struct store *store);
/* SQLite would make a file that is not there, and then find it in order. TR_ENOENT says how to name
 * the right one. A PostgreSQL says by itself whether it is there. */
int store_must_be_there(const struct store *store, char *why, size_t why_size);
/* No server starts with this data directory until the store is left; TR_EBUSY if one runs. Makes
 * the directory if the database is to be in it; where there is none, nobody serves from it. */
int store_lock(struct store *store, char *why, size_t why_size);
bool store_is_postgresql(const struct store *store);
struct sql_options store_options(const struct store *store, bool is_exclusive);

#endif
