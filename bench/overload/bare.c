/* SPDX-License-Identifier: Apache-2.0 */
/* bare.c: the least a server can do: take what has come, answer it with the bytes of a refusal,
 * know nothing. The time is the kernel's price of an answer on this machine, and no refusal
 * can cost less. One thread, one epoll; prints its address; ends with its input.
 *
 *     bare [PATH]      at a unix socket, or on a port the system chooses */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { EVENTS = 64, READ_BYTES = 4096 };

static const char answer[] =
    "HTTP/1.1 503 Service Unavailable\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    "Content-Type: application/json\r\nContent-Length: 74\r\nRetry-After: 1\r\n\r\n"
    "{\"error\":\"Overloaded\",\"message\":\"The server is overloaded; retry in 1 s.\"}";

static void die(const char *what)
{
    fprintf(stderr, "bare: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void watch(int epoll, int fd, unsigned events)
{
    struct epoll_event event = { .events = events, .data.fd = fd };

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
}

static void serve(int fd)
{
    char bytes[READ_BYTES];
    ssize_t got = recv(fd, bytes, sizeof bytes, 0);

    if (got > 0)
        got = send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL);
    if (got == 0 || (got < 0 && errno != EAGAIN))
        close(fd);
}

static int listen_unix(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (listener < 0 || strlen(path) >= sizeof address.sun_path)
        die("socket");
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, 1024) < 0)
        die("listen");
    printf("unix:%s\n", path);
    return listener;
}

static int listen_tcp(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;

    if (listener < 0 || setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0 ||
        bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 1024) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        die("listen");
    printf("127.0.0.1:%u\n", ntohs(address.sin_port));
    return listener;
}

int main(int argc, char **argv)
{
    int listener = argc == 2 ? listen_unix(argv[1]) : listen_tcp();
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    if (epoll < 0)
        die("epoll_create1");
    watch(epoll, listener, EPOLLIN);
    watch(epoll, STDIN_FILENO, EPOLLIN);
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(epoll, events, EVENTS, -1);

        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;

            if (fd == STDIN_FILENO)
                return 0;
            if (fd == listener) {
                fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd >= 0)
                    watch(epoll, fd, EPOLLIN | EPOLLET);
            } else {
                serve(fd);
            }
        }
    }
}
