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

/* Returns 1 if a request was written. */
int engine_media_start(struct engine *engine)
{
    struct mxclient_request *request = &engine->loops[LOOP_MEDIA].request;
    struct mxclient_media media = { 0 };
    struct mxengine_job *job;

    if (engine->media.count == 0)
        return 0;
    tr_assert(engine->media_job == NULL);
    job = engine->media_job = engine_queue_take(&engine->media);
    if (job->verb == MXENGINE_UPLOAD)
        mxclient_media_upload_request(request);
    else {
        (void)mxclient_media_set_url(engine_arg(job, MXENGINE_URL), &media);
        mxclient_media_download_request(&media, request);
    }
    return 1;
}

int engine_media_take(
    struct engine *engine, const struct mxclient_outcome *outcome, const struct json *body)
{
    struct mxengine_job *job = engine->media_job;
    struct mxclient_media media = { 0 };
    int rc = 0;

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
