/* SPDX-License-Identifier: Apache-2.0 */
/* convo_poll.c: reads that memory answers without waking the conversation.
 *
 * Most who ask for messages have all of them. Then the answer is four numbers, which the actor has,
 * and no row: the database is not asked. It must not differ from what the database would have said:
 *
 * 1. Nothing of the conversation is on its way to the database. What is may be stored already, and
 *    somebody may have read it there: then `committed` is old although nothing newer was answered.
 * 2. The caller is in, and its cursor is the newest number. Behind one that is older there is
 *    something; one that is newer was not given by us. In both cases the database knows better.
 * 3. Retention has not trimmed the log since the actor read where it begins (delivery->trims).
 * 4. That was read behind everything that an actor before this one may have had on its way.
 *
 * Otherwise the job says must_read. It never waits for anything but (3) and (4), which are one look
 * after the conversation was read, or trimmed. */
#include "services/delivery/convo/convo.h"

SQL_STATEMENT(find_kept, "SELECT kept_from, seq FROM convos WHERE id = $1");

static uint64_t trims_of(const struct delivery *delivery)
{
    return atomic_load_explicit(
        &delivery->trims, memory_order_seq_cst); /* retention.c: note_trim */
}

/* As stored, and only if everything is. */
static bool see(const struct convo *convo, struct span caller, struct convo_sight *ret_sight)
{
    const struct member *member;

    if (!convo->is_loaded || !convo->is_there || convo->is_poisoned || convo->is_reading ||
        convo->is_exclusive || convo->flying != NULL)
        return false;
    member = roster_find(&convo->roster, caller);
    *ret_sight = (struct convo_sight){ .epoch = convo->committed.epoch,
        .seq = convo->committed.seq,
        .is_in = member != NULL && member->is_in,
        .kept = convo->kept };
    return true;
}

static void answer(struct job *job, const struct convo_sight *sight)
{
    job->result_epoch = sight->epoch;
    job->result_seq = sight->seq;
    job->result_kept_from = sight->kept.from;
    job->status = 200;
}

static void must_read(struct job *job)
{
    job->must_read = true;
    job->status = 200;
}

static bool is_kept_known(const struct convo_sight *sight, uint64_t trims)
{
    return sight->kept.from != 0 && sight->kept.trims == trims && trims % 2 == 0;
}

/* False: where the log begins has to be read first. */
static bool answer_poll(struct job *job, const struct convo_sight *sight, uint64_t trims)
{
    if (!sight->is_in || job->seq != sight->seq || trims % 2 != 0)
        must_read(job);
    else if (is_kept_known(sight, trims))
        answer(job, sight);
    else
        return false;
    return true;
}

bool convo_seat_answers(const struct convo_seat *seat, struct job *job)
{
    const struct convo *convo = convo_seat_awake(seat);
    struct convo_sight sight;

    if (job->kind == JOB_LISTENING) {
        if (convo != NULL) /* nobody listens to one that sleeps */
            convo_stream_hears(convo, job);
        job->status = 200;
        return true;
    }
    if (job->kind == JOB_EPOCH) {
        if (!convo_seat_glance(seat, job->claims->issuer, &sight) || !sight.is_in)
            return false;
        answer(job, &sight);
        return true;
    }
    if (job->kind != JOB_POLL)
        return false;
    if (convo == NULL ? convo_seat_glance(seat, job->claims->issuer, &sight)
                      : see(convo, job->claims->issuer, &sight))
        return answer_poll(job, &sight, trims_of(seat->delivery));
    must_read(job);
    return true;
}

void convo_poll_look(const struct convo *convo, struct job *job, struct sql_unit *unit)
{
    job->count = trims_of(convo->delivery); /* before it is read */
    sql_unit_step(unit, &find_kept, SQL_ROWS_ANY);
    sql_unit_text(unit, convo_span(convo));
}

void convo_poll_looked(struct convo *convo, struct job *job, const struct sql_unit *unit)
{
    struct convo_sight sight;

    if (sql_unit_status(unit) == 0 && sql_unit_rows(unit, 0) == 1) {
        convo->kept = (struct convo_kept){ (uint64_t)sql_row_int(unit, 0, 0, 0), job->count };
        /* By a unit of the actor that was here before us: all has to be read again. */
        if (convo->flying == NULL && (uint64_t)sql_row_int(unit, 0, 0, 1) > convo->committed.seq)
            convo->is_poisoned = true;
    }
    if (!see(convo, job->claims->issuer, &sight) ||
        !answer_poll(job, &sight, trims_of(convo->delivery)))
        must_read(job);
}
