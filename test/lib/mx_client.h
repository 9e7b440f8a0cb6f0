/* SPDX-License-Identifier: Apache-2.0 */
/* mx_client.h: what tests of matrix/client share: judged answers, logged-in sessions, a database. */
#ifndef TEST_LIB_MX_CLIENT_H
#define TEST_LIB_MX_CLIENT_H

#include <troupe/error.h>

#include "matrix/client/session.h"
#include "mx_stage.h"

static const struct mx_pickle_key mx_client_key = { { 7 } };

/* Judge an answer with this status and body. */
static inline struct mxclient_outcome mx_client_judge(
    struct mxclient_request *request, uint32_t status, const char *body, struct json_doc *doc)
{
    struct mxclient_answer answer = { .status = status, .body = span_of(body) };
    struct mxclient_outcome outcome;

    mxclient_request_judge(request, &answer, mx_stage_random(), doc, &outcome);
    return outcome;
}

/* Give a session the answer to its request and drop the request. */
static inline int mx_client_answer(struct mxclient_session *session,
    struct mxclient_request *request, uint32_t status, const char *body, int64_t now_ms)
{
    struct json_doc doc = { 0 };
    struct mxclient_outcome outcome = mx_client_judge(request, status, body, &doc);
    int rc = mxclient_session_answered(session, request, &outcome, json_root(&doc), now_ms);

    json_doc_free(&doc);
    mxclient_request_fini(request);
    return rc;
}

/* Discover a server and pass its checks; the session waits for a login. */
static inline void mx_client_discover(struct mxclient_session *session)
{
    struct mxclient_request request;

    mxclient_session_init(session, mx_stage_random(), &mx_client_key);
    CHECK_EQ_INT(mxclient_session_discover(session, SPAN("https://matrix.example/")), 0);
    CHECK(mxclient_session_next(session, &request));
    CHECK_EQ_INT(mx_client_answer(session, &request, 404, "", 0), 0);
    CHECK(mxclient_session_next(session, &request));
    CHECK_EQ_INT(mx_client_answer(session, &request, 200, "{\"versions\":[\"v1.11\"]}", 0), 0);
    CHECK_EQ_INT(session->state, MXCLIENT_SIGNED_OUT);
}

/* Log in; `more` are further members of the answer, each with a comma before it. */
static inline int mx_client_login(
    struct mxclient_session *session, const char *user, const char *more, int64_t now_ms)
{
    struct mxclient_login login = { .user = span_of(user), .password = SPAN("secret") };
    struct mxclient_request request;
    struct buffer body = { 0 };
    int rc;

    CHECK_EQ_INT(mxclient_session_login(session, &login, &request), 0);
    (void)buffer_format(&body,
        "{\"user_id\":\"%s\",\"device_id\":\"%.*s\",\"access_token\":\"t%llu\"%s}", user,
        (int)session->device_id.size, session->device_id.bytes,
        (unsigned long long)session->token_serial, more);
    (void)buffer_append(&body, "", 1);
    rc = mx_client_answer(session, &request, 200, body.bytes, now_ms);
    buffer_free(&body);
    return rc;
}

#endif
