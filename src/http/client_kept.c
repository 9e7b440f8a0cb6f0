/* SPDX-License-Identifier: Apache-2.0 */
/* client_kept.c: unread bytes on kept connections.
 *
 * A server may send bytes on an idle connection: a 408 when it gives the connection up, or anything
 * if it is confused or hostile. libcurl 7.88 takes them for the answer to the next request. So the
 * client looks at the socket before a kept connection is used, and makes a new one if there are any.
 *
 * libcurl tells a connection's socket only after a request, and its port before the next one. The
 * table leads from one to the other. Its entries may be out of date: the socket is asked for its
 * port again. */
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "http/client_private.h"

struct client_kept {
    int fd;
    int port; /* our own; 0: an empty entry */
};

int http_client_kept_init(struct client_actor *actor)
{
    actor->kept_count = actor->client->concurrent_max;
    actor->kept = base_calloc(actor->kept_count * sizeof *actor->kept);
    return actor->kept == NULL ? TR_ENOMEM : 0;
}

void http_client_kept_fini(struct client_actor *actor)
{
    base_free(actor->kept);
    actor->kept = NULL;
}

static struct client_kept *kept_slot(struct client_actor *actor, int fd)
{
    for (uint32_t i = 0; i < actor->kept_count; i++)
        if (actor->kept[i].fd == fd && actor->kept[i].port != 0)
            return &actor->kept[i];
    if (actor->kept_next >= actor->kept_count)
        actor->kept_next = 0;
    return &actor->kept[actor->kept_next++];
}

void http_client_kept_note(struct client_actor *actor, CURL *easy)
{
    curl_socket_t fd = CURL_SOCKET_BAD;
    long port = 0;

    if (curl_easy_getinfo(easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK || fd == CURL_SOCKET_BAD ||
        curl_easy_getinfo(easy, CURLINFO_LOCAL_PORT, &port) != CURLE_OK)
        return;
    *kept_slot(actor, fd) = (struct client_kept){ .fd = fd, .port = (int)port };
}

static bool kept_has_port(int fd, int port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } address = { .any.sa_family = AF_UNSPEC };
    socklen_t size = sizeof address;

    if (getsockname(fd, &address.any, &size) < 0)
        return false;
    return (address.any.sa_family == AF_INET && ntohs(address.in.sin_port) == port) ||
           (address.any.sa_family == AF_INET6 && ntohs(address.in6.sin6_port) == port);
}

static bool tls_has_unread(CURL *easy)
{
    struct curl_tlssessioninfo *tls = NULL;

    return curl_easy_getinfo(easy, CURLINFO_TLS_SSL_PTR, &tls) == CURLE_OK &&
           tls->backend == CURLSSLBACKEND_OPENSSL && tls->internals != NULL &&
           SSL_has_pending(tls->internals);
}

bool http_client_kept_has_unread(const struct client_actor *actor, CURL *easy, int port)
{
    char byte;

    if (tls_has_unread(easy))
        return true;
    for (uint32_t i = 0; i < actor->kept_count; i++) {
        const struct client_kept *at = &actor->kept[i];

        if (at->port == port && kept_has_port(at->fd, port))
            return recv(at->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
    }
    return false;
}
