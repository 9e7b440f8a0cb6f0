/* SPDX-License-Identifier: Apache-2.0 */
#include "../sql/place.h"
#include "mx_client.h"

#define REFRESHABLE ",\"refresh_token\":\"r0\",\"expires_in_ms\":60000"

/* ---- discovery -------------------------------------------------------------------------------- */

static int discover(const char *url, uint32_t status, const char *well_known, char *ret_address)
{
    struct mxclient_session session;
    struct mxclient_request request;
    int rc;

    mxclient_session_init(&session, mx_stage_random(), &mx_client_key);
    rc = mxclient_session_discover(&session, span_of(url));
    if (rc == 0) {
        CHECK(mxclient_session_next(&session, &request));
        CHECK_EQ_INT(request.call, MXCLIENT_WELL_KNOWN);
        rc = mx_client_answer(&session, &request, status, well_known, 0);
        CHECK_EQ_INT(session.state, rc == 0 ? MXCLIENT_CHECKING : MXCLIENT_NEW);
        snprintf(ret_address, 100, "%.*s", (int)session.homeserver.size, session.homeserver.bytes);
    }
    mxclient_session_fini(&session);
    return rc;
}

TEST(session, well_known_leads_to_the_homeserver)
{
    char address[100];

    CHECK_EQ_INT(discover("https://x.org/", 404, "", address), 0);
    CHECK_EQ_STR(address, "https://x.org");
    CHECK_EQ_INT(discover("https://x.org", 200,
                     "{\"m.homeserver\":{\"base_url\":\"https://m.x.org:8448/\"}}", address),
        0);
    CHECK_EQ_STR(address, "https://m.x.org:8448");
}

TEST(session, a_broken_well_known_is_refused)
{
    static const char *const bodies[] = { "{}", "{\"m.homeserver\":1}",
        "{\"m.homeserver\":{\"base_url\":\"http://plain.org\"}}",
        "{\"m.homeserver\":{\"base_url\":\"https://\"}}",
        "{\"m.homeserver\":{\"base_url\":\"https://a@b\"}}",
        "{\"m.homeserver\":{\"base_url\":\"https://x\\u0000y\"}}",
        "{\"m.homeserver\":{\"base_url\":\"file:///etc\"}}" };
    char address[100];

    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        CHECK_EQ_INT(discover("https://x.org", 200, bodies[i], address), TR_EPROTO);
    CHECK_EQ_INT(discover("x.org", 0, "", address), TR_EINVAL);
    CHECK_EQ_INT(discover("", 0, "", address), TR_EINVAL);
}

TEST(session, a_server_without_a_known_version_is_refused)
{
    struct mxclient_session session;
    struct mxclient_request request;

    mxclient_session_init(&session, mx_stage_random(), &mx_client_key);
    CHECK_EQ_INT(mxclient_session_discover(&session, SPAN("http://localhost:8008")), 0);
    CHECK_EQ_INT(mxclient_session_discover(&session, SPAN("http://localhost:8008")), TR_EBUSY);
    CHECK(mxclient_session_next(&session, &request));
    CHECK_EQ_INT(mx_client_answer(&session, &request, 404, "", 0), 0);
    CHECK(mxclient_session_next(&session, &request));
    CHECK_EQ_INT(mx_client_answer(&session, &request, 200, "{\"versions\":[\"r0.6.1\",1]}", 0),
        TR_EUNSUPPORTED);
    CHECK_EQ_INT(session.state, MXCLIENT_NEW);
    mxclient_session_fini(&session);
}

/* ---- login ------------------------------------------------------------------------------------ */

TEST(session, a_login_names_the_device_and_gives_tokens)
{
    struct mxclient_session session;

    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", REFRESHABLE, 1000), 0);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    CHECK_EQ_U64(session.device_id.size, 10);
    CHECK_EQ_INT(session.token_expires_ms, 61000);
    CHECK_EQ_INT(session.token_refresh_ms, 31000);
    mxclient_session_fini(&session);
}

TEST(session, a_login_whose_answer_is_wrong_is_denied_and_repeats_with_the_same_device)
{
    static const char *const bodies[] = {
        "{}", "{\"access_token\":\"t\"}",
        "{\"user_id\":\"@ada:x\",\"device_id\":\"OTHER\",\"access_token\":\"t\"}",
        "{\"user_id\":\"ada\",\"device_id\":\"%s\",\"access_token\":\"t\"}",
        "{\"user_id\":\"@ada:x\",\"device_id\":\"%s\",\"access_token\":\"\"}",
        "{\"user_id\":\"@ada:x\",\"device_id\":\"%s\",\"access_token\":\"t\\r\\nX: y\"}",
        "{\"user_id\":\"@ada:x\",\"device_id\":\"%s\",\"access_token\":\"t\",\"refresh_token\":1}"
    };
    struct mxclient_login login = { .user = SPAN("ada"), .password = SPAN("p") };
    struct mxclient_session session;
    struct mxclient_request request;
    char body[200], device[11];
    const char *mark;

    mx_client_discover(&session);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        CHECK_EQ_INT(mxclient_session_login(&session, &login, &request), 0);
        if (i == 0)
            memcpy(device, session.device_id.bytes, 10);
        device[10] = '\0';
        CHECK(span_is(mxclient_span(&session.device_id), device));
        mark = strstr(bodies[i], "%s");
        snprintf(body, sizeof body, "%s", bodies[i]);
        if (mark != NULL)
            snprintf(body, sizeof body, "%.*s%s%s", (int)(mark - bodies[i]), bodies[i], device,
                mark + 2);
        CHECK_EQ_INT(mx_client_answer(&session, &request, 200, body, 0), TR_EPROTO);
        CHECK_EQ_INT(session.state, MXCLIENT_SIGNED_OUT);
        CHECK_EQ_U64(session.access_token.size, 0);
    }
    CHECK_EQ_INT(mxclient_session_login(&session, &login, &request), 0);
    CHECK_EQ_INT(
        mx_client_answer(&session, &request, 403, "{\"errcode\":\"M_FORBIDDEN\"}", 0), TR_EACCES);
    mxclient_session_fini(&session);
}

TEST(session, a_login_without_a_whole_answer_is_not_called_refused)
{
    struct mxclient_login login = { .user = SPAN("ada"), .password = SPAN("p") };
    struct mxclient_session session;
    struct mxclient_request request;

    mx_client_discover(&session);
    CHECK_EQ_INT(mxclient_session_login(&session, &login, &request), 0);
    CHECK_EQ_INT(mx_client_answer(&session, &request, 200, "{\"user_id\":\"@a", 0), TR_EPROTO);
    CHECK_EQ_INT(mxclient_session_login(&session, &login, &request), 0);
    CHECK_EQ_INT(mx_client_answer(&session, &request, 503, "{}", 0), TR_EIO);
    CHECK_EQ_INT(session.state, MXCLIENT_SIGNED_OUT);
    mxclient_session_fini(&session);
}

TEST(session, a_password_is_in_the_request_alone)
{
    struct mxclient_login login = { .user = SPAN("ada"), .password = SPAN("hunter\"2") };
    struct mxclient_session session;
    struct mxclient_request request;
    char text[400];

    mx_client_discover(&session);
    CHECK_EQ_INT(mxclient_session_login(&session, &login, &request), 0);
    snprintf(text, sizeof text,
        "{\"type\":\"m.login.password\",\"identifier\":{\"type\":\"m.id.user\",\"user\":\"ada\"},"
        "\"password\":\"hunter\\\"2\",\"device_id\":\"%.*s\",\"refresh_token\":true}",
        (int)session.device_id.size, session.device_id.bytes);
    mx_stage_check_text(&request.body, text);
    mxclient_request_fini(&request);
    mxclient_session_fini(&session);
}

/* ---- tokens ----------------------------------------------------------------------------------- */

static const struct mxclient_outcome soft = { .verdict = MXCLIENT_TOKEN, .is_soft_logout = true };
static const struct mxclient_outcome hard = { .verdict = MXCLIENT_TOKEN };

TEST(session, two_refused_requests_make_one_refresh)
{
    struct mxclient_session session;
    struct mxclient_request first = { .call = MXCLIENT_SEND }, second = { .call = MXCLIENT_SYNC };
    struct mxclient_request refresh;

    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", REFRESHABLE, 0), 0);
    mxclient_session_stamp(&session, &first);
    mxclient_session_stamp(&session, &second);
    CHECK_EQ_INT(mxclient_session_refused(&session, &first, &soft), MXCLIENT_REPEAT_WAIT);
    CHECK_EQ_INT(session.state, MXCLIENT_REFRESHING);
    CHECK_EQ_INT(mxclient_session_refused(&session, &second, &soft), MXCLIENT_REPEAT_WAIT);
    CHECK(mxclient_session_next(&session, &refresh));
    mx_stage_check_text(&refresh.body, "{\"refresh_token\":\"r0\"}");
    CHECK_EQ_INT(mx_client_answer(&session, &refresh, 200,
                     "{\"access_token\":\"t1\",\"refresh_token\":\"r1\"}", 5),
        0);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mx_stage_check_text(&session.access_token, "t1");
    /* A third refusal of the former token comes late. */
    CHECK_EQ_INT(mxclient_session_refused(&session, &second, &soft), MXCLIENT_REPEAT_NOW);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mxclient_session_fini(&session);
}

TEST(session, a_refresh_that_gets_no_answer_does_not_log_out)
{
    struct mxclient_session session;
    struct mxclient_request refresh;
    struct mxclient_outcome lost = { .verdict = MXCLIENT_REFUSED, .error = TR_EIO };

    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", REFRESHABLE, 0), 0);
    mxclient_session_tick(&session, 29999);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mxclient_session_tick(&session, 30000);
    CHECK_EQ_INT(session.state, MXCLIENT_REFRESHING);
    CHECK(mxclient_session_next(&session, &refresh));
    CHECK_EQ_INT(mxclient_session_answered(&session, &refresh, &lost, NULL, 30001), TR_EIO);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mxclient_session_tick(&session, 30002);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE); /* it waits for a refusal */
    mxclient_request_fini(&refresh);
    mxclient_session_fini(&session);
}

TEST(session, short_tokens_are_not_replaced_at_once)
{
    struct mxclient_session session;

    mx_client_discover(&session);
    CHECK_EQ_INT(
        mx_client_login(&session, "@ada:x", ",\"refresh_token\":\"r\",\"expires_in_ms\":2000", 500),
        0);
    CHECK_EQ_INT(session.token_refresh_ms, 1500);
    mxclient_session_fini(&session);
}

/* A server that gives tokens of a millisecond must not keep the client refreshing. */
TEST(session, a_token_is_not_replaced_within_a_second)
{
    struct mxclient_session session;

    mx_client_discover(&session);
    CHECK_EQ_INT(
        mx_client_login(&session, "@ada:x", ",\"refresh_token\":\"r\",\"expires_in_ms\":1", 500),
        0);
    CHECK_EQ_INT(mxclient_session_due_ms(&session), 1500);
    mxclient_session_fini(&session);
}

TEST(session, is_due_only_while_it_has_a_token_that_it_can_replace)
{
    struct mxclient_session session;

    mx_client_discover(&session);
    CHECK_EQ_INT(mxclient_session_due_ms(&session), INT64_MAX);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", ",\"expires_in_ms\":60000", 0), 0);
    CHECK_EQ_INT(mxclient_session_due_ms(&session), INT64_MAX);
    mxclient_session_fini(&session);
    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", REFRESHABLE, 0), 0);
    CHECK_EQ_INT(mxclient_session_due_ms(&session), 30000);
    mxclient_session_tick(&session, 30000);
    CHECK_EQ_INT(mxclient_session_due_ms(&session), INT64_MAX);
    mxclient_session_fini(&session);
}

/* The token still counts: requests do not wait for a server that does not answer. */
TEST(session, an_early_refresh_has_one_attempt)
{
    struct mxclient_answer silence = { .failed = TR_ETIMEOUT };
    struct mxclient_session session;
    struct mxclient_request request = { .call = MXCLIENT_SYNC }, refresh;
    struct mxclient_outcome outcome;
    struct json_doc doc = { 0 };

    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", REFRESHABLE, 0), 0);
    mxclient_session_tick(&session, 30000);
    CHECK(mxclient_session_next(&session, &refresh));
    mxclient_request_judge(&refresh, &silence, mx_stage_random(), &doc, &outcome);
    CHECK_EQ_INT(outcome.verdict, MXCLIENT_REFUSED);
    CHECK_EQ_INT(mxclient_session_answered(&session, &refresh, &outcome, NULL, 30001), TR_ETIMEOUT);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mxclient_request_fini(&refresh);
    /* After a refusal the token does not count any more: that refresh is repeated. */
    mxclient_session_stamp(&session, &request);
    CHECK_EQ_INT(mxclient_session_refused(&session, &request, &soft), MXCLIENT_REPEAT_WAIT);
    CHECK(mxclient_session_next(&session, &refresh));
    mxclient_request_judge(&refresh, &silence, mx_stage_random(), &doc, &outcome);
    CHECK_EQ_INT(outcome.verdict, MXCLIENT_LATER);
    mxclient_request_fini(&refresh);
    json_doc_free(&doc);
    mxclient_session_fini(&session);
}

TEST(session, lifetimes_out_of_range_mean_no_expiry)
{
    static const char *const values[] = { "-1", "9223372036854775807", "1e300", "\"60\"", "null" };
    char more[100];

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct mxclient_session session;

        mx_client_discover(&session);
        snprintf(more, sizeof more, ",\"refresh_token\":\"r\",\"expires_in_ms\":%s", values[i]);
        CHECK_EQ_INT(mx_client_login(&session, "@ada:x", more, 1), 0);
        CHECK_EQ_INT(session.token_expires_ms, 0);
        mxclient_session_fini(&session);
    }
}

TEST(session, a_soft_logout_keeps_device_and_keys_and_logs_in_again)
{
    struct mxclient_session session;
    struct mxclient_request request = { .call = MXCLIENT_SYNC };
    struct mx_key key;

    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", "", 0), 0);
    key = *mx_account_identity_key(session.account);
    mxclient_session_stamp(&session, &request);
    CHECK_EQ_INT(mxclient_session_refused(&session, &request, &soft), MXCLIENT_REPEAT_WAIT);
    CHECK_EQ_INT(session.state, MXCLIENT_SOFT_OUT);
    CHECK_EQ_U64(session.access_token.size, 0);
    CHECK_EQ_INT(mx_client_login(&session, "@eve:x", "", 0), TR_EPROTO); /* another user */
    CHECK_EQ_INT(session.state, MXCLIENT_SOFT_OUT);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", "", 0), 0);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    CHECK(mx_key_equal(&key, mx_account_identity_key(session.account)));
    mxclient_session_fini(&session);
}

TEST(session, a_refused_refresh_ends_softly_only_if_the_server_says_so)
{
    static const struct {
        const struct mxclient_outcome *first;
        const char *body;
        enum mxclient_state state;
    } rows[] = {
        { &hard, "{\"errcode\":\"M_UNKNOWN_TOKEN\"}", MXCLIENT_ENDED },
        { &soft, "{\"errcode\":\"M_UNKNOWN_TOKEN\"}", MXCLIENT_SOFT_OUT },
        { &hard, "{\"errcode\":\"M_UNKNOWN_TOKEN\",\"soft_logout\":true}", MXCLIENT_SOFT_OUT },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mxclient_session session;
        struct mxclient_request request = { .call = MXCLIENT_SYNC };

        mx_client_discover(&session);
        CHECK_EQ_INT(mx_client_login(&session, "@ada:x", REFRESHABLE, 0), 0);
        mxclient_session_stamp(&session, &request);
        CHECK_EQ_INT(
            mxclient_session_refused(&session, &request, rows[i].first), MXCLIENT_REPEAT_WAIT);
        CHECK(mxclient_session_next(&session, &request));
        CHECK_EQ_INT(mx_client_answer(&session, &request, 401, rows[i].body, 0), 0);
        CHECK_EQ_INT(session.state, rows[i].state);
        CHECK_EQ_U64(session.refresh_token.size, 0);
        mxclient_session_fini(&session);
    }
}

TEST(session, an_early_refresh_that_is_refused_waits_for_the_token_to_end)
{
    struct mxclient_outcome refused = { .verdict = MXCLIENT_REFUSED, .status = 403 };
    struct mxclient_outcome ended = { .verdict = MXCLIENT_TOKEN, .is_soft_logout = true };
    struct mxclient_session session;
    struct mxclient_request request = { 0 }, refresh;

    mx_client_discover(&session);
    CHECK_EQ_INT(
        mx_client_login(&session, "@ada:x", ",\"refresh_token\":\"r\",\"expires_in_ms\":60000", 0),
        0);
    mxclient_session_tick(&session, 30000);
    CHECK(mxclient_session_next(&session, &refresh));
    CHECK_EQ_INT(mxclient_session_answered(&session, &refresh, &refused, NULL, 30001), 0);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mxclient_request_fini(&refresh);
    mxclient_session_tick(&session, 30002);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mxclient_session_stamp(&session, &request);
    CHECK_EQ_INT(mxclient_session_refused(&session, &request, &ended), MXCLIENT_REPEAT_WAIT);
    CHECK(mxclient_session_next(&session, &refresh));
    CHECK_EQ_INT(mxclient_session_answered(&session, &refresh, &refused, NULL, 60001), 0);
    CHECK_EQ_INT(session.state, MXCLIENT_SOFT_OUT);
    mxclient_request_fini(&refresh);
    mxclient_session_fini(&session);
}

TEST(session, a_hard_logout_says_what_is_kept)
{
    struct mxclient_session session;
    struct mxclient_request request = { .call = MXCLIENT_SYNC };

    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", "", 0), 0);
    mxclient_session_stamp(&session, &request);
    CHECK_EQ_INT(mxclient_session_refused(&session, &request, &hard), MXCLIENT_REPEAT_NEVER);
    CHECK_EQ_INT(session.state, MXCLIENT_ENDED);
    CHECK(strstr(mxclient_state_text(session.state), "outbox") != NULL);
    CHECK(!mxclient_session_next(&session, &request));
    mxclient_session_fini(&session);
}

TEST(session, a_logout_ends_and_an_unreached_one_does_not)
{
    struct mxclient_session session;
    struct mxclient_request request;
    struct mxclient_outcome lost = { .verdict = MXCLIENT_REFUSED, .error = TR_EIO };

    mx_client_discover(&session);
    CHECK_EQ_INT(mxclient_session_logout(&session), TR_EBUSY);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", "", 0), 0);
    CHECK_EQ_INT(mxclient_session_logout(&session), 0);
    CHECK(mxclient_session_next(&session, &request));
    CHECK_EQ_INT(mxclient_session_answered(&session, &request, &lost, NULL, 0), TR_EIO);
    CHECK_EQ_INT(session.state, MXCLIENT_ACTIVE);
    mxclient_request_fini(&request);
    CHECK_EQ_INT(mxclient_session_logout(&session), 0);
    CHECK(mxclient_session_next(&session, &request));
    CHECK_EQ_INT(mx_client_answer(&session, &request, 200, "{}", 0), 0);
    CHECK_EQ_INT(session.state, MXCLIENT_ENDED);
    mxclient_session_fini(&session);
}

/* ---- disk ------------------------------------------------------------------------------------- */

static void open_place(struct place *place)
{
    struct sql_options options;

    place_init_in_memory(place);
    place_system(place);
    options = (struct sql_options){
        .url = place->url, .migrations = mxstore_migrations, .migration_count = MXSTORE_MIGRATIONS
    };
    CHECK_EQ_INT(place_try_open(place, &options), 0);
}

TEST(session, a_stored_session_continues_and_its_tokens_are_sealed)
{
    struct mxclient_session session, again;
    struct mxstore_session row;
    struct sql_unit *unit = sql_unit_create(0);
    struct place place;
    char text[MXCLIENT_TXN_BYTES];

    open_place(&place);
    mx_client_discover(&session);
    CHECK_EQ_INT(mx_client_login(&session, "@ada:x", REFRESHABLE, 0), 0);
    CHECK(span_is(mxclient_session_txn(&session, text), "m1"));
    CHECK_EQ_INT(mxclient_session_put(&session, unit), 0);
    CHECK_EQ_INT(sql_write_wait(place.sql, unit), 0);
    sql_unit_destroy(unit);

    unit = sql_unit_create(0);
    mxstore_get(unit, MXSTORE_IS_session, SPAN(""));
    CHECK_EQ_INT(sql_read_wait(place.sql, unit), 0);
    mxstore_row(unit, 0, 0, MXSTORE_IS_session, &row);
    CHECK(!span_is(row.access_token, "t0"));
    CHECK(!span_is(row.refresh_token, "r0"));
    mxclient_session_init(&again, mx_stage_random(), &mx_client_key);
    CHECK_EQ_INT(mxclient_session_load(&again, &row, 0), 0);
    sql_unit_destroy(unit);
    CHECK_EQ_INT(again.state, MXCLIENT_ACTIVE);
    mx_stage_check_text(&again.refresh_token, "r0");
    CHECK_EQ_INT(again.token_refresh_ms, 30000);
    CHECK(span_is(mxclient_session_txn(&again, text), "m2"));
    CHECK(mx_key_equal(
        mx_account_identity_key(session.account), mx_account_identity_key(again.account)));
    mxclient_session_fini(&session);
    mxclient_session_fini(&again);
    place_finish(&place);
}
