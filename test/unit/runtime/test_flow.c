/* SPDX-License-Identifier: Apache-2.0 */
/* The first part is a worked example: a bank that moves money between two accounts, and gives it
 * back when the second will not take it. The second part takes flows apart. */
#include "asker.h"

/* ==== the example ============================================================================ */

/* ---- an account: keeps a balance, refuses to overdraw, and may be closed -------------------- */

struct account_message {
    enum { ACCOUNT_ADD, ACCOUNT_CLOSE, ACCOUNT_HANG } kind;
    int64_t amount;
};

struct account {
    int64_t *balance; /* the test looks at it */
    bool closed, hangs;
};

static enum tr_next account_handle(void *state, struct tr_context *ctx, void *message)
{
    struct account *self = state;
    struct account_message *m = message;

    switch (m->kind) {
    case ACCOUNT_ADD:
        if (self->hangs) {
            tr_reply_take(ctx); /* and forget */
        } else if (self->closed) {
            tr_reply(ctx, TR_EACCES, NULL, 0);
        } else if (*self->balance + m->amount < 0) {
            tr_reply(ctx, TR_ELIMIT, NULL, 0);
        } else {
            *self->balance += m->amount;
            tr_reply(ctx, 0, self->balance, sizeof *self->balance);
        }
        return TR_GO;
    case ACCOUNT_CLOSE:
        self->closed = true;
        return TR_GO;
    case ACCOUNT_HANG:
        self->hangs = true;
        return TR_GO;
    }
    return TR_GO;
}

static const struct tr_type account_type = {
    .name = "account",
    .message_size = sizeof(struct account_message),
    .state_size = sizeof(struct account),
    .handle = account_handle,
};
TR_ACTOR(account, struct account, struct account_message)

/* ---- the bank: a transfer is a flow --------------------------------------------------------- */

enum { ACCOUNTS = 3, TRANSFERS_MAX = 2, TRANSFER_TAG = 1000 };

struct transfer {
    struct tr_flow flow;
    uint32_t from, to;
    int64_t amount;
    int64_t left; /* on the account it came from */
};

struct bank {
    account_sender accounts[ACCOUNTS]; /* owned */
    struct transfer transfers[TRANSFERS_MAX];
    char *journal; /* the test's; 256 bytes */
};

static void bank_add(struct bank *self, struct tr_context *ctx, struct tr_flow *flow,
    uint32_t account, int64_t amount)
{
    struct account_message m = { .kind = ACCOUNT_ADD, .amount = amount };

    tr_flow_ask(ctx, flow, self->accounts[account].raw, &m, sizeof m, 0);
}

static enum tr_flow_next withdraw(void *self, struct tr_context *ctx, void *frame)
{
    struct transfer *transfer = frame;

    bank_add(self, ctx, &transfer->flow, transfer->from, -transfer->amount);
    return TR_FLOW_WAIT;
}

static enum tr_flow_next deposit(void *self, struct tr_context *ctx, void *frame)
{
    struct transfer *transfer = frame;

    memcpy(&transfer->left, transfer->flow.value, sizeof transfer->left);
    bank_add(self, ctx, &transfer->flow, transfer->to, transfer->amount);
    return TR_FLOW_WAIT;
}

static enum tr_flow_next finish(void *self, struct tr_context *ctx, void *frame)
{
    struct transfer *transfer = frame;

    (void)self;
    (void)ctx;
    return tr_flow_done(&transfer->flow, &transfer->left, sizeof transfer->left);
}

static enum tr_flow_next give_back(void *self, struct tr_context *ctx, void *frame)
{
    struct transfer *transfer = frame;

    bank_add(self, ctx, &transfer->flow, transfer->from, transfer->amount);
    return TR_FLOW_WAIT;
}

enum { WITHDRAW, DEPOSIT, FINISH, GIVE_BACK };

static const struct tr_step transfer_steps[] = {
    [WITHDRAW] = { .name = "withdraw",
        .run = withdraw }, /* refused: nothing to undo, the asker gets the reason */
    [DEPOSIT] = { .name = "deposit", .run = deposit, .undo = GIVE_BACK },
    [FINISH] = { .name = "finish", .run = finish },
    [GIVE_BACK] = { .name = "give back",
        .run = give_back }, /* the last row: the flow ends with what failed */
};

static void transfer_end(void *self, struct tr_context *ctx, void *frame, int status)
{
    struct bank *bank = self;
    struct transfer *transfer = frame;
    size_t used = strlen(bank->journal);

    (void)ctx;
    snprintf(bank->journal + used, 256 - used, "%u to %u: %s; ", transfer->from, transfer->to,
        tr_error_name(status));
}

static const struct tr_flow_type transfer_flow = {
    .name = "transfer",
    TR_FLOW_STEPS(transfer_steps),
    TR_FLOW_FRAMES(struct bank, transfers),
    .tag_first = TRANSFER_TAG,
    .end = transfer_end,
};

struct bank_message {
    uint32_t from, to;
    int64_t amount;
};

static enum tr_next bank_handle(void *state, struct tr_context *ctx, void *message)
{
    const struct bank_message *m = message;
    struct transfer *transfer = tr_flow_begin(&transfer_flow, state, ctx, SECOND);

    if (transfer == NULL)
        return TR_GO; /* as many as fit are under way: the asker has been told */
    transfer->from = m->from;
    transfer->to = m->to;
    transfer->amount = m->amount;
    tr_flow_run(&transfer_flow, state, ctx, transfer);
    return TR_GO;
}

static enum tr_next bank_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    tr_flow_event(&transfer_flow, state, ctx, event);
    return TR_GO;
}

static void bank_finish(void *state)
{
    struct bank *self = state;

    for (int i = 0; i < ACCOUNTS; i++)
        account_drop(&self->accounts[i]);
}

static const struct tr_type bank_type = {
    .name = "bank",
    .message_size = sizeof(struct bank_message),
    .state_size = sizeof(struct bank),
    .handle = bank_handle,
    .event = bank_event,
    .finish = bank_finish,
};
TR_ACTOR(bank, struct bank, struct bank_message)

/* ---- and its tests -------------------------------------------------------------------------- */

struct bank_test {
    struct tr_sim *sim;
    bank_sender bank;
    account_sender accounts[ACCOUNTS];
    int64_t balances[ACCOUNTS];
    char journal[256];
};

static void bank_begin(struct bank_test *test)
{
    struct bank bank = { .journal = test->journal };

    *test = (struct bank_test){ .sim = sim_of(check_seed()), .balances = { 100, 50, 0 } };
    for (int i = 0; i < ACCOUNTS; i++) {
        CHECK_EQ_INT(
            account_spawn(tr_sim_system(test->sim),
                &(struct account){ .balance = &test->balances[i] }, NULL, &test->accounts[i]),
            0);
        bank.accounts[i] = account_clone(test->accounts[i], "bank");
    }
    CHECK_EQ_INT(bank_spawn(tr_sim_system(test->sim), &bank, NULL, &test->bank), 0);
}

static void bank_end(struct bank_test *test)
{
    bank_drop(&test->bank);
    for (int i = 0; i < ACCOUNTS; i++)
        account_drop(&test->accounts[i]);
    sim_end(&test->sim);
}

static struct tr_future *transfer(
    struct bank_test *test, uint32_t from, uint32_t to, int64_t amount)
{
    struct tr_future *future;

    CHECK_EQ_INT(bank_future(test->bank, (struct bank_message){ from, to, amount }, 0, &future), 0);
    return future;
}

static int end_of(struct tr_future **future, int64_t *ret_left)
{
    int status =
        tr_future_wait(*future, ret_left, ret_left == NULL ? 0 : sizeof *ret_left, NULL, 0);

    tr_future_drop(future);
    return status;
}

#define CHECK_BALANCES(test, a, b, c)                                                              \
    do {                                                                                           \
        CHECK_EQ_INT((test)->balances[0], (a));                                                    \
        CHECK_EQ_INT((test)->balances[1], (b));                                                    \
        CHECK_EQ_INT((test)->balances[2], (c));                                                    \
    } while (0)

TEST(flow, moves_money_and_answers_with_what_is_left)
{
    struct bank_test test;
    struct tr_future *future;
    int64_t left = 0;

    bank_begin(&test);
    future = transfer(&test, 0, 1, 30);
    sim_now(test.sim);
    CHECK_EQ_INT(end_of(&future, &left), 0);
    CHECK_EQ_INT(left, 70);
    CHECK_BALANCES(&test, 70, 80, 0);
    CHECK_EQ_STR(test.journal, "0 to 1: TR_OK; ");
    bank_end(&test);
}

TEST(flow, ends_with_the_reason_when_the_first_step_is_refused)
{
    struct bank_test test;
    struct tr_future *future;

    bank_begin(&test);
    future = transfer(&test, 2, 1, 30);
    sim_now(test.sim);
    CHECK_EQ_INT(end_of(&future, NULL), TR_ELIMIT);
    CHECK_BALANCES(&test, 100, 50, 0);
    bank_end(&test);
}

TEST(flow, undoes_what_was_done_and_answers_with_what_failed)
{
    struct bank_test test;
    struct tr_future *future;

    bank_begin(&test);
    CHECK_EQ_INT(
        account_tell(test.accounts[1], (struct account_message){ .kind = ACCOUNT_CLOSE }), 0);
    future = transfer(&test, 0, 1, 30);
    sim_now(test.sim);
    CHECK_EQ_INT(end_of(&future, NULL), TR_EACCES);
    CHECK_BALANCES(&test, 100, 50, 0);
    CHECK_EQ_STR(test.journal, "0 to 1: TR_EACCES; ");
    bank_end(&test);
}

TEST(flow, undoes_when_its_deadline_passes)
{
    struct bank_test test;
    struct tr_future *future;

    bank_begin(&test);
    CHECK_EQ_INT(
        account_tell(test.accounts[1], (struct account_message){ .kind = ACCOUNT_HANG }), 0);
    future = transfer(&test, 0, 1, 30);
    sim_now(test.sim);
    CHECK_BALANCES(&test, 70, 50, 0);
    sim_after(test.sim, SECOND - 1);
    CHECK(!tr_future_is_ended(future));
    sim_after(test.sim, 2 * MS);
    CHECK_EQ_INT(end_of(&future, NULL), TR_ETIMEOUT);
    CHECK_BALANCES(&test, 100, 50, 0);
    bank_end(&test);
}

TEST(flow, several_run_side_by_side_and_one_too_many_is_full)
{
    struct bank_test test;
    struct tr_future *first, *second, *third;

    bank_begin(&test);
    CHECK_EQ_INT(
        account_tell(test.accounts[2], (struct account_message){ .kind = ACCOUNT_HANG }), 0);
    first = transfer(&test, 0, 2, 10);
    sim_now(test.sim);
    second = transfer(&test, 0, 1, 10); /* goes past the one that hangs */
    sim_now(test.sim);
    CHECK_EQ_INT(end_of(&second, NULL), 0);
    CHECK(!tr_future_is_ended(first));
    second = transfer(&test, 1, 2, 10);
    sim_now(test.sim);
    third = transfer(&test, 0, 1, 10);
    sim_now(test.sim);
    CHECK_EQ_INT(end_of(&third, NULL), TR_EFULL);
    sim_after(test.sim, 2 * SECOND);
    CHECK_EQ_INT(end_of(&first, NULL), TR_ETIMEOUT);
    CHECK_EQ_INT(end_of(&second, NULL), TR_ETIMEOUT);
    CHECK_BALANCES(&test, 90, 60, 0);
    third = transfer(&test, 0, 1, 10); /* their frames are free again */
    sim_now(test.sim);
    CHECK_EQ_INT(end_of(&third, NULL), 0);
    bank_end(&test);
}

TEST(flow, answers_once_when_the_actor_that_runs_it_is_killed)
{
    struct bank_test test;
    struct tr_future *future;

    bank_begin(&test);
    CHECK_EQ_INT(
        account_tell(test.accounts[0], (struct account_message){ .kind = ACCOUNT_HANG }), 0);
    future = transfer(&test, 0, 1, 30);
    sim_now(test.sim);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(test.bank.raw)), 0);
    sim_now(test.sim);
    CHECK_EQ_INT(end_of(&future, NULL), TR_EDROPPED);
    bank_end(&test);
}

/* ==== flows taken apart ====================================================================== */

/* An oracle answers with a number, after as many milliseconds as it is asked for. */
struct oracle_message {
    uint64_t delay_ms;
    uint64_t number;
    int status;
};

enum { ORACLE_MAX = 128 };

struct oracle {
    tr_reply_handle replies[ORACLE_MAX];
    struct oracle_message asked[ORACLE_MAX];
    uint32_t count;
};

static enum tr_next oracle_handle(void *state, struct tr_context *ctx, void *message)
{
    struct oracle *self = state;
    struct oracle_message *m = message;

    if (m->delay_ms == 0) {
        tr_reply(ctx, m->status, &m->number, m->status < 0 ? 0 : sizeof m->number);
        return TR_GO;
    }
    CHECK(self->count < ORACLE_MAX);
    self->asked[self->count] = *m;
    self->replies[self->count] = tr_reply_take(ctx);
    tr_after(ctx, m->delay_ms * MS, self->count++, NULL);
    return TR_GO;
}

static enum tr_next oracle_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct oracle *self = state;
    const struct oracle_message *m = &self->asked[event->tag];

    (void)ctx;
    tr_reply_send(
        &self->replies[event->tag], m->status, &m->number, m->status < 0 ? 0 : sizeof m->number);
    return TR_GO;
}

static const struct tr_type oracle_type = {
    .name = "oracle",
    .message_size = sizeof(struct oracle_message),
    .state_size = sizeof(struct oracle),
    .handle = oracle_handle,
    .event = oracle_event,
};

/* A runner: the test's own script is its flow. */
struct runner;
struct visit {
    struct tr_flow flow;
    uint64_t sum;
    uint32_t rounds;
};

struct script {
    const struct tr_step *steps;
    struct tr_flow_type type;
    uint64_t timeout_ns;
    char trace[512];
    uint32_t frames_busy; /* as the runner saw it last */
};

struct runner {
    struct script *script;
    tr_sender oracle; /* owned */
    struct visit visits[3];
};

static void trace(struct runner *self, const char *text)
{
    size_t used = strlen(self->script->trace);

    snprintf(self->script->trace + used, sizeof self->script->trace - used, "%s ", text);
}

static void consult(
    struct runner *self, struct tr_context *ctx, struct visit *visit, struct oracle_message m)
{
    tr_flow_ask(ctx, &visit->flow, self->oracle, &m, sizeof m, 0);
}

static enum tr_next runner_handle(void *state, struct tr_context *ctx, void *message)
{
    struct runner *self = state;
    struct visit *visit = tr_flow_begin(&self->script->type, self, ctx, self->script->timeout_ns);

    (void)message;
    if (visit != NULL)
        tr_flow_run(&self->script->type, self, ctx, visit);
    self->script->frames_busy = tr_flow_count(&self->script->type, self);
    return TR_GO;
}

static enum tr_next runner_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct runner *self = state;

    CHECK(tr_flow_event(&self->script->type, self, ctx, event));
    self->script->frames_busy = tr_flow_count(&self->script->type, self);
    return TR_GO;
}

static void runner_finish(void *state)
{
    struct runner *self = state;

    tr_sender_drop(&self->oracle);
}

static int runner_reset(void *state, enum tr_why why)
{
    struct runner *self = state;

    (void)why;
    tr_flow_reset(&self->script->type, self);
    return 0;
}

static const struct tr_type runner_type = {
    .name = "runner",
    .message_size = sizeof(char),
    .state_size = sizeof(struct runner),
    .handle = runner_handle,
    .event = runner_event,
    .finish = runner_finish,
    .reset = runner_reset,
};

struct flow_test {
    struct tr_sim *sim;
    struct script script;
    tr_sender runner, oracle;
};

static void begin(struct flow_test *test, const struct tr_step *steps, uint32_t count)
{
    struct runner runner;

    *test = (struct flow_test){ .sim = sim_of(check_seed()) };
    test->script.type = (struct tr_flow_type){
        .name = "visit",
        .steps = steps,
        .step_count = count,
        TR_FLOW_FRAMES(struct runner, visits),
        .tag_first = 77,
    };
    CHECK_EQ_INT(tr_spawn(tr_sim_system(test->sim), &oracle_type, &(struct oracle){ 0 }, NULL,
                     &test->oracle),
        0);
    runner = (struct runner){ .script = &test->script,
        .oracle = tr_sender_clone(test->oracle, "runner") };
    CHECK_EQ_INT(tr_spawn(tr_sim_system(test->sim), &runner_type, &runner, NULL, &test->runner), 0);
}
#define BEGIN(test, ...)                                                                           \
    static const struct tr_step test_steps[] = { __VA_ARGS__ };                                    \
    begin(test, test_steps, sizeof test_steps / sizeof test_steps[0])

static struct tr_future *start(struct flow_test *test)
{
    struct tr_future *future;

    CHECK_EQ_INT(tr_ask_future(test->runner, "", 1, 0, &future), 0);
    sim_now(test->sim);
    return future;
}

static int end_with(struct tr_future **future, uint64_t *ret_value)
{
    uint64_t value = 0;
    int status = tr_future_wait(*future, &value, sizeof value, NULL, 0);

    tr_future_drop(future);
    if (ret_value != NULL)
        *ret_value = value;
    return status;
}

static void end(struct flow_test *test)
{
    tr_sender_drop(&test->runner);
    tr_sender_drop(&test->oracle);
    sim_end(&test->sim);
}

/* ---- steps ---------------------------------------------------------------------------------- */

#define STEP(name) static enum tr_flow_next name(void *state, struct tr_context *ctx, void *frame)
#define STEP_BEGIN                                                                                 \
    struct runner *self = state;                                                                   \
    struct visit *visit = frame;                                                                   \
    trace(self, __func__);                                                                         \
    (void)ctx;                                                                                     \
    (void)visit

STEP(one)
{
    STEP_BEGIN;
    return TR_FLOW_NEXT;
}

STEP(two)
{
    STEP_BEGIN;
    return TR_FLOW_NEXT;
}

STEP(done)
{
    STEP_BEGIN;
    return tr_flow_done(&visit->flow, &visit->sum, sizeof visit->sum);
}

STEP(undo)
{
    STEP_BEGIN;
    return TR_FLOW_NEXT;
}

STEP(fails)
{
    STEP_BEGIN;
    return tr_flow_fail(&visit->flow, TR_EPROTO);
}

STEP(asks_three)
{
    STEP_BEGIN;
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 30, .number = 1 });
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 10, .number = 20 });
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 20, .number = 300 });
    return TR_FLOW_WAIT;
}

STEP(asks_first)
{
    STEP_BEGIN;
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 30, .number = 1 });
    consult(self, ctx, visit,
        (struct oracle_message){ .delay_ms = 10, .number = 20, .status = TR_EIO });
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 20, .number = 300 });
    return TR_FLOW_FIRST;
}

STEP(asks_and_one_fails)
{
    STEP_BEGIN;
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 10, .status = TR_EIO });
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 20, .status = TR_ENOSPC });
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 30, .number = 1 });
    return TR_FLOW_WAIT;
}

STEP(asks_first_of_bad)
{
    STEP_BEGIN;
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 10, .status = TR_EIO });
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 20, .status = TR_ENOSPC });
    return TR_FLOW_FIRST;
}

STEP(takes_value)
{
    uint64_t number;

    STEP_BEGIN;
    CHECK_EQ_INT(visit->flow.status, 0);
    CHECK_EQ_INT(visit->flow.size, sizeof number);
    memcpy(&number, visit->flow.value, sizeof number);
    visit->sum += number;
    return TR_FLOW_NEXT;
}

STEP(sleeps)
{
    STEP_BEGIN;
    tr_flow_after(ctx, &visit->flow, 50 * MS);
    return TR_FLOW_WAIT;
}

STEP(hangs)
{
    STEP_BEGIN;
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 1000000 });
    return TR_FLOW_WAIT;
}

static int add_answer(
    void *state, struct tr_context *ctx, void *frame, int slot, const struct tr_event *event)
{
    struct visit *visit = frame;
    uint64_t number = 0;

    (void)state;
    (void)ctx;
    if (event->status == 0)
        memcpy(&number, event->value, sizeof number);
    visit->sum += number * (uint64_t)(slot + 1);
    return event->status;
}

static int forgive(
    void *state, struct tr_context *ctx, void *frame, int slot, const struct tr_event *event)
{
    (void)state;
    (void)ctx;
    (void)frame;
    (void)slot;
    return event->status == TR_EIO || event->status == TR_ENOSPC ? 0 : event->status;
}

/* ---- rows ----------------------------------------------------------------------------------- */

TEST(flow, runs_row_after_row_and_the_end_of_the_table_is_the_end)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = one }, { .run = two }, { .run = one });
    future = start(&test);
    CHECK_EQ_INT(end_with(&future, NULL), 0);
    CHECK_EQ_STR(test.script.trace, "one two one ");
    end(&test);
}

TEST(flow, a_failing_row_jumps_to_its_undo_and_goes_on_from_there)
{
    struct flow_test test;
    struct tr_future *future;
    uint64_t value;

    BEGIN(&test, { .run = one }, { .run = fails, .undo = 3 }, { .run = two }, { .run = undo },
        { .run = done });
    future = start(&test);
    CHECK_EQ_INT(end_with(&future, &value), TR_EPROTO); /* done, but of the undoing */
    CHECK_EQ_STR(test.script.trace, "one fails undo done ");
    end(&test);
}

TEST(flow, a_failing_undo_keeps_the_first_reason)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = asks_and_one_fails, .undo = 2 }, { .run = two },
        { .run = fails, .undo = 3 }, { .run = undo });
    future = start(&test);
    sim_after(test.sim, 100 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), TR_EIO);
    CHECK_EQ_STR(test.script.trace, "asks_and_one_fails fails undo ");
    end(&test);
}

STEP(again)
{
    STEP_BEGIN;
    if (++visit->rounds == 3)
        return tr_flow_goto(&visit->flow, 2);
    tr_flow_goto(&visit->flow, 0);
    tr_flow_after(ctx, &visit->flow, 10 * MS);
    return TR_FLOW_WAIT;
}

TEST(flow, may_go_back_and_try_again_later)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = again }, { .run = one }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 15 * MS);
    CHECK_EQ_STR(test.script.trace, "again again ");
    sim_after(test.sim, 10 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), 0);
    CHECK_EQ_STR(test.script.trace, "again again again done ");
    end(&test);
}

STEP(circle)
{
    (void)state;
    (void)ctx;
    return tr_flow_goto(&((struct visit *)frame)->flow, 0);
}

TEST(flow, that_runs_in_circles_is_stopped)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = circle, .undo = 1 }, { .run = undo });
    future = start(&test);
    CHECK_EQ_INT(end_with(&future, NULL), TR_ELIMIT);
    CHECK_EQ_STR(test.script.trace, "undo ");
    end(&test);
}

TEST_ABORTS(
    flow, whose_undo_comes_before_its_row_is_named, "a row's undo is a later row of the table")
{
    struct flow_test test;

    BEGIN(&test, { .run = one }, { .run = two }, { .run = fails, .undo = 1 });
    start(&test);
}

/* ---- waiting -------------------------------------------------------------------------------- */

TEST(flow, waits_for_all_and_sees_each_answer)
{
    struct flow_test test;
    struct tr_future *future;
    uint64_t value;

    BEGIN(&test, { .run = asks_three, .answer = add_answer }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 25 * MS);
    CHECK(!tr_future_is_ended(future));
    sim_after(test.sim, 10 * MS);
    CHECK_EQ_INT(end_with(&future, &value), 0);
    CHECK_EQ_U64(value, 1 * 1 + 20 * 2 + 300 * 3);
    end(&test);
}

TEST(flow, the_step_after_a_wait_sees_the_last_answer)
{
    struct flow_test test;
    struct tr_future *future;
    uint64_t value;

    BEGIN(&test, { .run = asks_three }, { .run = takes_value }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 40 * MS);
    CHECK_EQ_INT(end_with(&future, &value), 0);
    CHECK_EQ_U64(value, 1);
    end(&test);
}

TEST(flow, waits_for_all_even_when_one_has_failed)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = asks_and_one_fails, .undo = 1 }, { .run = undo });
    future = start(&test);
    sim_after(test.sim, 25 * MS);
    CHECK_EQ_STR(test.script.trace, "asks_and_one_fails ");
    sim_after(test.sim, 10 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), TR_EIO); /* the first failure is the reason */
    CHECK_EQ_STR(test.script.trace, "asks_and_one_fails undo ");
    end(&test);
}

TEST(flow, an_answer_function_judges_what_failed)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = asks_and_one_fails, .answer = forgive }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 40 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), 0);
    end(&test);
}

TEST(flow, goes_on_with_the_first_good_answer)
{
    struct flow_test test;
    struct tr_future *future;
    uint64_t value;

    BEGIN(&test, { .run = asks_first }, { .run = takes_value }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 15 * MS);
    CHECK(!tr_future_is_ended(future)); /* one has failed: that is not the first good one */
    sim_after(test.sim, 10 * MS);
    CHECK_EQ_INT(end_with(&future, &value), 0);
    CHECK_EQ_U64(value, 300);
    end(&test);
}

TEST(flow, fails_when_all_of_several_have)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = asks_first_of_bad }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 15 * MS);
    CHECK(!tr_future_is_ended(future));
    sim_after(test.sim, 10 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), TR_EIO);
    end(&test);
}

TEST(flow, answers_that_come_too_late_are_not_mistaken_for_others)
{
    struct flow_test test;
    struct tr_future *future;
    uint64_t value;

    /* The first row goes on at 20 ms; its answer of 30 ms comes while the second row waits for
     * three of its own. */
    BEGIN(
        &test, { .run = asks_first }, { .run = asks_three, .answer = add_answer }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 45 * MS);
    CHECK(!tr_future_is_ended(future));
    sim_after(test.sim, 10 * MS);
    CHECK_EQ_INT(end_with(&future, &value), 0);
    /* Slot 0 is still taken by the late one: 1, 2 and 3 are used, and nothing of it is counted. */
    CHECK_EQ_U64(value, 1 * 2 + 20 * 3 + 300 * 4);
    end(&test);
}

TEST(flow, a_frame_is_not_reused_before_its_last_answer)
{
    struct flow_test test;
    struct tr_future *futures[4];

    BEGIN(&test, { .run = asks_first });
    for (int i = 0; i < 3; i++)
        futures[i] = start(&test);
    sim_after(test.sim, 25 * MS);
    CHECK_EQ_INT(test.script.frames_busy, 0); /* all done, but late answers are to come */
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(end_with(&futures[i], NULL), 0);
    futures[3] = start(&test);
    CHECK_EQ_INT(end_with(&futures[3], NULL), TR_EFULL);
    sim_after(test.sim, 10 * MS);
    futures[3] = start(&test);
    sim_after(test.sim, 25 * MS);
    CHECK_EQ_INT(end_with(&futures[3], NULL), 0);
    end(&test);
}

TEST(flow, waits_for_a_timer)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = sleeps }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 50 * MS - 1);
    CHECK(!tr_future_is_ended(future));
    sim_after(test.sim, MS);
    CHECK_EQ_INT(end_with(&future, NULL), 0);
    end(&test);
}

STEP(races_a_timer)
{
    STEP_BEGIN;
    tr_flow_after(ctx, &visit->flow, 500 * MS);
    tr_flow_after(ctx, &visit->flow, 15 * MS); /* the second call moves it */
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 30, .number = 1 });
    return TR_FLOW_FIRST;
}

TEST(flow, a_timer_may_be_the_first)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = races_a_timer }, { .run = done });
    future = start(&test);
    sim_after(test.sim, 20 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), 0);
    sim_after(test.sim, SECOND);
    end(&test);
}

STEP(asks_nobody)
{
    struct oracle_message m = { 0 };

    STEP_BEGIN;
    CHECK_EQ_INT(tr_flow_ask(ctx, &visit->flow, (tr_sender){ 0 }, &m, sizeof m, 0), TR_ECLOSED);
    return visit->rounds++ == 0 ? TR_FLOW_WAIT : TR_FLOW_FIRST;
}

STEP(asks_nobody_or_somebody)
{
    struct oracle_message m = { 0 };

    STEP_BEGIN;
    tr_flow_ask(ctx, &visit->flow, (tr_sender){ 0 }, &m, sizeof m, 0);
    consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 10 });
    return TR_FLOW_FIRST;
}

TEST(flow, what_cannot_be_asked_counts_as_answered)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = asks_nobody_or_somebody }, { .run = asks_nobody, .undo = 3 },
        { .run = two }, { .run = asks_nobody, .undo = 4 }, { .run = undo });
    future = start(&test);
    sim_after(test.sim, 15 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), TR_ECLOSED);
    CHECK_EQ_STR(test.script.trace, "asks_nobody_or_somebody asks_nobody asks_nobody undo ");
    end(&test);
}

STEP(asks_too_many)
{
    STEP_BEGIN;
    for (uint64_t i = 0; i < TR_FLOW_SLOTS; i++)
        consult(self, ctx, visit, (struct oracle_message){ .delay_ms = 10 + i });
    CHECK_EQ_INT(tr_flow_ask(ctx, &visit->flow, self->oracle, &(struct oracle_message){ 0 },
                     sizeof(struct oracle_message), 0),
        TR_ELIMIT);
    return TR_FLOW_WAIT;
}

TEST(flow, has_so_many_slots_and_no_more)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = asks_too_many });
    future = start(&test);
    sim_after(test.sim, 100 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), TR_ELIMIT);
    end(&test);
}

/* ---- time ----------------------------------------------------------------------------------- */

TEST(flow, has_a_deadline_of_its_own_or_its_askers)
{
    struct flow_test test;
    struct tr_future *own, *inherited;

    BEGIN(&test, { .run = hangs });
    test.script.timeout_ns = 100 * MS;
    own = start(&test);
    sim_after(test.sim, 99 * MS);
    CHECK(!tr_future_is_ended(own));
    sim_after(test.sim, 2 * MS);
    CHECK_EQ_INT(end_with(&own, NULL), TR_ETIMEOUT);
    CHECK_EQ_INT(tr_ask_future(test.runner, "", 1, 30 * MS, &inherited), 0);
    sim_after(test.sim, 31 * MS);
    CHECK_EQ_INT(test.script.frames_busy, 0);
    CHECK_EQ_INT(end_with(&inherited, NULL), TR_ETIMEOUT);
    end(&test);
}

TEST(flow, undoing_has_time_of_its_own)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = hangs, .undo = 1 }, { .run = sleeps, .undo = 2 }, { .run = hangs });
    test.script.timeout_ns = 100 * MS;
    test.script.type.undo_ns = 200 * MS;
    future = start(&test);
    sim_after(test.sim, 110 * MS);
    CHECK_EQ_STR(test.script.trace, "hangs sleeps ");
    sim_after(test.sim, 50 * MS); /* slept well: hangs again, until 300 */
    CHECK_EQ_STR(test.script.trace, "hangs sleeps hangs ");
    CHECK(!tr_future_is_ended(future));
    sim_after(test.sim, 150 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), TR_ETIMEOUT);
    end(&test);
}

TEST(flow, undoing_gets_the_time_of_the_flow_again_if_nothing_else_is_said)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = hangs, .undo = 1 }, { .run = hangs });
    test.script.timeout_ns = 100 * MS;
    future = start(&test);
    sim_after(test.sim, 190 * MS);
    CHECK(!tr_future_is_ended(future));
    sim_after(test.sim, 15 * MS);
    CHECK_EQ_INT(end_with(&future, NULL), TR_ETIMEOUT);
    end(&test);
}

/* ---- answering ------------------------------------------------------------------------------ */

STEP(answers_early)
{
    uint64_t value = 5;

    STEP_BEGIN;
    tr_flow_answer(&visit->flow, &value, sizeof value);
    return TR_FLOW_NEXT;
}

TEST(flow, may_answer_before_it_ends_and_does_not_answer_twice)
{
    struct flow_test test;
    struct tr_future *future;
    struct tr_system_stats s;
    uint64_t value;

    BEGIN(&test, { .run = answers_early }, { .run = sleeps }, { .run = fails });
    future = start(&test);
    CHECK_EQ_INT(test.script.frames_busy, 1);
    CHECK_EQ_INT(end_with(&future, &value), 0);
    CHECK_EQ_U64(value, 5);
    sim_after(test.sim, 60 * MS);
    CHECK_EQ_STR(test.script.trace, "answers_early sleeps fails ");
    CHECK_EQ_INT(test.script.frames_busy, 0);
    tr_system_stats(tr_sim_system(test.sim), &s);
    CHECK_EQ_U64(s.replies_late, 0);
    end(&test);
}

STEP(answers_too_much)
{
    static char large[TR_VALUE_SIZE_MAX + 1];

    STEP_BEGIN;
    return tr_flow_done(&visit->flow, large, sizeof large);
}

TEST(flow, an_answer_that_is_too_large_says_so)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = answers_too_much });
    future = start(&test);
    CHECK_EQ_INT(end_with(&future, NULL), TR_ETOOBIG);
    end(&test);
}

STEP(looks_for_the_asker)
{
    STEP_BEGIN;
    trace(self, tr_flow_is_cancelled(&visit->flow) ? "gone" : "there");
    return TR_FLOW_NEXT;
}

TEST(flow, can_see_that_its_asker_has_gone)
{
    struct flow_test test;
    struct tr_future *future;

    BEGIN(&test, { .run = looks_for_the_asker }, { .run = sleeps }, { .run = looks_for_the_asker });
    future = start(&test);
    tr_future_drop(&future);
    sim_after(test.sim, 60 * MS);
    CHECK_EQ_STR(test.script.trace, "looks_for_the_asker there sleeps looks_for_the_asker gone ");
    end(&test);
}

TEST(flow, runs_for_a_tell_too)
{
    struct flow_test test;

    BEGIN(&test, { .run = looks_for_the_asker }, { .run = asks_three }, { .run = done });
    CHECK_EQ_INT(tr_tell(test.runner, "", 1), 0);
    sim_now(test.sim);
    sim_after(test.sim, 40 * MS);
    CHECK_EQ_STR(test.script.trace, "looks_for_the_asker there asks_three done ");
    end(&test);
}

TEST(flow, takes_up_only_its_own_tags)
{
    struct runner runner = { 0 };
    struct tr_flow_type type = { .tag_first = 100, TR_FLOW_FRAMES(struct runner, visits) };
    struct tr_event event = { .kind = TR_EVENT_REPLY };

    event.tag = 99;
    CHECK(!tr_flow_event(&type, &runner, NULL, &event));
    event.tag = 100 + 3 * TR_FLOW_TAGS;
    CHECK(!tr_flow_event(&type, &runner, NULL, &event));
    event.tag = 100;
    event.kind = TR_EVENT_DOWN;
    CHECK(!tr_flow_event(&type, &runner, NULL, &event));
}

TEST_ABORTS(flow, is_run_once, "a flow is begun, then run once")
{
    struct runner runner = { 0 };
    struct tr_flow_type type = { TR_FLOW_FRAMES(struct runner, visits) };

    tr_flow_run(&type, &runner, NULL, &runner.visits[0]);
}
