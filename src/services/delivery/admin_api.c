/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/admin_api.h"

#include <string.h>

#include "base/alloc.h"
#include "services/delivery/delivery.h"
#include "services/delivery/job.h"

/* Actors are made for what is asked for: this one found nothing to load. In JSON a quote inside a
 * text has a backslash before it, so this is no part of an id. */
static bool is_there(const struct job *job)
{
    static const char none[] = ",\"exists\":false,";

    return memmem(job->answer.bytes, job->answer.size, none, sizeof none - 1) == NULL;
}

static void state_told(struct http_request *request, const struct tr_event *event)
{
    struct job *job = http_user(request);

    if (event->status < 0 || job->status == 0 || job->answer.failed != 0)
        http_respond_shed(request, 503, 1, "conversation");
    else if (job->status == 200 && !is_there(job))
        http_respond_error(request, 404, "ConvoNotFound", "there is no such conversation");
    else
        job_respond(request, job);
    job_unref(job);
}

/* NULL when out of memory. */
static struct job *new_job(struct tr_span id)
{
    struct job *job = job_new(JOB_STATE, NULL);

    if (job == NULL)
        return NULL;
    job->body = tr__alloc(id.size);
    if (job->body == NULL) {
        job_unref(job);
        return NULL;
    }
    memcpy(job->body, id.at, id.size);
    job->convo = (struct tr_span){ job->body, id.size };
    return job;
}

/* Takes one holder of the job if it returns 0. */
static int ask(struct http_request *request, const struct delivery *delivery, struct job *job)
{
    struct job_message message = { .job = job };
    tr_sender convo;
    int rc = tr_registry_get(delivery->convos, job->convo.at, job->convo.size, "admin", &convo);

    if (rc < 0)
        return rc;
    rc = http_ask(request, convo, &message, sizeof message, state_told);
    tr_sender_drop(&convo);
    return rc;
}

static void show_convo(struct http_request *request, void *state, struct tr_span id)
{
    struct job *job;

    if (id.size == 0 || id.size > JOB_CONVO_SIZE_MAX) {
        http_respond_error(request, 400, "InvalidRequest", "an id has 1 to 128 bytes");
        return;
    }
    job = new_job(id);
    if (job != NULL) {
        http_set_user(request, job);
        if (ask(request, state, job_ref(job)) == 0)
            return;
        job_unref(job);
        job_unref(job);
    }
    http_respond_shed(request, 503, 1, "busy");
}

static void handle_path(struct http_request *request, void *state)
{
    show_convo(request, state, http_path_part(request, "id"));
}

static void handle_query(struct http_request *request, void *state)
{
    struct tr_span id = { NULL, 0 };

    (void)http_parameter(request, "id", &id);
    show_convo(request, state, id);
}

const struct service_admin_route delivery_admin_routes[DELIVERY_ADMIN_ROUTES] = {
    { .method = HTTP_GET, .path = "/v1/convos/{id}", .handle = handle_path },
    { .method = HTTP_GET, .path = "/v1/convos", .handle = handle_query },
};
