/* SPDX-License-Identifier: Apache-2.0 */
/* The access log and the metrics, as an operator sees them. */
#include <fcntl.h>

#include <troupe/inspect.h>

#include "http_stage.h"
#include "support/metric.h"

static const struct metric *metric_find(const char *name, const char *labels)
{
    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0 && metric->labels != NULL &&
            strcmp(metric->labels, labels) == 0)
            return metric;
    return NULL;
}

static int64_t metric_value(const char *name, const char *labels)
{
    const struct metric *metric = metric_find(name, labels);

    CHECK_MSG(metric != NULL, "there is no %s{%s}", name, labels);
    return metric_get(metric);
}

TEST(seen, requests_are_counted_by_route_and_class)
{
    STAGE({ 0 });
    struct client *client = client_open(http_server_address(stage.server));
    const struct metric *seconds;

    for (int i = 0; i < 3; i++)
        client_ask(client, "GET /hello HTTP/1.1\r\n" HOST "\r\n", answer);
    client_ask(client, "GET /ask/n HTTP/1.1\r\n" HOST "\r\n", answer);
    client_ask(client, "GET /no/such/path/as/this HTTP/1.1\r\n" HOST "\r\n", answer);
    client_ask(client, "nonsense\r\n\r\n", answer);
    client_close(client);
    CHECK_EQ_INT(
        metric_value("troupe_http_requests_total", "server=\"test\",route=\"/hello\",code=\"2xx\""),
        3);
    CHECK_EQ_INT(metric_value("troupe_http_requests_total",
                     "server=\"test\",route=\"/ask/{kind}\",code=\"5xx\""),
        1);
    CHECK_EQ_INT(
        metric_value("troupe_http_requests_total", "server=\"test\",route=\"none\",code=\"4xx\""),
        2);
    seconds = metric_find("troupe_http_request_seconds", "server=\"test\",route=\"/hello\"");
    CHECK(seconds != NULL);
    CHECK_EQ_U64(atomic_load(&seconds->histogram->count), 3);
    CHECK_EQ_INT(metric_value("troupe_http_connections_total", "server=\"test\""), 1);
    STAGE_END();
    CHECK_EQ_INT(metric_value("troupe_http_connections", "server=\"test\""), 0);
    CHECK_EQ_INT(metric_value("troupe_http_in_flight", "server=\"test\""), 0);
}

/* Returns the line with that text, without its newline. The check fails if there is none. */
static const char *line_with(const char *text, const char *what, char *line, size_t size)
{
    const char *at = strstr(text, what), *from = at, *end;

    CHECK_MSG(at != NULL, "no line has %s: %s", what, text);
    while (from > text && from[-1] != '\n')
        from--;
    end = strchr(at, '\n');
    CHECK(end != NULL);
    CHECK((size_t)(end - from) < size);
    memcpy(line, from, (size_t)(end - from));
    line[end - from] = '\0';
    return line;
}

static int count_of(const char *text, const char *what)
{
    int count = 0;

    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        count++;
    return count;
}

TEST(seen, the_access_log_has_ids_and_no_query)
{
    struct stage stage = { 0 };
    const struct http_route routes[] = STAGE_ROUTES(&stage);
    struct http_server_options options = { .listen = "127.0.0.1:0",
        .routes = routes,
        .route_count = sizeof routes / sizeof routes[0],
        .name = "test" };
    struct answer *answer = calloc(1, sizeof *answer);
    struct client *client;
    char path[] = "/tmp/troupe-http-log-XXXXXX", text[8192], line[4096], want[64];
    int fd = mkstemp(path);
    ssize_t size;

    CHECK(fd >= 0);
    log_actor_source(tr_thread_actor);
    log_setup(fd, LOG_LOGFMT, LOG_INFO);
    stage_start_with(&stage, &options, 1);
    client = client_open(http_server_address(stage.server));
    client_ask(client,
        "GET /show/a?token=canary-secret HTTP/1.1\r\n" HOST
        "Authorization: Bearer canary-secret\r\n"
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n",
        answer);
    CHECK_EQ_INT(answer->status, 200);
    client_ask(client, "GET /silent HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 500);
    snprintf(want, sizeof want, " request=%.32s ", answer_header(answer, "X-Request-Id"));
    client_ask(client, "GET /bad%0aline HTTP/1.1\r\n" HOST "\r\n", answer);
    CHECK_EQ_INT(answer->status, 400);
    client_close(client);
    http_server_stop(&stage.server);
    size = pread(fd, text, sizeof text - 1, 0);
    CHECK(size > 0);
    text[size] = '\0';
    CHECK_MSG(strstr(text, "canary") == NULL, "%s", text);
    line_with(text, "path=/show/a", line, sizeof line);
    CHECK_MSG(strstr(line, "status=200") != NULL, "%s", line);
    CHECK_MSG(strstr(line, " request=0af7651916cd43dd8448eb211c80319c") != NULL, "%s", line);
    CHECK_MSG(strstr(line, " trace=0af7651916cd43dd8448eb211c80319c") != NULL, "%s", line);
    CHECK_MSG(strstr(line, " actor=\"http connection#") != NULL, "%s", line);
    CHECK_MSG(strstr(line, "peer=127.0.0.1") != NULL, "%s", line);
    CHECK_EQ_INT(count_of(line, " request="), 1);
    line_with(text, "status=400", line, sizeof line);
    CHECK_MSG(strstr(line, " request=") != NULL, "%s", line);
    CHECK_MSG(strstr(line, " trace=") == NULL, "%s", line);
    /* A line written inside the handler creates the id that the client gets. */
    line_with(text, "the handler gave no answer", line, sizeof line);
    CHECK_MSG(strstr(line, want) != NULL, "%s is not in %s", want, line);
    line_with(text, "status=500", line, sizeof line);
    CHECK_MSG(strstr(line, want) != NULL, "%s is not in %s", want, line);
    close(fd);
    unlink(path);
    STAGE_END();
}
