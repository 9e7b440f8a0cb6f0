/* SPDX-License-Identifier: Apache-2.0 */
/* push_people.h: the people of sim_push.c. They talk, register and unregister push tokens, and
 * listen. */
#ifndef TEST_SIM_PUSH_PEOPLE_H
#define TEST_SIM_PUSH_PEOPLE_H

#include "auth/auth.h"
#include "base/alloc.h"
#include "http/connection.h"
#include "push_facts.h"
#include "services/common/call.h"

enum { TALKERS = 4, LISTENERS = 3, TAG_AGAIN = 1, TAG_SAID = 2, TAG_TOKEN = 3 };

static struct {
    bool is_down;   /* nobody may ask */
    bool is_silent; /* nobody says anything; tokens come and go */
    bool is_quiet;  /* nobody begins anything */
    uint64_t pause_ns;
    uint32_t busy; /* talkers that wait for an answer */
    uint64_t stream_id, ticket;
} people;

/* A member, rather than anybody. */
static inline uint32_t draw_user(struct tr_context *ctx, uint32_t convo)
{
    uint32_t user = draw(ctx, USERS);

    for (int i = 0; i < 12 && !now.seats[convo][user].is_in; i++)
        user = draw(ctx, USERS);
    return user;
}

static inline struct act *act_by(const struct act_type *kind, uint32_t convo, uint32_t user)
{
    char ticket[24];
    struct auth_claims claims = { .kind = AUTH_SERVICE,
        .issuer = span_of(user_did(user)),
        .audience = SPAN("did:web:here"),
        .expires_s = UINT32_MAX };
    struct act *act;

    (void)snprintf(ticket, sizeof ticket, "j-%llu", (unsigned long long)people.ticket++);
    claims.jti = span_of(ticket);
    act = act_create(kind, &claims);
    CHECK(act != NULL);
    act->convo = span_of(convo_id(convo));
    return act;
}

/* ---- what is said --------------------------------------------------------------------------- */

static inline void put_op(struct act *act, uint32_t number)
{
    enum { OP_SIZE_MAX = 24 };

    act->body = base_alloc(OP_SIZE_MAX);
    (void)snprintf(act->body, OP_SIZE_MAX, "op-%u", number);
    act->op = span_of(act->body);
}

static inline struct act *message_of(uint32_t number)
{
    const struct request *request = &now.requests[number];
    struct act *act = act_by(&message_act_type, request->convo, request->user);
    struct buffer *bytes = &act->decoded;
    char text[24];

    put_op(act, number);
    (void)snprintf(text, sizeof text, "secret %u", number);
    mls_put_number(bytes, 1, 2);
    mls_put_number(bytes, MLS_PRIVATE, 2);
    mls_put_vector(bytes, act->convo);
    mls_put_number(bytes, now.convos[request->convo].epoch, 8);
    mls_put_number(bytes, MLS_APPLICATION, 1);
    mls_put_vector(bytes, SPAN(""));
    mls_put_vector(bytes, SPAN("sender data of 28 bytes ...."));
    mls_put_vector(bytes, span_of(text));
    act->content->bytes = (struct span){ bytes->bytes, bytes->size };
    CHECK(mls_message_read(act->content->bytes, &act->content->mls) == NULL);
    crypto_sha256(bytes->bytes, bytes->size, act->content->sha256);
    return act;
}

/* Somebody is added, or leaves. */
static inline struct act *commit_of(uint32_t number, uint32_t target)
{
    const struct request *request = &now.requests[number];
    struct act *act = act_by(&commit_act_type, request->convo, request->user);

    put_op(act, number);
    if (target == request->user) {
        act->members->removes = base_calloc(sizeof *act->members->removes);
        act->members->removes[act->members->remove_count++] = span_of(user_did(target));
        act_commit(act)->kind = COMMIT_LEAVE;
    } else {
        act->members->adds = base_calloc(sizeof *act->members->adds);
        act->members->adds[act->members->add_count++].did = span_of(user_did(target));
    }
    commit_act_hash(act_commit(act));
    return act;
}

static inline struct act *creation_of(uint32_t number)
{
    const struct request *request = &now.requests[number];
    struct act *act = act_by(&creation_act_type, request->convo, request->user);

    act_creation(act)->suite = SPAN("MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519");

    act->members->adds = base_calloc((USERS - 1) * sizeof *act->members->adds);
    for (uint32_t i = 0; i < USERS - 1; i++)
        if (i != request->user)
            act->members->adds[act->members->add_count++].did = span_of(user_did(i));
    return act;
}

struct talker {
    uint32_t request;
    struct act *act;       /* NULL: nothing was asked */
    bool is_writing;       /* a token */
    struct device *device; /* whose token it unregisters; NULL: it registers one */
    struct sql_client sql;
};

static inline void wait_a_little(struct tr_context *ctx)
{
    uint64_t pause_ns = people.is_quiet    ? TR_SECONDS(10)
                        : people.is_silent ? TR_SECONDS(2)
                                           : people.pause_ns;

    CHECK_EQ_INT(tr_after(ctx, 1 + tr_random(ctx) % pause_ns, TAG_AGAIN, NULL), 0);
}

static inline void speak(struct talker *self, struct tr_context *ctx, struct act *act)
{
    struct act_envelope message = { .act = act_ref(act) };
    tr_sender convo;
    int rc =
        tr_registry_get(now.delivery.convos, act->convo.at, act->convo.size, "a person", &convo);

    if (rc == 0) {
        rc = tr_ask(
            ctx, convo, &message, sizeof message, &(struct tr_ask_options){ .tag = TAG_SAID });
        tr_sender_drop(&convo);
    }
    if (rc < 0) { /* it was killed at this very moment */
        act_unref(message.act);
        act_unref(act);
        request_end(self->request, false);
        wait_a_little(ctx);
        return;
    }
    self->act = act;
    people.busy++;
}

static inline void say(struct talker *self, struct tr_context *ctx)
{
    uint32_t convo = draw(ctx, CONVOS), user = draw_user(ctx, convo), dice = draw(ctx, 10);
    bool is_there = now.convos[convo].is_there;

    self->request = request_begin(convo, user, !is_there);
    if (!is_there)
        speak(self, ctx, creation_of(self->request));
    else if (dice == 0)
        speak(self, ctx, commit_of(self->request, draw(ctx, USERS)));
    else
        speak(self, ctx, message_of(self->request));
}

static inline void said(struct talker *self, const struct tr_event *event)
{
    people.busy--;
    request_end(self->request, event->status == 0 && self->act->status == 200);
    act_unref(self->act);
    self->act = NULL;
}

/* ---- tokens --------------------------------------------------------------------------------- */

/* As push_api.c has them. */
SQL_STATEMENT(put_token,
    "INSERT INTO push_tokens (did, device, platform, token, changed_ms) SELECT d.did, d.device, $3,"
    " $4, $5 FROM devices d WHERE d.did = $1 AND d.device = $2 ON CONFLICT (did, device)"
    " DO UPDATE SET platform = excluded.platform, token = excluded.token,"
    " changed_ms = excluded.changed_ms");
SQL_STATEMENT(delete_token, "DELETE FROM push_tokens WHERE did = $1 AND device = $2");

static inline uint32_t new_token(uint32_t device)
{
    CHECK(now.token_count + 1 < TOKENS_MAX);
    now.tokens[++now.token_count].device = device;
    return now.token_count;
}

/* Token 0 is none. */
static inline struct sql_unit *token_unit(uint32_t number, uint32_t token)
{
    struct span did = span_of(user_did(now.devices[number].user));
    struct sql_unit *unit = sql_unit_create(call_key(did));
    char device[16], text[16];

    (void)snprintf(device, sizeof device, "d-%u", number);
    (void)snprintf(text, sizeof text, "t-%u", token);
    sql_unit_step(unit, token == 0 ? &delete_token : &put_token, token == 0 ? SQL_ROWS_ANY : 1);
    sql_unit_text(unit, did);
    sql_unit_text(unit, span_of(device));
    if (token == 0)
        return unit;
    sql_unit_int(unit, token % PUSH_PLATFORMS);
    sql_unit_text(unit, span_of(text));
    sql_unit_int(unit, 1);
    return unit;
}

static inline void change_token(struct talker *self, struct tr_context *ctx)
{
    uint32_t number = draw(ctx, now.device_count);
    bool is_put = draw(ctx, 3) > 0;
    struct sql_unit *unit = token_unit(number, is_put ? new_token(number) : 0);

    if (sql_write(ctx, &self->sql, unit, &(struct sql_submit_options){ .tag = TAG_TOKEN }) < 0) {
        sql_unit_destroy(unit);
        wait_a_little(ctx);
        return;
    }
    self->is_writing = true;
    self->device = is_put ? NULL : &now.devices[number];
    if (!is_put)
        self->device->withdrawals++;
    people.busy++;
    seen.tokens += is_put;
    seen.withdrawals += !is_put;
}

static inline void token_changed(struct talker *self, const struct tr_event *event)
{
    struct sql_unit *unit = sql_take(&self->sql, event);

    /* Of one that is in doubt it may be seen later that it is stored. */
    if (self->device != NULL && sql_unit_status(unit) != SQL_EUNKNOWN)
        self->device->withdrawals--;
    sql_unit_destroy(unit);
    self->is_writing = false;
    people.busy--;
}

/* ---- talkers -------------------------------------------------------------------------------- */

static inline void talk(struct talker *self, struct tr_context *ctx)
{
    if (people.is_down || people.is_quiet || now.request_count > REQUESTS_MAX - 50)
        wait_a_little(ctx);
    else if (people.is_silent || draw(ctx, 5) == 0)
        change_token(self, ctx);
    else
        say(self, ctx);
}

static int talker_start(void *state, struct tr_context *ctx)
{
    struct talker *self = state;

    sql_client_init(&self->sql, now.sql);
    wait_a_little(ctx);
    return 0;
}

static enum tr_next talker_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct talker *self = state;

    if (event->kind == TR_EVENT_TIMER) {
        talk(self, ctx);
        return TR_GO;
    }
    if (event->tag == TAG_SAID)
        said(self, event);
    else
        token_changed(self, event);
    wait_a_little(ctx);
    return TR_GO;
}

static enum tr_next talker_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static void talker_finish(void *state)
{
    struct talker *self = state;

    if (self->act != NULL) {
        people.busy--;
        request_end(self->request, false);
        act_unref(self->act);
    }
    people.busy -= self->is_writing;
    sql_client_fini(&self->sql);
}

static const struct tr_type talker_type = {
    .name = "talker",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct talker),
    .start = talker_start,
    .handle = talker_handle,
    .event = talker_event,
    .finish = talker_finish,
};

/* ---- listeners ------------------------------------------------------------------------------- */

/* One stands for the connection of an event stream, as in delivery_listeners.h. From its first
 * frame on it is sure that the conversation knows of it. */

static struct listener {
    uint32_t convo, user;
    bool is_open, is_sure;
    uint64_t id;
    tr_sender watcher; /* the conversation, while it is open */
    tr_sender sender;
} listeners[LISTENERS];

static inline void listener_set(struct listener *self, bool is_open, bool is_sure)
{
    struct seat *seat = &now.seats[self->convo][self->user];

    seat->open += (uint32_t)is_open - (uint32_t)self->is_open;
    seat->sure += (uint32_t)is_sure - (uint32_t)self->is_sure;
    self->is_open = is_open;
    self->is_sure = is_sure;
    seat_changed(self->convo, self->user);
}

/* Its actor is gone: the next one does not know who listens. */
static inline void doubt_listeners(uint32_t convo)
{
    for (uint32_t i = 0; i < LISTENERS; i++)
        if (listeners[i].is_open && listeners[i].convo == convo)
            listener_set(&listeners[i], true, false);
}

static inline void pick_up(struct listener *self, struct tr_context *ctx)
{
    struct act_envelope message;
    tr_sender convo;

    self->convo = draw(ctx, CONVOS);
    self->user = draw_user(ctx, self->convo);
    message = (struct act_envelope){ .act = act_by(&subscribe_act_type, self->convo, self->user) };
    self->id = act_subscribe(message.act)->stream_number = ++people.stream_id;
    act_subscribe(message.act)->seq = INT64_MAX;
    act_subscribe(message.act)->stream = (http_stream){ tr_self(ctx), self->id };
    if (tr_registry_get(now.delivery.convos, message.act->convo.at, message.act->convo.size,
            "a person", &convo) < 0) {
        act_unref(message.act);
        return;
    }
    act_subscribe(message.act)->watcher = tr_sender_weaken(convo);
    listener_set(self, true, false);
    if (tr_tell_with(
            convo, &message, sizeof message, &(struct tr_send_options){ .lane = TR_CONTROL }) < 0) {
        act_unref(message.act);
        listener_set(self, false, false);
        tr_sender_drop(&convo);
        return;
    }
    self->watcher = convo;
    seen.streams++;
}

/* As http_stream_close does it. */
static inline void hang_up(struct listener *self)
{
    struct act_envelope notice = { NULL, self->id };

    (void)tr_try_tell_with(
        self->watcher, &notice, sizeof notice, &(struct tr_send_options){ .lane = TR_CONTROL });
    tr_sender_drop(&self->watcher);
    listener_set(self, false, false);
}

struct listener_seat {
    uint32_t index;
};

static enum tr_next listener_handle(void *state, struct tr_context *ctx, void *memory)
{
    struct listener *self = &listeners[((struct listener_seat *)state)->index];
    struct http_message *message = memory;

    (void)ctx;
    if (self->is_open && message->id == self->id) {
        if (message->kind == MESSAGE_FRAME) {
            listener_set(self, true, true);
            seen.heard++;
        } else {
            hang_up(self);
        }
    }
    http_frame_unref(message->frame);
    return TR_GO;
}

static inline void listener_wait(struct tr_context *ctx)
{
    CHECK_EQ_INT(tr_after(ctx, 1 + tr_random(ctx) % (20 * people.pause_ns), TAG_AGAIN, NULL), 0);
}

static enum tr_next listener_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct listener *self = &listeners[((struct listener_seat *)state)->index];

    if (event->kind != TR_EVENT_TIMER)
        return TR_GO;
    if (self->is_open)
        hang_up(self);
    else if (!people.is_down && !people.is_quiet)
        pick_up(self, ctx);
    listener_wait(ctx);
    return TR_GO;
}

static int listener_start(void *state, struct tr_context *ctx)
{
    (void)state;
    listener_wait(ctx);
    return 0;
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

#endif
