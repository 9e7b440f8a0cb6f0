/* SPDX-License-Identifier: Apache-2.0 */
/* sync_rooms.c: the rooms of `troupe sync`, their members and their state. */
#include <stdio.h>
#include <unistd.h>

#include "cli/sync_command.h"

enum { MEMBERSHIP_TRIES = 300, MEMBERSHIP_PAUSE_MS = 100 };

/* ---- lists ------------------------------------------------------------------------------------ */

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

    sync_print_cell(sync_text(room, "roomId"), 36);
    sync_print_cell(sync_text(room, "membership"), 10);
    sync_print_cell(span_of(room_encryption(room)), 13);
    sync_print_cell(span_of(sync_truth(room, "syncRoom") ? "sync" : "-"), 4);
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
    int status = sync_settle_to_read(client), rc;
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

/* Judge a row of `rooms`. */
static int room_check(
    const struct sync_client *client, const char *what, const char *id, const struct json *room)
{
    const char *data = client->arguments->data;
    struct span membership = sync_text(room, "membership");

    if (room == NULL)
        return sync_complain(client, what, TR_ENOENT);
    if (span_is(membership, "invite"))
        return sync_fail("%s: You are invited to %s and have not joined it. Run `troupe sync join "
                         "--data %s %s`.",
            what, id, data, id);
    if (!span_is(membership, "join"))
        return sync_fail("%s: You are not a member of %s any more.", what, id);
    if (!sync_truth(room, "encrypted") && !client->arguments->unencrypted)
        return sync_fail("%s: The room %s is not encrypted: its homeservers can read what is sent. "
                         "Add --unencrypted to send there.",
            what, id);
    return CLI_OK;
}

int sync_check_room(struct sync_client *client, const char *what, const char *room)
{
    const struct json *found = NULL;
    struct sync_call call;
    int status, rc;

    sync_call_start(&call, client, "rooms");
    rc = sync_call_end(&call);
    for (struct json_iter it = json_iterate(json_get(call.answer, "rooms"));
         rc == 0 && found == NULL && json_next(&it);)
        found = span_is(sync_text(it.value, "roomId"), room) ? it.value : NULL;
    status = rc != 0 ? sync_complain(client, what, rc) : room_check(client, what, room, found);
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
            sync_print_cell(sync_text(it.value, "userId"), 36);
            sync_print_cell(sync_text(it.value, "membership"), 10);
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
        rc = json_writer_end(&writer);
        if (rc != 0)
            status = sync_complain(client, "state", rc);
        else if (client->arguments->as_json)
            status = sync_print_line(&line) ? CLI_OK : CLI_FAILED;
        else
            status = sync_say("%.*s", (int)line.size, line.bytes) ? CLI_OK : CLI_FAILED;
    }
    buffer_free(&line);
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

static bool room_print(const struct sync_client *client, struct span room)
{
    struct buffer line = { 0 };
    struct json_writer writer = json_writer(&line);

    if (!client->arguments->as_json)
        return sync_say("%.*s", (int)room.size, room.at);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "roomId", room);
    json_put_end(&writer);
    return json_writer_end(&writer) == 0 && sync_print_line(&line);
}

/* Run a request about a room. On success *ret_id is its id, which the caller frees; a room that was
 * created, joined or left is shown so by /sync. Returns the engine's code. */
static int room_do(struct sync_client *client, const char *verb, struct span room, const char *user,
    struct buffer *ret_id)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, client, verb);
    if (room.size > 0)
        json_put_string(&call.writer, "room", room);
    if (user != NULL)
        json_put_text(&call.writer, "user", user);
    if (client->arguments->name != NULL)
        json_put_text(&call.writer, "name", client->arguments->name);
    rc = sync_call_end(&call);
    if (rc == 0 && sync_text(call.answer, "result").size > 0)
        room = sync_text(call.answer, "result");
    if (rc == 0)
        rc = buffer_span(ret_id, room);
    sync_call_fini(&call);
    if (rc == 0 && strcmp(verb, "invite") != 0)
        rc =
            room_wait(client, mxclient_span(ret_id), strcmp(verb, "leave") == 0 ? "leave" : "join");
    return rc;
}

/* Run a request about a room and print the room's id. */
static int room_ask(
    struct sync_client *client, const char *verb, const char *room, const char *user)
{
    int status = sync_settle(client), rc;
    struct buffer id = { 0 };

    if (status != CLI_OK)
        return status;
    rc = room_do(client, verb, span_of(room), user, &id);
    if (rc != 0)
        status = sync_complain(client, verb, rc);
    else
        status = room_print(client, mxclient_span(&id)) ? CLI_OK : CLI_FAILED;
    buffer_free(&id);
    return status;
}

/* The invitation is a request of its own: if it fails, the room is there and its id is printed. */
int sync_create(struct sync_client *client)
{
    const char *user = client->arguments->invite;
    struct buffer id = { 0 }, same = { 0 };
    int status = sync_settle(client), rc;

    if (status != CLI_OK)
        return status;
    rc = room_do(client, "create", (struct span){ NULL, 0 }, NULL, &id);
    if (rc != 0)
        status = sync_complain(client, "create", rc);
    else
        status = room_print(client, mxclient_span(&id)) ? CLI_OK : CLI_FAILED;
    if (rc == 0 && user != NULL) {
        rc = room_do(client, "invite", mxclient_span(&id), user, &same);
        if (rc != 0) {
            (void)sync_complain(client, "invite", rc);
            status = sync_fail(
                "The room %.*s was created, and %s is not invited.", (int)id.size, id.bytes, user);
        }
    }
    buffer_free(&id);
    buffer_free(&same);
    return status;
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
