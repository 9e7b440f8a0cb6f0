/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: command lines of the commands that use the configuration. `--listen ADDR` and
 * `--listen=ADDR` mean the same; `--set section.key=value` changes a setting without an option;
 * after `--` every argument is a word. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/cli.h"
#include "ops/config.h"

enum { OPTIONS_FLAGS_MAX = 64, OPTIONS_WORDS_MAX = 4, OPTIONS_GO_ON = -1 };

/* Help for the options that change a setting: all of them; those that find a running server; those
 * that find its database. Every command accepts all of them, so that one line of options fits every
 * command. */
#define OPTIONS_TEXT                                                                               \
    "  --config FILE     file of settings; `troupe config list` shows them all\n"                  \
    "  --listen ADDR     public address: HOST:PORT or unix:PATH (server.listen)\n"                 \
    "  --admin ADDR      admin address (admin.listen)\n"                                           \
    "  --data DIR        data directory (server.data)\n"                                           \
    "  --db URL          sqlite:PATH or postgresql://... (sql.url)\n"                              \
    "  --log-format F    logfmt or json (log.format)\n"                                            \
    "  --set KEY=VALUE   any setting, as in --set http.in_flight_max=100\n"

#define OPTIONS_ADMIN_TEXT                                                                         \
    "  --admin ADDR      the server's admin address: HOST:PORT or unix:PATH (admin.listen)\n"      \
    "  --data DIR        the server's data directory, with its address and token (server.data)\n"  \
    "  --config FILE     file of settings; `troupe config list` shows them all\n"                  \
    "  --set KEY=VALUE   any setting, as in --set admin.token_file=FILE\n"
#define OPTIONS_STORE_TEXT                                                                         \
    "  --data DIR        data directory (server.data)\n"                                           \
    "  --db URL          sqlite:PATH or postgresql://... (sql.url)\n"                              \
    "  --config FILE     file of settings; `troupe config list` shows them all\n"                  \
    "  --set KEY=VALUE   any setting, as in --set server.data=DIR\n"

/* A switch that one command has. */
struct options_switch {
    const char *name; /* "--json" */
    bool *is_on;
};

struct options {
    const char *config_path;
    struct config_flag flags[OPTIONS_FLAGS_MAX];
    size_t flag_count;
    char *keys; /* the memory of the keys of --set */
    const char *words[OPTIONS_WORDS_MAX];
    size_t word_count;
};

/* Read a command line. Returns OPTIONS_GO_ON, or an exit status after it printed the help or an error.
 * `switches` ends with a NULL name and may be NULL. At most `words_max` arguments are words. The
 * caller frees the options if it goes on. */
int options_parse(const struct cli_command *command, int argc, char **argv,
    const struct options_switch *switches, size_t words_max, struct options *ret_options);
void options_fini(struct options *options);
/* Take `name VALUE` or `name=VALUE`, an option of one command, out of the arguments. Returns the last
 * value, or NULL without one. */
const char *options_take(const char *name, int *argc, char **argv);
/* Load the configuration from file, environment and options. Prints errors to stderr. */
int options_load(
    const struct cli_command *command, const struct options *options, struct config *ret_config);
/* Load it and run settings_check, as `troupe serve` does. Prints errors to stderr. */
int options_load_checked(
    const struct cli_command *command, const struct options *options, struct config *ret_config);
/* Return the sources of the configuration. They point into `options`. */
struct config_sources options_sources(const struct options *options);

#endif
