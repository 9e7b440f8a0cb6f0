/* SPDX-License-Identifier: Apache-2.0 */
/* engine_people.c: jobs about devices, their keys and their verification, and the messages of
 * verifications. */
#include "base/assert.h"
#include "matrix/client/engine_private.h"

/* ---- devices ---------------------------------------------------------------------------------- */

static void people_put_device(struct json_writer *writer, const struct mxclient_device *device)
{
    static const char *const trusts[] = { "unverified", "verified", "blocked" };
    char identity[MX_KEY_CHARS + 1], signing[MX_KEY_CHARS + 1];

    mx_key_text(&device->identity_key, identity);
    mx_key_text(&device->signing_key, signing);
    json_put_object(writer, NULL);
    json_put_string(writer, "deviceId", mxclient_id(&device->entry));
    json_put_text(writer, "trust", trusts[device->trust]);
    json_put_bool(writer, "crossSigned", device->is_cross_signed);
    json_put_text(writer, "ed25519", signing);
    json_put_text(writer, "curve25519", identity);
    json_put_end(writer);
}

static int people_list(const struct mxclient_user *user, struct buffer *out)
{
    struct json_writer writer = json_writer(out);

    json_put_array(&writer, NULL);
    for (uint32_t i = 0; i < user->devices.count; i++) {
        const struct mxclient_device *device =
            (const struct mxclient_device *)user->devices.entries[i];

        if (!device->is_deleted)
            people_put_device(&writer, device);
    }
    json_put_end(&writer);
    return json_writer_end(&writer);
}

/* Query the devices of a job's user, and let the job wait for the answer. */
static void people_query(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = mxclient_devices_refresh(
        &engine->client.devices, mxclient_span(&job->args[MXENGINE_USER]), unit);

    job->is_begun = true;
    if (rc != 0) {
        sql_unit_destroy(unit);
        engine_job_answer(job, rc);
        engine_fall(engine, rc);
        return;
    }
    engine_job_wait(engine, job);
    engine->loops[LOOP_QUERY].is_wanted = true;
    engine_store(engine, ctx, unit);
}

void engine_job_devices(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    struct span user_id = mxclient_span(&job->args[MXENGINE_USER]);
    const struct mxclient_user *user;

    if (!mxclient_is_id(user_id)) {
        engine_job_answer(job, TR_EINVAL);
        return;
    }
    user = mxclient_devices_user(&engine->client.devices, user_id);
    if (!job->is_begun || user == NULL)
        people_query(engine, ctx, job);
    else if (user->is_outdated)
        engine_job_wait(engine, job);
    else
        engine_job_answer(job, people_list(user, &job->text));
}

static bool people_is_us(
    const struct engine *engine, const struct mxclient_user *user, const struct mxclient_device *it)
{
    struct span user_id = mxclient_id(&user->entry), device_id = mxclient_id(&it->entry);

    return span_equal(user_id, mxclient_span(&engine->client.session.user_id)) &&
           span_equal(device_id, mxclient_span(&engine->client.session.device_id));
}

/* Write the devices of a user that are not verified; without a writer this counts them alone. */
static uint32_t people_put_unverified(
    const struct engine *engine, const struct mxclient_user *user, struct json_writer *writer)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < user->devices.count; i++) {
        const struct mxclient_device *device =
            (const struct mxclient_device *)user->devices.entries[i];

        if (device->is_deleted || device->trust != MXSTORE_UNVERIFIED ||
            people_is_us(engine, user, device))
            continue;
        count++;
        if (writer == NULL)
            continue;
        json_put_object(writer, NULL);
        json_put_string(writer, "userId", mxclient_id(&user->entry));
        json_put_string(writer, "deviceId", mxclient_id(&device->entry));
        json_put_end(writer);
    }
    return count;
}

/* The same for the members of a room. */
static uint32_t people_put_members(
    const struct engine *engine, const struct mxclient_room *room, struct json_writer *writer)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < room->members.count; i++) {
        const struct mxclient_member *member =
            (const struct mxclient_member *)room->members.entries[i];
        const struct mxclient_user *user =
            mxclient_devices_user(&engine->client.devices, mxclient_id(&member->entry));

        if (user != NULL && member->membership != MXCLIENT_LEFT)
            count += people_put_unverified(engine, user, writer);
    }
    return count;
}

uint32_t engine_count_unverified(
    const struct engine *engine, struct span room_id, enum mxclient_policy policy)
{
    const struct mxclient_room *room = mxclient_rooms_find(&engine->client.rooms, room_id);

    if (policy == MXCLIENT_SHARE_ALL || room == NULL || room->encryption == MXCLIENT_PLAIN)
        return 0;
    return people_put_members(engine, room, NULL);
}

void engine_job_unverified(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    const struct mxclient_room *room =
        mxclient_rooms_find(&engine->client.rooms, mxclient_span(&job->args[MXENGINE_ROOM]));
    struct json_writer writer = json_writer(&job->text);

    (void)ctx;
    if (room == NULL) {
        engine_job_answer(job, TR_ENOENT);
        return;
    }
    json_put_array(&writer, NULL);
    (void)people_put_members(engine, room, &writer);
    json_put_end(&writer);
    engine_job_answer(job, json_writer_end(&writer));
}

/* ---- key files -------------------------------------------------------------------------------- */

void engine_job_import(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = mxclient_key_file_take(
        &engine->client, mxclient_span(&job->args[MXENGINE_TEXT]), unit, &job->import);

    if (rc != 0) {
        sql_unit_destroy(unit);
        engine_job_answer(job, rc);
        if (rc == TR_ENOMEM)
            engine_fall(engine, rc);
        return;
    }
    engine->release.is_wanted = true;
    engine->unit_job = job;
    engine_store(engine, ctx, unit);
}

/* ---- verifications ---------------------------------------------------------------------------- */

void engine_want_verify(struct engine *engine)
{
    engine_want_now(engine, LOOP_VERIFY);
}

/* End a step of a user: the unit answers the job, or `rc` does. */
static void people_end(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job,
    int rc, struct sql_unit *unit)
{
    engine_want_verify(engine);
    if (rc != 0) {
        sql_unit_destroy(unit);
        engine_job_answer(job, rc);
        if (rc == TR_ENOMEM)
            engine_fall(engine, rc);
        return;
    }
    engine->unit_job = job;
    engine_store(engine, ctx, unit);
}

/* The devices are always queried first: a new one may be the one that is meant. */
void engine_job_verify(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    struct mxclient_place place = { mxclient_span(&job->args[MXENGINE_USER]),
        engine_arg(job, MXENGINE_DEVICE) };
    const struct mxclient_user *user;
    char id[MXCLIENT_VERIFY_ID_CHARS + 1];
    struct sql_unit *unit;
    int rc;

    if (!mxclient_is_id(place.user_id)) {
        engine_job_answer(job, TR_EINVAL);
        return;
    }
    user = mxclient_devices_user(&engine->client.devices, place.user_id);
    if (!job->is_begun || user == NULL) {
        people_query(engine, ctx, job);
        return;
    }
    if (user->is_outdated) {
        engine_job_wait(engine, job);
        return;
    }
    unit = sql_unit_create(0);
    rc = mxclient_verify_request(&engine->client, place, engine_now_ms(engine), unit, id);
    if (rc == 0)
        rc = buffer_text(&job->id, id);
    people_end(engine, ctx, job, rc, unit);
}

void engine_job_act(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc = mxclient_verify_act(&engine->client, mxclient_span(&job->args[MXENGINE_TEXT]),
        job->act, engine_now_ms(engine), unit);

    people_end(engine, ctx, job, rc, unit);
}

static const struct mxclient_verify_news *people_news(const struct engine *engine, int64_t seq)
{
    return &engine->news[seq % MXENGINE_NEWS_MAX];
}

/* Return the number of the first step at which a peer waits for our user; 0: there is none. Other
 * steps may have pushed it out of the ring: then it is news again. */
static int64_t people_first_asked(struct engine *engine)
{
    int64_t seq = engine->news_seq - MXENGINE_NEWS_MAX + 1;

    for (seq = seq < 1 ? 1 : seq; seq <= engine->news_seq; seq++)
        if (people_news(engine, seq)->step == MXCLIENT_VERIFY_ASKED &&
            mxclient_verify_is_asked(
                &engine->client, span_of(people_news(engine, seq)->transaction_id)))
            return seq;
    seq = engine->news_seq;
    mxclient_verify_repeat_asked(&engine->client);
    engine_take_news(engine);
    return engine->news_seq > seq ? seq + 1 : 0;
}

void engine_job_news(struct engine *engine, struct tr_context *ctx, struct mxengine_job *job)
{
    int64_t oldest = engine->news_seq - MXENGINE_NEWS_MAX + 1;

    (void)ctx;
    if (job->after_seq < 0) {
        job->seq = people_first_asked(engine);
        oldest = job->seq > 0 ? job->seq : engine->news_seq + 1;
    }
    job->seq = job->after_seq + 1 > oldest ? job->after_seq + 1 : oldest;
    if (job->seq < 1)
        job->seq = 1;
    if (job->seq > engine->news_seq) {
        engine_job_wait(engine, job);
        return;
    }
    job->news = engine->news[job->seq % MXENGINE_NEWS_MAX];
    engine_job_answer(job, 0);
}

void engine_take_news(struct engine *engine)
{
    struct mxclient_verify_news news;

    while (mxclient_verify_news(&engine->client, &news)) {
        engine->news_seq++;
        engine->news[engine->news_seq % MXENGINE_NEWS_MAX] = news;
        engine->is_unit_news = true;
    }
}

/* Returns 1 if a request was written. */
int engine_verify_start(struct engine *engine, struct sql_unit *unit)
{
    struct engine_loop *loop = &engine->loops[LOOP_VERIFY];
    int64_t now_ms = engine_now_ms(engine), due_ms = mxclient_verify_due_ms(&engine->client);

    tr_assert(loop->state == LOOP_IDLE);
    if (mxclient_verify_next(&engine->client, unit, &loop->request))
        return 1;
    if (due_ms == INT64_MAX)
        return 0;
    loop->is_wanted = true;
    if (due_ms <= now_ms)
        return mxclient_verify_tick(&engine->client, now_ms, unit);
    loop->due_ns = engine_in_ns(engine, (uint64_t)(due_ms - now_ms));
    return 0;
}
