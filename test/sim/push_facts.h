/* SPDX-License-Identifier: Apache-2.0 */
/* push_facts.h: the facts of sim_push.c and their consequences.
 *
 * The members of each conversation and the tokens of each device are read from the database after
 * every COMMIT. Actors note listeners, requests and the gateway's answers themselves. The facts
 * decide when a device may be woken (check_post), and when it must be (`owed_ns`).
 *
 * Without trouble what follows from something follows within a few ticks of a clock (slack_ns).
 * While a connection is lost, reads take seconds. */
#ifndef TEST_SIM_PUSH_FACTS_H
#define TEST_SIM_PUSH_FACTS_H

#include "crypto/digest.h"
#include "scenario.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/push/push.h"
#include "services/delivery/push/push_store.h"
#include "sql/unit.h"
#include "support/metric.h"

enum {
    USERS = 6,
    CONVOS = 3,
    DEVICES_MAX = 100,
    TOKENS_MAX = 2000,
    REQUESTS_MAX = 2000,
    /* As push.h and docs/operations.md have them. */
    UNDER_WAY_MAX = 64,
    TRIES_MAX = 3,
    LIMIT_S = 10, /* of one read, one question, one POST */
    CALM_S = 120, /* after trouble */
    TICKS = 20,   /* of a clock, in an interval */
};

/* Something is said, or somebody added: news, if it is stored. */
struct request {
    uint32_t convo, user;
    bool is_create;
    uint64_t stored_ns; /* 0: not yet */
};

/* A user and a conversation. */
struct seat {
    bool is_in;
    uint32_t open, sure; /* streams that may be known to the conversation, and those that are */
    uint64_t away_ns;    /* since when it is in and has no stream */
    bool is_away;
    bool is_eligible; /* in, and not surely listening: news wake it */
    uint64_t eligible_ns;
    uint32_t asked;     /* requests of others that are under way */
    uint64_t news_ns;   /* until when news of others may be looked at */
    uint64_t wished_ns; /* when a wish to wake it may last have come up, before it listened */
};

struct token {
    uint32_t device;
    bool was_gone;     /* the gateway said so */
    uint64_t until_ns; /* it was stored; UINT64_MAX: it is */
};

struct device {
    uint32_t user;
    uint32_t withdrawals;     /* under way, or in doubt */
    uint32_t token;           /* 0: none */
    uint64_t token_ns;        /* since when it has one, whichever */
    uint64_t sent_ns;         /* the newest POST, of this life of the actor; 0: none */
    uint64_t ended_ns;        /* when it was answered; 0: under way */
    uint32_t troubles;        /* answers in a row after which it is tried again */
    uint32_t tries;           /* that failed since there was a reason to wake it */
    bool is_renewed;          /* the gateway called a token gone that was not its newest */
    uint64_t gone_ns;         /* the gateway called its token gone, and it has it still */
    uint64_t again_ns;        /* since when it is owed another try; 0: it is not */
    uint64_t owed_ns[CONVOS]; /* since when it must hear of news; 0: it need not */
};

static struct {
    struct scenario s;
    struct sql *sql;
    struct delivery delivery;
    uint64_t interval_ns;
    uint32_t life; /* of the actor that wakes */
    uint64_t life_ns;
    bool is_stopped;     /* between two lives */
    uint64_t calm_ns;    /* nothing has gone wrong since; 0: ever */
    bool is_faulty;      /* the disk may fail at any time */
    uint64_t dropped_ns; /* when the actor last counted a drop */
    int64_t dropped;

    struct {
        bool is_there;
        uint64_t epoch;
    } convos[CONVOS];
    struct seat seats[CONVOS][USERS];
    struct device devices[DEVICES_MAX];
    uint32_t device_count;
    struct token tokens[TOKENS_MAX]; /* from 1 on */
    uint32_t token_count;
    struct request requests[REQUESTS_MAX];
    uint32_t request_count;
    int64_t log_rowid;

    int64_t sent_before, failed_before, forgotten_before; /* counters when the run began */
    uint64_t taken, refused, given_up_max, gone;          /* the gateway's answers */
} now;

static struct {
    uint64_t requests, stored, posts, owed, told, excused, tokens, withdrawals, streams, heard;
    uint64_t taken, refused, troubled, gone, cut, never, slow, retries, given_up, deleted, replaced;
    uint64_t drops, saturated, lost, failed_reads, push_kills, convo_kills, recovers, fatal;
    uint64_t ends, hung_ends;
} seen;

/* ---- names ---------------------------------------------------------------------------------- */

static inline const char *user_did(uint32_t user)
{
    static const char *const dids[USERS] = { "did:plc:anna", "did:plc:bela", "did:plc:cleo",
        "did:plc:dora", "did:plc:emil", "did:plc:finn" };

    return dids[user];
}

static inline const char *convo_id(uint32_t convo)
{
    static const char *const ids[CONVOS] = { "talk-a", "talk-b", "talk-c" };

    return ids[convo];
}

static inline uint32_t user_of(struct span did)
{
    uint32_t user = 0;

    while (user < USERS && !span_is(did, user_did(user)))
        user++;
    CHECK(user < USERS);
    return user;
}

static inline uint32_t convo_of(struct span id)
{
    uint32_t convo = 0;

    while (convo < CONVOS && !span_is(id, convo_id(convo)))
        convo++;
    CHECK(convo < CONVOS);
    return convo;
}

/* "d-7", "t-12", "op-3" */
static inline uint32_t number_of(struct span name)
{
    uint32_t number = 0;

    for (size_t i = 0; i < name.size; i++)
        number = name.at[i] == '-' ? 0 : number * 10 + (uint32_t)(name.at[i] - '0');
    return number;
}

/* ---- chance, time and counters -------------------------------------------------------------- */

static inline uint32_t draw(struct tr_context *ctx, uint32_t bound)
{
    return (uint32_t)(tr_random(ctx) % bound);
}

static inline uint64_t time_ns(void)
{
    return tr_sim_now_ns(now.s.sim);
}

static inline void note_trouble(void)
{
    now.calm_ns = time_ns();
}

static inline bool is_calm(void)
{
    return !now.is_faulty && (now.calm_ns == 0 || time_ns() - now.calm_ns > TR_SECONDS(CALM_S));
}

/* How long may pass between a cause and what follows from it: a read and a question before the
 * actor knows of it, one of both that was under way when it came, and a read of the token. Where
 * there are many devices all of that may wait for those that are under way. */
static inline uint64_t slack_ns(void)
{
    return is_calm() && now.device_count <= UNDER_WAY_MAX ? now.interval_ns / 2
                                                          : TR_SECONDS(5 * LIMIT_S);
}

/* And between reading a token and telling it? */
static inline uint64_t read_slack_ns(void)
{
    return is_calm() ? now.interval_ns / 2 : TR_SECONDS(LIMIT_S + 1);
}

/* Until when must a device have been told? It may rest, and so may the conversation. */
static inline uint64_t patience_ns(void)
{
    return 2 * now.interval_ns +
           TR_SECONDS(9 * LIMIT_S) * (now.device_count > UNDER_WAY_MAX ? 3 : 1);
}

/* And when everything is well? */
static inline uint64_t promptly_ns(void)
{
    return 4 * now.interval_ns + (now.device_count > UNDER_WAY_MAX ? TR_SECONDS(LIMIT_S) : 0);
}

enum counter { SENT, FAILED, DROPPED, FORGOTTEN, COUNTERS };

static inline int64_t counter(enum counter which)
{
    static const char *const names[COUNTERS] = { "troupe_delivery_push_sent_total",
        "troupe_delivery_push_failed_total", "troupe_delivery_push_dropped_total",
        "troupe_delivery_push_forgotten_total" };
    static const struct metric *metrics[COUNTERS];

    for (const struct metric *at = metric_first(); at != NULL && metrics[which] == NULL;
         at = at->next)
        if (strcmp(at->name, names[which]) == 0)
            metrics[which] = at;
    return metrics[which] == NULL ? 0 : metric_get(metrics[which]);
}

static inline void owe_nothing(void)
{
    for (uint32_t i = 0; i < now.device_count; i++) {
        for (uint32_t convo = 0; convo < CONVOS; convo++) {
            seen.excused += now.devices[i].owed_ns[convo] != 0;
            now.devices[i].owed_ns[convo] = 0;
        }
        now.devices[i].again_ns = now.devices[i].gone_ns = 0;
    }
}

/* The service counts drops without names: after one, no earlier wake-up is owed any more. */
static inline void look_for_drops(void)
{
    int64_t dropped = counter(DROPPED);

    if (dropped == now.dropped)
        return;
    CHECK_MSG(now.is_stopped || !is_calm(), "dropped: %lld, and the database has no trouble",
        (long long)(dropped - now.dropped));
    seen.drops += (uint64_t)(dropped - now.dropped);
    now.dropped = dropped;
    now.dropped_ns = time_ns();
    owe_nothing();
}

/* ---- seats ---------------------------------------------------------------------------------- */

/* The last moment at which the actor may have found news for who is in this seat, and nobody who
 * listens there. 0: none. */
static inline uint64_t wished_ns(const struct seat *seat)
{
    uint64_t until_ns = seat->asked > 0 ? UINT64_MAX : seat->news_ns;

    if (!seat->is_eligible || until_ns < seat->eligible_ns)
        return seat->wished_ns;
    return until_ns < time_ns() ? until_ns : time_ns();
}

static inline void seat_changed(uint32_t convo, uint32_t user)
{
    struct seat *seat = &now.seats[convo][user];
    bool is_eligible = seat->is_in && seat->sure == 0;
    bool is_away = seat->is_in && seat->open == 0;

    if (is_eligible != seat->is_eligible) {
        seat->wished_ns = wished_ns(seat);
        seat->is_eligible = is_eligible;
        seat->eligible_ns = time_ns();
    }
    if (is_away && !seat->is_away)
        seat->away_ns = time_ns();
    seat->is_away = is_away;
    for (uint32_t i = 0; i < now.device_count && !is_away; i++)
        if (now.devices[i].user == user)
            now.devices[i].owed_ns[convo] = 0;
}

/* ---- news ----------------------------------------------------------------------------------- */

static inline uint32_t request_begin(uint32_t convo, uint32_t user, bool is_create)
{
    CHECK(now.request_count < REQUESTS_MAX);
    for (uint32_t i = 0; i < USERS; i++)
        now.seats[convo][i].asked += i != user;
    now.requests[now.request_count] =
        (struct request){ .convo = convo, .user = user, .is_create = is_create };
    seen.requests++;
    return now.request_count++;
}

/* Had it everything that it takes to be woken, since the news were stored? */
static inline bool is_owed(const struct device *device, const struct request *request)
{
    const struct seat *seat = &now.seats[request->convo][device->user];

    return device->user != request->user && seat->is_away && seat->away_ns <= request->stored_ns &&
           device->token != 0 && device->token_ns <= request->stored_ns &&
           device->sent_ns < request->stored_ns;
}

/* It was answered, or will not be. A sender with the answer that its message is stored may rely on the wake-ups. */
static inline void request_end(uint32_t number, bool is_stored)
{
    struct request *request = &now.requests[number];

    look_for_drops();
    for (uint32_t i = 0; i < USERS; i++)
        if (i != request->user) {
            now.seats[request->convo][i].asked--;
            now.seats[request->convo][i].news_ns = time_ns() + now.interval_ns + slack_ns();
        }
    if (!is_stored)
        return;
    CHECK_MSG(request->stored_ns != 0, "stored: %u is answered before it is", number);
    seen.stored++;
    if (now.life_ns > request->stored_ns ||
        (now.dropped_ns != 0 && now.dropped_ns >= request->stored_ns))
        return;
    for (uint32_t i = 0; i < now.device_count; i++)
        if (is_owed(&now.devices[i], request) && now.devices[i].owed_ns[request->convo] == 0) {
            now.devices[i].owed_ns[request->convo] = time_ns();
            seen.owed++;
        }
}

/* ---- the database --------------------------------------------------------------------------- */

SQL_STATEMENT(all_convos, "SELECT id, epoch FROM convos");
SQL_STATEMENT(new_log, "SELECT rowid, op FROM log WHERE rowid > $1 AND op IS NOT NULL");
SQL_STATEMENT(all_members, "SELECT convo, did FROM members WHERE leave_seq IS NULL");
SQL_STATEMENT(all_push_tokens, "SELECT device, token FROM push_tokens");
enum { FACT_CONVOS, FACT_LOG, FACT_MEMBERS, FACT_TOKENS };

static inline struct sql_unit *facts_unit(void)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, &all_convos, SQL_ROWS_ANY);
    sql_unit_step(unit, &new_log, SQL_ROWS_ANY);
    sql_unit_int(unit, now.log_rowid);
    sql_unit_step(unit, &all_members, SQL_ROWS_ANY);
    sql_unit_step(unit, &all_push_tokens, SQL_ROWS_ANY);
    return unit;
}

static inline void learn_stored(const struct sql_unit *unit)
{
    for (uint32_t row = 0; row < sql_unit_rows(unit, FACT_CONVOS); row++) {
        uint32_t convo = convo_of(sql_row_bytes(unit, FACT_CONVOS, row, 0));

        now.convos[convo].epoch = (uint64_t)sql_row_int(unit, FACT_CONVOS, row, 1);
        for (uint32_t i = 0; i < now.request_count && !now.convos[convo].is_there; i++)
            if (now.requests[i].convo == convo && now.requests[i].is_create)
                now.requests[i].stored_ns = time_ns(); /* one of them: the others are refused */
        now.convos[convo].is_there = true;
    }
    for (uint32_t row = 0; row < sql_unit_rows(unit, FACT_LOG); row++) {
        now.requests[number_of(sql_row_bytes(unit, FACT_LOG, row, 1))].stored_ns = time_ns();
        now.log_rowid = sql_row_int(unit, FACT_LOG, row, 0);
    }
}

static inline void learn_members(const struct sql_unit *unit)
{
    bool is_in[CONVOS][USERS] = { { false } };

    for (uint32_t row = 0; row < sql_unit_rows(unit, FACT_MEMBERS); row++)
        is_in[convo_of(sql_row_bytes(unit, FACT_MEMBERS, row, 0))]
             [user_of(sql_row_bytes(unit, FACT_MEMBERS, row, 1))] = true;
    for (uint32_t convo = 0; convo < CONVOS; convo++)
        for (uint32_t user = 0; user < USERS; user++)
            if (now.seats[convo][user].is_in != is_in[convo][user]) {
                now.seats[convo][user].is_in = is_in[convo][user];
                seat_changed(convo, user);
            }
}

/* The newest may be told instead, and must be. */
static inline void note_another_token(struct device *device, uint32_t token)
{
    device->is_renewed = true;
    if (token == 0)
        return;
    device->again_ns = time_ns();
    seen.replaced++;
}

static inline void token_changed_to(uint32_t number, uint32_t token)
{
    struct device *device = &now.devices[number];

    if (device->token == token)
        return;
    CHECK_MSG(token != 0 || device->withdrawals > 0 || now.tokens[device->token].was_gone,
        "kept: t-%u of d-%u is deleted, and nobody took it back or called it gone", device->token,
        number);
    if (device->token != 0) {
        now.tokens[device->token].until_ns = time_ns();
        if (device->gone_ns != 0)
            note_another_token(device, token);
        device->gone_ns = 0;
    }
    if (token != 0)
        now.tokens[token].until_ns = UINT64_MAX;
    if (device->token == 0)
        device->token_ns = time_ns();
    device->token = token;
    if (token != 0)
        return;
    memset(device->owed_ns, 0, sizeof device->owed_ns);
    device->again_ns = 0;
}

static inline void learn_tokens(const struct sql_unit *unit)
{
    uint32_t tokens[DEVICES_MAX] = { 0 };

    for (uint32_t row = 0; row < sql_unit_rows(unit, FACT_TOKENS); row++)
        tokens[number_of(sql_row_bytes(unit, FACT_TOKENS, row, 0))] =
            number_of(sql_row_bytes(unit, FACT_TOKENS, row, 1));
    for (uint32_t i = 0; i < now.device_count; i++)
        token_changed_to(i, tokens[i]);
}

/* A token that is deleted and replaced in one COMMIT was deleted first: the device that brings the
 * new one is awake, and nothing is owed to it. */
static inline void learn_forgotten(struct sql_unit *const *units, size_t count)
{
    look_for_drops();
    for (size_t i = 0; i < count; i++) {
        const struct sql_unit *unit = units[i];
        const struct sql_value *device;

        if (unit->status != 0 || unit->step_count != 1 || unit->steps[0].changed == 0 ||
            strcmp(unit->steps[0].statement->text, push_forget_token.text) != 0)
            continue;
        device = &unit->values[unit->steps[0].value_first + 1];
        token_changed_to(
            number_of((struct span){ unit->bytes.bytes + device->offset, device->size }), 0);
    }
}

static inline void facts_learn(const struct sql_unit *unit)
{
    look_for_drops();
    learn_stored(unit);
    learn_members(unit);
    learn_tokens(unit);
}

/* ---- a POST, and its answer ----------------------------------------------------------------- */

/* Was there a reason to wake it, since it was woken last? */
static inline bool has_reason(const struct device *device)
{
    bool rested =
        device->ended_ns != 0 && time_ns() > device->ended_ns + now.interval_ns + slack_ns();
    uint64_t since_ns = rested ? time_ns() : device->sent_ns;

    for (uint32_t convo = 0; convo < CONVOS; convo++) {
        uint64_t wish_ns = wished_ns(&now.seats[convo][device->user]);

        if (wish_ns != 0 && wish_ns + slack_ns() >= since_ns)
            return true;
    }
    return device->is_renewed;
}

/* Nobody waits longer for an answer. */
static inline uint32_t under_way(void)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < now.device_count; i++)
        count += now.devices[i].sent_ns != 0 && now.devices[i].ended_ns == 0 &&
                 time_ns() - now.devices[i].sent_ns < TR_SECONDS(LIMIT_S);
    return count;
}

static inline void check_post(uint32_t number, uint32_t token)
{
    const struct device *device = &now.devices[number];
    uint64_t until_ns = now.tokens[token].until_ns;

    CHECK_MSG(now.tokens[token].device == number && until_ns != 0,
        "token: t-%u is told for d-%u, and is another's", token, number);
    CHECK_MSG(until_ns == UINT64_MAX || until_ns + read_slack_ns() >= time_ns(),
        "withdrawn: t-%u of d-%u is told %llu ms after it was taken back, or gone", token, number,
        (unsigned long long)((time_ns() - until_ns) / MS));
    CHECK_MSG(device->sent_ns == 0 || time_ns() - device->sent_ns >= now.interval_ns,
        "often: d-%u is woken after %llu ms, and the interval is %llu ms", number,
        (unsigned long long)((time_ns() - device->sent_ns) / MS),
        (unsigned long long)(now.interval_ns / MS));
    CHECK_MSG(under_way() < UNDER_WAY_MAX, "bounded: %u are under way", under_way() + 1);
    CHECK_MSG(has_reason(device) || (device->tries > 0 && device->tries < TRIES_MAX),
        "reason: d-%u of %s is woken, and nobody said anything that it "
        "does not hear (the last time was %llu ms ago)",
        number, user_did(device->user), (unsigned long long)((time_ns() - device->sent_ns) / MS));
}

static inline void note_post(uint32_t number)
{
    struct device *device = &now.devices[number];

    seen.retries += device->again_ns != 0;
    if (has_reason(device))
        device->tries = 0;
    device->is_renewed = false;
    for (uint32_t convo = 0; convo < CONVOS; convo++)
        seen.told += device->owed_ns[convo] != 0;
    memset(device->owed_ns, 0, sizeof device->owed_ns);
    device->again_ns = 0;
    device->sent_ns = time_ns();
    device->ended_ns = 0;
    seen.saturated += under_way() == UNDER_WAY_MAX;
    seen.posts++;
}

enum verdict { TAKEN, REFUSED, GONE, TROUBLED };

static inline void note_answer(uint32_t number, uint32_t token, enum verdict verdict)
{
    struct device *device = &now.devices[number];

    look_for_drops();
    device->ended_ns = time_ns();
    if (verdict != TROUBLED) {
        device->troubles = device->tries = 0;
        now.taken += verdict == TAKEN;
        now.refused += verdict == REFUSED;
        now.gone += verdict == GONE;
        now.tokens[token].was_gone |= verdict == GONE;
        if (verdict == GONE && device->token == token)
            device->gone_ns = time_ns();
        else if (verdict == GONE)
            note_another_token(device, device->token);
        return;
    }
    seen.troubled++;
    device->troubles++;
    device->tries++;
    now.given_up_max += device->troubles >= TRIES_MAX;
    if (device->troubles < TRIES_MAX && device->token != 0)
        device->again_ns = time_ns();
}

/* ---- what is owed --------------------------------------------------------------------------- */

static inline void check_owed_by(uint64_t limit_ns)
{
    uint64_t at_ns = time_ns();

    look_for_drops();
    for (uint32_t i = 0; i < now.device_count; i++) {
        const struct device *device = &now.devices[i];

        for (uint32_t convo = 0; convo < CONVOS; convo++)
            CHECK_MSG(device->owed_ns[convo] == 0 || at_ns - device->owed_ns[convo] <= limit_ns,
                "told: d-%u of %s has not heard of %s for %llu ms, and nothing was dropped", i,
                user_did(device->user), convo_id(convo),
                (unsigned long long)((at_ns - device->owed_ns[convo]) / MS));
        CHECK_MSG(device->again_ns == 0 || at_ns - device->again_ns <= limit_ns,
            "tried: d-%u was tried %u times, and not again for %llu ms", i, device->troubles,
            (unsigned long long)((at_ns - device->again_ns) / MS));
        CHECK_MSG(device->gone_ns == 0 || at_ns - device->gone_ns <= limit_ns,
            "gone: t-%u was called gone %llu ms ago, and is there", device->token,
            (unsigned long long)((at_ns - device->gone_ns) / MS));
    }
}

/* The push actor has ended and forgotten its state. */
static inline void note_new_life(void)
{
    look_for_drops();
    now.is_stopped = false;
    now.life++;
    now.life_ns = time_ns();
    for (uint32_t convo = 0; convo < CONVOS; convo++)
        for (uint32_t user = 0; user < USERS; user++)
            now.seats[convo][user].wished_ns = now.seats[convo][user].news_ns = 0;
    for (uint32_t i = 0; i < now.device_count; i++) {
        now.devices[i].sent_ns = 0;
        now.devices[i].ended_ns = 0;
        now.devices[i].troubles = now.devices[i].tries = 0;
        now.devices[i].is_renewed = false;
    }
    owe_nothing();
}

#endif
