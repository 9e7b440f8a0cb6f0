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
 *    does no harm. */
#include "services/delivery/push/push.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "http/client.h"
#include "json/json_write.h"
#include "services/common/call.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/push/push_queue.h"
#include "services/delivery/push/push_store.h"
#include "support/metric.h"

enum {
    ITEMS_MAX = 16384,
    TASKS_MAX = 64,
    TRIES_MAX = 3,
    DEVICES_READ_MAX = 2000, /* of a conversation, in one read; another read fetches the rest */
    BOX_MAX = 4096,
};
enum { TAG_RESTED = TASKS_MAX };
enum { ROW_DID, ROW_DEVICE };
enum { ROW_PLATFORM, ROW_TOKEN };
static const uint64_t task_limit_ns = TR_SECONDS(10);

const char *const push_platforms[PUSH_PLATFORMS + 1] = { "ios", "android", "web", NULL };

static struct metric metrics[] = {
    { "troupe_delivery_push_sent_total", NULL, "Wake-ups that the gateway took.", METRIC_COUNTER, 0,
        NULL, NULL },
    { "troupe_delivery_push_failed_total", NULL,
        "Wake-ups that the gateway refused, or did not answer for.", METRIC_COUNTER, 0, NULL,
        NULL },
    { "troupe_delivery_push_dropped_total", NULL,
        "News and wake-ups that there was no room, or no answer of the database, for.",
        METRIC_COUNTER, 0, NULL, NULL },
    { "troupe_delivery_push_forgotten_total", NULL,
        "Push tokens that the gateway called gone, and that were deleted.", METRIC_COUNTER, 0, NULL,
        NULL },
};
enum { SENT, FAILED, DROPPED, FORGOTTEN };

struct push_message {
    size_t convo_size, sender_size;
    char text[ACT_CONVO_SIZE_MAX + DID_SIZE_MAX];
};

enum stage { STAGE_NONE, STAGE_READ, STAGE_LISTENING, STAGE_TOKEN, STAGE_POST, STAGE_FORGET };

struct push_task {
    enum stage stage;
    struct push_item *item;
    struct buffer value; /* a copy of the item's value at the start; for a device: its token */
    uint32_t platform;
    struct buffer did, device; /* the last row read: the next read continues after it */
    struct sql_unit *devices;  /* while the conversation is asked for listeners */
    struct act *question;
};

struct push {
    struct delivery *delivery;
    char *url;
    uint64_t interval_ns;
    struct sql_client sql;
    struct push_queue queue;
    struct push_task tasks[TASKS_MAX];
    bool is_timed; /* a timer runs for the item whose rest ends first */
};

/* ---- keys and values ------------------------------------------------------------------------ */

/* A conversation's key is c and its id. Its value is the account that stored something; empty if
 * several accounts did. A device's key is d and DID#device, and it has no value. */

static void put_device_key(struct buffer *key, struct span did, struct span device)
{
    buffer_text(key, "d");
    buffer_span(key, did);
    buffer_text(key, "#");
    buffer_span(key, device);
}

static struct span id_of(const struct push_item *item)
{
    return (struct span){ item->key.at + 1, item->key.size - 1 };
}

/* A device's id has no # in it. */
static void split_device_key(
    const struct push_task *task, struct span *ret_did, struct span *ret_device)
{
    struct span id = id_of(task->item);
    const char *hash = memrchr(id.at, '#', id.size);

    tr_assert(hash != NULL);
    *ret_did = (struct span){ id.at, (size_t)(hash - id.at) };
    *ret_device = (struct span){ hash + 1, id.size - ret_did->size - 1 };
}

static void push_want(struct push *push, const struct buffer *key, struct span value)
{
    if (key->failed != 0 ||
        push_queue_want(&push->queue, (struct span){ key->bytes, key->size }, value, 0) < 0)
        metric_add(&metrics[DROPPED], 1);
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static uint32_t tag_of(const struct push *push, const struct push_task *task)
{
    return (uint32_t)(task - push->tasks);
}

static void task_free(struct push_task *task)
{
    buffer_free(&task->value);
    buffer_free(&task->did);
    buffer_free(&task->device);
    sql_unit_destroy(task->devices);
    act_unref(task->question);
    *task = (struct push_task){ .stage = STAGE_NONE };
}

static void task_end(struct push *push, struct tr_context *ctx, struct push_task *task)
{
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
    int rc = TR_ENOMEM;

    task->stage = stage;
    if (unit != NULL)
        rc = stage == STAGE_FORGET ? sql_write(ctx, &push->sql, unit, &options)
                                   : sql_read(ctx, &push->sql, unit, &options);
    if (rc < 0) {
        sql_unit_destroy(unit);
        task_drop(push, ctx, task);
    }
}

/* ---- a conversation ------------------------------------------------------------------------- */

/* Returns the text of a buffer, with an address even if it is empty. */
static struct span text_of(const struct buffer *buffer)
{
    return buffer->size == 0 ? SPAN("") : (struct span){ buffer->bytes, buffer->size };
}

static void read_devices(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL) {
        sql_unit_step(unit, &push_find_devices, SQL_ROWS_ANY);
        sql_unit_text(unit, id_of(task->item));
        sql_unit_text(unit, text_of(&task->value));
        sql_unit_int(unit, DEVICES_READ_MAX);
        sql_unit_text(unit, text_of(&task->did));
        sql_unit_text(unit, text_of(&task->device));
    }
    task_submit(push, ctx, task, unit, STAGE_READ);
}

/* Returns true if the row is the first of its account. */
static bool is_next_account(const struct sql_unit *devices, uint32_t row)
{
    return row == 0 || !span_equal(sql_row_bytes(devices, 0, row, ROW_DID),
                           sql_row_bytes(devices, 0, row - 1, ROW_DID));
}

/* Creates the act that asks which accounts listen; it lists each account once. NULL when out of
 * memory. */
static struct act *question_of(const struct sql_unit *devices)
{
    struct act *act = act_create(&listening_act_type, NULL);
    struct listening_act *question;
    uint32_t rows = sql_unit_rows(devices, 0);
    size_t at = 0;

    if (act == NULL)
        return NULL;
    question = act_listening(act);
    question->dids = base_calloc((rows + 1) * sizeof *question->dids);
    for (uint32_t row = 0; row < rows; row++)
        if (is_next_account(devices, row))
            buffer_span(&act->decoded, sql_row_bytes(devices, 0, row, ROW_DID));
    if (question->dids == NULL || act->decoded.failed != 0) {
        act_unref(act);
        return NULL;
    }
    for (uint32_t row = 0; row < rows; row++)
        if (is_next_account(devices, row)) {
            size_t size = sql_row_bytes(devices, 0, row, ROW_DID).size;

            question->dids[question->count++] = (struct span){ act->decoded.bytes + at, size };
            at += size;
        }
    return act;
}

/* Queues the devices of accounts that do not listen. `listens` has a byte for each account; NULL:
 * none listens. */
static void want_devices(
    struct push *push, const struct sql_unit *devices, const struct buffer *listens)
{
    size_t account = 0;

    for (uint32_t row = 0; row < sql_unit_rows(devices, 0); row++) {
        struct buffer key = { 0 };

        account += row > 0 && is_next_account(devices, row);
        if (listens != NULL && account < listens->size && listens->bytes[account] != 0)
            continue;
        put_device_key(&key, sql_row_bytes(devices, 0, row, ROW_DID),
            sql_row_bytes(devices, 0, row, ROW_DEVICE));
        push_want(push, &key, SPAN(""));
        buffer_free(&key);
    }
}

/* Asks the conversation for listeners. Returns false if the conversation has no actor, so that
 * there are none, or if the question cannot be sent. */
static bool ask_who_listens(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    struct span id = id_of(task->item);
    struct act_message message;
    tr_sender convo;
    int rc = TR_ENOMEM;

    if (tr_registry_find(push->delivery->convos, id.at, id.size, "push", &convo) < 0)
        return false;
    task->question = question_of(task->devices);
    if (task->question != NULL) {
        message = (struct act_message){ .act = act_ref(task->question) };
        rc = tr_ask(ctx, convo, &message, sizeof message,
            &(struct tr_ask_options){ .tag = tag_of(push, task), .timeout_ns = task_limit_ns });
        if (rc < 0)
            act_unref(task->question);
    }
    tr_sender_drop(&convo);
    task->stage = STAGE_LISTENING;
    return rc == 0;
}

/* Reads the next page of devices, or ends the task after the last one. The devices of this page are
 * queued already. */
static void read_on(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    uint32_t rows = sql_unit_rows(task->devices, 0);

    if (rows < DEVICES_READ_MAX) {
        task_end(push, ctx, task);
        return;
    }
    buffer_clear(&task->did);
    buffer_clear(&task->device);
    buffer_span(&task->did, sql_row_bytes(task->devices, 0, rows - 1, ROW_DID));
    buffer_span(&task->device, sql_row_bytes(task->devices, 0, rows - 1, ROW_DEVICE));
    sql_unit_destroy(task->devices);
    act_unref(task->question);
    task->devices = NULL;
    task->question = NULL;
    if (task->did.failed != 0 || task->device.failed != 0)
        task_drop(push, ctx, task);
    else
        read_devices(push, ctx, task);
}

static void devices_read(
    struct push *push, struct tr_context *ctx, struct push_task *task, struct sql_unit *unit)
{
    if (sql_unit_status(unit) != 0) {
        sql_unit_destroy(unit);
        task_drop(push, ctx, task);
        return;
    }
    task->devices = unit;
    if (sql_unit_rows(unit, 0) > 0 && ask_who_listens(push, ctx, task))
        return;
    want_devices(push, unit, NULL);
    read_on(push, ctx, task);
}

static void listening_told(
    struct push *push, struct tr_context *ctx, struct push_task *task, const struct tr_event *event)
{
    want_devices(push, task->devices, event->status == 0 ? &task->question->answer : NULL);
    read_on(push, ctx, task);
}

/* ---- a device ------------------------------------------------------------------------------- */

SQL_STATEMENT(
    forget_token, "DELETE FROM push_tokens WHERE did = $1 AND device = $2 AND token = $3");

static void task_post(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    static const char *const headers[] = { "Content-Type: application/json", NULL };
    struct buffer body = { 0 };
    struct json_writer writer = json_writer(&body);
    struct span did, device;
    int rc;

    split_device_key(task, &did, &device);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "token", text_of(&task->value));
    json_put_text(&writer, "platform", push_platforms[task->platform % PUSH_PLATFORMS]);
    json_put_string(&writer, "deviceId", device);
    json_put_end(&writer);
    task->stage = STAGE_POST;
    rc = body.failed;
    if (rc == 0)
        rc = http_client_ask(ctx, push->delivery->push_client,
            &(struct http_client_request){ .method = "POST",
                .url = push->url,
                .headers = headers,
                .body = { body.bytes, body.size },
                .timeout_ns = task_limit_ns },
            tag_of(push, task));
    buffer_free(&body);
    if (rc < 0)
        task_drop(push, ctx, task);
}

static void read_token(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct span did, device;

    split_device_key(task, &did, &device);
    if (unit != NULL) {
        sql_unit_step(unit, &push_find_token, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, device);
    }
    task_submit(push, ctx, task, unit, STAGE_TOKEN);
}

static void token_read(
    struct push *push, struct tr_context *ctx, struct push_task *task, struct sql_unit *unit)
{
    bool is_read = sql_unit_status(unit) == 0, is_there = is_read && sql_unit_rows(unit, 0) == 1;

    if (is_there) {
        task->platform = (uint32_t)sql_row_int(unit, 0, 0, ROW_PLATFORM);
        buffer_span(&task->value, sql_row_bytes(unit, 0, 0, ROW_TOKEN));
    }
    sql_unit_destroy(unit);
    if (!is_read || task->value.failed != 0)
        task_drop(push, ctx, task);
    else if (is_there)
        task_post(push, ctx, task);
    else
        task_end(push, ctx, task);
}

static void task_forget_token(struct push *push, struct tr_context *ctx, struct push_task *task)
{
    struct span did, device;
    struct sql_unit *unit;

    split_device_key(task, &did, &device);
    unit = sql_unit_create(call_key(did));
    if (unit != NULL) {
        sql_unit_step(unit, &forget_token, SQL_ROWS_ANY);
        sql_unit_text(unit, did);
        sql_unit_text(unit, device);
        sql_unit_text(unit, text_of(&task->value));
    }
    task_submit(push, ctx, task, unit, STAGE_FORGET);
}

/* Returns true if another try may help: the gateway was overloaded or did not answer. */
static bool may_try_again(const struct tr_event *event, uint32_t status)
{
    return event->status == TR_ETIMEOUT || event->status == TR_EIO || status == 429 ||
           status >= 500;
}

/* Queues the item again, unless it is queued already. The item is still in the table while its task
 * runs, so this cannot fail. */
static void want_again(struct push *push, const struct push_task *task, unsigned tries)
{
    if (!task->item->is_wanted)
        (void)push_queue_want(&push->queue, task->item->key, SPAN(""), tries);
}

static void task_posted(
    struct push *push, struct tr_context *ctx, struct push_task *task, const struct tr_event *event)
{
    const struct http_client_answer *answer = event->value;
    uint32_t status = event->status == 0 && event->size >= sizeof *answer ? answer->status : 0;

    if (status == 410) {
        task_forget_token(push, ctx, task);
        return;
    }
    if (status >= 200 && status < 300)
        metric_add(&metrics[SENT], 1);
    else if (may_try_again(event, status) && task->item->tries + 1 < TRIES_MAX)
        want_again(push, task, task->item->tries + 1);
    else
        metric_add(&metrics[FAILED], 1);
    task_end(push, ctx, task);
}

static void task_forgot_token(
    struct push *push, struct tr_context *ctx, struct push_task *task, struct sql_unit *unit)
{
    bool is_stored = sql_unit_status(unit) == 0;
    int64_t count = is_stored ? sql_unit_changed(unit, 0) : 0;

    sql_unit_destroy(unit);
    if (!is_stored) {
        task_drop(push, ctx, task);
        return;
    }
    metric_add(&metrics[FORGOTTEN], count);
    if (count == 0) /* the device has unregistered or replaced the token: try the new one */
        want_again(push, task, 0);
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
    task->item = item;
    buffer_append(&task->value, item->value.bytes, item->value.size);
    if (task->value.failed != 0)
        task_drop(push, ctx, task);
    else if (item->key.at[0] == 'c')
        read_devices(push, ctx, task);
    else
        read_token(push, ctx, task);
}

static void push_work(struct push *push, struct tr_context *ctx)
{
    struct push_item *item;
    struct push_task *task;

    while ((task = free_task(push)) != NULL && (item = push_queue_next(&push->queue)) != NULL)
        task_start(push, ctx, task, item);
    if (!push->is_timed && push_queue_due_ns(&push->queue) != 0) {
        uint64_t due_ns = push_queue_due_ns(&push->queue), now_ns = tr_now_ns(ctx);

        push->is_timed =
            tr_after(ctx, due_ns > now_ns ? due_ns - now_ns : 1, TAG_RESTED, NULL) == 0;
    }
}

static enum tr_next push_handle(void *self, struct tr_context *ctx, void *memory)
{
    const struct push_message *message = memory;
    struct span sender = { message->text + message->convo_size, message->sender_size };
    struct buffer key = { 0 };
    const struct push_item *item = NULL;
    struct push *push = self;

    buffer_text(&key, "c");
    buffer_append(&key, message->text, message->convo_size);
    if (key.failed == 0)
        item = push_queue_find(&push->queue, (struct span){ key.bytes, key.size });
    if (item != NULL && item->is_wanted &&
        !span_equal((struct span){ item->value.bytes, item->value.size }, sender))
        sender = SPAN(""); /* two senders: exclude neither, so that each is told of the other */
    push_want(push, &key, sender);
    buffer_free(&key);
    push_work(push, ctx);
    return TR_GO;
}

static void task_goes_on(struct push *push, struct tr_context *ctx, const struct tr_event *event)
{
    struct push_task *task = &push->tasks[event->tag];

    switch (task->stage) {
    case STAGE_READ:
        devices_read(push, ctx, task, sql_take(&push->sql, event));
        break;
    case STAGE_LISTENING:
        listening_told(push, ctx, task, event);
        break;
    case STAGE_TOKEN:
        token_read(push, ctx, task, sql_take(&push->sql, event));
        break;
    case STAGE_POST:
        task_posted(push, ctx, task, event);
        break;
    case STAGE_FORGET:
        task_forgot_token(push, ctx, task, sql_take(&push->sql, event));
        break;
    case STAGE_NONE:
        break;
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
    int rc = push_queue_init(&push->queue, push->interval_ns, ITEMS_MAX,
        (struct base_siphash_key){ tr_random(ctx), tr_random(ctx) });

    if (rc < 0)
        return rc;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    sql_client_init(&push->sql, push->delivery->sql);
    return 0;
}

static void task_clear(struct push *push)
{
    for (uint32_t i = 0; i < TASKS_MAX; i++)
        task_free(&push->tasks[i]);
    push_queue_fini(&push->queue);
    if (push->sql.sql != NULL)
        sql_client_fini(&push->sql);
}

static void push_finish(void *self)
{
    struct push *push = self;

    task_clear(push);
    base_free(push->url);
}

static int push_reset(void *self, enum tr_why why)
{
    struct push *push = self;

    (void)why;
    task_clear(push);
    *push = (struct push){
        .delivery = push->delivery, .url = push->url, .interval_ns = push->interval_ns
    };
    return 0;
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
    push.interval_ns = config_number(config, CONFIG_DELIVERY_PUSH_INTERVAL);
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

void push_send(const struct delivery *delivery, struct span convo, struct span sender)
{
    struct push_message message = { .convo_size = convo.size, .sender_size = sender.size };

    if (convo.size > ACT_CONVO_SIZE_MAX || sender.size > DID_SIZE_MAX) {
        metric_add(&metrics[DROPPED], 1);
        return;
    }
    memcpy(message.text, convo.at, convo.size);
    memcpy(message.text + convo.size, sender.at, sender.size);
    if (tr_tell(delivery->push, &message, sizeof message) < 0)
        metric_add(&metrics[DROPPED], 1);
}
