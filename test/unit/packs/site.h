/* SPDX-License-Identifier: Apache-2.0 */
/* site.h: packs behind a real public and a real admin listener with a real database: people who are
 * signed in, the admin token, and packs to ask about. */
#ifndef TEST_UNIT_PACKS_SITE_H
#define TEST_UNIT_PACKS_SITE_H

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/jwt.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "json/json.h"
#include "ops/admin.h"
#include "postgres.h"
#include "services/delivery/delivery.h"
#include "services/packs/edit.h"
#include "services/packs/packs.h"
#include "services/packs/upload.h"
#include "services/users/users.h"
#include "tree.h"
#include "web.h"

/* A test program that defines this runs its cases on PostgreSQL. */
#ifndef SITE_ON_POSTGRES
#define SITE_ON_POSTGRES 0
#endif
/* With so many requests of an address at once, and in an hour. */
#ifndef SITE_BURST
#define SITE_BURST 1000000
#endif
/* And on this backend; NULL is the one of the URL. */
#ifndef SITE_BACKEND
#define SITE_BACKEND NULL
#endif

/* The caller, and the listener that it uses. */
enum who {
    ANYONE,    /* public, without a token */
    USER,      /* public, a session */
    BOSS,      /* public, a session of the role admin */
    STRANGER,  /* public, a token that nobody signed */
    TOKEN,     /* admin listener, the admin token */
    WRONG,     /* admin listener, another token */
    TOKENLESS, /* admin listener, none */
    WHO,
};
static const char *const who_names[WHO] = { "anyone", "a user", "an admin", "a stranger",
    "the admin token", "a wrong token", "no token" };

struct site {
    tr_sender supervisor;
    char place[64];
    struct test_postgres postgres;
    char url[256];
    struct tr_system *system;
    struct sql *sql;
    struct auth *auth;
    struct crypto_key *key;
    struct packs *packs;
    struct http_server *server;
    struct http_route *routes;
    struct sql_migration *migrations;
    struct admin *admin;
    const struct service *served[1];
    char headers[WHO][1024];
};

/* ---- start and stop ------------------------------------------------------------------------- */

static inline void site_open_sql(struct site *site)
{
    const struct service auth_service = {
        .name = "auth", .migrations = auth_migrations, .migration_count = auth_migration_count
    };
    const struct service *services[] = { &auth_service, &delivery_service, &packs_service,
        &users_service };
    char why[256] = "";
    size_t count;

    CHECK_MSG(
        service_merge_migrations(services, 4, why, sizeof why, &site->migrations, &count) == 0,
        "%s", why);
    CHECK_MSG(sql_open(site->system,
                  &(struct sql_options){ .url = site->url,
                      .migrations = site->migrations,
                      .migration_count = count,
                      .backend = SITE_BACKEND },
                  why, sizeof why, &site->sql) == 0,
        "%s", why);
}

static inline void site_open_servers(struct site *site)
{
    char why[256] = "", path[96];
    void *state = site->packs;
    size_t count;

    site->served[0] = &packs_service;
    CHECK_MSG(
        service_merge_routes(site->served, &state, 1, why, sizeof why, &site->routes, &count) == 0,
        "%s", why);
    CHECK_MSG(http_server_start(site->system,
                  &(struct http_server_options){ .listen = "127.0.0.1:0",
                      .routes = site->routes,
                      .gate_service = site->auth,
                      .route_count = count,
                      .name = "test",
                      .quiet = true },
                  why, sizeof why, &site->server) == 0,
        "%s", why);
    (void)snprintf(path, sizeof path, "%s/admin.token", site->place);
    CHECK_MSG(admin_start(site->system,
                  &(struct admin_options){ .listen = "127.0.0.1:0",
                      .token_path = path,
                      .version = "1",
                      .data_path = site->place,
                      .services = site->served,
                      .service_count = 1 },
                  why, sizeof why, &site->admin) == 0,
        "%s", why);
    admin_set_state(site->admin, &packs_service, site->packs);
}

/* The same place and database as before. */
static inline void site_open(struct site *site)
{
    const struct tr_rate plenty = { .count = 100000, .period_ns = TR_SECONDS(1), .burst = 100000 };
    const struct tr_rate by_address = {
        .count = SITE_BURST, .period_ns = TR_SECONDS(3600), .burst = SITE_BURST
    };
    char why[256] = "";
    void *state;

    CHECK_EQ_INT(
        tr_system_create(
            &(struct tr_system_options){ .workers = 2, .blocking_threads = 12, .quiet = true },
            &site->system),
        0);
    site->supervisor = tree_create(site->system);
    site_open_sql(site);
    CHECK_EQ_INT(auth_start(site->system,
                     &(struct auth_options){ .service_did = "did:web:localhost",
                         .allow_did_key = true,
                         .sql = site->sql,
                         .session_key = site->key,
                         .per_did = plenty,
                         .per_address = by_address },
                     &site->auth),
        0);
    CHECK_MSG(packs_service.start(&(struct service_context){ .system = site->system,
                                      .sql = site->sql,
                                      .data_path = site->place,
                                      .service_did = "did:web:localhost",
                                      .version = "1.2.3",
                                      .auth = site->auth,
                                      .supervisor = site->supervisor },
                  why, sizeof why, &state) == 0,
        "%s", why);
    site->packs = state;
    site_open_servers(site);
}

static inline void site_close(struct site *site)
{
    admin_remove_checks(site->admin);
    http_server_stop(&site->server);
    packs_service.stop(site->packs);
    admin_stop(&site->admin);
    auth_stop(&site->auth);
    sql_close(&site->sql);
    base_free(site->routes);
    base_free(site->migrations);
    tr_sender_drop(&site->supervisor);
    CHECK_EQ_INT(tr_system_join(site->system, TR_SECONDS(10)), 0);
    tr_system_destroy(&site->system);
}

/* ---- who asks ------------------------------------------------------------------------------- */

SQL_STATEMENT(site_add_user,
    "INSERT INTO auth_users VALUES ($1, 'https://accounts.example.com', $1, NULL, $2, 1, 1)");
SQL_STATEMENT(site_add_session, "INSERT INTO auth_sessions VALUES ($1, $1, $2, 1, $3, NULL)");

static inline void site_sign(struct site *site, enum who who, const char *id)
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
    struct buffer token = { 0 };

    CHECK_EQ_INT(jwt_sign_claims(site->key, (struct span){ NULL, 0 }, &claims, &token), 0);
    (void)snprintf(site->headers[who], sizeof site->headers[who], "Authorization: Bearer %.*s\r\n",
        (int)token.size, token.bytes);
    buffer_free(&token);
}

static inline void site_sign_in(struct site *site, enum who who, const char *id, const char *role)
{
    const struct tr_env *env = tr_env_real();
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, &site_add_user, 1);
    sql_unit_text(unit, span_of(id));
    sql_unit_text(unit, span_of(role));
    sql_unit_step(unit, &site_add_session, 1);
    sql_unit_text(unit, span_of(id));
    sql_unit_blob(unit, "hash", 4);
    sql_unit_int(unit, (int64_t)(env->wall_ns(env->data) / 1000000000) + 86400);
    CHECK_EQ_INT(sql_write_wait(site->sql, unit), 0);
    sql_unit_destroy(unit);
    site_sign(site, who, id);
}

static inline void site_read_token(struct site *site)
{
    char path[96], token[160] = "";
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/admin.token", site->place);
    file = fopen(path, "r");
    CHECK(file != NULL && fgets(token, sizeof token, file) != NULL);
    CHECK_EQ_INT(fclose(file), 0);
    token[strcspn(token, "\n")] = '\0';
    (void)snprintf(
        site->headers[TOKEN], sizeof site->headers[TOKEN], "Authorization: Bearer %s\r\n", token);
    token[strlen(token) - 1] ^= 1; /* as near as can be */
    (void)snprintf(
        site->headers[WRONG], sizeof site->headers[WRONG], "Authorization: Bearer %s\r\n", token);
}

static inline void site_begin(struct site *site)
{
    *site = (struct site){ 0 };
    web_place_make(site->place);
    if (SITE_ON_POSTGRES) {
        test_postgres_open(&site->postgres, NULL);
        (void)snprintf(site->url, sizeof site->url, "%s", site->postgres.url);
    } else {
        (void)snprintf(site->url, sizeof site->url, "sqlite:%s/packs.db", site->place);
    }
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_HS256, &site->key), 0);
    site_open(site);
    site_sign_in(site, USER, "user-1", "user");
    site_sign_in(site, BOSS, "boss-1", "admin");
    site_read_token(site);
    /* One of our tokens, signed by somebody else. */
    struct crypto_key *own = site->key;
    CHECK_EQ_INT(crypto_key_generate(CRYPTO_HS256, &site->key), 0);
    site_sign(site, STRANGER, "boss-1");
    crypto_key_unref(&site->key);
    site->key = own;
}

static inline int site_remove_entry(
    const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline void site_end(struct site *site)
{
    site_close(site);
    crypto_key_unref(&site->key);
    if (SITE_ON_POSTGRES)
        test_postgres_close(&site->postgres);
    CHECK_EQ_INT(nftw(site->place, site_remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- asking --------------------------------------------------------------------------------- */

/* A text with ' for ". In memory that is the caller's. */
static inline char *quoted(const char *text)
{
    char *copy = strdup(text);

    CHECK(copy != NULL);
    for (char *at = copy; *at != '\0'; at++)
        if (*at == '\'')
            *at = '"';
    return copy;
}

/* For api_packs.py, which holds answers against what is described: a line each. */
static inline void site_note_answer(
    const char *method, const char *path, const struct web_answer *answer)
{
    const char *file_path = getenv("TROUPE_ANSWERS");
    FILE *file = file_path == NULL ? NULL : fopen(file_path, "a");

    if (file == NULL)
        return;
    fprintf(file, "%s\t%s\t%u\t%s\n", method, path, answer->status,
        answer->body != NULL && answer->body[0] == '{' ? answer->body : "");
    CHECK_EQ_INT(fclose(file), 0);
}

/* `path` is below /v1/. */
static inline struct web_answer site_ask(
    const struct site *site, enum who who, const char *method, const char *path, const char *body)
{
    const char *address =
        who >= TOKEN ? admin_address(site->admin) : http_server_address(site->server);
    char full[512], *json = quoted(body == NULL ? "" : body);
    struct web_answer answer;

    (void)snprintf(full, sizeof full, "/v1/%s", path);
    answer = web_ask(address, method, full, site->headers[who], json);
    site_note_answer(method, full, &answer);
    free(json);
    return answer;
}

/* "POST admin/packs"; the answer must have each of the parts, which are separated by '|'. */
static inline void want(const struct site *site, enum who who, const char *call, const char *body,
    unsigned status, const char *parts)
{
    char method[16], *rest = quoted(parts), *at = rest, *part;
    struct web_answer answer;

    (void)snprintf(method, sizeof method, "%.*s", (int)strcspn(call, " "), call);
    answer = site_ask(site, who, method, strchr(call, ' ') + 1, body);
    CHECK_MSG(answer.status == status, "%s by %s: wanted %u, got:\n%s", call, who_names[who],
        status, answer.text);
    while ((part = strsep(&at, "|")) != NULL)
        CHECK_MSG(
            strstr(answer.text, part) != NULL, "%s: wanted %s in:\n%s", call, part, answer.text);
    free(rest);
    web_answer_free(&answer);
}

/* And must not have this. */
static inline void want_not(
    const struct site *site, enum who who, const char *call, unsigned status, const char *part)
{
    char method[16], *text = quoted(part);
    struct web_answer answer;

    (void)snprintf(method, sizeof method, "%.*s", (int)strcspn(call, " "), call);
    answer = site_ask(site, who, method, strchr(call, ' ') + 1, NULL);
    CHECK_MSG(answer.status == status, "%s: wanted %u, got:\n%s", call, status, answer.text);
    CHECK_MSG(
        strstr(answer.text, text) == NULL, "%s: did not want %s in:\n%s", call, text, answer.text);
    free(text);
    web_answer_free(&answer);
}

/* The text of a member of the answer's object; in memory that is the caller's. */
static inline char *ask_for(const struct site *site, enum who who, const char *call,
    const char *body, unsigned status, const char *member)
{
    struct json_doc doc = { 0 };
    struct web_answer answer;
    struct span text;
    char method[16], *copy;

    (void)snprintf(method, sizeof method, "%.*s", (int)strcspn(call, " "), call);
    answer = site_ask(site, who, method, strchr(call, ' ') + 1, body);
    CHECK_MSG(answer.status == status, "%s: wanted %u, got:\n%s", call, status, answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    CHECK_MSG(json_string(json_get(json_root(&doc), member), &text), "no %s in:\n%s", member,
        answer.text);
    copy = strndup(text.at, text.size);
    json_doc_free(&doc);
    web_answer_free(&answer);
    return copy;
}

/* ---- packs and versions --------------------------------------------------------------------- */

/* Where the bytes of an object are. */
static inline void site_object_path(const struct site *site, const char *bytes, char path[192])
{
    uint8_t digest[32];
    char hex[65];

    crypto_sha256(bytes, strlen(bytes), digest);
    hex[crypto_hex_encode(digest, sizeof digest, hex)] = '\0';
    (void)snprintf(path, 192, "%s/packs/objects/%s", site->place, hex);
}

static inline void site_write_file(const char *path, const char *bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);

    CHECK_MSG(fd >= 0, "%s", path);
    CHECK_EQ_INT(write(fd, bytes, strlen(bytes)), (long long)strlen(bytes));
    close(fd);
}

static inline void site_write_object(const struct site *site, const char *bytes)
{
    char path[192];

    site_object_path(site, bytes, path);
    if (access(path, F_OK) != 0)
        site_write_file(path, bytes);
}

/* Make the edit of a finished upload through the catalogue's actor. Returns its status. */
static inline unsigned site_try_version(
    struct site *site, const char *pack, const char *version, const char *bytes)
{
    struct upload_facts facts = { .size = strlen(bytes) };
    struct edit *edit = base_calloc(sizeof *edit);
    struct sql_unit *unit = sql_unit_create(0);
    static const struct sql_statement find = { .text = "SELECT id FROM packs WHERE name = $1" };
    unsigned status;

    site_write_object(site, bytes);
    sql_unit_step(unit, &find, 1);
    sql_unit_text(unit, span_of(pack));
    CHECK_EQ_INT(sql_read_wait(site->sql, unit), 0);
    facts.pack = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    crypto_sha256(bytes, strlen(bytes), facts.sha256);
    (void)snprintf(facts.pack_name, sizeof facts.pack_name, "%s", pack);
    (void)snprintf(facts.version, sizeof facts.version, "%s", version);
    (void)snprintf(facts.type, sizeof facts.type, "application/octet-stream");
    CHECK(edit != NULL);
    atomic_init(&edit->holders, 2);
    edit->kind = &upload_edit_kind;
    edit->packs = site->packs;
    (void)snprintf(edit->actor, sizeof edit->actor, "a test");
    CHECK_EQ_INT(upload_edit_fill(edit, "none", &facts), 0);
    CHECK_EQ_INT(tr_ask_wait(site->packs->catalogue, &(struct edit_message){ edit },
                     sizeof(struct edit_message), NULL, 0, TR_SECONDS(10)),
        0);
    status = edit->status;
    edit_unref(edit);
    return status;
}

static inline void site_add_version(
    struct site *site, const char *pack, const char *version, const char *bytes)
{
    unsigned status = site_try_version(site, pack, version, bytes);

    CHECK_MSG(status == 201, "version %s of %s: %u", version, pack, status);
}

static inline void site_register(struct site *site, const char *pack)
{
    char body[256];

    (void)snprintf(body, sizeof body, "{'package_id':'%s','name':'Pack %s'}", pack, pack);
    want(site, TOKEN, "POST admin/packs", body, 201, pack);
}

static inline void site_publish(struct site *site, const char *pack, const char *version)
{
    char call[256], part[128];

    (void)snprintf(call, sizeof call, "POST admin/packs/%s/versions/%s/publish", pack, version);
    (void)snprintf(part, sizeof part, "'active_version':'%s'", version);
    want(site, TOKEN, call, NULL, 200, part);
}

/* A pack that is registered, and its version published. */
static inline void site_add_pack(
    struct site *site, const char *pack, const char *version, const char *bytes)
{
    site_register(site, pack);
    site_add_version(site, pack, version, bytes);
    site_publish(site, pack, version);
}

/* ---- the database --------------------------------------------------------------------------- */

/* A statement is known by its address, so each text has one for good. */
static inline const struct sql_statement *site_statement(const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct sql_statement statements[256];
    const struct sql_statement *found = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < 256 && found == NULL; i++) {
        if (statements[i].text == NULL)
            statements[i].text = text;
        if (strcmp(statements[i].text, text) == 0)
            found = &statements[i];
    }
    pthread_mutex_unlock(&lock);
    CHECK(found != NULL);
    return found;
}

/* Run a statement that returns one number. */
static inline int64_t site_number(const struct site *site, const char *text)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t number;

    sql_unit_step(unit, site_statement(text), 1);
    CHECK_MSG(sql_read_wait(site->sql, unit) == 0, "%s: %s", text, sql_unit_why(unit));
    number = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return number;
}

static inline void site_plant(const struct site *site, const char *text)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, site_statement(text), SQL_ROWS_ANY);
    CHECK_MSG(sql_write_wait(site->sql, unit) == 0, "%s: %s", text, sql_unit_why(unit));
    sql_unit_destroy(unit);
}

#endif
