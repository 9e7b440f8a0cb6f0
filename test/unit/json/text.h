/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: memory of exactly the promised size, so that a sanitizer sees any byte read past it. */
#ifndef TEST_UNIT_JSON_TEXT_H
#define TEST_UNIT_JSON_TEXT_H

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "json/json.h"

static inline char *text_padded(const void *bytes, size_t size)
{
    char *text = malloc(size + JSON_PADDING_BYTES);

    CHECK(text != NULL);
    memcpy(text, bytes, size);
    memset(text + size, 'x', JSON_PADDING_BYTES); /* simulates old content */
    return text;
}

/* Copy without padding, for functions that must not read past the end. */
static inline char *text_exact(const void *bytes, size_t size)
{
    char *text = malloc(size + (size == 0));

    CHECK(text != NULL);
    if (size > 0)
        memcpy(text, bytes, size);
    return text;
}

#endif
