/* SPDX-License-Identifier: Apache-2.0 */
/* data.c: the data directory: which process has it, which kind of database it goes with, and the
 * address at which its server answers. */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "server/parts.h"
#include "support/log.h"

/* ---- the lock of the directory --------------------------------------------------------------- */

/* The lock is separate from the database's: with PostgreSQL the directory would have none. It ends
 * with the process, so kill -9 leaves no stale lock. The pid in the file is for messages only. */

static void explain_taken(int fd, const char *data_path, char *why, size_t why_size)
{
    char pid[32] = "";
    ssize_t size = pread(fd, pid, sizeof pid - 1, 0);

    pid[size < 0 ? 0 : size] = '\0';
    pid[strspn(pid, "0123456789")] = '\0';
    snprintf(why, why_size,
        "A server runs already with this data%s%s%s; see `troupe status --data %s`, or "
        "stop it with `troupe drain --data %s`.",
        pid[0] == '\0' ? "" : " (pid ", pid, pid[0] == '\0' ? "" : ")", data_path, data_path);
}

int server_find_other(struct server *server, char *why, size_t why_size)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    const char *data_path = config_text(&server->config, CONFIG_SERVER_DATA);
    char path[PATH_MAX + 32];
    bool is_taken;
    int fd;

    snprintf(path, sizeof path, "%s/server.lock", data_path);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0; /* server_lock_data reports the reason */
    is_taken = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (is_taken)
        explain_taken(fd, data_path, why, why_size);
    close(fd);
    return is_taken ? TR_EBUSY : 0;
}

int server_lock_path(const char *data_path, int *ret_fd, char *why, size_t why_size)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char path[PATH_MAX + 32];
    int fd;

    snprintf(path, sizeof path, "%s/server.lock", data_path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        snprintf(why, why_size,
            "server.data: %s cannot be written: %s; give the directory to the server's user, or "
            "choose another with --data DIR.",
            data_path, strerror(errno));
        return TR_EACCES;
    }
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        bool is_taken = errno == EAGAIN || errno == EACCES;

        if (is_taken)
            explain_taken(fd, data_path, why, why_size);
        else
            snprintf(why, why_size, "server.data: %s cannot be locked: %s.", path, strerror(errno));
        close(fd);
        return is_taken ? TR_EBUSY : TR_EIO;
    }
    if (ftruncate(fd, 0) != 0 || dprintf(fd, "%ld\n", (long)getpid()) < 0)
        LOG(LOG_WARN, "ops", "the lock file cannot be written", LOG_TEXT("file", path));
    *ret_fd = fd;
    return 0;
}

int server_lock_data(struct server *server, char *why, size_t why_size)
{
    return server_lock_path(server->data_path, &server->lock_fd, why, why_size);
}

/* ---- data directory -------------------------------------------------------------------------- */

/* Give a directory that root created to the server's user. */
static int give_to_user(const char *path, const char *user)
{
    struct passwd *entry = user[0] == '\0' || geteuid() != 0 ? NULL : getpwnam(user);

    return entry == NULL ? 0 : chown(path, entry->pw_uid, entry->pw_gid);
}

int server_open_data(struct server *server, char *why, size_t why_size)
{
    const char *path = config_text(&server->config, CONFIG_SERVER_DATA);
    struct stat status;

    tr_assert(server->lock_fd < 0);
    if (mkdir(path, 0700) == 0) {
        server->has_made_data = true;
        if (give_to_user(path, config_text(&server->config, CONFIG_SERVER_USER)) != 0) {
            snprintf(why, why_size, "server.data: %s cannot be given to server.user: %s.", path,
                strerror(errno));
            return TR_EACCES;
        }
    } else if (errno != EEXIST) {
        snprintf(why, why_size,
            "server.data: %s cannot be created: %s; choose another with --data DIR.", path,
            strerror(errno));
        return TR_EACCES;
    }
    if (realpath(path, server->data_path) == NULL || stat(path, &status) != 0 ||
        !S_ISDIR(status.st_mode)) {
        snprintf(
            why, why_size, "server.data: %s is not a directory that the server can use.", path);
        return TR_EACCES;
    }
    /* The sandbox leaves SQLite no other place for temporary files. */
    setenv("SQLITE_TMPDIR", server->data_path, 1);
    return 0;
}

void server_close_data(struct server *server, bool has_failed)
{
    char path[PATH_MAX + 32];

    if (has_failed && server->has_made_data) {
        snprintf(path, sizeof path, "%s/server.lock", server->data_path);
        if (server->lock_fd >= 0)
            (void)unlink(path);
        (void)rmdir(config_text(&server->config, CONFIG_SERVER_DATA));
    }
    if (server->lock_fd >= 0)
        close(server->lock_fd);
    server->lock_fd = -1;
}

/* ---- the kind of database -------------------------------------------------------------------- */

/* With a forgotten sql.url the server would start with an empty database and seem to have lost all
 * data. The file `database` prevents that. */

static const char *kind_of_url(const char *url)
{
    return url[0] == '\0' || strncmp(url, "sqlite:", strlen("sqlite:")) == 0 ? "sqlite"
                                                                             : "postgresql";
}

/* Read the kind of database that this directory was used with: "" for a new directory, and for an
 * empty file, which a full disk leaves. */
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
    snprintf(path, sizeof path, "%s/troupe.db", data_path); /* older versions wrote no such file */
    if (kind[0] == '\0' && access(path, F_OK) == 0)
        snprintf(kind, size, "sqlite");
}

int server_check_database(struct server *server, char *why, size_t why_size)
{
    const char *kind = kind_of_url(config_text(&server->config, CONFIG_SQL_URL));
    char before[16];

    read_kind(server->data_path, before, sizeof before);
    if (before[0] == '\0' || strcmp(before, kind) == 0)
        return 0;
    snprintf(why, why_size,
        "sql.url names a %s database, but %s was used with %s, which has its data. Set sql.url as "
        "before (troupe config show --origin shows where it comes from), or use another directory.",
        kind, server->data_path, before);
    return TR_EINVAL;
}

int server_write_database(struct server *server)
{
    char path[PATH_MAX + 32];
    int fd, written;

    tr_assert(server->sql != NULL);
    snprintf(path, sizeof path, "%s/database", server->data_path);
    /* No O_TRUNC: on a full disk it would leave an empty file. The content never changes. */
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return TR_EIO;
    written = dprintf(fd, "%s\n", sql_backend(server->sql));
    close(fd);
    return written > 0 ? 0 : TR_EIO;
}

int server_write_address(struct server *server)
{
    char path[PATH_MAX + 32];
    int fd;
    int written;

    tr_assert(server->lock_fd >= 0);
    snprintf(path, sizeof path, "%s/admin.address", server->data_path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return TR_EIO;
    server->has_address = true;
    written = dprintf(fd, "%s\n", admin_address(server->admin));
    close(fd);
    return written > 0 ? 0 : TR_EIO;
}

void server_remove_address(struct server *server)
{
    char path[PATH_MAX + 32];

    if (!server->has_address)
        return;
    server->has_address = false;
    snprintf(path, sizeof path, "%s/admin.address", server->data_path);
    (void)unlink(path);
}
