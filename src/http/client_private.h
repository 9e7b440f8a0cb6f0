/* SPDX-License-Identifier: Apache-2.0 */
/* client_private.h: the structs that the client's files share. client.c checks and copies requests,
 * client_actor.c owns libcurl's multi handle, client_easy.c one easy handle. */
#ifndef HTTP_CLIENT_PRIVATE_H
#define HTTP_CLIENT_PRIVATE_H

#include <curl/curl.h>
#include <openssl/x509_vfy.h>

#include "http/client.h"

/* The constants of a running client, read by the actor and by callers. */
struct http_client {
    struct tr_system *system;
    tr_sender sender;
    struct tr_done *done;
    X509_STORE *authorities;
    char *user_agent;
    uint32_t concurrent_max;
    uint32_t queue_max;
    bool allow_private;
};

/* The values of the answer's header lines. */
struct client_head {
    uint32_t max_age_s;     /* as in struct http_client_answer */
    uint32_t retry_after_s; /* as in struct http_client_answer */
    uint64_t range_start;   /* of Content-Range; UINT64_MAX without a valid one */
    uint64_t range_size;    /* of the whole file; UINT64_MAX if it is not said */
    char content_type[HTTP_CLIENT_TYPE_SIZE];
};

/* The progress of the answer of this hop: the first request, or one after a redirect. */
enum client_hop {
    HOP_SENT, /* no status line has come */
    HOP_HEAD, /* header lines are arriving */
    HOP_BODY, /* body or trailers are arriving */
};

/* The connection of this hop. */
enum client_link {
    LINK_KEPT,    /* no socket was opened: the request goes over a kept connection */
    LINK_OPENED,  /* it has a socket of its own */
    LINK_REFUSED, /* the guard refused an address; another address may still connect */
    LINK_STALE,   /* the kept connection had unread bytes: start again without it */
};

/* The place of the answer's body, known at its first byte. */
enum client_place { PLACE_UNKNOWN, PLACE_REPLY, PLACE_TRANSFER };

struct client_actor;

/* One request, from the copy of its arguments to its answer. The message that carries it owns it,
 * then the actor; libcurl borrows it while `easy` is set. */
struct client_job {
    struct client_job *next;
    tr_reply_handle reply;
    uint64_t asked_ns;
    uint64_t deadline_ns;
    uint64_t timer_id; /* fires at the deadline, or when the transfer may have stalled */

    const char *method; /* static */
    char *url;
    char *host; /* for the log */
    struct curl_slist *headers;
    char *body;
    size_t body_size;
    bool has_body;
    bool is_https;
    bool may_repeat; /* the server may get it twice */
    uint64_t size_max;
    uint64_t stall_ns; /* 0: none */
    uint32_t redirects_max;
    struct http_client_transfer *transfer; /* shared with the asker; NULL: none */

    CURL *easy; /* while it is in progress */
    struct client_actor *actor;
    struct buffer answer; /* struct http_client_answer, then the body */
    size_t head_size;
    struct client_head head;
    uint64_t moved_ns; /* when the last byte came or went */
    enum client_hop hop;
    enum client_link link;
    enum client_place place;
    bool is_paused; /* libcurl keeps a piece of the body until the next turn */
    int trouble;    /* why one of our callbacks ended the transfer; 0: none did */
};

struct client_message {
    struct client_job *job; /* owned; NULL: a transfer was cancelled */
};

/* Check and copy a request. TR_EINVAL, TR_ETOOBIG, TR_ENOMEM. */
int http_client_job_create(
    const struct http_client_request *request, uint64_t now_ns, struct client_job **ret_job);
/* Let go of the transfer of a job that is in no multi handle. */
void http_client_job_detach(struct client_job *job);
/* Free a job that is in no multi handle and has no open reply. NULL is fine. */
void http_client_job_destroy(struct client_job *job);

/* Create job->easy. TR_ENOMEM. */
int http_client_easy_start(struct client_job *job, struct client_actor *actor);
/* Make the job ready to be started again on a new connection: no byte of its request was sent. */
void http_client_easy_restart(struct client_job *job);
/* Returns the status for the caller after a transfer. On 0 job->answer is the reply. */
int http_client_easy_end(struct client_job *job, CURLcode code);

/* Give the transfer to a job. TR_EINVAL if it had one before. */
int http_client_transfer_attach(struct http_client_transfer *transfer, tr_sender client);
void http_client_transfer_detach(struct http_client_transfer *transfer);
bool http_client_transfer_is_cancelled(struct http_client_transfer *transfer);
/* Send the request's body again from `at`. */
void http_client_transfer_rewind(struct http_client_transfer *transfer, uint64_t at);

/* A head without any of the values. */
void http_client_head_reset(struct client_head *head);
/* Read one header line. */
void http_client_head_line(struct client_head *head, struct span line, const struct tr_env *env);
/* Returns true for the empty line at the end of a head. */
bool http_client_line_is_end(struct span line);
/* Returns the seconds of a Retry-After value; UINT32_MAX for a text that is none. */
uint32_t http_client_retry_after(struct span value, uint64_t wall_s);
/* Returns the smaller of `max_age_s` (UINT32_MAX at first) and what one Cache-Control line says. */
uint32_t http_client_max_age(struct span value, uint32_t max_age_s);

int http_client_kept_init(struct client_actor *actor);
void http_client_kept_fini(struct client_actor *actor);
/* Remember the connection of a request that has ended well. */
void http_client_kept_note(struct client_actor *actor, CURL *easy);
/* Returns true if the kept connection with this local port, which the request is about to use, has
 * bytes that no request asked for. */
bool http_client_kept_has_unread(const struct client_actor *actor, CURL *easy, int port);

extern const struct tr_type http_client_type;
/* The state of the actor. */
struct client_actor {
    const struct http_client *client;
    struct tr_context *ctx; /* set while a handler runs; libcurl's callbacks need it */
    CURLM *multi;
    struct client_socket *sockets; /* the sockets libcurl watches */
    uint32_t socket_count;
    uint32_t socket_capacity;
    struct client_kept *kept; /* connections that libcurl may use again */
    uint32_t kept_count;
    uint32_t kept_next;
    struct client_job *active;
    uint32_t active_count;
    struct client_job *queue; /* first come, first served */
    struct client_job **queue_end;
    uint32_t queue_count;
    uint64_t timer_id; /* libcurl's only timer; 0: none */
    size_t turn_size;  /* bytes of bodies that came in this turn */
    bool is_due;       /* libcurl wants to run now */
    bool has_paused;   /* a job is paused */
};

#endif
