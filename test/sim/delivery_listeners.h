/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_listeners.h: who listens: the subscribers of sim_delivery.c. A listener stands for the
 * connection of an event stream: it gets the messages that http/stream.c sends to one, is cut when
 * it does not keep up, goes away, and comes back with the cursor it has. */
#ifndef TEST_SIM_DELIVERY_LISTENERS_H
#define TEST_SIM_DELIVERY_LISTENERS_H

#include "delivery_clients.h"
#include "http/connection.h"
#include "http/frame.h"

enum { LISTENERS_MAX = 3 };
/* The stream of a removed member ends within END_MS_MAX. After the faults a page of the log may take
 * up to SETTLE_MS_MAX: a reader that lost its connection waits up to 3 s before it connects. */
enum { END_MS_MAX = 1000, SETTLE_MS_MAX = 5000 };

static struct listener {
    uint32_t convo, user;
    bool is_open;
    bool is_told;        /* `seq` is its cursor; else it began with what came next */
    uint64_t seq;        /* it has heard everything up to here */
    uint64_t stored_seq; /* stored when it came */
    bool is_ahead;       /* `seq` was more than that: it is of a database that is no more */
    uint64_t id;         /* of its stream */
    uint64_t opened_ns, shown_seq;
    tr_weak actor; /* of the conversation */
    tr_sender sender;
} listeners[LISTENERS_MAX];

static struct {
    uint32_t listeners;
    uint64_t id_next;
    bool is_quiet;      /* they come and go no more */
    bool draws_cursors; /* they come with cursors that they have not heard from a stream */
} hall;

struct listener_seat {
    uint32_t index;
};

/* ---- facts ---------------------------------------------------------------------------------- */

/* Everything that was said while it was in, the commit that removed it included. */
static inline bool was_in_for(const struct listener *listener, uint64_t seq)
{
    const struct row *row = &now.truths[listener->convo].rows[seq];

    return seq > 1 && (row[-1].members & 1U << listener->user) != 0;
}

/* A commit that was taken back, or is of a former group, is nothing for anybody, but it may have
 * been heard before that. */
static inline bool is_passed_over(const struct truth *truth, uint64_t seq)
{
    const struct row *row = &truth->rows[seq];

    return row->kind == MLS_COMMIT &&
           (row->is_revoked || row->group != truth->rows[truth->seq].group);
}

static inline bool must_hear(const struct listener *listener, uint64_t seq)
{
    return was_in_for(listener, seq) && !is_passed_over(&now.truths[listener->convo], seq);
}

/* A member whom a revoked commit removed counts as never removed. */
static inline bool may_hear(const struct listener *listener, uint64_t seq)
{
    const struct truth *truth = &now.truths[listener->convo];

    if (was_in_for(listener, seq))
        return true;
    for (uint64_t at = seq; at <= truth->seq; at++)
        if (truth->rows[at].kind == LOG_REVOKE && truth->rows[at].undoes < seq &&
            (truth->rows[at].members & 1U << listener->user) != 0)
            return true;
    return false;
}

static bool has_missed(const struct listener *listener, uint64_t before)
{
    for (uint64_t seq = listener->seq + 1; listener->is_told && seq < before; seq++)
        if (must_hear(listener, seq))
            return true;
    return false;
}

static void check_none_left_out(const struct listener *listener, uint64_t before)
{
    CHECK_MSG(!has_missed(listener, before), "heard: %s of %s heard up to %llu and then %llu",
        user_did(listener->user), convo_id(listener->convo), (unsigned long long)listener->seq,
        (unsigned long long)before);
}

/* Is that what is stored? */
static bool is_true(
    const struct listener *listener, const struct row *row, const struct json *message)
{
    char name[GROUP_NAME_SIZE];
    struct span group;

    if (row->kind == LOG_RESET &&
        (!json_string(json_get(message, "groupId"), &group) ||
            !span_equal(group, group_name(listener->convo, row->group, name))))
        return false;
    if (row->kind == LOG_REVOKE || row->kind == LOG_RESET)
        return (uint64_t)int_of(message, "epoch") == row->current;
    return (uint64_t)int_of(message, "epoch") == row->epoch &&
           (uint64_t)int_of(message, "baseEpoch") == row->base_epoch;
}

static void check_heard(struct listener *listener, const struct json *message, struct span type)
{
    static const char *const types[] = { "", "app", "proposal", "commit", "", "revoke", "",
        "reset" };
    const struct truth *truth = &now.truths[listener->convo];
    uint64_t seq = (uint64_t)int_of(message, "seq");
    struct heard *heard = &now.heard[listener->convo];
    const struct row *row = &truth->rows[seq];

    CHECK_MSG(seq <= truth->seq, "committed: %s heard of %llu of %s, and stored is %llu",
        user_did(listener->user), (unsigned long long)seq, convo_id(listener->convo),
        (unsigned long long)truth->seq);
    CHECK_MSG(!listener->is_told || seq > listener->seq, "heard: %s of %s heard %llu after %llu",
        user_did(listener->user), convo_id(listener->convo), (unsigned long long)seq,
        (unsigned long long)listener->seq);
    check_none_left_out(listener, seq);
    CHECK_MSG(may_hear(listener, seq), "members: %s was not in, and heard %llu of %s",
        user_did(listener->user), (unsigned long long)seq, convo_id(listener->convo));
    CHECK_MSG(span_is(type, types[row->kind]) && is_true(listener, row, message),
        "heard: %s was told something else of %llu of %s than is stored", user_did(listener->user),
        (unsigned long long)seq, convo_id(listener->convo));
    listener->seq = seq;
    listener->is_told = true;
    heard->ops[seq] = row->op == NOT_NAMED ? 0 : row->op + 1;
    if (heard->seq < seq)
        heard->seq = seq;
    seen.heard++;
    seen.resets_heard += row->kind == LOG_RESET;
}

/* Since when is nobody in the way of its end? 0: it may listen. */
static uint64_t out_since_ns(const struct listener *listener)
{
    const struct truth *truth = &now.truths[listener->convo];
    unsigned bit = 1U << listener->user;
    uint64_t seq = truth->seq, since_ns;

    if (!truth->is_there || (truth->rows[seq].members & bit) != 0)
        return 0;
    while (seq > 1 && (truth->rows[seq - 1].members & bit) == 0)
        seq--;
    since_ns = truth->rows[seq].stored_ns;
    since_ns = since_ns < listener->opened_ns ? listener->opened_ns : since_ns;
    return since_ns < world.calm_ns ? world.calm_ns : since_ns;
}

static void check_may_listen(const struct listener *listener)
{
    uint64_t since_ns = out_since_ns(listener), now_ns = tr_sim_now_ns(now.s.sim);

    CHECK_MSG(!listener->is_open || since_ns == 0 || is_troubled() ||
                  now_ns <= since_ns + END_MS_MAX * MS,
        "ended: %s of %s was removed %llu ms ago, and its stream is open", user_did(listener->user),
        convo_id(listener->convo), (unsigned long long)((now_ns - since_ns) / MS));
}

static bool is_removal(const struct listener *listener, uint64_t seq)
{
    const struct truth *truth = &now.truths[listener->convo];

    return seq > 1 && is_in(truth, seq - 1, listener->user) && !is_in(truth, seq, listener->user);
}

/* It ends behind the commit that removed it: that is the last thing it hears, unless the commit is
 * of a former group. */
static void check_removed(const struct listener *listener)
{
    const struct truth *truth = &now.truths[listener->convo];
    uint64_t seq = listener->is_told ? listener->seq : listener->shown_seq;
    bool is_heard = listener->is_told && is_removal(listener, seq);

    while (!is_heard && seq <= truth->seq &&
           !(is_removal(listener, seq) && is_passed_over(truth, seq)))
        seq++;
    CHECK_MSG(seq <= truth->seq,
        "ended: %s of %s was told that it is removed, and has not heard the commit (%llu)",
        user_did(listener->user), convo_id(listener->convo), (unsigned long long)listener->seq);
    check_may_listen(listener);
    seen.ends_removed++;
}

/* It hears where the log ends: at some moment since it came. */
static void check_ahead(struct listener *listener, const struct json *info)
{
    uint64_t seq = (uint64_t)int_of(info, "seq");

    CHECK_MSG(listener->is_ahead,
        "ahead: %s of %s came with %llu, was told that the log ends before, and stored was %llu",
        user_did(listener->user), convo_id(listener->convo), (unsigned long long)listener->seq,
        (unsigned long long)listener->stored_seq);
    CHECK_MSG(seq >= listener->stored_seq && seq < listener->seq &&
                  seq <= now.truths[listener->convo].seq,
        "ahead: %s of %s came with %llu, and was told that the log ends at %llu",
        user_did(listener->user), convo_id(listener->convo), (unsigned long long)listener->seq,
        (unsigned long long)seq);
    listener->seq = seq;
    seen.ahead++;
}

static bool have_all_heard(void)
{
    for (uint32_t i = 0; i < hall.listeners; i++)
        if (listeners[i].is_open &&
            has_missed(&listeners[i], now.truths[listeners[i].convo].seq + 1))
            return false;
    return true;
}

/* No request is in flight: every listener gets all events without another request, and no other
 * client gets any. */
static void check_listeners(void)
{
    uint64_t begin_ns = tr_sim_now_ns(now.s.sim);

    tr_sim_run_until(now.s.sim, begin_ns + END_MS_MAX * MS);
    while (!have_all_heard() && tr_sim_now_ns(now.s.sim) < begin_ns + SETTLE_MS_MAX * MS)
        tr_sim_run_until(now.s.sim, tr_sim_now_ns(now.s.sim) + 100 * MS);
    for (uint32_t i = 0; i < hall.listeners; i++) {
        struct listener *listener = &listeners[i];

        if (!listener->is_open)
            continue;
        CHECK_MSG(out_since_ns(listener) == 0, "ended: %s of %s is out, and its stream is open",
            user_did(listener->user), convo_id(listener->convo));
        check_none_left_out(listener, now.truths[listener->convo].seq + 1);
        CHECK_MSG(!listener->is_told || listener->seq <= now.truths[listener->convo].seq,
            "ahead: %s of %s listens behind %llu, which is not there", user_did(listener->user),
            convo_id(listener->convo), (unsigned long long)listener->seq);
        seen.listening++;
    }
}

static void check_all_ended(void)
{
    for (uint32_t i = 0; i < hall.listeners; i++)
        CHECK_MSG(!listeners[i].is_open,
            "ended: the service is gone, and the stream of %s of %s is open",
            user_did(listeners[i].user), convo_id(listeners[i].convo));
}

/* Every event that a listener got is in the log after all faults. */
static void check_heard_is_there(void)
{
    for (uint32_t i = 0; i < CONVOS; i++) {
        CHECK_MSG(now.truths[i].seq >= now.heard[i].seq,
            "durable: %s is at %llu, and somebody has heard %llu", convo_id(i),
            (unsigned long long)now.truths[i].seq, (unsigned long long)now.heard[i].seq);
        for (uint64_t seq = 2; seq <= now.heard[i].seq; seq++)
            CHECK_MSG(now.heard[i].ops[seq] == 0 ||
                          now.heard[i].ops[seq] == now.truths[i].rows[seq].op + 1,
                "durable: %s's %llu is another than somebody has heard", convo_id(i),
                (unsigned long long)seq);
    }
}

/* ---- the stream ----------------------------------------------------------------------------- */

static void note_who_listens(void)
{
    memset(world.listening, 0, sizeof world.listening);
    for (uint32_t i = 0; i < hall.listeners; i++)
        if (listeners[i].is_open)
            world.listening[listeners[i].convo] |= 1U << listeners[i].user;
}

static void subscribe(struct listener *listener, struct tr_context *ctx)
{
    struct auth_claims claims = { .kind = AUTH_SERVICE,
        .issuer = span_of(user_did(listener->user)),
        .jti = SPAN("t-0"),
        .expires_s = UINT32_MAX };
    struct act *act = act_create(&subscribe_act_type, &claims);
    struct act_envelope message = { .act = act };
    uint64_t id = ++hall.id_next;
    tr_sender convo;
    int rc;

    CHECK(act != NULL);
    act->convo = span_of(convo_id(listener->convo));
    act_subscribe(act)->seq = listener->is_told ? listener->seq : INT64_MAX;
    act_subscribe(act)->stream = (http_stream){ tr_self(ctx), id };
    act_subscribe(act)->stream_number = id;
    rc = tr_registry_get(now.delivery.convos, act->convo.at, act->convo.size, "a stream", &convo);
    if (rc == 0) {
        listener->actor = act_subscribe(act)->watcher = tr_sender_weaken(convo);
        rc = tr_tell_with(
            convo, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL });
        tr_sender_drop(&convo);
    }
    if (rc < 0) {
        act_unref(act);
        return;
    }
    listener->id = id;
    listener->is_open = true;
    note_who_listens();
    listener->opened_ns = tr_now_ns(ctx);
    listener->shown_seq = now.truths[listener->convo].shown_seq;
    listener->stored_seq = now.truths[listener->convo].seq;
    listener->is_ahead = listener->is_told && listener->seq > listener->stored_seq;
    seen.streams++;
}

/* The connection tells who watches it, as http/stream.c does. */
static void close_stream(struct listener *listener)
{
    struct act_envelope notice = { NULL, listener->id };
    tr_sender convo;

    listener->is_open = false;
    note_who_listens();
    if (tr_weak_upgrade(listener->actor, "a stream", &convo) < 0)
        return;
    (void)tr_try_tell_with(
        convo, &notice, sizeof notice, &(struct tr_send_options){ .lane = TR_CONTROL });
    tr_sender_drop(&convo);
}

/* The data of a server-sent event, and its name. */
static void parse_frame(
    const struct http_frame *frame, char *name, size_t size, struct json_doc *doc)
{
    const char *text = http_frame_bytes(frame);
    const char *event = memmem(text, frame->size, "event: ", 7);
    const char *data = memmem(text, frame->size, "data: ", 6);

    CHECK(event != NULL && data != NULL);
    (void)snprintf(name, size, "%.*s", (int)strcspn(event + 7, "\n"), event + 7);
    data += 6;
    CHECK_EQ_INT(
        json_parse_copy(doc, (struct span){ data, frame->size - (size_t)(data - text) - 2 }, 0), 0);
}

static void on_frame(struct listener *listener, const struct http_frame *frame)
{
    struct json_doc doc = { 0 };
    const struct json *message;
    struct span type;
    char name[40];

    parse_frame(frame, name, sizeof name, &doc);
    message = json_get(json_root(&doc), "message");
    if (strcmp(name, "messageEvent") == 0 && json_string(json_get(message, "messageType"), &type))
        check_heard(listener, message, type);
    else if (strcmp(name, "commitRevokedEvent") == 0)
        check_heard(listener, json_root(&doc), SPAN("revoke"));
    else if (strcmp(name, "groupResetEvent") == 0)
        check_heard(listener, json_root(&doc), SPAN("reset"));
    json_doc_free(&doc);
}

/* With where to resume: it has heard everything up to there. True: its cursor was refused. */
static bool on_last_frame(struct listener *listener, const struct http_frame *frame)
{
    struct json_doc doc = { 0 };
    struct span info;
    bool is_refused;
    char name[40];

    parse_frame(frame, name, sizeof name, &doc);
    CHECK_EQ_STR(name, "infoEvent");
    CHECK(json_string(json_get(json_root(&doc), "info"), &info));
    is_refused = span_is(info, "CursorAhead");
    if (is_refused)
        check_ahead(listener, json_root(&doc));
    else
        check_none_left_out(listener, (uint64_t)int_of(json_root(&doc), "seq") + 1);
    if (span_is(info, "removed") && !listener->is_ahead)
        check_removed(listener);
    json_doc_free(&doc);
    return is_refused;
}

static void on_end(struct listener *listener, const struct http_message *message)
{
    const struct truth *truth = &now.truths[listener->convo];
    bool is_refused = message->frame != NULL && on_last_frame(listener, message->frame);
    bool was_out = !truth->is_there;

    for (uint64_t seq = listener->shown_seq; seq <= truth->seq && !was_out; seq++)
        was_out = !is_in(truth, seq, listener->user);
    CHECK_MSG(was_out || is_refused || message->code != 1008 || !world.is_healed,
        "healed: %s of %s may not listen, and was always in", user_did(listener->user),
        convo_id(listener->convo));
    close_stream(listener);
}

static enum tr_next listener_handle(void *state, struct tr_context *ctx, void *memory)
{
    struct listener *listener = &listeners[((struct listener_seat *)state)->index];
    struct http_message *message = memory;

    if (message->kind == MESSAGE_RUN) {
        if (listener->is_open)
            close_stream(listener);
        listener->convo = message->code;
        listener->user = (uint32_t)message->id;
        listener->seq = 0;
        listener->is_told = true;
        if (!world.is_down && !hall.is_quiet)
            subscribe(listener, ctx);
    } else if (listener->is_open && message->id == listener->id) {
        if (message->kind == MESSAGE_FRAME) {
            on_frame(listener, message->frame);
        } else if (message->kind == MESSAGE_END) {
            on_end(listener, message);
        } else {
            close_stream(listener);
            seen.slow++;
        }
    }
    http_frame_unref(message->frame);
    return TR_GO;
}

/* ---- coming and going ----------------------------------------------------------------------- */

static bool may_listen(const struct listener *listener)
{
    return is_in(&now.truths[listener->convo], now.truths[listener->convo].seq, listener->user);
}

/* Rather somebody who may. */
static void draw_listener(struct listener *listener, struct tr_context *ctx)
{
    int tries = 0;

    do {
        listener->convo = draw(ctx, CONVOS);
        listener->user = draw(ctx, USERS);
    } while (!may_listen(listener) && tries++ < 12);
    listener->is_told = draw(ctx, 4) > 0;
    listener->seq = 0;
}

/* A cursor that was in the database a moment ago, or in one that was replaced. */
static void draw_cursor(struct listener *listener, struct tr_context *ctx)
{
    listener->seq = now.truths[listener->convo].seq + (draw(ctx, 3) > 0 ? 0 : 1 + draw(ctx, 3));
    listener->is_told = true;
    seen.edges++;
}

static void come_or_go(struct listener *listener, struct tr_context *ctx)
{
    if (world.is_down || hall.is_quiet)
        return;
    if (listener->is_open) {
        if (draw(ctx, 20) == 0)
            close_stream(listener);
        return;
    }
    if (draw(ctx, 3) == 0)
        draw_listener(listener, ctx);
    else if (draw(ctx, 3) == 0) /* it has lost what it had */
        listener->seq = draw(ctx, 1 + (uint32_t)listener->seq);
    else if (hall.draws_cursors && may_listen(listener) && draw(ctx, 4) > 0)
        draw_cursor(listener, ctx);
    if (may_listen(listener) || draw(ctx, 8) == 0)
        subscribe(listener, ctx);
}

static enum tr_next listener_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct listener *listener = &listeners[((struct listener_seat *)state)->index];

    if (event->kind != TR_EVENT_TIMER)
        return TR_GO;
    check_may_listen(listener);
    come_or_go(listener, ctx);
    CHECK_EQ_INT(tr_after(ctx, MS + tr_random(ctx) % (listener->is_open ? 40 * MS : 10 * MS),
                     TAG_AGAIN, NULL),
        0);
    return TR_GO;
}

static int listener_start(void *state, struct tr_context *ctx)
{
    draw_listener(&listeners[((struct listener_seat *)state)->index], ctx);
    return tr_after(ctx, MS + tr_random(ctx) % (40 * MS), TAG_AGAIN, NULL);
}

static void listener_drop(void *memory)
{
    http_frame_unref(((struct http_message *)memory)->frame);
}

static const struct tr_type listener_type = {
    .name = "listener",
    .message_size = sizeof(struct http_message),
    .state_size = sizeof(struct listener_seat),
    .start = listener_start,
    .handle = listener_handle,
    .event = listener_event,
    .message_drop = listener_drop,
};

static void call_listener(const struct request *request)
{
    struct http_message message = {
        .kind = MESSAGE_RUN, .code = request->convo, .id = request->target
    };

    if (hall.listeners > 0)
        (void)tr_try_tell(
            listeners[request->target % hall.listeners].sender, &message, sizeof message);
}

/* In two runs of five, chosen by the seed itself: the others draw as if there were no such thing.
 */
static bool draws_cursors(uint64_t seed)
{
    return seed % 5 > 2;
}

static void start_listeners(uint64_t seed)
{
    memset(listeners, 0, sizeof listeners);
    memset(&hall, 0, sizeof hall);
    hall.draws_cursors = draws_cursors(seed);
    hall.listeners = below(&now.s, LISTENERS_MAX + 1);
    for (uint32_t i = 0; i < hall.listeners; i++) {
        struct tr_box_options box = { .capacity = percent(&now.s, 20) ? 2 : 64,
            .full = TR_FULL_FAIL };

        CHECK_EQ_INT(tr_spawn(now.s.system, &listener_type, &(struct listener_seat){ i },
                         &(struct tr_spawn_options){ .owner = "the scenario", .box = box },
                         &listeners[i].sender),
            0);
    }
}

static void stop_listeners(void)
{
    for (uint32_t i = 0; i < hall.listeners; i++)
        tr_sender_drop(&listeners[i].sender);
}

#endif
