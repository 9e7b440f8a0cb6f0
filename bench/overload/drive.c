/* SPDX-License-Identifier: Apache-2.0 */
/* drive.c: an open-loop HTTP/1.1 client. Requests are due at even distances, whatever the server
 * does; the time of an answer counts from when its request was due, so a server that stalls is
 * not asked less and not flattered (no coordinated omission). One thread, one epoll.
 *
 *     drive HOST:PORT|unix:PATH [-b] [-r RATE] [-c CONNECTIONS] [-s SECONDS] [-p PATH] [-f FILE]
 *
 * -r 0 is a closed loop: each connection asks again when it was answered; that measures capacity.
 * -b never sleeps. To wake a client on the same machine costs the server's core time for every
 * answer, which a client elsewhere does not cost it; for a client that has a core to itself.
 * -f FILE has a request a line: a bearer token, a space, the body of a POST. A line that was shed
 * (429, 503) is used again later, as a client would; any other answer uses it up. Prints `name
 * value` lines; times in microseconds. Exit status 3: the lines of the file were used up early. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 15000, INPUT_BYTES = 4096, OUTPUT_BYTES = 8192, EVENTS = 512 };
enum { PATIENCE_S = 5 }; /* for what is still under way at the end */

struct samples {
    uint32_t *us;
    size_t count, capacity;
};

struct line {
    const char *at;
    uint32_t size;
    uint32_t token_size;
};

struct connection {
    int fd;
    bool is_busy, is_broken;
    uint64_t due_ns, sent_ns;
    struct line *line;
    size_t input_size;
    size_t skip; /* bytes of a body that does not fit into input */
    char input[INPUT_BYTES];
};

static struct {
    struct sockaddr_storage address;
    socklen_t address_size;
    const char *host, *path;
    double rate;
    unsigned connection_count, seconds;
    bool is_restless;
    int epoll;
    struct connection *connections;
    unsigned *idle, idle_count;
    struct line *lines;
    struct line **ready; /* a ring of lines that may be sent */
    size_t line_count, ready_first, ready_count;
    uint64_t began_ns, ended_ns, due, sent, busy;
    uint64_t statuses[6], shed, no_retry_after, broken, backlog_max;
    bool is_dry;
    struct samples good, shed_due, shed_sent;
} drive = { .path = "/xrpc/_health", .rate = 1000, .connection_count = 64, .seconds = 5 };

static void die(const char *what)
{
    fprintf(stderr, "drive: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- samples --------------------------------------------------------------------------------- */

static void add_sample(struct samples *samples, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t us = to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;

    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity == 0 ? 65536 : samples->capacity * 2;
        samples->us = realloc(samples->us, samples->capacity * sizeof *samples->us);
        if (samples->us == NULL)
            die("samples");
    }
    samples->us[samples->count++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void print_samples(const char *name, struct samples *samples)
{
    size_t count = samples->count;

    if (count == 0)
        return;
    qsort(samples->us, count, sizeof *samples->us, compare);
    printf("%s_us_p50 %u\n%s_us_p99 %u\n%s_us_max %u\n", name, samples->us[count / 2], name,
        samples->us[count * 99 / 100], name, samples->us[count - 1]);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void read_lines(const char *path)
{
    struct stat info;
    char *text, *at, *end;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &info) < 0)
        die(path);
    text = malloc((size_t)info.st_size + 1);
    if (text == NULL || read(fd, text, (size_t)info.st_size) != info.st_size)
        die(path);
    close(fd);
    end = text + info.st_size;
    for (at = text; at < end; at++)
        drive.line_count += *at == '\n';
    drive.lines = calloc(drive.line_count + 1, sizeof *drive.lines);
    drive.ready = calloc(drive.line_count + 1, sizeof(struct line *));
    if (drive.lines == NULL || drive.ready == NULL)
        die(path);
    at = text;
    for (size_t i = 0; i < drive.line_count; i++) {
        char *next = memchr(at, '\n', (size_t)(end - at));
        char *space = memchr(at, ' ', (size_t)(next - at));

        if (space == NULL || next - at > OUTPUT_BYTES - 512) {
            fprintf(stderr, "drive: %s:%zu: expected TOKEN BODY\n", path, i + 1);
            exit(1);
        }
        drive.lines[i] = (struct line){ at, (uint32_t)(next - at), (uint32_t)(space - at) };
        drive.ready[i] = &drive.lines[i];
        at = next + 1;
    }
    drive.ready_count = drive.line_count;
}

static void give_back(struct line *line)
{
    if (line != NULL)
        drive.ready[(drive.ready_first + drive.ready_count++) % drive.line_count] = line;
}

/* False: no line is left. */
static bool encode(struct connection *connection, char *output, size_t *ret_size)
{
    struct line *line = NULL;
    int size;

    if (drive.lines != NULL) {
        if (drive.ready_count == 0)
            return false;
        line = drive.ready[drive.ready_first];
        drive.ready_first = (drive.ready_first + 1) % drive.line_count;
        drive.ready_count--;
    }
    connection->line = line;
    if (line == NULL)
        size = snprintf(
            output, OUTPUT_BYTES, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", drive.path, drive.host);
    else
        size = snprintf(output, OUTPUT_BYTES,
            "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %.*s\r\n"
            "Content-Type: application/json\r\nContent-Length: %u\r\n\r\n%.*s",
            drive.path, drive.host, (int)line->token_size, line->at,
            line->size - line->token_size - 1, (int)(line->size - line->token_size - 1),
            line->at + line->token_size + 1);
    *ret_size = (size_t)size;
    return true;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void open_connection(struct connection *connection)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = connection };
    int one = 1;

    connection->fd = socket(drive.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        die("socket");
    connection->is_broken = false;
    connection->is_busy = false;
    connection->input_size = connection->skip = 0;
    /* Blocking: on loopback it waits for nobody but the kernel. */
    if (connect(connection->fd, (struct sockaddr *)&drive.address, drive.address_size) < 0) {
        close(connection->fd);
        connection->fd = -1;
        connection->is_broken = true;
        return;
    }
    if (drive.address.ss_family == AF_INET)
        (void)setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(drive.epoll, EPOLL_CTL_ADD, connection->fd, &event) < 0)
        die("epoll_ctl");
}

static void put_idle(struct connection *connection)
{
    drive.idle[drive.idle_count++] = (unsigned)(connection - drive.connections);
}

static void renew(struct connection *connection)
{
    bool was_busy = connection->is_busy;

    if (connection->fd >= 0)
        close(connection->fd);
    if (was_busy) {
        drive.busy--;
        drive.broken++;
        give_back(connection->line);
    }
    open_connection(connection);
    if (was_busy)
        put_idle(connection);
}

static bool send_request(struct connection *connection, uint64_t due_ns)
{
    char output[OUTPUT_BYTES];
    size_t size;

    if (connection->is_broken)
        open_connection(connection);
    if (connection->is_broken) {
        drive.broken++;
        put_idle(connection);
        return true;
    }
    if (!encode(connection, output, &size))
        return false;
    connection->is_busy = true;
    connection->due_ns = due_ns;
    connection->sent_ns = now_ns();
    drive.busy++;
    drive.sent++;
    if (send(connection->fd, output, size, MSG_NOSIGNAL) != (ssize_t)size)
        renew(connection);
    return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

static const char *find_header(const char *head, size_t size, const char *name)
{
    return memmem(head, size, name, strlen(name));
}

static void count_answer(struct connection *connection, unsigned status, bool has_retry_after)
{
    uint64_t now = now_ns();

    drive.statuses[status / 100 < 6 ? status / 100 : 0]++;
    if (status == 503 || status == 429) {
        drive.shed++;
        drive.no_retry_after += !has_retry_after;
        add_sample(&drive.shed_due, connection->due_ns, now);
        add_sample(&drive.shed_sent, connection->sent_ns, now);
        give_back(connection->line);
    } else if (status / 100 == 2) {
        add_sample(&drive.good, connection->due_ns, now);
    }
    drive.busy--;
    connection->is_busy = false;
    drive.ended_ns = now;
}

/* Takes every whole answer from the input. Returns false if the connection must be made anew. */
static bool take_answer(struct connection *connection)
{
    char *end;
    const char *length;
    size_t head_size, body_size;
    unsigned status;
    bool closes;

    if (connection->skip > 0 || connection->input_size == 0)
        return true;
    end = memmem(connection->input, connection->input_size, "\r\n\r\n", 4);
    if (end == NULL)
        return connection->input_size < INPUT_BYTES;
    head_size = (size_t)(end - connection->input) + 4;
    length = find_header(connection->input, head_size, "\r\nContent-Length: ");
    if (length == NULL || !connection->is_busy)
        return false;
    body_size = strtoul(length + 18, NULL, 10);
    status = (unsigned)strtoul(connection->input + 9, NULL, 10);
    closes = find_header(connection->input, head_size, "\r\nConnection: close") != NULL;
    if (head_size + body_size > connection->input_size)
        connection->skip = head_size + body_size - connection->input_size;
    connection->input_size = 0;
    count_answer(
        connection, status, find_header(connection->input, head_size, "\r\nRetry-After: ") != NULL);
    if (closes) {
        renew(connection);
        put_idle(connection);
    } else if (connection->skip == 0) {
        put_idle(connection);
    }
    return true;
}

static void on_readable(struct connection *connection)
{
    char waste[INPUT_BYTES];
    ssize_t got;

    if (connection->skip > 0) {
        size_t most = connection->skip < sizeof waste ? connection->skip : sizeof waste;

        got = recv(connection->fd, waste, most, 0);
        if (got > 0) {
            connection->skip -= (size_t)got;
            if (connection->skip == 0)
                put_idle(connection);
            return;
        }
    } else {
        got = recv(connection->fd, connection->input + connection->input_size,
            INPUT_BYTES - connection->input_size, 0);
        if (got > 0) {
            connection->input_size += (size_t)got;
            if (take_answer(connection))
                return;
        }
    }
    if (got < 0 && errno == EAGAIN)
        return;
    if (!connection->is_busy && connection->skip == 0) {
        /* Idle for too long, as the server sees it. It is made anew when it is needed: thousands at
         * once would be a load of their own. */
        close(connection->fd);
        connection->fd = -1;
        connection->is_broken = true;
        return;
    }
    if (connection->skip > 0) { /* it was counted as answered, but is not among the idle */
        renew(connection);
        put_idle(connection);
        return;
    }
    renew(connection);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void send_due(uint64_t now, uint64_t end_ns)
{
    if (drive.rate > 0) {
        uint64_t until = now < end_ns ? now : end_ns;

        /* The first is due at once, the next a distance later. */
        drive.due = (uint64_t)((double)(until - drive.began_ns) / 1e9 * drive.rate) + 1;
        if (drive.due > drive.sent && drive.due - drive.sent > drive.backlog_max)
            drive.backlog_max = drive.due - drive.sent;
    }
    while (drive.idle_count > 0 && !drive.is_dry && now < end_ns &&
           (drive.rate <= 0 || drive.sent < drive.due)) {
        struct connection *connection = &drive.connections[drive.idle[--drive.idle_count]];
        uint64_t due_ns = drive.rate > 0
                              ? drive.began_ns + (uint64_t)((double)drive.sent * 1e9 / drive.rate)
                              : now_ns();

        if (!send_request(connection, due_ns)) {
            put_idle(connection);
            /* Requests in flight may come back; a closed loop has no others. */
            drive.is_dry = drive.busy == 0 || drive.rate > 0;
            break;
        }
        if (connection->is_broken)
            break; /* the server does not accept: not a spin */
    }
}

static void run(void)
{
    struct epoll_event events[EVENTS];
    uint64_t end_ns, now;

    drive.began_ns = drive.ended_ns = now_ns();
    end_ns = drive.began_ns + drive.seconds * UINT64_C(1000000000);
    for (;;) {
        struct timespec wait = { 0, 1000000 };
        int count;

        now = now_ns();
        send_due(now, end_ns);
        if (drive.is_dry && drive.busy == 0)
            break;
        if (now >= end_ns && (drive.busy == 0 || now >= end_ns + PATIENCE_S * UINT64_C(1000000000)))
            break;
        if (drive.rate > 0 && drive.idle_count > 0) {
            double next = 1e9 / drive.rate;

            wait.tv_nsec = next < 1e6 ? (long)next : 1000000;
        }
        if (drive.is_restless)
            wait.tv_nsec = 0;
        count = epoll_pwait2(drive.epoll, events, EVENTS, &wait, NULL);
        if (count < 0 && errno != EINTR)
            die("epoll_pwait2");
        for (int i = 0; i < count; i++)
            on_readable(events[i].data.ptr);
    }
}

static void report(void)
{
    double seconds = (double)(drive.ended_ns - drive.began_ns) / 1e9;
    struct rusage usage;

    if (seconds <= 0)
        seconds = 1;
    (void)getrusage(RUSAGE_SELF, &usage);
    printf("seconds %.2f\n", seconds);
    printf("sent %llu\n", (unsigned long long)drive.sent);
    if (drive.rate > 0)
        printf("unsent %llu\nbacklog_max %llu\n",
            (unsigned long long)(drive.due > drive.sent ? drive.due - drive.sent : 0),
            (unsigned long long)drive.backlog_max);
    for (unsigned i = 0; i < 6; i++)
        printf("status_%uxx %llu\n", i, (unsigned long long)drive.statuses[i]);
    printf("shed %llu\nno_retry_after %llu\nbroken %llu\nunanswered %llu\n",
        (unsigned long long)drive.shed, (unsigned long long)drive.no_retry_after,
        (unsigned long long)drive.broken, (unsigned long long)drive.busy);
    printf("offered_per_s %.0f\ngood_per_s %.0f\nshed_per_s %.0f\n", (double)drive.sent / seconds,
        (double)drive.statuses[2] / seconds, (double)drive.shed / seconds);
    print_samples("good", &drive.good);
    print_samples("shed", &drive.shed_due);
    print_samples("shed_since_sent", &drive.shed_sent);
    printf(
        "driver_cpu_s %.2f\n", (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                                   (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
}

static void usage(void)
{
    fprintf(stderr, "usage: drive HOST:PORT [-b] [-r RATE] [-c CONNECTIONS] [-s SECONDS] [-p PATH] "
                    "[-f FILE]\n");
    exit(2);
}

static void parse_unix(const char *path)
{
    struct sockaddr_un *address = (struct sockaddr_un *)&drive.address;

    if (strlen(path) >= sizeof address->sun_path)
        usage();
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, path, strlen(path) + 1);
    drive.address_size = sizeof *address;
    drive.host = "localhost";
}

static void parse_address(const char *text)
{
    struct sockaddr_in *address = (struct sockaddr_in *)&drive.address;
    const char *colon = strrchr(text, ':');
    char host[64];

    if (strncmp(text, "unix:", 5) == 0) {
        parse_unix(text + 5);
        return;
    }
    if (colon == NULL || (size_t)(colon - text) >= sizeof host)
        usage();
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    drive.host = text;
    drive.address_size = sizeof *address;
    address->sin_family = AF_INET;
    address->sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(AF_INET, host, &address->sin_addr) != 1)
        usage();
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    int option;

    while ((option = getopt(argc, argv, "br:c:s:p:f:")) != -1) {
        if (option == 'b')
            drive.is_restless = true;
        else if (option == 'r')
            drive.rate = strtod(optarg, NULL);
        else if (option == 'c')
            drive.connection_count = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 's')
            drive.seconds = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 'p')
            drive.path = optarg;
        else if (option == 'f')
            read_lines(optarg);
        else
            usage();
    }
    if (optind + 1 != argc || drive.connection_count == 0 ||
        drive.connection_count > CONNECTIONS_MAX)
        usage();
    parse_address(argv[optind]);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    drive.epoll = epoll_create1(EPOLL_CLOEXEC);
    drive.connections = calloc(drive.connection_count, sizeof *drive.connections);
    drive.idle = calloc(drive.connection_count + 1, sizeof *drive.idle);
    if (drive.epoll < 0 || drive.connections == NULL || drive.idle == NULL)
        die("start");
    for (unsigned i = 0; i < drive.connection_count; i++) {
        open_connection(&drive.connections[i]);
        put_idle(&drive.connections[i]);
    }
    run();
    report();
    return drive.is_dry ? 3 : 0;
}
