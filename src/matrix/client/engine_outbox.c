/* SPDX-License-Identifier: Apache-2.0 */
/* engine_outbox.c: the next event of the outbox. Events of a room leave in the order in which they
 * were accepted, one at a time. A request that the server cannot answer is parked: its room waits for
 * it, and the next room has its turn. */
#include "base/assert.h"
#include "matrix/client/engine_private.h"
#include "matrix/client/send.h"
#include "matrix/client/sync.h"

enum { OUTBOX_LEASE_MS = 60 * 1000 };

/* Remember what the request is for. */
static int outbox_note(struct engine *engine, enum engine_sending_kind kind,
    const struct mxclient_room *room, const struct mxstore_outbox *row)
{
    struct engine_sending *sending = &engine->sending;
    int rc;

    sending->kind = kind;
    sending->members = room->member_changes;
    sending->attempts = row->attempts + (row->sending == MXSTORE_PENDING ? 1 : 0);
    sending->is_first = row->body.at == NULL;
    buffer_clear(&sending->room_id);
    buffer_clear(&sending->txn_id);
    rc = mxclient_request_error(&engine->loops[LOOP_OUTBOX].request);
    if (rc != 0)
        return rc;
    engine->loops[LOOP_OUTBOX].state = LOOP_READY;
    rc = buffer_span(&sending->txn_id, row->txn_id);
    return rc != 0 ? rc : buffer_span(&sending->room_id, mxclient_id(&room->entry));
}

/* Send a row: claim it, and encrypt it if that was not done. */
static int outbox_send(struct engine *engine, struct mxclient_room *room,
    const struct mxstore_outbox *row, struct sql_unit *unit)
{
    struct mxclient_request *request = &engine->loops[LOOP_OUTBOX].request;
    int64_t now_ms = engine_now_ms(engine);
    int rc;

    if (row->body.at != NULL)
        rc = mxclient_send_again(row, request);
    else
        rc = mxclient_send(&engine->client, room, row, unit, request);
    if (rc != 0)
        return rc;
    /* A row that is claimed was this database's former engine's: nobody else sends. */
    if (row->sending == MXSTORE_PENDING)
        mxstore_claim_outbox(unit, row->txn_id, now_ms, now_ms + OUTBOX_LEASE_MS);
    return outbox_note(engine, SENDING_EVENT, room, row);
}

/* Do what the room needs before it can encrypt. */
static int outbox_prepare(struct engine *engine, struct mxclient_room *room,
    const struct mxstore_outbox *row, struct sql_unit *unit)
{
    struct mxclient_request *request = &engine->loops[LOOP_OUTBOX].request;
    enum mxclient_need need;
    int rc =
        mxclient_send_prepare(&engine->client, room, engine_now_ms(engine), unit, &need, request);

    if (rc != 0)
        return rc;
    switch (need) {
    case MXCLIENT_NEED_NOTHING:
        return outbox_send(engine, room, row, unit);
    case MXCLIENT_NEED_MEMBERS:
        mxclient_room_members_request(room, mxclient_span(&engine->client.next_batch), request);
        return outbox_note(engine, SENDING_MEMBERS, room, row);
    case MXCLIENT_NEED_CLAIM:
        return outbox_note(engine, SENDING_CLAIM, room, row);
    case MXCLIENT_NEED_SHARE:
        return outbox_note(engine, SENDING_SHARE, room, row);
    case MXCLIENT_NEED_QUERY:
        engine->loops[LOOP_QUERY].is_wanted = true;
        break;
    case MXCLIENT_NEED_TRUST: /* the next /sync or query tries again */
        engine->is_halted = true;
        break;
    case MXCLIENT_NEED_ANSWER: /* LOOP_UNWEDGE tries again */
        break;
    }
    return 0;
}

/* Give up an event, which is kept with the reason. */
static void outbox_fail(
    struct engine *engine, struct span txn_id, struct span reason, struct sql_unit *unit)
{
    engine->client.unsent--;
    engine->client.failed++;
    mxstore_fail_outbox(unit, txn_id, reason);
    engine->loops[LOOP_OUTBOX].is_wanted = true; /* for the next row */
    engine->is_unit_news = true;                 /* a job may wait for this event */
}

/* Work on one row. *ret_is_done: the loop has a request, or the unit has steps. */
static int outbox_try(struct engine *engine, const struct mxstore_outbox *row,
    struct sql_unit *unit, bool *ret_is_done)
{
    struct mxclient_room *room = mxclient_rooms_find(&engine->client.rooms, row->room_id);
    int rc = TR_EACCES;

    if (room != NULL && room->membership == MXCLIENT_JOINED) {
        if (engine_now_ms(engine) < room->next_send_ms)
            return 0;
        engine->client.policy = (enum mxclient_policy)row->policy;
        rc = row->body.at != NULL ? outbox_send(engine, room, row, unit)
                                  : outbox_prepare(engine, room, row, unit);
    }
    if (rc != 0 && rc != TR_ENOMEM) {
        mxclient_request_fini(&engine->loops[LOOP_OUTBOX].request);
        outbox_fail(engine, row->txn_id,
            rc == TR_EACCES       ? SPAN("not a member of the room")
            : rc == MX_ETOOBIG    ? SPAN("too large")
            : rc == MX_EALGORITHM ? SPAN("the encryption algorithm of the room is not known")
            : rc == TR_EINVAL     ? SPAN("not a JSON object")
                                  : span_of(mx_error_text(rc)),
            unit);
        rc = 0;
    }
    *ret_is_done = !sql_unit_is_empty(unit) || engine->loops[LOOP_OUTBOX].state != LOOP_IDLE;
    return rc;
}

/* ---- parked requests -------------------------------------------------------------------------- */

static void outbox_free(struct engine_parked *parked)
{
    buffer_free(&parked->sending.room_id);
    buffer_free(&parked->sending.txn_id);
    mxclient_request_fini(&parked->request);
    *parked = (struct engine_parked){ 0 };
}

void engine_outbox_fini(struct engine *engine)
{
    for (int i = 0; i < ENGINE_PARKED_MAX; i++)
        outbox_free(&engine->parked[i]);
    buffer_free(&engine->sending.room_id);
    buffer_free(&engine->sending.txn_id);
}

static bool outbox_is_parked(const struct engine *engine, struct span room_id)
{
    for (int i = 0; i < ENGINE_PARKED_MAX; i++)
        if (span_equal(mxclient_span(&engine->parked[i].sending.room_id), room_id))
            return true;
    return false;
}

/* Return the place of the parked request that is due first; -1: there is none. */
static int outbox_first(const struct engine *engine)
{
    int first = -1;

    for (int i = 0; i < ENGINE_PARKED_MAX; i++)
        if (engine->parked[i].sending.room_id.size > 0 &&
            (first < 0 || engine->parked[i].due_ns < engine->parked[first].due_ns))
            first = i;
    return first;
}

uint64_t engine_outbox_due_ns(const struct engine *engine)
{
    int first = outbox_first(engine);

    return first < 0 ? UINT64_MAX : engine->parked[first].due_ns;
}

/* Give the loop back a parked request that is due; false if there is none. */
static bool outbox_resume(struct engine *engine, struct sql_unit *unit)
{
    int first = outbox_first(engine);
    struct engine_parked *parked = &engine->parked[first < 0 ? 0 : first];
    int64_t now_ms = engine_now_ms(engine);

    if (first < 0 || parked->due_ns > engine->now_ns)
        return false;
    buffer_free(&engine->sending.room_id);
    buffer_free(&engine->sending.txn_id);
    engine->sending = parked->sending;
    engine->loops[LOOP_OUTBOX].request = parked->request;
    engine->loops[LOOP_OUTBOX].state = LOOP_READY;
    *parked = (struct engine_parked){ 0 };
    if (engine->sending.kind == SENDING_EVENT) {
        mxstore_claim_outbox(
            unit, mxclient_span(&engine->sending.txn_id), now_ms, now_ms + OUTBOX_LEASE_MS);
        engine->sending.attempts++;
    }
    return true;
}

/* Write why a try failed. */
static void outbox_put_reason(const struct mxclient_outcome *outcome, struct buffer *out)
{
    if (outcome->errcode[0] != 0)
        (void)buffer_format(out, "%s (HTTP %u)", outcome->errcode, outcome->status);
    else
        (void)buffer_format(out, "HTTP %u", outcome->status);
}

static struct engine_parked *outbox_free_place(struct engine *engine)
{
    for (int i = 0; i < ENGINE_PARKED_MAX; i++)
        if (engine->parked[i].sending.room_id.size == 0)
            return &engine->parked[i];
    return NULL;
}

bool engine_outbox_park(
    struct engine *engine, const struct mxclient_outcome *outcome, struct sql_unit *unit)
{
    bool is_failure = outcome->status >= 500 || outcome->status == 408 || outcome->status == 200;
    struct engine_parked *parked = outbox_free_place(engine);
    struct engine_loop *loop = &engine->loops[LOOP_OUTBOX];
    struct span txn_id = mxclient_span(&engine->sending.txn_id);
    struct buffer reason = { 0 };

    /* A server whose /sync fails too is down: that says nothing about this request. */
    if (!is_failure || engine->status.sync_error != 0 || parked == NULL)
        return false;
    outbox_put_reason(outcome, &reason);
    if (engine->sending.kind == SENDING_EVENT && engine->sending.attempts >= ENGINE_TRIES_MAX) {
        (void)buffer_format(&reason, " in %d tries", ENGINE_TRIES_MAX);
        outbox_fail(engine, txn_id, mxclient_span(&reason), unit);
        mxclient_request_fini(&loop->request);
    } else {
        if (engine->sending.kind == SENDING_EVENT)
            mxstore_delay_outbox(unit, txn_id, mxclient_span(&reason));
        parked->sending = engine->sending;
        parked->request = loop->request;
        parked->due_ns =
            engine_in_ns(engine, outcome->wait_ms > 0 ? outcome->wait_ms : ENGINE_PAUSE_MS);
        engine->sending = (struct engine_sending){ 0 };
        loop->request = (struct mxclient_request){ 0 };
    }
    loop->state = LOOP_IDLE;
    loop->is_wanted = true;
    buffer_free(&reason);
    return true;
}

void engine_outbox_forget(struct engine *engine, struct span txn_id)
{
    const struct engine_sending *sending = &engine->sending;

    if (engine->loops[LOOP_OUTBOX].state != LOOP_IDLE && sending->kind == SENDING_EVENT &&
        span_equal(mxclient_span(&sending->txn_id), txn_id))
        engine_drop_loop(engine, LOOP_OUTBOX);
    for (int i = 0; i < ENGINE_PARKED_MAX; i++) {
        sending = &engine->parked[i].sending;
        if (sending->room_id.size > 0 && sending->kind == SENDING_EVENT &&
            span_equal(mxclient_span(&sending->txn_id), txn_id))
            outbox_free(&engine->parked[i]);
    }
    engine->loops[LOOP_OUTBOX].is_wanted = true;
}

/* ---- choosing --------------------------------------------------------------------------------- */

int engine_outbox_choose(
    struct engine *engine, const struct sql_unit *unsent, struct sql_unit *unit)
{
    struct mxstore_outbox row;
    bool is_done = false;
    int rc = 0;

    engine->has_unsent = sql_unit_rows(unsent, 0) > 0 || engine_outbox_due_ns(engine) != UINT64_MAX;
    engine->is_halted = false;
    if (outbox_resume(engine, unit))
        return 0;
    for (uint32_t i = 0; rc == 0 && !is_done && i < sql_unit_rows(unsent, 0); i++) {
        mxstore_row(unsent, 0, i, MXSTORE_IS_outbox, &row);
        if (!outbox_is_parked(engine, row.room_id))
            rc = outbox_try(engine, &row, unit, &is_done);
    }
    return rc;
}

/* ---- outcomes --------------------------------------------------------------------------------- */

/* The event comes back by /sync, perhaps before its answer. */
static void outbox_expect_echo(struct engine *engine)
{
    const struct engine_loop *loop = &engine->loops[LOOP_OUTBOX];

    if (engine->unechoed_ns == 0 && engine->sending.is_first && loop->request.attempts == 1 &&
        engine->moved_ns < loop->asked_ns)
        engine->unechoed_ns = engine->now_ns;
}

static int outbox_take_event(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct span txn_id = mxclient_span(&engine->sending.txn_id), event_id;
    struct buffer reason = { 0 };

    if (outcome->verdict != MXCLIENT_DONE) {
        outbox_put_reason(outcome, &reason);
        if (outcome->reason[0] != 0)
            (void)buffer_format(&reason, ": %s", outcome->reason);
        outbox_fail(engine, txn_id, mxclient_span(&reason), unit);
        buffer_free(&reason);
        return 0;
    }
    /* A 200 without an id is no answer: send it again. */
    if (!mxclient_read_id(json_get(body, "event_id"), &event_id)) {
        if (!engine_outbox_park(engine, outcome, unit))
            engine->loops[LOOP_OUTBOX].due_ns = engine_in_ns(engine, ENGINE_PAUSE_MS);
        return 0;
    }
    mxstore_sent_outbox(unit, txn_id, event_id);
    outbox_expect_echo(engine);
    engine->client.unsent--;
    engine->is_unit_news = true; /* a job may wait for this event */
    return 0;
}

/* Events of /sync that came meanwhile are newer than the answer: ask again then. */
static int outbox_take_members(struct engine *engine, struct mxclient_room *room,
    const struct mxclient_outcome *outcome, const struct json *body, struct sql_unit *unit)
{
    int rc = TR_EPROTO;

    if (outcome->verdict == MXCLIENT_DONE && room->member_changes != engine->sending.members)
        return 0;
    if (outcome->verdict == MXCLIENT_DONE)
        rc = mxclient_room_take_members(room, body);
    if (rc == 0)
        rc = mxclient_sync_track(&engine->client, room, unit);
    if (rc == TR_EPROTO) {
        room->next_send_ms = engine_now_ms(engine) + ENGINE_PAUSE_MS;
        rc = 0;
    }
    return rc;
}

int engine_outbox_take(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct mxclient_room *room =
        mxclient_rooms_find(&engine->client.rooms, mxclient_span(&engine->sending.room_id));
    bool is_done = outcome->verdict == MXCLIENT_DONE;

    tr_assert(room != NULL); /* rooms stay until the next load, which drops this loop */
    engine->loops[LOOP_OUTBOX].is_wanted = true;
    switch (engine->sending.kind) {
    case SENDING_EVENT:
        return outbox_take_event(engine, outcome, body, unit);
    case SENDING_MEMBERS:
        return outbox_take_members(engine, room, outcome, body, unit);
    case SENDING_CLAIM:
        engine_want_key_request(engine); /* it may wait for this claim */
        return mxclient_send_claimed(
            &engine->client, room, is_done ? body : NULL, engine_now_ms(engine));
    case SENDING_SHARE:
        mxclient_send_shared(&engine->client, room, outcome->verdict, unit);
        if (!is_done)
            room->next_send_ms = engine_now_ms(engine) + ENGINE_PAUSE_MS;
        return 0;
    }
    return 0;
}
