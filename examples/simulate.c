/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.c: finding a race with a seed, and replaying it. Clients add to an account in two ways:
 * by reading the balance and writing it back, which is wrong when two do it at once, and by one
 * message that adds. The actors are ordinary ones; the simulation only decides, from a seed, who
 * runs next. On worker threads the race might show once in a while; here the seed that shows it
 * shows it every time.
 *
 *   simulate          try many seeds
 *   simulate SEED     replay one, and print every step of it */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

enum { CLIENTS = 4, ADDS = 5, SEEDS = 200, EXPECTED = CLIENTS * ADDS };

static bool verbose;

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* ---- the account ---------------------------------------------------------------------------- */

struct account {
    int balance;
};

struct account_message {
    enum { ACCOUNT_READ, ACCOUNT_WRITE, ACCOUNT_ADD } kind;
    int amount;
};

static enum tr_next account_handle(void *state, struct tr_context *ctx, void *message)
{
    struct account *self = state;
    const struct account_message *m = message;

    switch (m->kind) {
    case ACCOUNT_READ:
        break;
    case ACCOUNT_WRITE:
        self->balance = m->amount;
        break;
    case ACCOUNT_ADD:
        self->balance += m->amount;
        break;
    }
    tr_reply(ctx, 0, &self->balance, sizeof self->balance);
    return TR_GO;
}

static const struct tr_type account_type = {
    .name = "account",
    .message_size = sizeof(struct account_message),
    .state_size = sizeof(struct account),
    .handle = account_handle,
};
TR_ACTOR(account, struct account, struct account_message)

/* ---- its clients ---------------------------------------------------------------------------- */

struct client {
    account_sender account; /* owned */
    bool careful;           /* adds in one message */
    int name, left;
};

enum { TAG_READ, TAG_ADDED, TAG_PAUSE };

/* Some time between 0 and 100 ms: by the simulated clock, drawn from the seed. */
static int client_pause(struct tr_context *ctx)
{
    return tr_after(ctx, tr_random(ctx) % 100 * MS, TAG_PAUSE, NULL);
}

static int client_go_on(struct client *self, struct tr_context *ctx)
{
    struct account_message add = { ACCOUNT_ADD, 1 }, read = { .kind = ACCOUNT_READ };

    return account_ask(ctx, self->account, self->careful ? add : read,
        &(struct tr_ask_options){ .tag = self->careful ? TAG_ADDED : TAG_READ });
}

static int client_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return client_pause(ctx);
}

static enum tr_next client_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *self = state;
    int balance, rc;

    if (event->tag == TAG_PAUSE)
        return client_go_on(self, ctx) < 0 ? TR_FAIL : TR_GO;
    if (event->status < 0)
        return TR_FAIL;
    balance = *(const int *)event->value;
    if (event->tag == TAG_READ) {
        if (verbose)
            printf("  %.0f ms: client %d read %d and writes %d\n", (double)tr_now_ns(ctx) / 1e6,
                self->name, balance, balance + 1); /* the simulated clock begins at one second */
        /* The mistake: the balance may have changed before this write arrives. */
        rc = account_ask(ctx, self->account, (struct account_message){ ACCOUNT_WRITE, balance + 1 },
            &(struct tr_ask_options){ .tag = TAG_ADDED });
        return rc < 0 ? TR_FAIL : TR_GO;
    }
    if (--self->left == 0)
        return TR_STOP;
    return client_pause(ctx) < 0 ? TR_FAIL : TR_GO;
}

static void client_finish(void *state)
{
    struct client *self = state;

    account_drop(&self->account);
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = sizeof(int),
    .state_size = sizeof(struct client),
    .start = client_start,
    .handle = client_handle,
    .event = client_event,
    .finish = client_finish,
};

/* ---- one run -------------------------------------------------------------------------------- */

/* Returns the balance in the end; *ret_trace is the hash of everything that happened. */
static int simulate(uint64_t seed, bool careful, uint64_t *ret_trace)
{
    struct account account = { 0 };
    struct tr_done *done;
    struct tr_sim *sim;
    account_sender to_account;
    tr_sender clients[CLIENTS];

    must(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim));
    must(account_spawn(tr_sim_system(sim), &account,
        &(struct tr_spawn_options){ .ret_done = &done }, &to_account));
    for (int i = 0; i < CLIENTS; i++) {
        struct client client = { account_clone(to_account, "client"), careful, i, ADDS };

        must(tr_spawn(tr_sim_system(sim), &client_type, &client, NULL, &clients[i]));
    }
    account_drop(&to_account);
    tr_sim_run(sim, 0); /* until nothing is left to do */
    for (int i = 0; i < CLIENTS; i++)
        tr_sender_drop(&clients[i]);
    must(tr_done_wait(&done, &account, NULL, 0));
    *ret_trace = tr_sim_trace(sim);
    tr_sim_destroy(&sim);
    return account.balance;
}

static int replay(uint64_t seed)
{
    uint64_t trace, again;
    int balance;

    verbose = true;
    balance = simulate(seed, false, &trace);
    printf("seed %" PRIu64 ": %d instead of %d, trace %016" PRIx64 "\n", seed, balance, EXPECTED,
        trace);
    verbose = false;
    return simulate(seed, false, &again) == balance && again == trace ? 0 : 1;
}

int main(int argc, char **argv)
{
    uint64_t first = 0, trace;
    int wrong = 0, wrong_careful = 0;

    if (argc > 1)
        return replay(strtoull(argv[1], NULL, 10));
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        if (simulate(seed, false, &trace) != EXPECTED && wrong++ == 0)
            first = seed;
        wrong_careful += simulate(seed, true, &trace) != EXPECTED;
    }
    printf("read, then write: the balance was wrong with %d of %d seeds\n", wrong, SEEDS);
    printf("one message:      the balance was wrong with %d of %d seeds\n", wrong_careful, SEEDS);
    if (wrong > 0)
        printf("the first that failed: replay it with `%s %" PRIu64 "`\n", argv[0], first);
    return wrong > 0 && wrong_careful == 0 ? 0 : 1;
}
