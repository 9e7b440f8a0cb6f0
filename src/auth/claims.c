/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/claims.h"

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"

struct held {
    struct auth_claims claims; /* first: a pointer to it is a pointer to this */
    _Atomic uint32_t holders;
    char text[];
};

static struct held *held_of(const struct auth_claims *claims)
{
    return (struct held *)(uintptr_t)claims;
}

static struct span keep(struct span span, char **at)
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
    struct held *held = base_alloc(sizeof *held + size);
    char *at;

    if (held == NULL)
        return NULL;
    at = held->text;
    held->claims = *claims;
    held->claims.issuer = keep(claims->issuer, &at);
    held->claims.audience = keep(claims->audience, &at);
    held->claims.lxm = keep(claims->lxm, &at);
    held->claims.jti = keep(claims->jti, &at);
    held->claims.role = keep(claims->role, &at);
    atomic_init(&held->holders, 1);
    return &held->claims;
}

const struct auth_claims *auth_claims_ref(const struct auth_claims *claims)
{
    uint32_t before = atomic_fetch_add_explicit(&held_of(claims)->holders, 1, memory_order_relaxed);

    tr_assert(before > 0);
    return claims;
}

void auth_claims_unref(const struct auth_claims *claims)
{
    if (claims == NULL)
        return;
    if (atomic_fetch_sub_explicit(&held_of(claims)->holders, 1, memory_order_acq_rel) == 1)
        base_free(held_of(claims));
}
