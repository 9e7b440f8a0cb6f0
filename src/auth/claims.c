/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/claims.h"

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"

struct counted_claims {
    struct auth_claims claims; /* first: counted_of casts a pointer to it */
    _Atomic uint32_t holders;
    char text[];
};

static struct counted_claims *counted_of(const struct auth_claims *claims)
{
    return (struct counted_claims *)(uintptr_t)claims;
}

static struct span claims_copy_text(struct span span, char **at)
{
    struct span kept = { *at, span.size };

    if (span.at == NULL)
        return (struct span){ NULL, 0 };
    memcpy(*at, span.at, span.size);
    (*at)[span.size] = '\0';
    *at += span.size + 1;
    return kept;
}

const struct auth_claims *auth_claims_create(const struct auth_claims *claims)
{
    size_t size = claims->issuer.size + claims->audience.size + claims->lxm.size +
                  claims->jti.size + claims->role.size + 5;
    struct counted_claims *counted = base_alloc(sizeof *counted + size);
    char *at;

    tr_assert(claims->issuer.size > 0);
    if (counted == NULL)
        return NULL;
    at = counted->text;
    counted->claims = *claims;
    counted->claims.issuer = claims_copy_text(claims->issuer, &at);
    counted->claims.audience = claims_copy_text(claims->audience, &at);
    counted->claims.lxm = claims_copy_text(claims->lxm, &at);
    counted->claims.jti = claims_copy_text(claims->jti, &at);
    counted->claims.role = claims_copy_text(claims->role, &at);
    atomic_init(&counted->holders, 1);
    return &counted->claims;
}

const struct auth_claims *auth_claims_ref(const struct auth_claims *claims)
{
    uint32_t before =
        atomic_fetch_add_explicit(&counted_of(claims)->holders, 1, memory_order_relaxed);

    tr_assert(before > 0);
    return claims;
}

void auth_claims_unref(const struct auth_claims *claims)
{
    if (claims == NULL)
        return;
    if (atomic_fetch_sub_explicit(&counted_of(claims)->holders, 1, memory_order_acq_rel) == 1)
        base_free(counted_of(claims));
}
