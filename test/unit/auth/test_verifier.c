/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier and the documents of issuers, which a scripted server has. The clock is the test's. */
#include "test_verifier.h"

#include <troupe/supervisor.h>

#include "http/http.h"
#include "web.h"

static const struct auth_options local = {
    .allow_private = true, .key_life_s = 300, .key_stale_s = 3600
};

/* ---- fetching ------------------------------------------------------------------------------- */

TEST(verifier, the_key_of_a_did_web_is_fetched_once_and_kept)
{
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    issuer_begin_web(&issuer, &registry);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    for (int i = 0; i < 5; i++)
        office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), 1);
    CHECK_EQ_STR(registry.path, "/.well-known/did.json");
    pass_s(299);
    office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), 1);
    pass_s(1); /* key_life_s */
    office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), 2);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

TEST(verifier, the_key_of_a_did_plc_comes_from_the_directory_of_the_settings)
{
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    office_accepts(&office, &issuer);
    CHECK_EQ_STR(registry.path, "/" PLC_DID);
    office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), 1);
    CHECK_EQ_INT(count_of("troupe_auth_fetches_total"), 1);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

TEST(verifier, many_tokens_of_one_issuer_at_once_cost_one_fetch)
{
    enum { MANY = 200 };
    struct tr_future *futures[MANY];
    char *tokens[MANY];
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry,
        &(struct auth_options){ .allow_private = true,
            .per_did = { .count = MANY, .period_ns = TR_SECONDS(1), .burst = MANY } });
    registry_hold(&registry, true);
    for (int i = 0; i < MANY; i++) {
        tokens[i] = issuer_token(&issuer);
        futures[i] = office_send(&office, tokens[i]);
    }
    registry_wait_asked(&registry, 1);
    registry_hold(&registry, false);
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ_INT(office_verdict(&futures[i]).verdict, VERDICT_OK);
        free(tokens[i]);
    }
    CHECK_EQ_INT(registry_asked(&registry), 1);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

#define TRACE_ID "0af7651916cd43dd8448eb211c80319c"
#define TRACEPARENT "traceparent: 00-" TRACE_ID "-b7ad6b7169203331-01\r\n"

static void say_who(struct http_request *request)
{
    http_respond(request, 200, "text/plain", auth_claims_of(request)->issuer);
}

/* Through a gate: GET sends the token when the verifier does not know it, POST at once. */
static void check_trace_of(enum http_method method, const char *name)
{
    const struct auth_demand demand = { .lxm = "com.example.read" };
    struct http_route route = {
        .method = method, .path = "/who", .handle = say_who, .gate = auth_gate, .demand = &demand
    };
    struct buffer headers = { 0 };
    struct http_server *server = NULL;
    struct registry registry;
    struct office office;
    struct issuer issuer;
    struct web_answer got;
    char why[128], *token;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    CHECK_EQ_INT(http_server_start(office.system,
                     &(struct http_server_options){ .listen = "127.0.0.1:0",
                         .routes = &route,
                         .route_count = 1,
                         .gate_service = office.auth,
                         .name = "test",
                         .quiet = true },
                     why, sizeof why, &server),
        0);
    token = issuer_token(&issuer);
    buffer_format(&headers, TRACEPARENT "Authorization: Bearer %s\r\n", token);
    CHECK_EQ_INT(buffer_append(&headers, "", 1), 0);
    got = web_ask(http_server_address(server), name, "/who", headers.bytes, "");
    CHECK_MSG(got.status == 200, "%s", got.text);
    CHECK_EQ_INT(registry_asked(&registry), 1);
    CHECK_MSG(strncmp(registry.traceparent, "00-" TRACE_ID "-", 36) == 0 &&
                  strcmp(registry.traceparent + 52, "-01") == 0,
        "the directory was sent '%s'", registry.traceparent);
    /* The parent of the directory's span is this request, not the span of its caller. */
    CHECK(strstr(registry.traceparent, "b7ad6b7169203331") == NULL);
    web_answer_free(&got);
    buffer_free(&headers);
    free(token);
    http_server_stop(&server);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

TEST(verifier, a_document_is_fetched_in_the_trace_of_the_request_that_needs_it)
{
    check_trace_of(HTTP_GET, "GET");
    check_trace_of(HTTP_POST, "POST");
}

TEST(verifier, more_askers_than_it_holds_for_one_token_are_shed_and_the_others_answered)
{
    enum { MANY = 1100, HELD = 1024 };
    struct tr_future *futures[MANY];
    struct registry registry;
    struct office office;
    struct issuer issuer;
    char *token;
    int good = 0, shed = 0;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry,
        &(struct auth_options){ .allow_private = true,
            .per_did = { .count = MANY, .period_ns = TR_SECONDS(1), .burst = MANY } });
    registry_hold(&registry, true);
    token = issuer_token(&issuer);
    for (int i = 0; i < MANY; i++)
        futures[i] = office_send(&office, token);
    CHECK(!office_knows(&office, token)); /* it has handled all that came before */
    registry_hold(&registry, false);
    for (int i = 0; i < MANY; i++) {
        struct verdict verdict = office_verdict(&futures[i]);

        good += verdict.verdict == VERDICT_OK;
        shed += verdict.verdict == VERDICT_FAILED && strcmp(verdict.label, "Overloaded") == 0;
    }
    CHECK_EQ_INT(good, HELD);
    CHECK_EQ_INT(shed, MANY - HELD);
    CHECK_EQ_INT(count_of("troupe_auth_cache_misses_total"), 1);
    free(token);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

/* ---- rotation ------------------------------------------------------------------------------- */

TEST(verifier, a_rotated_key_is_found_by_one_look_and_the_old_one_ends_with_what_it_signed)
{
    struct registry registry;
    struct office office;
    struct issuer issuer, old;
    char *before;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    before = issuer_token(&issuer);
    CHECK_EQ_INT(office_ask(&office, before).verdict, VERDICT_OK);
    CHECK(office_knows(&office, before));

    old = issuer;
    crypto_key_ref(old.key);
    issuer_new_key(&issuer, CRYPTO_EDDSA);
    issuer_publish(&issuer, &registry, "");
    pass_s(10);
    office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), 2);
    CHECK(!office_knows(&office, before));
    CHECK_EQ_STR(office_ask(&office, before).label, "AlgorithmMismatch");
    office_answers(&office, &old, VERDICT_REFUSED, "AlgorithmMismatch");
    office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), 2);
    free(before);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    crypto_key_unref(&old.key);
    registry_end(&registry);
}

TEST(verifier, bad_signatures_make_it_look_again_once_in_thirty_seconds)
{
    struct registry registry;
    struct office office;
    struct issuer issuer, forger;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_begin_plc(&forger);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    office_accepts(&office, &issuer);
    for (int i = 0; i < 20; i++)
        office_answers(&office, &forger, VERDICT_REFUSED, "SignatureMismatch");
    CHECK_EQ_INT(registry_asked(&registry), 2);
    pass_s(29);
    office_answers(&office, &forger, VERDICT_REFUSED, "SignatureMismatch");
    CHECK_EQ_INT(registry_asked(&registry), 2);
    pass_s(1);
    for (int i = 0; i < 20; i++)
        office_answers(&office, &forger, VERDICT_REFUSED, "SignatureMismatch");
    CHECK_EQ_INT(registry_asked(&registry), 3);
    registry_is(&registry, MOOD_CUTS); /* a look that fails counts too */
    pass_s(30);
    for (int i = 0; i < 20; i++)
        office_answers(&office, &forger, VERDICT_REFUSED, "SignatureMismatch");
    CHECK(registry_asked(&registry) >= 4);
    CHECK(registry_asked(&registry) <= 5); /* a cut connection may be tried again by the client */
    office_accepts(&office, &issuer);      /* the key is fresh still */
    office_end(&office);
    crypto_key_unref(&issuer.key);
    crypto_key_unref(&forger.key);
    registry_end(&registry);
}

TEST(verifier, a_verdict_under_a_key_that_was_replaced_meanwhile_does_not_stand)
{
    static const struct tr_rate any = {
        .count = 1000000000, .period_ns = TR_SECONDS(1), .burst = 1000000000
    };
    struct turnstile first, second;
    struct tr_future *new_one, *old_one;
    char *known, *new_token, *old_token;
    struct registry registry;
    struct office office;
    struct issuer issuer, old;
    tr_sender porter = { 0 };

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry,
        &(struct auth_options){ .allow_private = true, .per_did = any, .per_address = any });
    CHECK_EQ_INT(tr_spawn(office.system, &porter_type, "", NULL, &porter), 0);
    known = issuer_token(&issuer);
    CHECK_EQ_INT(office_ask(&office, known).verdict, VERDICT_OK);
    old = issuer;
    crypto_key_ref(old.key);
    issuer_new_key(&issuer, CRYPTO_ES256K);
    issuer_publish(&issuer, &registry, "");
    /* The new key is being fetched, */
    registry_hold(&registry, true);
    new_token = issuer_token(&issuer);
    new_one = office_send(&office, new_token);
    registry_wait_asked(&registry, 2);
    /* a token of the old key, which the cache has still, is about to be verified, */
    put_up(porter, &first);
    turnstile_wait(&first);
    old_token = issuer_token(&old);
    old_one = office_send(&office, old_token);
    CHECK(office_knows(&office, known)); /* the verifier has given it to the pool */
    put_up(porter, &second);
    turnstile_open(&first);
    turnstile_wait(&second); /* its claims were read; the signature waits behind */
    /* the document comes, */
    registry_hold(&registry, false);
    while (office_knows(&office, known)) {
    }
    /* and then the old signature turns out to be right. */
    turnstile_open(&second);
    CHECK_EQ_STR(office_verdict(&old_one).label, "SignatureMismatch");
    CHECK_EQ_INT(office_verdict(&new_one).verdict, VERDICT_OK);
    CHECK(!office_knows(&office, old_token));
    CHECK(office_knows(&office, new_token));
    free(known);
    free(old_token);
    free(new_token);
    tr_sender_drop(&porter);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    crypto_key_unref(&old.key);
    registry_end(&registry);
}

TEST(verifier, a_token_that_was_verified_since_it_was_looked_for_is_not_verified_again)
{
    struct registry registry;
    struct office office;
    struct issuer issuer;
    char *token;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    token = issuer_token(&issuer);
    CHECK_EQ_INT(office_ask(&office, token).verdict, VERDICT_OK);
    CHECK_EQ_INT(office_ask(&office, token).verdict, VERDICT_OK);
    CHECK_EQ_INT(count_of("troupe_auth_cache_misses_total"), 1);
    free(token);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

/* ---- documents that are not there, or not right --------------------------------------------- */

TEST(verifier, a_document_that_cannot_be_used_is_said_and_not_asked_for_again_at_once)
{
    char *huge = malloc(70001);
    char other[256];
    const struct {
        const char *status, *body, *label;
        enum auth_verdict verdict;
    } rows[] = {
        { "404 Not Found", "", "DidNotFound", VERDICT_REFUSED },
        { "410 Gone", "", "DidDeactivated", VERDICT_REFUSED },
        { "200 OK", "{\"id\":\"" PLC_DID "\",\"deactivated\":true}", "DidDeactivated",
            VERDICT_REFUSED },
        { "200 OK", other, "DidDocumentId", VERDICT_REFUSED },
        { "200 OK", "{\"id\":\"" PLC_DID "\",\"verificationMethod\":[]}", "DidKeyMissing",
            VERDICT_REFUSED },
        { "200 OK", "not json", "DidDocument", VERDICT_REFUSED },
        { "200 OK", huge, "DidDocumentTooLarge", VERDICT_REFUSED },
        { "500 Internal", "", "IssuerUnavailable", VERDICT_FAILED },
        { "503 Busy", "", "IssuerUnavailable", VERDICT_FAILED },
        { "204 No Content", "", "IssuerUnavailable", VERDICT_FAILED },
    };
    struct registry registry;
    struct office office;
    struct issuer issuer;

    CHECK(huge != NULL);
    memset(huge, ' ', 70000);
    huge[70000] = '\0';
    (void)snprintf(other, sizeof other, "{\"id\":\"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa\"}");
    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    office_begin(&office, &registry, &local);
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned asked = registry_asked(&registry);

        registry_says(&registry, rows[i].status, rows[i].body);
        for (int k = 0; k < 3; k++)
            office_answers(&office, &issuer, rows[i].verdict, rows[i].label);
        CHECK_EQ_INT(registry_asked(&registry), asked + 1);
        pass_s(10); /* RETRY_S */
    }
    issuer_publish(&issuer, &registry, "");
    office_accepts(&office, &issuer);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
    free(huge);
}

TEST(verifier, a_silent_server_costs_its_timeout_once_for_all_who_wait)
{
    enum { MANY = 20 };
    struct tr_future *futures[MANY];
    char *tokens[MANY];
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    registry_is(&registry, MOOD_IS_SILENT);
    issuer_begin_plc(&issuer);
    office_begin(&office, &registry,
        &(struct auth_options){ .allow_private = true, .fetch_timeout_ns = TR_SECONDS(1) / 5 });
    for (int i = 0; i < MANY; i++) {
        tokens[i] = issuer_token(&issuer);
        futures[i] = office_send(&office, tokens[i]);
    }
    for (int i = 0; i < MANY; i++) {
        struct verdict verdict = office_verdict(&futures[i]);

        CHECK_EQ_INT(verdict.verdict, VERDICT_FAILED);
        CHECK_EQ_STR(verdict.label, "IssuerUnavailable");
        free(tokens[i]);
    }
    CHECK_EQ_INT(registry_asked(&registry), 1);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

TEST(verifier, an_old_key_serves_while_the_document_cannot_be_had_and_not_for_ever)
{
    struct registry registry;
    struct office office;
    struct issuer issuer, forger;
    unsigned asked;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_begin_plc(&forger);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    office_accepts(&office, &issuer);
    registry_says(&registry, "502 Bad Gateway", "");
    pass_s(300); /* key_life_s */
    office_accepts(&office, &issuer);
    asked = registry_asked(&registry);
    CHECK_EQ_INT(asked, 2);
    for (int i = 0; i < 5;
         i++) { /* the failure is remembered: no lookup waits for the fetch again */
        office_accepts(&office, &issuer);
        office_answers(&office, &forger, VERDICT_REFUSED, "SignatureMismatch");
    }
    CHECK_EQ_INT(registry_asked(&registry), asked);
    pass_s(3599);
    office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), asked + 1);
    pass_s(1); /* key_life_s + key_stale_s */
    office_answers(&office, &issuer, VERDICT_FAILED, "IssuerUnavailable");
    issuer_publish(&issuer, &registry, "");
    pass_s(10);
    office_accepts(&office, &issuer);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    crypto_key_unref(&forger.key);
    registry_end(&registry);
}

TEST(verifier, a_removed_key_never_serves_again)
{
    static const char *const gone[][2] = {
        { "404 Not Found", "" },
        { "410 Gone", "" },
        { "200 OK", "{\"id\":\"" PLC_DID "\",\"verificationMethod\":[]}" },
        { "200 OK", "{\"id\":\"" PLC_DID "\",\"deactivated\":true}" },
    };
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    office_begin(&office, &registry, &local);
    for (unsigned i = 0; i < sizeof gone / sizeof gone[0]; i++) {
        struct verdict verdict;
        char *token, *late;

        issuer_publish(&issuer, &registry, "");
        token = issuer_token(&issuer);
        CHECK_EQ_INT(office_ask(&office, token).verdict, VERDICT_OK);
        pass_s(299);
        free(token);
        token = issuer_token(&issuer);
        CHECK_EQ_INT(office_ask(&office, token).verdict, VERDICT_OK);
        CHECK(office_knows(&office, token));
        registry_says(&registry, gone[i][0], gone[i][1]);
        pass_s(1);
        late = issuer_token(&issuer);
        CHECK_EQ_INT(office_ask(&office, late).verdict, VERDICT_REFUSED);
        CHECK(!office_knows(&office, token)); /* forgotten with the key */
        registry_says(&registry, "503 Busy", "");
        pass_s(10);
        verdict = office_ask(&office, late);
        CHECK_EQ_INT(verdict.verdict, VERDICT_FAILED); /* within key_stale_s, were it not removed */
        free(token);
        free(late);
        pass_s(10);
    }
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

TEST(verifier, private_addresses_are_refused_unless_allowed)
{
    struct registry registry;
    struct office office;
    struct issuer web, plc;

    registry_begin(&registry);
    issuer_begin_web(&web, &registry);
    issuer_begin_plc(&plc);
    issuer_publish(&plc, &registry, "");
    office_begin(&office, &registry, &(struct auth_options){ .key_life_s = 300 });
    office_answers(&office, &web, VERDICT_REFUSED, "DidPrivate");
    office_answers(&office, &plc, VERDICT_REFUSED, "DidPrivate"); /* the client's own guard */
    CHECK_EQ_INT(registry_asked(&registry), 0);
    CHECK_EQ_INT(fake_server_connections(registry.server), 0);
    office_end(&office);
    crypto_key_unref(&web.key);
    crypto_key_unref(&plc.key);
    registry_end(&registry);
}

TEST(verifier, a_clock_that_is_set_back_makes_keys_old)
{
    struct registry registry;
    struct office office;
    struct issuer issuer;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    office_accepts(&office, &issuer);
    atomic_fetch_sub(&office_wall_s, 100000);
    office_accepts(&office, &issuer);
    CHECK_EQ_INT(registry_asked(&registry), 2);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

/* ---- ends ----------------------------------------------------------------------------------- */

TEST(verifier, killed_with_work_everywhere_it_leaves_nothing_and_answers_all)
{
    enum { ROUNDS = 20, MANY = 40 };
    struct registry registry;
    struct issuer issuer, unknown;
    struct office office;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_begin_web(&unknown, &registry);
    for (int round = 0; round < ROUNDS; round++) {
        struct tr_future *futures[MANY];
        char *tokens[MANY];
        tr_weak weak;

        issuer_publish(&issuer, &registry, "");
        office_begin(&office, &registry, &local);
        office_accepts(&office, &issuer);
        registry_hold(&registry, true);
        for (int i = 0; i < MANY; i++) {
            tokens[i] = issuer_token(i % 2 == 0 ? &issuer : &unknown);
            futures[i] = office_send(&office, tokens[i]);
        }
        weak = tr_sender_weaken(office.auth->verifier);
        CHECK_EQ_INT(tr_kill(weak), 0);
        for (int i = 0; i < MANY; i++) {
            int status = tr_future_wait(futures[i], NULL, 0, NULL, 0);

            CHECK(status <= 0);
            tr_future_drop(&futures[i]);
            free(tokens[i]);
        }
        registry_hold(&registry, false);
        office_end(&office);
    }
    crypto_key_unref(&issuer.key);
    crypto_key_unref(&unknown.key);
    registry_end(&registry);
}

/* The same verifier under a supervisor: a restart goes through its reset hook. */
TEST(verifier, restarted_it_begins_empty_and_works)
{
    enum { ROUNDS = 10, MANY = 20 };
    struct registry registry;
    struct office office;
    struct issuer issuer;
    struct auth_verifier verifier = { 0 };
    tr_sender supervised = { 0 }, supervisor = { 0 };
    struct tr_child child = { .name = "verifier",
        .type = &auth_verifier_type,
        .state = &verifier,
        .restart = TR_PERMANENT,
        .box = { .capacity = 1000, .full = TR_FULL_FAIL },
        .ret_sender = &supervised };
    struct tr_supervisor table = {
        .name = "office", .children = &child, .child_count = 1, .restarts_max = 1000
    };
    struct office second;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    verifier.auth = office.auth;
    CHECK_EQ_INT(tr_supervise(office.system, &table, "test", &supervisor), 0);
    second = office;
    second.auth = calloc(1, sizeof *second.auth); /* only its sender is looked at here */
    CHECK(second.auth != NULL);
    second.auth->verifier = supervised;
    for (int round = 0; round < ROUNDS; round++) {
        struct tr_future *futures[MANY];
        char *tokens[MANY], *known = issuer_token(&issuer);
        tr_weak weak = tr_sender_weaken(supervised);

        CHECK_EQ_INT(office_ask(&second, known).verdict, VERDICT_OK);
        CHECK(office_knows(&second, known));
        for (int i = 0; i < MANY; i++) {
            tokens[i] = issuer_token(&issuer);
            futures[i] = office_send(&second, tokens[i]);
        }
        CHECK_EQ_INT(tr_kill(weak), 0);
        for (int i = 0; i < MANY; i++) { /* answered before, after, or dropped with the old life */
            (void)tr_future_wait(futures[i], NULL, 0, NULL, 0);
            tr_future_drop(&futures[i]);
            free(tokens[i]);
        }
        CHECK(!office_knows(&second, known));
        free(known);
    }
    office_accepts(&second, &issuer);
    tr_sender_drop(&supervised);
    tr_sender_drop(&supervisor);
    free(second.auth);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}

/* ---- out of memory -------------------------------------------------------------------------- */

TEST_LONG(verifier, any_call_may_fail_and_the_next_token_is_verified, 120)
{
    enum { FAULTS = 60 };
    struct registry registry;
    struct office office;
    struct issuer issuer;
    unsigned failed = 0;

    registry_begin(&registry);
    issuer_begin_plc(&issuer);
    issuer_publish(&issuer, &registry, "");
    office_begin(&office, &registry, &local);
    for (uint64_t n = 1; n <= FAULTS; n++) {
        for (int is_cached = 0; is_cached < 2; is_cached++) {
            char *token = issuer_token(&issuer);
            struct auth_verifier_message message = { .kind = VERIFIER_VERIFY,
                .token_size = strlen(token) };
            struct tr_future *future = NULL;
            union auth_answer_room room = { 0 };
            int rc;

            message.token = base_strdup(token);
            CHECK(message.token != NULL);
            crypto_sha256(token, message.token_size, message.hash);
            base_fault_countdown(n, 1);
            rc = tr_ask_future(office.auth->verifier, &message, sizeof message, 0, &future);
            if (rc == 0)
                rc = tr_future_wait(future, &room, sizeof room, NULL, 0);
            else
                base_free(message.token);
            (void)base_fault_countdown(0, 0);
            tr_future_drop(&future);
            CHECK_MSG(rc < 0 || room.answer.verdict == VERDICT_OK ||
                          room.answer.verdict == VERDICT_FAILED,
                "fault %u: verdict %d %s", (unsigned)n, (int)room.answer.verdict,
                room.answer.label);
            failed += rc < 0 || room.answer.verdict == VERDICT_FAILED;
            free(token);
            if (is_cached == 0)
                pass_s(10);
            office_accepts(&office, &issuer);
        }
        pass_s(300); /* the next one fetches */
    }
    CHECK_MSG(failed >= 10, "only %u of the calls that failed were met", failed);
    office_end(&office);
    crypto_key_unref(&issuer.key);
    registry_end(&registry);
}
