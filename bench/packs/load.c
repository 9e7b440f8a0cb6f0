/* SPDX-License-Identifier: Apache-2.0 */
/* load.c: downloads the same URL over and over on some connections and throws the bytes away inside
 * the kernel (MSG_TRUNC), so that the client costs as little as a client can: one thread, one
 * epoll. Says what it got; what it cost the server is counted by who started it.
 *
 *     packs-load HOST:PORT PATH CONNECTIONS SECONDS [HEADER...]
 *     packs-load HOST:PORT PATH CONNECTIONS once [HEADER...]   one request each, all at once
 *
 * Output: requests, bytes of bodies, answers that were not 200 or 206, seconds. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <troupe/troupe.h>

enum { HEAD_MAX = 8192, TAKE = 4 << 20, EVENTS = 256 };

struct connection {
    int fd;
    bool is_open;
    uint64_t left; /* of the body */
    bool in_body;
    size_t used; /* of the head */
    char head[HEAD_MAX];
};

static struct {
    char request[4096];
    size_t request_size;
    struct sockaddr_in address;
    int epoll;
    bool is_once;
    uint64_t requests, bytes, wrong;
    uint32_t open;
} load;

static uint64_t now_ns(void)
{
    const struct tr_env *env = tr_env_real();

    return env->now_ns(env->data);
}

static void die(const char *what)
{
    fprintf(stderr, "packs-load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void ask(struct connection *connection)
{
    connection->used = 0;
    connection->in_body = false;
    if (send(connection->fd, load.request, load.request_size, MSG_NOSIGNAL) !=
        (ssize_t)load.request_size)
        die("send");
}

static void start(struct connection *connection)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = connection };
    int one = 1;

    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->fd < 0 ||
        connect(connection->fd, (struct sockaddr *)&load.address, sizeof load.address) != 0)
        die("connect");
    (void)setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fcntl(connection->fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(load.epoll, EPOLL_CTL_ADD, connection->fd, &event) != 0)
        die("epoll");
    connection->is_open = true;
    load.open++;
}

static void finish(struct connection *connection)
{
    close(connection->fd);
    connection->is_open = false;
    load.open--;
}

static void complete(struct connection *connection)
{
    load.requests++;
    if (load.is_once)
        finish(connection);
    else
        ask(connection);
}

/* The head is complete at `end`. */
static void read_head(struct connection *connection, size_t end)
{
    char *length;
    size_t behind = connection->used - end;

    connection->head[end - 1] = '\0';
    length = strcasestr(connection->head, "\r\nContent-Length:");
    connection->left = length == NULL ? 0 : strtoull(length + 17, NULL, 10);
    if (strncmp(connection->head + 9, "200", 3) != 0 &&
        strncmp(connection->head + 9, "206", 3) != 0)
        load.wrong++;
    load.bytes += connection->left;
    connection->left -= behind < connection->left ? behind : connection->left;
    connection->in_body = true;
    if (connection->left == 0)
        complete(connection);
}

static bool on_head(struct connection *connection)
{
    ssize_t got = recv(
        connection->fd, connection->head + connection->used, HEAD_MAX - 1 - connection->used, 0);
    const char *end;

    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    connection->used += (size_t)got;
    connection->head[connection->used] = '\0';
    end = memmem(connection->head, connection->used, "\r\n\r\n", 4);
    if (end != NULL)
        read_head(connection, (size_t)(end + 4 - connection->head));
    return true;
}

static bool on_body(struct connection *connection)
{
    size_t size = connection->left < TAKE ? (size_t)connection->left : TAKE;
    /* Nothing is written: it needs no room. */
    ssize_t got = recv(connection->fd, NULL, size, MSG_TRUNC);

    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    connection->left -= (uint64_t)got;
    if (connection->left == 0)
        complete(connection);
    return true;
}

static void run(uint64_t until_ns)
{
    struct epoll_event events[EVENTS];

    while (load.open > 0 && now_ns() < until_ns) {
        int count = epoll_wait(load.epoll, events, EVENTS, 100);

        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;

            if (!(connection->in_body ? on_body(connection) : on_head(connection))) {
                load.wrong++;
                finish(connection);
            }
        }
    }
}

static void make_request(int count, char **arguments)
{
    int size = snprintf(load.request, sizeof load.request, "GET %s HTTP/1.1\r\nHost: %s\r\n",
        arguments[2], arguments[1]);

    for (int i = 5; i < count; i++)
        size += snprintf(
            load.request + size, sizeof load.request - (size_t)size, "%s\r\n", arguments[i]);
    size += snprintf(load.request + size, sizeof load.request - (size_t)size, "\r\n");
    load.request_size = (size_t)size;
}

int main(int count, char **arguments)
{
    struct rlimit files = { 65536, 65536 };
    struct connection *connections;
    char host[64];
    const char *colon;
    uint64_t begin_ns, connection_count;
    double seconds;

    if (count < 5 || (colon = strrchr(arguments[1], ':')) == NULL) {
        fprintf(stderr, "use: packs-load HOST:PORT PATH CONNECTIONS SECONDS|once [HEADER...]\n");
        return 2;
    }
    (void)setrlimit(RLIMIT_NOFILE, &files);
    snprintf(host, sizeof host, "%.*s", (int)(colon - arguments[1]), arguments[1]);
    load.address.sin_family = AF_INET;
    load.address.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(AF_INET, host, &load.address.sin_addr) != 1) {
        fprintf(stderr, "packs-load: %s is no IPv4 address\n", host);
        return 2;
    }
    make_request(count, arguments);
    connection_count = strtoull(arguments[3], NULL, 10);
    load.is_once = strcmp(arguments[4], "once") == 0;
    seconds = load.is_once ? 120 : strtod(arguments[4], NULL);
    connections = calloc(connection_count, sizeof *connections);
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (connections == NULL || load.epoll < 0)
        die("start");
    for (uint64_t i = 0; i < connection_count; i++)
        start(&connections[i]);
    begin_ns = now_ns();
    for (uint64_t i = 0; i < connection_count; i++)
        ask(&connections[i]);
    run(begin_ns + (uint64_t)(seconds * 1e9));
    /* What is on its way counts too: a file of a gigabyte takes longer than a round. */
    for (uint64_t i = 0; i < connection_count; i++)
        if (connections[i].is_open && connections[i].in_body)
            load.bytes -= connections[i].left;
    printf("%llu requests %llu bytes %llu wrong %.6f s\n", (unsigned long long)load.requests,
        (unsigned long long)load.bytes, (unsigned long long)load.wrong,
        (double)(now_ns() - begin_ns) / 1e9);
    free(connections);
    return 0;
}
