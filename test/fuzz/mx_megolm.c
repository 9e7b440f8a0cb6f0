/* SPDX-License-Identifier: Apache-2.0 */
/* mx_megolm.c: Megolm messages and session keys, by the first byte. This program owns the session,
 * so it signs messages and adds their MAC: then also the code behind both checks is reached. */
#include <string.h>

#include "base/assert.h"
#include "matrix/crypto/mx_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static struct mx__signing_pair signing;
static struct mx__ratchet first = { .index = 5 };
static struct buffer session_key;

static struct span span_of_buffer(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

static void set_up(void)
{
    struct mx_random random = { count_up, &(uint8_t){ 0 } };
    uint8_t bytes[MX__SESSION_KEY_BYTES];

    count_up(random.data, first.parts, sizeof first.parts);
    mx__signing_pair_generate(&random, &signing);
    mx__session_write(MX__SESSION_KEY_VERSION, &first, &signing.public_key, bytes);
    mx__sign(&signing, bytes, MX__SESSION_EXPORT_BYTES, bytes + MX__SESSION_EXPORT_BYTES);
    mx_base64_encode(bytes, sizeof bytes, &session_key);
}

/* Append the MAC under the key of the message's own index, and a signature. */
static void complete(struct buffer *message, bool has_mac)
{
    struct mx__field fields[] = { { .tag = 0x08 }, { .tag = 0x12 } };
    uint8_t signature[MX_SIGNATURE_BYTES], mac[CRYPTO_SHA256_BYTES];
    struct mx__ratchet ratchet = first;
    struct mx__message_keys keys;

    if (has_mac && mx__read_fields(span_of_buffer(message), fields, 2) == 0 &&
        fields[0].number >= first.index) {
        mx__ratchet_advance(&ratchet, fields[0].number);
        mx__ratchet_keys(&ratchet, &keys);
        crypto_hmac_sha256(keys.mac, sizeof keys.mac, message->bytes, message->size, mac);
        buffer_append(message, mac, MX__MAC_BYTES);
    }
    mx__sign(&signing, message->bytes == NULL ? "" : message->bytes, message->size, signature);
    buffer_append(message, signature, sizeof signature);
}

static void try_message(struct span bytes, unsigned how)
{
    struct buffer message = { 0 }, body = { 0 }, plaintext = { 0 };
    struct mx_inbound *inbound = NULL, *fresh = NULL;
    uint32_t index = UINT32_MAX;
    int rc = mx_inbound_create(span_of_buffer(&session_key), &inbound) |
             mx_inbound_create(span_of_buffer(&session_key), &fresh);

    tr_assert(rc == 0);
    buffer_span(&message, bytes);
    if (how != 0)
        complete(&message, how == 2);
    mx_base64_encode(message.bytes, message.size, &body);
    rc = mx_inbound_decrypt(inbound, span_of_buffer(&body), &plaintext, &index);
    tr_assert(rc == 0 ? index >= first.index : plaintext.size == 0);
    tr_assert(mx_inbound_compare(inbound, fresh) == MX_COPY_EQUAL);
    buffer_free(&message);
    buffer_free(&body);
    buffer_free(&plaintext);
    mx_inbound_destroy(inbound);
    mx_inbound_destroy(fresh);
}

static void try_key(struct span text)
{
    struct mx_inbound *inbound = NULL, *again = NULL;
    struct buffer out = { 0 };

    if (mx_inbound_create(text, &inbound) == 0)
        tr_assert(mx_inbound_is_verified(inbound));
    mx_inbound_destroy(inbound);
    inbound = NULL;
    if (mx_inbound_import(text, &inbound) == 0) {
        tr_assert(mx_inbound_export(inbound, mx_inbound_first_index(inbound), &out) == 0);
        tr_assert(mx_inbound_import(span_of_buffer(&out), &again) == 0);
        tr_assert(mx_inbound_compare(inbound, again) == MX_COPY_EQUAL);
    }
    buffer_free(&out);
    mx_inbound_destroy(inbound);
    mx_inbound_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest;

    if (session_key.size == 0)
        set_up();
    if (size == 0)
        return 0;
    rest = (struct span){ (const char *)data + 1, size - 1 };
    if (data[0] % 4 == 3)
        try_key(rest);
    else
        try_message(rest, data[0] % 4);
    return 0;
}
