/* SPDX-License-Identifier: Apache-2.0 */
/* The operator's calls on a real admin listener: compact, verify, the audit log. */
#include "convo_acts.h"
#include "ops/admin.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/store/check.h"

/* ---- the admin listener --------------------------------------------------------------------- */

struct office {
    struct cast cast;
    const struct service *served[1];
    struct admin *admin;
    char token[256]; /* as a header line */
};

static void read_token(struct office *office, const char *path)
{
    char line[160] = "";
    FILE *file = fopen(path, "r");

    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
    CHECK_EQ_INT(fclose(file), 0);
    line[strcspn(line, "\n")] = '\0';
    (void)snprintf(office->token, sizeof office->token, "Authorization: Bearer %s\r\n", line);
}

static void office_begin(struct office *office)
{
    struct site *site = &office->cast.site;
    char why[256] = "", path[96];

    cast_begin(&office->cast);
    office->served[0] = &delivery_service;
    (void)snprintf(path, sizeof path, "%s/admin.token", site->place);
    CHECK_MSG(admin_start(site->system,
                  &(struct admin_options){ .listen = "127.0.0.1:0",
                      .token_path = path,
                      .version = "1",
                      .data_path = site->place,
                      .services = office->served,
                      .service_count = 1 },
                  why, sizeof why, &office->admin) == 0,
        "%s", why);
    admin_set_state(office->admin, &delivery_service, site->delivery);
    read_token(office, path);
}

static void office_end(struct office *office)
{
    admin_remove_checks(office->admin);
    admin_stop(&office->admin);
    cast_end(&office->cast);
}

/* "POST /v1/delivery/verify". */
static struct web_answer order(const struct office *office, const char *header, const char *call)
{
    const char *path = strchr(call, ' ') + 1;
    char method[8];

    (void)snprintf(method, sizeof method, "%.*s", (int)(path - call - 1), call);
    return web_ask(admin_address(office->admin), method, path, header, "");
}

static void want(const struct office *office, const char *call, unsigned status, const char *part)
{
    struct web_answer answer = order(office, office->token, call);

    CHECK_MSG(answer.status == status && strstr(answer.body, part) != NULL,
        "%s: wanted %u with '%s', got:\n%s", call, status, part, answer.text);
    web_answer_free(&answer);
}

/* ---- who may -------------------------------------------------------------------------------- */

TEST(admin, only_the_token_opens_what_changes_or_names)
{
    static const char *const calls[] = { "POST /v1/delivery/compact", "POST /v1/delivery/verify",
        "GET /v1/delivery/audit" };
    struct office office;

    office_begin(&office);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct web_answer without = order(&office, "", calls[i]);
        struct web_answer wrong = order(&office,
            "Authorization: Bearer 0123456789012345678901234567890123456789\r\n", calls[i]);
        const char *path = strchr(calls[i], ' ') + 1;
        struct web_answer outside = web_ask(http_server_address(office.cast.site.server),
            calls[i][0] == 'G' ? "GET" : "POST", path, office.token, "");

        CHECK_MSG(without.status == 401, "%s: %s", calls[i], without.text);
        CHECK_MSG(wrong.status == 401, "%s: %s", calls[i], wrong.text);
        CHECK_MSG(outside.status == 404, "%s: %s", calls[i], outside.text);
        want(&office, calls[i], 200, "{");
        web_answer_free(&without);
        web_answer_free(&wrong);
        web_answer_free(&outside);
    }
    office_end(&office);
}

/* ---- compact -------------------------------------------------------------------------------- */

static void read_to(struct cast *cast, int seq)
{
    const struct caller *const all[] = { &cast->ada, &cast->bob, &cast->cyd, &cast->dan };

    for (int i = 0; i < 4; i++)
        act(&cast->site, all[i], "updateCursor", 200, "success", "{\"convoId\":\"g1\",\"seq\":%d}",
            seq);
}

TEST(admin, compact_removes_at_once_what_nobody_needs_and_says_how_much)
{
    struct office office;
    struct site *site = &office.cast.site;

    office_begin(&office);
    do_say(site, &office.cast.ada, "g1", "m3", 1, "persistent", 200, "\"seq\":3");
    do_say(site, &office.cast.ada, "g1", "m4", 1, "persistent", 200, "\"seq\":4");
    read_to(&office.cast, 3);
    want(&office, "POST /v1/delivery/compact", 200, "\"rows\":0"); /* young */
    plant(site, "UPDATE log SET created_ms = 1");
    plant(site, "INSERT INTO audit (id, actor, action, created_ms) VALUES ('x', 'did:x', 'y', 1)");
    want(&office, "POST /v1/delivery/compact", 200,
        "{\"log\":{\"convos\":1,\"rows\":2,\"keptForEver\":false},\"tidied\":{\"leases\":0,");
    CHECK_EQ_INT(stored(site, "SELECT MIN(seq) FROM log"), 4);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM audit WHERE id = 'x'"), 0);
    want(&office, "POST /v1/delivery/compact", 200, "\"auditEntries\":0}}");
    want(&office, "POST /v1/delivery/verify", 200, "\"violations\":0}");
    office_end(&office);
}

/* The actor read the age when it began: another one, which keeps for ever. */
TEST(admin, compact_keeps_what_is_to_be_kept_for_ever)
{
    struct office office;
    struct site *site = &office.cast.site;
    struct delivery *delivery;
    tr_sender usual;

    office_begin(&office);
    delivery = site->delivery;
    usual = delivery->retention;
    delivery->log_kept_s = 0;
    CHECK_EQ_INT(retention_start(delivery, &delivery->retention), 0);
    read_to(&office.cast, 2);
    plant(site, "UPDATE log SET created_ms = 1");
    want(&office, "POST /v1/delivery/compact", 200,
        "{\"log\":{\"convos\":0,\"rows\":0,\"keptForEver\":true}");
    CHECK_EQ_INT(stored(site, "SELECT MIN(seq) FROM log"), 2);
    (void)tr_stop(tr_sender_weaken(delivery->retention));
    tr_sender_drop(&delivery->retention);
    delivery->retention = usual;
    office_end(&office);
}

/* ---- verify --------------------------------------------------------------------------------- */

TEST(admin, verify_finds_what_the_checks_find)
{
    struct office office;
    struct site *site = &office.cast.site;

    office_begin(&office);
    do_create(site, &office.cast.ada, "another");
    want(&office, "POST /v1/delivery/verify", 200,
        "{\"found\":[],\"checks\":[{\"name\":\"epoch\",\"violations\":0},");
    want(&office, "POST /v1/delivery/verify", 200,
        "{\"name\":\"receipts\",\"violations\":0}],\"violations\":0}");
    plant(site, "UPDATE convos SET epoch = epoch + 1 WHERE id = 'g1'");
    plant(site, "UPDATE convos SET chain = NULL WHERE id = 'g1'");
    want(&office, "POST /v1/delivery/verify", 200, "{\"name\":\"epoch\",\"violations\":1}");
    want(&office, "POST /v1/delivery/verify", 200,
        "{\"name\":\"receipts\",\"violations\":1}],\"violations\":2}");
    want(&office, "POST /v1/delivery/verify", 200, "{\"check\":\"epoch\",\"convoId\":\"g1\",");
    office_end(&office);
}

/* More than are named, and more than one page of conversations. */
TEST(admin, verify_counts_all_and_names_a_hundred)
{
    struct office office;
    struct web_answer answer;
    int named = 0;

    office_begin(&office);
    plant(&office.cast.site,
        "INSERT INTO convos (id, kind, suite, creator, epoch, seq, created_ms, active_ms, "
        "open_join)"
        " WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 700)"
        " SELECT 'wrong-' || n, 1, 's', 'did:x', 0, 5, 0, 0, 0 FROM counted");
    answer = order(&office, office.token, "POST /v1/delivery/verify");
    CHECK_MSG(
        strstr(answer.body, "{\"name\":\"seq\",\"violations\":700}") != NULL, "%s", answer.text);
    CHECK_MSG(strstr(answer.body, "],\"violations\":700}") != NULL, "%s", answer.text);
    for (const char *at = answer.body; (at = strstr(at, "\"convoId\":")) != NULL; at++)
        named++;
    CHECK_EQ_INT(named, VERIFY_FOUND_MAX);
    web_answer_free(&answer);
    office_end(&office);
}

TEST(check, follows_the_receipts_of_a_log_that_is_trimmed_meanwhile)
{
    struct cast cast;
    struct check_walk walk = { 0 };
    struct sql_unit *unit;
    bool is_trimmed = false;

    cast_begin(&cast);
    for (int epoch = 1; epoch <= 520; epoch++)
        do_commit(&cast.site, &cast.ada, "g1", (uint64_t)epoch, "c", "", 200, "newEpoch");
    while (CHECK_EQ_INT(check_walk_next(&walk, &unit), 0), unit != NULL) {
        CHECK_EQ_INT(sql_read_wait(cast.site.sql, unit), 0);
        check_walk_take(&walk, unit);
        if (walk.is_inside && !is_trimmed) { /* between the pages of its log */
            read_to(&cast, 1000);
            CHECK_EQ_INT(retain(&cast.site, 0).rows, 521);
            is_trimmed = true;
        }
    }
    CHECK(is_trimmed);
    CHECK_EQ_U64(walk.violations, 0);
    check_walk_end(&walk);
    cast_end(&cast);
}

/* ---- the audit log -------------------------------------------------------------------------- */

static void promote(const struct office *office, const char *convo, const struct caller *caller)
{
    act(&office->cast.site, &office->cast.ada, "promoteModerator", 200, "ok",
        "{\"convoId\":\"%s\",\"targetDid\":\"%s\"}", convo, caller->did);
}

/* Targets of the page, a letter each; *cursor is where the next one begins, "" after the last. */
static void read_audit(
    const struct office *office, const char *query, char ret_targets[8], char cursor[128])
{
    const struct cast *cast = &office->cast;
    const char *const dids[] = { cast->bob.did, cast->cyd.did, cast->dan.did };
    struct json_doc doc = { 0 };
    struct web_answer answer;
    struct span text;
    char call[256];
    int count = 0;

    (void)snprintf(call, sizeof call, "GET /v1/delivery/audit?%s%s%s", query,
        cursor[0] == '\0' ? "" : "&cursor=", cursor);
    answer = order(office, office->token, call);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    for (struct json_iter it = json_iterate(json_get(json_root(&doc), "entries"));
         json_next(&it);) {
        CHECK(json_string(json_get(it.value, "actor"), &text) && span_is(text, cast->ada.did));
        CHECK(json_string(json_get(it.value, "createdAt"), &text));
        CHECK(json_string(json_get(it.value, "target"), &text));
        for (int i = 0; i < 3; i++)
            if (span_is(text, dids[i]))
                ret_targets[count++] = (char)('b' + i);
    }
    ret_targets[count] = '\0';
    cursor[0] = '\0';
    if (json_string(json_get(json_root(&doc), "cursor"), &text))
        (void)snprintf(cursor, 128, "%.*s", (int)text.size, text.at);
    json_doc_free(&doc);
    web_answer_free(&answer);
}

TEST(admin, audit_is_read_page_by_page_newest_first)
{
    struct office office;
    char targets[32], cursor[128] = "";

    office_begin(&office);
    promote(&office, "g1", &office.cast.bob);
    promote(&office, "g1", &office.cast.cyd);
    promote(&office, "g1", &office.cast.dan);
    /* Two of one moment: the id decides. */
    plant(&office.cast.site, "UPDATE audit SET created_ms = 5000");
    read_audit(&office, "limit=2", targets, cursor);
    CHECK_EQ_U64(strlen(targets), 2);
    CHECK(cursor[0] != '\0');
    read_audit(&office, "limit=2", targets + 2, cursor);
    CHECK_EQ_U64(strlen(targets), 3);
    CHECK_EQ_STR(cursor, "");
    CHECK(strchr(targets, 'b') != NULL && strchr(targets, 'c') != NULL &&
          strchr(targets, 'd') != NULL);
    plant(&office.cast.site,
        "UPDATE audit SET created_ms = CASE WHEN target = (SELECT MIN(target) FROM audit) THEN 9000"
        " ELSE 1000 END");
    read_audit(&office, "limit=1", targets, cursor);
    want(&office, "GET /v1/delivery/audit?limit=1", 200,
        "\"createdAt\":\"1970-01-01T00:00:09.000Z\"");
    office_end(&office);
}

TEST(admin, audit_of_one_conversation_has_nothing_of_others)
{
    struct office office;
    char targets[32], cursor[128] = "";

    office_begin(&office);
    do_create(&office.cast.site, &office.cast.ada, "g2");
    do_add(&office.cast.site, &office.cast.ada, "g2", 0,
        (const char *const[3]){ office.cast.dan.did, NULL, NULL });
    promote(&office, "g1", &office.cast.bob);
    promote(&office, "g2", &office.cast.dan);
    read_audit(&office, "convoId=g2", targets, cursor);
    CHECK_EQ_STR(targets, "d");
    read_audit(&office, "convoId=g1", targets, cursor);
    CHECK_EQ_STR(targets, "b");
    read_audit(&office, "convoId=nowhere", targets, cursor);
    CHECK_EQ_STR(targets, "");
    office_end(&office);
}

TEST(admin, audit_refuses_what_it_cannot_read)
{
    static const char *const queries[] = { "limit=0", "limit=501", "limit=x", "cursor=", "cursor=5",
        "cursor=5-", "cursor=5-00", "cursor=-00000000000000000000000000000000",
        "cursor=5-0000000000000000000000000000000g", "cursor=5-000000000000000000000000000000000",
        "cursor=99999999999999999999-00000000000000000000000000000000",
        "convoId=", "convoId=a&convoId=b" };
    struct office office;

    office_begin(&office);
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++) {
        char call[128];

        (void)snprintf(call, sizeof call, "GET /v1/delivery/audit?%s", queries[i]);
        want(&office, call, 400, "InvalidRequest");
    }
    office_end(&office);
}
