/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.c: read, write, sign and check manifests. Each meaning has one text: a reader reads the
 * members, writes the text again and compares the bytes. This one comparison refuses another order,
 * spaces, escapes, additional members and other spellings of a number. */
#include "manifest/manifest.h"

#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "json/json_expect.h"
#include "json/json_write.h"

#define SIZE_LARGEST ((INT64_C(1) << 53) - 1) /* exact in every JSON reader */
enum { SIGNATURE_BYTES = 64, SHA256_CHARS = 64 };

/* ---- forms ---------------------------------------------------------------------------------- */

static bool is_made_of(struct span text, size_t size_max, const char *also, bool with_upper)
{
    if (text.size == 0 || text.size > size_max)
        return false;
    for (size_t i = 0; i < text.size; i++) {
        char c = text.at[i];

        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
            (with_upper && c >= 'A' && c <= 'Z'))
            continue;
        if (c == '\0' || strchr(also, c) == NULL)
            return false;
    }
    return true;
}

bool manifest_is_pack(struct span name)
{
    return is_made_of(name, MANIFEST_PACK_CHARS_MAX, "._-", false) && name.at[0] != '.';
}

bool manifest_is_version(struct span version)
{
    return is_made_of(version, MANIFEST_VERSION_CHARS_MAX, ".+_-", true) && version.at[0] != '.';
}

bool manifest_is_type(struct span type)
{
    static const char also[] = "!#$&-^_.+"; /* RFC 6838 section 4.2 */
    const char *slash = type.size == 0 ? NULL : memchr(type.at, '/', type.size);
    size_t first;

    if (slash == NULL || type.size > MANIFEST_TYPE_CHARS_MAX)
        return false;
    first = (size_t)(slash - type.at);
    return is_made_of((struct span){ type.at, first }, type.size, also, true) &&
           is_made_of((struct span){ slash + 1, type.size - first - 1 }, type.size, also, true);
}

static bool is_sha256(const char *text)
{
    return strlen(text) == SHA256_CHARS && strspn(text, "0123456789abcdef") == SHA256_CHARS;
}

/* Decode a multikey. TR_EPROTO for any other than Ed25519. The decoder is strict: a key has one
 * text. */
static int open_key(struct span text, struct crypto_key **ret_key)
{
    int rc;

    if (text.size >= CRYPTO_MULTIKEY_CHARS_MAX)
        return TR_EPROTO;
    rc = crypto_multikey_decode(text, ret_key);
    if (rc == TR_ENOMEM)
        return rc;
    if (rc != 0)
        return TR_EPROTO;
    if (crypto_key_algorithm(*ret_key) == CRYPTO_EDDSA)
        return 0;
    crypto_key_unref(ret_key);
    return TR_EPROTO;
}

static int check_key(const char *text)
{
    struct crypto_key *key = NULL;
    int rc = open_key(span_of(text), &key);

    crypto_key_unref(&key);
    return rc == TR_EPROTO ? TR_EINVAL : rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* End a text and check its size. On failure, restore the former size of `out`. */
static int end_text(struct buffer *out, size_t before, const struct json_writer *writer)
{
    int rc = json_writer_end(writer);

    if (rc == 0 && out->size - before > MANIFEST_BYTES_MAX)
        rc = TR_ELIMIT;
    if (rc != 0 && out->failed == 0)
        out->size = before;
    return rc;
}

/* Members are written in the order of their names. Their texts need no escapes. */
int manifest_write(const struct manifest *manifest, struct buffer *out)
{
    size_t before = out->size;
    struct json_writer writer;
    int rc;

    if (!manifest_is_pack(span_of(manifest->pack)) ||
        !manifest_is_version(span_of(manifest->version)) ||
        !manifest_is_type(span_of(manifest->type)) || !is_sha256(manifest->sha256) ||
        manifest->size > SIZE_LARGEST || manifest->created_s < 0 ||
        manifest->created_s > SIZE_LARGEST)
        return TR_EINVAL;
    rc = check_key(manifest->key);
    if (rc != 0)
        return rc;
    writer = json_writer(out);
    json_put_object(&writer, NULL);
    json_put_int(&writer, "created", manifest->created_s);
    json_put_text(&writer, "key", manifest->key);
    json_put_text(&writer, "pack", manifest->pack);
    json_put_text(&writer, "sha256", manifest->sha256);
    json_put_int(&writer, "size", (int64_t)manifest->size);
    json_put_text(&writer, "type", manifest->type);
    json_put_text(&writer, "version", manifest->version);
    json_put_end(&writer);
    return end_text(out, before, &writer);
}

int manifest_statement_write(const struct manifest_statement *statement, struct buffer *out)
{
    size_t before = out->size;
    struct json_writer writer;
    int rc;

    if (!manifest_is_pack(span_of(statement->pack)) || statement->created_s < 0 ||
        statement->created_s > SIZE_LARGEST)
        return TR_EINVAL;
    rc = check_key(statement->key);
    if (rc == 0)
        rc = check_key(statement->subject);
    if (rc != 0)
        return rc;
    writer = json_writer(out);
    json_put_object(&writer, NULL);
    if (!statement->is_retire)
        json_put_text(&writer, "add", statement->subject);
    json_put_int(&writer, "created", statement->created_s);
    json_put_text(&writer, "key", statement->key);
    json_put_text(&writer, "pack", statement->pack);
    if (statement->is_retire)
        json_put_text(&writer, "retire", statement->subject);
    json_put_end(&writer);
    return end_text(out, before, &writer);
}

/* ---- reading -------------------------------------------------------------------------------- */

static int manifest_fail(const char **ret_why, int rc, const char *why)
{
    if (ret_why != NULL)
        *ret_why = rc == TR_ENOMEM ? "The memory is exhausted; try again later." : why;
    return rc;
}

/* Read a text member with a terminator. False, and `expect` has failed, if the text does not fit or
 * has a zero byte. */
static bool read_member(struct json_expect *expect, const char *name, char *to, size_t to_size)
{
    struct span text = json_need_string(expect, name, 1, to_size - 1);

    if (expect->failed)
        return false;
    if (memchr(text.at, '\0', text.size) != NULL) {
        json_expect_fail(expect, name, "must not have a zero byte");
        return false;
    }
    memcpy(to, text.at, text.size);
    to[text.size] = '\0';
    return true;
}

/* Parse into *doc, which the caller frees. */
static int parse_signed_text(struct span text, struct json_doc *doc, const char **ret_why)
{
    int rc;

    if (text.size > MANIFEST_BYTES_MAX)
        return manifest_fail(ret_why, TR_ETOOBIG, "The text is larger than 2,048 bytes.");
    doc->depth_max = 2;
    rc = json_parse_copy(doc, text, JSON_UNIQUE_KEYS);
    if (rc == TR_ENOMEM)
        return manifest_fail(ret_why, rc, NULL);
    return rc == 0 ? 0 : manifest_fail(ret_why, TR_EPROTO, "The text is not a JSON object.");
}

/* Compare the text with `again`, which was written from its members; `rc` is the result of
 * writing. */
static int check_canonical(
    int rc, const struct buffer *again, struct span text, const char **ret_why)
{
    if (rc == TR_ENOMEM)
        return manifest_fail(ret_why, rc, NULL);
    if (rc != 0)
        return manifest_fail(ret_why, TR_EPROTO, "A member is missing or has an invalid value.");
    if (!span_equal((struct span){ again->bytes, again->size }, text))
        return manifest_fail(
            ret_why, TR_EPROTO, "The text is not in canonical form, or has an unknown member.");
    return 0;
}

int manifest_read(struct span text, struct manifest *ret_manifest, const char **ret_why)
{
    struct manifest manifest = { 0 };
    struct buffer again = { 0 };
    struct json_doc doc = { 0 };
    struct json_expect expect;
    int rc = parse_signed_text(text, &doc, ret_why);

    if (rc == 0) {
        expect = json_expect(json_root(&doc));
        read_member(&expect, "pack", manifest.pack, sizeof manifest.pack);
        read_member(&expect, "version", manifest.version, sizeof manifest.version);
        read_member(&expect, "type", manifest.type, sizeof manifest.type);
        read_member(&expect, "sha256", manifest.sha256, sizeof manifest.sha256);
        read_member(&expect, "key", manifest.key, sizeof manifest.key);
        manifest.size = (uint64_t)json_need_int(&expect, "size", 0, SIZE_LARGEST);
        manifest.created_s = json_need_int(&expect, "created", 0, SIZE_LARGEST);
        rc = check_canonical(
            expect.failed ? TR_EINVAL : manifest_write(&manifest, &again), &again, text, ret_why);
    }
    if (rc == 0)
        *ret_manifest = manifest;
    buffer_free(&again);
    json_doc_free(&doc);
    return rc;
}

int manifest_statement_read(
    struct span text, struct manifest_statement *ret_statement, const char **ret_why)
{
    struct manifest_statement statement = { 0 };
    struct buffer again = { 0 };
    struct json_doc doc = { 0 };
    struct json_expect expect;
    int rc = parse_signed_text(text, &doc, ret_why);

    if (rc == 0) {
        expect = json_expect(json_root(&doc));
        statement.is_retire = json_get(json_root(&doc), "retire") != NULL;
        read_member(&expect, "pack", statement.pack, sizeof statement.pack);
        read_member(&expect, "key", statement.key, sizeof statement.key);
        read_member(&expect, statement.is_retire ? "retire" : "add", statement.subject,
            sizeof statement.subject);
        statement.created_s = json_need_int(&expect, "created", 0, SIZE_LARGEST);
        rc = check_canonical(
            expect.failed ? TR_EINVAL : manifest_statement_write(&statement, &again), &again, text,
            ret_why);
    }
    if (rc == 0)
        *ret_statement = statement;
    buffer_free(&again);
    json_doc_free(&doc);
    return rc;
}

/* ---- signatures ----------------------------------------------------------------------------- */

int manifest_sign(const struct crypto_key *key, struct span text,
    char ret_signature[MANIFEST_SIGNATURE_CHARS + 1])
{
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    size_t size;
    int rc;

    if (crypto_key_algorithm(key) != CRYPTO_EDDSA)
        return TR_EACCES;
    rc = crypto_key_sign(key, text.at, text.size, signature);
    if (rc != 0)
        return rc;
    size = crypto_base64url_encode(signature, SIGNATURE_BYTES, ret_signature);
    tr_assert(size == MANIFEST_SIGNATURE_CHARS);
    ret_signature[size] = '\0';
    return 0;
}

int manifest_verify(struct span text, struct span signature, const char *key)
{
    uint8_t bytes[SIGNATURE_BYTES];
    struct crypto_key *opened = NULL;
    size_t size;
    int rc;

    if (signature.size != MANIFEST_SIGNATURE_CHARS ||
        crypto_base64url_decode(signature, bytes, sizeof bytes, &size) != 0 ||
        size != SIGNATURE_BYTES)
        return TR_EPROTO;
    rc = open_key(span_of(key), &opened);
    if (rc == 0)
        rc = crypto_key_verify(
            opened, text.at, text.size, (struct span){ (const char *)bytes, SIGNATURE_BYTES });
    crypto_key_unref(&opened);
    return rc;
}

/* ---- the keys of a pack --------------------------------------------------------------------- */

bool manifest_keys_has(const struct manifest_keys *keys, const char *key)
{
    for (size_t i = 0; i < keys->count; i++)
        if (strcmp(keys->keys[i], key) == 0)
            return true;
    return false;
}

int manifest_keys_add(struct manifest_keys *keys, struct span key)
{
    char text[CRYPTO_MULTIKEY_CHARS_MAX];
    struct crypto_key *opened = NULL;
    int rc = open_key(key, &opened);

    if (rc != 0)
        return rc;
    crypto_key_unref(&opened);
    memcpy(text, key.at, key.size);
    text[key.size] = '\0';
    if (manifest_keys_has(keys, text))
        return 0;
    if (keys->count == MANIFEST_KEYS_MAX)
        return TR_ELIMIT;
    memcpy(keys->keys[keys->count++], text, sizeof text);
    return 0;
}

static bool is_retired(const struct manifest_keys *keys, const char *key)
{
    for (size_t i = 0; i < keys->retired_count; i++)
        if (strcmp(keys->retired[i], key) == 0)
            return true;
    return false;
}

int manifest_keys_retire(struct manifest_keys *keys, struct span key)
{
    char text[CRYPTO_MULTIKEY_CHARS_MAX] = "";
    struct crypto_key *opened = NULL;
    size_t i = 0;
    int rc = open_key(key, &opened);

    if (rc != 0)
        return rc;
    crypto_key_unref(&opened);
    memcpy(text, key.at, key.size);
    if (!is_retired(keys, text)) {
        if (keys->retired_count == MANIFEST_STATEMENTS_MAX)
            return TR_ELIMIT;
        memcpy(keys->retired[keys->retired_count++], text, sizeof text);
    }
    while (i < keys->count && strcmp(keys->keys[i], text) != 0)
        i++;
    if (i < keys->count) {
        keys->count--;
        memmove(keys->keys[i], keys->keys[i + 1], (keys->count - i) * sizeof keys->keys[0]);
    }
    return 0;
}

static int keys_retire_member(struct manifest_keys *keys, const char *key)
{
    if (!manifest_keys_has(keys, key))
        return TR_ENOENT;
    return keys->count == 1 ? TR_EINVAL : manifest_keys_retire(keys, span_of(key));
}

int manifest_keys_apply(
    struct manifest_keys *keys, const char *pack, struct span text, struct span signature)
{
    struct manifest_statement statement;
    int rc = manifest_statement_read(text, &statement, NULL);

    if (rc != 0)
        return rc == TR_ENOMEM ? rc : TR_EPROTO;
    if (strcmp(statement.pack, pack) != 0)
        return TR_EPROTO;
    if (!manifest_keys_has(keys, statement.key))
        return TR_EACCES;
    rc = manifest_verify(text, signature, statement.key);
    if (rc != 0)
        return rc == TR_ENOMEM ? rc : TR_EACCES;
    if (statement.is_retire)
        return keys_retire_member(keys, statement.subject);
    return is_retired(keys, statement.subject)
               ? TR_EACCES
               : manifest_keys_add(keys, span_of(statement.subject));
}

/* ---- the check of the server ---------------------------------------------------------------- */

static int manifest_refuse(
    struct manifest_refusal *refusal, int rc, const char *label, const char *message)
{
    *refusal = (struct manifest_refusal){ label, message };
    return rc;
}

static const char *find_difference(const struct manifest *manifest, const struct manifest *expected)
{
    if (strcmp(manifest->pack, expected->pack) != 0)
        return "The manifest is about another pack.";
    if (strcmp(manifest->version, expected->version) != 0)
        return "The manifest is about another version.";
    if (manifest->size != expected->size)
        return "The size in the manifest differs from the size of the uploaded file.";
    if (strcmp(manifest->sha256, expected->sha256) != 0)
        return "The checksum in the manifest differs from the checksum of the uploaded file.";
    if (strcmp(manifest->type, expected->type) != 0)
        return "The media type in the manifest differs from the media type of the upload.";
    return NULL;
}

int manifest_check(struct span text, struct span signature, const struct manifest_keys *keys,
    const struct manifest *expected, struct manifest *ret_manifest,
    struct manifest_refusal *ret_refusal)
{
    struct manifest manifest;
    const char *why = NULL;
    int rc = manifest_read(text, &manifest, &why);

    if (rc == TR_ENOMEM)
        return manifest_refuse(
            ret_refusal, rc, "OutOfMemory", "The server is out of memory; try again later.");
    if (rc != 0)
        return manifest_refuse(ret_refusal, TR_EPROTO, "ManifestInvalid", why);
    why = find_difference(&manifest, expected);
    if (why != NULL)
        return manifest_refuse(ret_refusal, TR_EPROTO, "ManifestMismatch", why);
    if (keys->count > 0 && !manifest_keys_has(keys, manifest.key))
        return manifest_refuse(ret_refusal, TR_EACCES, "KeyUnknown",
            "The manifest is signed with a key that is not one of the pack's keys; sign with one "
            "of "
            "them, or add this key first.");
    rc = manifest_verify(text, signature, manifest.key);
    if (rc == TR_ENOMEM)
        return manifest_refuse(
            ret_refusal, rc, "OutOfMemory", "The server is out of memory; try again later.");
    if (rc != 0)
        return manifest_refuse(ret_refusal, TR_EACCES, "SignatureInvalid",
            "The signature does not match the manifest and its key.");
    *ret_manifest = manifest;
    return 0;
}

/* ---- the check of a client ------------------------------------------------------------------ */

/* Apply one entry of the key history. An entry by a key that is not valid (yet, or any more) is
 * skipped: a client that remembers newer keys starts in the middle of the history. */
static int apply_entry(
    const struct json *entry, const char *pack, struct manifest_keys *keys, const char **ret_why)
{
    struct span text, signature;
    int rc;

    if (json_get(entry, "statement") == NULL)
        return 0;
    if (!json_string(json_get(entry, "statement"), &text) ||
        !json_string(json_get(entry, "signature"), &signature))
        return manifest_fail(ret_why, TR_EPROTO, "An entry of keys is not a signed statement.");
    rc = manifest_keys_apply(keys, pack, text, signature);
    if (rc == 0 || rc == TR_EACCES || rc == TR_ENOENT)
        return 0;
    return manifest_fail(
        ret_why, rc == TR_ENOMEM ? rc : TR_EPROTO, "A statement in keys is invalid.");
}

static int gather_keys(
    const struct json *document, const char *pack, struct manifest_keys *keys, const char **ret_why)
{
    const struct json *list = json_get(document, "keys");
    struct span first;
    int rc = 0;

    if (json_kind(list) != JSON_ARRAY || json_count(list) == 0 ||
        json_count(list) > MANIFEST_STATEMENTS_MAX)
        return manifest_fail(ret_why, TR_EPROTO, "keys must be an array of 1 to 64 entries.");
    if (keys->count == 0) {
        rc = json_string(json_get(json_at(list, 0), "key"), &first) ? manifest_keys_add(keys, first)
                                                                    : TR_EPROTO;
        if (rc != 0)
            return manifest_fail(ret_why, rc, "The first entry of keys is not an Ed25519 key.");
    }
    for (struct json_iter it = json_iterate(list); rc == 0 && json_next(&it);)
        rc = apply_entry(it.value, pack, keys, ret_why);
    return rc;
}

int manifest_document_check(const struct json *document, const char *pack,
    struct manifest_keys *keys, struct manifest *ret_manifest, const char **ret_why)
{
    struct manifest_keys now = *keys;
    struct manifest manifest;
    struct span text, signature;
    int rc;

    if (!json_string(json_get(document, "manifest"), &text) ||
        !json_string(json_get(document, "signature"), &signature))
        return manifest_fail(ret_why, TR_EPROTO, "manifest or signature is missing.");
    rc = manifest_read(text, &manifest, ret_why);
    if (rc != 0)
        return rc == TR_ENOMEM ? rc : TR_EPROTO;
    if (strcmp(manifest.pack, pack) != 0)
        return manifest_fail(ret_why, TR_EPROTO, "The manifest is about another pack.");
    rc = gather_keys(document, pack, &now, ret_why);
    if (rc != 0)
        return rc;
    if (!manifest_keys_has(&now, manifest.key))
        return manifest_fail(ret_why, TR_EACCES,
            "The manifest is signed by a key that is not trusted for this pack.");
    rc = manifest_verify(text, signature, manifest.key);
    if (rc != 0)
        return manifest_fail(ret_why, rc == TR_ENOMEM ? rc : TR_EACCES,
            "The signature does not match the manifest and its key.");
    *keys = now;
    *ret_manifest = manifest;
    return 0;
}
