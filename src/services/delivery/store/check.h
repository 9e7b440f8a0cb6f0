/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: is what is stored consistent? Questions to the database alone, each answered by the
 * conversations for which the answer is no. Reads only; on a server that runs, each question sees
 * one moment. */
#ifndef SERVICES_DELIVERY_STORE_CHECK_H
#define SERVICES_DELIVERY_STORE_CHECK_H

#include "sql/sql.h"
#include "support/buffer.h"

enum { DELIVERY_CHECKS = 5 };

/* Told of every violation: which check, which conversation, and a sentence. */
typedef void (*delivery_check_fn)(
    void *data, const char *check, struct span convo, const char *text);

/* The names, in the order they are asked; 0 … DELIVERY_CHECKS - 1. */
const char *delivery_check_name(int check);

/* Blocks; from no worker. 0, with *ret_violations; or an error of the database. `on_violation` may
 * be NULL; at most 1000 of each kind are told, all are counted up to that. */
int delivery_check(
    struct sql *sql, delivery_check_fn on_violation, void *data, uint64_t *ret_violations);

/* The same one question at a time, for who cannot wait: run what check_walk_next gives as a read,
 * hand it to check_walk_take, and so on until there is none. */
struct check_walk {
    delivery_check_fn on_violation; /* the caller's, with its data; may be NULL */
    void *data;
    uint64_t violations;
    /* Where it is; zero to begin with. */
    int check;
    struct sql_unit *page; /* conversations whose receipts are looked at */
    uint32_t row;          /* the one of them that is; the others are of that one */
    struct buffer convo;
    bool is_inside;                    /* of its log: not at the beginning */
    int64_t seq_max;                   /* how far its log went then, and */
    unsigned char head[32], chain[32]; /* its receipt; and the one that follows up to */
    int64_t seq;
};

/* *ret_unit is the caller's; NULL: all is asked. */
int check_walk_next(struct check_walk *walk, struct sql_unit **ret_unit);
/* A unit that was read well; takes it. */
void check_walk_take(struct check_walk *walk, struct sql_unit *unit);
void check_walk_end(struct check_walk *walk);

#endif
