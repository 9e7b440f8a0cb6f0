/* SPDX-License-Identifier: Apache-2.0 */
/* did.h: decentralised identifiers: their syntax, the URL of their document, and the key in it. Pure:
 * this file fetches nothing. Any thread. */
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
    X(DID_OK, "Ok", "The DID is accepted.")                                                        \
    X(DID_NO_MEMORY, "NoMemory", "The server is out of memory; try again.")                        \
    X(DID_SYNTAX, "DidSyntax", "The DID is malformed.")                                            \
    X(DID_METHOD, "DidMethod", "The DID must be a did:key, did:web or did:plc.")                   \
    X(DID_HOST, "DidHost", "The did:web must name a public host, with or without a port.")         \
    X(DID_PRIVATE, "DidPrivate",                                                                   \
        "The did:web names an address or a private host; use a public name.")                      \
    X(DID_PATH, "DidPath", "The did:web has a path; only a bare host is supported.")               \
    X(DID_KEY_BAD, "DidKey", "The issuer's key is malformed or not a valid public key.")           \
    X(DID_KEY_KIND, "DidKeyKind", "The issuer's key is of a kind that is not supported.")          \
    X(DID_DOCUMENT, "DidDocument", "The DID document is not a JSON object of the expected form.")  \
    X(DID_DOCUMENT_LARGE, "DidDocumentTooLarge", "The DID document is larger than 65,536 bytes.")  \
    X(DID_DOCUMENT_ID, "DidDocumentId", "The DID document's id is another DID.")                   \
    X(DID_DEACTIVATED, "DidDeactivated", "The DID is deactivated.")                                \
    X(DID_KEY_MISSING, "DidKeyMissing", "The DID document has no verification method #atproto.")   \
    X(DID_KEY_AMBIGUOUS, "DidKeyAmbiguous",                                                        \
        "The DID document has the verification method #atproto twice.")                            \
    X(DID_CONTROLLER, "DidController", "The verification method is controlled by another DID.")

#define DID__REFUSAL_ENUM(name, label, text) name,
enum did_refusal { DID_REFUSALS(DID__REFUSAL_ENUM) DID_REFUSAL_COUNT };
#undef DID__REFUSAL_ENUM

const char *did_refusal_label(enum did_refusal refusal);
const char *did_refusal_text(enum did_refusal refusal);

enum did_method { DID_METHOD_KEY = 1, DID_METHOD_WEB, DID_METHOD_PLC };

struct did {
    enum did_method method;
    struct span id; /* the part after "did:method:"; borrowed */
};

/* Parse a DID of a supported method, without path, query or fragment. Checks the characters and, for
 * did:plc, the length; the functions below check the rest of did:key and did:web. */
enum did_refusal did_parse(struct span text, struct did *ret_did);

/* Decode the key in a did:key. The caller owns the reference. */
enum did_refusal did_key_parse(struct span text, struct crypto_key **ret_key);
/* Write the did:key of a key, terminated, and return its length; 0 if its kind has none. */
size_t did_key_format(const struct crypto_key *key, char ret_text[DID_KEY_CHARS_MAX]);

/* Append the URL of a did:web's document: https://host[:port]/.well-known/did.json. The host must be a
 * lower-case name with two labels or more; a port is written %3A and digits. IP addresses, localhost
 * and names of private networks are refused unless allow_private; localhost and addresses get http.
 * The HTTP client checks the address that a public name resolves to. */
enum did_refusal did_web_url(struct span text, bool allow_private, struct buffer *url);
/* Append directory ("https://plc.directory") + "/" + did. */
enum did_refusal did_plc_url(struct span text, struct span directory, struct buffer *url);

/* Find the key of the verification method `fragment` ("#atproto") in the document of `did`. The caller
 * owns the reference. Forms: Multikey with publicKeyMultibase; JsonWebKey and JsonWebKey2020 with
 * publicKeyJwk. */
enum did_refusal did_document_key(
    struct span document, struct span did, struct span fragment, struct crypto_key **ret_key);

#endif
