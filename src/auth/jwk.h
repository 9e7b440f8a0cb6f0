/* SPDX-License-Identifier: Apache-2.0 */
/* jwk.h: read and write JSON Web Keys (RFC 7517, 7518, 8037, 8812). kty and crv give the algorithm;
 * alg, if present, must agree. */
#ifndef AUTH_JWK_H
#define AUTH_JWK_H

#include "crypto/key.h"
#include "json/json.h"
#include "support/buffer.h"

enum jwk_want {
    JWK_PUBLIC,  /* a public key; a JWK with a private part is refused */
    JWK_PRIVATE, /* a private key or a secret */
    JWK_EITHER,  /* private if the JWK has a private part (EC and OKP; an RSA key stays public) */
};

/* Parse a key; the caller owns it. TR_EPROTO if the JWK is malformed, not meant for signatures (use,
 * key_ops) or lacks the wanted half; TR_EUNSUPPORTED for an unsupported kind; TR_ENOMEM. On failure
 * *ret_why gets a static sentence; ret_why may be NULL. */
int jwk_parse(
    const struct json *jwk, enum jwk_want want, struct crypto_key **ret_key, const char **ret_why);

/* Append the key as a JSON object; with its private part if `with_private`. kid may be absent.
 * TR_EUNSUPPORTED for RS256 and HS256 keys, TR_EINVAL if kid is not printable ASCII without quotes and
 * backslashes, TR_ENOMEM. */
int jwk_write(const struct crypto_key *key, struct span kid, bool with_private, struct buffer *out);

#endif
