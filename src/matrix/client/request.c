/* SPDX-License-Identifier: Apache-2.0 */
/* request.c: requests as data and the verdicts on their answers (Matrix specification,
 * Client-Server API, "Standard error response", "Rate limiting"). */
#include "matrix/client/request.h"

#include <troupe/error.h>

#include "base/assert.h"

#define RULE(name, verb, template, class, timeout, kib, token)                                     \
    [MXCLIENT_##name] = { .method = #verb,                                                         \
        .path = (template),                                                                        \
        .retry = MXCLIENT_RETRY_##class,                                                           \
        .timeout_ms = (timeout),                                                                   \
        .answer_bytes_max = (size_t)(kib)*1024,                                                    \
        .has_token = (token) },
const struct mxclient_call_rule mxclient_call_rules[MXCLIENT_CALL_COUNT] = { MXCLIENT_CALLS(RULE) };

/* ---- writing ---------------------------------------------------------------------------------- */

/* Append the text with everything encoded but the unreserved characters of RFC 3986. */
static void request_put_encoded(struct buffer *out, struct span text)
{
    static const char hex[] = "0123456789ABCDEF";

    for (size_t i = 0; i < text.size; i++) {
        unsigned char byte = (unsigned char)text.at[i];
        bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');

        if (is_letter || (byte >= '0' && byte <= '9') || (byte != 0 && strchr("-._~", byte)))
            (void)buffer_append(out, &byte, 1);
        else
            (void)buffer_append(out, (char[]){ '%', hex[byte >> 4], hex[byte & 15] }, 3);
    }
}

void mxclient_request_init(
    struct mxclient_request *request, enum mxclient_call call, const struct span *parts)
{
    tr_assert(call < MXCLIENT_CALL_COUNT);
    *request = (struct mxclient_request){ .call = call,
        .target.size_max = MXCLIENT_TARGET_BYTES_MAX,
        .body.size_max = MXCLIENT_BODY_BYTES_MAX };
    for (const char *at = mxclient_call_rules[call].path; *at != '\0'; at++) {
        if (*at == '{') {
            tr_assert(at[1] == '}');
            tr_assert(parts != NULL && parts->size > 0);
            request_put_encoded(&request->target, *parts++);
            at++;
        } else
            (void)buffer_append(&request->target, at, 1);
    }
}

void mxclient_request_fini(struct mxclient_request *request)
{
    buffer_free(&request->target);
    mx_wipe_buffer(&request->body); /* a login has the password in it */
    *request = (struct mxclient_request){ 0 };
}

void mxclient_request_query(struct mxclient_request *request, const char *name, struct span value)
{
    const struct buffer *target = &request->target;
    bool is_first = target->size == 0 || memchr(target->bytes, '?', target->size) == NULL;

    if (value.at == NULL)
        return;
    (void)buffer_format(&request->target, "%c%s=", is_first ? '?' : '&', name);
    request_put_encoded(&request->target, value);
}

void mxclient_request_query_int(struct mxclient_request *request, const char *name, int64_t value)
{
    struct buffer digits = { 0 };

    if (buffer_i64(&digits, value) == 0)
        mxclient_request_query(request, name, (struct span){ digits.bytes, digits.size });
    else
        request->target.failed = digits.failed;
    buffer_free(&digits);
}

int mxclient_request_error(const struct mxclient_request *request)
{
    return request->target.failed != 0 ? request->target.failed : request->body.failed;
}

/* ---- ids -------------------------------------------------------------------------------------- */

bool mxclient_is_id(struct span text)
{
    if (text.size == 0 || text.size > MXCLIENT_ID_BYTES_MAX)
        return false;
    for (size_t i = 0; i < text.size; i++)
        if ((unsigned char)text.at[i] < 0x20 || text.at[i] == 0x7f)
            return false;
    return true;
}

bool mxclient_read_id(const struct json *value, struct span *ret_id)
{
    struct span text;

    if (!json_string(value, &text) || !mxclient_is_id(text))
        return false;
    *ret_id = text;
    return true;
}

/* ---- repairing -------------------------------------------------------------------------------- */

/* Replace each byte that is not part of a character by '?'; returns their number. */
static uint64_t request_repair_bytes(char *text, size_t size)
{
    uint64_t repaired = 0;

    for (size_t i = 0; i < size;) {
        unsigned char byte = (unsigned char)text[i];
        size_t length = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;

        if (length <= size - i && json_is_utf8((struct span){ text + i, length }))
            i += length;
        else {
            text[i++] = '?';
            repaired++;
        }
    }
    return repaired;
}

/* Read an escape of a surrogate; 0: it is something else. */
static unsigned request_surrogate(const char *text, size_t size)
{
    unsigned code = 0;

    if (size < 6 || text[0] != '\\' || text[1] != 'u')
        return 0;
    for (int i = 2; i < 6; i++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = text[i] == 0 ? NULL : strchr(digits, text[i]);

        if (digit == NULL)
            return 0;
        code = code << 4 | (unsigned)(digit - digits > 15 ? digit - digits - 6 : digit - digits);
    }
    return code >= 0xd800 && code < 0xe000 ? code : 0;
}

/* Replace each escape of a surrogate that has no other half; returns their number. */
static uint64_t request_repair_escapes(char *text, size_t size)
{
    static const char replacement[] = { 'f', 'f', 'f', 'd' };
    uint64_t repaired = 0;
    char *at;

    for (size_t i = 0; (at = memchr(text + i, '\\', size - i)) != NULL;) {
        unsigned code, next;

        i = (size_t)(at - text);
        code = request_surrogate(at, size - i);
        next = code == 0 ? 0 : request_surrogate(at + 6, size - i - 6);
        if (code != 0 && code < 0xdc00 && next >= 0xdc00)
            i += 12;
        else if (code != 0) {
            memcpy(at + 2, replacement, sizeof replacement);
            repaired++;
            i += 6;
        } else
            i += size - i < 2 ? 1 : 2;
    }
    return repaired;
}

/* Parse a body that may have to be repaired, in its own memory or in a copy. */
static int request_parse(
    const struct mxclient_answer *answer, struct json_doc *doc, uint64_t *ret_repaired)
{
    bool is_utf8 = json_is_utf8(answer->body);
    struct buffer copy = { 0 };
    char *text = answer->text;
    int rc;

    if (answer->body.size == 0)
        return TR_EPROTO;
    if (text == NULL) {
        rc = buffer_span(&copy, answer->body);
        if (rc != 0)
            return rc;
        text = copy.bytes;
    }
    *ret_repaired = is_utf8 ? 0 : request_repair_bytes(text, answer->body.size);
    *ret_repaired += request_repair_escapes(text, answer->body.size);
    rc = answer->text != NULL ? json_parse(doc, text, answer->body.size, 0)
                              : json_parse_copy(doc, (struct span){ text, answer->body.size }, 0);
    mx_wipe_buffer(&copy); /* it may have a token in it */
    return rc;
}

/* ---- judging ---------------------------------------------------------------------------------- */

static uint64_t request_random_below(const struct mx_random *random, uint64_t bound)
{
    uint64_t number = 0;

    random->fill(random->data, &number, sizeof number);
    return number % bound;
}

/* Double the wait with each attempt; the upper half of it is random, so that clients that failed
 * together do not come back together. */
static uint64_t request_backoff_ms(uint32_t attempts, const struct mx_random *random)
{
    uint64_t wait = MXCLIENT_BACKOFF_MAX_MS;

    tr_assert(attempts > 0);
    if (attempts < 8 && (MXCLIENT_BACKOFF_MIN_MS << (attempts - 1)) < MXCLIENT_BACKOFF_MAX_MS)
        wait = (uint64_t)MXCLIENT_BACKOFF_MIN_MS << (attempts - 1);
    return wait / 2 + request_random_below(random, wait / 2 + 1);
}

/* Return the larger of Retry-After, in seconds, and retry_after_ms; 0 without a usable one. */
static uint64_t request_asked_wait_ms(struct span retry_after, const struct json *body)
{
    uint64_t seconds = 0;
    int64_t ms = 0;
    uint64_t wait;

    if (!span_u64(span_trimmed(retry_after), &seconds))
        seconds = 0; /* also a date: the back-off is good enough */
    if (!json_int(json_get(body, "retry_after_ms"), &ms) || ms < 0)
        ms = 0;
    wait = seconds > MXCLIENT_WAIT_MAX_MS / 1000 ? MXCLIENT_WAIT_MAX_MS : seconds * 1000;
    if ((uint64_t)ms > wait)
        wait = (uint64_t)ms;
    return wait > MXCLIENT_WAIT_MAX_MS ? MXCLIENT_WAIT_MAX_MS : wait;
}

static void request_copy_errcode(const struct json *body, struct mxclient_outcome *outcome)
{
    struct span text;

    if (json_string(json_get(body, "errcode"), &text) && text.size <= MXCLIENT_ERRCODE_BYTES_MAX &&
        mxclient_is_id(text))
        memcpy(outcome->errcode, text.at, text.size);
    if (json_string(json_get(body, "error"), &text) && text.size <= MXCLIENT_REASON_BYTES_MAX &&
        memchr(text.at, 0, text.size) == NULL)
        memcpy(outcome->reason, text.at, text.size);
}

void mxclient_outcome_explain(const struct mxclient_outcome *outcome, struct buffer *out)
{
    size_t size = strlen(outcome->reason);

    if (outcome->status == 0) {
        (void)buffer_text(out, "The homeserver did not answer.");
        return;
    }
    (void)buffer_format(out, "The homeserver answers with status %u", outcome->status);
    if (outcome->errcode[0] != 0)
        (void)buffer_format(out, ", %s", outcome->errcode);
    if (size > 0)
        (void)buffer_format(out, ": %s", outcome->reason);
    if (size == 0 || strchr(".!?", outcome->reason[size - 1]) == NULL)
        (void)buffer_text(out, ".");
}

static bool request_is_errcode(const struct mxclient_outcome *outcome, const char *errcode)
{
    return strcmp(outcome->errcode, errcode) == 0;
}

/* Return the verdict if the outcome of this attempt is unknown. */
static enum mxclient_verdict request_verdict_unknown(const struct mxclient_request *request)
{
    enum mxclient_retry retry = mxclient_call_rules[request->call].retry;

    if (retry == MXCLIENT_RETRY_NEVER)
        return MXCLIENT_REFUSED;
    if (retry == MXCLIENT_RETRY_BUDGET && request->attempts >= MXCLIENT_ATTEMPTS_MAX)
        return MXCLIENT_REFUSED;
    return MXCLIENT_LATER;
}

/* Judge by status and errcode. A body without JSON, as proxies send it, has an empty errcode. */
static enum mxclient_verdict request_verdict(
    const struct mxclient_request *request, const struct mxclient_outcome *outcome)
{
    /* An answer that was too big once stays too big. */
    if (outcome->error == TR_ETOOBIG)
        return MXCLIENT_REFUSED;
    if (outcome->status == 429 || request_is_errcode(outcome, "M_LIMIT_EXCEEDED") ||
        request_is_errcode(outcome, "M_USER_LOCKED"))
        return MXCLIENT_LATER;
    if (outcome->status == 200 && outcome->error == 0)
        return MXCLIENT_DONE;
    if (outcome->status == 401 && (request_is_errcode(outcome, "M_UNKNOWN_TOKEN") ||
                                      request_is_errcode(outcome, "M_MISSING_TOKEN")))
        return MXCLIENT_TOKEN;
    /* A cut 401 may have been about the token: it must not end what the request was for. */
    if (outcome->error != 0 &&
        (outcome->status == 0 || outcome->status == 200 || outcome->status == 401))
        return request_verdict_unknown(request);
    if (outcome->status >= 500 || outcome->status == 408)
        return request_verdict_unknown(request);
    return MXCLIENT_REFUSED;
}

void mxclient_request_judge(struct mxclient_request *request, const struct mxclient_answer *answer,
    const struct mx_random *random, struct json_doc *doc, struct mxclient_outcome *ret_outcome)
{
    struct mxclient_outcome outcome = { .error = answer->failed };
    const struct json *body = NULL;
    uint64_t asked_ms;

    tr_assert(request->call < MXCLIENT_CALL_COUNT);
    if (request->attempts < UINT32_MAX)
        request->attempts++;
    if (outcome.error == 0) {
        outcome.status = answer->status;
        doc->depth_max = JSON_DEPTH_MAX;
        if (answer->body.size > mxclient_call_rules[request->call].answer_bytes_max)
            outcome.error = TR_ETOOBIG;
        else
            outcome.error = request_parse(answer, doc, &outcome.repaired);
        if (outcome.error == 0)
            body = json_root(doc);
        if (outcome.error != TR_ETOOBIG && outcome.error != TR_ENOMEM &&
            json_kind(body) != JSON_OBJECT)
            outcome.error = TR_EPROTO;
    }
    request_copy_errcode(body, &outcome);
    if (!json_bool(json_get(body, "soft_logout"), &outcome.is_soft_logout))
        outcome.is_soft_logout = false;
    outcome.verdict = request_verdict(request, &outcome);
    if (outcome.verdict == MXCLIENT_LATER) {
        asked_ms = request_asked_wait_ms(answer->retry_after, body);
        outcome.wait_ms = asked_ms != 0 ? asked_ms : request_backoff_ms(request->attempts, random);
        tr_assert(outcome.wait_ms > 0);
    }
    *ret_outcome = outcome;
}
