/* SPDX-License-Identifier: Apache-2.0 */
/* sync_talk.c: the login, rooms and messages of `troupe sync`. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "cli/sync_command.h"

enum {
    LOGIN_FAILURES_MAX = 10,
    JOIN_TRIES = 300,
    JOIN_PAUSE_MS = 100,
    SENT_MS = 120 * 1000,
    TEXT_BYTES_MAX = 60000
};

/* ---- the login -------------------------------------------------------------------------------- */

static int login_complain(const struct sync_client *client, int rc)
{
    const struct sync_arguments *arguments = client->arguments;

    if (rc == TR_EACCES)
        return sync_fail("The homeserver refuses the user or the password of %s.", arguments->user);
    if (rc == TR_EBUSY)
        return sync_fail(
            "%s has a login already, or had one that has ended. Use another --data, or "
            "see `troupe sync status --data %s`.",
            arguments->data, arguments->data);
    if (rc == TR_EIO || rc == TR_ETIMEOUT)
        return sync_fail("No homeserver answers at %s. Check the URL.", arguments->homeserver);
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
    struct buffer password;
    struct sync_call call;
    int rc, status, failures = 0;

    if (!sync_read_secret(arguments->password_file, "The password file", &password))
        return CLI_FAILED;
    sync_call_start(&call, client, "login");
    json_put_text(&call.writer, "url", arguments->homeserver);
    json_put_text(&call.writer, "user", arguments->user);
    json_put_string(&call.writer, "password", mxclient_span(&password));
    client->on_status = login_on_status;
    client->on_status_data = &failures;
    rc = sync_call_end(&call);
    client->on_status = NULL;
    sync_call_fini(&call);
    mx_wipe_buffer(&password);
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

/* ---- status and rooms ------------------------------------------------------------------------- */

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

int sync_status(struct sync_client *client)
{
    struct sync_call call;
    int rc = status_read(client, &call);

    if (rc != 0)
        rc = sync_complain(client, "status", rc);
    else if (client->arguments->as_json)
        rc = sync_print_json(call.answer) ? CLI_OK : CLI_FAILED;
    else {
        struct span user = sync_text(call.answer, "userId");
        struct span device = sync_text(call.answer, "deviceId");
        struct span state = sync_text(call.answer, "stateText");
        int64_t error = sync_number(call.answer, "error");

        printf("user      %.*s\ndevice    %.*s\nsession   %.*s\n", (int)user.size, user.at,
            (int)device.size, device.at, (int)state.size, state.at);
        printf("engine    %s\n", client->host == NULL ? "runs in another process" : "not running");
        printf("synced    %s\n", sync_truth(call.answer, "settled") ? "yes" : "no");
        printf("events    %lld, %lld gaps\n", (long long)sync_number(call.answer, "lastSeq"),
            (long long)sync_number(call.answer, "gaps"));
        if (error != 0)
            printf("problem   %s\n", mx_error_text((int)error));
    }
    sync_call_fini(&call);
    return rc;
}

int sync_rooms(struct sync_client *client)
{
    int status = sync_settle(client), rc;
    struct sync_call call;

    if (status != CLI_OK)
        return status;
    sync_call_start(&call, client, "rooms");
    rc = sync_call_end(&call);
    if (rc != 0)
        status = sync_complain(client, "rooms", rc);
    else if (client->arguments->as_json)
        status = sync_print_json(call.answer) ? CLI_OK : CLI_FAILED;
    else
        for (struct json_iter it = json_iterate(json_get(call.answer, "rooms")); json_next(&it);) {
            struct span room = sync_text(it.value, "roomId");
            struct span membership = sync_text(it.value, "membership");

            printf("%-40.*s %-7.*s %s\n", (int)room.size, room.at, (int)membership.size,
                membership.at, sync_truth(it.value, "encrypted") ? "encrypted" : "not encrypted");
        }
    sync_call_fini(&call);
    return status;
}

/* Wait until /sync shows the room as joined, so that the next command can use it. */
static int room_wait(struct sync_client *client, struct span room)
{
    for (int i = 0; i < JOIN_TRIES; i++) {
        bool is_there = false;
        struct sync_call call;
        int rc;

        sync_call_start(&call, client, "rooms");
        rc = sync_call_end(&call);
        for (struct json_iter it = json_iterate(json_get(call.answer, "rooms"));
             rc == 0 && json_next(&it);)
            is_there = is_there || (span_equal(sync_text(it.value, "roomId"), room) &&
                                       span_is(sync_text(it.value, "membership"), "join"));
        sync_call_fini(&call);
        if (rc != 0 || is_there)
            return rc;
        if (!sync_pause(client, JOIN_PAUSE_MS))
            return TR_ECANCELLED;
    }
    return TR_ETIMEOUT;
}

static void room_print(const struct sync_client *client, struct span room)
{
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);

    if (client->arguments->as_json) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "roomId", room);
        json_put_end(&writer);
    } else
        (void)buffer_span(&line, room);
    (void)sync_print_line(&line);
}

/* Run a request about a room and print the room's id. */
static int room_ask(
    struct sync_client *client, const char *verb, const char *room, const char *user)
{
    int status = sync_settle(client), rc;
    struct span id = span_of(room);
    struct sync_call call;

    if (status != CLI_OK)
        return status;
    sync_call_start(&call, client, verb);
    if (room != NULL)
        json_put_text(&call.writer, "room", room);
    if (user != NULL)
        json_put_text(&call.writer, "user", user);
    if (client->arguments->name != NULL)
        json_put_text(&call.writer, "name", client->arguments->name);
    rc = sync_call_end(&call);
    if (rc == 0 && sync_text(call.answer, "result").size > 0)
        id = sync_text(call.answer, "result");
    if (rc == 0 && strcmp(verb, "invite") != 0)
        rc = room_wait(client, id);
    if (rc != 0)
        status = sync_complain(client, verb, rc);
    else
        room_print(client, id);
    sync_call_fini(&call);
    return status;
}

int sync_create(struct sync_client *client)
{
    return room_ask(client, "create", NULL, client->arguments->invite);
}

int sync_invite(struct sync_client *client)
{
    return room_ask(client, "invite", client->arguments->words[1], client->arguments->words[2]);
}

int sync_join(struct sync_client *client)
{
    return room_ask(client, "join", client->arguments->words[1], NULL);
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
    else if (rc == TR_EACCES) {
        struct span reason = sync_text(call.answer, "result");

        status = sync_fail("send: The event was refused: %.*s.", (int)reason.size, reason.at);
    } else if (rc == TR_ETIMEOUT || rc == TR_ECANCELLED)
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

int sync_send(struct sync_client *client)
{
    const char *text = client->arguments->words[2];
    struct buffer content = { 0 };
    struct json_writer writer = json_writer(&content);
    int status;

    if (strlen(text) > TEXT_BYTES_MAX)
        return sync_fail("The text has %zu bytes; the most is %d. Use `troupe sync attach`.",
            strlen(text), TEXT_BYTES_MAX);
    if (!json_is_utf8(span_of(text)))
        return sync_fail("The text is not UTF-8.");
    status = sync_settle(client);
    if (status != CLI_OK)
        return status;
    json_put_object(&writer, NULL);
    json_put_text(&writer, "msgtype", "m.text");
    json_put_text(&writer, "body", text);
    json_put_end(&writer);
    status = json_writer_end(&writer) != 0
                 ? sync_complain(client, "send", TR_ENOMEM)
                 : sync_send_content(client, client->arguments->words[1], mxclient_span(&content));
    mx_wipe_buffer(&content);
    return status;
}

/* ---- tail ------------------------------------------------------------------------------------- */

/* Print text from the network without control characters. */
static void tail_print_safe(struct span text)
{
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.at[i];

        /* also C1 control characters, which UTF-8 has as C2 80 to C2 9F */
        if (c == 0xc2 && i + 1 < text.size && (unsigned char)text.at[i + 1] < 0xa0)
            i++;
        else if (c >= 0x20 && c != 0x7f)
            putchar(c);
        else
            putchar(c == '\n' ? '\n' : ' ');
    }
}

static void tail_print(const struct json *event, struct span saved)
{
    const struct json *content = json_get(event, "content");
    struct span body = sync_text(content, "body"), type = sync_text(event, "type");

    printf("%s", cli_dim());
    tail_print_safe(sync_text(event, "roomId"));
    printf("%s ", cli_plain());
    tail_print_safe(sync_text(event, "sender"));
    printf(": ");
    if (span_is(type, "m.room.message"))
        tail_print_safe(body);
    else {
        putchar('(');
        tail_print_safe(type);
        putchar(')');
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

/* Show the events after a number until `left` were shown; -1 is no limit. */
static int tail_run(struct sync_client *client, int64_t after, int64_t left)
{
    while (left != 0) {
        struct sync_call call;
        bool is_good = true;
        int rc;

        sync_call_start(&call, client, "events");
        json_put_int(&call.writer, "after", after);
        json_put_bool(&call.writer, "waits", true);
        rc = sync_call_end(&call);
        for (struct json_iter it = json_iterate(json_get(call.answer, "events"));
             rc == 0 && left != 0 && json_next(&it);) {
            bool is_shown = false;

            after = sync_number(it.value, "seq");
            is_good = is_good && tail_show(client, it.value, &is_shown);
            left -= left > 0 && is_shown;
        }
        sync_call_fini(&call);
        if (rc == TR_ECANCELLED)
            return CLI_OK; /* Ctrl-C is how a tail ends */
        if (rc != 0)
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
