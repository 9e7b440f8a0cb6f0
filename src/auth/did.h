/* SPDX-License-Identifier: Apache-2.0 */
/* did.h: decentralised identifiers: what they are, where their documents lie, and the key inside.
 * Pure: whoever fetches the document does so elsewhere. Any thread. */
#ifndef AUTH_DID_H
#define AUTH_DID_H

#include <stdbool.h>
#include <stddef.h>

#include "crypto/key.h"
#include "support/buffer.h"

enum {
    DID_CHARS_MAX = 2048,
    DID_DOCUMENT_BYTES_MAX = 65536,
    DID_DOCUMENT_DEPTH_MAX = 16,
    DID_METHODS_MAX = 64, /* verification methods in a document */
    DID_KEY_CHARS_MAX = 8 + CRYPTO_MULTIKEY_CHARS_MAX,
};

/* X(name, label, text). Labels are part of the API. */
#define DID_REFUSALS(X)                                                                            \
    X(DID_OK, "Ok", "accepted")                                                                    \
    X(DID_NO_MEMORY, "NoMemory", "out of memory")                                                  \
    X(DID_SYNTAX, "DidSyntax", "this is not a DID")                                                \
    X(DID_METHOD, "DidMethod", "only did:key, did:web and did:plc are supported")                  \
    X(DID_HOST, "DidHost", "a did:web names a public host, with a port or without")                \
    X(DID_PRIVATE, "DidPrivate", "a did:web may not name an address or a private host")            \
    X(DID_PATH, "DidPath", "a did:web with a path is not supported")                               \
    X(DID_KEY_BAD, "DidKey", "the key is malformed or not a valid public key")                     \
    X(DID_KEY_KIND, "DidKeyKind", "this kind of key is not supported")                             \
    X(DID_DOCUMENT, "DidDocument", "the DID document is not a JSON object of a document's shape")  \
    X(DID_DOCUMENT_LARGE, "DidDocumentTooLarge", "the DID document is larger than 65536 bytes")    \
    X(DID_DOCUMENT_ID, "DidDocumentId", "the DID document is about another DID")                   \
    X(DID_DEACTIVATED, "DidDeactivated", "the DID is deactivated")                                 \
    X(DID_KEY_MISSING, "DidKeyMissing", "the DID document has no such verification method")        \
    X(DID_KEY_AMBIGUOUS, "DidKeyAmbiguous", "the DID document has that verification method twice") \
    X(DID_CONTROLLER, "DidController", "the verification method is controlled by another DID")

#define DID__REFUSAL_ENUM(name, label, text) name,
enum did_refusal { DID_REFUSALS(DID__REFUSAL_ENUM) DID_REFUSAL_COUNT };
#undef DID__REFUSAL_ENUM

const char *did_refusal_label(enum did_refusal refusal);
const char *did_refusal_text(enum did_refusal refusal);

enum did_method { DID_METHOD_KEY = 1, DID_METHOD_WEB, DID_METHOD_PLC };

struct did {
    enum did_method method;
    struct span id; /* what follows "did:method:"; borrowed */
};

/* A whole DID of a supported method, without path, query or fragment. Checks characters and, for
 * did:plc, the length; did:key and did:web are looked into by the functions below. */
enum did_refusal did_parse(struct span text, struct did *ret_did);

/* The key that a did:key is. */
enum did_refusal did_key_parse(struct span text, struct crypto_key **ret_key);
/* The did:key of a key, terminated; 0 if its kind has none. */
size_t did_key_format(const struct crypto_key *key, char ret_text[DID_KEY_CHARS_MAX]);

/* Where the document of a did:web lies: https://host[:port]/.well-known/did.json, appended. Hosts
 * are lower-case names with two labels or more; a port is written %3A and digits. IP addresses,
 * localhost and names that only exist inside a network are refused unless allow_private, which also
 * makes it http for localhost and addresses. What a public name resolves to is for the one who
 * fetches to check. */
enum did_refusal did_web_url(struct span text, bool allow_private, struct buffer *url);
/* directory ("https://plc.directory") + "/" + did, appended. */
enum did_refusal did_plc_url(struct span text, struct span directory, struct buffer *url);

/* The key of the verification method `fragment` ("#atproto") in the document of `did`. Forms:
 * Multikey with publicKeyMultibase; JsonWebKey and JsonWebKey2020 with publicKeyJwk. */
enum did_refusal did_document_key(
    struct span document, struct span did, struct span fragment, struct crypto_key **ret_key);

#endif
