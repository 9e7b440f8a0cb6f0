/* SPDX-License-Identifier: Apache-2.0 */
/* sim_net.c: replicas of a counter on a network that delays, loses, doubles and reorders datagrams
 * and cuts directions.
 *
 * Each replica counts its own additions and gossips what it knows of all (the larger number of two
 * is the newer one). Clients ask a replica to add, with a number of their own, and repeat until
 * they are answered; replicas remember the numbers. First faults, then the network heals. Checked:
 *
 *   intact       a datagram arrives as it was sent, at the node it was sent to; a datagram that was
 *                sent into a cut never arrives
 *   known        no replica knows of more additions than were made
 *   once         an addition counts once, however often it was sent
 *   convergence  after healing every client is answered and all replicas agree on the sum */
#include "scenario.h"

enum {
    REPLICAS_MAX = 4,
    CLIENTS_MAX = 3,
    REQUESTS_MAX = 40,
    TAG_NET = 1,
    TAG_GOSSIP = 2,
    TAG_RETRY = 3,
    PADDING = 600
};

enum kind { NET_GOSSIP, NET_ADD, NET_ADDED };

struct datagram {
    uint32_t kind, from, to, number;
    uint64_t counts[REPLICAS_MAX];
    uint64_t checksum;
    uint32_t size; /* of the whole datagram: some are long */
    unsigned char padding[];
};

struct nothing {
    uint32_t id;
};

static struct {
    struct scenario s;
    uint32_t replicas, clients, requests;
    bool healed, cut[REPLICAS_MAX + CLIENTS_MAX + 1][REPLICAS_MAX + CLIENTS_MAX + 1];
    uint64_t made; /* additions that some replica has made */
    uint64_t counts[REPLICAS_MAX][REPLICAS_MAX];
    uint32_t answered, done;
    bool applied[CLIENTS_MAX][REQUESTS_MAX];
    tr_sender senders[REPLICAS_MAX + CLIENTS_MAX];
} now;

static struct {
    uint64_t sent, arrived, repeats;
} seen;

static uint64_t checksum_of(const struct datagram *d)
{
    uint64_t sum = d->kind * UINT64_C(31) + d->from * UINT64_C(37) + d->to * UINT64_C(41) +
                   d->number + d->size;

    for (uint32_t i = 0; i < REPLICAS_MAX; i++)
        sum = sum * 1000003 + d->counts[i];
    for (uint32_t i = 0; i < d->size - sizeof *d; i++)
        sum = sum * 131 + d->padding[i];
    return sum;
}

/* Nodes are numbered from 1: replicas, then clients. */
static void send_datagram(struct tr_context *ctx, uint32_t from, uint32_t to, enum kind kind,
    uint32_t number, const uint64_t *counts)
{
    union {
        struct datagram d;
        unsigned char bytes[sizeof(struct datagram) + PADDING];
    } u = { .d = { .kind = kind, .from = from, .to = to, .number = number } };
    uint32_t padding = tr_random(ctx) % 8 == 0 ? (uint32_t)tr_random(ctx) % PADDING : 0;

    u.d.size = (uint32_t)sizeof u.d + padding;
    if (counts != NULL)
        memcpy(u.d.counts, counts, sizeof u.d.counts);
    for (uint32_t i = 0; i < padding; i++)
        u.d.padding[i] = (unsigned char)(i * 7);
    /* Sent into a cut: delivering it breaks the rule. */
    u.d.checksum = checksum_of(&u.d) ^ (now.cut[from][to] ? 1 : 0);
    CHECK_EQ_INT(tr_net_send(ctx, to, u.bytes, u.d.size), 0);
    seen.sent++;
}

static const struct datagram *receive(const struct tr_event *event, uint32_t node)
{
    const struct datagram *d = event->value;

    CHECK_EQ_INT(event->kind, TR_EVENT_NET);
    CHECK_MSG(event->tag == TAG_NET && event->size >= sizeof *d && event->size == d->size,
        "intact: its size changed");
    CHECK_MSG(d->checksum == checksum_of(d), "intact: its bytes changed, or it crossed a cut");
    CHECK_MSG(d->to == node && d->from == event->id,
        "intact: from %u to %u, arrived at %u from %llu", d->from, d->to, node,
        (unsigned long long)event->id);
    seen.arrived++;
    return d;
}

static enum tr_next handle_nothing(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

/* ---- replicas ------------------------------------------------------------------------------- */

struct replica {
    uint32_t node;
    uint64_t counts[REPLICAS_MAX];
    bool known[CLIENTS_MAX][REQUESTS_MAX];
};

static int replica_start(void *state, struct tr_context *ctx)
{
    struct replica *self = state;

    CHECK_EQ_INT(tr_net_bind(ctx, self->node, TAG_NET), 0);
    return tr_every(ctx, 10 * MS, TAG_GOSSIP, NULL);
}

static void on_gossip_timer(struct replica *self, struct tr_context *ctx)
{
    uint32_t to = 1 + (uint32_t)tr_random(ctx) % now.replicas;

    if (to != self->node)
        send_datagram(ctx, self->node, to, NET_GOSSIP, 0, self->counts);
}

static enum tr_next replica_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct replica *self = state;
    const struct datagram *d;

    if (event->kind == TR_EVENT_TIMER) {
        on_gossip_timer(self, ctx);
        return TR_GO;
    }
    d = receive(event, self->node);
    if (d->kind == NET_GOSSIP) {
        for (uint32_t i = 0; i < now.replicas; i++) {
            CHECK_MSG(d->counts[i] <= now.counts[i][i],
                "known: replica %u hears of more than were made", self->node);
            if (d->counts[i] > self->counts[i])
                self->counts[i] = d->counts[i];
        }
    } else {
        uint32_t client = d->from - 1 - now.replicas;

        CHECK(d->kind == NET_ADD && client < now.clients && d->number < REQUESTS_MAX);
        if (!self->known[client][d->number]) {
            self->known[client][d->number] = true;
            self->counts[self->node - 1]++;
            now.made++;
            CHECK_MSG(!now.applied[client][d->number], "once: counted twice");
            now.applied[client][d->number] = true;
        } else {
            seen.repeats++;
        }
        send_datagram(ctx, self->node, d->from, NET_ADDED, d->number, NULL);
    }
    memcpy(now.counts[self->node - 1], self->counts, sizeof self->counts);
    return TR_GO;
}

static const struct tr_type replica_type = {
    .name = "replica",
    .message_size = sizeof(struct nothing),
    .state_size = sizeof(struct replica),
    .start = replica_start,
    .handle = handle_nothing,
    .event = replica_event,
};

/* ---- clients -------------------------------------------------------------------------------- */

struct client {
    uint32_t node, replica;
    uint32_t number; /* the request under way */
    uint64_t timer;
};

static void ask_on(struct client *self, struct tr_context *ctx)
{
    send_datagram(ctx, self->node, self->replica, NET_ADD, self->number, NULL);
    CHECK_EQ_INT(tr_after(ctx, (5 + tr_random(ctx) % 30) * MS, TAG_RETRY, &self->timer), 0);
}

static int client_start(void *state, struct tr_context *ctx)
{
    struct client *self = state;

    CHECK_EQ_INT(tr_net_bind(ctx, self->node, TAG_NET), 0);
    ask_on(self, ctx);
    return 0;
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *self = state;
    const struct datagram *d;

    if (event->kind == TR_EVENT_TIMER) {
        ask_on(self, ctx);
        return TR_GO;
    }
    d = receive(event, self->node);
    CHECK(d->kind == NET_ADDED);
    if (d->number != self->number)
        return TR_GO; /* an answer that was late, or came twice */
    now.answered++;
    self->number++;
    tr_timer_stop(ctx, self->timer);
    if (self->number < now.requests)
        ask_on(self, ctx);
    else
        now.done++;
    return TR_GO;
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = sizeof(struct nothing),
    .state_size = sizeof(struct client),
    .start = client_start,
    .handle = handle_nothing,
    .event = client_event,
};

/* ---- the run -------------------------------------------------------------------------------- */

static bool is_converged(void)
{
    for (uint32_t i = 0; i < now.replicas; i++)
        for (uint32_t j = 0; j < now.replicas; j++)
            if (now.counts[i][j] != now.counts[j][j])
                return false;
    return now.done == now.clients;
}

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    uint32_t nodes, rounds;
    uint64_t sum = 0;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    now.replicas = between(s, 2, REPLICAS_MAX);
    now.clients = between(s, 1, CLIENTS_MAX);
    now.requests = between(s, 1, 15);
    nodes = now.replicas + now.clients;
    tr_sim_net_faults(s->sim, &(struct tr_net_faults){ .delay_ns_min = below(s, 3) * MS,
                                  .delay_ns_max = between(s, 3, 20) * MS,
                                  .loss_per_million = below(s, 3) * 150000,
                                  .duplicate_per_million = below(s, 3) * 100000,
                                  .reorder_per_million = below(s, 3) * 100000 });
    for (uint32_t i = 0; i < nodes; i++) {
        struct replica replica = { .node = i + 1 };
        struct client client = { .node = i + 1, .replica = 1 + below(s, now.replicas) };
        bool is_replica = i < now.replicas;

        CHECK_EQ_INT(tr_spawn(s->system, is_replica ? &replica_type : &client_type,
                         is_replica ? (void *)&replica : (void *)&client, NULL, &now.senders[i]),
            0);
    }
    rounds = between(s, 5, 30);
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t from = 1 + below(s, nodes), to = 1 + below(s, nodes);

        if (percent(s, 30)) {
            now.cut[from][to] = percent(s, 60);
            tr_sim_net_partition(s->sim, from, to, now.cut[from][to]);
        }
        tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + between(s, 1, 40) * MS);
    }
    /* Healed: no cuts, no losses; then everything settles within a second of virtual time per
     * request. */
    memset(now.cut, 0, sizeof now.cut);
    tr_sim_net_heal(s->sim);
    tr_sim_net_faults(
        s->sim, &(struct tr_net_faults){ .delay_ns_min = 1 * MS, .delay_ns_max = 5 * MS });
    for (uint32_t i = 0; i < 20 * (1 + now.requests) && !is_converged(); i++)
        tr_sim_run_until(s->sim, tr_sim_now_ns(s->sim) + 50 * MS);
    CHECK_MSG(now.done == now.clients, "convergence: %u of %u clients are answered", now.done,
        now.clients);
    CHECK_MSG(is_converged(), "convergence: the replicas do not agree");
    for (uint32_t i = 0; i < now.replicas; i++)
        sum += now.counts[0][i];
    CHECK_MSG(sum == (uint64_t)now.clients * now.requests && sum == now.made,
        "once: %llu additions, %u were asked for", (unsigned long long)sum,
        now.clients * now.requests);
    /* Datagrams under way must not keep anybody alive. */
    for (uint32_t i = 0; i < nodes; i++)
        tr_sender_drop(&now.senders[i]);
    scenario_rest(s);
    return scenario_end(s);
}

TEST_LONG(net, heals_and_converges, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 2000);)
        run(seed);
    scenario_report();
    printf("%llu datagrams sent, %llu arrived, %llu requests repeated\n",
        (unsigned long long)seen.sent, (unsigned long long)seen.arrived,
        (unsigned long long)seen.repeats);
    CHECK_COVERED(seen.sent - seen.arrived, 1000);
    CHECK_COVERED(seen.repeats, 1000);
}

TEST_LONG(net, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
