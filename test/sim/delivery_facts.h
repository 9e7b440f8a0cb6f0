/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_facts.h: the conversations of a run, from two sides: the truth, read from the database
 * after every COMMIT, and the answers that clients got. Every check begins with the
 * name of its invariant; sim_delivery.c lists them. */
#ifndef TEST_SIM_DELIVERY_FACTS_H
#define TEST_SIM_DELIVERY_FACTS_H

#include "json/json.h"
#include "linear.h"
#include "scenario.h"
#include "services/delivery/convo/convo.h"
#include "sql/backend.h"

enum {
    CONVOS = 4,
    WEDGED = 3, /* where members take commits back, and begin another group */
    USERS = 6,
    REQUESTS_MAX = 2000,
    SEQS_MAX = 2000,
    NOBODY = 99,
};

/* ---- requests and their outcomes ------------------------------------------------------------ */

enum shape { PLAIN, ADD, REMOVE, LEAVE, JOIN };

struct request {
    const struct act_type *kind;
    uint32_t convo;
    uint32_t user;
    uint32_t target;
    enum shape shape;
    bool has_bytes; /* of a commit: the conversation is, or will be, mls */
    bool has_app;
    bool is_given;
    uint32_t group;    /* inside: the request that made it; 0: the first one */
    uint64_t base;     /* the epoch inside */
    uint32_t op;       /* number of the first request with the same op and bytes (or group) */
    uint32_t reported; /* of &report_act_type: the request whose commit it is about */
    uint32_t token;
    bool is_token_used_twice;

    uint64_t begin, end; /* of the clock below; 0: not yet */
    uint64_t begin_ns;
    uint64_t shown_seq;       /* somebody had been told of it before this began */
    bool was_stored_at_begin; /* its op was */
    bool is_after_healing;

    bool is_answered; /* else nobody knows */
    unsigned status;
    const char *label;
    uint64_t result_epoch, result_seq;
    uint64_t seen_epoch; /* the newest commit a 409 quotes */
    bool has_seen;
};

struct row {
    uint32_t kind;              /* enum mls_content; 0: none */
    uint64_t base_epoch, epoch; /* as stored; of a message the epoch inside it */
    uint64_t current;           /* epoch of the conversation after it, */
    uint32_t group;             /* and its group, */
    int convo_kind;             /* and its kind */
    uint32_t sender;
    uint32_t op;        /* number of the request, or NOT_NAMED */
    bool is_revoked;    /* a commit that was taken back */
    uint64_t undoes;    /* of LOG_REVOKE: the commit that it takes back */
    unsigned members;   /* after it: a bit per user */
    uint64_t stored_ns; /* 0: it was there when everything was read anew */
};
#define NOT_NAMED UINT32_MAX

struct truth {
    bool is_there;
    int kind;
    uint64_t epoch, seq;
    unsigned admins;           /* a bit per user */
    struct row rows[SEQS_MAX]; /* by seq; the conversation begins with 1 */
    uint64_t shown_seq;        /* the newest that anybody was told of */
    uint64_t read_seq;         /* the newest that who polls has seen in the database */
};

/* The events of a conversation that any listener got. */
struct heard {
    uint64_t seq;
    uint32_t ops[SEQS_MAX]; /* by seq: number of the request and 1; 0: nobody's, or not heard */
};

static struct {
    struct scenario s;
    struct sql *sql;
    struct delivery delivery;
    uint64_t clock;
    struct truth truths[CONVOS];
    struct heard heard[CONVOS];
    bool is_reading_anew;
    int64_t log_rowid; /* the truth is known up to here */
    struct request requests[REQUESTS_MAX];
    uint32_t request_count;
    uint32_t open_count;                 /* asked, and not ended */
    uint64_t op_seqs[REQUESTS_MAX];      /* where each op is in the log; 0: nowhere */
    uint64_t revoked_seqs[REQUESTS_MAX]; /* where it was when it was taken back */
    bool is_confirmed[REQUESTS_MAX];     /* a member is in the epoch that its commit made */
    unsigned char hashes[REQUESTS_MAX][32];
} now;

static struct {
    uint64_t ended, unknown, stored, commits, messages, joins, conflicts, refused, repeated,
        replayed, unavailable, reads, views, cuts, kills, convo_kills, writer_kills, fatal, full,
        lost, lost_there, open_failed, not_sent, linear_ops, passivated, polls, polls_read, streams,
        heard, slow, ends_removed, listening, confirms, reports, revokes, resets, resets_lost,
        resets_heard, of_another_group, marks, reads_to, direct, edges, ahead, unread;
} seen;

static inline bool has_log(const struct act_type *kind)
{
    return kind == &commit_act_type || kind == &message_act_type || kind == &proposal_act_type;
}

/* Does it leave a row behind? */
static inline bool has_row(const struct act_type *kind)
{
    return has_log(kind) || kind == &reset_act_type;
}

static inline const char *convo_id(uint32_t convo)
{
    static const char *const ids[CONVOS] = { "convo-mls", "convo-numbered", "convo-undecided",
        "convo-wedged" };

    return ids[convo];
}

static inline uint32_t convo_of(struct span id)
{
    for (uint32_t i = 0; i < CONVOS; i++)
        if (span_is(id, convo_id(i)))
            return i;
    CHECK_MSG(false, "whole: nobody made the conversation %.*s", (int)id.size, id.at);
    return 0;
}

enum { GROUP_NAME_SIZE = 24 };

static inline struct span group_name(uint32_t convo, uint32_t group, char text[GROUP_NAME_SIZE])
{
    (void)snprintf(text, GROUP_NAME_SIZE, "group-%u", group);
    return span_of(group == 0 ? convo_id(convo) : text);
}

static inline const char *user_did(uint32_t user)
{
    static const char *const dids[USERS] = { "did:plc:anna", "did:plc:bela", "did:plc:cleo",
        "did:plc:dora", "did:plc:emil", "did:plc:finn" };

    return dids[user];
}

static inline uint32_t user_of(struct span did)
{
    for (uint32_t i = 0; i < USERS; i++)
        if (span_is(did, user_did(i)))
            return i;
    CHECK_MSG(false, "whole: nobody is called %.*s", (int)did.size, did.at);
    return 0;
}

/* ---- the truth ------------------------------------------------------------------------------ */

SQL_STATEMENT(all_convos, "SELECT id, kind, epoch, seq FROM convos");
SQL_STATEMENT(new_log, "SELECT rowid, convo, seq, kind, base_epoch, epoch, sender, op, sha256,"
                       " CASE WHEN kind IN (5, 7) THEN bytes END FROM log"
                       " WHERE rowid > $1 ORDER BY rowid");
SQL_STATEMENT(all_members, "SELECT convo, did, join_seq, leave_seq, is_admin FROM members");

SQL_STATEMENT(all_reports, "SELECT sha256, did FROM commit_reports");
SQL_STATEMENT(all_confirms, "SELECT convo, epoch FROM epoch_confirms");

static inline struct sql_unit *truth_unit(void)
{
    struct sql_unit *unit = sql_unit_create(0);

    sql_unit_step(unit, &all_convos, SQL_ROWS_ANY);
    sql_unit_step(unit, &new_log, SQL_ROWS_ANY);
    sql_unit_int(unit, now.log_rowid);
    sql_unit_step(unit, &all_members, SQL_ROWS_ANY);
    sql_unit_step(unit, &all_reports, SQL_ROWS_ANY);
    sql_unit_step(unit, &all_confirms, SQL_ROWS_ANY);
    return unit;
}

/* The op's last part is the number of its request. */
static inline uint32_t op_number(struct span op)
{
    uint32_t number = 0;

    for (size_t i = 0; i < op.size; i++)
        number = op.at[i] == '-' ? 0 : number * 10 + (uint32_t)(op.at[i] - '0');
    CHECK_MSG(number < now.request_count, "whole: nobody asked for %.*s", (int)op.size, op.at);
    return number;
}

/* Where an op is in the log, or was when it was taken back. */
static inline uint64_t stored_seq(uint32_t op)
{
    return now.op_seqs[op] != 0 ? now.op_seqs[op] : now.revoked_seqs[op];
}

static inline uint32_t op_of_hash(struct span hash)
{
    for (uint32_t i = 0; i < now.request_count; i++)
        if (now.requests[i].op == i && now.requests[i].kind == &commit_act_type &&
            now.requests[i].has_bytes && hash.size == 32 &&
            memcmp(now.hashes[i], hash.at, hash.size) == 0)
            return i;
    CHECK_MSG(false, "revoked: a commit that nobody made");
    return 0;
}

/* A commit was taken back: its op is free again, its epoch too. */
static inline void learn_revoke(uint32_t convo, uint64_t seq, struct span hash)
{
    struct truth *truth = &now.truths[convo];
    uint32_t op = op_of_hash(hash);
    uint64_t undoes = stored_seq(op);

    CHECK_MSG(undoes != 0 && undoes < seq && truth->rows[undoes].kind == MLS_COMMIT &&
                  truth->rows[undoes].epoch == truth->rows[seq - 1].current,
        "revoked: %s's %llu takes back what is not the newest commit", convo_id(convo),
        (unsigned long long)seq);
    CHECK_MSG(!now.is_confirmed[op],
        "revoked: %s's %llu takes back an epoch that a member had confirmed", convo_id(convo),
        (unsigned long long)seq);
    truth->rows[seq].undoes = undoes;
    truth->rows[seq].current = truth->rows[undoes].base_epoch;
    truth->rows[undoes].is_revoked = true;
    now.revoked_seqs[op] = undoes;
    now.op_seqs[op] = 0;
}

/* As it was before it was taken back, or became one of a former group. */
static inline void learn_commit(struct row *row, uint64_t seq, struct span hash)
{
    row->is_revoked = row->kind == LOG_REVOKED || (row->kind == LOG_FORMER && row->op == NOT_NAMED);
    row->kind = MLS_COMMIT;
    if (row->is_revoked) {
        row->op = op_of_hash(hash);
        now.revoked_seqs[row->op] = seq;
    }
    CHECK_MSG(row->op != NOT_NAMED, "whole: the commit %llu is nobody's", (unsigned long long)seq);
    row->current = row->epoch;
    row->convo_kind = now.requests[row->op].has_bytes ? CONVO_MLS : CONVO_NUMBERED;
}

/* By an admin: `admins` are those before this COMMIT. */
static inline void learn_reset(struct row *row, struct span name, unsigned admins)
{
    row->op = row->group = op_number(name);
    row->current = 0;
    row->convo_kind = CONVO_UNDECIDED;
    CHECK_MSG(now.requests[row->op].kind == &reset_act_type, "reset: nobody asked for %.*s",
        (int)name.size, name.at);
    CHECK_MSG(now.is_reading_anew || (admins & 1U << row->sender) != 0,
        "reset: %s is no admin, and has made %.*s", user_did(row->sender), (int)name.size, name.at);
}

static inline void learn_row(const struct sql_unit *unit, uint32_t i)
{
    uint32_t convo = convo_of(sql_row_bytes(unit, 1, i, 1));
    uint64_t seq = (uint64_t)sql_row_int(unit, 1, i, 2);
    struct row *row = &now.truths[convo].rows[seq];

    CHECK(seq > 1 && seq < SEQS_MAX);
    CHECK_MSG(row->kind == 0, "seqs: %s has %llu twice", convo_id(convo), (unsigned long long)seq);
    *row = (struct row){
        .kind = (uint32_t)sql_row_int(unit, 1, i, 3),
        .base_epoch = (uint64_t)sql_row_int(unit, 1, i, 4),
        .epoch = (uint64_t)sql_row_int(unit, 1, i, 5),
        .sender = user_of(sql_row_bytes(unit, 1, i, 6)),
        .op = sql_row_is_null(unit, 1, i, 7) ? NOT_NAMED : op_number(sql_row_bytes(unit, 1, i, 7)),
        .current = row[-1].current,
        .group = row[-1].group,
        .convo_kind = row[-1].convo_kind,
        .stored_ns = now.is_reading_anew ? 0 : tr_sim_now_ns(now.s.sim),
    };
    now.log_rowid = sql_row_int(unit, 1, i, 0);
    if (row->kind == MLS_COMMIT || row->kind == LOG_REVOKED || row->kind == LOG_FORMER)
        learn_commit(row, seq, sql_row_bytes(unit, 1, i, 8));
    else if (row->kind == LOG_REVOKE)
        learn_revoke(convo, seq, sql_row_bytes(unit, 1, i, 9));
    else if (row->kind == LOG_RESET)
        learn_reset(row, sql_row_bytes(unit, 1, i, 9), now.truths[convo].admins);
    if (row->op == NOT_NAMED || row->is_revoked)
        return;
    CHECK_MSG(now.op_seqs[row->op] == 0, "once: request %u is stored as %llu and as %llu", row->op,
        (unsigned long long)now.op_seqs[row->op], (unsigned long long)seq);
    now.op_seqs[row->op] = seq;
}

/* More than half of those who were in before and after it, without who made it, and of each the
 * word counts once. Nobody is in the epoch. */
static inline void check_quorum(const struct sql_unit *unit, uint32_t convo, uint64_t seq)
{
    const struct truth *truth = &now.truths[convo];
    const struct row *row = &truth->rows[seq], *commit = &truth->rows[row->undoes];
    unsigned electors = commit->members & commit[-1].members & ~(1U << commit->sender);
    unsigned reporters = 0;

    for (uint32_t i = 0; i < sql_unit_rows(unit, 3); i++)
        if (memcmp(sql_row_bytes(unit, 3, i, 0).at, now.hashes[commit->op], 32) == 0)
            reporters |= 1U << user_of(sql_row_bytes(unit, 3, i, 1));
    CHECK_MSG(2 * __builtin_popcount(electors & reporters) > __builtin_popcount(electors),
        "revoked: %s's %llu is of %x, who are no quorum of %x", convo_id(convo),
        (unsigned long long)seq, electors & reporters, electors);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 4) && truth->seq == seq; i++)
        CHECK_MSG(convo_of(sql_row_bytes(unit, 4, i, 0)) != convo ||
                      (uint64_t)sql_row_int(unit, 4, i, 1) < commit->epoch,
            "revoked: %s's %llu takes back an epoch that was confirmed", convo_id(convo),
            (unsigned long long)seq);
    seen.revokes++;
}

static inline void learn_members(const struct sql_unit *unit, const uint64_t from[CONVOS])
{
    for (uint32_t i = 0; i < CONVOS; i++)
        now.truths[i].admins = 0;
    for (uint32_t i = 0; i < sql_unit_rows(unit, 2); i++) {
        uint32_t convo = convo_of(sql_row_bytes(unit, 2, i, 0));
        unsigned bit = 1U << user_of(sql_row_bytes(unit, 2, i, 1));
        uint64_t join = (uint64_t)sql_row_int(unit, 2, i, 2);
        uint64_t leave =
            sql_row_is_null(unit, 2, i, 3) ? UINT64_MAX : (uint64_t)sql_row_int(unit, 2, i, 3);
        struct truth *truth = &now.truths[convo];

        if (leave == UINT64_MAX && sql_row_int(unit, 2, i, 4) != 0)
            truth->admins |= bit;
        for (uint64_t seq = join > from[convo] ? join : from[convo] + 1;
             seq <= truth->seq && seq < leave; seq++)
            truth->rows[seq].members |= bit;
    }
}

/* A unit made by truth_unit has come back. */
static inline void truth_learn(const struct sql_unit *unit)
{
    uint64_t from[CONVOS];

    for (uint32_t i = 0; i < CONVOS; i++)
        from[i] = now.truths[i].seq;
    for (uint32_t i = 0; i < sql_unit_rows(unit, 1); i++)
        learn_row(unit, i);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        uint32_t convo = convo_of(sql_row_bytes(unit, 0, i, 0));
        struct truth *truth = &now.truths[convo];

        truth->is_there = true;
        truth->kind = (int)sql_row_int(unit, 0, i, 1);
        truth->epoch = (uint64_t)sql_row_int(unit, 0, i, 2);
        CHECK_MSG((uint64_t)sql_row_int(unit, 0, i, 3) >= truth->seq, "seqs: %s went back",
            convo_id(convo));
        truth->seq = (uint64_t)sql_row_int(unit, 0, i, 3);
        CHECK(truth->seq < SEQS_MAX);
    }
    learn_members(unit, from);
    for (uint32_t i = 0; i < CONVOS; i++)
        CHECK_MSG(!now.truths[i].is_there || now.truths[i].admins != 0,
            "admins: %s has none at %llu", convo_id(i), (unsigned long long)now.truths[i].seq);
    for (uint64_t seq = from[WEDGED] + 1; seq <= now.truths[WEDGED].seq; seq++)
        if (now.truths[WEDGED].rows[seq].kind == LOG_REVOKE && !now.is_reading_anew)
            check_quorum(unit, WEDGED, seq);
}

/* ---- invariants of the database ------------------------------------------------------------- */

/* A commit's changes outside the log are stored with it. */
static inline void check_commit_row(uint32_t convo, uint64_t seq)
{
    const struct row *row = &now.truths[convo].rows[seq], *before = row - 1;
    const struct request *request;
    unsigned bit;

    request = &now.requests[row->op];
    CHECK_MSG(!request->has_bytes || request->base == row->base_epoch,
        "epochs: a commit for %llu became the one of %llu", (unsigned long long)request->base,
        (unsigned long long)row->base_epoch);
    if (row->is_revoked) /* the removed member counts as never removed */
        return;
    bit = 1U << request->target;
    CHECK_MSG(request->shape != ADD || ((row->members & bit) != 0 && (before->members & bit) == 0),
        "whole: %s is at %llu, and whom it adds is not (or was)", convo_id(convo),
        (unsigned long long)seq);
    CHECK_MSG(request->shape != JOIN || (row->members & 1U << request->user) != 0,
        "whole: %s is at %llu, and who joins is not in", convo_id(convo), (unsigned long long)seq);
    CHECK_MSG((request->shape != REMOVE && request->shape != LEAVE) ||
                  ((row->members & bit) == 0 && (before->members & bit) != 0),
        "whole: %s is at %llu, and whom it removes is still in (or was not)", convo_id(convo),
        (unsigned long long)seq);
    CHECK_MSG(!request->has_app || (row[1].kind == MLS_APPLICATION && row[1].op == NOT_NAMED),
        "whole: the message that goes with %s's %llu is not there", convo_id(convo),
        (unsigned long long)seq);
}

/* A revocation undoes its commit, and no member was heard in the commit's epoch. */
static inline void check_revoke(uint32_t convo, uint64_t seq)
{
    const struct truth *truth = &now.truths[convo];
    const struct row *row = &truth->rows[seq], *commit = &truth->rows[row->undoes];
    unsigned before = commit[-1].members;

    if (now.requests[commit->op].shape == LEAVE) /* it wanted to, and has */
        before &= ~(1U << commit->sender);
    CHECK_MSG(row->members == before,
        "revoked: %s's %llu was taken back by %llu, and %x are in instead of %x", convo_id(convo),
        (unsigned long long)row->undoes, (unsigned long long)seq, row->members, before);
    /* A member who joined by another revoked commit of that epoch was not in it. */
    for (uint64_t at = row->undoes + 1; at < seq; at++)
        CHECK_MSG(
            truth->rows[at].kind == LOG_REVOKE || truth->rows[at].epoch < commit->epoch ||
                (truth->rows[at].is_revoked && now.requests[truth->rows[at].op].shape == JOIN),
            "revoked: %s's %llu was taken back, and a member spoke in its epoch", convo_id(convo),
            (unsigned long long)row->undoes);
}

/* The numbers go on, and so do the members; the epochs begin again. */
static inline void check_reset_row(uint32_t convo, uint64_t seq)
{
    const struct row *row = &now.truths[convo].rows[seq];

    CHECK_MSG(row->base_epoch == row[-1].current && row->epoch == 0,
        "reset: %s's %llu goes from %llu to %llu, and the epoch was %llu", convo_id(convo),
        (unsigned long long)seq, (unsigned long long)row->base_epoch,
        (unsigned long long)row->epoch, (unsigned long long)row[-1].current);
    CHECK_MSG(row->members == row[-1].members, "reset: %s's %llu changes who is in",
        convo_id(convo), (unsigned long long)seq);
}

/* The server accepts messages of a group only while the conversation has that group. It does not
 * read the messages of a numbered conversation. */
static inline void check_group(uint32_t convo, uint64_t seq)
{
    const struct row *row = &now.truths[convo].rows[seq];
    const struct request *request = &now.requests[row->op];
    bool is_looked_into =
        row->kind == MLS_COMMIT ? request->has_bytes : row[-1].convo_kind != CONVO_NUMBERED;

    CHECK_MSG(!is_looked_into || request->group == row[-1].group,
        "reset: %s's %llu is of group %u, and the group was %u", convo_id(convo),
        (unsigned long long)seq, request->group, row[-1].group);
}

static inline bool has_right_epoch(const struct row *row)
{
    uint64_t epoch = row[-1].current;

    if (row->kind == MLS_COMMIT)
        return row->base_epoch == epoch && row->epoch == epoch + 1;
    if (row->kind == LOG_REVOKE || row->kind == LOG_RESET) /* see there */
        return true;
    return row->base_epoch == row->epoch &&
           (row->epoch <= epoch || (row[-1].convo_kind == CONVO_NUMBERED && row->group != 0));
}

static inline void check_truth(uint32_t convo)
{
    const struct truth *truth = &now.truths[convo];

    for (uint64_t seq = 2; seq <= truth->seq; seq++) {
        const struct row *row = &truth->rows[seq];

        CHECK_MSG(row->kind != 0, "seqs: %s is at %llu and has no %llu", convo_id(convo),
            (unsigned long long)truth->seq, (unsigned long long)seq);
        CHECK_MSG(has_right_epoch(row),
            "epochs: %s's %llu goes from %llu to %llu, and the epoch is %llu", convo_id(convo),
            (unsigned long long)seq, (unsigned long long)row->base_epoch,
            (unsigned long long)row->epoch, (unsigned long long)row[-1].current);
        CHECK_MSG((row[-1].members & 1U << row->sender) != 0 ||
                      (row->op != NOT_NAMED && now.requests[row->op].shape == JOIN) ||
                      (row->op == NOT_NAMED && row[-1].kind == MLS_COMMIT),
            "members: %s's %llu is of somebody who was not in", convo_id(convo),
            (unsigned long long)seq);
        if (row->op != NOT_NAMED && row->kind != LOG_RESET)
            check_group(convo, seq);
        if (row->kind == MLS_COMMIT)
            check_commit_row(convo, seq);
        else if (row->kind == LOG_REVOKE)
            check_revoke(convo, seq);
        else if (row->kind == LOG_RESET)
            check_reset_row(convo, seq);
        else
            CHECK_MSG(row->members == row[-1].members, "whole: %s's %llu changes who is in",
                convo_id(convo), (unsigned long long)seq);
    }
    CHECK_MSG(truth->rows[truth->seq + 1].kind == 0, "seqs: %s has more than %llu", convo_id(convo),
        (unsigned long long)truth->seq);
    CHECK_MSG(truth->rows[truth->seq].current == truth->epoch &&
                  truth->rows[truth->seq].convo_kind == truth->kind,
        "epochs: %s is at %llu, its log at %llu", convo_id(convo), (unsigned long long)truth->epoch,
        (unsigned long long)truth->rows[truth->seq].current);
}

/* Against what clients were told. */
static inline void check_told(uint32_t i)
{
    const struct request *request = &now.requests[i];
    const struct truth *truth = &now.truths[request->convo];
    uint64_t seq = stored_seq(request->op);

    if (!request->is_answered || request->status != 200)
        return;
    CHECK_MSG(truth->is_there, "durable: %s was made and is not there", convo_id(request->convo));
    if (!has_row(request->kind))
        return;
    CHECK_MSG(
        seq != 0 && seq == request->result_seq && truth->rows[seq].epoch == request->result_epoch,
        "durable: request %u was told %llu of epoch %llu, and is %llu of %llu", i,
        (unsigned long long)request->result_seq, (unsigned long long)request->result_epoch,
        (unsigned long long)seq, (unsigned long long)truth->rows[seq].epoch);
}

SQL_STATEMENT(all_tokens, "SELECT issuer, jti FROM auth_jti");

/* A token is used up exactly by what was stored with it. */
static inline void check_tokens(const struct sql_unit *unit)
{
    static bool is_used[REQUESTS_MAX];

    memset(is_used, 0, sizeof is_used);
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        struct span jti = sql_row_bytes(unit, 0, i, 1);

        is_used[op_number(jti)] = true;
    }
    for (uint32_t i = 0; i < now.request_count; i++) {
        const struct request *request = &now.requests[i];
        bool has_token = stored_seq(i) == 0; /* the one of any request with this op */

        if (!has_row(request->kind))
            continue;
        for (uint32_t k = i; k < now.request_count && !has_token; k++)
            has_token = now.requests[k].op == i && is_used[now.requests[k].token];
        CHECK_MSG(has_token, "whole: request %u is stored, its token is not", i);
        CHECK_MSG(request->is_token_used_twice || !is_used[request->token] ||
                      stored_seq(request->op) != 0,
            "whole: the token of request %u is used up, and nothing is stored", i);
    }
}

static inline void check_all_told(void)
{
    for (uint32_t i = 0; i < CONVOS; i++)
        check_truth(i);
    for (uint32_t i = 0; i < now.request_count; i++)
        check_told(i);
}

/* ---- invariants of answers ------------------------------------------------------------------ */

static inline bool is_in(const struct truth *truth, uint64_t seq, uint32_t user)
{
    return (truth->rows[seq].members & 1U << user) != 0;
}

enum moment {
    USER_IN,
    USER_OUT,
    TARGET_IN,
    TARGET_OUT,
    ALONE,
    AS_READ,
    OTHER_GROUP,
    IS_MLS,
    IS_NUMBERED
};

/* Was this so at some moment, from what had been shown before it began until now? */
static inline bool was_so(const struct request *request, enum moment moment)
{
    const struct truth *truth = &now.truths[request->convo];
    bool so = false;

    for (uint64_t seq = request->shown_seq > 0 ? request->shown_seq : 1; seq <= truth->seq && !so;
         seq++) {
        const struct row *row = &truth->rows[seq];
        bool is_user_in = is_in(truth, seq, request->user);

        switch (moment) {
        case USER_IN:
        case USER_OUT:
            so = is_user_in == (moment == USER_IN);
            break;
        case TARGET_IN:
        case TARGET_OUT:
            so = is_in(truth, seq, request->target) == (moment == TARGET_IN);
            break;
        case ALONE:
            so = row->members == 1U << request->user;
            break;
        case AS_READ:
            so = is_user_in && seq == request->result_seq && row->current == request->result_epoch;
            break;
        case OTHER_GROUP:
            so = row->group != request->group;
            break;
        case IS_MLS:
        case IS_NUMBERED:
            so = row->convo_kind == (moment == IS_MLS ? CONVO_MLS : CONVO_NUMBERED);
            break;
        }
    }
    return so;
}

struct view {
    unsigned members;
    uint64_t epoch;
    uint32_t group;
};

static inline bool was_view(const struct request *request, const struct view *view)
{
    const struct truth *truth = &now.truths[request->convo];

    for (uint64_t seq = request->shown_seq > 0 ? request->shown_seq : 1; seq <= truth->seq; seq++)
        if (truth->rows[seq].members == view->members && truth->rows[seq].current == view->epoch &&
            truth->rows[seq].group == view->group)
            return true;
    return false;
}

static inline void show(struct truth *truth, uint64_t seq)
{
    if (seq > truth->shown_seq)
        truth->shown_seq = seq;
}

static inline void check_stored(uint32_t i)
{
    struct request *request = &now.requests[i];
    struct truth *truth = &now.truths[request->convo];
    uint64_t seq = stored_seq(request->op);

    CHECK_MSG(seq != 0, "acked: request %u was told that it is stored, and it is not", i);
    check_told(i);
    seen.stored += request->op == i;
    seen.repeated += request->op != i;
    seen.commits += request->kind == &commit_act_type;
    seen.joins += request->shape == JOIN;
    seen.messages += request->kind == &message_act_type;
    show(truth, seq + request->has_app);
}

static inline void check_read(uint32_t i)
{
    struct request *request = &now.requests[i];
    struct truth *truth = &now.truths[request->convo];

    CHECK_MSG(request->result_seq <= truth->seq &&
                  (request->result_epoch <= truth->epoch || request->convo == WEDGED),
        "current: request %u was told of %llu in epoch %llu, and stored is %llu in %llu", i,
        (unsigned long long)request->result_seq, (unsigned long long)request->result_epoch,
        (unsigned long long)truth->seq, (unsigned long long)truth->epoch);
    CHECK_MSG(was_so(request, AS_READ),
        "current: request %u was told of %llu in epoch %llu; that was never so for %s after %llu",
        i, (unsigned long long)request->result_seq, (unsigned long long)request->result_epoch,
        user_did(request->user), (unsigned long long)request->shown_seq);
    seen.reads++;
    show(truth, request->result_seq);
}

/* Either no message came after the cursor, or the poll reads the database as it is at this moment. A
 * later poll, by either way, must not see less. */
static inline void check_poll(uint32_t i, struct act *act)
{
    struct request *request = &now.requests[i];
    struct truth *truth = &now.truths[request->convo];

    if (act_poll(act)->must_read) {
        request->status = 303;
        truth->read_seq = truth->seq;
        seen.polls_read++;
        return;
    }
    CHECK_MSG(request->result_seq == request->base,
        "current: request %u polled from %llu, and was told that nothing is behind %llu", i,
        (unsigned long long)request->base, (unsigned long long)request->result_seq);
    CHECK_MSG(act_poll(act)->kept_from == 2,
        "current: request %u was told that the log begins at %llu", i,
        (unsigned long long)act_poll(act)->kept_from);
    check_read(i);
    seen.polls++;
}

static inline struct span answer_of(struct act *act)
{
    return (struct span){ act->answer.bytes, act->answer.size };
}

static inline int64_t int_of(const struct json *object, const char *name)
{
    int64_t value = -1;

    (void)json_int(json_get(object, name), &value);
    return value;
}

/* The view shows who was in at one moment, and the epoch and the group of that moment. */
static inline void check_view(uint32_t i, struct act *act)
{
    struct request *request = &now.requests[i];
    struct json_doc doc = { 0 };
    struct view view = { 0 };
    struct span group;

    CHECK_EQ_INT(json_parse_copy(&doc, answer_of(act), 0), 0);
    for (struct json_iter it = json_iterate(json_get(json_root(&doc), "members"));
         json_next(&it);) {
        struct span did;

        CHECK(json_string(json_get(it.value, "did"), &did));
        view.members |= 1U << user_of(did);
    }
    view.epoch = (uint64_t)int_of(json_root(&doc), "epoch");
    CHECK(json_string(json_get(json_root(&doc), "groupId"), &group));
    if (!span_is(group, convo_id(request->convo)))
        view.group = op_number(group);
    json_doc_free(&doc);
    CHECK_MSG(was_view(request, &view),
        "members: request %u was told of members %x in epoch %llu of group %u; that was never so "
        "after %llu",
        i, view.members, (unsigned long long)view.epoch, view.group,
        (unsigned long long)request->shown_seq);
    request->result_epoch = view.epoch;
    seen.views++;
}

/* The commit made at an epoch, by its number; 0: there is none. */
static inline uint64_t commit_at(const struct truth *truth, uint64_t base)
{
    for (uint64_t seq = 2; seq <= truth->seq; seq++)
        if (truth->rows[seq].kind == MLS_COMMIT && truth->rows[seq].base_epoch == base)
            return seq;
    return 0;
}

/* In runs that revoke commits: a quoted commit was stored once, in the loser's group, and the epoch
 * was current at some moment during the request. A later answer never shows an earlier moment. */
static inline void check_wedged_conflict(uint32_t i, struct act *act)
{
    const struct request *request = &now.requests[i];
    struct truth *truth = &now.truths[WEDGED];
    struct json_doc doc = { 0 };
    uint64_t current, last = 0, moment = request->shown_seq;

    CHECK_EQ_INT(json_parse_copy(&doc, answer_of(act), 0), 0);
    current = (uint64_t)int_of(json_root(&doc), "currentEpoch");
    while (moment <= truth->seq && truth->rows[moment].current != current)
        moment++;
    CHECK_MSG(moment <= truth->seq,
        "current: request %u was told of epoch %llu, which never was after %llu", i,
        (unsigned long long)current, (unsigned long long)request->shown_seq);
    show(truth, moment);
    for (struct json_iter it = json_iterate(json_get(json_root(&doc), "commits"));
         json_next(&it);) {
        uint64_t seq = (uint64_t)int_of(it.value, "seq");

        CHECK_MSG(seq > last && seq <= truth->seq && truth->rows[seq].kind == MLS_COMMIT &&
                      truth->rows[seq].epoch == (uint64_t)int_of(it.value, "epoch"),
            "quoted: request %u was told of a commit %llu that is not stored", i,
            (unsigned long long)seq);
        CHECK_MSG(truth->rows[seq].group == request->group,
            "quoted: request %u of group %u was told of commit %llu of group %u", i, request->group,
            (unsigned long long)seq, truth->rows[seq].group);
        last = seq;
    }
    now.requests[i].seen_epoch = current;
    now.requests[i].has_seen = true;
    json_doc_free(&doc);
    seen.conflicts++;
}

/* Only what is stored is quoted: from the loser's epoch to the one it is told of, as far as it was
 * in, and nothing of that is left out. */
static inline bool is_join(struct act *act)
{
    return act->type == &commit_act_type && act_commit(act)->kind == COMMIT_JOIN;
}

static inline void check_conflict(uint32_t i, struct act *act)
{
    struct request *request = &now.requests[i];
    struct truth *truth = &now.truths[request->convo];
    struct json_doc doc = { 0 };
    uint64_t epoch = request->base, current, seq;
    const struct json *commits;
    struct json_iter it;

    CHECK_EQ_INT(json_parse_copy(&doc, answer_of(act), 0), 0);
    commits = json_get(json_root(&doc), "commits");
    current = (uint64_t)int_of(json_root(&doc), "currentEpoch");
    CHECK_MSG(
        current <= truth->epoch, "current: request %u was told of an epoch that is not stored", i);
    CHECK_MSG(commits != NULL || is_join(act), /* an outsider sees no commits */
        "quoted: request %u was told of no commits", i);
    CHECK_MSG(current > epoch || is_join(act),
        "conflict: request %u of epoch %llu was refused (%s), and the epoch is %llu", i,
        (unsigned long long)epoch, request->label, (unsigned long long)current);
    it = json_iterate(commits);
    for (; commits != NULL && epoch < current && json_count(commits) < 100; epoch++) {
        seq = commit_at(truth, epoch);
        if (!is_in(truth, seq - 1, request->user))
            continue;
        CHECK_MSG(json_next(&it) && seq == (uint64_t)int_of(it.value, "seq") &&
                      epoch == (uint64_t)int_of(it.value, "baseEpoch") &&
                      epoch + 1 == (uint64_t)int_of(it.value, "epoch"),
            "quoted: request %u of epoch %llu was not told of commit %llu at epoch %llu", i,
            (unsigned long long)request->base, (unsigned long long)seq, (unsigned long long)epoch);
        show(truth, seq);
    }
    CHECK_MSG(json_count(commits) >= 100 || !json_next(&it),
        "quoted: request %u was told of something that is not stored, or not for it", i);
    request->seen_epoch = current;
    request->has_seen = commits != NULL;
    json_doc_free(&doc);
    seen.conflicts++;
}

/* The reason of a refusal was true at some moment, and the request was not stored (unless as another
 * client's). */
static inline void check_refused(uint32_t i, struct act *act)
{
    struct request *request = &now.requests[i];
    const struct truth *truth = &now.truths[request->convo];
    const char *label = request->label;
    bool is_so = true;

    if (has_log(request->kind) && request->convo == WEDGED &&
        (strcmp(label, "EpochConflict") == 0 || strcmp(label, "EpochMismatch") == 0))
        check_wedged_conflict(i, act);
    else if (has_log(request->kind) &&
             (strcmp(label, "EpochConflict") == 0 || strcmp(label, "EpochMismatch") == 0))
        check_conflict(i, act);
    else if (strcmp(label, "NotMember") == 0)
        is_so = was_so(request, USER_OUT);
    else if (strcmp(label, "AlreadyMember") == 0)
        is_so = was_so(request, TARGET_IN);
    else if (strcmp(label, "TargetNotMember") == 0)
        is_so = was_so(request, TARGET_OUT);
    else if (strcmp(label, "LastMember") == 0)
        is_so = was_so(request, ALONE);
    else if (strcmp(label, "CommitRequired") == 0)
        is_so = was_so(request, IS_MLS);
    else if (strcmp(label, "NumberedConversation") == 0)
        is_so = was_so(request, IS_NUMBERED);
    else if (strcmp(label, "InvalidCommit") == 0 || strcmp(label, "InvalidMessage") == 0)
        is_so = was_so(request, OTHER_GROUP);
    else if (strcmp(label, "GroupIdInUse") == 0)
        is_so = now.op_seqs[request->op] != 0;
    else if (strcmp(label, "ConvoExists") == 0)
        is_so = truth->is_there;
    else if (strcmp(label, "ConvoNotFound") == 0)
        is_so = request->shown_seq == 0;
    else if (strcmp(label, "TokenReplayed") == 0)
        is_so = request->is_token_used_twice;
    CHECK_MSG(is_so, "refused: request %u was told %s, and that was never so", i, label);
    seen.refused++;
    seen.of_another_group += strncmp(label, "Invalid", 7) == 0;
    seen.resets_lost += strcmp(label, "GroupIdInUse") == 0;
    seen.replayed += strcmp(label, "TokenReplayed") == 0;
}

/* The same bytes again get the first answer, whatever has become of the conversation since. */
static inline void check_repeated(uint32_t i)
{
    const struct request *request = &now.requests[i];
    bool is_alone = true;

    if (!has_row(request->kind) || request->status < 400 || request->status >= 500 ||
        request->status == 401)
        return;
    for (uint32_t k = request->op; k < now.request_count && is_alone; k++)
        is_alone = k == i || now.requests[k].op != request->op;
    CHECK_MSG(!request->was_stored_at_begin || now.revoked_seqs[request->op] != 0,
        "repeated: request %u was stored as request %u, and asked again it was told %s", i,
        request->op, request->label);
    CHECK_MSG(!is_alone || now.op_seqs[request->op] == 0,
        "refused: request %u was told %s, and it is stored", i, request->label);
}

/* Of all who ask for a group, one has made it. */
static inline void check_reset(uint32_t i)
{
    const struct request *request = &now.requests[i];
    struct truth *truth = &now.truths[request->convo];
    uint64_t seq = stored_seq(request->op);

    CHECK_MSG(seq != 0, "acked: request %u was told that it is stored, and it is not", i);
    check_told(i);
    CHECK_MSG(truth->rows[seq].sender == request->user,
        "reset: request %u was told that it made the group which %s has made", i,
        user_did(truth->rows[seq].sender));
    for (uint32_t k = request->op; k < now.request_count; k++)
        CHECK_MSG(k == i || now.requests[k].op != request->op || now.requests[k].status != 200,
            "reset: requests %u and %u were both told that they made group %u", i, k, request->op);
    show(truth, seq);
    seen.resets++;
}

/* Somebody is in the epoch now: nobody takes its commit back any more. */
static inline void check_confirmed(uint32_t i)
{
    const struct request *request = &now.requests[i];
    const struct truth *truth = &now.truths[request->convo];
    uint64_t seq = truth->seq;

    if (truth->rows[seq].group != truth->rows[request->shown_seq].group)
        return; /* of one group or the other: nobody knows */
    while (seq > 1 && (truth->rows[seq].kind != MLS_COMMIT || truth->rows[seq].is_revoked ||
                          truth->rows[seq].epoch != request->base))
        seq--;
    CHECK_MSG(seq > 1 || request->base == 0,
        "revoked: request %u was told that epoch %llu is confirmed, and it is not there", i,
        (unsigned long long)request->base);
    if (seq > 1)
        now.is_confirmed[truth->rows[seq].op] = true;
    seen.confirms++;
}

static inline void check_reported(uint32_t i, struct act *act)
{
    bool is_revoked = false;
    struct json_doc doc = { 0 };

    CHECK_EQ_INT(json_parse_copy(&doc, answer_of(act), 0), 0);
    CHECK(json_bool(json_get(json_root(&doc), "revoked"), &is_revoked));
    json_doc_free(&doc);
    CHECK_MSG(!is_revoked || now.revoked_seqs[now.requests[i].reported] != 0,
        "revoked: request %u was told so, and the commit is there", i);
    seen.reports++;
}

/* The answer to a request has come. */
static inline void check_answer(uint32_t i, struct act *act)
{
    struct request *request = &now.requests[i];

    CHECK_MSG(act->status != 0, "answered: request %u has no status", i);
    request->is_answered = act->status != 503;
    request->status = act->status;
    request->label = act->label == NULL ? "" : act->label;
    request->result_epoch = act->result_epoch;
    request->result_seq = act->result_seq;
    seen.unavailable += act->status == 503;
    if (act->status == 503)
        CHECK_MSG(!request->is_after_healing, "healed: request %u was told %s: %s", i,
            request->label, act->text);
    else if (act->status >= 400)
        check_refused(i, act);
    else if (has_log(request->kind))
        check_stored(i);
    else if (request->kind == &epoch_act_type)
        check_read(i);
    else if (request->kind == &poll_act_type)
        check_poll(i, act);
    else if (request->kind == &member_act_type)
        CHECK_MSG(was_so(request, USER_IN), "members: request %u was told that it is one", i);
    else if (request->kind == &view_act_type)
        check_view(i, act);
    else if (request->kind == &confirm_act_type)
        check_confirmed(i);
    else if (request->kind == &report_act_type)
        check_reported(i, act);
    else if (request->kind == &reset_act_type)
        check_reset(i);
    else if (request->kind == &creation_act_type)
        CHECK_MSG(now.truths[request->convo].is_there, "acked: %s was made and is not there",
            convo_id(request->convo));
    check_repeated(i);
}

/* ---- histories ------------------------------------------------------------------------------ */

static inline void add_op(struct linear_history *epochs, struct linear_history *seqs,
    uint32_t first, const struct truth *truth)
{
    const struct request *request = &now.requests[first];
    struct linear_op op = { .kind = LINEAR_MOVE,
        .number = LINEAR_ANY,
        .begin_ns = UINT64_MAX,
        .end_ns = LINEAR_NEVER,
        .id = first };
    uint64_t seq = LINEAR_ANY, epoch = LINEAR_ANY;
    bool is_open = false;

    for (uint32_t i = first; i < now.request_count; i++) {
        const struct request *again = &now.requests[i];

        if (again->op != first)
            continue;
        op.begin_ns = again->begin < op.begin_ns ? again->begin : op.begin_ns;
        is_open = is_open || !again->is_answered;
        if (!again->is_answered || again->status != 200)
            continue;
        seq = again->result_seq;
        epoch = again->result_epoch;
        if (again->end < op.end_ns)
            op.end_ns = again->end;
    }
    if (seq == LINEAR_ANY && now.revoked_seqs[first] != 0) /* asked again, it is told just that */
        seq = now.revoked_seqs[first];
    if (seq == LINEAR_ANY && !is_open)
        return;
    /* One that may have happened leads from its own epoch on, in a conversation of its kind. */
    if (seq == LINEAR_ANY && request->kind == &commit_act_type && request->has_bytes)
        epoch = request->base + 1;
    if (seq == LINEAR_ANY && request->kind == &commit_act_type && request->convo != WEDGED &&
        truth->kind != (request->has_bytes ? CONVO_MLS : CONVO_NUMBERED))
        return;
    if (request->kind == &commit_act_type) {
        op.number = epoch;
        linear_add(epochs, op);
    } else if (seq != LINEAR_ANY) {
        linear_add(epochs, (struct linear_op){ LINEAR_SEEN, epoch, op.begin_ns, op.end_ns, first });
    }
    op.number = seq;
    linear_add(seqs, op);
    if (!request->has_app)
        return;
    op.number = seq == LINEAR_ANY ? LINEAR_ANY : seq + 1;
    linear_add(seqs, op);
}

static inline void add_sights(
    struct linear_history *epochs, struct linear_history *seqs, uint32_t i)
{
    const struct request *request = &now.requests[i];
    struct linear_op op = { LINEAR_READ, request->result_epoch, request->begin, request->end, i };

    if (!request->is_answered)
        return;
    if (request->has_seen) { /* the log as it was at one moment */
        op.number = request->seen_epoch;
        linear_add(epochs, op);
    } else if (request->status == 200 &&
               (request->kind == &epoch_act_type || request->kind == &view_act_type ||
                   request->kind == &poll_act_type)) {
        linear_add(epochs, op);
        op.number = request->result_seq;
        if (request->kind != &view_act_type)
            linear_add(seqs, op);
    } else if (request->status == 200 && has_log(request->kind) && request->op != i) {
        op =
            (struct linear_op){ LINEAR_SEEN, request->result_seq, request->begin, request->end, i };
        linear_add(seqs, op);
        op.number = request->result_epoch;
        linear_add(epochs, op);
    }
}

/* A notice has a number too. The caller of a reset knows its moment. */
static inline struct linear_op notice_op(const struct truth *truth, uint64_t seq)
{
    struct linear_op op = { LINEAR_MOVE, seq, 0, LINEAR_NEVER, REQUESTS_MAX };

    for (uint32_t i = 0; truth->rows[seq].kind == LOG_RESET && i < now.request_count; i++) {
        const struct request *request = &now.requests[i];

        if (request->kind == &reset_act_type && request->op == truth->rows[seq].op &&
            request->is_answered && request->status == 200)
            op = (struct linear_op){ LINEAR_MOVE, seq, request->begin, request->end, i };
    }
    return op;
}

/* Everything that was asked of a conversation, through the checker. */
static inline void check_history(uint32_t convo)
{
    const struct truth *truth = &now.truths[convo];
    struct linear_history epochs = { 0 }, seqs = { 0 };
    char why[300];

    for (uint32_t i = 0; i < now.request_count; i++) {
        if (now.requests[i].convo != convo)
            continue;
        if (has_log(now.requests[i].kind) && now.requests[i].op == i)
            add_op(&epochs, &seqs, i, truth);
        add_sights(&epochs, &seqs, i);
    }
    for (uint64_t seq = 2; seq <= truth->seq; seq++)
        if (truth->rows[seq].kind == LOG_REVOKE || truth->rows[seq].kind == LOG_RESET)
            linear_add(&seqs, notice_op(truth, seq));
    now.clock++;
    if (truth->is_there) {
        linear_add(&epochs,
            (struct linear_op){ LINEAR_READ, truth->epoch, now.clock, now.clock, REQUESTS_MAX });
        linear_add(&seqs,
            (struct linear_op){ LINEAR_READ, truth->seq, now.clock, now.clock, REQUESTS_MAX });
    }
    seen.linear_ops += epochs.count + seqs.count;
    CHECK_MSG(convo == WEDGED || linear_check(&epochs, 0, why, sizeof why),
        "linear: epochs of %s: %s", convo_id(convo), why);
    CHECK_MSG(
        linear_check(&seqs, 1, why, sizeof why), "linear: seqs of %s: %s", convo_id(convo), why);
    linear_free(&epochs);
    linear_free(&seqs);
}

#endif
