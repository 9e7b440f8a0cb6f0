/* SPDX-License-Identifier: Apache-2.0 */
#include "peer_http.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <troupe/error.h>

void peer_fail(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    (void)vfprintf(stderr, format, values);
    va_end(values);
    (void)fputc('\n', stderr);
    exit(1);
}

static void transfer_set(CURLcode code)
{
    if (code != CURLE_OK)
        peer_fail("libcurl: %s", curl_easy_strerror(code));
}

static void transfer_header(struct peer_transfer *transfer, const char *name, struct span value)
{
    struct buffer line = { 0 };
    struct curl_slist *list;

    (void)buffer_format(&line, "%s%.*s", name, (int)value.size, value.at);
    (void)buffer_append(&line, "", 1);
    list = line.failed == 0 ? curl_slist_append(transfer->headers, line.bytes) : NULL;
    if (list == NULL)
        peer_fail("out of memory");
    transfer->headers = list;
    mx_wipe_buffer(&line);
}

static size_t transfer_take(char *bytes, size_t size, size_t count, void *data)
{
    struct peer_transfer *transfer = data;

    return buffer_append(&transfer->body, bytes, size * count) == 0 ? size * count : 0;
}

static size_t transfer_take_header(char *bytes, size_t size, size_t count, void *data)
{
    struct peer_transfer *transfer = data;
    struct span value, name, rest = { bytes, size * count };

    if (span_cut(&rest, ':', &name) && span_is_nocase(name, "retry-after") && rest.at != NULL) {
        value = span_trimmed(rest);
        while (value.size > 0 && (unsigned char)value.at[value.size - 1] <= ' ')
            value.size--;
        (void)snprintf(
            transfer->retry_after, sizeof transfer->retry_after, "%.*s", (int)value.size, value.at);
    }
    return size * count;
}

void peer_transfer_init(struct peer_transfer *transfer, const struct mxclient_session *session,
    const struct mxclient_request *request, const char *type)
{
    const struct mxclient_call_rule *rule = &mxclient_call_rules[request->call];
    bool has_body = strcmp(rule->method, "GET") != 0;

    if (transfer->easy == NULL)
        transfer->easy = curl_easy_init();
    if (transfer->easy == NULL)
        peer_fail("out of memory");
    curl_easy_reset(transfer->easy);
    curl_slist_free_all(transfer->headers);
    transfer->headers = NULL;
    transfer->retry_after[0] = '\0';
    buffer_clear(&transfer->body);
    transfer->body.size_max = rule->answer_bytes_max;
    buffer_clear(&transfer->url);
    (void)buffer_span(&transfer->url, mxclient_span(&session->homeserver));
    (void)buffer_span(&transfer->url, mxclient_span(&request->target));
    if (buffer_append(&transfer->url, "", 1) != 0)
        peer_fail("out of memory");
    if (rule->has_token)
        transfer_header(transfer, "Authorization: Bearer ", mxclient_span(&session->access_token));
    if (has_body)
        transfer_header(transfer, "Content-Type: ", span_of(type));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_URL, transfer->url.bytes));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_PROXY, ""));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_CUSTOMREQUEST, rule->method));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_TIMEOUT_MS, (long)rule->timeout_ms));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_HTTPHEADER, transfer->headers));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_WRITEFUNCTION, transfer_take));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_WRITEDATA, transfer));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_HEADERFUNCTION, transfer_take_header));
    transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_HEADERDATA, transfer));
    if (has_body) {
        transfer_set(curl_easy_setopt(
            transfer->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body.size));
        transfer_set(curl_easy_setopt(transfer->easy, CURLOPT_POSTFIELDS,
            request->body.size == 0 ? "" : request->body.bytes));
    }
}

struct mxclient_answer peer_transfer_answer(struct peer_transfer *transfer, CURLcode code)
{
    struct mxclient_answer answer = { .failed = code == CURLE_OK                   ? 0
                                                : code == CURLE_OPERATION_TIMEDOUT ? TR_ETIMEOUT
                                                : transfer->body.failed != 0       ? TR_ETOOBIG
                                                                                   : TR_EIO };
    long status = 0;

    if (code == CURLE_OK)
        transfer_set(curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status));
    answer.status = (uint32_t)status;
    answer.body = mxclient_span(&transfer->body);
    if (transfer->retry_after[0] != '\0')
        answer.retry_after = span_of(transfer->retry_after);
    return answer;
}

struct mxclient_answer peer_transfer_run(struct peer_transfer *transfer)
{
    return peer_transfer_answer(transfer, curl_easy_perform(transfer->easy));
}

void peer_transfer_fini(struct peer_transfer *transfer)
{
    curl_easy_cleanup(transfer->easy);
    curl_slist_free_all(transfer->headers);
    buffer_free(&transfer->url);
    buffer_free(&transfer->body);
    *transfer = (struct peer_transfer){ 0 };
}
