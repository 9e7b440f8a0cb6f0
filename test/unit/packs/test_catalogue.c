/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls about packs, and which version is active. */
#include <pthread.h>

#include "site.h"

TEST(catalogue, is_empty_at_first)
{
    struct site site;

    site_begin(&site);
    want(&site, ANYONE, "GET packs/available", NULL, 200, "{'packs':[]}");
    want(&site, ANYONE, "GET packs/manifest", NULL, 200, "{'packs':[]}");
    want(&site, ANYONE, "POST packs/updates", "{'installed':[]}", 200, "{'updates':[]}");
    want(&site, ANYONE, "GET packs/none/manifest", NULL, 404, "PackNotFound");
    want(&site, ANYONE, "GET packs/none/checksum", NULL, 404, "PackNotFound");
    want(&site, ANYONE, "GET releases/latest", NULL, 404, "ReleaseNotFound");
    want(&site, ANYONE, "GET health", NULL, 200, "'status':'ok'|'version':'1.2.3'|uptime_seconds");
    want(&site, ANYONE, "GET ready", NULL, 200, "{'status':'ready'}");
    site_end(&site);
}

TEST(catalogue, shows_what_is_published_and_nothing_else)
{
    struct site site;

    site_begin(&site);
    site_register(&site, "core");
    site_add_version(&site, "core", "1.0.0", "first bytes");
    want(&site, ANYONE, "GET packs/available", NULL, 200, "{'packs':[]}");
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 404, "PackNotFound");
    site_publish(&site, "core", "1.0.0");
    want(&site, ANYONE, "GET packs/available", NULL, 200,
        "'package_id':'core'|'package_type':'pack'|'version':'1.0.0'|'language_code':'und'|"
        "'name':'Pack core'|'size_bytes':11|'sha256':'|"
        "'download_url':'/v1/packs/core/versions/1.0.0/download'");
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200,
        "'package_id':'core'|'version':'1.0.0'|"
        "'sha256':'d67e08ade6e823c063affb00fea95adabffa75cf1a660d8fcea3223d68e8e44d'");
    want(&site, ANYONE, "GET packs/core/keys", NULL, 200, "'pack':'core'|'keys':[]");
    site_end(&site);
}

TEST(catalogue, outlives_a_restart)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "first bytes");
    site_add_version(&site, "core", "1.1.0", "second bytes");
    site_close(&site);
    site_open(&site);
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "'version':'1.0.0'");
    site_publish(&site, "core", "1.1.0");
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "'version':'1.1.0'");
    site_end(&site);
}

TEST(catalogue, filters_by_type_and_language_and_lists_all_versions_on_demand)
{
    struct site site;

    site_begin(&site);
    want(&site, TOKEN, "POST admin/packs",
        "{'package_id':'ar','package_type':'audio','language_code':'ar','name':'A'}", 201, "audio");
    site_add_version(&site, "ar", "1.0.0", "a1");
    site_add_version(&site, "ar", "1.1.0", "a2");
    site_publish(&site, "ar", "1.0.0");
    site_publish(&site, "ar", "1.1.0");
    site_add_pack(&site, "core", "1.0.0", "first bytes");
    want_not(&site, ANYONE, "GET packs/available?type=audio", 200, "core");
    want_not(&site, ANYONE, "GET packs/available?language=und", 200, "'ar'");
    want_not(&site, ANYONE, "GET packs/available", 200, "1.0.0/download'},{'package_id':'ar'");
    want(&site, ANYONE, "GET packs/available?include_all_versions=true&type=audio", NULL, 200,
        "'version':'1.1.0'|'version':'1.0.0'");
    want_not(&site, ANYONE, "GET packs/available?type=audio", 200, "'version':'1.0.0'");
    want(&site, ANYONE, "GET packs/available?include_all_versions=maybe", NULL, 400,
        "InvalidRequest");
    want(&site, ANYONE, "GET packs/available?type=a&type=b", NULL, 400, "InvalidRequest");
    site_end(&site);
}

TEST(catalogue, answers_304_to_who_has_it)
{
    struct web_answer answer;
    char headers[128], *tag;
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "first bytes");
    answer = site_ask(&site, ANYONE, "GET", "packs/available", NULL);
    tag = strcasestr(answer.text, "etag: ");
    CHECK(tag != NULL);
    (void)snprintf(
        headers, sizeof headers, "If-None-Match: %.*s\r\n", (int)strcspn(tag + 6, "\r"), tag + 6);
    web_answer_free(&answer);
    answer = web_ask(http_server_address(site.server), "GET", "/v1/packs/available", headers, "");
    CHECK_EQ_INT(answer.status, 304);
    web_answer_free(&answer);
    site_add_version(&site, "core", "1.1.0", "second bytes");
    site_publish(&site, "core", "1.1.0");
    answer = web_ask(http_server_address(site.server), "GET", "/v1/packs/available", headers, "");
    CHECK_EQ_INT(answer.status, 200);
    web_answer_free(&answer);
    site_end(&site);
}

TEST(catalogue, tells_updates_by_semver_and_else_by_bytes)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.10.0", "a");
    site_add_pack(&site, "beta", "2.0.0-rc.1", "b");
    site_add_pack(&site, "odd", "spring", "c");
    want(&site, ANYONE, "POST packs/updates",
        "{'installed':[{'package_id':'core','version':'1.9.0'}]}", 200,
        "'version':'1.10.0'|'installed_version':'1.9.0'");
    want(&site, ANYONE, "POST packs/updates",
        "{'installed':[{'package_id':'core','version':'v1.10.0'}]}", 200, "{'updates':[]}");
    want(&site, ANYONE, "POST packs/updates",
        "{'installed':[{'package_id':'core','version':'1.11.0'},"
        "{'package_id':'beta','version':'2.0.0'},{'package_id':'odd','version':'summer'},"
        "{'package_id':'gone','version':'1'}]}",
        200, "{'updates':[]}");
    want(&site, ANYONE, "POST packs/updates",
        "{'installed':[{'package_id':'beta','version':'2.0.0-beta.9'},"
        "{'package_id':'odd','version':'autumn'}]}",
        200, "2.0.0-rc.1|spring");
    want(&site, ANYONE, "POST packs/updates", "{'installed':[{'package_id':'core'}]}", 400,
        "installed[0].version is missing.");
    want(&site, ANYONE, "POST packs/updates", "{}", 400, "installed is missing.");
    want(&site, ANYONE, "POST packs/updates", "[", 400, "not JSON");
    site_end(&site);
}

TEST(catalogue, compares_versions_as_semver_says)
{
    static const char *const rising[] = { "0.9.9", "1.0.0-alpha", "1.0.0-alpha.1",
        "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "v1.0.0",
        "1.0.1", "1.2.0", "1.10.0", "2.0.0", "10.0.0",
        "18446744073709551616.0.0", /* more than 64 bits */
        "99999999999999999999.0.0" };
    enum { COUNT = sizeof rising / sizeof rising[0] };

    for (int i = 0; i < COUNT; i++) {
        for (int j = 0; j < COUNT; j++) {
            int order = pack_version_compare(span_of(rising[i]), span_of(rising[j]));

            CHECK_MSG((order > 0) == (i > j) && (order < 0) == (i < j), "%s and %s: %d", rising[i],
                rising[j], order);
        }
    }
    CHECK_EQ_INT(pack_version_compare(SPAN("1.0.0+a"), SPAN("1.0.0+b")), 0);
    CHECK(pack_version_compare(SPAN("1.0.0"), SPAN("1.0")) > 0);    /* bytes */
    CHECK(pack_version_compare(SPAN("01.0.0"), SPAN("1.0.0")) < 0); /* no semver */
}

/* Invalid names and unknown names are both not found. */
TEST(catalogue, knows_names_from_what_is_none)
{
    static const char *const good[] = { "a", "core", "core-db_2.1", "0" };
    static const char *const bad[] = { "", ".", "..", ".a", "A", "a/b", "a b", "a%2fb", "ä",
        "a\\b" };
    char name[PACK_NAME_MAX + 2];

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK_MSG(manifest_is_pack(span_of(good[i])), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_MSG(!manifest_is_pack(span_of(bad[i])), "%s", bad[i]);
    memset(name, 'a', sizeof name);
    CHECK(manifest_is_pack((struct span){ name, PACK_NAME_MAX }));
    CHECK(!manifest_is_pack((struct span){ name, PACK_NAME_MAX + 1 }));
    CHECK(!manifest_is_pack((struct span){ "a\0b", 3 }));
    CHECK(manifest_is_version(SPAN("1.0.0-RC.1+build_7")));
    CHECK(!manifest_is_version(SPAN("../1")));
    CHECK(!manifest_is_version(SPAN(".1")));
    CHECK(!manifest_is_version((struct span){ name, PACK_VERSION_MAX + 1 }));
}

/* ---- which version is active ---------------------------------------------------------------- */

static int64_t active_count(const struct site *site)
{
    return site_number(site, "SELECT COUNT(*) FROM pack_versions WHERE is_active = 1");
}

/* The third defect of the server this replaces. */
TEST(defect_3, a_duplicate_version_is_refused_and_the_active_one_stays)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "first bytes");
    CHECK_EQ_INT(site_try_version(&site, "core", "1.0.0", "other bytes"), 409);
    CHECK_EQ_INT(active_count(&site), 1);
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_versions"), 1);
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "'version':'1.0.0'|'size_bytes':11");
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'core'}", 409, "PackExists");
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "'version':'1.0.0'|'size_bytes':11");
    site_end(&site);
}

/* The unit that switches is one: when it fails in its middle, nothing of it is there. */
TEST(defect_3, a_switch_that_fails_leaves_the_former_version_active)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "first bytes");
    site_add_version(&site, "core", "1.1.0", "second bytes");
    /* Somebody else takes the place in the history that this publish is going to want. */
    site_plant(&site, "INSERT INTO pack_history (pack, place, version, created_ms)"
                      " SELECT id, 2, 1, 0 FROM packs");
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/publish", NULL, 409, "Conflict");
    CHECK_EQ_INT(active_count(&site), 1);
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "'version':'1.0.0'");
    /* It has looked meanwhile, and knows better. */
    site_publish(&site, "core", "1.1.0");
    CHECK_EQ_INT(active_count(&site), 1);
    site_end(&site);
}

TEST(defect_3, the_database_takes_no_second_active_version)
{
    static const struct sql_statement both = { .text = "UPDATE pack_versions SET is_active = 1" };
    struct sql_unit *unit = sql_unit_create(0);
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "first bytes");
    site_add_version(&site, "core", "1.1.0", "second bytes");
    sql_unit_step(unit, &both, SQL_ROWS_ANY);
    CHECK_EQ_INT(sql_write_wait(site.sql, unit), SQL_ECONSTRAINT);
    sql_unit_destroy(unit);
    site_end(&site);
}

struct publisher {
    pthread_t thread;
    struct site *site;
    const char *version;
};

static void *publish_again_and_again(void *argument)
{
    struct publisher *publisher = argument;
    char path[128];

    (void)snprintf(path, sizeof path, "admin/packs/core/versions/%s/publish", publisher->version);
    for (int i = 0; i < 20; i++) {
        struct web_answer answer = site_ask(publisher->site, TOKEN, "POST", path, NULL);

        CHECK_MSG(answer.status == 200, "%s", answer.text);
        web_answer_free(&answer);
        CHECK_EQ_INT(active_count(publisher->site), 1);
    }
    return NULL;
}

TEST_LONG(catalogue, has_one_active_version_whoever_publishes_at_once, 60)
{
    static const char *const versions[] = { "1.0.0", "1.1.0", "1.2.0" };
    struct publisher publishers[3];
    struct site site;

    site_begin(&site);
    site_register(&site, "core");
    for (int i = 0; i < 3; i++)
        site_add_version(&site, "core", versions[i], versions[i]);
    site_publish(&site, "core", "1.0.0");
    for (int i = 0; i < 3; i++) {
        publishers[i] = (struct publisher){ .site = &site, .version = versions[i] };
        CHECK_EQ_INT(
            pthread_create(&publishers[i].thread, NULL, publish_again_and_again, &publishers[i]),
            0);
    }
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(pthread_join(publishers[i].thread, NULL), 0);
    CHECK_EQ_INT(active_count(&site), 1);
    site_end(&site);
}

TEST(catalogue, rolls_back_as_far_as_it_was_published)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 409, "NothingToRollBack");
    site_add_version(&site, "core", "1.1.0", "two");
    site_add_version(&site, "core", "1.2.0", "three");
    site_publish(&site, "core", "1.1.0");
    site_publish(&site, "core", "1.2.0");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.1.0'");
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "'version':'1.1.0'");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.0.0'");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 409, "NothingToRollBack");
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "'version':'1.0.0'");
    site_publish(&site, "core", "1.2.0");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.0.0'");
    CHECK_EQ_INT(active_count(&site), 1);
    site_end(&site);
}

/* A download of the pack's own URL by who has it of this date. `parts` as in want(). */
static void want_since(const struct site *site, uint64_t since_s, unsigned status, const char *part)
{
    char header[64], date[30];
    struct web_answer answer;

    http_date(since_s, date);
    (void)snprintf(header, sizeof header, "If-Modified-Since: %s\r\n", date);
    answer =
        web_ask(http_server_address(site->server), "GET", "/v1/packs/core/download", header, "");
    CHECK_MSG(answer.status == status && strstr(answer.text, part) != NULL,
        "since %s: wanted %u with '%s', got:\n%s", date, status, part, answer.text);
    web_answer_free(&answer);
}

static uint64_t wall_s(void)
{
    const struct tr_env *env = tr_env_real();

    return env->wall_ns(env->data) / 1000000000;
}

static const char last_change[] = "SELECT changed_ms FROM packs";

/* Ask with the second of the last change itself: a client may have the former version of it. */
static void want_after_change(const struct site *site, const char *part)
{
    want_since(site, (uint64_t)site_number(site, last_change) / 1000, 200, part);
}

/* Stopped, and started with a pack that changed at this time. */
static void set_changed(struct site *site, int64_t changed_ms)
{
    char *text = NULL;

    CHECK(asprintf(&text, "UPDATE packs SET changed_ms = %lld", (long long)changed_ms) > 0);
    site_plant(site, text); /* which keeps it */
    site_close(site);
    site_open(site);
}

TEST(catalogue, a_date_never_hides_that_another_version_is_active)
{
    int64_t future_ms = ((int64_t)wall_s() + 7200) * 1000;
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    want_after_change(&site, "one");
    site_add_version(&site, "core", "1.1.0", "two");
    site_publish(&site, "core", "1.1.0");
    want_after_change(&site, "two");

    set_changed(&site, 1700000000500);
    want_since(&site, 1700000000, 200, "Last-Modified: Tue, 14 Nov 2023 22:13:21 GMT");
    want_since(&site, 1700000001, 304, "Last-Modified: Tue, 14 Nov 2023 22:13:21 GMT");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.0.0'");
    want_since(&site, 1700000001, 200, "one"); /* older than what they have, and another file */

    /* The clock went back: dates are not compared, and the next one is later all the same. */
    set_changed(&site, future_ms);
    want_since(&site, (uint64_t)future_ms / 1000 + 7200, 200, "one");
    want_not(&site, ANYONE, "GET packs/core/download", 200, "Last-Modified");
    site_publish(&site, "core", "1.1.0");
    CHECK_EQ_INT(site_number(&site, last_change), future_ms + 1000);
    want(&site, TOKEN, "PATCH admin/packs/core", "{'name':'Another'}", 200, "Another");
    CHECK_EQ_INT(site_number(&site, last_change), future_ms + 2000);
    /* The version's own URL means one file for good. */
    want(&site, ANYONE, "GET packs/core/versions/1.1.0/download", NULL, 200, "Last-Modified: ");
    site_end(&site);
}

TEST(catalogue, keeps_a_history_with_an_end)
{
    struct site site;
    int steps = 0;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    for (int i = 0; i < PACK_HISTORY_MAX + 4; i++)
        site_publish(&site, "core", i % 2 == 0 ? "1.1.0" : "1.0.0");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_history"), PACK_HISTORY_MAX);
    for (;; steps++) {
        struct web_answer answer =
            site_ask(&site, TOKEN, "POST", "admin/packs/core/rollback", NULL);
        unsigned status = answer.status;

        web_answer_free(&answer);
        CHECK_EQ_INT(active_count(&site), 1);
        if (status != 200)
            break;
    }
    CHECK_EQ_INT(steps, PACK_HISTORY_MAX - 1);
    site_end(&site);
}

TEST(catalogue, disables_a_version_for_good)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    site_publish(&site, "core", "1.1.0");
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/disable", NULL, 200,
        "'active_version':'1.0.0'|'state':'disabled'");
    want(&site, ANYONE, "GET packs/core/versions/1.1.0/manifest", NULL, 404, "VersionNotFound");
    want(
        &site, TOKEN, "POST admin/packs/core/versions/1.1.0/publish", NULL, 409, "VersionDisabled");
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/disable", NULL, 200, "1.0.0");
    want(&site, ANYONE, "GET packs/core/versions/1.0.0/manifest", NULL, 200, "1.0.0");
    /* The last one goes, and the pack with it. */
    want(&site, TOKEN, "POST admin/packs/core/versions/1.0.0/disable", NULL, 200,
        "'active_version':null");
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 404, "PackNotFound");
    want(&site, ANYONE, "GET packs/available", NULL, 200, "{'packs':[]}");
    CHECK_EQ_INT(active_count(&site), 0);
    site_end(&site);
}

TEST(catalogue, rolls_back_over_what_was_disabled)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    site_add_version(&site, "core", "1.2.0", "three");
    site_publish(&site, "core", "1.1.0");
    site_publish(&site, "core", "1.2.0");
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/disable", NULL, 200,
        "'active_version':'1.2.0'");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.0.0'");
    site_end(&site);
}

TEST(catalogue, brings_a_disabled_pack_back_when_something_is_published)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    want(&site, TOKEN, "POST admin/packs/core/disable", NULL, 200,
        "'state':'disabled','active_version':null");
    want(&site, TOKEN, "POST admin/packs/core/disable", NULL, 200, "'active_version':null");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 409, "NothingToRollBack");
    want(&site, ANYONE, "GET packs/core/versions/1.0.0/manifest", NULL, 404, "PackNotFound");
    site_publish(&site, "core", "1.0.0");
    want(&site, ANYONE, "GET packs/core/manifest", NULL, 200, "1.0.0");
    site_end(&site);
}

/* The seventh defect of the audit. */
TEST(defect_7, publishing_what_is_not_there_is_404)
{
    struct site site;

    site_begin(&site);
    want(&site, TOKEN, "POST admin/packs/none/versions/1.0.0/publish", NULL, 404, "PackNotFound");
    site_register(&site, "core");
    want(
        &site, TOKEN, "POST admin/packs/core/versions/1.0.0/publish", NULL, 404, "VersionNotFound");
    want(&site, TOKEN, "POST admin/packs/..%2f..%2fetc/versions/1/publish", NULL, 400,
        "InvalidPath");
    want(&site, TOKEN, "POST admin/packs/core/versions/..%2f1/publish", NULL, 400, "InvalidPath");
    want(&site, TOKEN, "POST admin/packs/Core/versions/1/publish", NULL, 404, "PackNotFound");
    want(&site, TOKEN, "POST admin/packs/core/versions/.1/publish", NULL, 404, "VersionNotFound");
    want(&site, TOKEN, "POST admin/packs/none/rollback", NULL, 404, "PackNotFound");
    want(&site, TOKEN, "POST admin/packs/none/disable", NULL, 404, "PackNotFound");
    want(&site, TOKEN, "POST admin/releases/none/publish", NULL, 404, "ReleaseNotFound");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_audit"), 1); /* core */
    site_end(&site);
}

/* ---- how much there may be ------------------------------------------------------------------ */

#define NUMBERS(last)                                                                              \
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < " last ") "

TEST_LONG(catalogue, is_served_and_changed_when_it_is_as_large_as_it_may_be, 120)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_plant(&site, NUMBERS("4095") "INSERT INTO packs (id, name, kind, language, title, state,"
                                      " created_ms, changed_ms) SELECT i + 1, 'pack-' || i, 'x',"
                                      " 'und', 'Pack', 1, 1, 1 FROM n");
    site_plant(&site, NUMBERS("4095") "INSERT INTO pack_versions (id, pack, version, sha256, size,"
                                      " media_type, is_active, is_disabled, created_ms,"
                                      " published_ms) SELECT i + 1, i + 1, '1.0.0', (SELECT sha256"
                                      " FROM pack_versions WHERE id = 1), 3, 'x/y', 1, 0, 1, 1000"
                                      " FROM n");
    site_plant(&site, NUMBERS("12288") "INSERT INTO pack_versions (id, pack, version, sha256, size,"
                                       " media_type, is_active, is_disabled, created_ms,"
                                       " published_ms) SELECT i + 4096, 1, '2.' || i || '.0',"
                                       " (SELECT sha256 FROM pack_versions WHERE id = 1), 3, 'x/y',"
                                       " 0, 0, 1, 1000 FROM n");
    site_close(&site);
    site_open(&site);
    want(&site, ANYONE, "GET packs/pack-4095/checksum", NULL, 200, "'version':'1.0.0'");
    want(&site, ANYONE, "GET packs/core/versions/2.12287.0/manifest", NULL, 200, "2.12287.0");
    want(&site, ANYONE, "GET packs/core/versions/2.1.0/manifest", NULL, 200, "2.1.0");
    want(&site, ANYONE, "GET packs/core/versions/1.0.0/manifest", NULL, 200, "1.0.0");
    want(&site, ANYONE, "GET packs/core/versions/2.0.0/manifest", NULL, 404, "VersionNotFound");
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'more'}", 409, "CatalogueFull");
    CHECK_EQ_INT(site_try_version(&site, "core", "3.0.0", "more"), 409);
    site_publish(&site, "core", "2.9999.0");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.0.0'");
    site_end(&site);
}

TEST_LONG(catalogue, takes_no_more_texts_than_can_be_read_at_once, 120)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    site_plant(&site,
        SITE_ON_POSTGRES
            ? NUMBERS("3100") "INSERT INTO packs (id, name, kind, language, title, description,"
                              " state, created_ms, changed_ms) SELECT i + 1, 'pack-' || i, 'x',"
                              " 'und', 'Pack', repeat('0', 16384), 0, 1, 1 FROM n"
            : NUMBERS("3100") "INSERT INTO packs (id, name, kind, language, title, description,"
                              " state, created_ms, changed_ms) SELECT i + 1, 'pack-' || i, 'x',"
                              " 'und', 'Pack', hex(zeroblob(8192)), 0, 1, 1 FROM n");
    site_close(&site);
    site_open(&site);
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'more'}", 409, "CatalogueFull");
    want(&site, TOKEN, "PATCH admin/packs/core", "{'name':'x'}", 409, "CatalogueFull");
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "1.0.0");
    want(&site, TOKEN, "POST admin/packs/core/versions/1.0.0/disable", NULL, 200,
        "'active_version':null");
    site_end(&site);
}
