/* SPDX-License-Identifier: Apache-2.0 */
/* engine_media.c: uploads and downloads of ciphertext, one at a time. The bytes go between the file
 * and the transport; the askers encrypt and decrypt. */
#include "base/assert.h"
#include "matrix/client/engine_private.h"
#include "matrix/client/media.h"

int engine_job_media(struct engine *engine, struct mxengine_job *job)
{
    struct mxclient_media media;

    if (job->file.fd < 0 || (job->verb == MXENGINE_DOWNLOAD &&
                                !mxclient_media_set_url(engine_arg(job, MXENGINE_URL), &media)))
        return TR_EINVAL;
    engine_queue_add(&engine->media, job);
    engine->loops[LOOP_MEDIA].is_wanted = true;
    return 0;
}

/* Return whether to ask how large a file may be: an hour after the last answer, and once for a job. */
static bool media_needs_config(const struct engine *engine, const struct mxengine_job *job)
{
    return job->verb == MXENGINE_UPLOAD && !job->is_begun &&
           (engine->upload_asked_ns == 0 ||
               engine->now_ns - engine->upload_asked_ns >= (uint64_t)ENGINE_CONFIG_MS * 1000000);
}

/* End an upload whose file is too large. The limit is UINT64_MAX if nobody knows it. */
static void media_refuse(struct engine *engine, uint64_t limit)
{
    struct mxengine_job *job = engine->media_job;
    unsigned long long size = job->file.size;

    if (limit == UINT64_MAX)
        (void)buffer_format(
            &job->id, "The homeserver refuses a file of %llu bytes as too large.", size);
    else
        (void)buffer_format(&job->id, "The file has %llu bytes; the homeserver takes %llu at most.",
            size, (unsigned long long)limit);
    engine_job_end(&engine->media_job, TR_ETOOBIG);
}

/* Returns 1 if a request was written. */
int engine_media_start(struct engine *engine)
{
    struct mxclient_request *request = &engine->loops[LOOP_MEDIA].request;
    struct mxclient_media media = { 0 };
    struct mxengine_job *job;

    if (engine->media_job == NULL && engine->media.count == 0)
        return 0;
    if (engine->media_job == NULL)
        engine->media_job = engine_queue_take(&engine->media);
    job = engine->media_job;
    if (media_needs_config(engine, job)) {
        job->is_begun = true;
        mxclient_media_config_request(request);
    } else if (job->verb == MXENGINE_UPLOAD && engine->upload_asked_ns != 0 &&
               job->file.size > engine->upload_max) {
        engine->loops[LOOP_MEDIA].is_wanted = true; /* for the next job */
        media_refuse(engine, engine->upload_max);
        return 0;
    } else if (job->verb == MXENGINE_UPLOAD)
        mxclient_media_upload_request(request);
    else {
        (void)mxclient_media_set_url(engine_arg(job, MXENGINE_URL), &media);
        mxclient_media_download_request(&media, request);
    }
    return 1;
}

/* Take the answer about the limit; the job goes on. Without one the server says at the upload. */
static void media_take_config(
    struct engine *engine, const struct mxclient_outcome *outcome, const struct json *body)
{
    engine->upload_asked_ns = outcome->verdict == MXCLIENT_DONE ? engine->now_ns : 0;
    engine->upload_max = mxclient_media_config_read(body);
}

int engine_media_take(
    struct engine *engine, const struct mxclient_outcome *outcome, const struct json *body)
{
    struct mxengine_job *job = engine->media_job;
    struct mxclient_media media = { 0 };
    int rc = 0;

    if (engine->loops[LOOP_MEDIA].request.call == MXCLIENT_MEDIA_CONFIG) {
        media_take_config(engine, outcome, body);
        return 0;
    }
    if (outcome->verdict != MXCLIENT_DONE && job->verb == MXENGINE_UPLOAD &&
        outcome->status == 413) {
        media_refuse(engine, UINT64_MAX);
        return 0;
    }
    if (outcome->verdict != MXCLIENT_DONE) {
        rc = outcome->error != 0 && outcome->status < 400 ? outcome->error : TR_EACCES;
        if (rc == TR_EACCES)
            mxclient_outcome_explain(outcome, &job->id);
    } else if (job->verb == MXENGINE_UPLOAD) {
        rc = mxclient_media_uploaded(body, &media);
        if (rc == 0)
            rc = buffer_span(&job->id, media.url);
    }
    engine_job_end(&engine->media_job, rc);
    return 0;
}
