/* SPDX-License-Identifier: Apache-2.0 */
/* sync_talk.c: the login and the messages of `troupe sync`. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "cli/sync_command.h"

enum {
    LOGIN_FAILURES_MAX = 10,
    SENT_MS = 120 * 1000,
    HELD_MS = 2000, /* between looks for events that cannot be read */
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

static int login_complain(const struct sync_client *client, int rc)
{
    const struct sync_arguments *arguments = client->arguments;

    if (rc == TR_EACCES && arguments->token_file != NULL)
        return sync_fail(
            "The homeserver refuses the token of --token-file. A login token works once "
            "and for a short time; get another one.");
    if (rc == TR_EACCES)
        return sync_fail("The homeserver refuses the user or the password of %s.", arguments->user);
    if (rc == TR_EBUSY)
        return sync_fail(
            "%s has a login already, or had one that has ended. Use another --data, or "
            "see `troupe sync status --data %s`.",
            arguments->data, arguments->data);
    if (rc == TR_EIO || rc == TR_ETIMEOUT)
        return sync_fail("No homeserver answers at %s. Check the URL.", arguments->homeserver);
    if (rc == TR_EPROTO && arguments->token_file != NULL)
        return sync_fail(
            "The answer of %s makes no sense, or the token belongs to another user than "
            "the data in %s.",
            arguments->homeserver, arguments->data);
    if (rc == TR_EPROTO)
        return sync_fail(
            "%s is no Matrix homeserver: its answer makes no sense.", arguments->homeserver);
    if (rc == TR_EINVAL)
        return sync_fail("--homeserver takes a URL, such as https://matrix.example.org, not %s.",
            arguments->homeserver);
    return sync_complain(client, "login", rc);
}

/* Give up on a homeserver that cannot be reached: the engine itself would try for ever. */
static int login_on_status(void *data, const struct json *status)
{
    int *failures = data, error = (int)sync_number(status, "error");

    *failures = error == TR_EIO || error == TR_ETIMEOUT ? *failures + 1 : 0;
    return *failures >= LOGIN_FAILURES_MAX ? TR_EIO : 0;
}

int sync_login(struct sync_client *client)
{
    const struct sync_arguments *arguments = client->arguments;
    bool by_token = arguments->token_file != NULL;
    struct buffer secret;
    struct sync_call call;
    int rc, status, failures = 0;

    if (!sync_read_secret(by_token ? arguments->token_file : arguments->password_file,
            by_token ? "The token file" : "The password file", &secret))
        return CLI_FAILED;
    sync_call_start(&call, client, "login");
    json_put_text(&call.writer, "url", arguments->homeserver);
    if (!by_token)
        json_put_text(&call.writer, "user", arguments->user);
    json_put_string(&call.writer, by_token ? "token" : "password", mxclient_span(&secret));
    client->on_status = login_on_status;
    client->on_status_data = &failures;
    rc = sync_call_end(&call);
    client->on_status = NULL;
    sync_call_fini(&call);
    mx_wipe_buffer(&secret);
    if (rc != 0)
        return login_complain(client, rc);
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
            printf("Logged in as %.*s, device %.*s.\n", (int)user.size, user.at, (int)device.size,
                device.at);
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

        printf("%s %lld event%s: %.*s\n",
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

int sync_status(struct sync_client *client)
{
    struct sync_call call, counts;
    int rc = status_read(client, &call);

    sync_call_start(&counts, client, "unread");
    if (rc == 0)
        rc = sync_call_end(&counts);
    if (rc != 0)
        rc = sync_complain(client, "status", rc);
    else if (client->arguments->as_json)
        rc =
            status_print_json(call.answer, json_get(counts.answer, "unread")) ? CLI_OK : CLI_FAILED;
    else {
        struct span user = sync_text(call.answer, "userId");
        struct span device = sync_text(call.answer, "deviceId");
        struct span state = sync_text(call.answer, "stateText");
        struct span problem = sync_text(call.answer, "problem");
        int64_t error = sync_number(call.answer, "error");

        printf("user      %.*s\ndevice    %.*s\nsession   %.*s\n", (int)user.size, user.at,
            (int)device.size, device.at, (int)state.size, state.at);
        printf("engine    %s\n", client->host == NULL ? "runs in another process" : "not running");
        printf("synced    %s\n", sync_truth(call.answer, "settled") ? "yes" : "no");
        printf("events    %lld, %lld gaps\n", (long long)sync_number(call.answer, "lastSeq"),
            (long long)sync_number(call.answer, "gaps"));
        printf("unsent    %lld\n", (long long)sync_number(call.answer, "unsent"));
        status_print_unread(json_get(counts.answer, "unread"));
        if (problem.size > 0)
            printf("problem   %.*s\n", (int)problem.size, problem.at);
        else if (error != 0)
            printf("problem   %s\n", mx_error_text((int)error));
    }
    sync_call_fini(&counts);
    sync_call_fini(&call);
    return rc;
}

/* ---- messages --------------------------------------------------------------------------------- */

static int sent_print(const struct sync_client *client, const struct json *answer)
{
    struct span event = sync_text(answer, "result");
    int64_t unverified = sync_number(answer, "unverified");
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);

    if (client->arguments->as_json) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "eventId", event);
        json_put_int(&writer, "unverified", unverified);
        json_put_end(&writer);
    } else
        (void)buffer_span(&line, event);
    if (unverified > 0)
        fprintf(stderr,
            "%lld device%s of the room cannot read it: not verified. Run `troupe sync verify "
            "USER`.\n",
            (long long)unverified, unverified == 1 ? "" : "s");
    return sync_print_line(&line) ? CLI_OK : CLI_FAILED;
}

/* Say why an event was refused: by the server, or since the login has ended. */
static int sent_complain(struct sync_client *client, struct span reason)
{
    struct sync_call call;
    struct span problem = { "", 0 };
    int status;

    sync_call_start(&call, client, "status");
    if (sync_call_end(&call) == 0 && !span_is(sync_text(call.answer, "state"), "ACTIVE"))
        problem = sync_text(call.answer, "problem");
    status = problem.size > 0
                 ? sync_fail("send: %.*s", (int)problem.size, problem.at)
                 : sync_fail("send: The event was refused: %.*s.", (int)reason.size, reason.at);
    sync_call_fini(&call);
    return status;
}

/* Wait until the event with this transaction id has left. */
static int sent_wait(struct sync_client *client, struct span txn)
{
    struct sync_call call;
    int rc, status;

    sync_call_start(&call, client, "sent");
    json_put_string(&call.writer, "text", txn);
    json_put_int(&call.writer, "timeoutMs", SENT_MS);
    rc = sync_call_end(&call);
    if (rc == 0)
        status = sent_print(client, call.answer);
    else if (rc == TR_EACCES)
        status = sent_complain(client, sync_text(call.answer, "result"));
    else if (rc == TR_ETIMEOUT || rc == TR_ECANCELLED)
        status = sync_fail("send: The event waits in the outbox. The next command that runs with "
                           "--data %s sends it.",
            client->arguments->data);
    else
        status = sync_complain(client, "send", rc);
    sync_call_fini(&call);
    return status;
}

int sync_send_content(struct sync_client *client, const char *room, struct span content)
{
    struct sync_call call;
    int rc, status;

    sync_call_start(&call, client, "send");
    json_put_text(&call.writer, "room", room);
    json_put_text(&call.writer, "type", "m.room.message");
    json_put_string(&call.writer, "content", content);
    rc = sync_call_end(&call);
    status = rc != 0 ? sync_complain(client, "send", rc)
                     : sent_wait(client, sync_text(call.answer, "result"));
    sync_call_fini(&call);
    return status;
}

/* Write the content of a message of this text. CLI_OK, or CLI_FAILED and a message. */
static int send_write(const struct sync_client *client, const char *text, struct buffer *content)
{
    static const char around[] = "{\"msgtype\":\"m.text\",\"body\":\"\"}";
    struct json_writer writer = json_writer(content);
    size_t size;

    if (!json_is_utf8(span_of(text)))
        return sync_fail("The text is not UTF-8.");
    json_put_object(&writer, NULL);
    json_put_text(&writer, "msgtype", "m.text");
    json_put_text(&writer, "body", text);
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

int sync_send(struct sync_client *client)
{
    const char *const *words = client->arguments->words;
    struct buffer content = { 0 };
    int status = send_write(client, words[2], &content);

    if (status == CLI_OK)
        status = sync_settle(client);
    if (status == CLI_OK)
        status = sync_send_content(client, words[1], mxclient_span(&content));
    mx_wipe_buffer(&content);
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
        struct span reason = sync_text(event, "reason");

        printf(" %.*s", (int)reason.size, reason.at);
    }
    if (saved.size > 0)
        printf(" (saved as %.*s)", (int)saved.size, saved.at);
    putchar('\n');
    (void)fflush(stdout);
}

static bool tail_show(struct sync_client *client, const struct json *event, bool *ret_is_shown)
{
    const struct sync_arguments *arguments = client->arguments;
    const struct json *content = json_get(event, "content");
    struct buffer path = { 0 }, line = { 0 };
    struct json_writer writer = json_writer(&line);
    bool is_good = true;
    int rc = 0;

    *ret_is_shown = arguments->room == NULL || span_is(sync_text(event, "roomId"), arguments->room);
    if (!*ret_is_shown)
        return true;
    if (arguments->save != NULL)
        rc = sync_save(client, content, arguments->save, &path);
    if (rc < 0)
        (void)sync_complain(client, "The attachment was not saved", rc);
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
    return is_good;
}

/* Show the events that cannot be read, from *after on: events up to `seq` are stored. */
static bool tail_show_held(struct sync_client *client, int64_t seq, int64_t *after)
{
    bool is_good = true, is_shown;
    uint32_t count = SYNC_EVENTS_MAX;

    while (is_good && count == SYNC_EVENTS_MAX) {
        struct sync_call call;

        sync_call_start(&call, client, "held");
        json_put_int(&call.writer, "after", *after);
        count = 0;
        if (sync_call_end(&call) == 0)
            for (struct json_iter it = json_iterate(json_get(call.answer, "held"));
                 is_good && json_next(&it); count++) {
                *after = sync_number(it.value, "seq");
                is_good = tail_show(client, it.value, &is_shown);
            }
        sync_call_fini(&call);
    }
    *after = *after > seq ? *after : seq;
    return is_good;
}

/* Show the events after a number until `left` were shown; -1 is no limit. Events that cannot be read
 * and our own are shown and not counted. */
static int tail_run(struct sync_client *client, int64_t after, int64_t left)
{
    int64_t held_after = after;

    while (left != 0) {
        struct sync_call call;
        bool is_good = true;
        int rc;

        sync_call_start(&call, client, "events");
        json_put_int(&call.writer, "after", after);
        json_put_bool(&call.writer, "waits", true);
        json_put_bool(&call.writer, "own", true);
        json_put_int(
            &call.writer, "timeoutMs", HELD_MS); /* nothing wakes for events without a key */
        rc = sync_call_end(&call);
        if (rc == 0 || rc == TR_ETIMEOUT)
            is_good = tail_show_held(client, after, &held_after);
        for (struct json_iter it = json_iterate(json_get(call.answer, "events"));
             rc == 0 && left != 0 && json_next(&it);) {
            bool is_shown = false;

            after = sync_number(it.value, "seq");
            is_good = is_good && tail_show(client, it.value, &is_shown);
            left -= left > 0 && is_shown && !sync_truth(it.value, "own");
        }
        sync_call_fini(&call);
        if (rc == TR_ECANCELLED)
            return CLI_OK; /* Ctrl-C is how a tail ends */
        if (rc == TR_EACCES && sync_recover(client, "tail") == CLI_OK)
            continue;
        if (rc == TR_EACCES)
            return CLI_FAILED;
        if (rc != 0 && rc != TR_ETIMEOUT)
            return sync_complain(client, "tail", rc);
        if (!is_good)
            return CLI_FAILED;
    }
    return CLI_OK;
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
    rc = sync_settle(client);
    if (rc != CLI_OK)
        return rc;
    if (!arguments->as_json)
        fprintf(stderr, "Waiting for events; Ctrl-C ends.\n");
    return tail_run(client, (int64_t)since, count == 0 ? -1 : (int64_t)count);
}
