/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sync_host.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "matrix/client/engine_http.h"
#include "net/socket.h"
#include "ops/secret.h"
#include "support/log.h"

/* The cache bounds the memory of an initial /sync: its one transaction may be larger. */
enum {
    HOST_STEP_MS = 100,
    HOST_SAY_MS = 1000, /* a wait that is longer says so */
    HOST_STOP_S = 10,
    HOST_GRACE_MS = 50,
    HOST_CACHE_KB = 8000
};

struct sync_host {
    int dir_fd;
    int lock_fd;
    bool has_socket;
    struct mx_pickle_key key;
    struct tr_system *system;
    struct sql *sql;
    struct http_client *client;
    struct mxengine_http *http;
    struct mxengine_options options;
    tr_sender engine;
    struct tr_done *engine_done;
    tr_sender link;
    struct tr_done *link_done;
};

static int host_fail(char why[SYNC_WHY_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int host_fail(char why[SYNC_WHY_BYTES], const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(why, SYNC_WHY_BYTES, format, args);
    va_end(args);
    return TR_EIO;
}

/* ---- the directory ---------------------------------------------------------------------------- */

/* The socket by a path that is always short: a socket's address has 107 bytes. */
static void host_socket_path(int dir_fd, char path[64])
{
    (void)snprintf(path, 64, "/proc/self/fd/%d/engine.socket", dir_fd);
}

/* Connect to the engine of another process: 0, TR_EAGAIN if none listens, or TR_EACCES if another user's
 * does. */
static int host_connect(int dir_fd, int *ret_fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = TR_EAGAIN;

    host_socket_path(dir_fd, address.sun_path);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        rc = sync_link_is_of(fd, geteuid()) ? 0 : TR_EACCES;
    if (rc == 0)
        *ret_fd = fd;
    else if (fd >= 0)
        close(fd);
    return rc;
}

/* Take the lock if it is free: 0, or TR_EBUSY. */
static int host_lock(int dir_fd, int *ret_fd)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int fd = openat(dir_fd, "engine.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return TR_EACCES;
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        close(fd);
        return TR_EBUSY;
    }
    *ret_fd = fd;
    return 0;
}

/* Get the lock, or a connection to its holder. */
static int host_enter(
    const struct sync_host_options *options, int dir_fd, int *ret_lock_fd, int *ret_fd, char *why)
{
    const char *path = options->data_path;

    for (int waited = 0; waited < SYNC_WAIT_MS; waited += HOST_STEP_MS) {
        int rc = host_lock(dir_fd, ret_lock_fd);

        if (rc == 0)
            return 0;
        if (rc == TR_EACCES)
            return host_fail(why, "%s cannot be written: %s.", path, strerror(errno));
        rc = host_connect(dir_fd, ret_fd);
        if (rc == 0)
            return 0;
        if (rc == TR_EACCES)
            return host_fail(why,
                "A process of another user listens on %s/engine.socket. Use another --data.", path);
        if (waited == HOST_SAY_MS)
            fprintf(
                stderr, "Another command works on %s; waiting for its end. Ctrl-C ends.\n", path);
        if (poll(&(struct pollfd){ .fd = options->signal_fd, .events = POLLIN }, 1, HOST_STEP_MS) >
            0) {
            (void)host_fail(why, "Interrupted: another command works on %s.", path);
            return TR_ECANCELLED;
        }
    }
    return host_fail(why,
        "Another command works on %s and does not end. Wait for it, or use another --data.", path);
}

/* ---- the key ---------------------------------------------------------------------------------- */

static int host_parse_key(
    struct span text, const char *what, struct mx_pickle_key *ret_key, char *why)
{
    size_t size = 0;

    if (text.size == 2 * sizeof ret_key->bytes &&
        crypto_hex_decode(text, ret_key->bytes, sizeof ret_key->bytes, &size) == 0)
        return 0;
    return host_fail(
        why, "%s holds no key. A key is 64 hexadecimal digits: openssl rand -hex 32.", what);
}

static int host_read_key(int fd, struct mx_pickle_key *ret_key, char *why)
{
    char text[2 * sizeof ret_key->bytes + 2];
    size_t size = 0;
    ssize_t got = 1;
    int rc;

    while (size < sizeof text && got > 0) {
        got = read(fd, text + size, sizeof text - size);
        size += got > 0 ? (size_t)got : 0;
    }
    if (size > 0 && text[size - 1] == '\n')
        size--;
    rc = host_parse_key((struct span){ text, size }, "--key-fd", ret_key, why);
    crypto_wipe(text, sizeof text);
    return rc;
}

static int host_get_key(
    const struct sync_host_options *options, struct mx_pickle_key *ret_key, char *why)
{
    char path[PATH_MAX];
    struct secret secret;
    int rc;

    if (options->key_fd >= 0)
        return host_read_key(options->key_fd, ret_key, why);
    if (options->key_path != NULL)
        (void)snprintf(path, sizeof path, "%s", options->key_path);
    else
        (void)snprintf(path, sizeof path, "%s/key", options->data_path);
    rc = secret_load(&secret, path, options->key_path != NULL ? SECRET_MUST_EXIST : SECRET_HEX, why,
        SYNC_WHY_BYTES);
    if (rc == 0 || rc == TR_EINVAL)
        rc = host_parse_key(rc == 0 ? span_of(secret.text) : SPAN(""), path, ret_key, why);
    crypto_wipe(&secret, sizeof secret);
    return rc;
}

/* ---- the engine ------------------------------------------------------------------------------- */

static int host_start_engine(
    struct sync_host *host, const struct sync_host_options *options, char *why)
{
    char url[PATH_MAX + 32];
    int rc;

    /* In a URL a path ends at a question mark, and there is no other way to write one. */
    if (strchr(options->data_path, '?') == NULL)
        (void)snprintf(url, sizeof url, "sqlite:%s/sync.db", options->data_path);
    else
        (void)snprintf(url, sizeof url, "sqlite:/proc/self/fd/%d/sync.db", host->dir_fd);
    if (sql_open(host->system,
            &(struct sql_options){ .url = url,
                .migrations = mxstore_migrations,
                .migration_count = MXSTORE_MIGRATIONS,
                .readers = 1,
                .cache_kb = HOST_CACHE_KB },
            why, SYNC_WHY_BYTES, &host->sql) != 0)
        return TR_EIO;
    /* The user names the homeserver: it may be on this machine. */
    rc = http_client_start(
        host->system, &(struct http_client_options){ .allow_private = true }, &host->client);
    if (rc == 0)
        rc = mxengine_http_create(host->client, &host->http);
    if (rc != 0)
        return host_fail(why, "The engine cannot start: %s.", sync_error_text(rc));
    host->options = (struct mxengine_options){ .sql = host->sql,
        .key = &host->key,
        .transport = mxengine_http_transport(host->http),
        .policy = options->policy };
    rc = mxengine_spawn(host->system, &host->options,
        /* The grace is short: it would wait for the answer to a long poll. */
        &(struct tr_spawn_options){
            .grace_ns = TR_MILLISECONDS(HOST_GRACE_MS), .ret_done = &host->engine_done },
        &host->engine);
    return rc == 0 ? 0 : host_fail(why, "The engine cannot start: %s.", sync_error_text(rc));
}

static int host_listen(struct sync_host *host, int *ret_fd, char *why)
{
    struct net_address address;
    char text[80] = "unix:";
    int rc;

    host_socket_path(host->dir_fd, text + strlen(text));
    rc = net_address_parse(text, &address);
    if (rc == 0)
        rc = net_listen(&address, false, ret_fd);
    host->has_socket = rc == 0;
    if (rc == 0 && fchmodat(host->dir_fd, "engine.socket", 0600, 0) != 0)
        rc = TR_EACCES;
    if (rc == 0)
        return 0;
    if (host->has_socket)
        close(*ret_fd);
    return host_fail(why, "engine.socket cannot be made: %s.", sync_error_text(rc));
}

/* Start to serve the command of this process, and others if it listens. */
static int host_start_link(struct sync_host *host, bool listens, int *ret_fd, char *why)
{
    struct sync_link_options options = { .engine = host->engine,
        .sql = host->sql,
        .key = &host->key,
        .listen_fd = -1,
        .client_fd = -1,
        .uid = geteuid() };
    int pair[2], rc = 0;

    if (listens)
        rc = host_listen(host, &options.listen_fd, why);
    if (rc != 0)
        return rc;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        rc = host_fail(why, "No socket can be made: %s.", strerror(errno));
    if (rc == 0) {
        (void)fcntl(pair[1], F_SETFL, O_NONBLOCK);
        options.client_fd = pair[1];
        rc = sync_link_spawn(host->system, &options,
            &(struct tr_spawn_options){
                .grace_ns = TR_MILLISECONDS(HOST_GRACE_MS), .ret_done = &host->link_done },
            &host->link);
        if (rc != 0) {
            close(pair[0]);
            close(pair[1]);
            (void)host_fail(why, "The engine cannot be served: %s.", sync_error_text(rc));
        }
    }
    if (rc != 0) {
        if (options.listen_fd >= 0)
            close(options.listen_fd);
        return TR_EIO;
    }
    *ret_fd = pair[0];
    return 0;
}

static int host_start(
    struct sync_host *host, const struct sync_host_options *options, int *ret_fd, char *why)
{
    int rc = host_get_key(options, &host->key, why);

    if (rc != 0)
        return rc;
    rc = tr_system_create(
        &(struct tr_system_options){ .workers = 1, .blocking_threads = 1, .quiet = true },
        &host->system);
    if (rc != 0)
        return host_fail(why, "The engine cannot start: %s.", sync_error_text(rc));
    rc = host_start_engine(host, options, why);
    return rc != 0 ? rc : host_start_link(host, options->listens, ret_fd, why);
}

/* ---- life ------------------------------------------------------------------------------------- */

/* Check who can write a directory. */
static int host_check_data(const char *path, int fd, char *why)
{
    struct stat about;

    if (fstat(fd, &about) != 0)
        return host_fail(why, "%s cannot be read: %s.", path, strerror(errno));
    if (about.st_uid != geteuid())
        return host_fail(why, "%s belongs to another user (uid %lu). Use another --data.", path,
            (unsigned long)about.st_uid);
    if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return host_fail(why, "Other users can write %s. Run `chmod 700 %s`.", path, path);
    return 0;
}

static int host_open_data(const struct sync_host_options *options, int *ret_fd, char *why)
{
    const char *path = options->data_path;
    int fd, rc;

    if (options->creates && mkdir(path, 0700) != 0 && errno != EEXIST)
        return host_fail(why, "%s cannot be created: %s.", path, strerror(errno));
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return host_fail(why,
            "There is no directory %s, so nobody has logged in with it. Run `troupe sync login "
            "--data %s --homeserver URL --user NAME --password-file F` first.",
            path, path);
    if (fd < 0)
        return host_fail(why, "%s cannot be opened: %s.", path, strerror(errno));
    rc = host_check_data(path, fd, why);
    if (rc != 0)
        close(fd);
    else
        *ret_fd = fd;
    return rc;
}

int sync_host_open(const struct sync_host_options *options, struct sync_host **ret_host,
    int *ret_fd, char why[SYNC_WHY_BYTES])
{
    struct sync_host *host;
    int dir_fd = -1, lock_fd = -1, fd = -1, rc;

    (void)umask(077);
    log_setup(STDERR_FILENO, LOG_LOGFMT, LOG_ERROR);
    rc = host_open_data(options, &dir_fd, why);
    if (rc != 0)
        return rc;
    rc = host_enter(options, dir_fd, &lock_fd, &fd, why);
    if (rc != 0 || fd >= 0) {
        close(dir_fd);
        *ret_host = NULL;
        *ret_fd = fd;
        return rc;
    }
    host = base_calloc(sizeof *host);
    if (host == NULL) {
        close(lock_fd);
        close(dir_fd);
        return host_fail(why, "The command is out of memory.");
    }
    host->dir_fd = dir_fd;
    host->lock_fd = lock_fd;
    rc = host_start(host, options, ret_fd, why);
    if (rc != 0)
        sync_host_close(&host);
    *ret_host = host;
    return rc;
}

static void host_stop_actor(tr_sender *sender, struct tr_done **done)
{
    enum tr_why why;

    if (*done == NULL)
        return;
    (void)tr_stop(tr_sender_weaken(*sender));
    tr_sender_drop(sender);
    if (tr_done_wait(done, NULL, &why, TR_SECONDS(HOST_STOP_S)) != 0)
        tr_done_drop(done);
}

void sync_host_close(struct sync_host **host)
{
    struct sync_host *it = *host;

    if (it == NULL)
        return;
    if (it->has_socket)
        (void)unlinkat(it->dir_fd, "engine.socket", 0);
    host_stop_actor(&it->link, &it->link_done);
    host_stop_actor(&it->engine, &it->engine_done);
    mxengine_http_destroy(&it->http);
    http_client_stop(&it->client);
    if (it->sql != NULL)
        sql_close(&it->sql);
    if (it->system != NULL)
        tr_system_destroy(&it->system);
    crypto_wipe(&it->key, sizeof it->key);
    close(it->lock_fd);
    close(it->dir_fd);
    base_free(it);
    *host = NULL;
}
