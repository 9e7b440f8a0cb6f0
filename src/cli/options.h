/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: command lines of the commands that know the configuration. `--listen ADDR` and
 * `--listen=ADDR` mean the same; `--set section.key=value` sets what has no option of its own;
 * after `--` there are only words. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/cli.h"
#include "ops/config.h"

enum { OPTIONS_FLAGS_MAX = 64, OPTIONS_WORDS_MAX = 4, OPTIONS_GO_ON = -1 };

/* The options with a value that stand for a setting: all of them; those that find a running server;
 * those that find its database. Every command takes all, so that one line of them does for all. */
#define OPTIONS_TEXT                                                                               \
    "  --config FILE     settings; `troupe config list` shows them all\n"                          \
    "  --listen ADDR     public address: HOST:PORT or unix:PATH (server.listen)\n"                 \
    "  --admin ADDR      admin address (admin.listen)\n"                                           \
    "  --data DIR        where everything is stored (server.data)\n"                               \
    "  --db URL          sqlite:PATH or postgresql://... (sql.url)\n"                              \
    "  --log-format F    logfmt or json (log.format)\n"                                            \
    "  --set KEY=VALUE   any setting, as in --set http.in_flight_max=100\n"

#define OPTIONS_ADMIN_TEXT                                                                         \
    "  --admin ADDR      the server's admin address: HOST:PORT or unix:PATH (admin.listen)\n"      \
    "  --data DIR        the server's data directory: its address and its token (server.data)\n"   \
    "  --config FILE     settings; `troupe config list` shows them all\n"                          \
    "  --set KEY=VALUE   any setting, as in --set admin.token_file=FILE\n"
#define OPTIONS_STORE_TEXT                                                                         \
    "  --data DIR        where everything is stored (server.data)\n"                               \
    "  --db URL          sqlite:PATH or postgresql://... (sql.url)\n"                              \
    "  --config FILE     settings; `troupe config list` shows them all\n"                          \
    "  --set KEY=VALUE   any setting, as in --set server.data=DIR\n"

/* A switch of one command. */
struct options_switch {
    const char *name; /* "--json" */
    bool *is_on;
};

struct options {
    const char *config_path;
    struct config_flag flags[OPTIONS_FLAGS_MAX];
    size_t flag_count;
    char *keys; /* memory that flags of --set point into */
    const char *words[OPTIONS_WORDS_MAX];
    size_t word_count;
};

/* OPTIONS_GO_ON, or the exit status: --help was answered, or what is wrong was said. `switches`
 * ends with a NULL name and may be NULL. At most `words_max` words that are no options. */
int options_parse(const struct cli_command *command, int argc, char **argv,
    const struct options_switch *switches, size_t words_max, struct options *ret_options);
void options_free(struct options *options);
/* The configuration of file, environment and options; what is wrong goes to stderr. */
int options_load(
    const struct cli_command *command, const struct options *options, struct config *ret_config);
/* options_load, and settings_check: what `troupe serve` starts with. */
int options_load_checked(
    const struct cli_command *command, const struct options *options, struct config *ret_config);
/* The file, environment and options that the configuration comes from. They point into `options`. */
struct config_sources options_sources(const struct options *options);

#endif
