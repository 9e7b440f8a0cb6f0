/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_config.c: `troupe config`: show the settings and where they come from, or check a file. */
#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "cli/options.h"
#include "server/settings.h"

struct config_switches {
    bool origin;
    bool json;
    bool markdown;
};

static int config_print(struct buffer *out)
{
    int rc = out->failed;

    if (rc == 0)
        fwrite(out->bytes, 1, out->size, stdout);
    else
        fprintf(stderr, "troupe config: %s\n", tr_error_text(rc));
    buffer_free(out);
    return rc == 0 && fflush(stdout) == 0 ? CLI_OK : CLI_FAILED;
}

static int config_run_show(const struct cli_command *command, const struct options *options,
    const struct config_switches *switches)
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
    return config_print(&out);
}

/* A correct file without the DID starts no server by itself. The sentence names the places that the
 * check does not see. */
static int config_check_service(const struct config *config, const char *path)
{
    if (config_text(config, CONFIG_AUTH_SERVICE_DID)[0] != '\0' ||
        config_is_on(config, CONFIG_SERVER_DEV))
        return 0;
    fprintf(stderr,
        "%s: NOT ENOUGH TO START: auth.service_did is not set. Write it under [auth], or set it "
        "by TROUPE_AUTH_SERVICE_DID or --set.\n",
        path);
    return TR_EINVAL;
}

/* Check the file alone, without environment and options. */
static int config_run_check(const struct cli_command *command, const char *path)
{
    struct buffer errors = { 0 };
    struct config config;
    int rc;

    if (path == NULL)
        return cli_wrong(
            command, "Name the file to check, as in `troupe config check troupe.conf`", NULL);
    rc = config_load(&(struct config_sources){ .file_path = path }, &config, &errors);
    if (rc == 0) {
        rc = settings_check(&config, &errors);
        if (rc == 0)
            rc = config_check_service(&config, path);
        config_fini(&config);
    }
    if (rc == 0)
        printf("%s: ok (form only; `troupe serve` also checks files, addresses and the database)\n",
            path);
    else
        fprintf(stderr, "%.*s", (int)errors.size, errors.size == 0 ? "" : errors.bytes);
    buffer_free(&errors);
    return rc == 0 ? CLI_OK : CLI_FAILED;
}

static int config_run_list(const struct config_switches *switches)
{
    struct buffer out = { 0 };

    if (switches->markdown)
        config_list_markdown(&out);
    else
        config_list(&out);
    return config_print(&out);
}

static int config_run(const struct cli_command *command, int argc, char **argv)
{
    struct config_switches switches = { false, false, false };
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
        rc = config_run_check(command, options.word_count == 2 ? options.words[1] : NULL);
    else if (options.word_count == 2)
        rc = cli_wrong(command, "There is one argument too many:", options.words[1]);
    else if (strcmp(what, "show") == 0)
        rc = config_run_show(command, &options, &switches);
    else if (strcmp(what, "list") == 0)
        rc = config_run_list(&switches);
    else
        rc = cli_wrong(command, "`troupe config` takes show, list or check FILE, not", what);
    options_fini(&options);
    return rc;
}

const struct cli_command cmd_config = {
    .name = "config",
    .arguments = "[show|list|check FILE] [OPTION...]",
    .summary = "show the settings and where they come from, or check a file",
    .help =
        "  show           print the settings that `troupe serve` uses with the same options\n"
        "    --origin     with the origin of each value\n"
        "    --json       as JSON\n"
        "  list           print every setting with its default, as a file to start from\n"
        "    --markdown   as the table of docs/operations.md\n"
        "  check FILE     check a file: exit status 0 if it is correct, 1 with a line for each\n"
        "                 error. A file without auth.service_did is not enough to start: 1 too\n"
        "\n" OPTIONS_TEXT "\n"
        "An option overrides the environment (TROUPE_SECTION_KEY), the environment overrides the\n"
        "file, and the file overrides the default. Secrets are printed as ********.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe config list > troupe.conf\n"
        "  troupe config check troupe.conf\n"
        "  TROUPE_LOG_LEVEL=debug troupe config show --origin --config troupe.conf\n",
    .run = config_run,
};
