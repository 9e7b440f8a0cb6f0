/* SPDX-License-Identifier: Apache-2.0 */
/* jwt.h: read, check, verify and make signed tokens (JWS compact form, RFC 7515 and 7519). Pure: no
 * clock, no network, no state. Any thread.
 *
 * The order is parse, check, verify: what costs nothing is refused before a key is looked up.
 *
 *     refusal = jwt_parse(&jwt, token);              form, header, claims' types
 *     refusal = jwt_check(&jwt, &expect);            times, audience, method, issuer, key id
 *     ... find the issuer's key ...
 *     refusal = jwt_verify(&jwt, key);               algorithm of the key, signature
 *     jwt_fini(&jwt);
 *
 * A verified token that is kept for reuse must pass jwt_check again at each use. */
#ifndef AUTH_JWT_H
#define AUTH_JWT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "crypto/key.h"
#include "json/json.h"
#include "support/buffer.h"

enum {
    JWT_BYTES_MAX = 8192,
    JWT_DEPTH_MAX = 8,         /* of header and claims */
    JWT_ID_CHARS_MAX = 128,    /* of jti */
    JWT_NAME_CHARS_MAX = 2048, /* of kid, iss, sub, aud, lxm */
    JWT_LIFETIME_DEFAULT_S = 120,
    JWT_SKEW_DEFAULT_S = 30,
};

/* X(name, label, text). Labels are part of the API: they are what a client is told. */
#define JWT_REFUSALS(X)                                                                            \
    X(JWT_OK, "Ok", "accepted")                                                                    \
    X(JWT_NO_MEMORY, "NoMemory", "out of memory")                                                  \
    X(JWT_MISSING, "TokenMissing", "there is no token")                                            \
    X(JWT_TOO_LARGE, "TokenTooLarge", "the token is larger than 8192 bytes")                       \
    X(JWT_FORM, "TokenForm", "a token is three parts with dots between them")                      \
    X(JWT_ENCODING, "TokenEncoding", "a part is not base64url without padding")                    \
    X(JWT_HEADER_JSON, "HeaderNotJson", "the header is not a JSON object")                         \
    X(JWT_HEADER_DUPLICATE, "HeaderDuplicate", "a header member is there twice")                   \
    X(JWT_CLAIMS_JSON, "ClaimsNotJson", "the claims are not a JSON object")                        \
    X(JWT_CLAIMS_DUPLICATE, "ClaimsDuplicate", "a claim is there twice")                           \
    X(JWT_ALGORITHM_MISSING, "AlgorithmMissing", "the header names no algorithm")                  \
    X(JWT_ALGORITHM_NONE, "AlgorithmNone", "unsigned tokens are not accepted")                     \
    X(JWT_ALGORITHM_UNKNOWN, "AlgorithmUnknown", "this algorithm is not supported")                \
    X(JWT_ALGORITHM_REFUSED, "AlgorithmRefused", "this algorithm is not accepted here")            \
    X(JWT_ALGORITHM_MISMATCH, "AlgorithmMismatch", "the algorithm is not the one of the key")      \
    X(JWT_HEADER_KEY, "HeaderKey", "a token may not bring its own key or say where it is")         \
    X(JWT_HEADER_CRITICAL, "HeaderCritical", "extensions (crit, b64) are not supported")           \
    X(JWT_HEADER_NESTED, "HeaderNested", "encrypted, packed or nested tokens are not supported")   \
    X(JWT_TYPE, "TypeRefused", "typ must be JWT or absent")                                        \
    X(JWT_KID, "KeyIdRefused", "the key id is not one of the expected")                            \
    X(JWT_KID_MISSING, "KeyIdMissing", "the header names no key id")                               \
    X(JWT_CLAIM_TYPE, "ClaimType", "a claim has the wrong type, is empty or too long")             \
    X(JWT_TIME_TYPE, "TimeType", "times are whole seconds since 1970, as numbers")                 \
    X(JWT_ISSUER_MISSING, "IssuerMissing", "there is no iss claim")                                \
    X(JWT_ISSUER, "IssuerRefused", "iss is not an issuer that is accepted here")                   \
    X(JWT_AUDIENCE_MISSING, "AudienceMissing", "there is no aud claim")                            \
    X(JWT_AUDIENCE, "AudienceMismatch", "aud does not name this service")                          \
    X(JWT_METHOD_MISSING, "MethodMissing", "there is no lxm claim")                                \
    X(JWT_METHOD, "MethodMismatch", "lxm does not name this method")                               \
    X(JWT_EXPIRY_MISSING, "ExpiryMissing", "there is no exp claim")                                \
    X(JWT_EXPIRED, "TokenExpired", "exp is past")                                                  \
    X(JWT_EXPIRY_FAR, "ExpiryTooFar", "exp is too far ahead, or the token lives too long")         \
    X(JWT_ISSUED_MISSING, "IssuedMissing", "there is no iat claim")                                \
    X(JWT_ISSUED_FUTURE, "IssuedInFuture", "iat or nbf is in the future: check the clocks")        \
    X(JWT_ISSUED_LATE, "IssuedAfterExpiry", "iat or nbf is not before exp")                        \
    X(JWT_ID_MISSING, "TokenIdMissing", "there is no jti claim")                                   \
    X(JWT_SIGNATURE_MISSING, "SignatureMissing", "the signature is empty")                         \
    X(JWT_SIGNATURE_FORM, "SignatureForm", "the signature has the wrong size for its algorithm")   \
    X(JWT_SIGNATURE_HIGH_S, "SignatureHighS", "the signature's S is not in the lower half")        \
    X(JWT_SIGNATURE, "SignatureMismatch", "the signature does not fit the token and key")

#define JWT__REFUSAL_ENUM(name, label, text) name,
enum jwt_refusal { JWT_REFUSALS(JWT__REFUSAL_ENUM) JWT_REFUSAL_COUNT };
#undef JWT__REFUSAL_ENUM

const char *jwt_refusal_label(enum jwt_refusal refusal);
const char *jwt_refusal_text(enum jwt_refusal refusal);

/* What the token says. Spans are absent ({NULL, 0}) if a claim is. Believe none of it before
 * jwt_verify. */
struct jwt_claims {
    struct span iss, sub, lxm, jti, nonce, azp;
    struct span aud;             /* the only one, or absent if there is a list */
    const struct json *aud_list; /* array of strings, NULL if there is none */
    int64_t exp_s, iat_s, nbf_s; /* since 1970; -1 if absent */
};

struct jwt {
    enum crypto_algorithm algorithm; /* as the header claims */
    struct span kid;                 /* absent if there is none */
    struct span signed_part;         /* borrowed from the token: header, dot, payload */
    struct span signature;
    struct span payload; /* decoded. Of jwt_parse_jws only: reading the claims changes it */
    struct jwt_claims claims;
    const struct json *claims_json; /* all claims, for what is not listed above */
    /* private from here */
    char *memory;
    struct json_doc header_doc;
    struct json_doc claims_doc;
};

/* Read a token. `token` must stay until jwt_fini: signed_part points into it. Whatever is
 * returned, jwt_fini releases what was taken (zeroed is fine too). */
enum jwt_refusal jwt_parse(struct jwt *jwt, struct span token);
/* The same for a payload that need not be JSON: there are no claims then. */
enum jwt_refusal jwt_parse_jws(struct jwt *jwt, struct span token);
void jwt_fini(struct jwt *jwt);

/* What a token must say here. All zero is the strictest: what is not stated is refused. */
struct jwt_expect {
    int64_t now_s;
    int64_t lifetime_s_max; /* exp at most so far from now and from iat; 0 is 120 */
    int64_t skew_s;         /* how far ahead iat and nbf may be; 0 is 30, -1 is none */

    /* One of these. issuer_is_did: a did:key, did:web or did:plc without a fragment. */
    struct span issuer;
    bool issuer_is_did;

    /* aud must be exactly one of these. A service is named with its fragment, did:web:host#id; the
     * bare DID is a name of its own (an older form) and no wildcard, so list it to accept it. */
    const struct span *audiences;
    size_t audience_count;
    /* Also accept a list in aud that has one of them; if there are others, azp must be the same
     * one (OpenID Connect). */
    bool allow_audience_list;

    struct span lxm; /* exactly this method */
    bool any_lxm;    /* this kind of token has none, or it does not matter */

    bool allow_missing_iat;
    bool allow_missing_jti;

    /* Bits 1 << crypto_algorithm. 0 is all but HS256. */
    uint32_t algorithms;

    /* kid, if there, must be one of these; one that begins with '#' stands also for iss followed by
     * it. Without a list kid must be absent. */
    const char *const *kids; /* ends with NULL */
    bool kid_required;
    bool any_kid; /* the caller looks the key up by kid, in a set */
};

enum jwt_refusal jwt_check(const struct jwt *jwt, const struct jwt_expect *expect);

/* Is the algorithm the key's, and the signature right? */
enum jwt_refusal jwt_verify(const struct jwt *jwt, const struct crypto_key *key);

/* Make a token and append it. claims_json is written as it is; it should be an object. kid may be
 * absent. TR_EACCES if the key cannot sign, TR_ENOMEM, TR_ETOOBIG past JWT_BYTES_MAX. On failure
 * nothing is appended. */
int jwt_sign(
    const struct crypto_key *key, struct span kid, struct span claims_json, struct buffer *out);

/* The same from the usual claims. Absent texts and negative times are left out. TR_EINVAL for text
 * that is not printable ASCII without quotes and backslashes: none of these claims needs more. */
int jwt_sign_claims(const struct crypto_key *key, struct span kid, const struct jwt_claims *claims,
    struct buffer *out);

#endif
