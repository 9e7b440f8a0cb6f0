/* SPDX-License-Identifier: Apache-2.0 */
/* refresh_api.c: groupInfoRefresh: a member that wants to come back by an external commit asks the
 * others for a group info of the current epoch. Who listens hears it, and brings one with
 * updateGroupInfo; nobody hears it later, so the answer says how many did. */
#include "json/json_write.h"
#include "services/delivery/api.h"

static void refresh_answered(struct http_request *request, const struct tr_event *event)
{
    struct job *job = api_job(request, event);
    struct json_writer writer;

    if (job == NULL)
        return;
    writer = json_writer(&job->answer);
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "requested", job->count > 0);
    json_put_int(&writer, "activeMembers", (int64_t)job->count);
    json_put_end(&writer);
    job_respond(request, job);
    api_end(request);
}

void api_group_info_refresh(struct http_request *request)
{
    struct api_body body;

    if (!api_begin(request, JOB_REFRESH, &body))
        return;
    body.job->convo = json_need_string(&body.expect, "convoId", 1, JOB_CONVO_SIZE_MAX);
    api_send(request, &body, refresh_answered);
}
