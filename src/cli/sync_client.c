/* SPDX-License-Identifier: Apache-2.0 */
/* sync_client.c: the command's side of the link to the engine. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "cli/sync_command.h"

enum {
    TICK_MS = 200,
    READ_BYTES = 64 << 10,
    SETTLE_QUIET_TICKS = 5,
    SETTLE_TICKS_MAX = 300,
    SETTLE_FAILURES_MAX = 40,
    SECRET_BYTES_MAX = 4096
};

/* ---- messages --------------------------------------------------------------------------------- */

int sync_complain(const struct sync_client *client, const char *what, int rc)
{
    const char *data = client->arguments->data;

    if (client->why.size > 0 && sync_wire_has_reason(rc))
        return sync_fail("%s: %.*s", what, (int)client->why.size, client->why.bytes);
    switch (rc) {
    case TR_EACCES:
        return sync_fail(
            "%s: This device has no login, or its user is not a member of the room. See "
            "`troupe sync status --data %s`.",
            what, data);
    case TR_ENOENT:
        return sync_fail("%s: The room is not known here. `troupe sync rooms --data %s` lists the "
                         "rooms.",
            what, data);
    case TR_EINVAL:
        return sync_fail(
            "%s: An id is not valid. A user is @NAME:SERVER, a room !ID:SERVER.", what);
    case TR_ECLOSED:
    case TR_EDROPPED:
    case TR_ECRASHED:
        return sync_fail("%s: The engine ended before it answered, so the outcome is not known. "
                         "Run the command again.",
            what);
    case TR_ECANCELLED:
        return sync_fail("%s: Interrupted.", what);
    case TR_ETIMEOUT:
        return sync_fail(
            "%s: No answer in time. `troupe sync status --data %s` says why.", what, data);
    case TR_EIO:
        return sync_fail(
            "%s: The homeserver cannot be reached. Check the network and --homeserver.", what);
    case TR_EFULL:
        return sync_fail("%s: The engine has too many requests: it serves %d commands at once. Try "
                         "again soon.",
            what, SYNC_PEERS_MAX);
    case MX_EMAC:
        return sync_fail("%s: The key does not open the data in %s. Use the --key-file or --key-fd "
                         "of its login.",
            what, data);
    default:
        return sync_fail("%s: %s.", what, sync_error_text(rc));
    }
}

/* ---- the connection --------------------------------------------------------------------------- */

static int client_signals(void)
{
    sigset_t signals;

    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL); /* before the engine's threads start */
    return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

int sync_client_open(struct sync_client *client, const struct sync_arguments *arguments)
{
    struct sync_host_options options = { .data_path = arguments->data,
        .key_path = arguments->key_file,
        .key_fd = -1,
        .listens =
            strcmp(arguments->words[0], "tail") == 0 || strcmp(arguments->words[0], "verify") == 0,
        .creates = strcmp(arguments->words[0], "login") == 0 };
    char why[SYNC_WHY_BYTES] = "";
    uint64_t number;

    *client = (struct sync_client){ .arguments = arguments, .fd = -1, .signal_fd = -1 };
    if (arguments->share != NULL)
        options.policy = strcmp(arguments->share, "all") == 0    ? MXCLIENT_SHARE_ALL
                         : strcmp(arguments->share, "halt") == 0 ? MXCLIENT_SHARE_HALT
                                                                 : MXCLIENT_SHARE_EXCLUDE;
    if (arguments->key_fd != NULL && span_u64(span_of(arguments->key_fd), &number) &&
        number < INT32_MAX)
        options.key_fd = (int)number;
    client->signal_fd = options.signal_fd = client_signals();
    if (sync_host_open(&options, &client->host, &client->fd, why) != 0) {
        client->fd = -1;
        return sync_fail("%s", why);
    }
    if (client->host == NULL && arguments->share != NULL &&
        strcmp(arguments->words[0], "send") != 0 && strcmp(arguments->words[0], "attach") != 0)
        return sync_fail("The engine of %s runs in another process and keeps its own --share. End "
                         "that `tail` or `verify`, or start it with --share %s.",
            arguments->data, arguments->share);
    return CLI_OK;
}

void sync_client_close(struct sync_client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    sync_host_close(&client->host);
    if (client->signal_fd >= 0)
        close(client->signal_fd);
    mx_wipe_buffer(&client->in);
    mx_wipe_buffer(&client->password);
    buffer_free(&client->why);
}

static bool client_write(const struct sync_client *client, const struct buffer *line)
{
    for (size_t done = 0; done < line->size;) {
        ssize_t wrote = send(client->fd, line->bytes + done, line->size - done, MSG_NOSIGNAL);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) /* an engine that refused the connection has said why */
            return errno == EPIPE || errno == ECONNRESET;
        done += (size_t)wrote;
    }
    return true;
}

/* Wait for bytes. 0, TR_ETIMEOUT, TR_ECANCELLED or TR_ECLOSED. */
static int client_wait(struct sync_client *client, int timeout_ms)
{
    struct pollfd fds[] = { { .fd = client->fd, .events = POLLIN },
        { .fd = client->signal_fd, .events = POLLIN } };
    int ready = poll(fds, 2, timeout_ms);
    char *place;
    ssize_t got;

    if (ready == 0)
        return TR_ETIMEOUT;
    if (ready > 0 && sync_is_signalled(client))
        return TR_ECANCELLED;
    if (ready > 0 && fds[0].revents == 0)
        return 0;
    if (ready < 0)
        return errno == EINTR ? 0 : TR_ECLOSED;
    place = buffer_reserve(&client->in, READ_BYTES);
    got = place == NULL ? -1 : recv(client->fd, place, READ_BYTES, 0);
    if (got <= 0)
        return TR_ECLOSED;
    buffer_grew(&client->in, (size_t)got);
    return 0;
}

/* Take the next line into a document: 0, TR_EAGAIN without a whole one, or why it is none. */
static int client_take(struct sync_client *client, size_t *searched, struct json_doc *doc)
{
    const char *end = client->in.size <= *searched
                          ? NULL
                          : memchr(client->in.bytes + *searched, '\n', client->in.size - *searched);
    size_t size;
    int rc;

    if (end == NULL) {
        *searched = client->in.size;
        return TR_EAGAIN;
    }
    size = (size_t)(end - client->in.bytes);
    mx_wipe_buffer(&doc->copy);
    rc = json_parse_copy(doc, (struct span){ client->in.bytes, size }, 0);
    buffer_consume(&client->in, size + 1);
    *searched = 0;
    return rc;
}

bool sync_is_signalled(const struct sync_client *client)
{
    struct signalfd_siginfo signal;

    return read(client->signal_fd, &signal, sizeof signal) == (ssize_t)sizeof signal;
}

bool sync_pause(const struct sync_client *client, int ms)
{
    struct pollfd fd = { .fd = client->signal_fd, .events = POLLIN };

    return poll(&fd, 1, ms) <= 0 || !sync_is_signalled(client);
}

/* ---- requests --------------------------------------------------------------------------------- */

void sync_call_start(struct sync_call *call, struct sync_client *client, const char *verb)
{
    *call = (struct sync_call){ .client = client, .id = ++client->next_id };
    call->writer = json_writer(&call->line);
    json_put_object(&call->writer, NULL);
    json_put_int(&call->writer, "id", call->id);
    json_put_text(&call->writer, "do", verb);
}

/* Ask for the status beside the request. Its id is negative. */
static bool call_ask_status(struct sync_client *client, int64_t id)
{
    struct buffer line = { 0 };
    bool is_sent;

    (void)buffer_format(&line, "{\"id\":%lld,\"do\":\"status\"}\n", (long long)-id);
    is_sent = line.failed == 0 && client_write(client, &line);
    buffer_free(&line);
    return is_sent;
}

/* Wait for the answer with the call's id; show answers to status requests. The id 0 is that of a
 * connection that the engine refuses. */
static int call_wait(struct sync_call *call)
{
    struct sync_client *client = call->client;
    size_t searched = 0;
    bool is_asking = false;
    int rc = 0;

    while (rc == 0 || rc == TR_ETIMEOUT) {
        rc = client_take(client, &searched, &call->doc);
        if (rc == 0) {
            call->answer = json_root(&call->doc);
            if (sync_number(call->answer, "id") == call->id || sync_number(call->answer, "id") == 0)
                return 0;
            is_asking = false;
            if (client->on_status != NULL)
                rc = client->on_status(client->on_status_data, call->answer);
            continue;
        }
        if (rc != TR_EAGAIN)
            return rc;
        rc = client_wait(client, client->on_status != NULL && !is_asking ? TICK_MS : -1);
        if (rc == TR_ETIMEOUT)
            is_asking = call_ask_status(client, call->id);
    }
    return rc;
}

int sync_call_end(struct sync_call *call)
{
    int rc;

    json_put_end(&call->writer);
    rc = json_writer_end(&call->writer);
    if (rc == 0)
        rc = buffer_append(&call->line, "\n", 1);
    if (rc == 0)
        rc = client_write(call->client, &call->line) ? call_wait(call) : TR_ECLOSED;
    if (rc == 0 && !sync_truth(call->answer, "ok"))
        rc = (int)sync_number(call->answer, "code");
    buffer_clear(&call->client->why);
    if (sync_wire_has_reason(rc))
        (void)buffer_span(&call->client->why, sync_text(call->answer, "result"));
    return rc;
}

void sync_call_fini(struct sync_call *call)
{
    mx_wipe_buffer(&call->line);
    mx_wipe_buffer(&call->doc.copy);
    json_doc_free(&call->doc);
}

struct span sync_text(const struct json *object, const char *key)
{
    struct span text = { "", 0 };

    (void)json_string(json_get(object, key), &text);
    return text;
}

int64_t sync_number(const struct json *object, const char *key)
{
    int64_t number = 0;

    (void)json_int(json_get(object, key), &number);
    return number;
}

bool sync_truth(const struct json *object, const char *key)
{
    bool truth = false;

    (void)json_bool(json_get(object, key), &truth);
    return truth;
}

/* ---- the first sync --------------------------------------------------------------------------- */

/* Show how far the catch-up is. The server does not say how much there is: rooms with a gap count. */
static void settle_show(const struct json *status, int64_t first_seq, int64_t *gaps_most)
{
    int64_t gaps = sync_number(status, "gaps");
    int width = 24, filled;

    if (gaps > *gaps_most)
        *gaps_most = gaps;
    filled = !sync_truth(status, "settled") ? 0
             : *gaps_most == 0              ? width
                                            : (int)(width * (*gaps_most - gaps) / *gaps_most);
    fprintf(stderr, "\rCatching up [%.*s%*s] %lld events, %lld gaps left\033[K", filled,
        "########################", width - filled, "",
        (long long)(sync_number(status, "lastSeq") - first_seq), (long long)gaps);
    fflush(stderr);
}

/* A person at a terminal sees the catch-up before events come; others need not wait for old ones. */
static bool settle_is_watched(const struct sync_client *client)
{
    return client->host != NULL && !client->arguments->as_json && isatty(STDERR_FILENO) &&
           strcmp(client->arguments->words[0], "tail") == 0;
}

/* Judge a status: CLI_OK when the engine is ready or the login is over, -1 to wait on, CLI_FAILED and a
 * message. */
static int settle_judge(struct sync_client *client, const struct json *status, bool is_late)
{
    struct span state = sync_text(status, "state"), problem = sync_text(status, "problem");
    const char *data = client->arguments->data;
    int error = (int)sync_number(status, "error");

    if (error == MX_EMAC || error == MX_EBACKEND) /* waiting does not help */
        return sync_complain(client, "status", error);
    if (!sync_truth(status, "loaded"))
        return is_late ? sync_complain(client, "sync", error != 0 ? error : TR_ETIMEOUT) : -1;
    if (span_is(state, "NEW") || span_is(state, "SIGNED_OUT"))
        return sync_fail("Nobody has logged in with %s. Run `troupe sync login --data %s "
                         "--homeserver URL --user NAME --password-file F` first.",
            data, data);
    if (span_is(state, "SOFT_OUT"))
        return sync_fail(
            "%.*s Run `troupe sync login --data %s ...`.", (int)problem.size, problem.at, data);
    if (span_is(state, "ENDED")) {
        client->is_over = true;
        return buffer_span(&client->why, problem) == 0 ? CLI_OK : CLI_FAILED;
    }
    if (sync_truth(status, "settled") &&
        (!settle_is_watched(client) || sync_number(status, "gaps") == 0 || is_late))
        return CLI_OK;
    if (!sync_truth(status, "settled") && sync_truth(status, "keysRefused")) /* a minute at least */
        return sync_fail("%.*s", (int)problem.size, problem.at);
    return is_late ? sync_complain(client, "sync", error != 0 ? error : TR_ETIMEOUT) : -1;
}

/* Judge a status, or log in again if the server ended the login and a password is there. */
static int settle_step(struct sync_client *client, const struct json *status, bool is_late)
{
    if (!span_is(sync_text(status, "state"), "SOFT_OUT") || client->password.size == 0)
        return settle_judge(client, status, is_late);
    return sync_login_again(client, sync_text(status, "userId")) == CLI_OK ? -1 : CLI_FAILED;
}

int sync_recover(struct sync_client *client, const char *what)
{
    return client->password.size > 0 ? sync_settle(client) : sync_complain(client, what, TR_EACCES);
}

static int settle_wait(struct sync_client *client)
{
    int64_t first_seq = -1, gaps_most = 0;
    int status = -1, failures = 0;
    bool is_shown = false;

    for (int i = 0; status == -1; i++) {
        struct sync_call call;
        int rc;

        sync_call_start(&call, client, "status");
        rc = sync_call_end(&call);
        if (rc != 0)
            status = sync_complain(client, "status", rc);
        else {
            if (first_seq < 0)
                first_seq = sync_number(call.answer, "lastSeq");
            failures = sync_number(call.answer, "error") == 0 ? 0 : failures + 1;
            status = settle_step(
                client, call.answer, i >= SETTLE_TICKS_MAX || failures >= SETTLE_FAILURES_MAX);
            if (status == -1 && isatty(STDERR_FILENO) &&
                (i >= SETTLE_QUIET_TICKS || settle_is_watched(client))) {
                settle_show(call.answer, first_seq, &gaps_most);
                is_shown = true;
            }
        }
        sync_call_fini(&call);
        if (status == -1 && !sync_pause(client, i < 10 ? 20 : TICK_MS))
            status = sync_complain(client, "sync", TR_ECANCELLED);
    }
    if (is_shown)
        fputs("\r\033[K", stderr);
    return status;
}

int sync_settle(struct sync_client *client)
{
    int status = settle_wait(client);

    if (status != CLI_OK || !client->is_over)
        return status;
    return sync_fail("%.*s Log in with another --data DIR than %s.", (int)client->why.size,
        client->why.bytes, client->arguments->data);
}

int sync_settle_to_read(struct sync_client *client)
{
    int status = settle_wait(client);

    if (status == CLI_OK && client->is_over)
        sync_warn("%.*s", (int)client->why.size, client->why.bytes);
    return status;
}

/* ---- output and input ------------------------------------------------------------------------- */

bool sync_print_line(struct buffer *line)
{
    bool is_good = line->failed == 0 && fwrite(line->bytes, 1, line->size, stdout) == line->size;

    is_good = is_good && fputc('\n', stdout) != EOF && fflush(stdout) == 0;
    mx_wipe_buffer(line);
    return is_good;
}

bool sync_print_json(const struct json *answer)
{
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);

    json_put_object(&writer, NULL);
    for (struct json_iter it = json_iterate(answer); json_next(&it);) {
        if (span_is(it.key, "id") || span_is(it.key, "ok"))
            continue;
        json_put_key(&writer, it.key);
        json_put_value(&writer, NULL, it.value);
    }
    json_put_end(&writer);
    return json_writer_end(&writer) == 0 && sync_print_line(&line);
}

bool sync_read_secret(const char *path, const char *what, struct buffer *ret_secret)
{
    int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = 1;

    *ret_secret = (struct buffer){ 0 };
    while (fd >= 0 && got > 0 && ret_secret->size <= SECRET_BYTES_MAX) {
        char *place = buffer_reserve(ret_secret, SECRET_BYTES_MAX + 1 - ret_secret->size);

        got = place == NULL ? -1 : read(fd, place, SECRET_BYTES_MAX + 1 - ret_secret->size);
        if (got > 0)
            buffer_grew(ret_secret, (size_t)got);
    }
    if (fd < 0 || got < 0 || ret_secret->size > SECRET_BYTES_MAX) {
        (void)sync_fail("%s %s cannot be read: %s.", what, path,
            ret_secret->size > SECRET_BYTES_MAX ? "It is too long" : strerror(errno));
        mx_wipe_buffer(ret_secret);
    } else if (ret_secret->size > 0 && ret_secret->bytes[ret_secret->size - 1] == '\n')
        ret_secret->size--;
    if (fd >= 0)
        close(fd);
    if (ret_secret->size == 0 && fd >= 0 && got >= 0)
        (void)sync_fail("%s %s is empty.", what, path);
    return ret_secret->size > 0;
}

bool sync_read_password(struct sync_client *client)
{
    const char *path = client->arguments->password_file;

    return path == NULL || sync_read_secret(path, "The password file", &client->password);
}
