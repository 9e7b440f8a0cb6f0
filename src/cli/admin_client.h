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

/* Where the server is: --admin, else the address that it left in its data directory, else
 * admin.listen. What is wrong goes to stderr. */
int admin_client_init(
    struct admin_client *client, const struct cli_command *command, const struct options *options);
void admin_client_finish(struct admin_client *client);

/* The admin token; false if it cannot be read, and it is said why. */
bool admin_client_token(
    struct admin_client *client, const struct cli_command *command, struct secret *ret_token);

/* GET, or POST with the admin token. The answer's body is appended. Returns its status, or 0 when
 * nobody answers; then, and for every status but 2xx, what is wrong was said on stderr. */
long admin_client_ask(struct admin_client *client, const struct cli_command *command, bool is_post,
    const char *path, struct buffer *body);

/* Say on stderr that the answer is not JSON. Returns CLI_FAILED. */
int admin_client_not_json(const struct cli_command *command);

#endif
