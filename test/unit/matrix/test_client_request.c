/* SPDX-License-Identifier: Apache-2.0 */
#include "mx_client.h"

/* ---- writing ---------------------------------------------------------------------------------- */

TEST(request, parts_and_parameters_are_encoded)
{
    struct span parts[] = { SPAN("!room/x:y"), SPAN("m.room.message"), SPAN("m1 ?\xc3\xa9") };
    struct mxclient_request request;

    mxclient_request_init(&request, MXCLIENT_SEND, parts);
    mxclient_request_query(&request, "since", SPAN("a&b=c"));
    mxclient_request_query(&request, "absent", (struct span){ NULL, 0 });
    mxclient_request_query_int(&request, "timeout", 30000);
    CHECK_EQ_INT(mxclient_request_error(&request), 0);
    mx_stage_check_text(&request.target,
        "/_matrix/client/v3/rooms/%21room%2Fx%3Ay/send/m.room.message/m1%20%3F%C3%A9"
        "?since=a%26b%3Dc&timeout=30000");
    mxclient_request_fini(&request);
}

TEST(request, too_long_target_is_an_error)
{
    struct mxclient_request request;
    static char text[4000];

    memset(text, '/', sizeof text);
    mxclient_request_init(&request, MXCLIENT_SYNC, NULL);
    mxclient_request_query(&request, "since", (struct span){ text, sizeof text });
    CHECK_EQ_INT(mxclient_request_error(&request), TR_ELIMIT);
    mxclient_request_fini(&request);
}

TEST_ABORTS(request, a_path_without_its_parts_is_a_bug, "parts")
{
    struct mxclient_request request;

    mxclient_request_init(&request, MXCLIENT_SEND, NULL);
}

/* ---- verdicts --------------------------------------------------------------------------------- */

static struct json_doc doc;

static struct mxclient_outcome judge(enum mxclient_call call, uint32_t status, const char *body)
{
    struct mxclient_request request = { .call = call };

    return mx_client_judge(&request, status, body, &doc);
}

static void explain_check(uint32_t status, const char *body, const char *sentence)
{
    struct mxclient_outcome outcome = judge(MXCLIENT_INVITE, status, body);
    struct buffer text = { 0 };

    mxclient_outcome_explain(&outcome, &text);
    (void)buffer_append(&text, "", 1);
    CHECK_EQ_STR(text.bytes, sentence);
    buffer_free(&text);
}

TEST(request, a_refusal_has_the_words_of_the_server)
{
    static char longer[MXCLIENT_REASON_BYTES_MAX + 64];

    explain_check(403, "{\"errcode\":\"M_FORBIDDEN\",\"error\":\"You are banned\"}",
        "The homeserver answers with status 403, M_FORBIDDEN: You are banned.");
    explain_check(403, "{\"errcode\":\"M_FORBIDDEN\",\"error\":\"You are banned.\"}",
        "The homeserver answers with status 403, M_FORBIDDEN: You are banned.");
    explain_check(404, "{\"errcode\":\"M_NOT_FOUND\"}",
        "The homeserver answers with status 404, M_NOT_FOUND.");
    explain_check(502, "<html>", "The homeserver answers with status 502.");
    explain_check(403, "{\"error\":\"a\\u0000b\"}", "The homeserver answers with status 403.");
    explain_check(403, "{\"error\":7}", "The homeserver answers with status 403.");
    memset(longer, 'x', sizeof longer - 1);
    memcpy(longer, "{\"error\":\"", 10);
    memcpy(longer + sizeof longer - 3, "\"}", 3);
    explain_check(403, longer, "The homeserver answers with status 403.");
}

TEST(request, every_answer_has_its_verdict)
{
    static const struct {
        enum mxclient_call call;
        uint32_t status;
        const char *body;
        enum mxclient_verdict verdict;
    } rows[] = {
        { MXCLIENT_SYNC, 200, "{}", MXCLIENT_DONE },
        { MXCLIENT_SYNC, 200, "{\"next_batch\":\"s1\",\"roo", MXCLIENT_LATER }, /* cut */
        { MXCLIENT_SYNC, 200, "", MXCLIENT_LATER },
        { MXCLIENT_SYNC, 200, "[]", MXCLIENT_LATER },
        { MXCLIENT_SYNC, 200, "{\"a\":\"\xff\"}", MXCLIENT_DONE }, /* repaired */
        { MXCLIENT_SYNC, 200, "{\"a\":\xff}", MXCLIENT_LATER },
        { MXCLIENT_LOGIN, 200, "{\"access_tok", MXCLIENT_REFUSED }, /* could act twice */
        { MXCLIENT_SEND, 429, "<html>", MXCLIENT_LATER },
        { MXCLIENT_LOGIN, 429, "{\"errcode\":\"M_LIMIT_EXCEEDED\"}", MXCLIENT_LATER },
        { MXCLIENT_SEND, 401, "{\"errcode\":\"M_USER_LOCKED\",\"soft_logout\":true}",
            MXCLIENT_LATER },
        { MXCLIENT_SEND, 401, "{\"errcode\":\"M_UNKNOWN_TOKEN\"}", MXCLIENT_TOKEN },
        { MXCLIENT_SEND, 401, "{\"errcode\":\"M_MISSING_TOKEN\"}", MXCLIENT_TOKEN },
        { MXCLIENT_SEND, 403, "{\"errcode\":\"M_FORBIDDEN\"}", MXCLIENT_REFUSED },
        { MXCLIENT_SEND, 413, "{\"errcode\":\"M_TOO_LARGE\"}", MXCLIENT_REFUSED },
        { MXCLIENT_SEND, 404, "<html>", MXCLIENT_REFUSED },
        { MXCLIENT_SEND, 302, "", MXCLIENT_REFUSED },
        { MXCLIENT_SEND, 502, "<html>", MXCLIENT_LATER },
        { MXCLIENT_SEND, 520, "{}", MXCLIENT_LATER },
        { MXCLIENT_SEND, 408, "", MXCLIENT_LATER },
        { MXCLIENT_LOGIN, 503, "{}", MXCLIENT_REFUSED },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mxclient_outcome outcome = judge(rows[i].call, rows[i].status, rows[i].body);

        CHECK_MSG(outcome.verdict == rows[i].verdict, "row %zu has verdict %d", i, outcome.verdict);
        CHECK_EQ_INT(outcome.wait_ms > 0, outcome.verdict == MXCLIENT_LATER);
    }
    json_doc_free(&doc);
}

TEST(request, characters_that_are_not_unicode_are_replaced_and_counted)
{
    static const struct {
        const char *text, *repaired;
        uint64_t count;
    } rows[] = {
        { "ok \xc3\xa9 \\ud83d\\ude00", "ok \xc3\xa9 \xf0\x9f\x98\x80", 0 },
        { "a\xff\xfe.", "a??.", 2 }, { "\xc3", "?", 1 },
        { "\xed\xa0\x80", "???", 3 }, /* a surrogate in UTF-8 */
        { "\xf0\x9f\x98.", "???.", 3 }, { "\\ud83d.", "\xef\xbf\xbd.", 1 },
        { "\\uDE00\\uD83d", "\xef\xbf\xbd\xef\xbf\xbd", 2 },
        { "\\\\ud83d", "\\ud83d", 0 }, /* a backslash and letters */
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            struct mxclient_request request = { .call = MXCLIENT_SYNC };
            char body[100 + JSON_PADDING_BYTES];
            struct mxclient_outcome outcome;
            struct mxclient_answer answer = { .status = 200 };
            struct span text;

            snprintf(body, sizeof body, "{\"a\":\"%s\"}", rows[i].text);
            answer.body = span_of(body);
            answer.text = in_place ? body : NULL;
            mxclient_request_judge(&request, &answer, mx_stage_random(), &doc, &outcome);
            CHECK_MSG(outcome.verdict == MXCLIENT_DONE, "row %zu", i);
            CHECK_EQ_U64(outcome.repaired, rows[i].count);
            CHECK(json_string(json_get(json_root(&doc), "a"), &text));
            CHECK_MSG(span_is(text, rows[i].repaired), "row %zu: %.*s", i, (int)text.size, text.at);
        }
    json_doc_free(&doc);
}

TEST(request, soft_logout_is_read_only_as_a_boolean)
{
    CHECK(judge(MXCLIENT_SYNC, 401, "{\"errcode\":\"M_UNKNOWN_TOKEN\",\"soft_logout\":true}")
              .is_soft_logout);
    CHECK(!judge(MXCLIENT_SYNC, 401, "{\"errcode\":\"M_UNKNOWN_TOKEN\",\"soft_logout\":\"true\"}")
               .is_soft_logout);
    json_doc_free(&doc);
}

TEST(request, an_errcode_of_any_size_does_no_harm)
{
    struct buffer body = { 0 };
    struct mxclient_outcome outcome;

    (void)buffer_text(&body, "{\"errcode\":\"");
    for (int i = 0; i < 1000; i++)
        (void)buffer_text(&body, "M_UNKNOWN_TOKEN");
    (void)buffer_append(&body, "\"}", 3);
    outcome = judge(MXCLIENT_SYNC, 401, body.bytes);
    CHECK_EQ_INT(outcome.verdict, MXCLIENT_REFUSED);
    CHECK_EQ_STR(outcome.errcode, "");
    outcome = judge(MXCLIENT_SYNC, 401, "{\"errcode\":\"M_UNKNOWN_TOKEN\\u0000\"}");
    CHECK_EQ_INT(outcome.verdict, MXCLIENT_REFUSED);
    buffer_free(&body);
    json_doc_free(&doc);
}

TEST(request, the_larger_wait_of_the_server_counts_within_bounds)
{
    static const struct {
        const char *header;
        const char *body;
        uint64_t wait_ms;
    } rows[] = {
        { "1", "{\"retry_after_ms\":527}", 1000 },
        { "1", "{\"retry_after_ms\":1527}", 1527 },
        { " 2 ", "{}", 2000 },
        { NULL, "{\"retry_after_ms\":9223372036854775807}", MXCLIENT_WAIT_MAX_MS },
        { "18446744073709551615", "{}", MXCLIENT_WAIT_MAX_MS },
    };
    static const char *const unusable[] = { "", "-1", "soon", "99999999999999999999999", "0" };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mxclient_request request = { .call = MXCLIENT_SEND };
        struct mxclient_answer answer = {
            .status = 429, .retry_after = span_of(rows[i].header), .body = span_of(rows[i].body)
        };
        struct mxclient_outcome outcome;

        mxclient_request_judge(&request, &answer, mx_stage_random(), &doc, &outcome);
        CHECK_EQ_U64(outcome.wait_ms, rows[i].wait_ms);
    }
    for (size_t i = 0; i < sizeof unusable / sizeof unusable[0]; i++) {
        struct mxclient_request request = { .call = MXCLIENT_SEND };
        struct mxclient_answer answer = { .status = 429,
            .retry_after = span_of(unusable[i]),
            .body = SPAN("{\"retry_after_ms\":-5}") };
        struct mxclient_outcome outcome;

        mxclient_request_judge(&request, &answer, mx_stage_random(), &doc, &outcome);
        CHECK(outcome.wait_ms >= MXCLIENT_BACKOFF_MIN_MS / 2);
        CHECK(outcome.wait_ms <= MXCLIENT_BACKOFF_MIN_MS);
    }
    json_doc_free(&doc);
}

TEST(request, back_off_grows_to_a_minute_and_never_ends_for_a_sync)
{
    struct mxclient_request request = { .call = MXCLIENT_SYNC };
    struct mxclient_answer lost = { .failed = TR_EIO };
    struct mxclient_outcome outcome;
    uint64_t first = 0, top = MXCLIENT_BACKOFF_MIN_MS;

    for (int i = 0; i < 200; i++) {
        mxclient_request_judge(&request, &lost, mx_stage_random(), &doc, &outcome);
        CHECK_EQ_INT(outcome.verdict, MXCLIENT_LATER);
        CHECK_EQ_INT(outcome.error, TR_EIO);
        CHECK(outcome.wait_ms >= top / 2 && outcome.wait_ms <= top);
        top = top * 2 > MXCLIENT_BACKOFF_MAX_MS ? MXCLIENT_BACKOFF_MAX_MS : top * 2;
        first = i == 190 ? outcome.wait_ms : first;
    }
    CHECK(first != outcome.wait_ms); /* jitter */
}

TEST(request, a_budget_ends)
{
    struct mxclient_request request = { .call = MXCLIENT_KEYS_CLAIM };
    struct mxclient_answer late = { .failed = TR_ETIMEOUT };
    struct mxclient_outcome outcome;

    for (int i = 1; i < MXCLIENT_ATTEMPTS_MAX; i++) {
        mxclient_request_judge(&request, &late, mx_stage_random(), &doc, &outcome);
        CHECK_EQ_INT(outcome.verdict, MXCLIENT_LATER);
    }
    mxclient_request_judge(&request, &late, mx_stage_random(), &doc, &outcome);
    CHECK_EQ_INT(outcome.verdict, MXCLIENT_REFUSED);
}

TEST(request, an_answer_over_its_limit_is_refused)
{
    size_t size = mxclient_call_rules[MXCLIENT_VERSIONS].answer_bytes_max + 1;
    struct mxclient_request request = { .call = MXCLIENT_VERSIONS };
    struct mxclient_answer answer = { .status = 200 };
    struct mxclient_outcome outcome;
    struct buffer body = { 0 };

    memset(buffer_reserve(&body, size), ' ', size);
    buffer_grew(&body, size);
    answer.body = mx_stage_span(&body);
    mxclient_request_judge(&request, &answer, mx_stage_random(), &doc, &outcome);
    CHECK_EQ_INT(outcome.verdict, MXCLIENT_REFUSED);
    CHECK_EQ_INT(outcome.error, TR_ETOOBIG);
    buffer_free(&body);
}
