/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: requests to other servers (DID documents, key sets, homeservers), by libcurl. One
 * actor owns the handles. Every request ends once, with an answer or an error. Unless allowed,
 * requests to private, loopback and link-local addresses fail; the check runs after name
 * resolution and for each redirect.
 *
 * The client speaks HTTP/1.1 over TCP or TLS 1.2 and later, and always verifies certificates. It
 * has no proxy, no .netrc, no cookies, no credentials in URLs and no compression. Threads of
 * libcurl look names up, never a worker. */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <troupe/troupe.h>

#include "support/buffer.h"

struct http_client;

enum {
    HTTP_CLIENT_CONCURRENT_MAX = 1024,
    HTTP_CLIENT_QUEUE_MAX = 14000,
    HTTP_CLIENT_ANSWER_MAX = 60000,
    HTTP_CLIENT_HEAD_MAX = 32768, /* of all header lines of a request's answers, with redirects */
    HTTP_CLIENT_URL_MAX = 8192,
    HTTP_CLIENT_HEADERS_MAX = 64,         /* fields of a request */
    HTTP_CLIENT_HEADERS_SIZE_MAX = 16384, /* bytes of all of them */
    HTTP_CLIENT_BODY_MAX = 1 << 20,
    HTTP_CLIENT_REDIRECTS_MAX = 10,
};

struct http_client_options {
    bool allow_private;      /* allow addresses that exist only inside a network */
    uint32_t concurrent_max; /* 0: 64; more requests wait */
    uint32_t queue_max;      /* 0: 1024; above it TR_EFULL */
    const char *ca_path;     /* PEM file, or directory of c_rehash; NULL: the system's */
    const char *user_agent;  /* copied; NULL: "troupe" */
    tr_sender supervisor;    /* restarts its actor when it fails; borrowed; none: it ends */
};
/* Start the client and read the certificates. TR_EINVAL: a limit is over its maximum, or the
 * certificates cannot be read. TR_EUNSUPPORTED: libcurl has no OpenSSL, or its lookups would
 * block. */
int http_client_start(struct tr_system *system, const struct http_client_options *options,
    struct http_client **ret_client);
/* Stop the client and null *client; NULL is fine. Requests in progress end with TR_ECLOSED. Call it
 * from no handler, before the system is destroyed, and when no actor asks any more. */
void http_client_stop(struct http_client **client);

struct http_client_request {
    const char *method; /* NULL: GET; or HEAD POST PUT PATCH DELETE OPTIONS */
    const char *url;    /* http or https, without user and password */
    /* Lines "Name: value", ending with NULL; may be NULL. Fields that frame or encode the message
     * are not allowed (Host, Content-Length, Accept-Encoding, Connection and others). Authorization
     * and Cookie do not follow a redirect to another host. */
    const char *const *headers;
    const char *traceparent; /* value of that header (http_traceparent); NULL or empty: none */
    struct span body;        /* not with GET and HEAD */
    uint64_t timeout_ns;     /* with the time in the queue; 0: 10 s; at most an hour */
    size_t size_max;         /* of the answer's body; 0 or at most HTTP_CLIENT_ANSWER_MAX */
    uint32_t redirects_max;  /* 0: none, a 302 is the answer; GET and HEAD only */
};

/* The value of the reply event: status, then the body. */
struct http_client_answer {
    uint32_t status; /* such as 200 */
    uint32_t body_size;
    uint32_t max_age_s; /* of Cache-Control; UINT32_MAX without it, 0 for no-store and no-cache */
    char body[];
};

/* Ask from an actor; everything is copied. If this returns 0, one TR_EVENT_REPLY with the tag
 * comes: status 0 with a struct http_client_answer, or
 *   TR_ETIMEOUT  its deadline or that of the message being handled passed, or 5 s to connect
 *   TR_EACCES    a refused address, or a redirect to one, to another protocol or from https to http
 *   TR_ETOOBIG   the body is over size_max, or the header lines over HTTP_CLIENT_HEAD_MAX
 *   TR_ELIMIT    more redirects than allowed
 *   TR_EIO       resolving, connecting or TLS failed, or the answer is not whole or not HTTP
 *   TR_EFULL     queue_max requests wait already
 *   TR_ECLOSED   the client was stopped
 *   TR_ENOMEM
 * If this fails no event comes: TR_EINVAL (url, method, header or number is invalid), TR_ETOOBIG
 * (over a limit above), TR_EFULL, TR_ECLOSED, TR_ENOMEM, TR_ETIMEOUT (the deadline of the
 * message being handled has passed). */
int http_client_ask(struct tr_context *ctx, struct http_client *client,
    const struct http_client_request *request, uint32_t tag);
/* Returns true if the client could ask this URL. It sends nothing and looks no name up; for
 * settings. */
bool http_client_takes(const char *url);
/* Ask and wait, from a thread that is no worker. Returns the answer's HTTP status, 100 to 599, and
 * appends its body; or returns an error as above. */
int http_client_wait(
    struct http_client *client, const struct http_client_request *request, struct buffer *body);

/* Returns true only for addresses known to be reachable from the whole internet: IPv4 without the
 * special ranges of RFC 6890, IPv6 in 2000::/3 without its special ranges, and NAT64 of such an
 * IPv4 address. */
bool http_client_is_public(const struct sockaddr *address);

#endif
