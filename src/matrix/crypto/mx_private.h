/* SPDX-License-Identifier: Apache-2.0 */
/* mx_private.h: shared by the files of this folder: keys, ciphers, message fields, pickles. */
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
enum { MX__HKDF_INFO_MAX = 2048 };
/* HKDF-SHA256 of RFC 5869. An empty salt is 32 zero bytes. */
void mx__hkdf(struct span salt, struct span secret, struct span info, void *ret_bytes, size_t size);

enum mx__aes { MX__AES_CBC, MX__AES_CTR, MX__AES_GCM };
/* Create an AES-256 context, an EVP_CIPHER_CTX; NULL when out of memory. GCM uses 12 bytes of `iv`.
 */
void *mx__aes_create(enum mx__aes mode, bool encrypts, const uint8_t key[32], const uint8_t iv[16]);
/* Transform `in` in CTR or GCM mode, which keeps its size; `out` may be the same memory. */
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

struct mx__olm_message {
    struct mx_key ratchet_key;
    uint32_t index;
    struct span ciphertext;
    struct span authenticated; /* the MAC follows it */
};
struct mx__olm_pre_key {
    struct mx_key one_time_key;
    struct mx_key base_key;
    struct mx_key identity;
    struct span message;
};
/* Read a normal or a pre-key message. The spans point into `bytes`. They fail like mx__read_fields. */
int mx__olm_read(struct span bytes, struct mx__olm_message *ret_message);
int mx__olm_read_pre_key(struct span bytes, struct mx__olm_pre_key *ret_pre_key);

/* ---- megolm.c: the ratchet, session keys, messages ------------------------------------------- */

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
/* Decode and check a session key with its signature, or an export. The caller wipes the bytes, also
 * on failure. MX_EBASE64, MX_EFORMAT, MX_EVERSION, MX_ESIGNATURE. */
int mx__session_key_read(struct span text, uint8_t ret_bytes[MX__SESSION_KEY_BYTES]);
int mx__session_export_read(struct span text, uint8_t ret_bytes[MX__SESSION_EXPORT_BYTES]);

struct mx__megolm_message {
    uint32_t index;
    struct span ciphertext;
    struct span authenticated; /* the MAC follows it, then the signature */
};
/* Read a message and check its signature, but not its MAC. The spans point into `message`. It fails
 * like mx__read_fields, and with MX_ESIGNATURE. */
int mx__megolm_read(
    struct span message, const struct mx_key *signing_key, struct mx__megolm_message *ret_message);

/* ---- account.c ------------------------------------------------------------------------------- */

const struct mx__key_pair *mx__account_identity(const struct mx_account *account);
/* Find a one-time or fallback key by its public half; NULL if the account does not have it. */
const struct mx__key_pair *mx__account_find(
    const struct mx_account *account, const struct mx_key *key);
/* Remove a one-time key after its first message decrypted; a fallback key stays. */
void mx__account_remove(struct mx_account *account, const struct mx_key *key);

/* ---- sas.c ----------------------------------------------------------------------------------- */

enum { MX__SAS_BYTES = 6 };
/* Read the decimals and emoji from the derived bytes. */
void mx__sas_code(const uint8_t bytes[MX__SAS_BYTES], struct mx_sas_code *ret_code);

/* ---- pickle.c -------------------------------------------------------------------------------- */

/* A function that packs an object lists its members once, for all three modes. */
enum mx__pack_mode { MX__PACK_COUNT, MX__PACK_WRITE, MX__PACK_READ };
struct mx__pack {
    enum mx__pack_mode mode;
    struct buffer bytes;
    size_t used;
    int rc; /* the first failure of reading: MX_EFORMAT or TR_ENOMEM */
};
/* Return the place of the next `size` bytes, for the caller to write or to read; NULL in counting and
 * after a failure. */
void *mx__pack_place(struct mx__pack *pack, size_t size);
void mx__pack_bytes(struct mx__pack *pack, void *bytes, size_t size);
void mx__pack_u64(struct mx__pack *pack, uint64_t *number);
/* Reading fails for a number over `max`. */
void mx__pack_u32(struct mx__pack *pack, uint32_t *number, uint32_t max);
void mx__pack_bool(struct mx__pack *pack, bool *truth);
void mx__pack_key_pair(struct mx__pack *pack, struct mx__key_pair *pair);
void mx__pack_signing_pair(struct mx__pack *pack, struct mx__signing_pair *pair);
void mx__pack_ratchet(struct mx__pack *pack, struct mx__ratchet *ratchet);

struct mx__pickle_kind {
    uint8_t id;
    bool is_shared; /* by the backends: the same bytes in both */
    size_t size;    /* of the struct */
    void (*pack)(struct mx__pack *pack, void *object);
    void (*release)(void *object); /* frees what a half-read object owns; NULL: it owns nothing */
};
int mx__pickle(const struct mx__pickle_kind *kind, const void *object,
    const struct mx_pickle_key *key, const struct mx_random *random, struct buffer *out);
int mx__unpickle(const struct mx__pickle_kind *kind, struct span pickle,
    const struct mx_pickle_key *key, void **ret_object);

/* Define the two public functions of a kind. */
#define MX__PICKLE(noun, kind)                                                                     \
    int mx_##noun##_pickle(const struct mx_##noun *noun, const struct mx_pickle_key *key,          \
        const struct mx_random *random, struct buffer *out)                                        \
    {                                                                                              \
        return mx__pickle(&(kind), noun, key, random, out);                                        \
    }                                                                                              \
    int mx_##noun##_unpickle(                                                                      \
        struct span pickle, const struct mx_pickle_key *key, struct mx_##noun **ret_##noun)        \
    {                                                                                              \
        void *object = NULL;                                                                       \
        int rc = mx__unpickle(&(kind), pickle, key, &object);                                      \
                                                                                                   \
        if (rc == 0)                                                                               \
            *ret_##noun = object;                                                                  \
        return rc;                                                                                 \
    }

#endif
