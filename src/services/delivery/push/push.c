/* SPDX-License-Identifier: Apache-2.0 */
/* push.c: the actor that wakes devices. One queue holds two kinds of items: conversations in which
 * something was stored, and devices to wake. A task handles one item:
 *
 *   conversation ──read its members' devices with a token──▶ ask for listeners ──▶ queue the others
 *   device ──read its token──▶ POST ──▶ taken │ retry after a rest │ given up │ 410: delete token
 *
 * 1. At most TASKS_MAX tasks run, each with one answer outstanding; the task's index is its tag.
 *    Other items wait in the bounded queue.
 * 2. When its task ends, an item rests for one interval, so two wake-ups of a device are at least
 *    one interval apart. An item that is queued again meanwhile runs after its rest.
 * 3. The task reads a token right before the POST, because its device may have unregistered it.
 * 4. A listener is an account with an open stream of the conversation. The task asks the
 *    conversation for listeners after it has read the devices. A conversation without an actor has
 *    none. If the conversation does not answer, the task wakes all devices: one wake-up too many
 *    does no harm.
 *
 * tr_breaker does not fit before the gateway: it passes on messages that own nothing, and a request
 * of the HTTP client owns its memory. */
#include "services/delivery/push/push.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "http/client.h"
#include "json/json_write.h"
#include "services/common/call.h"
#include "services/common/step.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/push/push_queue.h"
#include "services/delivery/push/push_store.h"
#include "sql/unit.h"
#include "support/metric.h"

enum {
    ITEMS_MAX = 16384,
    TASKS_MAX = 64,
    TRIES_MAX = 3,
    DEVICES_READ_MAX = 2000, /* of a conversation, in one read; another read fetches the rest */
    BOX_MAX = 4096,
};
enum { TAG_RESTED = TASKS_MAX };
static const uint64_t task_limit_ns = TR_SECONDS(10);
enum { ROW_DID, ROW_DEVICE };
enum { ROW_PLATFORM, ROW_TOKEN };

const char *const push_platforms[PUSH_PLATFORMS + 1] = { "ios", "android", "web", NULL };

static struct metric metrics[] = {
    METRIC(COUNTER, "troupe_delivery_push_sent_total", NULL, "Wake-ups that the gateway took."),
    METRIC(COUNTER, "troupe_delivery_push_failed_total", NULL,
        "Wake-ups that the gateway refused, or did not answer for."),
    METRIC(COUNTER, "troupe_delivery_push_dropped_total", NULL,
        "News and wake-ups that there was no room, or no answer of the database, for."),
    METRIC(COUNTER, "troupe_delivery_push_forgotten_total", NULL,
        "Push tokens that the gateway called gone, and that were deleted."),
};
enum { SENT, FAILED, DROPPED, FORGOTTEN };

/* A conversation's key is c and its id. Its value is the account that stored something; empty if
 * several accounts did. A device's key is d and DID#device, and it has no value. */

struct push_message {
    size_t key_size, sender_size;
    char text[1 + ACT_CONVO_SIZE_MAX + DID_SIZE_MAX];
};

enum stage { STAGE_NONE, STAGE_READ, STAGE_LISTENING, STAGE_TOKEN, STAGE_POST, STAGE_FORGET };

struct push_task {
    enum stage stage;
    struct push_item *item;
    struct span convo;       /* of a conversation: its id; into the item's key */
    struct span did, device; /* of a device: likewise */
    struct buffer sender;    /* of a conversation: the item's value at the start */
    struct sql_unit *rows;   /* read last */
    struct act *question;    /* which accounts of the rows listen? */
};

struct push {
    struct delivery *delivery;
    char *url;
    struct sql_client sql;
    struct push_queue queue;
    struct push_task tasks[TASKS_MAX];
    bool is_timed; /* a timer runs for the item whose rest ends first */
};

/* Wants an item; counts it if there is no room. */
static void push_want(struct push *push, struct span key, struct span value)
{
    if (push_queue_want(&push->queue, key, value) < 0)
        metric_add(&metrics[DROPPED], 1);
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static uint32_t tag_of(const struct push *push, const struct push_task *task)
{
    tr_assert(task >= push->tasks && task < push->tasks + TASKS_MAX);
    return (uint32_t)(task - push->tasks);
}

static void task_free(struct push_task *task)
{
    buffer_free(&task->sender);
    sql_unit_destroy(task->rows);
    act_unref(task->question);
    *task = (struct push_task){ .stage = STAGE_NONE };
}

static void task_end(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    tr_assert(task->item != NULL);
    push_queue_rest(&push->queue, task->item, tr_now_ns(ctx));
    task_free(task);
}

static void task_drop(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    metric_add(&metrics[DROPPED], 1);
    task_end(push, ctx, task);
}

/* Submits a unit and takes it over. On failure, or if the unit is NULL, drops the task. */
static void task_submit(struct push *push, struct tr_context *ctx, struct push_task *task,
    struct sql_unit *unit, enum stage stage)
{
    const struct sql_submit_options options = { .tag = tag_of(push, task),
        .timeout_ns = task_limit_ns };
    int rc = stage == STAGE_FORGET ? sql_write(ctx, &push->sql, unit, &options)
                                   : sql_read(ctx, &push->sql, unit, &options);

    task->stage = stage;
    if (rc < 0) {
        sql_unit_destroy(unit);
        task_drop(push, ctx, task);
    }
}

/* ---- a conversation ------------------------------------------------------------------------- */

/* Reads the devices behind the last one that was read. */
static void read_devices(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    uint32_t rows = task->rows == NULL ? 0 : sql_unit_rows(task->rows, 0);
    struct sql_unit *unit = sql_unit_create(0);

    UNIT_STEP(unit, &push_find_devices, SQL_ROWS_ANY, VALUE_TEXT(task->convo),
        VALUE_TEXT(((struct span){ task->sender.bytes, task->sender.size })),
        VALUE_INT(DEVICES_READ_MAX),
        VALUE_TEXT(rows == 0 ? SPAN("") : sql_row_bytes(task->rows, 0, rows - 1, ROW_DID)),
        VALUE_TEXT(rows == 0 ? SPAN("") : sql_row_bytes(task->rows, 0, rows - 1, ROW_DEVICE)));
    task_submit(push, ctx, task, unit, STAGE_READ);
}

/* Queues the devices of accounts that do not listen, and reads on or ends the task. `listens` has a
 * byte for each row; NULL: no account listens. */
static void want_devices(
    struct push *push, struct tr_context *ctx, struct push_task *task, const struct buffer *listens)
{
    uint32_t rows = sql_unit_rows(task->rows, 0);
    struct buffer key = { 0 };

    for (uint32_t row = 0; row < rows; row++) {
        struct span did = sql_row_bytes(task->rows, 0, row, ROW_DID);
        struct span device = sql_row_bytes(task->rows, 0, row, ROW_DEVICE);

        if (listens != NULL && row < listens->size && listens->bytes[row] != 0)
            continue;
        buffer_clear(&key);
        buffer_format(&key, "d%.*s#%.*s", (int)did.size, did.at, (int)device.size, device.at);
        if (key.failed == 0)
            push_want(push, (struct span){ key.bytes, key.size }, SPAN(""));
        else
            metric_add(&metrics[DROPPED], 1);
    }
    buffer_free(&key);
    act_unref(task->question);
    task->question = NULL;
    if (rows < DEVICES_READ_MAX)
        task_end(push, ctx, task);
    else
        read_devices(push, ctx, task);
}

/* Asks the conversation for listeners. A conversation without an actor has none. If the question
 * cannot be sent, no account counts as a listener. */
static void devices_read(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    struct span id = task->convo;
    struct act_envelope message;
    tr_sender convo;
    int rc = TR_ENOMEM;

    tr_assert(task->question == NULL);
    if (sql_unit_rows(task->rows, 0) == 0 ||
        tr_registry_find(push->delivery->convos, id.at, id.size, "push", &convo) < 0) {
        want_devices(push, ctx, task, NULL);
        return;
    }
    task->stage = STAGE_LISTENING;
    task->question = act_create(&listening_act_type, NULL);
    if (task->question != NULL) {
        sql_unit_hold(task->rows);
        act_listening(task->question)->devices = task->rows;
        message = (struct act_envelope){ .act = act_ref(task->question) };
        rc = tr_ask(ctx, convo, &message, sizeof message,
            &(struct tr_ask_options){ .tag = tag_of(push, task), .timeout_ns = task_limit_ns });
        if (rc < 0)
            act_unref(task->question);
    }
    tr_sender_drop(&convo);
    if (rc < 0)
        want_devices(push, ctx, task, NULL);
}

/* ---- a device ------------------------------------------------------------------------------- */

static void read_token(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    struct sql_unit *unit = sql_unit_create(0);

    UNIT_STEP(
        unit, &push_find_token, SQL_ROWS_ANY, VALUE_TEXT(task->did), VALUE_TEXT(task->device));
    task_submit(push, ctx, task, unit, STAGE_TOKEN);
}

static void token_read(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    static const char *const headers[] = { "Content-Type: application/json", NULL };
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);
    uint64_t platform;
    int rc;

    if (sql_unit_rows(task->rows, 0) != 1) { /* the device has unregistered it */
        task_end(push, ctx, task);
        return;
    }
    platform = (uint64_t)sql_row_int(task->rows, 0, 0, ROW_PLATFORM);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "token", sql_row_bytes(task->rows, 0, 0, ROW_TOKEN));
    json_put_text(&writer, "platform", push_platforms[platform % PUSH_PLATFORMS]);
    json_put_string(&writer, "deviceId", task->device);
    json_put_end(&writer);
    task->stage = STAGE_POST;
    rc = body.failed;
    if (rc == 0)
        rc = http_client_ask(ctx, push->delivery->push_client,
            &(struct http_client_request){ .method = "POST",
                .url = push->url,
                .headers = headers,
                .body = { body.bytes, body.size },
                .timeout_ns = task_limit_ns,
                .may_repeat = true }, /* one wake-up too many does no harm */
            tag_of(push, task));
    buffer_free(&body);
    if (rc < 0)
        task_drop(push, ctx, task);
}

static void task_forget_token(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    struct sql_unit *unit = sql_unit_create(call_key(task->did));

    UNIT_STEP(unit, &push_forget_token, SQL_ROWS_ANY, VALUE_TEXT(task->did),
        VALUE_TEXT(task->device), VALUE_TEXT(sql_row_bytes(task->rows, 0, 0, ROW_TOKEN)));
    task_submit(push, ctx, task, unit, STAGE_FORGET);
}

/* Queues the running item again, unless it is queued already. */
static void want_again(const struct push_task *task, unsigned tries)
{
    if (!task->item->is_wanted)
        task->item->tries = tries;
    task->item->is_wanted = true;
}

static void task_posted(
    struct push *push, struct tr_context *ctx, struct push_task *task, const struct tr_event *event)
{
    const struct http_client_answer *answer = event->value;
    uint32_t status = event->status == 0 && event->size >= sizeof *answer ? answer->status : 0;
    /* Another try may help if the gateway was overloaded or did not answer. */
    bool may_retry =
        event->status == TR_ETIMEOUT || event->status == TR_EIO || status == 429 || status >= 500;

    if (status == 410) {
        task_forget_token(push, ctx, task);
        return;
    }
    if (status >= 200 && status < 300)
        metric_add(&metrics[SENT], 1);
    else if (may_retry && task->item->tries + 1 < TRIES_MAX)
        want_again(task, task->item->tries + 1);
    else
        metric_add(&metrics[FAILED], 1);
    task_end(push, ctx, task);
}

static void task_forgot_token(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    int64_t count = sql_unit_changed(task->rows, 0);

    metric_add(&metrics[FORGOTTEN], count);
    if (count == 0) /* the device has unregistered or replaced the token: try the new one */
        want_again(task, 0);
    task_end(push, ctx, task);
}

/* ---- the actor ------------------------------------------------------------------------------ */

static struct push_task *free_task(struct push *push)
{
    for (uint32_t i = 0; i < TASKS_MAX; i++)
        if (push->tasks[i].stage == STAGE_NONE)
            return &push->tasks[i];
    return NULL;
}

static void task_start(
    struct push *push, struct tr_context *ctx, struct push_task *task, struct push_item *item)
{
    const char *at = item->key.at + 1, *end = item->key.at + item->key.size;

    tr_assert(task->stage == STAGE_NONE && item->key.size > 0);
    task->item = item;
    if (buffer_append(&task->sender, item->value.bytes, item->value.size) < 0) {
        task_drop(push, ctx, task);
    } else if (item->key.at[0] == 'c') {
        task->convo = (struct span){ at, (size_t)(end - at) };
        read_devices(push, ctx, task);
    } else {
        const char *hash = memrchr(at, '#', (size_t)(end - at)); /* a device's id has none */

        tr_assert(hash != NULL);
        task->did = (struct span){ at, (size_t)(hash - at) };
        task->device = (struct span){ hash + 1, (size_t)(end - hash - 1) };
        read_token(push, ctx, task);
    }
}

static void push_work(struct push *push, struct tr_context *ctx)
{
    struct push_item *item;
    struct push_task *task;

    uint64_t due_ns, now_ns = tr_now_ns(ctx);

    while ((task = free_task(push)) != NULL && (item = push_queue_next(&push->queue)) != NULL)
        task_start(push, ctx, task, item);
    due_ns = push_queue_due_ns(&push->queue);
    if (!push->is_timed && due_ns != 0)
        push->is_timed =
            tr_after(ctx, due_ns > now_ns ? due_ns - now_ns : 1, TAG_RESTED, NULL) == 0;
}

static enum tr_next push_handle(void *self, struct tr_context *ctx, void *memory)
{
    const struct push_message *message = memory;
    struct span key = { message->text, message->key_size };
    struct span sender = { message->text + message->key_size, message->sender_size };
    struct push *push = self;
    const struct push_item *item = push_queue_find(&push->queue, key);

    tr_assert(message->key_size + message->sender_size <= sizeof message->text);
    if (item != NULL && item->is_wanted &&
        !span_equal((struct span){ item->value.bytes, item->value.size }, sender))
        sender = SPAN(""); /* two senders: exclude neither, so that each is told of the other */
    push_want(push, key, sender);
    push_work(push, ctx);
    return TR_GO;
}

static void task_goes_on(struct push *push, struct tr_context *ctx, const struct tr_event *event)
{
    static void (*const on_rows[])(
        struct push * push, struct tr_context * ctx, struct push_task * task) = {
        [STAGE_READ] = devices_read, [STAGE_TOKEN] = token_read, [STAGE_FORGET] = task_forgot_token
    };
    struct push_task *task = &push->tasks[event->tag];

    if (task->stage == STAGE_NONE)
        return;
    if (task->stage == STAGE_POST) {
        task_posted(push, ctx, task, event);
    } else if (task->stage == STAGE_LISTENING) {
        want_devices(push, ctx, task, event->status == 0 ? &task->question->answer : NULL);
    } else {
        sql_unit_destroy(task->rows);
        task->rows = sql_take(&push->sql, event);
        if (sql_unit_status(task->rows) != 0)
            task_drop(push, ctx, task);
        else
            on_rows[task->stage](push, ctx, task);
    }
}

static enum tr_next push_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct push *push = self;

    if (event->kind == TR_EVENT_TIMER) {
        push->is_timed = false;
        push_queue_wake(&push->queue, tr_now_ns(ctx));
    } else if (event->kind == TR_EVENT_REPLY && event->tag < TASKS_MAX) {
        task_goes_on(push, ctx, event);
    }
    push_work(push, ctx);
    return TR_GO;
}

static int push_begin(void *self, struct tr_context *ctx)
{
    struct push *push = self;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    sql_client_init(&push->sql, push->delivery->sql);
    return push_queue_init(
        &push->queue, ITEMS_MAX, (struct base_siphash_key){ tr_random(ctx), tr_random(ctx) });
}

static int push_reset(void *self, enum tr_why why)
{
    struct push *push = self;

    (void)why;
    for (uint32_t i = 0; i < TASKS_MAX; i++)
        task_free(&push->tasks[i]);
    push_queue_fini(&push->queue);
    sql_client_fini(&push->sql);
    push->is_timed = false;
    return 0;
}

static void push_finish(void *self)
{
    struct push *push = self;

    (void)push_reset(push, TR_WHY_DONE);
    base_free(push->url);
}

static const struct tr_type push_type = {
    .name = "delivery_push",
    .message_size = sizeof(struct push_message),
    .state_size = sizeof(struct push),
    .start = push_begin,
    .handle = push_handle,
    .event = push_event,
    .finish = push_finish,
    .reset = push_reset,
};

/* ---- outside -------------------------------------------------------------------------------- */

int push_start(struct delivery *delivery, const struct config *config)
{
    const char *url = config == NULL ? "" : config_text(config, CONFIG_DELIVERY_PUSH_URL);
    struct push push = { .delivery = delivery };
    int rc;

    if (url[0] == '\0')
        return 0;
    rc = http_client_start(delivery->system,
        &(struct http_client_options){
            .allow_private = config_is_on(config, CONFIG_DELIVERY_PUSH_ALLOW_PRIVATE),
            .concurrent_max = TASKS_MAX,
            .supervisor = delivery->supervisor },
        &delivery->push_client);
    if (rc < 0)
        return rc;
    push.queue.interval_ns = config_number(config, CONFIG_DELIVERY_PUSH_INTERVAL);
    push.url = base_strdup(url);
    if (push.url == NULL)
        return TR_ENOMEM;
    rc = tr_spawn(delivery->system, &push_type, &push,
        &(struct tr_spawn_options){ .name = "delivery push",
            .owner = "delivery",
            .supervisor = delivery->supervisor,
            .box = { .capacity = BOX_MAX, .full = TR_FULL_FAIL } },
        &delivery->push);
    if (rc < 0)
        base_free(push.url);
    return rc;
}

void push_stop(struct delivery *delivery)
{
    if (!push_is_on(delivery))
        return;
    /* The stop keeps the supervisor from a restart; the kill ends the wait for the gateway. */
    (void)tr_stop(tr_sender_weaken(delivery->push));
    (void)tr_kill(tr_sender_weaken(delivery->push));
    (void)tr_sender_wait_closed(delivery->push, 0);
}

void push_free(struct delivery *delivery)
{
    if (push_is_on(delivery))
        tr_sender_drop(&delivery->push);
    http_client_stop(&delivery->push_client);
}

void push_tell(const struct delivery *delivery, struct span convo, struct span sender)
{
    struct push_message message = { .key_size = 1 + convo.size, .sender_size = sender.size };

    if (!push_is_on(delivery))
        return;
    if (convo.size <= ACT_CONVO_SIZE_MAX && sender.size <= DID_SIZE_MAX) {
        message.text[0] = 'c';
        memcpy(message.text + 1, convo.at, convo.size);
        memcpy(message.text + message.key_size, sender.at, sender.size);
        if (tr_tell(delivery->push, &message, sizeof message) == 0)
            return;
    }
    metric_add(&metrics[DROPPED], 1);
}
