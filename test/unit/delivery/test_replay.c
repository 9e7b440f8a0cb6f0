/* SPDX-License-Identifier: Apache-2.0 */
/* A real group's 200 commits and 1542 proposals, of the MLS working group's vectors, through the
 * service: in their order all are stored; in any other each is refused, or gets the first answer if
 * it is what was stored, and changes nothing. */
#include "convo_acts.h"
#include "ops/flags.h"
#include "vectors.h"

enum { COMMITS = 200, PROPOSALS = 1542 };

struct replay {
    struct site site;
    struct caller ada;
    struct vectors vectors;
    char convo[129];        /* the group's id in hex */
    uint64_t first;         /* epoch of commit 0 */
    char *bodies[COMMITS];  /* of submitCommit, with the proposals of the epoch */
    char *changed[COMMITS]; /* another commit of the same epoch */
    char *answers[COMMITS]; /* the first one; NULL: not stored yet */
    size_t proposals[COMMITS];
    size_t next; /* the commit that is due */
};

/* ---- what is sent --------------------------------------------------------------------------- */

static void put_base64(struct buffer *out, struct span bytes)
{
    char *text = malloc(crypto_base64_size(bytes.size) + 1);

    CHECK(text != NULL);
    text[crypto_base64_encode(bytes.at, bytes.size, text)] = '\0';
    buffer_format(out, "\"%s\"", text);
    free(text);
}

static char *body_of(const struct replay *replay, struct span commit, const struct json *list)
{
    struct buffer body = { 0 };
    const char *comma = "";

    buffer_format(&body, "{\"convoId\":\"%s\",\"commit\":", replay->convo);
    put_base64(&body, commit);
    buffer_text(&body, ",\"proposals\":[");
    for (struct json_iter it = json_iterate(list); json_next(&it); comma = ",") {
        struct span proposal = bytes_of(it.value);

        buffer_text(&body, comma);
        put_base64(&body, proposal);
        drop(proposal);
    }
    buffer_append(&body, "]}", 3);
    CHECK_EQ_INT(body.failed, 0);
    return body.bytes;
}

static void read_commit(struct replay *replay, size_t index, const struct json *epoch)
{
    struct span bytes = bytes_of(json_get(epoch, "commit"));
    const struct json *list = json_get(epoch, "proposals");
    char *last = (char *)(uintptr_t)bytes.at + bytes.size - 1;
    struct mls_message message;

    must_read(bytes, &message, MLS_PUBLIC);
    if (index == 0) {
        replay->first = message.epoch;
        CHECK(message.group_id.size * 2 < sizeof replay->convo);
        crypto_hex_encode(message.group_id.at, message.group_id.size, replay->convo);
    }
    CHECK_EQ_U64(message.epoch, replay->first + index);
    replay->proposals[index] = json_count(list);
    replay->bodies[index] = body_of(replay, bytes, list);
    *last = (char)(*last ^ 1); /* of the membership tag: nobody without the group's key can tell */
    replay->changed[index] = body_of(replay, bytes, list);
    drop(bytes);
}

static void replay_begin(struct replay *replay)
{
    size_t index = 0;

    *replay = (struct replay){ 0 };
    load(&replay->vectors, "vectors/mls/passive-client-random.json");
    for (struct json_iter it = json_iterate(json_get(json_at(replay->vectors.root, 0), "epochs"));
         json_next(&it); index++) {
        CHECK(index < COMMITS);
        read_commit(replay, index, it.value);
    }
    CHECK_EQ_U64(index, COMMITS);
    site_begin(&replay->site);
    caller_begin(&replay->ada);
    act(&replay->site, &replay->ada, "createConvo", 200, "",
        "{\"groupId\":\"%s\",\"cipherSuite\":\"" SUITE "\",\"currentEpoch\":%llu}", replay->convo,
        (unsigned long long)replay->first);
}

static void replay_end(struct replay *replay)
{
    expect_check(&replay->site, NULL);
    caller_end(&replay->ada);
    site_end(&replay->site);
    for (size_t i = 0; i < COMMITS; i++) {
        free(replay->bodies[i]);
        free(replay->changed[i]);
        free(replay->answers[i]);
    }
    unload(&replay->vectors);
}

/* ---- the expected state --------------------------------------------------------------------- */

SQL_STATEMENT(find_state, "SELECT c.epoch, c.seq, (SELECT COUNT(*) FROM log l WHERE l.convo = c.id"
                          " AND l.kind = 3), (SELECT COUNT(*) FROM log l WHERE l.convo = c.id"
                          " AND l.kind = 2) FROM convos c WHERE c.id = $1");

/* The conversation is where the first `next` commits lead, and has them and nothing else. */
static void check_state(const struct replay *replay)
{
    struct sql_unit *unit = sql_unit_create(0);
    size_t proposals = 0;

    for (size_t i = 0; i < replay->next; i++)
        proposals += replay->proposals[i];
    sql_unit_step(unit, &find_state, 1);
    sql_unit_text(unit, span_of(replay->convo));
    CHECK_EQ_INT(sql_read_wait(replay->site.sql, unit), 0);
    CHECK_EQ_U64(sql_row_int(unit, 0, 0, 0), replay->first + replay->next);
    CHECK_EQ_U64(sql_row_int(unit, 0, 0, 1), 1 + replay->next + proposals);
    CHECK_EQ_U64(sql_row_int(unit, 0, 0, 2), replay->next);
    CHECK_EQ_U64(sql_row_int(unit, 0, 0, 3), proposals);
    sql_unit_destroy(unit);
}

static void expect_conflict(const struct replay *replay, const char *body)
{
    struct web_answer answer = caller_ask(&replay->site, &replay->ada, "submitCommit", body);
    char epoch[48];

    (void)snprintf(epoch, sizeof epoch, "\"currentEpoch\":%llu,",
        (unsigned long long)replay->first + replay->next);
    CHECK_MSG(answer.status == 409 && strstr(answer.body, "\"EpochConflict\"") != NULL &&
                  strstr(answer.body, epoch) != NULL,
        "commit %zu is due, got: %.1000s", replay->next, answer.text);
    web_answer_free(&answer);
}

/* One of the 200, whose turn it may be or not. */
static void submit(struct replay *replay, size_t index)
{
    struct web_answer answer;

    if (index > replay->next) {
        expect_conflict(replay, replay->bodies[index]);
        return;
    }
    answer = caller_ask(&replay->site, &replay->ada, "submitCommit", replay->bodies[index]);
    CHECK_MSG(answer.status == 200, "commit %zu: %.1000s", index, answer.text);
    if (index == replay->next) {
        char epoch[48];

        (void)snprintf(epoch, sizeof epoch, "\"newEpoch\":%llu,",
            (unsigned long long)replay->first + index + 1);
        CHECK_MSG(strstr(answer.body, epoch) != NULL, "%s", answer.body);
        replay->answers[replay->next++] = strdup(answer.body);
    } else {
        CHECK_EQ_STR(answer.body, replay->answers[index]);
    }
    web_answer_free(&answer);
}

static size_t pick(uint64_t *state, size_t count)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(*state >> 33) % count;
}

/* Before each commit, or every fourth: one too early, one again, and another one of an epoch that
 * is over. */
static void replay_in_order(uint32_t direct)
{
    uint64_t random = check_seed();
    struct replay replay;
    size_t proposals = 0;

    replay_begin(&replay);
    (void)flags_set("delivery.direct", direct);
    for (size_t i = 0; i < COMMITS; i++) {
        bool is_probed = (check_is_long() && i > 0) || i % 4 == 1 || i + 1 == COMMITS;

        if (is_probed && i + 1 < COMMITS)
            submit(&replay, i + 1 + pick(&random, COMMITS - i - 1));
        if (is_probed) {
            submit(&replay, pick(&random, i));
            expect_conflict(&replay, replay.changed[i - 1]);
            check_state(&replay);
        }
        submit(&replay, i);
        proposals += replay.proposals[i];
    }
    check_state(&replay);
    CHECK_EQ_U64(replay.next, COMMITS);
    CHECK_EQ_U64(proposals, PROPOSALS);
    (void)flags_set("delivery.direct", 0);
    replay_end(&replay);
}

TEST_LONG(replay, of_200_commits_goes_in_their_order_alone, 120)
{
    replay_in_order(0);
}

TEST_LONG(replay, of_200_commits_goes_in_their_order_alone_without_an_actor, 120)
{
    replay_in_order(FLAG_ALL);
}

/* Shuffled: only those whose turn it happens to be are stored. Backwards: the one that is due, when
 * its turn comes, and those before it get their first answers. */
TEST_LONG(replay, in_another_order_stores_only_what_is_due, 120)
{
    uint64_t random = check_seed();
    size_t order[COMMITS];
    struct replay replay;

    replay_begin(&replay);
    for (int pass = 0; pass < (check_is_long() ? 3 : 1); pass++) {
        size_t before = replay.next, due;

        for (size_t i = 0; i < COMMITS; i++) {
            size_t other = pick(&random, i + 1);

            order[i] = order[other];
            order[other] = i;
        }
        for (size_t i = 0; i < COMMITS; i++)
            submit(&replay, order[i]);
        CHECK(replay.next > before && replay.next < COMMITS);
        check_state(&replay);
        due = replay.next;
        for (size_t i = COMMITS; i-- > 0;)
            submit(&replay, i);
        CHECK_EQ_U64(replay.next, due + 1);
        check_state(&replay);
    }
    replay_end(&replay);
}
