/* SPDX-License-Identifier: Apache-2.0 */
/* key_pem.c: read and write keys as PEM. OpenSSL reads the container; the functions of key.c then
 * create and check the key, so that one place decides which keys are valid. */
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "crypto/digest.h"
#include "crypto/key_private.h"

/* Give no password, so that an encrypted key is an error and OpenSSL does not ask at the
 * terminal. */
static int no_password(char *buffer, int size, int is_writing, void *data)
{
    (void)buffer;
    (void)size;
    (void)is_writing;
    (void)data;
    return -1;
}

static int from_ec(EVP_PKEY *pkey, bool is_private, struct crypto_key **ret_key)
{
    char group[32];
    uint8_t bytes[65];
    size_t size = 0;
    enum crypto_algorithm algorithm;
    BIGNUM *scalar = NULL;
    int rc = TR_EPROTO;

    if (EVP_PKEY_get_utf8_string_param(
            pkey, OSSL_PKEY_PARAM_GROUP_NAME, group, sizeof group, NULL) != 1)
        return TR_EUNSUPPORTED;
    if (strcmp(group, "prime256v1") == 0)
        algorithm = CRYPTO_ES256;
    else if (strcmp(group, "secp256k1") == 0)
        algorithm = CRYPTO_ES256K;
    else
        return TR_EUNSUPPORTED;
    if (is_private) {
        if (EVP_PKEY_get_bn_param(pkey, OSSL_PKEY_PARAM_PRIV_KEY, &scalar) == 1 &&
            BN_bn2binpad(scalar, bytes, 32) == 32)
            rc = crypto_key_from_private(algorithm, bytes, 32, ret_key);
        BN_clear_free(scalar);
    } else if (EVP_PKEY_get_octet_string_param(
                   pkey, OSSL_PKEY_PARAM_PUB_KEY, bytes, sizeof bytes, &size) == 1)
        rc = crypto_key_from_public(algorithm, bytes, size, ret_key);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

static int from_ed25519(EVP_PKEY *pkey, bool is_private, struct crypto_key **ret_key)
{
    uint8_t bytes[32];
    size_t size = sizeof bytes;
    int rc = TR_EPROTO;

    if (is_private && EVP_PKEY_get_raw_private_key(pkey, bytes, &size) == 1)
        rc = crypto_key_from_private(CRYPTO_EDDSA, bytes, size, ret_key);
    else if (!is_private && EVP_PKEY_get_raw_public_key(pkey, bytes, &size) == 1)
        rc = crypto_key_from_public(CRYPTO_EDDSA, bytes, size, ret_key);
    crypto_wipe(bytes, sizeof bytes);
    return rc;
}

static int from_rsa(EVP_PKEY **pkey, bool is_private, struct crypto_key **ret_key)
{
    struct crypto_key *key = crypto__key_create(&crypto__rs256);
    int rc;

    if (key == NULL)
        return TR_ENOMEM;
    rc = crypto__rs256_adopt(key, pkey);
    if (rc != 0) {
        crypto_key_unref(&key);
        return rc;
    }
    key->is_private = is_private;
    *ret_key = key;
    return 0;
}

int crypto_key_from_pem(struct span pem, struct crypto_key **ret_key)
{
    EVP_PKEY *pkey;
    BIO *bio;
    bool is_private = false;
    int rc;

    if (pem.size > CRYPTO_PEM_BYTES_MAX)
        return TR_EPROTO;
    bio = base_fault_hit() ? NULL : BIO_new_mem_buf(pem.at, (int)pem.size);
    if (bio == NULL)
        return crypto__openssl_failed(TR_ENOMEM);
    pkey = PEM_read_bio_PUBKEY(bio, NULL, no_password, NULL);
    if (pkey == NULL) {
        (void)BIO_reset(bio);
        pkey = PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
        is_private = true;
    }
    BIO_free(bio);
    if (pkey == NULL)
        return crypto__openssl_failed(TR_EPROTO);
    if (EVP_PKEY_is_a(pkey, "EC"))
        rc = from_ec(pkey, is_private, ret_key);
    else if (EVP_PKEY_is_a(pkey, "ED25519"))
        rc = from_ed25519(pkey, is_private, ret_key);
    else if (EVP_PKEY_is_a(pkey, "RSA"))
        rc = from_rsa(&pkey, is_private, ret_key);
    else
        rc = TR_EUNSUPPORTED;
    EVP_PKEY_free(pkey);
    return crypto__openssl_failed(
        rc); /* the failed attempt to read a public key left errors in the queue */
}

/* The fixed start of the SubjectPublicKeyInfo of a secp256k1 key; the point follows (RFC 5480). */
static const uint8_t secp_head[] = { 0x30, 0x56, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x0a, 0x03, 0x42, 0x00 };

static int write_pem(const struct crypto_key *key, BIO *bio)
{
    EVP_PKEY *pkey;
    uint8_t der[sizeof secp_head + 65];
    int rc;

    if (key->kind == &crypto__es256k) {
        memcpy(der, secp_head, sizeof secp_head);
        key->kind->get_point(key, der + sizeof secp_head);
        return PEM_write_bio(bio, "PUBLIC KEY", "", der, sizeof der) > 0 ? 0 : TR_ENOMEM;
    }
    if (key->kind != &crypto__eddsa)
        return PEM_write_bio_PUBKEY(bio, key->pkey) == 1 ? 0 : TR_ENOMEM;
    pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, key->public_bytes, 32);
    rc = pkey != NULL && PEM_write_bio_PUBKEY(bio, pkey) == 1 ? 0 : TR_ENOMEM;
    EVP_PKEY_free(pkey);
    return rc;
}

int crypto_key_public_pem(const struct crypto_key *key, struct buffer *pem)
{
    BIO *bio;
    char *bytes;
    long size;
    int rc;

    if (key->kind == &crypto__hs256)
        return TR_EUNSUPPORTED;
    bio = base_fault_hit() ? NULL : BIO_new(BIO_s_mem());
    if (bio == NULL)
        return crypto__openssl_failed(TR_ENOMEM);
    rc = write_pem(key, bio);
    if (rc == 0) {
        size = BIO_get_mem_data(bio, &bytes);
        rc = buffer_append(pem, bytes, (size_t)size);
    }
    BIO_free(bio);
    return rc == 0 ? 0 : crypto__openssl_failed(rc);
}
