/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo/notice.h"

#include "services/delivery/convo/job.h"

void notice_tell(const struct delivery *delivery, struct span convo_id, const struct notice *notice)
{
    struct job_message message;
    struct job *job;
    tr_sender convo;

    if (tr_registry_find(delivery->convos, convo_id.at, convo_id.size, "a notice", &convo) < 0)
        return;
    message = (struct job_message){ .job = job_new(JOB_NOTICE, NULL) };
    job = message.job;
    if (job != NULL) {
        buffer_span(&job->decoded, notice->did);
        buffer_span(&job->decoded, notice->device);
        job->notice = notice->kind;
        job->target = (struct span){ job->decoded.bytes, notice->did.size };
        if (notice->device.size > 0)
            job->device =
                (struct span){ job->decoded.bytes + notice->did.size, notice->device.size };
        if (job->decoded.failed != 0 || tr_tell(convo, &message, sizeof message) < 0)
            job_unref(job);
    }
    tr_sender_drop(&convo);
}
