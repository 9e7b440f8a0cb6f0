/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "server/settings.h"

static const struct {
    const char *name;
    const char *key; /* NULL: take_known has a case for it */
} known[] = {
    { "--config", NULL },
    { "--set", NULL },
    { "--listen", "server.listen" },
    { "--admin", "admin.listen" },
    { "--data", "server.data" },
    { "--db", "sql.url" },
    { "--log-format", "log.format" },
    { "--log-level", "log.level" },
};
enum { KNOWN = sizeof known / sizeof known[0] };

/* True if the argument is this option. *ret_value is the text after its "=", or NULL. */
static bool option_matches(const char *argument, const char *name, const char **ret_value)
{
    size_t size = strlen(name);

    if (strncmp(argument, name, size) != 0 || (argument[size] != '\0' && argument[size] != '='))
        return false;
    *ret_value = argument[size] == '=' ? argument + size + 1 : NULL;
    return true;
}

static bool add_flag(struct options *options, const char *name, const char *key, const char *value)
{
    if (options->flag_count == OPTIONS_FLAGS_MAX)
        return false;
    options->flags[options->flag_count++] = (struct config_flag){ name, key, value };
    return true;
}

/* Split KEY=VALUE. The key gets its own memory, to end with a zero. */
static int take_set(const struct cli_command *command, struct options *options, const char *text)
{
    const char *equals = strchr(text, '=');
    char *key;

    if (equals == NULL)
        return cli_wrong(command, "--set takes KEY=VALUE, not", text);
    key = base_alloc(sizeof(char *) + (size_t)(equals - text) + 1);
    if (key == NULL)
        return cli_wrong(command, "The command is out of memory", NULL);
    memcpy(key, &options->keys, sizeof(char *)); /* a list, for options_fini */
    options->keys = key;
    memcpy(key + sizeof(char *), text, (size_t)(equals - text));
    key[sizeof(char *) + (size_t)(equals - text)] = '\0';
    if (!add_flag(options, "--set", key + sizeof(char *), equals + 1))
        return cli_wrong(command, "There are more than 64 options", NULL);
    return OPTIONS_GO_ON;
}

static int take_known(
    const struct cli_command *command, struct options *options, size_t index, const char *value)
{
    if (strcmp(known[index].name, "--set") == 0)
        return take_set(command, options, value);
    if (strcmp(known[index].name, "--config") == 0)
        options->config_path = value;
    else if (!add_flag(options, known[index].name, known[index].key, value))
        return cli_wrong(command, "There are more than 64 options", NULL);
    return OPTIONS_GO_ON;
}

static bool take_switch(const struct options_switch *switches, const char *argument)
{
    for (; switches != NULL && switches->name != NULL; switches++) {
        if (strcmp(argument, switches->name) == 0) {
            *switches->is_on = true;
            return true;
        }
    }
    return false;
}

/* Take one option and its value. */
static int take_option(const struct cli_command *command, struct options *options, int argc,
    char **argv, int *position)
{
    const char *argument = argv[*position];
    const char *value;

    for (size_t i = 0; i < KNOWN; i++) {
        if (!option_matches(argument, known[i].name, &value))
            continue;
        if (value == NULL && *position + 1 < argc)
            value = argv[++*position];
        if (value == NULL)
            return cli_wrong(command, "There is no value after", argument);
        return take_known(command, options, i, value);
    }
    return cli_wrong(command, "There is no option", argument);
}

static int take_word(
    const struct cli_command *command, struct options *options, size_t words_max, const char *word)
{
    if (options->word_count == words_max)
        return cli_wrong(command, "There is one argument too many:", word);
    options->words[options->word_count++] = word;
    return OPTIONS_GO_ON;
}

int options_parse(const struct cli_command *command, int argc, char **argv,
    const struct options_switch *switches, size_t words_max, struct options *ret_options)
{
    bool has_ended = false; /* a -- ended the options */
    int rc = OPTIONS_GO_ON;

    tr_assert(words_max <= OPTIONS_WORDS_MAX);
    tr_assert(argc > 0);
    *ret_options = (struct options){ 0 };
    for (int i = 1; i < argc && rc == OPTIONS_GO_ON; i++) {
        if (has_ended || argv[i][0] != '-') {
            rc = take_word(command, ret_options, words_max, argv[i]);
        } else if (strcmp(argv[i], "--") == 0) {
            has_ended = true;
        } else if (cli_is_help(argv[i])) {
            cli_help(command);
            rc = CLI_OK;
        } else if (!take_switch(switches, argv[i])) {
            rc = take_option(command, ret_options, argc, argv, &i);
        }
    }
    if (rc != OPTIONS_GO_ON)
        options_fini(ret_options);
    return rc;
}

const char *options_take(const char *name, int *argc, char **argv)
{
    const char *taken = NULL, *value;
    bool has_ended = false; /* a -- ended the options */
    int count = 0;

    for (int i = 0; i < *argc; i++) {
        has_ended |= strcmp(argv[i], "--") == 0;
        if (has_ended || !option_matches(argv[i], name, &value) ||
            (value == NULL && i + 1 == *argc))
            argv[count++] = argv[i];
        else
            taken = value == NULL ? argv[++i] : value;
    }
    *argc = count;
    return taken;
}

void options_fini(struct options *options)
{
    while (options->keys != NULL) {
        char *next;

        memcpy(&next, options->keys, sizeof next);
        base_free(options->keys);
        options->keys = next;
    }
    *options = (struct options){ 0 };
}

struct config_sources options_sources(const struct options *options)
{
    return (struct config_sources){ .file_path = options->config_path,
        .environment = (const char *const *)environ,
        .flags = options->flags,
        .flag_count = options->flag_count };
}

static void options_complain(const struct cli_command *command, const struct buffer *errors, int rc)
{
    fprintf(stderr, "troupe %s: The settings have errors:\n%.*s", command->name, (int)errors->size,
        errors->size == 0 ? "" : errors->bytes);
    if (errors->size == 0)
        fprintf(stderr, "%s\n", tr_error_text(rc));
}

int options_load(
    const struct cli_command *command, const struct options *options, struct config *ret_config)
{
    const struct config_sources sources = options_sources(options);
    struct buffer errors = { 0 };
    int rc = config_load(&sources, ret_config, &errors);

    if (rc != 0)
        options_complain(command, &errors, rc);
    buffer_free(&errors);
    return rc;
}

int options_load_checked(
    const struct cli_command *command, const struct options *options, struct config *ret_config)
{
    const struct config_sources sources = options_sources(options);
    struct buffer errors = { 0 };
    int rc = config_load(&sources, ret_config, &errors);

    if (rc == 0) {
        rc = settings_check(ret_config, &errors);
        if (rc != 0)
            config_fini(ret_config);
    }
    if (rc != 0)
        options_complain(command, &errors, rc);
    buffer_free(&errors);
    return rc;
}
