/* SPDX-License-Identifier: Apache-2.0 */
/* mxcrypto.h: end-to-end encryption of Matrix (client-server specification 1.19, Olm v1, Megolm v1).
 * Pure protocol code: no I/O, no clock, and the caller passes all randomness, so that a simulation
 * repeats a run from its seed. An object belongs to one thread at a time.
 *
 * Fallible functions return 0, TR_ENOMEM or an MX_E* code. A function that fails leaves its objects
 * as they were: a message that cannot be decrypted never moves a ratchet. Secrets are wiped when
 * they are no longer needed; a caller wipes plaintexts with mx_wipe_buffer. */
#ifndef MATRIX_CRYPTO_MXCRYPTO_H
#define MATRIX_CRYPTO_MXCRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "crypto/digest.h"
#include "json/json.h"
#include "json/json_write.h"
#include "support/buffer.h"

/* ---- errors ---------------------------------------------------------------------------------- */

/* X(name, number, text). Every ciphertext that stays unread has one of these as its reason. */
#define MX_ERRORS(X)                                                                               \
    X(MX_EBASE64, 1, "the text is not base64")                                                     \
    X(MX_EFORMAT, 2, "the bytes are not a message of this kind")                                   \
    X(MX_EVERSION, 3, "the version of the message is unknown")                                     \
    X(MX_ETOOBIG, 4, "the input is longer than allowed")                                           \
    X(MX_EMAC, 5, "the MAC does not match: other keys, or changed bytes")                          \
    X(MX_ESIGNATURE, 6, "the signature is wrong or missing")                                       \
    X(MX_EKEY, 7, "the public key is malformed or of small order")                                 \
    X(MX_EONETIME, 8, "the message uses a one-time key that this account does not have")           \
    X(MX_EINDEX, 9, "the key of this message index was used, dropped or never known")              \
    X(MX_EGAP, 10, "the message skips more messages than allowed")                                 \
    X(MX_ESESSION, 11, "the message belongs to another session")                                   \
    X(MX_EHASH, 12, "the SHA-256 of the ciphertext does not match")                                \
    X(MX_EEXHAUSTED, 13, "the session has used its last message index")                            \
    X(MX_EROUNDS, 14, "the key file asks for no rounds, or for more than allowed")                 \
    X(MX_EDEVICE, 15, "the device of the sender is not known, or its keys are others")             \
    X(MX_EBLOCKED, 16, "the sender has blocked this device")                                       \
    X(MX_EUNVERIFIED, 17, "the sender shares its keys with verified devices alone")                \
    X(MX_EUNAUTHORISED, 18, "the sender does not allow this device to read the message")           \
    X(MX_EUNAVAILABLE, 19, "the device that was asked does not have the key")                      \
    X(MX_EWITHHELD, 20, "the sender withholds the key for a reason that is not known here")        \
    X(MX_EALGORITHM, 21, "the encryption algorithm is not known here")                             \
    X(MX_EBACKEND, 22, "the data was stored by a build with the other olm_backend")

#define MX__ERROR_ENUM(name, number, text) name = -(4200 + (number)),
enum mx_error { MX_ERRORS(MX__ERROR_ENUM) };
#undef MX__ERROR_ENUM

/* Return the sentence of an MX_E* or TR_E* code. */
const char *mx_error_text(int error);

/* The code that does Olm and Megolm, as the build option olm_backend says: ours, or libolm, which is
 * deprecated (docs/matrix-security.md). An object is stored by one and refused by the other. */
enum mx_backend { MX_BACKEND_OWN, MX_BACKEND_LIBOLM };
extern const enum mx_backend mx_backend;

/* ---- randomness, keys, base64 ---------------------------------------------------------------- */

/* The caller's source of unpredictable bytes; crypto_random_fill in production. */
struct mx_random {
    void (*fill)(void *data, void *bytes, size_t size);
    void *data;
};

enum {
    MX_KEY_BYTES = 32,
    MX_KEY_CHARS = 43, /* of unpadded base64, without a terminator */
    MX_SIGNATURE_BYTES = 64,
    MX_SIGNATURE_CHARS = 86,
    MX_MESSAGE_CHARS_MAX = 1 << 20, /* of a message body; events have at most 64 KiB */
    MX_PLAINTEXT_BYTES_MAX = MX_MESSAGE_CHARS_MAX / 4 * 3 - 512,
};

/* A public key, of Curve25519 or Ed25519. */
struct mx_key {
    uint8_t bytes[MX_KEY_BYTES];
};

bool mx_key_equal(const struct mx_key *a, const struct mx_key *b);
/* Read a key as unpadded or padded base64. MX_EBASE64, or MX_EKEY for another length. */
int mx_key_parse(struct span text, struct mx_key *ret_key);
/* Write a key as unpadded base64 with a terminator. */
void mx_key_text(const struct mx_key *key, char ret_text[MX_KEY_CHARS + 1]);

/* Append unpadded base64. Takes time that depends on the size alone. TR_ENOMEM or TR_ELIMIT. */
int mx_base64_encode(const void *bytes, size_t size, struct buffer *out);
/* Decode base64 with or without padding. Left-over bits are ignored: the specification's own
 * signing key has them. For public bytes only: takes time that depends on the text. MX_EBASE64, or
 * MX_ETOOBIG for more than bytes_max bytes. */
int mx_base64_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size);

/* Wipe and free the bytes of a buffer that held a secret. */
void mx_wipe_buffer(struct buffer *buffer);

/* ---- signatures ------------------------------------------------------------------------------ */

/* Verify an Ed25519 signature. MX_ESIGNATURE; also for a non-canonical S or a key of small order,
 * so that a signature has no second form. */
int mx_verify(const struct mx_key *key, const void *bytes, size_t size,
    const uint8_t signature[MX_SIGNATURE_BYTES]);
/* Verify the signature of `user` with the key id `key_id` ("ed25519:DEVICE") on an object: Ed25519
 * of its canonical JSON without `signatures` and `unsigned`. MX_ESIGNATURE, MX_EFORMAT for an object
 * without canonical form, TR_ENOMEM. */
int mx_verify_json(
    const struct json *object, struct span user, struct span key_id, const struct mx_key *key);

/* ---- account: the keys of one device --------------------------------------------------------- */

struct mx_account;

enum {
    /* Forgotten one-time keys break sessions that senders have begun, so the bound is far above the
     * 50 keys that a server keeps. */
    MX_ONE_TIME_KEYS_MAX = 5000,
    MX_KEY_ID_CHARS = 11,
};

/* A public one-time or fallback key. */
struct mx_one_time_key {
    uint64_t id; /* rises with every key, never reused */
    struct mx_key key;
    bool is_published;
};
/* Write the id as it appears after "signed_curve25519:", with a terminator. */
void mx_key_id_text(uint64_t id, char ret_text[MX_KEY_ID_CHARS + 1]);

int mx_account_create(const struct mx_random *random, struct mx_account **ret_account);
void mx_account_destroy(struct mx_account *account); /* wipes; NULL is fine */
/* Return the Curve25519 key, by which peers send to this device, or the Ed25519 key, by which it
 * signs. */
const struct mx_key *mx_account_identity_key(const struct mx_account *account);
const struct mx_key *mx_account_signing_key(const struct mx_account *account);

void mx_account_sign(const struct mx_account *account, const void *bytes, size_t size,
    uint8_t ret_signature[MX_SIGNATURE_BYTES]);
/* Append the object with this device's signature added. MX_EFORMAT for a value that is no object or
 * has no canonical form; TR_ENOMEM or TR_ELIMIT. */
int mx_account_sign_json(const struct mx_account *account, const struct json *object,
    struct span user, struct span device, struct buffer *out);

/* Add one-time keys. Over MX_ONE_TIME_KEYS_MAX the oldest ones are dropped. The caller stores the
 * account before it uploads them. TR_ENOMEM. */
int mx_account_add_one_time_keys(
    struct mx_account *account, size_t count, const struct mx_random *random);
size_t mx_account_one_time_key_count(const struct mx_account *account);
/* Read a key by its place, the oldest first; false after the last. */
bool mx_account_one_time_key_at(
    const struct mx_account *account, size_t index, struct mx_one_time_key *ret_key);
/* Note that the server has all keys, also the fallback key, with ids up to `id_last`. Keys added
 * while the upload was under way stay unpublished. */
void mx_account_mark_published(struct mx_account *account, uint64_t id_last);
/* Drop the unpublished one-time keys and skip `count` ids: the answer to a server that has other
 * keys with these ids, for instance after an old database was restored. */
void mx_account_skip_key_ids(struct mx_account *account, uint64_t count);
/* Replace the fallback key. The former one stays usable until mx_account_forget_fallback. */
void mx_account_rotate_fallback(struct mx_account *account, const struct mx_random *random);
bool mx_account_fallback_key(const struct mx_account *account, struct mx_one_time_key *ret_key);
/* Drop the former fallback key, about an hour after a rotation. */
void mx_account_forget_fallback(struct mx_account *account);

/* ---- olm: a session between two devices ------------------------------------------------------ */

struct mx_olm;

enum mx_olm_type { MX_OLM_PRE_KEY = 0, MX_OLM_NORMAL = 1 };

enum {
    MX_OLM_CHAINS_MAX = 5,   /* receiving chains kept */
    MX_OLM_SKIPPED_MAX = 40, /* keys of skipped messages kept, over all chains */
    MX_OLM_GAP_MAX = 2000,   /* messages that one message may skip */
    MX_OLM_ID_CHARS = MX_KEY_CHARS,
};

/* Start a session to a device whose identity key and one-time key are known. MX_EKEY, TR_ENOMEM. */
int mx_olm_create_outbound(const struct mx_account *account, const struct mx_key *their_identity,
    const struct mx_key *their_one_time, const struct mx_random *random, struct mx_olm **ret_olm);
/* Start a session from a pre-key message of the device `their_identity`, and append its plaintext.
 * Removes the one-time key from the account, unless it is a fallback key. Any failure leaves the
 * account and `plaintext` as they were. */
int mx_olm_create_inbound(struct mx_account *account, const struct mx_key *their_identity,
    struct span body, struct mx_olm **ret_olm, struct buffer *plaintext);
void mx_olm_destroy(struct mx_olm *olm); /* wipes; NULL is fine */
void mx_olm_id(const struct mx_olm *olm, char ret_id[MX_OLM_ID_CHARS + 1]);
const struct mx_key *mx_olm_their_identity(const struct mx_olm *olm);
/* True after a first message from the peer; until then this side sends pre-key messages. */
bool mx_olm_has_received(const struct mx_olm *olm);
/* True if a pre-key message belongs to this session: decrypt it here, do not start another. */
bool mx_olm_matches(const struct mx_olm *olm, struct span body);
/* Append the body of an encrypted message. The caller stores the session before it sends the body.
 * MX_ETOOBIG, MX_EKEY, TR_ENOMEM, TR_ELIMIT. */
int mx_olm_encrypt(struct mx_olm *olm, struct span plaintext, const struct mx_random *random,
    enum mx_olm_type *ret_type, struct buffer *body);
/* Append the plaintext of a body. Messages may arrive in any order; each decrypts once. */
int mx_olm_decrypt(
    struct mx_olm *olm, enum mx_olm_type type, struct span body, struct buffer *plaintext);

/* ---- megolm: a room's sending session, and its copies at the receivers ------------------------ */

struct mx_outbound;

enum {
    MX_SESSION_ID_CHARS = MX_KEY_CHARS,
    MX_SESSION_KEY_CHARS = 306,    /* 229 bytes: version, index, ratchet, key, signature */
    MX_SESSION_EXPORT_CHARS = 220, /* 165 bytes: the same without signature */
};

int mx_outbound_create(const struct mx_random *random, struct mx_outbound **ret_outbound);
void mx_outbound_destroy(struct mx_outbound *outbound); /* wipes; NULL is fine */
void mx_outbound_id(const struct mx_outbound *outbound, char ret_id[MX_SESSION_ID_CHARS + 1]);
uint32_t mx_outbound_index(const struct mx_outbound *outbound); /* of the next message */
/* Append the `session_key` of an m.room_key event, from the current index on. TR_ENOMEM. */
int mx_outbound_key(const struct mx_outbound *outbound, struct buffer *key);
/* Append the body of an encrypted message. The caller stores the session before it sends the body.
 * MX_ETOOBIG, MX_EEXHAUSTED, TR_ENOMEM, TR_ELIMIT. */
int mx_outbound_encrypt(struct mx_outbound *outbound, struct span plaintext, struct buffer *body);

struct mx_inbound;

/* Create from the `session_key` of an m.room_key event. MX_EBASE64, MX_EFORMAT, MX_EVERSION,
 * MX_ESIGNATURE, TR_ENOMEM. */
int mx_inbound_create(struct span session_key, struct mx_inbound **ret_inbound);
/* Create from the export format, as in forwarded keys, key files and backups. It has no signature:
 * the sender's word counts, so the session is not verified until a message decrypts. */
int mx_inbound_import(struct span session_export, struct mx_inbound **ret_inbound);
void mx_inbound_destroy(struct mx_inbound *inbound); /* wipes; NULL is fine */
void mx_inbound_id(const struct mx_inbound *inbound, char ret_id[MX_SESSION_ID_CHARS + 1]);
uint32_t mx_inbound_first_index(const struct mx_inbound *inbound);
/* True if the owner of the signing key vouched for the ratchet: by the signature of the session
 * key, or by a message that decrypted. */
bool mx_inbound_is_verified(const struct mx_inbound *inbound);
/* Append the plaintext of a body and return its index. The store refuses a replay: the same index
 * with another event id. MX_EINDEX for an index before the first. */
int mx_inbound_decrypt(
    struct mx_inbound *inbound, struct span body, struct buffer *plaintext, uint32_t *ret_index);
/* Append the export format from `index` on. MX_EINDEX, TR_ENOMEM. */
int mx_inbound_export(const struct mx_inbound *inbound, uint32_t index, struct buffer *out);

/* How another copy of a session compares with the one at hand. */
enum mx_copy {
    MX_COPY_UNRELATED, /* another session, or another ratchet under the same id */
    MX_COPY_EQUAL,
    MX_COPY_BETTER, /* `other` begins earlier and leads to the same ratchet */
    MX_COPY_WORSE,
};
enum mx_copy mx_inbound_compare(const struct mx_inbound *inbound, const struct mx_inbound *other);

/* ---- pickles: objects as bytes for a database ------------------------------------------------- */

enum { MX_SECRET_BYTES_MAX = 4096, MX_TEXT_BYTES_MAX = MX_PLAINTEXT_BYTES_MAX };

/* The host's key, from a file or descriptor; never in the database. */
struct mx_pickle_key {
    uint8_t bytes[32];
};

/* Append an object as bytes: versioned, encrypted and authenticated. TR_ENOMEM, TR_ELIMIT. */
int mx_account_pickle(const struct mx_account *account, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out);
int mx_olm_pickle(const struct mx_olm *olm, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out);
int mx_outbound_pickle(const struct mx_outbound *outbound, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out);
int mx_inbound_pickle(const struct mx_inbound *inbound, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out);
/* Create an object from its bytes. MX_EMAC for another key or changed bytes, MX_EVERSION,
 * MX_EFORMAT for a pickle of another kind, MX_EBACKEND, MX_ETOOBIG, TR_ENOMEM. */
int mx_account_unpickle(
    struct span pickle, const struct mx_pickle_key *key, struct mx_account **ret_account);
int mx_olm_unpickle(struct span pickle, const struct mx_pickle_key *key, struct mx_olm **ret_olm);
int mx_outbound_unpickle(
    struct span pickle, const struct mx_pickle_key *key, struct mx_outbound **ret_outbound);
int mx_inbound_unpickle(
    struct span pickle, const struct mx_pickle_key *key, struct mx_inbound **ret_inbound);

/* Append a short secret, an access token for instance, sealed like a pickle. MX_ETOOBIG for more
 * than MX_SECRET_BYTES_MAX, TR_ENOMEM, TR_ELIMIT. */
int mx_secret_seal(struct span secret, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out);
/* Append the secret; it fails like mx_account_unpickle. */
int mx_secret_open(struct span sealed, const struct mx_pickle_key *key, struct buffer *secret);

/* Append a longer text, a message for instance, sealed like a pickle and bound to `about`, its place
 * in the database: it opens with the same one alone. MX_ETOOBIG over MX_TEXT_BYTES_MAX, TR_ENOMEM,
 * TR_ELIMIT. */
int mx_text_seal(struct span text, struct span about, const struct mx_pickle_key *key,
    const struct mx_random *random, struct buffer *out);
/* Append the text; it fails like mx_account_unpickle. */
int mx_text_open(
    struct span sealed, struct span about, const struct mx_pickle_key *key, struct buffer *text);

/* ---- sas: verification by short strings ------------------------------------------------------- */

struct mx_sas;

enum {
    MX_SAS_COMMITMENT_CHARS = MX_KEY_CHARS,
    MX_SAS_MAC_CHARS = MX_KEY_CHARS,
    MX_SAS_EMOJIS = 64,
};

int mx_sas_create(const struct mx_random *random, struct mx_sas **ret_sas);
void mx_sas_destroy(struct mx_sas *sas); /* wipes; NULL is fine */
const struct mx_key *mx_sas_key(const struct mx_sas *sas);
/* Agree with the peer's key. MX_EKEY for a key of small order, our own, or a second one. */
int mx_sas_set_their_key(struct mx_sas *sas, const struct mx_key *theirs);

/* Write the `commitment` of the device that accepts: it binds its key before it sees the other.
 * `start_content` is the whole content of the start event. MX_EFORMAT, TR_ENOMEM. */
int mx_sas_commitment(const struct mx_key *accepter_key, const struct json *start_content,
    char ret_text[MX_SAS_COMMITMENT_CHARS + 1]);

/* The names that bind strings and MACs to one verification. */
struct mx_sas_party {
    struct span user;
    struct span device;
};
struct mx_sas_flow {
    struct mx_sas_party us;
    struct mx_sas_party them;
    struct span transaction;
    bool we_started; /* the start event that counts is ours */
};
struct mx_sas_code {
    uint16_t decimals[3];
    uint8_t emoji[7]; /* numbers in mx_sas_emojis */
};
/* Compute the strings that the users compare. MX_EKEY before mx_sas_set_their_key, MX_ETOOBIG for
 * names over 2 KiB in all, TR_ENOMEM. */
int mx_sas_show(
    const struct mx_sas *sas, const struct mx_sas_flow *flow, struct mx_sas_code *ret_code);

struct mx_sas_emoji {
    const char *emoji; /* UTF-8 */
    const char *name;  /* English */
};
extern const struct mx_sas_emoji mx_sas_emojis[MX_SAS_EMOJIS];

enum mx_sas_method {
    MX_SAS_V2,     /* hkdf-hmac-sha256.v2 */
    MX_SAS_LEGACY, /* hkdf-hmac-sha256, with the wrong base64 of early libolm */
};
/* Read a `message_authentication_code`; false for an unknown one. */
bool mx_sas_method_parse(struct span name, enum mx_sas_method *ret_method);

struct mx_sas_input {
    enum mx_sas_method method;
    bool is_theirs;     /* the peer sends this MAC, not we */
    struct span key_id; /* "ed25519:DEVICE", or "KEY_IDS" */
    struct span text;   /* the key as base64, or all key ids, sorted, with commas between */
};
/* Compute one MAC of an m.key.verification.mac event. MX_EKEY, MX_ETOOBIG, TR_ENOMEM. */
int mx_sas_mac(const struct mx_sas *sas, const struct mx_sas_flow *flow,
    const struct mx_sas_input *input, char ret_text[MX_SAS_MAC_CHARS + 1]);
/* Check one MAC of the peer. MX_EMAC, MX_EKEY, MX_ETOOBIG, TR_ENOMEM. */
int mx_sas_check_mac(const struct mx_sas *sas, const struct mx_sas_flow *flow,
    const struct mx_sas_input *input, struct span mac);

/* ---- attachments: encrypted files, piece by piece --------------------------------------------- */

/* The secret part of an EncryptedFile; the caller wipes it. */
struct mx_attachment {
    uint8_t key[32];
    uint8_t iv[16];
    uint8_t sha256[32]; /* of the ciphertext */
};
struct mx_attachment_stream {
    void *aes; /* owned, private */
    struct crypto_sha256_stream digest;
    bool encrypts;
};

/* Start to encrypt under a new key, written to *ret_attachment. TR_ENOMEM. */
int mx_attachment_encrypt(struct mx_attachment_stream *stream, const struct mx_random *random,
    struct mx_attachment *ret_attachment);
/* Start to decrypt. TR_ENOMEM. */
int mx_attachment_decrypt(
    struct mx_attachment_stream *stream, const struct mx_attachment *attachment);
/* Transform the next piece into as many bytes at `out`, which may be the piece itself. Decrypted
 * bytes are worth nothing before mx_attachment_decrypt_end. */
void mx_attachment_update(struct mx_attachment_stream *stream, struct span in, void *out);
/* Complete the attachment with the hash of all pieces. */
void mx_attachment_encrypt_end(
    struct mx_attachment_stream *stream, struct mx_attachment *attachment);
/* Check the hash of all pieces. MX_EHASH: throw the bytes away. */
int mx_attachment_decrypt_end(
    struct mx_attachment_stream *stream, const struct mx_attachment *attachment);
void mx_attachment_fini(struct mx_attachment_stream *stream); /* accepts a zeroed one */

/* Write an EncryptedFile object as the member `key`. */
void mx_attachment_put(struct json_writer *writer, const char *key,
    const struct mx_attachment *attachment, struct span url);
/* Read an EncryptedFile object. *ret_url points into the document. MX_EVERSION, MX_EFORMAT. */
int mx_attachment_parse(
    const struct json *file, struct mx_attachment *ret_attachment, struct span *ret_url);

/* ---- key files: exported sessions under a passphrase ------------------------------------------ */

enum {
    MX_KEY_FILE_BYTES_MAX = 64 << 20,
    MX_KEY_FILE_ROUNDS = 500000, /* for new files; the specification asks for at least 100,000 */
    MX_PASSPHRASE_BYTES_MAX = 4096,
};
struct mx_key_file_options {
    struct span passphrase;
    uint32_t rounds; /* of PBKDF2, at least 1; in reading: the most a file may ask for */
};
/* Append a key file with `sessions`, a JSON array. MX_ETOOBIG, TR_ENOMEM, TR_ELIMIT. */
int mx_key_file_encrypt(const struct mx_key_file_options *options, struct span sessions,
    const struct mx_random *random, struct buffer *out);
/* Append the sessions of a key file. MX_EMAC for another passphrase or changed bytes; MX_EFORMAT,
 * MX_EBASE64, MX_EVERSION, MX_EROUNDS, MX_ETOOBIG, TR_ENOMEM, TR_ELIMIT. */
int mx_key_file_decrypt(
    const struct mx_key_file_options *options, struct span text, struct buffer *sessions);

#endif
