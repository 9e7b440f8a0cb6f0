/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of a conversation use an index: they cost as much with three thousand messages as with one
 * thousand, and about as much however often members came and went. */
#include "noting.h"

/* Messages of ada's up to this sequence number. */
static void fill(struct site *site, unsigned seq)
{
    char text[1024];

    (void)snprintf(text, sizeof text,
        "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, op, sha256, bytes,"
        " created_ms) WITH RECURSIVE n (i) AS (SELECT seq + 1 FROM convos WHERE id = 'g1'"
        " UNION ALL SELECT i + 1 FROM n WHERE i < %u) SELECT 'g1', n.i, 1, 1, 1, l.sender, NULL,"
        " l.sha256, l.bytes, l.created_ms FROM n JOIN log l ON l.convo = 'g1' AND l.seq = 2",
        seq);
    plant(site, text);
    (void)snprintf(text, sizeof text, "UPDATE convos SET seq = %u WHERE id = 'g1'", seq);
    plant(site, text);
    site_close(site);
    site_open(site);
}

static struct cost cost_of(
    struct cast *cast, const struct caller *caller, const char *call, const char *part)
{
    set_noting(true);
    expect(&cast->site, caller, call, NULL, 200, part);
    return noted_cost(&cast->site);
}

static void check_same(const char *call, struct cost few, struct cost many)
{
    CHECK(few.work > 0);
    CHECK_MSG(many.work <= few.work + 50, "%s takes %lld steps, and took %lld", call,
        (long long)many.work, (long long)few.work);
}

static void check_call(
    struct cast *cast, const struct caller *caller, const char *call, const char *part)
{
    struct cost few;

    fill(&cast->site, 1100);
    few = cost_of(cast, caller, call, part);
    fill(&cast->site, 3100);
    check_same(call, few, cost_of(cast, caller, call, part));
}

TEST(scan, is_not_needed_for_the_state_of_messages)
{
    char *message = private_message("g1", 1, 1, "m2");
    struct cast cast;

    cast_begin(&cast);
    do_say(&cast.site, &cast.bob, "g1", "m1", 1, "persistent", 200, "\"seq\":3");
    act(&cast.site, &cast.bob, "sendMessage", 200, "\"seq\":4",
        "{\"convoId\":\"g1\",\"msgId\":\"m2\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":1,"
        "\"idempotencyKey\":\"k\"}",
        message);
    free(message);
    check_call(&cast, &cast.bob, "getDeliveryStatus?convoId=g1&messageIds=m1,m2,none",
        "\"seq\":4,\"epoch\":1");
    cast_end(&cast);
}

TEST(scan, is_not_needed_for_receipts)
{
    struct cast cast;

    cast_begin(&cast);
    check_call(&cast, &cast.bob, "getReceipts?convoId=g1&fromSeq=1000", "\"receipts\":[]");
    cast_end(&cast);
}

TEST(scan, is_not_needed_for_commits)
{
    struct cast cast;

    cast_begin(&cast);
    check_call(&cast, &cast.ada, "getMessages?convoId=g1&sinceSeq=1&type=commit", "\"lastSeq\":2");
    cast_end(&cast);
}

TEST(scan, is_not_needed_for_proposals)
{
    struct cast cast;

    cast_begin(&cast);
    check_call(
        &cast, &cast.bob, "getMessages?convoId=g1&sinceSeq=1&type=proposal", "\"messages\":[]");
    cast_end(&cast);
}

static struct cost reset(struct cast *cast, const char *group)
{
    set_noting(true);
    act(&cast->site, &cast->ada, "resetGroup", 200, group,
        "{\"convoId\":\"g1\",\"newGroupId\":\"%s\"}", group);
    return noted_cost(&cast->site);
}

TEST(scan, is_not_needed_to_reset_a_group)
{
    struct cost few;
    struct cast cast;

    cast_begin(&cast);
    fill(&cast.site, 1100);
    few = reset(&cast, "next");
    fill(&cast.site, 3100);
    check_same("resetGroup", few, reset(&cast, "last"));
    CHECK_EQ_INT(stored(&cast.site, "SELECT COUNT(*) FROM log WHERE convo = 'g1' AND kind = 6"), 1);
    cast_end(&cast);
}

/* ---- members who come and go ---------------------------------------------------------------- */

static void come_and_go(struct cast *cast, uint64_t epoch)
{
    char more[128], secret[32];

    do_add(&cast->site, &cast->ada, "g1", epoch, (const char *const[3]){ cast->eve.did });
    (void)snprintf(more, sizeof more, ",\"removes\":[\"%s\"]", cast->eve.did);
    (void)snprintf(secret, sizeof secret, "out of %llu", (unsigned long long)epoch);
    do_commit(&cast->site, &cast->ada, "g1", epoch + 1, secret, more, 200, "");
}

/* As come_and_go leaves them, before all messages. */
static void plant_times(struct cast *cast, unsigned count)
{
    char text[1024];

    (void)snprintf(text, sizeof text,
        "INSERT INTO members (convo, did, join_seq, joined_ms, is_admin, is_moderator,"
        " unread_extra, read_seq, leave_seq, left_ms, was_removed, has_later)"
        " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %u)"
        " SELECT 'g1', '%s', -2 * i, 1, 0, 0, 0, 1, 1 - 2 * i, 1, 1, 1 FROM n",
        count, cast->eve.did);
    plant(&cast->site, text);
    site_close(&cast->site);
    site_open(&cast->site);
}

TEST(times, of_who_comes_and_goes_are_not_read_with_the_conversation)
{
    static const char asked[] = "getConvo?convoId=g1", out[] = "getMessages?convoId=g1&sinceSeq=9";
    struct cost few, few_seen, many_seen;
    struct cast cast;

    cast_begin(&cast);
    for (uint64_t epoch = 1; epoch < 7; epoch += 2)
        come_and_go(&cast, epoch);
    CHECK_EQ_INT(stored(&cast.site, "SELECT COUNT(*) FROM members WHERE has_later = 1"), 2);
    CHECK_EQ_INT(stored(&cast.site, "SELECT join_seq FROM members WHERE leave_seq IS NOT NULL"
                                    " AND has_later = 0"),
        7);
    fill(&cast.site, 500);
    few = cost_of(&cast, &cast.bob, asked, "g1");
    few_seen = cost_of(&cast, &cast.eve, out, "\"messages\":[]");
    plant_times(&cast, 2000);
    check_same(asked, few, cost_of(&cast, &cast.bob, asked, "g1"));
    /* Each time is looked at once, and not once for each row of the log. */
    many_seen = cost_of(&cast, &cast.eve, out, "\"messages\":[]");
    CHECK_MSG(many_seen.work <= few_seen.work + 2000 * 30, "%lld steps, and %lld",
        (long long)many_seen.work, (long long)few_seen.work);
    cast_end(&cast);
}
