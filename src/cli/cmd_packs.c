/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_packs.c: `troupe packs`: put a file on a server as a version of a pack, fetch it, check it.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/packs_command.h"

enum { ARGUMENTS_MAX = 128 };

/* The options of its own that have a value; all others are the settings' (options.c). */
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

/* http://HOST:PORT/ is HOST:PORT to the settings. In place. */
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

/* Takes its own options out of argv: what is left goes to `rest`, argv[0] included. */
static int take_own(
    struct packs_arguments *arguments, int argc, char **argv, char **rest, int *ret_count)
{
    int count = 0;

    for (int i = 0; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t size = equals == NULL ? strlen(argv[i]) : (size_t)(equals - argv[i]);
        const char **value = i == 0 ? NULL : own_option(arguments, argv[i], size);

        if (count == ARGUMENTS_MAX)
            return cli_wrong(arguments->command, "there are too many arguments", NULL);
        if (value == NULL) {
            rest[count++] = argv[i];
            if (i > 0 && strcmp(argv[i], "--admin") == 0 && i + 1 < argc && count < ARGUMENTS_MAX)
                rest[count++] = without_scheme(argv[++i]);
            continue;
        }
        if (equals == NULL && i + 1 >= argc)
            return cli_wrong(arguments->command, "there is no value after", argv[i]);
        *value = equals == NULL ? argv[++i] : equals + 1;
    }
    *ret_count = count;
    return OPTIONS_GO_ON;
}

static int run_action(const struct packs_arguments *arguments)
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
            arguments->command, "say what to do: push, get, verify, list or rotate", NULL);
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(options->words[0], actions[i].name) == 0)
            return actions[i].run(arguments);
    return cli_wrong(arguments->command, "there is no", options->words[0]);
}

/* Those of the command line, here: not every action comes to load them. */
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
        fprintf(stderr, "troupe %s: the settings are wrong:\n%.*s", command->name, (int)errors.size,
            errors.size == 0 ? "" : errors.bytes);
    buffer_free(&errors);
    return rc == 0 ? CLI_OK : CLI_USAGE;
}

static int run_packs(const struct cli_command *command, int argc, char **argv)
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
        rc = run_action(&arguments);
    options_free(&arguments.options);
    return rc;
}

const struct cli_command cmd_packs = {
    .name = "packs",
    .arguments = "push FILE|get NAME|verify DIR|list|rotate NAME [OPTION...]",
    .summary = "put content packs on a server, fetch them, check them",
    .help =
        "  push FILE      make FILE the active version of a pack: registers the pack if it is "
        "new,\n"
        "                 uploads, signs, publishes, prints the URL. Run it again after whatever\n"
        "                 went wrong: it goes on where it stopped\n"
        "    --name NAME      of the pack: a-z 0-9 . _ -\n"
        "    --version V      of the file; versions do not change\n"
        "    --key FILE       the publisher's private key, made if it is not there\n"
        "                     (publisher.key in ~/.config/troupe)\n"
        "    --type TYPE      media type (application/octet-stream)\n"
        "    --encoding E     FILE is the version that is there already, compressed: zstd or gzip\n"
        "    --unsigned       without a signature\n"
        "    --no-publish     upload only: what is active stays so\n"
        "\n"
        "  get NAME       fetch a pack, going on with what is there of it, and check its bytes "
        "and\n"
        "                 its signature. The publisher's key is trusted the first time and\n"
        "                 remembered by the pack's name, whatever the server; changes of it must\n"
        "                 be signed by it\n"
        "    --version V      (the active one)\n"
        "    --out PATH       file or directory (NAME-V here); PATH.manifest.json is its proof\n"
        "    --trust KEY      trust this key, and no other, from now on\n"
        "    --pins FILE      where trusted keys are remembered (pack-keys in ~/.config/troupe)\n"
        "    --unsigned       take what is not signed by its checksum alone\n"
        "\n"
        "  verify DIR     check a mirror offline: every file against its signed manifest\n"
        "    --trust KEY, --pins FILE\n"
        "\n"
        "  list           what is published; --json as JSON\n"
        "\n"
        "  rotate NAME    change the keys that count for a pack\n"
        "    --key FILE       one that counts, to sign with\n"
        "    --add KEY        that counts from now on: a key, or the file of one, made if missing\n"
        "    --retire KEY     that counts no more. What only it has signed is refused then\n"
        "\n"
        "  --server URL   the public listener (asked of the server on this machine)\n"
        "  --admin ADDR   the admin listener, for push and rotate: HOST:PORT, unix:PATH or URL\n"
        "  --data DIR     of a server on this machine: where its addresses and its token are\n"
        "                 (troupe-data)\n"
        "  --set admin.token_file=FILE\n"
        "                 the admin token of a server elsewhere, for push and rotate\n"
        "  --config FILE  settings, as of `troupe serve`\n"
        "  --quiet        no progress\n"
        "\n"
        "Exit status: 0 done, 1 it failed and what to do was said, 2 a wrong command line.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe packs push core.zip --name core --version 1.0.0 --data build/run\n"
        "  troupe packs get core --data build/run\n"
        "  troupe packs get core --server https://packs.example.org --out downloads\n"
        "  troupe packs verify downloads\n"
        "  troupe packs rotate core --key old.key --add new.key --data build/run\n",
    .run = run_packs,
};
