/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c: the fields of Olm and Megolm messages, a subset of protobuf; and the messages of Olm. */
#include "base/assert.h"
#include "matrix/crypto/mx_private.h"

enum { WIRE_NUMBER = 0, WIRE_BYTES = 2, WIRE_KIND = 7, VARINT_BYTES_MAX = 10 };

static void wire_put_varint(struct buffer *out, uint64_t number)
{
    uint8_t bytes[VARINT_BYTES_MAX];
    size_t size = 0;

    for (; number >= 0x80; number >>= 7)
        bytes[size++] = (uint8_t)(number | 0x80);
    bytes[size++] = (uint8_t)number;
    buffer_append(out, bytes, size);
}

void mx__put_number(struct buffer *out, uint8_t tag, uint64_t number)
{
    tr_assert((tag & WIRE_KIND) == WIRE_NUMBER);
    buffer_append(out, &tag, 1);
    wire_put_varint(out, number);
}

void mx__put_bytes(struct buffer *out, uint8_t tag, struct span bytes)
{
    tr_assert((tag & WIRE_KIND) == WIRE_BYTES);
    buffer_append(out, &tag, 1);
    wire_put_varint(out, bytes.size);
    if (bytes.at != NULL) /* else the caller appends them */
        buffer_append(out, bytes.at, bytes.size);
}

/* Take a number from the front; false if it is cut or longer than 64 bits. */
static bool wire_take_varint(struct span *rest, uint64_t *ret_number)
{
    uint64_t number = 0;
    uint8_t byte;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (rest->size == 0)
            return false;
        byte = (uint8_t)*rest->at++;
        rest->size--;
        if (shift == 63 && byte > 1)
            return false;
        number |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *ret_number = number;
            return true;
        }
    }
    return false;
}

static bool wire_take_field(
    struct span *rest, uint64_t *ret_tag, uint64_t *ret_number, struct span *ret_bytes)
{
    if (!wire_take_varint(rest, ret_tag) || !wire_take_varint(rest, ret_number))
        return false;
    if ((*ret_tag & WIRE_KIND) == WIRE_NUMBER)
        return true;
    if ((*ret_tag & WIRE_KIND) != WIRE_BYTES || *ret_number > rest->size)
        return false;
    *ret_bytes = (struct span){ rest->at, (size_t)*ret_number };
    rest->at += ret_bytes->size;
    rest->size -= ret_bytes->size;
    return true;
}

static bool wire_set_field(struct mx__field *field, uint64_t number, struct span bytes)
{
    if ((field->tag & WIRE_KIND) == WIRE_NUMBER && number > UINT32_MAX)
        return false;
    if ((field->tag & WIRE_KIND) == WIRE_BYTES &&
        (bytes.size == 0 || (field->size != 0 && bytes.size != field->size)))
        return false;
    field->is_found = true;
    field->number = (uint32_t)number;
    field->bytes = bytes;
    return true;
}

int mx__read_fields(struct span message, struct mx__field *fields, size_t count)
{
    struct span bytes = { NULL, 0 };
    uint64_t tag, number;

    if (message.size == 0)
        return MX_EFORMAT;
    if ((uint8_t)message.at[0] != MX__MESSAGE_VERSION)
        return MX_EVERSION;
    for (struct span rest = { message.at + 1, message.size - 1 }; rest.size > 0;) {
        if (!wire_take_field(&rest, &tag, &number, &bytes))
            return MX_EFORMAT;
        for (size_t i = 0; i < count; i++)
            if (fields[i].tag == tag && !wire_set_field(&fields[i], number, bytes))
                return MX_EFORMAT;
    }
    for (size_t i = 0; i < count; i++)
        if (!fields[i].is_found)
            return MX_EFORMAT;
    return 0;
}

/* ---- Olm messages ---------------------------------------------------------------------------- */

static struct mx_key wire_field_key(const struct mx__field *field)
{
    struct mx_key key;

    tr_assert(field->bytes.size == sizeof key.bytes);
    memcpy(key.bytes, field->bytes.at, sizeof key.bytes);
    return key;
}

int mx__olm_read(struct span bytes, struct mx__olm_message *ret_message)
{
    struct mx__field fields[] = {
        { .tag = 0x0a, .size = MX_KEY_BYTES }, /* ratchet key */
        { .tag = 0x10 },                       /* index */
        { .tag = 0x22 },                       /* ciphertext */
    };
    int rc;

    if (bytes.size < MX__MAC_BYTES)
        return MX_EFORMAT;
    bytes.size -= MX__MAC_BYTES;
    rc = mx__read_fields(bytes, fields, 3);
    if (rc == 0)
        *ret_message = (struct mx__olm_message){
            .ratchet_key = wire_field_key(&fields[0]),
            .index = fields[1].number,
            .ciphertext = fields[2].bytes,
            .authenticated = bytes,
        };
    return rc;
}

int mx__olm_read_pre_key(struct span bytes, struct mx__olm_pre_key *ret_pre_key)
{
    struct mx__field fields[] = {
        { .tag = 0x0a, .size = MX_KEY_BYTES }, /* one-time key */
        { .tag = 0x12, .size = MX_KEY_BYTES }, /* base key */
        { .tag = 0x1a, .size = MX_KEY_BYTES }, /* identity key */
        { .tag = 0x22 },                       /* message */
    };
    int rc = mx__read_fields(bytes, fields, 4);

    if (rc == 0)
        *ret_pre_key = (struct mx__olm_pre_key){
            .one_time_key = wire_field_key(&fields[0]),
            .base_key = wire_field_key(&fields[1]),
            .identity = wire_field_key(&fields[2]),
            .message = fields[3].bytes,
        };
    return rc;
}
