/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/mls/mls_reader.h"

#include <troupe/error.h>

struct span mls_take(struct mls_reader *reader, size_t size)
{
    struct span span = { (const char *)reader->at, size };

    tr_assert(reader->at <= reader->end);
    if (size > (size_t)(reader->end - reader->at)) {
        mls_fault(reader, "The message ends too early.");
        span.size = 0;
    }
    reader->at += span.size;
    return span;
}

uint64_t mls_number(struct mls_reader *reader, unsigned size)
{
    struct span bytes = mls_take(reader, size);
    uint64_t value = 0;

    tr_assert(size >= 1 && size <= 8);
    for (size_t i = 0; i < bytes.size; i++)
        value = value << 8 | (unsigned char)bytes.at[i];
    return value;
}

uint64_t mls_length(struct mls_reader *reader)
{
    uint64_t value = mls_number(reader, 1);
    unsigned prefix = (unsigned)(value >> 6);
    unsigned more = (1u << prefix) - 1;

    if (reader->fault != NULL)
        return 0;
    if (prefix == 3) {
        mls_fault(reader, "A length begins with the reserved bits 11.");
        return 0;
    }
    value &= 0x3f;
    if (more > 0)
        value = value << (8 * more) | mls_number(reader, more);
    if ((prefix == 1 && value < 64) || (prefix == 2 && value < 16384))
        mls_fault(reader, "A length is not in its shortest form.");
    return reader->fault == NULL ? value : 0;
}

struct span mls_vector(struct mls_reader *reader)
{
    uint64_t size = mls_length(reader);

    return mls_take(reader, (size_t)size);
}

uint64_t mls_choice(
    struct mls_reader *reader, unsigned size, uint64_t low, uint64_t high, const char *what)
{
    uint64_t value = mls_number(reader, size);

    if (value < low || value > high)
        mls_fault(reader, what);
    return value;
}

void mls_skip(struct mls_reader *reader, const char *fields)
{
    for (; *fields != '\0' && *fields != ']'; fields++) {
        if (*fields == 'v') {
            mls_vector(reader);
        } else if (*fields != '[') {
            mls_number(reader, (unsigned)(*fields - '0'));
        } else {
            struct mls_reader list = mls_reader_of(mls_vector(reader));

            while (mls_more(&list))
                mls_skip(&list, fields + 1); /* as deep as the brackets, whatever the input */
            mls_list_end(reader, &list);
            for (int depth = 1; depth > 0;) {
                fields++;
                tr_assert(*fields != '\0');
                depth += (*fields == '[') - (*fields == ']');
            }
        }
    }
}

struct span mls_since(const struct mls_reader *reader, const unsigned char *from)
{
    tr_assert(from <= reader->at);
    return (struct span){ (const char *)from, (size_t)(reader->at - from) };
}

void mls_reader_end(struct mls_reader *reader)
{
    if (reader->fault == NULL && reader->at != reader->end)
        mls_fault(reader, "There are bytes after the end of the message.");
}

void mls_list_end(struct mls_reader *reader, const struct mls_reader *list)
{
    tr_assert(list->at == list->end); /* a fault ends it too */
    if (list->fault != NULL)
        mls_fault(reader, list->fault);
}

void mls_put_number(struct buffer *buffer, uint64_t value, unsigned size)
{
    char bytes[8];

    tr_assert(size <= sizeof bytes);
    for (unsigned i = 0; i < size; i++)
        bytes[i] = (char)(value >> (8 * (size - 1 - i)));
    buffer_append(buffer, bytes, size);
}

void mls_put_vector(struct buffer *buffer, struct span bytes)
{
    if (bytes.size < 64)
        mls_put_number(buffer, bytes.size, 1);
    else if (bytes.size < 16384)
        mls_put_number(buffer, bytes.size | 0x4000, 2);
    else if (bytes.size < (size_t)1 << 30)
        mls_put_number(buffer, bytes.size | 0x80000000, 4);
    else
        buffer->failed = TR_ELIMIT;
    buffer_span(buffer, bytes);
}
