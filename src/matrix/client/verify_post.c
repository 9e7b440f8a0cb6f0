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

static struct mxclient_request *post_slot(struct mxclient_verify *verify)
{
    return &verify->messages[(verify->message_first + verify->message_count) %
                             MXCLIENT_VERIFY_MESSAGES_MAX];
}

/* Queue the content for these devices of a user. */
static int post_queue(struct verify_post *post, enum verify_event event, struct span user_id,
    const struct span *devices, size_t count)
{
    struct mxclient *client = post->run->client;
    struct mxclient_verify *verify = &client->verify;
    char txn[MXCLIENT_TXN_BYTES];
    struct mxclient_request *request = post_slot(verify);
    struct json_writer writer;
    int rc;

    tr_assert(event < VERIFY_MESSAGES);
    json_put_end(&post->writer);
    rc = json_writer_end(&post->writer);
    if (rc == 0 && count > 0 && verify->message_count < MXCLIENT_VERIFY_MESSAGES_MAX) {
        mxclient_request_init(request, MXCLIENT_TO_DEVICE,
            (struct span[]){
                span_of(verify_event_names[event]), mxclient_session_txn(&client->session, txn) });
        writer = json_writer(&request->body);
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
        client->is_account_changed = true; /* the transaction id is used up */
        rc = mxclient_request_error(request);
        if (rc == 0)
            verify->message_count++;
        else
            mxclient_request_fini(request);
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

    if (is_stray && run->client->verify.message_count >= MXCLIENT_VERIFY_MESSAGES_MAX / 2)
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

bool mxclient_verify_next(struct mxclient *client, struct mxclient_request *ret_request)
{
    struct mxclient_verify *verify = &client->verify;

    if (verify->message_count == 0)
        return false;
    *ret_request = verify->messages[verify->message_first];
    verify->messages[verify->message_first] = (struct mxclient_request){ 0 };
    verify->message_first = (verify->message_first + 1) % MXCLIENT_VERIFY_MESSAGES_MAX;
    verify->message_count--;
    return true;
}
