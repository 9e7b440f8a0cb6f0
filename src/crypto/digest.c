/* SPDX-License-Identifier: Apache-2.0 */
/* digest.c: SHA-256 by OpenSSL, which uses the processor's SHA instructions, with one context per
 * thread: creating a context costs half as much as hashing a token. Without memory for a context
 * the thread uses libsodium's portable function, which allocates nothing. So hashing cannot
 * fail. */
#include "crypto/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { BLOCK_BYTES = 64 };

struct part {
    const void *bytes;
    size_t size;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t context_key;
static bool has_context_key;
static EVP_MD *sha256; /* kept: fetching it costs more than hashing */
static _Thread_local EVP_MD_CTX *thread_context;

static void free_context(void *context)
{
    EVP_MD_CTX_free(context);
    thread_context = NULL;
}

static void set_up(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    has_context_key = pthread_key_create(&context_key, free_context) == 0;
}

/* Return this thread's context; NULL when out of memory. */
static EVP_MD_CTX *get_context(void)
{
    if (thread_context != NULL)
        return thread_context;
    pthread_once(&once, set_up);
    if (sha256 == NULL || !has_context_key || base_fault_hit())
        return NULL;
    thread_context = EVP_MD_CTX_new();
    if (thread_context != NULL && pthread_setspecific(context_key, thread_context) != 0) {
        EVP_MD_CTX_free(thread_context);
        thread_context = NULL;
    }
    return thread_context;
}

static bool digest_fast(const struct part *parts, size_t count, uint8_t *ret_digest)
{
    EVP_MD_CTX *context = get_context();

    if (context == NULL || EVP_DigestInit_ex2(context, sha256, NULL) != 1)
        return false;
    for (size_t i = 0; i < count; i++)
        if (EVP_DigestUpdate(context, parts[i].bytes, parts[i].size) != 1)
            return false;
    return EVP_DigestFinal_ex(context, ret_digest, NULL) == 1;
}

static void digest_parts(const struct part *parts, size_t count, uint8_t *ret_digest)
{
    crypto_hash_sha256_state state;

    if (digest_fast(parts, count, ret_digest))
        return;
    crypto_hash_sha256_init(&state);
    for (size_t i = 0; i < count; i++)
        crypto_hash_sha256_update(&state, parts[i].bytes, parts[i].size);
    crypto_hash_sha256_final(&state, ret_digest);
}

void crypto_sha256(const void *bytes, size_t size, uint8_t ret_digest[CRYPTO_SHA256_BYTES])
{
    digest_parts(&(struct part){ bytes, size }, 1, ret_digest);
}

int crypto_sha256_stream_init(struct crypto_sha256_stream *stream)
{
    EVP_MD_CTX *context;

    pthread_once(&once, set_up);
    if (sha256 == NULL || base_fault_hit())
        return TR_ENOMEM;
    context = EVP_MD_CTX_new();
    if (context == NULL)
        return TR_ENOMEM;
    if (EVP_DigestInit_ex2(context, sha256, NULL) != 1) {
        EVP_MD_CTX_free(context);
        return TR_ENOMEM;
    }
    stream->context = context;
    return 0;
}

void crypto_sha256_stream_update(
    struct crypto_sha256_stream *stream, const void *bytes, size_t size)
{
    int rc = EVP_DigestUpdate(stream->context, bytes, size);

    tr_assert(rc == 1); /* fails only without crypto_sha256_stream_init */
}

void crypto_sha256_stream_digest(
    struct crypto_sha256_stream *stream, uint8_t ret_digest[CRYPTO_SHA256_BYTES])
{
    int rc = EVP_DigestFinal_ex(stream->context, ret_digest, NULL);

    tr_assert(rc == 1);
    rc = EVP_DigestInit_ex2(stream->context, NULL, NULL);
    tr_assert(rc == 1);
}

void crypto_sha256_stream_fini(struct crypto_sha256_stream *stream)
{
    EVP_MD_CTX_free(stream->context);
    stream->context = NULL;
}

void crypto_hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t size,
    uint8_t ret_tag[CRYPTO_SHA256_BYTES])
{
    uint8_t inner[BLOCK_BYTES] = { 0 }, outer[BLOCK_BYTES], digest[CRYPTO_SHA256_BYTES];

    tr_assert(key_size <= CRYPTO_HMAC_KEY_BYTES_MAX);
    if (key_size > BLOCK_BYTES)
        crypto_sha256(key, key_size, inner);
    else if (key_size > 0)
        memcpy(inner, key, key_size);
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    digest_parts((struct part[]){ { inner, sizeof inner }, { bytes, size } }, 2, digest);
    digest_parts((struct part[]){ { outer, sizeof outer }, { digest, sizeof digest } }, 2, ret_tag);
    crypto_wipe(inner, sizeof inner);
    crypto_wipe(outer, sizeof outer);
}

bool crypto_equal(const void *a, const void *b, size_t size)
{
    return CRYPTO_memcmp(a, b, size) == 0;
}

void crypto_random_fill(void *bytes, size_t size)
{
    randombytes_buf(bytes, size);
}

void crypto_wipe(void *bytes, size_t size)
{
    OPENSSL_cleanse(bytes, size);
}
