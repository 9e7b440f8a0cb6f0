/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: checks the stored data for consistency. Each check is a query that returns the violating
 * conversations. The checks only read; on a running server each query sees one moment. */
#ifndef SERVICES_DELIVERY_STORE_CHECK_H
#define SERVICES_DELIVERY_STORE_CHECK_H

#include "sql/sql.h"
#include "support/buffer.h"

enum { DELIVERY_CHECKS = 5 };

/* Called for every violation: the check, the conversation, and a sentence. */
typedef void (*delivery_check_fn)(
    void *data, const char *check, struct span convo, const char *text);

/* Names a check, 0 … DELIVERY_CHECKS - 1, in the order of running. */
const char *delivery_check_name(int check);

/* Runs all checks. Blocks; not on a worker. Returns 0 with *ret_violations, or an error of the
 * database. `on_violation` may be NULL; it gets at most 1000 violations of each kind, and the count
 * stops there too. */
int delivery_check(
    struct sql *sql, delivery_check_fn on_violation, void *data, uint64_t *ret_violations);

/* Runs the checks one query at a time, for an actor: submit the unit of check_walk_next as a read,
 * pass it to check_walk_take, and repeat until check_walk_next gives none. */
struct check_walk {
    delivery_check_fn on_violation; /* the caller's, with its data; may be NULL */
    void *data;
    uint64_t violations;
    /* The position; zero at the start. */
    int check;
    struct buffer convo;               /* the one being checked; the fields below are about it */
    bool is_inside;                    /* past the beginning of its log */
    int64_t seq_max;                   /* the end of its log at that moment, and */
    unsigned char head[32], chain[32]; /* its receipt; and the chain computed so far */
    int64_t seq;
};

/* Prepares the next query. The caller owns *ret_unit; NULL: all queries have run. */
int check_walk_next(struct check_walk *walk, struct sql_unit **ret_unit);
/* Takes a unit that was read without error. */
void check_walk_take(struct check_walk *walk, struct sql_unit *unit);
void check_walk_end(struct check_walk *walk);

#endif
