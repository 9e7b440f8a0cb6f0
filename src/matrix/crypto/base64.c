/* SPDX-License-Identifier: Apache-2.0 */
/* base64.c: unpadded base64 (Matrix specification, Appendices, "Unpadded base64"). Secrets go
 * through libsodium, whose time does not depend on the bytes; message bodies, which are public and
 * long, through the faster table of the crypto layer. */
#include <sodium.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "matrix/crypto/mx_private.h"

_Static_assert((MX_KEY_BYTES * 8 + 5) / 6 == MX_KEY_CHARS, "unpadded");
_Static_assert((MX_SIGNATURE_BYTES * 8 + 5) / 6 == MX_SIGNATURE_CHARS, "unpadded");

/* Write the text and a terminator. */
static void base64_write(const void *bytes, size_t size, char *ret_text)
{
    sodium_bin2base64(ret_text, crypto_base64url_size(size) + 1, bytes, size,
        sodium_base64_VARIANT_ORIGINAL_NO_PADDING);
}

int mx_base64_encode(const void *bytes, size_t size, struct buffer *out)
{
    char *text = buffer_reserve(out, crypto_base64url_size(size) + 1);

    if (text == NULL)
        return out->failed;
    base64_write(bytes, size, text);
    buffer_grew(out, crypto_base64url_size(size));
    return 0;
}

int mx_base64_decode(struct span text, void *bytes, size_t bytes_max, size_t *ret_size)
{
    int rc = crypto_base64_decode_loose(text, bytes, bytes_max, ret_size);

    return rc == TR_ETOOBIG ? MX_ETOOBIG : rc == 0 ? 0 : MX_EBASE64;
}

int mx__secret_decode(struct span text, void *bytes, size_t size)
{
    const char *end = NULL;
    size_t written = 0;

    for (int i = 0; i < 2 && text.size > 0 && text.at[text.size - 1] == '='; i++)
        text.size--;
    if (text.size != crypto_base64url_size(size))
        return MX_EFORMAT;
    if (sodium_base642bin(bytes, size, text.at, text.size, NULL, &written, &end,
            sodium_base64_VARIANT_ORIGINAL_NO_PADDING) == 0 &&
        end == text.at + text.size && written == size)
        return 0;
    crypto_wipe(bytes, size);
    return MX_EBASE64;
}

int mx__body_decode(struct span body, uint8_t **ret_bytes, struct span *ret_message)
{
    uint8_t *bytes;
    size_t size = 0;
    int rc;

    if (body.size > MX_MESSAGE_CHARS_MAX)
        return MX_ETOOBIG;
    bytes = base_alloc(body.size + 1);
    if (bytes == NULL)
        return TR_ENOMEM;
    rc = mx_base64_decode(body, bytes, body.size, &size);
    if (rc != 0) {
        base_free(bytes);
        return rc;
    }
    *ret_bytes = bytes;
    *ret_message = (struct span){ (const char *)bytes, size };
    return 0;
}

int mx__body_encode(struct buffer *message, struct buffer *body)
{
    char *text = NULL;
    int rc = message->failed;

    if (rc == 0) {
        text = buffer_reserve(body, crypto_base64_size(message->size));
        rc = body->failed;
    }
    if (text != NULL) {
        crypto_base64_encode(message->bytes, message->size, text);
        buffer_grew(body, crypto_base64url_size(message->size)); /* without the padding */
    }
    buffer_free(message);
    return rc;
}

/* ---- keys ------------------------------------------------------------------------------------ */

bool mx_key_equal(const struct mx_key *a, const struct mx_key *b)
{
    return crypto_equal(a->bytes, b->bytes, MX_KEY_BYTES);
}

int mx_key_parse(struct span text, struct mx_key *ret_key)
{
    struct mx_key key;
    size_t size = 0;
    int rc = mx_base64_decode(text, key.bytes, sizeof key.bytes, &size);

    if (rc == MX_ETOOBIG || (rc == 0 && size != sizeof key.bytes))
        return MX_EKEY;
    if (rc == 0)
        *ret_key = key;
    return rc;
}

void mx_key_text(const struct mx_key *key, char ret_text[MX_KEY_CHARS + 1])
{
    base64_write(key->bytes, sizeof key->bytes, ret_text);
}

void mx_key_id_text(uint64_t id, char ret_text[MX_KEY_ID_CHARS + 1])
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(id >> (56 - 8 * i));
    base64_write(bytes, sizeof bytes, ret_text);
}
