/* SPDX-License-Identifier: Apache-2.0 */
/* http_client.h: a raw client for tests of the server: bytes out, bytes in, with a deadline. It
 * knows just enough of HTTP to find where an answer ends. */
#ifndef TEST_LIB_HTTP_CLIENT_H
#define TEST_LIB_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

enum { CLIENT_WAIT_MS = 5000, CLIENT_BUFFER = 1 << 18 };

struct client {
    int fd;
    size_t size; /* of what was read and not taken */
    char bytes[CLIENT_BUFFER];
};

/* An answer, terminated texts. */
struct answer {
    int status; /* 0: the connection ended before one */
    size_t body_size;
    bool closes;
    char head[8192];
    char body[CLIENT_BUFFER];
};

static inline int client_socket(const char *address, int receive_buffer)
{
    const char *colon = strrchr(address, ':');
    int fd, rc;

    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un un = { .sun_family = AF_UNIX };

        snprintf(un.sun_path, sizeof un.sun_path, "%s", address + 5);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0);
        rc = connect(fd, (struct sockaddr *)&un, sizeof un);
    } else {
        struct sockaddr_in in = { .sin_family = AF_INET };

        in.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
        in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0);
        if (receive_buffer > 0)
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
        rc = connect(fd, (struct sockaddr *)&in, sizeof in);
    }
    CHECK_MSG(rc == 0, "connect to %s: %s", address, strerror(errno));
    return fd;
}

static inline struct client *client_open(const char *address)
{
    struct client *client = calloc(1, sizeof *client);

    CHECK(client != NULL);
    client->fd = client_socket(address, 0);
    return client;
}

static inline void client_close(struct client *client)
{
    close(client->fd);
    free(client);
}

/* True if all of it went out: the server may have closed. */
static inline bool client_try_send(struct client *client, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(client->fd, bytes, size, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

static inline void client_send(struct client *client, const char *text)
{
    client_try_send(client, text, strlen(text));
}

/* Read more. False: the connection ended (or was reset). Fails the case if nothing comes. */
static inline bool client_fill(struct client *client)
{
    struct pollfd poll_fd = { .fd = client->fd, .events = POLLIN };
    ssize_t got;

    CHECK_MSG(poll(&poll_fd, 1, CLIENT_WAIT_MS) == 1, "the server neither answers nor closes");
    CHECK(client->size < sizeof client->bytes);
    got = recv(client->fd, client->bytes + client->size, sizeof client->bytes - client->size, 0);
    if (got <= 0)
        return false;
    client->size += (size_t)got;
    return true;
}

static inline void client_take(struct client *client, char *to, size_t room, size_t size)
{
    CHECK(size < room);
    memcpy(to, client->bytes, size);
    to[size] = '\0';
    memmove(client->bytes, client->bytes + size, client->size - size);
    client->size -= size;
}

static inline const char *answer_header(const struct answer *answer, const char *name)
{
    static _Thread_local char value[1024];
    const char *at = answer->head;
    size_t size = strlen(name);

    while ((at = strstr(at, "\r\n")) != NULL) {
        at += 2;
        if (strncasecmp(at, name, size) == 0 && at[size] == ':') {
            const char *end = strstr(at, "\r\n");

            at += size + 1;
            while (*at == ' ')
                at++;
            snprintf(value, sizeof value, "%.*s", (int)(end - at), at);
            return value;
        }
    }
    return NULL;
}

static inline void client_read_chunks(struct client *client, struct answer *answer)
{
    for (;;) {
        char *end;
        size_t size, line;

        client->bytes[client->size] = '\0';
        while (strstr(client->bytes, "\r\n") == NULL) {
            if (!client_fill(client))
                return;
            client->bytes[client->size] = '\0';
        }
        size = strtoul(client->bytes, &end, 16);
        line = (size_t)(strstr(client->bytes, "\r\n") - client->bytes) + 2;
        while (client->size < line + size + 2)
            if (!client_fill(client))
                return;
        CHECK(answer->body_size + size < sizeof answer->body);
        memcpy(answer->body + answer->body_size, client->bytes + line, size);
        answer->body_size += size;
        answer->body[answer->body_size] = '\0';
        memmove(client->bytes, client->bytes + line + size + 2, client->size - line - size - 2);
        client->size -= line + size + 2;
        if (size == 0)
            return;
    }
}

/* Only the head. */
static inline void client_read_head(struct client *client, struct answer *answer)
{
    char *end = NULL;

    memset(answer, 0, offsetof(struct answer, body));
    answer->body[0] = '\0';
    for (;;) {
        CHECK(client->size < sizeof client->bytes);
        client->bytes[client->size] = '\0';
        end = strstr(client->bytes, "\r\n\r\n");
        if (end != NULL)
            break;
        if (!client_fill(client))
            return;
    }
    client_take(client, answer->head, sizeof answer->head, (size_t)(end - client->bytes) + 4);
    CHECK_EQ_INT(strncmp(answer->head, "HTTP/1.1 ", 9), 0);
    answer->status = (int)strtol(answer->head + 9, NULL, 10);
    answer->closes = answer_header(answer, "Connection") != NULL &&
                     strcasecmp(answer_header(answer, "Connection"), "close") == 0;
}

static inline void client_read(struct client *client, struct answer *answer, bool has_body)
{
    const char *length;
    size_t size;

    client_read_head(client, answer);
    if (answer->status == 0 || !has_body || answer->status < 200 || answer->status == 204 ||
        answer->status == 304)
        return;
    length = answer_header(answer, "Content-Length");
    if (length == NULL) {
        client_read_chunks(client, answer);
        return;
    }
    size = strtoul(length, NULL, 10);
    while (client->size < size)
        if (!client_fill(client))
            return;
    answer->body_size = size;
    client_take(client, answer->body, sizeof answer->body, size);
}

/* Send, read one answer. */
static inline void client_ask(struct client *client, const char *text, struct answer *answer)
{
    client_send(client, text);
    client_read(client, answer, strncmp(text, "HEAD ", 5) != 0);
}

/* True if the connection ends without another byte. */
static inline bool client_ends(struct client *client)
{
    if (client->size > 0)
        return false;
    return !client_fill(client);
}

/* All until the connection ends; returns the number of answers in it. */
static inline unsigned client_read_all(struct client *client)
{
    unsigned count = 0;
    const char *at;

    while (client->size < sizeof client->bytes - 1 && client_fill(client)) {
    }
    client->bytes[client->size < sizeof client->bytes ? client->size : sizeof client->bytes - 1] =
        '\0';
    for (at = client->bytes; (at = strstr(at, "HTTP/1.1 ")) != NULL; at++)
        count++;
    return count;
}

#endif
