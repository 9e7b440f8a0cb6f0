/* SPDX-License-Identifier: Apache-2.0 */
/* push_gateway.h: the gateway of sim_push.c, and the HTTP client by which it is asked.
 *
 * The client has the names of src/http/client.h: the linker takes what the program defines itself,
 * and leaves client.c, which speaks to real sockets, in its archive. */
#ifndef TEST_SIM_PUSH_GATEWAY_H
#define TEST_SIM_PUSH_GATEWAY_H

#include "http/client.h"
#include "push_facts.h"

static const char gateway_url[] = "https://gateway.example/wake?key=secret";

/* ---- the gateway ----------------------------------------------------------------------------- */

/* Its mood in percent; it accepts the rest at once. */

struct mood {
    uint32_t slow, refused, gone, troubled, cut, never;
};
static const struct mood moods[] = {
    { 0 },
    { .slow = 50 },
    { .slow = 20, .refused = 10, .gone = 10, .troubled = 20, .cut = 10, .never = 10 },
    { .troubled = 60, .cut = 30 },
    { .slow = 50, .never = 50 },
    { .slow = 70, .gone = 60 },
    { .never = 100 },
};
enum { MOODS = sizeof moods / sizeof moods[0], MOOD_WELL = 0, MOOD_NEVER = MOODS - 1 };
static struct mood mood;

enum { PENDING_MAX = 256 };

struct pending {
    tr_reply_handle handle;
    uint32_t device, token, life;
    uint32_t status; /* of HTTP; 0: the connection is cut */
    bool is_used, is_late;
};

struct gateway {
    struct pending pending[PENDING_MAX];
};

struct gateway_message {
    uint32_t device, token, life;
};

static enum verdict verdict_of(const struct pending *pending)
{
    if (pending->is_late || pending->status == 0 || pending->status == 429 ||
        pending->status >= 500)
        return TROUBLED;
    return pending->status < 300 ? TAKEN : pending->status == 410 ? GONE : REFUSED;
}

/* Draws the answer and its delay. */
static uint64_t draw_answer(struct tr_context *ctx, struct pending *pending)
{
    static const uint32_t refusals[] = { 302, 400, 401, 403, 404 };
    static const uint32_t troubles[] = { 429, 500, 502, 503, 599 };
    uint32_t dice = draw(ctx, 100);
    bool is_slow = draw(ctx, 100) < mood.slow;

    pending->status = 200 + draw(ctx, 2) * 4;
    if (dice < mood.never)
        pending->is_late = true;
    else if ((dice -= mood.never) < mood.cut)
        pending->status = 0;
    else if ((dice -= mood.cut) < mood.troubled)
        pending->status = troubles[draw(ctx, 5)];
    else if ((dice -= mood.troubled) < mood.gone)
        pending->status = 410;
    else if (dice - mood.gone < mood.refused)
        pending->status = refusals[draw(ctx, 5)];
    seen.never += pending->is_late;
    seen.cut += pending->status == 0;
    seen.slow += is_slow && !pending->is_late;
    if (pending->is_late) /* it is heard no more */
        return TR_SECONDS(LIMIT_S) + MS;
    /* Not so late that the clock could jump over the limit. */
    return is_slow ? 1 + tr_random(ctx) % TR_SECONDS(LIMIT_S / 2) : 1;
}

static enum tr_next gateway_handle(void *state, struct tr_context *ctx, void *memory)
{
    struct gateway *self = state;
    const struct gateway_message *message = memory;
    uint32_t slot = 0;

    while (self->pending[slot].is_used)
        slot++;
    CHECK(slot < PENDING_MAX);
    self->pending[slot] = (struct pending){ .handle = tr_reply_take(ctx),
        .device = message->device,
        .token = message->token,
        .life = message->life,
        .is_used = true };
    CHECK_EQ_INT(tr_after(ctx, draw_answer(ctx, &self->pending[slot]), slot, NULL), 0);
    return TR_GO;
}

static enum tr_next gateway_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct pending *pending = &((struct gateway *)state)->pending[event->tag];
    struct http_client_answer answer = { .status = pending->status };
    enum verdict verdict = verdict_of(pending);

    (void)ctx;
    if (pending->life == now.life) {
        note_answer(pending->device, pending->token, verdict);
        seen.taken += verdict == TAKEN;
        seen.refused += verdict == REFUSED;
        seen.gone += verdict == GONE;
    }
    if (pending->is_late)
        tr_reply_drop(&pending->handle);
    else if (pending->status == 0)
        (void)tr_reply_send(&pending->handle, TR_EIO, NULL, 0);
    else
        (void)tr_reply_send(&pending->handle, 0, &answer, sizeof answer);
    pending->is_used = false;
    return TR_GO;
}

static void gateway_finish(void *state)
{
    struct gateway *self = state;

    for (uint32_t i = 0; i < PENDING_MAX; i++)
        if (self->pending[i].is_used)
            tr_reply_drop(&self->pending[i].handle);
}

static const struct tr_type gateway_type = {
    .name = "gateway",
    .message_size = sizeof(struct gateway_message),
    .state_size = sizeof(struct gateway),
    .handle = gateway_handle,
    .event = gateway_event,
    .finish = gateway_finish,
};

/* ---- the HTTP client ------------------------------------------------------------------------ */

struct http_client {
    tr_sender gateway;
};

int http_client_start(struct tr_system *system, const struct http_client_options *options,
    struct http_client **ret_client)
{
    static const struct gateway empty;
    static struct http_client client;

    CHECK_EQ_INT(options->concurrent_max, UNDER_WAY_MAX);
    CHECK(!options->allow_private);
    CHECK_EQ_INT(tr_spawn(system, &gateway_type, &empty,
                     &(struct tr_spawn_options){ .owner = "the scenario" }, &client.gateway),
        0);
    *ret_client = &client;
    return 0;
}

void http_client_stop(struct http_client **client)
{
    if (*client == NULL)
        return;
    (void)tr_kill(tr_sender_weaken((*client)->gateway));
    tr_sender_drop(&(*client)->gateway);
    *client = NULL;
}

bool http_client_takes(const char *url)
{
    return strcmp(url, gateway_url) == 0;
}

int http_client_wait(
    struct http_client *client, const struct http_client_request *request, struct buffer *body)
{
    (void)client;
    (void)request;
    (void)body;
    return TR_EUNSUPPORTED;
}

/* The body is this, and nothing else. */
static void read_body(struct span body, struct gateway_message *ret_message)
{
    char text[128], platform[16] = "", expected[128];

    CHECK(body.size < sizeof text);
    memcpy(text, body.at, body.size);
    text[body.size] = '\0';
    CHECK_EQ_INT(
        sscanf(text, "{\"token\":\"t-%u\",\"platform\":\"%15[a-z]\",\"deviceId\":\"d-%u\"}",
            &ret_message->token, platform, &ret_message->device),
        3);
    CHECK(ret_message->device < now.device_count && ret_message->token <= now.token_count);
    (void)snprintf(expected, sizeof expected,
        "{\"token\":\"t-%u\",\"platform\":\"%s\",\"deviceId\":\"d-%u\"}", ret_message->token,
        push_platforms[ret_message->token % PUSH_PLATFORMS], ret_message->device);
    CHECK_MSG(strcmp(text, expected) == 0, "token: the gateway is told %s", text);
}

int http_client_ask(struct tr_context *ctx, struct http_client *client,
    const struct http_client_request *request, uint32_t tag)
{
    struct gateway_message message = { .life = now.life };

    CHECK_EQ_STR(request->url, gateway_url);
    CHECK_EQ_STR(request->method, "POST");
    CHECK_EQ_INT(request->timeout_ns, TR_SECONDS(LIMIT_S));
    read_body(request->body, &message);
    check_post(message.device, message.token);
    note_post(message.device);
    return tr_ask(ctx, client->gateway, &message, sizeof message,
        &(struct tr_ask_options){ .tag = tag, .timeout_ns = request->timeout_ns });
}

#endif
