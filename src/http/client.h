/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: requests to others (DID documents, key sets, homeservers) by libcurl on our own loop.
 * An actor owns the handles; every request ends once, with an answer or an error. Private, loopback
 * and link-local addresses are refused after name resolution, redirects included, unless allowed.
 *
 * HTTP/1.1 over TCP or TLS 1.2 and later, certificates always verified. No proxy, no .netrc, no
 * cookies, no credentials in URLs, no compression. Names are looked up by threads of libcurl, never
 * on a worker. */
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
    HTTP_CLIENT_HEAD_MAX = 32768, /* of all header lines of one request's answers, redirects too */
    HTTP_CLIENT_URL_MAX = 8192,
    HTTP_CLIENT_HEADERS_MAX = 64,         /* given with a request */
    HTTP_CLIENT_HEADERS_SIZE_MAX = 16384, /* all of them */
    HTTP_CLIENT_BODY_MAX = 1 << 20,
    HTTP_CLIENT_REDIRECTS_MAX = 10,
};

struct http_client_options {
    bool allow_private;      /* addresses that only exist inside a network */
    uint32_t concurrent_max; /* 0 is 64; more wait */
    uint32_t queue_max;      /* 0 is 1024; over it TR_EFULL */
    const char *ca_path;     /* PEM file, or directory as c_rehash makes it. NULL: the system's */
    const char *user_agent;  /* copied; NULL: "troupe" */
    tr_sender supervisor;    /* restarts its actor when it fails; borrowed; none: it ends */
};
/* The certificates are read here, once. TR_EINVAL: a limit past its maximum or certificates that
 * cannot be read. TR_EUNSUPPORTED: a libcurl without OpenSSL or whose lookups would block. */
int http_client_start(struct tr_system *system, const struct http_client_options *options,
    struct http_client **ret_client);
/* What is under way or waits ends with TR_ECLOSED. Nulls *client, NULL is fine. Not from a handler,
 * before the system is destroyed, and when nobody asks any more. */
void http_client_stop(struct http_client **client);

struct http_client_request {
    const char *method; /* NULL is GET; HEAD POST PUT PATCH DELETE OPTIONS */
    const char *url;    /* http or https, without user and password */
    /* "Name: value", ends with NULL; may be NULL. Not those that say how the message is framed or
     * coded (Host, Content-Length, Accept-Encoding, Connection …). Authorization and Cookie do not
     * follow a redirect to another host. */
    const char *const *headers;
    const char *traceparent; /* that header's value (http_traceparent); NULL or empty: none */
    struct span body;        /* not with GET and HEAD */
    uint64_t timeout_ns; /* whole request, waiting for its turn too; 0 is 10 s, at most an hour */
    size_t size_max;     /* of the answer's body; 0 is HTTP_CLIENT_ANSWER_MAX, which is the most */
    uint32_t redirects_max; /* 0 is none: then a 302 is the answer. GET and HEAD only */
};

/* The value of the reply event, copied: status, then the body. */
struct http_client_answer {
    uint32_t status; /* 200 … */
    uint32_t body_size;
    uint32_t max_age_s; /* Cache-Control; UINT32_MAX if it says nothing, 0 for no-store, no-cache */
    char body[];
};

/* From an actor: everything is copied. If this returns 0 the answer comes once as TR_EVENT_REPLY
 * with the tag: status 0 with a struct http_client_answer, or
 *   TR_ETIMEOUT  the deadline, its own or that of the message being handled, or 5 s to connect
 *   TR_EACCES    a refused address, or a redirect to one, to another protocol or from https to http
 *   TR_ETOOBIG   the body is over size_max, or the header lines over HTTP_CLIENT_HEAD_MAX
 *   TR_ELIMIT    more redirects than allowed
 *   TR_EIO       could not resolve, connect, TLS, or what came is not a whole HTTP answer
 *   TR_EFULL     queue_max requests wait already
 *   TR_ECLOSED   the client was stopped
 *   TR_ENOMEM
 * If it fails nothing comes: TR_EINVAL (url, method, header or number that cannot be), TR_ETOOBIG
 * (over a limit above), TR_EFULL, TR_ECLOSED, TR_ENOMEM, TR_ETIMEOUT (the deadline of the message
 * being handled has passed). */
int http_client_ask(struct tr_context *ctx, struct http_client *client,
    const struct http_client_request *request, uint32_t tag);
/* Is that a URL it could ask? For settings: nobody is asked, and no name is looked up. */
bool http_client_takes(const char *url);
/* From a thread that is no worker. Returns the answer's HTTP status, 100 to 599, or an error as
 * above; appends the body. */
int http_client_wait(
    struct http_client *client, const struct http_client_request *request, struct buffer *body);

/* The guard: is this an address that anybody on the internet may reach? True only for what is known
 * to be so: IPv4 without the special ranges of RFC 6890, IPv6 in 2000::/3 without its special
 * ranges, NAT64 of such an IPv4 address. */
bool http_client_is_public(const struct sockaddr *address);

#endif
