/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_actors.c: `troupe actors`: the long-lived actors of a running server, as a list or as the
 * tree of their supervisors, asked through the admin listener. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/admin_client.h"

enum { DEPTH_MAX = 16, ACTORS_MAX = 1024 };

static int64_t actor_number(const struct json *actor, const char *key)
{
    int64_t value = 0;

    (void)json_int(json_get(actor, key), &value);
    return value;
}

static struct span actor_text(const struct json *actor, const char *key)
{
    struct span text = { "", 0 };

    (void)json_string(json_get(actor, key), &text);
    return text;
}

static void print_actor(const struct json *actor, int depth)
{
    struct span name = actor_text(actor, "name"), doing = actor_text(actor, "doing");
    long long restarts = actor_number(actor, "restarts");

    printf("%*s%-*.*s %-8.*s %10lld handled %6lld queued", 2 * depth, "", 32 - 2 * depth,
        (int)name.size, name.at, (int)doing.size, doing.at,
        (long long)actor_number(actor, "handled"), (long long)actor_number(actor, "queued"));
    if (restarts > 0)
        printf("  %lld restart%s", restarts, restarts == 1 ? "" : "s");
    printf("\n");
}

static int compare_names(const void *a, const void *b)
{
    struct span x = actor_text(*(const struct json *const *)a, "name");
    struct span y = actor_text(*(const struct json *const *)b, "name");
    int order = memcmp(x.at, y.at, x.size < y.size ? x.size : y.size);

    return order != 0 ? order : (x.size > y.size) - (x.size < y.size);
}

/* The actors of an answer, by their names. */
struct actors {
    const struct json *list[ACTORS_MAX];
    size_t count;
};

static void actors_read(struct actors *actors, const struct json *answer)
{
    for (struct json_iter it = json_iterate(json_get(answer, "actors"));
         actors->count < ACTORS_MAX && json_next(&it);)
        actors->list[actors->count++] = it.value;
    qsort(actors->list, actors->count, sizeof actors->list[0], compare_names);
}

/* Print the actors under `supervisor`, and theirs; 0 stands for the roots. */
static void print_branch(const struct actors *actors, int64_t supervisor, int depth)
{
    if (depth > DEPTH_MAX)
        return;
    for (size_t i = 0; i < actors->count; i++) {
        if (actor_number(actors->list[i], "supervisor") != supervisor)
            continue;
        print_actor(actors->list[i], depth);
        print_branch(actors, actor_number(actors->list[i], "id"), depth + 1);
    }
}

static void print_actors(const struct actors *actors)
{
    for (size_t i = 0; i < actors->count; i++)
        print_actor(actors->list[i], 0);
}

enum actors_form { ACTORS_LIST, ACTORS_TREE, ACTORS_JSON };

static int actors_print(
    const struct cli_command *command, const struct buffer *body, enum actors_form form)
{
    struct json_doc doc = { 0 };
    struct actors actors = { .count = 0 };
    int rc = CLI_OK;

    if (json_parse_copy(&doc, (struct span){ body->bytes, body->size }, 0) != 0) {
        rc = admin_client_not_json(command);
    } else if (form == ACTORS_JSON) {
        printf("%.*s\n", (int)body->size, body->bytes);
    } else {
        actors_read(&actors, json_root(&doc));
        if (form == ACTORS_TREE)
            print_branch(&actors, 0, 0);
        else
            print_actors(&actors);
        printf("\n%lld more: conversations, users, connections and work under way.\n",
            (long long)actor_number(json_root(&doc), "others"));
    }
    json_doc_free(&doc);
    return rc;
}

static int actors_run(const struct cli_command *command, int argc, char **argv)
{
    bool is_json = false, is_tree = false;
    const struct options_switch switches[] = { { "--json", &is_json }, { "--tree", &is_tree },
        { NULL, NULL } };
    struct buffer body = { 0 };
    struct admin_client client;
    struct options options;
    int rc = options_parse(command, argc, argv, switches, 0, &options);

    if (rc != OPTIONS_GO_ON)
        return rc;
    rc = CLI_FAILED;
    if (admin_client_init(&client, command, &options) == 0) {
        if (admin_client_ask(&client, command, false, "/v1/actors", &body) == 200)
            rc = actors_print(command, &body,
                is_json   ? ACTORS_JSON
                : is_tree ? ACTORS_TREE
                          : ACTORS_LIST);
        admin_client_fini(&client);
    }
    buffer_free(&body);
    options_fini(&options);
    return rc;
}

const struct cli_command cmd_actors = {
    .name = "actors",
    .arguments = "[--tree] [--json] [OPTION...]",
    .summary = "show the long-lived actors of a running server",
    .help = "Each line is one actor: its name, its state, the messages it has handled, those that\n"
            "wait in its box, and how often its supervisor has restarted it. Conversations, users\n"
            "and connections are counted in the last line.\n"
            "\n"
            "  --tree            indent each actor under its supervisor\n"
            "  --json            print the server's answer\n" OPTIONS_ADMIN_TEXT "\n"
            "Example:\n"
            "\n"
            "  troupe actors --tree --data troupe-data\n",
    .run = actors_run,
};
