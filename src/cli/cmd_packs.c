/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_packs.c: `troupe packs`: publish a file as a version of a pack, fetch a pack, verify a mirror. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/packs_command.h"

enum { ARGUMENTS_MAX = 128 };

/* Find one of this command's options with a value; options.c has the others. */
static const char **own_option(struct packs_arguments *arguments, const char *name, size_t size)
{
    const struct {
        const char *name;
        const char **value;
    } table[] = {
        { "--server", &arguments->server },
        { "--name", &arguments->name },
        { "--version", &arguments->version },
        { "--key", &arguments->key },
        { "--type", &arguments->type },
        { "--out", &arguments->out },
        { "--trust", &arguments->trust },
        { "--pins", &arguments->pins },
        { "--add", &arguments->add },
        { "--retire", &arguments->retire },
        { "--encoding", &arguments->encoding },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].name) == size && memcmp(table[i].name, name, size) == 0)
            return table[i].value;
    return NULL;
}

/* Cut http://HOST:PORT/ to the HOST:PORT of the settings, in place. */
static char *without_scheme(char *address)
{
    size_t size;

    if (strncmp(address, "http://", 7) == 0)
        address += 7;
    size = strlen(address);
    while (size > 0 && address[size - 1] == '/')
        address[--size] = '\0';
    return address;
}

/* Take this command's options out of argv. The others go to `rest`, with argv[0]. */
static int take_own(
    struct packs_arguments *arguments, int argc, char **argv, char **rest, int *ret_count)
{
    int count = 0;

    for (int i = 0; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t size = equals == NULL ? strlen(argv[i]) : (size_t)(equals - argv[i]);
        const char **value = i == 0 ? NULL : own_option(arguments, argv[i], size);

        if (count == ARGUMENTS_MAX)
            return cli_wrong(arguments->command, "There are more than 128 arguments", NULL);
        if (value == NULL) {
            rest[count++] = argv[i];
            if (i > 0 && strcmp(argv[i], "--admin") == 0 && i + 1 < argc && count < ARGUMENTS_MAX)
                rest[count++] = without_scheme(argv[++i]);
            continue;
        }
        if (equals == NULL && i + 1 >= argc)
            return cli_wrong(arguments->command, "There is no value after", argv[i]);
        *value = equals == NULL ? argv[++i] : equals + 1;
    }
    *ret_count = count;
    return OPTIONS_GO_ON;
}

static int packs_run_action(const struct packs_arguments *arguments)
{
    static const struct {
        const char *name;
        int (*run)(const struct packs_arguments *arguments);
    } actions[] = {
        { "push", packs_push },
        { "get", packs_get },
        { "verify", packs_verify },
        { "list", packs_list },
        { "rotate", packs_rotate },
    };
    const struct options *options = &arguments->options;

    if (options->word_count == 0)
        return cli_wrong(
            arguments->command, "Name the action: push, get, verify, list or rotate", NULL);
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(options->words[0], actions[i].name) == 0)
            return actions[i].run(arguments);
    return cli_wrong(arguments->command,
        "`troupe packs` takes push, get, verify, list or rotate, not", options->words[0]);
}

/* Check the settings of the command line here: some actions never load them. */
static int check_settings(const struct cli_command *command, const struct options *options)
{
    struct buffer errors = { 0 };
    struct config config;
    int rc = config_load(
        &(struct config_sources){ .flags = options->flags, .flag_count = options->flag_count },
        &config, &errors);

    if (rc == 0)
        config_fini(&config);
    else
        fprintf(stderr, "troupe %s: The settings have errors:\n%.*s", command->name,
            (int)errors.size, errors.size == 0 ? "" : errors.bytes);
    buffer_free(&errors);
    return rc == 0 ? CLI_OK : CLI_USAGE;
}

static int packs_run(const struct cli_command *command, int argc, char **argv)
{
    struct packs_arguments arguments = { .command = command };
    const struct options_switch switches[] = { { "--unsigned", &arguments.is_unsigned },
        { "--no-publish", &arguments.no_publish }, { "--json", &arguments.as_json },
        { "--quiet", &arguments.quiet }, { NULL, NULL } };
    char *rest[ARGUMENTS_MAX + 1];
    int count = 0, rc;

    rc = take_own(&arguments, argc, argv, rest, &count);
    if (rc == OPTIONS_GO_ON)
        rc = options_parse(command, count, rest, switches, 2, &arguments.options);
    if (rc != OPTIONS_GO_ON)
        return rc;
    if (arguments.options.word_count > 1)
        arguments.word = arguments.options.words[1];
    rc = check_settings(command, &arguments.options);
    if (rc == CLI_OK)
        rc = packs_run_action(&arguments);
    options_fini(&arguments.options);
    return rc;
}

const struct cli_command cmd_packs = {
    .name = "packs",
    .arguments = "push FILE|get NAME|verify DIR|list|rotate NAME [OPTION...]",
    .summary = "publish content packs, fetch them, verify them",
    .help =
        "  push FILE      publish FILE as the active version of a pack: register a new pack,\n"
        "                 upload, sign, publish, and print the URL. After a failure, run the same\n"
        "                 command again: it goes on where it stopped\n"
        "    --name NAME      name of the pack: a-z 0-9 . _ -\n"
        "    --version V      version of the file; a version never changes\n"
        "    --key FILE       the publisher's private key, created if missing\n"
        "                     (publisher.key in ~/.config/troupe)\n"
        "    --type TYPE      media type (application/octet-stream)\n"
        "    --encoding E     FILE is an existing version, compressed with zstd or gzip\n"
        "    --unsigned       publish without a signature\n"
        "    --no-publish     upload only: the active version stays\n"
        "\n"
        "  get NAME       fetch a pack or the missing rest of it, and verify its bytes and its\n"
        "                 signature. The first get pins the publisher's key for this pack name,\n"
        "                 on any server. A pinned key must sign the change to another key\n"
        "    --version V      the version (default: the active one)\n"
        "    --out PATH       file or directory (NAME-V here); PATH.manifest.json is its proof\n"
        "    --trust KEY      from now on trust this key and no other\n"
        "    --pins FILE      file of the pinned keys (pack-keys in ~/.config/troupe)\n"
        "    --unsigned       accept an unsigned pack by its checksum alone\n"
        "\n"
        "  verify DIR     verify a mirror offline: every file against its signed manifest\n"
        "    --trust KEY, --pins FILE\n"
        "\n"
        "  list           list the published packs; --json as JSON\n"
        "\n"
        "  rotate NAME    change the valid keys of a pack\n"
        "    --key FILE       a valid key, to sign the change\n"
        "    --add KEY        the key to add: a key, or a key file, created if missing\n"
        "    --retire KEY     the key to retire. Clients then refuse versions that only it signed\n"
        "\n"
        "  --server URL   the public listener (default: of the server on this machine)\n"
        "  --admin ADDR   the admin listener, for push and rotate: HOST:PORT, unix:PATH or URL\n"
        "  --data DIR     data directory of a server on this machine, with its addresses and "
        "token\n"
        "                 (troupe-data)\n"
        "  --set admin.token_file=FILE\n"
        "                 file with the admin token of a server on another machine\n"
        "  --config FILE  file of settings, as in `troupe serve`\n"
        "  --quiet        print no progress\n"
        "\n"
        "Exit status: 0 success, 1 failure, 2 a wrong command line.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe packs push core.zip --name core --version 1.0.0 --data build/run\n"
        "  troupe packs get core --data build/run\n"
        "  troupe packs get core --server https://packs.example.org --out downloads\n"
        "  troupe packs verify downloads\n"
        "  troupe packs rotate core --key old.key --add new.key --data build/run\n",
    .run = packs_run,
};
