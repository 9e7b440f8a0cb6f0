/* SPDX-License-Identifier: Apache-2.0 */
#include "web.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

enum { PATIENCE_MS = 15000 };

int web_connect(const char *address)
{
    const char *colon = strrchr(address, ':');
    struct sockaddr_in to = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error = 0;
    struct pollfd made = { fd, POLLOUT, 0 };
    socklen_t size = sizeof error;

    CHECK(colon != NULL && fd >= 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        CHECK_MSG(errno == EINTR, "connect: %s", strerror(errno)); /* it goes on by itself */
        while (poll(&made, 1, PATIENCE_MS) < 0)
            CHECK(errno == EINTR);
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
    }
    return fd;
}

void web_send(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(fd, text, size, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        CHECK(sent > 0);
        text += sent;
        size -= (size_t)sent;
    }
}

/* False: the server closed. */
static bool receive_some(int fd, struct web_answer *answer)
{
    enum { PIECE = 64 << 10 };
    struct pollfd ready = { fd, POLLIN, 0 };
    ssize_t got;
    int count;

    /* By doubling: under a sanitizer every growth is a copy, and some answers have megabytes. */
    if (answer->capacity < answer->size + PIECE + 1) {
        answer->capacity = 2 * answer->size + PIECE + 1;
        answer->text = realloc(answer->text, answer->capacity);
    }
    CHECK(answer->text != NULL);
    do {
        count = poll(&ready, 1, PATIENCE_MS);
    } while (count < 0 && errno == EINTR); /* libFuzzer has an alarm */
    CHECK_MSG(count == 1, "the server says nothing");
    got = recv(fd, answer->text + answer->size, PIECE, 0);
    CHECK(got >= 0 || errno == ECONNRESET);
    if (got > 0)
        answer->size += (size_t)got;
    answer->text[answer->size] = '\0';
    return got > 0;
}

static void read_head(struct web_answer *answer)
{
    const char *end = strstr(answer->text, "\r\n\r\n");

    if (answer->size > 12 && memcmp(answer->text, "HTTP/1.1 ", 9) == 0)
        answer->status = (unsigned)strtoul(answer->text + 9, NULL, 10);
    answer->body = end == NULL ? answer->text + answer->size : end + 4;
}

void web_receive(int fd, struct web_answer *ret_answer)
{
    *ret_answer = (struct web_answer){ 0 };
    while (receive_some(fd, ret_answer)) {
    }
    read_head(ret_answer);
}

bool web_receive_until(int fd, struct web_answer *answer, const char *text)
{
    while (answer->text == NULL || strstr(answer->text, text) == NULL)
        if (!receive_some(fd, answer))
            break;
    read_head(answer);
    return strstr(answer->text, text) != NULL;
}

struct web_answer web_ask(const char *address, const char *method, const char *path,
    const char *headers, const char *body)
{
    size_t size = strlen(path) + strlen(headers) + strlen(body) + 256;
    char *text = malloc(size);
    int fd = web_connect(address);
    struct web_answer answer;
    int length;

    CHECK(text != NULL);
    length = snprintf(text, size,
        "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s",
        method, path, strlen(body), headers, body);
    web_send(fd, text, (size_t)length);
    web_receive(fd, &answer);
    close(fd);
    free(text);
    return answer;
}

void web_answer_free(struct web_answer *answer)
{
    free(answer->text);
    *answer = (struct web_answer){ 0 };
}

void web_place_make(char path[64])
{
    (void)snprintf(path, 64, "/tmp/troupe-test-XXXXXX");
    CHECK(mkdtemp(path) != NULL);
}

void web_place_remove(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    char name[512];

    CHECK(folder != NULL);
    while ((entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        CHECK(unlink(name) == 0);
    }
    closedir(folder);
    CHECK(rmdir(path) == 0);
}
