/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: is what is stored consistent? Questions to the database alone, each answered by the
 * conversations for which the answer is no. Reads only; on a server that runs, each question sees
 * one moment. */
#ifndef SERVICES_DELIVERY_CHECK_H
#define SERVICES_DELIVERY_CHECK_H

#include "sql/sql.h"

enum { DELIVERY_CHECKS = 5 };

/* Told of every violation: which check, which conversation, and a sentence. */
typedef void (*delivery_check_fn)(
    void *data, const char *check, struct tr_span convo, const char *text);

/* The names, in the order they are asked; 0 … DELIVERY_CHECKS - 1. */
const char *delivery_check_name(int check);

/* Blocks; from no worker. 0, with *ret_violations; or an error of the database. `on_violation` may
 * be NULL; at most 1000 of each kind are told, all are counted up to that. */
int delivery_check(
    struct sql *sql, delivery_check_fn on_violation, void *data, uint64_t *ret_violations);

#endif
