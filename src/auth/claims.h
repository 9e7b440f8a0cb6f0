/* SPDX-License-Identifier: Apache-2.0 */
/* claims.h: the claims of a verified token. Immutable and reference-counted: the cache, the request
 * and the work for it share one copy. */
#ifndef AUTH_CLAIMS_H
#define AUTH_CLAIMS_H

#include <stdint.h>

#include "support/buffer.h"

enum auth_kind {
    AUTH_SERVICE, /* a service token, signed by the issuer's own key */
    AUTH_SESSION, /* a session token that this server signed after an OpenID sign-in */
};

struct auth_claims {
    enum auth_kind kind;
    struct span issuer;   /* the DID, or the user's id; never empty */
    struct span audience; /* {NULL, 0} if the token has none */
    struct span lxm;
    struct span jti;  /* sessions: the session's id */
    struct span role; /* sessions: "user", "admin" */
    uint64_t issued_s;
    uint64_t expires_s;
};

/* Copy claims and their texts, with one reference for the caller. NULL when out of memory. */
const struct auth_claims *auth_claims_create(const struct auth_claims *claims);
const struct auth_claims *auth_claims_ref(const struct auth_claims *claims);
void auth_claims_unref(const struct auth_claims *claims); /* NULL is fine */

#endif
