/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/process_flight.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/memory.h"
#include "runtime/process.h"
#include "runtime/system.h"

enum { SLOT_BITS = 16, SLOTS_MAX = 1 << SLOT_BITS };

/* The message: see the diagram in the header. */
enum flight_state { FLIGHT_UNSENT, FLIGHT_SENT, FLIGHT_BEGUN, FLIGHT_DONE };

/* The answer of an ask. */
enum answer_state {
    ANSWER_NONE, /* a tell */
    ANSWER_OPEN,
    ANSWER_ACCEPTED, /* passed on, once: a child must not fill its asker's box */
    ANSWER_GIVEN,    /* the asker has his, or has given up; the child's reply is still to come */
    ANSWER_REPLIED,  /* the child has said its last word */
};

struct tr__flight {
    struct tr__link link; /* in ahead or owed */
    uint64_t id;          /* serial and slot: none is used twice */
    tr_reply_handle reply;
    uint64_t deadline_ns;
    const char *name;     /* the message's name, from its type */
    unsigned char *frame; /* until it has begun */
    uint32_t frame_size;
    uint32_t slot;
    uint8_t lane;
    enum flight_state state;
    enum answer_state answer;
};

int tr__flights_init(struct tr__flights *flights, const struct tr_codec *codec)
{
    flights->codec = codec;
    tr__list_init(&flights->ahead);
    tr__list_init(&flights->owed);
    if (codec->encode != NULL)
        flights->bytes = base_alloc(tr__codec_bytes_max(codec));
    return codec->encode != NULL && flights->bytes == NULL ? TR_ENOMEM : 0;
}

void tr__flights_fini(struct tr__flights *flights)
{
    base_free(flights->bytes);
    base_free(flights->value);
    base_free(flights->slots);
}

/* ---- one ------------------------------------------------------------------------------------- */

static struct tr__flight *first_of(struct tr__link *list)
{
    return tr__container(list->next, struct tr__flight, link);
}

static struct tr__flight *flight_by_id(struct tr__flights *flights, uint64_t id)
{
    uint64_t slot = id % SLOTS_MAX;
    struct tr__flight *flight = slot < flights->slot_count ? flights->slots[slot] : NULL;

    return flight != NULL && flight->id == id ? flight : NULL;
}

static int slot_find(struct tr__flights *flights, uint32_t *ret_slot)
{
    uint32_t slot = 0;
    struct tr__flight **slots;

    while (slot < flights->slot_count && flights->slots[slot] != NULL)
        slot++;
    if (slot == SLOTS_MAX)
        return TR_EFULL;
    if (slot == flights->slot_count) {
        slots = base_grow(flights->slots, &flights->slot_count, 32, sizeof *slots);
        if (slots == NULL)
            return TR_ENOMEM;
        flights->slots = slots;
    }
    *ret_slot = slot;
    return 0;
}

static void flight_move(struct tr__flight *flight, enum flight_state to)
{
    static const uint8_t moves[] = {
        [FLIGHT_UNSENT] = 1 << FLIGHT_SENT,
        [FLIGHT_SENT] = 1 << FLIGHT_BEGUN | 1 << FLIGHT_UNSENT, /* back, for the next child */
        [FLIGHT_BEGUN] = 1 << FLIGHT_DONE,
        [FLIGHT_DONE] = 0,
    };

    tr_assert(moves[flight->state] & 1 << to);
    flight->state = to;
}

static bool is_unanswered(const struct tr__flight *flight)
{
    return flight->answer == ANSWER_OPEN || flight->answer == ANSWER_ACCEPTED;
}

/* May the child say something about the answer? */
static bool may_reply(const struct tr__flight *flight)
{
    return flight->answer != ANSWER_NONE && flight->answer != ANSWER_REPLIED &&
           flight->state >= FLIGHT_BEGUN;
}

static void flight_frame_free(struct tr__flight *flight)
{
    base_free(flight->frame);
    flight->frame = NULL;
}

static void flight_answer(struct tr__flights *flights, struct tr__flight *flight, int status,
    const void *value, size_t size)
{
    if (!is_unanswered(flight))
        return;
    flight->answer = ANSWER_GIVEN;
    tr__add(flights->ask_count, UINT32_MAX); /* before its asker knows */
    tr_reply_send(&flight->reply, status, value, size);
}

static void flight_free(struct tr__flights *flights, struct tr__flight *flight)
{
    flight_answer(flights, flight, TR_EDROPPED, NULL, 0); /* it was, but for a mistake here */
    tr__list_remove(&flight->link);
    flights->slots[flight->slot] = NULL;
    if (flight->state != FLIGHT_DONE)
        tr__add(flights->ahead_count, UINT32_MAX);
    if (flight->state == FLIGHT_UNSENT)
        flights->unsent_count--;
    flight_frame_free(flight);
    base_free(flight);
}

static void flight_free_if_over(struct tr__flights *flights, struct tr__flight *flight)
{
    if (flight->state == FLIGHT_DONE &&
        (flight->answer == ANSWER_NONE || flight->answer == ANSWER_REPLIED))
        flight_free(flights, flight);
}

static void make_dead(struct tr__flights *flights, const char *name, enum tr_dead_reason reason)
{
    struct tr_system *system = flights->box->system;
    struct tr__worker *worker = tr__self, *foreign;

    tr__add(flights->box->handled, UINT64_MAX);
    /* Counters are added up over all workers; a worker's own must never fall, it paces itself by
     * it. */
    foreign = tr__foreign_enter(system);
    tr__add(foreign->counters.handled, UINT64_MAX);
    tr__foreign_leave(system);
    tr__add(worker->counters.dead, 1);
    tr__add(worker->counters.dead_by[reason], 1);
    atomic_fetch_add_explicit(&flights->box->dropped, 1, memory_order_relaxed);
    tr__dead_note(system, flights->box, name, reason);
}

/* It will not be handled: its asker gets `status`, its message becomes a dead letter. */
static void flight_fail(
    struct tr__flights *flights, struct tr__flight *flight, int status, enum tr_dead_reason reason)
{
    flight_answer(flights, flight, status, NULL, 0);
    if (flight->state != FLIGHT_DONE)
        make_dead(flights, flight->name, reason);
    flight_free(flights, flight);
}

/* ---- taking and sending ---------------------------------------------------------------------- */

static int flight_encode(
    struct tr__flights *flights, const void *message, const void **ret_body, uint32_t *ret_size)
{
    const struct tr_codec *codec = flights->codec;
    uint32_t max = tr__codec_bytes_max(codec);
    int rc;

    if (codec->encode == NULL) {
        *ret_body = message;
        *ret_size = flights->box->type->message_size;
        return 0;
    }
    rc = codec->encode(message, flights->bytes, max, ret_size);
    if (rc < 0)
        return rc;
    *ret_body = flights->bytes;
    return *ret_size > max ? TR_ETOOBIG : 0;
}

static void write_header(struct tr__flight *flight, uint64_t left_ns)
{
    tr__wire_header(flight->frame,
        &(struct tr__wire_frame){ .kind = flight->answer != ANSWER_NONE ? WIRE_ASK : WIRE_TELL,
            .lane = flight->lane,
            .id = flight->id,
            .argument = left_ns,
            .size = flight->frame_size - WIRE_HEADER });
}

int tr__flights_take(struct tr__flights *flights, struct tr_context *ctx, const void *message)
{
    const struct tr_type *type = flights->box->type;
    struct tr__flight *flight;
    const void *body;
    uint32_t size, slot;
    int rc;

    rc = flight_encode(flights, message, &body, &size);
    if (rc < 0)
        return rc;
    rc = slot_find(flights, &slot);
    if (rc < 0)
        return rc;
    flight = base_calloc(sizeof *flight);
    if (flight == NULL)
        return TR_ENOMEM;
    flight->frame_size = WIRE_HEADER + size;
    flight->frame = base_alloc(flight->frame_size);
    if (flight->frame == NULL)
        goto free_flight;
    if (tr_is_asked(ctx)) {
        flight->answer = ANSWER_OPEN;
        flight->reply = tr_reply_take(ctx);
        if (flight->reply.reply == NULL)
            goto free_frame;
        tr__add(flights->ask_count, 1);
    }
    flight->id = ++flights->serial << SLOT_BITS | slot;
    flight->slot = slot;
    flight->lane = ctx->cell->flags & CELL_LANE;
    flight->deadline_ns = tr_deadline_ns(ctx);
    flight->name = type->message_name != NULL ? type->message_name(message) : NULL;
    if (size > 0)
        memcpy(flight->frame + WIRE_HEADER, body, size);
    flights->slots[slot] = flight;
    tr__list_add(&flights->ahead, &flight->link);
    tr__add(flights->ahead_count, 1);
    flights->unsent_count++;
    return 0;

free_frame:
    flight_frame_free(flight);
free_flight:
    base_free(flight);
    return TR_ENOMEM;
}

void tr__flights_refused(struct tr__flights *flights, const char *message_name)
{
    make_dead(flights, message_name, TR_DEAD_DROPPED);
}

/* False if the message expired or was cancelled, and was dropped. */
static bool flight_prepare(struct tr__flights *flights, struct tr__flight *flight, uint64_t now_ns)
{
    if (flight->answer != ANSWER_NONE &&
        (!is_unanswered(flight) || tr_reply_is_cancelled(flight->reply))) {
        flight_fail(flights, flight, TR_ECANCELLED, TR_DEAD_CANCELLED);
        return false;
    }
    if (flight->deadline_ns != 0 && flight->deadline_ns <= now_ns) {
        flight_fail(flights, flight, TR_ETIMEOUT, TR_DEAD_EXPIRED);
        return false;
    }
    write_header(flight, flight->deadline_ns != 0 ? flight->deadline_ns - now_ns : 0);
    return true;
}

int tr__flights_send(struct tr__flights *flights, struct tr_context *ctx,
    struct tr__wire_buffer *out, size_t bytes_max)
{
    struct tr__link *link = flights->ahead.next;

    while (flights->unsent_count > 0 && link != &flights->ahead) {
        struct tr__flight *flight = tr__container(link, struct tr__flight, link);

        link = link->next;
        if (flight->state != FLIGHT_UNSENT)
            continue;
        if (tr__wire_size(out) > bytes_max)
            break;
        if (!flight_prepare(flights, flight, flight->deadline_ns != 0 ? tr_now_ns(ctx) : 0))
            continue;
        if (tr__wire_put_bytes(out, flight->frame, flight->frame_size) < 0)
            return TR_ENOMEM;
        flight_move(flight, FLIGHT_SENT);
        flights->unsent_count--;
    }
    return 0;
}

/* ---- frames of the child -------------------------------------------------------------------- */

static int on_begin(struct tr__flight *flight)
{
    if (flight->state != FLIGHT_SENT)
        return TR_EPROTO;
    flight_move(flight, FLIGHT_BEGUN);
    flight_frame_free(flight);
    return 0;
}

static int on_done(struct tr__flights *flights, struct tr__flight *flight, int refused)
{
    if (flight->state != FLIGHT_BEGUN)
        return TR_EPROTO;
    if (refused < 0)
        make_dead(
            flights, flight->name, refused == TR_ETIMEOUT ? TR_DEAD_EXPIRED : TR_DEAD_DROPPED);
    flight_move(flight, FLIGHT_DONE);
    tr__add(flights->ahead_count, UINT32_MAX);
    tr__list_remove(&flight->link);
    tr__list_add(&flights->owed, &flight->link);
    flight_free_if_over(flights, flight);
    return 0;
}

static int decode_value(
    struct tr__flights *flights, const struct tr__wire_frame *frame, uint32_t *ret_size)
{
    if (flights->value == NULL)
        flights->value = base_alloc(TR_VALUE_SIZE_MAX);
    if (flights->value == NULL)
        return TR_ENOMEM;
    if (flights->codec->decode_value(frame->body, frame->size, flights->value, ret_size) < 0)
        return TR_EPROTO;
    return *ret_size > TR_VALUE_SIZE_MAX ? TR_EPROTO : 0;
}

static int flight_on_reply(
    struct tr__flights *flights, struct tr__flight *flight, const struct tr__wire_frame *frame)
{
    const void *value = frame->body;
    uint32_t size = frame->size;
    int rc = 0;

    if (!may_reply(flight))
        return TR_EPROTO;
    if (size > 0 && flights->codec->decode_value != NULL) {
        rc = decode_value(flights, frame, &size);
        value = flights->value;
    } else if (size > TR_VALUE_SIZE_MAX) {
        rc = TR_EPROTO;
    }
    if (rc < 0)
        flight_answer(flights, flight, rc, NULL, 0);
    else
        flight_answer(flights, flight, tr__wire_status(frame->argument), value, size);
    flight->answer = ANSWER_REPLIED;
    flight_free_if_over(flights, flight);
    return rc == TR_EPROTO ? rc : 0;
}

static int on_accept(struct tr__flight *flight)
{
    if (!may_reply(flight))
        return TR_EPROTO;
    if (flight->answer == ANSWER_OPEN) {
        flight->answer = ANSWER_ACCEPTED;
        tr_reply_send_accept(flight->reply);
    }
    return 0;
}

int tr__flights_on_frame(struct tr__flights *flights, const struct tr__wire_frame *frame)
{
    struct tr__flight *flight = flight_by_id(flights, frame->id);

    if (flight == NULL)
        return TR_EPROTO;
    if (frame->kind == WIRE_BEGIN)
        return on_begin(flight);
    if (frame->kind == WIRE_DONE)
        return on_done(flights, flight, tr__wire_status(frame->argument));
    if (frame->kind == WIRE_REPLY)
        return flight_on_reply(flights, flight, frame);
    if (frame->kind == WIRE_ACCEPT)
        return on_accept(flight);
    return TR_EPROTO;
}

/* ---- all ------------------------------------------------------------------------------------- */

void tr__flights_settle(struct tr__flights *flights, int status, enum tr_dead_reason reason)
{
    struct tr__link *link = flights->ahead.next;

    while (link != &flights->ahead) {
        struct tr__flight *flight = tr__container(link, struct tr__flight, link);

        link = link->next;
        if (flight->state == FLIGHT_BEGUN) {
            flight_fail(flights, flight, status, reason);
        } else if (flight->state == FLIGHT_SENT) {
            flight_move(flight, FLIGHT_UNSENT);
            flights->unsent_count++;
        }
    }
    while (!tr__list_is_empty(&flights->owed))
        flight_fail(flights, first_of(&flights->owed), status, reason);
}

void tr__flights_fail(struct tr__flights *flights, int status, enum tr_dead_reason reason)
{
    while (!tr__list_is_empty(&flights->ahead))
        flight_fail(flights, first_of(&flights->ahead), status, reason);
    tr__flights_settle(flights, status, reason);
}

void tr__flights_sweep(struct tr__flights *flights)
{
    for (uint32_t slot = 0; slot < flights->slot_count; slot++) {
        struct tr__flight *flight = flights->slots[slot];

        if (flight != NULL && is_unanswered(flight) && tr_reply_is_cancelled(flight->reply))
            flight_answer(flights, flight, TR_ECANCELLED, NULL, 0);
    }
}
