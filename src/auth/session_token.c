/* SPDX-License-Identifier: Apache-2.0 */
/* session_token.c: checks ID tokens of providers, and makes and checks refresh tokens. */
#include <stdio.h>
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { ID_TOKEN_S_MAX = 24 * 3600 };

/* Return the e-mail address if the provider says that it verified it. */
static struct span verified_email(const struct jwt *jwt)
{
    struct span email;
    bool is_verified;

    if (json_bool(json_get(jwt->claims_json, "email_verified"), &is_verified) && is_verified &&
        json_string(json_get(jwt->claims_json, "email"), &email) && email.size <= 320)
        return email;
    return (struct span){ NULL, 0 };
}

static bool sign_in_refuse(struct sign_in_refusal *refusal, const char *label, const char *text)
{
    refusal->label = label;
    (void)snprintf(refusal->text, sizeof refusal->text, "%s", text);
    return false;
}

bool sign_in_check(struct sign_in *sign_in, const struct session_provider *provider, int64_t now_s,
    struct sign_in_refusal *ret_refusal)
{
    const struct jwt *jwt = &sign_in->jwt;
    const char *nonce = sign_in->message.nonce;
    const struct span audience = span_of(provider->audience);
    const struct jwt_expect expect = { .now_s = now_s,
        .lifetime_s_max = ID_TOKEN_S_MAX,
        .issuer = span_of(provider->issuer),
        .audiences = &audience,
        .audience_count = 1,
        .allow_audience_list = true,
        .any_lxm = true,
        .optional = JWT_OPTIONAL_JTI,
        .algorithms = 1u << CRYPTO_RS256 | 1u << CRYPTO_ES256,
        .kid_rule = JWT_KID_ANY };
    enum jwt_refusal refusal = jwt_check(jwt, &expect);

    if (refusal != JWT_OK) {
        ret_refusal->label = jwt_refusal_label(refusal);
        jwt_explain(refusal, &jwt->claims, &expect, ret_refusal->text);
        return false;
    }
    if (jwt->claims.sub.at == NULL)
        return sign_in_refuse(ret_refusal, "SubjectMissing", "sub is missing.");
    if (nonce != NULL && !span_is(jwt->claims.nonce, nonce))
        return sign_in_refuse(
            ret_refusal, "NonceMismatch", "The ID token's nonce is not the nonce of this request.");
    sign_in->email = verified_email(jwt);
    return true;
}

int sign_in_verify_work(void *argument)
{
    struct sign_in *sign_in = argument;

    sign_in->refusal = jwt_verify(&sign_in->jwt, sign_in->key);
    return 0;
}

static void wipe_text(char *text, size_t size)
{
    if (text != NULL)
        crypto_wipe(text, size);
    base_free(text);
}

void sign_in_unref(void *argument)
{
    struct sign_in *sign_in = argument;

    if (sign_in == NULL ||
        atomic_fetch_sub_explicit(&sign_in->holders, 1, memory_order_acq_rel) > 1)
        return;
    jwt_fini(&sign_in->jwt);
    crypto_key_unref(&sign_in->key);
    wipe_text(sign_in->message.text, sign_in->message.text_size);
    base_free(sign_in->message.nonce);
    crypto_wipe(&sign_in->refresh, sizeof sign_in->refresh);
    base_free(sign_in);
}

/* ---- refresh tokens ------------------------------------------------------------------------- */

enum { SIGNED_CHARS = REFRESH_ID_CHARS + 1 + REFRESH_SECRET_CHARS };

/* Compute the HMAC over a prefix, the id and the secret. The prefix keeps it apart from session tokens,
 * which the same key signs. */
static int refresh_token_mac(const struct crypto_key *key, const char *text, unsigned char mac[32])
{
    static const char prefix[] = "refresh:";
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    char input[sizeof prefix - 1 + SIGNED_CHARS];
    int rc;

    tr_assert(crypto_key_signature_size(key) == 32);
    memcpy(input, prefix, sizeof prefix - 1);
    memcpy(input + sizeof prefix - 1, text, SIGNED_CHARS);
    rc = crypto_key_sign(key, input, sizeof input, signature);
    if (rc == 0)
        memcpy(mac, signature, 32);
    crypto_wipe(input, sizeof input);
    return rc;
}

static void refresh_token_hash(struct refresh_token *token)
{
    crypto_sha256(token->text + REFRESH_ID_CHARS + 1, REFRESH_SECRET_CHARS, token->hash);
}

int refresh_token_init(
    struct refresh_token *token, const struct crypto_key *key, const char *session_id)
{
    unsigned char bytes[32];
    char *at = token->text;
    size_t size;
    int rc;

    tr_assert(strlen(session_id) == REFRESH_ID_CHARS);
    memcpy(at, session_id, REFRESH_ID_CHARS);
    at += REFRESH_ID_CHARS;
    *at++ = '.';
    crypto_random_fill(bytes, sizeof bytes);
    size = crypto_base64url_encode(bytes, sizeof bytes, at);
    tr_assert(size == REFRESH_SECRET_CHARS);
    at += size;
    *at++ = '.';
    rc = refresh_token_mac(key, token->text, bytes);
    if (rc == 0) {
        size = crypto_base64url_encode(bytes, sizeof bytes, at);
        at[size] = '\0';
        refresh_token_hash(token);
    }
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

bool refresh_token_parse(
    struct refresh_token *token, const struct crypto_key *key, struct span text)
{
    char expected[REFRESH_SECRET_CHARS + 1];
    unsigned char mac[32];
    bool is_ours;

    if (text.size != REFRESH_CHARS || text.at[REFRESH_ID_CHARS] != '.' ||
        text.at[SIGNED_CHARS] != '.' || refresh_token_mac(key, text.at, mac) < 0)
        return false;
    (void)crypto_base64url_encode(mac, sizeof mac, expected);
    is_ours = crypto_equal(expected, text.at + SIGNED_CHARS + 1, REFRESH_SECRET_CHARS);
    crypto_wipe(expected, sizeof expected);
    crypto_wipe(mac, sizeof mac);
    if (!is_ours)
        return false;
    memcpy(token->text, text.at, REFRESH_CHARS);
    token->text[REFRESH_CHARS] = '\0';
    refresh_token_hash(token);
    return true;
}
