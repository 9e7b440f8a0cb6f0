/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_config.c: `troupe config`: what the settings are, where each comes from, is a file right. */
#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "cli/options.h"
#include "server/settings.h"

struct switches {
    bool origin;
    bool json;
    bool markdown;
};

static int print(struct buffer *out)
{
    int rc = out->failed;

    if (rc == 0)
        fwrite(out->bytes, 1, out->size, stdout);
    else
        fprintf(stderr, "troupe config: %s\n", tr_error_text(rc));
    buffer_free(out);
    return rc == 0 && fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}

static int show(const struct cli_command *command, const struct options *options,
    const struct switches *switches)
{
    struct buffer out = { 0 };
    struct config config;

    if (options_load(command, options, &config) != 0)
        return CLI_FAILED;
    if (switches->json)
        config_show_json(&out, &config);
    else
        config_show(&out, &config, switches->origin);
    config_fini(&config);
    return print(&out);
}

/* A file without auth.service_did is no error: the DID may come by the environment or an option.
 * But the last word is then not that all is well. */
static void print_ok(const char *path, const struct config *config)
{
    printf(
        "%s: ok (form only; `troupe serve` also checks files, addresses and the database)\n", path);
    fflush(stdout);
    if (config_text(config, CONFIG_AUTH_SERVICE_DID)[0] == '\0' &&
        !config_is_on(config, CONFIG_SERVER_DEV))
        fprintf(stderr,
            "%s: NOT ENOUGH TO START: auth.service_did is not set here. Write it under [auth], or "
            "give it as TROUPE_AUTH_SERVICE_DID or by --set\n",
            path);
}

/* The file alone: neither the environment nor options can make it right or wrong. */
static int check(const struct cli_command *command, const char *path)
{
    struct buffer errors = { 0 };
    struct config config;
    int rc;

    if (path == NULL)
        return cli_wrong(command, "check wants a FILE", NULL);
    rc = config_load(&(struct config_sources){ .file_path = path }, &config, &errors);
    if (rc == 0) {
        rc = settings_check(&config, &errors);
        if (rc == 0)
            print_ok(path, &config);
        config_fini(&config);
    }
    if (rc != 0) {
        fprintf(stderr, "%.*s", (int)errors.size, errors.size == 0 ? "" : errors.bytes);
    }
    buffer_free(&errors);
    return rc == 0 ? CLI_OK : CLI_FAILED;
}

static int list(const struct switches *switches)
{
    struct buffer out = { 0 };

    if (switches->markdown)
        config_list_markdown(&out);
    else
        config_list(&out);
    return print(&out);
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct switches switches = { false, false, false };
    const struct options_switch table[] = { { "--origin", &switches.origin },
        { "--json", &switches.json }, { "--markdown", &switches.markdown }, { NULL, NULL } };
    struct options options;
    const char *what;
    int rc;

    rc = options_parse(command, argc, argv, table, 2, &options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    what = options.word_count == 0 ? "show" : options.words[0];
    if (strcmp(what, "check") == 0)
        rc = check(command, options.word_count == 2 ? options.words[1] : NULL);
    else if (options.word_count == 2)
        rc = cli_wrong(command, "do not know what to do with", options.words[1]);
    else if (strcmp(what, "show") == 0)
        rc = show(command, &options, &switches);
    else if (strcmp(what, "list") == 0)
        rc = list(&switches);
    else
        rc = cli_wrong(command, "there is no", what);
    options_free(&options);
    return rc;
}

const struct cli_command cmd_config = {
    .name = "config",
    .arguments = "[show|list|check FILE] [OPTION...]",
    .summary = "show the settings and where they come from, or check a file",
    .help =
        "  show           what `troupe serve` would use with the same options\n"
        "    --origin     with the place each value comes from\n"
        "    --json       as JSON\n"
        "  list           every setting with its default, as a file to start from\n"
        "    --markdown   as the table of docs/operations.md\n"
        "  check FILE     0 if the file is right, 1 and what is wrong where if not; says so if\n"
        "                 auth.service_did is still missing, which may come from elsewhere\n"
        "\n" OPTIONS_TEXT "\n"
        "A value of an option beats TROUPE_SECTION_KEY of the environment, that beats the file,\n"
        "and that the default. Secrets are shown as ********.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe config list > troupe.conf\n"
        "  troupe config check troupe.conf\n"
        "  TROUPE_LOG_LEVEL=debug troupe config show --origin --config troupe.conf\n",
    .run = run,
};
