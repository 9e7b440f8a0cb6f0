/* SPDX-License-Identifier: Apache-2.0 */
/* claims.h: what a verified token says. Immutable and counted: the cache, the request and the work
 * it leads to share one copy. */
#ifndef AUTH_CLAIMS_H
#define AUTH_CLAIMS_H

#include <stdint.h>

#include "support/buffer.h"

/* Who vouches for it. */
enum auth_kind {
    AUTH_SERVICE, /* a service token, signed by the issuer's own key */
    AUTH_SESSION, /* our own session token, given for an OIDC identity */
};

struct auth_claims {
    enum auth_kind kind;
    struct span issuer;   /* the DID, or the session's subject; never empty */
    struct span audience; /* {NULL, 0} where the token had none */
    struct span lxm;
    struct span jti;  /* sessions: the session's id */
    struct span role; /* sessions: "user", "admin" */
    uint64_t issued_s;
    uint64_t expires_s;
};

/* A copy that owns its texts, with one holder. NULL when out of memory. */
const struct auth_claims *auth_claims_create(const struct auth_claims *claims);
const struct auth_claims *auth_claims_ref(const struct auth_claims *claims);
void auth_claims_unref(const struct auth_claims *claims); /* NULL is fine */

#endif
