/* SPDX-License-Identifier: Apache-2.0 */
/* inbound.c: the receiving side of a Megolm session. `first` is the earliest ratchet known, from
 * which every later message can be read; `latest` is where the last message was, so that a room
 * read in order costs one hash per message. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

struct mx_inbound {
    struct mx__ratchet first;
    struct mx__ratchet latest;
    struct mx_key signing_key;
    bool is_verified;
};

/* ---- creating -------------------------------------------------------------------------------- */

static int inbound_from_bytes(const uint8_t bytes[MX__SESSION_EXPORT_BYTES], bool is_verified,
    struct mx_inbound **ret_inbound)
{
    struct mx_inbound *inbound = base_calloc(sizeof *inbound);

    if (inbound == NULL)
        return TR_ENOMEM;
    for (int i = 1; i <= 4; i++)
        inbound->first.index = inbound->first.index << 8 | bytes[i];
    memcpy(inbound->first.parts, bytes + 5, MX__RATCHET_BYTES);
    memcpy(inbound->signing_key.bytes, bytes + 5 + MX__RATCHET_BYTES, MX_KEY_BYTES);
    inbound->latest = inbound->first;
    inbound->is_verified = is_verified;
    *ret_inbound = inbound;
    return 0;
}

int mx_inbound_create(struct span session_key, struct mx_inbound **ret_inbound)
{
    uint8_t bytes[MX__SESSION_KEY_BYTES];
    int rc = mx__session_key_read(session_key, bytes);

    if (rc == 0)
        rc = inbound_from_bytes(bytes, true, ret_inbound);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

int mx_inbound_import(struct span session_export, struct mx_inbound **ret_inbound)
{
    uint8_t bytes[MX__SESSION_EXPORT_BYTES];
    int rc = mx__session_export_read(session_export, bytes);

    if (rc == 0)
        rc = inbound_from_bytes(bytes, false, ret_inbound);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

void mx_inbound_destroy(struct mx_inbound *inbound)
{
    if (inbound != NULL)
        crypto_wipe(inbound, sizeof *inbound);
    base_free(inbound);
}

/* ---- asking ---------------------------------------------------------------------------------- */

void mx_inbound_id(const struct mx_inbound *inbound, char ret_id[MX_SESSION_ID_CHARS + 1])
{
    mx_key_text(&inbound->signing_key, ret_id);
}

uint32_t mx_inbound_first_index(const struct mx_inbound *inbound)
{
    return inbound->first.index;
}

bool mx_inbound_is_verified(const struct mx_inbound *inbound)
{
    return inbound->is_verified;
}

/* Copy the ratchet at `index`, from the nearest one known. MX_EINDEX. */
static int inbound_ratchet_at(
    const struct mx_inbound *inbound, uint32_t index, struct mx__ratchet *ret_ratchet)
{
    tr_assert(inbound->latest.index >= inbound->first.index);
    if (index < inbound->first.index)
        return MX_EINDEX;
    *ret_ratchet = index < inbound->latest.index ? inbound->first : inbound->latest;
    mx__ratchet_advance(ret_ratchet, index);
    return 0;
}

int mx_inbound_export(const struct mx_inbound *inbound, uint32_t index, struct buffer *out)
{
    uint8_t bytes[MX__SESSION_EXPORT_BYTES];
    struct mx__ratchet ratchet;
    int rc = inbound_ratchet_at(inbound, index, &ratchet);

    if (rc != 0)
        return rc;
    mx__session_write(MX__SESSION_EXPORT_VERSION, &ratchet, &inbound->signing_key, bytes);
    rc = mx_base64_encode(bytes, sizeof bytes, out);
    crypto_wipe(bytes, sizeof bytes);
    crypto_wipe(&ratchet, sizeof ratchet);
    return rc;
}

enum mx_copy mx_inbound_compare(const struct mx_inbound *inbound, const struct mx_inbound *other)
{
    const struct mx__ratchet *later = &inbound->first;
    struct mx__ratchet ratchet = other->first;
    enum mx_copy result = MX_COPY_BETTER;
    bool is_same;

    if (!mx_key_equal(&inbound->signing_key, &other->signing_key))
        return MX_COPY_UNRELATED;
    if (other->first.index == inbound->first.index)
        result = MX_COPY_EQUAL;
    if (other->first.index > inbound->first.index) {
        later = &other->first;
        ratchet = inbound->first;
        result = MX_COPY_WORSE;
    }
    mx__ratchet_advance(&ratchet, later->index);
    is_same = crypto_equal(ratchet.parts, later->parts, sizeof ratchet.parts);
    crypto_wipe(&ratchet, sizeof ratchet);
    return is_same ? result : MX_COPY_UNRELATED;
}

/* ---- decrypting ------------------------------------------------------------------------------ */

/* Check the signature, then the MAC, and decrypt. The order is that of the specification; the
 * signature is by the session's owner, the MAC could be by any member of the room. */
static int inbound_open(
    struct mx_inbound *inbound, struct span message, struct buffer *plaintext, uint32_t *ret_index)
{
    struct mx__megolm_message read;
    struct mx__message_keys keys;
    struct mx__ratchet ratchet;
    int rc = mx__megolm_read(message, &inbound->signing_key, &read);

    if (rc == 0)
        rc = inbound_ratchet_at(inbound, read.index, &ratchet);
    if (rc != 0)
        return rc;
    mx__ratchet_keys(&ratchet, &keys);
    rc = mx__open(&keys, read.authenticated, read.ciphertext, plaintext);
    if (rc == 0) {
        *ret_index = read.index;
        inbound->is_verified = true;
        if (ratchet.index > inbound->latest.index)
            inbound->latest = ratchet;
    }
    crypto_wipe(&keys, sizeof keys);
    crypto_wipe(&ratchet, sizeof ratchet);
    return rc;
}

int mx_inbound_decrypt(
    struct mx_inbound *inbound, struct span body, struct buffer *plaintext, uint32_t *ret_index)
{
    struct span message;
    uint8_t *decoded;
    int rc = mx__body_decode(body, &decoded, &message);

    if (rc != 0)
        return rc;
    rc = inbound_open(inbound, message, plaintext, ret_index);
    base_free(decoded);
    return rc;
}

/* ---- pickling -------------------------------------------------------------------------------- */

static void inbound_pack(struct mx__pack *pack, void *object)
{
    struct mx_inbound *inbound = object;

    mx__pack_ratchet(pack, &inbound->first);
    mx__pack_ratchet(pack, &inbound->latest);
    mx__pack_bytes(pack, inbound->signing_key.bytes, sizeof inbound->signing_key.bytes);
    mx__pack_bool(pack, &inbound->is_verified);
    if (pack->rc == 0 && inbound->latest.index < inbound->first.index)
        pack->rc = MX_EFORMAT;
}

static const struct mx__pickle_kind inbound_kind = {
    .id = 4,
    .size = sizeof(struct mx_inbound),
    .pack = inbound_pack,
};
MX__PICKLE(inbound, inbound_kind)
