/* SPDX-License-Identifier: Apache-2.0 */
/* ready_topic.c: publish once, every subscriber gets a copy.
 *
 * A subscriber has a place in an array, which is the tag of its death watch, and an entry in a
 * table by its weak sender, which is its identity. Publishing walks the array; the topic never
 * waits for a box, unless a subscriber asked for that. */
#include <string.h>

#include <troupe/topic.h>

#include "base/alloc.h"
#include "runtime/box.h"
#include "runtime/list.h"
#include "runtime/ready.h"
#include "runtime/system.h"

enum { SUBSCRIBERS_DEFAULT = 1024 };

enum { KIND_PUBLISH = READY_STATS + 1, KIND_SUBSCRIBE, KIND_UNSUBSCRIBE };

/* The value of a subscribe message; the notice follows. The sender is the message's own. */
struct request {
    tr_sender sender;
    tr_weak weak;
    enum tr_lane lane;
    enum tr_slow slow;
    bool has_notice;
};

struct subscriber {
    struct tr__entry entry; /* its key is `weak` */
    tr_weak weak;
    tr_sender sender; /* {0}: weak */
    uint32_t place;
    enum tr_lane lane;
    enum tr_slow slow;
    bool has_notice;
    _Alignas(16) unsigned char notice[];
};

struct tr__topic {
    struct tr__table table;
    struct subscriber **places; /* NULL: free */
    uint32_t places_used;       /* all that are taken come before this */
    uint32_t capacity;
    struct tr_topic_stats stats;
};

/* ---- subscribers ---------------------------------------------------------------------------- */

static struct subscriber *topic_find(const struct tr__topic *inner, tr_weak weak)
{
    /* A struct of a pointer and 64 bits: no padding to differ in. */
    struct tr__entry *entry = tr__table_find(&inner->table, &weak, sizeof weak);

    return entry == NULL ? NULL : tr__container(entry, struct subscriber, entry);
}

static void topic_forget(struct tr__topic *inner, struct subscriber *subscriber)
{
    inner->places[subscriber->place] = NULL;
    while (inner->places_used > 0 && inner->places[inner->places_used - 1] == NULL)
        inner->places_used--;
    tr__table_remove(&inner->table, &subscriber->entry);
    tr_sender_drop(&subscriber->sender);
    base_free(subscriber);
}

/* Find a free place, or return the error. */
static int place_alloc(struct tr_topic *self, uint32_t *ret_place)
{
    struct tr__topic *inner = self->inner;
    struct subscriber **places;

    if (inner->table.count >= tr__or(self->options.subscribers_max, SUBSCRIBERS_DEFAULT))
        return TR_EFULL;
    if (inner->places_used == inner->capacity) {
        for (uint32_t i = 0; i < inner->places_used; i++)
            if (inner->places[i] == NULL) {
                *ret_place = i;
                return 0;
            }
        places = base_grow(inner->places, &inner->capacity, 16, sizeof *places);
        if (places == NULL)
            return TR_ENOMEM;
        inner->places = places;
    }
    *ret_place = inner->places_used;
    return 0;
}

static int subscriber_alloc(struct tr_topic *self, struct tr_context *ctx,
    const struct request *request, tr_weak weak, const unsigned char *notice)
{
    struct tr__topic *inner = self->inner;
    struct subscriber *subscriber;
    uint32_t place;
    int rc;

    rc = place_alloc(self, &place);
    if (rc < 0)
        return rc;
    subscriber = base_alloc(sizeof *subscriber + self->options.message_size);
    if (subscriber == NULL)
        return TR_ENOMEM;
    *subscriber = (struct subscriber){ .weak = weak,
        .sender = request->sender,
        .place = place,
        .lane = request->lane,
        .slow = request->slow,
        .has_notice = request->has_notice };
    subscriber->entry.key = (const unsigned char *)&subscriber->weak;
    subscriber->entry.key_size = sizeof subscriber->weak;
    if (request->has_notice)
        memcpy(subscriber->notice, notice, self->options.message_size);
    rc = tr_watch(ctx, weak, place);
    if (rc < 0) {
        base_free(subscriber);
        return rc;
    }
    inner->places[place] = subscriber;
    if (place == inner->places_used)
        inner->places_used++;
    tr__table_add(&inner->table, &subscriber->entry);
    return 0;
}

/* On success the request's sender is the subscriber's. */
static int topic_subscribe(struct tr_topic *self, struct tr_context *ctx, struct request *request,
    const unsigned char *notice)
{
    tr_sender sender = request->sender;
    tr_weak weak = sender.box != NULL ? tr_sender_weaken(sender) : request->weak;
    int rc;

    if (weak.box == NULL)
        return TR_ECLOSED;
    if (weak.box->system != tr_system_of(ctx))
        return TR_EINVAL;
    /* Its type may be looked at only while it is held. */
    if (sender.box == NULL) {
        rc = tr_weak_upgrade(weak, "topic", &sender);
        if (rc < 0)
            return rc;
    }
    if (sender.box->type->message_size != self->options.message_size)
        rc = TR_EINVAL;
    else if (tr_sender_is_closed(sender))
        rc = TR_ECLOSED;
    else if (topic_find(self->inner, weak) != NULL)
        rc = TR_EEXIST;
    else
        rc = subscriber_alloc(self, ctx, request, weak, notice);
    if (request->sender.box == NULL)
        tr_sender_drop(&sender);
    else if (rc == 0)
        request->sender = (tr_sender){ 0 };
    return rc;
}

/* ---- publishing ----------------------------------------------------------------------------- */

static int deliver_to(
    const struct subscriber *subscriber, tr_sender sender, const void *message, uint32_t size)
{
    const struct tr_send_options options = { .lane = subscriber->lane };

    return subscriber->slow == TR_SLOW_WAIT ? tr_tell_with(sender, message, size, &options)
                                            : tr_try_tell_with(sender, message, size, &options);
}

static void publish_to(struct tr_topic *self, struct tr_context *ctx, struct subscriber *subscriber,
    const void *message)
{
    struct tr__topic *inner = self->inner;
    tr_sender sender = subscriber->sender, upgraded = { 0 };
    uint32_t size = self->options.message_size;
    int rc = 0;

    if (sender.box == NULL) {
        rc = tr_weak_upgrade(subscriber->weak, "topic", &upgraded);
        sender = upgraded;
    }
    if (rc == 0)
        rc = deliver_to(subscriber, sender, message, size);
    inner->stats.delivered += rc == 0;
    inner->stats.dropped += rc < 0;
    if (rc == TR_EFULL && subscriber->slow == TR_SLOW_LEAVE) {
        if (subscriber->has_notice)
            tr_tell_with(
                sender, subscriber->notice, size, &(struct tr_send_options){ .lane = TR_CONTROL });
        inner->stats.left++;
        tr_unwatch(ctx, subscriber->weak);
        topic_forget(inner, subscriber);
    }
    tr_sender_drop(&upgraded);
}

/* ---- messages ------------------------------------------------------------------------------- */

static int handle_publish(
    struct tr_topic *self, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct tr__topic *inner = self->inner;

    if (m->value_size != self->options.message_size)
        return TR_EINVAL;
    inner->stats.published++;
    for (uint32_t i = 0; i < inner->places_used; i++)
        if (inner->places[i] != NULL)
            publish_to(self, ctx, inner->places[i], tr__ready_value(m));
    return 0;
}

static int handle_subscribe(
    struct tr_topic *self, struct tr_context *ctx, struct tr__ready_message *m)
{
    const unsigned char *value = tr__ready_value(m);
    struct request request;
    int rc;

    memcpy(&request, value, sizeof request);
    if (request.has_notice && m->value_size != sizeof request + self->options.message_size)
        rc = TR_EINVAL;
    else
        rc = topic_subscribe(self, ctx, &request, value + sizeof request);
    tr_sender_drop(&request.sender);
    m->kind = KIND_UNSUBSCRIBE; /* the topic owns the sender now */
    return rc;
}

static int handle_unsubscribe(
    struct tr__topic *inner, struct tr_context *ctx, const struct tr__ready_message *m)
{
    struct subscriber *subscriber;
    tr_weak weak;

    memcpy(&weak, tr__ready_value(m), sizeof weak);
    subscriber = topic_find(inner, weak);
    if (subscriber == NULL)
        return TR_ENOENT;
    tr_unwatch(ctx, weak);
    topic_forget(inner, subscriber);
    return 0;
}

/* A subscription that was never handled gives its sender back. */
static void message_drop(void *message)
{
    struct tr__ready_message *m = message;

    if (m->kind == KIND_SUBSCRIBE) {
        struct request request;

        memcpy(&request, tr__ready_value(m), sizeof request);
        tr_sender_drop(&request.sender);
    }
    tr__ready_release(m);
}

static enum tr_next topic_handle(void *state, struct tr_context *ctx, void *message)
{
    struct tr_topic *self = state;
    struct tr__topic *inner = self->inner;
    struct tr__ready_message *m = message;
    int rc = 0;

    switch (m->kind) {
    case KIND_PUBLISH:
        rc = handle_publish(self, ctx, m);
        break;
    case KIND_SUBSCRIBE:
        rc = handle_subscribe(self, ctx, m);
        break;
    case KIND_UNSUBSCRIBE:
        rc = handle_unsubscribe(inner, ctx, m);
        break;
    case READY_STATS:
        inner->stats.subscribers = inner->table.count;
        tr_reply(ctx, 0, &inner->stats, sizeof inner->stats);
        break;
    }
    inner->stats.refused += rc < 0 && rc != TR_ENOENT;
    tr_reply(ctx, rc, NULL, 0); /* if it is an ask, and not answered yet */
    tr__ready_release(m);
    return TR_GO;
}

static enum tr_next topic_on_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct tr_topic *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_DOWN) {
        self->inner->stats.ended++;
        topic_forget(self->inner, self->inner->places[event->tag]);
    }
    return TR_GO;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void topic_finish(void *state)
{
    struct tr_topic *self = state;
    struct tr__topic *inner = self->inner;

    if (inner == NULL)
        return;
    while (inner->places_used > 0)
        topic_forget(inner, inner->places[inner->places_used - 1]);
    tr__table_fini(&inner->table);
    base_free(inner->places);
    base_free(inner);
    self->inner = NULL;
}

static int watch_all(struct tr__topic *inner, struct tr_context *ctx)
{
    for (uint32_t i = 0; i < inner->places_used; i++)
        if (inner->places[i] != NULL) {
            int rc = tr_watch(ctx, inner->places[i]->weak, i);

            if (rc < 0)
                return rc;
        }
    return 0;
}

static int topic_start(void *state, struct tr_context *ctx)
{
    struct tr_topic *self = state;
    int rc;

    if (self->options.message_size == 0 || self->options.message_size > TR_TOPIC_MESSAGE_SIZE_MAX)
        return TR_EINVAL;
    if (self->inner != NULL)
        return watch_all(self->inner, ctx);
    self->inner = base_calloc(sizeof *self->inner);
    if (self->inner == NULL)
        return TR_ENOMEM;
    rc = tr__table_init(&self->inner->table, ctx);
    if (rc < 0)
        topic_finish(self);
    return rc;
}

/* A restart keeps the subscribers: they could not know that they have to come again. Their watches
 * went with the life before; start sets them anew. */
static int topic_reset(void *state, enum tr_why why)
{
    (void)state;
    (void)why;
    return 0;
}

static const char *topic_message_name(const void *message)
{
    static const char *const names[] = { "stats", "publish", "subscribe", "unsubscribe" };

    return names[((const struct tr__ready_message *)message)->kind];
}

const struct tr_type tr_topic_type = {
    .name = "topic",
    .message_size = sizeof(struct tr__ready_message),
    .state_size = sizeof(struct tr_topic),
    .start = topic_start,
    .handle = topic_handle,
    .event = topic_on_event,
    .finish = topic_finish,
    .reset = topic_reset,
    .message_drop = message_drop,
    .message_name = topic_message_name,
};

int tr_topic_spawn(struct tr_system *system, const struct tr_topic_options *options,
    const struct tr_spawn_options *spawn, tr_topic_sender *ret_sender)
{
    struct tr_topic self = { .options = *options };

    if (options->message_size == 0 || options->message_size > TR_TOPIC_MESSAGE_SIZE_MAX)
        return TR_EINVAL;
    return tr_spawn(system, &tr_topic_type, &self, spawn, &ret_sender->raw);
}

/* ---- its face ------------------------------------------------------------------------------- */

static int subscribe_message(
    const struct tr_subscription *subscription, struct tr__ready_message *ret_message)
{
    struct request request;
    int rc;

    memset(&request, 0, sizeof request); /* it travels as bytes: no padding left to chance */
    request.weak = subscription->weak;
    request.lane = subscription->lane;
    request.slow = subscription->slow;
    request.has_notice = subscription->notice_size != 0;
    request.sender = tr_sender_clone(subscription->sender, "topic");
    *ret_message = (struct tr__ready_message){ .kind = KIND_SUBSCRIBE };
    rc = tr__ready_fill_parts(ret_message, (struct tr__bytes){ 0 },
        (struct tr__bytes){ &request, sizeof request },
        (struct tr__bytes){ subscription->notice, subscription->notice_size });
    if (rc < 0)
        tr_sender_drop(&request.sender);
    return rc;
}

/* A tell if ctx is NULL. The sender in a message that could not be sent is released. */
static int topic_send_subscribe(struct tr_context *ctx, tr_topic_sender topic,
    const struct tr_subscription *subscription, const struct tr_ask_options *options)
{
    struct tr__ready_message m;
    struct request request;
    int rc = subscribe_message(subscription, &m);

    if (rc < 0)
        return rc;
    memcpy(&request, tr__ready_value(&m), sizeof request);
    rc = ctx == NULL ? tr__ready_tell(topic.raw, &m, TR_INTERACTIVE)
                     : tr__ready_ask(ctx, topic.raw, &m, options);
    if (rc < 0)
        tr_sender_drop(&request.sender);
    return rc;
}

int tr_topic_subscribe(tr_topic_sender topic, const struct tr_subscription *subscription)
{
    return topic_send_subscribe(NULL, topic, subscription, NULL);
}

int tr_topic_subscribe_ask(struct tr_context *ctx, tr_topic_sender topic,
    const struct tr_subscription *subscription, const struct tr_ask_options *options)
{
    return topic_send_subscribe(ctx, topic, subscription, options);
}

static int unsubscribe_message(tr_weak subscriber, struct tr__ready_message *ret_message)
{
    *ret_message = (struct tr__ready_message){ .kind = KIND_UNSUBSCRIBE };
    return tr__ready_fill(
        ret_message, (struct tr__bytes){ 0 }, (struct tr__bytes){ &subscriber, sizeof subscriber });
}

int tr_topic_unsubscribe(tr_topic_sender topic, tr_weak subscriber)
{
    struct tr__ready_message m;
    int rc = unsubscribe_message(subscriber, &m);

    return rc < 0 ? rc : tr__ready_tell(topic.raw, &m, TR_INTERACTIVE);
}

int tr_topic_unsubscribe_ask(struct tr_context *ctx, tr_topic_sender topic, tr_weak subscriber,
    const struct tr_ask_options *options)
{
    struct tr__ready_message m;
    int rc = unsubscribe_message(subscriber, &m);

    return rc < 0 ? rc : tr__ready_ask(ctx, topic.raw, &m, options);
}

int tr_topic_publish(tr_topic_sender topic, const void *message, size_t size)
{
    struct tr__ready_message m = { .kind = KIND_PUBLISH };
    int rc = tr__ready_fill(&m, (struct tr__bytes){ 0 }, (struct tr__bytes){ message, size });

    return rc < 0 ? rc : tr__ready_tell(topic.raw, &m, TR_INTERACTIVE);
}
