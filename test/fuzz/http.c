/* SPDX-License-Identifier: Apache-2.0 */
/* http.c: any bytes as a request. The first byte says how they are cut into reads. However they are
 * cut, the verdict, the head and the end of the body must be the same; and a head that is accepted
 * must pass a slower look at its raw bytes that knows nothing of the parser. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "http/parser.h"
#include "http/router.h"
#include "http/uri.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
    enum http_parsed verdict;
    unsigned status;
    size_t head_size; /* bytes of the head, if it ended */
    size_t used;      /* and of the body */
    size_t body_size;
    uint64_t body_sum; /* position-dependent, of its bytes */
    enum http_parsed body_verdict;
};

static enum http_chunk on_chunk(void *data, const char *bytes, size_t size)
{
    struct outcome *outcome = data;

    for (size_t i = 0; i < size; i++)
        outcome->body_sum = outcome->body_sum * 31 + (unsigned char)bytes[i];
    outcome->body_size += size;
    if (outcome->body_size > 4096)
        return HTTP_CHUNK_REFUSE;
    return outcome->body_size % 3 == 1 ? HTTP_CHUNK_PAUSE : HTTP_CHUNK_GO;
}

/* Parse with reads of `step` bytes, from memory of exactly the size that was read so far, which
 * moves with every read. */
static struct outcome parse(
    const uint8_t *data, size_t size, size_t step, struct http_head *head, char **ret_bytes)
{
    struct http_parser parser;
    struct outcome outcome = { .verdict = HTTP_PARSED_MORE, .body_verdict = HTTP_PARSED_MORE };
    char *bytes = NULL;
    size_t have = 0, used = 0;
    char reason[128];

    http_parser_init(&parser, head, 20);
    while (outcome.verdict == HTTP_PARSED_MORE && have < size) {
        size_t more = step < size - have ? step : size - have;
        char *moved = malloc(have + more);

        tr_assert(moved != NULL);
        memcpy(moved, data, have + more);
        if (have > 0)
            http_parser_moved(&parser, moved);
        free(bytes);
        bytes = moved;
        outcome.verdict = http_parser_head(&parser, bytes + have, more, &used);
        outcome.head_size = have + (outcome.verdict == HTTP_PARSED_END ? used : more);
        have += more;
    }
    *ret_bytes = bytes;
    if (outcome.verdict == HTTP_PARSED_ERROR)
        outcome.status = http_parser_error(&parser, reason, sizeof reason);
    if (outcome.verdict != HTTP_PARSED_END)
        return outcome;
    outcome.used = outcome.head_size;
    if (!head->is_chunked)
        return outcome;
    http_parser_chunks(&parser, on_chunk, &outcome);
    while (outcome.body_verdict != HTTP_PARSED_END && outcome.body_verdict != HTTP_PARSED_ERROR &&
           outcome.used < size) {
        size_t more = step < size - outcome.used ? step : size - outcome.used;

        used = 0;
        outcome.body_verdict =
            http_parser_body(&parser, (const char *)data + outcome.used, more, &used);
        tr_assert(used <= more);
        if (outcome.body_verdict == HTTP_PARSED_ERROR)
            outcome.status = http_parser_error(&parser, reason, sizeof reason);
        outcome.used += used;
    }
    return outcome;
}

/* Checks the bytes of a head that two parsers must read alike. */
static void check_raw(const char *bytes, size_t size, const struct http_head *head)
{
    uint32_t hosts = 0, lengths = 0, codings = 0, fields = 0;

    for (size_t i = 0; i < size; i++) {
        tr_assert(bytes[i] != '\0');
        tr_assert(bytes[i] != '\n' || (i > 0 && bytes[i - 1] == '\r'));
        tr_assert(bytes[i] != '\r' || (i + 1 < size && bytes[i + 1] == '\n'));
        if (i > 2 && bytes[i - 1] == '\n')
            tr_assert(bytes[i] != ' ' && bytes[i] != '\t' && bytes[i] != ':');
    }
    tr_assert(size >= 4 && memcmp(bytes + size - 4, "\r\n\r\n", 4) == 0);
    for (uint32_t i = 0; i < head->field_count; i++) {
        const struct http_header *field = &head->fields[i];

        tr_assert(field->name.size > 0);
        tr_assert(field->name.at >= bytes && field->name.at + field->name.size < bytes + size);
        tr_assert(field->name.at[-1] == '\n' && field->name.at[field->name.size] == ':');
        if (field->value.size > 0)
            tr_assert(field->value.at > field->name.at &&
                      field->value.at + field->value.size < bytes + size);
        for (size_t j = 0; j < field->name.size; j++)
            tr_assert(field->name.at[j] > ' ' && field->name.at[j] < 0x7f);
        hosts += span_is_nocase(field->name, "host");
        lengths += span_is_nocase(field->name, "content-length");
        codings += span_is_nocase(field->name, "transfer-encoding");
    }
    for (size_t i = 0; i + 1 < size; i++)
        fields += bytes[i] == '\r' && bytes[i + 1] == '\n';
    while (size > 2 && memcmp(bytes, "\r\n", 2) == 0) {
        bytes += 2;
        size -= 2;
        fields--;
    }
    tr_assert(fields == head->field_count + 2); /* the request line and the empty one */
    tr_assert(hosts <= 1 && lengths <= 1 && codings <= 1 && lengths + codings <= 1);
    tr_assert(head->minor == 0 || hosts == 1);
    tr_assert(codings == 0 || (head->is_chunked && head->minor == 1));
    tr_assert((lengths == 1) == head->has_length);
}

static void check_target(const struct http_head *head)
{
    struct span path, query;
    enum http_method method;
    char *bytes;
    size_t size = 0;

    (void)http_method_parse(head->method, &method);
    if (!http_target_split(head->target, head->host, &path, &query))
        return;
    tr_assert(path.at[0] == '/');
    bytes = malloc(path.size);
    tr_assert(bytes != NULL);
    if (http_path_decode(path, bytes, &size)) {
        tr_assert(size <= path.size && http_is_utf8(bytes, size));
        tr_assert(memmem(bytes, size, "/../", 4) == NULL && memmem(bytes, size, "/./", 3) == NULL);
        tr_assert(memchr(bytes, 0, size) == NULL && memchr(bytes, '\\', size) == NULL);
    }
    free(bytes);
    bytes = malloc(query.size + 1);
    tr_assert(bytes != NULL);
    if (http_query_find(query, "a", bytes, &size) == 1)
        tr_assert(bytes[size] == '\0' && strlen(bytes) == size);
    free(bytes);
}

static bool heads_are_equal(const struct http_head *a, const struct http_head *b)
{
    bool equal = span_equal(a->method, b->method) && span_equal(a->target, b->target) &&
                 span_equal(a->host, b->host) && a->minor == b->minor &&
                 a->keep_alive == b->keep_alive && a->is_chunked == b->is_chunked &&
                 a->has_length == b->has_length && a->length == b->length &&
                 a->wants_continue == b->wants_continue && a->field_count == b->field_count;

    for (uint32_t i = 0; equal && i < a->field_count; i++)
        equal = span_equal(a->fields[i].name, b->fields[i].name) &&
                span_equal(a->fields[i].value, b->fields[i].value);
    return equal;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_head whole_head, cut_head;
    char *whole_bytes, *cut_bytes;
    struct outcome whole, cut;

    if (size < 2 || size > 8192)
        return 0;
    whole = parse(data + 1, size - 1, SIZE_MAX, &whole_head, &whole_bytes);
    cut = parse(data + 1, size - 1, 1 + data[0] % 7, &cut_head, &cut_bytes);
    tr_assert(whole.verdict == cut.verdict);
    /* If a request has two faults, the cut decides which one the parser meets first. */
    tr_assert((whole.status == 0) == (cut.status == 0) ||
              whole.verdict == HTTP_PARSED_END); /* then the fault is in the body */
    if (whole.verdict == HTTP_PARSED_END) {
        tr_assert(whole.head_size == cut.head_size);
        tr_assert(heads_are_equal(&whole_head, &cut_head));
        check_raw(whole_bytes, whole.head_size, &whole_head);
        check_target(&whole_head);
        if (whole_head.is_chunked) {
            tr_assert(
                (whole.body_verdict == HTTP_PARSED_END) == (cut.body_verdict == HTTP_PARSED_END));
            tr_assert((whole.body_verdict == HTTP_PARSED_ERROR) ==
                      (cut.body_verdict == HTTP_PARSED_ERROR));
            if (whole.body_verdict == HTTP_PARSED_END)
                tr_assert(whole.used == cut.used && whole.body_size == cut.body_size &&
                          whole.body_sum == cut.body_sum);
        }
    }
    free(whole_bytes);
    free(cut_bytes);
    return 0;
}
