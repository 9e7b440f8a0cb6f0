/* SPDX-License-Identifier: Apache-2.0 */
/* consent_store.h: opt-ins, opt-outs and blocks as statements. Both take effect in the unit that
 * adds a member (convo_store.c): an account that opted out is not added, and neither are two
 * accounts of which one has blocked the other. */
#ifndef SERVICES_DELIVERY_STORE_CONSENT_STORE_H
#define SERVICES_DELIVERY_STORE_CONSENT_STORE_H

#include "sql/sql.h"

enum {
    BLOCKS_MAX = 10000,
    BLOCKS_CHUNK = 20
}; /* of one blocker; accounts in one consent_find_blocks */

/* Columns: opted_in, when it opted in, when it opted out (one of the two is NULL). */
extern const struct sql_statement consent_put;
/* Of one account, known or not. Columns: is in, is out, and the two times. */
extern const struct sql_statement consent_get;

/* Find a row if either of $1 and $2 has blocked the other, or if $1 has opted out. */
extern const struct sql_statement consent_find_block;
extern const struct sql_statement consent_find_opt_out;

extern const struct sql_statement consent_put_block;
extern const struct sql_statement consent_delete_block;
/* Decline the requests from $2 that $1 accepted or has not answered. */
extern const struct sql_statement consent_close_requests;
/* The conversations that $1 and $2 share; $3 is 1 for an unblock. Columns: convo, what $1 can do:
 * 0 nothing, 1 remove $2, 2 leave. */
extern const struct sql_statement consent_list_shared;
/* Blocks by $1 of any of BLOCKS_CHUNK accounts, and blocks between members of a conversation.
 * Columns: blocker, blocked, uri, created_ms. */
extern const struct sql_statement consent_find_blocks;
extern const struct sql_statement consent_list_conflicts;

#endif
