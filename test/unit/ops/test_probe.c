/* SPDX-License-Identifier: Apache-2.0 */
/* test/integration/serve_run.py tests a database that goes away, with its own PostgreSQL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <troupe/inspect.h>

#include "base/alloc.h"
#include "check.h"
#include "ops/probe.h"

static char folder[] = "/tmp/test-probe-XXXXXX";
static char why[256];
static struct tr_system *system_;
static struct sql *sql;

static void begin(void)
{
    char url[64];
    int rc;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(url, sizeof url, "sqlite:%s/p.db", folder);
    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 2 }, &system_), 0);
    rc = sql_open(system_, &(struct sql_options){ .url = url }, why, sizeof why, &sql);
    CHECK_MSG(rc == 0, "%s", why);
}

static void end(void)
{
    char command[96];

    sql_close(&sql);
    tr_system_destroy(&system_);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
}

TEST(probe, open_database_is_ready_and_asked)
{
    struct probe *probe;

    begin();
    CHECK_EQ_INT(probe_start(system_, sql, (tr_sender){ 0 }, &probe), 0);
    CHECK(probe_is_ready(probe, why, sizeof why));
    CHECK_EQ_STR(why, "");
    probe_stop(&probe);
    CHECK(probe == NULL);
    probe_stop(&probe);
    end();
}

TEST(probe, database_that_answers_stays_ready)
{
    struct tr_system_stats stats;
    struct probe *probe;
    uint64_t turns;

    begin();
    CHECK_EQ_INT(probe_start(system_, sql, (tr_sender){ 0 }, &probe), 0);
    tr_system_stats(system_, &stats);
    turns = stats.turns;
    /* Until it has asked and been answered: a tick, and the answer's turn. */
    do
        tr_system_stats(system_, &stats);
    while (stats.turns < turns + 4 && tr_system_join(system_, TR_MILLISECONDS(20)) == TR_ETIMEOUT);
    CHECK(probe_is_ready(probe, why, sizeof why));
    probe_stop(&probe);
    end();
}

/* The actor starts on a worker, so the fault may also be its own: then it has failed, and says so.
 */
TEST(probe, every_allocation_of_start_may_fail)
{
    struct probe *probe;
    uint64_t countdown = 0;
    uint64_t calls;
    int rc;

    begin();
    do {
        base_fault_countdown(++countdown, 1);
        rc = probe_start(system_, sql, (tr_sender){ 0 }, &probe);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        calls = base_fault_countdown(0, 0);
        if (rc == 0)
            probe_stop(&probe);
    } while (calls >= countdown);
    CHECK(countdown > 2);
    end();
}

TEST(probe, without_its_actor_nothing_is_ready)
{
    struct probe *probe;

    begin();
    CHECK_EQ_INT(probe_start(system_, sql, (tr_sender){ 0 }, &probe), 0);
    CHECK_EQ_INT(tr_system_drain(system_, TR_SECONDS(10)), 0);
    CHECK(!probe_is_ready(probe, why, sizeof why));
    CHECK(strstr(why, "The database probe has failed") != NULL);
    probe_stop(&probe);
    end();
}
