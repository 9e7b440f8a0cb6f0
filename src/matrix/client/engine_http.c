/* SPDX-License-Identifier: Apache-2.0 */
/* engine_http.c: a request becomes one of http/client.h. Bodies that may be large come in a transfer
 * to memory, which the engine frees after it has read them; those of media go between a file and the
 * network. */
#include "matrix/client/engine_http.h"

#include <stdio.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/assert.h"

_Static_assert(HTTP_CLIENT_PADDING >= JSON_PADDING_BYTES, "bodies are parsed in place");

/* More than the loops of an engine: requests that it forgot end later. */
enum { HTTP_ASKS_MAX = 64, HTTP_STALL_S = 60 };

/* A request under way with a transfer. */
struct http_ask {
    uint32_t tag;
    struct http_client_transfer *transfer; /* NULL: the place is free */
};

struct mxengine_http {
    struct http_client *client;
    struct http_ask asks[HTTP_ASKS_MAX];
};

/* ---- asking ----------------------------------------------------------------------------------- */

/* Reserve a place for a transfer. TR_EFULL: requests that nobody waits for have not ended. */
static int http_add_transfer(struct mxengine_http *http,
    const struct http_client_transfer_options *options, uint32_t tag, struct http_ask **ret_ask)
{
    for (int i = 0; i < HTTP_ASKS_MAX; i++)
        if (http->asks[i].transfer == NULL) {
            http->asks[i].tag = tag;
            *ret_ask = &http->asks[i];
            return http_client_transfer_create(options, &http->asks[i].transfer);
        }
    return TR_EFULL;
}

/* Describe the transfer of a file. A download asks for the bytes that the file lacks. TR_EIO. */
static int http_describe_file(const struct mxengine_file *file, bool is_upload,
    struct http_client_transfer_options *ret_options)
{
    struct stat about;

    *ret_options =
        (struct http_client_transfer_options){ .kind = HTTP_CLIENT_FROM_FILE, .fd = file->fd };
    ret_options->size = file->size;
    if (is_upload)
        return 0;
    if (fstat(file->fd, &about) != 0)
        return TR_EIO;
    ret_options->kind = HTTP_CLIENT_TO_FILE;
    ret_options->size = 0;
    ret_options->offset = (uint64_t)about.st_size;
    return 0;
}

static int http_submit(struct tr_context *ctx, struct mxengine_http *http,
    const struct mxengine_call *call, struct http_client_request *request, uint32_t tag)
{
    const struct mxclient_call_rule *rule = &mxclient_call_rules[call->request->call];
    struct http_client_transfer_options options = { .kind = HTTP_CLIENT_TO_MEMORY, .fd = -1 };
    struct http_ask *ask = NULL;
    int rc = 0;

    request->timeout_ns = TR_MILLISECONDS(rule->timeout_ms);
    request->size_max = HTTP_CLIENT_ANSWER_MAX;
    if (call->file != NULL) {
        bool is_upload = call->request->call == MXCLIENT_UPLOAD;

        request->timeout_ns = 0; /* as long as it moves */
        request->stall_ns = TR_SECONDS(HTTP_STALL_S);
        if (!is_upload)
            request->size_max = call->file->size_max;
        rc = http_describe_file(call->file, is_upload, &options);
        if (rc == 0)
            rc = http_add_transfer(http, &options, tag, &ask);
    } else if (rule->answer_bytes_max > 64 << 10) {
        /* A large answer may take long, as long as it moves. */
        request->stall_ns = request->timeout_ns;
        request->timeout_ns = TR_SECONDS(3600);
        tr_assert(rule->answer_bytes_max <= HTTP_CLIENT_LARGE_MAX);
        request->size_max = rule->answer_bytes_max;
        rc = http_add_transfer(http, &options, tag, &ask);
    }
    request->transfer = ask != NULL ? ask->transfer : NULL;
    if (rc == 0)
        rc = http_client_ask(ctx, http->client, request, tag);
    if (rc != 0 && ask != NULL)
        http_client_transfer_destroy(&ask->transfer);
    return rc;
}

static int http_ask(
    void *data, struct tr_context *ctx, const struct mxengine_call *call, uint32_t tag)
{
    const struct mxclient_call_rule *rule = &mxclient_call_rules[call->request->call];
    const char *headers[] = { "Accept: application/json", "Content-Type: application/json", NULL,
        NULL };
    struct http_client_request request = { .method = rule->method,
        .headers = headers,
        .body = mxclient_span(&call->request->body),
        .redirects_max = call->request->call == MXCLIENT_WELL_KNOWN ? 3 : 0,
        .may_repeat = rule->retry != MXCLIENT_RETRY_NEVER };
    struct buffer url = { 0 }, token = { 0 };
    int rc;

    (void)buffer_span(&url, call->homeserver);
    (void)buffer_span(&url, mxclient_span(&call->request->target));
    rc = buffer_append(&url, "", 1);
    if (call->token.at != NULL) {
        (void)buffer_text(&token, "Authorization: Bearer ");
        (void)buffer_span(&token, call->token);
        rc = rc != 0 ? rc : buffer_append(&token, "", 1);
        headers[2] = token.bytes;
    }
    request.url = url.bytes;
    if (call->request->call == MXCLIENT_UPLOAD)
        headers[1] = "Content-Type: application/octet-stream";
    if (rc == 0)
        rc = http_submit(ctx, data, call, &request, tag);
    mx_wipe_buffer(&token);
    buffer_free(&url);
    return rc;
}

/* ---- answers ---------------------------------------------------------------------------------- */

static struct http_client_transfer *http_take_transfer(struct mxengine_http *http, uint32_t tag)
{
    for (int i = 0; i < HTTP_ASKS_MAX; i++)
        if (http->asks[i].transfer != NULL && http->asks[i].tag == tag) {
            struct http_client_transfer *transfer = http->asks[i].transfer;

            http->asks[i].transfer = NULL;
            return transfer;
        }
    return NULL;
}

/* The memory of an answer: the transfer of a large body, or a copy of a small one. */
struct http_memory {
    struct http_client_transfer *transfer;
    struct buffer copy;
};

static void http_take(void *data, const struct tr_event *event, struct mxengine_answer *ret_answer)
{
    const struct http_client_answer *answer = event->value;
    struct mxengine_answer taken = { .failed = event->status };
    struct http_memory *memory = base_calloc(sizeof *memory);
    struct http_client_transfer *transfer = http_take_transfer(data, event->tag);

    if (taken.failed == 0 && memory == NULL)
        taken.failed = TR_ENOMEM;
    if (taken.failed == 0) {
        taken.status = answer->status;
        if (answer->retry_after_s != UINT32_MAX)
            (void)snprintf(
                taken.retry_after, sizeof taken.retry_after, "%u", answer->retry_after_s);
        if (transfer != NULL && http_client_transfer_kind(transfer) == HTTP_CLIENT_TO_MEMORY) {
            memory->transfer = transfer;
            taken.text = http_client_transfer_text(transfer);
            transfer = NULL;
        }
        if (memory->transfer == NULL)
            taken.failed =
                buffer_span(&memory->copy, (struct span){ answer->body, answer->body_size });
        taken.body = memory->transfer != NULL ? http_client_transfer_body(memory->transfer)
                                              : mxclient_span(&memory->copy);
    }
    taken.memory = memory;
    http_client_transfer_destroy(&transfer);
    *ret_answer = taken;
}

static void http_drop(void *data, struct mxengine_answer *answer)
{
    struct http_memory *memory = answer->memory;

    (void)data;
    if (memory == NULL)
        return;
    http_client_transfer_destroy(&memory->transfer);
    mx_wipe_buffer(&memory->copy);
    base_free(memory);
    answer->memory = NULL;
}

static void http_forget(void *data, struct mxengine_answer *answer, struct span part)
{
    struct http_memory *memory = answer->memory;

    (void)data;
    http_client_transfer_forget(memory->transfer, part);
}

static void http_end(void *data)
{
    struct mxengine_http *http = data;

    for (int i = 0; i < HTTP_ASKS_MAX; i++)
        http_client_transfer_destroy(&http->asks[i].transfer);
}

static uint64_t http_progress(void *data, uint32_t tag, uint64_t *ret_total)
{
    struct mxengine_http *http = data;

    *ret_total = UINT64_MAX;
    for (int i = 0; i < HTTP_ASKS_MAX; i++)
        if (http->asks[i].transfer != NULL && http->asks[i].tag == tag)
            return http_client_transfer_progress(http->asks[i].transfer, ret_total);
    return 0;
}

/* ---- life ------------------------------------------------------------------------------------- */

int mxengine_http_create(struct http_client *client, struct mxengine_http **ret_http)
{
    struct mxengine_http *http = base_calloc(sizeof *http);

    if (http == NULL)
        return TR_ENOMEM;
    http->client = client;
    *ret_http = http;
    return 0;
}

void mxengine_http_destroy(struct mxengine_http **http)
{
    if (*http == NULL)
        return;
    for (int i = 0; i < HTTP_ASKS_MAX; i++)
        tr_assert((*http)->asks[i].transfer == NULL);
    base_free(*http);
    *http = NULL;
}

struct mxengine_transport mxengine_http_transport(struct mxengine_http *http)
{
    return (struct mxengine_transport){ .ask = http_ask,
        .take = http_take,
        .drop = http_drop,
        .end = http_end,
        .progress = http_progress,
        .forget = http_forget,
        .data = http };
}
