/* SPDX-License-Identifier: Apache-2.0 */
/* vectors.h: the files of the MLS working group, as JSON, and the bytes that are in them. */
#ifndef TEST_UNIT_DELIVERY_VECTORS_H
#define TEST_UNIT_DELIVERY_VECTORS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "json/json.h"
#include "services/delivery/mls/mls_check.h"
#include "shared.h"

struct vectors {
    struct json_doc doc;
    char *text;
    const struct json *root;
};

static inline void load(struct vectors *vectors, const char *name)
{
    size_t size;

    *vectors = (struct vectors){ 0 };
    vectors->text = shared_read(name, &size);
    CHECK_EQ_INT(json_parse(&vectors->doc, vectors->text, size, 0), 0);
    vectors->root = json_root(&vectors->doc);
}

static inline void unload(struct vectors *vectors)
{
    json_doc_free(&vectors->doc);
    free(vectors->text);
}

static inline int digit(char c)
{
    return c >= 'a' ? c - 'a' + 10 : c - '0';
}

/* Into memory of exactly its size, so that a read past the end is seen. */
static inline struct span bytes_of(const struct json *value)
{
    struct span hex;
    char *bytes;

    CHECK(json_string(value, &hex));
    bytes = malloc(hex.size / 2 + 1);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < hex.size / 2; i++)
        bytes[i] = (char)(digit(hex.at[2 * i]) << 4 | digit(hex.at[2 * i + 1]));
    return (struct span){ realloc(bytes, hex.size / 2), hex.size / 2 };
}

static inline void drop(struct span bytes)
{
    free((void *)(uintptr_t)bytes.at);
}

static inline void must_read(struct span bytes, struct mls_message *message, enum mls_wire wire)
{
    const char *why = mls_message_read(bytes, message);

    CHECK_MSG(why == NULL, "%s", why);
    CHECK_EQ_INT(message->wire, wire);
}

#endif
