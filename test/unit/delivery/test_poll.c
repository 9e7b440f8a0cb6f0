/* SPDX-License-Identifier: Apache-2.0 */
/* getMessages without new messages is answered from memory. The answer is, to the byte, the answer
 * from the database: the test asks every question both ways. */
#include "convo_acts.h"
#include "ops/flags.h"
#include "support/metric.h"

enum { ADA, BOB, CYD, DAN, EVE, CALLERS };

struct polled {
    struct site site;
    struct caller callers[CALLERS];
    char answers[2][8192];
};

static void set_direct(bool is_direct)
{
    (void)flags_set("delivery.direct", is_direct ? FLAG_ALL : 0); /* there is no file to keep it */
}

static int64_t count_of(const char *name)
{
    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0)
            return metric_get(metric);
    CHECK_MSG(false, "there is no %s", name);
    return 0;
}

static int64_t polls(void)
{
    return count_of("troupe_delivery_polls_total");
}

/* Everybody but eve is in. */
static void polled_begin(struct polled *cast)
{
    struct site *site = &cast->site;
    const char *cyd, *dan;

    for (int i = 0; i < CALLERS; i++)
        caller_begin(&cast->callers[i]);
    site_begin(site);
    cyd = cast->callers[CYD].did;
    dan = cast->callers[DAN].did;
    do_create(site, &cast->callers[ADA], "g1");
    do_add(site, &cast->callers[ADA], "g1", 0,
        (const char *const[3]){ cast->callers[BOB].did, cyd, dan });
    do_say(site, &cast->callers[ADA], "g1", "m1", 1, "persistent", 200, "seq");
}

static void polled_end(struct polled *cast)
{
    set_direct(false);
    site_end(&cast->site);
    for (int i = 0; i < CALLERS; i++)
        caller_end(&cast->callers[i]);
}

static void remove_member(struct polled *cast, int who, uint64_t epoch)
{
    char more[256];

    (void)snprintf(more, sizeof more, ",\"removes\":[\"%s\"]", cast->callers[who].did);
    do_commit(&cast->site, &cast->callers[ADA], "g1", epoch, "a remove", more, 200, "newEpoch");
}

/* The whole answer, without what differs from request to request. */
static void ask(struct polled *cast, int who, const char *query, char answer[8192])
{
    struct web_answer got;
    char call[256];
    size_t size = 0;

    (void)snprintf(call, sizeof call, "getMessages?%s", query);
    got = caller_ask(&cast->site, &cast->callers[who], call, NULL);
    for (const char *line = got.text; *line != '\0';) {
        size_t line_size = strcspn(line, "\n");

        line_size += line[line_size] == '\n' ? 1 : 0;
        CHECK(size + line_size < 8192);
        if (strncasecmp(line, "date:", 5) != 0 && strncasecmp(line, "x-request-id:", 13) != 0 &&
            strncasecmp(line, "traceparent:", 12) != 0) {
            memcpy(answer + size, line, line_size);
            size += line_size;
        }
        line += line_size;
    }
    answer[size] = '\0';
    web_answer_free(&got);
}

/* True: memory answered. In memory, asked twice: the first time it may have to learn where the log
 * begins. */
static bool ask_both(struct polled *cast, int who, const char *query)
{
    int64_t before;
    bool is_polled;

    set_direct(false);
    ask(cast, who, query, cast->answers[0]);
    before = polls();
    ask(cast, who, query, cast->answers[0]);
    is_polled = polls() > before;
    before = polls();
    set_direct(true);
    ask(cast, who, query, cast->answers[1]);
    set_direct(false);
    CHECK_EQ_INT(polls(), before);
    CHECK_MSG(strcmp(cast->answers[0], cast->answers[1]) == 0,
        "caller %d, %s: memory says\n%s\nand the database\n%s", who, query, cast->answers[0],
        cast->answers[1]);
    return is_polled;
}

/* Every caller with every cursor. Memory answers who is in and has everything, and nobody else.
 * Returns how often it did. */
static unsigned ask_all(struct polled *cast, unsigned in)
{
    static const char *const more[] = { "", "&type=app", "&type=commit", "&limit=1", "&limit=100",
        "&type=other", "&limit=0", "&limit=101", "&sinceSeq=2", "&type=app&type=app" };
    enum { GOOD = 5, MORE = sizeof more / sizeof more[0] };
    int64_t seq = stored(&cast->site, "SELECT seq FROM convos WHERE id = 'g1'");
    unsigned polled = 0;
    char query[128];

    for (int who = 0; who < CALLERS; who++) {
        bool is_in = (in & 1U << who) != 0;

        for (int64_t since = -1; since <= seq + 2; since++) {
            (void)snprintf(query, sizeof query, "convoId=g1&sinceSeq=%lld", (long long)since);
            CHECK_MSG(
                ask_both(cast, who, query) == (is_in && since == seq), "caller %d, %s", who, query);
        }
        for (int i = 0; i < MORE; i++) {
            (void)snprintf(
                query, sizeof query, "convoId=g1&sinceSeq=%lld%s", (long long)seq, more[i]);
            CHECK_MSG(
                ask_both(cast, who, query) == (is_in && i < GOOD), "caller %d, %s", who, query);
            polled += is_in && i < GOOD;
        }
        CHECK(!ask_both(cast, who, "convoId=g1"));
    }
    return polled;
}

TEST_LONG(poll, says_from_memory_what_the_database_says, 120)
{
    static const unsigned all = 1U << ADA | 1U << BOB | 1U << CYD | 1U << DAN;
    struct polled cast;
    struct site *site = &cast.site;

    polled_begin(&cast);
    CHECK_EQ_INT(ask_all(&cast, all), 4 * 5);
    remove_member(&cast, CYD, 1);
    remove_member(&cast, DAN, 2);
    CHECK_EQ_INT(ask_all(&cast, 1U << ADA | 1U << BOB), 2 * 5);
    do_say(site, &cast.callers[BOB], "g1", "m2", 3, "persistent", 200, "seq");
    do_add(site, &cast.callers[ADA], "g1", 3,
        (const char *const[3]){ cast.callers[DAN].did, NULL, NULL });
    CHECK_EQ_INT(ask_all(&cast, all & ~(1U << CYD)), 3 * 5);
    polled_end(&cast);
}

TEST_LONG(poll, knows_what_retention_has_left, 120)
{
    static const unsigned in = 1U << ADA | 1U << BOB | 1U << CYD | 1U << DAN;
    struct polled cast;
    struct site *site = &cast.site;

    polled_begin(&cast);
    do_say(site, &cast.callers[BOB], "g1", "m2", 1, "persistent", 200, "\"seq\":4");
    CHECK(ask_both(&cast, ADA, "convoId=g1&sinceSeq=4"));
    CHECK(strstr(cast.answers[0], "\"totalMessages\":3") != NULL);
    plant(site, "UPDATE members SET read_seq = 3");
    CHECK_EQ_INT(retain(site, 0).rows, 2);
    /* The first one after it must not say what was so before. */
    ask(&cast, ADA, "convoId=g1&sinceSeq=4", cast.answers[0]);
    CHECK_MSG(strstr(cast.answers[0], "\"totalMessages\":1") != NULL, "%s", cast.answers[0]);
    CHECK_EQ_INT(ask_all(&cast, in), 4 * 5);
    plant(site, "UPDATE members SET read_seq = 4");
    CHECK_EQ_INT(retain(site, 0).rows, 1); /* nothing is left */
    CHECK_EQ_INT(ask_all(&cast, in), 4 * 5);
    CHECK(strstr(cast.answers[0], "\"totalMessages\"") == NULL); /* eve's: she is a stranger */
    CHECK(ask_both(&cast, ADA, "convoId=g1&sinceSeq=4"));
    CHECK(strstr(cast.answers[0], "\"totalMessages\":0") != NULL);
    do_say(site, &cast.callers[BOB], "g1", "m3", 1, "persistent", 200, "\"seq\":5");
    CHECK_EQ_INT(ask_all(&cast, in), 4 * 5);
    polled_end(&cast);
}

TEST(poll, does_not_bring_a_conversation_into_memory)
{
    struct polled cast;
    const struct delivery *delivery;
    int64_t before;

    polled_begin(&cast);
    before = polls();
    site_close(&cast.site);
    site_open(&cast.site);
    delivery = cast.site.delivery;
    CHECK(!ask_both(&cast, ADA, "convoId=g1&sinceSeq=3"));
    CHECK(!ask_both(&cast, ADA, "convoId=unknown&sinceSeq=3"));
    CHECK_EQ_INT(tr_registry_live(delivery->convos), 0);
    CHECK_EQ_INT(polls(), before);
    expect(&cast.site, &cast.callers[ADA], "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    CHECK(ask_both(&cast, ADA, "convoId=g1&sinceSeq=3"));
    polled_end(&cast);
}

/* A unit of an actor that ended may be stored after its successor has read the conversation. The
 * successor gets no notice; a poll finds out. */
TEST(poll, finds_out_that_memory_is_old)
{
    struct polled cast;
    struct site *site = &cast.site;

    polled_begin(&cast);
    plant(site, "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, sha256, bytes,"
                " created_ms) SELECT convo, 4, kind, base_epoch, epoch, sender, sha256, bytes,"
                " created_ms FROM log WHERE seq = 3");
    plant(site, "UPDATE convos SET seq = 4");
    expect(
        site, &cast.callers[ADA], "getMessages?convoId=g1&sinceSeq=3", NULL, 200, "\"lastSeq\":4");
    CHECK(!ask_both(&cast, ADA, "convoId=g1&sinceSeq=3"));
    expect(site, &cast.callers[ADA], "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    CHECK(ask_both(&cast, ADA, "convoId=g1&sinceSeq=4"));
    polled_end(&cast);
}
