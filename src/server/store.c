/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/auth.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "server/parts.h"

int store_merge(char *why, size_t why_size, struct sql_migration **ret_list, size_t *ret_count)
{
    const struct service auth = {
        .name = "auth", .migrations = auth_migrations, .migration_count = auth_migration_count
    };
    const struct service *all[SERVER_SERVICES_MAX + 1] = { &auth };
    size_t count = 1;

    for (size_t i = 0; server_services[i] != NULL; i++) {
        tr_assert(count <= SERVER_SERVICES_MAX);
        all[count++] = server_services[i];
    }
    return service_merge_migrations(all, count, why, why_size, ret_list, ret_count);
}

int store_find(struct store *store, const struct config *config, char *why, size_t why_size)
{
    static const size_t url_size = PATH_MAX + 32;
    int rc;

    *store = (struct store){ .url = config_text(config, CONFIG_SQL_URL),
        .data_path = config_text(config, CONFIG_SERVER_DATA),
        .lock_fd = -1 };
    rc = store_merge(why, why_size, &store->migrations, &store->migration_count);
    if (rc < 0 || store->url[0] != '\0')
        return rc;
    store->made_url = base_alloc(url_size);
    if (store->made_url == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    snprintf(store->made_url, url_size, "sqlite:%s/troupe.db", store->data_path);
    store->url = store->made_url;
    return 0;
}

void store_close(struct store *store)
{
    if (store->lock_fd >= 0)
        close(store->lock_fd);
    base_free(store->migrations);
    base_free(store->made_url);
    *store = (struct store){ .lock_fd = -1 };
}

int store_must_be_there(const struct store *store, char *why, size_t why_size)
{
    char path[PATH_MAX];

    if (store_is_postgresql(store))
        return 0;
    snprintf(path, sizeof path, "%s",
        store->url + (strncmp(store->url, "sqlite:", 7) == 0 ? strlen("sqlite:") : 0));
    path[strcspn(path, "?")] = '\0';
    if (access(path, R_OK) == 0)
        return 0;
    snprintf(why, why_size, "There is no database at %s; name it with --db or --data.", path);
    return TR_ENOENT;
}

int store_make_place(const struct store *store, char *why, size_t why_size)
{
    if (store->made_url == NULL || mkdir(store->data_path, 0700) == 0 || errno == EEXIST)
        return 0;
    snprintf(why, why_size, "%s cannot be created: %s.", store->data_path, strerror(errno));
    return TR_EACCES;
}

int store_lock(struct store *store, char *why, size_t why_size)
{
    int rc = store_make_place(store, why, why_size);

    tr_assert(store->lock_fd < 0);
    if (rc < 0 || (store->made_url == NULL && access(store->data_path, F_OK) != 0))
        return rc;
    return server_lock_path(store->data_path, &store->lock_fd, why, why_size);
}

bool store_is_postgresql(const struct store *store)
{
    return strncmp(store->url, "postgresql://", 13) == 0 ||
           strncmp(store->url, "postgres://", 11) == 0;
}

struct sql_options store_options(const struct store *store, bool is_exclusive)
{
    tr_assert(store->url != NULL);
    return (struct sql_options){ .url = store->url,
        .migrations = store->migrations,
        .migration_count = store->migration_count,
        .exclusive = is_exclusive };
}
