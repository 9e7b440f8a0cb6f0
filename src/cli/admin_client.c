/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/admin_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"

enum { TIMEOUT_S = 10, ANSWER_BYTES_MAX = 16 * 1024 * 1024, PATH_SIZE = 1024, LINE_SIZE = 512 };

/* Read the line that server_write_address wrote. False: errno has the reason. */
static bool read_address(const char *data_path, char *address, size_t size)
{
    char path[PATH_SIZE];
    FILE *file;
    bool is_there;

    snprintf(path, sizeof path, "%s/admin.address", data_path);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    errno = 0;
    is_there = fgets(address, (int)size, file) != NULL;
    fclose(file);
    if (is_there)
        address[strcspn(address, "\n")] = '\0';
    return is_there && address[0] != '\0';
}

static void complain_data(const struct cli_command *command, const char *data_path, int error)
{
    if (error == EACCES || error == EPERM)
        fprintf(stderr,
            "troupe %s: %s cannot be read: %s.\n"
            "Run the command as the server's user, or name the server with --admin ADDR.\n",
            command->name, data_path, strerror(error));
    else if (command == &cmd_drain)
        fprintf(stderr,
            "troupe %s: No server runs with the data in %s, so there is none to stop.\n"
            "If you mean another server, name it with --data DIR or --admin ADDR.\n",
            command->name, data_path);
    else
        fprintf(stderr,
            "troupe %s: No server runs with the data in %s.\n"
            "Start one (to try it: `troupe serve --dev --data %s`; `make run` uses build/run), or "
            "name the server with --admin ADDR.\n",
            command->name, data_path, data_path);
}

int admin_client_init(
    struct admin_client *client, const struct cli_command *command, const struct options *options)
{
    const char *data_path;
    int rc = options_load(command, options, &client->config);

    if (rc != 0)
        return rc;
    data_path = config_text(&client->config, CONFIG_SERVER_DATA);
    if (client->config.values[CONFIG_ADMIN_LISTEN].origin != CONFIG_FLAG) {
        if (read_address(data_path, client->address, sizeof client->address))
            return 0;
        /* --data names one server: do not fall back to another one on the default port. */
        if (client->config.values[CONFIG_SERVER_DATA].origin == CONFIG_FLAG) {
            complain_data(command, data_path, errno);
            config_fini(&client->config);
            return TR_ENOENT;
        }
    }
    snprintf(client->address, sizeof client->address, "%s",
        config_text(&client->config, CONFIG_ADMIN_LISTEN));
    return 0;
}

void admin_client_fini(struct admin_client *client)
{
    config_fini(&client->config);
}

static size_t on_admin_body(char *bytes, size_t size, size_t count, void *data)
{
    return buffer_append(data, bytes, size * count) == 0 ? size * count : 0;
}

static int load_token(
    const struct admin_client *client, struct secret *ret_token, char *why, size_t why_size)
{
    char path[PATH_SIZE];

    if (config_text(&client->config, CONFIG_ADMIN_TOKEN_FILE)[0] != '\0')
        snprintf(path, sizeof path, "%s", config_text(&client->config, CONFIG_ADMIN_TOKEN_FILE));
    else
        snprintf(
            path, sizeof path, "%s/admin.token", config_text(&client->config, CONFIG_SERVER_DATA));
    return secret_load(ret_token, path, SECRET_MUST_EXIST, why, why_size);
}

bool admin_client_token(
    struct admin_client *client, const struct cli_command *command, struct secret *ret_token)
{
    char why[LINE_SIZE];

    if (load_token(client, ret_token, why, sizeof why) == 0)
        return true;
    fprintf(stderr,
        "troupe %s: The command needs the admin token. %s\n"
        "Name its place with --data DIR of the server, or --set admin.token_file=FILE.\n",
        command->name, why);
    return false;
}

/* Add "Authorization: Bearer TOKEN". False: the token is needed and missing; stderr has the reason. */
static bool add_token(struct admin_client *client, const struct cli_command *command,
    bool is_needed, struct curl_slist **headers)
{
    char line[LINE_SIZE];
    char why[LINE_SIZE];
    struct secret token;

    if (is_needed ? !admin_client_token(client, command, &token)
                  : load_token(client, &token, why, sizeof why) != 0)
        return !is_needed;
    snprintf(line, sizeof line, "Authorization: Bearer %s", token.text);
    *headers = curl_slist_append(*headers, line);
    return *headers != NULL;
}

static void set_target(CURL *curl, const char *address, const char *path)
{
    char url[PATH_SIZE + LINE_SIZE];

    if (strncmp(address, "unix:", 5) == 0) {
        snprintf(url, sizeof url, "http://localhost%s", path);
        curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, address + 5);
    } else {
        snprintf(url, sizeof url, "http://%s%s", address, path);
    }
    curl_easy_setopt(curl, CURLOPT_URL, url);
}

/* Print the answer's "message", or its body. */
static void admin_client_complain(
    const struct cli_command *command, long status, const struct buffer *body)
{
    struct json_doc doc = { 0 };
    struct span message = { body->bytes, body->size };

    if (json_parse_copy(&doc, message, 0) == 0)
        (void)json_string(json_get(json_root(&doc), "message"), &message);
    fprintf(stderr, "troupe %s: The server answered %ld: %.*s\n", command->name, status,
        (int)message.size, message.size == 0 ? "" : message.at);
    json_doc_free(&doc);
}

static long admin_client_perform(struct admin_client *client, const struct cli_command *command,
    CURL *curl, bool is_post, struct buffer *body)
{
    struct curl_slist *headers = NULL;
    CURLcode code = CURLE_OUT_OF_MEMORY;
    long status = 0;

    if (!add_token(client, command, is_post, &headers))
        return 0;
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*"); /* no proxy may see the token */
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_admin_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
    if (is_post) {
        curl_easy_setopt(curl, CURLOPT_POST, 1L);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, 0L);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
    }
    code = curl_easy_perform(curl);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) {
        fprintf(stderr,
            "troupe %s: No server answers on %s: %s.\n"
            "%s with --admin ADDR or --data DIR.\n",
            command->name, client->address, curl_easy_strerror(code),
            command == &cmd_drain ? "If you mean another server, name it"
                                  : "Start the server, or name it");
        return 0;
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

long admin_client_ask(struct admin_client *client, const struct cli_command *command, bool is_post,
    const char *path, struct buffer *body)
{
    CURL *curl = curl_easy_init();
    long status;

    tr_assert(path[0] == '/');
    if (curl == NULL) {
        fprintf(stderr, "troupe %s: %s\n", command->name, tr_error_text(TR_ENOMEM));
        return 0;
    }
    body->size_max = ANSWER_BYTES_MAX;
    set_target(curl, client->address, path);
    status = admin_client_perform(client, command, curl, is_post, body);
    curl_easy_cleanup(curl);
    if (status != 0 && (status < 200 || status > 299))
        admin_client_complain(command, status, body);
    return status;
}

int admin_client_not_json(const struct cli_command *command)
{
    fprintf(stderr,
        "troupe %s: The answer is not JSON; check that the address is a troupe server.\n",
        command->name);
    return CLI_FAILED;
}
