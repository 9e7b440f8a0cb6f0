/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo/receipt.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <troupe/error.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "ops/secret.h"
#include "services/delivery/mls/mls_reader.h"

static void put_u64(unsigned char *to, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(value >> (56 - 8 * i));
}

void receipt_extend(unsigned char chain[32], const struct receipt_row *row)
{
    unsigned char link[32 + 8 + 8 + 32];

    memcpy(link, chain, 32);
    put_u64(link + 32, row->seq);
    put_u64(link + 40, row->base_epoch);
    memcpy(link + 48, row->sha256, 32);
    crypto_sha256(link, sizeof link, chain);
}

void receipt_statement(struct buffer *out, struct span convo, uint64_t seq, const void *receipt)
{
    buffer_text(out, "troupe-receipt-v1");
    mls_put_number(out, convo.size, 2);
    buffer_span(out, convo);
    mls_put_number(out, seq, 8);
    buffer_append(out, receipt, 32);
}

int receipt_key_open(const char *directory, char *why, size_t why_size, struct crypto_key **ret_key)
{
    char path[PATH_MAX];
    unsigned char seed[CRYPTO_PRIVATE_BYTES];
    size_t seed_size = 0;
    struct secret secret;
    int rc;

    if (directory == NULL)
        return crypto_key_generate(CRYPTO_EDDSA, ret_key);
    if ((size_t)snprintf(path, sizeof path, "%s/receipts.key", directory) >= sizeof path) {
        (void)snprintf(why, why_size, "The data directory's path is too long; choose another.");
        return TR_ELIMIT;
    }
    rc = secret_load(&secret, path, SECRET_HEX, why, why_size);
    if (rc < 0)
        return rc;
    if (crypto_hex_decode(span_of(secret.text), seed, sizeof seed, &seed_size) < 0 ||
        seed_size != sizeof seed ||
        crypto_key_from_private(CRYPTO_EDDSA, seed, sizeof seed, ret_key) < 0) {
        (void)snprintf(why, why_size,
            "%s holds no key; restore it, or move it away to start with a new one.", path);
        rc = TR_EPROTO;
    }
    crypto_wipe(seed, sizeof seed);
    crypto_wipe(&secret, sizeof secret);
    return rc;
}
