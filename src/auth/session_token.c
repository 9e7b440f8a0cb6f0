/* SPDX-License-Identifier: Apache-2.0 */
/* session_token.c: tokens of others and of ours: is this ID token the provider's, for us, now? Is
 * this refresh token one that we gave out? */
#include <string.h>

#include "auth/session_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

enum { ID_TOKEN_S_MAX = 24 * 3600 };

/* An address counts only if the provider says it checked it. */
static struct span verified_email(const struct jwt *jwt)
{
    struct span email;
    bool is_verified;

    if (json_bool(json_get(jwt->claims_json, "email_verified"), &is_verified) && is_verified &&
        json_string(json_get(jwt->claims_json, "email"), &email) && email.size <= 320)
        return email;
    return (struct span){ NULL, 0 };
}

static enum jwt_refusal check(
    const struct jwt *jwt, const struct session_provider *provider, int64_t now_s)
{
    const struct span audience = span_of(provider->audience);

    return jwt_check(jwt, &(struct jwt_expect){ .now_s = now_s,
                              .lifetime_s_max = ID_TOKEN_S_MAX,
                              .issuer = span_of(provider->issuer),
                              .audiences = &audience,
                              .audience_count = 1,
                              .allow_audience_list = true,
                              .any_lxm = true,
                              .allow_missing_jti = true,
                              .algorithms = 1u << CRYPTO_RS256 | 1u << CRYPTO_ES256,
                              .any_kid = true });
}

bool sign_in_is_right(struct sign_in *sign_in, const struct session_provider *provider,
    int64_t now_s, struct sign_in_refusal *ret_refusal)
{
    const struct jwt *jwt = &sign_in->jwt;
    const char *nonce = sign_in->message.nonce;
    enum jwt_refusal refusal = check(jwt, provider, now_s);

    if (refusal != JWT_OK)
        *ret_refusal =
            (struct sign_in_refusal){ jwt_refusal_label(refusal), jwt_refusal_text(refusal) };
    else if (jwt->claims.sub.at == NULL)
        *ret_refusal = (struct sign_in_refusal){ "SubjectMissing", "there is no sub claim" };
    else if (nonce != NULL && !span_is(jwt->claims.nonce, nonce))
        *ret_refusal = (struct sign_in_refusal){ "NonceMismatch",
            "the token's nonce is not the one of this sign-in" };
    else {
        sign_in->email = verified_email(jwt);
        return true;
    }
    return false;
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

enum { MARKED_CHARS = REFRESH_ID_CHARS + 1 + REFRESH_SECRET_CHARS };

/* Over the id and the secret, with a word before them: the key signs session tokens too. */
static int mark_of(const struct crypto_key *key, const char *text, unsigned char mark[32])
{
    static const char word[] = "refresh:";
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    char marked[sizeof word - 1 + MARKED_CHARS];
    int rc;

    tr_assert(crypto_key_signature_size(key) == 32);
    memcpy(marked, word, sizeof word - 1);
    memcpy(marked + sizeof word - 1, text, MARKED_CHARS);
    rc = crypto_key_sign(key, marked, sizeof marked, signature);
    if (rc == 0)
        memcpy(mark, signature, 32);
    crypto_wipe(marked, sizeof marked);
    return rc;
}

static void hash_secret(struct refresh_token *token)
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
    rc = mark_of(key, token->text, bytes);
    if (rc == 0) {
        size = crypto_base64url_encode(bytes, sizeof bytes, at);
        at[size] = '\0';
        hash_secret(token);
    }
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

bool refresh_token_parse(
    struct refresh_token *token, const struct crypto_key *key, struct span text)
{
    char expected[REFRESH_SECRET_CHARS + 1];
    unsigned char mark[32];
    bool is_ours;

    if (text.size != REFRESH_CHARS || text.at[REFRESH_ID_CHARS] != '.' ||
        text.at[MARKED_CHARS] != '.' || mark_of(key, text.at, mark) < 0)
        return false;
    (void)crypto_base64url_encode(mark, sizeof mark, expected);
    is_ours = crypto_equal(expected, text.at + MARKED_CHARS + 1, REFRESH_SECRET_CHARS);
    crypto_wipe(expected, sizeof expected);
    crypto_wipe(mark, sizeof mark);
    if (!is_ours)
        return false;
    memcpy(token->text, text.at, REFRESH_CHARS);
    token->text[REFRESH_CHARS] = '\0';
    hash_secret(token);
    return true;
}
