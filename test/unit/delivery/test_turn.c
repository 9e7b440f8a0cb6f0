/* SPDX-License-Identifier: Apache-2.0 */
/* Nobody starves: sixteen clients race for every epoch of one conversation, in a simulation with a
 * clock of its own. Fifteen rebase in a millisecond, one needs forty. */
#include <stdlib.h>

#include <troupe/sim.h>

#include "auth/auth.h"
#include "base/alloc.h"
#include "check.h"
#include "crypto/digest.h"
#include "delivery_tables.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/delivery.h"
#include "services/delivery/mls/mls_reader.h"

enum { CLIENTS = 16, FAST_MS = 1, SLOW_MS = 40, SECONDS = 6 };

struct score {
    uint32_t wins;
    uint32_t losses;
    uint32_t in_a_row;
    uint32_t in_a_row_max;
};

struct client {
    struct delivery *delivery;
    struct score *score;
    uint32_t number;
    uint32_t think_ms;
    uint64_t epoch;
    uint64_t serial;
    struct act *act; /* asked, not answered yet */
};

static struct score scores[CLIENTS];
static uint32_t waits; /* losers who heard how long somebody else's turn still is */

static size_t did_of(uint32_t number, char text[32])
{
    return (size_t)snprintf(text, 32, "did:plc:client%u", number);
}

static struct act *act_of(const struct act_type *type, uint32_t number)
{
    char did[32];
    struct auth_claims claims = { .kind = AUTH_SESSION, .issuer = { did, did_of(number, did) } };
    struct act *act = act_create(type, &claims);

    CHECK(act != NULL);
    act->convo = SPAN("g1");
    return act;
}

static struct act *commit_of(const struct client *client)
{
    struct act *act = act_of(&commit_act_type, client->number);
    struct buffer bytes = { 0 };
    char secret[64];

    (void)snprintf(secret, sizeof secret, "commit %llu of %u", (unsigned long long)client->serial,
        client->number);
    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, 2, 2);
    mls_put_vector(&bytes, SPAN("g1"));
    mls_put_number(&bytes, client->epoch, 8);
    mls_put_number(&bytes, 3, 1);
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("sender data of 28 bytes ...."));
    mls_put_vector(&bytes, span_of(secret));
    act->body = bytes.bytes;
    act->content->bytes = (struct span){ bytes.bytes, bytes.size };
    CHECK(mls_message_read(act->content->bytes, &act->content->mls) == NULL);
    crypto_sha256(bytes.bytes, bytes.size, act->content->sha256);
    return act;
}

static void try_commit(struct client *client, struct tr_context *ctx)
{
    struct act_envelope message;
    tr_sender convo;

    client->serial++;
    client->act = commit_of(client);
    message = (struct act_envelope){ .act = act_ref(client->act) };
    CHECK_EQ_INT(tr_registry_get(client->delivery->convos, "g1", 2, "client", &convo), 0);
    CHECK_EQ_INT(
        tr_ask(ctx, convo, &message, sizeof message, &(struct tr_ask_options){ .tag = 2 }), 0);
    tr_sender_drop(&convo);
}

static void answered(struct client *client)
{
    struct act *act = client->act;
    struct score *score = client->score;

    CHECK_MSG(act->status == 200 || act->status == 409, "%u %s", act->status, act->text);
    if (act->status == 200) {
        client->epoch = act->result_epoch;
        score->wins++;
        score->in_a_row = 0;
    } else {
        uint64_t wait_ms;
        const char *at;

        buffer_append(&act->answer, "", 1);
        at = strstr(act->answer.bytes, "\"currentEpoch\":");
        CHECK(at != NULL);
        client->epoch = strtoull(at + strlen("\"currentEpoch\":"), NULL, 10);
        at = strstr(act->answer.bytes, "\"retryAfterMs\":");
        CHECK(at != NULL);
        wait_ms = strtoull(at + strlen("\"retryAfterMs\":"), NULL, 10);
        CHECK(wait_ms <= client->delivery->turn_ms);
        waits += wait_ms > 0;
        score->losses++;
        score->in_a_row++;
        if (score->in_a_row > score->in_a_row_max)
            score->in_a_row_max = score->in_a_row;
    }
    act_unref(act);
    client->act = NULL;
}

static int client_start(void *self, struct tr_context *ctx)
{
    const struct client *client = self;

    return tr_after(ctx, client->think_ms * UINT64_C(1000000), 1, NULL);
}

static enum tr_next client_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next client_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *client = self;

    if (event->kind == TR_EVENT_TIMER) {
        try_commit(client, ctx);
    } else if (event->kind == TR_EVENT_REPLY && event->status == 0) {
        answered(client);
        CHECK_EQ_INT(client_start(client, ctx), 0);
    }
    return TR_GO;
}

static void client_finish(void *self)
{
    struct client *client = self;

    act_unref(client->act);
    client->act = NULL;
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = 8,
    .state_size = sizeof(struct client),
    .start = client_start,
    .handle = client_handle,
    .event = client_event,
    .finish = client_finish,
};

/* ---- the stage ------------------------------------------------------------------------------ */

struct stage {
    struct tr_sim *sim;
    struct sql *sql;
    struct delivery *delivery;
};

static void stage_begin(struct stage *stage, uint64_t seed)
{
    size_t count;
    struct sql_migration *migrations = delivery_tables(&count);
    char why[256] = "";
    void *state = NULL;
    int rc;

    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &stage->sim), 0);
    rc = sql_open(tr_sim_system(stage->sim),
        &(struct sql_options){ .url = "sqlite:data/turn.db",
            .migrations = migrations,
            .migration_count = count,
            .readers = 1,
            .in_simulation = true },
        why, sizeof why, &stage->sql);
    CHECK_MSG(rc == 0, "%s: %s", sql_error_text(rc), why);
    free(migrations);
    rc = delivery_service.start(
        &(struct service_context){ .system = tr_sim_system(stage->sim),
            .sql = stage->sql,
            .auth = (struct auth *)stage }, /* nobody comes in through a gate here */
        why, sizeof why, &state);
    CHECK_MSG(rc == 0, "%s", why);
    stage->delivery = state;
}

static void stage_end(struct stage *stage)
{
    /* Turns and what waits for them end first: the clock only moves when somebody runs it. */
    tr_sim_run_until(stage->sim, tr_sim_now_ns(stage->sim) + TR_SECONDS(60));
    delivery_service.stop(stage->delivery);
    sql_close(&stage->sql);
    tr_sim_run_until(stage->sim, tr_sim_now_ns(stage->sim) + TR_SECONDS(60));
    tr_sim_destroy(&stage->sim);
}

static void create(struct stage *stage)
{
    struct act *act = act_of(&creation_act_type, 0);
    struct act_envelope message = { .act = act_ref(act) };
    static char dids[CLIENTS][32];
    struct tr_future *future;
    tr_sender convo;

    act_creation(act)->suite = SPAN("MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519");
    act->members->adds = base_calloc(CLIENTS * sizeof *act->members->adds);
    CHECK(act->members->adds != NULL);
    for (uint32_t i = 1; i < CLIENTS; i++)
        act->members->adds[act->members->add_count++].did =
            (struct span){ dids[i], did_of(i, dids[i]) };
    CHECK_EQ_INT(tr_registry_get(stage->delivery->convos, "g1", 2, "test", &convo), 0);
    CHECK_EQ_INT(tr_ask_future(convo, &message, sizeof message, 0, &future), 0);
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, TR_SECONDS(10)), 0);
    CHECK_MSG(act->status == 200, "%u %s", act->status, act->text);
    tr_future_drop(&future);
    tr_sender_drop(&convo);
    act_unref(act);
}

/* The slow one is the last; the scores are of the whole race. */
static void race(uint64_t seed, uint32_t turn_ms)
{
    struct stage stage = { 0 };
    tr_sender clients[CLIENTS];

    memset(scores, 0, sizeof scores);
    waits = 0;
    stage_begin(&stage, seed);
    stage.delivery->turn_ms = turn_ms;
    create(&stage);
    for (uint32_t i = 0; i < CLIENTS; i++)
        CHECK_EQ_INT(tr_spawn(tr_sim_system(stage.sim), &client_type,
                         &(struct client){ .delivery = stage.delivery,
                             .score = &scores[i],
                             .number = i,
                             .think_ms = i == CLIENTS - 1 ? SLOW_MS : FAST_MS },
                         NULL, &clients[i]),
            0);
    tr_sim_run_until(stage.sim, tr_sim_now_ns(stage.sim) + TR_SECONDS(SECONDS));
    for (uint32_t i = 0; i < CLIENTS; i++)
        tr_sender_drop(&clients[i]);
    stage_end(&stage);
}

TEST_LONG(turn, lets_a_slow_client_through_among_fast_ones, 60)
{
    const struct score *slow = &scores[CLIENTS - 1];

    race(1, 0); /* as it would be: it always comes too late */
    printf("without turns: %u wins, %u losses\n", slow->wins, slow->losses);
    CHECK(slow->losses > 100);
    CHECK(slow->wins <= slow->losses / 20);
    CHECK_EQ_U64(waits, 0);
    race(1, 500);
    printf("with turns: %u wins, %u losses, at most %u in a row\n", slow->wins, slow->losses,
        slow->in_a_row_max);
    CHECK(slow->wins >= 20);
    CHECK(slow->in_a_row_max <= 3);
    CHECK(waits > 0);
    for (uint32_t i = 0; i + 1 < CLIENTS; i++)
        CHECK(scores[i].wins >= 20);
}

/* Each in its turn: nobody loses more often in a row than there are others in line. */
TEST_LONG(turn, lets_everybody_through_whatever_the_order_of_events, 60)
{
    for (uint64_t seed = 2; seed < 2 + check_rounds(4, 20); seed++) {
        race(seed, 500);
        for (uint32_t i = 0; i < CLIENTS; i++)
            CHECK_MSG(scores[i].wins >= 20 && scores[i].in_a_row_max <= CLIENTS + 2,
                "client %u: %u wins, %u losses in a row", i, scores[i].wins,
                scores[i].in_a_row_max);
    }
}
