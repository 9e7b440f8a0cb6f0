/* SPDX-License-Identifier: Apache-2.0 */
/* jwk.h: JSON Web Keys (RFC 7517, 7518, 8037, 8812) in and out. The algorithm follows from kty and
 * crv; alg, if there, must agree. */
#ifndef AUTH_JWK_H
#define AUTH_JWK_H

#include "crypto/key.h"
#include "json/json.h"
#include "support/buffer.h"

enum jwk_want {
    JWK_PUBLIC,  /* a public key; one that shows its private part is refused */
    JWK_PRIVATE, /* a private key or a secret */
    JWK_EITHER,  /* private if the private part is there (EC and OKP; an RSA key stays public) */
};

/* Make the key. TR_EPROTO if it is malformed, meant for something else than signatures (use,
 * key_ops) or not of the wanted half; TR_EUNSUPPORTED for a kind we do not have; TR_ENOMEM.
 * *ret_why, which may be NULL, gets a sentence on failure. */
int jwk_parse(
    const struct json *jwk, enum jwk_want want, struct crypto_key **ret_key, const char **ret_why);

/* Append the key as a JSON object; with its private part if `with_private` (EC and OKP only). kid
 * may be absent; it must be printable ASCII without quotes and backslashes. TR_EUNSUPPORTED for a
 * kind that is not written (RS256, HS256), TR_EINVAL, TR_ENOMEM. */
int jwk_write(const struct crypto_key *key, struct span kid, bool with_private, struct buffer *out);

#endif
