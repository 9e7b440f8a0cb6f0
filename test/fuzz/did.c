/* SPDX-License-Identifier: Apache-2.0 */
/* DIDs, DID documents and key sets, by the first byte. A parsed value must print as text that parses to the same value. */
#include "auth/did.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "auth/key_set.h"
#include "base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_did(struct span text)
{
    struct crypto_key *key = NULL;
    struct buffer url = { 0 };
    struct did did;
    char again[DID_KEY_CHARS_MAX];

    if (did_key_parse(text, &key) == DID_OK) {
        tr_assert(did_key_format(key, again) == text.size);
        tr_assert(memcmp(again, text.at, text.size) == 0);
    }
    crypto_key_unref(&key);
    for (int allow_private = 0; allow_private < 2; allow_private++) {
        buffer_clear(&url);
        if (did_web_url(text, allow_private != 0, &url) != DID_OK)
            continue;
        tr_assert(did_parse(text, &did) == DID_OK);
        /* One host, at most one port, the one path; nothing that a URL reader takes for more. */
        tr_assert(
            allow_private != 0 || span_starts((struct span){ url.bytes, url.size }, "https://"));
        tr_assert(memchr(url.bytes, '@', url.size) == NULL);
        tr_assert(memchr(url.bytes, '%', url.size) == NULL);
        tr_assert(memchr(url.bytes, '#', url.size) == NULL);
        tr_assert(memchr(url.bytes, '?', url.size) == NULL);
        tr_assert(
            memmem(url.bytes, url.size, "/.well-known/did.json", 21) == url.bytes + url.size - 21);
    }
    buffer_clear(&url);
    did_plc_url(text, SPAN("https://plc.directory"), &url);
    buffer_free(&url);
}

static void try_document(struct span text)
{
    struct crypto_key *key = NULL;
    const struct span did = SPAN("did:plc:ewvi7nxzyoun6zhxrhs64oiz");

    if (did_document_key(text, did, SPAN("#atproto"), &key) == DID_OK) {
        tr_assert(key != NULL);
        tr_assert(!crypto_key_is_private(key));
        tr_assert(crypto_key_algorithm(key) != CRYPTO_HS256);
    } else
        tr_assert(key == NULL);
    crypto_key_unref(&key);
}

static void try_set(struct span text, bool allow_secrets)
{
    struct key_set *set = NULL;
    char why[KEY_SET_WHY_CHARS];

    if (key_set_parse(text,
            &(struct key_set_options){ .skip_unknown = true, .allow_secrets = allow_secrets }, &set,
            why) == 0) {
        tr_assert(key_set_count(set) > 0);
        tr_assert(key_set_count(set) <= KEY_SET_KEYS_MAX);
    } else
        tr_assert(set == NULL);
    key_set_destroy(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span text;

    if (size == 0)
        return 0;
    text = (struct span){ (const char *)data + 1, size - 1 };
    switch (data[0] % 4) {
    case 0:
        try_did(text);
        break;
    case 1:
        try_document(text);
        break;
    default:
        try_set(text, data[0] % 4 == 2);
    }
    return 0;
}
