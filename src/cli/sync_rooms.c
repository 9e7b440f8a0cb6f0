/* SPDX-License-Identifier: Apache-2.0 */
/* sync_rooms.c: the rooms of `troupe sync`, their members and their state. */
#include <stdio.h>
#include <unistd.h>

#include "cli/sync_command.h"

enum { MEMBERSHIP_TRIES = 300, MEMBERSHIP_PAUSE_MS = 100 };

/* ---- lists ------------------------------------------------------------------------------------ */

/* Print a column of a table, at least `width` bytes wide, without control characters. */
static void table_put(struct span text, int width)
{
    sync_print_safe(text);
    for (int i = (int)text.size; i < width; i++)
        putchar(' ');
    putchar(' ');
}

/* Return a text that describes how a room is encrypted. */
static const char *room_encryption(const struct json *room)
{
    struct span algorithm = sync_text(room, "algorithm");

    if (!sync_truth(room, "encrypted"))
        return "not encrypted";
    return algorithm.size == 0 || span_is(algorithm, "m.megolm.v1.aes-sha2")
               ? "encrypted"
               : "encrypted in a way that is not known here";
}

static void room_put_row(const struct json *room)
{
    struct span inviter = sync_text(room, "inviter");

    table_put(sync_text(room, "roomId"), 36);
    table_put(sync_text(room, "membership"), 10);
    table_put(span_of(room_encryption(room)), 13);
    table_put(span_of(sync_truth(room, "syncRoom") ? "sync" : "-"), 4);
    sync_print_safe(sync_text(room, "name"));
    if (span_is(sync_text(room, "membership"), "invite") && inviter.size > 0) {
        printf(" (invited by ");
        sync_print_safe(inviter);
        putchar(')');
    }
    putchar('\n');
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
    else {
        if (isatty(STDOUT_FILENO))
            printf("%s%-36s %-10s %-13s %-4s %s%s\n", cli_dim(), "ROOM", "MEMBERSHIP", "ENCRYPTION",
                "KIND", "NAME", cli_plain());
        for (struct json_iter it = json_iterate(json_get(call.answer, "rooms")); json_next(&it);)
            room_put_row(it.value);
    }
    sync_call_fini(&call);
    return status;
}

int sync_members(struct sync_client *client)
{
    int status = sync_settle(client), rc;
    struct sync_call call;

    if (status != CLI_OK)
        return status;
    sync_call_start(&call, client, "members");
    json_put_text(&call.writer, "room", client->arguments->words[1]);
    rc = sync_call_end(&call);
    if (rc != 0)
        status = sync_complain(client, "members", rc);
    else if (client->arguments->as_json)
        status = sync_print_json(call.answer) ? CLI_OK : CLI_FAILED;
    else
        for (struct json_iter it = json_iterate(json_get(call.answer, "members"));
             json_next(&it);) {
            table_put(sync_text(it.value, "userId"), 36);
            table_put(sync_text(it.value, "membership"), 10);
            sync_print_safe(sync_text(it.value, "name"));
            putchar('\n');
        }
    sync_call_fini(&call);
    return status;
}

/* The content of a state event is JSON for people too. */
int sync_state(struct sync_client *client)
{
    int status = sync_settle(client), rc;
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);
    struct sync_call call;

    if (status != CLI_OK)
        return status;
    sync_call_start(&call, client, "state");
    json_put_text(&call.writer, "room", client->arguments->words[1]);
    json_put_text(&call.writer, "type", client->arguments->words[2]);
    rc = sync_call_end(&call);
    if (rc == TR_ENOENT)
        status = sync_fail("state: The room %s has no state of the type %s, or is not known.",
            client->arguments->words[1], client->arguments->words[2]);
    else if (rc != 0)
        status = sync_complain(client, "state", rc);
    else {
        json_put_value(&writer, NULL, json_get(call.answer, "content"));
        status = json_writer_end(&writer) == 0 && sync_print_line(&line) ? CLI_OK : CLI_FAILED;
    }
    sync_call_fini(&call);
    return status;
}

/* ---- changes ---------------------------------------------------------------------------------- */

/* Wait until /sync shows the membership of the room, so that the next command can use it. */
static int room_wait(struct sync_client *client, struct span room, const char *membership)
{
    for (int i = 0; i < MEMBERSHIP_TRIES; i++) {
        bool is_there = false;
        struct sync_call call;
        int rc;

        sync_call_start(&call, client, "rooms");
        rc = sync_call_end(&call);
        for (struct json_iter it = json_iterate(json_get(call.answer, "rooms"));
             rc == 0 && json_next(&it);)
            is_there = is_there || (span_equal(sync_text(it.value, "roomId"), room) &&
                                       span_is(sync_text(it.value, "membership"), membership));
        sync_call_fini(&call);
        if (rc != 0 || is_there)
            return rc;
        if (!sync_pause(client, MEMBERSHIP_PAUSE_MS))
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
        rc = room_wait(client, id, strcmp(verb, "leave") == 0 ? "leave" : "join");
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

int sync_leave(struct sync_client *client)
{
    return room_ask(client, "leave", client->arguments->words[1], NULL);
}
