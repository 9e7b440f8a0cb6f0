/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/03-asking.md: an actor that asks another one, with and without holding. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

#define MS UINT64_C(1000000) /* a millisecond, in nanoseconds */

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* Knows prices, and takes its time: it answers a tick of the clock later. */
struct prices {
    tr_reply_handle asker;
    int fruit;
};

static enum tr_next prices_handle(void *state, struct tr_context *ctx, void *message)
{
    struct prices *self = state;

    self->fruit = *(const int *)message;
    self->asker = tr_reply_take(ctx);
    return tr_after(ctx, MS, 0, NULL) < 0 ? TR_FAIL : TR_GO;
}

static enum tr_next prices_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct prices *self = state;
    int price = 10 * self->fruit;

    (void)ctx;
    if (event->kind == TR_EVENT_TIMER)
        tr_reply_send(&self->asker, 0, &price, sizeof price);
    return TR_GO;
}

static const struct tr_type prices_type = {
    .name = "prices",
    .message_size = sizeof(int),
    .state_size = sizeof(struct prices),
    .handle = prices_handle,
    .event = prices_event,
};
TR_ACTOR(prices, struct prices, int)

/* Sells fruit. It has to know the price before it serves the next customer. */
struct shop {
    prices_sender prices; /* owned */
    int sold;
};

struct shop_message {
    enum { SHOP_BUY, SHOP_HELLO } kind;
    int fruit;
};

static enum tr_next shop_handle(void *state, struct tr_context *ctx, void *message)
{
    struct shop *self = state;
    const struct shop_message *m = message;

    switch (m->kind) {
    case SHOP_BUY:
        printf("shop: what does %d cost?\n", m->fruit);
        /* The answer comes as an event with this tag; until then only control messages run. */
        if (prices_ask(ctx, self->prices, m->fruit,
                &(struct tr_ask_options){ .tag = (uint32_t)m->fruit, .hold = true }) < 0)
            return TR_FAIL;
        break;
    case SHOP_HELLO:
        printf("shop: hello, %d sold so far\n", self->sold);
        break;
    }
    return TR_GO;
}

static enum tr_next shop_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct shop *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_REPLY && event->status == 0) {
        printf("shop: %u costs %d\n", event->tag, *(const int *)event->value);
        self->sold++;
    }
    return TR_GO;
}

static void shop_finish(void *state)
{
    struct shop *self = state;

    prices_drop(&self->prices);
}

static const struct tr_type shop_type = {
    .name = "shop",
    .message_size = sizeof(struct shop_message),
    .state_size = sizeof(struct shop),
    .handle = shop_handle,
    .event = shop_event,
    .finish = shop_finish,
};
TR_ACTOR(shop, struct shop, struct shop_message)

int main(void)
{
    struct tr_system *system;
    struct prices prices = { 0 };
    struct shop shop = { 0 };
    shop_sender sender;

    must(tr_system_create(NULL, &system));
    must(
        prices_spawn(system, &prices, &(struct tr_spawn_options){ .owner = "shop" }, &shop.prices));
    must(shop_spawn(system, &shop, NULL, &sender));
    must(shop_tell(sender, (struct shop_message){ SHOP_BUY, 3 }));
    must(shop_tell(sender, (struct shop_message){ .kind = SHOP_HELLO }));
    must(shop_tell(sender, (struct shop_message){ SHOP_BUY, 5 }));
    shop_drop(&sender);
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return 0;
}
