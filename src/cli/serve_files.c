/* SPDX-License-Identifier: Apache-2.0 */
/* serve_files.c: what a server needs of its machine before it serves: log, data directory, user,
 * sandbox. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <troupe/inspect.h>

#include "cli/serve.h"
#include "cli/settings.h"
#include "support/log.h"

/* ---- log ------------------------------------------------------------------------------------- */

static int apply_module(struct span word, char *why, size_t why_size)
{
    char text[64];
    char *equals;
    enum log_level level;

    snprintf(text, sizeof text, "%.*s", (int)(word.size < 100 ? word.size : 100), word.at);
    equals = strchr(text, '=');
    if (equals != NULL) {
        *equals = '\0';
        if (log_level_parse(equals + 1, &level) == 0 && log_level_set(text, (int)level) == 0)
            return 0;
    }
    snprintf(
        why, why_size, "log.levels: expected MODULE=LEVEL, not '%.*s'", (int)word.size, word.at);
    return TR_EINVAL;
}

int serve_apply_log(const struct config *config, char *why, size_t why_size)
{
    bool is_json = strcmp(config_text(config, CONFIG_LOG_FORMAT), "json") == 0;
    enum log_level level = LOG_INFO;
    struct span word;
    const char *module;
    size_t position = 0;
    int ignored;
    int rc = 0;

    (void)log_level_parse(config_text(config, CONFIG_LOG_LEVEL), &level);
    log_actor_source(tr_thread_actor);
    log_setup(STDERR_FILENO, is_json ? LOG_JSON : LOG_LOGFMT, level);
    for (size_t i = 0; (module = log_module_at(i, &ignored)) != NULL; i++)
        (void)log_level_set(module, -1);
    while (rc == 0 && config_next(config, CONFIG_LOG_LEVELS, &position, &word))
        rc = apply_module(word, why, why_size);
    return rc;
}

/* ---- whose directory it is --------------------------------------------------------------------
 * A lock of its own, and not the database's: with PostgreSQL the files here would have none. It
 * goes with the process, so kill -9 leaves nothing to clean up. The number in it is for messages
 * alone. */

static void say_taken(int fd, const char *data_path, char *why, size_t why_size)
{
    char pid[32] = "";
    ssize_t size = pread(fd, pid, sizeof pid - 1, 0);

    pid[size < 0 ? 0 : size] = '\0';
    pid[strspn(pid, "0123456789")] = '\0';
    snprintf(why, why_size, "a server with this data runs already%s%s%s: troupe status --data %s",
        pid[0] == '\0' ? "" : " (pid ", pid, pid[0] == '\0' ? "" : ")", data_path);
}

int serve_find_other(struct serve *serve, char *why, size_t why_size)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    const char *data_path = config_text(&serve->config, CONFIG_SERVER_DATA);
    char path[PATH_MAX + 32];
    bool is_taken;
    int fd;

    snprintf(path, sizeof path, "%s/server.lock", data_path);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0; /* what is wrong with it, serve_lock_data says */
    is_taken = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (is_taken)
        say_taken(fd, data_path, why, why_size);
    close(fd);
    return is_taken ? TR_EBUSY : 0;
}

int serve_lock_path(const char *data_path, int *ret_fd, char *why, size_t why_size)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char path[PATH_MAX + 32];
    int fd;

    snprintf(path, sizeof path, "%s/server.lock", data_path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        snprintf(why, why_size, "server.data: cannot write to %s: %s", data_path, strerror(errno));
        return TR_EACCES;
    }
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        bool is_taken = errno == EAGAIN || errno == EACCES;

        if (is_taken)
            say_taken(fd, data_path, why, why_size);
        else
            snprintf(why, why_size, "server.data: %s cannot be locked: %s", path, strerror(errno));
        close(fd);
        return is_taken ? TR_EBUSY : TR_EIO;
    }
    if (ftruncate(fd, 0) != 0 || dprintf(fd, "%ld\n", (long)getpid()) < 0)
        LOG(LOG_WARN, "ops", "the lock file cannot be written", LOG_TEXT("file", path));
    *ret_fd = fd;
    return 0;
}

int serve_lock_data(struct serve *serve, char *why, size_t why_size)
{
    return serve_lock_path(serve->data_path, &serve->lock_fd, why, why_size);
}

/* ---- data directory -------------------------------------------------------------------------- */

/* Made by root for another user: give it to that user. */
static int give_to_user(const char *path, const char *user)
{
    struct passwd *entry = user[0] == '\0' || geteuid() != 0 ? NULL : getpwnam(user);

    return entry == NULL ? 0 : chown(path, entry->pw_uid, entry->pw_gid);
}

int serve_open_data(struct serve *serve, char *why, size_t why_size)
{
    const char *path = config_text(&serve->config, CONFIG_SERVER_DATA);
    struct stat status;

    if (mkdir(path, 0700) == 0) {
        serve->has_made_data = true;
        if (give_to_user(path, config_text(&serve->config, CONFIG_SERVER_USER)) != 0) {
            snprintf(why, why_size, "server.data: cannot give %s to its user: %s", path,
                strerror(errno));
            return TR_EACCES;
        }
    } else if (errno != EEXIST) {
        snprintf(why, why_size, "server.data: cannot make %s: %s", path, strerror(errno));
        return TR_EACCES;
    }
    if (realpath(path, serve->data_path) == NULL || stat(path, &status) != 0 ||
        !S_ISDIR(status.st_mode)) {
        snprintf(why, why_size, "server.data: %s is not a directory that can be used", path);
        return TR_EACCES;
    }
    /* SQLite's temporary files: the sandbox has no other place for them. */
    setenv("SQLITE_TMPDIR", serve->data_path, 1);
    return 0;
}

void serve_leave_data(struct serve *serve, bool has_failed)
{
    char path[PATH_MAX + 32];

    if (has_failed && serve->has_made_data) {
        snprintf(path, sizeof path, "%s/server.lock", serve->data_path);
        if (serve->lock_fd >= 0)
            (void)unlink(path);
        (void)rmdir(config_text(&serve->config, CONFIG_SERVER_DATA));
    }
    if (serve->lock_fd >= 0)
        close(serve->lock_fd);
    serve->lock_fd = -1;
}

/* ---- which database -----------------------------------------------------------------------------
 * A setting that is forgotten must not look like a server that lost everything. */

static const char *kind_of_url(const char *url)
{
    return url[0] == '\0' || strncmp(url, "sqlite:", strlen("sqlite:")) == 0 ? "sqlite"
                                                                             : "postgresql";
}

/* The kind this directory was used with; "" if it is new. An empty file met a full disk: it says
 * nothing. */
static void read_kind(const char *data_path, char *kind, size_t size)
{
    char path[PATH_MAX + 32];
    FILE *file;

    kind[0] = '\0';
    snprintf(path, sizeof path, "%s/database", data_path);
    file = fopen(path, "re");
    if (file != NULL) {
        if (fgets(kind, (int)size, file) != NULL)
            kind[strcspn(kind, "\n")] = '\0';
        fclose(file);
    }
    snprintf(path, sizeof path, "%s/troupe.db", data_path); /* of before there was that file */
    if (kind[0] == '\0' && access(path, F_OK) == 0)
        snprintf(kind, size, "sqlite");
}

int serve_check_database(struct serve *serve, char *why, size_t why_size)
{
    const char *kind = kind_of_url(config_text(&serve->config, CONFIG_SQL_URL));
    char before[16];

    read_kind(serve->data_path, before, sizeof before);
    if (before[0] == '\0' || strcmp(before, kind) == 0)
        return 0;
    snprintf(why, why_size,
        "sql.url: %s was used with %s before, and this is %s, where its data is not. Set sql.url "
        "as "
        "it was (troupe config show --origin says where it comes from), or use another directory",
        serve->data_path, before, kind);
    return TR_EINVAL;
}

int serve_write_database(struct serve *serve)
{
    char path[PATH_MAX + 32];
    int fd, written;

    snprintf(path, sizeof path, "%s/database", serve->data_path);
    /* The same is in it, or nothing. It is not emptied first: a full disk would leave that. */
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return TR_EIO;
    written = dprintf(fd, "%s\n", sql_backend(serve->sql));
    close(fd);
    return written > 0 ? 0 : TR_EIO;
}

int serve_write_address(struct serve *serve)
{
    char path[PATH_MAX + 32];
    int fd;
    int written;

    snprintf(path, sizeof path, "%s/admin.address", serve->data_path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return TR_EIO;
    serve->has_address = true;
    written = dprintf(fd, "%s\n", admin_address(serve->admin));
    close(fd);
    return written > 0 ? 0 : TR_EIO;
}

void serve_remove_address(struct serve *serve)
{
    char path[PATH_MAX + 32];

    if (!serve->has_address)
        return;
    serve->has_address = false;
    snprintf(path, sizeof path, "%s/admin.address", serve->data_path);
    (void)unlink(path);
}

/* ---- sandbox --------------------------------------------------------------------------------- */

enum { PATHS_MAX = 48 }; /* settings, certificate, key, token: 13 at most; a key file has 4 */
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

/* A file that may be replaced by another of the same name (an editor, a new certificate): the
 * directory it is in. Not for directories that hold everybody's files. */
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

/* A link leads elsewhere: certbot's live/NAME/cert.pem is one. */
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

/* Key sets that are files are read again with the settings. */
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

static int enter(struct serve *serve, struct path_list *writable, struct path_list *readable,
    char *why, size_t why_size)
{
    const struct config *config = &serve->config;

    add_path(writable, serve->data_path);
    add_folder_behind(writable, config_text(config, CONFIG_SQL_URL), "sqlite:");
    add_folder_behind(writable, config_text(config, CONFIG_SERVER_LISTEN), "unix:");
    add_folder_behind(writable, config_text(config, CONFIG_ADMIN_LISTEN), "unix:");
    add_replaceable(
        readable, serve->options->config_path == NULL ? "" : serve->options->config_path);
    add_replaceable(readable, config_text(config, CONFIG_SERVER_TLS_CERTIFICATE));
    add_replaceable(readable, config_text(config, CONFIG_SERVER_TLS_KEY));
    add_path(readable, config_text(config, CONFIG_ADMIN_TOKEN_FILE));
    add_key_files(readable, config);
    return sandbox_enter(
        &(struct sandbox_paths){ writable->list, readable->list }, &serve->sandbox, why, why_size);
}

/* As many descriptors as we may have: one for each connection. */
static void raise_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int serve_enter_sandbox(struct serve *serve, char *why, size_t why_size)
{
    const char *user = config_text(&serve->config, CONFIG_SERVER_USER);
    struct path_list *lists;
    int rc = 0;

    raise_descriptors();
    if (user[0] != '\0')
        rc = sandbox_become(user, why, why_size);
    if (rc != 0 || !config_is_on(&serve->config, CONFIG_SERVER_SANDBOX))
        return rc;
    lists = calloc(2, sizeof *lists); /* too large for a stack */
    if (lists == NULL) {
        snprintf(why, why_size, "%s", tr_error_text(TR_ENOMEM));
        return TR_ENOMEM;
    }
    rc = enter(serve, &lists[0], &lists[1], why, why_size);
    free(lists);
    return rc;
}
