/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: verifications begin, are found, move and end (Matrix specification, Client-Server API,
 * "Key verification framework"). */
#include "matrix/client/verify.h"

#include <troupe/error.h>

#include "base/assert.h"
#include "crypto/encoding.h"
#include "matrix/client/verify_private.h"

const char *mxclient_verify_step_text(enum mxclient_verify_step step)
{
    static const char *const texts[] = {
#define TEXT(name, text) [MXCLIENT_VERIFY_##name] = (text),
        MXCLIENT_VERIFY_STEPS(TEXT)
    };

    tr_assert(step < MXCLIENT_VERIFY_STEP_COUNT);
    return texts[step];
}

/* ---- received events -------------------------------------------------------------------------- */

/* Return whether the same device has begun another verification. */
static struct mxclient_flow *verify_former(const struct verify_run *run)
{
    for (uint32_t i = 0; i < run->client->verify.count; i++) {
        struct mxclient_flow *flow = run->client->verify.flows[i];

        if (!verify_has_ended(flow) && flow->origin != MXCLIENT_ORIGIN_OURS &&
            span_equal(mxclient_span(&flow->user_id), run->sender) &&
            span_equal(mxclient_span(&flow->device_id), run->device_id))
            return flow;
    }
    return NULL;
}

/* The specification: cancel all attempts of a device that makes several. */
static int verify_end_both(struct verify_run *run, struct mxclient_flow *former)
{
    struct mxclient_place place = { run->sender, run->device_id };
    struct verify_run other = *run;
    int rc = verify_post_cancel(run, place, MXCLIENT_FAILED_SECOND, true);

    other.flow = former;
    return rc == 0 ? verify_end(&other, MXCLIENT_FAILED_SECOND) : rc;
}

/* Return whether the device of a request may ask at all. A blocked one learns nothing. */
static bool verify_may_ask(const struct verify_run *run)
{
    struct mxclient_place place = { run->sender, run->device_id };
    const struct mxclient_device *device = mxclient_devices_find(&run->client->devices, place);

    return !verify_is_ourselves(run->client, place) &&
           (device == NULL || device->trust != MXSTORE_BLOCKED);
}

/* Return whether there is room for another verification with the sender. */
static bool verify_has_place(const struct verify_run *run)
{
    uint32_t guests = 0;

    for (uint32_t i = 0; i < run->client->verify.count; i++)
        guests += verify_is_guest(run->client, run->client->verify.flows[i]) ? 1 : 0;
    return verify_has_room(run->client, run->sender) &&
           (guests < MXCLIENT_VERIFY_GUESTS_MAX || verify_is_tracked(run->client, run->sender));
}

/* See that the devices of the sender become known. Our own are tracked from the first question on. A
 * device that a fresh list lacks may be new: the list is queried once more. */
static int verify_look_up(struct verify_run *run)
{
    struct mxclient_devices *devices = &run->client->devices;
    bool is_own = span_equal(run->sender, mxclient_span(&run->client->session.user_id));
    int rc = is_own ? mxclient_devices_track(devices, run->sender, run->unit)
                    : mxclient_devices_invite(devices, run->sender);

    if (rc == 0 && verify_device(run->client, verify_peer(run->flow)) == NULL &&
        !mxclient_devices_user(devices, run->sender)->is_outdated)
        mxclient_devices_requery(devices, run->sender, run->unit);
    return rc;
}

/* Ask the user if the device is known; else its keys are awaited, unless a query has shown none. */
static int verify_ask(struct verify_run *run)
{
    const struct mxclient_device *device = verify_device(run->client, verify_peer(run->flow));
    const struct mxclient_user *user =
        mxclient_devices_user(&run->client->devices, mxclient_span(&run->flow->user_id));
    int rc;

    tr_assert(run->flow->step == MXCLIENT_VERIFY_ARRIVED);
    tr_assert(user != NULL);
    if (device == NULL)
        return user->is_outdated ? 0 : verify_end(run, MXCLIENT_FAILED_NO_DEVICE);
    rc = verify_bind(run->flow, device);
    return rc == 0 ? verify_go(run, MXCLIENT_VERIFY_ASKED) : rc;
}

/* Begin a verification that a device asks for. */
static int verify_begin(struct verify_run *run, enum mxclient_origin origin, int64_t began_ms)
{
    struct mxclient_place place = { run->sender, run->device_id };
    struct mxclient_flow *former = verify_former(run);
    int rc;

    if (former != NULL)
        return verify_end_both(run, former);
    if (!verify_may_ask(run)) {
        run->client->skipped++;
        return 0;
    }
    if (!verify_has_place(run)) {
        run->client->skipped++;
        return verify_post_cancel(run, place, MXCLIENT_FAILED_BUSY, true);
    }
    rc = verify_add(run, origin, began_ms);
    if (rc != 0)
        return rc;
    run->flow->step = MXCLIENT_VERIFY_ARRIVED;
    return verify_look_up(run);
}

static int verify_take_request(struct verify_run *run)
{
    int64_t timestamp, age_ms = 0;
    int rc;

    if (!mxclient_read_id(json_get(run->content, "from_device"), &run->device_id) ||
        !json_int(json_get(run->content, "timestamp"), &timestamp) ||
        timestamp < mxclient_wall_ms(run->client, run->now_ms) - MXCLIENT_VERIFY_MS ||
        timestamp > mxclient_wall_ms(run->client, run->now_ms) + MXCLIENT_VERIFY_AHEAD_MS) {
        run->client->skipped++;
        return 0;
    }
    age_ms = mxclient_wall_ms(run->client, run->now_ms) - timestamp;
    rc = verify_begin(run, MXCLIENT_ORIGIN_THEIRS, run->now_ms - (age_ms > 0 ? age_ms : 0));
    if (rc != 0 || run->flow == NULL)
        return rc;
    rc = mxclient_sas_read_methods(run->content);
    /* Another device of the user may know a method: the request is not cancelled for it. */
    return rc != 0 ? verify_end_quietly(run, (enum mxclient_failure)rc) : verify_ask(run);
}

/* Take a start without a request, as old clients send it. */
static int verify_take_bare(struct verify_run *run)
{
    int rc;

    if (!mxclient_read_id(json_get(run->content, "from_device"), &run->device_id)) {
        run->client->skipped++;
        return 0;
    }
    rc = verify_begin(run, MXCLIENT_ORIGIN_BARE, run->now_ms);
    if (rc != 0 || run->flow == NULL)
        return rc;
    rc = verify_take_offer(run);
    if (rc > 0)
        return verify_end(run, (enum mxclient_failure)rc);
    return rc == 0 ? verify_ask(run) : rc;
}

/* The user of several devices refused on one: the others must stop to ask. */
static int verify_take_cancel(struct verify_run *run)
{
    struct mxclient_flow *flow = run->flow;
    enum mxclient_failure failure = MXCLIENT_FAILED_USER;
    struct span code = { NULL, 0 };
    int rc = 0;

    (void)json_string(json_get(run->content, "code"), &code);
    while (failure < MXCLIENT_FAILED_OTHER && !span_is(code, verify_failures[failure].code))
        failure++;
    flow->is_by_peer = true;
    if (flow->device_id.size == 0)
        rc = verify_post_cancel_all(run, verify_peer(flow), MXCLIENT_FAILED_USER);
    return rc == 0 ? verify_end_quietly(run, failure) : rc;
}

/* Answer a message of an unknown verification. Messages after the start do not name their device. */
static int verify_answer_unknown(struct verify_run *run)
{
    struct mxclient_place place = { run->sender, SPAN("*") };
    struct span device_id;

    run->client->skipped++;
    if (mxclient_read_id(json_get(run->content, "from_device"), &device_id))
        place.device_id = device_id;
    return verify_post_cancel(run, place, MXCLIENT_FAILED_UNKNOWN, true);
}

/* Take an event of no verification under way. */
static int verify_take_first(struct verify_run *run, enum verify_event event)
{
    if (event == VERIFY_CANCEL || verify_is_late(run))
        return 0;
    if (event == VERIFY_REQUEST)
        return verify_take_request(run);
    if (event == VERIFY_START)
        return verify_take_bare(run);
    return verify_answer_unknown(run);
}

static int verify_take_known(struct verify_run *run, enum verify_event event)
{
    int rc;

    if (event == VERIFY_CANCEL)
        return verify_take_cancel(run);
    rc = verify_apply(run, event);
    if (rc == TR_EBUSY)
        rc = verify_end(run, MXCLIENT_FAILED_UNEXPECTED);
    if (rc == TR_EAGAIN) {
        run->client->skipped++;
        rc = 0;
    }
    return rc;
}

int mxclient_verify_take(struct mxclient *client, const struct mxclient_verify_event *event,
    int64_t now_ms, struct sql_unit *unit)
{
    struct verify_run run = { .client = client,
        .unit = unit,
        .now_ms = now_ms,
        .sender = event->sender,
        .content = event->content };
    enum verify_event kind = VERIFY_REQUEST;

    while (kind < VERIFY_MESSAGES && !span_is(event->type, verify_event_names[kind]))
        kind++;
    if (kind < VERIFY_MESSAGES && mxclient_is_id(run.sender) &&
        mxclient_read_id(json_get(run.content, "transaction_id"), &run.transaction_id)) {
        run.flow = verify_find(client, run.transaction_id);
        if (run.flow == NULL)
            return verify_take_first(&run, kind);
        /* An id in use is no business of another user. */
        if (span_equal(run.sender, mxclient_span(&run.flow->user_id)))
            return verify_take_known(&run, kind);
    }
    client->skipped++;
    return 0;
}

/* ---- the user --------------------------------------------------------------------------------- */

/* Store the session after messages were written: their transaction ids are used up. */
static int verify_settle(struct mxclient *client, int rc, struct sql_unit *unit)
{
    if (rc == 0 && client->is_account_changed)
        rc = mxclient_session_put(&client->session, unit);
    client->is_account_changed = false;
    return rc;
}

/* Check whether there is a device to ask. */
static int verify_may_request(
    struct mxclient *client, struct mxclient_place place, struct sql_unit *unit)
{
    const struct mxclient_user *user = mxclient_devices_user(&client->devices, place.user_id);
    const struct mxclient_device *device = NULL;
    uint32_t count = 0;

    if (place.device_id.at != NULL && verify_is_ourselves(client, place))
        return TR_EINVAL;
    for (uint32_t i = 0; user != NULL && i < user->devices.count; i++) {
        struct mxclient_place other = { place.user_id, mxclient_id(user->devices.entries[i]) };

        if (verify_device(client, other) != NULL)
            count++;
    }
    if (place.device_id.at != NULL)
        device = mxclient_devices_find(&client->devices, place);
    if (device != NULL && device->trust == MXSTORE_BLOCKED)
        return TR_EACCES;
    if (place.device_id.at == NULL ? count > 0 : verify_device(client, place) != NULL)
        return verify_has_room(client, place.user_id) ? 0 : TR_ELIMIT;
    if (user != NULL && !user->is_outdated)
        return TR_ENOENT;
    return mxclient_devices_track(&client->devices, place.user_id, unit) == 0 ? TR_EAGAIN
                                                                              : TR_ENOMEM;
}

static int verify_post_request(struct verify_run *run)
{
    struct mxclient_place place = verify_peer(run->flow);
    struct verify_post post;

    verify_post_start(&post, run);
    json_put_string(&post.writer, "from_device", mxclient_span(&run->client->session.device_id));
    mxclient_sas_put_methods(&post.writer);
    json_put_int(&post.writer, "timestamp", mxclient_wall_ms(run->client, run->now_ms));
    return place.device_id.size == 0 ? verify_post_end_all(&post, VERIFY_REQUEST, place)
                                     : verify_post_end(&post, VERIFY_REQUEST, place);
}

int mxclient_verify_request(struct mxclient *client, struct mxclient_place place, int64_t now_ms,
    struct sql_unit *unit, char ret_transaction_id[MXCLIENT_VERIFY_ID_CHARS + 1])
{
    uint8_t bytes[MXCLIENT_VERIFY_ID_CHARS / 2];
    struct verify_run run = { .client = client,
        .unit = unit,
        .now_ms = now_ms,
        .sender = place.user_id,
        .device_id = place.device_id };
    int rc = verify_may_request(client, place, unit);

    if (rc != 0)
        return rc;
    client->session.random->fill(client->session.random->data, bytes, sizeof bytes);
    (void)crypto_hex_encode(bytes, sizeof bytes, ret_transaction_id);
    ret_transaction_id[MXCLIENT_VERIFY_ID_CHARS] = '\0';
    run.transaction_id = span_of(ret_transaction_id);
    rc = verify_add(&run, MXCLIENT_ORIGIN_OURS, now_ms);
    if (rc == 0 && place.device_id.at != NULL)
        rc = verify_bind(run.flow, verify_device(client, place));
    if (rc == 0)
        rc = verify_post_request(&run);
    if (rc == 0)
        rc = verify_go(&run, MXCLIENT_VERIFY_REQUESTED);
    return verify_settle(client, rc, unit);
}

int mxclient_verify_act(struct mxclient *client, struct span transaction_id,
    enum mxclient_verify_act act, int64_t now_ms, struct sql_unit *unit)
{
    struct verify_run run = { .client = client,
        .unit = unit,
        .now_ms = now_ms,
        .transaction_id = transaction_id,
        .flow = verify_find(client, transaction_id) };
    bool is_comparing;
    int rc;

    if (run.flow == NULL)
        return TR_ENOENT;
    is_comparing =
        run.flow->step == MXCLIENT_VERIFY_COMPARE || run.flow->step == MXCLIENT_VERIFY_CHECKED;
    if (act == MXCLIENT_VERIFY_CANCEL)
        rc = verify_end(&run, MXCLIENT_FAILED_USER);
    else if (act == MXCLIENT_VERIFY_MISMATCH)
        rc = is_comparing ? verify_end(&run, MXCLIENT_FAILED_STRINGS) : TR_EBUSY;
    else
        rc = verify_apply(&run, (enum verify_event)(VERIFY_USER_ACCEPTS + act));
    /* A guest whom the user accepts is one no longer: the end may store trust. */
    if (rc == 0 && act == MXCLIENT_VERIFY_ACCEPT && !verify_has_ended(run.flow))
        rc = mxclient_devices_track(&client->devices, mxclient_span(&run.flow->user_id), unit);
    return verify_settle(client, rc, unit);
}

static void verify_copy(char out[MXCLIENT_ID_BYTES_MAX + 1], const struct buffer *text)
{
    tr_assert(text->size <= MXCLIENT_ID_BYTES_MAX);
    memcpy(out, text->bytes == NULL ? "" : text->bytes, text->size);
    out[text->size] = '\0';
}

bool mxclient_verify_news(struct mxclient *client, struct mxclient_verify_news *ret_news)
{
    struct mxclient_verify *verify = &client->verify;
    struct mxclient_flow *flow;
    uint32_t i = 0;

    while (i < verify->count && !verify->flows[i]->is_news)
        i++;
    if (i == verify->count)
        return false;
    flow = verify->flows[i];
    flow->is_news = false;
    *ret_news = (struct mxclient_verify_news){
        .step = flow->step == MXCLIENT_VERIFY_CHECKED ? MXCLIENT_VERIFY_COMPARE : flow->step,
        .origin = flow->origin,
        .strings = flow->choice.strings,
        .code = flow->code,
        .has_master = flow->has_master,
        .is_by_peer = flow->is_by_peer,
        .failure = verify_failures[flow->failure].code,
        .reason = verify_failures[flow->failure].reason,
    };
    verify_copy(ret_news->transaction_id, &flow->transaction_id);
    verify_copy(ret_news->user_id, &flow->user_id);
    verify_copy(ret_news->device_id, &flow->device_id);
    if (verify_has_ended(flow)) {
        verify->flows[i] = verify->flows[--verify->count];
        verify_free(flow);
    }
    return true;
}

bool mxclient_verify_is_asked(const struct mxclient *client, struct span transaction_id)
{
    for (uint32_t i = 0; i < client->verify.count; i++) {
        const struct mxclient_flow *flow = client->verify.flows[i];

        if (flow->step == MXCLIENT_VERIFY_ASKED &&
            span_equal(mxclient_span(&flow->transaction_id), transaction_id))
            return true;
    }
    return false;
}

void mxclient_verify_repeat_asked(struct mxclient *client)
{
    for (uint32_t i = 0; i < client->verify.count; i++)
        if (client->verify.flows[i]->step == MXCLIENT_VERIFY_ASKED)
            client->verify.flows[i]->is_news = true;
}

/* ---- time and restarts ------------------------------------------------------------------------ */

int64_t mxclient_verify_due_ms(const struct mxclient *client)
{
    int64_t due_ms = INT64_MAX;

    for (uint32_t i = 0; i < client->verify.count; i++) {
        const struct mxclient_flow *flow = client->verify.flows[i];

        if (!verify_has_ended(flow) && verify_due_ms(flow) < due_ms)
            due_ms = verify_due_ms(flow);
    }
    return due_ms;
}

static int verify_tick(struct verify_run *run)
{
    struct mxclient_flow *flow = run->flow;

    if (verify_has_ended(flow))
        return 0;
    if (flow->step == MXCLIENT_VERIFY_INTERRUPTED)
        return verify_end(run, MXCLIENT_FAILED_RESTARTED);
    if (verify_is_overdue(run)) {
        /* The user may still accept on another device: the question just goes away. */
        if (flow->step == MXCLIENT_VERIFY_ASKED && flow->origin == MXCLIENT_ORIGIN_THEIRS)
            return verify_end_quietly(run, MXCLIENT_FAILED_TIMEOUT);
        return verify_end(run, MXCLIENT_FAILED_TIMEOUT);
    }
    if (flow->step == MXCLIENT_VERIFY_ARRIVED)
        return verify_ask(run);
    return verify_keys_hold(run->client, flow) ? 0 : verify_end(run, MXCLIENT_FAILED_CHANGED);
}

int mxclient_verify_tick(struct mxclient *client, int64_t now_ms, struct sql_unit *unit)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < client->verify.count; i++) {
        struct verify_run run = {
            .client = client, .unit = unit, .now_ms = now_ms, .flow = client->verify.flows[i]
        };

        rc = verify_tick(&run);
    }
    return verify_settle(client, rc, unit);
}

int mxclient_verify_load(struct mxclient *client, const struct mxstore_verification *row)
{
    struct verify_run run = { .client = client,
        .transaction_id = row->transaction_id,
        .sender = row->user_id,
        .device_id = row->device_id };
    int rc;

    if (span_is(row->step, "done") || span_is(row->step, "cancelled"))
        return 0;
    rc = verify_post_load(client, row);
    if (rc != TR_ENOENT)
        return rc == 0 ? verify_note_end(&run) : rc;
    if (client->verify.count == MXCLIENT_VERIFY_MAX)
        return 0;
    if (span_is(row->device_id, "*"))
        run.device_id = (struct span){ NULL, 0 };
    return verify_add(&run, MXCLIENT_ORIGIN_OURS, row->updated_ms); /* its step is INTERRUPTED */
}
