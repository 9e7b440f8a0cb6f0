/* SPDX-License-Identifier: Apache-2.0 */
/* mx_key_file.c: key files, by the first byte: any text, any bytes between the two lines, or
 * sessions that are written and must be read back. */
#include <string.h>

#include "base/assert.h"
#include "matrix/crypto/mxcrypto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static void try_round_trip(const struct mx_key_file_options *options, struct span sessions)
{
    struct mx_random random = { count_up, &(uint8_t){ 0 } };
    struct buffer file = { 0 }, out = { 0 };

    tr_assert(mx_key_file_encrypt(options, sessions, &random, &file) == 0);
    tr_assert(mx_key_file_decrypt(options, (struct span){ file.bytes, file.size }, &out) == 0);
    tr_assert(span_equal((struct span){ out.bytes, out.size }, sessions));
    file.bytes[file.size / 2] ^= 1; /* a letter of the base64, or a line's end */
    buffer_clear(&out);
    if (mx_key_file_decrypt(options, (struct span){ file.bytes, file.size }, &out) != 0)
        tr_assert(out.size == 0);
    buffer_free(&file);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct mx_key_file_options options = { SPAN("passphrase"), 2 };
    struct buffer text = { 0 }, out = { 0 };
    struct span rest;
    int rc;

    if (size == 0)
        return 0;
    rest = (struct span){ (const char *)data + 1, size - 1 };
    if (data[0] % 3 == 0) {
        try_round_trip(&options, rest);
        return 0;
    }
    if (data[0] % 3 == 1)
        buffer_text(&text, "-----BEGIN MEGOLM SESSION DATA-----\n");
    if (data[0] % 3 == 1)
        mx_base64_encode(rest.at, rest.size, &text);
    else
        buffer_span(&text, rest);
    if (data[0] % 3 == 1)
        buffer_text(&text, "\n-----END MEGOLM SESSION DATA-----");
    rc = mx_key_file_decrypt(&options, (struct span){ text.bytes, text.size }, &out);
    tr_assert(rc == 0 || out.size == 0);
    buffer_free(&text);
    buffer_free(&out);
    return 0;
}
