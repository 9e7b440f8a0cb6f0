/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_status.c: `troupe status` and `troupe drain`: show a running server, or tell it to end, through
 * its admin listener. */
#include <stdio.h>
#include <string.h>

#include "cli/admin_client.h"

static void print_fact(const struct json *root, const char *key)
{
    struct span text;

    if (json_string(json_get(root, key), &text)) {
        bool is_bare =
            strcmp(key, "admin") == 0 && (text.size < 5 || memcmp(text.at, "unix:", 5) != 0);

        printf("%-10s %s%.*s\n", key, is_bare ? "http://" : "", (int)text.size, text.at);
    }
}

static long long status_number(const struct json *root, const char *key)
{
    int64_t value = 0;

    (void)json_int(json_get(root, key), &value);
    return value;
}

static void print_checks(const struct json *root)
{
    for (struct json_iter it = json_iterate(json_get(root, "checks")); json_next(&it);) {
        struct span name = { "", 0 };
        struct span why = { "", 0 };
        bool is_ready = false;

        (void)json_string(json_get(it.value, "name"), &name);
        (void)json_string(json_get(it.value, "why"), &why);
        (void)json_bool(json_get(it.value, "ready"), &is_ready);
        printf("  %s %.*s%s%.*s\n", is_ready ? "ok    " : "failed", (int)name.size, name.at,
            why.size == 0 ? "" : ": ", (int)why.size, why.at);
    }
}

static void print_status(const struct json *root, bool is_ready)
{
    static const char *const facts[] = { "version", "phase", "public", "admin", "data", "database",
        "sandbox" };
    const long long dead = status_number(json_get(root, "messages"), "dead");

    printf("%s%s%s\n\n", cli_bold(), is_ready ? "ready" : "not ready", cli_plain());
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        print_fact(root, facts[i]);
    printf("%-10s %lld s\n", "uptime", status_number(root, "uptime_s"));
    printf("%-10s %lld live, %lld crashes, %lld restarts\n", "actors",
        status_number(json_get(root, "actors"), "live"),
        status_number(json_get(root, "actors"), "crashes"),
        status_number(json_get(root, "actors"), "restarts"));
    printf("%-10s %lld handled, %lld queued, %lld dead%s\n", "messages",
        status_number(json_get(root, "messages"), "handled"),
        status_number(json_get(root, "messages"), "queued"), dead,
        dead == 0 ? "" : " (the reasons: troupe_dead_letters_total in /metrics)");
    printf("checks\n");
    print_checks(root);
}

static int status_print(const struct cli_command *command, struct buffer *body, bool as_json)
{
    struct json_doc doc = { 0 };
    bool is_ready = false;

    if (json_parse_copy(&doc, (struct span){ body->bytes, body->size }, 0) != 0) {
        json_doc_free(&doc);
        return admin_client_not_json(command);
    }
    (void)json_bool(json_get(json_root(&doc), "ready"), &is_ready);
    if (as_json)
        printf("%.*s\n", (int)body->size, body->bytes);
    else
        print_status(json_root(&doc), is_ready);
    json_doc_free(&doc);
    return is_ready ? CLI_OK : CLI_FAILED;
}

static int status_run(const struct cli_command *command, int argc, char **argv)
{
    bool as_json = false;
    const struct options_switch switches[] = { { "--json", &as_json }, { NULL, NULL } };
    struct buffer body = { 0 };
    struct admin_client client;
    struct options options;
    int rc;

    rc = options_parse(command, argc, argv, switches, 0, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    rc = CLI_FAILED;
    if (admin_client_init(&client, command, &options) == 0) {
        if (admin_client_ask(&client, command, false, "/v1/status", &body) == 200)
            rc = status_print(command, &body, as_json);
        admin_client_fini(&client);
    }
    buffer_free(&body);
    options_fini(&options);
    return rc;
}

static int drain_run(const struct cli_command *command, int argc, char **argv)
{
    struct buffer body = { 0 };
    struct admin_client client;
    struct options options;
    int rc;

    rc = options_parse(command, argc, argv, NULL, 0, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    rc = CLI_FAILED;
    if (admin_client_init(&client, command, &options) == 0) {
        if (admin_client_ask(&client, command, true, "/v1/drain", &body) == 202) {
            printf("%s is draining\n", client.address);
            rc = CLI_OK;
        }
        admin_client_fini(&client);
    }
    buffer_free(&body);
    options_fini(&options);
    return rc;
}

#define WHERE_TEXT                                                                                 \
    "The command finds the server by --admin ADDR, by the address in its data directory\n"         \
    "(--data DIR), or by the settings.\n"                                                          \
    "\n" OPTIONS_ADMIN_TEXT "\n"

const struct cli_command cmd_status = {
    .name = "status",
    .arguments = "[--json] [OPTION...]",
    .summary = "show the state of a running server; exit status 0 if it is ready",
    .help = WHERE_TEXT "Examples:\n"
                       "\n"
                       "  troupe status --data troupe-data\n"
                       "  troupe status --admin 127.0.0.1:8081 --json\n",
    .run = status_run,
};

const struct cli_command cmd_drain = {
    .name = "drain",
    .arguments = "[OPTION...]",
    .summary = "tell a running server to finish its requests and end",
    .help = WHERE_TEXT "The command needs the admin token, which is in the data directory.\n"
                       "\n"
                       "Example:\n"
                       "\n"
                       "  troupe drain --data troupe-data\n",
    .run = drain_run,
};
