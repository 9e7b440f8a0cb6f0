/* SPDX-License-Identifier: Apache-2.0 */
/* key_file.c: Megolm sessions in a file under a passphrase (client-server specification, "Key
 * export format"):
 *
 *     version(1) salt(16) iv(16) rounds(4) | AES-256-CTR of the JSON | HMAC-SHA256 of all before it
 *
 * in base64 between two lines. PBKDF2-HMAC-SHA512 makes both keys from the passphrase. */
#include <openssl/evp.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "matrix/crypto/mx_private.h"

enum {
    KEY_FILE_VERSION = 1,
    KEY_FILE_SALT_AT = 1,
    KEY_FILE_IV_AT = 17,
    KEY_FILE_ROUNDS_AT = 33,
    KEY_FILE_HEAD_BYTES = 37,
    KEY_FILE_LINE_BYTES = 72,
    KEY_FILE_LINE_CHARS = 96,
};

static const char first_line[] = "-----BEGIN MEGOLM SESSION DATA-----";
static const char last_line[] = "-----END MEGOLM SESSION DATA-----";

struct key_file_keys {
    uint8_t aes[32];
    uint8_t mac[32];
};

/* TR_ENOMEM. `head` has salt and rounds. */
static int key_file_derive(struct span passphrase, const uint8_t head[KEY_FILE_HEAD_BYTES],
    uint32_t rounds, struct key_file_keys *ret_keys)
{
    int rc;

    tr_assert(rounds > 0 && rounds <= INT32_MAX);
    if (base_fault_hit())
        return TR_ENOMEM;
    rc = PKCS5_PBKDF2_HMAC(passphrase.size == 0 ? "" : passphrase.at, (int)passphrase.size,
        head + KEY_FILE_SALT_AT, 16, (int)rounds, EVP_sha512(), sizeof *ret_keys,
        (uint8_t *)ret_keys);
    return rc == 1 ? 0 : TR_ENOMEM;
}

/* Transform the sessions in place. */
static int key_file_transform(const struct key_file_keys *keys,
    const uint8_t head[KEY_FILE_HEAD_BYTES], char *at, size_t size)
{
    void *aes = mx__aes_create(MX__AES_CTR, true, keys->aes, head + KEY_FILE_IV_AT);

    if (aes == NULL)
        return TR_ENOMEM;
    mx__aes_update(aes, (struct span){ at, size }, (uint8_t *)at);
    mx__aes_destroy(aes);
    return 0;
}

static void key_file_mac(const struct key_file_keys *keys, const char *at, size_t size,
    uint8_t ret_mac[CRYPTO_SHA256_BYTES])
{
    crypto_hmac_sha256(keys->mac, sizeof keys->mac, at, size, ret_mac);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Append the bytes as lines of base64. */
static void key_file_put_lines(const struct buffer *bytes, struct buffer *out)
{
    const size_t line = KEY_FILE_LINE_BYTES;

    _Static_assert(KEY_FILE_LINE_BYTES * 4 == KEY_FILE_LINE_CHARS * 3, "whole groups");
    buffer_format(out, "%s\n", first_line);
    for (size_t at = 0; at < bytes->size; at += line) {
        char text[KEY_FILE_LINE_CHARS];
        size_t size = bytes->size - at < line ? bytes->size - at : line;

        buffer_append(out, text, crypto_base64_encode(bytes->bytes + at, size, text));
        buffer_text(out, "\n");
    }
    buffer_format(out, "%s\n", last_line);
}

static void key_file_head(
    uint32_t rounds, const struct mx_random *random, uint8_t ret_head[KEY_FILE_HEAD_BYTES])
{
    ret_head[0] = KEY_FILE_VERSION;
    random->fill(random->data, ret_head + KEY_FILE_SALT_AT, 32); /* salt and IV */
    ret_head[KEY_FILE_IV_AT + 8] &= 0x7f; /* bit 63: implementations count beyond it differently */
    for (int i = 0; i < 4; i++)
        ret_head[KEY_FILE_ROUNDS_AT + i] = (uint8_t)(rounds >> (24 - 8 * i));
}

int mx_key_file_encrypt(const struct mx_key_file_options *options, struct span sessions,
    const struct mx_random *random, struct buffer *out)
{
    uint8_t head[KEY_FILE_HEAD_BYTES], mac[CRYPTO_SHA256_BYTES];
    const size_t size_before = out->size;
    struct buffer bytes = { 0 };
    struct key_file_keys keys;
    int rc;

    if (sessions.size > MX_KEY_FILE_BYTES_MAX || options->passphrase.size > MX_PASSPHRASE_BYTES_MAX)
        return MX_ETOOBIG;
    key_file_head(options->rounds, random, head);
    rc = key_file_derive(options->passphrase, head, options->rounds, &keys);
    if (rc == 0 && buffer_reserve(&bytes, sizeof head + sessions.size + sizeof mac) == NULL)
        rc = TR_ENOMEM;
    if (rc == 0) {
        buffer_append(&bytes, head, sizeof head);
        buffer_span(&bytes, sessions);
        rc = key_file_transform(&keys, head, bytes.bytes + sizeof head, sessions.size);
    }
    if (rc == 0) {
        key_file_mac(&keys, bytes.bytes, bytes.size, mac);
        buffer_append(&bytes, mac, sizeof mac);
        key_file_put_lines(&bytes, out);
        rc = out->failed;
    }
    if (rc != 0)
        out->size = size_before;
    mx_wipe_buffer(&bytes);
    crypto_wipe(&keys, sizeof keys);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Copy the base64 between the two lines without white space, and decode the copy in place. */
static int key_file_bytes(struct span text, struct buffer *bytes)
{
    const char *at = NULL, *end;
    size_t size = 0;
    int rc;

    if (text.size > 0)
        at = memmem(text.at, text.size, first_line, strlen(first_line));
    if (at == NULL)
        return MX_EFORMAT;
    at += strlen(first_line);
    end = memmem(at, (size_t)(text.at + text.size - at), last_line, strlen(last_line));
    if (end == NULL)
        return MX_EFORMAT;
    if (buffer_reserve(bytes, (size_t)(end - at) + 1) == NULL)
        return bytes->failed;
    for (; at < end; at++)
        if (*at != '\n' && *at != '\r' && *at != ' ' && *at != '\t')
            bytes->bytes[bytes->size++] = *at;
    rc = mx_base64_decode(
        (struct span){ bytes->bytes, bytes->size }, bytes->bytes, bytes->size, &size);
    bytes->size = size;
    return rc;
}

static int key_file_open(
    const struct mx_key_file_options *options, struct buffer *bytes, struct buffer *sessions)
{
    const size_t mac_at = bytes->size - CRYPTO_SHA256_BYTES;
    uint8_t head[KEY_FILE_HEAD_BYTES], mac[CRYPTO_SHA256_BYTES];
    struct key_file_keys keys;
    uint32_t rounds = 0;
    int rc;

    memcpy(head, bytes->bytes, sizeof head);
    for (int i = 0; i < 4; i++)
        rounds = rounds << 8 | head[KEY_FILE_ROUNDS_AT + i];
    if (head[0] != KEY_FILE_VERSION)
        return MX_EVERSION;
    if (rounds == 0 || rounds > options->rounds)
        return MX_EROUNDS;
    rc = key_file_derive(options->passphrase, head, rounds, &keys);
    if (rc != 0)
        return rc;
    key_file_mac(&keys, bytes->bytes, mac_at, mac);
    if (!crypto_equal(mac, bytes->bytes + mac_at, sizeof mac))
        rc = MX_EMAC;
    if (rc == 0)
        rc = key_file_transform(&keys, head, bytes->bytes + sizeof head, mac_at - sizeof head);
    if (rc == 0)
        rc = buffer_append(sessions, bytes->bytes + sizeof head, mac_at - sizeof head);
    crypto_wipe(mac, sizeof mac);
    crypto_wipe(&keys, sizeof keys);
    return rc;
}

int mx_key_file_decrypt(
    const struct mx_key_file_options *options, struct span text, struct buffer *sessions)
{
    struct buffer bytes = { 0 };
    int rc;

    tr_assert(options->rounds <= INT32_MAX);
    if (text.size > MX_KEY_FILE_BYTES_MAX * (size_t)2 ||
        options->passphrase.size > MX_PASSPHRASE_BYTES_MAX)
        return MX_ETOOBIG;
    rc = key_file_bytes(text, &bytes);
    if (rc == 0 && bytes.size < KEY_FILE_HEAD_BYTES + CRYPTO_SHA256_BYTES)
        rc = MX_EFORMAT;
    if (rc == 0)
        rc = key_file_open(options, &bytes, sessions);
    mx_wipe_buffer(&bytes);
    return rc;
}
