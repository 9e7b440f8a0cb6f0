/* SPDX-License-Identifier: Apache-2.0 */
/* mx_private.h: what the files of this folder share: keys, ciphers, message fields, pickles. */
#ifndef MATRIX_CRYPTO_MX_PRIVATE_H
#define MATRIX_CRYPTO_MX_PRIVATE_H

#include "matrix/crypto/mxcrypto.h"

enum {
    MX__AES_BLOCK_BYTES = 16,
    MX__MAC_BYTES = 8, /* of Olm and Megolm messages: HMAC-SHA256, truncated */
    MX__MESSAGE_VERSION = 3,
};

#define MX__BYTES(array) ((struct span){ (const char *)(array), sizeof(array) })

/* ---- primitive.c ----------------------------------------------------------------------------- */

struct mx__key_pair { /* of Curve25519 */
    struct mx_key public_key;
    uint8_t secret[MX_KEY_BYTES];
};
struct mx__signing_pair { /* of Ed25519, in libsodium's form */
    struct mx_key public_key;
    uint8_t secret[64];
};

void mx__key_pair_generate(const struct mx_random *random, struct mx__key_pair *ret_pair);
void mx__signing_pair_generate(const struct mx_random *random, struct mx__signing_pair *ret_pair);
/* Derive a pair from the secret or seed at the start of its `secret`. */
void mx__key_pair_derive(struct mx__key_pair *pair);
void mx__signing_pair_derive(struct mx__signing_pair *pair);
void mx__sign(const struct mx__signing_pair *pair, const void *bytes, size_t size,
    uint8_t ret_signature[MX_SIGNATURE_BYTES]);

/* Compute X25519. MX_EKEY for a result of zero: the peer's key does not contribute. */
int mx__agree(
    const struct mx__key_pair *ours, const struct mx_key *theirs, uint8_t ret_secret[MX_KEY_BYTES]);
/* HKDF-SHA256 of RFC 5869. An empty salt is 32 zero bytes. */
void mx__hkdf(struct span salt, struct span secret, struct span info, void *ret_bytes, size_t size);

enum mx__aes { MX__AES_CBC, MX__AES_CTR };
/* Create an AES-256 context; NULL when out of memory. Returns a struct evp_cipher_ctx_st. */
void *mx__aes_create(enum mx__aes mode, bool encrypts, const uint8_t key[32], const uint8_t iv[16]);
/* Transform `in` in CTR mode, which keeps its size; `out` may be the same memory. */
void mx__aes_update(void *aes, struct span in, uint8_t *out);
void mx__aes_destroy(void *aes); /* NULL is fine */

/* The keys of one message: AES-256-CBC and HMAC-SHA256, both by HKDF from one secret. */
struct mx__message_keys {
    uint8_t aes[32];
    uint8_t mac[32];
    uint8_t iv[MX__AES_BLOCK_BYTES];
};
void mx__message_keys(struct span secret, const char *info, struct mx__message_keys *ret_keys);
/* Append the ciphertext as field `tag`, then the MAC of everything in `message`. TR_ENOMEM. */
int mx__seal(const struct mx__message_keys *keys, uint8_t tag, struct span plaintext,
    struct buffer *message);
/* Check the MAC that follows `authenticated`, then append the plaintext. MX_EMAC, TR_ENOMEM. */
int mx__open(const struct mx__message_keys *keys, struct span authenticated, struct span ciphertext,
    struct buffer *plaintext);

/* ---- base64.c -------------------------------------------------------------------------------- */

/* Decode exactly `size` secret bytes in time that depends on the size alone. MX_EBASE64,
 * MX_EFORMAT for another size. */
int mx__secret_decode(struct span text, void *bytes, size_t size);
/* Decode a message into memory of the caller, who frees it. MX_EBASE64, MX_ETOOBIG, TR_ENOMEM. */
int mx__body_decode(struct span body, uint8_t **ret_bytes, struct span *ret_message);
/* Append the base64 of a finished message to `body` and free the message, also on failure. */
int mx__body_encode(struct buffer *message, struct buffer *body);

/* ---- wire.c: messages are a version byte and protobuf fields ---------------------------------- */

void mx__put_number(struct buffer *out, uint8_t tag, uint64_t number);
void mx__put_bytes(struct buffer *out, uint8_t tag, struct span bytes);

/* One field to read: the low three bits of its tag say whether it is a number (0) or bytes (2). */
struct mx__field {
    uint8_t tag;
    uint8_t size; /* that bytes must have; 0 means any but none */
    bool is_found;
    uint32_t number;
    struct span bytes;
};
/* Read the version and all `fields`. Unknown fields are skipped; of two equal ones the last counts.
 * MX_EVERSION; MX_EFORMAT if a field is missing, cut or out of range. */
int mx__read_fields(struct span message, struct mx__field *fields, size_t count);

/* ---- megolm.c: the ratchet ------------------------------------------------------------------- */

enum { MX__RATCHET_BYTES = 128 };
struct mx__ratchet {
    uint8_t parts[4][32];
    uint32_t index;
};
/* Advance to `index`; an index below the current one means after an overflow of 32 bits. */
void mx__ratchet_advance(struct mx__ratchet *ratchet, uint32_t index);
void mx__ratchet_keys(const struct mx__ratchet *ratchet, struct mx__message_keys *ret_keys);

/* The session key (with signature) and export formats, which differ in version and end. */
enum {
    MX__SESSION_EXPORT_BYTES = 1 + 4 + MX__RATCHET_BYTES + MX_KEY_BYTES,
    MX__SESSION_KEY_BYTES = MX__SESSION_EXPORT_BYTES + MX_SIGNATURE_BYTES,
    MX__SESSION_EXPORT_VERSION = 1,
    MX__SESSION_KEY_VERSION = 2,
};
void mx__session_write(uint8_t version, const struct mx__ratchet *ratchet,
    const struct mx_key *signing_key, uint8_t ret_bytes[MX__SESSION_EXPORT_BYTES]);

/* ---- account.c ------------------------------------------------------------------------------- */

const struct mx__key_pair *mx__account_identity(const struct mx_account *account);
/* Find a one-time or fallback key by its public half; NULL if the account does not have it. */
const struct mx__key_pair *mx__account_find(
    const struct mx_account *account, const struct mx_key *key);
/* Remove a one-time key after its first message decrypted; a fallback key stays. */
void mx__account_remove(struct mx_account *account, const struct mx_key *key);

#endif
