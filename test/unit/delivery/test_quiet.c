/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that are planned when nothing is on its way: a report, a reset, a group info. In each case
 * something is on its way and held up by the database, then one of them comes, then others do. The
 * actor takes them in the order they were asked in, so what it has planned is known without
 * waiting. */
#include <pthread.h>

#include "base/alloc.h"
#include "services/delivery/convo/convo.h"
#include "sql/backend.h"

/* ---- a database that waits ------------------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held;
} slow = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static const struct sql_backend *real_backend(void);

static int slow_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    pthread_mutex_lock(&slow.lock);
    while (slow.is_held)
        pthread_cond_wait(&slow.changed, &slow.lock);
    pthread_mutex_unlock(&slow.lock);
    return real_backend()->commit(connection, units, count);
}

static const struct sql_backend *slow_backend(void)
{
    static struct sql_backend backend;

    backend = *real_backend();
    backend.commit = slow_commit;
    return &backend;
}

#define SITE_BACKEND slow_backend()
#include "convo_acts.h"

static const struct sql_backend *real_backend(void)
{
    return SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite;
}

static void hold(bool is_held)
{
    pthread_mutex_lock(&slow.lock);
    slow.is_held = is_held;
    pthread_cond_broadcast(&slow.changed);
    pthread_mutex_unlock(&slow.lock);
}

/* ---- who asks ------------------------------------------------------------------------------- */

struct asked {
    struct act *act;
    struct tr_future *future;
};

static struct act *act_by(const struct caller *caller, const struct act_type *type)
{
    struct auth_claims claims = { .kind = AUTH_SESSION, .issuer = span_of(caller->did) };
    struct act *act = act_create(type, &claims);

    CHECK(act != NULL);
    act->convo = SPAN("g1");
    return act;
}

static struct asked ask(const struct cast *cast, struct act *act)
{
    const struct delivery *delivery = cast->site.delivery;
    struct act_envelope message = { .act = act_ref(act) };
    struct asked asked = { .act = act };
    tr_sender convo;

    CHECK_EQ_INT(tr_registry_get(delivery->convos, "g1", 2, "the test", &convo), 0);
    CHECK_EQ_INT(tr_ask_future(convo, &message, sizeof message, 0, &asked.future), 0);
    tr_sender_drop(&convo);
    return asked;
}

static void asked_end(struct asked *asked)
{
    tr_future_drop(&asked->future);
    act_unref(asked->act);
}

/* NULL: it was done. */
static void expect_answer(struct asked *asked, const char *label)
{
    const struct act *act = asked->act;

    CHECK_EQ_INT(tr_future_wait(asked->future, NULL, 0, NULL, TR_SECONDS(15)), 0);
    CHECK_MSG(
        label == NULL ? act->status == 200 : act->label != NULL && strcmp(act->label, label) == 0,
        "wanted %s, got %u %s: %s", label == NULL ? "200" : label, act->status,
        act->label == NULL ? "" : act->label, act->text);
}

static void expect_seq(struct asked *asked, uint64_t seq)
{
    expect_answer(asked, NULL);
    CHECK_EQ_U64(asked->act->result_seq, seq);
}

/* Expects the actor's own state, which is a read, too. */
static void expect_state(const struct cast *cast, int in_flight, int waiting)
{
    struct asked state = ask(cast, act_by(&cast->ada, &state_act_type));
    char part[64];

    expect_answer(&state, NULL);
    buffer_append(&state.act->answer, "", 1);
    (void)snprintf(part, sizeof part, "\"inFlight\":%d,\"waiting\":%d", in_flight, waiting);
    CHECK_MSG(strstr(state.act->answer.bytes, part) != NULL, "wanted %s: %s", part,
        state.act->answer.bytes);
    asked_end(&state);
}

/* ---- what they ask -------------------------------------------------------------------------- */

static struct act *reading(const struct cast *cast)
{
    struct act *act = act_by(&cast->dan, &read_to_act_type);

    act_read_to(act)->seq = 2;
    return act;
}

/* Something of MLS. */
static struct act *saying(
    const struct caller *caller, const struct act_type *type, uint64_t epoch, const char *secret)
{
    struct act *act = act_by(caller, type);
    char *text = private_message("g1", epoch, type == &commit_act_type ? 3 : 1, secret);
    size_t size;

    act->body = base_alloc(strlen(text));
    CHECK(act->body != NULL);
    CHECK_EQ_INT(crypto_base64_decode(span_of(text), act->body, strlen(text), &size), 0);
    free(text);
    act->content->bytes = (struct span){ act->body, size };
    CHECK(mls_message_read(act->content->bytes, &act->content->mls) == NULL);
    crypto_sha256(act->content->bytes.at, size, act->content->sha256);
    return act;
}

static struct act *message(const struct cast *cast, uint64_t epoch)
{
    return saying(&cast->bob, &message_act_type, epoch, "hello");
}

static struct act *reset_to(const struct cast *cast, const char *group)
{
    struct act *act = act_by(&cast->ada, &reset_act_type);

    act_reset(act)->group = span_of(group);
    return act;
}

static struct act *report_of(const struct cast *cast, uint64_t base_epoch, const char *secret)
{
    struct act *commit = saying(&cast->ada, &commit_act_type, base_epoch, secret);
    struct act *act = act_by(&cast->cyd, &report_act_type);

    act_report(act)->base_epoch = base_epoch;
    memcpy(act_report(act)->sha256, commit->content->sha256, 32);
    act_unref(commit);
    return act;
}

static struct act *group_info_of(const struct cast *cast, uint64_t epoch)
{
    struct act *act = act_by(&cast->ada, &group_info_act_type);

    act_group_info(act)->epoch = epoch;
    act_group_info(act)->info = (struct act_group_info){
        .bytes = SPAN("a group info"), .group_id = SPAN("g1"), .epoch = epoch, .suite = 1
    };
    return act;
}

/* ---- cases ---------------------------------------------------------------------------------- */

TEST(quiet, a_reset_comes_before_what_was_asked_for_later)
{
    struct asked first, reset, later;
    struct cast cast;

    cast_begin(&cast);
    hold(true);
    first = ask(&cast, reading(&cast));
    reset = ask(&cast, reset_to(&cast, "g2"));
    later = ask(&cast, message(&cast, 1));
    expect_state(&cast, 1, 2);
    hold(false);
    expect_answer(&first, NULL);
    expect_seq(&reset, 3);
    expect_answer(&later, "InvalidMessage"); /* of the group that is no more */
    asked_end(&first);
    asked_end(&reset);
    asked_end(&later);
    expect_check(&cast.site, NULL);
    cast_end(&cast);
}

/* The message is heard at the epoch that is reported: behind it there is nothing to report. */
TEST(quiet, a_report_comes_before_what_was_asked_for_later)
{
    struct asked first, report, later, too_late;
    struct cast cast;

    cast_begin(&cast);
    do_commit(&cast.site, &cast.ada, "g1", 1, "a bad one", "", 200, "newEpoch");
    hold(true);
    first = ask(&cast, reading(&cast));
    report = ask(&cast, report_of(&cast, 1, "a bad one"));
    later = ask(&cast, message(&cast, 2));
    too_late = ask(&cast, report_of(&cast, 1, "a bad one"));
    expect_state(&cast, 1, 3);
    hold(false);
    expect_answer(&first, NULL);
    expect_answer(&report, NULL);
    expect_seq(&later, 4);
    expect_answer(&too_late, "EpochConfirmed");
    asked_end(&first);
    asked_end(&report);
    asked_end(&later);
    asked_end(&too_late);
    expect_check(&cast.site, NULL);
    cast_end(&cast);
}

TEST(quiet, a_group_info_comes_before_the_next_commit)
{
    struct asked first, info, later;
    struct cast cast;

    cast_begin(&cast);
    hold(true);
    first = ask(&cast, reading(&cast));
    info = ask(&cast, group_info_of(&cast, 1));
    later = ask(&cast, saying(&cast.bob, &commit_act_type, 1, "the next"));
    expect_state(&cast, 1, 2);
    hold(false);
    expect_answer(&first, NULL);
    expect_answer(&info, NULL);
    expect_seq(&later, 3);
    asked_end(&first);
    asked_end(&info);
    asked_end(&later);
    expect_check(&cast.site, NULL);
    cast_end(&cast);
}

TEST(quiet, who_needs_it_has_it_one_after_the_other)
{
    struct asked first, resets[3];
    struct cast cast;

    cast_begin(&cast);
    hold(true);
    first = ask(&cast, reading(&cast));
    resets[0] = ask(&cast, reset_to(&cast, "g2"));
    resets[1] = ask(&cast, reset_to(&cast, "g3"));
    resets[2] = ask(&cast, reset_to(&cast, "g4"));
    expect_state(&cast, 1, 3);
    hold(false);
    expect_answer(&first, NULL);
    asked_end(&first);
    for (uint64_t i = 0; i < 3; i++) {
        expect_answer(&resets[i], NULL);
        CHECK_EQ_U64(resets[i].act->result_seq, 3 + i);
        asked_end(&resets[i]);
    }
    expect_check(&cast.site, NULL);
    cast_end(&cast);
}

/* They are answered while everything else is held up. That a member was heard at its epoch by an
 * ephemeral message is something to store. */
TEST(quiet, what_only_reads_does_not_wait_for_it)
{
    struct asked first, reset, passing, said;
    struct cast cast;

    cast_begin(&cast);
    hold(true);
    first = ask(&cast, reading(&cast));
    reset = ask(&cast, reset_to(&cast, "g2"));
    passing = ask(&cast, act_by(&cast.bob, &epoch_act_type));
    expect_answer(&passing, NULL);
    asked_end(&passing);
    passing = ask(&cast, act_by(&cast.bob, &view_act_type));
    expect_answer(&passing, NULL);
    asked_end(&passing);
    said = ask(&cast, saying(&cast.bob, &ephemeral_act_type, 1, "typing"));
    expect_state(&cast, 1, 2);
    hold(false);
    expect_answer(&first, NULL);
    expect_answer(&reset, NULL);
    expect_answer(&said, "InvalidMessage"); /* of the group that is no more */
    asked_end(&first);
    asked_end(&reset);
    asked_end(&said);
    cast_end(&cast);
}

/* A client that gave up has the answer that nothing was stored. */
TEST(quiet, nothing_is_stored_of_who_gave_up_before_its_turn)
{
    struct asked first, reset, behind, last;
    struct cast cast;

    cast_begin(&cast);
    hold(true);
    first = ask(&cast, reading(&cast));
    reset = ask(&cast, reset_to(&cast, "g2"));
    behind = ask(&cast, message(&cast, 1));
    last = ask(&cast, saying(&cast.cyd, &message_act_type, 1, "still here"));
    expect_state(&cast, 1, 3);
    asked_end(&reset);
    asked_end(&behind);
    hold(false);
    expect_answer(&first, NULL);
    expect_seq(&last, 3); /* alone, and of the group that goes on */
    expect_state(&cast, 0, 0);
    CHECK_EQ_INT(stored(&cast.site, "SELECT seq FROM convos WHERE id = 'g1'"), 3);
    asked_end(&first);
    asked_end(&last);
    expect_check(&cast.site, NULL);
    cast_end(&cast);
}

/* Of more than may wait some are sent away; everybody has an answer, and then all is as ever. */
TEST(quiet, nobody_waits_for_ever)
{
    enum { COUNT = CONVO_WAITING_MAX + 10 };
    static struct asked many[COUNT];
    struct asked first, reset;
    unsigned done = 0, busy = 0;
    struct cast cast;

    cast_begin(&cast);
    hold(true);
    first = ask(&cast, reading(&cast));
    reset = ask(&cast, reset_to(&cast, "g2"));
    for (int i = 0; i < COUNT; i++) {
        many[i] = ask(&cast, reading(&cast));
        if (i == COUNT / 2) /* its box has not room for all at once */
            expect_state(&cast, 1, 1 + COUNT / 2 + 1);
    }
    expect_state(&cast, 1, CONVO_WAITING_MAX);
    hold(false);
    expect_answer(&first, NULL);
    expect_answer(&reset, NULL);
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQ_INT(tr_future_wait(many[i].future, NULL, 0, NULL, TR_SECONDS(15)), 0);
        done += many[i].act->status == 200;
        busy += many[i].act->status == 503;
        asked_end(&many[i]);
    }
    CHECK(done >= CONVO_FLYING_MAX);
    CHECK(busy >= COUNT - CONVO_WAITING_MAX);
    CHECK_EQ_U64(done + busy, COUNT);
    expect_state(&cast, 0, 0);
    asked_end(&first);
    asked_end(&reset);
    cast_end(&cast);
}
