/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c: the paths that the server may still use once it is in its sandbox. */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/assert.h"
#include "server/parts.h"
#include "server/settings.h"

enum { PATHS_MAX = 48 }; /* settings, certificate, key and token need 13, each key file 4 */
struct path_list {
    char texts[PATHS_MAX][PATH_MAX];
    const char *list[PATHS_MAX + 1]; /* ends with NULL */
    size_t count;
};

static void add_path(struct path_list *paths, const char *path)
{
    if (path[0] == '\0' || paths->count == PATHS_MAX)
        return;
    snprintf(paths->texts[paths->count], PATH_MAX, "%s", path);
    paths->list[paths->count] = paths->texts[paths->count];
    paths->count++;
}

/* Add the directory of a file that an editor or certbot may replace, unless the directory also holds
 * files of others. */
static void add_folder_of(struct path_list *paths, const char *path)
{
    char copy[PATH_MAX];
    char real[PATH_MAX];
    const char *folder;

    if (path[0] == '\0')
        return;
    add_path(paths, path);
    snprintf(copy, sizeof copy, "%s", path);
    folder = dirname(copy);
    if (realpath(folder, real) != NULL && strcmp(real, "/") != 0 && strcmp(real, "/etc") != 0 &&
        strcmp(real, "/tmp") != 0 && strcmp(real, "/root") != 0 && strcmp(real, "/home") != 0)
        add_path(paths, real);
}

/* Follow a symbolic link too, like certbot's live/NAME/cert.pem. */
static void add_replaceable(struct path_list *paths, const char *path)
{
    char real[PATH_MAX];

    add_folder_of(paths, path);
    if (path[0] != '\0' && realpath(path, real) != NULL)
        add_folder_of(paths, real);
}

static void add_folder_behind(struct path_list *paths, const char *text, const char *prefix)
{
    char copy[PATH_MAX];

    if (strncmp(text, prefix, strlen(prefix)) != 0)
        return;
    snprintf(copy, sizeof copy, "%s", text + strlen(prefix));
    add_path(paths, dirname(copy));
}

/* A reload reads the key files again. */
static void add_key_files(struct path_list *paths, const struct config *config)
{
    struct session_provider provider;
    char copy[PATH_MAX];
    struct span word;
    size_t position = 0;

    while (config_next(config, CONFIG_AUTH_PROVIDERS, &position, &word)) {
        snprintf(copy, sizeof copy, "%.*s", (int)word.size, word.at);
        if (settings_parse_provider(copy, &provider) && provider.keys_file != NULL)
            add_replaceable(paths, provider.keys_file);
    }
}

static int enter_with_paths(struct server *server, struct path_list *writable,
    struct path_list *readable, char *why, size_t why_size)
{
    const struct config *config = &server->config;

    add_path(writable, server->data_path);
    add_folder_behind(writable, config_text(config, CONFIG_SQL_URL), "sqlite:");
    add_folder_behind(writable, config_text(config, CONFIG_SERVER_LISTEN), "unix:");
    add_folder_behind(writable, config_text(config, CONFIG_ADMIN_LISTEN), "unix:");
    add_replaceable(readable, server->sources->file_path == NULL ? "" : server->sources->file_path);
    add_replaceable(readable, config_text(config, CONFIG_SERVER_TLS_CERTIFICATE));
    add_replaceable(readable, config_text(config, CONFIG_SERVER_TLS_KEY));
    add_path(readable, config_text(config, CONFIG_ADMIN_TOKEN_FILE));
    add_key_files(readable, config);
    return sandbox_enter(
        &(struct sandbox_paths){ writable->list, readable->list }, &server->sandbox, why, why_size);
}

/* Raise the limit of descriptors: each connection needs one. */
static void raise_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int server_enter_sandbox(struct server *server, char *why, size_t why_size)
{
    const char *user = config_text(&server->config, CONFIG_SERVER_USER);
    struct path_list *lists;
    int rc = 0;

    tr_assert(server->data_path[0] != '\0');
    tr_assert(server->system == NULL);
    raise_descriptors();
    if (user[0] != '\0')
        rc = sandbox_become(user, why, why_size);
    if (rc != 0 || !config_is_on(&server->config, CONFIG_SERVER_SANDBOX))
        return rc;
    lists = calloc(2, sizeof *lists); /* too large for the stack */
    if (lists == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    rc = enter_with_paths(server, &lists[0], &lists[1], why, why_size);
    free(lists);
    return rc;
}
