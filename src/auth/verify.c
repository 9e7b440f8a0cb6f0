/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: tokens, from their bytes to claims or a refusal. Runs on the blocking pool. */
#include "auth/desk.h"
#include "auth/did.h"
#include "auth/session.h"
#include "base/alloc.h"

static int refuse(struct inquiry *inquiry, const char *label, const char *text)
{
    inquiry->verdict = DESK_REFUSED;
    inquiry->label = label;
    inquiry->text = text;
    return 0;
}

static int refuse_jwt(struct inquiry *inquiry, enum jwt_refusal refusal)
{
    inquiry->bad_signature = refusal == JWT_SIGNATURE || refusal == JWT_ALGORITHM_MISMATCH;
    return refuse(inquiry, jwt_refusal_label(refusal), jwt_refusal_text(refusal));
}

static enum jwt_refusal check(const struct inquiry *inquiry, const struct jwt *jwt)
{
    static const char *const kids[] = { "#atproto", NULL };
    const struct auth *auth = inquiry->auth;
    const struct jwt_expect expect = {
        .now_s = inquiry->now_s,
        .lifetime_s_max = auth->lifetime_s_max,
        .issuer_is_did = true,
        .audiences = auth->audiences,
        .audience_count = auth->audience_count,
        .any_lxm = true, /* the gate of the route compares it, at every use */
        .algorithms = 1u << CRYPTO_ES256 | 1u << CRYPTO_ES256K | 1u << CRYPTO_EDDSA,
        .kids = kids,
    };

    return jwt_check(jwt, &expect);
}

/* The desk looks for the key, and compares with what it has later on. */
static int leave_to_desk(struct inquiry *inquiry, struct span issuer)
{
    inquiry->needs_key = true;
    if (inquiry->issuer != NULL)
        return 0;
    inquiry->issuer = base_alloc(issuer.size + 1);
    if (inquiry->issuer == NULL)
        return TR_ENOMEM;
    memcpy(inquiry->issuer, issuer.at, issuer.size);
    inquiry->issuer[issuer.size] = '\0';
    return 0;
}

/* The key of an issuer that is its own key; others are left to the desk. None is found where it is
 * refused. *ret_is_new if the cache should have it once it has verified something. */
static int find_key(struct inquiry *inquiry, struct span issuer, bool *ret_is_new)
{
    enum did_refusal refusal;
    struct did did;

    *ret_is_new = false;
    if (inquiry->key == NULL && inquiry->auth->allow_did_key)
        inquiry->key = did_key_cache_get(&inquiry->auth->did_keys, issuer);
    if (inquiry->key != NULL)
        return 0;
    refusal = did_parse(issuer, &did);
    if (refusal == DID_OK && did.method != DID_METHOD_KEY)
        return leave_to_desk(inquiry, issuer);
    if (refusal == DID_OK && !inquiry->auth->allow_did_key)
        return refuse(inquiry, "IssuerRefused", "did:key issuers are accepted in development only");
    if (refusal == DID_OK)
        refusal = did_key_parse(issuer, &inquiry->key);
    if (refusal == DID_NO_MEMORY)
        return TR_ENOMEM;
    *ret_is_new = refusal == DID_OK;
    if (refusal != DID_OK)
        refuse(inquiry, did_refusal_label(refusal), did_refusal_text(refusal));
    return 0;
}

static int accept(struct inquiry *inquiry, const struct jwt *jwt)
{
    inquiry->claims = auth_claims_new(&(struct auth_claims){
        .kind = AUTH_SERVICE,
        .issuer = jwt->claims.iss,
        .audience = jwt->claims.aud,
        .lxm = jwt->claims.lxm,
        .jti = jwt->claims.jti,
        .issued_s = (uint64_t)jwt->claims.iat_s,
        .expires_s = (uint64_t)jwt->claims.exp_s,
    });
    inquiry->verdict = DESK_OK;
    return inquiry->claims == NULL ? TR_ENOMEM : 0;
}

/* One of our own: signed by us, for us. Whether its session still stands is in the database. */
static int verify_session(struct inquiry *inquiry, const struct jwt *jwt)
{
    const struct auth *auth = inquiry->auth;
    const struct span us = span_of(auth->service_did);
    enum jwt_refusal refusal = jwt_check(jwt, &(struct jwt_expect){ .now_s = inquiry->now_s,
                                                  .lifetime_s_max = AUTH_SESSION_TOKEN_S,
                                                  .issuer = us,
                                                  .audiences = &us,
                                                  .audience_count = 1,
                                                  .any_lxm = true,
                                                  .algorithms = 1u << CRYPTO_HS256 });

    if (refusal == JWT_OK)
        refusal = jwt_verify(jwt, auth->session_key);
    if (refusal == JWT_OK && jwt->claims.sub.at == NULL)
        refusal = JWT_ISSUER_MISSING;
    if (refusal == JWT_NO_MEMORY)
        return TR_ENOMEM;
    if (refusal != JWT_OK)
        return refuse_jwt(inquiry, refusal);
    inquiry->claims = auth_claims_new(&(struct auth_claims){
        .kind = AUTH_SESSION,
        .issuer = jwt->claims.sub,
        .audience = jwt->claims.aud,
        .jti = jwt->claims.jti,
        .issued_s = (uint64_t)jwt->claims.iat_s,
        .expires_s = (uint64_t)jwt->claims.exp_s,
    });
    inquiry->needs_session = inquiry->claims != NULL;
    return inquiry->claims == NULL ? TR_ENOMEM : 0;
}

static int verify(struct inquiry *inquiry, struct jwt *jwt)
{
    enum jwt_refusal refusal = jwt_parse(jwt, (struct span){ inquiry->token, inquiry->token_size });
    bool is_new_key;

    if (refusal == JWT_OK && jwt->algorithm == CRYPTO_HS256 && inquiry->auth->session_key != NULL)
        return verify_session(inquiry, jwt);
    if (refusal == JWT_OK)
        refusal = check(inquiry, jwt);
    if (refusal == JWT_NO_MEMORY)
        return TR_ENOMEM;
    if (refusal != JWT_OK)
        return refuse_jwt(inquiry, refusal);
    if (find_key(inquiry, jwt->claims.iss, &is_new_key) < 0)
        return TR_ENOMEM;
    if (inquiry->key == NULL)
        return 0;
    refusal = jwt_verify(jwt, inquiry->key);
    if (refusal == JWT_NO_MEMORY)
        return TR_ENOMEM;
    if (refusal != JWT_OK)
        return refuse_jwt(inquiry, refusal);
    if (is_new_key)
        did_key_cache_put(&inquiry->auth->did_keys, jwt->claims.iss, inquiry->key);
    return accept(inquiry, jwt);
}

static void work_on(struct inquiry *inquiry)
{
    struct jwt jwt = { 0 };
    int rc;

    inquiry->needs_key = inquiry->needs_session = inquiry->bad_signature = false;
    auth_claims_unref(inquiry->claims); /* of an earlier look, under another key */
    inquiry->claims = NULL;
    rc = verify(inquiry, &jwt);
    jwt_finish(&jwt);
    if (rc < 0) {
        inquiry->needs_key = inquiry->needs_session = false;
        inquiry->verdict = DESK_FAILED;
        inquiry->label = "Overloaded";
        inquiry->text = "out of memory: try again";
    }
}

int auth_verify_work(void *argument)
{
    for (struct inquiry *at = argument; at != NULL; at = at->next_waiting)
        work_on(at);
    return 0;
}

void auth_verify_drop(void *argument)
{
    for (struct inquiry *at = argument, *next; at != NULL; at = next) {
        next = at->next_waiting;
        inquiry_unref(at);
    }
}

void inquiry_unref(struct inquiry *inquiry)
{
    if (inquiry == NULL ||
        atomic_fetch_sub_explicit(&inquiry->holders, 1, memory_order_acq_rel) > 1)
        return;
    auth_claims_unref(inquiry->claims);
    crypto_key_unref(&inquiry->key);
    auth_unref(inquiry->auth);
    if (inquiry->waiters != inquiry->first_waiters)
        base_free(inquiry->waiters);
    base_free(inquiry->token);
    base_free(inquiry->issuer);
    base_free(inquiry);
}
