/* SPDX-License-Identifier: Apache-2.0 */
/* cbor.c: parse any bytes as DAG-CBOR. Each value has one encoding, so writing an accepted value
 * must give exactly the bytes that were read. */
#include "json/cbor.h"

#include <stdlib.h>
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const struct json_doc *doc, const char *bytes, size_t size)
{
    struct buffer out = { 0 };
    struct cbor_writer writer = cbor_writer(&out);
    int rc;

    cbor_put_value(&writer, NULL, json_root(doc));
    rc = cbor_writer_end(&writer);
    tr_assert(rc == 0);
    tr_assert(out.size == size && memcmp(out.bytes, bytes, size) == 0);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_doc doc = { .depth_max = CBOR_WRITE_DEPTH_MAX };
    char *bytes = malloc(size + (size == 0)); /* exactly, so that a sanitizer sees one too many */
    size_t used = 0;
    int rc;

    tr_assert(bytes != NULL);
    if (size > 0)
        memcpy(bytes, data, size);
    rc = cbor_parse_first(&doc, (struct span){ bytes, size }, &used);
    if (rc == 0) {
        tr_assert(used >= 1 && used <= size);
        check_again(&doc, bytes, used);
        rc = cbor_parse(&doc, (struct span){ bytes, size });
        tr_assert((rc == 0) == (used == size));
    } else {
        tr_assert(json_root(&doc) == NULL);
        tr_assert(doc.error.text != NULL && doc.error.offset <= size);
        tr_assert(rc == TR_EPROTO || rc == TR_ELIMIT || rc == TR_EEXIST);
    }
    json_doc_free(&doc);
    free(bytes);
    return 0;
}
