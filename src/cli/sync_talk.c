/* SPDX-License-Identifier: Apache-2.0 */
/* sync_talk.c: the login and the messages of `troupe sync`. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "cli/sync_command.h"

enum {
    LOGIN_FAILURES_MAX = 10,
    LOGIN_WAITS_MAX = 5,           /* that the server may ask for */
    LOGIN_WAIT_MAX_MS = 60 * 1000, /* a longer one ends the command */
    HELD_MS = 2000,                /* between looks for events that cannot be read */
    EVENT_BYTES_MAX = 65536,
    EVENT_REST_BYTES = 3072, /* ids and names of up to 255 bytes, 20 previous events, signatures */
    SEALED_REST_BYTES = 512, /* the type and the room's id beside the text, padding, signature */
    TEXT_BYTES_MAX = 46000   /* as JSON */
};

/* Servers refuse an event of more than 64 KiB (client-server API, size limits). The ciphertext is
 * base64 in it, so three quarters of it are left for the text. The rest is that of room versions
 * from 3 on; before, ids of events are longer, and a server may refuse a text near the bound. */
_Static_assert(TEXT_BYTES_MAX <= (EVENT_BYTES_MAX - EVENT_REST_BYTES) / 4 * 3 - SEALED_REST_BYTES,
    "the largest text fits into an event");

/* ---- the login -------------------------------------------------------------------------------- */

/* A login that waits. */
struct login_wait {
    int failures;      /* looks in a row at which no answer, or a wrong one, was the last */
    int waits;         /* that the server asked for */
    int64_t wait_ms;   /* left of the last one */
    int64_t status;    /* of HTTP: the last answer */
    bool is_discovery; /* the answer is that of .well-known */
};

/* Say why discovery and login were given up while the engine would go on. */
static int login_complain_wait(
    const struct sync_arguments *arguments, const struct login_wait *wait)
{
    long long seconds = (long long)(wait->wait_ms + 999) / 1000;

    if (wait->status == 429)
        return sync_fail(
            "%s limits logins and asks to wait %lld second%s more. Run the command again "
            "then.",
            arguments->homeserver, seconds, seconds == 1 ? "" : "s");
    if (wait->is_discovery)
        return sync_fail(
            "%s/.well-known/matrix/client %s (status %lld), so the homeserver is not known. Its "
            "operator must repair it; or give --homeserver the address that it should name.",
            arguments->homeserver, wait->status == 200 ? "holds no JSON" : "fails",
            (long long)wait->status);
    return sync_fail(
        "%s does not answer as a Matrix homeserver (status %lld). Check the URL, or try "
        "again later.",
        arguments->homeserver, (long long)wait->status);
}

static int login_complain(const struct sync_client *client, int rc)
{
    const struct sync_arguments *arguments = client->arguments;
    int size = (int)client->why.size;
    const char *why = size == 0 ? "" : client->why.bytes;

    if (rc == TR_EACCES && arguments->token_file != NULL)
        return sync_fail(
            "The homeserver refuses the token of --token-file. A login token works once "
            "and for a short time; get another one. %.*s",
            size, why);
    if (rc == TR_EACCES)
        return sync_fail(
            "The homeserver refuses the login of %s. %.*s", arguments->user, size, why);
    if (rc == TR_EBUSY)
        return sync_fail(
            "%s has a login already, or had one that has ended. Use another --data, or "
            "see `troupe sync status --data %s`.",
            arguments->data, arguments->data);
    if ((rc == TR_EIO && size == 0) || rc == TR_ETIMEOUT)
        return sync_fail("No homeserver answers at %s. Check the URL.", arguments->homeserver);
    if (rc == TR_EPROTO && arguments->token_file != NULL)
        return sync_fail(
            "The answer of %s makes no sense, or the token belongs to another user than "
            "the data in %s. %.*s",
            arguments->homeserver, arguments->data, size, why);
    if (rc == TR_EPROTO)
        return sync_fail("%s is no Matrix homeserver. %.*s", arguments->homeserver, size, why);
    if (rc == TR_EINVAL)
        return sync_fail("--homeserver takes a URL, such as https://matrix.example.org, not %s.",
            arguments->homeserver);
    return sync_complain(client, "login", rc);
}

/* Note that the server limits logins, and say so once for each wait. */
static int login_on_limit(struct login_wait *wait, int64_t left_ms)
{
    bool is_new = left_ms > wait->wait_ms;

    wait->wait_ms = left_ms;
    if (!is_new)
        return 0;
    if (++wait->waits > LOGIN_WAITS_MAX || left_ms > LOGIN_WAIT_MAX_MS)
        return TR_EAGAIN;
    sync_warn("The homeserver limits logins; trying again in %lld s. Ctrl-C ends.",
        (long long)(left_ms + 999) / 1000);
    return 0;
}

/* Give up on a homeserver that cannot be reached, that fails or that asks to wait for long: the engine
 * itself would try for ever. */
static int login_on_status(void *data, const struct json *status)
{
    int64_t left_ms = sync_number(status, "waitMs"), answer = sync_number(status, "waitStatus");
    struct login_wait *wait = data;

    if (left_ms == 0)
        return 0;
    wait->status = answer;
    wait->is_discovery = span_is(sync_text(status, "state"), "DISCOVERING");
    if (answer == 429)
        return login_on_limit(wait, left_ms);
    wait->failures++;
    if (wait->failures < LOGIN_FAILURES_MAX)
        return 0;
    return answer == 0 ? TR_EIO : TR_EAGAIN;
}

int sync_login(struct sync_client *client)
{
    const struct sync_arguments *arguments = client->arguments;
    bool by_token = arguments->token_file != NULL;
    struct buffer secret;
    struct sync_call call;
    struct login_wait wait = { 0 };
    int rc, status;

    if (!sync_read_secret(by_token ? arguments->token_file : arguments->password_file,
            by_token ? "The token file" : "The password file", &secret))
        return CLI_FAILED;
    sync_call_start(&call, client, "login");
    json_put_text(&call.writer, "url", arguments->homeserver);
    if (!by_token)
        json_put_text(&call.writer, "user", arguments->user);
    json_put_string(&call.writer, by_token ? "token" : "password", mxclient_span(&secret));
    client->on_status = login_on_status;
    client->on_status_data = &wait;
    rc = sync_call_end(&call);
    client->on_status = NULL;
    sync_call_fini(&call);
    mx_wipe_buffer(&secret);
    if (rc != 0)
        return rc == TR_EAGAIN ? login_complain_wait(arguments, &wait) : login_complain(client, rc);
    status = sync_settle(client); /* so that others can reach the device at once */
    if (status != CLI_OK)
        return status;
    sync_call_start(&call, client, "status");
    rc = sync_call_end(&call);
    if (rc == 0) {
        struct span user = sync_text(call.answer, "userId");
        struct span device = sync_text(call.answer, "deviceId");
        struct buffer line = { 0 };
        struct json_writer writer = json_writer(&line);

        if (arguments->as_json) {
            json_put_object(&writer, NULL);
            json_put_string(&writer, "userId", user);
            json_put_string(&writer, "deviceId", device);
            json_put_end(&writer);
            (void)sync_print_line(&line);
        } else
            (void)sync_say("Logged in as %.*s, device %.*s.", (int)user.size, user.at,
                (int)device.size, device.at);
    }
    sync_call_fini(&call);
    return rc == 0 ? CLI_OK : sync_complain(client, "status", rc);
}

int sync_login_again(struct sync_client *client, struct span user)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, client, "login"); /* the engine knows the homeserver */
    json_put_string(&call.writer, "user", user);
    json_put_string(&call.writer, "password", mxclient_span(&client->password));
    rc = sync_call_end(&call);
    sync_call_fini(&call);
    if (rc == 0 || rc == TR_EBUSY) /* another command logs in */
        return CLI_OK;
    if (rc == TR_EACCES)
        return sync_fail("The homeserver has ended the login and refuses the password of "
                         "--password-file. Keys and unsent messages are kept.");
    return sync_complain(client, "login", rc);
}

/* Run a request without arguments. */
static int talk_ask(struct sync_client *client, const char *verb)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, client, verb);
    rc = sync_call_end(&call);
    sync_call_fini(&call);
    return rc;
}

int sync_logout(struct sync_client *client)
{
    int status = sync_settle(client), rc;

    if (status != CLI_OK)
        return status;
    rc = talk_ask(client, "logout");
    if (rc != 0)
        return sync_complain(client, "logout", rc);
    if (client->arguments->as_json)
        puts("{\"loggedOut\":true}");
    else
        puts("Logged out: the homeserver has deleted this device. Received events stay here.");
    return CLI_OK;
}

/* ---- status ----------------------------------------------------------------------------------- */

/* Wait until the stored state is loaded and, with a login, a first sync has ended or failed. */
static int status_read(struct sync_client *client, struct sync_call *call)
{
    int rc = 0;

    for (int i = 0; i < 100; i++) {
        bool is_known;

        sync_call_start(call, client, "status");
        rc = sync_call_end(call);
        is_known = rc != 0 || (sync_truth(call->answer, "loaded") &&
                                  (!span_is(sync_text(call->answer, "state"), "ACTIVE") ||
                                      sync_truth(call->answer, "settled")));
        if (is_known || sync_number(call->answer, "error") != 0 || i == 99)
            return rc;
        sync_call_fini(call);
        if (!sync_pause(client, 50))
            break;
    }
    *call = (struct sync_call){ 0 };
    return TR_ECANCELLED;
}

/* Print how many events cannot be read, and why. */
static void status_print_unread(const struct json *unread)
{
    for (struct json_iter it = json_iterate(unread); json_next(&it);) {
        struct span reason = sync_text(it.value, "reason");
        int64_t events = sync_number(it.value, "events");

        (void)sync_say("%s %lld event%s: %.*s",
            span_is(sync_text(it.value, "unread"), "held") ? "waiting  " : "given up ",
            (long long)events, events == 1 ? "" : "s", (int)reason.size, reason.at);
    }
}

/* Print the status with the events that cannot be read, as one object. */
static bool status_print_json(const struct json *status, const struct json *unread)
{
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);

    json_put_object(&writer, NULL);
    for (struct json_iter it = json_iterate(status); json_next(&it);) {
        if (span_is(it.key, "id") || span_is(it.key, "ok"))
            continue;
        json_put_key(&writer, it.key);
        json_put_value(&writer, NULL, it.value);
    }
    json_put_value(&writer, "unread", unread);
    json_put_end(&writer);
    return json_writer_end(&writer) == 0 && sync_print_line(&line);
}

static void status_print(
    const struct sync_client *client, const struct json *status, const struct json *unread)
{
    static const struct {
        const char *label, *key;
    } texts[] = { { "server", "homeserver" }, { "user", "userId" }, { "device", "deviceId" },
        { "session", "stateText" } };
    struct span problem = sync_text(status, "problem");
    int error = (int)sync_number(status, "error");

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct span text = sync_text(status, texts[i].key);

        (void)sync_say("%-9s %.*s", texts[i].label, (int)text.size, text.at);
    }
    printf("engine    %s\n", client->host == NULL ? "runs in another process" : "not running");
    printf("synced    %s\n", sync_truth(status, "settled") ? "yes" : "no");
    printf("events    %lld, %lld gaps\n", (long long)sync_number(status, "lastSeq"),
        (long long)sync_number(status, "gaps"));
    printf("unsent    %lld\n", (long long)sync_number(status, "unsent"));
    status_print_unread(unread);
    if (problem.size > 0)
        (void)sync_say("problem   %.*s", (int)problem.size, problem.at);
    else if (error != 0)
        (void)sync_say("problem   %s", sync_error_text(error));
}

/* Return why the stored state cannot be loaded; 0 if it is. */
static int status_failed(const struct json *status)
{
    int error = (int)sync_number(status, "error");

    if (sync_truth(status, "loaded"))
        return 0;
    return error != 0 ? error : TR_ETIMEOUT;
}

int sync_status(struct sync_client *client)
{
    struct sync_call call, counts;
    int rc = status_read(client, &call);

    if (rc == 0)
        rc = status_failed(call.answer);

    sync_call_start(&counts, client, "unread");
    if (rc == 0)
        rc = sync_call_end(&counts);
    if (rc != 0)
        rc = sync_complain(client, "status", rc);
    else if (client->arguments->as_json)
        rc =
            status_print_json(call.answer, json_get(counts.answer, "unread")) ? CLI_OK : CLI_FAILED;
    else
        status_print(client, call.answer, json_get(counts.answer, "unread"));
    sync_call_fini(&counts);
    sync_call_fini(&call);
    return rc;
}

/* ---- messages --------------------------------------------------------------------------------- */

/* Write the content of a message of this text. CLI_OK, or CLI_FAILED and a message. */
static int send_write(const struct sync_client *client, struct span text, struct buffer *content)
{
    static const char around[] = "{\"msgtype\":\"m.text\",\"body\":\"\"}";
    struct json_writer writer = json_writer(content);
    size_t size;

    if (!json_is_utf8(text))
        return sync_fail("The text is not UTF-8.");
    json_put_object(&writer, NULL);
    json_put_text(&writer, "msgtype", "m.text");
    json_put_string(&writer, "body", text);
    json_put_end(&writer);
    if (json_writer_end(&writer) != 0)
        return sync_complain(client, "send", TR_ENOMEM);
    size = content->size - (sizeof around - 1);
    if (size <= TEXT_BYTES_MAX)
        return CLI_OK;
    return sync_fail(
        "The text has %zu bytes as JSON, where a line break or a quotation mark counts "
        "as two; the most is %d. Use `troupe sync attach`.",
        size, TEXT_BYTES_MAX);
}

/* Read the text of a message from standard input, without the newline at its end. */
static int send_read(const struct sync_client *client, struct buffer *text)
{
    ssize_t got = 1;

    while (got != 0 && text->size <= TEXT_BYTES_MAX) {
        char *place = buffer_reserve(text, TEXT_BYTES_MAX);
        struct pollfd fds[] = { { .fd = STDIN_FILENO, .events = POLLIN },
            { .fd = client->signal_fd, .events = POLLIN } };

        if (place == NULL)
            return sync_complain(client, "send", TR_ENOMEM);
        (void)poll(fds, 2, -1);
        if (sync_is_signalled(client))
            return sync_complain(client, "send", TR_ECANCELLED);
        if (fds[0].revents == 0)
            continue;
        got = read(STDIN_FILENO, place, TEXT_BYTES_MAX);
        if (got < 0 && errno != EINTR)
            return sync_fail("Standard input cannot be read: %s.", strerror(errno));
        buffer_grew(text, got > 0 ? (size_t)got : 0);
    }
    if (text->size > 0 && text->bytes[text->size - 1] == '\n')
        text->size--;
    return text->size > 0 ? CLI_OK : sync_fail("Standard input has no text to send.");
}

int sync_send(struct sync_client *client)
{
    const char *const *words = client->arguments->words;
    struct buffer content = { 0 }, text = { 0 };
    int status = CLI_OK;

    if (strcmp(words[2], "-") == 0)
        status = send_read(client, &text);
    else if (buffer_text(&text, words[2]) != 0)
        status = sync_complain(client, "send", TR_ENOMEM);
    if (status == CLI_OK)
        status = send_write(client, mxclient_span(&text), &content);
    if (status == CLI_OK)
        status = sync_settle(client);
    if (status == CLI_OK)
        status = sync_check_room(client, "send", words[1]);
    if (status == CLI_OK)
        status = sync_send_content(client, words[1], mxclient_span(&content));
    mx_wipe_buffer(&content);
    mx_wipe_buffer(&text);
    return status;
}

/* ---- tail ------------------------------------------------------------------------------------- */

/* Print the mark of an event's author. It begins the line, so that no text of the network can stand
 * where a mark does. An event that cannot be read has none. */
static void tail_print_mark(const struct json *event)
{
    const struct json *encryption = json_get(event, "encryption");
    struct span trust = sync_text(encryption, "trust");
    struct span former = sync_text(encryption, "formerTrust");
    bool is_ours = sync_truth(event, "own") && !span_is(trust, "own");

    if (trust.size > 0)
        printf("[%s%.*s%s%.*s] ", is_ours ? "own, " : "", (int)trust.size, trust.at,
            former.size > 0 ? ", was " : "", (int)former.size, former.at);
}

static void tail_print(const struct json *event, struct span saved)
{
    const struct json *content = json_get(event, "content");
    struct span body = sync_text(content, "body"), type = sync_text(event, "type");

    tail_print_mark(event);
    printf("%s", cli_dim());
    sync_print_safe(sync_text(event, "roomId"));
    printf("%s ", cli_plain());
    sync_print_safe(sync_text(event, "sender"));
    printf(": ");
    if (span_is(type, "m.room.message"))
        sync_print_safe(body);
    else {
        putchar('(');
        sync_print_safe(type);
        putchar(')');
    }
    if (sync_text(event, "unread").size > 0) {
        putchar(' ');
        sync_print_safe(sync_text(event, "reason"));
    }
    if (saved.size > 0) {
        printf(" (saved as ");
        sync_print_safe(saved);
        putchar(')');
    }
    putchar('\n');
    (void)fflush(stdout);
}

/* A tail under way. */
struct tail {
    struct sync_client *client;
    int64_t after;   /* the number of the last event that was read */
    int64_t left;    /* events to show; -1: no limit */
    bool has_failed; /* an attachment was not saved */
    bool is_patient; /* the newest events may get their keys soon: do not show them as held */
};

/* Show an event. Returns 0; TR_ECANCELLED after a signal while its attachment was saved; TR_ECLOSED if
 * the output is closed. */
static int tail_show(struct tail *tail, const struct json *event)
{
    const struct sync_arguments *arguments = tail->client->arguments;
    struct buffer path = { 0 }, line = { 0 };
    struct json_writer writer = json_writer(&line);
    bool is_good = true;
    int rc = 0;

    if (arguments->save != NULL)
        rc = sync_save(tail->client, json_get(event, "content"), arguments->save, &path);
    tail->has_failed = tail->has_failed || rc < 0;
    if (arguments->as_json) {
        json_put_object(&writer, NULL);
        for (struct json_iter it = json_iterate(event); json_next(&it);) {
            json_put_key(&writer, it.key);
            json_put_value(&writer, NULL, it.value);
        }
        if (path.size > 0)
            json_put_string(&writer, "saved", mxclient_span(&path));
        json_put_end(&writer);
        is_good = sync_print_line(&line);
    } else {
        tail_print(event, mxclient_span(&path));
        is_good = ferror(stdout) == 0;
    }
    buffer_free(&path);
    return rc == TR_ECANCELLED ? rc : is_good ? 0 : TR_ECLOSED;
}

/* Return the number of the newest event that is not held; of a page that has successors, any number. A
 * held event becomes another one when its key comes. */
static int64_t tail_last_firm(const struct json *events)
{
    int64_t seq = 0;
    int count = 0;

    for (struct json_iter it = json_iterate(events); json_next(&it); count++)
        if (!span_is(sync_text(it.value, "unread"), "held"))
            seq = sync_number(it.value, "seq");
    return count < SYNC_EVENTS_MAX ? seq : INT64_MAX;
}

/* Show the next stored events, by their numbers. Events that cannot be read and our own are shown and not
 * counted. * *ret_is_end: there were none. Returns 0, or a code of the engine or of tail_show. */
static int tail_show_next(struct tail *tail, bool *ret_is_end)
{
    const char *room = tail->client->arguments->room;
    int64_t last = INT64_MAX;
    struct sync_call call;
    int rc;

    sync_call_start(&call, tail->client, "timeline");
    json_put_int(&call.writer, "after", tail->after);
    rc = sync_call_end(&call);
    if (tail->is_patient)
        last = tail_last_firm(json_get(call.answer, "events"));
    *ret_is_end = true;
    for (struct json_iter it = json_iterate(json_get(call.answer, "events"));
         rc == 0 && tail->left != 0 && json_next(&it);) {
        bool is_shown = room == NULL || span_is(sync_text(it.value, "roomId"), room);

        if (sync_number(it.value, "seq") > last)
            break;
        *ret_is_end = false;
        tail->after = sync_number(it.value, "seq");
        if (is_shown)
            rc = tail_show(tail, it.value);
        tail->left -= tail->left > 0 && is_shown && sync_text(it.value, "unread").size == 0 &&
                      !sync_truth(it.value, "own");
    }
    sync_call_fini(&call);
    return rc;
}

/* Wait for an event that can be read. Others wake nobody: after a while they are shown as held. */
static int tail_wait(struct tail *tail)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, tail->client, "events");
    json_put_int(&call.writer, "after", tail->after);
    json_put_int(&call.writer, "count", 1);
    json_put_bool(&call.writer, "waits", true);
    json_put_bool(&call.writer, "own", true);
    json_put_int(&call.writer, "timeoutMs", HELD_MS);
    rc = sync_call_end(&call);
    sync_call_fini(&call);
    tail->is_patient = rc != TR_ETIMEOUT;
    return rc == TR_ETIMEOUT ? 0 : rc;
}

/* Show events until the limit, a signal or the end of the login. */
static int tail_run(struct tail *tail)
{
    bool is_end = false;
    int rc = 0;

    while (rc == 0 && tail->left != 0) {
        rc = tail_show_next(tail, &is_end);
        if (rc == TR_ECLOSED && ferror(stdout) != 0)
            return CLI_FAILED;
        if (rc == 0 && is_end && tail->client->is_over)
            break;
        if (rc == 0 && is_end)
            rc = tail_wait(tail);
        if (rc == TR_EACCES && sync_recover(tail->client, "tail") != CLI_OK)
            return CLI_FAILED;
        if (rc == TR_EACCES)
            rc = 0;
    }
    if (rc != 0 && rc != TR_ECANCELLED) /* Ctrl-C is how a tail ends */
        return sync_complain(tail->client, "tail", rc);
    return tail->has_failed ? CLI_FAILED : CLI_OK;
}

int sync_tail(struct sync_client *client)
{
    const struct sync_arguments *arguments = client->arguments;
    uint64_t count = 0, since = 0;
    struct sync_call call;
    int rc = 0;

    if (arguments->count != NULL && (!span_u64(span_of(arguments->count), &count) || count == 0))
        return cli_wrong(
            arguments->command, "--count takes a number from 1 on, not", arguments->count);
    if (arguments->since != NULL && !span_u64(span_of(arguments->since), &since))
        return cli_wrong(arguments->command, "--since takes a number, not", arguments->since);
    if (!sync_read_password(client))
        return CLI_FAILED;
    if (arguments->since == NULL) {
        /* An engine that starts here also shows the events that it missed before. */
        rc = status_read(client, &call);
        since = rc != 0 ? 0
                        : (uint64_t)sync_number(
                              call.answer, client->host != NULL ? "firstSeq" : "lastSeq");
        sync_call_fini(&call);
    }
    if (rc != 0)
        return sync_complain(client, "tail", rc);
    rc = sync_settle_to_read(client);
    if (rc != CLI_OK)
        return rc;
    if (client->is_over && arguments->since == NULL)
        since = 0; /* no new event can come */
    if (!client->is_over && !arguments->as_json)
        fprintf(stderr, "Waiting for events; Ctrl-C ends.\n");
    return tail_run(&(struct tail){ .client = client,
        .after = (int64_t)since,
        .left = count == 0 ? -1 : (int64_t)count,
        .is_patient = !client->is_over });
}
