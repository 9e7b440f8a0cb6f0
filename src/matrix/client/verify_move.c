/* SPDX-License-Identifier: Apache-2.0 */
/* verify_move.c: the steps of one verification, as a table of moves. A move reads the message, writes
 * the answer and returns a failure if the verification must end. */
#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/verify_private.h"

/* ---- parts of moves --------------------------------------------------------------------------- */

/* Return the names that strings and MACs are bound to. */
static struct mx_sas_flow move_names(const struct verify_run *run)
{
    const struct mxclient_session *session = &run->client->session;
    const struct mxclient_flow *flow = run->flow;

    return (struct mx_sas_flow){
        .us = { mxclient_span(&session->user_id), mxclient_span(&session->device_id) },
        .them = { mxclient_span(&flow->user_id), mxclient_span(&flow->device_id) },
        .transaction = mxclient_span(&flow->transaction_id),
        .we_started = flow->we_started,
    };
}

/* Return what an error of the SAS means: the peer's input is wrong, or there is no memory. */
static int move_result(int rc)
{
    return rc == 0 || rc == TR_ENOMEM ? rc : MXCLIENT_FAILED_INVALID;
}

static int move_create_sas(struct verify_run *run)
{
    mx_sas_destroy(run->flow->sas);
    run->flow->sas = NULL;
    return mx_sas_create(run->client->session.random, &run->flow->sas);
}

static bool move_read_key(const struct verify_run *run, struct mx_key *ret_key)
{
    struct span text;

    return json_string(json_get(run->content, "key"), &text) && mx_key_parse(text, ret_key) == 0;
}

static int move_show(struct verify_run *run)
{
    struct mx_sas_flow names = move_names(run);

    return move_result(mx_sas_show(run->flow->sas, &names, &run->flow->code));
}

/* ---- messages --------------------------------------------------------------------------------- */

static int move_post(struct verify_post *post, enum verify_event event)
{
    return verify_post_end(post, event, verify_peer(post->run->flow));
}

static int move_post_ready(struct verify_run *run)
{
    struct verify_post post;

    verify_post_start(&post, run);
    json_put_string(&post.writer, "from_device", mxclient_span(&run->client->session.device_id));
    mxclient_sas_put_methods(&post.writer);
    return move_post(&post, VERIFY_READY);
}

/* Write our start. The same verification always gives the same bytes: the commitment is computed from
 * them again. */
static void move_write_start(struct verify_post *post, struct verify_run *run)
{
    verify_post_start(post, run);
    json_put_string(&post->writer, "from_device", mxclient_span(&run->client->session.device_id));
    mxclient_sas_put_offer(&post->writer);
}

static int move_post_start(struct verify_run *run)
{
    struct verify_post post;

    run->flow->we_started = true;
    move_write_start(&post, run);
    return move_post(&post, VERIFY_START);
}

static int move_post_accept(struct verify_run *run)
{
    struct verify_post post;

    verify_post_start(&post, run);
    mxclient_sas_put_choice(&post.writer, &run->flow->choice, run->flow->commitment);
    return move_post(&post, VERIFY_ACCEPT);
}

static int move_post_key(struct verify_run *run)
{
    char text[MX_KEY_CHARS + 1];
    struct verify_post post;

    mx_key_text(mx_sas_key(run->flow->sas), text);
    verify_post_start(&post, run);
    json_put_text(&post.writer, "key", text);
    return move_post(&post, VERIFY_KEY);
}

static int move_post_mac(struct verify_run *run)
{
    const struct mxclient_session *session = &run->client->session;
    struct mx_sas_flow names = move_names(run);
    struct mxclient_sas_key key;
    struct verify_post post;
    int rc;

    mxclient_sas_key_init(
        &key, mxclient_span(&session->device_id), mx_account_signing_key(session->account));
    verify_post_start(&post, run);
    rc = mxclient_sas_put_macs(&post.writer, run->flow->sas, &names, &run->flow->choice, &key);
    if (rc != 0) {
        buffer_free(&post.content);
        return move_result(rc);
    }
    return move_post(&post, VERIFY_MAC);
}

static int move_post_done(struct verify_run *run)
{
    struct verify_post post;

    verify_post_start(&post, run);
    return move_post(&post, VERIFY_DONE);
}

/* ---- moves ------------------------------------------------------------------------------------ */

static int move_user_accepts(struct verify_run *run)
{
    if (run->flow->origin != MXCLIENT_ORIGIN_BARE)
        return move_post_ready(run);
    run->to = MXCLIENT_VERIFY_ACCEPTED;
    return move_post_accept(run);
}

/* The first device that is ready takes part; the others learn that it did. The side that asked
 * starts. */
static int move_ready(struct verify_run *run)
{
    struct mxclient_place place = { run->sender, run->device_id };
    const struct mxclient_device *device = verify_device(run->client, place);
    int rc = 0;

    if (device == NULL)
        return TR_EAGAIN;
    if (run->flow->device_id.size == 0) {
        rc = verify_bind(run->flow, device);
        if (rc == 0)
            rc = verify_post_cancel_all(run, place, MXCLIENT_FAILED_TAKEN);
    }
    if (rc == 0)
        rc = mxclient_sas_read_methods(run->content);
    return rc == 0 ? move_post_start(run) : rc;
}

int verify_take_offer(struct verify_run *run)
{
    struct mxclient_flow *flow = run->flow;
    int rc = mxclient_sas_read_offer(run->content, &flow->choice);

    flow->we_started = false;
    if (rc == 0)
        rc = move_create_sas(run);
    if (rc == 0)
        rc = move_result(mx_sas_commitment(mx_sas_key(flow->sas), run->content, flow->commitment));
    return rc;
}

static int move_start(struct verify_run *run)
{
    int rc = verify_take_offer(run);

    return rc == 0 ? move_post_accept(run) : rc;
}

/* Both sides started. The start of the smaller user id, then device id, counts. */
static int move_rival_start(struct verify_run *run)
{
    const struct mxclient_session *session = &run->client->session;
    struct span method;
    int order;

    if (!json_string(json_get(run->content, "method"), &method))
        return MXCLIENT_FAILED_INVALID;
    if (!span_is(method, MXCLIENT_SAS_METHOD))
        return MXCLIENT_FAILED_UNEXPECTED;
    order = span_compare(mxclient_span(&session->user_id), run->sender);
    if (order == 0)
        order = span_compare(mxclient_span(&session->device_id), run->device_id);
    if (order > 0)
        return move_start(run);
    run->to = MXCLIENT_VERIFY_STARTED;
    return 0;
}

static int move_accept(struct verify_run *run)
{
    int rc = mxclient_sas_read_choice(run->content, &run->flow->choice, run->flow->commitment);

    if (rc == 0)
        rc = move_create_sas(run);
    return rc == 0 ? move_post_key(run) : rc;
}

/* The peer started: its key comes first, and ours was committed to. */
static int move_first_key(struct verify_run *run)
{
    struct mx_key key;
    int rc = MXCLIENT_FAILED_INVALID;

    if (move_read_key(run, &key))
        rc = move_result(mx_sas_set_their_key(run->flow->sas, &key));
    if (rc == 0)
        rc = move_post_key(run);
    return rc == 0 ? move_show(run) : rc;
}

/* Compare the commitment with the key and our start. */
static int move_check_commitment(struct verify_run *run, const struct mx_key *key)
{
    char expected[MX_SAS_COMMITMENT_CHARS + 1];
    struct json_doc doc = { 0 };
    struct verify_post post;
    int rc;

    move_write_start(&post, run);
    json_put_end(&post.writer);
    rc = json_writer_end(&post.writer);
    if (rc == 0)
        rc = json_parse_copy(&doc, mxclient_span(&post.content), 0);
    if (rc == 0)
        rc = mx_sas_commitment(key, json_root(&doc), expected);
    if (rc == 0 && strcmp(expected, run->flow->commitment) != 0)
        rc = MXCLIENT_FAILED_COMMITMENT;
    json_doc_free(&doc);
    buffer_free(&post.content);
    return rc;
}

/* The peer accepted: its key must be the one that it committed to before it saw ours. */
static int move_second_key(struct verify_run *run)
{
    struct mx_key key;
    int rc = move_read_key(run, &key) ? move_check_commitment(run, &key) : MXCLIENT_FAILED_INVALID;

    if (rc == 0)
        rc = move_result(mx_sas_set_their_key(run->flow->sas, &key));
    return rc == 0 ? move_show(run) : rc;
}

/* Check the peer's MACs: of its device's key, and of the user's master key if both sides know it. */
static int move_mac(struct verify_run *run)
{
    struct mxclient_flow *flow = run->flow;
    const struct mxclient_user *user = mxclient_devices_user(&run->client->devices, run->sender);
    struct mx_sas_flow names = move_names(run);
    struct mxclient_sas_key keys[2];
    size_t count = 1;
    int rc;

    mxclient_sas_key_init(&keys[0], mxclient_span(&flow->device_id), &flow->signing_key);
    if (user != NULL && user->cross.has_master) {
        char name[MX_KEY_CHARS + 1];

        mx_key_text(&user->cross.master, name);
        mxclient_sas_key_init(&keys[count++], span_of(name), &user->cross.master);
    }
    rc = mxclient_sas_check_macs(run->content, flow->sas, &names, &flow->choice, keys, count);
    if (rc == 0 && count == 2 && keys[1].is_checked) {
        flow->has_master = true;
        flow->master = user->cross.master;
    }
    return rc;
}

/* Trust the device: both MACs were right, and nobody cancelled. */
static int move_done(struct verify_run *run)
{
    const struct mxclient *client = run->client;
    struct mxclient_user *user =
        mxclient_devices_user(&client->devices, mxclient_span(&run->flow->user_id));
    struct mxclient_device *device = verify_device(client, verify_peer(run->flow));

    tr_assert(user != NULL && device != NULL);
    tr_assert(mx_key_equal(&device->signing_key, &run->flow->signing_key));
    device->trust = MXSTORE_VERIFIED;
    mxclient_devices_put(user, device, run->unit);
    return 0;
}

/* Both MACs are there. An old client that began with a bare start says no `done`. */
static int move_finish(struct verify_run *run)
{
    if (run->flow->origin != MXCLIENT_ORIGIN_BARE)
        return move_post_done(run);
    run->to = MXCLIENT_VERIFY_DONE;
    return move_done(run);
}

static int move_last_mac(struct verify_run *run)
{
    int rc = move_mac(run);

    return rc == 0 ? move_finish(run) : rc;
}

static int move_user_matches_last(struct verify_run *run)
{
    int rc = move_post_mac(run);

    return rc == 0 ? move_finish(run) : rc;
}

/* ---- the table -------------------------------------------------------------------------------- */

static const struct verify_row {
    int (*act)(struct verify_run *run);
    enum mxclient_verify_step to; /* unless the act says otherwise */
} verify_rows[MXCLIENT_VERIFY_STEP_COUNT][VERIFY_EVENTS] = {
#define FROM(step) [MXCLIENT_VERIFY_##step]
#define ROW(event, act, step) [VERIFY_##event] = { act, MXCLIENT_VERIFY_##step }
    FROM(ASKED) = { ROW(USER_ACCEPTS, move_user_accepts, READY) },
    FROM(REQUESTED) = { ROW(READY, move_ready, STARTED) },
    FROM(READY) = { ROW(START, move_start, ACCEPTED), ROW(USER_STARTS, move_post_start, STARTED) },
    FROM(STARTED) = { ROW(ACCEPT, move_accept, KEY_SENT), ROW(START, move_rival_start, ACCEPTED) },
    FROM(ACCEPTED) = { ROW(KEY, move_first_key, COMPARE) },
    FROM(KEY_SENT) = { ROW(KEY, move_second_key, COMPARE) },
    FROM(COMPARE) = { ROW(MAC, move_mac, CHECKED), ROW(USER_MATCHES, move_post_mac, CONFIRMED) },
    FROM(CONFIRMED) = { ROW(MAC, move_last_mac, FINISHING) },
    FROM(CHECKED) = { ROW(USER_MATCHES, move_user_matches_last, FINISHING) },
    FROM(FINISHING) = { ROW(DONE, move_done, DONE) },
};

/* Read from_device of a ready or start. TR_EAGAIN: another device of the user, that takes no part. */
static int move_read_device(struct verify_run *run)
{
    struct span chosen = mxclient_span(&run->flow->device_id);

    if (!mxclient_read_id(json_get(run->content, "from_device"), &run->device_id))
        return MXCLIENT_FAILED_INVALID;
    return chosen.size == 0 || span_equal(run->device_id, chosen) ? 0 : TR_EAGAIN;
}

int verify_move(struct verify_run *run, enum verify_event event)
{
    const struct verify_row *row = &verify_rows[run->flow->step][event];
    int rc = 0;

    if (event == VERIFY_READY || event == VERIFY_START)
        rc = move_read_device(run);
    if (rc != 0)
        return rc;
    if (row->act == NULL)
        return TR_EBUSY;
    run->to = row->to;
    return row->act(run);
}
