/* SPDX-License-Identifier: Apache-2.0 */
/* test_session.h: a provider (its key set lies on a scripted server), and a site with sessions, a
 * real server and a real database. The wall clock is the test's. */
#ifndef TEST_UNIT_AUTH_TEST_SESSION_H
#define TEST_UNIT_AUTH_TEST_SESSION_H

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <unistd.h>

#include "auth/jwk.h"
#include "auth/session.h"
#include "auth/session_private.h"
#include "crypto/encoding.h"
#include "postgres.h"
#include "silent.h"
#include "test_verifier.h"
#include "web.h"

#define PROVIDER "https://accounts.example.com"
#define CLIENT_ID "client-1.apps.example.com"

/* ---- a provider's key ----------------------------------------------------------------------- */

struct provider_key {
    const char *kid;
    struct crypto_key *key;
    char *jwk; /* public */
};

static inline char *text_of(struct buffer *buffer)
{
    CHECK_EQ_INT(buffer_append(buffer, "", 1), 0);
    return buffer->bytes;
}

static inline void provider_key_es256(struct provider_key *key, const char *kid)
{
    struct buffer jwk = { 0 };

    *key = (struct provider_key){ .kid = kid };
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_ES256, &key->key), 0);
    CHECK_EQ_INT(jwk_write(key->key, span_of(kid), false, &jwk), 0);
    key->jwk = text_of(&jwk);
}

static inline void provider_key_rs256(struct provider_key *key, const char *kid)
{
    EVP_PKEY *rsa = EVP_RSA_gen(2048);
    BIO *pem = BIO_new(BIO_s_mem());
    struct buffer jwk = { 0 };
    unsigned char modulus[256];
    char encoded[400], *text = NULL;
    BIGNUM *n = NULL;
    long size;

    *key = (struct provider_key){ .kid = kid };
    CHECK(rsa != NULL && pem != NULL);
    CHECK(PEM_write_bio_PrivateKey(pem, rsa, NULL, NULL, 0, NULL, NULL) == 1);
    size = BIO_get_mem_data(pem, &text);
    CHECK_EQ_INT(crypto_key_from_pem((struct span){ text, (size_t)size }, &key->key), 0);
    CHECK(EVP_PKEY_get_bn_param(rsa, OSSL_PKEY_PARAM_RSA_N, &n) == 1);
    CHECK_EQ_INT(BN_bn2binpad(n, modulus, sizeof modulus), (int)sizeof modulus);
    encoded[crypto_base64url_encode(modulus, sizeof modulus, encoded)] = '\0';
    buffer_format(&jwk,
        "{\"kty\":\"RSA\",\"use\":\"sig\",\"alg\":\"RS256\",\"kid\":\"%s\",\"n\":\"%s\","
        "\"e\":\"AQAB\"}",
        kid, encoded);
    key->jwk = text_of(&jwk);
    BN_free(n);
    BIO_free(pem);
    EVP_PKEY_free(rsa);
}

static inline void provider_key_end(struct provider_key *key)
{
    crypto_key_unref(&key->key);
    base_free(key->jwk);
}

/* Its key set is these, up to two. */
static inline void provider_publish(
    struct registry *registry, const struct provider_key *a, const struct provider_key *b)
{
    struct buffer set = { 0 };

    buffer_format(
        &set, "{\"keys\":[%s%s%s]}", a->jwk, b == NULL ? "" : ",", b == NULL ? "" : b->jwk);
    registry_says(registry, "200 OK", text_of(&set));
    buffer_free(&set);
}

/* The claims of an ID token. NULL stands for the right value; "" leaves the claim out. */
struct id_token {
    const char *iss, *sub, *email, *nonce, *azp;
    const char *aud; /* JSON */
    const char *verified;
    int64_t age_s;
    int64_t life_s; /* 0 is an hour */
    const char *kid;
    bool no_kid;
};

static inline char *id_token(const struct provider_key *key, const struct id_token *with)
{
    static _Atomic unsigned number;
    struct buffer claims = { 0 }, token = { 0 };
    int64_t iat_s = now_s() - with->age_s;
    const char *sub = with->sub == NULL ? "subject-1" : with->sub;

    buffer_format(&claims, "{\"iss\":\"%s\",\"aud\":%s", with->iss == NULL ? PROVIDER : with->iss,
        with->aud == NULL ? "\"" CLIENT_ID "\"" : with->aud);
    if (sub[0] != '\0')
        buffer_format(&claims, ",\"sub\":\"%s\"", sub);
    if (with->email != NULL)
        buffer_format(&claims, ",\"email\":\"%s\",\"email_verified\":%s", with->email,
            with->verified == NULL ? "true" : with->verified);
    if (with->nonce != NULL)
        buffer_format(&claims, ",\"nonce\":\"%s\"", with->nonce);
    if (with->azp != NULL)
        buffer_format(&claims, ",\"azp\":\"%s\"", with->azp);
    buffer_format(&claims, ",\"iat\":%lld,\"exp\":%lld,\"at_hash\":\"%u\"}", (long long)iat_s,
        (long long)(iat_s + (with->life_s == 0 ? 3600 : with->life_s)),
        atomic_fetch_add(&number, 1));
    CHECK_EQ_INT(claims.failed, 0);
    CHECK_EQ_INT(jwt_sign(key->key,
                     with->no_kid ? (struct span){ NULL, 0 }
                                  : span_of(with->kid == NULL ? key->kid : with->kid),
                     (struct span){ claims.bytes, claims.size }, &token),
        0);
    buffer_free(&claims);
    return text_of(&token);
}

/* ---- the site ------------------------------------------------------------------------------- */

struct session_site {
    char place[64];
    struct test_postgres postgres;
    char url[256];
    struct office office;
    struct sql *sql;
    struct sessions *sessions;
    struct http_server *server;
    struct crypto_key *secret;
    char keys_url[128];
    struct session_provider provider;
    const char *admins[3];
    struct tr_rate sign_ins;
    struct auth_demand admin, service;
    struct http_route routes[AUTH_SESSION_ROUTES + 2];
};

static inline void admin_page(struct http_request *request)
{
    http_respond(request, 200, "text/plain", auth_claims_of(request)->issuer);
}

static inline void site_open(struct session_site *site)
{
    char why[256] = "";

    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 2, .quiet = true, .env = office_env() },
            &site->office.system),
        0);
    CHECK_EQ_INT(http_client_start(site->office.system,
                     &(struct http_client_options){ .allow_private = true }, &site->office.client),
        0);
    CHECK_MSG(sql_open(site->office.system,
                  &(struct sql_options){ .url = site->url,
                      .migrations = auth_migrations,
                      .migration_count = auth_migration_count,
                      .backend = silent_backend(
                          strncmp(site->url, "sqlite:", 7) == 0 ? &sql_sqlite : &sql_postgres) },
                  why, sizeof why, &site->sql) == 0,
        "%s", why);
    CHECK_EQ_INT(auth_start(site->office.system,
                     &(struct auth_options){ .service_did = "did:web:localhost",
                         .allow_did_key = true,
                         .sql = site->sql,
                         .session_key = site->secret },
                     &site->office.auth),
        0);
    CHECK_EQ_INT(sessions_start(site->office.system,
                     &(struct session_options){ .auth = site->office.auth,
                         .sql = site->sql,
                         .client = site->office.client,
                         .key = site->secret,
                         .service_did = "did:web:localhost",
                         .providers = &site->provider,
                         .provider_count = 1,
                         .admins = site->admins,
                         .sign_ins = site->sign_ins },
                     &site->sessions),
        0);
    sessions_routes(site->sessions, site->routes);
    site->admin = (struct auth_demand){ .session = true, .role = "admin" };
    site->service = (struct auth_demand){ 0 };
    site->routes[AUTH_SESSION_ROUTES] = (struct http_route){ .method = HTTP_GET,
        .path = "/admin",
        .handle = admin_page,
        .gate = auth_gate,
        .demand = &site->admin };
    site->routes[AUTH_SESSION_ROUTES + 1] = (struct http_route){ .method = HTTP_GET,
        .path = "/service",
        .handle = admin_page,
        .gate = auth_gate,
        .demand = &site->service };
    CHECK_MSG(http_server_start(site->office.system,
                  &(struct http_server_options){ .listen = "127.0.0.1:0",
                      .routes = site->routes,
                      .route_count = AUTH_SESSION_ROUTES + 2,
                      .gate_service = site->office.auth,
                      .name = "test",
                      .quiet = true },
                  why, sizeof why, &site->server) == 0,
        "%s", why);
}

static inline void site_close(struct session_site *site)
{
    http_server_stop(&site->server);
    sessions_stop(&site->sessions);
    auth_stop(&site->office.auth);
    http_client_stop(&site->office.client);
    sql_close(&site->sql);
    CHECK_EQ_INT(tr_system_join(site->office.system, TR_SECONDS(10)), 0);
    tr_system_destroy(&site->office.system);
}

/* Open a site with its own database: PostgreSQL if `postgres`. Call it before the case has threads. */
static inline void site_begin(struct session_site *site, struct registry *registry, bool postgres)
{
    *site = (struct session_site){ .admins = { "Boss@example.com", NULL } };
    if (postgres) {
        test_postgres_open(&site->postgres, NULL);
        (void)snprintf(site->url, sizeof site->url, "%s", site->postgres.url);
    } else {
        web_place_make(site->place);
        (void)snprintf(site->url, sizeof site->url, "sqlite:%s/auth.db", site->place);
    }
    registry_begin(registry);
    (void)snprintf(
        site->keys_url, sizeof site->keys_url, "%s", fake_server_url(registry->server, "/keys"));
    site->provider = (struct session_provider){
        .name = "example", .issuer = PROVIDER, .keys_url = site->keys_url, .audience = CLIENT_ID
    };
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_HS256, &site->secret), 0);
    site_open(site);
}

static inline void site_end(struct session_site *site, struct registry *registry)
{
    site_close(site);
    registry_end(registry);
    crypto_key_unref(&site->secret);
    if (site->place[0] != '\0')
        web_place_remove(site->place);
    else
        test_postgres_close(&site->postgres);
}

/* ---- asking it ------------------------------------------------------------------------------ */

static inline struct web_answer site_post(
    const struct session_site *site, const char *path, const char *member, const char *token)
{
    struct buffer body = { 0 };
    struct web_answer answer;

    buffer_format(&body, "{\"%s\":\"%s\"}", member, token);
    answer = web_ask(http_server_address(site->server), "POST", path,
        "Content-Type: application/json\r\n", text_of(&body));
    buffer_free(&body);
    return answer;
}

static inline struct web_answer site_get(
    const struct session_site *site, const char *path, const char *token)
{
    struct buffer header = { 0 };
    struct web_answer answer;

    buffer_format(&header, "Authorization: Bearer %s\r\n", token);
    answer = web_ask(http_server_address(site->server), "GET", path, text_of(&header), "");
    buffer_free(&header);
    return answer;
}

static inline void check_answer(struct web_answer answer, unsigned status, const char *part)
{
    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "wanted %u with '%s', got:\n%s", status, part, answer.text);
    web_answer_free(&answer);
}

struct pair {
    char access[2048];
    char refresh[256];
};

static inline void copy_member(const char *body, const char *member, char *to, size_t size)
{
    struct json_doc doc = { .depth_max = 4 };
    struct span text;

    CHECK_EQ_INT(json_parse_copy(&doc, span_of(body), JSON_UNIQUE_KEYS), 0);
    CHECK(json_string(json_get(json_root(&doc), member), &text));
    CHECK(text.size < size);
    memcpy(to, text.at, text.size);
    to[text.size] = '\0';
    json_doc_free(&doc);
}

/* Takes the answer. */
static inline struct pair pair_of(struct web_answer answer)
{
    struct pair pair;

    CHECK_MSG(answer.status == 200, "wanted tokens, got:\n%s", answer.text);
    CHECK(strstr(answer.text, "no-store") != NULL);
    copy_member(answer.body, "accessToken", pair.access, sizeof pair.access);
    copy_member(answer.body, "refreshToken", pair.refresh, sizeof pair.refresh);
    web_answer_free(&answer);
    return pair;
}

static inline struct pair site_sign_in(
    const struct session_site *site, const struct provider_key *key, const struct id_token *with)
{
    char *token = id_token(key, with);
    struct pair pair = pair_of(site_post(site, "/v1/auth/example", "idToken", token));

    base_free(token);
    return pair;
}

static inline void site_refuses(const struct session_site *site, const struct provider_key *key,
    const struct id_token *with, unsigned status, const char *label)
{
    char *token = id_token(key, with);

    check_answer(site_post(site, "/v1/auth/example", "idToken", token), status, label);
    base_free(token);
}

#endif
