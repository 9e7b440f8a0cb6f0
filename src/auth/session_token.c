/* SPDX-License-Identifier: Apache-2.0 */
/* session_token.c: is this ID token the provider's, for us, now? */
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"

enum { ID_TOKEN_S_MAX = 24 * 3600 };

/* An address counts only if the provider says it checked it. */
static struct tr_span verified_email(const struct jwt *jwt)
{
    struct tr_span email;
    bool is_verified;

    if (json_bool(json_get(jwt->claims_json, "email_verified"), &is_verified) && is_verified &&
        json_string(json_get(jwt->claims_json, "email"), &email) && email.size <= 320)
        return email;
    return (struct tr_span){ NULL, 0 };
}

enum jwt_refusal sign_in_check(
    struct sign_in *sign_in, const struct session_provider *provider, int64_t now_s)
{
    const struct tr_span audience = tr_span_of(provider->audience);
    const struct jwt *jwt = &sign_in->jwt;
    enum jwt_refusal refusal =
        jwt_check(jwt, &(struct jwt_expect){ .now_s = now_s,
                           .lifetime_s_max = ID_TOKEN_S_MAX,
                           .issuer = tr_span_of(provider->issuer),
                           .audiences = &audience,
                           .audience_count = 1,
                           .allow_audience_list = true,
                           .any_lxm = true,
                           .allow_missing_jti = true,
                           .algorithms = 1u << CRYPTO_RS256 | 1u << CRYPTO_ES256,
                           .any_kid = true });

    if (refusal != JWT_OK)
        return refusal;
    if (jwt->claims.sub.at == NULL)
        return JWT_ISSUER_MISSING;
    if (sign_in->message.nonce != NULL && !tr_span_is(jwt->claims.nonce, sign_in->message.nonce))
        return JWT_CLAIM_TYPE;
    sign_in->email = verified_email(jwt);
    return JWT_OK;
}

int sign_in_verify_work(void *argument)
{
    struct sign_in *sign_in = argument;

    sign_in->refusal = jwt_verify(&sign_in->jwt, sign_in->key);
    return 0;
}

void sign_in_free(void *argument)
{
    struct sign_in *sign_in = argument;

    if (sign_in == NULL)
        return;
    jwt_finish(&sign_in->jwt);
    crypto_key_unref(&sign_in->key);
    tr__free(sign_in->message.text);
    tr__free(sign_in->message.nonce);
    tr__free(sign_in);
}
