/* SPDX-License-Identifier: Apache-2.0 */
/* signature.c: signed JSON objects (Matrix specification, Appendices, "Signing JSON"). */
#include <troupe/error.h>

#include "crypto/encoding.h"
#include "matrix/crypto/mx_private.h"

static const char *const not_signed[] = { "signatures", "unsigned", NULL };

/* Append the bytes that a signature covers. */
static int signature_text(const struct json *object, struct buffer *out)
{
    int rc;

    if (json_kind(object) != JSON_OBJECT)
        return MX_EFORMAT;
    rc = json_canonical(object, not_signed, out);
    return rc == TR_EPROTO || rc == TR_EEXIST ? MX_EFORMAT : rc;
}

int mx_verify_json(
    const struct json *object, struct span user, struct span key_id, const struct mx_key *key)
{
    const struct json *by_user = json_get_span(json_get(object, "signatures"), user);
    uint8_t signature[MX_SIGNATURE_BYTES];
    struct buffer text = { 0 };
    struct span encoded;
    size_t size = 0;
    int rc;

    if (!json_string(json_get_span(by_user, key_id), &encoded) ||
        mx_base64_decode(encoded, signature, sizeof signature, &size) != 0 ||
        size != sizeof signature)
        return MX_ESIGNATURE;
    rc = signature_text(object, &text);
    if (rc == 0)
        rc = mx_verify(key, text.bytes, text.size, signature);
    buffer_free(&text);
    return rc;
}

static void signature_put_members(
    struct json_writer *writer, const struct json *object, struct span left_out)
{
    for (struct json_iter it = json_iterate(object); json_next(&it);)
        if (!span_equal(it.key, left_out)) {
            json_put_key(writer, it.key);
            json_put_value(writer, NULL, it.value);
        }
}

/* Write the former signatures, and this one in place of an earlier one of the same key. */
static void signature_put_all(struct json_writer *writer, const struct json *signatures,
    struct span user, struct span key_id, struct span signature)
{
    json_put_object(writer, "signatures");
    signature_put_members(writer, signatures, user);
    json_put_key(writer, user);
    json_put_object(writer, NULL);
    signature_put_members(writer, json_get_span(signatures, user), key_id);
    json_put_key(writer, key_id);
    json_put_string(writer, NULL, signature);
    json_put_end(writer);
    json_put_end(writer);
}

static void signature_put_object(struct json_writer *writer, const struct json *object,
    struct span user, struct span key_id, struct span signature)
{
    json_put_object(writer, NULL);
    signature_put_members(writer, object, SPAN("signatures"));
    signature_put_all(writer, json_get(object, "signatures"), user, key_id, signature);
    json_put_end(writer);
}

int mx_account_sign_json(const struct mx_account *account, const struct json *object,
    struct span user, struct span device, struct buffer *out)
{
    struct buffer text = { 0 }, key_id = { 0 }, encoded = { 0 };
    struct json_writer writer = json_writer(out);
    uint8_t signature[MX_SIGNATURE_BYTES];
    const size_t size = out->size;
    int rc = signature_text(object, &text);

    if (rc != 0)
        goto done;
    mx_account_sign(account, text.bytes, text.size, signature);
    mx_base64_encode(signature, sizeof signature, &encoded);
    buffer_text(&key_id, "ed25519:");
    buffer_span(&key_id, device);
    rc = encoded.failed != 0 ? encoded.failed : key_id.failed;
    if (rc != 0)
        goto done;
    signature_put_object(&writer, object, user, (struct span){ key_id.bytes, key_id.size },
        (struct span){ encoded.bytes, encoded.size });
    rc = json_writer_end(&writer);
    if (rc != 0)
        out->size = size;
done:
    buffer_free(&encoded);
    buffer_free(&key_id);
    buffer_free(&text);
    return rc;
}
