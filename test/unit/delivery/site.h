/* SPDX-License-Identifier: Apache-2.0 */
/* site.h: the delivery service behind a real server with a real database, callers with keys of
 * their own, a clock that can be moved, and just enough MLS to make what clients send. */
#ifndef TEST_UNIT_DELIVERY_SITE_H
#define TEST_UNIT_DELIVERY_SITE_H

#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "auth/did.h"
#include "auth/jwt.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/encoding.h"
#include "delivery_tables.h"
#include "json/json.h"
#include "postgres.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/retention.h"
#include "tree.h"
#include "web.h"

/* A test program that defines this runs its cases on PostgreSQL. */
#ifndef SITE_ON_POSTGRES
#define SITE_ON_POSTGRES 0
#endif

#define SITE_SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

enum { SITE_ROUTES_MAX = 192 };

/* ---- a clock that can be moved -------------------------------------------------------------- */

static _Atomic uint64_t site_ahead_ns;

static uint64_t site_wall_ns(void *data)
{
    const struct tr_env *real = tr_env_real();

    (void)data;
    return real->wall_ns(real->data) + atomic_load(&site_ahead_ns);
}

static inline void site_advance_s(uint64_t seconds)
{
    atomic_fetch_add(&site_ahead_ns, seconds * UINT64_C(1000000000));
}

static inline int64_t site_now_s(void)
{
    return (int64_t)(site_wall_ns(NULL) / 1000000000);
}

/* ---- the service ---------------------------------------------------------------------------- */

struct site {
    tr_sender supervisor;
    char place[64];
    struct test_postgres postgres;
    struct tr_env env;
    struct tr_system *system;
    struct sql *sql;
    struct auth *auth;
    void *delivery;
    tr_sender jobs;
    struct http_server *server;
    struct http_route routes[SITE_ROUTES_MAX];
    size_t route_count;
};

static inline void site_add_route(struct site *site, const struct http_route *route)
{
    for (size_t i = 0; i < site->route_count; i++)
        if (site->routes[i].method == route->method &&
            strcmp(site->routes[i].path, route->path) == 0)
            return;
    CHECK(site->route_count < SITE_ROUTES_MAX);
    site->routes[site->route_count] = *route;
    site->routes[site->route_count++].service = site->delivery;
}

/* The database, with the tables of all of it. */
static inline void site_open_sql(struct site *site)
{
    size_t count;
    struct sql_migration *migrations = delivery_tables(&count);
    char url[256], why[256] = "";

    if (SITE_ON_POSTGRES)
        (void)snprintf(url, sizeof url, "%s", site->postgres.url);
    else
        (void)snprintf(url, sizeof url, "sqlite:%s/delivery.db", site->place);
    CHECK_MSG(
        sql_open(site->system,
            &(struct sql_options){ .url = url, .migrations = migrations, .migration_count = count },
            why, sizeof why, &site->sql) == 0,
        "%s", why);
    free(migrations);
}

/* With settings, or NULL: as they are without any. */
static inline void site_begin_with(struct site *site, const struct config *config)
{
    char why[256] = "";

    *site = (struct site){ .env = *tr_env_real() };
    web_place_make(site->place);
    if (SITE_ON_POSTGRES)
        test_postgres_open(&site->postgres, NULL);
    site->env.wall_ns = site_wall_ns;
    CHECK_EQ_INT(tr_system_create(
                     &(struct tr_system_options){
                         .workers = 2, .blocking_threads = 12, .quiet = true, .env = &site->env },
                     &site->system),
        0);
    site->supervisor = tree_create(site->system);
    site_open_sql(site);
    CHECK_EQ_INT(
        auth_start(site->system,
            &(struct auth_options){ .service_did = "did:web:localhost",
                .allow_did_key = true,
                .sql = site->sql,
                .per_did = { .count = 10000, .period_ns = TR_SECONDS(1), .burst = 10000 },
                .per_address = { .count = 10000, .period_ns = TR_SECONDS(1), .burst = 10000 } },
            &site->auth),
        0);
    CHECK_MSG(delivery_service.start(&(struct service_context){ .system = site->system,
                                         .sql = site->sql,
                                         .config = config,
                                         .data_path = site->place,
                                         .service_did = "did:web:localhost",
                                         .auth = site->auth,
                                         .supervisor = site->supervisor },
                  why, sizeof why, &site->delivery) == 0,
        "%s", why);
    CHECK_EQ_INT(cleanup_start(site->delivery, &site->jobs), 0);
    for (size_t i = 0; i < delivery_service.route_count; i++)
        site_add_route(site, &delivery_service.routes[i]);
    CHECK_MSG(http_server_start(site->system,
                  &(struct http_server_options){ .listen = "127.0.0.1:0",
                      .routes = site->routes,
                      .gate_service = site->auth,
                      .route_count = site->route_count,
                      .name = "test",
                      .quiet = true },
                  why, sizeof why, &site->server) == 0,
        "%s", why);
}

static inline void site_begin(struct site *site)
{
    site_begin_with(site, NULL);
}

static inline void site_end(struct site *site)
{
    http_server_stop(&site->server);
    tr_sender_drop(&site->jobs);
    delivery_service.stop(site->delivery);
    auth_stop(&site->auth);
    sql_close(&site->sql);
    tr_sender_drop(&site->supervisor);
    CHECK_EQ_INT(tr_system_join(site->system, TR_SECONDS(10)), 0);
    tr_system_destroy(&site->system);
    if (SITE_ON_POSTGRES)
        test_postgres_close(&site->postgres);
    web_place_remove(site->place);
}

static inline struct cleanup_done site_tidy(struct site *site)
{
    struct cleanup_done done = { .leases = -1 };

    CHECK_EQ_INT(tr_ask_wait(site->jobs, &(struct cleanup_message){ 0 },
                     sizeof(struct cleanup_message), &done, sizeof done, TR_SECONDS(10)),
        0);
    return done;
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

/* An Authorization line of a fresh token for the call. */
static inline char *caller_header(const struct caller *caller, const char *call)
{
    static unsigned number;
    struct buffer token = { 0 };
    char jti[48], lxm[96], *line;

    (void)snprintf(jti, sizeof jti, "jti-%u-%d", number++, (int)getpid());
    (void)snprintf(lxm, sizeof lxm, XRPC_PREFIX "%s", call);
    CHECK_EQ_INT(jwt_sign_claims(caller->key, (struct span){ NULL, 0 },
                     &(struct jwt_claims){ .iss = span_of(caller->did),
                         .aud = SPAN("did:web:localhost"),
                         .lxm = span_of(lxm),
                         .jti = span_of(jti),
                         .iat_s = site_now_s(),
                         .exp_s = site_now_s() + 60,
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

static inline struct web_answer site_ask_with(
    const struct site *site, const char *header, const char *call, const char *body)
{
    size_t name_size = strcspn(call, "?");
    char *path = malloc(strlen(call) + 64);
    const char *method = "POST";
    struct web_answer answer;

    CHECK(path != NULL);
    for (size_t i = 0; i < site->route_count; i++)
        if (strlen(site->routes[i].label) == name_size &&
            memcmp(site->routes[i].label, call, name_size) == 0)
            method = site->routes[i].method == HTTP_GET ? "GET" : "POST";
    (void)snprintf(path, strlen(call) + 64, "/xrpc/" XRPC_PREFIX "%s", call);
    answer = web_ask(http_server_address(site->server), method, path, header, body);
    free(path);
    return answer;
}

/* "getWelcome?convoId=x" with a body ("" for a GET), as the caller. */
static inline struct web_answer site_ask(
    const struct site *site, const struct caller *caller, const char *call, const char *body)
{
    char name[64], *header;
    struct web_answer answer;

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "?"), call);
    header = caller_header(caller, name);
    answer = site_ask_with(site, header, call, body);
    free(header);
    return answer;
}

static inline void site_expect(const struct site *site, const struct caller *caller,
    const char *call, const char *body, unsigned status, const char *part)
{
    struct web_answer answer = site_ask(site, caller, call, body);

    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "%s: wanted %u with '%s', got:\n%s", call, status, part, answer.text);
    web_answer_free(&answer);
}

/* ---- answers -------------------------------------------------------------------------------- */

struct reading {
    char *text;
    struct json_doc doc;
    const struct json *root;
};

/* The JSON of an answer with this status; frees the answer. */
static inline struct reading read_answer(struct web_answer answer, unsigned status)
{
    struct reading reading = { 0 };
    size_t size = strlen(answer.body);

    CHECK_MSG(answer.status == status, "wanted %u, got:\n%s", status, answer.text);
    reading.text = calloc(1, size + JSON_PADDING_BYTES);
    CHECK(reading.text != NULL);
    memcpy(reading.text, answer.body, size);
    CHECK_EQ_INT(json_parse(&reading.doc, reading.text, size, 0), 0);
    reading.root = json_root(&reading.doc);
    web_answer_free(&answer);
    return reading;
}

static inline struct reading site_read(
    const struct site *site, const struct caller *caller, const char *call, const char *body)
{
    return read_answer(site_ask(site, caller, call, body), 200);
}

static inline void reading_end(struct reading *reading)
{
    json_doc_free(&reading->doc);
    free(reading->text);
}

static inline int64_t int_of(const struct json *object, const char *key)
{
    int64_t value = -1;

    CHECK_MSG(json_int(json_get(object, key), &value), "there is no number %s", key);
    return value;
}

static inline bool bool_of(const struct json *object, const char *key)
{
    bool value = false;

    CHECK_MSG(json_bool(json_get(object, key), &value), "there is no truth %s", key);
    return value;
}

/* In memory that is the caller's. */
static inline char *text_of(const struct json *object, const char *key)
{
    struct span text;

    CHECK_MSG(json_string(json_get(object, key), &text), "there is no text %s", key);
    return strndup(text.at, text.size);
}

/* ---- bytes that clients make ---------------------------------------------------------------- */

static inline char *base64_of(const struct buffer *bytes)
{
    char *text = calloc(1, crypto_base64_size(bytes->size) + 1);

    CHECK(text != NULL && bytes->failed == 0);
    crypto_base64_encode(bytes->bytes, bytes->size, text);
    return text;
}

struct signer {
    EVP_PKEY *key;
    unsigned char public_key[32];
};

static inline void signer_begin(struct signer *signer)
{
    size_t size = sizeof signer->public_key;

    signer->key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    CHECK(signer->key != NULL);
    CHECK(EVP_PKEY_get_raw_public_key(signer->key, signer->public_key, &size) == 1);
}

static inline void signer_end(struct signer *signer)
{
    EVP_PKEY_free(signer->key);
}

/* RFC 9420 section 5.1.2. */
static inline void sign_with_label(const struct signer *signer, const char *label,
    const struct buffer *content, struct buffer *out)
{
    struct buffer signed_content = { 0 };
    unsigned char signature[64];
    size_t size = sizeof signature;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();

    mls_put_vector(&signed_content, span_of(label));
    mls_put_vector(&signed_content, (struct span){ content->bytes, content->size });
    CHECK(ctx != NULL && EVP_DigestSignInit(ctx, NULL, NULL, NULL, signer->key) == 1);
    CHECK(EVP_DigestSign(ctx, signature, &size, (const unsigned char *)signed_content.bytes,
              signed_content.size) == 1);
    EVP_MD_CTX_free(ctx);
    buffer_free(&signed_content);
    mls_put_vector(out, (struct span){ (const char *)signature, size });
}

struct package_options {
    const char *did;
    const char *device; /* behind a # in the identity; NULL: none */
    const struct signer *signer;
    int64_t not_before_s, not_after_s; /* 0: an hour ago, in thirty days */
    bool is_last_resort;
    uint16_t suite; /* 0: 1 */
    bool has_bad_leaf_signature;
    bool has_bad_signature;
};

static inline void put_fresh_key(struct buffer *out)
{
    static unsigned number;
    char key[32];

    memset(key, 0, sizeof key);
    (void)snprintf(key, sizeof key, "key %u of %d", ++number, (int)getpid());
    mls_put_vector(out, (struct span){ key, sizeof key });
}

static inline void put_leaf(struct buffer *out, const struct package_options *with)
{
    char identity[400];
    struct buffer leaf = { 0 };
    struct span none = { "", 0 };
    uint16_t suite = with->suite == 0 ? 1 : with->suite;
    unsigned char suites[2] = { (unsigned char)(suite >> 8), (unsigned char)suite };
    size_t from;

    put_fresh_key(&leaf);
    mls_put_vector(&leaf, (struct span){ (const char *)with->signer->public_key, 32 });
    mls_put_number(&leaf, MLS_CREDENTIAL_BASIC, 2);
    (void)snprintf(identity, sizeof identity, "%s%s%s", with->did, with->device == NULL ? "" : "#",
        with->device == NULL ? "" : with->device);
    mls_put_vector(&leaf, span_of(identity));
    mls_put_vector(&leaf, (struct span){ "\0\1", 2 });
    mls_put_vector(&leaf, (struct span){ (const char *)suites, 2 });
    mls_put_vector(&leaf, (struct span){ "\0\12", 2 });
    mls_put_vector(&leaf, none);
    mls_put_vector(&leaf, (struct span){ "\0\1", 2 });
    mls_put_number(&leaf, MLS_FROM_KEY_PACKAGE, 1);
    mls_put_number(
        &leaf, (uint64_t)(with->not_before_s == 0 ? site_now_s() - 3600 : with->not_before_s), 8);
    mls_put_number(&leaf,
        (uint64_t)(with->not_after_s == 0 ? site_now_s() + 30 * 86400 : with->not_after_s), 8);
    mls_put_vector(&leaf, none);
    from = out->size;
    buffer_append(out, leaf.bytes, leaf.size);
    sign_with_label(with->signer, "MLS 1.0 LeafNodeTBS", &leaf, out);
    if (with->has_bad_leaf_signature)
        out->bytes[out->size - 1] ^= 1;
    CHECK(out->size > from);
    buffer_free(&leaf);
}

/* base64 of a KeyPackage; the caller's to free. ret_hash, if not NULL, has room for 65 bytes. */
static inline char *package_make(const struct package_options *with, char *ret_hash)
{
    struct buffer package = { 0 }, signature = { 0 };
    struct mls_key_package read;
    unsigned char reference[MLS_REFERENCE_SIZE_MAX];
    char *text;

    mls_put_number(&package, 1, 2);
    mls_put_number(&package, with->suite == 0 ? 1 : with->suite, 2);
    put_fresh_key(&package);
    put_leaf(&package, with);
    if (with->is_last_resort)
        mls_put_vector(&package, (struct span){ "\0\12\0", 3 });
    else
        mls_put_vector(&package, (struct span){ "", 0 });
    sign_with_label(with->signer, "MLS 1.0 KeyPackageTBS", &package, &signature);
    buffer_append(&package, signature.bytes, signature.size);
    if (with->has_bad_signature)
        package.bytes[package.size - 1] ^= 1;
    if (ret_hash != NULL) {
        size_t size;

        CHECK(mls_key_package_read((struct span){ package.bytes, package.size }, &read) == NULL);
        size = mls_key_package_reference(&read, reference);
        CHECK_EQ_INT(size, 32);
        ret_hash[crypto_hex_encode(reference, size, ret_hash)] = '\0';
    }
    text = base64_of(&package);
    buffer_free(&package);
    buffer_free(&signature);
    return text;
}

/* base64 of a Welcome for key packages by hash; the caller's to free. */
static inline char *welcome_make(const char *const *hashes, size_t count)
{
    struct buffer welcome = { 0 }, secrets = { 0 };
    char *text;

    for (size_t i = 0; i < count; i++) {
        unsigned char reference[MLS_REFERENCE_SIZE_MAX];
        size_t size;

        CHECK_EQ_INT(crypto_hex_decode(span_of(hashes[i]), reference, sizeof reference, &size), 0);
        mls_put_vector(&secrets, (struct span){ (const char *)reference, size });
        mls_put_vector(&secrets, SPAN("kem output"));
        mls_put_vector(&secrets, SPAN("group secrets"));
    }
    mls_put_number(&welcome, 1, 2);
    mls_put_number(&welcome, MLS_WELCOME, 2);
    mls_put_number(&welcome, 1, 2);
    mls_put_vector(&welcome, (struct span){ secrets.bytes, secrets.size });
    mls_put_vector(&welcome, SPAN("encrypted group info"));
    text = base64_of(&welcome);
    buffer_free(&welcome);
    buffer_free(&secrets);
    return text;
}

/* base64 of a private commit of this group at this epoch; the caller's to free. */
static inline char *commit_make(const char *group, uint64_t epoch)
{
    static unsigned number;
    struct buffer commit = { 0 };
    char ciphertext[64], *text;

    (void)snprintf(ciphertext, sizeof ciphertext, "commit number %u", number++);
    mls_put_number(&commit, 1, 2);
    mls_put_number(&commit, MLS_PRIVATE, 2);
    mls_put_vector(&commit, span_of(group));
    mls_put_number(&commit, epoch, 8);
    mls_put_number(&commit, MLS_COMMIT, 1);
    mls_put_vector(&commit, SPAN(""));
    mls_put_vector(&commit, SPAN("encrypted sender data, 28 by"));
    mls_put_vector(&commit, span_of(ciphertext));
    text = base64_of(&commit);
    buffer_free(&commit);
    return text;
}

/* ---- the first steps of most cases ---------------------------------------------------------- */

static inline void site_create(const struct site *site, const struct caller *caller, const char *id)
{
    char body[256];

    (void)snprintf(
        body, sizeof body, "{\"groupId\":\"%s\",\"cipherSuite\":\"" SITE_SUITE "\"}", id);
    site_expect(site, caller, "createConvo", body, 200, id);
}

/* Publish one; its hash, if wanted, into 65 bytes. */
static inline void site_publish(const struct site *site, const struct caller *caller,
    struct package_options with, char *ret_hash)
{
    char *body = malloc(4096), *package;

    with.did = caller->did;
    package = package_make(&with, ret_hash);
    CHECK(body != NULL);
    (void)snprintf(
        body, 4096, "{\"keyPackage\":\"%s\",\"cipherSuite\":\"" SITE_SUITE "\"}", package);
    site_expect(site, caller, "publishKeyPackage", body, 200, "keyPackageHash");
    free(package);
    free(body);
}

/* Claim of one DID: how many packages came; the first one's hash into 65 bytes if wanted. */
static inline size_t site_claim(
    const struct site *site, const struct caller *claimer, const char *did, char *ret_hash)
{
    char call[512];
    struct reading reading;
    size_t count;

    (void)snprintf(call, sizeof call, "getKeyPackages?dids=%s", did);
    reading = site_read(site, claimer, call, "");
    count = json_count(json_get(reading.root, "keyPackages"));
    CHECK_EQ_INT(json_count(json_get(reading.root, "missing")), count == 0 ? 1 : 0);
    if (ret_hash != NULL && count > 0) {
        char *hash = text_of(json_at(json_get(reading.root, "keyPackages"), 0), "keyPackageHash");

        (void)snprintf(ret_hash, 65, "%s", hash);
        free(hash);
    }
    reading_end(&reading);
    return count;
}

/* A commit of `epoch` with one Welcome for these packages. */
static inline struct web_answer site_add(const struct site *site, const struct caller *caller,
    const char *convo, uint64_t epoch, const char *const *hashes, size_t count)
{
    char *commit = commit_make(convo, epoch), *welcome = welcome_make(hashes, count);
    char *body = malloc(strlen(commit) + strlen(welcome) + 256);
    struct web_answer answer;

    CHECK(body != NULL);
    (void)snprintf(body, strlen(commit) + strlen(welcome) + 256,
        "{\"convoId\":\"%s\",\"commit\":\"%s\",\"welcomes\":[\"%s\"]}", convo, commit, welcome);
    answer = site_ask(site, caller, "submitCommit", body);
    free(body);
    free(commit);
    free(welcome);
    return answer;
}

#endif
