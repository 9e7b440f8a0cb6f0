/* SPDX-License-Identifier: Apache-2.0 */
/* auth_store.h: the ids of used tokens in the database; auth.h has the part for services. Each function
 * adds a step to a unit. */
#ifndef AUTH_AUTH_STORE_H
#define AUTH_AUTH_STORE_H

#include "auth/auth.h"

/* Remember a token's id until expires_s. The step fails the unit if the id is known. */
void auth_store_remember_token(
    struct sql_unit *unit, struct span issuer, struct span id, int64_t expires_s);
/* Delete the ids of tokens that expired before a time. */
void auth_store_purge_token_ids(struct sql_unit *unit, int64_t before_s);

#endif
