/* SPDX-License-Identifier: Apache-2.0 */
/* test_verifier.h: the stage of the verifier's tests: an office (a system whose wall clock the test sets,
 * a client, a verifier) and a registry (a scripted server with the documents of issuers). */
#ifndef TEST_UNIT_AUTH_TEST_VERIFIER_H
#define TEST_UNIT_AUTH_TEST_VERIFIER_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth/auth.h"
#include "auth/did.h"
#include "auth/jwt.h"
#include "auth/verifier.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/digest.h"
#include "fake_server.h"
#include "http/client.h"
#include "support/metric.h"

/* ---- a clock -------------------------------------------------------------------------------- */

enum { START_S = 1800000000 };

/* One per process: a case is a process. */
static _Atomic uint64_t office_wall_s = START_S;

static inline uint64_t office_wall_ns(void *data)
{
    (void)data;
    return atomic_load(&office_wall_s) * 1000000000;
}

static inline int64_t now_s(void)
{
    return (int64_t)atomic_load(&office_wall_s);
}

static inline void pass_s(uint64_t seconds)
{
    atomic_fetch_add(&office_wall_s, seconds);
}

static inline const struct tr_env *office_env(void)
{
    static struct tr_env env;

    env = *tr_env_real();
    env.wall_ns = office_wall_ns;
    return &env;
}

/* ---- the registry --------------------------------------------------------------------------- */

enum registry_mood { MOOD_ANSWERS, MOOD_CUTS, MOOD_IS_SILENT };

struct registry {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fake_server *server;
    enum registry_mood mood;
    bool is_held; /* answers wait until registry_hold(false) */
    char status[32];
    char headers[256];
    char *body;
    unsigned asked;
    char path[1024]; /* of the last request */
    char traceparent[64];
};

static inline void registry_script(struct fake_connection *connection, void *data)
{
    struct registry *registry = data;
    struct fake_request *request = malloc(sizeof *request);

    CHECK(request != NULL);
    while (fake_read(connection, request)) {
        char status[32], headers[256], *body;
        enum registry_mood mood;

        pthread_mutex_lock(&registry->lock);
        registry->asked++;
        (void)snprintf(registry->path, sizeof registry->path, "%s", request->path);
        if (!fake_header(
                request, "traceparent", registry->traceparent, sizeof registry->traceparent))
            registry->traceparent[0] = '\0';
        pthread_cond_broadcast(&registry->changed);
        while (registry->is_held)
            pthread_cond_wait(&registry->changed, &registry->lock);
        mood = registry->mood;
        memcpy(status, registry->status, sizeof status);
        memcpy(headers, registry->headers, sizeof headers);
        body = strdup(registry->body == NULL ? "" : registry->body);
        pthread_mutex_unlock(&registry->lock);
        CHECK(body != NULL);
        if (mood == MOOD_ANSWERS)
            (void)fake_answer(connection, status, headers, body);
        else if (mood == MOOD_CUTS)
            fake_reset(connection);
        else
            fake_wait_end(connection);
        free(body);
        if (mood != MOOD_ANSWERS)
            break;
    }
    free(request);
}

static inline void registry_begin(struct registry *registry)
{
    *registry = (struct registry){ .status = "200 OK" };
    CHECK_EQ_INT(pthread_mutex_init(&registry->lock, NULL), 0);
    CHECK_EQ_INT(pthread_cond_init(&registry->changed, NULL), 0);
    registry->server = fake_server_start(registry_script, registry, NULL);
}

static inline void registry_end(struct registry *registry)
{
    fake_server_stop(&registry->server);
    pthread_cond_destroy(&registry->changed);
    pthread_mutex_destroy(&registry->lock);
    free(registry->body);
}

static inline void registry_says(struct registry *registry, const char *status, const char *body)
{
    pthread_mutex_lock(&registry->lock);
    registry->mood = MOOD_ANSWERS;
    (void)snprintf(registry->status, sizeof registry->status, "%s", status);
    free(registry->body);
    registry->body = strdup(body);
    CHECK(registry->body != NULL);
    pthread_mutex_unlock(&registry->lock);
}

static inline void registry_is(struct registry *registry, enum registry_mood mood)
{
    pthread_mutex_lock(&registry->lock);
    registry->mood = mood;
    pthread_mutex_unlock(&registry->lock);
}

static inline void registry_hold(struct registry *registry, bool is_held)
{
    pthread_mutex_lock(&registry->lock);
    registry->is_held = is_held;
    pthread_cond_broadcast(&registry->changed);
    pthread_mutex_unlock(&registry->lock);
}

static inline unsigned registry_asked(struct registry *registry)
{
    unsigned asked;

    pthread_mutex_lock(&registry->lock);
    asked = registry->asked;
    pthread_mutex_unlock(&registry->lock);
    return asked;
}

/* Wait until the registry had `count` requests. The time limit of the case ends a wait in vain. */
static inline void registry_wait_asked(struct registry *registry, unsigned count)
{
    pthread_mutex_lock(&registry->lock);
    while (registry->asked < count)
        pthread_cond_wait(&registry->changed, &registry->lock);
    pthread_mutex_unlock(&registry->lock);
}

/* ---- an issuer ------------------------------------------------------------------------------ */

struct issuer {
    char did[128];
    struct crypto_key *key;
};

static inline void issuer_new_key(struct issuer *issuer, enum crypto_algorithm algorithm)
{
    crypto_key_unref(&issuer->key);
    CHECK_EQ_INT(crypto_key_generate(algorithm, &issuer->key), 0);
}

#define PLC_DID "did:plc:ewvi7nxzyoun6zhxrhs64oiz"

static inline void issuer_begin_plc(struct issuer *issuer)
{
    *issuer = (struct issuer){ .did = PLC_DID };
    issuer_new_key(issuer, CRYPTO_ES256K);
}

static inline void issuer_begin_web(struct issuer *issuer, const struct registry *registry)
{
    *issuer = (struct issuer){ 0 };
    (void)snprintf(issuer->did, sizeof issuer->did, "did:web:127.0.0.1%%3A%u",
        fake_server_port(registry->server));
    issuer_new_key(issuer, CRYPTO_ES256);
}

/* One that is its own key: a token of it takes one look. */
static inline void issuer_begin_key(struct issuer *issuer)
{
    _Static_assert(sizeof issuer->did >= DID_KEY_CHARS_MAX, "room for a key");
    *issuer = (struct issuer){ 0 };
    issuer_new_key(issuer, CRYPTO_ES256K);
    CHECK(did_key_format(issuer->key, issuer->did) > 0);
}

/* Publish the document with the current key; `rest` is further members after a comma. */
static inline void issuer_publish(
    const struct issuer *issuer, struct registry *registry, const char *rest)
{
    char multikey[CRYPTO_MULTIKEY_CHARS_MAX], document[2048];

    CHECK(crypto_multikey_encode(issuer->key, multikey) > 0);
    (void)snprintf(document, sizeof document,
        "{\"id\":\"%s\",\"verificationMethod\":[{\"id\":\"%s#atproto\",\"type\":\"Multikey\","
        "\"controller\":\"%s\",\"publicKeyMultibase\":\"%s\"}]%s}",
        issuer->did, issuer->did, issuer->did, multikey, rest);
    registry_says(registry, "200 OK", document);
}

/* Sign a token with a new id. The caller frees it. */
static inline char *issuer_token(const struct issuer *issuer)
{
    static _Atomic unsigned number;
    struct buffer token = { 0 };
    char jti[32];

    (void)snprintf(jti, sizeof jti, "jti-%u", atomic_fetch_add(&number, 1));
    CHECK_EQ_INT(jwt_sign_claims(issuer->key, (struct span){ NULL, 0 },
                     &(struct jwt_claims){ .iss = span_of(issuer->did),
                         .aud = SPAN("did:web:localhost"),
                         .lxm = SPAN("com.example.read"),
                         .jti = span_of(jti),
                         .iat_s = now_s(),
                         .exp_s = now_s() + 60,
                         .nbf_s = -1 },
                     &token),
        0);
    CHECK_EQ_INT(buffer_append(&token, "", 1), 0);
    return token.bytes;
}

/* ---- the office ----------------------------------------------------------------------------- */

struct office {
    struct tr_system *system;
    struct http_client *client;
    struct auth *auth;
};

static inline void office_begin(
    struct office *office, struct registry *registry, const struct auth_options *with)
{
    struct auth_options options = *with;
    bool allow_private = options.allow_private;

    *office = (struct office){ 0 };
    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){
                         .workers = 2, .quiet = true, .blocking_threads = 1, .env = office_env() },
                     &office->system),
        0);
    CHECK_EQ_INT(
        http_client_start(office->system,
            &(struct http_client_options){ .allow_private = allow_private }, &office->client),
        0);
    options.service_did = "did:web:localhost";
    options.client = office->client;
    options.plc_directory = fake_server_url(registry->server, "");
    CHECK_EQ_INT(auth_start(office->system, &options, &office->auth), 0);
}

static inline void office_end(struct office *office)
{
    auth_stop(&office->auth);
    http_client_stop(&office->client);
    CHECK_EQ_INT(tr_system_join(office->system, TR_SECONDS(10)), 0);
    tr_system_destroy(&office->system);
}

struct verdict {
    enum auth_verdict verdict;
    char label[64];
    char issuer[256];
    char role[32];
};

/* Ask the verifier to verify; office_verdict waits for it. */
static inline struct tr_future *office_send_for(
    struct office *office, const char *token, uint64_t timeout_ns)
{
    struct auth_verifier_message message = { .kind = VERIFIER_VERIFY, .token_size = strlen(token) };
    struct tr_future *future = NULL;

    message.token = base_alloc(message.token_size);
    CHECK(message.token != NULL);
    memcpy(message.token, token, message.token_size);
    crypto_sha256(token, message.token_size, message.hash);
    CHECK_EQ_INT(
        tr_ask_future(office->auth->verifier, &message, sizeof message, timeout_ns, &future), 0);
    return future;
}

static inline struct tr_future *office_send(struct office *office, const char *token)
{
    return office_send_for(office, token, 0);
}

static inline struct verdict office_verdict(struct tr_future **future)
{
    struct verdict verdict = { 0 };
    union auth_answer_room room;
    const struct auth_answer *answer = &room.answer;

    CHECK_EQ_INT(tr_future_wait(*future, &room, sizeof room, NULL, 0), 0);
    verdict.verdict = answer->verdict;
    if (answer->label != NULL)
        (void)snprintf(verdict.label, sizeof verdict.label, "%s", answer->label);
    if (answer->verdict == VERDICT_OK) {
        (void)snprintf(
            verdict.issuer, sizeof verdict.issuer, "%.*s", (int)answer->issuer_size, answer->texts);
        (void)snprintf(verdict.role, sizeof verdict.role, "%.*s", (int)answer->role_size,
            answer->texts + answer->issuer_size + answer->audience_size + answer->lxm_size +
                answer->jti_size);
    }
    tr_future_drop(future);
    return verdict;
}

static inline struct verdict office_ask(struct office *office, const char *token)
{
    struct tr_future *future = office_send(office, token);

    return office_verdict(&future);
}

/* Is it in the cache? */
static inline bool office_knows(struct office *office, const char *token)
{
    struct auth_verifier_message message = { .kind = VERIFIER_CHECK };
    union auth_answer_room room;

    crypto_sha256(token, strlen(token), message.hash);
    CHECK_EQ_INT(
        tr_ask_wait(office->auth->verifier, &message, sizeof message, &room, sizeof room, 0), 0);
    return room.answer.verdict == VERDICT_OK;
}

static inline void office_accepts(struct office *office, const struct issuer *issuer)
{
    char *token = issuer_token(issuer);
    struct verdict verdict = office_ask(office, token);

    CHECK_MSG(verdict.verdict == VERDICT_OK, "verdict %d %s", (int)verdict.verdict, verdict.label);
    CHECK_EQ_STR(verdict.issuer, issuer->did);
    free(token);
}

static inline void office_answers(
    struct office *office, const struct issuer *issuer, enum auth_verdict wanted, const char *label)
{
    char *token = issuer_token(issuer);
    struct verdict verdict = office_ask(office, token);

    CHECK_EQ_STR(verdict.label, label);
    CHECK_EQ_INT(verdict.verdict, wanted);
    free(token);
}

static inline int64_t count_of(const char *name)
{
    int64_t sum = 0;

    for (struct metric *at = metric_first(); at != NULL; at = at->next)
        if (strcmp(at->name, name) == 0)
            sum += metric_get(at);
    return sum;
}

/* ---- a turnstile: holds the one thread of the pool, so that later work waits ----------------- */

struct turnstile {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_reached, is_open;
};

static inline int pass_turnstile(void *argument)
{
    struct turnstile *turnstile = argument;

    pthread_mutex_lock(&turnstile->lock);
    turnstile->is_reached = true;
    pthread_cond_broadcast(&turnstile->changed);
    while (!turnstile->is_open)
        pthread_cond_wait(&turnstile->changed, &turnstile->lock);
    pthread_mutex_unlock(&turnstile->lock);
    return 0;
}

static inline void turnstile_wait(struct turnstile *turnstile)
{
    pthread_mutex_lock(&turnstile->lock);
    while (!turnstile->is_reached)
        pthread_cond_wait(&turnstile->changed, &turnstile->lock);
    pthread_mutex_unlock(&turnstile->lock);
}

static inline void turnstile_open(struct turnstile *turnstile)
{
    pthread_mutex_lock(&turnstile->lock);
    turnstile->is_open = true;
    pthread_cond_broadcast(&turnstile->changed);
    pthread_mutex_unlock(&turnstile->lock);
}

struct porter_message {
    struct turnstile *turnstile;
    bool is_crowd; /* as many as the pool takes */
};

static inline enum tr_next porter_handle(void *self, struct tr_context *ctx, void *memory)
{
    const struct porter_message *message = memory;
    int rc;

    (void)self;
    do
        rc = tr_offload(ctx, pass_turnstile, message->turnstile, NULL, 0);
    while (message->is_crowd && rc == 0);
    CHECK_EQ_INT(rc, message->is_crowd ? TR_EFULL : 0);
    tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

static inline enum tr_next porter_event(
    void *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)ctx;
    (void)event;
    return TR_GO;
}

static const struct tr_type porter_type = {
    .name = "porter",
    .message_size = sizeof(struct porter_message),
    .state_size = 1,
    .handle = porter_handle,
    .event = porter_event,
};

static inline void put_up(tr_sender porter, struct turnstile *turnstile)
{
    *turnstile = (struct turnstile){ .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER };
    CHECK_EQ_INT(tr_ask_wait(porter, &(struct porter_message){ .turnstile = turnstile },
                     sizeof(struct porter_message), NULL, 0, 0),
        0);
}

/* The pool takes nothing more until the turnstile, at which its thread stands, is opened. */
static inline void fill_pool(tr_sender porter, struct turnstile *turnstile)
{
    CHECK_EQ_INT(
        tr_ask_wait(porter, &(struct porter_message){ .turnstile = turnstile, .is_crowd = true },
            sizeof(struct porter_message), NULL, 0, 0),
        0);
}

#endif
