/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_flags.c: `troupe flags`: show and change the feature flags of a running server, through its
 * admin listener. */
#include <stdio.h>
#include <string.h>

#include "cli/admin_client.h"
#include "ops/flags.h"

static struct span flag_text(const struct json *value, const char *key)
{
    struct span text = { "", 0 };

    (void)json_string(json_get(value, key), &text);
    return text;
}

static void print_flag(const struct json *flag)
{
    struct span name = flag_text(flag, "name");
    struct span percent = flag_text(flag, "percent");
    struct span initial = flag_text(flag, "initial");
    struct span help = flag_text(flag, "help");

    printf("%-24.*s %7.*s  (initially %.*s)  %.*s\n", (int)name.size, name.at, (int)percent.size,
        percent.at, (int)initial.size, initial.at, (int)help.size, help.at);
}

static int flags_print(const struct cli_command *command, const struct buffer *body, bool as_json)
{
    struct json_doc doc = { 0 };
    const struct json *flags;

    if (as_json) {
        printf("%.*s\n", (int)body->size, body->bytes);
        return CLI_OK;
    }
    if (json_parse_copy(&doc, (struct span){ body->bytes, body->size }, 0) != 0) {
        json_doc_free(&doc);
        return admin_client_not_json(command);
    }
    flags = json_get(json_root(&doc), "flags");
    if (flags == NULL)
        print_flag(json_root(&doc));
    for (struct json_iter it = json_iterate(flags); json_next(&it);)
        print_flag(it.value);
    json_doc_free(&doc);
    return CLI_OK;
}

/* A name goes into a path unescaped: no flag has a character that needs an escape. */
static bool is_flag_name(const char *name)
{
    size_t size = strlen(name);

    return size > 0 && size < 64 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == size && name[0] != '.';
}

/* Write the path to request. Returns OPTIONS_GO_ON or an exit status. */
static int flags_plan(const struct cli_command *command, const struct options *options, char *path,
    size_t path_size, bool *ret_is_post)
{
    const char *what = options->word_count == 0 ? "list" : options->words[0];
    const char *name = options->word_count > 1 ? options->words[1] : "";
    uint32_t parts;

    if (strcmp(what, "list") == 0) {
        if (options->word_count > 1)
            return cli_wrong(command, "There is one argument too many:", name);
        snprintf(path, path_size, "/v1/flags");
        return OPTIONS_GO_ON;
    }
    *ret_is_post = true;
    if (strcmp(what, "set") != 0 && strcmp(what, "rollback") != 0)
        return cli_wrong(command, "`troupe flags` takes list, set or rollback, not", what);
    if (!is_flag_name(name))
        return cli_wrong(command, "There is no NAME of a flag after", what);
    if (strcmp(what, "rollback") == 0) {
        if (options->word_count > 2)
            return cli_wrong(command, "There is one argument too many:", options->words[2]);
        snprintf(path, path_size, "/v1/flags/%s/rollback", name);
        return OPTIONS_GO_ON;
    }
    if (options->word_count < 3 || flags_parse_parts(options->words[2], &parts) != 0)
        return cli_wrong(command, "There is no percentage like 10% or 0.25% after", name);
    snprintf(path, path_size, "/v1/flags/%s?percent=%.*s%%25", name,
        (int)strcspn(options->words[2], "%"), options->words[2]);
    return OPTIONS_GO_ON;
}

static int flags_run(const struct cli_command *command, int argc, char **argv)
{
    bool as_json = false;
    bool is_post = false;
    const struct options_switch switches[] = { { "--json", &as_json }, { NULL, NULL } };
    struct buffer body = { 0 };
    struct admin_client client;
    struct options options;
    char path[160];
    int rc;

    rc = options_parse(command, argc, argv, switches, 3, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    rc = flags_plan(command, &options, path, sizeof path, &is_post);
    if (rc == OPTIONS_GO_ON) {
        rc = CLI_FAILED;
        if (admin_client_init(&client, command, &options) == 0) {
            if (admin_client_ask(&client, command, is_post, path, &body) == 200)
                rc = flags_print(command, &body, as_json);
            admin_client_fini(&client);
        }
    }
    buffer_free(&body);
    options_fini(&options);
    return rc;
}

const struct cli_command cmd_flags = {
    .name = "flags",
    .arguments = "[list|set NAME PERCENT|rollback NAME] [--json] [OPTION...]",
    .summary = "show and change the feature flags of a running server",
    .help =
        "  list             print every flag and the percentage of keys it is on for\n"
        "  set NAME 10%     turn the flag on for a tenth of the keys; keys that had it keep it\n"
        "  rollback NAME    restore the value before the last set\n"
        "\n"
        "A change is in force when the command returns, and survives a restart. A change needs\n"
        "the admin token, which is in the server's data directory.\n"
        "\n" OPTIONS_ADMIN_TEXT "\n"
        "Examples:\n"
        "\n"
        "  troupe flags --data troupe-data\n"
        "  troupe flags set trace-export 25% --data troupe-data\n"
        "  troupe flags rollback trace-export --data troupe-data\n",
    .run = flags_run,
};
