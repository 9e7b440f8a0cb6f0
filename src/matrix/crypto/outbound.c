/* SPDX-License-Identifier: Apache-2.0 */
/* outbound.c: the sending side of a Megolm session. Its id is its signing key. The caller decides
 * when to rotate it: by count, by time, or when a member or device leaves. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

struct mx_outbound {
    struct mx__ratchet ratchet;
    struct mx__signing_pair signing;
};

int mx_outbound_create(const struct mx_random *random, struct mx_outbound **ret_outbound)
{
    struct mx_outbound *outbound = base_calloc(sizeof *outbound);

    if (outbound == NULL)
        return TR_ENOMEM;
    random->fill(random->data, outbound->ratchet.parts, sizeof outbound->ratchet.parts);
    mx__signing_pair_generate(random, &outbound->signing);
    *ret_outbound = outbound;
    return 0;
}

void mx_outbound_destroy(struct mx_outbound *outbound)
{
    if (outbound != NULL)
        crypto_wipe(outbound, sizeof *outbound);
    base_free(outbound);
}

void mx_outbound_id(const struct mx_outbound *outbound, char ret_id[MX_SESSION_ID_CHARS + 1])
{
    mx_key_text(&outbound->signing.public_key, ret_id);
}

uint32_t mx_outbound_index(const struct mx_outbound *outbound)
{
    return outbound->ratchet.index;
}

int mx_outbound_key(const struct mx_outbound *outbound, struct buffer *key)
{
    uint8_t bytes[MX__SESSION_KEY_BYTES];
    int rc;

    mx__session_write(
        MX__SESSION_KEY_VERSION, &outbound->ratchet, &outbound->signing.public_key, bytes);
    mx__sign(&outbound->signing, bytes, MX__SESSION_EXPORT_BYTES, bytes + MX__SESSION_EXPORT_BYTES);
    rc = mx_base64_encode(bytes, sizeof bytes, key);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

int mx_outbound_encrypt(struct mx_outbound *outbound, struct span plaintext, struct buffer *body)
{
    uint8_t signature[MX_SIGNATURE_BYTES];
    struct buffer message = { 0 };
    struct mx__message_keys keys;
    int rc;

    if (plaintext.size > MX_PLAINTEXT_BYTES_MAX)
        return MX_ETOOBIG;
    if (outbound->ratchet.index == UINT32_MAX)
        return MX_EEXHAUSTED;
    buffer_append(&message, &(uint8_t){ MX__MESSAGE_VERSION }, 1);
    mx__put_number(&message, 0x08, outbound->ratchet.index);
    mx__ratchet_keys(&outbound->ratchet, &keys);
    rc = mx__seal(&keys, 0x12, plaintext, &message);
    crypto_wipe(&keys, sizeof keys);
    if (rc == 0) {
        mx__sign(&outbound->signing, message.bytes, message.size, signature);
        buffer_append(&message, signature, sizeof signature);
        rc = mx__body_encode(&message, body);
    }
    if (rc == 0)
        mx__ratchet_advance(&outbound->ratchet, outbound->ratchet.index + 1);
    buffer_free(&message);
    return rc;
}

static void outbound_pack(struct mx__pack *pack, void *object)
{
    struct mx_outbound *outbound = object;

    mx__pack_ratchet(pack, &outbound->ratchet);
    mx__pack_signing_pair(pack, &outbound->signing);
}

static const struct mx__pickle_kind outbound_kind = {
    .id = 3,
    .size = sizeof(struct mx_outbound),
    .pack = outbound_pack,
};
MX__PICKLE(outbound, outbound_kind)
