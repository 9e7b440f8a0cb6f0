/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: HTTP/1.1 load on keep-alive connections, one thread, one epoll. The caller
 * makes the requests and judges the answers; tokens are made before the clock starts. */
#ifndef BENCH_DELIVERY_CLIENT_H
#define BENCH_DELIVERY_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "support/buffer.h"

uint64_t now_ns(void);
_Noreturn void die(const char *what);

/* ---- callers: number n is the same identity in every run ------------------------------------ */

struct caller;
struct caller *caller_make(unsigned number);
const char *caller_did(const struct caller *caller);
void caller_free(struct caller *caller);

/* Authorization headers, each with its \r\n. Tokens that change something are good for one use; all
 * live for two minutes. */
struct tokens {
    char **headers;
    size_t count;
    size_t used;
};
/* `call` without its prefix: "sendMessage". */
void tokens_make(
    struct tokens *tokens, const struct caller *caller, const char *call, size_t count);
/* The next one; NULL when all were used. */
const char *tokens_next(struct tokens *tokens);
void tokens_free(struct tokens *tokens);

/* ---- load ----------------------------------------------------------------------------------- */

struct load {
    const char *address; /* 127.0.0.1:8080 */
    unsigned connections;
    double rate; /* requests a second at even distances (a late answer does not slow them); 0: each
                    connection asks again when it was answered */
    double seconds; /* 0: until `next` has nothing more */
    /* The next request of a connection, all of its bytes, into `out`. False: it has none, for good.
     */
    bool (*next)(void *data, unsigned connection, struct buffer *out);
    void (*done)(void *data, unsigned connection, unsigned status, struct span body);
    void *data;

    /* results */
    uint64_t statuses[6];          /* by hundreds; 0: the connection broke */
    uint64_t count;                /* answered with 200 */
    double took_s;                 /* first request to last answer */
    double p50_ms, p99_ms, max_ms; /* of those, from when they were due */
    double cpu_s;                  /* of this process meanwhile */
};
void load_run(struct load *load);

/* A request as text. body NULL: GET. `header` is of tokens_next. */
void put_request(struct buffer *out, const char *call, const char *query, const char *header,
    const char *body);
void put_post(struct buffer *out, const char *call, const char *query, const char *header,
    const char *type, struct span body);
/* The number after "name": in a JSON body; -1 if there is none. */
int64_t number_in(struct span body, const char *name);

/* A private message of a group, with `size` bytes of ciphertext, as bytes and as base64. content:
 * 1 application, 3 commit. `salt` makes it differ from others. */
void put_private_bytes(struct buffer *out, const char *group, uint64_t epoch, unsigned content,
    size_t size, uint64_t salt);
void put_private_message(struct buffer *out, const char *group, uint64_t epoch, unsigned content,
    size_t size, uint64_t salt);

/* A connection for other uses (streams): blocking connect, then non-blocking. */
int connect_to(const char *address);
/* Percentile of microseconds, which are sorted by it. */
double percentile_ms(uint32_t *us, size_t count, double percent);

#endif
