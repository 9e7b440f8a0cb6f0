/* SPDX-License-Identifier: Apache-2.0 */
/* convo.h: the actor of one conversation, from the inside. convo.c takes jobs in and gives answers
 * out; convo_plan.c decides; convo_store.c and convo_look.c speak SQL; convo_outcome.c says what
 * became of it; convo_stream.c tells subscribers; convo_sleep.c keeps it small while nobody asks;
 * convo_poll.c answers without waking it.
 *
 * `committed` is what the database has: every answer comes from it. `planned` is where the units on
 * their way will lead: the next job is planned on it without waiting. A unit's first step compares
 * epoch and seq with what it was planned on, so when one fails, those behind it fail too and leave
 * nothing; then the actor reads what is stored and plans again what was not at fault. */
#ifndef SERVICES_DELIVERY_CONVO_CONVO_H
#define SERVICES_DELIVERY_CONVO_CONVO_H

#include "services/delivery/convo/job.h"
#include "services/delivery/convo/roster.h"
#include "services/delivery/delivery.h"
#include "services/delivery/store/schema.h"

struct convo_point {
    uint64_t epoch;
    uint64_t seq;
    int kind;           /* CONVO_UNDECIDED, … */
    uint64_t confirmed; /* the newest epoch a member was heard at: a later one is provisional */
    unsigned char chain[32];
};

/* Why a unit was not stored. */
enum convo_failure {
    CONVO_STORED,
    CONVO_REPLAY,     /* its token was used before */
    CONVO_DUPLICATE,  /* its op is in the log already */
    CONVO_PACKAGE,    /* a key package is unknown, used or another's */
    CONVO_INVITE,     /* the invite is unknown, used up, expired, revoked or another's */
    CONVO_BLOCKED,    /* somebody added and a member have blocked each other */
    CONVO_NO_CONSENT, /* somebody added does not want to be */
    CONVO_CONFIRMED,  /* a member is in the epoch that was to be rolled back */
    CONVO_FORMER,     /* the new group has the id of an earlier one */
    CONVO_RACE,       /* one before it failed, or another process moved the conversation */
    CONVO_UNKNOWN,    /* it may be stored */
    CONVO_REFUSED,    /* the database is full, closed, too slow */
};

/* A job whose unit is on its way, or that waits for its turn to be planned again. */
struct convo_op {
    struct convo_op *next;
    struct job *job; /* one holder */
    tr_reply_handle reply;
    uint32_t number; /* the tag of its unit */
    uint32_t tries;
    bool is_back;
    bool is_refused;   /* has no unit: the refusal in its job waits for those before it */
    bool was_unknown;  /* an earlier try of it may have been stored */
    bool is_asking;    /* was it? Its token is looked for */
    bool was_asked;    /* no try before this plan was */
    bool is_exclusive; /* nothing else is planned until it is back and all was read again */
    bool needs_quiet;  /* it is planned when nothing is on its way, and before what came later */
    bool is_fork;      /* others confirmed something else */
    enum convo_failure failure;
    struct convo_point after;
    struct convo_point before;
    int64_t now_ms;
};

/* Where a commit is in the log: behind the proposals that came with it. */
static inline uint64_t convo_op_seq(const struct convo_op *op)
{
    return op->before.seq + 1 + op->job->proposal_count;
}

struct convo_subscriber;
struct convo_loser;
struct convo_seat;

/* The commit that made the current epoch. */
struct convo_newest {
    bool is_there;
    uint32_t sender; /* index in the roster */
    uint64_t seq;
    uint64_t base_epoch;
    unsigned char sha256[32];
};

/* Where the log begins. Retention moves that without asking the actor, so it is good only while
 * `trims` of struct delivery is what it was when this was read. */
struct convo_kept {
    uint64_t from; /* 0: not known */
    uint64_t trims;
};

/* All in one block, each as long as it is. */
struct convo_texts {
    struct span id;
    struct span suite, creator, name, description;
    struct span group_id;   /* empty: not known yet */
    struct span group_name; /* of the group since a reset; empty: the conversation's id */
};

struct convo {
    bool is_awake; /* first, and always true: convo_sleep.c */
    bool is_loaded;
    bool is_there;
    bool is_poisoned; /* something failed: no planning until it was read again */
    bool is_reading;
    bool is_outdated;  /* others stored something since what is being read was asked for */
    bool is_exclusive; /* such an op is on its way */
    bool
        exclusive_pending; /* one that needs quiet waits: what may store something queues behind it */
    struct delivery *delivery;

    struct convo_point committed;
    struct convo_point planned;
    struct convo_texts texts;
    char *text_block; /* where those are */
    int64_t created_ms;
    int64_t active_ms;
    struct convo_policy policy;
    struct roster roster;
    struct convo_newest newest;
    struct buffer revoked; /* SHA-256 of each commit rolled back to the current epoch */
    struct convo_kept kept;

    struct convo_op *flying; /* oldest first */
    struct convo_op *flying_last;
    uint32_t flying_count;
    struct convo_op *waiting; /* to be planned (again), oldest first */
    struct convo_op *waiting_last;
    uint32_t waiting_count;
    struct convo_op *looking; /* answers that need a read */

    struct convo_loser *losers; /* convo_turn.c */
    struct convo_loser *turn;   /* whose turn it is */
    uint32_t loser_count;
    uint64_t turn_until_ns;
    uint64_t turn_timer;

    struct convo_subscriber *subscribers;
    uint32_t subscriber_count;
    struct sql_client sql;
    uint32_t number_next;
};

static inline struct span convo_span(const struct convo *convo)
{
    return convo->texts.id;
}
/* The texts become these, which may be some of the old ones. */
int convo_set_texts(struct convo *convo, const struct convo_texts *texts);

/* One that knows its name and nothing else. */
int convo_init(struct convo *convo, struct delivery *delivery, struct span id);
/* Frees what it has; ops get no answer. */
void convo_finish(struct convo *convo);

enum { CONVO_FLYING_MAX = 512, CONVO_WAITING_MAX = 1024, CONVO_TRIES_MAX = 8 };
enum {
    CONVO_TAG_LOAD = 1,
    CONVO_TAG_TURN = 2,
    CONVO_TAG_LOOK = 1 << 24,
    CONVO_TAG_UNIT = 2 << 24,
    CONVO_TAG_CATCH_UP = 3 << 24,
};

/* ---- convo_plan.c: decides, touches nothing but `planned` and the job ----------------------- */

enum convo_plan {
    CONVO_GO,       /* store it: op->after is where it leads */
    CONVO_ANSWERED, /* the job has its status */
    CONVO_WAIT,     /* depends on what is on its way */
    CONVO_QUIET,    /* depends on there being nothing */
    CONVO_LOOK,     /* the answer is in the log */
    CONVO_SUBSCRIBE,
    CONVO_SAY, /* to who listens; nothing is stored */
};
enum convo_plan convo_plan(struct convo *convo, struct convo_op *op);
/* The next receipt: SHA-256 of the one before, seq and base epoch (8 bytes each, big-endian) and
 * the hash of what was stored. `after->seq` is its row's. */
void convo_extend_chain(struct convo_point *after, uint64_t base_epoch, const void *sha256);
/* What the group is called, as text or as hex. */
struct span convo_group_name(const struct convo *convo);
/* Is that its id, as it is inside messages? */
bool convo_is_of_group(const struct convo *convo, struct span group_id);
/* Undo nothing, redo everything: planned becomes committed. */
void convo_forget_plans(struct convo *convo);

/* ---- convo_store.c -------------------------------------------------------------------------- */

uint64_t convo_key(const struct convo *convo); /* of its units */
struct sql_unit *convo_load_unit(const struct convo *convo);
/* The same steps, to be written with: from the first on nobody else moves the conversation until
 * the unit has ended. One that is not there has no row to lock: of two that make it, the row's key
 * refuses the second. */
struct sql_unit *convo_lock_unit(const struct convo *convo, uint64_t key);
/* Of a unit that began with one of these. */
int convo_loaded(struct convo *convo, const struct sql_unit *unit);
/* What an op stores: as a unit of its own, or behind what is in one. */
struct sql_unit *convo_op_unit(const struct convo *convo, const struct convo_op *op);
void convo_add_op(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit);
enum convo_failure convo_failure_of(const struct sql_unit *unit);
/* A step that fails without an invite that is good for the caller; one use of it may be spent. */
void convo_add_invite(const struct convo *convo, const struct job *job, int64_t now_ms,
    struct sql_unit *unit, bool is_spent);

struct convo_log_row {
    uint64_t seq;
    int kind; /* enum mls_content, LOG_… */
    struct span op;
    struct span message_id; /* absent: none was given, or the op says it */
    const unsigned char *sha256;
    struct span bytes;
};
void convo_add_log(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit,
    struct convo_log_row row);

/* ---- convo_look.c --------------------------------------------------------------------------- */

struct sql_unit *convo_look_unit(const struct convo *convo, const struct convo_op *op);
/* False: it has to be planned again, for the log is ahead of what this actor knows to be stored, or
 * the group was reset since. */
bool convo_looked(struct convo *convo, struct convo_op *op, const struct sql_unit *unit);

/* ---- convo_outcome.c: what became of a unit, for both ways to serve (direct.h) -------------- */

bool convo_has_log(const struct job *job);
bool convo_is_read(enum job_kind kind); /* it changes nothing */
/* Its unit is back: sets op->failure, which is not STORED when an earlier try was. */
void convo_unit_back(struct convo_op *op, const struct sql_unit *unit);
/* The job fails for what trying again does not cure. False: it may (DUPLICATE: look; RACE and
 * UNKNOWN: read and plan again). */
bool convo_refuse(const struct convo_op *op);
/* It is in the database: whose devices nobody listens with are woken, where that is due. */
void convo_wake(const struct convo *convo, const struct job *job);
/* The same, and now it is true. */
void convo_apply(struct convo *convo, const struct convo_op *op);
/* After that: the job gets its answer. */
void convo_answer(const struct convo *convo, const struct convo_op *op);
/* Before it is planned again: an earlier try of it may have been stored, and would stand in its own
 * way. Only its token tells: look, with op->is_asking set. */
bool convo_must_ask(const struct convo_op *op);
/* The look is back. False: no earlier try was stored, so it is planned now. */
bool convo_asked(const struct convo *convo, struct convo_op *op, const struct sql_unit *unit);

/* ---- convo_turn.c: two losses in a row earn a turn ------------------------------------------ */

/* Must this one's commit for the current epoch wait? */
bool commit_fairness_is_anothers(const struct convo *convo, struct span did);
/* How long it still is; 0: it is not. */
uint64_t commit_fairness_wait_ms(const struct convo *convo, struct span did);
void commit_fairness_lost(struct convo *convo, struct tr_context *ctx, struct span did);
void commit_fairness_won(struct convo *convo, struct tr_context *ctx, struct span did);
/* The timer: true if a turn ended unused, so that others get theirs. */
bool commit_fairness_passed(struct convo *convo, struct tr_context *ctx);
void commit_fairness_end(struct convo *convo);

/* ---- convo_unwedge.c: confirmEpoch, reportInvalidCommit, resetGroup ------------------------- */

void convo_unwedge_load_steps(const struct convo *convo, struct sql_unit *unit);
/* After the roster was loaded; `first` is the first of those steps. */
int convo_unwedge_loaded(struct convo *convo, const struct sql_unit *unit, uint32_t first);
/* A commit was stored. */
void convo_unwedge_committed(struct convo *convo, const struct convo_op *op);
/* May this member be out again, because the commit it came by is taken back? */
bool convo_unwedge_may_undo(const struct convo *convo, const struct member *member);
/* Quarantine, and bytes that were revoked. */
enum convo_plan convo_unwedge_may_commit(
    const struct convo *convo, struct job *job, const struct member *caller);
enum convo_plan convo_plan_confirm(struct convo *convo, struct convo_op *op);
enum convo_plan convo_plan_report(struct convo *convo, struct convo_op *op);
enum convo_plan convo_plan_reset(struct convo *convo, struct convo_op *op);
/* Of an ephemeral message: its epoch is no longer provisional. */
void convo_store_heard(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit);
void convo_store_confirm(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit);
void convo_store_report(
    const struct convo *convo, const struct convo_op *op, struct sql_unit *unit);
void convo_store_reset(const struct convo *convo, const struct convo_op *op, struct sql_unit *unit);
/* Why a unit failed at a statement; CONVO_RACE for those it does not know. */
enum convo_failure convo_unwedge_failure(const struct sql_statement *failed);
void convo_unwedge_stored(struct convo_op *op, const struct sql_unit *unit);
/* False: the job is none of these three. */
bool convo_unwedge_apply(struct convo *convo, const struct convo_op *op);
void convo_unwedge_answer(const struct convo *convo, const struct convo_op *op);

/* ---- convo_view.c --------------------------------------------------------------------------- */

void convo_write_view(const struct convo *convo, struct buffer *out);
void convo_write_state(const struct convo *convo, struct buffer *out);

/* ---- convo_poll.c: reads that need no waking ------------------------------------------------ */

/* JOB_EPOCH of one that is asleep, and JOB_POLL. True: the job has its answer. False: what is not
 * JOB_POLL goes the long way; JOB_POLL needs to know where the log begins: look. */
bool convo_seat_answers(const struct convo_seat *seat, struct job *job);
void convo_poll_look(const struct convo *convo, struct job *job, struct sql_unit *unit);
/* The look is back: the job has its answer now. */
void convo_poll_looked(struct convo *convo, struct job *job, const struct sql_unit *unit);

/* ---- convo_stream.c: who listens ------------------------------------------------------------ */

/* Something was stored (or, ephemeral, said): everybody who listens hears of it. Whom it removed
 * hears that, and nothing after it. */
void convo_stream_committed(struct convo *convo, struct tr_context *ctx, const struct convo_op *op);
/* Where a stream begins that wants what is behind `wanted` (INT64_MAX: what comes from now on). */
uint64_t convo_stream_from(const struct convo *convo, uint64_t wanted);
void convo_stream_begin(struct convo *convo, struct tr_context *ctx, struct job *job);
/* A page is back. is_poisoned: it was of a log that is ahead of this actor. */
void convo_stream_caught_up(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit);
/* Everything was read again: those who listen hear what others have stored meanwhile. */
void convo_stream_behind(struct convo *convo, struct tr_context *ctx);
/* And whose role is another than before, and that the policy is. */
struct convo_before {
    struct roster roster; /* as it was: owned */
    struct convo_policy policy;
};
void convo_stream_changed(
    struct convo *convo, struct tr_context *ctx, const struct convo_before *before);
/* How many members but this one listen; nobody counts further than this. */
enum { CONVO_OTHERS_MAX = 100 };
uint32_t convo_stream_others(const struct convo *convo, struct span did);
/* Who of the job's `removes` listens: a byte each in its answer. Without memory, nobody. */
void convo_stream_hears(const struct convo *convo, struct job *job);
/* A client went away. */
void convo_stream_gone(struct convo *convo, struct tr_context *ctx, uint64_t stream_number);
/* The log cannot be read, so nobody knows what they have missed: all of them end as busy, and come
 * back with the cursor they have. */
void convo_stream_unreadable(struct convo *convo, struct tr_context *ctx);
void convo_stream_end(struct convo *convo);

/* ---- convo_sleep.c: the actor's own state --------------------------------------------------- */

/* Nearly always nobody asks. Then a conversation is one block of the bytes it takes, and it becomes
 * a struct convo when somebody does. */
struct convo_seat {
    struct delivery *delivery;
    void *self; /* struct convo (is_awake), or packed bytes, of which the first is 0 */
};
/* For a registry: the key is the conversation's id, `data` the struct delivery. */
int convo_seat_make(void *data, const void *key, size_t key_size, void *memory);
/* What there is to say to a caller about one that is asleep. False: it is awake, or not loaded, or
 * there is no such conversation. */
struct convo_sight {
    uint64_t epoch, seq;
    bool is_in;
    struct convo_kept kept;
};
bool convo_seat_glance(
    const struct convo_seat *seat, struct span caller, struct convo_sight *ret_sight);
/* NULL if it is asleep. */
struct convo *convo_seat_awake(const struct convo_seat *seat);
/* NULL when out of memory. */
struct convo *convo_seat_wake(struct convo_seat *seat);
/* If nothing is under way. Without memory, or with many members, it stays awake. */
void convo_seat_rest(struct convo_seat *seat);
/* What it knows is old. */
void convo_seat_forget(struct convo_seat *seat);
void convo_seat_finish(struct convo_seat *seat);
void convo_seat_show(const struct convo_seat *seat, char *text, size_t size);

extern const struct tr_type convo_type;

#endif
