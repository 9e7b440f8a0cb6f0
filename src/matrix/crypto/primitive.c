/* SPDX-License-Identifier: Apache-2.0 */
/* primitive.c: X25519 and Ed25519 by libsodium, which is faster (docs/benchmarks-matrix.md) and
 * refuses keys of small order and second forms of a signature; AES by OpenSSL, which uses the
 * processor's instructions. HKDF is built from the HMAC of the crypto layer. */
#include <openssl/err.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sodium.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static EVP_CIPHER *aes_modes[3]; /* kept: fetching one costs more than a short message */

static void primitive_set_up(void)
{
    int rc = sodium_init(); /* chooses the fast functions; the slow ones work without it */

    (void)rc;
    aes_modes[MX__AES_CBC] = EVP_CIPHER_fetch(NULL, "AES-256-CBC", NULL);
    aes_modes[MX__AES_CTR] = EVP_CIPHER_fetch(NULL, "AES-256-CTR", NULL);
    aes_modes[MX__AES_GCM] = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
}

const char *mx_error_text(int error)
{
    switch (error) {
#define MX__ERROR_TEXT(name, number, text)                                                         \
    case name:                                                                                     \
        return text;
        MX_ERRORS(MX__ERROR_TEXT)
#undef MX__ERROR_TEXT
    default:
        return tr_error_text(error);
    }
}

void mx_wipe_buffer(struct buffer *buffer)
{
    if (buffer->bytes != NULL)
        crypto_wipe(buffer->bytes, buffer->capacity);
    buffer_free(buffer);
}

/* ---- key pairs ------------------------------------------------------------------------------- */

void mx__key_pair_derive(struct mx__key_pair *pair)
{
    pthread_once(&once, primitive_set_up);
    crypto_scalarmult_base(pair->public_key.bytes, pair->secret);
}

void mx__key_pair_generate(const struct mx_random *random, struct mx__key_pair *ret_pair)
{
    random->fill(random->data, ret_pair->secret, sizeof ret_pair->secret);
    mx__key_pair_derive(ret_pair);
}

void mx__signing_pair_derive(struct mx__signing_pair *pair)
{
    uint8_t seed[crypto_sign_SEEDBYTES];

    _Static_assert(sizeof pair->secret == crypto_sign_SECRETKEYBYTES, "seed and public key");
    pthread_once(&once, primitive_set_up);
    memcpy(seed, pair->secret, sizeof seed);
    crypto_sign_seed_keypair(pair->public_key.bytes, pair->secret, seed);
    crypto_wipe(seed, sizeof seed);
}

void mx__signing_pair_generate(const struct mx_random *random, struct mx__signing_pair *ret_pair)
{
    random->fill(random->data, ret_pair->secret, crypto_sign_SEEDBYTES);
    mx__signing_pair_derive(ret_pair);
}

void mx__sign(const struct mx__signing_pair *pair, const void *bytes, size_t size,
    uint8_t ret_signature[MX_SIGNATURE_BYTES])
{
    crypto_sign_detached(ret_signature, NULL, bytes, size, pair->secret);
}

int mx_verify(const struct mx_key *key, const void *bytes, size_t size,
    const uint8_t signature[MX_SIGNATURE_BYTES])
{
    pthread_once(&once, primitive_set_up);
    return crypto_sign_verify_detached(signature, bytes, size, key->bytes) == 0 ? 0 : MX_ESIGNATURE;
}

int mx__agree(
    const struct mx__key_pair *ours, const struct mx_key *theirs, uint8_t ret_secret[MX_KEY_BYTES])
{
    pthread_once(&once, primitive_set_up);
    return crypto_scalarmult(ret_secret, ours->secret, theirs->bytes) == 0 ? 0 : MX_EKEY;
}

void mx__hkdf(struct span salt, struct span secret, struct span info, void *ret_bytes, size_t size)
{
    static const uint8_t no_salt[CRYPTO_SHA256_BYTES];
    uint8_t key[CRYPTO_SHA256_BYTES], block[CRYPTO_SHA256_BYTES];
    uint8_t input[CRYPTO_SHA256_BYTES + MX__HKDF_INFO_MAX + 1];
    uint8_t *out = ret_bytes;
    size_t before = 0, part;

    tr_assert(info.size <= MX__HKDF_INFO_MAX);
    tr_assert(size <= 255 * sizeof block);
    if (salt.size == 0)
        salt = MX__BYTES(no_salt);
    crypto_hmac_sha256(salt.at, salt.size, secret.at, secret.size, key);
    for (uint8_t number = 1; size > 0; number++) {
        memcpy(input + before, info.at, info.size);
        input[before + info.size] = number;
        crypto_hmac_sha256(key, sizeof key, input, before + info.size + 1, block);
        part = size < sizeof block ? size : sizeof block;
        memcpy(out, block, part);
        memcpy(input, block, sizeof block);
        before = sizeof block;
        out += part;
        size -= part;
    }
    crypto_wipe(key, sizeof key);
    crypto_wipe(block, sizeof block);
    crypto_wipe(input, sizeof block);
}

/* ---- AES ------------------------------------------------------------------------------------- */

void *mx__aes_create(enum mx__aes mode, bool encrypts, const uint8_t key[32], const uint8_t iv[16])
{
    EVP_CIPHER_CTX *context;

    pthread_once(&once, primitive_set_up);
    if (aes_modes[mode] == NULL || base_fault_hit())
        return NULL;
    context = EVP_CIPHER_CTX_new();
    if (context != NULL &&
        EVP_CipherInit_ex2(context, aes_modes[mode], key, iv, encrypts, NULL) == 1)
        return context;
    EVP_CIPHER_CTX_free(context);
    ERR_clear_error(); /* an error left in the queue would mislead a later call */
    return NULL;
}

void mx__aes_update(void *aes, struct span in, uint8_t *out)
{
    int written = 0, rc;

    tr_assert(in.size <= INT32_MAX);
    if (in.size == 0)
        return;
    rc = EVP_CipherUpdate(aes, out, &written, (const uint8_t *)in.at, (int)in.size);
    tr_assert(rc == 1 && (size_t)written == in.size);
}

void mx__aes_destroy(void *aes)
{
    EVP_CIPHER_CTX_free(aes);
}

/* Transform everything in CBC mode with PKCS#7 padding. Decryption fails on bad padding. */
static bool primitive_cbc(EVP_CIPHER_CTX *context, struct span in, uint8_t *out, size_t *ret_size)
{
    int first = 0, last = 0;
    bool is_good;

    tr_assert(in.size <= INT32_MAX - MX__AES_BLOCK_BYTES);
    is_good = EVP_CipherUpdate(context, out, &first, (const uint8_t *)in.at, (int)in.size) == 1 &&
              EVP_CipherFinal_ex(context, out + first, &last) == 1;
    if (!is_good)
        ERR_clear_error();
    *ret_size = (size_t)first + (size_t)last;
    return is_good;
}

void mx__message_keys(struct span secret, const char *info, struct mx__message_keys *ret_keys)
{
    _Static_assert(sizeof *ret_keys == 80, "no padding: HKDF fills the struct");
    mx__hkdf((struct span){ NULL, 0 }, secret, span_of(info), ret_keys, sizeof *ret_keys);
}

static void primitive_mac(
    const struct mx__message_keys *keys, struct span bytes, uint8_t ret_mac[CRYPTO_SHA256_BYTES])
{
    crypto_hmac_sha256(keys->mac, sizeof keys->mac, bytes.at, bytes.size, ret_mac);
}

int mx__seal(
    const struct mx__message_keys *keys, uint8_t tag, struct span plaintext, struct buffer *message)
{
    size_t size = (plaintext.size / MX__AES_BLOCK_BYTES + 1) * MX__AES_BLOCK_BYTES, written;
    uint8_t mac[CRYPTO_SHA256_BYTES];
    EVP_CIPHER_CTX *aes;
    char *out;

    mx__put_bytes(message, tag, (struct span){ NULL, size });
    out = buffer_reserve(message, size + MX__MAC_BYTES);
    if (out == NULL)
        return message->failed;
    aes = mx__aes_create(MX__AES_CBC, true, keys->aes, keys->iv);
    if (aes == NULL)
        return TR_ENOMEM;
    if (!primitive_cbc(aes, plaintext, (uint8_t *)out, &written))
        written = 0;
    mx__aes_destroy(aes);
    tr_assert(written == size);
    buffer_grew(message, size);
    primitive_mac(keys, (struct span){ message->bytes, message->size }, mac);
    return buffer_append(message, mac, MX__MAC_BYTES);
}

int mx__open(const struct mx__message_keys *keys, struct span authenticated, struct span ciphertext,
    struct buffer *plaintext)
{
    uint8_t mac[CRYPTO_SHA256_BYTES];
    EVP_CIPHER_CTX *aes;
    size_t size;
    char *out;
    bool is_good;

    primitive_mac(keys, authenticated, mac);
    is_good = crypto_equal(mac, authenticated.at + authenticated.size, MX__MAC_BYTES);
    crypto_wipe(mac, sizeof mac); /* of a forged message it is what the forger lacks */
    if (!is_good)
        return MX_EMAC;
    if (ciphertext.size % MX__AES_BLOCK_BYTES != 0)
        return MX_EFORMAT;
    out = buffer_reserve(plaintext, ciphertext.size);
    if (out == NULL)
        return plaintext->failed;
    aes = mx__aes_create(MX__AES_CBC, false, keys->aes, keys->iv);
    if (aes == NULL)
        return TR_ENOMEM;
    is_good = primitive_cbc(aes, ciphertext, (uint8_t *)out, &size);
    mx__aes_destroy(aes);
    if (!is_good) {
        crypto_wipe(out, ciphertext.size);
        return MX_EFORMAT; /* the peer has the keys, and pads wrongly */
    }
    buffer_grew(plaintext, size);
    return 0;
}
