/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.c: texts about a pack from a client or a publisher. The first byte chooses:
 *
 *   0  a manifest: writing it again gives the same bytes, and no signature verifies
 *   1  a statement about keys: the same
 *   2  a document: a client that knows a key must trust none of it
 *   3  members: the test builds and signs a manifest from them, which must be accepted or refused by
 *      the rules of the reader
 *   4  the header Upload-Offset */
#include "manifest/manifest.h"

#include <stdlib.h>
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "services/packs/upload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct crypto_key *key;
static char key_text[CRYPTO_MULTIKEY_CHARS_MAX];

static void set_up(void)
{
    static const uint8_t seed[32] = { 1, 2, 3 };

    if (key != NULL)
        return;
    tr_assert(crypto_key_from_private(CRYPTO_EDDSA, seed, sizeof seed, &key) == 0);
    tr_assert(crypto_multikey_encode(key, key_text) > 0);
}

static void check_manifest(struct span text)
{
    const struct span none = { "", 0 };
    struct manifest_keys keys = { 0 };
    struct manifest_refusal refusal;
    struct manifest manifest, again;
    struct buffer out = { 0 };
    const char *why = NULL;

    if (manifest_read(text, &manifest, &why) != 0) {
        tr_assert(why != NULL);
        return;
    }
    tr_assert(manifest_is_pack(span_of(manifest.pack)));
    tr_assert(manifest_is_version(span_of(manifest.version)));
    tr_assert(manifest_is_type(span_of(manifest.type)));
    tr_assert(manifest_write(&manifest, &out) == 0);
    tr_assert(span_equal((struct span){ out.bytes, out.size }, text));
    tr_assert(manifest_check(text, none, &keys, &manifest, &again, &refusal) != 0);
    buffer_free(&out);
}

static void check_statement(struct span text)
{
    const struct span none = { "", 0 };
    struct manifest_statement statement;
    struct manifest_keys keys = { 0 };
    struct buffer out = { 0 };

    if (manifest_statement_read(text, &statement, NULL) != 0)
        return;
    tr_assert(manifest_statement_write(&statement, &out) == 0);
    tr_assert(span_equal((struct span){ out.bytes, out.size }, text));
    tr_assert(manifest_keys_add(&keys, span_of(statement.key)) == 0);
    tr_assert(manifest_keys_apply(&keys, statement.pack, text, none) != 0);
    tr_assert(keys.count == 1);
    buffer_free(&out);
}

static void check_document(struct span text)
{
    struct json_doc doc = { .depth_max = 8 };
    struct manifest_keys keys = { 0 };
    struct manifest manifest;
    const char *why = NULL;

    tr_assert(manifest_keys_add(&keys, span_of(key_text)) == 0);
    if (json_parse_copy(&doc, text, JSON_UNIQUE_KEYS) == 0) {
        tr_assert(manifest_document_check(json_root(&doc), "core", &keys, &manifest, &why) != 0);
        tr_assert(why != NULL);
        tr_assert(keys.count == 1);
    }
    json_doc_free(&doc);
}

/* pack, version, type and checksum, with zero bytes between them; then a size. */
static void check_signed(const char *bytes, size_t size)
{
    struct manifest manifest = { .created_s = 1 }, back;
    char *const members[] = { manifest.pack, manifest.version, manifest.type, manifest.sha256 };
    const size_t sizes[] = { sizeof manifest.pack, sizeof manifest.version, sizeof manifest.type,
        sizeof manifest.sha256 };
    char signature[MANIFEST_SIGNATURE_CHARS + 1];
    struct manifest_refusal refusal;
    struct manifest_keys keys = { 0 };
    struct buffer out = { 0 };
    size_t at = 0;

    for (size_t i = 0; i < 4; i++) {
        size_t length = 0;

        while (at < size && bytes[at] != '\0' && length + 1 < sizes[i])
            members[i][length++] = bytes[at++];
        at += at < size;
    }
    memcpy(&manifest.size, bytes + at, size - at < 8 ? size - at : 8);
    memcpy(manifest.key, key_text, sizeof manifest.key);
    if (manifest_write(&manifest, &out) == 0) {
        struct span text = { out.bytes, out.size };

        tr_assert(manifest_sign(key, text, signature) == 0);
        tr_assert(manifest_check(text, span_of(signature), &keys, &manifest, &back, &refusal) == 0);
        tr_assert(strcmp(back.pack, manifest.pack) == 0);
        tr_assert(back.size == manifest.size);
    }
    buffer_free(&out);
}

static void check_offset(struct span text)
{
    uint64_t value = 0;
    struct buffer out = { 0 };
    size_t zeros = 0;

    if (!span_u64(text, &value))
        return;
    while (zeros + 1 < text.size && text.at[zeros] == '0')
        zeros++;
    tr_assert(buffer_u64(&out, value) == 0);
    tr_assert(span_equal(
        (struct span){ out.bytes, out.size }, (struct span){ text.at + zeros, text.size - zeros }));
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span text;

    set_up();
    if (size == 0)
        return 0;
    text = (struct span){ (const char *)data + 1, size - 1 };
    switch (data[0] % 5) {
    case 0:
        check_manifest(text);
        break;
    case 1:
        check_statement(text);
        break;
    case 2:
        check_document(text);
        break;
    case 3:
        check_signed(text.at, text.size);
        break;
    default:
        check_offset(text);
    }
    return 0;
}
