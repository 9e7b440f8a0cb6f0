/* SPDX-License-Identifier: Apache-2.0 */
/* cbor_parse.c: parse DAG-CBOR into the tape, without recursion.
 *
 * A head declares how many items follow. An item takes at least one byte, so the parser refuses a
 * count above the number of bytes left before it allocates memory for it. As in json_parse.c, the
 * cell of an open container holds the index of its parent and the number of items that the parent
 * still misses. */
#include <math.h>
#include <string.h>

#include <troupe/error.h>

#include "json/cbor.h"
#include "json/json_private.h"

enum major { UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE };

#define TAG_CID 42
#define NOT_OPEN UINT32_MAX

struct reader {
    struct json_doc *doc;
    const unsigned char *start;
    const unsigned char *at;
    const unsigned char *end;
};

struct head {
    enum major major;
    unsigned info;
    uint64_t argument;
};

static int reader_fail(struct reader *reader, int rc, const unsigned char *at, const char *text)
{
    reader->doc->error.offset = (size_t)(at - reader->start);
    reader->doc->error.text = text;
    return rc;
}

static int reader_fail_short(struct reader *reader)
{
    return reader_fail(reader, TR_EPROTO, reader->end, "the bytes end too early");
}

static uint64_t read_big_endian(const unsigned char *at, unsigned size)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < size; i++)
        value = value << 8 | at[i];
    return value;
}

static int read_head(struct reader *reader, struct head *ret_head)
{
    const unsigned char *first = reader->at;
    struct head head;
    unsigned size;

    if (first == reader->end)
        return reader_fail_short(reader);
    head.major = (enum major)(*first >> 5);
    head.info = *first & 31u;
    head.argument = head.info;
    reader->at++;
    if (head.info >= 24) {
        if (head.info > 27)
            return reader_fail(reader, TR_EPROTO, first, "lengths must be definite");
        size = 1u << (head.info - 24);
        if ((size_t)(reader->end - reader->at) < size)
            return reader_fail_short(reader);
        head.argument = read_big_endian(reader->at, size);
        reader->at += size;
        /* The next smaller head holds a number up to 23, or one of size / 2 bytes. The argument of
         * a float is not a number. */
        if (head.major != SIMPLE &&
            (size == 1 ? head.argument < 24 : head.argument >> (4 * size) == 0))
            return reader_fail(reader, TR_EPROTO, first, "the head is longer than needed");
    }
    *ret_head = head;
    return 0;
}

/* Read `size` bytes of text or binary. */
static int read_bytes(struct reader *reader, uint64_t size, enum json_kind kind, struct json *cell)
{
    const unsigned char *at = reader->at;

    if (size > (size_t)(reader->end - at))
        return reader_fail_short(reader);
    cell->kind = kind;
    cell->size = (uint32_t)size;
    cell->as.text = (const char *)at;
    if (kind == JSON_STRING && !json_is_utf8(json__text(cell)))
        return reader_fail(reader, TR_EPROTO, at, "the string is not UTF-8");
    reader->at += size;
    return 0;
}

static int read_link(struct reader *reader, struct json *cell)
{
    const unsigned char *first = reader->at;
    struct head head;
    int rc = read_head(reader, &head);

    if (rc != 0)
        return rc;
    if (head.major != BYTES)
        return reader_fail(reader, TR_EPROTO, first, "a link must hold bytes");
    rc = read_bytes(reader, head.argument, JSON_LINK, cell);
    if (rc != 0)
        return rc;
    if (cell->size == 0 || cell->as.text[0] != 0)
        return reader_fail(reader, TR_EPROTO, first, "a link must start with a zero byte");
    cell->as.text++;
    cell->size--;
    if (!cbor_is_cid(json__text(cell)))
        return reader_fail(reader, TR_EPROTO, first, "a link must be a CID");
    return 0;
}

static int read_simple(
    struct reader *reader, const struct head *head, const unsigned char *first, struct json *cell)
{
    double real;

    cell->size = 0;
    cell->as.integer = 0;
    switch (head->info) {
    case 20:
    case 21:
        cell->kind = JSON_BOOL;
        cell->as.truth = head->info == 21;
        return 0;
    case 22:
        cell->kind = JSON_NULL;
        return 0;
    case 27:
        memcpy(&real, &head->argument, sizeof real);
        if (!isfinite(real))
            return reader_fail(reader, TR_EPROTO, first, "a number must be finite");
        cell->kind = JSON_REAL;
        cell->as.real = real;
        return 0;
    case 25:
    case 26:
        return reader_fail(reader, TR_EPROTO, first, "a float must have 64 bits");
    default:
        return reader_fail(reader, TR_EPROTO, first, "the simple value is unknown");
    }
}

static int read_integer(
    struct reader *reader, const struct head *head, const unsigned char *first, struct json *cell)
{
    if (head->argument > INT64_MAX)
        return reader_fail(reader, TR_ELIMIT, first, "an integer must fit 64 bits and its sign");
    cell->kind = JSON_INT;
    cell->size = 0;
    cell->as.integer = (int64_t)head->argument;
    if (head->major == NEGATIVE)
        cell->as.integer = -1 - cell->as.integer;
    return 0;
}

/* Read the rest of any value but an array or map; the caller has read its head. */
static int read_scalar(
    struct reader *reader, const struct head *head, const unsigned char *first, struct json *cell)
{
    switch (head->major) {
    case UINT:
    case NEGATIVE:
        return read_integer(reader, head, first, cell);
    case BYTES:
        return read_bytes(reader, head->argument, JSON_BYTES, cell);
    case TEXT:
        return read_bytes(reader, head->argument, JSON_STRING, cell);
    case TAG:
        if (head->argument != TAG_CID)
            return reader_fail(reader, TR_EPROTO, first, "the only tag allowed is 42");
        return read_link(reader, cell);
    case SIMPLE:
        return read_simple(reader, head, first, cell);
    case ARRAY:
    case MAP:
        break;
    }
    return TR_EPROTO;
}

static int read_key(struct reader *reader, struct json *cell, const struct json *previous)
{
    const unsigned char *first = reader->at;
    struct head head;
    int order, rc = read_head(reader, &head);

    if (rc != 0)
        return rc;
    if (head.major != TEXT)
        return reader_fail(reader, TR_EPROTO, first, "a key must be text");
    rc = read_bytes(reader, head.argument, JSON_STRING, cell);
    if (rc != 0 || previous == NULL)
        return rc;
    order = json__compare_cbor_keys(previous, cell);
    if (order == 0)
        return reader_fail(reader, TR_EEXIST, first, "the object has this key twice");
    if (order > 0)
        return reader_fail(reader, TR_EPROTO, first, "keys must be sorted, shorter ones first");
    return 0;
}

static int read_items(struct reader *reader)
{
    struct json_doc *doc = reader->doc;
    const uint32_t depth_max = json__depth_max(doc);
    uint32_t open = NOT_OPEN; /* the index of the innermost open container */
    uint32_t missing = 1;     /* the number of its items, without keys, still to come */
    uint32_t depth = 0, index;
    struct json *previous = NULL, *cell; /* in a map: the previous key */
    struct head head;
    int rc;

    for (;;) {
        while (doc->capacity - doc->count < 2) { /* a key and its value */
            size_t at = previous == NULL ? 0 : (size_t)(previous - doc->cells);

            rc = json__grow(doc);
            if (rc != 0)
                return rc;
            if (previous != NULL)
                previous = doc->cells + at;
        }
        cell = doc->cells + doc->count;
        if (open != NOT_OPEN && doc->cells[open].kind == JSON_OBJECT) {
            rc = read_key(reader, cell, previous);
            if (rc != 0)
                return rc;
            previous = cell++;
        }

        const unsigned char *first = reader->at;

        rc = read_head(reader, &head);
        if (rc != 0)
            return rc;
        missing--;
        index = (uint32_t)(cell - doc->cells);
        doc->count = index + 1;
        if (head.major == ARRAY || head.major == MAP) {
            uint64_t per_item = head.major == MAP ? 2 : 1;

            if (depth == depth_max)
                return reader_fail(reader, TR_ELIMIT, first, "the nesting is too deep");
            if (head.argument > (size_t)(reader->end - reader->at) / per_item)
                return reader_fail_short(reader);
            depth++;
            cell->kind = head.major == MAP ? JSON_OBJECT : JSON_ARRAY;
            cell->size = missing;
            cell->as.count = (uint64_t)open << 32 | (uint32_t)head.argument;
            open = index;
            missing = (uint32_t)head.argument;
            previous = NULL;
        } else {
            rc = read_scalar(reader, &head, first, cell);
            if (rc != 0)
                return rc;
        }
        while (missing == 0) {
            if (open == NOT_OPEN)
                return 0;
            cell = doc->cells + open;
            /* If the container is a member of a map, its key is the cell before it. */
            previous = open == 0 ? NULL : cell - 1;
            open = (uint32_t)(cell->as.count >> 32);
            missing = cell->size;
            cell->as.count &= UINT32_MAX;
            cell->size = (uint32_t)(doc->cells + doc->count - cell);
            depth--;
        }
    }
}

int cbor_parse_first(struct json_doc *doc, struct span bytes, size_t *ret_used)
{
    struct reader reader = { .doc = doc };
    int rc;

    doc->count = 0;
    doc->error = (struct json_error){ 0, NULL };
    if (bytes.size > JSON_TEXT_BYTES_MAX) {
        doc->error.text = "the bytes are more than 1 GiB";
        return TR_ETOOBIG;
    }
    reader.start = reader.at = (const unsigned char *)(bytes.size == 0 ? "" : bytes.at);
    reader.end = reader.start + bytes.size;
    rc = read_items(&reader);
    if (rc != 0) {
        doc->count = 0;
        if (rc == TR_ENOMEM)
            doc->error.text = tr_error_text(rc);
        return rc;
    }
    *ret_used = (size_t)(reader.at - reader.start);
    return 0;
}

int cbor_parse(struct json_doc *doc, struct span bytes)
{
    size_t used;
    int rc = cbor_parse_first(doc, bytes, &used);

    if (rc != 0)
        return rc;
    if (used != bytes.size) {
        doc->count = 0;
        doc->error = (struct json_error){ used, "the bytes must end after the value" };
        return TR_EPROTO;
    }
    return 0;
}

/* ---- CIDs ------------------------------------------------------------------------------------ */

/* Take an unsigned varint (multiformats) off the front: seven bits a byte, lowest first, in the
 * shortest form, at most nine bytes. */
static bool take_varint(struct span *span, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (size_t i = 0; i < span->size && i < 9; i++) {
        unsigned char byte = (unsigned char)span->at[i];

        value |= (uint64_t)(byte & 0x7fu) << (7 * i);
        if ((byte & 0x80u) == 0) {
            span->at += i + 1;
            span->size -= i + 1;
            *ret_value = value;
            return i == 0 || byte != 0;
        }
    }
    return false;
}

bool cbor_is_cid(struct span cid)
{
    uint64_t version, codec, hash, size;

    /* Version 0 is a bare SHA-256 multihash. */
    if (cid.size == 34 && cid.at[0] == 0x12 && cid.at[1] == 0x20)
        return true;
    return take_varint(&cid, &version) && version == 1 && take_varint(&cid, &codec) &&
           take_varint(&cid, &hash) && take_varint(&cid, &size) && size == cid.size;
}
