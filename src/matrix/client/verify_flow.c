/* SPDX-License-Identifier: Apache-2.0 */
/* verify_flow.c: the verifications under way: found, added, moved on, ended. */
#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "matrix/client/verify_private.h"

/* ---- devices ---------------------------------------------------------------------------------- */

bool verify_is_ourselves(const struct mxclient *client, struct mxclient_place place)
{
    return span_equal(place.user_id, mxclient_span(&client->session.user_id)) &&
           span_equal(place.device_id, mxclient_span(&client->session.device_id));
}

struct mxclient_device *verify_device(const struct mxclient *client, struct mxclient_place place)
{
    struct mxclient_device *device = mxclient_devices_find(&client->devices, place);

    if (device == NULL || device->is_deleted || device->trust == MXSTORE_BLOCKED ||
        verify_is_ourselves(client, place))
        return NULL;
    return device;
}

bool verify_is_tracked(const struct mxclient *client, struct span user_id)
{
    const struct mxclient_user *user = mxclient_devices_user(&client->devices, user_id);

    return span_equal(user_id, mxclient_span(&client->session.user_id)) ||
           (user != NULL && !user->is_guest);
}

bool verify_is_guest(const struct mxclient *client, const struct mxclient_flow *flow)
{
    return !verify_has_ended(flow) && flow->step != MXCLIENT_VERIFY_INTERRUPTED &&
           !verify_is_tracked(client, mxclient_span(&flow->user_id));
}

/* Forget the guest of a verification that has ended, unless it takes part in another one. */
static void verify_dismiss(struct mxclient *client, const struct mxclient_flow *ended)
{
    struct span user_id = mxclient_span(&ended->user_id);

    for (uint32_t i = 0; i < client->verify.count; i++)
        if (!verify_has_ended(client->verify.flows[i]) &&
            span_equal(mxclient_span(&client->verify.flows[i]->user_id), user_id))
            return;
    mxclient_devices_dismiss(&client->devices, user_id);
}

int verify_bind(struct mxclient_flow *flow, const struct mxclient_device *device)
{
    buffer_clear(&flow->device_id);
    flow->identity_key = device->identity_key;
    flow->signing_key = device->signing_key;
    return buffer_span(&flow->device_id, mxclient_id(&device->entry));
}

bool verify_keys_hold(const struct mxclient *client, const struct mxclient_flow *flow)
{
    const struct mxclient_device *device;

    if (flow->step <= MXCLIENT_VERIFY_ARRIVED || flow->device_id.size == 0)
        return true;
    device = verify_device(client, verify_peer(flow));
    return device != NULL && mx_key_equal(&device->identity_key, &flow->identity_key) &&
           mx_key_equal(&device->signing_key, &flow->signing_key);
}

/* ---- verifications ---------------------------------------------------------------------------- */

void verify_free(struct mxclient_flow *flow)
{
    mx_sas_destroy(flow->sas);
    buffer_free(&flow->transaction_id);
    buffer_free(&flow->user_id);
    buffer_free(&flow->device_id);
    base_free(flow);
}

void mxclient_verify_fini(struct mxclient_verify *verify)
{
    for (uint32_t i = 0; i < verify->count; i++)
        verify_free(verify->flows[i]);
    for (uint32_t i = 0; i < MXCLIENT_VERIFY_MESSAGES_MAX; i++)
        verify_post_free(&verify->messages[i]);
    *verify = (struct mxclient_verify){ 0 };
}

struct mxclient_flow *verify_find(const struct mxclient *client, struct span transaction_id)
{
    for (uint32_t i = 0; i < client->verify.count; i++) {
        struct mxclient_flow *flow = client->verify.flows[i];

        if (!verify_has_ended(flow) &&
            span_equal(mxclient_span(&flow->transaction_id), transaction_id))
            return flow;
    }
    return NULL;
}

bool verify_has_room(const struct mxclient *client, struct span user_id)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < client->verify.count; i++)
        if (span_equal(mxclient_span(&client->verify.flows[i]->user_id), user_id))
            count++;
    return client->verify.count < MXCLIENT_VERIFY_MAX && count < MXCLIENT_VERIFY_PER_USER_MAX &&
           client->verify.message_count <= MXCLIENT_VERIFY_MESSAGES_STRAY_MAX;
}

int verify_add(struct verify_run *run, enum mxclient_origin origin, int64_t began_ms)
{
    struct mxclient_flow *flow = base_calloc(sizeof *flow);
    struct mxclient_verify *verify = &run->client->verify;

    tr_assert(verify->count < MXCLIENT_VERIFY_MAX);
    if (flow == NULL)
        return TR_ENOMEM;
    flow->origin = origin;
    flow->began_ms = began_ms;
    flow->asked_ms = run->now_ms;
    flow->deadline_ms = began_ms + MXCLIENT_VERIFY_MS;
    if (buffer_span(&flow->transaction_id, run->transaction_id) != 0 ||
        buffer_span(&flow->user_id, run->sender) != 0 ||
        buffer_span(&flow->device_id, run->device_id) != 0) {
        verify_free(flow);
        return TR_ENOMEM;
    }
    verify->flows[verify->count++] = flow;
    run->flow = flow;
    return 0;
}

/* Store the step, and with the end the last message (rule 7). A verification with all devices of a user
 * is stored with "*". */
static int verify_put(const struct verify_run *run)
{
    const struct mxclient_flow *flow = run->flow;
    struct mxclient_verify_message *last = verify_has_ended(flow) ? verify_post_last(run) : NULL;
    struct mxstore_verification row = { .transaction_id = mxclient_span(&flow->transaction_id),
        .user_id = mxclient_span(&flow->user_id),
        .device_id = flow->device_id.size == 0 ? SPAN("*") : mxclient_span(&flow->device_id),
        .step = span_of(mxclient_verify_step_text(flow->step)),
        .updated_ms = run->now_ms };
    struct buffer packed = { 0 };
    int rc = 0;

    if (last != NULL) {
        last->ended = flow->step;
        last->ended_ms = run->now_ms;
        (void)buffer_span(&last->device_id, row.device_id);
        rc = last->device_id.failed != 0 ? last->device_id.failed : verify_post_pack(last, &packed);
        row.step = mxclient_span(&packed);
    }
    if (rc == 0)
        mxstore_put(run->unit, MXSTORE_IS_verification, &row);
    buffer_free(&packed);
    return rc;
}

/* Compute what the ring of ended verifications remembers. */
static int verify_digest(const struct verify_run *run, uint8_t ret_digest[CRYPTO_SHA256_BYTES])
{
    struct buffer name = { 0 };
    int rc;

    (void)buffer_span(&name, run->sender);
    (void)buffer_append(&name, "\n", 1);
    rc = buffer_span(&name, run->transaction_id);
    if (rc == 0)
        crypto_sha256(name.bytes, name.size, ret_digest);
    buffer_free(&name);
    return rc;
}

bool verify_is_late(const struct verify_run *run)
{
    uint8_t digest[CRYPTO_SHA256_BYTES];

    if (verify_digest(run, digest) != 0)
        return true; /* without memory: ignore it */
    for (uint32_t i = 0; i < MXCLIENT_VERIFY_ENDED_MAX; i++)
        if (memcmp(run->client->verify.ended[i], digest, sizeof digest) == 0)
            return true;
    return false;
}

int verify_note_end(struct verify_run *run)
{
    struct mxclient_verify *verify = &run->client->verify;

    return verify_digest(run, verify->ended[verify->ended_next++ % MXCLIENT_VERIFY_ENDED_MAX]);
}

/* Return whether the row of a flow is stored at a step (rule 4). */
static bool verify_is_stored(const struct mxclient_flow *flow, bool was_stored)
{
    if (flow->step == MXCLIENT_VERIFY_ARRIVED || flow->step == MXCLIENT_VERIFY_ASKED)
        return false;
    return was_stored || flow->step != MXCLIENT_VERIFY_CANCELLED ||
           (flow->failure == MXCLIENT_FAILED_USER && !flow->is_by_peer);
}

int verify_go(struct verify_run *run, enum mxclient_verify_step step)
{
    struct mxclient_flow *flow = run->flow;
    bool was_stored = flow->step != MXCLIENT_VERIFY_ARRIVED && flow->step != MXCLIENT_VERIFY_ASKED;
    /* A MAC that comes while the users compare is no news for them. */
    bool is_news = step != flow->step && step != MXCLIENT_VERIFY_CHECKED;
    int rc = 0;

    flow->step = step;
    flow->is_news = flow->is_news || is_news;
    if (step >= MXCLIENT_VERIFY_FINISHING) {
        mx_sas_destroy(flow->sas);
        flow->sas = NULL;
    }
    if (verify_is_stored(flow, was_stored))
        rc = verify_put(run);
    if (rc != 0 || !verify_has_ended(flow))
        return rc;
    run->sender = mxclient_span(&flow->user_id);
    run->transaction_id = mxclient_span(&flow->transaction_id);
    verify_dismiss(run->client, flow);
    return verify_note_end(run);
}

/* ---- time ------------------------------------------------------------------------------------- */

int64_t verify_due_ms(const struct mxclient_flow *flow)
{
    if (flow->step == MXCLIENT_VERIFY_INTERRUPTED)
        return INT64_MIN;
    if (flow->step > MXCLIENT_VERIFY_ASKED)
        return flow->deadline_ms;
    return flow->asked_ms + MXCLIENT_VERIFY_ASK_MS < flow->deadline_ms
               ? flow->asked_ms + MXCLIENT_VERIFY_ASK_MS
               : flow->deadline_ms;
}

bool verify_is_overdue(const struct verify_run *run)
{
    /* A clock that was set back far must not keep a verification alive. */
    return run->now_ms >= verify_due_ms(run->flow) ||
           run->now_ms < run->flow->began_ms - MXCLIENT_VERIFY_AHEAD_MS;
}

/* ---- ends ------------------------------------------------------------------------------------- */

int verify_end_quietly(struct verify_run *run, enum mxclient_failure failure)
{
    tr_assert(!verify_has_ended(run->flow));
    run->flow->failure = failure;
    return verify_go(run, MXCLIENT_VERIFY_CANCELLED);
}

int verify_end(struct verify_run *run, enum mxclient_failure failure)
{
    struct mxclient_place place = verify_peer(run->flow);
    int rc;

    run->transaction_id = mxclient_span(&run->flow->transaction_id);
    rc = place.device_id.size == 0 ? verify_post_cancel_all(run, place, failure)
                                   : verify_post_cancel(run, place, failure, false);
    return rc == 0 ? verify_end_quietly(run, failure) : rc;
}

int verify_apply(struct verify_run *run, enum verify_event event)
{
    int rc = MXCLIENT_FAILED_CHANGED;

    if (run->flow->step == MXCLIENT_VERIFY_INTERRUPTED)
        rc = MXCLIENT_FAILED_RESTARTED;
    else if (verify_is_overdue(run))
        rc = MXCLIENT_FAILED_TIMEOUT;
    else if (verify_keys_hold(run->client, run->flow))
        rc = verify_move(run, event);
    if (rc == 0)
        return verify_go(run, run->to);
    return rc > 0 ? verify_end(run, (enum mxclient_failure)rc) : rc;
}
