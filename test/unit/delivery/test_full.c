/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation whose box is full: the server refuses further requests at once, with Retry-After,
 * and counts them. In its place stands an actor with room for one message, which is held by another
 * until that one lets go. */
#include <poll.h>

#include "site.h"
#include "support/metric.h"

/* ---- the holder and the held actor ---------------------------------------------------------- */

struct holder {
    tr_reply_handle kept;
};
struct holder_message {
    bool lets_go;
};

static enum tr_next holder_handle(void *self, struct tr_context *ctx, void *message)
{
    struct holder *holder = self;

    if (!((struct holder_message *)message)->lets_go)
        holder->kept = tr_reply_take(ctx);
    else
        tr_reply_send(&holder->kept, 0, NULL, 0);
    return TR_GO;
}

static const struct tr_type holder_type = { .name = "holder",
    .message_size = sizeof(struct holder_message),
    .state_size = sizeof(struct holder),
    .handle = holder_handle };

struct held {
    tr_sender holder; /* borrowed */
};

static int held_start(void *self, struct tr_context *ctx)
{
    struct held *held = self;

    return tr_ask(ctx, held->holder, &(struct holder_message){ .lets_go = false },
        sizeof(struct holder_message), &(struct tr_ask_options){ .hold = true });
}

static enum tr_next held_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    act_unref(((struct act_envelope *)message)->act);
    tr_reply(ctx, TR_ECLOSED, NULL, 0);
    return TR_GO;
}

static enum tr_next held_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    (void)self;
    (void)ctx;
    (void)event;
    return TR_GO;
}

static const struct tr_type held_type = { .name = "held",
    .message_size = sizeof(struct act_envelope),
    .state_size = sizeof(struct held),
    .start = held_start,
    .handle = held_handle,
    .event = held_event,
    .message_drop = act_envelope_drop };

static int held_make(void *data, const void *key, size_t key_size, void *state)
{
    (void)key;
    (void)key_size;
    ((struct held *)state)->holder = *(tr_sender *)data;
    return 0;
}

/* ---- the case ------------------------------------------------------------------------------- */

static int64_t counted(const char *name, const char *labels)
{
    for (const struct metric *metric = metric_first(); metric != NULL; metric = metric->next)
        if (strcmp(metric->name, name) == 0 &&
            (labels == NULL || strstr(metric->labels, labels) != NULL))
            return metric_get(metric);
    return 0;
}

/* Sent, not waited for. */
static int begin_read(const struct site *site, const struct caller *caller)
{
    char *header = caller_header(caller, "getEpoch"), request[2048];
    int fd = web_connect(http_server_address(site->server));

    (void)snprintf(request, sizeof request,
        "GET /xrpc/" XRPC_PREFIX "getEpoch?convoId=g1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        "%s\r\n",
        header);
    web_send(fd, request, strlen(request));
    free(header);
    return fd;
}

TEST(full, conversation_sends_away_with_when_to_come_again_and_counts)
{
    struct site site;
    struct caller caller;
    struct delivery *delivery;
    struct tr_registry *ours;
    tr_sender holder, waiting;
    struct web_answer answer;
    int fd;

    site_begin(&site);
    caller_begin(&caller);
    delivery = site.delivery;
    ours = delivery->convos;
    CHECK_EQ_INT(tr_spawn(site.system, &holder_type, &(struct holder){ 0 }, NULL, &holder), 0);
    CHECK_EQ_INT(tr_registry_create(site.system,
                     &(struct tr_registry_options){ .name = "held",
                         .type = &held_type,
                         .make = held_make,
                         .data = &holder,
                         .box = { .capacity = 1, .full = TR_FULL_FAIL } },
                     &delivery->convos),
        0);
    fd = begin_read(&site, &caller);
    /* The box has one now. */
    CHECK_EQ_INT(tr_registry_get(delivery->convos, "g1", 2, "the test", &waiting), 0);
    for (int i = 0; tr_sender_depth(waiting) == 0; i++) {
        CHECK(i < 10000);
        poll(NULL, 0, 1);
    }
    CHECK_EQ_INT(counted("actor_mailbox_full_events_total", NULL), 0);
    for (int64_t i = 1; i <= 3; i++) {
        answer = site_ask(&site, &caller, "getEpoch?convoId=g1", "");
        CHECK_MSG(answer.status == 503 && strstr(answer.text, "\r\nRetry-After: 1\r\n") != NULL,
            "%s", answer.text);
        web_answer_free(&answer);
        CHECK_EQ_INT(counted("actor_mailbox_full_events_total", NULL), i);
        CHECK_EQ_INT(counted("troupe_http_shed_total", "reason=\"busy\""), i);
    }
    /* Requests in the box still get their answer, and are none of those. */
    CHECK_EQ_INT(
        tr_tell(holder, &(struct holder_message){ .lets_go = true }, sizeof(struct holder_message)),
        0);
    web_receive(fd, &answer);
    CHECK_EQ_INT(answer.status, 503);
    web_answer_free(&answer);
    CHECK_EQ_INT(counted("actor_mailbox_full_events_total", NULL), 3);
    close(fd);
    tr_sender_drop(&waiting);
    CHECK_EQ_INT(tr_registry_close(&delivery->convos, TR_SECONDS(10)), 0);
    tr_sender_drop(&holder);
    delivery->convos = ours;
    caller_end(&caller);
    site_end(&site);
}
