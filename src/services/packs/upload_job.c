/* SPDX-License-Identifier: Apache-2.0 */
/* upload_job.c: a step of an upload on its way between connection and actor, and the names of
 * encodings. */
#include "base/alloc.h"
#include "base/assert.h"
#include "services/packs/edit.h"
#include "services/packs/upload.h"

const char *upload_encoding_name(enum upload_encoding encoding)
{
    return encoding == UPLOAD_ZSTD ? "zstd" : encoding == UPLOAD_GZIP ? "gzip" : NULL;
}

bool upload_encoding_parse(struct span name, enum upload_encoding *ret_encoding)
{
    if (span_is(name, "zstd"))
        *ret_encoding = UPLOAD_ZSTD;
    else if (span_is(name, "gzip"))
        *ret_encoding = UPLOAD_GZIP;
    else
        return false;
    return true;
}

size_t upload_write_size(uint64_t offset, size_t size)
{
    return size < UPLOAD_PIECE ? size : size - (size_t)((offset + size) % UPLOAD_PIECE);
}

struct upload_job *upload_job_create(enum upload_action action)
{
    struct upload_job *job = base_calloc(sizeof *job);

    if (job == NULL)
        return NULL;
    atomic_init(&job->holders, 1);
    job->action = action;
    return job;
}

struct upload_job *upload_job_ref(struct upload_job *job)
{
    atomic_fetch_add_explicit(&job->holders, 1, memory_order_relaxed);
    return job;
}

void upload_job_unref(struct upload_job *job)
{
    if (job == NULL || atomic_fetch_sub_explicit(&job->holders, 1, memory_order_acq_rel) != 1)
        return;
    tr_assert(job->next == NULL);
    buffer_free(&job->bytes);
    edit_unref(job->edit);
    base_free(job);
}
