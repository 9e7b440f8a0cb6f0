/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo/job.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/digest.h"
#include "services/delivery/delivery.h"
#include "services/delivery/mls/commit_roster.h"
#include "services/delivery/mls/mls_reader.h"

struct job *job_new(enum job_kind kind, const struct auth_claims *claims)
{
    struct job *job = base_calloc(sizeof *job);

    if (job == NULL)
        return NULL;
    job->claims = claims == NULL ? NULL : auth_claims_create(claims);
    if (claims != NULL && job->claims == NULL) {
        base_free(job);
        return NULL;
    }
    job->kind = kind;
    atomic_init(&job->holders, 1);
    return job;
}

struct job *job_ref(struct job *job)
{
    atomic_fetch_add_explicit(&job->holders, 1, memory_order_relaxed);
    return job;
}

void job_unref(struct job *job)
{
    if (job == NULL || atomic_fetch_sub_explicit(&job->holders, 1, memory_order_acq_rel) != 1)
        return;
    auth_claims_unref(job->claims);
    base_free(job->body);
    base_free(job->adds);
    base_free(job->named);
    base_free(job->hashes);
    base_free(job->removes);
    base_free(job->proposals);
    commit_roster_free(job->roster);
    buffer_free(&job->decoded);
    buffer_free(&job->answer);
    buffer_free(&job->result_id);
    base_free(job);
}

void job_fail(struct job *job, unsigned status, const char *label, const char *text)
{
    if (job->status != 0)
        return;
    job->status = status;
    job->label = label;
    (void)snprintf(job->text, sizeof job->text, "%s", text);
}

static void put_did(struct buffer *text, unsigned change, struct span did)
{
    mls_put_number(text, change, 1);
    mls_put_vector(text, did);
}

void job_hash_commit(struct job *job)
{
    struct buffer text = { 0 };

    if (job->bytes.size > 0) {
        crypto_sha256(job->bytes.at, job->bytes.size, job->sha256);
        return;
    }
    buffer_text(&text, job->is_leave ? "leave" : "change");
    for (uint32_t i = 0; i < job->add_count; i++)
        put_did(&text, 1, job->adds[i].did);
    for (uint32_t i = 0; i < job->remove_count; i++)
        put_did(&text, 2, job->removes[i]);
    if (text.failed == 0)
        crypto_sha256(text.bytes, text.size, job->sha256);
    else
        job->decoded.failed = text.failed;
    buffer_free(&text);
}

void job_respond(struct http_request *request, struct job *job)
{
    tr_assert(job->status != 0);
    if (job->status == 503 && job->is_in_doubt)
        http_respond_lost(request, SQL_EUNKNOWN, true, NULL);
    else if (job->status == 503 || job->status == 429)
        http_respond_shed(
            request, job->status, job->retry_after_s == 0 ? 1 : job->retry_after_s, job->label);
    else if (!delivery_may_answer(http_service(request), job->answer.size))
        http_respond_lost(
            request, TR_ENOMEM, job->status < 300 && http_method(request) != HTTP_GET, "answers");
    else if (job->answer.size > 0)
        http_respond_buffer(request, job->status,
            job->is_answer_mls ? "message/mls" : "application/json", &job->answer);
    else
        http_respond_error(request, job->status, job->label, job->text);
}

void job_message_drop(void *message)
{
    struct job *job = ((struct job_message *)message)->job;

    if (job != NULL && job->kind == JOB_SUBSCRIBE)
        http_stream_end(job->stream, NULL, 1013);
    job_unref(job);
}
