/* SPDX-License-Identifier: Apache-2.0 */
/* user_site.h: the service of users.h behind a real server with a real database, and people who are
 * signed in. */
#ifndef TEST_UNIT_USERS_USER_SITE_H
#define TEST_UNIT_USERS_USER_SITE_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "auth/jwt.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/key.h"
#include "json/json.h"
#include "postgres.h"
#include "services/delivery/delivery.h"
#include "services/packs/packs.h"
#include "services/users/users.h"
#include "silent.h"
#include "web.h"

/* A test program that defines this runs its cases on PostgreSQL. */
#ifndef SITE_ON_POSTGRES
#define SITE_ON_POSTGRES 0
#endif

struct user_site {
    char place[64];
    struct test_postgres postgres;
    char url[256];
    struct tr_system *system;
    struct sql *sql;
    struct auth *auth;
    struct crypto_key *key;
    void *users;
    struct http_server *server;
    struct http_route *routes;
    struct sql_migration *migrations;
};

static inline void user_site_open(struct user_site *site)
{
    const struct service auth_service = {
        .name = "auth", .migrations = auth_migrations, .migration_count = auth_migration_count
    };
    const struct service *services[] = { &auth_service, &delivery_service, &packs_service,
        &users_service };
    const struct service *served[] = { &users_service };
    char why[256] = "";
    size_t count, route_count;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &site->system),
        0);
    CHECK_MSG(
        service_merge_migrations(services, 4, why, sizeof why, &site->migrations, &count) == 0,
        "%s", why);
    CHECK_MSG(sql_open(site->system,
                  &(struct sql_options){ .url = site->url,
                      .migrations = site->migrations,
                      .migration_count = count,
                      .backend = silent_backend(SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite) },
                  why, sizeof why, &site->sql) == 0,
        "%s", why);
    CHECK_EQ_INT(
        auth_start(site->system,
            &(struct auth_options){ .service_did = "did:web:localhost",
                .allow_did_key = true,
                .sql = site->sql,
                .session_key = site->key,
                .per_did = { .count = 100000, .period_ns = TR_SECONDS(1), .burst = 100000 },
                .per_address = { .count = 100000, .period_ns = TR_SECONDS(1), .burst = 100000 } },
            &site->auth),
        0);
    CHECK_MSG(users_start(
                  &(struct service_context){
                      .system = site->system, .sql = site->sql, .auth = site->auth },
                  why, sizeof why, &site->users) == 0,
        "%s", why);
    CHECK_MSG(service_merge_routes(
                  served, &site->users, 1, why, sizeof why, &site->routes, &route_count) == 0,
        "%s", why);
    CHECK_MSG(http_server_start(site->system,
                  &(struct http_server_options){ .listen = "127.0.0.1:0",
                      .routes = site->routes,
                      .gate_service = site->auth,
                      .route_count = route_count,
                      .name = "test",
                      .quiet = true },
                  why, sizeof why, &site->server) == 0,
        "%s", why);
}

static inline void user_site_close(struct user_site *site)
{
    http_server_stop(&site->server);
    users_stop(site->users);
    auth_stop(&site->auth);
    sql_close(&site->sql);
    base_free(site->routes);
    base_free(site->migrations);
    CHECK_EQ_INT(tr_system_join(site->system, TR_SECONDS(10)), 0);
    tr_system_destroy(&site->system);
}

static inline void user_site_begin(struct user_site *site)
{
    *site = (struct user_site){ 0 };
    if (SITE_ON_POSTGRES) {
        test_postgres_open(&site->postgres, NULL);
        (void)snprintf(site->url, sizeof site->url, "%s", site->postgres.url);
    } else {
        web_place_make(site->place);
        (void)snprintf(site->url, sizeof site->url, "sqlite:%s/users.db", site->place);
    }
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_HS256, &site->key), 0);
    user_site_open(site);
}

static inline void user_site_end(struct user_site *site)
{
    user_site_close(site);
    crypto_key_unref(&site->key);
    if (SITE_ON_POSTGRES)
        test_postgres_close(&site->postgres);
    else
        web_place_remove(site->place);
}

/* ---- people ---------------------------------------------------------------------------------- */

SQL_STATEMENT(site_add_user,
    "INSERT INTO auth_users VALUES ($1, 'https://accounts.example.com', $1, NULL, $2, 1, 1)");
SQL_STATEMENT(site_add_session, "INSERT INTO auth_sessions VALUES ($1, $1, $2, 1, $3, NULL)");

/* The header of somebody who is signed in. */
struct person {
    char header[2048];
};

static inline struct person site_sign_in(struct user_site *site, const char *id, const char *role)
{
    const struct tr_env *env = tr_env_real();
    int64_t now_s = (int64_t)(env->wall_ns(env->data) / 1000000000);
    struct span us = SPAN("did:web:localhost"), name = span_of(id);
    const struct jwt_claims claims = { .iss = us,
        .aud = us,
        .sub = name,
        .jti = name,
        .iat_s = now_s,
        .exp_s = now_s + 900,
        .nbf_s = -1 };
    struct sql_unit *unit = sql_unit_create(0);
    struct buffer token = { 0 };
    struct person person;

    sql_unit_step(unit, &site_add_user, 1);
    sql_unit_text(unit, name);
    sql_unit_text(unit, span_of(role));
    sql_unit_step(unit, &site_add_session, 1);
    sql_unit_text(unit, name);
    sql_unit_blob(unit, "hash", 4);
    sql_unit_int(unit, now_s + 86400);
    CHECK_EQ_INT(sql_write_wait(site->sql, unit), 0);
    sql_unit_destroy(unit);
    CHECK_EQ_INT(jwt_sign_claims(site->key, (struct span){ NULL, 0 }, &claims, &token), 0);
    (void)snprintf(person.header, sizeof person.header, "Authorization: Bearer %.*s\r\n",
        (int)token.size, token.bytes);
    buffer_free(&token);
    return person;
}

static inline struct web_answer site_post(
    const struct user_site *site, const struct person *person, const char *path, const char *body)
{
    char headers[2200];

    (void)snprintf(headers, sizeof headers, "%sContent-Type: application/json\r\n",
        person == NULL ? "" : person->header);
    return web_ask(http_server_address(site->server), "POST", path, headers, body);
}

static inline struct web_answer site_get(
    const struct user_site *site, const struct person *person, const char *path)
{
    return web_ask(
        http_server_address(site->server), "GET", path, person == NULL ? "" : person->header, "");
}

static inline void check_answer(struct web_answer answer, unsigned status, const char *part)
{
    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "wanted %u with '%s', got:\n%s", status, part, answer.text);
    web_answer_free(&answer);
}

#endif
