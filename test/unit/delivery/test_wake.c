/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation that wakes up reads a few rows by their index and nothing of its history: as many
 * with two thousand messages and commits as with ten. So it needs no snapshot beside them. */
#include "noting.h"

/* ---- waking --------------------------------------------------------------------------------- */

static struct cost wake(struct cast *cast)
{
    set_noting(true);
    expect(&cast->site, &cast->bob, "getConvo?convoId=g1", NULL, 200, "\"groupId\":\"g1\"");
    return noted_cost(&cast->site);
}

static void restart(struct site *site)
{
    site_close(site);
    site_open(site);
}

/* Every conversation, as one by one when nobody asks them. */
static void passivate(struct site *site)
{
    struct delivery *delivery = site->delivery;

    CHECK_EQ_INT(tr_registry_close(&delivery->convos, TR_SECONDS(10)), 0);
    CHECK_EQ_INT(tr_registry_create(site->system,
                     &(struct tr_registry_options){ .name = "convos",
                         .type = &convo_type,
                         .make = convo_slot_make,
                         .data = delivery,
                         .box = { .capacity = 256, .full = TR_FULL_FAIL } },
                     &delivery->convos),
        0);
}

/* A commit and a message in turns, up to this sequence number, which must be even. */
static void fill(const struct site *site, unsigned seq)
{
    char text[1024];

    (void)snprintf(text, sizeof text,
        "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, op, sha256, bytes,"
        " created_ms) WITH RECURSIVE n (i) AS (SELECT seq + 1 FROM convos WHERE id = 'g1'"
        " UNION ALL SELECT i + 1 FROM n WHERE i < %u) SELECT 'g1', n.i,"
        " CASE WHEN n.i %% 2 = 1 THEN 3 ELSE 1 END, (n.i + 1) / 2 - n.i %% 2,"
        " (n.i + 1) / 2, l.sender, NULL, l.sha256, l.bytes, l.created_ms"
        " FROM n JOIN log l ON l.convo = 'g1' AND l.seq = 2",
        seq);
    plant(site, text);
    (void)snprintf(
        text, sizeof text, "UPDATE convos SET seq = %u, epoch = %u WHERE id = 'g1'", seq, seq / 2);
    plant(site, text);
}

static void check_wakes(void (*rest)(struct site *site))
{
    struct cost few, many;
    struct cast cast;

    cast_begin(&cast);
    fill(&cast.site, 12);
    rest(&cast.site);
    few = wake(&cast);
    CHECK_EQ_INT(wake(&cast).statements, 0); /* awake */
    fill(&cast.site, 2002);
    rest(&cast.site);
    many = wake(&cast);
    CHECK_EQ_INT(few.rows, 1 + 4 + 1); /* the conversation, its members, the newest commit */
    CHECK(few.work >= few.rows);
    CHECK_EQ_INT(many.statements, few.statements);
    CHECK_EQ_INT(many.rows, few.rows);
    CHECK_MSG(many.work <= few.work + 50, "waking takes %lld steps, and took %lld",
        (long long)many.work, (long long)few.work);
    do_say(&cast.site, &cast.bob, "g1", "next", 1001, "persistent", 200, "\"seq\":2003");
    cast_end(&cast);
}

TEST(wake, after_passivation_reads_nothing_of_the_history)
{
    check_wakes(passivate);
}

TEST(wake, after_a_restart_reads_nothing_of_the_history)
{
    check_wakes(restart);
}
