/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_server.h: a real server in the process of a fuzz target, and one exchange with it. A
 * client sends its bytes in two parts and ends; the target reads until the server closes. A
 * server that neither answers nor closes is a failure. */
#ifndef TEST_FUZZ_FUZZ_SERVER_H
#define TEST_FUZZ_FUZZ_SERVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "base/assert.h"
#include "http/http.h"
#include "support/log.h"

enum { FUZZ_WAIT_MS = 20000, FUZZ_ANSWER_MAX = 1 << 20 };

struct fuzz_server {
    struct tr_system *system;
    struct http_server *server;
    uint16_t port;
};

/* Starts a new server for each input, so that no state of one input meets the next. */
static inline void fuzz_server_start(
    struct fuzz_server *fuzz, const struct http_route *routes, size_t count)
{
    const struct tr_system_options system_options = { .workers = 1 };
    const struct http_server_options options = { .listen = "127.0.0.1:0",
        .routes = routes,
        .route_count = count,
        .limits = { .linger_ns = TR_MILLISECONDS(50) },
        .quiet = true };
    char why[256];

    log_setup(2, LOG_LOGFMT, LOG_ERROR);
    tr_assert(tr_system_create(&system_options, &fuzz->system) == 0);
    tr_assert(http_server_start(fuzz->system, &options, why, sizeof why, &fuzz->server) == 0);
    fuzz->port = (uint16_t)strtoul(strrchr(http_server_address(fuzz->server), ':') + 1, NULL, 10);
}

static inline void fuzz_server_stop(struct fuzz_server *fuzz)
{
    http_server_stop(&fuzz->server);
    tr_system_destroy(&fuzz->system);
}

static inline void fuzz_send(int fd, const void *bytes, size_t size)
{
    /* The server may have refused and closed already. */
    if (size > 0)
        (void)!send(fd, bytes, size, MSG_NOSIGNAL);
}

/* The fuzzer's clock is a signal, which interrupts the call. */
static inline void fuzz_wait(int fd)
{
    struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
    int ready;

    do
        ready = poll(&poll_fd, 1, FUZZ_WAIT_MS);
    while (ready < 0 && errno == EINTR);
    tr_assert(ready == 1);
}

/* Returns how many bytes came back into `answer`, of FUZZ_ANSWER_MAX. */
static inline size_t fuzz_exchange(uint16_t port, const void *first, size_t first_size,
    const void *second, size_t second_size, char *answer)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)
    };
    const struct linger at_once = { 1, 0 }; /* so that no thousands of sockets linger */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t size = 0;

    tr_assert(fd >= 0);
    tr_assert(connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    fuzz_send(fd, first, first_size);
    fuzz_send(fd, second, second_size);
    shutdown(fd, SHUT_WR);
    while (size < FUZZ_ANSWER_MAX) {
        ssize_t got;

        fuzz_wait(fd);
        got = recv(fd, answer + size, FUZZ_ANSWER_MAX - size, 0);
        if (got <= 0)
            break;
        size += (size_t)got;
    }
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
    return size;
}

#endif
