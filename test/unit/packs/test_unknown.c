/* SPDX-License-Identifier: Apache-2.0 */
/* A COMMIT whose outcome is not known, a database that refuses, a view that cannot be read: the
 * catalogue looks before it goes on, and tells nobody what it does not know. */
#include "sql/backend.h"

static const struct sql_backend *unknown_backend(void);
#define SITE_BACKEND unknown_backend()
#include "site.h"

enum trouble {
    TROUBLE_NONE,
    TROUBLE_AFTER,  /* it is stored, and nobody can say so */
    TROUBLE_BEFORE, /* the same, and it is not */
    TROUBLE_FAILED, /* the database refuses */
};
static _Atomic int commit_trouble; /* of the next commit */
static _Atomic int reads_failing;  /* so many */

static const struct sql_backend *real_backend(void)
{
    return SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite;
}

static void set_all(struct sql_unit *const *units, size_t count, int status)
{
    for (size_t i = 0; i < count; i++)
        if (units[i]->status == 0 || status == SQL_EFAILED)
            units[i]->status = status;
}

static int commit(struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int trouble = atomic_exchange(&commit_trouble, TROUBLE_NONE), rc = 0;

    if (trouble == TROUBLE_NONE || trouble == TROUBLE_AFTER)
        rc = real_backend()->commit(connection, units, count);
    else
        for (size_t i = 0; i < count; i++)
            units[i]->status = 0;
    if (rc != 0 || trouble == TROUBLE_NONE)
        return rc;
    set_all(units, count, trouble == TROUBLE_FAILED ? SQL_EFAILED : SQL_EUNKNOWN);
    return trouble == TROUBLE_FAILED ? 0 : SQL_EUNKNOWN;
}

static int read_some(struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = real_backend()->read(connection, units, count);

    /* Only those that read all of it. */
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (units[i]->step_count > 4 && atomic_load(&reads_failing) > 0) {
            atomic_fetch_sub(&reads_failing, 1);
            units[i]->status = SQL_EDISK;
        }
    return rc;
}

static const struct sql_backend *unknown_backend(void)
{
    static struct sql_backend table;

    table = *real_backend();
    table.commit = commit;
    table.read = read_some;
    return &table;
}

static void wait_ready(const struct site *site)
{
    for (;;) { /* until the case's own limit */
        struct web_answer answer = site_ask(site, ANYONE, "GET", "ready", NULL);
        unsigned status = answer.status;

        web_answer_free(&answer);
        if (status == 200)
            return;
        (void)poll(NULL, 0, 10); /* nothing tells when: ask again */
    }
}

TEST(unknown, a_change_that_was_stored_after_all_is_seen_without_a_restart)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    atomic_store(&commit_trouble, TROUBLE_AFTER);
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/publish", NULL, 504,
        "OutcomeUnknown|Retry-After");
    wait_ready(&site);
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "'version':'1.1.0'");
    /* Asked again, it is so already. */
    site_publish(&site, "core", "1.1.0");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_history"), 2);
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.0.0'");
    site_end(&site);
}

TEST(unknown, a_change_that_was_not_stored_is_not_seen_and_can_be_made_again)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    atomic_store(&commit_trouble, TROUBLE_BEFORE);
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/publish", NULL, 504,
        "OutcomeUnknown|Retry-After");
    wait_ready(&site);
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "'version':'1.0.0'");
    site_publish(&site, "core", "1.1.0");
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "'version':'1.1.0'");
    site_end(&site);
}

/* The next edit reloads before it plans. */
TEST(unknown, the_next_change_looks_first)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    atomic_store(&commit_trouble, TROUBLE_AFTER);
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/publish", NULL, 504,
        "OutcomeUnknown|Retry-After");
    want(&site, TOKEN, "POST admin/packs/core/rollback", NULL, 200, "'active_version':'1.0.0'");
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM pack_versions WHERE is_active = 1"), 1);
    site_end(&site);
}

TEST(unknown, what_the_database_refuses_did_not_happen)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    atomic_store(&commit_trouble, TROUBLE_FAILED);
    want(&site, TOKEN, "POST admin/packs/core/disable", NULL, 503, "Retry-After");
    want(&site, ANYONE, "GET ready", NULL, 200, "ready");
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "'version':'1.0.0'");
    want(&site, TOKEN, "POST admin/packs/core/disable", NULL, 200, "disabled");
    site_end(&site);
}

/* It is stored, but what is now there cannot be read: not ready, and then it is seen. */
TEST(unknown, a_view_that_cannot_be_read_is_read_again)
{
    struct site site;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    atomic_store(&reads_failing, 3);
    want(&site, TOKEN, "POST admin/packs/core/versions/1.1.0/publish", NULL, 504,
        "OutcomeUnknown|Retry-After");
    wait_ready(&site);
    CHECK_EQ_INT(atomic_load(&reads_failing), 0);
    want(&site, ANYONE, "GET packs/core/checksum", NULL, 200, "'version':'1.1.0'");
    site_end(&site);
}

/* ---- memory --------------------------------------------------------------------------------- */

TEST(unknown, a_view_for_which_there_is_no_memory_is_none_and_leaks_nothing)
{
    struct sql_unit *unit = view_unit();
    struct packs_view *view;
    struct site site;
    uint64_t n = 1;
    int rc;

    site_begin(&site);
    site_add_pack(&site, "core", "1.0.0", "one");
    site_add_version(&site, "core", "1.1.0", "two");
    site_register(&site, "draft");
    want(&site, TOKEN, "POST admin/releases", "{'name':'spring'}", 201, "spring");
    CHECK_EQ_INT(sql_read_wait(site.sql, unit), 0);
    for (;; n++) {
        (void)base_fault_countdown(n, 1);
        rc = view_build(unit, 1, &view);
        (void)base_fault_countdown(0, 0);
        if (rc == 0)
            break;
        CHECK_EQ_INT(rc, TR_ENOMEM);
    }
    CHECK(n > 4);
    CHECK_EQ_INT(view->pack_count, 2);
    CHECK_EQ_INT(view->version_count, 2);
    view_free(view);
    sql_unit_destroy(unit);
    site_end(&site);
}

/* A request may meet it anywhere: it is answered, and the next one is served. */
TEST_LONG(unknown, a_change_for_which_there_is_no_memory_is_503_or_was_perhaps_made, 60)
{
    struct site site;
    unsigned status = 0;
    char body[64];

    site_begin(&site);
    for (uint64_t n = 1; n < 120; n++) {
        struct web_answer answer;

        (void)snprintf(body, sizeof body, "{'package_id':'p%llu'}", (unsigned long long)n);
        (void)base_fault_countdown(n, 1);
        answer = site_ask(&site, TOKEN, "POST", "admin/packs", body);
        (void)base_fault_countdown(0, 0);
        status = answer.status;
        CHECK_MSG(status == 201 || status == 503 || status == 504 || status == 0 || status == 500,
            "%s", answer.text);
        web_answer_free(&answer);
        wait_ready(&site);
    }
    CHECK_EQ_INT(status, 201); /* the last one was not met by it any more */
    CHECK_EQ_INT(site_number(&site, "SELECT COUNT(*) FROM packs") -
                     site_number(&site, "SELECT COUNT(*) FROM pack_audit"),
        0);
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'last'}", 201, "last");
    site_end(&site);
}
