/* SPDX-License-Identifier: Apache-2.0 */
/* attachment.c: encrypted files (client-server specification, "Sending encrypted attachments",
 * EncryptedFile v2): AES-256-CTR and the SHA-256 of the ciphertext, piece by piece in constant
 * memory. */
#include <sodium.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/crypto/mx_private.h"

static int attachment_init(
    struct mx_attachment_stream *stream, const struct mx_attachment *attachment, bool encrypts)
{
    *stream = (struct mx_attachment_stream){ .encrypts = encrypts };
    stream->aes = mx__aes_create(MX__AES_CTR, encrypts, attachment->key, attachment->iv);
    if (stream->aes != NULL && crypto_sha256_stream_init(&stream->digest) == 0)
        return 0;
    mx_attachment_fini(stream);
    return TR_ENOMEM;
}

int mx_attachment_encrypt(struct mx_attachment_stream *stream, const struct mx_random *random,
    struct mx_attachment *ret_attachment)
{
    *ret_attachment = (struct mx_attachment){ 0 };
    random->fill(random->data, ret_attachment->key, sizeof ret_attachment->key);
    /* The lower half counts blocks: from zero it cannot overflow. */
    random->fill(random->data, ret_attachment->iv, sizeof ret_attachment->iv / 2);
    return attachment_init(stream, ret_attachment, true);
}

int mx_attachment_decrypt(
    struct mx_attachment_stream *stream, const struct mx_attachment *attachment)
{
    return attachment_init(stream, attachment, false);
}

void mx_attachment_update(struct mx_attachment_stream *stream, struct span in, void *out)
{
    if (!stream->encrypts)
        crypto_sha256_stream_update(&stream->digest, in.at, in.size);
    mx__aes_update(stream->aes, in, out);
    if (stream->encrypts)
        crypto_sha256_stream_update(&stream->digest, out, in.size);
}

void mx_attachment_encrypt_end(
    struct mx_attachment_stream *stream, struct mx_attachment *attachment)
{
    tr_assert(stream->encrypts);
    crypto_sha256_stream_digest(&stream->digest, attachment->sha256);
}

int mx_attachment_decrypt_end(
    struct mx_attachment_stream *stream, const struct mx_attachment *attachment)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];

    tr_assert(!stream->encrypts);
    crypto_sha256_stream_digest(&stream->digest, digest);
    return crypto_equal(digest, attachment->sha256, sizeof digest) ? 0 : MX_EHASH;
}

void mx_attachment_fini(struct mx_attachment_stream *stream)
{
    mx__aes_destroy(stream->aes);
    stream->aes = NULL;
    crypto_sha256_stream_fini(&stream->digest);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void attachment_put_base64(
    struct json_writer *writer, const char *key, const uint8_t *bytes, size_t size, int variant)
{
    char text[MX_KEY_CHARS + 1];

    tr_assert(size <= MX_KEY_BYTES);
    sodium_bin2base64(text, sizeof text, bytes, size, variant);
    json_put_text(writer, key, text);
    crypto_wipe(text, sizeof text);
}

void mx_attachment_put(struct json_writer *writer, const char *key,
    const struct mx_attachment *attachment, struct span url)
{
    const int standard = sodium_base64_VARIANT_ORIGINAL_NO_PADDING;

    json_put_object(writer, key);
    json_put_text(writer, "v", "v2");
    json_put_string(writer, "url", url);
    json_put_object(writer, "key");
    json_put_text(writer, "kty", "oct");
    json_put_text(writer, "alg", "A256CTR");
    json_put_bool(writer, "ext", true);
    json_put_array(writer, "key_ops");
    json_put_text(writer, NULL, "encrypt");
    json_put_text(writer, NULL, "decrypt");
    json_put_end(writer);
    attachment_put_base64(writer, "k", attachment->key, sizeof attachment->key,
        sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    json_put_end(writer);
    attachment_put_base64(writer, "iv", attachment->iv, sizeof attachment->iv, standard);
    json_put_object(writer, "hashes");
    attachment_put_base64(
        writer, "sha256", attachment->sha256, sizeof attachment->sha256, standard);
    json_put_end(writer);
    json_put_end(writer);
}

static bool attachment_is(const struct json *object, const char *key, const char *text)
{
    struct span value;

    return json_string(json_get(object, key), &value) && span_is(value, text);
}

static bool attachment_get_base64(
    const struct json *object, const char *key, uint8_t *bytes, size_t size)
{
    struct span text;
    size_t written = 0;

    return json_string(json_get(object, key), &text) &&
           mx_base64_decode(text, bytes, size, &written) == 0 && written == size;
}

static bool attachment_get_key(const struct json *jwk, uint8_t ret_key[32])
{
    struct span text;
    size_t written = 0;

    return json_string(json_get(jwk, "k"), &text) &&
           sodium_base642bin(ret_key, 32, text.at, text.size, NULL, &written, NULL,
               sodium_base64_VARIANT_URLSAFE_NO_PADDING) == 0 &&
           written == 32;
}

static bool attachment_has_op(const struct json *array, const char *text)
{
    struct span value;

    for (struct json_iter it = json_iterate(array); json_next(&it);)
        if (json_string(it.value, &value) && span_is(value, text))
            return true;
    return false;
}

int mx_attachment_parse(
    const struct json *file, struct mx_attachment *ret_attachment, struct span *ret_url)
{
    const struct json *jwk = json_get(file, "key"), *hashes = json_get(file, "hashes");
    struct mx_attachment attachment;
    bool can_export = false;
    int rc = MX_EFORMAT;

    if (!attachment_is(file, "v", "v2"))
        return MX_EVERSION;
    if (attachment_is(jwk, "kty", "oct") && attachment_is(jwk, "alg", "A256CTR") &&
        json_bool(json_get(jwk, "ext"), &can_export) && can_export &&
        attachment_has_op(json_get(jwk, "key_ops"), "decrypt") &&
        attachment_get_key(jwk, attachment.key) &&
        attachment_get_base64(file, "iv", attachment.iv, sizeof attachment.iv) &&
        attachment_get_base64(hashes, "sha256", attachment.sha256, sizeof attachment.sha256) &&
        json_string(json_get(file, "url"), ret_url)) {
        *ret_attachment = attachment;
        rc = 0;
    }
    crypto_wipe(&attachment, sizeof attachment);
    return rc;
}
