/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/jwk.h"

#include <string.h>

#include <troupe/error.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"

/* The names of each kind of key (RFC 7518 section 6, RFC 8037, RFC 8812). */
static const struct kind {
    const char *type;
    const char *curve; /* NULL if the kind has none */
    enum crypto_algorithm algorithm;
    bool has_y;
} kinds[] = {
    { "EC", "P-256", CRYPTO_ES256, true },
    { "EC", "secp256k1", CRYPTO_ES256K, true },
    { "OKP", "Ed25519", CRYPTO_EDDSA, false },
    { "RSA", NULL, CRYPTO_RS256, false },
    { "oct", NULL, CRYPTO_HS256, false },
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const char out_of_memory[] = "The server is out of memory.";

static int jwk_fail(int code, const char *why, const char **ret_why)
{
    if (ret_why != NULL)
        *ret_why = why;
    return code;
}

static const struct kind *find_kind(const struct json *jwk)
{
    struct span type, curve;

    if (!json_string(json_get(jwk, "kty"), &type))
        return NULL;
    for (size_t i = 0; i < KINDS; i++) {
        if (!span_is(type, kinds[i].type))
            continue;
        if (kinds[i].curve == NULL)
            return &kinds[i];
        if (json_string(json_get(jwk, "crv"), &curve) && span_is(curve, kinds[i].curve))
            return &kinds[i];
    }
    return NULL;
}

/* Check that the key is meant for signatures and that alg, if present, is its kind's. */
static int check_use(const struct json *jwk, const struct kind *kind, const char **ret_why)
{
    const struct json *operations = json_get(jwk, "key_ops");
    struct span text;
    bool has_verify = false;

    if (json_get(jwk, "alg") != NULL && (!json_string(json_get(jwk, "alg"), &text) ||
                                            !span_is(text, crypto_algorithm_name(kind->algorithm))))
        return jwk_fail(TR_EUNSUPPORTED, "alg does not match kty and crv.", ret_why);
    if (json_get(jwk, "use") != NULL &&
        (!json_string(json_get(jwk, "use"), &text) || !span_is(text, "sig")))
        return jwk_fail(TR_EUNSUPPORTED, "use must be sig.", ret_why);
    if (operations == NULL)
        return 0;
    for (struct json_iter it = json_iterate(operations); json_next(&it);)
        has_verify = has_verify || (json_string(it.value, &text) &&
                                       (span_is(text, "verify") || span_is(text, "sign")));
    return has_verify && json_kind(operations) == JSON_ARRAY
               ? 0
               : jwk_fail(TR_EUNSUPPORTED, "key_ops must have verify.", ret_why);
}

/* Decode a member that must be base64url of exactly `size` bytes. */
static bool get_bytes(const struct json *jwk, const char *key, uint8_t *bytes, size_t size)
{
    struct span text;
    size_t got;

    return json_string(json_get(jwk, key), &text) &&
           crypto_base64url_decode(text, bytes, size, &got) == 0 && got == size;
}

static int parse_curve(const struct json *jwk, const struct kind *kind, bool is_private,
    struct crypto_key **ret_key, const char **ret_why)
{
    uint8_t point[65] = { 4 }, secret[CRYPTO_PRIVATE_BYTES], compressed[CRYPTO_PUBLIC_BYTES_MAX],
            expected[CRYPTO_PUBLIC_BYTES_MAX];
    struct crypto_key *key, *pair = NULL;
    bool is_same;
    int rc;

    if (!get_bytes(jwk, "x", point + 1, 32) ||
        (kind->has_y && !get_bytes(jwk, "y", point + 33, 32)))
        return jwk_fail(TR_EPROTO, "x and y must be 32 bytes in base64url.", ret_why);
    rc = kind->has_y ? crypto_key_from_public(kind->algorithm, point, 65, &key)
                     : crypto_key_from_public(kind->algorithm, point + 1, 32, &key);
    if (rc != 0)
        return jwk_fail(
            rc, rc == TR_ENOMEM ? out_of_memory : "The point (x, y) is not on the curve.", ret_why);
    if (!is_private) {
        *ret_key = key;
        return 0;
    }
    rc = get_bytes(jwk, "d", secret, sizeof secret)
             ? crypto_key_from_private(kind->algorithm, secret, sizeof secret, &pair)
             : TR_EPROTO;
    crypto_wipe(secret, sizeof secret);
    if (rc != 0) {
        crypto_key_unref(&key);
        return jwk_fail(rc, rc == TR_ENOMEM ? out_of_memory : "d is not a private key.", ret_why);
    }
    is_same = crypto_key_public_bytes(key, compressed) == crypto_key_public_bytes(pair, expected) &&
              memcmp(compressed, expected, kind->has_y ? 33 : 32) == 0;
    crypto_key_unref(&key);
    if (!is_same) {
        crypto_key_unref(&pair);
        return jwk_fail(TR_EPROTO, "d does not belong to x.", ret_why);
    }
    *ret_key = pair;
    return 0;
}

static int parse_rsa(const struct json *jwk, struct crypto_key **ret_key, const char **ret_why)
{
    uint8_t modulus[CRYPTO_RSA_BITS_MAX / 8], exponent[8];
    struct span n, e;
    size_t modulus_size, exponent_size;
    int rc;

    /* Base64urlUInt has no leading zero bytes (RFC 7518 section 2). */
    if (!json_string(json_get(jwk, "n"), &n) || !json_string(json_get(jwk, "e"), &e) ||
        crypto_base64url_decode(n, modulus, sizeof modulus, &modulus_size) != 0 ||
        crypto_base64url_decode(e, exponent, sizeof exponent, &exponent_size) != 0 ||
        modulus_size == 0 || exponent_size == 0 || modulus[0] == 0 || exponent[0] == 0)
        return jwk_fail(TR_EPROTO, "n and e must be numbers in base64url.", ret_why);
    rc = crypto_key_from_rsa(
        &(struct crypto_rsa_public){ .modulus = { (const char *)modulus, modulus_size },
            .exponent = { (const char *)exponent, exponent_size } },
        ret_key);
    return rc == 0 ? 0
                   : jwk_fail(rc,
                         rc == TR_ENOMEM ? out_of_memory
                                         : "n must have 2,048 to 4,096 bits from a sound "
                                           "generator, and e must be at least 65,537.",
                         ret_why);
}

static int parse_secret(const struct json *jwk, struct crypto_key **ret_key, const char **ret_why)
{
    uint8_t secret[CRYPTO_SECRET_BYTES_MAX];
    struct span text;
    size_t size;
    int rc = TR_EPROTO;

    if (json_string(json_get(jwk, "k"), &text) &&
        crypto_base64url_decode(text, secret, sizeof secret, &size) == 0)
        rc = crypto_key_from_private(CRYPTO_HS256, secret, size, ret_key);
    crypto_wipe(secret, sizeof secret);
    return rc == 0
               ? 0
               : jwk_fail(rc,
                     rc == TR_ENOMEM ? out_of_memory : "k must be 32 to 128 bytes in base64url.",
                     ret_why);
}

int jwk_parse(
    const struct json *jwk, enum jwk_want want, struct crypto_key **ret_key, const char **ret_why)
{
    const struct kind *kind;
    bool is_private;
    int rc;

    if (json_kind(jwk) != JSON_OBJECT)
        return jwk_fail(TR_EPROTO, "The key must be a JSON object.", ret_why);
    if (json_kind(json_get(jwk, "kty")) != JSON_STRING)
        return jwk_fail(TR_EPROTO, "kty is missing.", ret_why);
    kind = find_kind(jwk);
    if (kind == NULL)
        return jwk_fail(
            TR_EUNSUPPORTED, "kty and crv name a kind of key that is not supported.", ret_why);
    rc = check_use(jwk, kind, ret_why);
    if (rc != 0)
        return rc;
    is_private = json_get(jwk, "d") != NULL || kind->algorithm == CRYPTO_HS256;
    if (want == JWK_PUBLIC && is_private)
        return jwk_fail(TR_EPROTO, "The key has its private part; remove d or k.", ret_why);
    if (want == JWK_PRIVATE && !is_private)
        return jwk_fail(TR_EPROTO, "The key has no private part; add d or k.", ret_why);
    switch (kind->algorithm) {
    case CRYPTO_ES256:
    case CRYPTO_ES256K:
    case CRYPTO_EDDSA:
        return parse_curve(jwk, kind, is_private, ret_key, ret_why);
    case CRYPTO_RS256:
        if (want == JWK_PRIVATE)
            return jwk_fail(TR_EUNSUPPORTED, "A private RSA key must be in a PEM file.", ret_why);
        return parse_rsa(jwk, ret_key, ret_why);
    case CRYPTO_HS256:
        break;
    }
    return parse_secret(jwk, ret_key, ret_why);
}

/* ---- write ----------------------------------------------------------------------------------- */

static void put_bytes(struct buffer *out, const char *key, const uint8_t bytes[32])
{
    char text[44];

    buffer_format(
        out, ",\"%s\":\"%.*s\"", key, (int)crypto_base64url_encode(bytes, 32, text), text);
    crypto_wipe(text, sizeof text);
}

int jwk_write(const struct crypto_key *key, struct span kid, bool with_private, struct buffer *out)
{
    uint8_t x[CRYPTO_PUBLIC_BYTES_MAX], y[32], d[CRYPTO_PRIVATE_BYTES];
    const struct kind *kind = kinds;
    size_t before = out->size;

    while (kind->algorithm != crypto_key_algorithm(key))
        kind++;
    if (kind->curve == NULL || (with_private && !crypto_key_private_bytes(key, d)))
        return TR_EUNSUPPORTED;
    for (size_t i = 0; i < kid.size; i++)
        if (kid.at[i] < 0x20 || kid.at[i] > 0x7e || kid.at[i] == '"' || kid.at[i] == '\\')
            return TR_EINVAL;
    if (kind->has_y ? !crypto_key_public_point(key, x, y) : crypto_key_public_bytes(key, x) != 32)
        return TR_ENOMEM;
    buffer_format(out, "{\"kty\":\"%s\",\"crv\":\"%s\"", kind->type, kind->curve);
    put_bytes(out, "x", x);
    if (kind->has_y)
        put_bytes(out, "y", y);
    if (with_private)
        put_bytes(out, "d", d);
    buffer_format(out, ",\"alg\":\"%s\",\"use\":\"sig\"", crypto_algorithm_name(kind->algorithm));
    if (kid.at != NULL) {
        buffer_text(out, ",\"kid\":\"");
        buffer_span(out, kid);
        buffer_text(out, "\"");
    }
    buffer_text(out, "}");
    crypto_wipe(d, sizeof d);
    if (out->failed != 0)
        out->size = before;
    return out->failed;
}
