/* SPDX-License-Identifier: Apache-2.0 */
/* jwt.c: invariants.
 *
 * 1. The header's alg is only a claim. jwt_verify compares it with the key's algorithm; the key alone
 *    chooses the code that runs, so a public key cannot be used as a shared secret.
 * 2. One token has one text: base64url, S and JSON objects each have a single accepted form. A cache
 *    or a replay store may therefore use the text, or its hash, as the token's identity.
 * 3. JWT_BYTES_MAX bounds everything that comes from the token. A token costs one allocation for its
 *    decoded parts and one for each of the two JSON tapes.
 *
 * The memory of a token: header, padding for the JSON reader, payload, padding, signature. */
#include "auth/jwt.h"

#include <string.h>

#include <troupe/error.h>

#include "auth/did.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/encoding.h"

/* ---- header ---------------------------------------------------------------------------------- */

/* Header members that end the jwt_parse_parts whatever their value. Other unknown members are ignored, as
 * RFC 7515 section 4 asks. */
static const struct {
    const char *name;
    enum jwt_refusal refusal;
} refused_members[] = {
    { "jwk", JWT_HEADER_KEY },
    { "jku", JWT_HEADER_KEY },
    { "x5u", JWT_HEADER_KEY },
    { "x5c", JWT_HEADER_KEY },
    { "x5t", JWT_HEADER_KEY },
    { "x5t#S256", JWT_HEADER_KEY },
    { "crit", JWT_HEADER_CRITICAL },
    { "b64", JWT_HEADER_CRITICAL },
    { "cty", JWT_HEADER_NESTED },
    { "enc", JWT_HEADER_NESTED },
    { "zip", JWT_HEADER_NESTED },
    { "epk", JWT_HEADER_NESTED },
};

bool jwt_is_graphic(struct span text, size_t chars_max)
{
    if (text.size == 0 || text.size > chars_max)
        return false;
    for (size_t i = 0; i < text.size; i++)
        if (text.at[i] < 0x21 || text.at[i] > 0x7e)
            return false;
    return true;
}

static enum jwt_refusal read_algorithm(const struct json *header, enum crypto_algorithm *algorithm)
{
    struct span name;

    if (json_get(header, "alg") == NULL)
        return JWT_ALGORITHM_MISSING;
    if (!json_string(json_get(header, "alg"), &name))
        return JWT_ALGORITHM_UNKNOWN;
    if (span_is_nocase(name, "none"))
        return JWT_ALGORITHM_NONE;
    return crypto_algorithm_parse(name, algorithm) ? JWT_OK : JWT_ALGORITHM_UNKNOWN;
}

static enum jwt_refusal read_header(struct jwt *jwt, char *text, size_t size)
{
    const struct json *header;
    struct span type;
    enum jwt_refusal refusal;
    int rc;

    jwt->header_doc.depth_max = JWT_DEPTH_MAX;
    rc = json_parse(&jwt->header_doc, text, size, JSON_UNIQUE_KEYS);
    if (rc == TR_ENOMEM)
        return JWT_NO_MEMORY;
    if (rc != 0)
        return rc == TR_EEXIST ? JWT_HEADER_DUPLICATE : JWT_HEADER_JSON;
    header = json_root(&jwt->header_doc);
    if (json_kind(header) != JSON_OBJECT)
        return JWT_HEADER_JSON;
    refusal = read_algorithm(header, &jwt->algorithm);
    if (refusal != JWT_OK)
        return refusal;
    for (size_t i = 0; i < sizeof refused_members / sizeof refused_members[0]; i++)
        if (json_get(header, refused_members[i].name) != NULL)
            return refused_members[i].refusal;
    /* at+jwt, refresh+jwt, dpop+jwt and the like are signed by the same keys for other uses. */
    if (json_get(header, "typ") != NULL &&
        (!json_string(json_get(header, "typ"), &type) || !span_is(type, "JWT")))
        return JWT_TYPE;
    if (json_get(header, "kid") != NULL && (!json_string(json_get(header, "kid"), &jwt->kid) ||
                                               !jwt_is_graphic(jwt->kid, JWT_NAME_CHARS_MAX)))
        return JWT_KID;
    return JWT_OK;
}

/* ---- claims ---------------------------------------------------------------------------------- */

static bool is_name(const struct json *json, const char *key, struct span *ret_text)
{
    const struct json *value = json_get(json, key);

    return value == NULL || (json_string(value, ret_text) && ret_text->size > 0 &&
                                ret_text->size <= JWT_NAME_CHARS_MAX);
}

static bool is_audience_list(const struct json *list)
{
    for (struct json_iter it = json_iterate(list); json_next(&it);)
        if (json_kind(it.value) != JSON_STRING)
            return false;
    return true;
}

static enum jwt_refusal read_names(const struct json *json, struct jwt_claims *claims)
{
    const struct {
        const char *key;
        struct span *ret_text;
    } names[] = { { "iss", &claims->iss }, { "sub", &claims->sub }, { "lxm", &claims->lxm },
        { "nonce", &claims->nonce }, { "azp", &claims->azp }, { "jti", &claims->jti },
        { "aud", &claims->aud } };
    const struct json *aud = json_get(json, "aud");
    size_t count = sizeof names / sizeof names[0];

    if (json_kind(aud) == JSON_ARRAY) {
        claims->aud_list = aud;
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_name(json, names[i].key, names[i].ret_text)) {
            claims->wrong_claim = names[i].key;
            return JWT_CLAIM_TYPE;
        }
    }
    if (claims->aud_list != NULL && !is_audience_list(aud))
        claims->wrong_claim = "aud";
    else if (claims->jti.at != NULL && !jwt_is_graphic(claims->jti, JWT_ID_CHARS_MAX))
        claims->wrong_claim = "jti";
    return claims->wrong_claim == NULL ? JWT_OK : JWT_CLAIM_TYPE;
}

static bool is_time(const struct json *value, int64_t *ret_s)
{
    *ret_s = -1;
    return value == NULL || (json_int(value, ret_s) && *ret_s >= 0 && *ret_s <= INT64_C(1) << 53);
}

static enum jwt_refusal read_times(const struct json *json, struct jwt_claims *claims)
{
    const struct {
        const char *key;
        int64_t *ret_s;
    } times[] = { { "exp", &claims->exp_s }, { "iat", &claims->iat_s }, { "nbf", &claims->nbf_s } };

    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (!is_time(json_get(json, times[i].key), times[i].ret_s)) {
            claims->wrong_claim = times[i].key;
            return JWT_TIME_TYPE;
        }
    }
    return JWT_OK;
}

static enum jwt_refusal read_claims(struct jwt *jwt, char *text, size_t size)
{
    enum jwt_refusal refusal;
    const struct json *json;
    int rc;

    jwt->claims_doc.depth_max = JWT_DEPTH_MAX;
    rc = json_parse(&jwt->claims_doc, text, size, JSON_UNIQUE_KEYS);
    if (rc == TR_ENOMEM)
        return JWT_NO_MEMORY;
    if (rc != 0)
        return rc == TR_EEXIST ? JWT_CLAIMS_DUPLICATE : JWT_CLAIMS_JSON;
    json = json_root(&jwt->claims_doc);
    if (json_kind(json) != JSON_OBJECT)
        return JWT_CLAIMS_JSON;
    jwt->claims_json = json;
    refusal = read_names(json, &jwt->claims);
    return refusal == JWT_OK ? read_times(json, &jwt->claims) : refusal;
}

/* ---- jwt_parse_parts ----------------------------------------------------------------------------------- */

static enum jwt_refusal jwt_split(struct span token, struct span ret_parts[3])
{
    const char *at = token.at, *end = token.at + token.size;

    for (int i = 0; i < 3; i++) {
        const char *dot = memchr(at, '.', (size_t)(end - at));

        if ((dot == NULL) != (i == 2))
            return JWT_FORM;
        ret_parts[i] = (struct span){ at, (size_t)((dot == NULL ? end : dot) - at) };
        at = dot == NULL ? end : dot + 1;
    }
    return JWT_OK;
}

/* Decode one part to *at, and move *at past the part and `padding`. */
static bool decode_part(struct span part, size_t padding, char **at, struct span *ret_bytes)
{
    size_t size;

    if (crypto_base64url_decode(part, *at, part.size, &size) != 0)
        return false;
    *ret_bytes = (struct span){ *at, size };
    *at += size + padding;
    return true;
}

static enum jwt_refusal jwt_parse_parts(struct jwt *jwt, struct span token, bool has_claims)
{
    struct span parts[3], header;
    enum jwt_refusal refusal;
    char *at, *header_at, *payload_at;

    *jwt = (struct jwt){ .claims = { .exp_s = -1, .iat_s = -1, .nbf_s = -1 } };
    if (token.size == 0)
        return JWT_MISSING;
    if (token.size > JWT_BYTES_MAX)
        return JWT_TOO_LARGE;
    refusal = jwt_split(token, parts);
    if (refusal != JWT_OK)
        return refusal;
    jwt->memory = base_alloc(token.size + (size_t)2 * JSON_PADDING_BYTES);
    if (jwt->memory == NULL)
        return JWT_NO_MEMORY;
    at = header_at = jwt->memory;
    if (!decode_part(parts[0], JSON_PADDING_BYTES, &at, &header))
        return JWT_ENCODING;
    payload_at = at;
    if (!decode_part(parts[1], JSON_PADDING_BYTES, &at, &jwt->payload) ||
        !decode_part(parts[2], 0, &at, &jwt->signature))
        return JWT_ENCODING;
    jwt->signed_part = (struct span){ token.at, parts[0].size + 1 + parts[1].size };

    refusal = read_header(jwt, header_at, header.size);
    if (refusal != JWT_OK)
        return refusal;
    if (jwt->signature.size == 0)
        return JWT_SIGNATURE_MISSING;
    if (!has_claims)
        return JWT_OK;
    refusal = read_claims(jwt, payload_at, jwt->payload.size);
    jwt->payload = (struct span){ NULL, 0 }; /* escapes were undone in place */
    return refusal;
}

enum jwt_refusal jwt_parse(struct jwt *jwt, struct span token)
{
    return jwt_parse_parts(jwt, token, true);
}

enum jwt_refusal jwt_parse_jws(struct jwt *jwt, struct span token)
{
    return jwt_parse_parts(jwt, token, false);
}

void jwt_fini(struct jwt *jwt)
{
    json_doc_free(&jwt->header_doc);
    json_doc_free(&jwt->claims_doc);
    base_free(jwt->memory);
    *jwt = (struct jwt){ 0 };
}

/* ---- check ----------------------------------------------------------------------------------- */

static enum jwt_refusal check_kid(const struct jwt *jwt, const struct jwt_expect *expect)
{
    const struct span kid = jwt->kid, iss = jwt->claims.iss;

    if (kid.at == NULL)
        return expect->kid_rule == JWT_KID_REQUIRED ? JWT_KID_MISSING : JWT_OK;
    if (expect->kid_rule == JWT_KID_ANY)
        return JWT_OK;
    for (const char *const *one = expect->kids; one != NULL && *one != NULL; one++) {
        if (span_is(kid, *one))
            return JWT_OK;
        if (**one == '#' && iss.size > 0 && kid.size > iss.size &&
            memcmp(kid.at, iss.at, iss.size) == 0 &&
            span_is((struct span){ kid.at + iss.size, kid.size - iss.size }, *one))
            return JWT_OK;
    }
    return JWT_KID;
}

int64_t jwt_lifetime_s(const struct jwt_expect *expect)
{
    return expect->lifetime_s_max > 0 ? expect->lifetime_s_max : JWT_LIFETIME_DEFAULT_S;
}

int64_t jwt_skew_s(const struct jwt_expect *expect)
{
    return expect->skew_s == 0 ? JWT_SKEW_DEFAULT_S : expect->skew_s < 0 ? 0 : expect->skew_s;
}

static enum jwt_refusal check_times(
    const struct jwt_claims *claims, const struct jwt_expect *expect)
{
    const int64_t now_s = expect->now_s;
    const int64_t lifetime_s = jwt_lifetime_s(expect);
    const int64_t skew_s = jwt_skew_s(expect);

    if (claims->exp_s < 0)
        return JWT_EXPIRY_MISSING;
    /* No leeway: the replay store may forget a token at its exp. */
    if (claims->exp_s <= now_s)
        return JWT_EXPIRED;
    if (claims->exp_s - now_s > lifetime_s)
        return JWT_EXPIRY_FAR;
    if (claims->iat_s < 0 && (expect->optional & JWT_OPTIONAL_IAT) == 0)
        return JWT_ISSUED_MISSING;
    if (claims->iat_s > now_s + skew_s || claims->nbf_s > now_s + skew_s)
        return JWT_ISSUED_FUTURE;
    if (claims->iat_s >= claims->exp_s || claims->nbf_s >= claims->exp_s)
        return JWT_ISSUED_LATE;
    if (claims->iat_s >= 0 && claims->exp_s - claims->iat_s > lifetime_s)
        return JWT_EXPIRY_FAR;
    return JWT_OK;
}

static enum jwt_refusal check_issuer(
    const struct jwt_claims *claims, const struct jwt_expect *expect)
{
    struct did did;

    if (claims->iss.at == NULL)
        return JWT_ISSUER_MISSING;
    if (expect->issuer.at != NULL && span_equal(expect->issuer, claims->iss))
        return JWT_OK;
    if (expect->issuer_is_did && did_parse(claims->iss, &did) == DID_OK)
        return JWT_OK;
    return JWT_ISSUER;
}

static bool is_audience(const struct jwt_expect *expect, struct span name)
{
    for (size_t i = 0; i < expect->audience_count; i++)
        if (span_equal(expect->audiences[i], name))
            return true;
    return false;
}

static enum jwt_refusal check_audience(
    const struct jwt_claims *claims, const struct jwt_expect *expect)
{
    struct span name;

    if (claims->aud_list == NULL) {
        if (claims->aud.at == NULL)
            return JWT_AUDIENCE_MISSING;
        return is_audience(expect, claims->aud) ? JWT_OK : JWT_AUDIENCE;
    }
    if (!expect->allow_audience_list)
        return JWT_AUDIENCE;
    for (struct json_iter it = json_iterate(claims->aud_list); json_next(&it);) {
        if (!json_string(it.value, &name) || !is_audience(expect, name))
            continue;
        /* If the list names others too, azp must be this one (OpenID Connect Core 3.1.3.7). */
        if (json_count(claims->aud_list) == 1 || span_equal(claims->azp, name))
            return JWT_OK;
    }
    return JWT_AUDIENCE;
}

static enum jwt_refusal check_method(
    const struct jwt_claims *claims, const struct jwt_expect *expect)
{
    if (expect->any_lxm)
        return JWT_OK;
    if (claims->lxm.at == NULL)
        return JWT_METHOD_MISSING;
    return expect->lxm.at != NULL && span_equal(expect->lxm, claims->lxm) ? JWT_OK : JWT_METHOD;
}

enum jwt_refusal jwt_check(const struct jwt *jwt, const struct jwt_expect *expect)
{
    const uint32_t algorithms =
        expect->algorithms != 0 ? expect->algorithms : ~(UINT32_C(1) << CRYPTO_HS256);
    enum jwt_refusal refusal;

    tr_assert(jwt->signed_part.at != NULL);
    if ((algorithms >> jwt->algorithm & 1) == 0)
        return JWT_ALGORITHM_REFUSED;
    refusal = check_times(&jwt->claims, expect);
    if (refusal == JWT_OK)
        refusal = check_issuer(&jwt->claims, expect);
    if (refusal == JWT_OK)
        refusal = check_audience(&jwt->claims, expect);
    if (refusal == JWT_OK)
        refusal = check_method(&jwt->claims, expect);
    if (refusal == JWT_OK && jwt->claims.jti.at == NULL &&
        (expect->optional & JWT_OPTIONAL_JTI) == 0)
        refusal = JWT_ID_MISSING;
    if (refusal == JWT_OK)
        refusal = check_kid(jwt, expect);
    return refusal;
}

/* ---- verify ---------------------------------------------------------------------------------- */

enum jwt_refusal jwt_verify(const struct jwt *jwt, const struct crypto_key *key)
{
    int rc;

    tr_assert(jwt->signed_part.at != NULL);
    if (jwt->algorithm != crypto_key_algorithm(key))
        return JWT_ALGORITHM_MISMATCH;
    if (jwt->signature.size != crypto_key_signature_size(key))
        return JWT_SIGNATURE_FORM;
    if (!crypto_signature_is_low_s(jwt->algorithm, (const uint8_t *)jwt->signature.at))
        return JWT_SIGNATURE_HIGH_S;
    rc = crypto_key_verify(key, jwt->signed_part.at, jwt->signed_part.size, jwt->signature);
    return rc == 0 ? JWT_OK : rc == TR_ENOMEM ? JWT_NO_MEMORY : JWT_SIGNATURE;
}

/* ---- sign ------------------------------------------------------------------------------------ */

/* Text that needs no escape inside a JSON string. */
static bool is_plain(struct span text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.at[i] < 0x20 || text.at[i] > 0x7e || text.at[i] == '"' || text.at[i] == '\\')
            return false;
    return true;
}

static void append_base64url(struct buffer *out, const void *bytes, size_t size)
{
    char *at = buffer_reserve(out, crypto_base64url_size(size));

    if (at != NULL)
        buffer_grew(out, crypto_base64url_encode(bytes, size, at));
}

static int sign_into(
    const struct crypto_key *key, struct span kid, struct span claims_json, struct buffer *token)
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    struct buffer header = { 0 };
    int rc;

    buffer_format(&header, "{\"alg\":\"%s\",\"typ\":\"JWT\"",
        crypto_algorithm_name(crypto_key_algorithm(key)));
    if (kid.at != NULL) {
        buffer_text(&header, ",\"kid\":\"");
        buffer_span(&header, kid);
        buffer_text(&header, "\"");
    }
    buffer_text(&header, "}");
    rc = header.failed;
    if (rc == 0) {
        append_base64url(token, header.bytes, header.size);
        buffer_text(token, ".");
        append_base64url(token, claims_json.at, claims_json.size);
        rc = token->failed;
    }
    buffer_free(&header);
    if (rc != 0)
        return rc;
    rc = crypto_key_sign(key, token->bytes, token->size, signature);
    if (rc != 0)
        return rc;
    buffer_text(token, ".");
    append_base64url(token, signature, crypto_key_signature_size(key));
    return token->failed;
}

int jwt_sign(
    const struct crypto_key *key, struct span kid, struct span claims_json, struct buffer *out)
{
    struct buffer token = { .size_max = JWT_BYTES_MAX };
    int rc;

    if (!is_plain(kid))
        return TR_EINVAL;
    rc = sign_into(key, kid, claims_json, &token);
    if (rc == 0)
        rc = buffer_append(out, token.bytes, token.size);
    buffer_free(&token);
    return rc == TR_ELIMIT ? TR_ETOOBIG : rc;
}

static void jwt_put_text(struct buffer *json, const char *key, struct span text)
{
    if (text.at == NULL)
        return;
    buffer_format(json, "%s\"%s\":\"", json->size == 1 ? "" : ",", key);
    buffer_span(json, text);
    buffer_text(json, "\"");
}

static void jwt_put_time(struct buffer *json, const char *key, int64_t time_s)
{
    if (time_s < 0)
        return;
    buffer_format(json, "%s\"%s\":", json->size == 1 ? "" : ",", key);
    buffer_i64(json, time_s);
}

int jwt_sign_claims(const struct crypto_key *key, struct span kid, const struct jwt_claims *claims,
    struct buffer *out)
{
    const struct {
        const char *key;
        struct span text;
    } members[] = { { "iss", claims->iss }, { "sub", claims->sub }, { "aud", claims->aud },
        { "lxm", claims->lxm }, { "jti", claims->jti }, { "nonce", claims->nonce },
        { "azp", claims->azp } };
    struct buffer json = { .size_max = JWT_BYTES_MAX };
    int rc;

    tr_assert(claims->aud_list == NULL); /* the server's own tokens have one audience */
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (!is_plain(members[i].text))
            return TR_EINVAL;
    buffer_text(&json, "{");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        jwt_put_text(&json, members[i].key, members[i].text);
    jwt_put_time(&json, "iat", claims->iat_s);
    jwt_put_time(&json, "nbf", claims->nbf_s);
    jwt_put_time(&json, "exp", claims->exp_s);
    buffer_text(&json, "}");
    rc = json.failed == TR_ELIMIT ? TR_ETOOBIG : json.failed;
    if (rc == 0)
        rc = jwt_sign(key, kid, (struct span){ json.bytes, json.size }, out);
    buffer_free(&json);
    return rc;
}
