/* SPDX-License-Identifier: Apache-2.0 */
/* sas.c: verification of devices by short strings (client-server specification, "Short
 * Authentication String (SAS) verification", curve25519-hkdf-sha256). The messages and their order
 * are the client's; this file has the keys, the strings and the MACs. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

struct mx_sas {
    struct mx__key_pair ours;
    struct mx_key theirs;
    uint8_t shared[MX_KEY_BYTES];
    bool has_shared;
};

int mx_sas_create(const struct mx_random *random, struct mx_sas **ret_sas)
{
    struct mx_sas *sas = base_calloc(sizeof *sas);

    if (sas == NULL)
        return TR_ENOMEM;
    mx__key_pair_generate(random, &sas->ours);
    *ret_sas = sas;
    return 0;
}

void mx_sas_destroy(struct mx_sas *sas)
{
    if (sas != NULL)
        crypto_wipe(sas, sizeof *sas);
    base_free(sas);
}

const struct mx_key *mx_sas_key(const struct mx_sas *sas)
{
    return &sas->ours.public_key;
}

int mx_sas_set_their_key(struct mx_sas *sas, const struct mx_key *theirs)
{
    uint8_t shared[MX_KEY_BYTES];
    int rc;

    if (sas->has_shared || mx_key_equal(&sas->ours.public_key, theirs))
        return MX_EKEY; /* a second key, or our own, sent back */
    rc = mx__agree(&sas->ours, theirs, shared);
    if (rc != 0)
        return rc;
    memcpy(sas->shared, shared, sizeof shared);
    sas->theirs = *theirs;
    sas->has_shared = true;
    crypto_wipe(shared, sizeof shared);
    return 0;
}

int mx_sas_commitment(const struct mx_key *accepter_key, const struct json *start_content,
    char ret_text[MX_SAS_COMMITMENT_CHARS + 1])
{
    char key[MX_KEY_CHARS + 1];
    struct buffer text = { 0 };
    struct mx_key digest;
    int rc;

    mx_key_text(accepter_key, key);
    buffer_text(&text, key);
    rc = json_canonical(start_content, NULL, &text);
    if (rc == 0) {
        crypto_sha256(text.bytes, text.size, digest.bytes);
        mx_key_text(&digest, ret_text);
    }
    buffer_free(&text);
    return rc == TR_EPROTO || rc == TR_EEXIST ? MX_EFORMAT : rc;
}

/* Derive bytes from the agreed secret. The info holds names from outside, so its size is checked.
 * Frees the info. */
static int sas_derive(const struct mx_sas *sas, struct buffer *info, void *ret_bytes, size_t size)
{
    int rc = info->failed == TR_ELIMIT ? MX_ETOOBIG : info->failed;

    if (rc == 0 && !sas->has_shared)
        rc = MX_EKEY;
    if (rc == 0)
        mx__hkdf((struct span){ NULL, 0 }, MX__BYTES(sas->shared),
            (struct span){ info->bytes, info->size }, ret_bytes, size);
    buffer_free(info);
    return rc;
}

/* ---- short strings --------------------------------------------------------------------------- */

static void sas_put_party(
    struct buffer *info, const struct mx_sas_party *party, const struct mx_key *key)
{
    char text[MX_KEY_CHARS + 1];

    mx_key_text(key, text);
    buffer_span(info, party->user);
    buffer_text(info, "|");
    buffer_span(info, party->device);
    buffer_text(info, "|");
    buffer_text(info, text);
    buffer_text(info, "|");
}

void mx__sas_code(const uint8_t bytes[MX__SAS_BYTES], struct mx_sas_code *ret_code)
{
    uint64_t bits = 0;

    for (size_t i = 0; i < MX__SAS_BYTES; i++)
        bits = bits << 8 | bytes[i];
    for (unsigned i = 0; i < 3; i++) /* the first 39 bits */
        ret_code->decimals[i] = (uint16_t)((bits >> (35 - 13 * i) & 0x1fff) + 1000);
    for (unsigned i = 0; i < 7; i++) /* the first 42 bits */
        ret_code->emoji[i] = (uint8_t)(bits >> (42 - 6 * i) & 0x3f);
}

int mx_sas_show(
    const struct mx_sas *sas, const struct mx_sas_flow *flow, struct mx_sas_code *ret_code)
{
    struct buffer info = { .size_max = MX__HKDF_INFO_MAX };
    uint8_t bytes[MX__SAS_BYTES];
    int rc;

    buffer_text(&info, "MATRIX_KEY_VERIFICATION_SAS|");
    if (flow->we_started)
        sas_put_party(&info, &flow->us, &sas->ours.public_key);
    sas_put_party(&info, &flow->them, &sas->theirs);
    if (!flow->we_started)
        sas_put_party(&info, &flow->us, &sas->ours.public_key);
    buffer_span(&info, flow->transaction);
    rc = sas_derive(sas, &info, bytes, sizeof bytes);
    if (rc != 0)
        return rc;
    mx__sas_code(bytes, ret_code);
    crypto_wipe(bytes, sizeof bytes);
    return 0;
}

/* ---- MACs ------------------------------------------------------------------------------------ */

bool mx_sas_method_parse(struct span name, enum mx_sas_method *ret_method)
{
    bool is_legacy = span_is(name, "hkdf-hmac-sha256");

    if (!is_legacy && !span_is(name, "hkdf-hmac-sha256.v2") &&
        !span_is(name, "org.matrix.msc3783.hkdf-hmac-sha256")) /* the name before it was stable */
        return false;
    *ret_method = is_legacy ? MX_SAS_LEGACY : MX_SAS_V2;
    return true;
}

/* Encode as early libolm did: onto its own input, whose bytes it thus overwrites before it reads
 * them. The result is no base64 of the MAC, but every peer of that time computes the same. */
static void sas_encode_legacy(
    const uint8_t mac[CRYPTO_SHA256_BYTES], char ret_text[MX_SAS_MAC_CHARS + 1])
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t *text = (uint8_t *)ret_text;
    uint32_t bits;

    memcpy(text, mac, CRYPTO_SHA256_BYTES);
    for (size_t in = 0, out = 0; in < 30; in += 3, out += 4) {
        bits = (uint32_t)text[in] << 16 | (uint32_t)text[in + 1] << 8 | text[in + 2];
        for (unsigned i = 0; i < 4; i++)
            text[out + i] = (uint8_t)alphabet[bits >> (18 - 6 * i) & 63];
    }
    bits = (uint32_t)text[30] << 10 | (uint32_t)text[31] << 2;
    for (unsigned i = 0; i < 3; i++)
        text[40 + i] = (uint8_t)alphabet[bits >> (12 - 6 * i) & 63];
    text[MX_SAS_MAC_CHARS] = '\0';
}

int mx_sas_mac(const struct mx_sas *sas, const struct mx_sas_flow *flow,
    const struct mx_sas_input *input, char ret_text[MX_SAS_MAC_CHARS + 1])
{
    const struct mx_sas_party *sender = input->is_theirs ? &flow->them : &flow->us;
    const struct mx_sas_party *receiver = input->is_theirs ? &flow->us : &flow->them;
    const struct span names[] = { sender->user, sender->device, receiver->user, receiver->device,
        flow->transaction, input->key_id };
    struct buffer info = { .size_max = MX__HKDF_INFO_MAX };
    uint8_t key[32];
    struct mx_key mac;
    int rc;

    buffer_text(&info, "MATRIX_KEY_VERIFICATION_MAC");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        buffer_span(&info, names[i]);
    rc = sas_derive(sas, &info, key, sizeof key);
    if (rc != 0)
        return rc;
    crypto_hmac_sha256(key, sizeof key, input->text.at, input->text.size, mac.bytes);
    if (input->method == MX_SAS_LEGACY)
        sas_encode_legacy(mac.bytes, ret_text);
    else
        mx_key_text(&mac, ret_text);
    crypto_wipe(&mac, sizeof mac);
    crypto_wipe(key, sizeof key);
    return 0;
}

int mx_sas_check_mac(const struct mx_sas *sas, const struct mx_sas_flow *flow,
    const struct mx_sas_input *input, struct span mac)
{
    char expected[MX_SAS_MAC_CHARS + 1];
    bool is_good;
    int rc;

    tr_assert(input->is_theirs);
    rc = mx_sas_mac(sas, flow, input, expected);
    if (rc != 0)
        return rc;
    while (mac.size > 0 && mac.at[mac.size - 1] == '=')
        mac.size--;
    is_good = mac.size == MX_SAS_MAC_CHARS && crypto_equal(mac.at, expected, mac.size);
    crypto_wipe(expected, sizeof expected);
    return is_good ? 0 : MX_EMAC;
}
