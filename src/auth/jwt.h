/* SPDX-License-Identifier: Apache-2.0 */
/* jwt.h: parse, check, verify and sign tokens (JWS compact form, RFC 7515 and 7519). Pure: no clock,
 * no network, no state. Any thread.
 *
 * The order is parse, check, verify: the cheap checks come before the search for a key.
 *
 *     refusal = jwt_parse(&jwt, token);              form, header, claims' types
 *     refusal = jwt_check(&jwt, &expect);            times, audience, method, issuer, key id
 *     ... find the issuer's key ...
 *     refusal = jwt_verify(&jwt, key);               algorithm of the key, signature
 *     jwt_fini(&jwt);
 *
 * A cached token must pass jwt_check again at each use. */
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
    JWT_QUOTE_CHARS_MAX = 128, /* of a token's value in a sentence */
    JWT_TEXT_SIZE = 320,       /* of a sentence, with its end */
};

/* X(name, label, text). Labels are part of the API: clients compare them. */
#define JWT_REFUSALS(X)                                                                            \
    X(JWT_OK, "Ok", "The token is accepted.")                                                      \
    X(JWT_NO_MEMORY, "NoMemory", "The server is out of memory; try again.")                        \
    X(JWT_MISSING, "TokenMissing", "The token is missing.")                                        \
    X(JWT_TOO_LARGE, "TokenTooLarge", "The token is larger than 8,192 bytes.")                     \
    X(JWT_FORM, "TokenForm", "The token must have three parts with dots between them.")            \
    X(JWT_ENCODING, "TokenEncoding", "A part of the token is not base64url without padding.")      \
    X(JWT_HEADER_JSON, "HeaderNotJson", "The token's header is not a JSON object.")                \
    X(JWT_HEADER_DUPLICATE, "HeaderDuplicate", "The token's header has a member twice.")           \
    X(JWT_CLAIMS_JSON, "ClaimsNotJson", "The token's claims are not a JSON object.")               \
    X(JWT_CLAIMS_DUPLICATE, "ClaimsDuplicate", "The token has a claim twice.")                     \
    X(JWT_ALGORITHM_MISSING, "AlgorithmMissing", "alg is missing.")                                \
    X(JWT_ALGORITHM_NONE, "AlgorithmNone", "alg is none; the token must be signed.")               \
    X(JWT_ALGORITHM_UNKNOWN, "AlgorithmUnknown", "alg is not a supported algorithm.")              \
    X(JWT_ALGORITHM_REFUSED, "AlgorithmRefused", "alg is not an algorithm that is accepted here.") \
    X(JWT_ALGORITHM_MISMATCH, "AlgorithmMismatch", "alg does not match the issuer's key.")         \
    X(JWT_HEADER_KEY, "HeaderKey", "The token's header brings a key or a link to one; remove it.") \
    X(JWT_HEADER_CRITICAL, "HeaderCritical",                                                       \
        "The token's header has an extension (crit, b64); remove it.")                             \
    X(JWT_HEADER_NESTED, "HeaderNested",                                                           \
        "The token is encrypted, compressed or nested; only signed ones pass.")                    \
    X(JWT_TYPE, "TypeRefused", "typ must be JWT or absent.")                                       \
    X(JWT_KID, "KeyIdRefused", "kid does not name a key that is accepted here.")                   \
    X(JWT_KID_MISSING, "KeyIdMissing", "kid is missing.")                                          \
    X(JWT_CLAIM_TYPE, "ClaimType", "A claim is not text of 1 to 2,048 characters.")                \
    X(JWT_TIME_TYPE, "TimeType", "A time is not a whole number of seconds since 1970.")            \
    X(JWT_ISSUER_MISSING, "IssuerMissing", "iss is missing.")                                      \
    X(JWT_ISSUER, "IssuerRefused", "iss is not an issuer that is accepted here.")                  \
    X(JWT_AUDIENCE_MISSING, "AudienceMissing", "aud is missing.")                                  \
    X(JWT_AUDIENCE, "AudienceMismatch", "aud does not name this service.")                         \
    X(JWT_METHOD_MISSING, "MethodMissing", "lxm is missing.")                                      \
    X(JWT_METHOD, "MethodMismatch", "lxm does not name this method.")                              \
    X(JWT_EXPIRY_MISSING, "ExpiryMissing", "exp is missing.")                                      \
    X(JWT_EXPIRED, "TokenExpired", "The token expired; make a new one.")                           \
    X(JWT_EXPIRY_FAR, "ExpiryTooFar", "The token lives too long.")                                 \
    X(JWT_ISSUED_MISSING, "IssuedMissing", "iat is missing.")                                      \
    X(JWT_ISSUED_FUTURE, "IssuedInFuture", "iat or nbf is in the future; set the clock.")          \
    X(JWT_ISSUED_LATE, "IssuedAfterExpiry", "iat and nbf must be before exp.")                     \
    X(JWT_ID_MISSING, "TokenIdMissing", "jti is missing.")                                         \
    X(JWT_SIGNATURE_MISSING, "SignatureMissing", "The signature is empty.")                        \
    X(JWT_SIGNATURE_FORM, "SignatureForm", "The signature has the wrong size for its algorithm.")  \
    X(JWT_SIGNATURE_HIGH_S, "SignatureHighS",                                                      \
        "The signature's S is in the upper half; use the lower one.")                              \
    X(JWT_SIGNATURE, "SignatureMismatch",                                                          \
        "The signature does not match; sign the token unchanged with the issuer's current key.")

#define JWT__REFUSAL_ENUM(name, label, text) name,
enum jwt_refusal { JWT_REFUSALS(JWT__REFUSAL_ENUM) JWT_REFUSAL_COUNT };
#undef JWT__REFUSAL_ENUM

const char *jwt_refusal_label(enum jwt_refusal refusal);
const char *jwt_refusal_text(enum jwt_refusal refusal);

/* The token's claims. The span of an absent claim is {NULL, 0}. Trust none of them before
 * jwt_verify. */
struct jwt_claims {
    struct span iss, sub, lxm, jti, nonce, azp;
    struct span aud;             /* the only one, or absent if there is a list */
    const struct json *aud_list; /* array of strings, NULL if there is none */
    int64_t exp_s, iat_s, nbf_s; /* since 1970; -1 if absent */
    const char *wrong_claim;     /* after JWT_CLAIM_TYPE and JWT_TIME_TYPE: its name, or NULL */
};

struct jwt {
    enum crypto_algorithm algorithm; /* as the header claims */
    struct span kid;                 /* absent if there is none */
    struct span signed_part;         /* borrowed from the token: header, dot, payload */
    struct span signature;
    struct span
        payload; /* decoded; set by jwt_parse_jws alone, because reading claims changes it */
    struct jwt_claims claims;
    const struct json *claims_json; /* all claims, also those that are not listed above */
    /* private from here */
    char *memory;
    struct json_doc header_doc;
    struct json_doc claims_doc;
};

/* Parse a token. `token` must outlive `jwt`: signed_part points into it. Call jwt_fini also after a
 * refusal. */
enum jwt_refusal jwt_parse(struct jwt *jwt, struct span token);
/* Parse a token whose payload need not be JSON. `jwt` gets no claims. */
enum jwt_refusal jwt_parse_jws(struct jwt *jwt, struct span token);
/* Release the memory of a token. Zeroed memory is fine. */
void jwt_fini(struct jwt *jwt);

enum { JWT_OPTIONAL_IAT = 1, JWT_OPTIONAL_JTI = 2 };

enum jwt_kid_rule {
    JWT_KID_OPTIONAL, /* kid is absent or in the list */
    JWT_KID_REQUIRED, /* kid is in the list */
    JWT_KID_ANY,      /* the caller finds the key by kid */
};

/* The requirements on a token. All zero is the strictest: the token passes no check that is left out. */
struct jwt_expect {
    int64_t now_s;
    int64_t lifetime_s_max; /* the most from now, and from iat, to exp; 0 is 120 */
    int64_t skew_s;         /* how far ahead iat and nbf may be; 0 is 30, -1 is none */

    /* One of these. issuer_is_did: a did:key, did:web or did:plc without a fragment. */
    struct span issuer;
    bool issuer_is_did;

    /* aud must be exactly one of these. A bare DID does not stand for DID#fragment: list both to
     * accept both. */
    const struct span *audiences;
    size_t audience_count;
    /* Also accept a list in aud that has one of them. If the list has others too, azp must be the
     * same one (OpenID Connect). */
    bool allow_audience_list;

    struct span lxm; /* exactly this method */
    bool any_lxm;    /* do not check lxm */

    unsigned optional; /* claims that may be absent: JWT_OPTIONAL_IAT, JWT_OPTIONAL_JTI */

    /* Bits 1 << crypto_algorithm. 0 is all but HS256. */
    uint32_t algorithms;

    enum jwt_kid_rule kid_rule;
    /* The accepted kids; NULL ends the list. An entry that begins with '#' also stands for iss
     * followed by the entry. */
    const char *const *kids;
};

/* Check the algorithm, times, issuer, audience, method, token id and key id. */
enum jwt_refusal jwt_check(const struct jwt *jwt, const struct jwt_expect *expect);

/* Check that the key's algorithm is the token's, and that the signature is right. */
enum jwt_refusal jwt_verify(const struct jwt *jwt, const struct crypto_key *key);

/* Sign a token and append it. claims_json must be a JSON object; kid may be absent. TR_EACCES if the
 * key cannot sign, TR_ENOMEM, TR_ETOOBIG past JWT_BYTES_MAX. A failure appends nothing. */
int jwt_sign(
    const struct crypto_key *key, struct span kid, struct span claims_json, struct buffer *out);

/* Sign a token with the usual claims. Absent texts and negative times are left out. TR_EINVAL for
 * text that is not printable ASCII without quotes and backslashes. */
int jwt_sign_claims(const struct crypto_key *key, struct span kid, const struct jwt_claims *claims,
    struct buffer *out);

/* Write the sentence for a refusal, with the token's value and the limit where there is one: "The token
 * expired at 09:08:17Z; make a new one." `expect` is what jwt_check got; NULL before jwt_check. */
void jwt_explain(enum jwt_refusal refusal, const struct jwt_claims *claims,
    const struct jwt_expect *expect, char text[JWT_TEXT_SIZE]);
/* The limits that apply: those of `expect`, or the defaults. */
int64_t jwt_lifetime_s(const struct jwt_expect *expect);
int64_t jwt_skew_s(const struct jwt_expect *expect);
/* Tell whether text is 1 to `chars_max` visible ASCII characters, so that a log or a database cannot
 * misread it. */
bool jwt_is_graphic(struct span text, size_t chars_max);

#endif
