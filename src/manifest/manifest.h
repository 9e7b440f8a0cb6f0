/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h: what a pack is, as its publisher signed it. Server and command share it, so that a
 * pack can be checked wherever its bytes come from.
 *
 * Three texts, each the canonical form of a JSON object (sorted keys, no spaces, integers), each
 * with an Ed25519 signature over exactly its bytes, in base64url without padding:
 *
 *   manifest   {"created":1770000000,"key":"z6Mk…","pack":"core","sha256":"…","size":123,
 *               "type":"application/octet-stream","version":"1.2.0"}
 *   statement  {"add":"z6Mk…","created":1770000000,"key":"z6Mk…","pack":"core"}, or "retire" in
 *              the place of "add": a key of the pack says that another one counts too, or no more
 *
 * and the document that goes with the bytes, as served and as kept beside a download:
 *
 *   {"manifest":"…","signature":"…","keys":[{"key":"z6Mk…"},{"statement":"…","signature":"…"}]}
 *
 * Other members of a document are not looked at. "key" is always the key that signs; keys are
 * multikeys. The members of manifest and statement differ, so neither can pass for the other. A
 * text that is not canonical, or has another member, is refused: there is one text for one meaning.
 * Nothing here is shared between threads. */
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
    MANIFEST_KEYS_MAX = 16,       /* of a pack that count at the same time */
    MANIFEST_STATEMENTS_MAX = 64, /* of a pack in all */
    MANIFEST_DOCUMENT_BYTES_MAX = 256 << 10,
};

/* 1 to 128 of a-z 0-9 . _ -, not beginning with a dot. */
bool manifest_is_pack(struct span name);
/* 1 to 64 of A-Z a-z 0-9 . + _ -, not beginning with a dot. */
bool manifest_is_version(struct span version);
/* A media type without parameters: type/subtype, 127 characters at most. */
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
    char subject[CRYPTO_MULTIKEY_CHARS_MAX]; /* the key that is added or retired */
    char key[CRYPTO_MULTIKEY_CHARS_MAX];     /* the key that says so */
};

/* Append the canonical text. TR_EINVAL if a member is not of its form; TR_ENOMEM, TR_ELIMIT. */
int manifest_write(const struct manifest *manifest, struct buffer *out);
int manifest_statement_write(const struct manifest_statement *statement, struct buffer *out);
/* Read a text that came from outside. TR_EPROTO if it is no such text, TR_ETOOBIG, TR_ENOMEM; then
 * *ret_why (may be NULL) is a sentence without its full stop, static. The signature is not checked
 * here. */
int manifest_read(struct span text, struct manifest *ret_manifest, const char **ret_why);
int manifest_statement_read(
    struct span text, struct manifest_statement *ret_statement, const char **ret_why);

/* Sign a text with a private Ed25519 key: terminated base64url. TR_EACCES, TR_ENOMEM. */
int manifest_sign(const struct crypto_key *key, struct span text,
    char ret_signature[MANIFEST_SIGNATURE_CHARS + 1]);
/* 0 if the signature of the text is by this multikey. TR_EPROTO for what is no signature or no
 * Ed25519 key, TR_EACCES if it does not fit, TR_ENOMEM. About 60 us. */
int manifest_verify(struct span text, struct span signature, const char *key);

/* ---- the keys that count for a pack --------------------------------------------------------- */

/* A key that was retired stays so: who has it could send the statement that once added it, without
 * the one that retired it. So both are remembered. */
struct manifest_keys {
    char keys[MANIFEST_KEYS_MAX][CRYPTO_MULTIKEY_CHARS_MAX];
    size_t count;
    char retired[MANIFEST_STATEMENTS_MAX][CRYPTO_MULTIKEY_CHARS_MAX];
    size_t retired_count;
};
bool manifest_keys_has(const struct manifest_keys *keys, const char *key);
/* TR_EPROTO if it is no Ed25519 multikey; TR_ELIMIT; adding one that is there changes nothing. */
int manifest_keys_add(struct manifest_keys *keys, struct span key);
/* It counts no more, if it did, and no statement adds it again. TR_EPROTO, TR_ELIMIT. */
int manifest_keys_retire(struct manifest_keys *keys, struct span key);
/* Do what a statement about `pack` says, if its signature is by one of the keys. TR_EPROTO: no
 * statement, or about another pack; TR_EACCES: not signed, or by a key that does not count, or it
 * adds one that was retired;
 * TR_ELIMIT: too many keys; TR_EINVAL: it would retire the last one; TR_ENOENT: it retires one that
 * does not count. Nothing changes on failure. */
int manifest_keys_apply(
    struct manifest_keys *keys, const char *pack, struct span text, struct span signature);

/* ---- the two checks ------------------------------------------------------------------------- */

struct manifest_refusal {
    const char *label; /* of the API: ManifestInvalid, ManifestMismatch, SignatureInvalid,
                          KeyUnknown */
    const char *message;
};
/* Before a version is published: is the manifest about exactly this (pack, version, size, sha256
 * and type of `expected` count), and signed by one of `keys`? When there are no keys yet, by
 * whatever key it names, which then becomes the pack's first. 0 and what it says, or TR_EPROTO,
 * TR_EACCES, TR_ENOMEM and why. */
int manifest_check(struct span text, struct span signature, const struct manifest_keys *keys,
    const struct manifest *expected, struct manifest *ret_manifest,
    struct manifest_refusal *ret_refusal);

/* What a client checks: `document` (parsed with JSON_UNIQUE_KEYS) has a manifest about `pack`,
 * signed by one of *keys or by a key that these lead to by the document's statements, in their
 * order. On success *keys are those that count now: what to remember. When *keys is empty the
 * document's first key is trusted, which is for first use alone. TR_EPROTO, TR_EACCES, TR_ENOMEM;
 * *ret_why is a sentence without its full stop, static. */
int manifest_document_check(const struct json *document, const char *pack,
    struct manifest_keys *keys, struct manifest *ret_manifest, const char **ret_why);

#endif
