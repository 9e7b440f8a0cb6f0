/* SPDX-License-Identifier: Apache-2.0 */
/* sync_outbox.c: events of `troupe sync` on their way: they are accepted with their policy, wait in the
 * outbox, and leave, or are listed, dropped and retried there. */
#include <stdio.h>

#include "cli/sync_command.h"

enum {
    SENT_STEP_MS = 500, /* between looks whether an event is held back */
    SENT_STEPS = 240,
    HELD_NAMED_MAX = 20 /* devices in one sentence */
};

/* ---- the outbox ------------------------------------------------------------------------------- */

/* Call a function with each unsent event, by their order, until it returns false. Returns the engine's
 * code. */
static int outbox_walk(
    struct sync_client *client, bool (*show)(void *data, const struct json *event), void *data)
{
    int64_t after = 0;
    bool goes_on = true;
    int rc = 0, count = SYNC_EVENTS_MAX;

    while (rc == 0 && goes_on && count == SYNC_EVENTS_MAX) {
        struct sync_call call;

        sync_call_start(&call, client, "outbox");
        json_put_int(&call.writer, "after", after);
        rc = sync_call_end(&call);
        count = 0;
        for (struct json_iter it = json_iterate(json_get(call.answer, "outbox"));
             rc == 0 && goes_on && json_next(&it); count++) {
            after = sync_number(it.value, "number");
            goes_on = show(data, it.value);
        }
        sync_call_fini(&call);
    }
    return rc;
}

/* The first unsent event of a room, or the one with an id. */
struct outbox_search {
    struct span room, id; /* one of both */
    struct buffer
        found; /* the id of the room's first event, or the room of the event; empty: none */
};

static bool outbox_on_search(void *data, const struct json *event)
{
    struct outbox_search *search = data;

    if (search->room.at != NULL && span_equal(sync_text(event, "roomId"), search->room))
        (void)buffer_span(&search->found, sync_text(event, "txnId"));
    else if (search->id.at != NULL && span_equal(sync_text(event, "txnId"), search->id))
        (void)buffer_span(&search->found, sync_text(event, "roomId"));
    return search->found.size == 0;
}

/* ---- events on their way ---------------------------------------------------------------------- */

static int sent_print(const struct sync_client *client, const struct json *answer)
{
    struct span event = sync_text(answer, "result");
    int64_t unverified = sync_number(answer, "unverified");
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);

    if (unverified > 0)
        fprintf(stderr,
            "%lld device%s of the room cannot read it: not verified. Run `troupe sync verify "
            "USER`.\n",
            (long long)unverified, unverified == 1 ? "" : "s");
    if (!client->arguments->as_json)
        return sync_say("%.*s", (int)event.size, event.at) ? CLI_OK : CLI_FAILED;
    json_put_object(&writer, NULL);
    json_put_string(&writer, "eventId", event);
    json_put_int(&writer, "unverified", unverified);
    json_put_end(&writer);
    return json_writer_end(&writer) == 0 && sync_print_line(&line) ? CLI_OK : CLI_FAILED;
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
    status =
        problem.size > 0
            ? sync_fail("send: %.*s", (int)problem.size, problem.at)
            : sync_fail("send: The event was refused: %.*s. `troupe sync outbox --data %s` lists "
                        "it.",
                  (int)reason.size, reason.at, client->arguments->data);
    sync_call_fini(&call);
    return status;
}

/* Name the devices that hold an event back. */
static int held_complain(
    struct sync_client *client, struct span room, struct span id, const struct json *devices)
{
    struct outbox_search search = { .room = room };
    struct buffer names = { 0 };
    int count = 0;

    for (struct json_iter it = json_iterate(devices); json_next(&it); count++) {
        struct span user = sync_text(it.value, "userId"), device = sync_text(it.value, "deviceId");

        if (count < HELD_NAMED_MAX)
            (void)buffer_format(&names, "%s%.*s %.*s", count == 0 ? "" : ", ", (int)user.size,
                user.at, (int)device.size, device.at);
    }
    if (count > HELD_NAMED_MAX)
        (void)buffer_format(&names, " and %d more", count - HELD_NAMED_MAX);
    (void)outbox_walk(client, outbox_on_search, &search);
    if (search.found.size == 0 || span_equal(mxclient_span(&search.found), id))
        (void)sync_fail(
            "send: The message waits in the outbox as %.*s: --share halt, and %d device%s "
            "of the room %s not verified: %.*s.",
            (int)id.size, id.at, count, count == 1 ? "" : "s", count == 1 ? "is" : "are",
            (int)names.size, names.bytes);
    else
        (void)sync_fail(
            "send: The message waits in the outbox as %.*s behind %.*s, which waits until "
            "these devices of the room are verified: %.*s.",
            (int)id.size, id.at, (int)search.found.size, search.found.bytes, (int)names.size,
            names.bytes);
    (void)sync_fail(
        "Run `troupe sync verify USER --data %s`: the next command sends it then. `troupe "
        "sync outbox --data %s` lists and drops such messages.",
        client->arguments->data, client->arguments->data);
    buffer_free(&names);
    buffer_free(&search.found);
    return CLI_FAILED;
}

/* Look whether the policy holds events of a room back. -1: it does not; else CLI_FAILED, and a message. */
static int held_look(struct sync_client *client, struct span room, struct span id)
{
    struct sync_call call;
    bool is_halted;
    int status = -1, rc;

    sync_call_start(&call, client, "status");
    is_halted = sync_call_end(&call) == 0 && sync_truth(call.answer, "halted");
    sync_call_fini(&call);
    if (!is_halted)
        return -1;
    sync_call_start(&call, client, "unverified");
    json_put_string(&call.writer, "room", room);
    rc = sync_call_end(&call);
    if (rc != 0)
        status = sync_complain(client, "send", rc);
    else if (json_get(call.answer, "devices")->as.count > 0)
        status = held_complain(client, room, id, json_get(call.answer, "devices"));
    sync_call_fini(&call);
    return status;
}

/* Take the answer to a wait for an event. -1: wait on. */
static int sent_take(struct sync_client *client, const struct sync_call *call, int rc, bool is_last)
{
    if (rc == 0)
        return sent_print(client, call->answer);
    if (rc == TR_EACCES)
        return sent_complain(client, sync_text(call->answer, "result"));
    if (rc == TR_ENOENT)
        return sync_fail("send: The event was dropped from the outbox.");
    if (rc == TR_ETIMEOUT && !is_last)
        return -1;
    if (rc == TR_ETIMEOUT || rc == TR_ECANCELLED)
        return sync_fail("send: The event waits in the outbox. The next command that runs with "
                         "--data %s sends it; `troupe sync outbox --data %s` lists and drops it.",
            client->arguments->data, client->arguments->data);
    return sync_complain(client, "send", rc);
}

/* Wait until the event of a room with this id has left, or is held back. */
static int sent_wait(struct sync_client *client, struct span room, struct span id)
{
    int status = -1;

    for (int i = 0; status == -1; i++) {
        struct sync_call call;
        int rc;

        sync_call_start(&call, client, "sent");
        json_put_string(&call.writer, "text", id);
        json_put_int(&call.writer, "timeoutMs", SENT_STEP_MS);
        rc = sync_call_end(&call);
        status = sent_take(client, &call, rc, i == SENT_STEPS);
        sync_call_fini(&call);
        if (status == -1)
            status = held_look(client, room, id);
    }
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
    if (client->arguments->share != NULL)
        json_put_text(&call.writer, "share", client->arguments->share);
    rc = sync_call_end(&call);
    status = rc != 0 ? sync_complain(client, "send", rc)
                     : sent_wait(client, span_of(room), sync_text(call.answer, "result"));
    sync_call_fini(&call);
    return status;
}

/* ---- the command ------------------------------------------------------------------------------ */

static bool outbox_on_list(void *data, const struct json *event)
{
    const struct sync_client *client = data;
    struct span reason = sync_text(event, "reason");

    if (client->arguments->as_json)
        return sync_print_json(event);
    sync_print_cell(sync_text(event, "txnId"), 6);
    sync_print_cell(sync_text(event, "state"), 8);
    sync_print_cell(sync_text(event, "share"), 8);
    sync_print_cell(sync_text(event, "roomId"), 36);
    sync_print_safe(sync_text(json_get(event, "content"), "body"));
    if (reason.size > 0) {
        printf(" (");
        sync_print_safe(reason);
        putchar(')');
    }
    putchar('\n');
    return ferror(stdout) == 0;
}

static int outbox_list(struct sync_client *client)
{
    int rc = outbox_walk(client, outbox_on_list, client);

    if (rc != 0)
        return sync_complain(client, "outbox", rc);
    return fflush(stdout) == 0 && ferror(stdout) == 0 ? CLI_OK : CLI_FAILED;
}

/* Drop or retry an event: the engine's code. */
static int outbox_do(struct sync_client *client, const char *verb, const char *id)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, client, verb);
    json_put_text(&call.writer, "text", id);
    rc = sync_call_end(&call);
    sync_call_fini(&call);
    return rc;
}

static int outbox_complain(const struct sync_client *client, const char *id, int rc)
{
    if (rc == TR_ENOENT)
        return sync_fail("No unsent event has the id %s. See `troupe sync outbox --data %s`.", id,
            client->arguments->data);
    return sync_complain(client, "outbox", rc);
}

static int outbox_drop(struct sync_client *client, const char *id)
{
    int rc = outbox_do(client, "drop", id);

    if (rc != 0)
        return outbox_complain(client, id, rc);
    if (client->arguments->as_json)
        return sync_say("{\"dropped\":\"%s\"}", id) ? CLI_OK : CLI_FAILED;
    return sync_say("%s is dropped.", id) ? CLI_OK : CLI_FAILED;
}

static int outbox_retry(struct sync_client *client, const char *id)
{
    struct outbox_search search = { .id = span_of(id) };
    int status = sync_settle(client), rc;

    if (status != CLI_OK)
        return status;
    rc = outbox_walk(client, outbox_on_search, &search);
    if (rc == 0)
        rc = outbox_do(client, "retry", id);
    status = rc != 0 ? outbox_complain(client, id, rc)
                     : sent_wait(client, mxclient_span(&search.found), span_of(id));
    buffer_free(&search.found);
    return status;
}

int sync_outbox(struct sync_client *client)
{
    const char *const *words = client->arguments->words;
    size_t count = client->arguments->word_count;

    if (count == 1 || (count == 2 && strcmp(words[1], "list") == 0))
        return outbox_list(client);
    if (count == 3 && strcmp(words[1], "drop") == 0)
        return outbox_drop(client, words[2]);
    if (count == 3 && strcmp(words[1], "retry") == 0)
        return outbox_retry(client, words[2]);
    return cli_wrong(client->arguments->command,
        "`troupe sync outbox` takes list, drop ID or retry ID, not", words[1]);
}
