/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h: the signed description of a pack. The server and the command share it, so that a
 * client can check a pack from any mirror.
 *
 * A manifest and a statement are canonical JSON objects (sorted keys, no spaces, integers), each
 * with an Ed25519 signature over exactly its bytes, in base64url without padding:
 *
 *   manifest   {"created":1770000000,"key":"z6Mk…","pack":"core","sha256":"…","size":123,
 *               "type":"application/octet-stream","version":"1.2.0"}
 *   statement  {"add":"z6Mk…","created":1770000000,"key":"z6Mk…","pack":"core"}, or "retire"
 *              instead of "add": a valid key of the pack adds or retires another key
 *
 * A document goes with the bytes; the server sends it and the command stores it beside a download:
 *
 *   {"manifest":"…","signature":"…","keys":[{"key":"z6Mk…"},{"statement":"…","signature":"…"}]}
 *
 * Readers ignore other members of a document. "key" is always the signing key; keys are multikeys.
 * The members of manifest and statement differ, so neither can pass for the other. Readers refuse a
 * text that is not canonical or has an unknown member: each meaning has one text. The structs are
 * not shared between threads. */
#ifndef MANIFEST_MANIFEST_H
#define MANIFEST_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "crypto/key.h"
#include "json/json.h"
#include "support/buffer.h"

enum {
    MANIFEST_PACK_CHARS_MAX = 128,
    MANIFEST_VERSION_CHARS_MAX = 64,
    MANIFEST_TYPE_CHARS_MAX = 127, /* RFC 6838 section 4.2 */
    MANIFEST_BYTES_MAX = 2048,     /* of a manifest or a statement */
    MANIFEST_SIGNATURE_CHARS = 86,
    MANIFEST_KEYS_MAX = 16,       /* valid at the same time for a pack */
    MANIFEST_STATEMENTS_MAX = 64, /* of a pack in total */
    MANIFEST_DOCUMENT_BYTES_MAX = 256 << 10,
};

/* Check a name: 1 to 128 characters of a-z 0-9 . _ -, not starting with a dot. */
bool manifest_is_pack(struct span name);
/* Check a version: 1 to 64 characters of A-Z a-z 0-9 . + _ -, not starting with a dot. */
bool manifest_is_version(struct span version);
/* Check a media type without parameters: type/subtype, at most 127 characters. */
bool manifest_is_type(struct span type);

struct manifest {
    char pack[MANIFEST_PACK_CHARS_MAX + 1];
    char version[MANIFEST_VERSION_CHARS_MAX + 1];
    char type[MANIFEST_TYPE_CHARS_MAX + 1];
    char sha256[65]; /* lower case */
    uint64_t size;   /* up to 2^53 - 1 */
    int64_t created_s;
    char key[CRYPTO_MULTIKEY_CHARS_MAX];
};

struct manifest_statement {
    char pack[MANIFEST_PACK_CHARS_MAX + 1];
    int64_t created_s;
    bool is_retire;
    char subject[CRYPTO_MULTIKEY_CHARS_MAX]; /* the key to add or retire */
    char key[CRYPTO_MULTIKEY_CHARS_MAX];     /* the key that signs the statement */
};

/* Append the canonical text. TR_EINVAL for an invalid member, TR_ENOMEM, TR_ELIMIT. */
int manifest_write(const struct manifest *manifest, struct buffer *out);
int manifest_statement_write(const struct manifest_statement *statement, struct buffer *out);
/* Read a text from outside, without checking its signature. TR_EPROTO for an invalid text,
 * TR_ETOOBIG, TR_ENOMEM; *ret_why (ret_why may be NULL) is then a static sentence. */
int manifest_read(struct span text, struct manifest *ret_manifest, const char **ret_why);
int manifest_statement_read(
    struct span text, struct manifest_statement *ret_statement, const char **ret_why);

/* Sign a text with a private Ed25519 key and write base64url with a terminator. TR_EACCES for
 * another kind of key, TR_ENOMEM. */
int manifest_sign(const struct crypto_key *key, struct span text,
    char ret_signature[MANIFEST_SIGNATURE_CHARS + 1]);
/* Return 0 if this multikey signed the text. TR_EPROTO for a malformed signature or a key other
 * than Ed25519, TR_EACCES for a wrong signature, TR_ENOMEM. Takes about 60 us. */
int manifest_verify(struct span text, struct span signature, const char *key);

/* ---- the valid keys of a pack --------------------------------------------------------------- */

/* A retired key stays retired. The list of retired keys prevents an attack: the owner of a retired
 * key could replay the statement that once added it and omit the one that retired it. */
struct manifest_keys {
    char keys[MANIFEST_KEYS_MAX][CRYPTO_MULTIKEY_CHARS_MAX];
    size_t count;
    char retired[MANIFEST_STATEMENTS_MAX][CRYPTO_MULTIKEY_CHARS_MAX];
    size_t retired_count;
};
bool manifest_keys_has(const struct manifest_keys *keys, const char *key);
/* Add a key; a key that is valid already changes nothing. TR_EPROTO unless it is an Ed25519
 * multikey, TR_ELIMIT, TR_ENOMEM. */
int manifest_keys_add(struct manifest_keys *keys, struct span key);
/* Remove a key if it is valid, and prevent statements from adding it again. TR_EPROTO,
 * TR_ELIMIT. */
int manifest_keys_retire(struct manifest_keys *keys, struct span key);
/* Apply a statement about `pack` that one of the keys has signed. Changes nothing on failure:
 *   TR_EPROTO  not a statement, or about another pack
 *   TR_EACCES  not signed by a valid key, or it adds a retired key
 *   TR_ELIMIT  too many keys
 *   TR_EINVAL  it would retire the last key
 *   TR_ENOENT  it retires a key that is not valid */
int manifest_keys_apply(
    struct manifest_keys *keys, const char *pack, struct span text, struct span signature);

/* ---- the two checks ------------------------------------------------------------------------- */

struct manifest_refusal {
    const char *label; /* of the API: ManifestInvalid, ManifestMismatch, SignatureInvalid,
                          KeyUnknown */
    const char *message;
};
/* Check a manifest before its version is published: it must match pack, version, size, sha256 and
 * type of `expected`, and one of `keys` must have signed it. If `keys` is empty, any key may have
 * signed it and becomes the first key of the pack. Fails with TR_EPROTO, TR_EACCES or TR_ENOMEM and
 * fills *ret_refusal, whose texts are static. */
int manifest_check(struct span text, struct span signature, const struct manifest_keys *keys,
    const struct manifest *expected, struct manifest *ret_manifest,
    struct manifest_refusal *ret_refusal);

/* Check a document as a client. `document` (parsed with JSON_UNIQUE_KEYS) must have a manifest
 * about `pack`, signed by one of *keys or by a key that its statements, applied in order, add to
 * them. On success *keys are the valid keys now, for the client to remember. If *keys is empty, the
 * client trusts the first key of the document: only for first use. Fails with TR_EPROTO, TR_EACCES
 * or TR_ENOMEM; *ret_why is then a static sentence. */
int manifest_document_check(const struct json *document, const char *pack,
    struct manifest_keys *keys, struct manifest *ret_manifest, const char **ret_why);

#endif
