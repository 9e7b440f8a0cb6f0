/* SPDX-License-Identifier: Apache-2.0 */
/* welcome_store.h: Welcomes as statements. A Welcome is stored once with its commit and waits for
 * each device it is for (welcome_targets):
 *
 *   waiting ──getWelcome──▶ fetched ──confirmWelcome──▶ confirmed
 *      └──────────────┴──confirm with success false, invalidate, reissue──▶ invalid (with why)
 *
 * Only the DID it is for sees a Welcome, and only while that DID has been in the conversation since
 * before the Welcome's commit: one from before a removal opens nothing any more.
 *
 * The values $1 to $3 are the conversation, the caller, and its device ("": any). */
#ifndef SERVICES_DELIVERY_STORE_WELCOME_STORE_H
#define SERVICES_DELIVERY_STORE_WELCOME_STORE_H

#include "sql/sql.h"

extern const struct sql_statement welcome_mark_fetched;
/* Columns: bytes, created_ms, seq, device, ref. */
extern const struct sql_statement welcome_get_newest;
/* How many might have been good: not from before the caller was added again, and none after. */
extern const struct sql_statement welcome_count_unconfirmed;
/* Those of $1 and its device $2, without their bytes, which may be megabytes each. Columns: convo,
 * seq, ref, device, state, created_ms, bytes. */
extern const struct sql_statement welcome_list_pending;
/* The first 20 of at most 64 KiB each that wait for the device $2 of $1. Columns: convo, bytes. */
extern const struct sql_statement welcome_list_waiting;
/* Set the state of the fetched one, or else of the newest. */
extern const struct sql_statement welcome_settle;
extern const struct sql_statement welcome_get_state;
/* A device that is in the group needs nobody to add it. */
extern const struct sql_statement welcome_complete_additions;
extern const struct sql_statement welcome_invalidate;
extern const struct sql_statement welcome_count_others;

#endif
