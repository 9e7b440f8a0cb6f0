/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_convo.c: `troupe convo show`: the state of a conversation's actor, from the admin listener of a
 * running server. */
#include <stdio.h>
#include <string.h>

#include "cli/admin_client.h"

enum { ID_SIZE_MAX = 128 };

static long long convo_number(const struct json *root, const char *key)
{
    int64_t value = 0;

    (void)json_int(json_get(root, key), &value);
    return value;
}

static void print_convo(const struct json *root)
{
    struct span id = { "", 0 }, kind = { "", 0 };

    (void)json_string(json_get(root, "id"), &id);
    (void)json_string(json_get(root, "kind"), &kind);
    printf("%s%.*s%s\n\n", cli_bold(), (int)id.size, id.at, cli_plain());
    printf("%-12s %.*s\n", "kind", (int)kind.size, kind.at);
    printf("%-12s %lld, confirmed %lld, planned %lld\n", "epoch", convo_number(root, "epoch"),
        convo_number(root, "confirmedEpoch"), convo_number(root, "plannedEpoch"));
    printf("%-12s %lld, planned %lld\n", "seq", convo_number(root, "seq"),
        convo_number(root, "plannedSeq"));
    printf("%-12s %lld\n", "members", convo_number(root, "members"));
    printf("%-12s %lld in flight, %lld waiting\n", "requests", convo_number(root, "inFlight"),
        convo_number(root, "waiting"));
    printf("%-12s %lld\n", "streams", convo_number(root, "subscribers"));
}

static int convo_print(const struct cli_command *command, const struct buffer *body, bool as_json)
{
    struct json_doc doc = { 0 };
    int rc = CLI_OK;

    if (json_parse_copy(&doc, (struct span){ body->bytes, body->size }, 0) != 0) {
        rc = admin_client_not_json(command);
    } else if (as_json) {
        printf("%.*s\n", (int)body->size, body->bytes);
    } else {
        print_convo(json_root(&doc));
    }
    json_doc_free(&doc);
    return rc;
}

/* Write the id as the value of a query, with %XX for every other byte. */
static void write_convo_path(const char *id, struct buffer *path)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

    buffer_text(path, "/v1/convos?id=");
    for (; *id != '\0'; id++)
        if (strchr(plain, *id) != NULL)
            buffer_append(path, id, 1);
        else
            buffer_format(path, "%%%02X", (unsigned char)*id);
    buffer_append(path, "", 1);
}

static int convo_show(
    const struct cli_command *command, const struct options *options, const char *id, bool as_json)
{
    struct buffer body = { 0 }, path = { 0 };
    struct admin_client client;
    int rc = CLI_FAILED;

    write_convo_path(id, &path);
    if (path.failed == 0 && admin_client_init(&client, command, options) == 0) {
        if (admin_client_ask(&client, command, false, path.bytes, &body) == 200)
            rc = convo_print(command, &body, as_json);
        admin_client_fini(&client);
    }
    buffer_free(&body);
    buffer_free(&path);
    return rc;
}

static int convo_run(const struct cli_command *command, int argc, char **argv)
{
    bool as_json = false;
    const struct options_switch switches[] = { { "--json", &as_json }, { NULL, NULL } };
    struct options options;
    int rc = options_parse(command, argc, argv, switches, 2, &options);

    if (rc != OPTIONS_GO_ON)
        return rc;
    if (options.word_count == 0 || strcmp(options.words[0], "show") != 0)
        rc = cli_wrong(
            command, "Name the action and the conversation, as in `troupe convo show ID`", NULL);
    else if (options.word_count < 2 || options.words[1][0] == '\0')
        rc = cli_wrong(command, "Name the conversation, as in `troupe convo show ID`", NULL);
    else if (strlen(options.words[1]) > ID_SIZE_MAX)
        rc = cli_wrong(command, "An id has at most 128 bytes, not", options.words[1]);
    else
        rc = convo_show(command, &options, options.words[1], as_json);
    options_fini(&options);
    return rc;
}

const struct cli_command cmd_convo = {
    .name = "convo",
    .arguments = "show ID [--json] [OPTION...]",
    .summary = "show the state of a conversation in a running server",
    .help =
        "Prints the epoch, sequence number, members, requests and streams of the conversation's\n"
        "actor.\n"
        "\n"
        "  kind           mls: epochs come from MLS commits; numbered: epochs come from calls\n"
        "                 without a commit; undecided: neither has happened yet\n"
        "  epoch, seq     the stored values. confirmed: the newest epoch in which a member has\n"
        "                 sent. planned: the values after the requests in flight\n"
        "\n"
        "The command finds the server by --admin ADDR, by the address in its data directory\n"
        "(--data DIR), or by the settings.\n"
        "\n" OPTIONS_ADMIN_TEXT "\n"
        "Examples:\n"
        "\n"
        "  troupe convo show my-group --data troupe-data\n"
        "  troupe convo show my-group --admin 127.0.0.1:8081 --json\n"
        "  troupe convo show --data troupe-data -- -an-id-like-an-option\n",
    .run = convo_run,
};
