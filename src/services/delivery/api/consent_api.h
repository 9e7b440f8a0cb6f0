/* SPDX-License-Identifier: Apache-2.0 */
/* consent_api.h: who wants to be talked to: opting in and out, and blocks. Both have their effect
 * in the unit that adds somebody (convo_store.c): who opted out is not added, nor is anybody put
 * together with who has blocked them. Blocks are public records where they come from, so anybody
 * may ask about them; only the blocker changes them. */
#ifndef SERVICES_DELIVERY_API_CONSENT_API_H
#define SERVICES_DELIVERY_API_CONSENT_API_H

#include "sql/sql.h"

enum { BLOCKS_MAX = 10000 }; /* of one blocker */

/* A step that finds a row if either has blocked the other. */
extern const struct sql_statement consent_find_block;
void consent_add_no_block(struct sql_unit *unit, struct span one, struct span other);
/* A step that finds a row if $1 has opted out. */
extern const struct sql_statement consent_find_opt_out;
void consent_add_no_opt_out(struct sql_unit *unit, struct span did);

#endif
