/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot_reader.c: read-mostly state without messages. One actor publishes a table of exchange
 * rates a thousand times; a thread that is no worker and an actor read it all the while. A reader
 * pays one load: no message, no lock, no shared counter. A reader always sees a whole value,
 * and the runtime frees a replaced value when no reader can have it any more. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

enum { VERSIONS = 1000, RATES = 64 };

/* Immutable once published. All rates of a version are equal, so a torn read would show. */
struct rates {
    int version;
    int rate[RATES];
};

static struct tr_snapshot *rates;
static atomic_int freed, torn;
static atomic_bool done;

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

static void rates_free(void *value)
{
    atomic_fetch_add(&freed, 1);
    free(value);
}

static void rates_check(const struct rates *now)
{
    for (int i = 0; now != NULL && i < RATES; i++)
        if (now->rate[i] != now->version)
            atomic_fetch_add(&torn, 1);
}

/* ---- the one that publishes ----------------------------------------------------------------- */

struct publisher {
    int version;
};

enum publisher_message { PUBLISHER_NEXT };

static enum tr_next publisher_handle(void *state, struct tr_context *ctx, void *message)
{
    struct publisher *self = state;
    struct rates *next;

    (void)message;
    if (self->version == VERSIONS)
        return TR_STOP;
    next = malloc(sizeof *next);
    if (next == NULL)
        return TR_FAIL;
    next->version = ++self->version;
    for (int i = 0; i < RATES; i++)
        next->rate[i] = next->version;
    if (tr_snapshot_publish(rates, next) < 0) {
        free(next);
        return TR_FAIL;
    }
    tr_again(ctx); /* and the next one, when the others have had their turn */
    return TR_GO;
}

static const struct tr_type publisher_type = {
    .name = "publisher",
    .message_size = sizeof(enum publisher_message),
    .state_size = sizeof(struct publisher),
    .handle = publisher_handle,
};
TR_ACTOR(publisher, struct publisher, enum publisher_message)

/* ---- two kinds of reader -------------------------------------------------------------------- */

/* In a handler the value stays valid until the handler returns. */
struct trader {
    int seen;
};

static int trader_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return tr_every(ctx, MS, 0, NULL);
}

static enum tr_next trader_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next trader_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct trader *self = state;
    const struct rates *now = tr_snapshot_read(rates);

    (void)ctx;
    (void)event;
    rates_check(now);
    self->seen++;
    return TR_GO;
}

static const struct tr_type trader_type = {
    .name = "trader",
    .message_size = sizeof(int),
    .state_size = sizeof(struct trader),
    .start = trader_start,
    .handle = trader_handle,
    .event = trader_event,
};

/* A thread of the program's own registers once, and reads between begin and end. */
static void *thread_main(void *argument)
{
    struct tr_system *system = argument;
    struct tr_reader *reader;
    long reads = 0;

    must(tr_reader_create(system, &reader));
    while (!atomic_load(&done)) {
        tr_reader_begin(reader);
        rates_check(tr_snapshot_read(rates));
        tr_reader_end(reader);
        reads++;
    }
    tr_reader_destroy(&reader);
    return reads > 0 ? argument : NULL;
}

int main(void)
{
    struct publisher publisher = { 0 };
    struct trader trader = { 0 };
    struct tr_system *system;
    struct tr_done *published;
    publisher_sender to_publisher;
    tr_sender to_trader;
    pthread_t thread;
    int in_time;

    must(tr_system_create(NULL, &system));
    must(tr_snapshot_create(system, rates_free, &rates));
    must(tr_spawn(system, &trader_type, &trader, NULL, &to_trader));
    if (pthread_create(&thread, NULL, thread_main, system) != 0)
        return 1;
    must(publisher_spawn(
        system, &publisher, &(struct tr_spawn_options){ .ret_done = &published }, &to_publisher));
    must(publisher_tell(to_publisher, PUBLISHER_NEXT));
    must(tr_done_wait(&published, &publisher, NULL, 0));
    atomic_store(&done, true);
    pthread_join(thread, NULL);
    publisher_drop(&to_publisher);
    tr_sender_drop(&to_trader);
    must(tr_system_join(system, 0));

    in_time = atomic_load(&freed);
    tr_snapshot_destroy(&rates); /* the last version, and what was still waiting to be freed */
    printf("%d versions published, %d torn reads\n", publisher.version, atomic_load(&torn));
    printf("%s freed while the readers were running, %d freed in all\n",
        in_time > 0 ? "some were" : "none was", atomic_load(&freed));
    tr_system_destroy(&system);
    return atomic_load(&torn) == 0 && atomic_load(&freed) == VERSIONS ? 0 : 1;
}
