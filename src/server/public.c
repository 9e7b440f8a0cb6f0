/* SPDX-License-Identifier: Apache-2.0 */
/* public.c: the public HTTP listener: its routes, limits and trusted proxies, and the messages for an
 * address that the server cannot listen on. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "net/socket.h"
#include "server/parts.h"

/* Explain why the machine refused an address; settings_check has validated its form. */
static const char *listen_hint(int rc, bool is_unix)
{
    if (rc == TR_EBUSY)
        return "another process listens there";
    if (rc == TR_EACCES)
        return is_unix ? "permission denied"
                       : "permission denied (ports below 1024 need CAP_NET_BIND_SERVICE)";
    if (rc == TR_EINVAL)
        return is_unix ? "the socket cannot be created; check that its directory exists"
                       : "the address does not belong to this machine";
    return NULL;
}

/* Write the reason and the option that changes the address. */
static void explain_address(
    int rc, const char *listen, const char *option, char *why, size_t why_size)
{
    const char *hint = listen_hint(rc, strncmp(listen, "unix:", 5) == 0);

    /* Another server often has both addresses: name both options at once. */
    if (rc == TR_EBUSY)
        snprintf(why, why_size,
            "The server cannot listen on %s: %s; choose other addresses with --listen ADDR --admin "
            "ADDR.",
            listen, hint);
    else if (hint != NULL)
        snprintf(why, why_size, "The server cannot listen on %s: %s; choose another with %s ADDR.",
            listen, hint, option);
}

/* Bind the port and close it again. A start that cannot listen then creates no directory, token or
 * database. The listener itself reports a port that another process takes in between, and a unix
 * socket that cannot be created. */
static int try_port(
    struct server *server, enum config_key key, const char *option, char *why, size_t why_size)
{
    const char *listen = config_text(&server->config, key);
    struct net_address address;
    int fd;
    int rc;

    if (strncmp(listen, "unix:", 5) == 0 || net_address_parse(listen, &address) != 0)
        return 0;
    rc = net_listen(&address, false, &fd);
    if (rc == 0) {
        close(fd);
    } else if (listen_hint(rc, false) != NULL) {
        explain_address(rc, listen, option, why, why_size);
        if (rc == TR_EBUSY && config_is_on(&server->config, CONFIG_SERVER_DEV))
            snprintf(why + strlen(why), why_size - strlen(why),
                " `make run` takes them as ARGS=\"--listen ADDR --admin ADDR\".");
        return rc;
    }
    return 0;
}

int server_try_ports(struct server *server, char *why, size_t why_size)
{
    int rc = try_port(server, CONFIG_ADMIN_LISTEN, "--admin", why, why_size);

    return rc == 0 ? try_port(server, CONFIG_SERVER_LISTEN, "--listen", why, why_size) : rc;
}

void server_explain_listen(
    int rc, const char *listen, const char *option, char *why, size_t why_size)
{
    if (strncmp(why, "Cannot listen on ", 17) == 0)
        explain_address(rc, listen, option, why, why_size);
}

/* Copy the list of proxies into an array of texts. */
static int split_proxies(struct server *server)
{
    const char *text = config_text(&server->config, CONFIG_SERVER_TRUSTED_PROXIES);
    size_t size = strlen(text);
    struct span word;
    size_t position = 0;
    size_t count = 0;
    char *to;

    server->proxies = base_calloc((size / 2 + 2) * sizeof(char *));
    server->proxy_texts = base_alloc(2 * size + 2);
    if (server->proxies == NULL || server->proxy_texts == NULL)
        return TR_ENOMEM;
    to = server->proxy_texts;
    while (config_next(&server->config, CONFIG_SERVER_TRUSTED_PROXIES, &position, &word)) {
        memcpy(to, word.at, word.size);
        to[word.size] = '\0';
        server->proxies[count++] = to;
        to += word.size + 1;
    }
    return 0;
}

static struct http_limits limits_of(const struct config *config)
{
    return (struct http_limits){
        .connections_max = (uint32_t)config_number(config, CONFIG_HTTP_CONNECTIONS_MAX),
        .in_flight_max = (uint32_t)config_number(config, CONFIG_HTTP_IN_FLIGHT_MAX),
        .wait_ns = config_number(config, CONFIG_HTTP_WAIT_TARGET),
        .pipeline_max = (uint32_t)config_number(config, CONFIG_HTTP_PIPELINE_MAX),
        .header_size_max = config_number(config, CONFIG_HTTP_HEADER_SIZE_MAX),
        .header_count_max = (uint32_t)config_number(config, CONFIG_HTTP_HEADER_COUNT_MAX),
        .output_max = config_number(config, CONFIG_HTTP_OUTPUT_MAX),
        .header_ns = config_number(config, CONFIG_HTTP_HEADER_TIMEOUT),
        .body_rate_min = config_number(config, CONFIG_HTTP_BODY_RATE_MIN),
        .idle_ns = config_number(config, CONFIG_HTTP_IDLE_TIMEOUT),
        .request_ns = config_number(config, CONFIG_HTTP_REQUEST_TIMEOUT),
    };
}

static const char *text_or_null(const struct config *config, enum config_key key)
{
    const char *text = config_text(config, key);

    return text[0] == '\0' ? NULL : text;
}

static void on_request_done(
    void *data, const struct http_request *request, unsigned status, uint64_t took_ns)
{
    struct server *server = data;

    otlp_record_request(server->otlp, request, status, took_ns);
}

int server_start_public(struct server *server, char *why, size_t why_size)
{
    const struct config *config = &server->config;
    const char *certificate = text_or_null(config, CONFIG_SERVER_TLS_CERTIFICATE);
    size_t route_count;
    int rc;

    tr_assert(server->routes == NULL);
    tr_assert(server->auth != NULL);
    rc = service_merge_routes(server->services, server->states, server->service_count, why,
        why_size, &server->routes, &route_count);
    if (rc == 0) {
        rc = split_proxies(server);
        if (rc != 0)
            snprintf(why, why_size, "%s", tr_error_text(rc));
    }
    if (rc == 0)
        rc = http_server_start(server->system,
            &(struct http_server_options){ .listen = config_text(config, CONFIG_SERVER_LISTEN),
                .routes = server->routes,
                .route_count = route_count,
                .gate_service = server->auth,
                .limits = limits_of(config),
                .tls_certificate_path = certificate,
                .tls_key_path = text_or_null(config, CONFIG_SERVER_TLS_KEY),
                .trusted_proxies = server->proxies,
                .name = "public",
                .quiet = !config_is_on(config, CONFIG_HTTP_ACCESS_LOG),
                .on_done = on_request_done,
                .on_done_data = server,
                .supervisor = server->tree.senders[SERVER_PUBLIC] },
            why, why_size, &server->public_http);
    if (rc != 0)
        server_explain_listen(
            rc, config_text(config, CONFIG_SERVER_LISTEN), "--listen", why, why_size);
    if (rc == 0)
        snprintf(server->public_address, sizeof server->public_address, "%s%s",
            certificate == NULL ? "http://" : "https://", http_server_address(server->public_http));
    return rc;
}
