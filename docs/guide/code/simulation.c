/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/08-simulation-and-testing.md: two actors, a network that loses half of everything, and
 * a seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

enum { NODE_CLIENT = 1, NODE_SERVER = 2 };
enum { REQUESTS = 20 };

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

static enum tr_next no_messages(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

/* Adds each number once, however often it comes. */
struct server {
    int last, sum;
};

static int server_start(void *state, struct tr_context *ctx)
{
    (void)state;
    return tr_net_bind(ctx, NODE_SERVER, 0);
}

static enum tr_next server_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct server *self = state;
    int number;

    memcpy(&number, event->value, sizeof number);
    if (number == self->last + 1) {
        self->last = number;
        self->sum += number;
    }
    return tr_net_send(ctx, event->id, &self->last, sizeof self->last) < 0 ? TR_FAIL : TR_GO;
}

static const struct tr_type server_type = {
    .name = "server",
    .state_size = sizeof(struct server),
    .start = server_start,
    .handle = no_messages,
    .event = server_event,
};

/* Sends 1 to 20, each until the server has confirmed it. */
struct client {
    int number, sends;
};

static int client_send(struct client *self, struct tr_context *ctx)
{
    int rc = tr_net_send(ctx, NODE_SERVER, &self->number, sizeof self->number);

    self->sends++;
    if (rc == 0)
        rc = tr_after(ctx, 50 * MS, (uint32_t)self->number, NULL);
    return rc;
}

static int client_start(void *state, struct tr_context *ctx)
{
    int rc = tr_net_bind(ctx, NODE_CLIENT, 0);

    return rc < 0 ? rc : client_send(state, ctx);
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *self = state;
    int confirmed;

    if (event->kind == TR_EVENT_TIMER) {
        if (event->tag != (uint32_t)self->number)
            return TR_GO; /* confirmed meanwhile */
    } else {
        memcpy(&confirmed, event->value, sizeof confirmed);
        if (confirmed != self->number)
            return TR_GO; /* an old one */
        if (self->number++ == REQUESTS)
            return TR_STOP;
    }
    return client_send(self, ctx) < 0 ? TR_FAIL : TR_GO;
}

static const struct tr_type client_type = {
    .name = "client",
    .state_size = sizeof(struct client),
    .start = client_start,
    .handle = no_messages,
    .event = client_event,
};

/* One whole run. Returns the hash of everything that happened in it. */
static uint64_t run(uint64_t seed)
{
    struct server server = { 0 };
    struct client client = { .number = 1 };
    struct tr_done *server_done, *client_done;
    tr_sender to_server, to_client;
    struct tr_sim *sim;
    uint64_t trace;

    must(tr_sim_create(&(struct tr_sim_options){ .seed = seed }, &sim));
    tr_sim_net_faults(sim, &(struct tr_net_faults){ .delay_ns_min = MS,
                               .delay_ns_max = 30 * MS,
                               .loss_per_million = 500 * 1000,
                               .duplicate_per_million = 100 * 1000 });
    must(tr_spawn(tr_sim_system(sim), &server_type, &server,
        &(struct tr_spawn_options){ .ret_done = &server_done }, &to_server));
    must(tr_spawn(tr_sim_system(sim), &client_type, &client,
        &(struct tr_spawn_options){ .ret_done = &client_done }, &to_client));

    tr_sim_run(sim, 0); /* until nothing is left to do; the clock jumps, nobody waits */

    tr_sender_drop(&to_client);
    tr_sender_drop(&to_server);
    tr_sim_run(sim, 0);
    must(tr_done_wait(&client_done, &client, NULL, 0));
    must(tr_done_wait(&server_done, &server, NULL, 0));
    if (server.sum != REQUESTS * (REQUESTS + 1) / 2 || client.sends < REQUESTS) {
        printf("seed %llu: the sum is %d\n", (unsigned long long)seed, server.sum);
        exit(1);
    }
    trace = tr_sim_trace(sim);
    tr_sim_destroy(&sim);
    return trace;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t trace = run(first);

    printf("the same seed again:  %s\n", run(first) == trace ? "the same run" : "another run");
    printf("another seed:         %s\n", run(first + 1) == trace ? "the same run" : "another run");
    for (uint64_t seed = first; seed < first + 500; seed++)
        run(seed);
    printf("500 seeds:            every number arrived, and counted once\n");
    return 0;
}
