/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of OpenID users over HTTP, from the ID token to the end of the session. */
#include "test_session.h"

#include <troupe/supervisor.h>

/* ---- signing in ----------------------------------------------------------------------------- */

static void sign_in_and_out(bool postgres)
{
    struct provider_key rsa, curve;
    struct registry registry;
    struct session_site site;
    struct pair one, two, again;

    site_begin(&site, &registry, postgres);
    provider_key_rs256(&rsa, "rsa-1");
    provider_key_es256(&curve, "curve-1");
    provider_publish(&registry, &rsa, &curve);

    one = site_sign_in(&site, &rsa, &(struct id_token){ .email = "one@example.com" });
    two = site_sign_in(
        &site, &curve, &(struct id_token){ .sub = "two", .email = "boss@EXAMPLE.com" });
    check_answer(site_get(&site, "/v1/users/me", one.access), 200, "\"email\":\"one@example.com\"");
    check_answer(site_get(&site, "/v1/users/me", one.access), 200, "\"role\":\"user\"");
    check_answer(site_get(&site, "/v1/users/me", two.access), 200, "\"role\":\"admin\"");
    check_answer(site_get(&site, "/admin", one.access), 403, "Forbidden");
    check_answer(site_get(&site, "/admin", two.access), 200, "");
    check_answer(site_get(&site, "/service", one.access), 401, "IssuerRefused");
    CHECK_EQ_INT(registry_asked(&registry), 1);

    again = pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", one.refresh));
    CHECK(strcmp(again.refresh, one.refresh) != 0);
    check_answer(site_get(&site, "/v1/users/me", again.access), 200, "one@example.com");
    check_answer(site_post(&site, "/v1/auth/logout", "refreshToken", again.refresh), 200, "{}");
    check_answer(site_get(&site, "/v1/users/me", again.access), 401, "SessionEnded");
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", again.refresh), 401, "SessionEnded");
    check_answer(site_get(&site, "/v1/users/me", two.access), 200, "\"role\":\"admin\"");

    provider_key_end(&rsa);
    provider_key_end(&curve);
    site_end(&site, &registry);
}

TEST(session, from_id_token_to_logout)
{
    sign_in_and_out(false);
}

static void sign_in_silently(bool postgres)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair pair;

    site_begin(&site, &registry, postgres);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
    atomic_store(&silent, true);
    site_refuses(&site, &key, &(struct id_token){ 0 }, 504, "OutcomeUnknown");
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", pair.refresh), 504, "OutcomeUnknown");
    check_answer(
        site_post(&site, "/v1/auth/logout", "refreshToken", pair.refresh), 504, "OutcomeUnknown");
    atomic_store(&silent, false);
    CHECK_EQ_STR(office_ask(&site.office, pair.access).label, "SessionEnded");
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, what_may_be_stored_is_504)
{
    sign_in_silently(false);
}

TEST_LONG(session, what_may_be_stored_is_504_on_postgresql, 60)
{
    sign_in_silently(true);
}

TEST_LONG(session, from_id_token_to_logout_on_postgresql, 60)
{
    sign_in_and_out(true);
}

TEST(session, keys_are_fetched_in_the_trace_of_the_sign_in_that_needs_them)
{
    struct buffer body = { 0 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    char *token;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "curve-1");
    provider_publish(&registry, &key, NULL);
    token = id_token(&key, &(struct id_token){ .email = "one@example.com" });
    buffer_format(&body, "{\"idToken\":\"%s\"}", token);
    check_answer(web_ask(http_server_address(site.server), "POST", "/v1/auth/example",
                     "Content-Type: application/json\r\ntraceparent: "
                     "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
                     text_of(&body)),
        200, "accessToken");
    CHECK_EQ_INT(registry_asked(&registry), 1);
    CHECK_MSG(strncmp(registry.traceparent, "00-0af7651916cd43dd8448eb211c80319c-", 36) == 0,
        "the provider was sent '%s'", registry.traceparent);
    buffer_free(&body);
    base_free(token);
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, an_id_token_is_taken_under_either_name)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct buffer body = { 0 };
    char *token;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    token = id_token(&key, &(struct id_token){ 0 });
    (void)pair_of(site_post(&site, "/v1/auth/example", "id_token", token));
    check_answer(site_post(&site, "/v1/auth/example", "id_token", ""), 400, "id_token");
    check_answer(site_post(&site, "/v1/auth/example", "IdToken", token), 400, "idToken");
    check_answer(site_post(&site, "/v1/auth/refresh", "id_token", token), 400, "refreshToken");
    base_free(token);
    /* Of both the first name counts. */
    token = id_token(&key, &(struct id_token){ 0 });
    buffer_format(&body, "{\"id_token\":\"nonsense\",\"idToken\":\"%s\"}", token);
    (void)pair_of(web_ask(http_server_address(site.server), "POST", "/v1/auth/example",
        "Content-Type: application/json\r\n", text_of(&body)));
    buffer_free(&body);
    base_free(token);
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, so_many_id_tokens_of_an_address_and_then_a_while_none)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair pair;
    char *token;

    site_begin(&site, &registry, false);
    site_close(&site);
    site.sign_ins = (struct tr_rate){ .count = 1, .period_ns = TR_SECONDS(3600), .burst = 3 };
    site_open(&site);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
    /* A bad ID token counts against the rate; a request without one does not. */
    check_answer(site_post(&site, "/v1/auth/example", "idToken", "nonsense"), 401, "");
    check_answer(site_post(&site, "/v1/auth/example", "token", "x"), 400, "idToken");
    check_answer(site_post(&site, "/v1/auth/nobody", "idToken", "x"), 404, "UnknownProvider");
    site_sign_in(&site, &key, &(struct id_token){ 0 });
    token = id_token(&key, &(struct id_token){ 0 });
    check_answer(site_post(&site, "/v1/auth/example", "idToken", token), 429, "RateLimitExceeded");
    check_answer(site_post(&site, "/v1/auth/example", "idToken", token), 429, "Retry-After: 3");
    /* The rate does not stop a signed-in user. */
    check_answer(site_get(&site, "/v1/users/me", pair.access), 200, "\"role\":\"user\"");
    (void)pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", pair.refresh));
    base_free(token);
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, what_is_wrong_with_an_id_token_is_said)
{
    static const struct {
        struct id_token with;
        const char *label;
    } rows[] = {
        { { .aud = "\"client-2\"" }, "AudienceMismatch" },
        { { .aud = "[\"client-2\",\"client-3\"]" }, "AudienceMismatch" },
        { { .aud = "[\"" CLIENT_ID "\",\"client-2\"]" },
            "AudienceMismatch" }, /* two audiences and no azp */
        { { .aud = "[\"" CLIENT_ID "\",\"client-2\"]", .azp = "client-2" }, "AudienceMismatch" },
        { { .iss = "https://evil.example.com" }, "IssuerRefused" },
        { { .iss = PROVIDER "/" }, "IssuerRefused" },
        { { .sub = "" }, "SubjectMissing" },
        { { .age_s = 3601 }, "TokenExpired" },
        { { .age_s = 3600 }, "TokenExpired" },
        { { .age_s = -31 }, "IssuedInFuture" },
        { { .life_s = 86401 }, "ExpiryTooFar" },
        { { .kid = "another" }, "KeyIdRefused" },
    };
    struct provider_key key, other, edwards = { .kid = "key-1" };
    struct registry registry;
    struct session_site site;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_key_es256(&other, "key-1");
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_EDDSA, &edwards.key), 0);
    provider_publish(&registry, &key, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        site_refuses(&site, &key, &rows[i].with, 401, rows[i].label);
    site_refuses(&site, &other, &(struct id_token){ 0 }, 401, "SignatureMismatch");
    site_refuses(&site, &edwards, &(struct id_token){ 0 }, 401, "AlgorithmRefused");
    check_answer(site_post(&site, "/v1/auth/example", "idToken", "x.y"), 401, "TokenForm");
    check_answer(site_post(&site, "/v1/auth/example", "token", "x.y.z"), 400, "InvalidRequest");
    check_answer(site_post(&site, "/v1/auth/nobody", "idToken", "x.y.z"), 404, "UnknownProvider");
    /* tokens that are right */
    (void)site_sign_in(&site, &key,
        &(struct id_token){ .aud = "[\"" CLIENT_ID "\",\"client-2\"]", .azp = CLIENT_ID });
    (void)site_sign_in(&site, &key, &(struct id_token){ .age_s = 3599 });
    (void)site_sign_in(&site, &key, &(struct id_token){ .no_kid = true }); /* the set has one key */
    provider_key_end(&key);
    provider_key_end(&other);
    provider_key_end(&edwards);
    site_end(&site, &registry);
}

TEST(session, the_nonce_must_be_the_one_of_the_sign_in)
{
    static const struct {
        const char *in_token, *in_body;
        unsigned status;
    } rows[] = {
        { "n-1", "n-1", 200 },
        { "n-1", "n-2", 401 },
        { "n-1", "n-11", 401 },
        { NULL, "n-1", 401 },
        { "n-1", NULL, 200 },
    };
    struct provider_key key;
    struct registry registry;
    struct session_site site;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *token = id_token(&key, &(struct id_token){ .nonce = rows[i].in_token });
        struct buffer text = { 0 };

        buffer_text(&text, token);
        if (rows[i].in_body != NULL)
            buffer_format(&text, "\",\"nonce\":\"%s", rows[i].in_body);
        check_answer(site_post(&site, "/v1/auth/example", "idToken", text_of(&text)),
            rows[i].status, rows[i].status == 401 ? "NonceMismatch" : "accessToken");
        buffer_free(&text);
        base_free(token);
    }
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, an_address_that_was_not_verified_gives_no_role)
{
    static const char *const not_verified[] = { "false", "\"true\"", "1", "null" };
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair pair;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    for (size_t i = 0; i < sizeof not_verified / sizeof not_verified[0]; i++) {
        struct web_answer answer;

        pair = site_sign_in(&site, &key,
            &(struct id_token){ .email = "boss@example.com", .verified = not_verified[i] });
        check_answer(site_get(&site, "/admin", pair.access), 403, "Forbidden");
        answer = site_get(&site, "/v1/users/me", pair.access);
        CHECK(strstr(answer.text, "email") == NULL);
        web_answer_free(&answer);
    }
    /* A role that is lost is lost for tokens that were cached with it. */
    pair = site_sign_in(&site, &key, &(struct id_token){ .email = "boss@example.com" });
    check_answer(site_get(&site, "/admin", pair.access), 200, "");
    (void)site_sign_in(&site, &key, &(struct id_token){ .email = "former@example.com" });
    check_answer(site_get(&site, "/admin", pair.access), 403, "Forbidden");
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, an_id_token_makes_one_session_however_many_bring_it)
{
    enum { MANY = 12 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    char *token, text[4096];
    int fds[MANY], size, made = 0, replayed = 0;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    token = id_token(&key, &(struct id_token){ 0 });
    size = snprintf(text, sizeof text,
        "POST /v1/auth/example HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Length: %zu\r\n\r\n{\"idToken\":\"%s\"}",
        strlen(token) + strlen("{\"idToken\":\"\"}"), token);
    CHECK(size > 0 && (size_t)size < sizeof text);
    for (int i = 0; i < MANY; i++)
        fds[i] = web_connect(http_server_address(site.server));
    for (int i = 0; i < MANY; i++)
        web_send(fds[i], text, (size_t)size);
    for (int i = 0; i < MANY; i++) {
        struct web_answer answer;

        web_receive(fds[i], &answer);
        made += answer.status == 200;
        replayed += answer.status == 401 && strstr(answer.text, "TokenReplayed") != NULL;
        web_answer_free(&answer);
        close(fds[i]);
    }
    CHECK_EQ_INT(made, 1);
    CHECK_EQ_INT(replayed, MANY - 1);
    CHECK_EQ_INT(registry_asked(&registry), 1); /* all of them waited for one fetch */
    site_close(&site);
    site_open(&site);
    check_answer(site_post(&site, "/v1/auth/example", "idToken", token), 401, "TokenReplayed");
    base_free(token);
    provider_key_end(&key);
    site_end(&site, &registry);
}

/* ---- sessions ------------------------------------------------------------------------------- */

static void refresh_twice(bool postgres)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair first, second, third, other;

    site_begin(&site, &registry, postgres);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    other = site_sign_in(&site, &key, &(struct id_token){ 0 });

    first = site_sign_in(&site, &key, &(struct id_token){ 0 });
    second = pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", first.refresh));
    check_answer(site_get(&site, "/v1/users/me", second.access), 200, "role");
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", first.refresh), 401, "SessionEnded");
    check_answer(site_get(&site, "/v1/users/me", second.access), 401, "SessionEnded");
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", second.refresh), 401, "SessionEnded");

    /* A token that is two rotations old also ends the session. */
    first = site_sign_in(&site, &key, &(struct id_token){ 0 });
    second = pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", first.refresh));
    third = pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", second.refresh));
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", first.refresh), 401, "SessionEnded");
    check_answer(site_get(&site, "/v1/users/me", third.access), 401, "SessionEnded");
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", third.refresh), 401, "SessionEnded");

    /* The same user's other session is not concerned. */
    check_answer(site_get(&site, "/v1/users/me", other.access), 200, "role");
    (void)pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", other.refresh));
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, a_refresh_token_that_comes_again_ends_its_session)
{
    refresh_twice(false);
}

TEST_LONG(session, a_refresh_token_that_comes_again_ends_its_session_on_postgresql, 60)
{
    refresh_twice(true);
}

TEST(session, a_refresh_token_that_was_made_up_ends_nothing)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair pair, next;
    char bad[256];

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
    for (size_t i = 0; i < strlen(pair.refresh); i += 7) {
        memcpy(bad, pair.refresh, sizeof bad);
        bad[i] = bad[i] == 'a' ? 'b' : 'a';
        check_answer(
            site_post(&site, "/v1/auth/refresh", "refreshToken", bad), 401, "SessionEnded");
        check_answer(site_post(&site, "/v1/auth/logout", "refreshToken", bad), 401, "SessionEnded");
    }
    memcpy(bad, pair.refresh, sizeof bad);
    bad[strlen(bad) - 1] = '\0';
    check_answer(site_post(&site, "/v1/auth/refresh", "refreshToken", bad), 401, "SessionEnded");
    check_answer(site_post(&site, "/v1/auth/refresh", "refreshToken", "x"), 401, "SessionEnded");
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", pair.access), 401, "SessionEnded");
    next = pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", pair.refresh));
    check_answer(site_get(&site, "/v1/users/me", next.access), 200, "role");
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, of_two_refreshes_at_once_at_most_one_wins_and_the_session_ends)
{
    enum { MANY = 4, ROUNDS = 5 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        struct pair pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
        int fds[MANY], won = 0;
        char text[1024];
        int size = snprintf(text, sizeof text,
            "POST /v1/auth/refresh HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Content-Length: %zu\r\n\r\n{\"refreshToken\":\"%s\"}",
            strlen(pair.refresh) + strlen("{\"refreshToken\":\"\"}"), pair.refresh);

        for (int i = 0; i < MANY; i++)
            fds[i] = web_connect(http_server_address(site.server));
        for (int i = 0; i < MANY; i++)
            web_send(fds[i], text, (size_t)size);
        for (int i = 0; i < MANY; i++) {
            struct web_answer answer;

            web_receive(fds[i], &answer);
            CHECK(answer.status == 200 || answer.status == 401);
            won += answer.status == 200;
            web_answer_free(&answer);
            close(fds[i]);
        }
        CHECK_EQ_INT(won, 1);
        check_answer(site_get(&site, "/v1/users/me", pair.access), 401, "SessionEnded");
    }
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, logout_counts_at_once_for_a_token_that_was_cached)
{
    enum { ROUNDS = 30 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        struct pair pair = site_sign_in(&site, &key, &(struct id_token){ 0 });

        check_answer(site_get(&site, "/v1/users/me", pair.access), 200, "role");
        CHECK(office_knows(&site.office, pair.access));
        check_answer(site_post(&site, "/v1/auth/logout", "refreshToken", pair.refresh), 200, "{}");
        CHECK(!office_knows(&site.office, pair.access));
        check_answer(site_get(&site, "/v1/users/me", pair.access), 401, "SessionEnded");
        check_answer(site_post(&site, "/v1/auth/logout", "refreshToken", pair.refresh), 200, "{}");
    }
    provider_key_end(&key);
    site_end(&site, &registry);
}

/* Requests and the logout race. Whatever answer a request got, after the logout's answer the cache holds
 * no token of the session. */
TEST(session, a_session_that_is_read_while_it_ends_is_not_cached)
{
    enum { ROUNDS = 40, READERS = 3 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        struct pair pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
        struct tr_future *futures[READERS];

        for (int k = 0; k < READERS; k++)
            futures[k] = office_send(&site.office, pair.access);
        check_answer(site_post(&site, "/v1/auth/logout", "refreshToken", pair.refresh), 200, "{}");
        for (int k = 0; k < READERS; k++)
            (void)office_verdict(&futures[k]);
        CHECK(!office_knows(&site.office, pair.access));
        CHECK_EQ_STR(office_ask(&site.office, pair.access).label, "SessionEnded");
    }
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, what_cannot_be_told_to_the_verifier_makes_it_forget_everybody)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair pair;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
    CHECK_EQ_INT(office_ask(&site.office, pair.access).verdict, VERDICT_OK);
    CHECK(office_knows(&site.office, pair.access));
    base_fault_countdown(1, 1000000);
    auth_forget(site.office.auth, SPAN("somebody"));
    base_fault_countdown(0, 0);
    CHECK(!office_knows(&site.office, pair.access));
    CHECK_EQ_INT(office_ask(&site.office, pair.access).verdict, VERDICT_OK);
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, an_access_token_lives_fifteen_minutes_and_a_refresh_token_thirty_days)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair pair, late;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
    check_answer(site_get(&site, "/v1/users/me", pair.access), 200, "role");
    pass_s(AUTH_SESSION_TOKEN_S - 1);
    check_answer(site_get(&site, "/v1/users/me", pair.access), 200, "role");
    pass_s(1);
    check_answer(site_get(&site, "/v1/users/me", pair.access), 401, "TokenExpired");
    pair = pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", pair.refresh));
    check_answer(site_get(&site, "/v1/users/me", pair.access), 200, "role");
    pass_s(AUTH_SESSION_LIFE_S - 1);
    pair = pair_of(site_post(&site, "/v1/auth/refresh", "refreshToken", pair.refresh));
    late = pair;
    pass_s(AUTH_SESSION_LIFE_S);
    check_answer(
        site_post(&site, "/v1/auth/refresh", "refreshToken", late.refresh), 401, "SessionEnded");
    provider_key_end(&key);
    site_end(&site, &registry);
}

TEST(session, a_restart_keeps_sessions_and_takes_roles_from_the_settings)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct pair boss, clerk;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    boss = site_sign_in(&site, &key, &(struct id_token){ .email = "boss@example.com" });
    clerk =
        site_sign_in(&site, &key, &(struct id_token){ .sub = "2", .email = "Clerk@example.com" });
    check_answer(site_get(&site, "/admin", boss.access), 200, "");
    check_answer(site_get(&site, "/admin", clerk.access), 403, "Forbidden");
    site_close(&site);
    site.admins[0] = "clerk@example.com";
    site_open(&site);
    check_answer(site_get(&site, "/admin", boss.access), 403, "Forbidden");
    check_answer(site_get(&site, "/admin", clerk.access), 200, "");
    check_answer(site_post(&site, "/v1/auth/refresh", "refreshToken", boss.refresh), 200,
        "\"role\":\"user\"");
    provider_key_end(&key);
    site_end(&site, &registry);
}

/* ---- the provider's keys -------------------------------------------------------------------- */

TEST(session, a_new_key_is_fetched_when_a_token_names_it_at_most_once_a_minute)
{
    struct provider_key one, two, three;
    struct registry registry;
    struct session_site site;

    site_begin(&site, &registry, false);
    provider_key_es256(&one, "one");
    provider_key_es256(&two, "two");
    provider_key_es256(&three, "three");
    provider_publish(&registry, &one, NULL);
    (void)site_sign_in(&site, &one, &(struct id_token){ 0 });
    provider_publish(&registry, &one, &two);
    for (int i = 0; i < 10; i++)
        site_refuses(&site, &two, &(struct id_token){ 0 }, 401, "KeyIdRefused");
    CHECK_EQ_INT(registry_asked(&registry), 1);
    pass_s(59);
    site_refuses(&site, &two, &(struct id_token){ 0 }, 401, "KeyIdRefused");
    pass_s(1);
    (void)site_sign_in(&site, &two, &(struct id_token){ 0 });
    (void)site_sign_in(&site, &one, &(struct id_token){ 0 });
    CHECK_EQ_INT(registry_asked(&registry), 2);
    provider_publish(&registry, &two, &three);
    pass_s(60);
    (void)site_sign_in(&site, &three, &(struct id_token){ 0 });
    CHECK_EQ_INT(registry_asked(&registry), 3);
    site_refuses(&site, &one, &(struct id_token){ 0 }, 401, "KeyIdRefused"); /* it was removed */
    CHECK_EQ_INT(registry_asked(&registry), 3);
    provider_key_end(&one);
    provider_key_end(&two);
    provider_key_end(&three);
    site_end(&site, &registry);
}

static void write_keys(const struct session_site *site, const char *text)
{
    FILE *file = fopen(site->provider.keys_file, "w");

    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK_EQ_INT(fclose(file), 0);
}

static void write_key(const struct session_site *site, const struct provider_key *key)
{
    struct buffer set = { 0 };

    buffer_format(&set, "{\"keys\":[%s]}", key->jwk);
    write_keys(site, text_of(&set));
    buffer_free(&set);
}

TEST(session, keys_of_a_file_are_what_was_last_loaded_and_nothing_is_fetched)
{
    struct provider_key one, two;
    struct registry registry;
    struct session_site site;
    char path[128], why[256] = "";

    site_begin(&site, &registry, false);
    site_close(&site);
    (void)snprintf(path, sizeof path, "%s/keys.json", site.place);
    site.provider.keys_url = NULL;
    site.provider.keys_file = path;
    site_open(&site);
    provider_key_es256(&one, "one");
    provider_key_rs256(&two, "two");
    site_refuses(&site, &one, &(struct id_token){ 0 }, 503, "ProviderUnavailable");
    CHECK_EQ_INT(sessions_load_keys(site.sessions, why, sizeof why), TR_ENOENT);
    CHECK_MSG(strncmp(why, path, strlen(path)) == 0, "%s", why);

    write_key(&site, &one);
    CHECK_EQ_INT(sessions_load_keys(site.sessions, why, sizeof why), 0);
    (void)site_sign_in(&site, &one, &(struct id_token){ 0 });
    site_refuses(&site, &two, &(struct id_token){ 0 }, 401, "KeyIdRefused");
    pass_s(UINT64_C(7) * 86400); /* a file does not go stale */
    (void)site_sign_in(&site, &one, &(struct id_token){ 0 });

    write_keys(&site, "{\"keys\":[{\"kty\":\"EC\"}]}");
    CHECK(sessions_load_keys(site.sessions, why, sizeof why) < 0);
    CHECK_MSG(strstr(why, "no key that can be used") != NULL, "%s", why);
    (void)site_sign_in(&site, &one, &(struct id_token){ 0 });

    write_key(&site, &two);
    CHECK_EQ_INT(sessions_load_keys(site.sessions, why, sizeof why), 0);
    (void)site_sign_in(&site, &two, &(struct id_token){ 0 });
    site_refuses(&site, &one, &(struct id_token){ 0 }, 401, "KeyIdRefused");
    CHECK_EQ_INT(registry_asked(&registry), 0);
    provider_key_end(&one);
    provider_key_end(&two);
    site_end(&site, &registry);
}

TEST(session, a_provider_that_is_down_is_asked_seldom_and_its_keys_serve_for_a_day)
{
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    unsigned asked;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    registry_says(&registry, "500 Internal", "");
    for (int i = 0; i < 5; i++)
        site_refuses(&site, &key, &(struct id_token){ 0 }, 503, "ProviderUnavailable");
    CHECK_EQ_INT(registry_asked(&registry), 1);
    registry_says(&registry, "200 OK", "{\"keys\":[]}");
    pass_s(10);
    site_refuses(&site, &key, &(struct id_token){ 0 }, 503, "ProviderUnavailable");
    CHECK_EQ_INT(registry_asked(&registry), 2);
    provider_publish(&registry, &key, NULL);
    pass_s(10);
    (void)site_sign_in(&site, &key, &(struct id_token){ 0 });
    CHECK_EQ_INT(registry_asked(&registry), 3);

    registry_says(&registry, "500 Internal", "");
    pass_s(3599);
    (void)site_sign_in(&site, &key, &(struct id_token){ 0 });
    CHECK_EQ_INT(registry_asked(&registry), 3);
    pass_s(1);
    for (int i = 0; i < 5; i++)
        (void)site_sign_in(&site, &key, &(struct id_token){ 0 });
    asked = registry_asked(&registry);
    CHECK_EQ_INT(asked, 4);
    pass_s(86399);
    (void)site_sign_in(&site, &key, &(struct id_token){ 0 });
    pass_s(1);
    site_refuses(&site, &key, &(struct id_token){ 0 }, 503, "ProviderUnavailable");
    provider_publish(&registry, &key, NULL);
    pass_s(10);
    (void)site_sign_in(&site, &key, &(struct id_token){ 0 });
    provider_key_end(&key);
    site_end(&site, &registry);
}

/* ---- ends ----------------------------------------------------------------------------------- */

TEST(session, killed_with_work_everywhere_it_leaves_nothing)
{
    enum { MANY = 12, ROUNDS = 5 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        struct tr_future *futures[MANY];

        for (int i = 0; i < MANY; i++) {
            struct session_message message = { .kind = SESSION_EXCHANGE };

            message.text = id_token(&key, &(struct id_token){ 0 });
            message.text_size = strlen(message.text);
            CHECK_EQ_INT(
                tr_ask_future(site.sessions->actor, &message, sizeof message, 0, &futures[i]), 0);
        }
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(site.sessions->actor)), 0);
        for (int i = 0; i < MANY; i++) {
            (void)tr_future_wait(futures[i], NULL, 0, NULL, 0);
            tr_future_drop(&futures[i]);
        }
        site_close(&site);
        site_open(&site);
    }
    provider_key_end(&key);
    site_end(&site, &registry);
}

static unsigned exchange_with(tr_sender actor, const struct provider_key *key)
{
    struct session_message message = { .kind = SESSION_EXCHANGE };
    struct session_answer answer = { 0 };

    message.text = id_token(key, &(struct id_token){ 0 });
    message.text_size = strlen(message.text);
    CHECK_EQ_INT(tr_ask_wait(actor, &message, sizeof message, &answer, sizeof answer, 0), 0);
    return answer.status;
}

/* The same actor under a supervisor: a restart goes through its reset hook. */
TEST(session, restarted_it_begins_empty_and_works)
{
    enum { MANY = 8, ROUNDS = 5 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    struct sessions_actor state = { 0 };
    tr_sender supervised = { 0 }, supervisor = { 0 };
    struct tr_child child = { .name = "sessions",
        .type = &sessions_type,
        .state = &state,
        .restart = TR_PERMANENT,
        .ret_sender = &supervised };
    struct tr_supervisor table = {
        .name = "site", .children = &child, .child_count = 1, .restarts_max = 1000
    };

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    state.sessions = site.sessions;
    CHECK_EQ_INT(tr_supervise(site.office.system, &table, "test", &supervisor), 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct tr_future *futures[MANY];

        for (int i = 0; i < MANY; i++) {
            struct session_message message = { .kind = SESSION_EXCHANGE };

            message.text = id_token(&key, &(struct id_token){ 0 });
            message.text_size = strlen(message.text);
            CHECK_EQ_INT(tr_ask_future(supervised, &message, sizeof message, 0, &futures[i]), 0);
        }
        CHECK_EQ_INT(tr_kill(tr_sender_weaken(supervised)), 0);
        for (int i = 0; i < MANY; i++) {
            (void)tr_future_wait(futures[i], NULL, 0, NULL, 0);
            tr_future_drop(&futures[i]);
        }
        CHECK_EQ_INT(exchange_with(supervised, &key), 200);
    }
    CHECK(registry_asked(&registry) > 1); /* keys went with the life that had them */
    tr_sender_drop(&supervised);
    tr_sender_drop(&supervisor);
    provider_key_end(&key);
    site_end(&site, &registry);
}

/* ---- out of memory -------------------------------------------------------------------------- */

/* The status of the answer when the n-th fallible call fails; 0 if it could not be asked. */
static unsigned ask_with_fault(
    struct session_site *site, enum session_kind kind, const char *text, uint64_t countdown)
{
    struct session_message message = { .kind = kind, .text_size = strlen(text) };
    struct tr_future *future = NULL;
    union {
        struct session_answer answer;
        char bytes[8192];
    } room = { 0 };
    int rc;

    message.text = base_strdup(text);
    CHECK(message.text != NULL);
    base_fault_countdown(countdown, 1);
    rc = tr_ask_future(site->sessions->actor, &message, sizeof message, 0, &future);
    if (rc == 0)
        rc = tr_future_wait(future, &room, sizeof room, NULL, 0);
    else
        base_free(message.text);
    (void)base_fault_countdown(0, 0);
    tr_future_drop(&future);
    return rc == 0 ? room.answer.status : 0;
}

TEST_LONG(session, any_call_may_fail_and_the_next_request_works, 120)
{
    enum { FAULTS = 60 };
    struct provider_key key;
    struct registry registry;
    struct session_site site;
    unsigned failed = 0;

    site_begin(&site, &registry, false);
    provider_key_es256(&key, "key-1");
    provider_publish(&registry, &key, NULL);
    for (uint64_t n = 1; n <= FAULTS; n++) {
        char *token = id_token(&key, &(struct id_token){ 0 });
        struct pair pair;
        unsigned status = ask_with_fault(&site, SESSION_EXCHANGE, token, n);

        CHECK_MSG(status == 200 || status == 503 || status == 0, "exchange %u", status);
        pass_s(3600); /* so that the key set is fetched again next time */
        base_free(token);
        pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
        status = ask_with_fault(&site, SESSION_REFRESH, pair.refresh, n);
        CHECK_MSG(status == 200 || status == 503 || status == 0, "refresh %u", status);
        pair = site_sign_in(&site, &key, &(struct id_token){ 0 });
        status = ask_with_fault(&site, SESSION_LOGOUT, pair.refresh, n);
        CHECK_MSG(status == 200 || status == 503 || status == 0, "logout %u", status);
        if (status == 200)
            CHECK_EQ_STR(office_ask(&site.office, pair.access).label, "SessionEnded");
        failed += status != 200;
    }
    CHECK_MSG(failed >= 5, "only %u of the calls that failed were met", failed);
    provider_key_end(&key);
    site_end(&site, &registry);
}
