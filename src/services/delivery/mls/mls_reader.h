/* SPDX-License-Identifier: Apache-2.0 */
/* mls_reader.h: reads the encoding of RFC 9420 section 2.1 strictly. The first fault sticks, so a
 * caller reads a structure field by field and checks once. The reader never reads past the end. */
#ifndef SERVICES_DELIVERY_MLS_MLS_READER_H
#define SERVICES_DELIVERY_MLS_MLS_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "support/buffer.h"

struct mls_reader {
    const unsigned char *at;
    const unsigned char *end;
    const char *fault; /* NULL, or a sentence about the fault at `at` */
};

static inline struct mls_reader mls_reader_of(struct span bytes)
{
    /* An absent span has no address to count from. */
    const unsigned char *begin = (const unsigned char *)(bytes.at == NULL ? "" : bytes.at);

    tr_assert(bytes.at != NULL || bytes.size == 0);
    return (struct mls_reader){ begin, begin + bytes.size, NULL };
}

/* True while bytes are left and no fault came: the condition of a loop. */
static inline bool mls_more(const struct mls_reader *reader)
{
    return reader->fault == NULL && reader->at < reader->end;
}

static inline void mls_fault(struct mls_reader *reader, const char *what)
{
    if (reader->fault == NULL)
        reader->fault = what;
    reader->end = reader->at;
}

struct span mls_take(struct mls_reader *reader, size_t size);
uint64_t mls_number(struct mls_reader *reader, unsigned size); /* big-endian, 1 to 8 bytes */
uint64_t mls_length(struct mls_reader *reader); /* the variable-size header of a vector */
struct span mls_vector(struct mls_reader *reader);
/* Reads a number that must be in the range; any other one is the fault `what`. */
uint64_t mls_choice(
    struct mls_reader *reader, unsigned size, uint64_t low, uint64_t high, const char *what);
/* Skips fields: `v` is a vector, a digit a number of that many bytes, `[…]` a vector of elements
 * with these fields. */
void mls_skip(struct mls_reader *reader, const char *fields);
/* Returns the bytes from `from` (an earlier reader->at) to here. */
struct span mls_since(const struct mls_reader *reader, const unsigned char *from);
/* Ends reading; trailing bytes are a fault. */
void mls_reader_end(struct mls_reader *reader);
/* Ends a list inside what `reader` reads: a fault in the list is one of the whole. */
void mls_list_end(struct mls_reader *reader, const struct mls_reader *list);

/* Writes values for signatures and hashes. */
void mls_put_number(struct buffer *buffer, uint64_t value, unsigned size);
void mls_put_vector(struct buffer *buffer, struct span bytes);

#endif
