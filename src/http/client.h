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
struct http_client_transfer;

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
    HTTP_CLIENT_LARGE_MAX = 64 << 20, /* of an answer in memory */
    HTTP_CLIENT_PADDING = 64,         /* bytes after an answer in memory */
    HTTP_CLIENT_TYPE_SIZE = 64,
};
#define HTTP_CLIENT_FILE_MAX (UINT64_C(1) << 40)

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
    /* With the time in the queue. 0: 10 s, with stall_ns a day. At most an hour, with stall_ns a
     * day. */
    uint64_t timeout_ns;
    /* The longest time without a byte in either direction, with the time in the queue; 0: none.
     * It ends the request if the peer has vanished. */
    uint64_t stall_ns;
    /* Of the answer's body; 0 or at most HTTP_CLIENT_ANSWER_MAX. With a transfer to memory 0 or at
     * most HTTP_CLIENT_LARGE_MAX; with one to a file the file's size, 1 to HTTP_CLIENT_FILE_MAX. */
    uint64_t size_max;
    uint32_t redirects_max; /* 0: none, a 302 is the answer; GET and HEAD only */
    /* POST and PATCH: the server may act on this request twice without harm. libcurl sends a request
     * again if a kept connection ends before the first byte of the answer, though the server may
     * have acted on it. So a POST or PATCH without this gets a connection of its own: it is sent
     * once, at the price of a handshake, and TR_EIO or TR_ETIMEOUT means that its outcome is
     * unknown. The other methods may always be repeated (RFC 9110, section 9.2.2). */
    bool may_repeat;
    struct http_client_transfer *transfer; /* NULL: the answer's body is in the reply */
};

/* The value of the reply event: status, then the body. */
struct http_client_answer {
    uint32_t status; /* such as 200 */
    uint32_t body_size;
    uint32_t max_age_s; /* of Cache-Control; UINT32_MAX without it, 0 for no-store and no-cache */
    uint32_t retry_after_s;                   /* UINT32_MAX without it; 0 for a date in the past */
    char content_type[HTTP_CLIENT_TYPE_SIZE]; /* "" without it or if it is too long */
    char body[];
};

/* Ask from an actor; everything is copied. If this returns 0, one TR_EVENT_REPLY with the tag
 * comes: status 0 with a struct http_client_answer, or
 *   TR_ETIMEOUT  its deadline or that of the message being handled passed, no byte moved for
 *                stall_ns, or 5 s to connect
 *   TR_EACCES    a refused address, or a redirect to one, to another protocol or from https to http
 *   TR_ETOOBIG   the body is over size_max, or the header lines over HTTP_CLIENT_HEAD_MAX
 *   TR_ELIMIT    more redirects than allowed
 *   TR_EIO       resolving, connecting or TLS failed, or the answer is not whole or not HTTP
 *   TR_EFULL     queue_max requests wait already
 *   TR_ECLOSED   the client was stopped
 *   TR_ECANCELLED, TR_ENOSPC: of the transfer
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

/* ---- transfers: bodies that do not fit a message -------------------------------------------- */

/* A transfer takes the answer's body, or has the request's body, outside of the messages. The asker
 * creates it, names it in one request and destroys it, in its `finish` at the latest. The request
 * and its reply are the same as without one.
 *
 * Reads and writes of the file run on the worker that runs the client, a piece at a time: 16 KiB of
 * a download, 64 KiB of an upload. So the file belongs on a local disk. */
enum http_client_transfer_kind {
    HTTP_CLIENT_TO_MEMORY, /* the answer's body, of any status */
    /* The answer's body, with GET only. A 200 is written from the file's first byte, and a 206 from
     * `offset`; the body of another status is in the reply. */
    HTTP_CLIENT_TO_FILE,
    HTTP_CLIENT_FROM_FILE, /* the request's body, with POST, PUT and PATCH */
};
struct http_client_transfer_options {
    enum http_client_transfer_kind kind;
    int fd; /* of a file, without O_APPEND; duplicated: the caller's own stays the caller's */
    /* TO_FILE: so many bytes are there, and the request asks for the rest (Range). A server may
     * send the whole file all the same, with status 200: the file is truncated first.
     * FROM_FILE: where the body starts. */
    uint64_t offset;
    uint64_t size; /* FROM_FILE: of the body */
};
/* TR_EINVAL: the descriptor or a number cannot be used. TR_ENOMEM: no memory or descriptor. */
int http_client_transfer_create(
    const struct http_client_transfer_options *options, struct http_client_transfer **ret_transfer);
/* Cancel and release the transfer and null *transfer; NULL is fine. */
void http_client_transfer_destroy(struct http_client_transfer **transfer);
/* End its request soon, with TR_ECANCELLED. When this returns, the client does not touch the file
 * any more. So cancel or destroy it before the file is used again after an error. Any thread. */
void http_client_transfer_cancel(struct http_client_transfer *transfer);
/* Returns the bytes so far: of the answer in memory, of the file with `offset`, or of the request's
 * body. *ret_total (may be NULL) is how many there will be; UINT64_MAX if the server has not said.
 * Any thread. */
uint64_t http_client_transfer_progress(
    const struct http_client_transfer *transfer, uint64_t *ret_total);
/* Returns the body of a transfer to memory, valid until the transfer is destroyed; {NULL, 0} before
 * the reply with status 0. */
struct span http_client_transfer_body(struct http_client_transfer *transfer);
/* Returns the same bytes for the caller to change, HTTP_CLIENT_PADDING more of which belong to it;
 * NULL before the reply, and for an empty body. */
char *http_client_transfer_text(struct http_client_transfer *transfer);
/* Give whole pages of a part of this text back to the system: it is not read any more. */
void http_client_transfer_forget(struct http_client_transfer *transfer, struct span part);

/* The client's side of a transfer, also for a stand-in of the client in a simulation: begin, put
 * any number of times, end, then the reply; or get until nothing is left. */

enum http_client_transfer_kind http_client_transfer_kind(
    const struct http_client_transfer *transfer);
uint64_t http_client_transfer_offset(const struct http_client_transfer *transfer);
uint64_t http_client_transfer_size(const struct http_client_transfer *transfer);
/* Start the answer's body. `start` is the first byte of a 206, `total` the size of all or
 * UINT64_MAX. Returns 1 if the transfer takes the body, 0 if it belongs to the reply; TR_EIO (a 206
 * with another start than asked for, or the file cannot be truncated), TR_ECANCELLED. */
int http_client_transfer_begin(
    struct http_client_transfer *transfer, uint32_t status, uint64_t start, uint64_t total);
/* TR_ECANCELLED, TR_ENOSPC, TR_EIO, TR_ENOMEM. */
int http_client_transfer_put(struct http_client_transfer *transfer, const void *bytes, size_t size);
void http_client_transfer_end(struct http_client_transfer *transfer);
/* Read the next bytes of the request's body; *ret_size 0 at its end. TR_ECANCELLED; TR_EIO, also if
 * the file is too short. */
int http_client_transfer_get(
    struct http_client_transfer *transfer, void *bytes, size_t size, size_t *ret_size);

/* ---- addresses ------------------------------------------------------------------------------ */

/* Returns true only for addresses known to be reachable from the whole internet: IPv4 without the
 * special ranges of RFC 6890, IPv6 in 2000::/3 without its special ranges, and NAT64 of such an
 * IPv4 address. */
bool http_client_is_public(const struct sockaddr *address);

#endif
