/* SPDX-License-Identifier: Apache-2.0 */
/* engine_outbox.c: the next event of the outbox. Events of a room leave in the order in which they
 * were accepted, one at a time. */
#include "base/assert.h"
#include "matrix/client/engine_private.h"
#include "matrix/client/send.h"
#include "matrix/client/sync.h"

enum { OUTBOX_LEASE_MS = 60 * 1000 };

/* Remember what the request is for. */
static int outbox_note(struct engine *engine, enum engine_sending sending,
    const struct mxclient_room *room, struct span txn_id)
{
    engine->sending = sending;
    engine->sending_members = room->member_changes;
    buffer_clear(&engine->sending_room);
    buffer_clear(&engine->sending_txn);
    (void)buffer_span(&engine->sending_txn, txn_id);
    engine->loops[LOOP_OUTBOX].state = LOOP_READY;
    return engine->sending_txn.failed != 0
               ? engine->sending_txn.failed
               : buffer_span(&engine->sending_room, mxclient_id(&room->entry));
}

/* Send a row: claim it, and encrypt it if that was not done. */
static int outbox_send(struct engine *engine, struct mxclient_room *room,
    const struct mxstore_outbox *row, struct sql_unit *unit)
{
    struct mxclient_request *request = &engine->loops[LOOP_OUTBOX].request;
    int64_t now_ms = engine_now_ms(engine);
    int rc;

    engine->is_first_send = row->body.at == NULL;
    if (row->body.at != NULL)
        rc = mxclient_send_again(row, request);
    else
        rc = mxclient_send(&engine->client, room, row, unit, request);
    if (rc != 0)
        return rc;
    /* A row that is claimed was this database's former engine's: nobody else sends. */
    if (row->sending == MXSTORE_PENDING)
        mxstore_claim_outbox(unit, row->txn_id, now_ms, now_ms + OUTBOX_LEASE_MS);
    return outbox_note(engine, SENDING_EVENT, room, row->txn_id);
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
        return outbox_note(engine, SENDING_MEMBERS, room, row->txn_id);
    case MXCLIENT_NEED_CLAIM:
        return outbox_note(engine, SENDING_CLAIM, room, row->txn_id);
    case MXCLIENT_NEED_SHARE:
        return outbox_note(engine, SENDING_SHARE, room, row->txn_id);
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

/* Work on one row. *ret_is_done: the loop has a request, or the unit has steps. */
static int outbox_try(struct engine *engine, const struct mxstore_outbox *row,
    struct sql_unit *unit, bool *ret_is_done)
{
    struct mxclient_room *room = mxclient_rooms_find(&engine->client.rooms, row->room_id);
    int rc = TR_EACCES;

    if (room != NULL && room->membership == MXCLIENT_JOINED) {
        if (engine_now_ms(engine) < room->next_send_ms)
            return 0;
        rc = row->body.at != NULL ? outbox_send(engine, room, row, unit)
                                  : outbox_prepare(engine, room, row, unit);
    }
    if (rc == TR_EACCES || rc == TR_EINVAL || rc == MX_ETOOBIG || rc == MX_EALGORITHM) {
        engine->client.unsent--;
        mxstore_fail_outbox(unit, row->txn_id,
            rc == TR_EACCES       ? SPAN("not a member of the room")
            : rc == MX_ETOOBIG    ? SPAN("too large")
            : rc == MX_EALGORITHM ? SPAN("the encryption algorithm of the room is not known")
                                  : SPAN("not a JSON object"));
        engine->loops[LOOP_OUTBOX].is_wanted = true; /* for the next row */
        engine->is_unit_news = true;
        rc = 0;
    }
    *ret_is_done = !sql_unit_is_empty(unit) || engine->loops[LOOP_OUTBOX].state != LOOP_IDLE;
    return rc;
}

int engine_outbox_choose(
    struct engine *engine, const struct sql_unit *unsent, struct sql_unit *unit)
{
    struct mxstore_outbox row;
    bool is_done = false;
    int rc = 0;

    engine->has_unsent = sql_unit_rows(unsent, 0) > 0;
    engine->is_halted = false;
    for (uint32_t i = 0; rc == 0 && !is_done && i < sql_unit_rows(unsent, 0); i++) {
        mxstore_row(unsent, 0, i, MXSTORE_IS_outbox, &row);
        rc = outbox_try(engine, &row, unit, &is_done);
    }
    return rc;
}

/* ---- outcomes --------------------------------------------------------------------------------- */

/* The event comes back by /sync, perhaps before its answer. */
static void outbox_expect_echo(struct engine *engine)
{
    const struct engine_loop *loop = &engine->loops[LOOP_OUTBOX];

    if (engine->unechoed_ns == 0 && engine->is_first_send && loop->request.attempts == 1 &&
        engine->moved_ns < loop->asked_ns)
        engine->unechoed_ns = engine->now_ns;
}

static int outbox_take_event(struct engine *engine, const struct mxclient_outcome *outcome,
    const struct json *body, struct sql_unit *unit)
{
    struct span txn_id = mxclient_span(&engine->sending_txn), event_id;

    engine->is_unit_news = true; /* a job may wait for this event */
    if (outcome->verdict == MXCLIENT_DONE &&
        !mxclient_read_id(json_get(body, "event_id"), &event_id)) {
        /* A 200 without an id is no answer: send it again. */
        engine->loops[LOOP_OUTBOX].due_ns = engine_in_ns(engine, ENGINE_PAUSE_MS);
        return 0;
    }
    if (outcome->verdict == MXCLIENT_DONE) {
        mxstore_sent_outbox(unit, txn_id, event_id);
        outbox_expect_echo(engine);
    } else
        mxstore_fail_outbox(
            unit, txn_id, outcome->errcode[0] != 0 ? span_of(outcome->errcode) : SPAN("refused"));
    engine->client.unsent--;
    return 0;
}

/* Events of /sync that came meanwhile are newer than the answer: ask again then. */
static int outbox_take_members(struct engine *engine, struct mxclient_room *room,
    const struct mxclient_outcome *outcome, const struct json *body, struct sql_unit *unit)
{
    int rc = TR_EPROTO;

    if (outcome->verdict == MXCLIENT_DONE && room->member_changes != engine->sending_members)
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
        mxclient_rooms_find(&engine->client.rooms, mxclient_span(&engine->sending_room));
    bool is_done = outcome->verdict == MXCLIENT_DONE;

    tr_assert(room != NULL); /* rooms stay until the next load, which drops this loop */
    engine->loops[LOOP_OUTBOX].is_wanted = true;
    switch (engine->sending) {
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
