/* SPDX-License-Identifier: Apache-2.0 */
/* gzip.c: compresses answers. It compresses text-like types from 1 KiB on, unless the handler set a
 * header that depends on the bytes (an encoding, a strong tag, a range). It uses the fastest level,
 * to spare the workers. The blocking pool compresses bodies from OFFLOAD_MIN on. */
#include <string.h>

#define ZLIB_CONST
#include <zlib.h>

#include "base/alloc.h"
#include "http/connection.h"
#include "http/request.h"

enum { WORTH_MIN = 1024, WORTH_MAX = 32 << 20, OFFLOAD_MIN = 8 << 10, LEVEL = 1 };

static bool is_compressible(const char *type)
{
    static const char *const types[] = { "text/", "application/json", "application/javascript",
        "application/xml", "application/manifest+json", "image/svg+xml" };

    if (type == NULL || strncmp(type, "text/event-stream", 17) == 0)
        return false;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strncmp(type, types[i], strlen(types[i])) == 0)
            return true;
    return false;
}

static bool has_promise(const struct http_answer *answer)
{
    for (const struct http_extra *extra = answer->extra; extra != NULL; extra = extra->next) {
        const struct http_header *header = &extra->header;

        if (span_is_nocase(header->name, "content-encoding") ||
            span_is_nocase(header->name, "content-range") ||
            (span_is_nocase(header->name, "etag") && !span_starts(header->value, "W/")) ||
            (span_is_nocase(header->name, "cache-control") &&
                memmem(header->value.at, header->value.size, "no-transform", 12) != NULL))
            return true;
    }
    return false;
}

static voidpf zlib_alloc(voidpf opaque, uInt items, uInt size)
{
    (void)opaque;
    return base_alloc((size_t)items * size);
}

static void zlib_free(voidpf opaque, voidpf memory)
{
    (void)opaque;
    base_free(memory);
}

/* Returns memory of base_alloc with the compressed bytes, or NULL if they would not be smaller. */
char *http_gzip(const char *bytes, size_t size, size_t *ret_size)
{
    z_stream stream = { .zalloc = zlib_alloc, .zfree = zlib_free };
    char *out;
    int rc;

    /* 16 adds a gzip header. A small body needs only a small window and little memory. */
    if (deflateInit2(&stream, LEVEL, Z_DEFLATED, 16 + (size < (8 << 10) ? 13 : 15),
            size < (8 << 10) ? 6 : 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return NULL;
    out = base_alloc(size);
    if (out == NULL) {
        deflateEnd(&stream);
        return NULL;
    }
    stream.next_in = (const Bytef *)bytes;
    stream.avail_in = (uInt)size;
    stream.next_out = (Bytef *)out;
    stream.avail_out = (uInt)size;
    rc = deflate(&stream, Z_FINISH);
    *ret_size = size - stream.avail_out;
    deflateEnd(&stream);
    if (rc != Z_STREAM_END) {
        base_free(out);
        return NULL;
    }
    return out;
}

struct gzip_job {
    char *bytes; /* the plain body */
    size_t size;
    char *packed;
    size_t packed_size;
};

static void gzip_job_destroy(void *argument)
{
    struct gzip_job *job = argument;

    base_free(job->bytes);
    base_free(job->packed);
    base_free(job);
}

static int gzip_job_run(void *argument)
{
    struct gzip_job *job = argument;

    job->packed = http_gzip(job->bytes, job->size, &job->packed_size);
    return 0;
}

static void gzip_then_packed(struct http_request *request, const struct tr_event *event)
{
    struct http_answer *answer = &request->answer;
    struct gzip_job *job = (struct gzip_job *)(uintptr_t)event->value;

    answer->is_gzip = job->packed != NULL;
    answer->owned = answer->is_gzip ? job->packed : job->bytes;
    answer->body = (struct span){ answer->owned, answer->is_gzip ? job->packed_size : job->size };
    if (answer->is_gzip)
        job->packed = NULL;
    else
        job->bytes = NULL;
    gzip_job_destroy(job);
    http_answer_deliver(request);
}

/* Let the pool compress the answer. Returns false if it goes out as it is. */
static bool gzip_offload(struct http_request *request)
{
    struct http_answer *answer = &request->answer;
    struct gzip_job *job;

    /* Only inside a callback, so that another one can follow: not in an answer of a deadline. */
    if (!request->is_running || request->is_waiting)
        return false;
    job = base_calloc(sizeof *job);
    if (job == NULL)
        return false;
    job->size = answer->body.size;
    job->bytes = answer->owned;
    if (job->bytes == NULL) {
        job->bytes = base_alloc(job->size);
        if (job->bytes == NULL) {
            base_free(job);
            return false;
        }
        memcpy(job->bytes, answer->body.at, job->size);
    }
    if (http_offload(request, gzip_job_run, job, gzip_job_destroy, gzip_then_packed) < 0) {
        if (answer->owned != NULL)
            job->bytes = NULL;
        gzip_job_destroy(job);
        return false;
    }
    answer->owned = NULL;
    answer->body = (struct span){ NULL, 0 };
    return true;
}

bool http_gzip_consider(struct http_request *request)
{
    struct http_answer *answer = &request->answer;
    size_t size = 0;
    char *packed;

    if (answer->is_file || answer->is_gzip || answer->body.size < WORTH_MIN ||
        answer->body.size > WORTH_MAX || !is_compressible(answer->type) || has_promise(answer))
        return false;
    answer->vary = true;
    if (request->method == HTTP_HEAD || !http_accepts(request, "gzip"))
        return false;
    if (answer->body.size >= OFFLOAD_MIN)
        return gzip_offload(request);
    packed = http_gzip(answer->body.at, answer->body.size, &size);
    if (packed == NULL)
        return false;
    base_free(answer->owned);
    answer->owned = packed;
    answer->body = (struct span){ packed, size };
    answer->is_gzip = true;
    return false;
}
