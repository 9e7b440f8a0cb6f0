/* SPDX-License-Identifier: Apache-2.0 */
/* Administrators edit packs on both listeners, and the audit log has each edit. */
#include "site.h"

TEST(admin, registers_on_either_listener_and_both_see_it)
{
    struct site site;

    site_begin(&site);
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'one'}", 201,
        "'package_id':'one'|'package_type':'pack'|'language_code':'und'|'name':''|"
        "'state':'draft'|'active_version':null|'versions':[]");
    want(&site, BOSS, "POST admin/packs",
        "{'package_id':'two','package_type':'audio','language_code':'ar','name':'Two',"
        "'description':'more of it'}",
        201, "'name':'Two'|'description':'more of it'|'language_code':'ar'");
    want(&site, BOSS, "GET admin/packs", NULL, 200, "'one'|'two'|'stored_bytes':0");
    want(&site, TOKEN, "GET admin/packs", NULL, 200, "'one'|'two'");
    want(&site, BOSS, "GET admin/packs/two", NULL, 200, "'audio'");
    want(&site, BOSS, "GET admin/packs/none", NULL, 404, "PackNotFound");
    site_end(&site);
}

TEST(admin, refuses_what_is_no_pack)
{
    static const char *const bad[] = {
        "{}",
        "{'package_id':''}",
        "{'package_id':'..'}",
        "{'package_id':'Core'}",
        "{'package_id':'a/b'}",
        "{'package_id':7}",
        "{'package_id':'a','name':7}",
        "{'package_id':'a','name':''}",
        "{'package_id':'a','language_code':'x'}",
        "{'package_id':'a','package_id':'b'}",
        "[]",
        "nothing",
    };
    struct site site;

    site_begin(&site);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        want(&site, TOKEN, "POST admin/packs", bad[i], 400, "InvalidRequest");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM packs"), 0);
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_audit"), 0);
    site_end(&site);
}

TEST(admin, changes_what_a_pack_is_called_and_nothing_else)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "bytes");
    want(&site, TOKEN, "PATCH admin/packs/core", "{'name':'The core'}", 200,
        "'name':'The core'|'language_code':'und'|'active_version':'1.0.0'");
    want(&site, BOSS, "PATCH admin/packs/core", "{'language_code':'en','description':'d'}", 200,
        "'name':'The core'|'language_code':'en'|'description':'d'");
    want(&site, ANYONE, "GET packs/available", NULL, 200, "'name':'The core'|'description':'d'");
    want(&site, TOKEN, "PATCH admin/packs/none", "{'name':'x'}", 404, "PackNotFound");
    want(&site, TOKEN, "PATCH admin/packs/core", "{'name':1}", 400, "name must");
    site_end(&site);
}

TEST(admin, lists_packs_page_by_page)
{
    struct site site;

    site_begin(&site);
    site_register(&site, "b");
    site_register(&site, "a");
    site_register(&site, "c");
    want(&site, TOKEN, "GET admin/packs?limit=2", NULL, 200, "'a'|'b'|'after':'b'");
    want_not(&site, TOKEN, "GET admin/packs?limit=2", 200, "'package_id':'c'");
    want(&site, TOKEN, "GET admin/packs?limit=2&after=b", NULL, 200, "'package_id':'c'");
    want_not(&site, TOKEN, "GET admin/packs?limit=2&after=b", 200, "'after'");
    want(&site, TOKEN, "GET admin/packs?limit=0", NULL, 400, "limit is 0; the least is 1.");
    want(&site, TOKEN, "GET admin/packs?limit=1001", NULL, 400, "limit is 1001; the most is 1000.");
    want(&site, TOKEN, "GET admin/packs?limit=x", NULL, 400, "limit must be a number.");
    site_end(&site);
}

/* ---- the audit log -------------------------------------------------------------------------- */

TEST(audit, has_a_line_for_each_change_with_who_made_it)
{
    struct site site;

    site_begin(&site);
    site_register(&site, "core");
    site_add_version(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    want(&site, BOSS, "POST admin/packs/core/versions/1.0.0/publish", NULL, 200, "1.0.0");
    want(&site, BOSS, "POST admin/packs/core/versions/1.1.0/publish", NULL, 200, "1.1.0");
    want(&site, BOSS, "POST admin/packs/core/rollback", NULL, 200, "1.0.0");
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/disable", NULL, 200, "1.0.0");
    want(&site, TOKEN, "POST admin/packs/core/disable", NULL, 200, "null");
    want(&site, TOKEN, "GET admin/audit", NULL, 200,
        "'actor':'admin token','action':'register_pack','pack':'core'|"
        "'actor':'boss-1','action':'publish_version','pack':'core','version':'1.0.0'|"
        "'actor':'boss-1','action':'rollback_pack','pack':'core','version':'1.0.0'|"
        "'actor':'admin token','action':'disable_version','pack':'core','version':'1.1.0'|"
        "'actor':'admin token','action':'disable_pack','pack':'core'|"
        "'action':'upload'");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_audit"), 8);
    site_end(&site);
}

TEST(audit, has_no_line_of_what_did_not_happen)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_audit"), 3);
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'core'}", 409, "PackExists");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 409, "NothingToRollBack");
    site_publish(&site, "core", "1.0.0"); /* it is so already */
    want(&site, USER, "POST admin/packs/core/disable", NULL, 403, "Forbidden");
    want(&site, WRONG, "POST admin/packs/core/disable", NULL, 401, "AuthRequired");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_audit"), 3);
    site_end(&site);
}

TEST(audit, is_read_newest_first_page_by_page_and_by_pack)
{
    struct site site;

    site_begin(&site);
    site_register(&site, "a");
    site_register(&site, "b");
    site_register(&site, "c");
    want(&site, TOKEN, "GET admin/audit?limit=1", NULL, 200, "'pack':'c'|'before':3");
    want_not(&site, TOKEN, "GET admin/audit?limit=1", 200, "'pack':'b'");
    want(&site, TOKEN, "GET admin/audit?limit=1&before=3", NULL, 200, "'pack':'b'|'before':2");
    want(&site, TOKEN, "GET admin/audit?pack=a", NULL, 200, "'pack':'a'");
    want_not(&site, TOKEN, "GET admin/audit?pack=a", 200, "'pack':'b'");
    want(&site, TOKEN, "GET admin/audit?limit=0", NULL, 400, "InvalidRequest");
    want(&site, TOKEN, "GET admin/audit?pack=A", NULL, 400, "InvalidRequest");
    want(&site, TOKEN, "GET admin/audit?before=x", NULL, 400, "InvalidRequest");
    site_end(&site);
}

/* ---- metrics -------------------------------------------------------------------------------- */

TEST(admin, counts_changes_by_how_they_ended)
{
    struct web_answer answer;
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "three");
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'core'}", 409, "PackExists");
    answer = web_ask(admin_address(site.admin), "GET", "/metrics", "", "");
    CHECK_EQ_INT(answer.status, 200);
    CHECK(strstr(answer.text, "\ntroupe_pack_changes_total{end=\"made\"} 3\n") != NULL);
    CHECK(strstr(answer.text, "\ntroupe_pack_changes_total{end=\"refused\"} 1\n") != NULL);
    CHECK(strstr(answer.text, "\ntroupe_pack_versions 1\n") != NULL);
    CHECK(strstr(answer.text, "\ntroupe_pack_stored_bytes 5\n") != NULL);
    CHECK(strstr(answer.text, "\ntroupe_pack_catalogue_behind 0\n") != NULL);
    web_answer_free(&answer);
    site_end(&site);
}

/* ---- bytes under way: the answers that api_packs.py holds against their description --------- */

static void patch(const struct site *site, const char *id, const char *bytes, unsigned status)
{
    char path[128], headers[1200];
    struct web_answer answer;

    (void)snprintf(path, sizeof path, "/v1/admin/uploads/%s", id);
    (void)snprintf(headers, sizeof headers, "%sUpload-Offset: 0\r\n", site->headers[TOKEN]);
    answer = web_ask(admin_address(site->admin), "PATCH", path, headers, bytes);
    CHECK_MSG(answer.status == status, "wanted %u, got:\n%s", status, answer.text);
    site_note_answer("PATCH", path, &answer);
    web_answer_free(&answer);
}

TEST(admin, takes_an_upload_or_lets_it_go)
{
    static const char announced[] =
        "{'version':'1.0.0','size':3,"
        "'sha256':'2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae'}";
    char call[128], *id;
    struct site site;

    site_begin(&site);
    site_register(&site, "core");
    for (int i = 0; i < 2; i++) {
        id = ask_for(&site, TOKEN, "POST admin/packs/core/uploads", announced, 201, "upload");
        (void)snprintf(call, sizeof call, "GET admin/uploads/%s", id);
        want(&site, TOKEN, call, NULL, 200, "'offset':0");
        patch(&site, id, "foo", 204);
        want(&site, TOKEN, call, NULL, 200, "'offset':3");
        patch(&site, id, "foo", 409);
        if (i == 0)
            (void)snprintf(call, sizeof call, "DELETE admin/uploads/%s", id);
        else
            (void)snprintf(call, sizeof call, "POST admin/uploads/%s/finish", id);
        want(&site, TOKEN, call, NULL, i == 0 ? 204 : 201, "");
        want(&site, TOKEN, call, NULL, 404, "UploadNotFound");
        free(id);
    }
    site_publish(&site, "core", "1.0.0");
    want(&site, ANYONE, "GET packs/core/download", NULL, 200, "foo");
    want(&site, ANYONE, "GET packs/core/versions/1.0.0/download", NULL, 200, "foo");
    site_end(&site);
}

/* The id of the only download that is listed; 0: there is none. */
static uint64_t listed_download(const struct site *site)
{
    struct web_answer answer = site_ask(site, BOSS, "GET", "admin/flights", NULL);
    const char *at;
    uint64_t id;

    CHECK_MSG(answer.status == 200, "%s", answer.text);
    at = strstr(answer.text, "\"id\":");
    id = at == NULL ? 0 : strtoull(at + 5, NULL, 10);
    CHECK_MSG(at == NULL || strstr(at + 1, "\"id\":") == NULL, "several: %s", answer.text);
    web_answer_free(&answer);
    return id;
}

static void wait_for_downloads(const struct site *site, bool is_some)
{
    while ((listed_download(site) != 0) != is_some) /* until the case's own limit */
        (void)poll(NULL, 0, 10);                    /* nothing tells when: ask again */
}

TEST_LONG(admin, sees_a_download_and_cuts_it, 60)
{
    enum { SIZE = 32 << 20 }; /* more than sockets hold */
    static const char request[] = "GET /v1/packs/core/download HTTP/1.1\r\nHost: x\r\n";
    char *bytes = malloc(SIZE + 1), call[128], part[128];
    struct web_answer answer;
    struct site site;
    uint64_t id;
    int fd;

    CHECK(bytes != NULL);
    memset(bytes, 'x', SIZE);
    bytes[SIZE] = '\0';
    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", bytes);
    want(&site, TOKEN, "GET admin/flights", NULL, 200, "'flights':[]");
    fd = web_connect(http_server_address(site.server));
    web_send(fd, request, sizeof request - 1);
    web_send(fd, site.headers[USER], strlen(site.headers[USER]));
    web_send(fd, "\r\n", 2);
    wait_for_downloads(&site, true);
    id = listed_download(&site);
    (void)snprintf(part, sizeof part, "'size_bytes':%d|'pack':'core'|'version':'1.0.0'", SIZE);
    want(&site, TOKEN, "GET admin/flights", NULL, 200, part);
    want(&site, BOSS, "GET admin/flights?after=0", NULL, 200,
        "'user':'user-1'|'address':'127.0.0.1'|'sent_bytes':|'age_ms':");
    (void)snprintf(call, sizeof call, "GET admin/flights?after=%llu", (unsigned long long)id);
    want(&site, TOKEN, call, NULL, 200, "'flights':[]");
    want(&site, TOKEN, "GET admin/flights?after=x", NULL, 400, "InvalidRequest");
    (void)snprintf(call, sizeof call, "DELETE admin/flights/%llu", (unsigned long long)id);
    want(&site, USER, call, NULL, 403, "");
    want(&site, TOKEN, call, NULL, 204, "");
    web_receive(fd, &answer); /* the server closes */
    CHECK_MSG(
        answer.status == 200 && answer.size < SIZE, "%u, %zu bytes", answer.status, answer.size);
    web_answer_free(&answer);
    close(fd);
    wait_for_downloads(&site, false);
    want(&site, TOKEN, call, NULL, 404, "DownloadNotFound");
    want(&site, BOSS, call, NULL, 404, "DownloadNotFound");
    site_end(&site);
    free(bytes);
}

/* ---- edits while the database is away -------------------------------------------------------- */

#if SITE_ON_POSTGRES
static void wait_for(const struct site *site, unsigned status)
{
    for (;;) { /* until the case's own limit */
        struct web_answer answer = site_ask(site, ANYONE, "GET", "ready", NULL);
        unsigned got = answer.status;

        web_answer_free(&answer);
        if (got == status)
            return;
        (void)poll(NULL, 0, 10); /* nothing tells when: ask again */
    }
}

TEST_LONG(defect_12, is_not_ready_while_the_database_is_away, 60)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    wait_for(&site, 200);
    test_postgres_stop(&site.postgres);
    wait_for(&site, 503);
    want(&site, ANYONE, "GET ready", NULL, 503, "NotReady|Retry-After");
    want(&site, ANYONE, "GET health", NULL, 200, "ok");
    /* The view still answers. */
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "1.0.0");
    CHECK(test_postgres_start(&site.postgres));
    wait_for(&site, 200);
    want(&site, ANYONE, "GET ready", NULL, 200, "ready");
    site_end(&site);
}

TEST_LONG(admin, a_change_while_the_database_is_away_is_503_and_did_not_happen, 60)
{
    struct web_answer answer;
    struct site site;

    site_begin(&site);
    site_register(&site, "core");
    test_postgres_stop(&site.postgres);
    answer = site_ask(&site, TOKEN, "POST", "admin/packs", "{'package_id':'late'}");
    CHECK_MSG(answer.status == 503 || answer.status == 504, "%s", answer.text);
    web_answer_free(&answer);
    CHECK(test_postgres_start(&site.postgres));
    wait_for(&site, 200);
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'next'}", 201, "next");
    want_not(&site, TOKEN, "GET admin/packs", 200, "late");
    site_end(&site);
}
#else
/* A SQLite file does not go away: the catalogue reports that it is behind the database. */
TEST(defect_12, is_not_ready_while_the_catalogue_is_behind_the_database)
{
    struct site site;

    site_begin(&site);
    want(&site, ANYONE, "GET ready", NULL, 200, "ready");
    atomic_store(&site.packs->is_catalogue_behind, true);
    want(&site, ANYONE, "GET ready", NULL, 503, "NotReady|Retry-After");
    want(&site, ANYONE, "GET health", NULL, 200, "ok");
    atomic_store(&site.packs->is_catalogue_behind, false);
    want(&site, ANYONE, "GET ready", NULL, 200, "ready");
    site_end(&site);
}
#endif
