/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_clients.h: the clients of sim_delivery.c and their requests. */
#ifndef TEST_SIM_DELIVERY_CLIENTS_H
#define TEST_SIM_DELIVERY_CLIENTS_H

#include "base/alloc.h"
#include "crypto/digest.h"
#include "delivery_facts.h"
#include "services/delivery/convo/direct.h"

enum {
    CLIENTS_MAX = 5,
    PIPELINE_MAX = 4,
    TAG_AGAIN = 1000,
};

static struct {
    bool is_down;    /* nobody may ask */
    bool is_dark;    /* the power is cut */
    bool has_failed; /* the disk did; the "process" must end */
    bool is_opening;
    bool is_healed;
    bool has_direct; /* some are served without their actors */
    bool has_roles;  /* admins come and go */
    uint32_t lose_percent;
    uint32_t unread_percent; /* of what is read: it is refused */
    uint32_t repeat_percent;
    uint32_t box_capacity;
    uint32_t turn_ms;
    uint64_t idle_ns;
    uint32_t clients;
    uint32_t left[CLIENTS_MAX]; /* requests to make */
    uint32_t done_count;
    tr_sender senders[CLIENTS_MAX];
    struct tr_disk_faults faults;
    uint64_t calm_ns;           /* nothing has gone wrong since */
    unsigned listening[CONVOS]; /* a bit per user who has a stream */
} world;

/* May something go wrong at this moment? */
static inline bool is_troubled(void)
{
    return world.is_down || world.has_failed || world.faults.eio_per_million > 0 ||
           world.faults.short_per_million > 0 || world.faults.bytes_max > 0;
}

static inline void note_trouble(void)
{
    world.calm_ns = tr_sim_now_ns(now.s.sim);
}

/* ---- acts ----------------------------------------------------------------------------------- */

static struct span put(struct act *act, size_t *used, struct span bytes)
{
    struct span span = { act->body + *used, bytes.size };

    CHECK(*used + bytes.size <= 2048);
    memcpy(act->body + *used, bytes.at, bytes.size);
    *used += bytes.size;
    return span;
}

static struct span put_message(struct act *act, size_t *used, const struct request *request,
    unsigned content, const char *secret)
{
    struct buffer bytes = { 0 };
    struct span span;
    char text[64], group[GROUP_NAME_SIZE];

    (void)snprintf(text, sizeof text, "%s of request %u", secret, request->op);
    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, MLS_PRIVATE, 2);
    mls_put_vector(&bytes, group_name(request->convo, request->group, group));
    mls_put_number(&bytes, request->base, 8);
    mls_put_number(&bytes, content, 1);
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("sender data of 28 bytes ...."));
    mls_put_vector(&bytes, span_of(text));
    span = put(act, used, (struct span){ bytes.bytes, bytes.size });
    buffer_free(&bytes);
    return span;
}

static void put_members(struct act *act, size_t *used, const struct request *request)
{
    uint32_t user = request->shape == JOIN ? request->user : request->target;

    if (request->shape == ADD || request->shape == JOIN) {
        act->members->adds = base_calloc(sizeof *act->members->adds);
        act->members->adds[act->members->add_count++].did = put(act, used, span_of(user_did(user)));
    } else if (request->shape == REMOVE || request->shape == LEAVE) {
        act->members->removes = base_calloc(sizeof *act->members->removes);
        act->members->removes[act->members->remove_count++] =
            put(act, used, span_of(user_did(user)));
    }
    if (request->kind == &commit_act_type)
        act_commit(act)->kind = request->shape == LEAVE  ? COMMIT_LEAVE
                                : request->shape == JOIN ? COMMIT_JOIN
                                                         : COMMIT_CHANGE;
}

static unsigned content_of(const struct act_type *type)
{
    return type == &commit_act_type    ? MLS_COMMIT
           : type == &message_act_type ? MLS_APPLICATION
                                       : MLS_PROPOSAL;
}

static void put_payload(struct act *act, size_t *used, const struct request *request)
{
    char group[GROUP_NAME_SIZE];

    if (request->kind == &commit_act_type) { /* as the API does it */
        if (request->has_app)
            act_commit(act)->app_bytes =
                put_message(act, used, request, MLS_APPLICATION, "with it");
        commit_act_hash(act_commit(act));
        memcpy(now.hashes[request->op], act->content->sha256, sizeof act->content->sha256);
    } else if (has_log(request->kind)) {
        crypto_sha256(act->content->bytes.at, act->content->bytes.size, act->content->sha256);
    } else if (request->kind == &report_act_type) {
        memcpy(act_report(act)->sha256, now.hashes[request->reported], 32);
        act_report(act)->base_epoch = request->base;
    } else if (request->kind == &confirm_act_type) {
        act_confirm(act)->sha256[0] = request->is_given ? 1 : 0; /* they may differ */
        act_confirm(act)->epoch = request->base;
    } else if (request->kind == &reset_act_type) {
        act_reset(act)->group = put(act, used, group_name(request->convo, request->op, group));
    } else if (request->kind == &creation_act_type) {
        act_creation(act)->suite = SPAN("MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519");
    } else if (request->kind == &poll_act_type) {
        act_poll(act)->seq = request->base;
    } else if (request->kind == &read_to_act_type) {
        act_read_to(act)->seq = request->base;
    } else if (request->kind == &member_act_type) {
        act_subscribe(act)->seq = request->base;
    } else if (request->kind == &role_act_type) {
        act_role(act)->target = put(act, used, span_of(user_did(request->target)));
        act_role(act)->is_admin = true;
        act_role(act)->is_given = request->is_given;
    }
}

static struct act *act_of(uint32_t number)
{
    const struct request *request = &now.requests[number];
    struct auth_claims claims = { .kind = AUTH_SERVICE,
        .issuer = span_of(user_did(request->user)),
        .audience = SPAN("did:web:here"),
        .expires_s = UINT32_MAX };
    char token[24], op[24];
    struct act *act;
    size_t used = 0;

    (void)snprintf(token, sizeof token, "t-%u", request->token);
    (void)snprintf(op, sizeof op, "op-%u", request->op);
    claims.jti = span_of(token);
    act = act_create(request->kind, &claims);
    CHECK(act != NULL);
    act->body = base_alloc(2048);
    act->convo = put(act, &used, span_of(convo_id(request->convo)));
    if (has_log(request->kind))
        act->op = put(act, &used, span_of(op));
    if (has_log(request->kind) && (request->kind != &commit_act_type || request->has_bytes)) {
        act->content->bytes = put_message(act, &used, request, content_of(request->kind), "secret");
        CHECK(mls_message_read(act->content->bytes, &act->content->mls) == NULL);
    }
    if (act->members != NULL)
        put_members(act, &used, request);
    put_payload(act, &used, request);
    return act;
}

/* ---- clients -------------------------------------------------------------------------------- */

struct client {
    uint32_t index;
    struct {
        uint32_t request;
        struct act *act; /* NULL: free */
    } slots[PIPELINE_MAX];
    uint32_t asked; /* slots in use */
    struct {
        bool is_there;
        uint64_t epoch, seq;
        uint32_t group;
        unsigned members; /* as far as it knows */
    } views[CONVOS];
    bool is_waiting; /* for TAG_AGAIN */
};

static uint32_t draw(struct tr_context *ctx, uint32_t bound)
{
    return (uint32_t)(tr_random(ctx) % bound);
}

static void wait_a_little(struct client *self, struct tr_context *ctx)
{
    if (self->is_waiting)
        return;
    CHECK_EQ_INT(tr_after(ctx, MS + tr_random(ctx) % (8 * MS), TAG_AGAIN, NULL), 0);
    self->is_waiting = true;
}

/* A conversation is mls or numbered; the third, and any after a reset, is what comes first. */
static bool draw_has_bytes(struct tr_context *ctx, const struct request *request)
{
    const struct truth *truth = &now.truths[request->convo];

    if (request->convo == WEDGED && truth->rows[truth->seq].convo_kind == CONVO_NUMBERED)
        return draw(ctx, 4) == 0;
    if (request->convo == WEDGED)
        return request->group == 0 || draw(ctx, 8) > 0;
    return request->convo == 0 || (request->convo == 2 && draw(ctx, 3) > 0);
}

static void draw_commit(struct client *self, struct tr_context *ctx, struct request *request)
{
    uint32_t dice = draw(ctx, 100);

    request->kind = &commit_act_type;
    request->has_bytes = draw_has_bytes(ctx, request);
    request->shape = dice < 40                         ? ADD
                     : dice < 60                       ? REMOVE
                     : dice < 70                       ? LEAVE
                     : dice < 80 && request->has_bytes ? JOIN
                     : request->has_bytes              ? PLAIN
                                                       : ADD;
    if (request->shape == LEAVE)
        request->target = request->user;
    /* Mostly somebody it makes sense for, as far as is known. */
    for (int i = 0; i < 6 && request->shape != LEAVE; i++) {
        bool is_in = (self->views[request->convo].members & 1U << request->target) != 0;

        if (request->target != request->user && is_in == (request->shape == REMOVE))
            break;
        request->target = draw(ctx, USERS);
    }
    /* Often somebody who listens. */
    for (int i = 0; i < 6 && request->shape == REMOVE && world.listening[request->convo] != 0 &&
                    (world.listening[request->convo] & 1U << request->target) == 0;
         i++)
        request->target = draw(ctx, USERS);
    while (request->shape != LEAVE && request->target == request->user)
        request->target = draw(ctx, USERS);
    request->has_app = draw(ctx, 8) == 0;
}

/* The newest commit, or another one, is no good: says somebody who was in. */
static bool draw_report(struct tr_context *ctx, struct request *request)
{
    const struct truth *truth = &now.truths[request->convo];
    bool is_newest = draw(ctx, 6) > 0;
    uint64_t seq = truth->seq;

    while (seq > 1 && (truth->rows[seq].kind != MLS_COMMIT ||
                          (is_newest ? truth->rows[seq].is_revoked : draw(ctx, 3) > 0)))
        seq--;
    if (seq <= 1)
        return false;
    request->kind = &report_act_type;
    request->reported = truth->rows[seq].op;
    request->base = truth->rows[seq].base_epoch;
    for (int i = 0; i < 6 && (request->user == truth->rows[seq].sender ||
                                 !is_in(truth, seq - 1, request->user));
         i++)
        request->user = draw(ctx, USERS);
    return true;
}

/* Another group, mostly by who may; or the one that somebody else asked for. */
static void draw_reset(struct tr_context *ctx, struct request *request)
{
    bool is_new = draw(ctx, 3) > 0;

    request->kind = &reset_act_type;
    for (int i = 0; i < 12 && (now.truths[request->convo].admins & 1U << request->user) == 0; i++)
        request->user = draw(ctx, USERS);
    for (uint32_t i = now.request_count; i > 0 && !is_new; i--)
        if (now.requests[i - 1].kind == &reset_act_type) {
            request->op = now.requests[i - 1].op;
            is_new = draw(ctx, 2) == 0; /* or one before that */
        }
}

/* Out of an epoch that nobody can enter, unless somebody is in it. */
static bool draw_unwedging(struct tr_context *ctx, struct request *request)
{
    uint32_t dice = draw(ctx, 100);

    if (dice < 50)
        return draw_report(ctx, request);
    if (dice < 57) {
        request->kind = &confirm_act_type;
        request->base = now.truths[request->convo].epoch;
        return true;
    }
    if (dice < 61) {
        draw_reset(ctx, request);
        return true;
    }
    return false;
}

/* Anybody of anybody; or an admin makes another, or leaves one to be none. */
static void draw_role(struct tr_context *ctx, struct request *request)
{
    const struct truth *truth = &now.truths[request->convo];
    unsigned targets;

    request->kind = &role_act_type;
    if (!world.has_roles || truth->admins == 0)
        return;
    targets = request->is_given ? truth->rows[truth->seq].members : truth->admins;
    while ((truth->admins & 1U << request->user) == 0)
        request->user = draw(ctx, USERS);
    while ((targets & 1U << request->target) == 0)
        request->target = draw(ctx, USERS);
}

/* Something new. */
static void draw_request(struct client *self, struct tr_context *ctx, struct request *request)
{
    uint32_t dice = draw(ctx, 100), convo = draw(ctx, CONVOS);

    if (world.has_roles && dice >= 50 && dice < 66) /* fewer messages */
        dice = 66;
    *request = (struct request){ .convo = convo,
        .user = draw(ctx, USERS),
        .target = draw(ctx, USERS),
        .is_given = draw(ctx, 2) == 0,
        .group = self->views[convo].group,
        .base = self->views[convo].epoch,
        .op = now.request_count,
        .token = now.request_count };
    /* Mostly by who is thought to be a member. */
    for (int i = 0; i < 6 && (self->views[convo].members & 1U << request->user) == 0; i++)
        request->user = draw(ctx, USERS);
    if (!self->views[convo].is_there || dice < 2) {
        request->kind = &creation_act_type;
        request->shape = draw(ctx, 2) == 0 ? ADD : PLAIN;
        while (request->target == request->user)
            request->target = draw(ctx, USERS);
    } else if (convo == WEDGED && draw_unwedging(ctx, request)) {
        return;
    } else if (dice < 35) {
        draw_commit(self, ctx, request);
    } else if (dice < 62) {
        request->kind = &message_act_type;
    } else if (dice < 66 && convo == 0) {
        request->kind = &proposal_act_type;
    } else if (dice < 69) {
        draw_role(ctx, request);
    } else if (dice < 72) {
        request->kind = &read_to_act_type;
        request->base = self->views[convo].seq;
    } else if (dice < 74) {
        request->kind = &mark_unread_act_type;
    } else if (dice < 77) {
        request->kind = &member_act_type;
    } else if (dice < 80) {
        request->kind = &view_act_type;
    } else if (dice < 92) {
        /* A cursor that is stored, was stored a moment ago, or may only be in flight. */
        request->kind = &poll_act_type;
        request->base = now.truths[convo].seq + draw(ctx, 8) / 3;
        request->base -= request->base > 1 ? 1 : 0;
        for (int i = 0; i < 6 && !is_in(&now.truths[convo], now.truths[convo].seq, request->user);
             i++)
            request->user = draw(ctx, USERS);
    } else {
        request->kind = &epoch_act_type;
    }
}

/* Ask once more for what somebody asked for before. False: nobody has. */
static bool repeat_request(struct tr_context *ctx, struct request *request)
{
    struct request *old;
    uint32_t number;

    if (now.request_count == 0)
        return false;
    number = draw(ctx, now.request_count);
    if (draw(ctx, 2) == 0 && now.request_count > 12) /* rather something recent */
        number = now.request_count - 1 - draw(ctx, 12);
    old = &now.requests[number];
    if (!has_log(old->kind))
        return false;
    *request = (struct request){ .kind = old->kind,
        .convo = old->convo,
        .user = old->user,
        .target = old->target,
        .shape = old->shape,
        .has_bytes = old->has_bytes,
        .has_app = old->has_app,
        .group = old->group,
        .base = old->base,
        .op = old->op,
        .token = now.request_count };
    if (draw(ctx, 4) == 0) {
        request->token = old->token;
        request->is_token_used_twice = old->is_token_used_twice = true;
        for (uint32_t i = 0; i < now.request_count; i++)
            if (now.requests[i].token == old->token)
                now.requests[i].is_token_used_twice = true;
    }
    return true;
}

/* The conversation's actor, or who serves it without one. */
static int find_server(const struct act *act, tr_sender *ret_sender)
{
    if (!direct_takes(now.delivery.direct, act))
        return tr_registry_get(
            now.delivery.convos, act->convo.at, act->convo.size, "a client", ret_sender);
    if (act->type == &poll_act_type)
        return TR_ECLOSED; /* only an actor remembers: a page is read instead */
    *ret_sender = tr_sender_clone(direct_worker_of(now.delivery.direct, act->convo), "a client");
    seen.direct++;
    return 0;
}

static int send_request(struct client *self, struct tr_context *ctx, uint32_t number, uint32_t slot)
{
    struct act *act = act_of(number);
    struct act_envelope message = { .act = act_ref(act) };
    struct tr_ask_options options = { .tag = slot };
    tr_sender convo;
    int rc = find_server(act, &convo);

    if (!world.is_healed && draw(ctx, 20) == 0)
        options.timeout_ns = 1 + tr_random(ctx) % (10 * MS);
    if (rc == 0) {
        rc = tr_ask(ctx, convo, &message, sizeof message, &options);
        tr_sender_drop(&convo);
    }
    if (rc < 0) {
        act_unref(message.act);
        act_unref(act);
        return rc;
    }
    self->slots[slot].request = number;
    self->slots[slot].act = act;
    self->asked++;
    now.open_count++;
    return 0;
}

/* A member about to be removed may subscribe at this very moment: delivery_listeners.h. */
static void call_listener(const struct request *request);

static void ask_one(struct client *self, struct tr_context *ctx)
{
    uint32_t number = now.request_count, slot = 0;
    struct request request;
    struct truth *truth;
    int rc;

    CHECK(number < REQUESTS_MAX);
    if (draw(ctx, 100) >= world.repeat_percent || !repeat_request(ctx, &request))
        draw_request(self, ctx, &request);
    truth = &now.truths[request.convo];
    request.begin = ++now.clock;
    request.begin_ns = tr_now_ns(ctx);
    request.shown_seq = truth->shown_seq;
    if (request.kind == &poll_act_type && draw(ctx, 2) == 0)
        truth->read_seq = truth->seq; /* somebody has just read a page */
    if (request.kind == &poll_act_type && truth->read_seq > request.shown_seq)
        request.shown_seq = truth->read_seq;
    request.was_stored_at_begin = has_log(request.kind) && request.op != number &&
                                  now.op_seqs[request.op] != 0 &&
                                  now.op_seqs[request.op] <= truth->shown_seq;
    request.is_after_healing = world.is_healed;
    now.requests[number] = request;
    now.request_count++;
    while (self->slots[slot].act != NULL)
        slot++;
    rc = send_request(self, ctx, number, slot);
    if (rc < 0) {
        CHECK_MSG(rc == TR_EFULL || rc == TR_ECLOSED, "answered: an ask is refused with %s",
            tr_error_name(rc)); /* it was killed at this very moment */
        seen.not_sent++;
        now.requests[number].end = ++now.clock;
        now.requests[number].is_answered = true;
        now.requests[number].status = 429;
        now.requests[number].label = "not sent";
    } else if (request.shape == REMOVE && draw(ctx, 2) == 0) {
        call_listener(&request);
    }
    world.left[self->index]--;
}

static void go_on(struct client *self, struct tr_context *ctx)
{
    while (!world.is_down && world.left[self->index] > 0 && self->asked < PIPELINE_MAX &&
           draw(ctx, 3) > 0)
        ask_one(self, ctx);
    if (world.left[self->index] > 0)
        wait_a_little(self, ctx);
}

static void learn_view(struct client *self, uint32_t number)
{
    const struct request *request = &now.requests[number];
    const struct truth *truth = &now.truths[request->convo];

    if (!request->is_answered)
        return;
    if (request->status == 200 || strcmp(request->label, "ConvoExists") == 0)
        self->views[request->convo].is_there = true;
    self->views[request->convo].group = truth->rows[truth->seq].group;
    if (request->convo == WEDGED)
        self->views[WEDGED].epoch = truth->epoch; /* it may have gone back */
    else if (request->has_seen && request->seen_epoch > self->views[request->convo].epoch)
        self->views[request->convo].epoch = request->seen_epoch;
    if (request->status != 200)
        return;
    if (request->convo != WEDGED &&
        (has_log(request->kind) || request->kind == &epoch_act_type ||
            request->kind == &view_act_type) &&
        request->result_epoch > self->views[request->convo].epoch)
        self->views[request->convo].epoch = request->result_epoch;
    if (request->kind == &epoch_act_type || request->kind == &poll_act_type)
        self->views[request->convo].seq = request->result_seq;
    self->views[request->convo].members = truth->rows[truth->seq].members; /* gossip */
}

static void end_request(
    struct client *self, const struct tr_event *event, uint32_t number, struct act *act)
{
    struct request *request = &now.requests[number];

    request->end = ++now.clock;
    now.open_count--;
    seen.ended++;
    if (event->status == 0) {
        check_answer(number, act);
    } else {
        CHECK_MSG(!request->is_after_healing, "healed: request %u ended with %s", number,
            tr_error_name(event->status));
        seen.unknown++;
    }
    learn_view(self, number);
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *self = state;
    struct act *act;

    if (event->kind == TR_EVENT_REPLY) {
        act = self->slots[event->tag].act;
        CHECK_MSG(act != NULL, "answered: a request ends twice");
        end_request(self, event, self->slots[event->tag].request, act);
        self->slots[event->tag].act = NULL;
        self->asked--;
        act_unref(act);
    } else {
        self->is_waiting = false;
    }
    go_on(self, ctx);
    return TR_GO;
}

static enum tr_next client_handle(void *state, struct tr_context *ctx, void *message)
{
    (void)message;
    go_on(state, ctx);
    return TR_GO;
}

static int client_start(void *state, struct tr_context *ctx)
{
    wait_a_little(state, ctx);
    return 0;
}

static void client_finish(void *state)
{
    struct client *self = state;

    for (uint32_t i = 0; i < PIPELINE_MAX; i++)
        act_unref(self->slots[i].act);
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = sizeof(uint32_t),
    .state_size = sizeof(struct client),
    .start = client_start,
    .handle = client_handle,
    .event = client_event,
    .finish = client_finish,
};

#endif
