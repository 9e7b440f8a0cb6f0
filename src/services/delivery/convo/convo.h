/* SPDX-License-Identifier: Apache-2.0 */
/* convo.h: one conversation in memory, and what the files of this folder share. README.md lists the
 * files.
 *
 * `committed` is what the database has: every answer comes from it. `planned` is where the units in
 * flight lead: the next act is planned on it without waiting. A unit that moves the
 * conversation compares epoch and seq (messages and commits: also the chain) with the point it was
 * planned on. So when it fails, the later units that move the conversation fail too and store
 * nothing; then the actor reads the conversation and plans the acts again that were not at fault. A
 * unit that moves nothing (a role, a read cursor) may still be stored. */
#ifndef SERVICES_DELIVERY_CONVO_CONVO_H
#define SERVICES_DELIVERY_CONVO_CONVO_H

#include "services/delivery/convo/acts.h"
#include "services/delivery/convo/roster.h"
#include "services/delivery/delivery.h"
#include "services/delivery/store/schema.h"

struct convo_point {
    uint64_t epoch;
    uint64_t seq;
    int64_t kind;       /* CONVO_UNDECIDED, … */
    uint64_t confirmed; /* the newest epoch a member was heard at: a later one is provisional */
    unsigned char chain[32];
};

/* Why a unit was not stored. */
enum convo_failure {
    CONVO_STORED,
    CONVO_REPLAY,     /* the token was used before */
    CONVO_DUPLICATE,  /* the op is in the log already */
    CONVO_PACKAGE,    /* a key package is unknown, used or another account's */
    CONVO_INVITE,     /* the invite is unknown, used up, expired, revoked or another account's */
    CONVO_BLOCKED,    /* an added account and a member have blocked each other */
    CONVO_NO_CONSENT, /* an added account has not opted in */
    CONVO_CONFIRMED,  /* a member is in the epoch of the commit to revoke */
    CONVO_FORMER,     /* the new group has the id of an earlier one */
    CONVO_RACE,       /* an earlier unit failed, or another process moved the conversation */
    CONVO_UNKNOWN,    /* the unit may be stored */
    CONVO_REFUSED,    /* not stored: the database was full, failed or too slow */
};

/* Where an op is. convo_op_move() has the table of moves. */
enum convo_op_state {
    OP_HELD,      /* the driver works on it */
    OP_WAITING,   /* to be planned (again) */
    OP_IN_FLIGHT, /* the database has its unit */
    OP_BACK,      /* its unit is back; earlier ops are not */
    OP_REFUSED,   /* refused; earlier ops decide whether that stands */
    OP_LOOKUP,    /* the database looks up its answer */
    OP_ASKING,    /* the database looks up its token, after an unknown outcome */
};

/* May an earlier try of the act be stored? */
enum convo_doubt {
    DOUBT_NONE,
    DOUBT_OPEN,
    DOUBT_ASKED, /* no try before this plan was */
};

/* An act on its way through a driver. */
struct convo_op {
    struct convo_op *next;
    struct convo *convo;
    struct sql_unit *unit; /* while the act adds its steps to it */
    struct act *act;       /* one holder */
    tr_reply_handle reply;
    uint32_t number; /* in the tags of its units */
    uint32_t tries;
    enum convo_op_state state;
    enum convo_doubt doubt;
    bool needs_idle;   /* plan it when no unit is in flight, and before later acts */
    bool is_exclusive; /* no other act is planned until it is back and the conversation was read */
    enum convo_failure failure;
    struct convo_point before;
    struct convo_point after;
    uint64_t seq; /* of its row in the log; of a commit: after the proposals of its bundle */
    int64_t now_ms;
};
void convo_op_move(struct convo_op *op, enum convo_op_state state);

struct convo_driver;
struct convo_subscriber;
struct convo_loser;

/* The commit that made the current epoch. */
struct convo_newest {
    uint32_t is_there;
    uint32_t sender; /* index in the roster */
    uint64_t seq;
    uint64_t base_epoch;
    unsigned char sha256[32];
};

/* The first row of the log that is kept. Retention moves it without the actor: it is valid while
 * delivery->trims is unchanged. */
struct convo_kept {
    uint64_t from; /* 0: not known */
    uint64_t trims;
};

/* Texts, all in one block. */
struct convo_texts {
    struct span id;
    struct span suite, creator, name, description;
    struct span group_id;   /* empty: no commit has pinned it yet */
    struct span group_name; /* of the group since a reset; empty: the conversation's id */
};

/* Does memory agree with the database? convo_move() has the table of moves. */
enum convo_state {
    CONVO_UNLOADED,      /* memory knows the id alone; the next act loads the conversation */
    CONVO_LOADING,       /* the load is in flight; acts wait */
    CONVO_LOADING_STALE, /* another process stored something meanwhile: load again */
    CONVO_LIVE,          /* memory agrees; acts are planned */
    CONVO_POISONED,      /* memory may be wrong; load when all units in flight are back */
};

/* Ops, oldest first. */
struct convo_queue {
    struct convo_op *first, *last;
    uint32_t count;
};

struct convo {
    bool is_awake;          /* first, and always true: convo_slot.c */
    bool is_there;          /* the conversation exists */
    bool is_exclusive;      /* an exclusive op is in flight */
    bool exclusive_pending; /* an op that needs_idle waits: acts that store queue behind it */
    enum convo_state state;
    const struct convo_driver *driver;
    struct delivery *delivery;

    struct convo_point committed; /* convo_slot.c packs from here up to `planned`, by words */
    struct convo_kept kept;
    struct convo_newest newest;
    int64_t created_ms;
    int64_t active_ms;
    struct convo_point planned;
    struct convo_texts texts;
    char *text_block; /* owned: `texts` points into it */
    struct convo_policy policy;
    struct roster roster;
    struct buffer revoked; /* SHA-256 of each commit revoked at the current epoch */

    struct convo_queue flying;  /* in flight, back or refused */
    struct convo_queue waiting; /* to be planned (again) */
    struct convo_op *looking;   /* OP_LOOKUP, OP_ASKING; in any order */

    struct convo_loser *losers; /* commit_fairness.c */
    struct convo_loser *turn;   /* the account that has the turn */
    uint32_t loser_count;
    uint64_t loser_tickets; /* given so far */
    uint64_t turn_until_ns;
    uint64_t turn_timer;

    struct convo_subscriber *subscribers;
    uint32_t subscriber_count;
    struct sql_client sql;
    uint32_t number_next;
};

void convo_move(struct convo *convo, enum convo_state state);
/* Memory may be wrong: acts wait until the conversation was read again. */
void convo_poison(struct convo *convo);
/* Copies the texts, which may be some of the old ones. TR_ENOMEM. */
int convo_set_texts(struct convo *convo, const struct convo_texts *texts);
/* Inits a conversation that knows nothing; the caller sets its id. */
void convo_init(struct convo *convo, struct delivery *delivery, const struct convo_driver *driver);
/* Frees what it owns; its ops get no answer. */
void convo_fini(struct convo *convo);

enum { CONVO_FLYING_MAX = 512, CONVO_WAITING_MAX = 1024, CONVO_TRIES_MAX = 8 };
enum {
    CONVO_TAG_LOAD = 1 << 24,
    CONVO_TAG_LOOKUP = 2 << 24,
    CONVO_TAG_UNIT = 3 << 24,
    CONVO_TAG_CATCH_UP = 4 << 24,
    CONVO_TAG_TURN = 5 << 24,
    CONVO_TAG_NUMBER = (1 << 24) - 1, /* the other bits: of an op or a subscriber */
};

static inline struct member *convo_caller(const struct convo *convo, const struct act *act)
{
    return roster_find(&convo->roster, act->claims->issuer);
}

/* ---- convo_plan.c: what plans share --------------------------------------------------------- */

/* Plans an act; CONVO_GO moves `planned` to op->after. */
enum convo_plan convo_plan(struct convo *convo, struct convo_op *op);
bool convo_is_in_flight(const struct convo *convo, const struct act_type *type);
/* A member was heard in the epoch: it is no longer provisional. */
void convo_plan_heard(struct convo_op *op, uint64_t epoch);
/* Extends the receipts' hash chain (receipt.h) by the row with seq after->seq. */
void convo_extend_chain(struct convo_point *after, uint64_t base_epoch, const void *sha256);
/* The group's id, as text or as hex. */
struct span convo_group_name(const struct convo *convo);
/* Is this the group's id, as it is inside messages? */
bool convo_is_of_group(const struct convo *convo, struct span group_id);
/* Checks the Welcomes and the GroupInfo against the group, its suite and the epoch. */
enum convo_plan convo_check_parts(
    const struct convo *convo, struct act *act, struct span suite, uint64_t epoch);
/* Checks the ratchet tree against the accounts that the request names. */
enum convo_plan convo_check_roster(const struct convo *convo, struct act *act);
/* May the caller join by itself? Sets what the invite must be. */
enum convo_plan convo_plan_join(const struct convo *convo, struct act *act,
    struct act_invite *invite, const struct member *caller);
/* act_read.c */
enum convo_plan read_plan(struct convo *convo, struct convo_op *op);
void view_answer(const struct convo_op *op);

/* ---- convo_outcome.c ------------------------------------------------------------------------ */

enum convo_plan convo_refuse_size(struct act *act, uint32_t members_max);
enum convo_plan convo_refuse_non_admin(struct act *act);
/* Refuses an act whose unit failed, if another try cannot help. False: look up (DUPLICATE), or read
 * and plan again (RACE, UNKNOWN). */
bool convo_refuse(struct act *act, enum convo_failure failure);
/* Sets op->failure from a unit that is back. */
void convo_unit_back(struct convo_op *op, const struct sql_unit *unit);
/* Pushes to members without an open stream, if the act calls for it. */
void convo_push(const struct convo *convo, const struct act *act);
/* Plans the members that an act adds and removes, or applies them once it is stored. */
void convo_change_members(struct convo *convo, const struct convo_op *op, bool is_stored);
/* Sets the answer: epoch, seq and time, and what the type adds. */
void convo_answer_stored(const struct convo_op *op);
/* A part of apply. */
void convo_apply_point(struct convo *convo, const struct convo_op *op);
/* After an unknown outcome an act without a log row looks for its token before it is planned
 * again: the earlier try may be stored. */
bool convo_must_ask(const struct convo_op *op);

/* Steps of both drivers. Each takes an op that its driver holds, and gives it to the driver, to the
 * list `looking` or to its client. */
typedef void convo_step_fn(struct convo *convo, struct tr_context *ctx, struct convo_op *op);
struct convo_driver {
    bool is_direct;
    convo_step_fn *begin;              /* plan the act: no earlier try of it was stored */
    convo_step_fn *again;              /* plan the act again, on newer memory */
    convo_step_fn *stored;             /* tell others of a stored act; NULL: nobody */
    void (*done)(struct convo_op *op); /* free the op */
};
convo_step_fn convo_answer;   /* sends the answer */
convo_step_fn convo_again;    /* forgets the outcome and plans the act again */
convo_step_fn convo_conclude; /* answers a planned act, or looks it up: it may be a repeat */
convo_step_fn convo_settle;   /* the unit is back: answers the act, looks it up or plans it again */
/* Answers 503. */
void convo_fail(struct convo *convo, struct tr_context *ctx, struct convo_op *op, const char *label,
    const char *text);
/* Answers 503 and destroys the unit, which the database did not accept. */
void convo_fail_busy(
    struct convo *convo, struct tr_context *ctx, struct convo_op *op, struct sql_unit *unit);
/* Reads from the database: the act's answer (OP_LOOKUP), or whether an earlier try consumed the
 * act's token and is therefore stored (OP_ASKING). */
void convo_look_up(
    struct convo *convo, struct tr_context *ctx, struct convo_op *op, enum convo_op_state state);
void convo_lookup_back(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit);

/* ---- convo_store.c -------------------------------------------------------------------------- */

uint64_t convo_key(const struct convo *convo); /* of its units */
act_steps_fn convo_store_act;                  /* appends the steps of a planned act */
enum convo_failure convo_failure_of(const struct sql_unit *unit);

/* A step whose $1 is the conversation's id, alone or with more values. */
void op_step(const struct convo_op *op, const struct sql_statement *statement, int64_t rows);
#define OP_STEP(op, statement, rows, ...)                                                          \
    UNIT_STEP((op)->unit, (statement), (rows), VALUE_TEXT((op)->convo->texts.id), __VA_ARGS__)
/* Appends the row that the event tells of. sha256 NULL: of the event's bytes. */
void convo_store_log(
    const struct convo_op *op, struct delivery_event event, const unsigned char *sha256);
/* Compares and sets the point. `group_id` pins the group's id; a message gives none. */
void convo_store_move(const struct convo_op *op, struct span group_id);
/* Additions, removals, consent and Welcomes. `join`: the caller joins by itself. */
void convo_store_members(const struct convo_op *op, const struct act_invite *join);
/* Fails the unit without an invite that is good for the caller. */
void convo_store_invite(const struct convo_op *op, const struct act_invite *invite, bool is_spent);
void convo_store_group_info(const struct convo_op *op, struct span bytes, uint64_t epoch);
act_steps_fn convo_store_create, convo_store_read_to, convo_store_mark_unread, convo_store_role,
    convo_store_policy, recovery_store_confirm, recovery_store_report, recovery_store_reset;
void recovery_store_heard(const struct convo_op *op, uint64_t epoch);
void recovery_confirm_stored(struct convo_op *op, const struct sql_unit *unit);

/* ---- convo_load_store.c, log_lookup.c -------------------------------------------------------- */

/* With is_locking it is a write, and the first step locks the row until the unit ends. A conversation
 * that does not exist has no row to lock: of two creations, the row's key refuses the second. */
struct sql_unit *convo_load_unit(const struct convo *convo, uint64_t key, bool is_locking);
/* Takes over the results. TR_ENOMEM. */
int convo_load(struct convo *convo, const struct sql_unit *unit);

enum lookup_step { LOOKUP_COMMITS, LOOKUP_OP, LOOKUP_POINT, LOOKUP_SAME };
act_steps_fn log_lookup, creation_lookup, context_lookup;
act_steps_fn poll_lookup; /* kept_from, seq */
bool log_looked_up(struct convo *convo, struct convo_op *op, const struct sql_unit *unit);
/* Answers the failure of a lookup. False: it did not fail. */
bool lookup_failed(struct act *act, const struct sql_unit *unit);

enum page_step { PAGE_LOG, PAGE_BOUNDS };
enum page_bound { BOUND_KEPT_FROM, BOUND_JOIN_SEQ, BOUND_SEQ };
/* The next rows after `seq` that an account may see, and the log's bounds. */
struct sql_unit *log_page_unit(const struct convo *convo, struct span did, uint64_t seq);
struct delivery_event log_page_event(
    const struct convo *convo, const struct sql_unit *unit, uint32_t row);

/* ---- commit_fairness.c: two losses in a row earn a turn ------------------------------------- */

/* Must this account's commit for the current epoch wait? */
bool commit_fairness_is_anothers(const struct convo *convo, struct span did);
/* How long another account's turn still lasts; 0: no other account has one. */
uint64_t commit_fairness_wait_ms(const struct convo *convo, struct span did);
void commit_fairness_lost(struct convo *convo, struct tr_context *ctx, struct span did);
void commit_fairness_won(struct convo *convo, struct tr_context *ctx, struct span did);
/* Handles the timer. True: a turn ended unused, so plan the waiting acts. */
bool commit_fairness_expired(struct convo *convo, struct tr_context *ctx);
void commit_fairness_end(struct convo *convo);

/* ---- act_recovery.c ------------------------------------------------------------------------- */

/* Takes over a stored commit as the newest one. */
void recovery_committed(struct convo *convo, const struct convo_op *op);
/* Could a revocation of the newest commit take this member out? */
bool recovery_may_undo(const struct convo *convo, const struct member *member);
/* Refuses committers in quarantine, and bytes that were revoked. */
enum convo_plan recovery_may_commit(
    const struct convo *convo, struct commit_act *commit, const struct member *caller);
/* The row of the log, and the event, that tell of a revocation or reset. */
struct delivery_event recovery_log_entry(const struct convo_op *op);

/* All names of one group: as given, in hex, and decoded from hex. A name that is not hex repeats
 * the first. */
enum { RESET_NAMES = 3 };
struct reset_names {
    struct span list[RESET_NAMES];
    char hex[2 * ACT_CONVO_SIZE_MAX], id[ACT_CONVO_SIZE_MAX];
};
void reset_names_of(struct span name, struct reset_names *names);

/* ---- convo_stream.c: subscribers ------------------------------------------------------------ */

/* Tells all subscribers of an event. */
void convo_stream_tell(struct convo *convo, struct tr_context *ctx, struct delivery_event event);
void convo_stream_tell_role(
    struct convo *convo, struct tr_context *ctx, const struct member *member);
void convo_stream_tell_read(
    struct convo *convo, struct tr_context *ctx, struct span did, uint64_t read_seq);
/* Tells which members a commit added and removed. */
void convo_stream_tell_members(
    struct convo *convo, struct tr_context *ctx, const struct convo_op *op, bool is_leave);
/* Ends the live streams of removed members. */
void convo_stream_end_removed(struct convo *convo, const struct span *dids, uint32_t count);
/* A page is back. It poisons the conversation if the log is ahead of this actor. */
void convo_stream_caught_up(
    struct convo *convo, struct tr_context *ctx, uint32_t number, const struct sql_unit *unit);
/* The conversation was read again: subscribers read what others stored meanwhile. */
void convo_stream_reloaded(struct convo *convo, struct tr_context *ctx);
/* Tells the differences between the roster and policy before and after a reload. */
void convo_stream_changed(struct convo *convo, struct tr_context *ctx, const struct convo *before);
/* Counts the other members with an open stream, up to CONVO_OTHERS_MAX. */
enum { CONVO_OTHERS_MAX = 100 };
uint32_t convo_stream_count_others(const struct convo *convo, struct span did);
/* A client disconnected. */
void convo_stream_gone(struct convo *convo, uint64_t stream_number);
/* Frees subscribers whose streams have ended. */
void convo_stream_sweep(struct convo *convo, struct tr_context *ctx);
/* Ends all streams; clients resume with their cursor. `ctx` NULL: the actor ends. Else the database
 * does not answer. */
void convo_stream_end(struct convo *convo, struct tr_context *ctx);

/* ---- convo_slot.c: the actor's own state ---------------------------------------------------- */

/* An idle conversation is one packed block; it becomes a struct convo when an act needs it. */
struct convo_slot {
    struct delivery *delivery;
    void *self; /* struct convo (is_awake), or packed bytes, of which the first is 0 */
};
/* For a registry: the key is the conversation's id, `data` the struct delivery. */
int convo_slot_make(void *data, const void *key, size_t key_size, void *memory);
/* Published for a caller without waking the conversation. */
struct convo_view {
    uint64_t epoch, seq;
    bool is_in;
    struct convo_kept kept;
};
/* False: it is awake, not loaded, or does not exist. */
bool convo_slot_view(
    const struct convo_slot *slot, struct span caller, struct convo_view *ret_view);
/* NULL if it sleeps. */
struct convo *convo_slot_awake(const struct convo_slot *slot);
/* Wakes it. NULL when out of memory. */
struct convo *convo_slot_wake(struct convo_slot *slot);
/* Packs it if nothing is under way. Without memory, or with many members, it stays awake. */
void convo_slot_rest(struct convo_slot *slot);
/* Drops its memory of the conversation, which is out of date. */
void convo_slot_forget(struct convo_slot *slot);
void convo_slot_fini(struct convo_slot *slot);
void convo_slot_show(const void *self, char *text, size_t size);

extern const struct tr_type convo_type;
extern const struct convo_driver convo_actor_driver;

#endif
