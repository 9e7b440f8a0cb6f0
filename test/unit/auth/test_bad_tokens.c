/* SPDX-License-Identifier: Apache-2.0 */
/* Bad tokens, made from a table: each must be refused with its own label, and its good twin, which
 * differs only in the defect, accepted. A row gives the bad header or claims, or how a good token
 * is damaged after signing. '@' in a template is the issuer's DID. */
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/error.h>

#include "auth/did.h"
#include "auth/jwt.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"

#define NOW 1700000000
#define HEADER "{\"alg\":\"ES256K\",\"typ\":\"JWT\"}"
#define ISS "\"iss\":\"@\""
#define AUD "\"aud\":\"did:web:localhost#svc\""
#define LXM "\"lxm\":\"com.example.send\""
#define JTI "\"jti\":\"n-1\""
#define IAT "\"iat\":1700000000"
#define EXP "\"exp\":1700000060"
#define CLAIMS(iss, aud, lxm, jti, iat, exp) "{" iss "," aud "," lxm "," jti "," iat "," exp "}"
#define GOOD CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP)
/* Good too, and base64 would pad it. */
#define UNEVEN CLAIMS(ISS, AUD, LXM, "\"jti\":\"n-10\"", IAT, EXP)
/* An extra member that is ignored stands in for one that is left out. */
#define NONE "\"extra\":0"

/* How a token is damaged after it was made, or signed wrongly. */
enum how {
    SIGNED,           /* not at all: header or claims are bad */
    OTHER_KEY,        /* signed by another key of the same kind */
    P256_KEY,         /* signed on the other curve */
    HS256_COMPRESSED, /* HMAC keyed with the public key, in several of its texts */
    HS256_UNCOMPRESSED,
    HS256_PEM,
    HS256_DID,
    HS256_EMPTY,
    SIGNATURE_EMPTY,
    SIGNATURE_GONE, /* with its dot */
    SIGNATURE_ZERO,
    SIGNATURE_ONES,
    SIGNATURE_R_ZERO,
    SIGNATURE_S_ZERO,
    SIGNATURE_R_ORDER,
    SIGNATURE_HIGH_S,
    SIGNATURE_SWAPPED, /* s||r */
    SIGNATURE_DER,
    SIGNATURE_SHORT,
    SIGNATURE_LONG,
    SIGNATURE_32_BYTES,
    SIGNATURE_OF_ANOTHER, /* a right one, of another token */
    SIGNATURE_OF_PAYLOAD, /* made over the payload alone */
    SIGNATURE_OF_DECODED, /* made over the decoded parts */
    SIGNATURE_NULL_TEXT,  /* "null" */
    PAD_HEADER,
    PAD_PAYLOAD,
    PAD_SIGNATURE,
    LOOSE_BITS_HEADER,
    LOOSE_BITS_PAYLOAD,
    LOOSE_BITS_SIGNATURE,
    PLUS_SIGNATURE, /* the standard alphabet */
    PERCENT_SIGNATURE,
    SPACE_BEFORE,
    SPACE_AFTER,
    NEWLINE_AFTER,
    TAB_INSIDE,
    ZERO_BYTE_AFTER,
    ZERO_BYTE_INSIDE,
    BEARER_BEFORE,
    QUOTED,
    EXTRA_DOT,
    EXTRA_PART,
    LEADING_DOT,
    NO_HEADER,
    NO_PAYLOAD,
    NO_DOTS,
    ONLY_DOTS,
    EMPTY,
    ONE_PART,
    JSON_SERIALIZATION,
    TWICE,
    NON_ASCII,
    ODD_LENGTH_HEADER,
    FIVE_PARTS, /* as an encrypted token has */
    HEADER_SWAPPED_AFTER,
    PAYLOAD_SWAPPED_AFTER,
    TOO_LARGE,
    TOO_LARGE_PADDING_CLAIM,
};

struct row {
    const char *name, *label;
    const char *header, *claims; /* NULL is the good one */
    enum how how;
    const char *twin_header, *twin_claims; /* likewise */
    uint32_t algorithms;                   /* of the expectation */
};

#define H(name, label, header)                                                                     \
    {                                                                                              \
        name, label, header, NULL, SIGNED, NULL, NULL, 0                                           \
    }
#define C(name, label, claims)                                                                     \
    {                                                                                              \
        name, label, NULL, claims, SIGNED, NULL, NULL, 0                                           \
    }
#define D(name, label, how)                                                                        \
    {                                                                                              \
        name, label, NULL, NULL, how, NULL, NULL, 0                                                \
    }
#define ALG(text) "{\"alg\":" text ",\"typ\":\"JWT\"}"
#define WITH(member) "{\"alg\":\"ES256K\",\"typ\":\"JWT\"," member "}"
#define TYP(text) "{\"alg\":\"ES256K\",\"typ\":" text "}"
#define ALL_ALGORITHMS UINT32_MAX

static const struct row rows[] = {
    /* -- algorithm -- */
    H("alg none", "AlgorithmNone", ALG("\"none\"")),
    H("alg None", "AlgorithmNone", ALG("\"None\"")),
    H("alg NONE", "AlgorithmNone", ALG("\"NONE\"")),
    H("alg nOnE", "AlgorithmNone", ALG("\"nOnE\"")),
    H("alg none, escaped", "AlgorithmNone", ALG("\"n\\u006fne\"")),
    { "alg none without signature", "AlgorithmNone", ALG("\"none\""), NULL, SIGNATURE_EMPTY, NULL,
        NULL, 0 },
    { "alg NonE without signature", "AlgorithmNone", ALG("\"NonE\""), NULL, SIGNATURE_EMPTY, NULL,
        NULL, 0 },
    H("alg none and a space", "AlgorithmUnknown", ALG("\"none \"")),
    H("alg missing", "AlgorithmMissing", "{\"typ\":\"JWT\"}"),
    H("header empty object", "AlgorithmMissing", "{}"),
    H("alg in capitals", "AlgorithmMissing", "{\"ALG\":\"ES256K\"}"),
    H("alg empty", "AlgorithmUnknown", ALG("\"\"")),
    H("alg null", "AlgorithmUnknown", ALG("null")),
    H("alg a number", "AlgorithmUnknown", ALG("256")),
    H("alg a list", "AlgorithmUnknown", ALG("[\"ES256K\"]")),
    H("alg an object", "AlgorithmUnknown", ALG("{\"ES256K\":1}")),
    H("alg in lower case", "AlgorithmUnknown", ALG("\"es256k\"")),
    H("alg ES384", "AlgorithmUnknown", ALG("\"ES384\"")),
    H("alg PS256", "AlgorithmUnknown", ALG("\"PS256\"")),
    H("alg HS512", "AlgorithmUnknown", ALG("\"HS512\"")),
    H("alg of encryption", "AlgorithmUnknown", ALG("\"RSA-OAEP\"")),
    H("alg with a zero byte", "AlgorithmUnknown", ALG("\"ES256K\\u0000\"")),
    H("alg ES256 with a key of ES256K", "AlgorithmMismatch", ALG("\"ES256\"")),
    H("alg EdDSA with a key of ES256K", "AlgorithmMismatch", ALG("\"EdDSA\"")),
    H("alg RS256 with a key of ES256K", "AlgorithmMismatch", ALG("\"RS256\"")),
    { "ES256 signature by another curve", "AlgorithmMismatch", ALG("\"ES256\""), NULL, P256_KEY,
        NULL, NULL, 0 },
    { "wrong curve under the right name", "SignatureMismatch", NULL, NULL, P256_KEY, NULL, NULL,
        0 },
    { "HS256 with the compressed public key", "AlgorithmRefused", ALG("\"HS256\""), NULL,
        HS256_COMPRESSED, NULL, NULL, 0 },
    { "HS256 with the uncompressed public key", "AlgorithmRefused", ALG("\"HS256\""), NULL,
        HS256_UNCOMPRESSED, NULL, NULL, 0 },
    { "HS256 with the PEM of the public key", "AlgorithmRefused", ALG("\"HS256\""), NULL, HS256_PEM,
        NULL, NULL, 0 },
    { "HS256 with the DID", "AlgorithmRefused", ALG("\"HS256\""), NULL, HS256_DID, NULL, NULL, 0 },
    { "HS256 with no key", "AlgorithmRefused", ALG("\"HS256\""), NULL, HS256_EMPTY, NULL, NULL, 0 },
    { "HS256 with the public key where secrets are allowed", "AlgorithmMismatch", ALG("\"HS256\""),
        NULL, HS256_COMPRESSED, NULL, NULL, ALL_ALGORITHMS },
    { "HS256 with the PEM where secrets are allowed", "AlgorithmMismatch", ALG("\"HS256\""), NULL,
        HS256_PEM, NULL, NULL, ALL_ALGORITHMS },
    { "ES256K where only ES256 is accepted", "AlgorithmRefused", NULL, NULL, SIGNED, NULL, NULL,
        1u << CRYPTO_ES256 },

    /* -- header -- */
    H("jwk in the header", "HeaderKey",
        WITH("\"jwk\":{\"kty\":\"EC\",\"crv\":\"secp256k1\",\"x\":\"\",\"y\":\"\"}")),
    H("jwk null in the header", "HeaderKey", WITH("\"jwk\":null")),
    H("jku in the header", "HeaderKey", WITH("\"jku\":\"https://evil.example.com/keys\"")),
    H("x5u in the header", "HeaderKey", WITH("\"x5u\":\"https://evil.example.com/cert\"")),
    H("x5c in the header", "HeaderKey", WITH("\"x5c\":[\"AA==\"]")),
    H("x5t in the header", "HeaderKey", WITH("\"x5t\":\"AA\"")),
    H("x5t#S256 in the header", "HeaderKey", WITH("\"x5t#S256\":\"AA\"")),
    H("jwk, escaped", "HeaderKey", WITH("\"\\u006awk\":{}")),
    H("crit unknown", "HeaderCritical", WITH("\"crit\":[\"exp\"],\"exp\":1")),
    H("crit empty", "HeaderCritical", WITH("\"crit\":[]")),
    H("crit b64", "HeaderCritical", WITH("\"crit\":[\"b64\"],\"b64\":false")),
    H("b64 alone", "HeaderCritical", WITH("\"b64\":false")),
    H("b64 true", "HeaderCritical", WITH("\"b64\":true")),
    H("cty JWT, a nested token", "HeaderNested", WITH("\"cty\":\"JWT\"")),
    H("enc, an encrypted token", "HeaderNested", WITH("\"enc\":\"A128GCM\"")),
    H("zip, a packed token", "HeaderNested", WITH("\"zip\":\"DEF\"")),
    H("epk", "HeaderNested", WITH("\"epk\":{}")),
    H("typ at+jwt", "TypeRefused", TYP("\"at+jwt\"")),
    H("typ refresh+jwt", "TypeRefused", TYP("\"refresh+jwt\"")),
    H("typ dpop+jwt", "TypeRefused", TYP("\"dpop+jwt\"")),
    H("typ application/at+jwt", "TypeRefused", TYP("\"application/at+jwt\"")),
    H("typ jwt", "TypeRefused", TYP("\"jwt\"")),
    H("typ JWS", "TypeRefused", TYP("\"JWS\"")),
    H("typ empty", "TypeRefused", TYP("\"\"")),
    H("typ null", "TypeRefused", TYP("null")),
    H("typ a list", "TypeRefused", TYP("[\"JWT\"]")),
    H("alg twice", "HeaderDuplicate", "{\"alg\":\"ES256K\",\"alg\":\"none\"}"),
    H("alg twice, once escaped", "HeaderDuplicate",
        "{\"alg\":\"ES256K\",\"\\u0061lg\":\"ES256K\"}"),
    H("kid twice", "HeaderDuplicate", WITH("\"kid\":\"#atproto\",\"kid\":\"#atproto\"")),
    H("duplicate inside an ignored member", "HeaderDuplicate", WITH("\"z\":{\"a\":1,\"a\":2}")),
    H("header a list", "HeaderNotJson", "[\"ES256K\"]"),
    H("header a string", "HeaderNotJson", "\"ES256K\""),
    H("header a number", "HeaderNotJson", "1"),
    H("header null", "HeaderNotJson", "null"),
    H("header with data after it", "HeaderNotJson", HEADER "x"),
    H("header twice", "HeaderNotJson", HEADER HEADER),
    H("header cut short", "HeaderNotJson", "{\"alg\":\"ES256K\""),
    H("header with a comment", "HeaderNotJson", "{\"alg\":\"ES256K\"/**/}"),
    H("header with a comma too many", "HeaderNotJson", "{\"alg\":\"ES256K\",}"),
    H("header in single quotes", "HeaderNotJson", "{'alg':'ES256K'}"),
    H("header with a byte order mark", "HeaderNotJson", "\xef\xbb\xbf" HEADER),
    H("header with broken UTF-8", "HeaderNotJson", WITH("\"z\":\"\xff\"")),
    H("header too deep", "HeaderNotJson", WITH("\"z\":[[[[[[[[[[[[1]]]]]]]]]]]]")),
    { "kid of a foreign fragment", "KeyIdRefused", WITH("\"kid\":\"#other\""), NULL, SIGNED,
        WITH("\"kid\":\"#atproto\""), NULL, 0 },
    { "kid of a foreign DID", "KeyIdRefused", WITH("\"kid\":\"did:web:evil.example.com#atproto\""),
        NULL, SIGNED, WITH("\"kid\":\"@#atproto\""), NULL, 0 },
    { "kid a longer DID", "KeyIdRefused", WITH("\"kid\":\"@x#atproto\""), NULL, SIGNED,
        WITH("\"kid\":\"@#atproto\""), NULL, 0 },
    H("kid the bare DID", "KeyIdRefused", WITH("\"kid\":\"@\"")),
    H("kid without its hash", "KeyIdRefused", WITH("\"kid\":\"atproto\"")),
    H("kid of the labeler", "KeyIdRefused", WITH("\"kid\":\"#atproto_label\"")),
    H("kid a path", "KeyIdRefused", WITH("\"kid\":\"../../../../dev/null\"")),
    H("kid a path after the right one", "KeyIdRefused", WITH("\"kid\":\"#atproto/../x\"")),
    H("kid SQL", "KeyIdRefused", WITH("\"kid\":\"x' UNION SELECT 'key';--\"")),
    H("kid a command", "KeyIdRefused", WITH("\"kid\":\"key;/usr/bin/id\"")),
    H("kid a pipe", "KeyIdRefused", WITH("\"kid\":\"|id\"")),
    H("kid a URL", "KeyIdRefused", WITH("\"kid\":\"https://evil.example.com/key\"")),
    H("kid empty", "KeyIdRefused", WITH("\"kid\":\"\"")),
    H("kid a number", "KeyIdRefused", WITH("\"kid\":1")),
    H("kid null", "KeyIdRefused", WITH("\"kid\":null")),
    H("kid a list", "KeyIdRefused", WITH("\"kid\":[\"#atproto\"]")),
    H("kid with a zero byte", "KeyIdRefused", WITH("\"kid\":\"#atproto\\u0000\"")),
    H("kid with a newline", "KeyIdRefused", WITH("\"kid\":\"#atproto\\n\"")),

    /* -- claims: form -- */
    C("claims a list", "ClaimsNotJson", "[" GOOD "]"),
    C("claims a string", "ClaimsNotJson", "\"x\""),
    C("claims empty text", "ClaimsNotJson", ""),
    C("claims cut short", "ClaimsNotJson", "{" ISS),
    C("claims with data after them", "ClaimsNotJson", GOOD " x"),
    C("claims twice", "ClaimsNotJson", GOOD GOOD),
    C("claims with a byte order mark", "ClaimsNotJson", "\xef\xbb\xbf" GOOD),
    C("claims with broken UTF-8", "ClaimsNotJson",
        CLAIMS(ISS, AUD, LXM, "\"jti\":\"\xc3\"", IAT, EXP)),
    C("claims too deep", "ClaimsNotJson",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP ",\"z\":[[[[[[[[[[[[1]]]]]]]]]]]]")),
    C("claims with NaN", "ClaimsNotJson", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":NaN")),
    C("claims with hexadecimal", "ClaimsNotJson",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":0x6553f13c")),
    C("a nested token as claims", "ClaimsNotJson", "eyJhbGciOiJub25lIn0.e30."),
    C("iss twice", "ClaimsDuplicate", CLAIMS(ISS "," ISS, AUD, LXM, JTI, IAT, EXP)),
    C("exp twice", "ClaimsDuplicate", CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP ",\"exp\":1700000061")),
    C("aud twice, once escaped", "ClaimsDuplicate",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP ",\"\\u0061ud\":\"did:web:localhost\"")),
    C("jti twice", "ClaimsDuplicate", CLAIMS(ISS, AUD, LXM, JTI ",\"jti\":\"n-2\"", IAT, EXP)),

    /* -- claims: times -- */
    C("exp missing", "ExpiryMissing", CLAIMS(ISS, AUD, LXM, JTI, IAT, NONE)),
    C("exp in capitals", "ExpiryMissing", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"EXP\":1700000060")),
    C("exp null", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":null")),
    C("exp a string", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":\"1700000060\"")),
    C("exp a fraction", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":1700000060.5")),
    C("exp with a zero fraction", "TimeType",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":1700000060.0")),
    C("exp with an exponent", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":170000006e1")),
    C("exp a list", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":[1700000060]")),
    C("exp true", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":true")),
    C("exp negative", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":-1")),
    C("exp beyond 2^53", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":9007199254740993")),
    C("exp the largest int64", "TimeType",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":9223372036854775807")),
    C("exp beyond int64", "TimeType",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":18446744073709551676")),
    C("exp huge", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":1e999")),
    C("exp zero", "TokenExpired", CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":0", "\"exp\":0")),
    C("exp a second ago", "TokenExpired",
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1699999950", "\"exp\":1699999999")),
    { "exp now", "TokenExpired", NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1699999950", "\"exp\":1700000000"), SIGNED, NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1699999950", "\"exp\":1700000001"), 0 },
    { "exp over the cap", "ExpiryTooFar", NULL,
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":1700000121"), SIGNED, NULL,
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":1700000120"), 0 },
    { "exp over the cap, issued ahead", "ExpiryTooFar", NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000020", "\"exp\":1700000121"), SIGNED, NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000020", "\"exp\":1700000120"), 0 },
    C("exp in milliseconds", "ExpiryTooFar",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":1700000060000")),
    C("exp in ten years", "ExpiryTooFar", CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":2015360000")),
    { "issued long ago for long", "ExpiryTooFar", NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1699999939", EXP), SIGNED, NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1699999940", EXP), 0 },
    C("iat missing", "IssuedMissing", CLAIMS(ISS, AUD, LXM, JTI, NONE, EXP)),
    C("iat a string", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":\"1700000000\"", EXP)),
    C("iat a fraction", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000000.25", EXP)),
    C("iat negative", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":-5", EXP)),
    { "iat in the future", "IssuedInFuture", NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000031", EXP), SIGNED, NULL,
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000030", EXP), 0 },
    C("iat in milliseconds", "IssuedInFuture",
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000000000", EXP)),
    C("iat at exp", "IssuedAfterExpiry",
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000020", "\"exp\":1700000020")),
    C("iat after exp", "IssuedAfterExpiry",
        CLAIMS(ISS, AUD, LXM, JTI, "\"iat\":1700000025", "\"exp\":1700000020")),
    { "nbf in the future", "IssuedInFuture", NULL,
        CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP ",\"nbf\":1700000040"), SIGNED, NULL,
        CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP ",\"nbf\":1700000000"), 0 },
    C("nbf a string", "TimeType", CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP ",\"nbf\":\"0\"")),
    C("nbf after exp", "IssuedAfterExpiry",
        CLAIMS(ISS, AUD, LXM, JTI, IAT, "\"exp\":1700000010,\"nbf\":1700000010")),

    /* -- claims: names -- */
    C("iss missing", "IssuerMissing", CLAIMS(NONE, AUD, LXM, JTI, IAT, EXP)),
    C("iss null", "ClaimType", CLAIMS("\"iss\":null", AUD, LXM, JTI, IAT, EXP)),
    C("iss empty", "ClaimType", CLAIMS("\"iss\":\"\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss a list", "ClaimType", CLAIMS("\"iss\":[\"@\"]", AUD, LXM, JTI, IAT, EXP)),
    C("iss a number", "ClaimType", CLAIMS("\"iss\":1", AUD, LXM, JTI, IAT, EXP)),
    C("iss not a DID", "IssuerRefused", CLAIMS("\"iss\":\"alice\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss a URL", "IssuerRefused",
        CLAIMS("\"iss\":\"https://alice.example.com\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss with a fragment", "IssuerRefused",
        CLAIMS("\"iss\":\"@#atproto\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss of another method", "IssuerRefused",
        CLAIMS("\"iss\":\"did:ion:abc\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss a short did:plc", "IssuerRefused",
        CLAIMS("\"iss\":\"did:plc:abc\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss with a space", "IssuerRefused", CLAIMS("\"iss\":\"@ \"", AUD, LXM, JTI, IAT, EXP)),
    C("iss with a zero byte", "IssuerRefused",
        CLAIMS("\"iss\":\"@\\u0000\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss with a path", "IssuerRefused", CLAIMS("\"iss\":\"@/x\"", AUD, LXM, JTI, IAT, EXP)),
    C("iss with capital DID", "IssuerRefused",
        CLAIMS("\"iss\":\"DID:web:example.com\"", AUD, LXM, JTI, IAT, EXP)),
    C("aud missing", "AudienceMissing", CLAIMS(ISS, NONE, LXM, JTI, IAT, EXP)),
    C("aud null", "ClaimType", CLAIMS(ISS, "\"aud\":null", LXM, JTI, IAT, EXP)),
    C("aud empty", "ClaimType", CLAIMS(ISS, "\"aud\":\"\"", LXM, JTI, IAT, EXP)),
    C("aud an object", "ClaimType", CLAIMS(ISS, "\"aud\":{}", LXM, JTI, IAT, EXP)),
    C("aud a list of numbers", "ClaimType", CLAIMS(ISS, "\"aud\":[1]", LXM, JTI, IAT, EXP)),
    C("aud another service", "AudienceMismatch",
        CLAIMS(ISS, "\"aud\":\"did:web:example.com#svc\"", LXM, JTI, IAT, EXP)),
    C("aud the bare DID", "AudienceMismatch",
        CLAIMS(ISS, "\"aud\":\"did:web:localhost\"", LXM, JTI, IAT, EXP)),
    C("aud another fragment", "AudienceMismatch",
        CLAIMS(ISS, "\"aud\":\"did:web:localhost#other\"", LXM, JTI, IAT, EXP)),
    C("aud with more behind", "AudienceMismatch",
        CLAIMS(ISS, "\"aud\":\"did:web:localhost#svc2\"", LXM, JTI, IAT, EXP)),
    C("aud in other case", "AudienceMismatch",
        CLAIMS(ISS, "\"aud\":\"did:web:LOCALHOST#svc\"", LXM, JTI, IAT, EXP)),
    C("aud with a zero byte", "AudienceMismatch",
        CLAIMS(ISS, "\"aud\":\"did:web:localhost#svc\\u0000\"", LXM, JTI, IAT, EXP)),
    C("aud a star", "AudienceMismatch", CLAIMS(ISS, "\"aud\":\"*\"", LXM, JTI, IAT, EXP)),
    C("aud a list with the right one", "AudienceMismatch",
        CLAIMS(ISS, "\"aud\":[\"did:web:localhost#svc\"]", LXM, JTI, IAT, EXP)),
    C("aud an empty list", "AudienceMismatch", CLAIMS(ISS, "\"aud\":[]", LXM, JTI, IAT, EXP)),
    C("lxm missing", "MethodMissing", CLAIMS(ISS, AUD, NONE, JTI, IAT, EXP)),
    C("lxm null", "ClaimType", CLAIMS(ISS, AUD, "\"lxm\":null", JTI, IAT, EXP)),
    C("lxm empty", "ClaimType", CLAIMS(ISS, AUD, "\"lxm\":\"\"", JTI, IAT, EXP)),
    C("lxm a list", "ClaimType", CLAIMS(ISS, AUD, "\"lxm\":[\"com.example.send\"]", JTI, IAT, EXP)),
    C("lxm another method", "MethodMismatch",
        CLAIMS(ISS, AUD, "\"lxm\":\"com.example.read\"", JTI, IAT, EXP)),
    C("lxm a prefix", "MethodMismatch",
        CLAIMS(ISS, AUD, "\"lxm\":\"com.example.sen\"", JTI, IAT, EXP)),
    C("lxm with more behind", "MethodMismatch",
        CLAIMS(ISS, AUD, "\"lxm\":\"com.example.send2\"", JTI, IAT, EXP)),
    C("lxm in other case", "MethodMismatch",
        CLAIMS(ISS, AUD, "\"lxm\":\"com.example.Send\"", JTI, IAT, EXP)),
    C("lxm a star", "MethodMismatch", CLAIMS(ISS, AUD, "\"lxm\":\"*\"", JTI, IAT, EXP)),
    C("lxm with a space", "MethodMismatch",
        CLAIMS(ISS, AUD, "\"lxm\":\"com.example.send \"", JTI, IAT, EXP)),
    C("jti missing", "TokenIdMissing", CLAIMS(ISS, AUD, LXM, NONE, IAT, EXP)),
    C("jti null", "ClaimType", CLAIMS(ISS, AUD, LXM, "\"jti\":null", IAT, EXP)),
    C("jti empty", "ClaimType", CLAIMS(ISS, AUD, LXM, "\"jti\":\"\"", IAT, EXP)),
    C("jti a number", "ClaimType", CLAIMS(ISS, AUD, LXM, "\"jti\":7", IAT, EXP)),
    C("jti with a zero byte", "ClaimType", CLAIMS(ISS, AUD, LXM, "\"jti\":\"n\\u0000\"", IAT, EXP)),
    C("jti with a space", "ClaimType", CLAIMS(ISS, AUD, LXM, "\"jti\":\"n 1\"", IAT, EXP)),
    C("jti beyond ASCII", "ClaimType", CLAIMS(ISS, AUD, LXM, "\"jti\":\"n\\u00e9\"", IAT, EXP)),
    C("jti of 129 characters", "ClaimType",
        CLAIMS(ISS, AUD, LXM,
            "\"jti\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0\"",
            IAT, EXP)),
    C("sub a number", "ClaimType", CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP ",\"sub\":1")),

    /* -- signature -- */
    D("signed by another key", "SignatureMismatch", OTHER_KEY),
    D("signature empty", "SignatureMissing", SIGNATURE_EMPTY),
    D("signature and its dot gone", "TokenForm", SIGNATURE_GONE),
    D("signature all zero", "SignatureHighS", SIGNATURE_ZERO),
    D("signature all ones", "SignatureHighS", SIGNATURE_ONES),
    D("r zero", "SignatureMismatch", SIGNATURE_R_ZERO),
    D("s zero", "SignatureHighS", SIGNATURE_S_ZERO),
    D("r the order of the group", "SignatureMismatch", SIGNATURE_R_ORDER),
    D("high S", "SignatureHighS", SIGNATURE_HIGH_S),
    D("r and s swapped", NULL, SIGNATURE_SWAPPED), /* high S or mismatch, as r happens to be */
    D("signature in DER", "SignatureForm", SIGNATURE_DER),
    D("signature a byte short", "SignatureForm", SIGNATURE_SHORT),
    D("signature a byte long", "SignatureForm", SIGNATURE_LONG),
    D("signature of 32 bytes", "SignatureForm", SIGNATURE_32_BYTES),
    D("signature of another token", "SignatureMismatch", SIGNATURE_OF_ANOTHER),
    D("signature over the payload alone", "SignatureMismatch", SIGNATURE_OF_PAYLOAD),
    D("signature over the decoded parts", "SignatureMismatch", SIGNATURE_OF_DECODED),
    D("signature null", "SignatureForm", SIGNATURE_NULL_TEXT),
    D("header changed after signing", "SignatureMismatch", HEADER_SWAPPED_AFTER),
    D("claims changed after signing", "SignatureMismatch", PAYLOAD_SWAPPED_AFTER),

    /* -- encoding and form -- */
    D("padded header", "TokenEncoding", PAD_HEADER),
    { "padded payload", "TokenEncoding", NULL, UNEVEN, PAD_PAYLOAD, NULL, UNEVEN, 0 },
    D("padded signature", "TokenEncoding", PAD_SIGNATURE),
    D("loose bits in the header", "TokenEncoding", LOOSE_BITS_HEADER),
    { "loose bits in the payload", "TokenEncoding", NULL, UNEVEN, LOOSE_BITS_PAYLOAD, NULL, UNEVEN,
        0 },
    D("loose bits in the signature", "TokenEncoding", LOOSE_BITS_SIGNATURE),
    D("standard base64 in the signature", "TokenEncoding", PLUS_SIGNATURE),
    D("percent encoding", "TokenEncoding", PERCENT_SIGNATURE),
    D("space before", "TokenEncoding", SPACE_BEFORE),
    D("space after", "TokenEncoding", SPACE_AFTER),
    D("newline after", "TokenEncoding", NEWLINE_AFTER),
    D("tab inside", "TokenEncoding", TAB_INSIDE),
    D("zero byte after", "TokenEncoding", ZERO_BYTE_AFTER),
    D("zero byte inside", "TokenEncoding", ZERO_BYTE_INSIDE),
    D("Bearer before", "TokenEncoding", BEARER_BEFORE),
    D("in quotes", "TokenEncoding", QUOTED),
    D("beyond ASCII", "TokenEncoding", NON_ASCII),
    D("header of an impossible length", "TokenEncoding", ODD_LENGTH_HEADER),
    D("dot behind", "TokenForm", EXTRA_DOT),
    D("fourth part", "TokenForm", EXTRA_PART),
    D("dot before", "TokenForm", LEADING_DOT),
    D("no header", "HeaderNotJson", NO_HEADER),
    D("no payload", "ClaimsNotJson", NO_PAYLOAD),
    D("no dots", "TokenForm", NO_DOTS),
    D("only dots", "HeaderNotJson", ONLY_DOTS),
    D("nothing", "TokenMissing", EMPTY),
    D("one part", "TokenForm", ONE_PART),
    D("JSON serialization", "TokenForm", JSON_SERIALIZATION),
    D("token twice", "TokenForm", TWICE),
    D("five parts", "TokenForm", FIVE_PARTS),
    D("larger than 8 KB", "TokenTooLarge", TOO_LARGE),
    D("larger than 8 KB, rightly signed", "TokenTooLarge", TOO_LARGE_PADDING_CLAIM),
};
enum { ROWS = sizeof rows / sizeof rows[0] };
_Static_assert(ROWS >= 120, "enough bad tokens");

/* ---- making tokens --------------------------------------------------------------------------- */

struct world {
    struct crypto_key *key, *other, *p256;
    char did[DID_KEY_CHARS_MAX];
    /* For a server: seconds that its clock is ahead of NOW, and its name for the method. */
    int64_t ahead_s;
    const char *lxm;
};

static void set_up(struct world *world)
{
    static const uint8_t secret[32] = { 1, 2, 3, 4 }, other[32] = { 5, 6, 7, 8 };

    *world = (struct world){ 0 };
    CHECK_EQ_INT(crypto_key_from_private(CRYPTO_ES256K, secret, 32, &world->key), 0);
    CHECK_EQ_INT(crypto_key_from_private(CRYPTO_ES256K, other, 32, &world->other), 0);
    CHECK_EQ_INT(crypto_key_from_private(CRYPTO_ES256, other, 32, &world->p256), 0);
    CHECK(did_key_format(world->key, world->did) > 0);
}

static void tear_down(struct world *world)
{
    crypto_key_unref(&world->key);
    crypto_key_unref(&world->other);
    crypto_key_unref(&world->p256);
}

static void append_encoded(struct buffer *out, const void *bytes, size_t size)
{
    char *at = buffer_reserve(out, crypto_base64url_size(size));

    CHECK(at != NULL);
    buffer_grew(out, crypto_base64url_encode(bytes, size, at));
}

/* A time near NOW: ten digits that begin as it does. */
static bool is_time(const char *at)
{
    return (strncmp(at, "170000", 6) == 0 || strncmp(at, "169999", 6) == 0) &&
           strspn(at, "0123456789") == 10;
}

static void append_template(struct buffer *out, const struct world *world, const char *template)
{
    static const char lxm[] = "com.example.send";
    struct buffer text = { 0 };

    for (const char *at = template; *at != '\0'; at++)
        if (*at == '@') {
            buffer_text(&text, world->did);
        } else if (is_time(at)) {
            buffer_format(&text, "%lld", strtoll(at, NULL, 10) + (long long)world->ahead_s);
            at += 9;
        } else if (world->lxm != NULL && strncmp(at, lxm, strlen(lxm)) == 0) {
            buffer_text(&text, world->lxm);
            at += strlen(lxm) - 1;
        } else {
            buffer_append(&text, at, 1);
        }
    append_encoded(out, text.bytes == NULL ? "" : text.bytes, text.size);
    buffer_free(&text);
}

/* HMAC keyed with something public. Returns false if `how` is not one of these. */
static bool sign_by_secret(
    const struct world *world, enum how how, const struct buffer *token, uint8_t tag[32])
{
    uint8_t point[65] = { 4 };
    struct buffer secret = { 0 };

    switch ((int)how) {
    case HS256_COMPRESSED:
        buffer_append(&secret, point, crypto_key_public_bytes(world->key, point));
        break;
    case HS256_UNCOMPRESSED:
        CHECK(crypto_key_public_point(world->key, point + 1, point + 33));
        buffer_append(&secret, point, 65);
        break;
    case HS256_PEM:
        CHECK_EQ_INT(crypto_key_public_pem(world->key, &secret), 0);
        break;
    case HS256_DID:
        buffer_text(&secret, world->did);
        break;
    case HS256_EMPTY:
        break;
    default:
        return false;
    }
    crypto_hmac_sha256(secret.bytes, secret.size, token->bytes, token->size, tag);
    buffer_free(&secret);
    return true;
}

static void negate_s(uint8_t signature[64])
{
    BIGNUM *order = NULL, *s = BN_bin2bn(signature + 32, 32, NULL);

    CHECK(
        BN_hex2bn(&order, "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141") > 0);
    CHECK_EQ_INT(BN_sub(s, order, s), 1);
    CHECK_EQ_INT(BN_bn2binpad(s, signature + 32, 32), 32);
    BN_free(order);
    BN_free(s);
}

static size_t to_der(uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX])
{
    ECDSA_SIG *pair = ECDSA_SIG_new();
    uint8_t *at = signature;
    int size;

    CHECK_EQ_INT(
        ECDSA_SIG_set0(pair, BN_bin2bn(signature, 32, NULL), BN_bin2bn(signature + 32, 32, NULL)),
        1);
    size = i2d_ECDSA_SIG(pair, &at);
    ECDSA_SIG_free(pair);
    return (size_t)size;
}

/* Change the raw signature; returns its new size. */
static size_t damage_signature(enum how how, uint8_t *signature, size_t size)
{
    uint8_t half[32];

    switch ((int)how) {
    case SIGNATURE_ZERO:
        memset(signature, 0, 64);
        break;
    case SIGNATURE_ONES:
        memset(signature, 0xff, 64);
        break;
    case SIGNATURE_R_ZERO:
        memset(signature, 0, 32);
        break;
    case SIGNATURE_S_ZERO:
        memset(signature + 32, 0, 32);
        break;
    case SIGNATURE_R_ORDER:
        memset(half, 0, 32);
        memcpy(half, signature + 32, 32);
        memset(signature + 32, 0, 32);
        negate_s(signature); /* n - 0 */
        memcpy(signature, signature + 32, 32);
        memcpy(signature + 32, half, 32);
        break;
    case SIGNATURE_HIGH_S:
        negate_s(signature);
        break;
    case SIGNATURE_SWAPPED:
        memcpy(half, signature, 32);
        memmove(signature, signature + 32, 32);
        memcpy(signature + 32, half, 32);
        break;
    case SIGNATURE_DER:
        return to_der(signature);
    case SIGNATURE_SHORT:
        return size - 1;
    case SIGNATURE_LONG:
        signature[size] = 0;
        return size + 1;
    case SIGNATURE_32_BYTES:
        return 32;
    case SIGNATURE_EMPTY:
    case SIGNATURE_GONE:
        return 0;
    default:
        break;
    }
    return size;
}

static void sign_token(const struct world *world, enum how how, struct buffer *token)
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    const struct crypto_key *key = how == OTHER_KEY  ? world->other
                                   : how == P256_KEY ? world->p256
                                                     : world->key;
    struct span signed_part = { token->bytes, token->size };
    uint8_t decoded[4096];
    size_t header_size, size;
    const char *dot = memchr(token->bytes, '.', token->size);

    if (how == SIGNATURE_OF_ANOTHER)
        signed_part = SPAN("eyJhbGciOiJFUzI1NksifQ.e30");
    if (how == SIGNATURE_OF_PAYLOAD)
        signed_part = (struct span){ dot + 1, token->size - 1 - (size_t)(dot - token->bytes) };
    if (how == SIGNATURE_OF_DECODED) {
        CHECK_EQ_INT(
            crypto_base64url_decode((struct span){ token->bytes, (size_t)(dot - token->bytes) },
                decoded, sizeof decoded, &header_size),
            0);
        decoded[header_size] = '.';
        CHECK_EQ_INT(crypto_base64url_decode(
                         (struct span){ dot + 1, token->size - 1 - (size_t)(dot - token->bytes) },
                         decoded + header_size + 1, sizeof decoded - header_size - 1, &size),
            0);
        signed_part = (struct span){ (char *)decoded, header_size + 1 + size };
    }
    if (sign_by_secret(world, how, token, signature)) {
        buffer_text(token, ".");
        append_encoded(token, signature, 32);
        return;
    }
    CHECK_EQ_INT(crypto_key_sign(key, signed_part.at, signed_part.size, signature), 0);
    size = damage_signature(how, signature, 64);
    if (how == SIGNATURE_GONE)
        return;
    buffer_text(token, ".");
    if (how == SIGNATURE_NULL_TEXT)
        buffer_text(token, "null");
    else
        append_encoded(token, signature, size);
}

/* Where part `index` begins and ends. */
static struct span part(const struct buffer *token, int index)
{
    const char *at = token->bytes, *end = token->bytes + token->size;

    for (; index > 0; index--)
        at = (const char *)memchr(at, '.', (size_t)(end - at)) + 1;
    return (
        struct span){ at, (size_t)((memchr(at, '.', (size_t)(end - at)) == NULL
                                           ? end
                                           : (const char *)memchr(at, '.', (size_t)(end - at))) -
                                   at) };
}

static void insert(struct buffer *token, size_t offset, const char *text, size_t size)
{
    CHECK(buffer_reserve(token, size) != NULL);
    memmove(token->bytes + offset + size, token->bytes + offset, token->size - offset);
    memcpy(token->bytes + offset, text, size);
    token->size += size;
}

/* Set the unused low bits of the part's last character. The part must have some: parts are made
 * so that they do. */
static void loosen(struct buffer *token, int index)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    struct span span = part(token, index);
    size_t last = (size_t)(span.at - token->bytes) + span.size - 1;

    CHECK(span.size % 4 != 0);
    token->bytes[last] = alphabet[(strchr(alphabet, token->bytes[last]) - alphabet) | 1];
}

/* Change the text of a whole token. */
static void damage_text(struct buffer *token, enum how how)
{
    size_t end_of_header = part(token, 0).size;
    size_t end_of_payload = end_of_header + 1 + part(token, 1).size;
    struct buffer copy = { 0 };

    switch ((int)how) {
    case PAD_HEADER:
        CHECK(part(token, 0).size % 4 != 0);
        insert(token, end_of_header, "==", 4 - part(token, 0).size % 4);
        break;
    case PAD_PAYLOAD:
        CHECK(part(token, 1).size % 4 != 0);
        insert(token, end_of_payload, "==", 4 - part(token, 1).size % 4);
        break;
    case PAD_SIGNATURE:
        buffer_text(token, "==");
        break;
    case LOOSE_BITS_HEADER:
        loosen(token, 0);
        break;
    case LOOSE_BITS_PAYLOAD:
        loosen(token, 1);
        break;
    case LOOSE_BITS_SIGNATURE:
        loosen(token, 2);
        break;
    case PLUS_SIGNATURE:
        token->bytes[token->size - 5] = '+';
        break;
    case PERCENT_SIGNATURE:
        insert(token, token->size - 4, "%41", 3);
        break;
    case SPACE_BEFORE:
        insert(token, 0, "    ", 4);
        break;
    case SPACE_AFTER:
        buffer_text(token, "    ");
        break;
    case NEWLINE_AFTER:
        buffer_text(token, "\r\n");
        break;
    case TAB_INSIDE:
        insert(token, end_of_payload - 4, "\t\t\t\t", 4);
        break;
    case ZERO_BYTE_AFTER:
        buffer_append(token, "\0", 1);
        break;
    case ZERO_BYTE_INSIDE:
        token->bytes[end_of_header - 2] = '\0';
        break;
    case BEARER_BEFORE:
        insert(token, 0, "Bearer ", 7);
        break;
    case QUOTED:
        insert(token, 0, "\"", 1);
        buffer_text(token, "\"");
        break;
    case NON_ASCII:
        token->bytes[3] = (char)0xc3;
        token->bytes[4] = (char)0xa9;
        break;
    case ODD_LENGTH_HEADER:
        while (part(token, 0).size % 4 != 1)
            insert(token, part(token, 0).size, "A", 1);
        break;
    case EXTRA_DOT:
        buffer_text(token, ".");
        break;
    case EXTRA_PART:
        buffer_text(token, ".AAAA");
        break;
    case LEADING_DOT:
        insert(token, 0, ".", 1);
        break;
    case NO_HEADER:
        buffer_consume(token, end_of_header);
        break;
    case NO_PAYLOAD:
        memmove(token->bytes + end_of_header + 1, token->bytes + end_of_payload,
            token->size - end_of_payload);
        token->size -= end_of_payload - end_of_header - 1;
        break;
    case NO_DOTS:
        for (size_t i = 0; i < token->size; i++)
            if (token->bytes[i] == '.')
                token->bytes[i] = '_';
        break;
    case ONLY_DOTS:
        buffer_clear(token);
        buffer_text(token, "..");
        break;
    case EMPTY:
        buffer_clear(token);
        break;
    case ONE_PART:
        token->size = end_of_header;
        break;
    case JSON_SERIALIZATION:
        buffer_format(&copy, "{\"payload\":\"%.*s\",\"protected\":\"%.*s\",\"signature\":\"%.*s\"}",
            (int)part(token, 1).size, part(token, 1).at, (int)part(token, 0).size,
            part(token, 0).at, (int)part(token, 2).size, part(token, 2).at);
        buffer_clear(token);
        buffer_append(token, copy.bytes, copy.size);
        break;
    case TWICE:
        buffer_append(&copy, token->bytes, token->size);
        buffer_append(token, copy.bytes, copy.size);
        break;
    case FIVE_PARTS:
        buffer_text(token, ".AAAA.AAAA");
        break;
    case HEADER_SWAPPED_AFTER: /* the same values, another text */
        buffer_append(&copy, token->bytes + end_of_header, token->size - end_of_header);
        buffer_clear(token);
        append_encoded(token, "{\"typ\":\"JWT\",\"alg\":\"ES256K\"}", 28);
        buffer_append(token, copy.bytes, copy.size);
        break;
    case PAYLOAD_SWAPPED_AFTER: { /* one character of jti: still good claims */
        char decoded[2048];
        struct span payload = part(token, 1);
        size_t size;

        CHECK_EQ_INT(crypto_base64url_decode(payload, decoded, sizeof decoded, &size), 0);
        ((char *)memmem(decoded, size, "n-1", 3))[2] = '2';
        crypto_base64url_encode(decoded, size, token->bytes + end_of_header + 1);
        break;
    }
    case TOO_LARGE:
        while (token->size <= JWT_BYTES_MAX)
            buffer_text(token, "AAAA");
        break;
    default:
        break;
    }
    buffer_free(&copy);
}

static void make_token(const struct world *world, const char *header, const char *claims,
    enum how how, struct buffer *token)
{
    buffer_clear(token);
    append_template(token, world, header != NULL ? header : HEADER);
    buffer_text(token, ".");
    if (how == TOO_LARGE_PADDING_CLAIM) {
        struct buffer large = { 0 };

        buffer_text(&large, CLAIMS(ISS, AUD, LXM, JTI, IAT, EXP) "");
        large.size--;
        buffer_text(&large, ",\"z\":\"");
        while (large.size < 6200)
            buffer_text(&large, "x");
        buffer_append(&large, "\"}", 3);
        append_template(token, world, large.bytes);
        buffer_free(&large);
    } else
        append_template(token, world, claims != NULL ? claims : GOOD);
    sign_token(world, how, token);
    damage_text(token, how);
    CHECK_EQ_INT(token->failed, 0);
}

/* ---- judging them ---------------------------------------------------------------------------- */

static enum jwt_refusal judge(const struct crypto_key *key, struct span token, uint32_t algorithms)
{
    static const char *const kids[] = { "#atproto", NULL };
    const struct span audience = SPAN("did:web:localhost#svc");
    const struct jwt_expect expect = {
        .now_s = NOW,
        .issuer_is_did = true,
        .audiences = &audience,
        .audience_count = 1,
        .lxm = SPAN("com.example.send"),
        .kids = kids,
        .algorithms = algorithms,
    };
    struct jwt jwt;
    enum jwt_refusal refusal = jwt_parse(&jwt, token);

    if (refusal == JWT_OK)
        refusal = jwt_check(&jwt, &expect);
    if (refusal == JWT_OK)
        refusal = jwt_verify(&jwt, key);
    jwt_fini(&jwt);
    return refusal;
}

static struct span text_of(const struct buffer *token)
{
    return (struct span){ token->bytes, token->size };
}

TEST(bad_tokens, are_refused_each_with_its_label)
{
    struct world world;
    struct buffer token = { 0 };
    unsigned refused = 0;

    set_up(&world);
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        const char *label;

        make_token(&world, row->header, row->claims, row->how, &token);
        label = jwt_refusal_label(judge(world.key, text_of(&token), row->algorithms));
        CHECK_MSG(strcmp(label, "Ok") != 0, "%s: accepted", row->name);
        CHECK_MSG(row->label == NULL || strcmp(label, row->label) == 0, "%s: refused as %s, not %s",
            row->name, label, row->label);
        refused++;
    }
    CHECK_EQ_U64(refused, ROWS);
    buffer_free(&token);
    tear_down(&world);
}

TEST(bad_tokens, have_good_twins_that_are_accepted)
{
    struct world world;
    struct buffer token = { 0 };

    set_up(&world);
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];

        make_token(&world, row->twin_header, row->twin_claims, SIGNED, &token);
        CHECK_MSG(judge(world.key, text_of(&token), 0) == JWT_OK, "twin of %s: %s", row->name,
            jwt_refusal_label(judge(world.key, text_of(&token), 0)));
    }
    buffer_free(&token);
    tear_down(&world);
}

/* For test/integration/bad_tokens.py, which sends them to a server: a line for each, with its name,
 * its label or "-", and it and its twin in base64url. The script says for which second. */
TEST(bad_tokens, are_written_for_a_server_too)
{
    const char *path = getenv("TROUPE_BAD_TOKENS");
    const char *now = getenv("TROUPE_BAD_TOKENS_NOW");
    FILE *file = fopen(path != NULL ? path : "/dev/null", "w");
    struct buffer token = { 0 }, line = { 0 };
    unsigned written = 0;
    struct world world;

    CHECK(file != NULL);
    set_up(&world);
    world.ahead_s = now != NULL ? strtoll(now, NULL, 10) - NOW : 0;
    world.lxm = "blue.catbird.mls.getConvo";
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];

        if (row->algorithms != 0) /* of an expectation that no server has */
            continue;
        buffer_clear(&line);
        buffer_format(&line, "%s\t%s\t", row->name, row->label != NULL ? row->label : "-");
        make_token(&world, row->header, row->claims, row->how, &token);
        append_encoded(&line, token.bytes, token.size);
        buffer_text(&line, "\t");
        make_token(&world, row->twin_header, row->twin_claims, SIGNED, &token);
        append_encoded(&line, token.bytes, token.size);
        buffer_text(&line, "\n");
        CHECK_EQ_U64(fwrite(line.bytes, 1, line.size, file), line.size);
        written++;
    }
    CHECK_EQ_INT(fclose(file), 0);
    CHECK(written >= 120);
    buffer_free(&line);
    buffer_free(&token);
    tear_down(&world);
}

TEST(bad_tokens, have_names_of_their_own)
{
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < i; j++)
            CHECK_MSG(strcmp(rows[i].name, rows[j].name) != 0, "%s is there twice", rows[i].name);
}

/* With no memory a bad token is still refused, and a good one too: as NoMemory, never as Ok. */
TEST(bad_tokens, are_refused_whichever_allocation_fails)
{
    struct world world;
    struct buffer token = { 0 };

    set_up(&world);
    for (size_t i = 0; i < ROWS; i++) {
        uint64_t n = 1;

        make_token(&world, rows[i].header, rows[i].claims, rows[i].how, &token);
        for (;; n++) {
            enum jwt_refusal refusal;

            base_fault_countdown(n, 1);
            refusal = judge(world.key, text_of(&token), rows[i].algorithms);
            CHECK_MSG(refusal != JWT_OK, "%s: accepted", rows[i].name);
            if (base_fault_countdown(0, 0) < n)
                break;
        }
    }
    buffer_free(&token);
    tear_down(&world);
}
