/* SPDX-License-Identifier: Apache-2.0 */
/* The gate before real routes of a real server, with a real database behind it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "auth/did.h"
#include "auth/jwt.h"
#include "auth/verifier.h"
#include "check.h"
#include "support/metric.h"
#include "web.h"

/* ---- a service with three routes ------------------------------------------------------------ */

/* Writes for the routes: a unit that holds nothing but the token's id. */
struct clerk {
    struct sql *sql;
    struct sql_client client;
    tr_reply_handle replies[64];
    uint32_t next;
};

struct clerk_message {
    struct auth_claims claims; /* texts borrowed from the request, which waits */
};

static enum tr_next clerk_handle(void *self, struct tr_context *ctx, void *message)
{
    struct sql_unit *unit = sql_unit_create(1);
    struct clerk *clerk = self;
    uint32_t tag = clerk->next++ % 64;

    auth_consume(unit, &((struct clerk_message *)message)->claims);
    clerk->replies[tag] = tr_reply_take(ctx);
    CHECK_EQ_INT(
        sql_write(ctx, &clerk->client, unit, &(struct sql_submit_options){ .tag = tag }), 0);
    return TR_GO;
}

static enum tr_next clerk_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct clerk *clerk = self;
    struct sql_unit *unit = sql_take(&clerk->client, event);
    bool is_replay = auth_is_replay(unit);

    (void)ctx;
    CHECK(is_replay || sql_unit_status(unit) == 0);
    sql_unit_destroy(unit);
    tr_reply_send(&clerk->replies[event->tag], 0, &is_replay, sizeof is_replay);
    return TR_GO;
}

static int clerk_start(void *self, struct tr_context *ctx)
{
    struct clerk *clerk = self;

    (void)ctx;
    sql_client_init(&clerk->client, clerk->sql);
    return 0;
}

static void clerk_finish(void *self)
{
    sql_client_fini(&((struct clerk *)self)->client);
}

static const struct tr_type clerk_type = {
    .name = "clerk",
    .message_size = sizeof(struct clerk_message),
    .state_size = sizeof(struct clerk),
    .start = clerk_start,
    .handle = clerk_handle,
    .event = clerk_event,
    .finish = clerk_finish,
};

struct site {
    char place[64];
    struct tr_system *system;
    struct sql *sql;
    struct auth *auth;
    struct http_server *server;
    tr_sender clerk;
    struct auth_demand read, write, open;
    struct http_route routes[3];
};

static void get_read(struct http_request *request)
{
    const struct auth_claims *claims = auth_claims_of(request);

    http_respond(request, 200, "text/plain", claims == NULL ? SPAN("nobody") : claims->issuer);
}

static void wrote(struct http_request *request, const struct tr_event *event)
{
    CHECK_EQ_INT(event->status, 0);
    if (*(const bool *)event->value)
        http_respond_error(request, 401, "TokenReplayed", "this token was used before");
    else
        http_respond(request, 200, "text/plain", SPAN("written"));
}

static void post_write(struct http_request *request)
{
    struct site *site = http_service(request);
    struct clerk_message message = { .claims = *auth_claims_of(request) };

    CHECK_EQ_INT(http_ask(request, site->clerk, &message, sizeof message, wrote), 0);
}

static void site_open(struct site *site, const struct auth_options *with)
{
    struct auth_options options = *with;
    char url[128], why[256] = "";

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &site->system),
        0);
    (void)snprintf(url, sizeof url, "sqlite:%s/auth.db", site->place);
    CHECK_MSG(sql_open(site->system,
                  &(struct sql_options){ .url = url,
                      .migrations = auth_migrations,
                      .migration_count = auth_migration_count },
                  why, sizeof why, &site->sql) == 0,
        "%s", why);
    options.service_did = "did:web:localhost";
    options.sql = site->sql;
    CHECK_EQ_INT(auth_start(site->system, &options, &site->auth), 0);
    CHECK_EQ_INT(tr_spawn(site->system, &clerk_type, &(struct clerk){ .sql = site->sql }, NULL,
                     &site->clerk),
        0);
    site->read = (struct auth_demand){ .lxm = "com.example.read" };
    site->write = (struct auth_demand){ .lxm = "com.example.write" };
    site->open = (struct auth_demand){ .anonymous = true };
    site->routes[0] = (struct http_route){ .method = HTTP_GET,
        .path = "/read",
        .handle = get_read,
        .gate = auth_gate,
        .demand = &site->read,
        .service = site };
    site->routes[1] = (struct http_route){ .method = HTTP_POST,
        .path = "/write",
        .handle = post_write,
        .gate = auth_gate,
        .demand = &site->write,
        .body_max = 100,
        .service = site };
    site->routes[2] = (struct http_route){ .method = HTTP_GET,
        .path = "/open",
        .handle = get_read,
        .gate = auth_gate,
        .demand = &site->open,
        .service = site };
    CHECK_MSG(http_server_start(site->system,
                  &(struct http_server_options){ .listen = "127.0.0.1:0",
                      .routes = site->routes,
                      .route_count = 3,
                      .gate_service = site->auth,
                      .name = "test",
                      .quiet = true },
                  why, sizeof why, &site->server) == 0,
        "%s", why);
}

static void site_close(struct site *site)
{
    http_server_stop(&site->server);
    auth_stop(&site->auth);
    tr_sender_drop(&site->clerk);
    sql_close(&site->sql);
    CHECK_EQ_INT(tr_system_join(site->system, TR_SECONDS(10)), 0);
    tr_system_destroy(&site->system);
}

static const struct auth_options dev = { .allow_did_key = true };

static void site_begin(struct site *site, const struct auth_options *options)
{
    *site = (struct site){ 0 };
    web_place_make(site->place);
    site_open(site, options);
}

static void site_end(struct site *site)
{
    site_close(site);
    web_place_remove(site->place);
}

/* ---- a caller ------------------------------------------------------------------------------- */

struct caller {
    struct crypto_key *key;
    char did[DID_KEY_CHARS_MAX];
};

static void caller_begin(struct caller *caller)
{
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_ES256K, &caller->key), 0);
    CHECK(did_key_format(caller->key, caller->did) > 0);
}

static int64_t now_s(void)
{
    const struct tr_env *env = tr_env_real();

    return (int64_t)(env->wall_ns(env->data) / 1000000000);
}

struct token_options {
    const char *lxm, *audience;
    int64_t life_s;
};

/* An Authorization header line of a fresh token. */
static char *header_of(const struct caller *caller, struct token_options with)
{
    static unsigned number;
    struct buffer token = { 0 };
    char jti[32], *line;
    int size;

    (void)snprintf(jti, sizeof jti, "jti-%u-%d", number++, (int)getpid());
    CHECK_EQ_INT(
        jwt_sign_claims(caller->key, (struct span){ NULL, 0 },
            &(struct jwt_claims){ .iss = span_of(caller->did),
                .aud = span_of(with.audience == NULL ? "did:web:localhost" : with.audience),
                .lxm = span_of(with.lxm == NULL ? "com.example.read" : with.lxm),
                .jti = span_of(jti),
                .iat_s = now_s() - (with.life_s < 0 ? 100 : 0),
                .exp_s = now_s() + (with.life_s == 0 ? 60 : with.life_s),
                .nbf_s = -1 },
            &token),
        0);
    size = (int)token.size;
    line = malloc(token.size + 64);
    CHECK(line != NULL);
    (void)snprintf(line, token.size + 64, "Authorization: Bearer %.*s\r\n", size, token.bytes);
    buffer_free(&token);
    return line;
}

static void expect(const struct site *site, const char *method, const char *path,
    const char *headers, unsigned status, const char *part)
{
    struct web_answer answer =
        web_ask(http_server_address(site->server), method, path, headers, "");

    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "wanted %u with '%s', got:\n%s", status, part, answer.text);
    web_answer_free(&answer);
}

static int64_t count_of(const char *name)
{
    int64_t sum = 0;

    for (struct metric *at = metric_first(); at != NULL; at = at->next)
        if (strcmp(at->name, name) == 0)
            sum += metric_get(at);
    return sum;
}

/* ---- cases ---------------------------------------------------------------------------------- */

TEST(gate, no_token_is_told_what_to_send)
{
    struct site site;

    site_begin(&site, &dev);
    expect(&site, "GET", "/read", "", 401, "TokenMissing");
    expect(&site, "GET", "/read", "", 401, "WWW-Authenticate: Bearer");
    expect(&site, "GET", "/read", "Authorization: Basic abc\r\n", 401, "TokenForm");
    expect(&site, "GET", "/read", "Authorization: Bearer x\r\nAuthorization: Bearer x\r\n", 401,
        "TokenForm");
    expect(&site, "GET", "/open", "", 200, "nobody");
    site_end(&site);
}

TEST(gate, a_good_token_names_its_issuer)
{
    struct caller caller;
    struct site site;
    char *header;

    site_begin(&site, &dev);
    caller_begin(&caller);
    header = header_of(&caller, (struct token_options){ 0 });
    expect(&site, "GET", "/read", header, 200, caller.did);
    expect(&site, "GET", "/open", header, 200, caller.did);
    free(header);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

TEST(gate, a_cached_token_skips_the_signature_and_nothing_else)
{
    struct caller caller;
    struct site site;
    char *header;
    int64_t misses, hits;

    site_begin(&site, &dev);
    caller_begin(&caller);
    header = header_of(&caller, (struct token_options){ 0 });
    expect(&site, "GET", "/read", header, 200, caller.did);
    misses = count_of("troupe_auth_cache_misses_total");
    hits = count_of("troupe_auth_cache_hits_total");
    expect(&site, "GET", "/read", header, 200, caller.did);
    expect(&site, "POST", "/write", header, 401, "MethodMismatch");
    CHECK_EQ_INT(count_of("troupe_auth_cache_misses_total"), misses);
    CHECK_EQ_INT(count_of("troupe_auth_cache_hits_total"), hits + 2);
    free(header);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

TEST(gate, what_is_wrong_with_a_token_is_said)
{
    static const struct {
        struct token_options with;
        const char *label;
    } rows[] = {
        { { .audience = "did:web:elsewhere" }, "AudienceMismatch" },
        { { .audience = "did:web:localhost#other" }, "AudienceMismatch" },
        { { .life_s = -10 }, "TokenExpired" },
        { { .life_s = 100000 }, "ExpiryTooFar" },
        { { .lxm = "com.example.other" }, "MethodMismatch" },
    };
    struct caller caller, other;
    struct site site;
    char *header;

    site_begin(&site, &dev);
    caller_begin(&caller);
    caller_begin(&other);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        header = header_of(&caller, rows[i].with);
        expect(&site, "GET", "/read", header, 401, rows[i].label);
        free(header);
    }
    memcpy(other.did, caller.did, sizeof other.did); /* signs in another's name */
    header = header_of(&other, (struct token_options){ 0 });
    expect(&site, "GET", "/read", header, 401, "SignatureMismatch");
    free(header);
    header = header_of(&other, (struct token_options){ .lxm = "com.example.write" });
    expect(&site, "POST", "/write", header, 401, "SignatureMismatch");
    expect(&site, "POST", "/write", header, 401, "SignatureMismatch");
    free(header);
    crypto_key_unref(&caller.key);
    crypto_key_unref(&other.key);
    site_end(&site);
}

TEST(gate, a_did_key_is_taken_in_development_alone)
{
    struct caller caller;
    struct site site;
    char *header;

    site_begin(&site, &(struct auth_options){ 0 });
    caller_begin(&caller);
    header = header_of(&caller, (struct token_options){ 0 });
    expect(&site, "GET", "/read", header, 401, "IssuerRefused");
    free(header);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

TEST(gate, a_token_changes_something_once_and_a_restart_remembers)
{
    struct caller caller;
    struct site site;
    char *header;

    site_begin(&site, &dev);
    caller_begin(&caller);
    header = header_of(&caller, (struct token_options){ .lxm = "com.example.write" });
    expect(&site, "POST", "/write", header, 200, "written");
    expect(&site, "POST", "/write", header, 401, "TokenReplayed");
    site_close(&site);
    site_open(&site, &dev);
    expect(&site, "POST", "/write", header, 401, "TokenReplayed");
    free(header);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

TEST(gate, one_token_in_many_writes_at_once_changes_something_once)
{
    enum { MANY = 20 };
    struct caller caller;
    struct site site;
    char *header, text[4096];
    int fds[MANY], size, written = 0, replayed = 0;
    int64_t misses;

    site_begin(&site, &dev);
    caller_begin(&caller);
    misses = count_of("troupe_auth_cache_misses_total");
    header = header_of(&caller, (struct token_options){ .lxm = "com.example.write" });
    size = snprintf(text, sizeof text,
        "POST /write HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n"
        "%s\r\n",
        header);
    for (int i = 0; i < MANY; i++)
        fds[i] = web_connect(http_server_address(site.server));
    for (int i = 0; i < MANY; i++)
        web_send(fds[i], text, (size_t)size);
    for (int i = 0; i < MANY; i++) {
        struct web_answer answer;

        web_receive(fds[i], &answer);
        written += answer.status == 200;
        replayed += answer.status == 401 && strstr(answer.text, "TokenReplayed") != NULL;
        web_answer_free(&answer);
        close(fds[i]);
    }
    CHECK_EQ_INT(written, 1);
    CHECK_EQ_INT(replayed, MANY - 1);
    CHECK_EQ_INT(count_of("troupe_auth_cache_misses_total"), misses + 1);
    free(header);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

TEST(gate, each_did_has_a_rate_of_its_own)
{
    const struct auth_options options = { .allow_did_key = true,
        .per_did = { .count = 1, .period_ns = TR_SECONDS(3600), .burst = 3 } };
    struct caller one, two;
    struct site site;
    char *a, *b;

    site_begin(&site, &options);
    caller_begin(&one);
    caller_begin(&two);
    a = header_of(&one, (struct token_options){ 0 });
    b = header_of(&two, (struct token_options){ 0 });
    for (int i = 0; i < 3; i++)
        expect(&site, "GET", "/read", a, 200, one.did);
    expect(&site, "GET", "/read", a, 429, "Retry-After: ");
    expect(&site, "GET", "/read", b, 200, two.did);
    free(a);
    a = header_of(&one, (struct token_options){ 0 }); /* another token of the same issuer */
    expect(&site, "GET", "/read", a, 429, "Retry-After: ");
    CHECK_EQ_INT(auth_change_rates(site.auth,
                     &(struct tr_rate){ .count = 1, .period_ns = TR_SECONDS(1), .burst = 10 },
                     &(struct tr_rate){ .count = 1, .period_ns = TR_SECONDS(1), .burst = 100 }),
        0);
    expect(&site, "GET", "/read", a, 200, one.did);
    free(a);
    free(b);
    crypto_key_unref(&one.key);
    crypto_key_unref(&two.key);
    site_end(&site);
}

TEST(gate, an_address_has_a_rate_before_anything_is_verified)
{
    const struct auth_options options = { .allow_did_key = true,
        .per_address = { .count = 1, .period_ns = TR_SECONDS(3600), .burst = 2 } };
    struct caller caller;
    struct site site;
    char *header;
    int64_t misses;

    site_begin(&site, &options);
    caller_begin(&caller);
    header = header_of(&caller, (struct token_options){ 0 });
    expect(&site, "GET", "/open", "", 200, "nobody");
    expect(&site, "GET", "/open", "", 200, "nobody");
    misses = count_of("troupe_auth_cache_misses_total");
    expect(&site, "GET", "/read", header, 429, "Retry-After: ");
    expect(&site, "POST", "/write", header, 429, "Retry-After: ");
    CHECK_EQ_INT(count_of("troupe_auth_cache_misses_total"), misses);
    free(header);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

TEST(gate, many_requests_with_one_new_token_verify_it_once)
{
    enum { MANY = 20 };
    struct caller caller;
    struct site site;
    struct web_answer answer;
    char *header, text[4096];
    int fds[MANY], size;
    int64_t misses;

    site_begin(&site, &dev);
    caller_begin(&caller);
    header = header_of(&caller, (struct token_options){ 0 });
    misses = count_of("troupe_auth_cache_misses_total");
    size = snprintf(text, sizeof text,
        "GET /read HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n", header);
    for (int i = 0; i < MANY; i++)
        fds[i] = web_connect(http_server_address(site.server));
    for (int i = 0; i < MANY; i++)
        web_send(fds[i], text, (size_t)size);
    for (int i = 0; i < MANY; i++) {
        web_receive(fds[i], &answer);
        CHECK_EQ_INT(answer.status, 200);
        web_answer_free(&answer);
        close(fds[i]);
    }
    CHECK_EQ_INT(count_of("troupe_auth_cache_misses_total"), misses + 1);
    free(header);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

/* ---- what is asked -------------------------------------------------------------------------- */

/* Stands before the verifier, counts and passes on. */
struct doorman {
    tr_sender verifier;
    struct asked *asked;
};

struct asked {
    _Atomic unsigned looks, looks_with_token, verifies;
};

static enum tr_next doorman_handle(void *self, struct tr_context *ctx, void *memory)
{
    const struct auth_verifier_message *message = memory;
    struct doorman *doorman = self;

    if (message->kind == VERIFIER_VERIFY)
        atomic_fetch_add(&doorman->asked->verifies, 1);
    else if (message->kind == VERIFIER_CHECK && message->token != NULL)
        atomic_fetch_add(&doorman->asked->looks_with_token, 1);
    else if (message->kind == VERIFIER_CHECK)
        atomic_fetch_add(&doorman->asked->looks, 1);
    CHECK_EQ_INT(tr_forward(ctx, doorman->verifier), 0);
    return TR_GO;
}

static const struct tr_type doorman_type = {
    .name = "doorman",
    .message_size = sizeof(struct auth_verifier_message),
    .state_size = sizeof(struct doorman),
    .handle = doorman_handle,
};

static void was_asked(struct asked *asked, unsigned looks, unsigned with_token, unsigned verifies)
{
    CHECK_EQ_INT(atomic_exchange(&asked->looks, 0), looks);
    CHECK_EQ_INT(atomic_exchange(&asked->looks_with_token, 0), with_token);
    CHECK_EQ_INT(atomic_exchange(&asked->verifies, 0), verifies);
}

TEST(gate, a_change_asks_the_verifier_once_and_a_read_once_it_is_known)
{
    struct asked asked = { 0 };
    tr_sender verifier, doorman = { 0 };
    struct caller caller;
    struct site site;
    char *read, *write;

    site_begin(&site, &dev);
    caller_begin(&caller);
    verifier = site.auth->verifier;
    CHECK_EQ_INT(tr_spawn(site.system, &doorman_type,
                     &(struct doorman){ .verifier = verifier, .asked = &asked }, NULL, &doorman),
        0);
    site.auth->verifier = doorman; /* before anybody asks */
    read = header_of(&caller, (struct token_options){ 0 });
    write = header_of(&caller, (struct token_options){ .lxm = "com.example.write" });
    expect(&site, "GET", "/read", read, 200, caller.did);
    was_asked(&asked, 1, 0, 1);
    expect(&site, "GET", "/read", read, 200, caller.did);
    expect(&site, "HEAD", "/read", read, 200, "");
    was_asked(&asked, 2, 0, 0);
    expect(&site, "POST", "/write", write, 200, "written");
    was_asked(&asked, 0, 1, 0);
    expect(&site, "POST", "/write", write, 401, "TokenReplayed");
    was_asked(&asked, 0, 1, 0);
    site.auth->verifier = verifier;
    tr_sender_drop(&doorman);
    free(read);
    free(write);
    crypto_key_unref(&caller.key);
    site_end(&site);
}

/* ---- overload ------------------------------------------------------------------------------- */

/* Work that occupies the pool's threads and its queue until the test releases it. */
struct crowd {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned standing;
    bool may_leave;
};

struct usher_message {
    struct crowd *crowd;
    unsigned count; /* 0: as many as the pool takes */
};

static int stand(void *argument)
{
    struct crowd *crowd = argument;

    pthread_mutex_lock(&crowd->lock);
    crowd->standing++;
    pthread_cond_broadcast(&crowd->changed);
    while (!crowd->may_leave)
        pthread_cond_wait(&crowd->changed, &crowd->lock);
    pthread_mutex_unlock(&crowd->lock);
    return 0;
}

static enum tr_next usher_handle(void *self, struct tr_context *ctx, void *memory)
{
    const struct usher_message *message = memory;
    unsigned sent = 0;

    (void)self;
    while ((message->count == 0 || sent < message->count) &&
           tr_offload(ctx, stand, message->crowd, NULL, 0) == 0)
        sent++;
    tr_reply(ctx, 0, &sent, sizeof sent);
    return TR_GO;
}

static enum tr_next usher_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)ctx;
    (void)event;
    return TR_GO;
}

static const struct tr_type usher_type = {
    .name = "usher",
    .message_size = sizeof(struct usher_message),
    .state_size = 1,
    .handle = usher_handle,
    .event = usher_event,
};

static void crowd_send(tr_sender usher, struct crowd *crowd, unsigned count)
{
    unsigned sent = 0;

    CHECK_EQ_INT(tr_ask_wait(usher, &(struct usher_message){ crowd, count },
                     sizeof(struct usher_message), &sent, sizeof sent, 0),
        0);
    CHECK(sent > 0 && (count == 0 || sent == count));
}

TEST(gate, a_token_that_cannot_be_verified_now_is_told_when_to_come_back)
{
    enum { THREADS = 4 /* of the pool, as the system is made */ };
    struct crowd crowd = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    tr_sender usher = { 0 };
    struct caller caller;
    struct site site;
    char *known, *fresh;

    site_begin(&site, &dev);
    caller_begin(&caller);
    known = header_of(&caller, (struct token_options){ 0 });
    fresh = header_of(&caller, (struct token_options){ 0 });
    expect(&site, "GET", "/read", known, 200, caller.did);
    CHECK_EQ_INT(tr_spawn(site.system, &usher_type, "", NULL, &usher), 0);
    for (unsigned i = 0; i < THREADS; i++) { /* one by one: a thread is made when none is idle */
        crowd_send(usher, &crowd, 1);
        pthread_mutex_lock(&crowd.lock);
        while (crowd.standing <= i)
            pthread_cond_wait(&crowd.changed, &crowd.lock);
        pthread_mutex_unlock(&crowd.lock);
    }
    crowd_send(usher, &crowd, 0);
    expect(&site, "GET", "/read", fresh, 503, "Retry-After: 1");
    expect(&site, "GET", "/read", fresh, 503, "Overloaded");
    expect(&site, "GET", "/read", known, 200, caller.did); /* needs no pool */
    pthread_mutex_lock(&crowd.lock);
    crowd.may_leave = true;
    pthread_cond_broadcast(&crowd.changed);
    pthread_mutex_unlock(&crowd.lock);
    tr_sender_drop(&usher);
    free(known);
    free(fresh);
    crypto_key_unref(&caller.key);
    site_end(&site);
}
