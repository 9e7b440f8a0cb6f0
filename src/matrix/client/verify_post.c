/* SPDX-License-Identifier: Apache-2.0 */
/* verify_post.c: verification messages on their way to devices, in the clear: the peer may have no
 * session with us yet, and the strings protect what they say. */
#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/verify_private.h"

#define PREFIX "m.key.verification."

const char *const verify_event_names[VERIFY_MESSAGES] = {
    [VERIFY_REQUEST] = PREFIX "request",
    [VERIFY_READY] = PREFIX "ready",
    [VERIFY_START] = PREFIX "start",
    [VERIFY_ACCEPT] = PREFIX "accept",
    [VERIFY_KEY] = PREFIX "key",
    [VERIFY_MAC] = PREFIX "mac",
    [VERIFY_DONE] = PREFIX "done",
    [VERIFY_CANCEL] = PREFIX "cancel",
};

#define FAILURE(name, code, reason) [MXCLIENT_FAILED_##name] = { code, reason },
const struct verify_failure verify_failures[MXCLIENT_FAILURE_COUNT] = { MXCLIENT_VERIFY_FAILURES(
    FAILURE) };

bool mxclient_verify_is(struct span type)
{
    return span_starts(type, PREFIX);
}

void verify_post_start(struct verify_post *post, struct verify_run *run)
{
    *post = (struct verify_post){ .run = run };
    post->writer = json_writer(&post->content);
    json_put_object(&post->writer, NULL);
    json_put_string(&post->writer, "transaction_id", run->transaction_id);
}

/* ---- the queue -------------------------------------------------------------------------------- */

/* Return a message of the queue; the one after the last is free. */
static struct mxclient_verify_message *post_at(struct mxclient_verify *verify, uint32_t i)
{
    return &verify->messages[(verify->message_first + i) % MXCLIENT_VERIFY_MESSAGES_MAX];
}

void verify_post_free(struct mxclient_verify_message *message)
{
    buffer_free(&message->body);
    buffer_free(&message->transaction_id);
    buffer_free(&message->user_id);
    buffer_free(&message->device_id);
    *message = (struct mxclient_verify_message){ 0 };
}

/* Write the body: the content for each of these devices. */
static int post_write_body(const struct verify_post *post, struct span user_id,
    const struct span *devices, size_t count, struct buffer *out)
{
    struct json_writer writer = json_writer(out);

    json_put_object(&writer, NULL);
    json_put_object(&writer, "messages");
    json_put_key(&writer, user_id);
    json_put_object(&writer, NULL);
    for (size_t i = 0; i < count; i++) {
        json_put_key(&writer, devices[i]);
        json_put_raw(&writer, NULL, mxclient_span(&post->content));
    }
    for (int i = 0; i < 3; i++)
        json_put_end(&writer);
    return json_writer_end(&writer);
}

/* Queue the content for these devices of a user. */
static int post_queue(struct verify_post *post, enum verify_event event, struct span user_id,
    const struct span *devices, size_t count)
{
    struct mxclient *client = post->run->client;
    struct mxclient_verify *verify = &client->verify;
    struct mxclient_verify_message *message = post_at(verify, verify->message_count);
    int rc;

    tr_assert(event < VERIFY_MESSAGES);
    json_put_end(&post->writer);
    rc = json_writer_end(&post->writer);
    if (rc == 0 && count > 0 && verify->message_count < MXCLIENT_VERIFY_MESSAGES_MAX) {
        *message = (struct mxclient_verify_message){ .type = verify_event_names[event] };
        (void)mxclient_session_txn(&client->session, message->txn);
        client->is_account_changed = true; /* the transaction id is used up */
        (void)buffer_span(&message->transaction_id, post->run->transaction_id);
        (void)buffer_span(&message->user_id, user_id);
        rc = post_write_body(post, user_id, devices, count, &message->body);
        if (rc == 0)
            rc = message->transaction_id.failed != 0 ? message->transaction_id.failed
                                                     : message->user_id.failed;
        if (rc == 0)
            verify->message_count++;
        else
            verify_post_free(message);
    }
    buffer_free(&post->content);
    return rc;
}

int verify_post_end(struct verify_post *post, enum verify_event event, struct mxclient_place place)
{
    return post_queue(post, event, place.user_id, &place.device_id, 1);
}

int verify_post_end_all(
    struct verify_post *post, enum verify_event event, struct mxclient_place place)
{
    const struct mxclient *client = post->run->client;
    const struct mxclient_user *user = mxclient_devices_user(&client->devices, place.user_id);
    struct span ids[MXCLIENT_VERIFY_DEVICES_MAX];
    size_t count = 0;

    for (uint32_t i = 0;
         user != NULL && i < user->devices.count && count < MXCLIENT_VERIFY_DEVICES_MAX; i++) {
        struct mxclient_place other = { place.user_id, mxclient_id(user->devices.entries[i]) };

        if (!span_equal(other.device_id, place.device_id) && verify_device(client, other) != NULL)
            ids[count++] = other.device_id;
    }
    return post_queue(post, event, place.user_id, ids, count);
}

static void post_put_failure(struct verify_post *post, enum mxclient_failure failure)
{
    tr_assert(failure > MXCLIENT_FAILED_NOT && failure < MXCLIENT_FAILURE_COUNT);
    json_put_text(&post->writer, "code", verify_failures[failure].code);
    json_put_text(&post->writer, "reason", verify_failures[failure].reason);
}

int verify_post_cancel(struct verify_run *run, struct mxclient_place place,
    enum mxclient_failure failure, bool is_stray)
{
    struct verify_post post;

    if (is_stray && run->client->verify.message_count >= MXCLIENT_VERIFY_MESSAGES_STRAY_MAX)
        return 0;
    verify_post_start(&post, run);
    post_put_failure(&post, failure);
    return verify_post_end(&post, VERIFY_CANCEL, place);
}

int verify_post_cancel_all(
    struct verify_run *run, struct mxclient_place place, enum mxclient_failure failure)
{
    struct verify_post post;

    verify_post_start(&post, run);
    post_put_failure(&post, failure);
    return verify_post_end_all(&post, VERIFY_CANCEL, place);
}

/* The server has the first message, or refused it: the row, if one kept it, keeps it no longer. A new
 * verification with the same id has replaced that row. */
static void post_on_answer(struct mxclient *client, struct sql_unit *unit)
{
    struct mxclient_verify *verify = &client->verify;
    struct mxclient_verify_message *message = post_at(verify, 0);

    tr_assert(verify->message_count > 0);
    if (message->ended != MXCLIENT_VERIFY_INTERRUPTED &&
        verify_find(client, mxclient_span(&message->transaction_id)) == NULL)
        mxstore_put(unit, MXSTORE_IS_verification,
            &(struct mxstore_verification){
                .transaction_id = mxclient_span(&message->transaction_id),
                .user_id = mxclient_span(&message->user_id),
                .device_id = mxclient_span(&message->device_id),
                .step = span_of(mxclient_verify_step_text(message->ended)),
                .updated_ms = message->ended_ms });
    verify_post_free(message);
    verify->message_first = (verify->message_first + 1) % MXCLIENT_VERIFY_MESSAGES_MAX;
    verify->message_count--;
}

bool mxclient_verify_next(
    struct mxclient *client, struct sql_unit *unit, struct mxclient_request *ret_request)
{
    struct mxclient_verify *verify = &client->verify;
    const struct mxclient_verify_message *message;

    if (verify->is_sending)
        post_on_answer(client, unit);
    verify->is_sending = verify->message_count > 0;
    if (!verify->is_sending)
        return false;
    message = post_at(verify, 0);
    mxclient_request_init(ret_request, MXCLIENT_TO_DEVICE,
        (struct span[]){ span_of(message->type), span_of(message->txn) });
    (void)buffer_span(&ret_request->body, mxclient_span(&message->body));
    return true;
}

/* ---- the last message ------------------------------------------------------------------------- */

struct mxclient_verify_message *verify_post_last(const struct verify_run *run)
{
    struct mxclient_verify *verify = &run->client->verify;
    const struct mxclient_flow *flow = run->flow;

    for (uint32_t i = verify->message_count; i > 0; i--) {
        struct mxclient_verify_message *message = post_at(verify, i - 1);

        if (!span_equal(
                mxclient_span(&message->transaction_id), mxclient_span(&flow->transaction_id)) ||
            !span_equal(mxclient_span(&message->user_id), mxclient_span(&flow->user_id)))
            continue;
        /* A peer that cancelled waits for no message that came before. */
        return flow->step == MXCLIENT_VERIFY_DONE ||
                       message->type == verify_event_names[VERIFY_CANCEL]
                   ? message
                   : NULL;
    }
    return NULL;
}

int verify_post_pack(const struct mxclient_verify_message *message, struct buffer *out)
{
    (void)buffer_format(
        out, "%s %s %s ", mxclient_verify_step_text(message->ended), message->txn, message->type);
    return buffer_span(out, mxclient_span(&message->body));
}

/* Read the parts of a packed step. */
static bool post_unpack(
    struct span text, struct mxclient_verify_message *ret_message, struct span *ret_body)
{
    struct mxclient_verify_message message = { 0 };
    struct span step, txn, type;
    int event = 0;

    if (!span_cut(&text, ' ', &step) || !span_cut(&text, ' ', &txn) ||
        !span_cut(&text, ' ', &type) || text.at == NULL || txn.size >= sizeof message.txn)
        return false;
    message.ended = span_is(step, mxclient_verify_step_text(MXCLIENT_VERIFY_DONE))
                        ? MXCLIENT_VERIFY_DONE
                    : span_is(step, mxclient_verify_step_text(MXCLIENT_VERIFY_CANCELLED))
                        ? MXCLIENT_VERIFY_CANCELLED
                        : MXCLIENT_VERIFY_INTERRUPTED;
    while (event < VERIFY_MESSAGES && !span_is(type, verify_event_names[event]))
        event++;
    if (message.ended == MXCLIENT_VERIFY_INTERRUPTED || event == VERIFY_MESSAGES)
        return false;
    memcpy(message.txn, txn.at, txn.size);
    message.type = verify_event_names[event];
    *ret_message = message;
    *ret_body = text;
    return true;
}

int verify_post_load(struct mxclient *client, const struct mxstore_verification *row)
{
    struct mxclient_verify *verify = &client->verify;
    struct mxclient_verify_message message;
    struct span body;

    if (!post_unpack(row->step, &message, &body))
        return TR_ENOENT;
    if (verify->message_count == MXCLIENT_VERIFY_MESSAGES_MAX)
        return 0; /* the row keeps it for the next start */
    message.ended_ms = row->updated_ms;
    if (buffer_span(&message.body, body) != 0 ||
        buffer_span(&message.transaction_id, row->transaction_id) != 0 ||
        buffer_span(&message.user_id, row->user_id) != 0 ||
        buffer_span(&message.device_id, row->device_id) != 0) {
        verify_post_free(&message);
        return TR_ENOMEM;
    }
    *post_at(verify, verify->message_count++) = message;
    return 0;
}
