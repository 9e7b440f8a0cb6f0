/* SPDX-License-Identifier: Apache-2.0 */
/* convo.h: the actor of one conversation, from the inside. convo.c takes jobs in and gives answers
 * out; convo_plan.c decides; convo_store.c speaks SQL; convo_stream.c tells subscribers.
 *
 * `committed` is what the database has: every answer comes from it. `planned` is where the units on
 * their way will lead: the next job is planned on it without waiting. A unit's first step compares
 * epoch and seq with what it was planned on, so when one fails, those behind it fail too and leave
 * nothing; then the actor reads what is stored and plans again what was not at fault. */
#ifndef SERVICES_DELIVERY_CONVO_H
#define SERVICES_DELIVERY_CONVO_H

#include "services/delivery/delivery.h"
#include "services/delivery/job.h"
#include "services/delivery/roster.h"
#include "services/delivery/schema.h"

struct convo_point {
    uint64_t epoch;
    uint64_t seq;
    int kind; /* CONVO_UNDECIDED, … */
    unsigned char chain[32];
};

/* Why a unit was not stored. */
enum convo_failure {
    CONVO_STORED,
    CONVO_REPLAY,    /* its token was used before */
    CONVO_DUPLICATE, /* its op is in the log already */
    CONVO_PACKAGE,   /* a key package is unknown, used or another's */
    CONVO_RACE,      /* one before it failed, or another process moved the conversation */
    CONVO_UNKNOWN,   /* it may be stored */
    CONVO_REFUSED,   /* the database is full, closed, too slow */
};

/* A job whose unit is on its way, or that waits for its turn to be planned again. */
struct convo_op {
    struct convo_op *next;
    struct job *job; /* one holder */
    tr_reply_handle reply;
    uint32_t number; /* the tag of its unit */
    uint32_t tries;
    bool is_back;
    bool was_unknown; /* an earlier try of it may have been stored */
    enum convo_failure failure;
    struct convo_point after;
    struct convo_point before;
    int64_t now_ms;
};

struct convo_subscriber;

struct convo {
    struct delivery *delivery;
    char id[JOB_CONVO_SIZE_MAX + 1];
    size_t id_size;
    bool is_loaded;
    bool is_there;
    bool is_poisoned; /* something failed: no planning until it was read again */
    bool is_reading;

    struct convo_point committed;
    struct convo_point planned;
    char suite[64];
    char creator[256];
    char name[129];
    char description[513];
    int64_t created_ms;
    int64_t active_ms;
    bool open_join;
    struct tr_buffer group_id; /* empty: not known yet */
    struct roster roster;

    struct convo_op *flying; /* oldest first */
    struct convo_op *flying_last;
    uint32_t flying_count;
    struct convo_op *waiting; /* to be planned (again), oldest first */
    struct convo_op *waiting_last;
    uint32_t waiting_count;
    struct convo_op *looking; /* answers that need a read */

    struct convo_subscriber *subscribers;
    uint32_t subscriber_count;
    struct sql_client sql;
    uint32_t number_next;
};

enum { CONVO_FLYING_MAX = 512, CONVO_WAITING_MAX = 1024, CONVO_TRIES_MAX = 8 };
enum {
    CONVO_TAG_LOAD = 1,
    CONVO_TAG_LOOK = 1 << 24,
    CONVO_TAG_UNIT = 2 << 24,
    CONVO_TAG_CATCH_UP = 3 << 24,
};

/* ---- convo_plan.c: decides, touches nothing but `planned` and the job -------------------------
 */

enum convo_plan {
    CONVO_GO,       /* store it: op->after is where it leads */
    CONVO_ANSWERED, /* the job has its status */
    CONVO_WAIT,     /* depends on what is on its way */
    CONVO_LOOK,     /* the answer is in the log */
    CONVO_SUBSCRIBE,
    CONVO_SAY, /* to who listens; nothing is stored */
};
enum convo_plan convo_plan(struct convo *convo, struct convo_op *op);
/* Undo nothing, redo everything: planned becomes committed. */
void convo_forget_plans(struct convo *convo);

/* ---- convo_store.c ------------------------------------------------------------------------------
 */

struct sql_unit *convo_load_unit(const struct convo *convo);
int convo_loaded(struct convo *convo, const struct sql_unit *unit);
struct sql_unit *convo_op_unit(const struct convo *convo, const struct convo_op *op);
enum convo_failure convo_failure_of(const struct sql_unit *unit);
struct sql_unit *convo_look_unit(const struct convo *convo, const struct convo_op *op);
void convo_looked(struct convo *convo, struct convo_op *op, const struct sql_unit *unit);

/* ---- views --------------------------------------------------------------------------------------
 */

void convo_write_view(const struct convo *convo, struct tr_buffer *out);
void convo_write_state(const struct convo *convo, struct tr_buffer *out);

/* ---- convo_stream.c: who listens
 * ----------------------------------------------------------------- */

/* Something was stored (or, ephemeral, said): everybody who listens hears of it. Whom it removed
 * hears that, and nothing after it. */
void convo_stream_committed(struct convo *convo, struct tr_context *ctx, const struct convo_op *op);
void convo_stream_begin(struct convo *convo, struct tr_context *ctx, struct job *job);
void convo_stream_caught_up(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit);
/* A client went away. */
void convo_stream_gone(struct convo *convo, struct tr_context *ctx, uint64_t stream_number);
void convo_stream_end(struct convo *convo);

extern const struct tr_type convo_type;

#endif
