/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens. The first byte chooses what is done with the rest:
 *
 *  - as it is: parse, check, verify. Nothing may be accepted, for the keys are not in the input;
 *  - as header and claims, with a line feed between them: encoded and rightly signed here, so that
 *    the readers behind the signature are reached too. An accepted token must keep the rules. */
#include "auth/jwt.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "auth/did.h"
#include "base/assert.h"
#include "crypto/encoding.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct crypto_key *keys[2]; /* ES256K, HS256 */

static void set_up(void)
{
    static const uint8_t secret[32] = { 1, 2, 3 };

    if (keys[0] != NULL)
        return;
    tr_assert(crypto_key_from_private(CRYPTO_ES256K, secret, 32, &keys[0]) == 0);
    tr_assert(crypto_key_from_private(CRYPTO_HS256, secret, 32, &keys[1]) == 0);
}

static void check_rules(const struct jwt *jwt, const struct jwt_expect *expect)
{
    const struct jwt_claims *claims = &jwt->claims;
    struct did did;

    tr_assert(claims->exp_s > expect->now_s);
    tr_assert(claims->exp_s <= expect->now_s + JWT_LIFETIME_DEFAULT_S);
    tr_assert(claims->iat_s >= 0);
    tr_assert(claims->iat_s <= expect->now_s + JWT_SKEW_DEFAULT_S);
    tr_assert(did_parse(claims->iss, &did) == DID_OK);
    tr_assert(span_equal(claims->aud, expect->audiences[0]));
    tr_assert(span_equal(claims->lxm, expect->lxm));
    tr_assert(claims->jti.size > 0);
    tr_assert(json_get(json_root(&jwt->header_doc), "jwk") == NULL);
    tr_assert(json_get(json_root(&jwt->header_doc), "crit") == NULL);
}

static enum jwt_refusal judge(struct span token)
{
    static const char *const kids[] = { "#atproto", NULL };
    const struct span audience = SPAN("did:web:localhost");
    const struct jwt_expect expect = {
        .now_s = 1700000000,
        .issuer_is_did = true,
        .audiences = &audience,
        .audience_count = 1,
        .lxm = SPAN("a.b.c"),
        .kids = kids,
        .algorithms = UINT32_MAX,
    };
    struct jwt jwt;
    enum jwt_refusal refusal = jwt_parse(&jwt, token), verified;

    if (refusal == JWT_OK) {
        verified = jwt_verify(&jwt, jwt.algorithm == CRYPTO_HS256 ? keys[1] : keys[0]);
        refusal = jwt_check(&jwt, &expect);
        if (refusal == JWT_OK) {
            refusal = verified;
            check_rules(&jwt, &expect);
        }
    }
    jwt_fini(&jwt);
    return refusal;
}

static void append_encoded(struct buffer *out, const void *bytes, size_t size)
{
    char *at = buffer_reserve(out, crypto_base64url_size(size));

    if (at != NULL)
        buffer_grew(out, crypto_base64url_encode(bytes, size, at));
}

static void judge_signed(const char *text, size_t size)
{
    const char *line = memchr(text, '\n', size);
    size_t header_size = line == NULL ? size : (size_t)(line - text);
    size_t claims_at = line == NULL ? size : header_size + 1;
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    struct buffer token = { 0 };

    append_encoded(&token, text, header_size);
    buffer_text(&token, ".");
    append_encoded(&token, text + claims_at, size - claims_at);
    if (token.failed == 0 && crypto_key_sign(keys[1], token.bytes, token.size, signature) == 0) {
        buffer_text(&token, ".");
        append_encoded(&token, signature, crypto_key_signature_size(keys[1]));
        judge((struct span){ token.bytes, token.size });
    }
    buffer_free(&token);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    set_up();
    if (size == 0)
        return 0;
    if (data[0] % 2 == 0)
        tr_assert(judge((struct span){ (const char *)data + 1, size - 1 }) != JWT_OK);
    else
        judge_signed((const char *)data + 1, size - 1);
    return 0;
}
