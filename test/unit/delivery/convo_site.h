/* SPDX-License-Identifier: Apache-2.0 */
/* convo_site.h: the delivery service behind a real server on loopback, with a real database, and
 * callers with keys of their own. */
#ifndef TEST_UNIT_DELIVERY_CONVO_SITE_H
#define TEST_UNIT_DELIVERY_CONVO_SITE_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "auth/did.h"
#include "auth/jwt.h"
#include "check.h"
#include "crypto/encoding.h"
#include "delivery_tables.h"
#include "json/json.h"
#include "postgres.h"
#include "services/delivery/delivery.h"
#include "services/delivery/mls/mls_reader.h"
#include "web.h"

/* A test program that defines this makes up external commits, whose signatures nobody could check.
 */
#ifndef SITE_IS_BLIND
#define SITE_IS_BLIND 0
#endif

/* A test program that defines this runs its cases on PostgreSQL. */
#ifndef SITE_ON_POSTGRES
#define SITE_ON_POSTGRES 0
#endif

/* A test program that defines this stands between the service and its database. */
#ifndef SITE_BACKEND
#define SITE_BACKEND NULL
#endif

/* How much waits for a connection of the database before it is full; 0: as usual. */
#ifndef SITE_QUEUE_MAX
#define SITE_QUEUE_MAX 0
#endif

/* How long a request may take, from the next opening on; 0: as usual. */
static uint64_t site_request_ns;

struct site {
    char place[64];
    struct test_postgres postgres;
    struct tr_system *system;
    struct sql *sql;
    struct auth *auth;
    void *delivery;
    struct http_route *routes;
    struct http_server *server;
};

static inline void site_open(struct site *site)
{
    const struct service *services[] = { &delivery_service };
    const struct tr_rate fast = { .count = 100000, .period_ns = TR_SECONDS(1), .burst = 100000 };
    size_t count;
    struct sql_migration *migrations = delivery_tables(&count);
    char url[256], why[256] = "";

    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 2, .blocking_threads = 12, .quiet = true },
            &site->system),
        0);
    if (SITE_ON_POSTGRES)
        (void)snprintf(url, sizeof url, "%s", site->postgres.url);
    else
        (void)snprintf(url, sizeof url, "sqlite:%s/delivery.db", site->place);
    CHECK_MSG(sql_open(site->system,
                  &(struct sql_options){ .url = url,
                      .migrations = migrations,
                      .migration_count = count,
                      .queue_max = SITE_QUEUE_MAX,
                      .backend = SITE_BACKEND },
                  why, sizeof why, &site->sql) == 0,
        "%s", why);
    free(migrations);
    CHECK_EQ_INT(auth_start(site->system,
                     &(struct auth_options){ .allow_did_key = true,
                         .service_did = "did:web:localhost",
                         .sql = site->sql,
                         .per_did = fast,
                         .per_address = fast },
                     &site->auth),
        0);
    CHECK_MSG(delivery_service.start(
                  &(struct service_context){
                      .system = site->system, .sql = site->sql, .auth = site->auth },
                  why, sizeof why, &site->delivery) == 0,
        "%s", why);
    if (SITE_IS_BLIND)
        ((struct delivery *)site->delivery)->mode = DELIVERY_BLIND;
    CHECK_MSG(service_merge_routes(
                  services, &site->delivery, 1, why, sizeof why, &site->routes, &count) == 0,
        "%s", why);
    CHECK_MSG(http_server_start(site->system,
                  &(struct http_server_options){ .listen = "127.0.0.1:0",
                      .routes = site->routes,
                      .gate_service = site->auth,
                      .route_count = count,
                      .name = "test",
                      .limits = { .request_ns = site_request_ns },
                      .quiet = true },
                  why, sizeof why, &site->server) == 0,
        "%s", why);
}

static inline void site_close(struct site *site)
{
    http_server_stop(&site->server);
    delivery_service.stop(site->delivery);
    auth_stop(&site->auth);
    sql_close(&site->sql);
    free(site->routes);
    CHECK_EQ_INT(tr_system_join(site->system, TR_SECONDS(10)), 0);
    tr_system_destroy(&site->system);
}

static inline void site_begin(struct site *site)
{
    *site = (struct site){ 0 };
    web_place_make(site->place);
    if (SITE_ON_POSTGRES)
        test_postgres_open(&site->postgres, NULL);
    site_open(site);
}

static inline void site_end(struct site *site)
{
    site_close(site);
    if (SITE_ON_POSTGRES)
        test_postgres_close(&site->postgres);
    web_place_remove(site->place);
}

/* ---- callers -------------------------------------------------------------------------------- */

struct caller {
    struct crypto_key *key;
    char did[DID_KEY_CHARS_MAX];
};

static inline void caller_begin(struct caller *caller)
{
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_ES256K, &caller->key), 0);
    CHECK(did_key_format(caller->key, caller->did) > 0);
}

static inline void caller_end(struct caller *caller)
{
    crypto_key_unref(&caller->key);
}

/* An Authorization header of a fresh token for a call; free it. */
static inline char *caller_header(const struct caller *caller, const char *call)
{
    static _Atomic unsigned number;
    const struct tr_env *env = tr_env_real();
    int64_t now_s = (int64_t)(env->wall_ns(env->data) / 1000000000);
    struct buffer token = { 0 };
    char jti[48], lxm[96], *line;

    (void)snprintf(jti, sizeof jti, "jti-%u-%d", atomic_fetch_add(&number, 1), (int)getpid());
    (void)snprintf(lxm, sizeof lxm, "blue.catbird.mls.%s", call);
    CHECK_EQ_INT(jwt_sign_claims(caller->key, (struct span){ NULL, 0 },
                     &(struct jwt_claims){ .iss = span_of(caller->did),
                         .aud = SPAN("did:web:localhost"),
                         .lxm = span_of(lxm),
                         .jti = span_of(jti),
                         .iat_s = now_s,
                         .exp_s = now_s + 60,
                         .nbf_s = -1 },
                     &token),
        0);
    line = malloc(token.size + 64);
    CHECK(line != NULL);
    (void)snprintf(
        line, token.size + 64, "Authorization: Bearer %.*s\r\n", (int)token.size, token.bytes);
    buffer_free(&token);
    return line;
}

/* POST with a body, or GET when it is NULL; `call` may have a query. */
static inline struct web_answer caller_ask(
    const struct site *site, const struct caller *caller, const char *call, const char *body)
{
    char name[64], path[512], *header;
    struct web_answer answer;

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "?"), call);
    (void)snprintf(path, sizeof path, "/xrpc/blue.catbird.mls.%s", call);
    header = caller_header(caller, name);
    answer = web_ask(http_server_address(site->server), body == NULL ? "GET" : "POST", path, header,
        body == NULL ? "" : body);
    free(header);
    return answer;
}

static inline void expect(const struct site *site, const struct caller *caller, const char *call,
    const char *body, unsigned status, const char *part)
{
    struct web_answer answer = caller_ask(site, caller, call, body);

    CHECK_MSG(answer.status == status && strstr(answer.body, part) != NULL,
        "%s: wanted %u with '%s', got:\n%s", call, status, part, answer.text);
    web_answer_free(&answer);
}

/* ---- MLS messages, as far as a server can look into them ------------------------------------ */

/* base64 of a private message of the group; free it. */
static inline char *private_message(
    const char *group, uint64_t epoch, unsigned content, const char *secret)
{
    struct buffer bytes = { 0 };
    char *text;

    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, 2, 2);
    mls_put_vector(&bytes, span_of(group));
    mls_put_number(&bytes, epoch, 8);
    mls_put_number(&bytes, content, 1);
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("sender data of 28 bytes ...."));
    mls_put_vector(&bytes, span_of(secret));
    CHECK_EQ_INT(bytes.failed, 0);
    text = malloc(crypto_base64_size(bytes.size) + 1);
    CHECK(text != NULL);
    text[crypto_base64_encode(bytes.bytes, bytes.size, text)] = '\0';
    buffer_free(&bytes);
    return text;
}

#endif
