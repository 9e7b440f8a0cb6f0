/* SPDX-License-Identifier: Apache-2.0 */
/* load.c: downloads the same URL over and over on some connections and throws the bytes away inside
 * the kernel (MSG_TRUNC), so that the client costs as little as a client can: one thread, one
 * epoll. Says what it got in SECONDS, and the CPU time that the processes PID used meanwhile.
 *
 *     packs-load [-w WARM_UP_SECONDS] [-p PID]... HOST:PORT PATH CONNECTIONS SECONDS [HEADER...]
 *     packs-load HOST:PORT PATH CONNECTIONS once [HEADER...]   one request each, all at once
 *
 * The count begins after the warm-up and ends before the connections are closed. Sockets hold
 * megabytes each, and a server that has just begun works mostly to fill them. They are full when
 * the count begins, and still full when it ends.
 *
 * Output: requests, bytes of bodies, answers that were not 200 or 206, seconds, CPU seconds. */
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
#include <time.h>
#include <unistd.h>

#include <troupe/troupe.h>

enum { HEAD_MAX = 8192, TAKE = 4 << 20, EVENTS = 256, PIDS_MAX = 64 };

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
    pid_t pids[PIDS_MAX];
    int pid_count;
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

/* Of all threads of the servers, exact to the moment: the counters in /proc lag behind by a tick.
 */
static uint64_t server_cpu_ns(void)
{
    uint64_t sum_ns = 0;

    for (int i = 0; i < load.pid_count; i++) {
        struct timespec used;
        clockid_t clock;

        if (clock_getcpuclockid(load.pids[i], &clock) != 0 ||
            clock_gettime(clock, &used) != 0) /* tidy: allow clock_gettime, because it is no time */
            die("clock of a server");
        sum_ns += (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
    }
    return sum_ns;
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
    size_t behind = connection->used - end; /* of the body */

    connection->head[end - 1] = '\0';
    length = strcasestr(connection->head, "\r\nContent-Length:");
    connection->left = length == NULL ? 0 : strtoull(length + 17, NULL, 10);
    if (strncmp(connection->head + 9, "200", 3) != 0 &&
        strncmp(connection->head + 9, "206", 3) != 0)
        load.wrong++;
    load.bytes += behind;
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
    load.bytes += (uint64_t)got;
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

/* The arguments without the options: HOST:PORT PATH CONNECTIONS SECONDS [HEADER...]. */
static void make_request(int count, char **arguments)
{
    int size = snprintf(load.request, sizeof load.request, "GET %s HTTP/1.1\r\nHost: %s\r\n",
        arguments[1], arguments[0]);

    for (int i = 4; i < count; i++)
        size += snprintf(
            load.request + size, sizeof load.request - (size_t)size, "%s\r\n", arguments[i]);
    size += snprintf(load.request + size, sizeof load.request - (size_t)size, "\r\n");
    load.request_size = (size_t)size;
}

static void find_address(const char *text)
{
    const char *colon = strrchr(text, ':');
    char host[64];

    snprintf(host, sizeof host, "%.*s", colon == NULL ? 0 : (int)(colon - text), text);
    load.address.sin_family = AF_INET;
    load.address.sin_port = htons((uint16_t)strtoul(colon == NULL ? "" : colon + 1, NULL, 10));
    if (inet_pton(AF_INET, host, &load.address.sin_addr) != 1) {
        fprintf(stderr, "packs-load: %s is no IPv4 address with a port\n", text);
        exit(2);
    }
}

static void measure(double warm_up_s, double seconds)
{
    uint64_t begin_ns = now_ns(), begin_cpu_ns;

    if (warm_up_s > 0) {
        run(begin_ns + (uint64_t)(warm_up_s * 1e9));
        load.requests = load.bytes = 0;
        begin_ns = now_ns();
    }
    begin_cpu_ns = server_cpu_ns();
    run(begin_ns + (uint64_t)(seconds * 1e9));
    printf("%llu requests %llu bytes %llu wrong %.6f s %.6f CPU\n",
        (unsigned long long)load.requests, (unsigned long long)load.bytes,
        (unsigned long long)load.wrong, (double)(now_ns() - begin_ns) / 1e9,
        (double)(server_cpu_ns() - begin_cpu_ns) / 1e9);
}

int main(int count, char **arguments)
{
    struct rlimit files = { 65536, 65536 };
    struct connection *connections;
    uint64_t connection_count;
    double warm_up_s = 0;
    int option;

    while ((option = getopt(count, arguments, "+w:p:")) != -1) {
        if (option == 'w')
            warm_up_s = strtod(optarg, NULL);
        else if (option == 'p' && load.pid_count < PIDS_MAX)
            load.pids[load.pid_count++] = (pid_t)strtol(optarg, NULL, 10);
        else
            optind = count;
    }
    count -= optind;
    arguments += optind;
    if (count < 4) {
        fprintf(stderr, "use: packs-load [-w WARM_UP_SECONDS] [-p PID]... "
                        "HOST:PORT PATH CONNECTIONS SECONDS|once [HEADER...]\n");
        return 2;
    }
    (void)setrlimit(RLIMIT_NOFILE, &files);
    find_address(arguments[0]);
    make_request(count, arguments);
    connection_count = strtoull(arguments[2], NULL, 10);
    load.is_once = strcmp(arguments[3], "once") == 0;
    connections = calloc(connection_count, sizeof *connections);
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (connections == NULL || load.epoll < 0)
        die("start");
    for (uint64_t i = 0; i < connection_count; i++)
        start(&connections[i]);
    for (uint64_t i = 0; i < connection_count; i++)
        ask(&connections[i]);
    measure(warm_up_s, load.is_once ? 120 : strtod(arguments[3], NULL));
    free(connections);
    return 0;
}
