/* SPDX-License-Identifier: Apache-2.0 */
/* packs_web.c: the requests of `troupe packs`, by libcurl. The admin token goes to the admin listener
 * alone: no proxy, no redirect. */
#include <stdio.h>
#include <string.h>

#include <troupe/env.h>
#include <troupe/error.h>

#include "base/assert.h"
#include "cli/packs_command.h"

enum { CONNECT_S = 10, ASK_S = 60 };

/* ---- addresses ---------------------------------------------------------------------------------- */

/* Read HOST:PORT, unix:PATH or a URL, with or without a slash at its end. */
static bool set_base(struct packs_web *web, const char *address)
{
    const char *rest = address;
    size_t size;

    if (strncmp(address, "http://", 7) == 0)
        rest = address + 7;
    if (strncmp(rest, "unix:", 5) == 0) {
        snprintf(web->base, sizeof web->base, "http://localhost");
        snprintf(web->socket, sizeof web->socket, "%s", rest + 5);
        return true;
    }
    web->socket[0] = '\0';
    if (strncmp(address, "https://", 8) == 0)
        snprintf(web->base, sizeof web->base, "%s", address);
    else
        snprintf(web->base, sizeof web->base, "http://%s", rest);
    size = strlen(web->base);
    while (size > 0 && web->base[size - 1] == '/')
        web->base[--size] = '\0';
    return size > strlen("http://") && strlen(address) < sizeof web->base - 8;
}

static bool open_curl(struct packs_web *web)
{
    *web = (struct packs_web){ .curl = curl_easy_init() };
    if (web->curl == NULL)
        packs_fail("%s", tr_error_text(TR_ENOMEM));
    return web->curl != NULL;
}

bool packs_web_open_admin(struct packs_web *web, const struct packs_arguments *arguments)
{
    struct admin_client client;
    struct secret token;
    char line[SECRET_SIZE_MAX + 64];
    bool is_good = false;

    if (!open_curl(web))
        return false;
    if (admin_client_init(&client, arguments->command, &arguments->options) == 0) {
        is_good = set_base(web, client.address) &&
                  admin_client_token(&client, arguments->command, &token);
        admin_client_fini(&client);
    }
    if (is_good) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", token.text);
        web->headers = curl_slist_append(NULL, line);
        is_good = web->headers != NULL;
    }
    if (!is_good)
        packs_web_close(web);
    return is_good;
}

/* Ask the server on the admin listener for its public address. */
static bool ask_for_public(const struct packs_arguments *arguments, char *ret_base, size_t size)
{
    struct admin_client client;
    struct buffer body = { 0 };
    struct json_doc doc = { 0 };
    struct span text = { NULL, 0 };

    if (admin_client_init(&client, arguments->command, &arguments->options) != 0)
        return false;
    if (admin_client_ask(&client, arguments->command, false, "/v1/status", &body) == 200 &&
        json_parse_copy(&doc, (struct span){ body.bytes, body.size }, 0) == 0)
        (void)json_string(json_get(json_root(&doc), "public"), &text);
    if (text.size > 0)
        snprintf(ret_base, size, "%.*s", (int)text.size, text.at);
    else
        packs_fail("Name the server with --server URL.");
    json_doc_free(&doc);
    buffer_free(&body);
    admin_client_fini(&client);
    return text.size > 0 && text.size < size;
}

bool packs_web_public_base(
    const struct packs_arguments *arguments, char *ret_base, size_t base_size)
{
    struct packs_web web;
    char found[PACKS_URL_SIZE];

    if (arguments->server != NULL)
        snprintf(found, sizeof found, "%s", arguments->server);
    else if (!ask_for_public(arguments, found, sizeof found))
        return false;
    web.socket[0] = '\0';
    if (!set_base(&web, found)) {
        packs_fail("--server takes a URL like https://packs.example.org, not '%s'.", found);
        return false;
    }
    if (web.socket[0] != '\0')
        snprintf(ret_base, base_size, "unix:%s", web.socket);
    else
        snprintf(ret_base, base_size, "%s", web.base);
    return true;
}

bool packs_web_open_public(struct packs_web *web, const struct packs_arguments *arguments)
{
    char base[PACKS_URL_SIZE];

    if (!packs_web_public_base(arguments, base, sizeof base) || !open_curl(web))
        return false;
    (void)set_base(web, base);
    return true;
}

void packs_web_close(struct packs_web *web)
{
    curl_slist_free_all(web->headers);
    curl_easy_cleanup(web->curl);
    *web = (struct packs_web){ 0 };
}

/* ---- requests --------------------------------------------------------------------------------- */

void packs_web_prepare(struct packs_web *web, const char *path, struct curl_slist *more)
{
    char url[2 * PACKS_URL_SIZE];

    tr_assert(web->curl != NULL);
    tr_assert(path[0] == '/');
    curl_easy_reset(web->curl); /* keeps the connections */
    snprintf(url, sizeof url, "%s%s", web->base, path);
    curl_easy_setopt(web->curl, CURLOPT_URL, url);
    if (web->socket[0] != '\0')
        curl_easy_setopt(web->curl, CURLOPT_UNIX_SOCKET_PATH, web->socket);
    curl_easy_setopt(web->curl, CURLOPT_HTTPHEADER, more != NULL ? more : web->headers);
    if (web->headers != NULL)
        curl_easy_setopt(web->curl, CURLOPT_NOPROXY, "*"); /* no proxy may see the token */
    curl_easy_setopt(web->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(web->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(web->curl, CURLOPT_NOSIGNAL, 1L);
    web->problem[0] = '\0';
    curl_easy_setopt(web->curl, CURLOPT_ERRORBUFFER, web->problem);
}

static size_t on_web_body(char *bytes, size_t size, size_t count, void *data)
{
    return buffer_append(data, bytes, size * count) == 0 ? size * count : 0;
}

static size_t on_web_header(char *bytes, size_t size, size_t count, void *data)
{
    static const char name[] = "upload-offset:";
    struct packs_answer *answer = data;
    struct span value = { bytes, size * count };

    if (value.size > sizeof name && span_is_nocase((struct span){ bytes, sizeof name - 1 }, name)) {
        value = (struct span){ bytes + sizeof name - 1, value.size - (sizeof name - 1) };
        while (value.size > 0 && value.at[0] == ' ')
            value = (struct span){ value.at + 1, value.size - 1 };
        while (value.size > 0 &&
               (value.at[value.size - 1] == '\n' || value.at[value.size - 1] == '\r'))
            value.size--;
        if (!span_u64(value, &answer->offset))
            answer->offset = UINT64_MAX;
    }
    return size * count;
}

long packs_web_ask(struct packs_web *web, const char *method, const char *path, const char *body,
    struct packs_answer *answer)
{
    struct curl_slist *headers = NULL;
    CURLcode code;

    for (struct curl_slist *at = web->headers; at != NULL; at = at->next)
        headers = curl_slist_append(headers, at->data);
    if (body != NULL)
        headers = curl_slist_append(headers, "Content-Type: application/json");
    buffer_clear(&answer->body);
    answer->body.size_max = PACKS_ANSWER_MAX;
    answer->offset = UINT64_MAX;
    answer->status = 0;
    packs_web_prepare(web, path, headers);
    curl_easy_setopt(web->curl, CURLOPT_TIMEOUT, (long)ASK_S);
    curl_easy_setopt(web->curl, CURLOPT_WRITEFUNCTION, on_web_body);
    curl_easy_setopt(web->curl, CURLOPT_WRITEDATA, &answer->body);
    curl_easy_setopt(web->curl, CURLOPT_HEADERFUNCTION, on_web_header);
    curl_easy_setopt(web->curl, CURLOPT_HEADERDATA, answer);
    if (strcmp(method, "GET") != 0) {
        curl_easy_setopt(web->curl, CURLOPT_POSTFIELDS, body == NULL ? "" : body);
        curl_easy_setopt(web->curl, CURLOPT_CUSTOMREQUEST, method);
    }
    if (strstr(path, "/finish") != NULL) /* the server syncs a large file before it answers */
        curl_easy_setopt(web->curl, CURLOPT_TIMEOUT, 0L);
    code = curl_easy_perform(web->curl);
    curl_slist_free_all(headers);
    if (code == CURLE_OK)
        curl_easy_getinfo(web->curl, CURLINFO_RESPONSE_CODE, &answer->status);
    else if (web->problem[0] == '\0')
        snprintf(web->problem, sizeof web->problem, "%s", curl_easy_strerror(code));
    return answer->status;
}

void packs_answer_fini(struct packs_answer *answer)
{
    buffer_free(&answer->body);
}

int packs_web_complain(
    const struct packs_web *web, const char *what, const struct packs_answer *answer)
{
    struct span message = { answer->body.bytes, answer->body.size };
    struct json_doc doc = { 0 };

    if (answer->status == 0)
        return packs_fail("%s: No server answers on %s: %s.\n"
                          "Start the server, or name it with --server URL, --admin ADDR, or --data "
                          "DIR of a server "
                          "on this machine.",
            what, web->socket[0] != '\0' ? web->socket : web->base, web->problem);
    if (answer->status == 401 && web->headers != NULL)
        return packs_fail("%s: The admin token is missing or wrong; name it with --data DIR of the "
                          "server, or --set admin.token_file=FILE.",
            what);
    if (message.size > 500)
        message.size = 500;
    if (json_parse_copy(&doc, (struct span){ answer->body.bytes, answer->body.size }, 0) == 0)
        (void)json_string(json_get(json_root(&doc), "message"), &message);
    packs_fail("%s: The server answered %ld: %.*s", what, answer->status, (int)message.size,
        message.size == 0 ? "" : message.at);
    json_doc_free(&doc);
    return CLI_FAILED;
}

bool packs_answer_is(const struct packs_answer *answer, const char *label)
{
    struct json_doc doc = { 0 };
    struct span error = { "", 0 };
    bool is_so;

    if (json_parse_copy(&doc, (struct span){ answer->body.bytes, answer->body.size }, 0) == 0)
        (void)json_string(json_get(json_root(&doc), "error"), &error);
    is_so = span_is(error, label);
    json_doc_free(&doc);
    return is_so;
}
