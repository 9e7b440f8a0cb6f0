/* SPDX-License-Identifier: Apache-2.0 */
/* admin_client.h: one request to the admin listener of a running server. */
#ifndef CLI_ADMIN_CLIENT_H
#define CLI_ADMIN_CLIENT_H

#include "cli/options.h"
#include "json/json.h"
#include "ops/secret.h"

struct admin_client {
    struct config config;
    char address[256]; /* HOST:PORT or unix:PATH */
};

/* Load the settings and find the server: by --admin, else by admin.address in its data directory, else
 * by admin.listen. Prints errors to stderr. */
int admin_client_init(
    struct admin_client *client, const struct cli_command *command, const struct options *options);
void admin_client_fini(struct admin_client *client);

/* Read the admin token. False: the reason is on stderr. */
bool admin_client_token(
    struct admin_client *client, const struct cli_command *command, struct secret *ret_token);

/* Send a GET, or a POST with the admin token, and append the answer's body. Returns the status, 0
 * without an answer. Prints an error to stderr unless the status is 2xx. */
long admin_client_ask(struct admin_client *client, const struct cli_command *command, bool is_post,
    const char *path, struct buffer *body);

/* Print to stderr that the answer is not JSON. Returns CLI_FAILED. */
int admin_client_not_json(const struct cli_command *command);

#endif
