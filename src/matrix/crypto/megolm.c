/* SPDX-License-Identifier: Apache-2.0 */
/* megolm.c: the Megolm ratchet, four parts that turn at different speeds (the Megolm specification,
 * "The Megolm ratchet algorithm"): part 3 with every message, part 2 every 2^8, part 1 every 2^16,
 * part 0 every 2^24 messages. A part that turns re-seeds the faster ones, so any later index takes
 * at most about a thousand hashes. An earlier index cannot be reached. Then the formats: session
 * keys, exports and messages. */
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

enum { RATCHET_PARTS = 4 };

/* Replace part `to` by a hash of part `from`. */
static void ratchet_hash(struct mx__ratchet *ratchet, int from, int to)
{
    uint8_t seed = (uint8_t)to;

    crypto_hmac_sha256(
        ratchet->parts[from], sizeof ratchet->parts[from], &seed, 1, ratchet->parts[to]);
}

/* Return how often `part` must turn. Without a difference in this byte, an index below the current
 * one means that part 0 turns a whole round. */
static unsigned ratchet_turns(const struct mx__ratchet *ratchet, uint32_t index, int part)
{
    const int shift = 8 * (RATCHET_PARTS - 1 - part);
    unsigned turns = ((index >> shift) - (ratchet->index >> shift)) & 0xff;

    return turns == 0 && index < ratchet->index ? 0x100 : turns;
}

void mx__ratchet_advance(struct mx__ratchet *ratchet, uint32_t index)
{
    for (int part = 0; part < RATCHET_PARTS; part++) {
        unsigned turns = ratchet_turns(ratchet, index, part);

        if (turns == 0)
            continue;
        for (; turns > 1; turns--)
            ratchet_hash(ratchet, part, part);
        for (int to = RATCHET_PARTS - 1; to >= part; to--) /* the part itself last */
            ratchet_hash(ratchet, part, to);
        ratchet->index = index & UINT32_MAX << 8 * (RATCHET_PARTS - 1 - part);
    }
    tr_assert(ratchet->index == index);
}

void mx__ratchet_keys(const struct mx__ratchet *ratchet, struct mx__message_keys *ret_keys)
{
    mx__message_keys(MX__BYTES(ratchet->parts), "MEGOLM_KEYS", ret_keys);
}

void mx__session_write(uint8_t version, const struct mx__ratchet *ratchet,
    const struct mx_key *signing_key, uint8_t ret_bytes[MX__SESSION_EXPORT_BYTES])
{
    _Static_assert(sizeof ratchet->parts == MX__RATCHET_BYTES, "four parts");
    *ret_bytes++ = version;
    for (int shift = 24; shift >= 0; shift -= 8)
        *ret_bytes++ = (uint8_t)(ratchet->index >> shift);
    memcpy(ret_bytes, ratchet->parts, sizeof ratchet->parts);
    memcpy(ret_bytes + sizeof ratchet->parts, signing_key->bytes, MX_KEY_BYTES);
}

int mx__session_key_read(struct span text, uint8_t ret_bytes[MX__SESSION_KEY_BYTES])
{
    const size_t covered = MX__SESSION_EXPORT_BYTES;
    struct mx_key key;
    int rc = mx__secret_decode(text, ret_bytes, MX__SESSION_KEY_BYTES);

    if (rc != 0)
        return rc;
    if (ret_bytes[0] != MX__SESSION_KEY_VERSION)
        return MX_EVERSION;
    memcpy(key.bytes, ret_bytes + covered - MX_KEY_BYTES, MX_KEY_BYTES);
    return mx_verify(&key, ret_bytes, covered, ret_bytes + covered);
}

int mx__session_export_read(struct span text, uint8_t ret_bytes[MX__SESSION_EXPORT_BYTES])
{
    int rc = mx__secret_decode(text, ret_bytes, MX__SESSION_EXPORT_BYTES);

    return rc == 0 && ret_bytes[0] != MX__SESSION_EXPORT_VERSION ? MX_EVERSION : rc;
}

int mx__megolm_read(
    struct span message, const struct mx_key *signing_key, struct mx__megolm_message *ret_message)
{
    struct mx__field fields[] = { { .tag = 0x08 }, { .tag = 0x12 } }; /* index, ciphertext */
    struct span authenticated;
    int rc;

    if (message.size < MX__MAC_BYTES + MX_SIGNATURE_BYTES)
        return MX_EFORMAT;
    message.size -= MX_SIGNATURE_BYTES;
    authenticated = (struct span){ message.at, message.size - MX__MAC_BYTES };
    rc = mx__read_fields(authenticated, fields, 2);
    if (rc == 0)
        rc = mx_verify(
            signing_key, message.at, message.size, (const uint8_t *)message.at + message.size);
    if (rc == 0)
        *ret_message = (struct mx__megolm_message){
            .index = fields[0].number,
            .ciphertext = fields[1].bytes,
            .authenticated = authenticated,
        };
    return rc;
}
